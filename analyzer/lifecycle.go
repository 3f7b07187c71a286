package analyzer

import (
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

// Incident represents a verdict over time: opened, held and cleared, under one identifier.
type Incident struct {
	fabric.Verdict
	Open     bool       `json:"open"`
	OpenedAt time.Time  `json:"opened_at"`
	LastSeen time.Time  `json:"last_seen"`
	Cleared  *time.Time `json:"cleared_at,omitempty"`
	// Closed is the reason why it was closed: healed, or replaced by a better explanation.
	Closed string `json:"closed,omitempty"`
	// Held is the reason why an open incident without fresh symptoms is not cleared.
	Held string `json:"held,omitempty"`
	// Recalled means that it ended before the analyzer started. Its published series are known, but neither
	// its flows nor its causes.
	Recalled bool `json:"recalled,omitempty"`

	unnamedCycles int
	crossingFlows map[fabric.Flow]bool // the flows that crossed it when it opened
	// suggestedCauses are the causes that the probes alone suggest. telemetryCause is the attribution from
	// the element's series.
	suggestedCauses []string
	telemetryCause  *fabric.Attribution
	// symptomSeverity is the severity by the symptom alone. affectedJobs are the affected jobs since it opened.
	symptomSeverity string
	affectedJobs    map[string]bool
}

type pendingSuspect struct {
	verdict     fabric.Verdict
	firstSeen   time.Time
	namedCycles int
	lastCycle   int
}

// trackIncidents opens, refreshes, holds and clears incidents.
func (l *Loop) trackIncidents(rep fabric.Report, findings []judge.Finding, pending int, now time.Time) {
	named := map[fabric.Element]bool{}
	replaced := map[*Incident]fabric.Verdict{}
	for _, v := range rep.Verdicts {
		named[v.Element] = true
		if in := l.openFor(v); in != nil {
			named[in.Element] = true
			if in.supersededBy(v) {
				replaced[in] = v
			} else {
				l.refreshIncident(in, v, now)
			}
			continue
		}
		c := l.pendingSuspects[v.Element]
		if c == nil || c.lastCycle != l.cycle-1 {
			c = &pendingSuspect{firstSeen: v.FirstSeen}
			l.pendingSuspects[v.Element] = c
		}
		c.verdict, c.lastCycle = v, l.cycle
		c.namedCycles++
		need := openAfter
		// Clean flows through a dead element mean that not all flows have fresh evidence yet.
		switch {
		case v.Kind == fabric.KindHost, v.Kind == fabric.KindCorridor, v.Kind == fabric.KindPair:
			// A host may stall for a moment. An element that only a few flows share may turn out to be a
			// link, once the others have evidence.
			need = openAnyway
		case v.Scenario == fabric.HardFailure && v.Evidence.ContraryEdges == 0, v.Scenario == fabric.Miscabled:
			need = hardOpenAfter
		}
		if v.Evidence.DegradedEdges == 0 && v.Kind != fabric.KindClock && v.Scenario != fabric.Miscabled && c.namedCycles < softOpenAfter {
			continue
		}
		settled := pending*4 <= rep.Edges.Degraded || v.Kind == fabric.KindClock || v.Scenario == fabric.Miscabled
		if c.namedCycles < openAnyway && (c.namedCycles < need || !settled) {
			continue
		}
		apart := distinguishCycles
		if v.Scenario == fabric.HardFailure {
			apart = hardDistinguishCycles
		}
		if c.namedCycles >= apart || !l.couldDistinguish(v, findings) {
			l.openIncident(c, now)
		}
	}
	for el, c := range l.pendingSuspects {
		if c.lastCycle != l.cycle {
			delete(l.pendingSuspects, el)
		}
	}
	var still []*Incident
	var better []*pendingSuspect
	for _, in := range l.openIncidents {
		v, yes := replaced[in]
		if yes {
			better = append(better, &pendingSuspect{verdict: v, firstSeen: in.FirstSeen})
			in.Closed = "replaced: the evidence now names " + v.Element.ID
		}
		if yes || !named[in.Element] && l.shouldClear(in, findings, now) {
			t := now
			in.Open, in.Cleared = false, &t
			l.pastIncidents = append(l.pastIncidents, in)
			l.opts.Log.Info("cleared verdict", "element", in.Element.ID, "why", in.Closed)
			continue
		}
		still = append(still, in)
	}
	l.openIncidents = still
	for _, c := range better {
		l.openIncident(c, now)
	}
	l.endResume(now)
	const keepPast = 1000
	if len(l.pastIncidents) > keepPast {
		l.pastIncidents = l.pastIncidents[len(l.pastIncidents)-keepPast:]
	}
}

// couldDistinguish reports whether undecided flows with a baseline could distinguish the element of a verdict from
// its equivalents, because they cross some of these elements and not all.
func (l *Loop) couldDistinguish(v fabric.Verdict, findings []judge.Finding) bool {
	if len(v.SameFlowEquivalents) == 0 {
		return false
	}
	decided := map[fabric.Flow]bool{}
	for i := range findings {
		if findings[i].Condition != judge.Undecided {
			decided[findings[i].Flow] = true
		}
	}
	named := fabric.DirectedElement{Element: v.Element}
	named.Direction, _ = fabric.ParseDirection(v.Direction)
	crossed, unasked, known := map[fabric.Flow]int{}, map[fabric.Flow]int{}, map[fabric.Flow]int{}
	for _, p := range append([]fabric.DirectedElement{named}, v.SameFlowEquivalents...) {
		for _, e := range l.store.FlowsCrossing(p.Element) {
			m := l.flowRecords[e]
			if m == nil || m.baseline == nil || decided[e] && l.planner.current == nil {
				continue
			}
			by := crossed
			switch {
			case decided[e]:
				by = known
			case !l.planner.isQueried(e):
				by = unasked
			}
			b, _ := l.store.CurrentBinding(e)
			src, dst := e.Endpoints()
			if p.Direction == (fabric.Direction{}) || slices.Contains(b.Path.LinkDirections(src, dst), p.Direction) {
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
	return some(crossed) > 0 || some(unasked) > 0 && some(known) < enoughFlows
}

// supersededBy reports whether a verdict names an equivalent of an incident's element, distinguishes the two, and has
// no less evidence. The fault is at the equivalent then.
func (in *Incident) supersededBy(v fabric.Verdict) bool {
	alike := slices.ContainsFunc(in.SameFlowEquivalents, func(p fabric.DirectedElement) bool { return p.Element == v.Element })
	return alike && !slices.Contains(v.Equivalent, in.Element) && v.Evidence.ExplainedEdges >= in.Evidence.ExplainedEdges
}

// openFor returns the open incident that a verdict belongs to, or nil. It has the same element, or one that the
// evidence could not distinguish from it.
func (l *Loop) openFor(v fabric.Verdict) *Incident {
	for _, in := range l.openIncidents {
		if in.Element == v.Element || slices.Contains(in.Equivalent, v.Element) || slices.Contains(v.Equivalent, in.Element) {
			return in
		}
	}
	return nil
}

func (l *Loop) openIncident(c *pendingSuspect, now time.Time) {
	v := c.verdict
	v.FirstSeen = l.resumedFirstSeen(&v, c.firstSeen, now)
	v.ID = classify.VerdictID(v.Kind, v.Element.ID, v.FirstSeen)
	in := &Incident{Open: true, OpenedAt: now, LastSeen: now, crossingFlows: map[fabric.Flow]bool{}}
	in.adoptVerdict(v)
	for _, e := range l.store.FlowsCrossing(v.Element) {
		in.crossingFlows[e] = true
	}
	for _, s := range v.Edges {
		// The paths of flows are no evidence about a clock.
		if e, err := fabric.ParseFlow(s); err == nil && v.Kind != fabric.KindClock {
			in.crossingFlows[e] = true
		}
	}
	l.openIncidents = append(l.openIncidents, in)
	delete(l.pendingSuspects, v.Element)
	l.opts.Log.Warn("opened verdict", "element", v.Element.ID, "kind", v.Kind, "scenario", v.Scenario, "direction", v.Direction,
		"confidence", v.Confidence, "flows", v.Evidence.ExplainedEdges)
}

// refreshIncident adds fresh evidence to an open incident. Its scenario never becomes milder while it is open: a
// failure that routing avoids remains one, unless it turns out to be a flap. The evidence about a clock does not
// shrink either.
func (l *Loop) refreshIncident(in *Incident, v fabric.Verdict, now time.Time) {
	in.unnamedCycles, in.Held, in.LastSeen = 0, "", now
	if in.Kind == fabric.KindClock && v.Element == in.Element && v.Evidence.ExplainedEdges == 0 {
		// The flows showed the affected NICs. The node counts the change a little later, which gives the summary.
		in.Summary = v.Summary
		return
	}
	softer := v.Scenario != in.Scenario && (in.Scenario == fabric.HardFailure && v.Scenario != fabric.Flap || spansWindows(in.Scenario))
	if v.Element != in.Element || softer || v.Scenario == in.Scenario && v.Evidence.ExplainedEdges*2 < in.Evidence.ExplainedEdges {
		return
	}
	v.ID, v.FirstSeen = in.ID, in.FirstSeen
	in.adoptVerdict(v)
}

// shouldClear reports whether an incident that the report no longer names is over. That needs healthy probes that
// cross the element by a path traced since it opened. An element that nothing crosses stays suspect. It sets Held
// or Closed to the reason.
func (l *Loop) shouldClear(in *Incident, findings []judge.Finding, now time.Time) bool {
	if in.Scenario == fabric.Miscabled {
		in.Closed = "healed: the cables are where the topology has them"
		return true
	}
	if in.Kind == fabric.KindClock {
		in.Closed = "the clock is steady again"
		return now.Sub(in.LastSeen) >= max(clockSteady, clearAfter*l.opts.cycleInterval())
	}
	in.unnamedCycles++
	if in.unnamedCycles < clearAfter || spansWindows(in.Scenario) && in.unnamedCycles < spanningClearAfter {
		return false
	}
	clean, bad := 0, 0
	decided := map[fabric.Flow]bool{}
	for i := range findings {
		f := &findings[i]
		if f.Condition != judge.Undecided {
			decided[f.Flow] = true
		}
		if f.Obs.PathState != fabric.PathValid || !f.Obs.PathSince.After(in.OpenedAt) {
			continue
		}
		src, dst := f.Flow.Endpoints()
		if !in.CrossedBy(f.Obs.Path, src, dst) {
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
	case !l.mostlyObserved(in, decided):
		in.Held = "most of the flows that showed it have no evidence"
		return false
	}
	in.Closed = "healed: probes that cross it are clean again"
	return true
}
