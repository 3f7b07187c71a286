package fabric

import "slices"

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
	w := g.newPathWalk(dist, src, dst, limit)
	if w == nil || limit <= 0 {
		return nil
	}
	w.shortest(w.start, w.first, nil)
	return w.paths
}

// CandidatePaths lists the paths that packets may take from one NIC to another by the topology's routing, shortest ones
// first. If there are more than limit, it lists none, and all is false.
func (g *Graph) CandidatePaths(src, dst string, limit int) (paths []Path, all bool) {
	return g.FittingPaths(src, dst, limit, nil)
}

// MayDetour reports whether packets between two leaves may go by a third group, which adaptive routing decides by the load.
func (g *Graph) MayDetour(a, b string) bool {
	return g.Topo.Routing == Adaptive && joinGroups(g.switches[a], g.switches[b])
}

// FittingPaths lists those of the paths of CandidatePaths all of whose hops fit. fits is called with the number of a hop from
// 0 on, its switch, and the port that the packet comes in by; nil means that all fit. If there are more than limit, or the
// search would take too long, it lists none, and all is false.
func (g *Graph) FittingPaths(src, dst string, limit int, fits func(hop int, sw, in string) bool) (paths []Path, all bool) {
	goal, _ := g.LeafOf(dst)
	if goal == "" {
		return nil, true
	}
	w := g.newPathWalk(g.SwitchDistances(goal), src, dst, limit+1)
	if w == nil {
		return nil, true
	}
	w.fits, w.steps = fits, maxWalkSteps
	w.shortest(w.start, w.first, nil)
	if g.MayDetour(w.start, w.goal) {
		for _, shape := range detours {
			if len(shape) > w.dist[w.start] {
				w.detour(shape, w.start, w.first, nil)
			}
		}
	}
	if w.ended() {
		return nil, false
	}
	return w.paths, true
}

// maxWalkSteps bounds the hops that a search for the paths of one flow tries.
const maxWalkSteps = 1 << 16

// pathWalk is a search for the paths between two NICs.
type pathWalk struct {
	g           *Graph
	dist        map[string]int // links from each switch to the goal
	start, goal string         // leaves
	first, last string         // their ports to the NICs
	fits        func(hop int, sw, in string) bool
	limit       int // number of paths to stop at
	steps       int // number of hops left to try; 0 if there is no bound
	paths       []Path
}

// newPathWalk returns nil if an end has no leaf or no path joins the leaves.
func (g *Graph) newPathWalk(dist map[string]int, src, dst string, limit int) *pathWalk {
	w := &pathWalk{g: g, dist: dist, limit: limit}
	w.start, w.first = g.LeafOf(src)
	w.goal, w.last = g.LeafOf(dst)
	if _, reached := dist[w.start]; !reached || w.start == "" || w.goal == "" {
		return nil
	}
	return w
}

// ended reports whether the search is to stop.
func (w *pathWalk) ended() bool { return len(w.paths) >= w.limit || w.steps < 0 }

// refuses counts a hop of a path that is followed, and reports whether the search does not go on from it.
func (w *pathWalk) refuses(p Path, sw, in string) bool {
	if w.steps > 0 {
		if w.steps--; w.steps == 0 {
			w.steps = -1
		}
	}
	return w.ended() || w.fits != nil && !w.fits(len(p), sw, in)
}

// add completes a path at the goal.
func (w *pathWalk) add(p Path, in string) {
	w.paths = append(w.paths, append(append(Path{}, p...), Hop{Switch: w.goal, In: in, Out: w.last}))
}

// shortest follows all shortest paths from a switch to the goal.
func (w *pathWalk) shortest(sw, in string, p Path) {
	if w.refuses(p, sw, in) {
		return
	}
	if sw == w.goal {
		w.add(p, in)
		return
	}
	for _, end := range w.g.byOwner[sw] {
		next, nextIn, ok := SplitPort(w.g.PeerOf(end))
		if d, known := w.dist[next]; ok && known && d == w.dist[sw]-1 {
			_, out := splitEnd(end)
			w.shortest(next, nextIn, append(p, Hop{Switch: sw, In: in, Out: out}))
		}
	}
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

// detour follows all paths of a shape by a third group from a switch to the goal.
func (w *pathWalk) detour(shape []step, sw, in string, p Path) {
	if w.refuses(p, sw, in) {
		return
	}
	at := len(p)
	if at == len(shape) {
		w.add(p, in)
		return
	}
	g := w.g
	left := len(shape) - at - 1 // number of links behind the next one
	for _, end := range g.byOwner[sw] {
		next, nextIn, ok := SplitPort(g.PeerOf(end))
		if d, known := w.dist[next]; !ok || !known || d > left || g.stepKind(sw, next) != shape[at] || crosses(p, next) {
			continue
		}
		// The first global link leads to the third group, and the second one to the goal's.
		group := g.switches[next].Group
		if shape[at] == across && (group == g.switches[w.start].Group || (group == g.switches[w.goal].Group) != (left == 1)) {
			continue
		}
		_, out := splitEnd(end)
		w.detour(shape, next, nextIn, append(p, Hop{Switch: sw, In: in, Out: out}))
	}
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
	return slices.ContainsFunc(p, func(h Hop) bool { return h.Switch == sw })
}
