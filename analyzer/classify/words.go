package classify

import (
	"fmt"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// recommendedAction is what to do first.
func recommendedAction(v *fabric.Verdict) string {
	switch v.Scenario {
	case fabric.HardFailure:
		switch v.Kind {
		case fabric.KindNIC:
			return "Drain the node; look whether the NIC, its cable and the leaf port are up, and replace what is dead."
		case fabric.KindSwitch:
			return "Take the switch out of routing now; then look at its power, its supervisor and its forwarding table."
		}
		return "Take the link out of routing at both ends; then look at optics, cable and forwarding state, and replace what is dead."
	case fabric.Flap:
		if v.Kind == fabric.KindNIC {
			return "Keep new jobs off this NIC; reseat its cable, and look at link-down counts and optics at both ends."
		}
		return "Shut the link down at both ends, so that routing stops coming back to it; then look at link-down counts, optics and cable."
	case fabric.BadNIC:
		return "Keep new jobs off this NIC; compare its optic, error and pause counters with those of its neighbours on the leaf; reseat or replace it."
	case fabric.Incast:
		return "Find out which jobs send to this node at once, and spread or pace them; look at the queue and the pause frames of its leaf port. Nothing needs replacing."
	case fabric.HotSpine, fabric.SlowLeaf:
		return "Look at the switch's queues, pause frames and control-plane load; shift traffic away from it if its counters confirm."
	case fabric.LeafUplinks:
		return "Count the leaf's uplinks that are up, and bring the missing ones back; until then keep new jobs off this leaf."
	case fabric.PairOnly:
		return "Compare routes and ECMP groups for this pair of leaves with those of pairs that are clean; look for a filter, an MTU or a hash that only they meet."
	case fabric.Host:
		return "Leave the network alone. Look at the node's CPU load, interrupts and PCIe; drain it if jobs on it wait."
	case fabric.HOLSame:
		return "Look at this class's queue and pause frames at the port, and at what the class carries; the other classes are fine."
	case fabric.HOLCross:
		return "Look at the switch's input and output queues and pause frames in the same seconds: one congested output that stops several inputs confirms it."
	}
	if len(v.Causes) > 0 {
		return "Look at the queue and the pause frames of the sending port, and at which jobs fill it; cost the link out of ECMP if jobs are affected."
	}
	return "Look at both ports' queues, error and optic counters; cost the link out of ECMP if jobs are affected."
}

// summaryOf says what, where, how bad, why this and nothing else, and how sure.
func summaryOf(v *fabric.Verdict, x *suspicion) string {
	text := []string{subjectOf(v) + " " + describeEffects(v, x) + "."}
	if w := scenarioReason(v, x); w != "" {
		text = append(text, w)
	}
	text = append(text, describeEvidence(v), fmt.Sprintf("Confidence %.3g %%.", v.Confidence*100))
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
		return "The way " + strings.ReplaceAll(name, "->", " to ")
	case fabric.KindPair:
		from, to, _ := strings.Cut(name, "->")
		return "Something between leaf " + from + " and leaf " + to
	case fabric.KindLeafUplinks:
		return "The way out of leaf " + name
	case fabric.KindHost:
		return "Node " + name + " itself"
	}
	return "Link " + name
}

// describeEffects are a symptom's verbs: the first with its object, the others with "them".
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
		add("adds " + FormatDelay(n) + " more to the slowest hundredth of")
	}
	switch r := v.Symptom.LossRatio; {
	case r >= 0.995:
		add("loses all of")
	case r > 0:
		add("loses " + formatPercent(r) + " of")
	}
	if r := v.Symptom.ECNRatio; r > 0 {
		add("marks " + formatPercent(r) + " of")
	}
	if len(what) == 0 {
		add("disturbs")
	}
	return joinPhrases(what)
}

// joinPhrases joins phrases: "a, b and c".
func joinPhrases(what []string) string {
	if n := len(what); n > 1 {
		return strings.Join(what[:n-1], ", ") + " and " + what[n-1]
	}
	return what[0]
}

