// Package attribute finds why an element is at fault, from the element's own series. It
// queries only the ports, NICs and nodes that a verdict is about. The tests are named after
// these rules:
//
//  1. An absent series is never a cause, and never a zero. A reading from before the
//     incident does not belong to the incident.
//  2. Only changes count: each reading is compared with the same reading before the
//     incident. A reading without an earlier value has half of its weight.
//  3. Without any series the result is "no data". With series that show nothing unusual it
//     is "no cause found". Neither proves that the element is healthy.
//  4. ECN marks, a long tail of delays and losses alone are not congestion where the queue
//     was observed and empty. The series win, and the summary reports the contradiction.
//  5. Packets wait at the sending end, and are damaged on the way to the receiving end.
//     Findings in the other direction are reported, but are not a cause.
//  6. Several readings of one cause together weigh more than one reading, and less than 1.
//  7. Blocking across ports is confirmed by a queue at an output together with a pause or
//     discards at an input, at another port. Otherwise it stays suspected.
//  8. A port that is shut by configuration ranks before links that are down, at however many
//     ends: the configuration leads to the down links.
//  9. Where the probes cannot distinguish an element from others, and the series of just one of them show a cause, it is
//     the cause of the incident.
//  10. What the series did in an earlier incident is nothing to compare with. The comparison begins after it.
//
// Rules 11 to 14 are those of in-band signals (signals.go).
//
// The table of causes is Table, published as docs/causes.md.
package attribute

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Request represents the question why the element of a verdict is at fault.
type Request struct {
	Verdict fabric.Verdict
	// Suggested are the causes that the probes alone suggest.
	Suggested []string
	// Since is the earliest start of the symptom, SureSince its latest start, and Now the time of the request.
	Since, SureSince, Now time.Time
	// Quiet is when an earlier incident on the element, or on one that it could not be distinguished from, was last named. What the
	// series did until then is not how they usually are (rule 10). It is zero if there was none.
	Quiet time.Time
	// Rerouted is the number of the verdict's flows that have changed their path since, of Flows in all.
	Rerouted, Flows int
	// Crossing returns the flows that cross an element, with the paths that they have had since before SureSince. It may be called
	// beside a cycle. Nil means that in-band signals are not read.
	Crossing func(fabric.Element) []CrossingFlow
}

// endRole represents an end whose series are read, and its role in the verdict: affected packets leave through
// it, or arrive at it.
type endRole struct {
	end             string
	sends, receives bool
}

// side represents the roles of an end to which a row of the table applies.
type side int

const (
	sends side = 1 << iota
	receives
	either = sends | receives
)

func (p endRole) hasSide(s side) bool {
	return s&sends != 0 && p.sends || s&receives != 0 && p.receives
}

// values represents one series of one end: the last value before the incident (atStart), an earlier one (past) and
// the last one in the incident (now), and the averages of a gauge. Nil means that a value is unknown.
type values struct {
	past, atStart, now *float64
	avgBefore, avgNow  *float64
	// Seconds between past and atStart, and between atStart and now.
	secondsBefore, seconds float64
}

// reading identifies a series of an end. reason is the value of the label that distinguishes the series of one
// end (labelOf), if there is one.
type reading struct{ end, series, reason string }

// readings represents all values that were read, and the pairs of ends that share a cable.
type readings struct {
	at    map[reading]*values
	peers map[string]string
}

// growthDuring returns by how much a counter grew in the incident. A counter that went back has restarted from 0.
func (v *values) growthDuring() (float64, bool) { return counterGrowth(v.atStart, v.now) }

// rateBefore returns the growth of a counter per second before the incident.
func (v *values) rateBefore() (float64, bool) {
	n, ok := counterGrowth(v.past, v.atStart)
	if v.secondsBefore <= 0 {
		return 0, false
	}
	return n / v.secondsBefore, ok
}

func counterGrowth(from, to *float64) (float64, bool) {
	switch {
	case from == nil || to == nil:
		return 0, false
	case *to < *from:
		return *to, true
	}
	return *to - *from, true
}

