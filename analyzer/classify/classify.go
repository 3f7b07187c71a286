// Package classify turns suspect elements into verdicts. A verdict has the scenario, the
// severity, the affected flows and the recommended action, with a summary in plain words. The
// tests are named after these rules:
//
//  1. A host comes before the fabric. A suspect NIC is the fault of its host if its node was
//     starved of CPU in these moments, the NIC is bad in both directions and no other NIC of the
//     node is well, or if all NICs of the node are suspect at once.
//  2. One fault gives one verdict. A switch whose links are all dead is itself dead, and a
//     fault that comes and goes at several egresses of a switch at once is a fault of the
//     switch. A slow switch that is not equally slow everywhere gives no further verdict.
//  3. A leaf is named only if flows of at least two of its NICs, each without the other, are
//     affected. Otherwise the NIC is named, or nothing.
//  4. A leaf is not slow if the flows that stay within it are clean: its uplinks lack
//     capacity. If no flow stays within it, both are possible, and both are listed. Its
//     uplinks also lack capacity if most flows that leave or enter it are affected and no flow
//     uses some of the uplinks in the topology.
//  5. Losses that come and go without delay are a flap, if a third of the flows with evidence
//     had them at least twice, with clean moments in between. A path that changed while its
//     flow lost packets counts as an outage. After such a loss, moments with an unknown path are
//     not clean ones of the path that the flow may have left.
//  6. Loss of half or more that does not come and go is a hard failure.
//  7. Delay into a NIC, and not out of it, from several senders is incast if it varies like a
//     queue: the tail grows more than the median, packets are ECN-marked, or packets are both
//     late and lost. A constant shift, or loss alone, is a bad NIC.
//  8. If one class is affected at an egress while others through it are clean, the class
//     blocks itself. The queue is named, or the port where the class has no name.
//  9. Unrelated flows through one switch that are bad in the same moments, over several
//     egresses, and fine in between, block each other across ports. This stays suspected until
//     the counters of the switch confirm it, and the summary says so.
//  10. A lasting fault is a hot spine at a spine, a slow leaf at a leaf, a corridor at a link
//     or corridor, and a pair if it is only between two leaves.
//  11. ECN marks on less than a tenth of the packets, without delay or loss, are normal
//     congestion control.
//
// The package does no I/O and reads no clock.
package classify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Scene represents the evidence for verdicts: the findings that the suspects refer to, and
// the history of the flows, which is nil if it is unknown. First is the start of new verdicts.
type Scene struct {
	Graph    *fabric.Graph
	Findings []judge.Finding
	History  *History
	First    time.Time
}

// VerdictsFor returns the verdicts on suspects. It joins suspects that are one fault, and leaves
// out those that the evidence does not support.
func (c *Scene) VerdictsFor(suspects []triangulate.Suspect) []fabric.Verdict {
	cases := make([]*suspicion, 0, len(suspects))
	for _, s := range suspects {
		cases = append(cases, c.newSuspicion(s))
	}
	cases = c.joinHosts(cases)
	cases = c.deadSwitches(cases)
	cases = c.crossPort(cases)
	cases = c.dropContained(cases)
	cases = c.dropContained(c.uplinksLeft(cases))
	cases = slices.DeleteFunc(cases, func(x *suspicion) bool { return !c.decideScenario(x) })
	out := make([]fabric.Verdict, 0, len(cases))
	around := c.healthyNearby(cases)
	for i, x := range cases {
		out = append(out, c.newVerdict(x, around[i]))
	}
	return out
}

