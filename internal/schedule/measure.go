package schedule

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/graylink/graylink/internal/fabric"
)

// TracedPath is the path of an edge by its trace: that of its probes or, if Edge.Reply is set, that of
// its replies. An edge is bound at most once in each direction.
type TracedPath struct {
	Edge fabric.Flow
	Path fabric.Path
}

// LinkEdges is the number of bound edges that cross a directed link.
type LinkEdges struct {
	fabric.Direction
	Tier  int // as in LinkFlows
	Edges int
}

// Measured has the number of bound edges over every directed link of the topology, including zeros,
// sorted.
type Measured struct {
	Links []LinkEdges
	at    map[fabric.Direction]int32
}

// CountOver returns the number of edges that cross a directed link. ok is false if there is no such
// link.
func (m Measured) CountOver(d fabric.Direction) (edges int, ok bool) {
	i, ok := m.at[d]
	if !ok {
		return 0, false
	}
	return m.Links[i].Edges, true
}

// MeasureLinks counts the bound edges over every directed link. A part of a path that has a hole, or is
// not in the topology, is not counted.
func MeasureLinks(g *fabric.Graph, bound []TracedPath) Measured {
	t := g.Topo
	m := Measured{Links: make([]LinkEdges, 0, 2*len(t.Links)), at: make(map[fabric.Direction]int32, 2*len(t.Links))}
	for i := range t.Links {
		l := &t.Links[i]
		tier := g.LinkTier(l)
		m.Links = append(m.Links, LinkEdges{Direction: fabric.Direction{From: l.A, To: l.B}, Tier: tier}, LinkEdges{Direction: fabric.Direction{From: l.B, To: l.A}, Tier: tier})
	}
	slices.SortFunc(m.Links, func(a, b LinkEdges) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	for i := range m.Links {
		m.at[m.Links[i].Direction] = int32(i)
	}
	for _, b := range bound {
		src, dst := b.Edge.Endpoints()
		for _, d := range b.Path.LinkDirections(src, dst) {
			if i, ok := m.at[d]; ok {
				m.Links[i].Edges++
			}
		}
	}
	return m
}

// givenNow marks a flow number that this round of moves has already used.
const givenNow = math.MaxInt - 1

// bestPairs is the number of pairs of leaves for which Rebalance computes the odds per link.
const bestPairs = 16

// Rebalance proposes at most limit moves of source ports, so that directed links between switches with
// fewer than k bound edges get more. The path of a flow with a new source port is unknown before it is
// traced: a move is a trial. A flow may move only if its probes and replies are bound and every fabric
// link on their paths has edges to spare, so that no link with k falls below it, and none below k loses
// more. history has all moves so far, in order. A flow number that a pair has tried is tried again only
// after all others of its class, the oldest first.
func Rebalance(g *fabric.Graph, s *Schedule, bound []TracedPath, history []Move, k, limit int) []Move {
	m := MeasureLinks(g, bound)
	b := &balancer{g: g, s: s, n: newNetwork(g, nil), m: m, k: k, odds: map[[2]int32][]float64{}, lastUsed: map[[2]int32]map[int]int{}}
	b.findFlows(bound)
	b.recordHistory(history)
	return b.proposeMoves(limit)
}

type balancer struct {
	g        *fabric.Graph
	s        *Schedule
	n        *network
	m        Measured
	k        int
	walk     *walk
	flows    []tracedFlow
	odds     map[[2]int32][]float64   // by leaves from, to: share of a flow over every arc
	lastUsed map[[2]int32]map[int]int // by pair of NICs: when a flow number was last in use
	pairs    map[[2]int32][]int32     // by leaves from, to: flows whose probes or replies go that way
	from     map[int32][][2]int32     // by leaf: keys of pairs that begin there
	to       map[int32][][2]int32     // by leaf: keys of pairs that end there
}

// tracedFlow is an edge with a known path in both directions.
type tracedFlow struct {
	edge  int // index in Schedule.Edges
	links []int32
	moved bool
}

func (b *balancer) findFlows(bound []TracedPath) {
	type ways struct{ probe, reply fabric.Path }
	paths := make(map[fabric.Flow]ways, len(bound)/2)
	for _, x := range bound {
		w := paths[x.Edge.ProbeFlow()]
		if x.Edge.Reply {
			w.reply = x.Path
		} else {
			w.probe = x.Path
		}
		paths[x.Edge.ProbeFlow()] = w
	}
	b.pairs = map[[2]int32][]int32{}
	for i, e := range b.s.Edges {
		id := b.s.FlowID(e)
		w := paths[id]
		if e.Tier < 2 || w.probe == nil || w.reply == nil {
			continue
		}
		f := tracedFlow{edge: i}
		whole := true
		for way, p := range [2]fabric.Path{w.probe, w.reply} {
			src, dst := id.Src, id.Dst
			if way == 1 {
				src, dst = dst, src
			}
			ds := p.LinkDirections(src, dst)
			whole = whole && len(ds) == len(p)+1
			for _, d := range ds {
				at, ok := b.m.at[d]
				whole = whole && ok
				if ok && b.m.Links[at].Tier > 1 {
					f.links = append(f.links, at)
				}
			}
		}
		if !whole {
			continue
		}
		at := int32(len(b.flows))
		b.flows = append(b.flows, f)
		src, dst := b.leafOf(id.Src), b.leafOf(id.Dst)
		if src < 0 || dst < 0 {
			continue
		}
		b.pairs[[2]int32{src, dst}] = append(b.pairs[[2]int32{src, dst}], at)
		b.pairs[[2]int32{dst, src}] = append(b.pairs[[2]int32{dst, src}], at)
	}
	b.from, b.to = map[int32][][2]int32{}, map[int32][][2]int32{}
	for p := range b.pairs {
		b.from[p[0]] = append(b.from[p[0]], p)
		b.to[p[1]] = append(b.to[p[1]], p)
	}
}

func (b *balancer) leafOf(nic string) int32 {
	if x, ok := b.n.nicByID[nic]; ok {
		return b.n.nics[x].leaf
	}
	return -1
}

// recordHistory records which flow numbers a pair had, and when.
func (b *balancer) recordHistory(history []Move) {
	for i, mv := range history {
		src, ok := slices.BinarySearch(b.s.NICs, mv.Src)
		dst, ok2 := slices.BinarySearch(b.s.NICs, mv.Dst)
		if !ok || !ok2 {
			continue
		}
		b.markUsed([2]int32{int32(src), int32(dst)}, mv.From, i)
		b.markUsed([2]int32{int32(src), int32(dst)}, mv.To, i)
	}
}

func (b *balancer) markUsed(pair [2]int32, flow, when int) {
	if b.lastUsed[pair] == nil {
		b.lastUsed[pair] = map[int]int{}
	}
	b.lastUsed[pair][flow] = when
}

// canLose reports whether every link that the flow crosses has edges to spare.
func (b *balancer) canLose(f *tracedFlow) bool {
	for _, l := range f.links {
		if b.m.Links[l].Edges <= b.k {
			return false
		}
	}
	return !f.moved
}

// spareCount returns the least number of edges above k on the flow's links.
func (b *balancer) spareCount(f *tracedFlow) int {
	s := math.MaxInt
	for _, l := range f.links {
		s = min(s, b.m.Links[l].Edges-b.k)
	}
	return s
}

// arcOdds returns the odds that a flow between two leaves crosses each arc.
func (b *balancer) arcOdds(from, to int32) []float64 {
	if o, ok := b.odds[[2]int32{from, to}]; ok {
		return o
	}
	if b.walk == nil {
		b.walk = b.n.newWalk()
	}
	o := make([]float64, len(b.n.to))
	b.walk.searchToward(to)
	if b.walk.dist[from] >= 0 {
		b.walk.load[from] = 1
		b.walk.spreadLoad(o)
	}
	if len(b.odds) >= 256 {
		clear(b.odds) // bounds the memory in a large fabric
	}
	b.odds[[2]int32{from, to}] = o
	return o
}

// poorLink is a link that needs edges: its arc and the cable's share of it.
type poorLink struct {
	link  int32
	arc   int32
	share float64
}

func (b *balancer) proposeMoves(limit int) []Move {
	var need []poorLink
	for i := range b.n.cables {
		c := &b.n.cables[i]
		l := &b.g.Topo.Links[c.link]
		for _, way := range []struct {
			d   fabric.Direction
			arc int32
		}{{fabric.Direction{From: l.A, To: l.B}, c.arc}, {fabric.Direction{From: l.B, To: l.A}, b.n.rev[c.arc]}} {
			if at := b.m.at[way.d]; b.m.Links[at].Edges < b.k {
				need = append(need, poorLink{at, way.arc, c.share})
			}
		}
	}
	slices.SortFunc(need, func(x, y poorLink) int {
		return cmp.Or(cmp.Compare(b.m.Links[x.link].Edges, b.m.Links[y.link].Edges), cmp.Compare(x.link, y.link))
	})
	from := b.n.arcTails()
	toU, toV := b.n.newWalk(), b.n.newWalk()
	var out []Move
	for _, q := range need {
		if len(out) >= limit {
			break
		}
		toU.searchToward(from[q.arc])
		toV.searchToward(b.n.to[q.arc])
		out = append(out, b.movesFor(q, toU, toV, limit-len(out))...)
	}
	return out
}

// movesFor returns moves of flows that may then cross one poor link: those with the best odds, as many
// as are expected to give it the edges that it lacks.
func (b *balancer) movesFor(q poorLink, toU, toV *walk, limit int) []Move {
	type candidate struct {
		pair [2]int32
		odds float64
	}
	var pairs []candidate
	for _, p := range b.pairsNear(toU, toV) {
		if s, d := p[0], p[1]; toU.dist[s] >= 0 && toV.dist[s] == toU.dist[s]+1 && toU.dist[d] == toV.dist[d]+1 {
			if slices.ContainsFunc(b.pairs[p], func(f int32) bool { return b.canLose(&b.flows[f]) }) {
				pairs = append(pairs, candidate{pair: p, odds: -float64(toU.dist[s] + toV.dist[d])})
			}
		}
	}
	better := func(x, y candidate) int {
		return cmp.Or(cmp.Compare(y.odds, x.odds), cmp.Compare(x.pair[0], y.pair[0]), cmp.Compare(x.pair[1], y.pair[1]))
	}
	slices.SortFunc(pairs, better)
	best := pairs[:0]
	for _, c := range pairs {
		if len(best) == bestPairs {
			break
		}
		if c.odds = b.arcOdds(c.pair[0], c.pair[1])[q.arc] * q.share; c.odds > 0 {
			best = append(best, c)
		}
	}
	slices.SortFunc(best, better)
	var out []Move
	lack := float64(b.k - b.m.Links[q.link].Edges)
	for _, c := range best {
		flows := slices.Clone(b.pairs[c.pair])
		sort.SliceStable(flows, func(i, j int) bool { return b.spareCount(&b.flows[flows[i]]) > b.spareCount(&b.flows[flows[j]]) })
		for _, at := range flows {
			if lack <= 0 || len(out) >= limit {
				return out
			}
			f := &b.flows[at]
			if !b.canLose(f) {
				continue
			}
			mv, ok := b.nextMove(f)
			if !ok {
				continue
			}
			out = append(out, mv)
			f.moved = true
			for _, l := range f.links {
				b.m.Links[l].Edges--
			}
			lack -= c.odds
		}
	}
	return out
}

// pairsNear returns the pairs of leaves with a link from U to V possibly on their way: those from
// leaves before it or those to leaves behind it, whichever are fewer.
func (b *balancer) pairsNear(toU, toV *walk) [][2]int32 {
	var lists [2][][2]int32
	for side, by := range [2]map[int32][][2]int32{b.from, b.to} {
		before, behind := toU, toV
		if side == 1 {
			before, behind = toV, toU
		}
		for leaf, pairs := range by {
			if before.dist[leaf] >= 0 && behind.dist[leaf] == before.dist[leaf]+1 {
				lists[side] = append(lists[side], pairs...)
			}
		}
	}
	if len(lists[1]) < len(lists[0]) {
		return lists[1]
	}
	return lists[0]
}

// nextMove returns a move of a flow to the number of its class that its pair does not use and has tried
// least recently, or never. It returns false if there is none.
func (b *balancer) nextMove(f *tracedFlow) (Move, bool) {
	e := b.s.Edges[f.edge]
	pair := [2]int32{e.Src, e.Dst}
	inUse := map[int]bool{}
	for _, x := range b.s.flowsBetween(e.Src, e.Dst) {
		inUse[int(x.Flow)] = true
	}
	first := int(e.Class) * FlowsPerClass
	to, oldest := -1, math.MaxInt
	for n := first; n < first+flowsOfPair; n++ {
		when, tried := b.lastUsed[pair][n]
		if !tried {
			when = -1
		}
		if !inUse[n] && when < oldest {
			to, oldest = n, when
		}
	}
	if to < 0 || oldest == givenNow {
		return Move{}, false
	}
	b.markUsed(pair, to, givenNow)
	return Move{Src: b.s.NICs[e.Src], Dst: b.s.NICs[e.Dst], From: int(e.Flow), To: to}, true
}

// arcTails returns the vertex that every arc leaves.
func (n *network) arcTails() []int32 {
	from := make([]int32, 0, len(n.to))
	for v := range int32(n.vertices) {
		for a := n.first[v]; a < n.first[v+1]; a++ {
			from = append(from, v)
		}
	}
	return from
}