// attributionOf returns the attribution that follows from the readings of the places, and of others: the switches whose
// control plane may be the cause, and the own ports of a switch; and from in-band signals.
func attributionOf(q Request, places, others []endRole, r *readings, signals signalOpinion) fabric.Attribution {
	a := fabric.Attribution{From: q.Since, Until: q.Now, Causes: []fabric.Cause{}, Signals: signals.SignalReading}
	back := make([]endRole, len(places))
	for i, p := range places {
		back[i] = endRole{p.end, p.receives, p.sends}
	}
	a.Causes = append(a.Causes, r.causesAt(slices.Concat(places, others))...)
	a.Causes = append(a.Causes, signals.causes()...)
	// Routing leaves a failed element, so that a change of routes is not its cause.
	failed := q.Verdict.Scenario == fabric.HardFailure || q.Verdict.Scenario == fabric.Flap
	if failed {
		a.Causes = slices.DeleteFunc(a.Causes, func(c fabric.Cause) bool { return c.Cause == fabric.CauseRouting })
	}
	a.Causes = append(a.Causes, r.capacityLoss(q.Verdict.Kind, places)...)
	if q.Rerouted > 0 && !failed {
		a.Causes = append(a.Causes, fabric.Cause{Cause: fabric.CauseRouting, Element: q.Verdict.Element.ID, Weight: routingWeight,
			Text: fmt.Sprintf("%d of its %d flows have taken another path since", q.Rerouted, q.Flows)})
	}
	suggested := slices.Contains(q.Suggested, fabric.CauseCongestion)
	if empty, text := r.emptyQueue(places); empty {
		// Rule 4.
		had := len(a.Causes)
		a.Causes = slices.DeleteFunc(a.Causes, func(c fabric.Cause) bool { return c.Cause == fabric.CauseCongestion })
		if suggested || len(a.Causes) < had {
			a.Against = append(a.Against, text+", so this is no congestion, whatever the marks, delays or losses suggest")
		}
	}
	if q.Verdict.Direction != "" && len(a.Causes) == 0 {
		for _, c := range combineCauses(r.causesAt(back)) {
			a.Against = append(a.Against, fmt.Sprintf("at %s, %s, which would be %s in the other direction, but the probes find that direction healthy", c.Element, c.Text, causeText(c.Cause)))
		}
	}
	if signals.says(fabric.SignalsDisagree) {
		a.Against = append(a.Against, a.Signals.Text)
	}
	a.Causes = combineCauses(a.Causes)
	switch {
	case len(a.Causes) > 0:
		a.State = fabric.CauseFound
	case r.anyCurrent(places):
		a.State = fabric.NoCauseFound
	default:
		a.State = fabric.NoCauseData
	}
	yes, no := true, false
	switch {
	case len(a.Against) > 0:
		a.Agrees = &no
	case a.State == fabric.CauseFound:
		a.Agrees = &yes
	}
	a.Summary = summaryOf(&a, places, suggested)
	return a
}

// causesAt returns a cause for each row of the table that a reading of the places meets.
func (r *readings) causesAt(places []endRole) (out []fabric.Cause) {
	for _, p := range places {
		for i := range table {
			row := &table[i]
			if !p.hasSide(row.side) {
				continue
			}
			for _, k := range r.readingsFor(p.end, row) {
				text, weight := row.test(r, k)
				if text == "" {
					continue
				}
				if k.reason != "" {
					text += " (" + reasonText(k) + ")"
				}
				out = append(out, fabric.Cause{Cause: row.Cause, Element: p.end, Peer: r.peerFor(row.Cause, p.end), Weight: row.Weight * weight, Text: text})
			}
		}
		out = append(out, r.mtuMismatch(p, places)...)
	}
	return out
}

// peerFor returns the other end of the cable of an end if the cause concerns both ends, otherwise "".
func (r *readings) peerFor(cause, end string) string {
	switch cause {
	case fabric.CausePhysical, fabric.CauseStall, fabric.CauseFlap, fabric.CauseDown, fabric.CauseDownshift, fabric.CauseOptics:
		return r.peers[end]
	}
	return ""
}

