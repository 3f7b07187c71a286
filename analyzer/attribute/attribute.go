// Package attribute says why an element is at fault, from the element's own series. It
// asks for nothing but the ports, NICs and node that a verdict is about, and keeps these
// rules, which the tests are named after:
//
//  1. A series that is absent is never a cause, and never a zero. A reading from before
//     the incident is none of the incident.
//  2. What moved is what counts: each reading is compared with the same one before. Where
//     nothing is known of before, it weighs half.
//  3. Without any series the answer is "no data", with series that say nothing it is "no
//     cause found". Neither is innocence.
//  4. Marks, late tails and losses alone are no congestion where the queue is known and
//     was empty: the series are believed, and the disagreement is said.
//  5. Packets wait at the end that sends and are damaged on the way to the end that
//     receives. What is found the other way round is told, and is no cause.
//  6. Several readings of one cause weigh more than one, and never quite 1.
//  7. Blocking across ports is confirmed by a queue on the way out together with a pause
//     or discards on the way in, at another port. Else it stays suspected.
//  8. A port that is shut by configuration comes before links that are down, at however many
//     ends: they are what that leads to.
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

// Request asks why a verdict's element is at fault.
type Request struct {
	Verdict fabric.Verdict
	// Suggested are the causes that the probes alone suggest.
	Suggested []string
	// Since is when the symptom may have begun, Sure when it surely had, Now when it is asked.
	Since, SureSince, Now time.Time
	// Rerouted is how many of the verdict's flows took another way since; they are Flows.
	Rerouted, Flows int
}

// endRole is an end that is read, and its part in the verdict: packets that suffer leave by
// it, or arrive at it.
type endRole struct {
	end             string
	sends, receives bool
}

// sides of a place that a row of the table is about.
type side int

const (
	sends side = 1 << iota
	receives
	either = sends | receives
)

func (p endRole) hasSide(s side) bool {
	return s&sends != 0 && p.sends || s&receives != 0 && p.receives
}

// values are what is known of one series of one end: its last value before the incident
// (edge), one some time before that (past), and the last one in it (now); its averages,
// for what rises and falls. nil: not known.
type values struct {
	past, atStart, now *float64
	avgBefore, avgNow  *float64
	// Seconds between past and edge, and between edge and now.
	secondsBefore, seconds float64
}

// reading names a series of an end. reason is the value of the label by which the series is
// told apart (labelOf), if it has one.
type reading struct{ end, series, reason string }

// readings are all that was read, and which ends share a cable.
type readings struct {
	at    map[reading]*values
	peers map[string]string
}

// growthDuring is by how much a counter grew in the incident, before by how much a second it
// grew before. A counter that went back began anew.
func (v *values) growthDuring() (float64, bool) { return counterGrowth(v.atStart, v.now) }

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

