package analyzer

import (
	"context"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Counts are what a loop did since its start.
type Counts struct {
	Cycles  uint64 // with evidence
	Failed  uint64 // without
	Skipped uint64 // moments that none was for, since the one before took too long
	// TracesDropped are questions for paths that found the queue full.
	TracesDropped uint64
	// Last is how long the last cycle took.
	Last time.Duration
}

// Counts returns what the loop did until now.
func (l *Loop) Counts() Counts {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.counts
}

// turn runs the cycle of a moment. before is that of the last one, zero at first.
func (l *Loop) turn(now, before time.Time, interval time.Duration, step func() error) {
	began := time.Now()
	err := step()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Last = time.Since(began)
	if err == nil {
		l.counts.Cycles++
	} else {
		l.counts.Failed++
	}
	if !before.IsZero() {
		if late := int64(now.Sub(before)+interval/2) / int64(interval); late > 1 {
			l.counts.Skipped += uint64(late - 1)
		}
	}
}

// blindFor says why an incident is held while there is no evidence.
const blindFor = "there is no evidence at the moment"

// blind takes note of a cycle without evidence (rule 1).
func (l *Loop) blind(err error) {
	l.unseen = true
	for _, in := range l.open {
		in.Held = blindFor
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	incidents := append([]Incident(nil), l.snap.Incidents...)
	for i := range incidents {
		if incidents[i].Open {
			incidents[i].Held = blindFor
		}
	}
	l.snap.Incidents = incidents
	l.snap.CycleError = err.Error()
	l.snap.Report.Coverage = fabric.Coverage{}
	l.snap.Scopes = blindScopes(l.snap.Scopes)
	if l.snap.Report.State == fabric.Innocent {
		l.snap.Report.State = fabric.InsufficientEvidence
	}
}

// slowest is how long a cycle may take before what comes after it is after a gap:
// cycles that are all slow confirm, in their time.
const slowest = time.Minute

// see forgets, at the first evidence after a gap, what only counts in consecutive
// windows (rule 2).
func (l *Loop) see(now time.Time) {
	last, gap := l.seenAt, slowest
	if l.unseen {
		gap = (confirmIn + 1) * max(cycle, l.o.Settings.Scrape)
	}
	l.seenAt, l.unseen = now, false
	if last.IsZero() || now.Sub(last) <= gap {
		return
	}
	for _, m := range l.edges {
		m.recent, m.lastSent, m.lastLost, m.hard = nil, 0, 0, nil
	}
	clear(l.cand)
	l.history = classify.NewHistory(l.o.every())
	for _, in := range l.open {
		if in.Kind == fabric.KindClock {
			in.LastSeen = now // it must be seen to be steady
		}
	}
}

// How long flows are remembered, in cycles: those of expectFor are expected, and
// baselines outlive forgetAfter.
const (
	expectFor   = 600
	forgetAfter = 6 * 3600
)

// expect takes the number of directed flows that are counted now, and returns how
// many there should be (rule 3).
func (l *Loop) expect(flows int) int {
	if l.o.Expected > 0 {
		return l.o.Expected
	}
	if l.flows = append(l.flows, flows); len(l.flows) > expectFor {
		l.flows = l.flows[1:]
	}
	most := 0
	for _, n := range l.flows {
		most = max(most, n)
	}
	return most
}

// observed reports whether most of the flows that showed an incident tell of
// themselves in this cycle; those that are not expected any more do not count (rule 4). Of
// those that were not asked about, enough others must speak.
func (l *Loop) observed(in *Incident, tells map[fabric.Edge]bool) bool {
	here, gone, unasked := 0, 0, 0
	for _, s := range in.Edges {
		e, err := fabric.ParseEdge(s)
		if err != nil {
			continue
		}
		m := l.edges[e]
		switch {
		case tells[e]:
			here++
		case !l.asking.asked(e):
			unasked++
		case m != nil && l.cycle-m.cycle <= expectFor:
			gone++
		}
	}
	return here >= gone && here >= min(unasked, enough)
}

// forget drops what is remembered of flows that were not seen for long.
func (l *Loop) forget() {
	for e, m := range l.edges {
		if l.cycle-m.cycle > forgetAfter {
			m.flow = nil
			delete(l.edges, e)
		}
	}
}

// recall asks what was normal, until it is told: a loop that began without would learn
// from what is wrong now (rule 6).
func (l *Loop) recall(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		h, err := l.o.Recall(ctx)
		if err == nil {
			l.seed(h)
			return
		}
		if ctx.Err() == nil {
			l.o.Log.Error("what was normal", "err", err)
		}
		l.blind(err)
		l.mu.Lock()
		l.counts.Failed++
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// seed takes what was normal. Of flows with fewer windows than make a baseline they
// are the first that it will be made of.
func (l *Loop) seed(h evidence.History) {
	for e, past := range h.Flows {
		m := l.memory(e)
		m.p50, m.p99, m.seen = past.P50, past.P99, warmUp
		if len(m.p50) >= learnWindows {
			m.rebase()
		}
	}
	l.flows = append(l.flows, h.Expected)
	switch {
	case len(h.Flows) > 0:
		l.o.Log.Info("what is normal is known from history", "flows", len(h.Flows), "until", h.Until)
	case h.Suspect:
		l.o.Log.Warn("what is normal is learnt from now on, though something was suspect as far back as history was asked for")
	default:
		l.o.Log.Info("what is normal is learnt from now on: there is no history")
	}
}

// Inherit takes over what a loop knew that has stopped: baselines, the incidents of
// elements that are still there, and what it showed last. It is called before Run.
func (l *Loop) Inherit(old *Loop) {
	if l.o.Maintenance != nil && old.o.Maintenance != nil {
		l.o.Maintenance.Inherit(old.o.Maintenance)
	}
	l.touched, l.asking, l.refused = old.touched, old.asking, old.refused
	l.edges, l.flows, l.cycle, l.past, l.counts, l.seenAt, l.watch = old.edges, old.flows, old.cycle, old.past, old.counts, old.seenAt, old.watch
	l.history, l.snap, l.touched = old.history, old.snap, old.touched
	for _, in := range old.open {
		if has(l.o.Graph, in.Element) {
			l.open = append(l.open, in)
			continue
		}
		t := old.snap.At
		in.Open, in.Cleared, in.Closed = false, &t, "the topology has it no more"
		l.past = append(l.past, in)
	}
}

// has reports whether an element is part of a topology.
func has(g *fabric.Graph, e fabric.Element) bool {
	if e.Kind == fabric.KindNIC || e.Kind == fabric.KindClock {
		return g.NIC(e.Element) != nil
	}
	if a, b, ok := fabric.SplitLink(e.Element); ok {
		return g.Peer(a) == b
	}
	for _, part := range strings.Split(e.Element, "->") {
		if len(g.Ends(fabric.OwnerOf(part))) == 0 {
			return false
		}
	}
	return true
}