// readingsFor returns the readings of an end to which a row applies, in the row's order.
func (r *readings) readingsFor(end string, row *Row) (out []reading) {
	if len(row.Reasons) == 0 {
		if k := (reading{end, row.Series, ""}); r.at[k] != nil {
			out = append(out, k)
		}
		return out
	}
	for _, reason := range row.Reasons {
		if k := (reading{end, row.Series, reason}); r.at[k] != nil {
			out = append(out, k)
		}
	}
	return out
}

// anyCurrent reports whether any series of the places has a value in the incident.
func (r *readings) anyCurrent(places []endRole) bool {
	for k, v := range r.at {
		if v.now == nil && v.avgNow == nil {
			continue
		}
		if slices.ContainsFunc(places, func(p endRole) bool { return p.end == k.end }) {
			return true
		}
	}
	return false
}

// reportedBefore reports whether any series of an end has a value from before the incident.
func (r *readings) reportedBefore(end string) bool {
	for k, v := range r.at {
		if k.end == end && v.atStart != nil {
			return true
		}
	}
	return false
}

// emptyQueue reports whether the queues that packets leave through are known, and none of them held more than before.
// The text names the queues.
func (r *readings) emptyQueue(places []endRole) (bool, string) {
	var known []string
	for _, p := range places {
		if !p.sends {
			continue
		}
		for i := range table {
			row := &table[i]
			if !row.queue {
				continue
			}
			v := r.at[reading{p.end, row.Series, ""}]
			if v == nil {
				continue
			}
			if text, _ := row.test(r, reading{p.end, row.Series, ""}); text != "" {
				return false, ""
			}
			if v.avgNow != nil && !slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(k, p.end+" ") }) {
				known = append(known, fmt.Sprintf("%s held %s on average", p.end, formatAmount(*v.avgNow, row.unit)))
			}
		}
	}
	if len(known) == 0 {
		return false, ""
	}
	more := ""
	if n := len(known); n > 2 {
		known, more = known[:2], fmt.Sprintf(", and %d more held as little", n-2)
	}
	return true, "the queue of " + strings.Join(known, ", that of ") + more
}

// mtuMismatch returns a cause if the MTU of an end differs from that of the other end of its cable.
func (r *readings) mtuMismatch(p endRole, places []endRole) []fabric.Cause {
	if !p.sends {
		return nil
	}
	own := r.at[reading{p.end, "mtu_bytes", ""}]
	for _, o := range places {
		peer := r.at[reading{o.end, "mtu_bytes", ""}]
		if o.end == p.end || !o.receives || own == nil || peer == nil || own.now == nil || peer.now == nil || *own.now == *peer.now || r.peers[p.end] != o.end {
			continue
		}
		weight, since := mtuWeight/2, "as before the incident"
		if own.atStart != nil && *own.atStart != *own.now || peer.atStart != nil && *peer.atStart != *peer.now {
			weight, since = mtuWeight, "changed during the incident"
		}
		return []fabric.Cause{{Cause: fabric.CauseMTU, Element: p.end, Peer: o.end, Weight: weight,
			Text: fmt.Sprintf("its MTU is %.0f and that of %s is %.0f, %s", *own.now, o.end, *peer.now, since)}}
	}
	return nil
}

// capacityLoss returns a cause if uplink ports of a leaf are down.
func (r *readings) capacityLoss(kind fabric.Kind, places []endRole) []fabric.Cause {
	if kind != fabric.KindLeafUplinks {
		return nil
	}
	var down []string
	known := 0
	for _, p := range places {
		if v := r.at[reading{p.end, "oper_up", ""}]; v != nil && v.now != nil {
			if known++; *v.now == 0 {
				down = append(down, p.end)
			}
		}
	}
	if len(down) == 0 {
		return nil
	}
	return []fabric.Cause{{Cause: fabric.CauseCapacity, Element: down[0], Weight: capacityWeight,
		Text: fmt.Sprintf("%d of %d uplink ports are down", len(down), known)}}
}

