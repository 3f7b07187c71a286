package report

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"slices"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// What a report has at most of flows.
const (
	maxAffected = 8
	maxHealthy  = 8
	// maxDistributed bounds the affected flows whose packets a distribution has.
	maxDistributed = 32
	// maxPresumed bounds the flows that are sorted to find the first ones of those that cross an element now.
	maxPresumed = 4096
)

// opening is what was measured in the cycle in which a verdict opened, or was narrowed last.
type opening struct {
	findings []judge.Finding
	at       map[fabric.Flow]int // in findings
	links    map[fabric.Direction]*crossings
}

// crossings are the flows with evidence that crossed one direction of a link.
type crossings struct {
	flows, degraded int
	least           *int64 // the least shift of a flow that crossed it
}

// readOpening reads what an incident keeps of its opening. It returns the reason why nothing is kept.
func readOpening(in *incident.Incident) (o *opening, unknown string) {
	o = &opening{at: map[fabric.Flow]int{}, links: map[fabric.Direction]*crossings{}}
	file := in.Observations()
	switch {
	case in.Recalled:
		return o, "what was measured when it opened is not known: it ended before the analyzer was started"
	case file == nil:
		return o, "what was measured when it opened is not kept any more"
	}
	plain, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		return o, "what was measured when it opened cannot be read: " + err.Error()
	}
	var all []*fabric.Observation
	err = fabric.ReadObservations(plain, func(_ int, obs *fabric.Observation) error {
		all = append(all, obs)
		return nil
	}, func(wrong fabric.LineError) { unknown = wrong.Error() })
	if err != nil {
		unknown = err.Error()
	}
	o.findings = judge.FindingsOf(all, judge.DefaultParameters())
	for i := range o.findings {
		o.at[o.findings[i].Flow] = i
		o.countCrossings(&o.findings[i])
	}
	return o, unknown
}

// countCrossings counts a flow at each link that its packets crossed. Flows whose packets take several paths count nowhere.
func (o *opening) countCrossings(f *judge.Finding) {
	if f.Condition == judge.Undecided || f.Obs.Sprayed {
		return
	}
	src, dst := f.Flow.Endpoints()
	for _, d := range f.Obs.Path.LinkDirections(src, dst) {
		c := o.links[d]
		if c == nil {
			c = &crossings{}
			o.links[d] = c
		}
		c.flows++
		if f.Condition == judge.Degraded {
			c.degraded++
		}
		if f.HasShift && (c.least == nil || f.Shift < *c.least) {
			c.least = new(int64)
			*c.least = max(f.Shift, 0)
		}
	}
}

// affectedFlows returns the flows that a verdict explains, the most affected ones first, how many there are in all, and the reason why they
// are only presumed.
func affectedFlows(in *incident.Incident, o *opening, store *paths.Store) (all []fabric.Flow, total int, presumed string) {
	for _, name := range in.Edges {
		if f, err := fabric.ParseFlow(name); err == nil {
			all = append(all, f)
		}
	}
	if len(all) == 0 && in.Kind != fabric.KindClock {
		all = store.FlowsCrossing(in.Element)
		if d, err := fabric.ParseDirection(in.Direction); err == nil {
			all = slices.DeleteFunc(all, func(f fabric.Flow) bool { return !crossesNow(store, f, d) })
		}
		if len(all) > 0 {
			presumed = "which flows it affected is not known any more: these cross its element by the paths of the present"
		}
	}
	if total = len(all); presumed != "" {
		all = all[:min(total, maxPresumed)]
	}
	badness := func(f fabric.Flow) (loss float64, shift int64) {
		i, ok := o.at[f]
		if !ok {
			return -1, 0
		}
		loss, _ = o.findings[i].Obs.LossRatio()
		return loss, o.findings[i].Shift
	}
	slices.SortStableFunc(all, func(a, b fabric.Flow) int {
		lossA, shiftA := badness(a)
		lossB, shiftB := badness(b)
		return cmp.Or(cmp.Compare(lossB, lossA), cmp.Compare(shiftB, shiftA), fabric.CompareNatural(a.String(), b.String()))
	})
	return all, total, presumed
}

// crossesNow reports whether the present path of a flow crosses a direction of a link.
func crossesNow(store *paths.Store, f fabric.Flow, d fabric.Direction) bool {
	b, ok := store.CurrentBinding(f)
	src, dst := f.Endpoints()
	return ok && slices.Contains(b.Path.LinkDirections(src, dst), d)
}

// neighbour is a healthy flow near affected ones.
type neighbour struct {
	flow   fabric.Flow
	shared int // links
	near   string
}