// formatPercent is a ratio to two digits: more of it is chance.
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
		return "the packets of class " + v.Class + " that leave by it"
	case v.Kind == fabric.KindPort && v.Direction != "":
		return "the packets of one class that leave by it"
	case v.Kind == fabric.KindSwitch:
		return "the packets it forwards"
	case v.Kind == fabric.KindCorridor:
		return "the packets that go that way"
	case v.Kind == fabric.KindPair:
		return "the packets from the one to the other"
	case v.Kind == fabric.KindLeafUplinks:
		return "the packets that enter or leave by its uplinks"
	case v.Direction != "":
		return "the packets from " + strings.Replace(v.Direction, "->", " to ", 1)
	}
	return "the packets that cross it in either direction"
}

// SuspectedBlocking begins what is said of blocking across ports until the switch confirms it.
const SuspectedBlocking = "Suspected head-of-line blocking"

// scenarioReason is what tells the scenario from those like it.
func scenarioReason(v *fabric.Verdict, x *suspicion) string {
	switch v.Scenario {
	case fabric.Flap:
		state := "is up at the moment"
		if x.recurrence.lasts {
			state = "is out at the moment"
		}
		return fmt.Sprintf("It comes and goes: out %d times in the last %s, for up to %s until the first clean packet, and %s.",
			x.recurrence.times, formatSpan(x.moments, x.step), formatSpan(x.recurrence.longest, x.step), state)
	case fabric.HardFailure:
		return "It is dead, not slow."
	case fabric.HotSpine:
		return "Pairs of leaves that avoid it are at their baseline."
	case fabric.SlowLeaf:
		if x.local > 0 {
			return fmt.Sprintf("%s that stay under it %s too, so it is the leaf and not its uplinks.", flowCount(x.local), pluralForm(x.local, "suffers", "suffer"))
		}
		return "No flow stays under it, so it may as well be its uplinks."
	case fabric.LeafUplinks:
		if x.localClean > 0 {
			return fmt.Sprintf("%s that stay under it %s clean: the leaf works, its way out is too narrow.", flowCount(x.localClean), pluralForm(x.localClean, "is", "are"))
		}
	case fabric.PairOnly:
		return "Both leaves are fine with all others."
	case fabric.Corridor:
		if v.Kind == fabric.KindCorridor {
			return "Each of its links is fine for what goes another way."
		}
	case fabric.Incast:
		return fmt.Sprintf("Packets of %d nodes meet in the queue in front of it; what it sends is on time. It is not broken.", len(x.from))
	case fabric.BadNIC:
		return "Its neighbours on the leaf are fine."
	case fabric.Host:
		if x.starved {
			return "Its agent gets too little CPU. The network is innocent."
		}
		return "All its NICs are alike and their neighbours on the leaves are fine. The network is innocent."
	case fabric.HOLSame:
		return "Other classes through the same port are clean."
	case fabric.HOLCross:
		return fmt.Sprintf(SuspectedBlocking+": unrelated flows to %d of its ports were bad in the same moments, %d times in %s, and fine in between.",
			x.egresses, x.recurrence.times, formatSpan(x.moments, x.step))
	}
	return ""
}

func describeEvidence(v *fabric.Verdict) string {
	n := v.Evidence.ExplainedEdges
	s := flowCount(n) + pluralForm(n, " suffers and crosses it", " suffer and all of them cross it")
	if m := v.Evidence.HealthyEdgesThroughParent; m > 0 {
		s += fmt.Sprintf("; %s close by that %s not %s clean", flowCount(m), pluralForm(m, "does", "do"), pluralForm(m, "is", "are"))
	}
	if m := v.Evidence.ContraryEdges; m > 0 {
		s += fmt.Sprintf("; %s cross%s it and %s clean all the same", flowCount(m), pluralForm(m, "es", ""), pluralForm(m, "is", "are"))
	}
	return s + "."
}

func flowCount(n int) string { return fmt.Sprintf("%d %s", n, pluralForm(n, "flow", "flows")) }

func pluralForm(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// formatSpan is how long some moments are.
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
