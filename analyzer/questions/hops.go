package questions

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/graylink/graylink/analyzer/asking"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// hopDecides is the log-likelihood ratio (nats) from which hop-limited probes exclude a suspect: 1,000 to 1. They are weighed in
// every cycle, so the chance that the true one is ever excluded is that of one look (Ville's inequality).
const hopDecides = 6.9

// HopID identifies a hop-limited probe.
type HopID struct {
	Flow fabric.Flow
	Hop  int
}

func idOf(p *asking.HopProbe) HopID { return HopID{p.Flow, p.Hop} }

// hopFile is what is known of an incident from hop-limited probes.
type hopFile struct {
	suspects []fabric.DirectedElement // of the last question, by the indexes of asking.HopProbe.Meets
	loss     float64                  // ratio that the flows show
	planned  []asking.HopProbe        // of the last question
	watched  map[HopID]*hopWatch      // that were granted
	changed  bool                     // the counts, since they were weighed
	excluded []fabric.Element
}

// hopWatch is a granted probe, with what it has counted.
type hopWatch struct {
	probe         asking.HopProbe
	earlier, last hopCounts // of earlier grants, and of this one
	discarded     string    // the reason why the counts say nothing
}

type hopCounts struct{ sent, answered uint64 }

func (w *hopWatch) total() hopCounts {
	return hopCounts{w.earlier.sent + w.last.sent, w.earlier.answered + w.last.answered}
}

// planHops returns the hop-limited probes that distinguish suspects which no flow distinguishes, or the reason why there are
// none.
func (d *Desk) planHops(s *subject, flowsDecide bool, findings []judge.Finding) (hops []asking.HopProbe, why string) {
	if s.loss < asking.LeastHopLoss {
		if flowsDecide || s.loss < 0 {
			return nil, ""
		}
		return nil, fmt.Sprintf("no flow distinguishes them, and hop-limited probes show losses from %.0f %% on only", 100*asking.LeastHopLoss)
	}
	hops = d.planner.PlanHops(s.suspects, tracedProbes(findings))
	if len(hops) == 0 && !flowsDecide {
		return nil, "no flow distinguishes them, and the traces show no switch at which a hop-limited probe could end"
	}
	return hops, ""
}

// tracedProbes yields the flows of probes of the schedule whose path is known.
func tracedProbes(findings []judge.Finding) iter.Seq2[fabric.Flow, fabric.Path] {
	return func(yield func(fabric.Flow, fabric.Path) bool) {
		for i := range findings {
			f := &findings[i]
			if len(f.Obs.Path) > 0 && !f.Flow.Reply && !f.Flow.IsTemporary() && !yield(f.Flow, f.Obs.Path) {
				return
			}
		}
	}
}

// plan takes over the probes of a question. Counts about other suspects say nothing of these.
func (h *hopFile) plan(s *subject, hops []asking.HopProbe) {
	if h.watched == nil || keyOf(h.suspects) != keyOf(s.suspects) {
		h.watched = map[HopID]*hopWatch{}
	}
	h.suspects, h.loss, h.planned = slices.Clone(s.suspects), s.loss, hops
}

// takeGranted takes over which of the planned probes were granted.
func (h *hopFile) takeGranted(granted []HopID) {
	for i := range h.planned {
		p := &h.planned[i]
		id := idOf(p)
		if w := h.watched[id]; w == nil && slices.Contains(granted, id) {
			h.watched[id] = &hopWatch{probe: *p}
		}
	}
}

// RecordHops takes the counts of a flow's hop-limited probes from its agent.
func (d *Desk) RecordHops(flow fabric.Flow, counts []fabric.HopCount) {
	if d == nil || len(counts) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		for i := range counts {
			if w := f.hops.watched[HopID{flow, counts[i].TTL}]; w != nil && d.graph != nil {
				w.takeCount(d.graph, &counts[i])
				f.hops.changed = true
			}
		}
	}
}