// healthyNeighbours returns the healthy flows that share links, or else the source or destination, with affected ones and avoid the
// element. Those that share most come first.
func healthyNeighbours(in *incident.Incident, o *opening, affected []fabric.Flow) (out []neighbour) {
	links, nics, ours := map[fabric.Direction]bool{}, map[string]bool{}, map[fabric.Flow]bool{}
	named, failed := fabric.ParseDirection(in.Direction)
	for _, f := range affected {
		ours[f] = true
		src, dst := f.Endpoints()
		nics["from "+src], nics["to "+dst] = true, true
		if i, ok := o.at[f]; ok {
			for _, d := range o.findings[i].Obs.Path.LinkDirections(src, dst) {
				links[d] = true
			}
		}
	}
	for i := range o.findings {
		f := &o.findings[i]
		if f.Condition != judge.Healthy || ours[f.Flow] {
			continue
		}
		src, dst := f.Flow.Endpoints()
		way := f.Obs.Path.LinkDirections(src, dst)
		if failed == nil && slices.Contains(way, named) || failed != nil && in.CrossedBy(f.Obs.Path, src, dst) {
			continue
		}
		n := neighbour{flow: f.Flow}
		if !f.Obs.Sprayed {
			for _, d := range way {
				if links[d] {
					n.shared++
				}
			}
		}
		switch {
		case n.shared > 1:
			n.near = fmt.Sprintf("shares %d links", n.shared)
		case n.shared == 1:
			n.near = "shares 1 link"
		case nics["from "+src]:
			n.near = "has the same source"
		case nics["to "+dst]:
			n.near = "has the same destination"
		default:
			continue
		}
		out = append(out, n)
	}
	slices.SortStableFunc(out, func(a, b neighbour) int {
		return cmp.Or(cmp.Compare(b.shared, a.shared), cmp.Compare(a.near, b.near), fabric.CompareNatural(a.flow.String(), b.flow.String()))
	})
	return out
}

// newFlow returns a flow of which nothing but its ends and their leaves is known.
func (b *builder) newFlow(id fabric.Flow) Flow {
	f := Flow{Flow: id.String(), PathState: fabric.PathUnknown, Path: []Hop{}, id: id}
	f.Src, f.Dst = id.Endpoints()
	f.leaves[0], _ = b.graph.LeafOf(f.Src)
	f.leaves[1], _ = b.graph.LeafOf(f.Dst)
	return f
}

// describeFlow returns what was measured of a flow when the verdict opened, and its path then. Without that it has the path of the
// present.
func (b *builder) describeFlow(id fabric.Flow, near string) Flow {
	f := b.newFlow(id)
	f.Near = near
	var path fabric.Path
	if i, ok := b.opening.at[id]; ok {
		o := b.opening.findings[i].Obs
		path, f.PathState = o.Path, cmp.Or(o.PathState, fabric.PathUnknown)
		if o.OWD != nil {
			f.P50NS, f.P99NS = o.OWD.P50, o.OWD.P99
		}
		if o.Baseline != nil {
			f.BaselineP50NS, f.BaselineP99NS = o.Baseline.P50, o.Baseline.P99
		}
		if r, ok := o.LossRatio(); ok {
			f.LossRatio = &r
		}
	} else if bound, ok := b.store.CurrentBinding(id); ok {
		path, f.PathState = bound.Path, cmp.Or(bound.State, fabric.PathUnknown)
	}
	for _, d := range path.LinkDirections(f.Src, f.Dst) {
		f.Path = append(f.Path, b.describeHop(d))
	}
	return f
}

// describeHop returns what is known of one direction of a link. That of the verdict's element adds what the verdict says. Another one
// adds no more than the least shift of a flow that crosses it.
func (b *builder) describeHop(d fabric.Direction) Hop {
	h := Hop{From: d.From, To: d.To, Named: b.named[d]}
	c := b.opening.links[d]
	switch {
	case c != nil:
		h.Flows, h.Degraded = &c.flows, &c.degraded
	case len(b.opening.findings) > 0:
		h.Flows, h.Degraded = new(int), new(int)
	}
	switch added := b.report.Verdict.Symptom.AddedDelayNS; {
	case h.Named && added > 0 && len(b.named) <= 2:
		h.AddedDelayNS = &added
	case c != nil && c.least != nil:
		h.AddedDelayNS, h.Bound = c.least, true
	}
	return h
}

// namedDirections returns the directions of links that a verdict's element has.
func namedDirections(in *incident.Incident, g *fabric.Graph) map[fabric.Direction]bool {
	out := map[fabric.Direction]bool{}
	if d, err := fabric.ParseDirection(in.Direction); err == nil {
		out[d] = true
		return out
	}
	for _, d := range in.Footprint(g) {
		out[d] = true
	}
	return out
}
