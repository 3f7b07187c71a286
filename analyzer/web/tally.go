package web

import (
	"fmt"

	"github.com/graylink/graylink/analyzer/snapshot"
)

// delaySteps holds the labels of the delay scale, which has one step for each decade from 10 µs on.
var delaySteps = [...]string{"adds < 10 µs", "≥ 10 µs", "≥ 100 µs", "≥ 1 ms", "≥ 10 ms"}

// tally sums up the evidence about one direction of a cable.
type tally struct {
	links, withoutEvidence int
	undetermined           int // crossed, but their own share cannot be determined
	edges, degraded        int
	delay                  *int64 // the largest known delay
	loss                   float64
	mark                   level
}

func (t *tally) addLink(v *snapshot.LinkView, m level) {
	t.links++
	t.mark = max(t.mark, m)
	if v == nil || v.Edges == 0 {
		t.withoutEvidence++
		if v == nil {
			return
		}
	}
	t.edges += v.Edges
	t.degraded += v.Degraded
	t.loss = max(t.loss, v.LossRatio)
	// Where every flow that crosses the link is degraded, no healthy flow clears it. An added
	// delay of 0 does not mean that it is healthy then.
	determined := v.AddedDelayNS != nil && (*v.AddedDelayNS > 0 || v.Edges == 0 || v.Degraded < v.Edges)
	if !determined && v.Edges > 0 {
		t.undetermined++
	}
	if determined && (t.delay == nil || *v.AddedDelayNS > *t.delay) {
		ns := *v.AddedDelayNS
		t.delay = &ns
	}
}

// linkState returns the state of a direction: delay, loss, healthy, unknown (crossed, but its own
// share cannot be determined) or none (no flow crosses it).
func (t *tally) linkState() string {
	switch {
	case t.loss > 0:
		return "loss"
	case t.delay != nil && *t.delay > 0:
		return "delay"
	case t.withoutEvidence == t.links:
		return "none"
	case t.delay == nil:
		return "unknown"
	}
	return "healthy"
}

func (t *tally) cssClass() string {
	c := t.linkState()
	switch c {
	case "delay":
		c = fmt.Sprintf("d%d", t.delayStep())
	case "loss":
		if t.loss >= 0.5 {
			c = "loss most"
		}
	}
	if n := t.withoutEvidence + t.undetermined; n > 0 && n < t.links {
		c += " partial"
	}
	return c
}

// delayStep returns the decade of the added delay, from 1 to len(delaySteps).
func (t *tally) delayStep() int {
	n := 1
	for limit := int64(10_000); n < len(delaySteps) && *t.delay >= limit; limit *= 10 {
		n++
	}
	return n
}

// drawRank returns the rank of a cable in the drawing. A higher one is more conspicuous.
func (t *tally) drawRank() int {
	r := 100 * int(t.mark)
	switch t.linkState() {
	case "loss":
		r += 50
	case "delay":
		r += 10 * t.delayStep()
	}
	return r
}

func (t *tally) strokeTitle(s stroke) string {
	out := s.From + " → " + s.To
	if s.Group > 0 {
		out += fmt.Sprintf(" (%s)", pluralCount(s.Group, "link", "links"))
	}
	out += "\n"
	switch t.linkState() {
	case "none":
		return out + "no evidence: no probe with a known path crosses it" + markText(t.mark)
	case "unknown":
		out += "its own delay cannot be determined"
	case "healthy":
		out += "no added delay"
	default:
		if t.delay != nil {
			out += "adds " + formatDelay(*t.delay)
		} else {
			out += "its own delay cannot be determined"
		}
		if t.loss > 0 {
			out += ", loses " + formatPercent(t.loss)
		}
	}
	out += fmt.Sprintf("\n%s, %s degraded", pluralCount(t.edges, "flow", "flows"), formatCount(t.degraded))
	if t.withoutEvidence > 0 {
		out += fmt.Sprintf("\nno evidence for %s of them", formatCount(t.withoutEvidence))
	}
	if t.undetermined > 0 && t.undetermined < t.links {
		out += fmt.Sprintf("\nthe share of %s of them cannot be determined", formatCount(t.undetermined))
	}
	return out + markText(t.mark)
}

func markText(m level) string {
	switch m {
	case suspect:
		return "\nSUSPECT"
	case held:
		return "\nsuspect, held open without fresh symptoms"
	case equivalent:
		return "\ncannot be distinguished from the suspect"
	}
	return ""
}
