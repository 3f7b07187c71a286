package classify

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// recommendedAction returns the first steps that the scenario of a verdict calls for.
func recommendedAction(v *fabric.Verdict) string {
	switch v.Scenario {
	case fabric.HardFailure:
		switch v.Kind {
		case fabric.KindNIC:
			return "Drain the node. Check whether the NIC, its cable and the leaf port are up, and replace the failed part."
		case fabric.KindSwitch:
			return "Take the switch out of routing now. Then check its power, supervisor and forwarding table."
		}
		return "Take the link out of routing at both ends. Then check optics, cable and forwarding state, and replace the failed part."
	case fabric.Flap:
		if v.Kind == fabric.KindNIC {
			return "Keep new jobs off this NIC. Reseat its cable, and check link-down counters and optics at both ends."
		}
		return "Shut the link down at both ends, so that routing stops returning to it. Then check link-down counters, optics and cable."
	case fabric.BadNIC:
		return "Keep new jobs off this NIC. Compare its optics, error counters and pause counters with those of other NICs on the leaf, and reseat or replace it."
	case fabric.Incast:
		return "Find the jobs that send to this node at the same time, and spread or pace them. Check the queue and the pause frames of its leaf port. No part needs replacing."
	case fabric.HotSpine, fabric.SlowLeaf:
		return "Check the switch's queues, pause frames and control-plane load. If its counters confirm the fault, shift traffic away from it."
	case fabric.LeafUplinks:
		return "Check how many uplinks of the leaf are up, and restore the missing ones. Keep new jobs off this leaf until then."
	case fabric.PairOnly:
		return "Compare the routes and ECMP groups of this leaf pair with those of healthy pairs. Look for a filter, an MTU or an ECMP hash that affects only this pair."
	case fabric.Host:
		return "Do not change the network. Check the node's CPU load, interrupts and PCIe, and drain the node if jobs on it are waiting."
	case fabric.HOLSame:
		return "Check this class's queue and pause frames at the port, and which traffic the class carries. The other classes are healthy."
	case fabric.HOLCross:
		return "Check the switch's input and output queues and pause frames at the times of the fault. One congested output that blocks several inputs confirms the suspicion."
	}
	if len(v.Causes) > 0 {
		return "Check the queue and the pause frames of the sending port, and find the jobs that fill it. Cost the link out of ECMP if jobs are affected."
	}
	return "Check the queues, error counters and optics of both ports. Cost the link out of ECMP if jobs are affected."
}

// summaryOf returns what is at fault and how badly, the reason for the scenario, the number of flows for and
// against it, and the confidence.
func summaryOf(v *fabric.Verdict, x *suspicion) string {
	text := []string{subjectOf(v) + " " + describeEffects(v, x) + "."}
	if x.Small {
		text = append(text, "No flow shows this by itself, but all of them together do.")
	}
	if w := scenarioReason(v, x); w != "" {
		text = append(text, w)
	}
	text = append(text, describeEvidence(v))
	if x.Sprayed > 0 {
		text = append(text, describeShares(x))
	}
	text = append(text, fmt.Sprintf("Confidence %.3g %%.", v.Confidence*100))
	return strings.Join(text, " ")
}

func subjectOf(v *fabric.Verdict) string {
	name := v.Element.ID
	switch v.Kind {
	case fabric.KindNIC:
		return "NIC " + name
	case fabric.KindPort:
		return "Port " + name
	case fabric.KindQueue:
		return "Queue " + name
	case fabric.KindSwitch:
		return "Switch " + name
	case fabric.KindCorridor:
		return "The path from " + strings.Join(v.Waypoints(), " to ")
	case fabric.KindPair:
		return "A fault between leaf " + strings.Join(v.Waypoints(), " and leaf ")
	case fabric.KindLeafUplinks:
		return "The uplink group of leaf " + name
	case fabric.KindHost:
		return "Node " + name + " itself"
	}
	return "Link " + name
}

