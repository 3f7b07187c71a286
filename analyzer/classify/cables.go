package classify

import (
	"cmp"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// swapFlows is the number of flows that must show two cables as swapped, as in analyzer/paths
// for the live fabric: they crossed links that the topology does not have, and after the first
// of them no flow crossed the links that it has.
const swapFlows = 3

// Cabling represents the result of comparing the paths of observations with the topology's cables.
type Cabling struct {
	Swaps []Swap
	// Graph is the fabric as it is cabled, with the swaps.
	Graph *fabric.Graph
	// OddPaths are the observations with a path that crosses a link which Graph does not have either.
	OddPaths []int
}

// unknownLink represents the observations of a link that the topology does not have.
type unknownLink struct {
	a, b  string
	flows map[string]bool
	first time.Time
}

// CompareCabling compares the paths of observations with the topology. A path has the egress
// port of each switch and the ingress port of the next one, so a swap appears as two links
// that the topology does not have.
func CompareCabling(g *fabric.Graph, obs []*fabric.Observation) Cabling {
	out := Cabling{Graph: g}
	odd := map[string]*unknownLink{}
	plugged := map[string]time.Time{} // links of the topology near odd ones, and their last use
	var strange []int
	for i, o := range obs {
		if !oddPath(g, o.Src, o.Dst, o.Path) {
			if slices.ContainsFunc(o.Paths, func(p fabric.Path) bool { return oddPath(g, o.Src, o.Dst, p) }) {
				strange = append(strange, i)
			}
			continue
		}
		strange = append(strange, i)
		for _, d := range o.Path.LinkDirections(o.Src, o.Dst) {
			if g.PeerOf(d.From) == d.To {
				continue
			}
			x := odd[d.LinkID()]
			if x == nil {
				x = &unknownLink{a: d.From, b: d.To, flows: map[string]bool{}, first: o.Start}
				odd[d.LinkID()] = x
			}
			x.flows[o.Edge] = true
			if o.Start.Before(x.first) {
				x.first = o.Start
			}
			for _, end := range [2]string{d.From, d.To} {
				if far := g.PeerOf(end); far != "" {
					plugged[fabric.LinkID(end, far)] = time.Time{}
				}
			}
		}
	}
	if len(strange) == 0 {
		return out
	}
	for _, o := range obs {
		for _, d := range o.Path.LinkDirections(o.Src, o.Dst) {
			if last, asked := plugged[d.LinkID()]; asked && o.Start.After(last) {
				plugged[d.LinkID()] = o.Start
			}
		}
	}
	found := make([]*unknownLink, 0, len(odd))
	for _, x := range odd {
		found = append(found, x)
	}
	slices.SortFunc(found, func(x, y *unknownLink) int {
		return cmp.Or(cmp.Compare(len(y.flows), len(x.flows)), cmp.Compare(fabric.LinkID(x.a, x.b), fabric.LinkID(y.a, y.b)))
	})
	for _, x := range found {
		aFar, bFar := out.Graph.PeerOf(x.a), out.Graph.PeerOf(x.b)
		if out.Graph != g && (aFar == x.b || aFar != g.PeerOf(x.a) || bFar != g.PeerOf(x.b)) {
			continue // an earlier swap has taken its cables
		}
		if aFar == "" || bFar == "" || !sameTiers(g, x, aFar, bFar) {
			continue
		}
		flows, first := len(x.flows), x.first
		if other := odd[fabric.LinkID(aFar, bFar)]; other != nil {
			for e := range other.flows {
				if !x.flows[e] {
					flows++
				}
			}
			if other.first.Before(first) {
				first = other.first
			}
		}
		s := Swap{Topology: orderedPair(fabric.LinkID(x.a, aFar), fabric.LinkID(x.b, bFar)), Fabric: orderedPair(fabric.LinkID(x.a, x.b), fabric.LinkID(aFar, bFar)), Flows: flows, First: first}
		if flows < swapFlows || plugged[s.Topology[0]].After(first) || plugged[s.Topology[1]].After(first) {
			continue
		}
		out.Swaps = append(out.Swaps, s)
		out.Graph = fabric.NewGraph(out.Graph.Topo.WithSwappedCables(aFar, x.b))
	}
	for _, i := range strange {
		o := obs[i]
		// Candidates may be of the fabric as it is or as it was thought to be.
		if oddPath(out.Graph, o.Src, o.Dst, o.Path) || slices.ContainsFunc(o.Paths, func(p fabric.Path) bool {
			return oddPath(g, o.Src, o.Dst, p) && oddPath(out.Graph, o.Src, o.Dst, p)
		}) {
			out.OddPaths = append(out.OddPaths, i)
		}
	}
	return out
}

// oddPath reports whether a path crosses a link that the graph does not have.
func oddPath(g *fabric.Graph, src, dst string, p fabric.Path) bool {
	from := src
	for _, h := range p {
		if from != "" && h.In != "" && g.PeerOf(from) != h.Switch+":"+h.In {
			return true
		}
		from = ""
		if h.Out != "" {
			from = h.Switch + ":" + h.Out
		}
	}
	return len(p) > 0 && from != "" && g.PeerOf(from) != dst
}

// sameTiers reports whether two cables join the same tiers. Only such cables are mistaken for
// each other.
func sameTiers(g *fabric.Graph, x *unknownLink, aFar, bFar string) bool {
	tier := func(end string) int { return g.SwitchTier(fabric.OwnerOf(end)) }
	return tier(x.a) == tier(bFar) && tier(x.b) == tier(aFar)
}

func orderedPair(a, b string) [2]string {
	if b < a {
		a, b = b, a
	}
	return [2]string{a, b}
}