// newVerdict returns the verdict on a suspicion. around is the number of healthy nearby flows.
func (c *Scene) newVerdict(x *suspicion, around int) fabric.Verdict {
	v := fabric.Verdict{
		Element:    fabric.Element{ID: x.Name, Kind: x.Kind},
		Confidence: math.Round(math.Min(x.Confidence, 0.999)*1000) / 1000,
		Symptom:    fabric.Symptom{AddedDelayNS: x.AddedDelayNS, LossRatio: roundRatio(x.LossRatio), ECNRatio: roundRatio(x.ECNRatio)},
		Scenario:   x.scenario, Class: x.Class, Equivalent: []fabric.Element{}, Causes: []string{}, Jobs: []string{}, FirstSeen: c.First,
	}
	if x.OneWay() {
		v.Direction = x.Direction.String()
	}
	v.Severity = severityOf(x)
	v.Tier, v.Plane = tierAndPlane(c.Graph, x.Name, x.Kind)
	v.Equivalent = append(v.Equivalent, structuralEquivalents(c.Graph, x)...)
	for _, e := range x.Equivalent {
		el := fabric.Element{ID: e.Name, Kind: e.Kind}
		if !slices.Contains(v.Equivalent, el) && el != v.Element {
			v.Equivalent = append(v.Equivalent, el)
		}
		v.SameFlowEquivalents = append(v.SameFlowEquivalents, fabric.DirectedElement{Element: el, Direction: e.Direction})
	}
	if x.variesLikeQueue() {
		v.Causes = append(v.Causes, fabric.CauseCongestion)
	}
	if len(x.classes) == 1 {
		for class := range x.classes {
			v.Class = class
		}
	}
	for _, e := range x.edges {
		v.Edges = append(v.Edges, e.String())
	}
	sort.Strings(v.Edges)
	v.Evidence = fabric.EvidenceCount{ExplainedEdges: len(x.Explained), HealthyEdgesThroughParent: around, ContraryEdges: len(x.Contrary)}
	for _, i := range x.Explained {
		if c.Findings[i].Condition == judge.Degraded {
			v.Evidence.DegradedEdges++
		}
	}
	v.Shares = c.sharesOf(x)
	v.BlastRadius = fabric.BlastRadius{NICs: len(x.nics), Edges: len(x.Explained)}
	v.Action = recommendedAction(&v)
	v.Summary = summaryOf(&v, x)
	v.ID = VerdictID(v.Kind, v.Element.ID, c.First)
	return v
}

// sharesOf returns how much of the explained flows crosses an element, or nil if the packets of none take several paths in turn.
func (c *Scene) sharesOf(x *suspicion) *fabric.PathShares {
	out := &fabric.PathShares{Least: 1, Most: 1}
	for _, i := range x.Explained {
		if c.Findings[i].Obs.Sprayed {
			out.SprayedEdges++
		}
	}
	if x.Sprayed > 0 { // they cross it with some of their packets
		out.SprayedEdges, out.Least = max(out.SprayedEdges, x.Sprayed), x.LeastShare
		if x.Sprayed == out.SprayedEdges {
			out.Most = x.MostShare
		}
	}
	if out.SprayedEdges == 0 {
		return nil
	}
	return out
}

// roundRatio rounds a fitted ratio to four digits.
func roundRatio(r float64) float64 { return math.Max(0, math.Round(r*1e4)/1e4) }

// severityOf returns critical for hard failures and for faults of a whole switch, info for a delay that no single flow
// shows, otherwise warning.
func severityOf(x *suspicion) string {
	switch {
	case x.Small:
		return fabric.SeverityInfo
	case x.scenario == fabric.HardFailure, x.LossRatio >= hardLoss && x.scenario != fabric.Flap:
		return fabric.SeverityCritical
	case x.Kind == fabric.KindSwitch && x.scenario != fabric.HOLCross:
		return fabric.SeverityCritical
	}
	return fabric.SeverityWarning
}

