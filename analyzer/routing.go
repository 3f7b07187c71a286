package analyzer

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// mostlyLost is the divisor of the share of its packets that may arrive of a flow whose packets are lost.
const mostlyLost = 10

// Bounds of the queries for what switches report of ports.
const (
	mostPortSwitches = 64
	portPatience     = time.Second
)

// queryPorts evaluates a query about some ports, in which "{ports}" stands for the matchers of their series. Only ports of the first
// mostPortSwitches switches are asked for. The result is nil if there are none, and if the query fails: then nothing is known of them.
func (l *Loop) queryPorts(ctx context.Context, now time.Time, ends []string, query string) map[string]float64 {
	var switches, ports []string
	for _, end := range ends {
		sw, port, _ := fabric.SplitPort(end)
		if sw = regexp.QuoteMeta(sw); !slices.Contains(switches, sw) {
			if len(switches) == mostPortSwitches {
				continue
			}
			switches = append(switches, sw)
		}
		if port = regexp.QuoteMeta(port); !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	if len(switches) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, portPatience)
	defer cancel()
	matchers := fmt.Sprintf("{switch=~%q,port=~%q}", strings.Join(switches, "|"), strings.Join(ports, "|"))
	samples, err := l.opts.DB.QueryInstant(ctx, strings.ReplaceAll(query, "{ports}", matchers), now)
	if err != nil {
		l.opts.Log.Warn("cannot read what switches report of ports", "err", err)
		return nil
	}
	out := map[string]float64{}
	for _, s := range samples {
		out[s.Labels["switch"]+":"+s.Labels["port"]] = s.Value
	}
	return out
}

// carrierChanges returns how often the carriers of the ports changed whose links seem to flap, as far as that is known. Otherwise it
// is unknown whether a link flaps or its session does.
func (l *Loop) carrierChanges(ctx context.Context, now time.Time) map[string]int {
	span := fmt.Sprintf("(fabric_switch_port_carrier_changes_total{ports}[%ds])", int(routing.CarrierSpan.Seconds()))
	out := map[string]int{}
	for end, n := range l.queryPorts(ctx, now, l.routing.FlappingPorts(), "max by (switch, port) (max_over_time"+span+" - min_over_time"+span+")") {
		out[end] = int(n)
	}
	return out
}

// unusedPorts returns which ports carry packets of those whose links no flow uses any more, as far as that is known.
func (l *Loop) unusedPorts(ctx context.Context, now time.Time) map[string]bool {
	out := map[string]bool{}
	for end, up := range l.queryPorts(ctx, now, l.routing.UnusedPorts(), "min by (switch, port) (fabric_switch_port_oper_up{ports})") {
		out[end] = up > 0
	}
	return out
}

// reviewRouting returns the faults of routing that hold, by the findings of a cycle and what switches report. What was lost in the last
// second is counted by the raw findings, since those that are confirmed repeat a hard loss for some cycles. Both are sorted by flow.
func (l *Loop) reviewRouting(ctx context.Context, rep *fabric.Report, raw, findings []judge.Finding, now time.Time) []routing.Finding {
	m := &routing.Moment{Now: now, CarrierChanges: l.carrierChanges(ctx, now), PortUp: l.unusedPorts(ctx, now), Step: l.opts.Settings.CycleInterval(), Graph: l.store.Graph(), Flows: slices.Grow(l.routingFlows[:0], len(findings))}
	if l.opts.SwitchRoutes != nil {
		m.Switches = l.opts.SwitchRoutes()
	}
	for i := range findings {
		f := &findings[i]
		o := f.Obs
		x := routing.Flow{Flow: f.Flow, Path: o.Path, Valid: o.PathState == fabric.PathValid && !o.Sprayed,
			Lossy: f.Condition == judge.Degraded && o.Sent > 0 && (o.Sent-min(o.Sent, o.Lost))*mostlyLost <= o.Sent, Healthy: f.Condition == judge.Healthy}
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

// addRoutingVerdicts adds verdicts on faults of routing and on links that it left, and removes those that faults of routing explain,
// with the open incidents on them. What carries the load of a link that has an incident is said there.
func (l *Loop) addRoutingVerdicts(ctx context.Context, rep *fabric.Report, raw, findings []judge.Finding, now time.Time) {
	found := slices.DeleteFunc(l.reviewRouting(ctx, rep, raw, findings, now), func(f routing.Finding) bool { return l.isNamed(rep, &f) })
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