// takeCount takes over a count, which begins anew with each grant. An answer of another switch than the expected one means
// that the path is another one.
func (w *hopWatch) takeCount(g *fabric.Graph, c *fabric.HopCount) {
	if c.Sent < w.last.sent {
		w.earlier = w.total()
	}
	w.last = hopCounts{sent: c.Sent}
	for from, n := range c.Answered {
		end, _ := fabric.IngressPort(g, fabric.RawHop{TTL: c.TTL, Address: from})
		if end == "" || fabric.OwnerOf(end) != w.probe.Switch {
			w.discarded = fmt.Sprintf("%s answered, want %s", from, w.probe.Switch)
			continue
		}
		w.last.answered += n
	}
}

// discardMoved discards the counts of flows that have taken another path to the switch.
func (d *Desk) discardMoved(findings []judge.Finding) {
	watched := map[fabric.Flow][]*hopWatch{}
	for _, f := range d.files {
		for id, w := range f.hops.watched {
			watched[id.Flow] = append(watched[id.Flow], w)
		}
	}
	if len(watched) == 0 {
		return
	}
	for i := range findings {
		f := &findings[i]
		for _, w := range watched[f.Flow] {
			if f.Obs.PathState == fabric.PathValid && !samePrefix(f.Obs.Path, w.probe.Before) {
				w.discarded = "the flow has taken another path"
			}
		}
	}
}

// samePrefix reports whether a path leads to the end of another one by the same ports.
func samePrefix(path, before fabric.Path) bool {
	if len(path) < len(before) {
		return false
	}
	last := len(before) - 1
	return slices.Equal(path[:last], before[:last]) && path[last].Switch == before[last].Switch && path[last].In == before[last].In
}

// weigh excludes the suspects that the counts make too unlikely. An element is excluded with all of its directions.
func (h *hopFile) weigh() {
	if !h.changed {
		return
	}
	h.changed = false
	var tallies []asking.HopTally
	for _, w := range h.watched {
		if n := w.total(); w.discarded == "" {
			tallies = append(tallies, asking.HopTally{Switch: w.probe.Switch, Meets: w.probe.Meets, Sent: n.sent, Answered: min(n.answered, n.sent)})
		}
	}
	if len(tallies) == 0 {
		return
	}
	ll := asking.WeighSuspects(len(tallies[0].Meets), h.loss, tallies)
	best := math.Inf(-1)
	for _, v := range ll {
		best = max(best, v)
	}
	var kept []fabric.Element
	for i, v := range ll {
		if best-v < hopDecides {
			kept = append(kept, h.suspects[i].Element)
		}
	}
	for i := range ll {
		if e := h.suspects[i].Element; !slices.Contains(kept, e) && !slices.Contains(h.excluded, e) {
			h.excluded = append(h.excluded, e)
		}
	}
}

// probes returns the granted probes with their counts.
func (h *hopFile) probes() (out []fabric.AskedHopProbe) {
	for _, w := range h.watched {
		n := w.total()
		out = append(out, fabric.AskedHopProbe{Flow: w.probe.Flow.String(), Hop: w.probe.Hop, Switch: w.probe.Switch, Sent: n.sent, Answered: n.answered, Discarded: w.discarded})
	}
	slices.SortFunc(out, func(a, b fabric.AskedHopProbe) int {
		return cmp.Or(cmp.Compare(a.Flow, b.Flow), cmp.Compare(a.Hop, b.Hop))
	})
	return out
}

// ExcludedByHops returns the elements that the hop-limited probes of an incident exclude.
func (d *Desk) ExcludedByHops(id string) []fabric.Element {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[id]
	if f == nil {
		return nil
	}
	f.hops.weigh()
	return slices.Clone(f.hops.excluded)
}

// HopNodes returns the nodes that send hop-limited probes now.
func (d *Desk) HopNodes() []string {
	return d.collectHeld(func(f *file, add func(string)) {
		for id := range f.hops.watched {
			add(fabric.OwnerOf(id.Flow.Src))
		}
	})
}