// ClockVerdict returns the verdict on a clock that moved. first is when the move was first seen.
func ClockVerdict(g *fabric.Graph, s clocks.Suspect, findings []judge.Finding, first time.Time) fabric.Verdict {
	v := fabric.Verdict{
		Element: fabric.Element{ID: s.NIC, Kind: fabric.KindClock}, Scenario: fabric.ClockTrouble, Severity: fabric.SeverityWarning, Tier: 1,
		Equivalent: []fabric.Element{}, Causes: []string{}, Jobs: []string{}, FirstSeen: first,
		Action: "Check what sets this host's clock (chrony, ptp4l, a hypervisor), and check its oscillator. Delays measured with this clock are excluded until it is steady. The network is not at fault.",
	}
	if n := g.NIC(s.NIC); n != nil {
		v.Plane = n.Plane
	}
	for _, nic := range s.Others {
		v.Equivalent = append(v.Equivalent, fabric.Element{ID: nic, Kind: fabric.KindClock})
	}
	// The probability that all the peers moved themselves, or that a node miscounts.
	wrong := math.Pow(0.5, float64(s.Peers))
	if s.Counted {
		wrong *= 0.05
	}
	v.Confidence = math.Round(math.Min(1-wrong, 0.999)*1000) / 1000
	if len(s.Explained) == 0 {
		v.Severity = fabric.SeverityInfo // it distorts no delay
	}
	nics := map[string]bool{s.NIC: true}
	for _, i := range s.Explained {
		f := &findings[i]
		nics[f.Flow.Src], nics[f.Flow.Dst] = true, true
		v.Edges = append(v.Edges, f.Flow.String())
	}
	sort.Strings(v.Edges)
	v.Evidence = fabric.EvidenceCount{DegradedEdges: len(s.Explained), ExplainedEdges: len(s.Explained), ContraryEdges: s.Contrary}
	v.BlastRadius = fabric.BlastRadius{NICs: len(nics), Edges: len(s.Explained)}
	v.Summary = "The clock of " + s.NIC + " " + describeMove(s) + moveEvidence(s)
	v.ID = VerdictID(v.Kind, v.Element.ID, first)
	return v
}

// describeMove returns the predicate of a sentence about a clock that moved.
func describeMove(s clocks.Suspect) string {
	switch {
	case s.Drifts && s.Rate != nil && *s.Rate < 0:
		return "runs about " + formatPPM(-*s.Rate) + " slower than before"
	case s.Drifts && s.Rate != nil:
		return "runs about " + formatPPM(*s.Rate) + " faster than before"
	case s.Drifts:
		return "runs at another rate than before"
	}
	verb := "moved"
	if s.Stepped {
		verb = "jumped"
	}
	if s.Offset == nil {
		return verb
	}
	by := *s.Offset
	way := "ahead"
	if by < 0 {
		by, way = -by, "back"
	}
	return verb + " " + way + " by about " + FormatDelay(roundTwoDigits(by))
}

// formatPPM writes a rate to two significant digits or the whole millionth.
func formatPPM(rate float64) string {
	if v := rate * 1e6; v < 10 {
		return fmt.Sprintf("%.2g ppm", v)
	}
	return fmt.Sprintf("%.0f ppm", rate*1e6)
}

// roundTwoDigits rounds n to two significant digits. Further digits of a clock's move are noise.
func roundTwoDigits(n int64) int64 {
	unit := int64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	return (n + unit/2) / unit * unit
}

// moveEvidence returns the end of the sentence, which has the evidence for a clock's move.
func moveEvidence(s clocks.Suspect) string {
	counted := "its node recorded the change"
	if len(s.Explained) == 0 {
		return ": " + counted + "."
	}
	text := fmt.Sprintf(": the delays of %d flows with %d nodes changed by opposite amounts forward and reverse, while their round trips stayed the same", len(s.Explained), s.Peers)
	if s.Counted {
		text += ", and " + counted
	}
	return text + "."
}

// Swap represents two swapped cables: the links as the topology has them, and as they were
// found. Flows is the number of flows that showed it, LLDP is set if neighbours showed it, and
// First is when it was first seen.
type Swap struct {
	Topology, Fabric [2]string
	Flows            int
	LLDP             bool
	First            time.Time
}

