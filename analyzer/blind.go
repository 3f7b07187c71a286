package analyzer

import (
	"context"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Counts holds the counters of a loop since its start.
type Counts struct {
	Cycles  uint64 // with evidence
	Failed  uint64 // without
	Skipped uint64 // left out, since the cycle before took too long
	// TracesDropped is the number of requests for traces that found the queue full.
	TracesDropped uint64
	// Last is the duration of the last cycle.
	Last time.Duration
}

// CycleCounts returns the counters of the loop.
func (l *Loop) CycleCounts() Counts {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.counts
}

// measureCycle runs the cycle of a moment, and counts it. before is the moment of the last cycle, and zero for the first one.
func (l *Loop) measureCycle(now, before time.Time, interval time.Duration, step func() error) {
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

// noEvidenceReason is the reason for which an incident is held while there is no evidence.
const noEvidenceReason = "no evidence is available at the moment"

// recordNoEvidence records a cycle without evidence (rule 1).
func (l *Loop) recordNoEvidence(err error) {
	l.missedEvidence = true
	for _, in := range l.openIncidents {
		in.Held = noEvidenceReason
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	incidents := append([]Incident(nil), l.snap.Incidents...)
	for i := range incidents {
		if incidents[i].Open {
			incidents[i].Held = noEvidenceReason
		}
	}
	l.snap.Incidents = incidents
	l.snap.CycleError = err.Error()
	l.snap.Report.Coverage = fabric.Coverage{}
	l.snap.Scopes = scopesWithoutEvidence(l.snap.Scopes)
	if l.snap.Report.State == fabric.Innocent {
		l.snap.Report.State = fabric.InsufficientEvidence
	}
}

// maxCycleGap is the longest cycle that is not a gap in the evidence. Consecutive slow cycles can still
// confirm a fault.
const maxCycleGap = time.Minute

// resetAfterGap forgets, at the first evidence after a gap, everything that counts only over consecutive
// windows (rule 2).
func (l *Loop) resetAfterGap(now time.Time) {
	last, gap := l.lastEvidenceAt, maxCycleGap
	if l.missedEvidence {
		gap = (confirmIn + 1) * max(defaultCycle, l.opts.Settings.Scrape)
	}
	l.lastEvidenceAt, l.missedEvidence = now, false
	if last.IsZero() || now.Sub(last) <= gap {
		return
	}
	for _, m := range l.flowRecords {
		m.recentConditions, m.lastSent, m.lastLost, m.hard = nil, 0, 0, nil
	}
	clear(l.pendingSuspects)
	l.history = classify.NewHistory(l.opts.cycleInterval())
	for _, in := range l.openIncidents {
		if in.Kind == fabric.KindClock {
			in.LastSeen = now // it has to be observed steady
		}
	}
}

// Lifetimes of flows in cycles. A flow seen in the last expectFor cycles is expected. Baselines are kept for
// forgetAfter cycles.
const (
	expectFor   = 600
	forgetAfter = 6 * 3600
)

// updateExpected adds the present number of directed flows, and returns the expected number (rule 3).
func (l *Loop) updateExpected(flows int) int {
	if l.opts.Expected > 0 {
		return l.opts.Expected
	}
	if l.flowCounts = append(l.flowCounts, flows); len(l.flowCounts) > expectFor {
		l.flowCounts = l.flowCounts[1:]
	}
	most := 0
	for _, n := range l.flowCounts {
		most = max(most, n)
	}
	return most
}

// mostlyObserved reports whether most of the flows that showed an incident are decided in this cycle (rule 4).
// Flows that are no longer expected do not count. For flows that were not queried, enough others must be
// decided.
func (l *Loop) mostlyObserved(in *Incident, decided map[fabric.Flow]bool) bool {
	here, gone, unasked := 0, 0, 0
	for _, s := range in.Edges {
		e, err := fabric.ParseFlow(s)
		if err != nil {
			continue
		}
		m := l.flowRecords[e]
		switch {
		case decided[e]:
			here++
		case !l.planner.isQueried(e):
			unasked++
		case m != nil && l.cycle-m.lastCycle <= expectFor:
			gone++
		}
	}
	return here >= gone && here >= min(unasked, enoughFlows)
}

// forgetFlows drops the records of flows that were not seen for forgetAfter cycles.
func (l *Loop) forgetFlows() {
	for e, m := range l.flowRecords {
		if l.cycle-m.lastCycle > forgetAfter {
			m.state = nil
			delete(l.flowRecords, e)
		}
	}
}

// recallBaselines reads the baselines from history, and repeats that until it succeeds. A loop that starts
// without them would learn from a present fault (rule 6).
func (l *Loop) recallBaselines(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		h, err := l.opts.Recall(ctx)
		if err == nil {
			l.seedBaselines(h)
			return
		}
		if ctx.Err() == nil {
			l.opts.Log.Error("cannot read baselines from history", "err", err)
		}
		l.recordNoEvidence(err)
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

// seedBaselines sets the baselines from history. Flows with too few windows for a baseline keep them as the
// first windows of one.
func (l *Loop) seedBaselines(h evidence.History) {
	for e, past := range h.Flows {
		m := l.recordFor(e)
		m.p50, m.p99, m.windowCount = past.P50, past.P99, warmUp
		if len(m.p50) >= learnWindows {
			m.recomputeBaseline()
		}
	}
	l.flowCounts = append(l.flowCounts, h.Expected)
	switch {
	case len(h.Flows) > 0:
		l.opts.Log.Info("read baselines from history", "flows", len(h.Flows), "until", h.Until)
	case h.AlwaysSuspect:
		l.opts.Log.Warn("learning baselines from now on although the queried history always had a suspect")
	default:
		l.opts.Log.Info("learning baselines from now on because there is no history")
	}
}

// InheritFrom takes over the state of a stopped loop: its baselines, its snapshot, and the incidents on elements
// that the topology still has. It is called before Run.
func (l *Loop) InheritFrom(old *Loop) {
	if l.opts.Maintenance != nil && old.opts.Maintenance != nil {
		l.opts.Maintenance.InheritFrom(old.opts.Maintenance)
	}
	l.touchedByWindow, l.planner, l.refusedTraces = old.touchedByWindow, old.planner, old.refusedTraces
	l.flowRecords, l.flowCounts, l.cycle, l.pastIncidents, l.counts, l.lastEvidenceAt, l.clockWatch = old.flowRecords, old.flowCounts, old.cycle, old.pastIncidents, old.counts, old.lastEvidenceAt, old.clockWatch
	l.history, l.snap, l.touchedByWindow = old.history, old.snap, old.touchedByWindow
	for _, in := range old.openIncidents {
		if hasElement(l.opts.Graph, in.Element) {
			l.openIncidents = append(l.openIncidents, in)
			continue
		}
		t := old.snap.At
		in.Open, in.Cleared, in.Closed = false, &t, "the topology no longer has the element"
		l.pastIncidents = append(l.pastIncidents, in)
	}
}

// hasElement reports whether an element is part of a topology.
func hasElement(g *fabric.Graph, e fabric.Element) bool {
	switch e.Kind {
	case fabric.KindNIC, fabric.KindClock:
		return g.NIC(e.ID) != nil
	case fabric.KindLink, fabric.KindAccessLink:
		a, b, ok := e.LinkEnds()
		return ok && g.PeerOf(a) == b
	case fabric.KindPair, fabric.KindCorridor:
		return !slices.ContainsFunc(e.Waypoints(), func(sw string) bool { return len(g.EndsOf(sw)) == 0 })
	}
	return len(g.EndsOf(fabric.OwnerOf(e.ID))) > 0
}
