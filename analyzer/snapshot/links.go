package snapshot

import (
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// ViewEdges returns a view of every finding.
func ViewEdges(findings []judge.Finding, x *maintenance.Excluder) (out []EdgeView) {
	for i := range findings {
		out = append(out, EdgeView{Flow: findings[i].Flow, Obs: *findings[i].Obs, Condition: conditionLabel(&findings[i], x)})
	}
	return out
}

func conditionLabel(f *judge.Finding, x *maintenance.Excluder) Condition {
	switch {
	case x.ExcludesFlow(f.Flow):
		return Maintenance
	case f.Obs.Unread:
		return Unread
	case f.HostSuspect:
		return HostSuspect
	case f.ClockSuspect:
		return ClockSuspect
	case f.Condition == judge.Degraded:
		return Degraded
	case f.Condition == judge.Healthy:
		return Healthy
	}
	return Undecided
}

// LinkIndex numbers the directed links of a graph, so that they are not looked up in each cycle.
type LinkIndex struct {
	Graph     *fabric.Graph
	positions []int    // in LinkDirections of the graph
	links     []string // by direction
	at        map[fabric.Direction]int
}

// NewLinkIndex returns the index of the links of a graph that belong to a part. Nil means all of it.
func NewLinkIndex(g *fabric.Graph, part *fabric.Part) *LinkIndex {
	x := &LinkIndex{Graph: g, at: make(map[fabric.Direction]int, 2*len(g.Topo.Links))}
	for i, d := range g.LinkDirections() {
		if part.OwnsDirection(d) {
			x.at[d] = len(x.positions)
			x.positions, x.links = append(x.positions, i), append(x.links, g.Topo.Links[i/2].ID())
		}
	}
	return x
}

// crossedLinks calls add with the position of each directed link that packets of an observation crossed: of all ways, if switches
// spread them. seen has for each position the number of the last observation that crossed it.
func (x *LinkIndex) crossedLinks(o *fabric.Observation, src, dst string, number int, seen []int, add func(at int)) {
	take := func(p fabric.Path) {
		for _, d := range p.LinkDirections(src, dst) {
			if k, known := x.at[d]; known && seen[k] != number {
				seen[k] = number
				add(k)
			}
		}
	}
	if !o.Sprayed {
		take(o.Path)
		return
	}
	for _, p := range o.Paths {
		take(p)
	}
}

// ViewLinks returns a view of every directed link of the index.
func (x *LinkIndex) ViewLinks(rep fabric.Report, findings []judge.Finding, c *selection.Carried) []LinkView {
	directions, carried := x.Graph.LinkDirections(), c.CrossingCounts(x.Graph)
	out := make([]LinkView, len(x.positions))
	for i, at := range x.positions {
		d := directions[at]
		out[i] = LinkView{Link: x.links[i], From: d.From, To: d.To, Edges: int(carried[at])}
		if out[i].Edges > 0 {
			out[i].AddedDelayNS = new(int64)
		}
	}
	seen := make([]int, len(out))
	for i := range findings {
		f := &findings[i]
		if f.Condition == judge.Undecided {
			continue
		}
		src, dst := f.Flow.Endpoints()
		x.crossedLinks(f.Obs, src, dst, i+1, seen, func(k int) {
			v := &out[k]
			v.Edges++
			if f.Condition == judge.Degraded {
				v.Degraded++
			}
			if f.HasShift && v.AddedDelayNS == nil {
				v.AddedDelayNS = new(int64)
			}
		})
	}
	for i := range rep.LinkShares {
		if d, err := fabric.ParseDirection(rep.LinkShares[i].Direction); err == nil {
			if k, known := x.at[d]; known {
				out[k].Shares = &rep.LinkShares[i]
			}
		}
	}
	for _, delay := range rep.LinkDelays {
		if d, err := fabric.ParseDirection(delay.Direction); err == nil {
			if k, known := x.at[d]; known {
				ns := delay.AddedDelayNS
				out[k].AddedDelayNS = &ns
			}
		}
	}
	for i := range rep.Verdicts {
		v := &rep.Verdicts[i]
		if v.Symptom.LossRatio == 0 {
			continue
		}
		for k, at := range x.positions {
			if d := directions[at]; v.Direction == "" && v.Kind == fabric.KindLink && v.Element.ID == x.links[k] || v.Direction != "" && v.Direction == d.String() {
				out[k].LossRatio = v.Symptom.LossRatio
			}
		}
	}
	return out
}
