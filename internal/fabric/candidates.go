package fabric

import "iter"

// PathTier returns the highest tier of the links on shortest paths between two NICs: 1 under one leaf, 2 across leaves, 3
// across pods or groups. 0 means that no path exists.
func (g *Graph) PathTier(src, dst string) int {
	leafA, _ := g.LeafOf(src)
	leafB, _ := g.LeafOf(dst)
	if leafA == "" || leafB == "" {
		return 0
	}
	tier := 0
	for _, p := range g.ShortestPaths(src, dst, 64) {
		for _, h := range p {
			tier = max(tier, g.SwitchTier(h.Switch))
			if l := g.byEnd[h.Switch+":"+h.In]; l != nil {
				tier = max(tier, g.LinkTier(l))
			}
		}
	}
	return tier
}

// ShortestPaths lists up to limit equal-cost shortest paths between two NICs,
// in a fixed order.
func (g *Graph) ShortestPaths(src, dst string, limit int) []Path {
	goal, _ := g.LeafOf(dst)
	if goal == "" {
		return nil
	}
	return g.PathsAlong(g.SwitchDistances(goal), src, dst, limit)
}

// PathsAlong returns the same, by the distances of all switches to the leaf of dst.
func (g *Graph) PathsAlong(dist map[string]int, src, dst string, limit int) []Path {
	var out []Path
	if limit > 0 {
		g.walkShortest(dist, src, dst, nil, func(p Path) bool {
			out = append(out, p)
			return len(out) < limit
		})
	}
	return out
}

// CandidatePaths lists the paths that packets may take from one NIC to another by the topology's routing, shortest ones
// first. If there are more than limit, it lists none, and all is false.
func (g *Graph) CandidatePaths(src, dst string, limit int) (paths []Path, all bool) {
	for p := range g.EachCandidate(src, dst, nil) {
		if len(paths) == limit {
			return nil, false
		}
		paths = append(paths, p)
	}
	return paths, true
}

// EachCandidate returns the paths of CandidatePaths one by one. Of these it leaves out the paths with a hop that fits
// refuses. fits is called with the number of a hop from 0 on, its switch, and the port that the packet comes in by; nil
// refuses none.
func (g *Graph) EachCandidate(src, dst string, fits func(hop int, sw, in string) bool) iter.Seq[Path] {
	return func(yield func(Path) bool) {
		start, _ := g.LeafOf(src)
		goal, _ := g.LeafOf(dst)
		if start == "" || goal == "" {
			return
		}
		dist := g.SwitchDistances(goal)
		links, reached := dist[start]
		if !reached || !g.walkShortest(dist, src, dst, fits, yield) {
			return
		}
		if a, b := g.switches[start], g.switches[goal]; g.Topo.Routing == Adaptive && joinGroups(a, b) {
			for _, shape := range detours {
				if len(shape) > links && !g.walkDetour(shape, src, dst, fits, yield) {
					return
				}
			}
		}
	}
}

// walkShortest yields the shortest paths between two NICs, by the distances of all switches to the leaf of dst. It reports
// whether yield accepted all of them.
func (g *Graph) walkShortest(dist map[string]int, src, dst string, fits func(hop int, sw, in string) bool, yield func(Path) bool) bool {
	start, first := g.LeafOf(src)
	goal, last := g.LeafOf(dst)
	if _, ok := dist[start]; !ok || goal == "" {
		return true
	}
	var walk func(sw, in string, p Path) bool
	walk = func(sw, in string, p Path) bool {
		if fits != nil && !fits(len(p), sw, in) {
			return true
		}
		if sw == goal {
			return yield(append(append(Path{}, p...), Hop{Switch: sw, In: in, Out: last}))
		}
		for _, end := range g.byOwner[sw] {
			next, nextIn, ok := SplitPort(g.PeerOf(end))
			if d, known := dist[next]; !ok || !known || d != dist[sw]-1 {
				continue
			}
			_, out := splitEnd(end)
			if !walk(next, nextIn, append(p, Hop{Switch: sw, In: in, Out: out})) {
				return false
			}
		}
		return true
	}
	return walk(start, first, nil)
}

// step is the kind of a link that a path takes in a Dragonfly+.
type step int

const (
	up     step = iota // from a leaf to a spine of its group
	down               // from a spine to a leaf of its group
	across             // over a global link
)

// detours are the shapes of the paths by a third group. They are those that Shpiner et al. route by besides the minimal
// one: over one spine of the third group, or over two of its spines and a leaf.
var detours = [][]step{{up, across, across, down}, {up, across, down, up, across, down}}

// walkDetour yields the paths of a shape by a third group between two NICs in different groups. It reports whether yield
// accepted all of them.
func (g *Graph) walkDetour(shape []step, src, dst string, fits func(hop int, sw, in string) bool, yield func(Path) bool) bool {
	start, first := g.LeafOf(src)
	goal, last := g.LeafOf(dst)
	origin, target := g.switches[start].Group, g.switches[goal].Group
	var walk func(sw, in string, p Path) bool
	walk = func(sw, in string, p Path) bool {
		if fits != nil && !fits(len(p), sw, in) {
			return true
		}
		at := len(p)
		if at == len(shape) {
			return sw != goal || yield(append(append(Path{}, p...), Hop{Switch: sw, In: in, Out: last}))
		}
		for _, end := range g.byOwner[sw] {
			next, nextIn, ok := SplitPort(g.PeerOf(end))
			if !ok || g.stepKind(sw, next) != shape[at] || crosses(p, next) {
				continue
			}
			if group := g.switches[next].Group; shape[at] == across && (group == origin || (group == target) != (at+2 == len(shape))) {
				continue
			}
			_, out := splitEnd(end)
			if !walk(next, nextIn, append(p, Hop{Switch: sw, In: in, Out: out})) {
				return false
			}
		}
		return true
	}
	return walk(start, first, nil)
}

// stepKind returns the kind of the links between two switches.
func (g *Graph) stepKind(from, to string) step {
	switch {
	case joinGroups(g.switches[from], g.switches[to]):
		return across
	case g.SwitchTier(to) > g.SwitchTier(from):
		return up
	}
	return down
}

func crosses(p Path, sw string) bool {
	for _, h := range p {
		if h.Switch == sw {
			return true
		}
	}
	return false
}
