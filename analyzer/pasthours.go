package analyzer

import (
	"context"
	"math/bits"
	"time"

	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// recallAhead is how long before an hour begins its past is read.
const recallAhead = 20 * time.Minute

// pastHours are what was read of past days, so that an analyzer that was started again knows the hours of the day
// (rule 8 of package baseline). One goroutine reads them, and the cycles take them over.
type pastHours struct {
	read  uint32                 // hours of the day, as bits
	ready chan evidence.PastHour // with room for one
}

// nextHour returns the start of the next hour whose past was not read, and the time until it is to be read. It reports
// false if all were read.
func (p *pastHours) nextHour(now time.Time) (start time.Time, wait time.Duration, ok bool) {
	if bits.OnesCount32(p.read) == 24 {
		return start, 0, false
	}
	start = now.UTC().Truncate(time.Hour)
	for p.read&(1<<start.Hour()) != 0 {
		start = start.Add(time.Hour)
	}
	return start, max(0, start.Add(-recallAhead).Sub(now)), true
}

// recallHours reads the past of each hour of the day before it begins, once. It rests between two days for as long as the
// first one took.
func (l *Loop) recallHours(ctx context.Context) {
	p := &l.baselines.past
	for {
		start, wait, ok := p.nextHour(time.Now())
		if !ok || !sleepFor(ctx, wait) {
			return
		}
		for ago := baseline.RecallDays; ago > 0; ago-- {
			began := time.Now()
			h, err := l.opts.RecallHour(ctx, start.AddDate(0, 0, -ago), baseline.MaxSlowHours*time.Hour)
			if err != nil {
				if ctx.Err() == nil {
					l.opts.Log.Warn("cannot read an hour from history", "hour", start.AddDate(0, 0, -ago), "err", err)
				}
			} else if len(h.Flows) > 0 {
				select {
				case p.ready <- h:
				case <-ctx.Done():
				}
			}
			if !sleepFor(ctx, time.Since(began)) {
				return
			}
		}
		p.read |= 1 << start.Hour()
	}
}

// sleepFor waits, and reports whether the context is still valid.
func sleepFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// takePastHour takes over what was read of a past hour, if something was.
func (l *Loop) takePastHour() {
	select {
	case h := <-l.baselines.past.ready:
		l.SeedPastHour(&h)
	default:
	}
}

// SeedPastHour adds what flows showed in an hour of a past day, as the cycles of Run do.
func (l *Loop) SeedPastHour(h *evidence.PastHour) {
	for e, d := range h.Flows {
		if before, ok := h.Before[e]; ok {
			w := baseline.PastWindows{Start: h.Start, During: quantilesOf(&d), Before: quantilesOf(&before)[0], Timestamp: d.Timestamp}
			l.baselines.SeedHour(e, &w)
		}
	}
}

// quantilesOf returns the quantiles of past windows. They have no 99th percentile unless all windows do.
func quantilesOf(d *evidence.Delays) []fabric.Quantiles {
	out := make([]fabric.Quantiles, len(d.P50))
	for i := range out {
		out[i].P50 = &d.P50[i]
		if len(d.P99) == len(d.P50) {
			out[i].P99 = &d.P99[i]
		}
	}
	return out
}
