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

// reviewRouting returns the faults of routing that hold, by the findings of a cycle and what switches report. What was lost in the last
// second is counted by the raw findings, since those that are confirmed repeat a hard loss for some cycles. Both are sorted by flow.
func (l *Loop) reviewRouting(ctx context.Context, rep *fabric.Report, refusals []routing.Refusal, raw, findings []judge.Finding, now time.Time) []routing.Finding {
	m := &routing.Moment{Now: now, Refusals: refusals, Strays: straysOf(l.store.Strays()), CarrierChanges: l.carrierChanges(ctx, now), PortUp: l.portsUp(ctx, now), Step: l.opts.Settings.CycleInterval(), Graph: l.store.Graph(), Flows: slices.Grow(l.routingFlows[:0], len(findings))}
	if l.opts.SwitchRoutes != nil {
		m.Switches = l.opts.SwitchRoutes()
	}
	m.Modes = l.store.Modes(now)
	m.SessionHistory, m.LossCounts = l.sessionHistory(ctx, m.Switches, now), l.lossCounts(ctx)
	for i := range findings {
		f := &findings[i]
		o := f.Obs
		x := classify.RoutingFlow(f)
		for len(raw) > 0 && raw[0].Obs.Edge < o.Edge {
			raw = raw[1:]
		}
		if len(raw) > 0 && raw[0].Flow == f.Flow && raw[0].Obs.LastSecond != nil && !raw[0].HostSuspect {
			last := raw[0].Obs.LastSecond
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
	m.LossyLinks = l.lossyLinks(rep)
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

// lossyLinks returns the links to which the verdicts of a report and the open incidents put lost packets: links, those of ports, and those
// of switches.
func (l *Loop) lossyLinks(rep *fabric.Report) (out []string) {
	g := l.store.Graph()
	addEnd := func(end string) {
		if x := g.LinkAt(end); x != nil && !x.IsAccess() {
			out = append(out, x.ID())
		}
	}
	add := func(v *fabric.Verdict) {
		if v.Scenario.IsRouting() || v.Symptom.LossRatio == 0 {
			return
		}
		switch v.Kind {
		case fabric.KindLink:
			out = append(out, v.Element.ID)
		case fabric.KindPort:
			addEnd(v.Element.ID)
		case fabric.KindSwitch:
			for _, end := range g.EndsOf(v.Element.ID) {
				addEnd(end)
			}
		}
	}
	for i := range rep.Verdicts {
		add(&rep.Verdicts[i])
	}
	for _, in := range l.incidents.OpenIncidents() {
		add(&in.Verdict)
	}
	return out
}

// addRoutingVerdicts adds verdicts on faults of routing and on links that it left, and removes those that faults of routing explain,
// with the open incidents on them. What carries the load of a link that has an incident is said there.
func (l *Loop) addRoutingVerdicts(ctx context.Context, rep *fabric.Report, refusals []routing.Refusal, raw, findings []judge.Finding, now time.Time) {
	found := slices.DeleteFunc(l.reviewRouting(ctx, rep, refusals, raw, findings, now), func(f routing.Finding) bool { return l.isNamed(rep, &f) })
	l.holdRefusals(rep, found)
	explains := func(v *fabric.Verdict, certain bool) bool {
		return slices.ContainsFunc(found, func(f routing.Finding) bool {
			return (!certain || f.Phase != routing.MayHold) && classify.RoutingExplains(&f, v)
		})
	}
	rep.Verdicts = slices.DeleteFunc(rep.Verdicts, func(v fabric.Verdict) bool { return explains(&v, false) })
	l.incidents.CloseCovered(func(v *fabric.Verdict) (why string, covered bool) {
		return "routing explains it: no part is at fault", explains(v, true)
	}, now)
	rep.Verdicts = append(rep.Verdicts, classify.RoutingVerdicts(l.store.Graph(), found)...)
}

// isNamed reports whether a finding on a link, which a fault of the link itself explains or is, has a verdict of that link, or of a
// switch at it, already. What is certain of a link keeps its own incident open.
func (l *Loop) isNamed(rep *fabric.Report, f *routing.Finding) bool {
	blames := f.Kind.BlamesLink()
	if !blames && (f.Claimed || f.Kind != routing.LeftLink && f.Kind != routing.SessionFlap) {
		return false
	}
	link, switches := []fabric.Element{f.Element}, []fabric.Element(nil)
	if a, b, ok := f.LinkEnds(); ok {
		link = append(link, fabric.Element{ID: a, Kind: fabric.KindPort}, fabric.Element{ID: b, Kind: fabric.KindPort})
		switches = append(switches, fabric.Element{ID: fabric.OwnerOf(a), Kind: fabric.KindSwitch}, fabric.Element{ID: fabric.OwnerOf(b), Kind: fabric.KindSwitch})
	}
	concerns := func(v *fabric.Verdict, at []fabric.Element) bool {
		return !v.Scenario.IsRouting() && (slices.Contains(at, v.Element) || slices.Contains(v.Equivalent, f.Element))
	}
	named := slices.ContainsFunc(rep.Verdicts, func(v fabric.Verdict) bool { return concerns(&v, link) || concerns(&v, switches) })
	for _, in := range l.incidents.OpenIncidents() {
		onLink := concerns(&in.Verdict, link)
		named = named || onLink && !blames || slices.Contains(switches, in.Element) && !in.Scenario.IsRouting()
		if onLink && in.Element == f.Element && !in.Evidence.Reported && f.DescribeLoad() != "" {
			in.DescribeLoad(classify.DescribeLeft(f))
		}
	}
	return named
}

// holdRefusals has no verdict on what two switches refuse of each other while the link between them has one. What their flows lose is still
// explained by it.
func (l *Loop) holdRefusals(rep *fabric.Report, found []routing.Finding) {
	for i := range found {
		if f := &found[i]; f.Kind == routing.UnknownSID && f.Phase == routing.Holds && l.isAmiss(rep, f.Others) {
			f.Phase = routing.MayHold
		}
	}
}

// isAmiss reports whether a verdict on a part, of this cycle or of an open incident, names one of some links.
func (l *Loop) isAmiss(rep *fabric.Report, links []fabric.Element) bool {
	for _, in := range l.incidents.OpenIncidents() {
		if namesLink(&in.Verdict, links) {
			return true
		}
	}
	return slices.ContainsFunc(rep.Verdicts, func(v fabric.Verdict) bool { return namesLink(&v, links) })
}

// namesLink reports whether a verdict on a part names one of some links.
func namesLink(v *fabric.Verdict, links []fabric.Element) bool {
	return !v.Scenario.IsRouting() && slices.ContainsFunc(links, func(e fabric.Element) bool {
		return e.Kind == fabric.KindLink && (v.Element == e || slices.Contains(v.Equivalent, e))
	})
}