// SwapVerdict returns the verdict on two swapped cables. It names the first link of the
// topology, and has the other one as its equivalent, since both share the fault.
func SwapVerdict(g *fabric.Graph, s Swap) fabric.Verdict {
	v := fabric.Verdict{
		Element: fabric.Element{ID: s.Topology[0], Kind: fabric.KindLink}, Scenario: fabric.Miscabled, Severity: fabric.SeverityWarning,
		Equivalent: []fabric.Element{{ID: s.Topology[1], Kind: fabric.KindLink}}, Causes: []string{fabric.CauseMiscabled}, Jobs: []string{}, FirstSeen: s.First,
		Action: "Swap the two cables back, or correct the topology file. Until then, paths follow the cables as they are.",
	}
	v.Tier, v.Plane = tierAndPlane(g, s.Topology[0], fabric.KindLink)
	// Each of the flows could have been traced while its path changed.
	v.Confidence = math.Round(math.Min(1-math.Pow(0.5, float64(s.Flows)), 0.999)*1000) / 1000
	by := fmt.Sprintf("%d flows arrived on ports that contradict the topology", s.Flows)
	switch {
	case s.LLDP && s.Flows > 0:
		by += ", and LLDP confirms it"
	case s.LLDP:
		by, v.Confidence = "LLDP reports it", 0.999
	}
	v.Evidence = fabric.EvidenceCount{ExplainedEdges: s.Flows, Reported: true}
	v.BlastRadius.Edges = s.Flows
	v.Summary = fmt.Sprintf("Two cables are swapped: the topology has %s and %s, but the fabric has %s and %s. %s.", s.Topology[0], s.Topology[1], s.Fabric[0], s.Fabric[1], by)
	v.ID = VerdictID(v.Kind, v.Element.ID, s.First)
	return v
}

// DownVerdict returns the verdict on a link or a switch that is down by the readings of its InfiniBand subnet, or on a link
// that went down outages times in the last minute, whether or not probes were lost at it.
func DownVerdict(g *fabric.Graph, e fabric.Element, since time.Time, outages int) fabric.Verdict {
	v := fabric.Verdict{Element: e, Scenario: fabric.HardFailure, Severity: fabric.SeverityWarning, Confidence: 0.999, Causes: []string{fabric.CauseDown}, Jobs: []string{}, FirstSeen: since,
		Evidence: fabric.EvidenceCount{Reported: true}}
	v.Tier, v.Plane = tierAndPlane(g, e.ID, e.Kind)
	switch {
	case e.Kind == fabric.KindSwitch:
		v.Summary = fmt.Sprintf("Switch %s is down: the subnet's readings do not find it, and all ports that lead to it are down. The subnet manager routes around it.", e.ID)
		v.Action = "Check the power and the management port of the switch."
	case outages > 0:
		v.Scenario, v.Causes = fabric.Flap, []string{fabric.CauseFlap}
		v.Summary = fmt.Sprintf("Link %s flaps: the subnet's readings had both of its ports down %d times in the last minute. The subnet manager routes around it each time.", e.ID, outages)
		v.Action = "Shut the link down at both ends, so that routing stops returning to it. Then check link-down counters, optics and cable."
	default:
		v.Summary = fmt.Sprintf("Link %s is down: the subnet's readings have both of its ports down. The subnet manager routes around it.", e.ID)
		v.Action = "Check optics and cable at both ends, and replace the failed part."
	}
	v.ID = VerdictID(v.Kind, v.Element.ID, since)
	return v
}

// VerdictID returns the identifier of a verdict. The same element and start give the same
// identifier on every replica.
func VerdictID(kind fabric.Kind, element string, first time.Time) string {
	sum := sha256.Sum256([]byte(string(kind) + "\x00" + element + "\x00" + first.UTC().Format(time.RFC3339)))
	return hex.EncodeToString(sum[:6])
}

// IDOf returns the identifier of a verdict by its element, start and, where it is about routing, its scenario.
func IDOf(v *fabric.Verdict) string {
	kind := v.Kind
	if v.Scenario.IsRouting() {
		kind += fabric.Kind(" " + v.Scenario)
	}
	return VerdictID(kind, v.Element.ID, v.FirstSeen)
}

// FormatDelay writes nanoseconds in the unit a person would choose.
func FormatDelay(ns int64) string {
	switch {
	case ns >= 1e6 || ns <= -1e6:
		return fmt.Sprintf("%.3g ms", float64(ns)/1e6)
	case ns >= 1e3 || ns <= -1e3:
		return fmt.Sprintf("%.3g µs", float64(ns)/1e3)
	}
	return fmt.Sprintf("%d ns", ns)
}
