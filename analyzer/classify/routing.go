package classify

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// slowFailover is the duration from which a failover is more than information.
const slowFailover = time.Second

// congestedLoss is the loss ratio below which a queue that is too full explains the loss.
const congestedLoss = 0.1

// mostlyLost is the divisor of the share of its packets that may arrive of a flow whose packets are lost.
const mostlyLost = 10

// RoutingFlow returns what routing is reviewed by of the finding on a flow.
func RoutingFlow(f *judge.Finding) routing.Flow {
	o := f.Obs
	return routing.Flow{Flow: f.Flow, Path: o.Path, Valid: o.PathState == fabric.PathValid && !o.Sprayed && !o.Chosen,
		Lossy: f.Condition == judge.Degraded && o.Sent > 0 && (o.Sent-min(o.Sent, o.Lost))*mostlyLost <= o.Sent, Healthy: f.Condition == judge.Healthy}
}

// RoutingVerdicts returns the verdicts on faults of routing, and on links that routing left for being at fault. Those of one element
// and scenario are one, about all of their prefixes.
func RoutingVerdicts(g *fabric.Graph, all []routing.Finding) []fabric.Verdict {
	type key struct {
		fabric.Element
		scenario fabric.Scenario
	}
	var out []fabric.Verdict
	at := map[key]int{}
	for i := range all {
		if all[i].Phase != routing.Holds {
			continue
		}
		v := routingVerdict(g, &all[i])
		k := key{v.Element, v.Scenario}
		j, known := at[k]
		if !known {
			at[k] = len(out)
			out = append(out, v)
			continue
		}
		joinRouting(&out[j], &v)
	}
	for i := range out {
		finishRouting(&out[i])
	}
	return out
}

// joinRouting adds another verdict of the same element and scenario.
func joinRouting(v, more *fabric.Verdict) {
	if more.Prefix != "" && !slices.Contains(strings.Split(v.Prefix, ", "), more.Prefix) {
		v.Prefix = strings.TrimPrefix(v.Prefix+", "+more.Prefix, ", ")
	}
	if !strings.Contains(v.Summary, more.Summary) {
		v.Summary += " " + more.Summary
	}
	if severityRank(more.Severity) > severityRank(v.Severity) {
		v.Severity, v.Action = more.Severity, more.Action
	}
	if more.FirstSeen.Before(v.FirstSeen) {
		v.FirstSeen = more.FirstSeen
	}
	v.Confidence = max(v.Confidence, more.Confidence)
	v.Edges = append(v.Edges, more.Edges...)
	v.Equivalent = append(v.Equivalent, more.Equivalent...)
	v.Evidence.DegradedEdges += more.Evidence.DegradedEdges
}

func severityRank(s string) int {
	return slices.Index([]string{fabric.SeverityInfo, fabric.SeverityWarning, fabric.SeverityCritical}, s)
}

// finishRouting sets what follows from the flows of a verdict.
func finishRouting(v *fabric.Verdict) {
	slices.Sort(v.Edges)
	v.Edges = slices.Compact(v.Edges)
	nics := map[string]bool{}
	for _, s := range v.Edges {
		if f, err := fabric.ParseFlow(s); err == nil {
			nics[f.Src], nics[f.Dst] = true, true
		}
	}
	var alike []fabric.Element
	for _, e := range v.Equivalent {
		if e != v.Element && !slices.Contains(alike, e) {
			alike = append(alike, e)
		}
	}
	v.Equivalent = append([]fabric.Element{}, alike...)
	v.Evidence.ExplainedEdges = len(v.Edges)
	v.BlastRadius = fabric.BlastRadius{NICs: len(nics), Edges: len(v.Edges)}
	if v.Scenario.IsRouting() {
		v.Summary += " No part is at fault for this."
	}
	v.Summary += fmt.Sprintf(" Confidence %.3g %%.", v.Confidence*100)
	v.ID = IDOf(v)
}

