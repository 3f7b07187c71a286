// Package classify turns suspect elements into verdicts: which scenario each is, how
// severe, whom it touches, what to do first, in plain words. It keeps these rules, which
// the tests are named after:
//
//  1. A host comes before the fabric: a suspect NIC whose node was starved of CPU in
//     these moments and that is bad both ways, or all NICs of one node at once, is the
//     host's doing.
//  2. One fault gives one verdict: a switch all of whose links are dead is dead itself;
//     what comes and goes at several egresses of a switch at once is the switch's. Nor
//     is it news that a slow switch is not equally slow everywhere.
//  3. A leaf is named only if flows of at least two of its NICs, each without the
//     other, suffer. Else it is the NIC, or nothing is said.
//  4. A leaf whose flows that stay under it are clean is no slow leaf: its uplinks are
//     short. Where nothing stays under it, both are possible, and both are listed. They
//     are short, too, where most flows that leave or enter it suffer and none use some of
//     the uplinks that the topology has.
//  5. Losses that come and go without delay are a flap: at least twice, with clean
//     moments in between, for a third of the flows that tell. A path that changed
//     while its flow was losing counts as away.
//  6. Loss of half or more that does not come and go is a hard failure.
//  7. Delay into a NIC, and not out of it, from several senders is incast if it varies
//     as a queue does: the tail moves beyond the median, packets are marked, or they
//     are both late and lost. A constant shift, or loss alone, is a bad NIC.
//  8. One class that suffers at an egress while others through it are clean blocks
//     itself: the queue is named, or the port where the class has no name.
//  9. Unrelated flows through one switch that are bad in the same moments, over several
//     egresses, and fine in between, block each other across ports. Without the
//     switch's own counters that is suspected, and said so.
//  10. What lasts through a spine is a hot spine, through a leaf a slow leaf, over a link
//     or a corridor a corridor, between two leaves only a pair.
//  11. Marks of less than a tenth, and nothing else, are congestion control at work and
//     no fault.
//
// It is pure: no I/O and no clock.
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
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
)

// Scene is what verdicts are made from: the findings that the suspects refer to, and
// what the flows did before (nil: nobody knows). First dates new verdicts.
type Scene struct {
	Graph    *fabric.Graph
	Findings []judge.Finding
	History  *History
	First    time.Time
}

// VerdictsFor describes suspects, those that are one fault together, and leaves out what
// the evidence does not carry.
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

// newVerdict writes a suspicion down; around is how many healthy flows pass close by it.
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
	v.BlastRadius = fabric.BlastRadius{NICs: len(x.nics), Edges: len(x.Explained)}
	v.Action = recommendedAction(&v)
	v.Summary = summaryOf(&v, x)
	v.ID = VerdictID(v.Kind, v.Element.ID, c.First)
	return v
}

// roundRatio rounds a ratio that was fitted.
func roundRatio(r float64) float64 { return math.Max(0, math.Round(r*1e4)/1e4) }

// severityOf: what is dead, and what a whole switch does to all its flows, is critical.
func severityOf(x *suspicion) string {
	switch {
	case x.scenario == fabric.HardFailure, x.LossRatio >= hardLoss && x.scenario != fabric.Flap:
		return fabric.SeverityCritical
	case x.Kind == fabric.KindSwitch && x.scenario != fabric.HOLCross:
		return fabric.SeverityCritical
	}
	return fabric.SeverityWarning
}

