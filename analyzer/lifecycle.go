package analyzer

import (
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/internal/fabric"
)

// Incident is a verdict with its life.
type Incident struct {
	fabric.Verdict
	Open     bool       `json:"open"`
	OpenedAt time.Time  `json:"opened_at"`
	LastSeen time.Time  `json:"last_seen"`
	Cleared  *time.Time `json:"cleared_at,omitempty"`
	// Why it was closed: healed, or replaced by a better explanation.
	Closed string `json:"closed,omitempty"`
	// Held says why an open incident without fresh symptoms is not cleared.
	Held string `json:"held,omitempty"`
	// Recalled: it was over before the analyzer began, and only what was published of it is
	// known: neither its flows nor its causes.
	Recalled bool `json:"recalled,omitempty"`

	unnamedCycles int
	crossingFlows map[fabric.Flow]bool // the flows that crossed it when it opened
	// suggestedCauses are the causes that the probes alone suggest, answer is what the element's
	// series say.
	suggestedCauses []string
	telemetryCause  *fabric.Attribution
	// symptomSeverity is what the symptom alone makes it, hurt are the jobs since it opened.
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
		// Clean flows through what is said to be dead: not all have told yet.
		switch {
		case v.Kind == fabric.KindHost, v.Kind == fabric.KindCorridor, v.Kind == fabric.KindPair:
			// A host may stall for a moment. What only a few flows share may turn out to be
			// a link, once the others tell.
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
			l.opts.Log.Info("verdict cleared", "element", in.Element.ID, "why", in.Closed)
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

// couldDistinguish reports whether flows that have a baseline, but do not tell now,
// cross the element of a verdict and not all that look like it, or the reverse.
func (l *Loop) couldDistinguish(v fabric.Verdict, findings []judge.Finding) bool {
	if len(v.SameFlowEquivalents) == 0 {
		return false
	}
	tells := map[fabric.Flow]bool{}
	for i := range findings {
		if findings[i].Condition != judge.Undecided {
			tells[findings[i].Flow] = true
		}
	}
	named := fabric.DirectedElement{Element: v.Element}
	named.Direction, _ = fabric.ParseDirection(v.Direction)
	crossed, unasked, known := map[fabric.Flow]int{}, map[fabric.Flow]int{}, map[fabric.Flow]int{}
	for _, p := range append([]fabric.DirectedElement{named}, v.SameFlowEquivalents...) {
		for _, e := range l.store.FlowsCrossing(p.Element) {
			m := l.flowRecords[e]
			if m == nil || m.baseline == nil || tells[e] && l.planner.current == nil {
				continue
			}
			by := crossed
			switch {
			case tells[e]:
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
	// Who was not asked will be, but for those whom enough others speak for.
	return some(crossed) > 0 || some(unasked) > 0 && some(known) < enoughFlows
}

// supersededBy reports whether a verdict tells an incident's element from what looked
// like it when it opened, by no less evidence: it was the other one.
func (in *Incident) supersededBy(v fabric.Verdict) bool {
	alike := slices.ContainsFunc(in.SameFlowEquivalents, func(p fabric.DirectedElement) bool { return p.Element == v.Element })
	return alike && !slices.Contains(v.Equivalent, in.Element) && v.Evidence.ExplainedEdges >= in.Evidence.ExplainedEdges
}

// openFor finds the open incident that a verdict is about: the same element, or
// one that the evidence could not tell from it.
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
		// Where they go says nothing about a clock.
		if e, err := fabric.ParseFlow(s); err == nil && v.Kind != fabric.KindClock {
			in.crossingFlows[e] = true
		}
	}
	l.openIncidents = append(l.openIncidents, in)
	delete(l.pendingSuspects, v.Element)
	l.opts.Log.Warn("verdict", "element", v.Element.ID, "kind", v.Kind, "scenario", v.Scenario, "direction", v.Direction,
		"confidence", v.Confidence, "flows", v.Evidence.ExplainedEdges)
}

// refreshIncident takes fresh evidence into an open incident. Its scenario never
// softens while it is open: a failure that was routed around is still one, unless it
// turns out to come and go. Nor does a clock's evidence shrink.
func (l *Loop) refreshIncident(in *Incident, v fabric.Verdict, now time.Time) {
	in.unnamedCycles, in.Held, in.LastSeen = 0, "", now
	if in.Kind == fabric.KindClock && v.Element == in.Element && v.Evidence.ExplainedEdges == 0 {
		// The flows told whom it touched; its node, a little later, what it was.
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

// shouldClear decides whether an incident that the report no longer names is over:
// only probes that cross the element, by a path traced since it opened, and
// are healthy can say so. An element that nothing crosses stays suspect.
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
	tells := map[fabric.Flow]bool{}
	for i := range findings {
		f := &findings[i]
		if f.Condition != judge.Undecided {
			tells[f.Flow] = true
		}
		if f.Obs.PathState != fabric.PathValid || !f.Obs.PathSince.After(in.OpenedAt) {
			continue
		}
		src, dst := f.Flow.Endpoints()
		if !paths.CrossesElement(f.Obs.Path, src, dst, in.Element) {
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
		in.Held = "no healthy probe has crossed it since: the fabric shows it unused"
		return false
	case bad > clean:
		in.Held = "flows that cross it are still degraded"
		return false
	case !l.mostlyObserved(in, tells):
		in.Held = "most of the flows that showed it are not observed"
		return false
	}
	in.Closed = "healed: probes that cross it are clean again"
	return true
}