// describeEffects returns the predicate of the summary: what the element does to packets. The first verb has
// the packets as its object, the others have "them".
func describeEffects(v *fabric.Verdict, x *suspicion) string {
	var what []string
	of := affectedPackets(v)
	add := func(verb string) {
		what = append(what, verb+" "+of)
		of = "them"
	}
	if n := v.Symptom.AddedDelayNS; n > 0 {
		add("adds " + FormatDelay(n) + " to")
	}
	if n := x.TailDelayNS; n > 0 && n > v.Symptom.AddedDelayNS/2 {
		add("adds " + FormatDelay(n) + " more to the slowest 1 % of")
	}
	switch r := v.Symptom.LossRatio; {
	case r >= 0.995:
		add("loses all of")
	case r > 0:
		add("loses " + formatPercent(r) + " of")
	}
	if r := v.Symptom.ECNRatio; r > 0 {
		add("ECN-marks " + formatPercent(r) + " of")
	}
	if len(what) == 0 {
		add("disturbs")
	}
	return joinPhrases(what)
}

// joinPhrases joins phrases as "a, b and c".
func joinPhrases(what []string) string {
	if n := len(what); n > 1 {
		return strings.Join(what[:n-1], ", ") + " and " + what[n-1]
	}
	return what[0]
}

// formatPercent writes a ratio with two digits, since further digits are chance.
func formatPercent(r float64) string {
	if r >= 0.1 {
		return fmt.Sprintf("%.0f %%", r*100)
	}
	return fmt.Sprintf("%.2g %%", r*100)
}

func affectedPackets(v *fabric.Verdict) string {
	switch {
	case v.Kind == fabric.KindNIC && strings.HasSuffix(v.Direction, "->"+v.Element.ID):
		return "the packets it receives"
	case v.Kind == fabric.KindNIC && v.Direction != "":
		return "the packets it sends"
	case v.Kind == fabric.KindNIC, v.Kind == fabric.KindHost:
		return "the packets it sends and receives"
	case v.Kind == fabric.KindQueue:
		return "the packets of class " + v.Class + " that leave through it"
	case v.Kind == fabric.KindPort && v.Direction != "":
		return "the packets of one class that leave through it"
	case v.Kind == fabric.KindSwitch:
		return "the packets it forwards"
	case v.Kind == fabric.KindCorridor:
		return "the packets that take it"
	case v.Kind == fabric.KindPair:
		return "the packets from the first to the second"
	case v.Kind == fabric.KindLeafUplinks:
		return "the packets that enter or leave the leaf through its uplinks"
	case v.Direction != "":
		return "the packets from " + strings.Replace(v.Direction, "->", " to ", 1)
	}
	return "the packets that cross it in either direction"
}

// SuspectedBlocking begins the sentence about blocking across ports until the switch's counters confirm it.
const SuspectedBlocking = "Suspected head-of-line blocking"

// scenarioReason returns the observation that distinguishes the scenario from similar ones, or "".
func scenarioReason(v *fabric.Verdict, x *suspicion) string {
	switch v.Scenario {
	case fabric.Flap:
		state := "It works at the moment."
		if x.recurrence.lasts {
			state = "The latest outage continues."
		}
		return fmt.Sprintf("It flaps: %d outages in the last %s, the longest of %s until the first clean packet. %s",
			x.recurrence.times, formatSpan(x.moments, x.step), formatSpan(x.recurrence.longest, x.step), state)
	case fabric.HardFailure:
		return "This is a hard failure, not a slowdown."
	case fabric.HotSpine:
		return "Flows between leaves that avoid it are at their baselines."
	case fabric.SlowLeaf:
		if x.local > 0 {
			return fmt.Sprintf("%s that %s within the leaf %s affected too, so the leaf is at fault and not its uplinks.",
				flowCount(x.local), pluralForm(x.local, "stays", "stay"), pluralForm(x.local, "is", "are"))
		}
		return "No flow stays within the leaf, so its uplinks may be at fault instead."
	case fabric.LeafUplinks:
		if x.localClean > 0 {
			return fmt.Sprintf("%s that %s within the leaf %s healthy: the leaf works, but its uplinks have too little capacity.",
				flowCount(x.localClean), pluralForm(x.localClean, "stays", "stay"), pluralForm(x.localClean, "is", "are"))
		}
	case fabric.PairOnly:
		return "Flows between either leaf and all other leaves are healthy."
	case fabric.Corridor:
		if v.Kind == fabric.KindCorridor {
			return "Each of its links is healthy for flows that take other paths."
		}
	case fabric.Incast:
		return fmt.Sprintf("Packets from %d nodes meet in the queue in front of it, while the packets it sends are on time. It is not broken.", len(x.from))
	case fabric.BadNIC:
		return "Other NICs on the leaf are healthy."
	case fabric.Host:
		if x.starved {
			return "The agent on the node gets too little CPU time. The network is not at fault."
		}
		return "All its NICs are affected alike, and other NICs on their leaves are healthy. The network is not at fault."
	case fabric.HOLSame:
		return "Other classes through the same port are healthy."
	case fabric.HOLCross:
		return fmt.Sprintf(SuspectedBlocking+": unrelated flows to %d of its ports degraded at the same moments, %d times in %s, and recovered in between.",
			x.egresses, x.recurrence.times, formatSpan(x.moments, x.step))
	}
	return ""
}

