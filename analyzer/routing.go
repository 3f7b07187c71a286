package analyzer

import (
	"context"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// reviewRouting returns the faults of routing that hold, by the findings of a cycle and what switches report.
func (l *Loop) reviewRouting(ctx context.Context, rep *fabric.Report, findings []judge.Finding, now time.Time) []routing.Finding {
	m := &routing.Moment{Now: now, CarrierChanges: l.carrierChanges(ctx, now), Step: l.opts.Settings.CycleInterval(), Graph: l.store.Graph(), Flows: slices.Grow(l.routingFlows[:0], len(findings))}
	if l.opts.SwitchRoutes != nil {
		m.Switches = l.opts.SwitchRoutes()
	}
	m.SessionHistory = l.sessionHistory(ctx, m.Switches, now)
	for i := range findings {
		f := &findings[i]
		o := f.Obs
		x := classify.RoutingFlow(f)
		if last := o.LastSecond; last != nil && !f.HostSuspect {
			x.Counted, x.Sent, x.Unanswered = true, last.Sent, last.Lost
			if last.Lost > 0 {
				x.Unanswered++ // LastSecond allows for one on its way
			}
		}
		m.Flows = append(m.Flows, x)
	}
	l.routingFlows = m.Flows
	dead := l.deadElements(rep)
	m.Down = func(e fabric.Element) bool { return dead[e] }
	return l.routing.Review(m)
}

// deadElements returns the elements that fail by the verdicts of a report and the open incidents.
func (l *Loop) deadElements(rep *fabric.Report) map[fabric.Element]bool {
	dead := map[fabric.Element]bool{}
	add := func(v *fabric.Verdict) {
		if v.Scenario == fabric.HardFailure {
			dead[v.Element] = true
		}
	}
	for i := range rep.Verdicts {
		add(&rep.Verdicts[i])
	}
	for _, in := range l.incidents.OpenIncidents() {
		add(&in.Verdict)
	}
	return dead
}

// addRoutingVerdicts adds verdicts on faults of routing, and removes those that they explain, with the open incidents on them. What
// carries the load of a link that has an incident is said there.
func (l *Loop) addRoutingVerdicts(ctx context.Context, rep *fabric.Report, findings []judge.Finding, now time.Time) {
	found := slices.DeleteFunc(l.reviewRouting(ctx, rep, findings, now), func(f routing.Finding) bool { return l.isNamed(rep, &f) })
	explains := func(v *fabric.Verdict) bool {
		return slices.ContainsFunc(found, func(f routing.Finding) bool { return classify.RoutingExplains(&f, v) })
	}
	rep.Verdicts = slices.DeleteFunc(rep.Verdicts, func(v fabric.Verdict) bool { return explains(&v) })
	l.incidents.CloseCovered(func(v *fabric.Verdict) (why string, covered bool) {
		return "routing explains it: no part is at fault", explains(v)
	}, now)
	rep.Verdicts = append(rep.Verdicts, classify.RoutingVerdicts(l.store.Graph(), found)...)
}

// isNamed reports whether a finding that does not exclude a fault of the link itself has a verdict of that link, or of a switch at it,
// already.
func (l *Loop) isNamed(rep *fabric.Report, f *routing.Finding) bool {
	if f.Claimed || f.Kind != routing.LeftLink && f.Kind != routing.SessionFlap {
		return false
	}
	at := []fabric.Element{f.Element}
	if a, b, ok := f.LinkEnds(); ok {
		at = append(at, fabric.Element{ID: a, Kind: fabric.KindPort}, fabric.Element{ID: b, Kind: fabric.KindPort},
			fabric.Element{ID: fabric.OwnerOf(a), Kind: fabric.KindSwitch}, fabric.Element{ID: fabric.OwnerOf(b), Kind: fabric.KindSwitch})
	}
	concerns := func(v *fabric.Verdict) bool {
		return !v.Scenario.IsRouting() && (slices.Contains(at, v.Element) || slices.Contains(v.Equivalent, f.Element))
	}
	named := slices.ContainsFunc(rep.Verdicts, func(v fabric.Verdict) bool { return concerns(&v) })
	for _, in := range l.incidents.OpenIncidents() {
		if !concerns(&in.Verdict) {
			continue
		}
		named = true
		if in.Element == f.Element && f.Kind == routing.LeftLink {
			in.DescribeLoad(classify.DescribeLeft(f))
		}
	}
	return named
}
