package analyzer

import (
	"context"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/evidence"
)

// maxCycleGap is the longest cycle that is not a gap in the evidence. Consecutive slow cycles can still
// confirm a fault.
const maxCycleGap = time.Minute

// routesEvery is the interval at which the routes and sessions of a switch are read.
const routesEvery = time.Second

// Run runs a cycle every interval until ctx ends, and waits for the goroutines that it
// started.
func (l *Loop) Run(ctx context.Context, interval time.Duration) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { l.mesh.sources.Run(ctx) })
	wg.Go(func() { l.mesh.questions.Run(ctx) })
	if l.routes != nil {
		wg.Go(func() { l.routes.Run(ctx, routesEvery) })
	}
	if l.opts.Causes != nil {
		wg.Go(func() { l.incidents.Run(ctx) })
	}
	if l.baselines.IsEmpty() {
		if l.opts.Recall != nil {
			l.recallBaselines(ctx, interval)
		}
		if l.opts.RecallVerdicts != nil && ctx.Err() == nil {
			l.recallVerdicts(ctx)
		}
	}
	if l.opts.Shards != nil {
		wg.Go(func() { l.followShards(ctx) })
	}
	if l.opts.Signals {
		wg.Go(func() { l.followSignals(ctx) })
	}
	if l.opts.RecallHour != nil {
		wg.Go(func() { l.recallHours(ctx) })
	}
	var before time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(untilNext(time.Now(), interval)):
			// The tick may have waited for a slow cycle. The next one evaluates the present moment.
			now := time.Now()
			l.published.measureCycle(now, before, interval, func() error {
				err := l.RunCycle(ctx, now)
				if err != nil && ctx.Err() == nil {
					l.opts.Log.Error("cycle failed", "err", err)
				}
				return err
			})
			before = now
		}
	}
}

// untilNext returns the time until the next cycle. Cycles begin shortly after the multiples of the
// interval, which are the moments that they evaluate.
func untilNext(now time.Time, interval time.Duration) time.Duration {
	after := interval / 20
	return now.Add(-after).Truncate(interval).Add(interval + after).Sub(now)
}

// recallBaselines reads the baselines from history, and repeats that until it succeeds. A loop that starts
// without them would learn from a present fault (rule 6).
func (l *Loop) recallBaselines(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		h, err := l.opts.Recall(ctx)
		if err == nil {
			l.SeedBaselines(h)
			return
		}
		if ctx.Err() == nil {
			l.opts.Log.Error("cannot read baselines from history", "err", err)
		}
		l.recordNoEvidence(err)
		l.published.countFailure()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// SeedBaselines sets the baselines from history, as Run does before the first cycle.
func (l *Loop) SeedBaselines(h evidence.History) {
	own := 0
	for e, past := range h.Flows {
		l.baselines.SeedFlow(e, past.P50, past.P99)
		if l.opts.Part.OwnsFlow(e) {
			own++
		}
	}
	l.planner.AddFlowCount(h.Expected, own)
	switch {
	case len(h.Flows) > 0:
		l.opts.Log.Info("read baselines from history", "flows", len(h.Flows), "until", h.Until)
	case h.AlwaysSuspect:
		l.opts.Log.Warn("learning baselines from now on although the queried history always had a suspect")
	default:
		l.opts.Log.Info("learning baselines from now on because there is no history")
	}
}

// recallVerdicts reads the verdicts that were published before the loop started.
func (l *Loop) recallVerdicts(ctx context.Context) {
	all, err := l.opts.RecallVerdicts(ctx)
	if err != nil {
		if ctx.Err() == nil {
			l.opts.Log.Error("cannot read earlier verdicts from history", "err", err)
		}
		return
	}
	l.SeedVerdicts(all, time.Now())
}

// SeedVerdicts takes over the verdicts that were published before the moment now, as Run does before the first cycle.
func (l *Loop) SeedVerdicts(all []evidence.PastVerdict, now time.Time) {
	l.incidents.SeedVerdicts(all, now)
}

// recordNoEvidence records a cycle without evidence (rule 1).
func (l *Loop) recordNoEvidence(err error) {
	l.progress.missedEvidence = true
	l.incidents.HoldOpen()
	l.published.recordNoEvidence(err)
}

// resetAfterGap forgets, at the first evidence after a gap, everything that counts only over consecutive
// windows (rule 2).
func (l *Loop) resetAfterGap(now time.Time) {
	p, gap := &l.progress, maxCycleGap
	if p.missedEvidence {
		gap = (baseline.ConfirmWindows + 1) * max(time.Second, l.opts.Settings.Scrape)
	}
	last := p.lastEvidenceAt
	p.lastEvidenceAt, p.missedEvidence = now, false
	if last.IsZero() || now.Sub(last) <= gap {
		return
	}
	l.baselines.ResetConfirmation()
	l.evaluator.ResetAfterGap()
	l.incidents.ResetAfterGap(now)
}