// describeEvidence returns the numbers of flows for and against a verdict as sentences.
func describeEvidence(v *fabric.Verdict) string {
	cross, crosses, avoid, avoids := "cross", "crosses", "avoid", "avoids"
	what := ""
	switch v.Kind {
	case fabric.KindNIC:
		cross, crosses, what = "use", "uses", "the NIC"
	case fabric.KindPort:
		what = "the port"
	case fabric.KindQueue:
		what = "the queue"
	case fabric.KindSwitch:
		what = "the switch"
	case fabric.KindCorridor:
		cross, crosses, what = "take", "takes", "the path"
	case fabric.KindPair:
		cross, crosses, what = "connect", "connects", "the two leaves"
		avoid, avoids = "do not connect", "does not connect"
	case fabric.KindLeafUplinks:
		what = "the uplinks"
	case fabric.KindHost:
		cross, crosses, what = "use", "uses", "the node"
	default:
		what = "the link"
	}
	n := v.Evidence.ExplainedEdges
	s := fmt.Sprintf("%d affected %s %s %s.", n, pluralForm(n, "flow", "flows"), pluralForm(n, crosses, cross), what)
	if m := v.Evidence.HealthyEdgesThroughParent; m > 0 {
		s += fmt.Sprintf(" %d nearby %s that %s %s %s healthy.", m, pluralForm(m, "flow", "flows"), pluralForm(m, avoids, avoid), what, pluralForm(m, "is", "are"))
	}
	if m := v.Evidence.ContraryEdges; m > 0 {
		s += fmt.Sprintf(" %s that %s %s %s healthy nevertheless.", flowCount(m), pluralForm(m, crosses, cross), what, pluralForm(m, "is", "are"))
	}
	return s
}

// describeShares states which share of the packets of sprayed flows crosses an element.
func describeShares(x *suspicion) string {
	share := formatShare(x.LeastShare)
	if most := formatShare(x.MostShare); most != share {
		share += " to " + most
	}
	text := fmt.Sprintf("It is crossed by %s of the packets of %s.", share, flowCount(x.Sprayed))
	if n := len(x.Equivalent); n > 0 {
		text += fmt.Sprintf(" The same packets may have crossed %d other %s instead.", n, pluralForm(n, "element", "elements"))
	}
	return text
}

// formatShare writes a share of packets as one of so many, if that is what it is.
func formatShare(share float64) string {
	if n := math.Round(1 / share); math.Abs(n*share-1) < 1e-6 {
		return fmt.Sprintf("1/%.0f", n)
	}
	return formatPercent(share)
}

func flowCount(n int) string { return fmt.Sprintf("%d %s", n, pluralForm(n, "flow", "flows")) }

func pluralForm(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// formatSpan writes the duration of a number of moments, or the number where their step is unknown.
func formatSpan(moments int, step time.Duration) string {
	d := time.Duration(moments) * step
	switch {
	case step <= 0 || d <= 0:
		return fmt.Sprintf("%d %s", moments, pluralForm(moments, "window", "windows"))
	case d < 2*time.Minute:
		return fmt.Sprintf("%.3g s", d.Seconds())
	}
	return fmt.Sprintf("%.3g min", d.Minutes())
}