// routingVerdict returns the verdict on a fault of routing.
func routingVerdict(g *fabric.Graph, f *routing.Finding) fabric.Verdict {
	v := fabric.Verdict{Element: f.Element, Prefix: f.Prefix, Scenario: fabric.RoutingFault, Severity: fabric.SeverityWarning, Confidence: f.Confidence, Equivalent: slices.Clone(f.Others),
		Causes: []string{fabric.CauseRouting}, Jobs: []string{}, FirstSeen: f.Since, Evidence: fabric.EvidenceCount{Reported: true, DegradedEdges: len(f.Lost)}}
	v.Tier, v.Plane = tierAndPlane(g, f.ID, f.Element.Kind)
	for _, e := range f.Explained {
		v.Edges = append(v.Edges, e.String())
	}
	for _, x := range f.Failovers {
		way := fabric.Failover{LossNS: x.Loss.Nanoseconds(), Flows: x.Flows}
		if x.From != "" {
			way.Direction = x.String()
		}
		v.Failovers = append(v.Failovers, way)
	}
	switch f.Kind {
	case routing.Polarized:
		v.Scenario = fabric.Polarization
	case routing.Converged:
		v.Scenario = fabric.Convergence
	case routing.FIBMismatch:
		v.Scenario = fabric.FIBMismatch
	case routing.LinkDown, routing.LinkSilent:
		v.Scenario, v.Causes = fabric.HardFailure, []string{fabric.CauseDown}
	case routing.LinkFlap:
		v.Scenario, v.Causes = fabric.Flap, []string{fabric.CauseFlap}
	}
	switch f.Kind {
	case routing.FewHops, routing.LeftLink, routing.SessionsDown, routing.LinkDown, routing.UnknownSID, routing.Misforwarded, routing.Sprays, routing.HashesFlows:
		v.Equivalent = nil // the others are links, switches or leaves that the text names
	case routing.MissingHop:
		v.Equivalent = slices.Clone(f.Others[1:])
	}
	v.Summary = routingSummary(f)
	if f.Text != "" {
		v.Summary += " " + f.Text
	}
	v.Action = routingAction(f)
	switch {
	case len(f.Lost) > 0:
		v.Severity = fabric.SeverityCritical
	case f.Kind == routing.Sprays, f.Kind == routing.HashesFlows, f.Kind == routing.LeftLink, f.Kind == routing.SessionFlap && !f.Claimed, f.Kind == routing.Converged && f.Longest() < slowFailover:
		v.Severity = fabric.SeverityInfo
	}
	return v
}

// routingSummary says what is wrong with routing, and by which evidence.
func routingSummary(f *routing.Finding) string {
	name, flows := f.ID, flowCount(f.Flows)
	switch f.Kind {
	case routing.MissingPrefix:
		return fmt.Sprintf("No flow to leaf %s enters switch %s, although its links work and it is on a shortest path: %s take other next hops. The prefix is missing there, or not preferred.", f.Prefix, name, flows)
	case routing.MissingHop:
		return fmt.Sprintf("Switch %s does not send to leaf %s by %s, which works and which others use: %s take %d of %d next hops. Its route lacks that next hop, or the switch behind it announces none.", name, f.Prefix, f.Others[0].ID, flows, f.Used, f.Expected)
	case routing.FewHops:
		return fmt.Sprintf("Switch %s sends to every leaf by %d of %d equal next hops: %s take none of %s, which work.", name, f.Used, f.Expected, flows, elementNames(f.Others))
	case routing.SessionFlap:
		if f.Claimed {
			return fmt.Sprintf("The routing session of link %s flaps: %d times in the last %s, while the link stayed up.", name, f.Times, formatMinutes(f.Span))
		}
		return fmt.Sprintf("Flows left link %s and came back %d times in the last %s. Either its routing session flaps or the link itself does: no report says which.", name, f.Times, formatMinutes(f.Span))
	case routing.FalseBFD:
		return fmt.Sprintf("BFD ends the routing session of link %s although data passes: %d times in the last %s.", name, f.Times, formatMinutes(f.Span))
	case routing.SessionsDown:
		return fmt.Sprintf("The routing session of link %s is down since %s, while the link is up. %s", name, clockTime(f.Since), DescribeLeft(f))
	case routing.LeftLink:
		if f.Element.Kind == fabric.KindSwitch {
			return fmt.Sprintf("Flows left all links of switch %s at %s: it is out of routing, or down.", name, clockTime(f.Since))
		}
		return fmt.Sprintf("No flow uses link %s. %s Either its routing session or the link itself is down, or someone took it out of routing.", name, DescribeLeft(f))
	case routing.LinkDown:
		if f.Element.Kind == fabric.KindSwitch {
			return fmt.Sprintf("All links of switch %s are down, and flows left them at %s.", name, clockTime(f.Since))
		}
		return fmt.Sprintf("Link %s is down by the report of its ports. %s", name, DescribeLeft(f))
	case routing.LinkSilent:
		return fmt.Sprintf("Link %s passes nothing: flows that crossed it lost all packets until routing left it, and no routing session has crossed it since. No port is reported down. %s", name, DescribeLeft(f))
	case routing.LinkFlap:
		if f.Flows > 0 { // they left it and did not come back
			return fmt.Sprintf("Link %s flaps: its carrier went down %d times in the last %s. %s", name, f.Times, formatMinutes(f.Span), DescribeLeft(f))
		}
		return fmt.Sprintf("Link %s flaps: flows left it and came back %d times in the last %s, and so did the carrier of its ports.", name, f.Times, formatMinutes(f.Span))
	case routing.PrefixLost:
		return fmt.Sprintf("Switch %s loses the packets to leaf %s: %s. Other flows by the same links are healthy, and so are flows to the leaf by other ways. Its table sends this prefix nowhere, or a filter drops it.", name, f.Prefix, flows)
	case routing.Polarized:
		return fmt.Sprintf("Flows crowd at %s: of the flows that one leaf sends there, %s in all, nearly all take %d of %d equal next hops. Two tiers choose by the same hash: %s.", name, flows, f.Used, f.Expected, elementNames(f.Others))
	case routing.Converged:
		return fmt.Sprintf("Routing took %s to avoid link %s from %s on, by the lost probes of %s times their interval.%s The loss ended with that.",
			formatMillis(f.Longest()), name, clockTime(f.Since), flows, failoverDirections(f))
	case routing.UnknownSID:
		return unknownSIDSummary(f)
	case routing.Sprays:
		return fmt.Sprintf("Switch %s chooses a next hop anew for each packet%s since %s, and the topology file does not say so. Flows that it sprays have no path: %s.",
			name, ofLeaves(f.Others), clockTime(f.Since), modeConsequence(f))
	case routing.HashesFlows:
		return fmt.Sprintf("The topology file has forwarding: spray, but the flows that leave switch %s have stayed on one path each since %s. They are still taken to be on all paths.", name, clockTime(f.Since))
	case routing.Misforwarded:
		return misforwardedSummary(f)
	case routing.FIBMismatch:
		return fmt.Sprintf("The kernel's table of switch %s differs from what its routing daemon selected for %s. %s lose packets there.", name, f.Prefix, flowCount(len(f.Lost)))
	}
	return ""
}