// combineCauses joins the findings of each cause at each place, and sorts them by the weight of their cause.
func combineCauses(found []fabric.Cause) []fabric.Cause {
	type key struct{ cause, element string }
	at := map[key]int{}
	all := map[string]float64{} // by cause, the probability that no reading points to it
	out := []fabric.Cause{}
	for _, c := range found {
		k := key{c.Cause, c.Element}
		if _, ok := all[c.Cause]; !ok {
			all[c.Cause] = 1
		}
		all[c.Cause] *= 1 - c.Weight
		i, ok := at[k]
		if !ok {
			at[k] = len(out)
			out = append(out, c)
			continue
		}
		o := &out[i]
		o.Weight = 1 - (1-o.Weight)*(1-c.Weight)
		o.Text += ", " + c.Text
	}
	if shut, ok := all[fabric.CauseAdmin]; ok && all[fabric.CauseDown] != 0 {
		all[fabric.CauseDown] = max(all[fabric.CauseDown], math.Nextafter(shut, 1)) // rule 8
	}
	for i := range out {
		out[i].Weight = math.Round(min(out[i].Weight, mostWeight)*100) / 100
	}
	slices.SortStableFunc(out, func(a, b fabric.Cause) int {
		return cmp.Or(cmp.Compare(all[a.Cause], all[b.Cause]), cmp.Compare(a.Cause, b.Cause), cmp.Compare(b.Weight, a.Weight), cmp.Compare(a.Element, b.Element))
	})
	if len(out) > maxCauses {
		out = out[:maxCauses]
	}
	return out
}

// maxCauses bounds the causes that are reported of one verdict.
const maxCauses = 12

// ApplyAttribution sets the causes of a verdict, and its recommended action if the causes call for a more specific one
// than the scenario. suggested are the causes that the probes alone suggest.
func ApplyAttribution(v *fabric.Verdict, suggested []string, a *fabric.Attribution) {
	v.Attribution = a
	v.Causes = append([]string{}, suggested...)
	if a == nil || a.State == fabric.NoCauseData {
		return
	}
	if contradictsQueue(a) || a.State == fabric.CauseFound {
		// The weights of the series count already. No port can count swapped cables.
		v.Causes = slices.DeleteFunc(v.Causes, func(c string) bool { return c == fabric.CauseCongestion })
	}
	for _, c := range a.Causes {
		if !slices.Contains(v.Causes, c.Cause) {
			v.Causes = append(v.Causes, c.Cause)
		}
	}
	if len(a.Causes) == 0 && v.Scenario == fabric.Corridor && len(v.Causes) < len(suggested) {
		v.Action = noQueue
	}
	if len(a.Causes) == 0 || a.Causes[0].Weight < actsFrom {
		return
	}
	switch v.Scenario {
	case fabric.HardFailure, fabric.Flap, fabric.Incast, fabric.Host, fabric.Miscabled, fabric.ClockTrouble:
		// The action for these does not depend on the cause, unless an operator shut the port.
		if a.Causes[0].Cause != fabric.CauseAdmin {
			return
		}
	}
	if act := actions[a.Causes[0].Cause]; act != "" {
		end := a.Causes[0].Element
		if peer := a.Causes[0].Peer; peer != "" {
			end += " (cable to " + peer + ")"
		}
		v.Action = fmt.Sprintf(act, end)
	}
}

// contradictsQueue reports whether series contradict what the probes suggest. In-band signals that disagree do not: a tag names the
// worst hop, and there may be a smaller queue at the element (rule 14).
func contradictsQueue(a *fabric.Attribution) bool {
	return slices.ContainsFunc(a.Against, func(s string) bool { return a.Signals == nil || s != a.Signals.Text })
}

// BlockingEvidence reports whether the readings of a switch confirm blocking across its ports. The text names the
// readings.
func BlockingEvidence(a *fabric.Attribution) (string, bool) {
	if a == nil {
		return "", false
	}
	for _, out := range a.Causes {
		if out.Cause != fabric.CauseCongestion {
			continue
		}
		for _, in := range a.Causes {
			if in.Element != out.Element && (in.Cause == fabric.CauseStall || in.Cause == fabric.CauseDrops) {
				return fmt.Sprintf("confirmed by the switch's counters: at %s, %s; at %s, %s", out.Element, out.Text, in.Element, in.Text), true
			}
		}
	}
	return "", false
}