// ClockVerdict describes a clock that moved. first is when it was first seen to have.
func ClockVerdict(g *fabric.Graph, s clocks.Suspect, findings []judge.Finding, first time.Time) fabric.Verdict {
	v := fabric.Verdict{
		Element: fabric.Element{ID: s.NIC, Kind: fabric.KindClock}, Scenario: fabric.ClockTrouble, Severity: fabric.SeverityWarning, Tier: 1,
		Equivalent: []fabric.Element{}, Causes: []string{}, Jobs: []string{}, FirstSeen: first,
		Action: "Look at what sets this host's clock (chrony, ptp4l, a hypervisor) and at its oscillator. Until it is steady, delays by it are set aside; the network is not at fault.",
	}
	if n := g.NIC(s.NIC); n != nil {
		v.Plane = n.Plane
	}
	for _, nic := range s.Others {
		v.Equivalent = append(v.Equivalent, fabric.Element{ID: nic, Kind: fabric.KindClock})
	}
	// The chance that all who say so moved themselves, or that a node miscounts.
	wrong := math.Pow(0.5, float64(s.Peers))
	if s.Counted {
		wrong *= 0.05
	}
	v.Confidence = math.Round(math.Min(1-wrong, 0.999)*1000) / 1000
	if len(s.Explained) == 0 {
		v.Severity = fabric.SeverityInfo // no delay is measured wrong by it
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

// describeMove says what a clock did, in words that go on from its name.
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

// roundTwoDigits is n to two significant digits: more of a clock's move is noise.
func roundTwoDigits(n int64) int64 {
	unit := int64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	return (n + unit/2) / unit * unit
}

// moveEvidence says how a clock's move is known.
func moveEvidence(s clocks.Suspect) string {
	counted := "its node counted it"
	if len(s.Explained) == 0 {
		return ": " + counted + "."
	}
	text := fmt.Sprintf(": %d flows with %d nodes moved by opposite amounts there and back, while their round trips stayed", len(s.Explained), s.Peers)
	if s.Counted {
		text += ", and " + counted
	}
	return text + "."
}

// Swap is two cables that are swapped: the links as the topology has them, and as
// they were found. Flows is how many flows showed it, LLDP whether neighbours did,
// First when it was first seen.
type Swap struct {
	Topology, Fabric [2]string
	Flows            int
	LLDP             bool
	First            time.Time
}

// SwapVerdict describes two cables that are swapped. The verdict names the first link
// of the topology; the other one is its equivalent, for the fault is theirs in common.
func SwapVerdict(g *fabric.Graph, s Swap) fabric.Verdict {
	v := fabric.Verdict{
		Element: fabric.Element{ID: s.Topology[0], Kind: fabric.KindLink}, Scenario: fabric.Miscabled, Severity: fabric.SeverityWarning,
		Equivalent: []fabric.Element{{ID: s.Topology[1], Kind: fabric.KindLink}}, Causes: []string{fabric.CauseMiscabled}, Jobs: []string{}, FirstSeen: s.First,
		Action: "Swap the two cables back, or correct the topology file. Until then paths follow the cables as they are.",
	}
	v.Tier, v.Plane = tierAndPlane(g, s.Topology[0], fabric.KindLink)
	// Each flow that shows it could be one that was traced across a change.
	v.Confidence = math.Round(math.Min(1-math.Pow(0.5, float64(s.Flows)), 0.999)*1000) / 1000
	by := fmt.Sprintf("%d flows came in by ports that they would not", s.Flows)
	switch {
	case s.LLDP && s.Flows > 0:
		by += ", and LLDP says so"
	case s.LLDP:
		by, v.Confidence = "LLDP says so", 0.999
	}
	v.Evidence = fabric.EvidenceCount{ExplainedEdges: s.Flows}
	v.BlastRadius.Edges = s.Flows
	v.Summary = fmt.Sprintf("Two cables are swapped: the topology has %s and %s, the fabric has %s and %s: %s.", s.Topology[0], s.Topology[1], s.Fabric[0], s.Fabric[1], by)
	v.ID = VerdictID(v.Kind, v.Element.ID, s.First)
	return v
}

// VerdictID is a verdict's identifier: the same element and start give the same one
// on every replica.
func VerdictID(kind fabric.Kind, element string, first time.Time) string {
	sum := sha256.Sum256([]byte(string(kind) + "\x00" + element + "\x00" + first.UTC().Format(time.RFC3339)))
	return hex.EncodeToString(sum[:6])
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