// unknownSIDSummary says which identifier a switch does not know, and whose it is.
func unknownSIDSummary(f *routing.Finding) string {
	whose := ""
	switch {
	case len(f.Others) > 0 && f.Others[0].ID == f.ID:
		whose = ", which is its own"
	case len(f.Others) > 0:
		whose = ", which is that of switch " + f.Others[0].ID
	}
	return fmt.Sprintf("Switch %s does not know %s%s, and refuses the packets of %s that list it there: it answers that the destination is unreachable. They are not lost, and no link is blamed for them.",
		f.ID, f.Prefix, whose, flowCount(f.Flows))
}

// ofLeaves says of which leaves a switch sprays flows, if it is not their own leaf alone.
func ofLeaves(leaves []fabric.Element) string {
	if len(leaves) == 0 {
		return ""
	}
	return " of flows from " + elementNames(leaves)
}

// modeConsequence says what the flows that a switch sprays are bound to.
func modeConsequence(f *routing.Finding) string {
	if len(f.Others) > 0 {
		return "their paths are unknown, since they part behind the leaf and no switch reports which of them are taken"
	}
	return "they are bound to all their shortest paths"
}

// misforwardedSummary says where a switch sends packets instead of to the switch that they list next.
func misforwardedSummary(f *routing.Finding) string {
	where := "to " + elementNames(f.Others)
	if len(f.Others) == 1 && f.Others[0].ID == f.Prefix {
		where = "by another link"
	}
	return fmt.Sprintf("Switch %s sends packets that list switch %s next %s, as traces of %s show. Hosts choose these paths, and no path is known of the flows.",
		f.ID, f.Prefix, where, flowCount(f.Flows))
}

// failoverDirections says which direction of a link a failover was measured in, and how long it took in the other one.
func failoverDirections(f *routing.Finding) (text string) {
	for i, x := range f.Failovers {
		if x.From == "" {
			continue // the flows crossed both directions
		}
		if i == 0 {
			text += fmt.Sprintf(" That is from %s to %s.", x.From, x.To)
		} else {
			text += fmt.Sprintf(" From %s to %s it took %s.", x.From, x.To, formatMillis(x.Loss))
		}
	}
	return text
}

// DescribeLeft says since when flows have left a link, and what carries its load now.
func DescribeLeft(f *routing.Finding) string {
	text := fmt.Sprintf("%s left it at %s.", flowCount(f.Flows), clockTime(f.Since))
	if load := f.DescribeLoad(); load != "" {
		text += " Its load is carried by " + load + "."
	}
	return text
}