// attributionOf answers a question from what was read of the places, and of the switches whose control
// plane may be why.
func attributionOf(q Request, places, control []endRole, r *readings) fabric.Attribution {
	a := fabric.Attribution{From: q.Since, Until: q.Now, Causes: []fabric.Cause{}}
	back := make([]endRole, len(places))
	for i, p := range places {
		back[i] = endRole{p.end, p.receives, p.sends}
	}
	a.Causes = append(a.Causes, r.causesAt(slices.Concat(places, control))...)
	// Routing leaves what failed: no cause of that.
	failed := q.Verdict.Scenario == fabric.HardFailure || q.Verdict.Scenario == fabric.Flap
	if failed {
		a.Causes = slices.DeleteFunc(a.Causes, func(c fabric.Cause) bool { return c.Cause == fabric.CauseRouting })
	}
	a.Causes = append(a.Causes, r.capacityLoss(q.Verdict.Kind, places)...)
	if q.Rerouted > 0 && !failed {
		a.Causes = append(a.Causes, fabric.Cause{Cause: fabric.CauseRouting, Element: q.Verdict.Element.ID, Weight: routingWeight,
			Text: fmt.Sprintf("%d of its %d flows took another way since", q.Rerouted, q.Flows)})
	}
	suggested := slices.Contains(q.Suggested, fabric.CauseCongestion)
	if empty, text := r.emptyQueue(places); empty {
		// Rule 4.
		had := len(a.Causes)
		a.Causes = slices.DeleteFunc(a.Causes, func(c fabric.Cause) bool { return c.Cause == fabric.CauseCongestion })
		if suggested || len(a.Causes) < had {
			a.Against = append(a.Against, text+": no congestion, whatever marks, delays or losses look like")
		}
	}
	if q.Verdict.Direction != "" && len(a.Causes) == 0 {
		for _, c := range combineCauses(r.causesAt(back)) {
			a.Against = append(a.Against, fmt.Sprintf("at %s, %s: that would be %s on the way back, which the probes find clean", c.Element, c.Text, causeText(c.Cause)))
		}
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

// causesAt are the rows of the table that readings of the places meet.
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
					text += " (" + k.reason + ")"
				}
				out = append(out, fabric.Cause{Cause: row.Cause, Element: p.end, Weight: row.Weight * weight, Text: text})
			}
		}
		out = append(out, r.mtuMismatch(p, places)...)
	}
	return out
}

// readingsFor are the readings of an end that a row is about, in order.
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

// anyCurrent reports whether anything at all was read in the incident.
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

// reportedBefore reports whether an end told anything before the incident.
func (r *readings) reportedBefore(end string) bool {
	for k, v := range r.at {
		if k.end == end && v.atStart != nil {
			return true
		}
	}
	return false
}

// emptyQueue reports whether queues that packets leave by are known, and none held any
// back beyond what it did before.
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

// mtuMismatch compares an end with the one across its cable.
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
		weight, since := mtuWeight/2, "as before"
		if own.atStart != nil && *own.atStart != *own.now || peer.atStart != nil && *peer.atStart != *peer.now {
			weight, since = mtuWeight, "changed since"
		}
		return []fabric.Cause{{Cause: fabric.CauseMTU, Element: p.end, Weight: weight,
			Text: fmt.Sprintf("its MTU is %.0f, that of %s %.0f, %s", *own.now, o.end, *peer.now, since)}}
	}
	return nil
}

// capacityLoss counts the ports of a leaf's way out that are down.
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
		Text: fmt.Sprintf("%d of %d ports of the way out are down", len(down), known)}}
}

// combineCauses joins what is found of each cause at each place, strongest cause first.
func combineCauses(found []fabric.Cause) []fabric.Cause {
	type key struct{ cause, element string }
	at := map[key]int{}
	all := map[string]float64{} // of a cause, the chance that no reading means it
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

// maxCauses bounds what is told of one verdict.
const maxCauses = 12

// ApplyAttribution sets a verdict's causes, and what to do if they say more than the scenario
// does. suggested are the causes that the probes alone suggest.
func ApplyAttribution(v *fabric.Verdict, suggested []string, a *fabric.Attribution) {
	v.Attribution = a
	v.Causes = append([]string{}, suggested...)
	if a == nil || a.State == fabric.NoCauseData {
		return
	}
	if len(a.Against) > 0 || a.State == fabric.CauseFound {
		// What the series say is weighed already; swapped cables no port can count.
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
		// What to do about these does not depend on why, unless somebody did it.
		if a.Causes[0].Cause != fabric.CauseAdmin {
			return
		}
	}
	if act := actions[a.Causes[0].Cause]; act != "" {
		v.Action = fmt.Sprintf(act, a.Causes[0].Element)
	}
}

// BlockingEvidence reports whether the readings of a switch confirm blocking across its ports, and
// says how.
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
				return fmt.Sprintf("confirmed by the switch: at %s, %s; at %s, %s", out.Element, out.Text, in.Element, in.Text), true
			}
		}
	}
	return "", false
}
