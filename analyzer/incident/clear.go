package incident

import (
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

const (
	// clockSteady is the time for which a clock that moved must have been steady before its
	// verdict clears (rule 5). It is at least clearAfter cycles.
	clockSteady = 10 * time.Second
	// clearAfter consecutive cycles that do not name an element, with healthy flows through
	// it, clear it (rule 4).
	clearAfter = 4
	// SpanningClearAfter applies to faults that come and go, since they are not over when they pause.
	SpanningClearAfter = 8
	// EnoughFlows is the number of flows that must be decided to clear an incident, or to distinguish two elements, when
	// not all that could are queried.
	EnoughFlows = 16
)

// shouldClear reports whether an incident that the report no longer names is over. That needs healthy probes that
// cross the element by a path traced since it opened. An element that nothing crosses stays suspect. It sets Held
// or Closed to the reason.
func (t *Tracker) shouldClear(in *Incident, m *Moment) bool {
	if in.Evidence.Reported {
		in.Closed = "healed: the fabric no longer reports it"
		return true
	}
	if in.Kind == fabric.KindClock {
		in.Closed = "the clock is steady again"
		return m.Now.Sub(in.LastSeen) >= max(clockSteady, clearAfter*t.opts.Settings.CycleInterval())
	}
	in.unnamedCycles++
	if in.unnamedCycles < clearAfter || classify.SpansWindows(in.Scenario) && in.unnamedCycles < SpanningClearAfter {
		return false
	}
	clean, bad := 0, 0
	for i := range m.Findings {
		f := &m.Findings[i]
		known := f.Obs.PathState == fabric.PathValid || f.Obs.Sprayed
		if !known || !f.Obs.PathSince.After(in.OpenedAt) || f.Flow.IsTemporary() {
			continue
		}
		src, dst := f.Flow.Endpoints()
		crosses := in.CrossedBy(f.Obs.Path, src, dst)
		if f.Obs.Sprayed {
			crosses = slices.ContainsFunc(f.Obs.Paths, func(p fabric.Path) bool { return in.CrossedBy(p, src, dst) })
		}
		if !crosses {
			continue
		}
		switch f.Condition {
		case judge.Healthy:
			clean++
		case judge.Degraded:
			bad++
		}
	}
	switch {
	case clean == 0:
		in.Held = "no healthy probe has crossed it since, so it appears unused"
		return false
	case bad > clean:
		in.Held = "flows that cross it are still degraded"
		return false
	case !in.mostlyObserved(m):
		in.Held = "most of the flows that showed it have no evidence"
		return false
	}
	in.Closed = "healed: probes that cross it are clean again"
	return true
}

// mostlyObserved reports whether most of the flows that showed an incident are decided in this cycle. Flows that are no
// longer expected do not count. For flows that were not queried, enough others must be decided.
func (in *Incident) mostlyObserved(m *Moment) bool {
	decided := m.decidedFlows()
	here, gone, unasked := 0, 0, 0
	for _, s := range in.Edges {
		e, err := fabric.ParseFlow(s)
		if err != nil {
			continue
		}
		switch {
		case decided[e]:
			here++
		case !m.Flows.IsQueried(e):
			unasked++
		case m.Flows.IsExpected(e):
			gone++
		}
	}
	return here >= gone && here >= min(unasked, EnoughFlows)
}

// decidedFlows returns the flows that this cycle found healthy or degraded.
func (m *Moment) decidedFlows() map[fabric.Flow]bool {
	decided := map[fabric.Flow]bool{}
	for i := range m.Findings {
		if m.Findings[i].Condition != judge.Undecided {
			decided[m.Findings[i].Flow] = true
		}
	}
	return decided
}

// couldDistinguish reports whether undecided flows with a baseline could distinguish the element of a verdict from
// its equivalents, because they cross some of these elements and not all.
func couldDistinguish(v *fabric.Verdict, m *Moment) bool {
	if len(v.SameFlowEquivalents) == 0 {
		return false
	}
	decided := m.decidedFlows()
	named := fabric.DirectedElement{Element: v.Element}
	named.Direction, _ = fabric.ParseDirection(v.Direction)
	crossed, unasked, known := map[fabric.Flow]int{}, map[fabric.Flow]int{}, map[fabric.Flow]int{}
	for _, p := range append([]fabric.DirectedElement{named}, v.SameFlowEquivalents...) {
		for _, e := range m.Flows.FlowsCrossing(p.Element) {
			if !m.Flows.HasBaseline(e) || decided[e] && m.Flows.QueriesAll() {
				continue
			}
			by := crossed
			switch {
			case decided[e]:
				by = known
			case !m.Flows.IsQueried(e):
				by = unasked
			}
			path, _, _ := m.Flows.CurrentPath(e)
			src, dst := e.Endpoints()
			if p.Direction == (fabric.Direction{}) || slices.Contains(path.LinkDirections(src, dst), p.Direction) {
				by[e]++
			}
		}
	}
	some := func(of map[fabric.Flow]int) (flows int) {
		for _, n := range of {
			if n <= len(v.SameFlowEquivalents) {
				flows++
			}
		}
		return flows
	}
	// Flows that were not queried will be, unless enough others are decided.
	return some(crossed) > 0 || some(unasked) > 0 && some(known) < EnoughFlows
}