func routingAction(f *routing.Finding) string {
	switch f.Kind {
	case routing.MissingPrefix, routing.MissingHop:
		return "Compare what the switch announces and accepts for this prefix with its peers: filters, AS path, route maps. No cable needs replacing."
	case routing.FewHops:
		return "Compare maximum-paths, multipath-relax and the size of ECMP groups of this switch with those of its peers."
	case routing.SessionFlap:
		if f.Claimed {
			return "Look at the log of the routing daemons at both ends for the reason of the resets. Leave the link in place."
		}
		return "Compare the changes of carrier at both ports with the resets of the session. Only if the carrier changed, look at optics and cable."
	case routing.FalseBFD:
		return "Give BFD packets a queue of their own, check control-plane policing and load, or lengthen the detection time. Leave the link in place."
	case routing.LeftLink, routing.SessionsDown:
		return "Check the routing session and the state of both ports. Check that the links which carry its load have room."
	case routing.LinkDown:
		return "Check optics and cable at both ends, and replace the failed part. Check that the links which carry the load have room."
	case routing.LinkSilent:
		return "Take the link out of service. Look at the counters of errors and drops at both ends, then at optics and cable."
	case routing.LinkFlap:
		return "Shut the link down at both ends, so that routing stops returning to it. Then check link-down counters, optics and cable."
	case routing.PrefixLost:
		return "Compare the tables of kernel, ASIC and routing daemon for this prefix at the switch, and look for filters. Have the route installed again."
	case routing.Polarized:
		return "Give the two tiers different hash seeds or fields. Until then, expect congestion on the links that are used."
	case routing.Converged:
		return "If this is longer than intended, check that BFD runs on the link, its timers, and the hold time of BGP. See the verdict on the link itself."
	case routing.UnknownSID:
		return "Compare the switch's routes and local identifiers with the locators of the topology file, and add what it lacks. No cable needs replacing."
	case routing.Sprays:
		return "If the fabric is meant to spray, set forwarding: spray in the topology file. If not, look at adaptive routing, packet spraying and dynamic load balancing of the switch."
	case routing.HashesFlows:
		return "If the fabric is not meant to spray, remove forwarding: spray from the topology file. If it is, check that the switch sprays packets of this class and marking."
	case routing.Misforwarded:
		return "Compare the switch's routes to its neighbours' locators and its links' identifiers with the topology file, and the cables with it."
	case routing.FIBMismatch:
		return "Have the routing daemon install the route again, and look at its log for a refused installation. Take the switch out of routing while flows are lost."
	}
	return ""
}

// RoutingExplains reports whether a fault of routing explains a verdict, so that no part is to be blamed for it.
func RoutingExplains(f *routing.Finding, v *fabric.Verdict) bool {
	if v.Scenario.IsRouting() || v.Kind == fabric.KindNIC || v.Kind == fabric.KindAccessLink || v.Kind == fabric.KindHost || v.Kind == fabric.KindClock {
		return false
	}
	lossOnly := v.Symptom.LossRatio > 0 && v.Symptom.AddedDelayNS == 0
	switch f.Kind {
	case routing.SessionFlap, routing.FalseBFD, routing.SessionsDown:
		return f.Claimed && v.Element == f.Element && lossOnly
	case routing.Converged:
		at := func(e fabric.Element) bool { return e == f.Element }
		return lossOnly && !at(v.Element) && !slices.ContainsFunc(v.Equivalent, at) && mostExplained(f, v)
	case routing.FIBMismatch, routing.PrefixLost:
		return lossOnly && mostExplained(f, v)
	case routing.UnknownSID: // but for the link between two switches that refuse each other's packets
		return lossOnly && mostExplained(f, v) && !slices.Contains(f.Others, v.Element)
	case routing.FewHops:
		if v.Scenario == fabric.LeafUplinks && v.Element.ID == f.ID {
			return true
		}
		return isCongestion(v) && mostExplained(f, v)
	case routing.Polarized, routing.MissingPrefix, routing.MissingHop:
		return isCongestion(v) && mostExplained(f, v)
	}
	return false
}

// isCongestion reports whether a verdict is about a queue that is too full.
func isCongestion(v *fabric.Verdict) bool {
	return v.Symptom.LossRatio < congestedLoss && slices.Contains(v.Causes, fabric.CauseCongestion)
}

// mostExplained reports whether a finding explains most flows of a verdict.
func mostExplained(f *routing.Finding, v *fabric.Verdict) bool {
	explained := make(map[string]bool, len(f.Explained))
	for _, e := range f.Explained {
		explained[e.String()] = true
	}
	n := 0
	for _, e := range v.Edges {
		if explained[e] {
			n++
		}
	}
	return n > 0 && n*5 >= len(v.Edges)*4
}

func elementNames(all []fabric.Element) string {
	var out []string
	for i, e := range all {
		if i == 8 {
			out = append(out, fmt.Sprintf("%d more", len(all)-i))
			break
		}
		out = append(out, e.ID)
	}
	if len(out) == 0 {
		return "the others"
	}
	return joinPhrases(out)
}

func formatMinutes(d time.Duration) string { return fmt.Sprintf("%.3g min", d.Minutes()) }

func formatMillis(d time.Duration) string {
	return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
}

func clockTime(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }
