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

// CycleCounts returns what the loop did until now.
func (l *Loop) CycleCounts() Counts {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.counts
}

// measureCycle runs the cycle of a moment. before is that of the last one, zero at first.
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

// noEvidenceReason says why an incident is held while there is no evidence.
const noEvidenceReason = "there is no evidence at the moment"

// recordNoEvidence takes note of a cycle without evidence (rule 1).
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

// maxCycleGap is how long a cycle may take before what comes after it is after a gap:
// cycles that are all slow confirm, in their time.
const maxCycleGap = time.Minute

// resetAfterGap forgets, at the first evidence after a gap, what only counts in consecutive
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

// updateExpected takes the number of directed flows that are counted now, and returns how
// many there should be (rule 3).
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

// mostlyObserved reports whether most of the flows that showed an incident tell of
// themselves in this cycle; those that are not expected any more do not count (rule 4). Of
// those that were not asked about, enough others must speak.
func (l *Loop) mostlyObserved(in *Incident, tells map[fabric.Flow]bool) bool {
	here, gone, unasked := 0, 0, 0
	for _, s := range in.Edges {
		e, err := fabric.ParseFlow(s)
		if err != nil {
			continue
		}
		m := l.flowRecords[e]
		switch {
		case tells[e]:
			here++
		case !l.planner.isQueried(e):
			unasked++
		case m != nil && l.cycle-m.lastCycle <= expectFor:
			gone++
		}
	}
	return here >= gone && here >= min(unasked, enoughFlows)
}

// forgetFlows drops what is remembered of flows that were not seen for long.
func (l *Loop) forgetFlows() {
	for e, m := range l.flowRecords {
		if l.cycle-m.lastCycle > forgetAfter {
			m.state = nil
			delete(l.flowRecords, e)
		}
	}
}

// recallBaselines asks what was normal, until it is told: a loop that began without would learn
// from what is wrong now (rule 6).
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
			l.opts.Log.Error("what was normal", "err", err)
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

// seedBaselines takes what was normal. Of flows with fewer windows than make a baseline they
// are the first that it will be made of.
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
		l.opts.Log.Info("what is normal is known from history", "flows", len(h.Flows), "until", h.Until)
	case h.AlwaysSuspect:
		l.opts.Log.Warn("what is normal is learnt from now on, though something was suspect as far back as history was asked for")
	default:
		l.opts.Log.Info("what is normal is learnt from now on: there is no history")
	}
}

// InheritFrom takes over what a loop knew that has stopped: baselines, the incidents of
// elements that are still there, and what it showed last. It is called before Run.
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
		in.Open, in.Cleared, in.Closed = false, &t, "the topology has it no more"
		l.pastIncidents = append(l.pastIncidents, in)
	}
}

// hasElement reports whether an element is part of a topology.
func hasElement(g *fabric.Graph, e fabric.Element) bool {
	if e.Kind == fabric.KindNIC || e.Kind == fabric.KindClock {
		return g.NIC(e.ID) != nil
	}
	if a, b, ok := fabric.SplitLink(e.ID); ok {
		return g.PeerOf(a) == b
	}
	for _, part := range strings.Split(e.ID, "->") {
		if len(g.EndsOf(fabric.OwnerOf(part))) == 0 {
			return false
		}
	}
	return true
}
