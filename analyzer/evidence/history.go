package evidence

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// Past configures which history is queried.
type Past struct {
	// Span is the time that the windows are from, Windows how many there are in it.
	Span    time.Duration
	Windows int
	// Search is how far back a calm time is looked for.
	Search time.Duration
}

// defaultPast suffices for a baseline and costs as much as a few cycles.
var defaultPast = Past{Span: 10 * time.Minute, Windows: 20, Search: 24 * time.Hour}

// recallPatience is that: what it has by then has to do.
const recallPatience = time.Minute

// A time is calm when no verdict was open from calmAround before it to calmAround
// after it: so long it may take to open one.
const calmAround = 30 * time.Second

// History has the delays of past windows, from which baselines are made.
type History struct {
	// Until is the newest moment that was asked about.
	Until time.Time
	// Flows are the delays of windows, oldest first.
	Flows map[fabric.Flow]Delays
	// Expected is the largest number of directed flows counted at a time in the last
	// ten minutes.
	Expected int
	// AlwaysSuspect means that verdicts were open during all of the queried past.
	AlwaysSuspect bool
}

// PastHour has the delays of an hour of a past day.
type PastHour struct {
	Start time.Time
	// Flows are the delays of windows ten minutes apart, and Before those of one window some hours before them.
	Flows, Before map[fabric.Flow]Delays
}

// pastHourStep is the time between two windows of a past hour. The first window ends half of it after the start.
const pastHourStep = 10 * time.Minute

// Delays are medians and 99th percentiles of windows, in nanoseconds, and the kind of their timestamps.
type Delays struct {
	P50, P99  []int64
	Timestamp string
}

// HistoryQueries lists the questions about history by name, as Queries does.
// The series of scraped analyzers show whether a verdict was open.
func (s Settings) HistoryQueries() map[string]string {
	return s.expandQueries(defaultHistoryQueries(), "")
}

func defaultHistoryQueries() map[string]string {
	const open = `max(fabric_verdict_state{scope="fabric", state="suspect"})`
	return map[string]string{
		"pastWatched":  `count_over_time(` + open + `$search)`,
		"pastCalm":     `max_over_time((time() + (` + open + ` == 0))$search)`,
		"pastCalmly":   `max_over_time(` + open + `$calm) == 0`,
		"pastExpected": `max_over_time(count(count by ($flow, direction) (fabric_probe_sent_total{class!="csig", $only}))[10m:30s])`,
	}
}

// RecallHistory reads the delays of past windows. Rules:
//
//  7. Only calm times count, which are at least half a minute before and after any open
//     verdict. The span ends in the newest calm time within Past.Search, since an incident
//     may have lasted longer than the span, and longer than the analyzer.
//  8. If no analyzer was running, the span before now counts. Its median is normal unless a
//     fault has lasted for half of it.
//  9. If verdicts were open all the time, no time counts.
//  10. It fails if the server does not respond. Windows that the server does not return in
//     time are missing from the history.
func RecallHistory(ctx context.Context, db Querier, s Settings, now time.Time) (History, error) {
	ctx, cancel := context.WithTimeout(ctx, recallPatience)
	defer cancel()
	var offset time.Duration
	if c, ok := db.(Clocked); ok {
		var err error
		if offset, err = c.ClockOffset(ctx); err != nil {
			return History{}, fmt.Errorf("cannot read the server's time: %w", err)
		}
	}
	h := History{Until: now.Add(-s.CurrentLag()), Flows: map[fabric.Flow]Delays{}}
	queries := s.HistoryQueries()
	there := now.Add(offset)
	first, _, err := s.runQueries(ctx, db, []timedQuery{{"pastWatched", queries["pastWatched"], there}, {"pastCalm", queries["pastCalm"], there}, {"pastExpected", queries["pastExpected"], there}})
	if err != nil {
		return h, err
	}
	for _, v := range first["pastExpected"] {
		h.Expected = int(v.Value)
	}
	watched := len(first["pastWatched"]) > 0
	for _, v := range first["pastCalm"] {
		calm := time.UnixMilli(int64(v.Value * 1e3)).Add(-offset - calmAround)
		if calm.Before(h.Until) {
			h.Until = calm
		}
	}
	if h.AlwaysSuspect = watched && len(first["pastCalm"]) == 0; h.AlwaysSuspect {
		return h, nil
	}
	for i := range s.Past.Windows {
		at := h.Until.Add(offset - s.Past.Span*time.Duration(i)/time.Duration(s.Past.Windows))
		if err := s.addPastWindow(ctx, db, at, watched, h.Flows); err != nil {
			break
		}
	}
	for _, past := range h.Flows {
		slices.Reverse(past.P50)
		slices.Reverse(past.P99)
	}
	return h, nil
}

// RecallHour reads the delays of the hour that began at a past moment, and those of one window so long before it. The
// server gets one query at a time. It fails if the server does not respond in time.
func RecallHour(ctx context.Context, db Querier, s Settings, start time.Time, before time.Duration) (PastHour, error) {
	ctx, cancel := context.WithTimeout(ctx, recallPatience)
	defer cancel()
	h := PastHour{Start: start, Flows: map[fabric.Flow]Delays{}, Before: map[fabric.Flow]Delays{}}
	s.Parallel = 1
	var offset time.Duration
	if c, ok := db.(Clocked); ok {
		var err error
		if offset, err = c.ClockOffset(ctx); err != nil {
			return h, fmt.Errorf("cannot read the server's time: %w", err)
		}
	}
	middle := start.Add(offset + time.Hour/2)
	if err := s.addPastWindow(ctx, db, middle.Add(-before), false, h.Before); err != nil || len(h.Before) == 0 {
		return h, err
	}
	for at := pastHourStep / 2; at < time.Hour; at += pastHourStep {
		if err := s.addPastWindow(ctx, db, start.Add(offset+at), false, h.Flows); err != nil {
			return h, err
		}
	}
	return h, nil
}

// addPastWindow adds the delays of the window that ended at a moment of the server's.
func (s Settings) addPastWindow(ctx context.Context, db Querier, at time.Time, watched bool, flows map[fabric.Flow]Delays) error {
	if watched {
		calm, _, err := s.runQueries(ctx, db, []timedQuery{{"pastCalmly", s.HistoryQueries()["pastCalmly"], at.Add(calmAround)}})
		if err != nil || len(calm["pastCalmly"]) == 0 {
			return err
		}
	}
	queries := s.WindowQueries()
	answers, _, err := s.runQueries(ctx, db, []timedQuery{{"count", queries["count"], at}, {"p50", queries["p50"], at}, {"p99", queries["p99"], at}})
	if err != nil {
		return err
	}
	for k, c := range gatherFlows(eachNumber(answers)) {
		if k.class == fabric.ClassCSIG {
			continue
		}
		for direction := range window.Directions {
			var o fabric.Observation
			if !c.FillDelays(&o, direction) {
				continue
			}
			e := k.edge
			e.Reply = direction == window.Reverse
			past := flows[e]
			past.P50, past.Timestamp = append(past.P50, *o.OWD.P50), o.Timestamp
			if o.OWD.P99 != nil {
				past.P99 = append(past.P99, *o.OWD.P99)
			}
			flows[e] = past
		}
	}
	return nil
}
