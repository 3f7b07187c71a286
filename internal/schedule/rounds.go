package schedule

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

const (
	// mostRounds limits the rounds that thin leaves and pods add to a NIC's fan-out at one level.
	// Beyond it pairs get more flows instead of NICs more peers.
	mostRounds = 16
	// A round tries up to passes times to give a rejected pair another target: at first with all
	// preferences, then without that of the own rail, then also with a peer of earlier rounds, and at
	// last with one that earlier rounds gave too often.
	passes, railPasses, newPeerPasses, evenPasses = 24, 8, 16, 22
	// nearSteps limits the search for a peer that itself needs one.
	nearSteps = 256
)

// peer is a probed NIC with its number of flows.
type peer struct {
	dst   int32
	flows uint16
}

// level is a step of the hierarchy. Its blocks are the parts of the network that are connected up to a
// tier, and its children are those of the level below. Leaves are the children of the first level above
// them.
type level struct {
	tier   uint8
	block  []int32 // block by vertex
	child  []int32
	rounds []float64 // number of rounds by NIC; 0 if the block has only one child
	index  []int32   // by NIC: its block and group, as a dense number
	blocks [][]int32 // NICs by dense number of block and group
}

// pairing chooses the peers that each NIC probes.
type pairing struct {
	o            Options
	n            *network
	node         []int32 // node by NIC
	live         []int32 // NICs that take part
	groups       []group
	levels       []level
	leaf         level // the NICs under one leaf
	peers        [][]peer
	proberCounts []int32 // by NIC: the number of peers that probe it
	crossLeaf    []bool  // by NIC: it has an edge to or from another leaf
}

// group is a set of NICs that may probe each other: those of one component and plane.
type group struct {
	nics    []int32
	oneNode bool
	leaves  int
	ofNode  map[int32]int32 // NICs by node
}

func newPairing(n *network, o Options) *pairing {
	p := &pairing{o: o, n: n, node: make([]int32, len(n.nics)), peers: make([][]peer, len(n.nics)), proberCounts: make([]int32, len(n.nics)),
		crossLeaf: make([]bool, len(n.nics))}
	nodes := map[string]int32{}
	type key struct {
		comp  int32
		plane string
	}
	groups := map[key]int32{}
	for i := range n.nics {
		x := &n.nics[i]
		id, ok := nodes[x.node]
		if !ok {
			id = int32(len(nodes))
			nodes[x.node] = id
		}
		p.node[i] = id
		if !x.live {
			continue
		}
		k := key{n.comp[x.leaf], x.plane}
		at, ok := groups[k]
		if !ok {
			at = int32(len(p.groups))
			groups[k] = at
			p.groups = append(p.groups, group{ofNode: map[int32]int32{}})
		}
		x.group = at
		g := &p.groups[at]
		g.nics = append(g.nics, int32(i))
		g.ofNode[id]++
		p.live = append(p.live, int32(i))
	}
	for i := range p.groups {
		g := &p.groups[i]
		leaves := map[int32]bool{}
		for _, x := range g.nics {
			leaves[n.nics[x].leaf] = true
		}
		g.leaves, g.oneNode = len(leaves), len(g.ofNode) == 1
	}
	p.findLevels()
	return p
}

// findLevels divides the network into leaves, pods and the level that joins the pods, and computes the
// number of rounds of each level that a NIC takes part in.
func (p *pairing) findLevels() {
	n := p.n
	self := make([]int32, n.vertices)
	for v := range self {
		self[v] = int32(v)
	}
	p.leaf = p.newLevel(1, self, self)
	for _, x := range p.live {
		p.leaf.rounds[x] = float64(p.o.FanOut[0])
		if p.groups[n.nics[x].group].leaves == 1 {
			p.leaf.rounds[x] = float64(max(p.o.FanOut[0], p.o.MinPeers))
		}
	}
	tiers := slices.Concat(n.tier, n.arcTier)
	slices.Sort(tiers)
	tiers = slices.Compact(tiers)
	below := self
	for i, tier := range tiers {
		if tier == 1 && len(tiers) > 1 {
			continue
		}
		if i == len(tiers)-1 {
			tier = max(tier, 2)
		}
		block := n.joinUpTo(tier)
		if i == len(tiers)-1 {
			block = n.comp
		}
		p.levels = append(p.levels, p.newLevel(tier, block, below))
		below = block
	}
	// A flow of a higher level also crosses the links of the lower ones, so that the need of a level is
	// computed from the top down.
	given := make([]float64, len(n.nics))
	for i := len(p.levels) - 1; i >= 0; i-- {
		l := &p.levels[i]
		base := float64(p.o.FanOut[min(l.tier, 3)-1])
		need := p.neededRounds(l)
		for _, nics := range l.blocks {
			if !p.manyChildren(l, nics) {
				continue
			}
			for _, x := range nics {
				l.rounds[x] = min(max(base, need[l.child[n.nics[x].leaf]]-given[x]), max(base, mostRounds))
				given[x] += l.rounds[x]
			}
		}
	}
}

func (p *pairing) newLevel(tier uint8, block, child []int32) level {
	l := level{tier: tier, block: block, child: child, rounds: make([]float64, len(p.n.nics)), index: make([]int32, len(p.n.nics))}
	at := map[uint64]int32{}
	for _, x := range p.live {
		key := uint64(p.n.nics[x].group)<<32 | uint64(block[p.n.nics[x].leaf])
		i, ok := at[key]
		if !ok {
			i = int32(len(l.blocks))
			at[key] = i
			l.blocks = append(l.blocks, nil)
		}
		l.index[x] = i
		l.blocks[i] = append(l.blocks[i], x)
	}
	return l
}

func (p *pairing) manyChildren(l *level, nics []int32) bool {
	for _, x := range nics {
		if l.child[p.n.nics[x].leaf] != l.child[p.n.nics[nics[0]].leaf] {
			return true
		}
	}
	return false
}

// neededRounds returns the number of rounds that the NICs of every child must take part in so that each
// link out of the child is expected to carry MinFlows. In a round a child gets as many flows out as it
// has NICs, and as many flows in, whose replies go out.
func (p *pairing) neededRounds(l *level) []float64 {
	n := p.n
	links, nics := make([]float64, n.vertices), make([]float64, n.vertices)
	for v := range int32(n.vertices) {
		for a := n.first[v]; a < n.first[v+1]; a++ {
			if l.child[n.to[a]] != l.child[v] {
				links[l.child[v]] += float64(n.links[a])
			}
		}
	}
	for _, x := range p.live {
		nics[l.child[n.nics[x].leaf]]++
	}
	for c := range links {
		if nics[c] > 0 {
			links[c] *= p.o.MinFlows / (2 * nics[c])
		}
	}
	return links
}

// offer is a source with the target that it is offered.
type offer struct {
	segment int64
	key     uint64
	x, y    int32
}

// choosePeers runs all rounds of all levels.
func (p *pairing) choosePeers() {
	p.runLevel(&p.leaf, nil)
	for i := range p.levels {
		p.runLevel(&p.levels[i], p.railsOf(&p.levels[i]))
	}
	p.addMissingPeers()
}

func makeSalt(parts ...uint64) uint64 {
	h := uint64(0)
	for _, x := range parts {
		h = mixHash(h ^ x)
	}
	return h
}

// runLevel pairs the NICs of all blocks of a level. In each round they form a ring, in the order of a
// hash of their names, and each probes the next one. So each NIC probes one and is probed by one, and a
// NIC that comes or goes changes only its neighbours. NICs whose next one is not allowed form further
// rings among themselves, where the targets move one place on, until all are served.
func (p *pairing) runLevel(l *level, rails []int64) {
	n := p.n
	most := 0.0
	for _, x := range p.live {
		most = max(most, l.rounds[x])
	}
	for r := range int(math.Ceil(most)) {
		var offers []offer
		for _, x := range p.live {
			whole := math.Floor(l.rounds[x])
			if float64(r) < whole || float64(r) == whole && hashToUnit(mixHash(n.nics[x].hash^makeSalt(uint64(l.tier), 1<<20))) < l.rounds[x]-whole {
				offers = append(offers, offer{x: x, y: x})
			}
		}
		byRail := rails != nil && r%2 == 0
		last := passes
		if l.tier == 1 {
			last = newPeerPasses // under a leaf a second flow takes the same path
		}
		for pass := 0; pass < last && len(offers) > 1; pass++ {
			s := makeSalt(uint64(l.tier), uint64(r), uint64(pass))
			for i := range offers {
				f := &offers[i]
				f.key = mixHash(n.nics[f.x].hash ^ s)
				f.segment = int64(l.index[f.x]) << 32
				if byRail && pass < railPasses {
					f.segment |= rails[f.x]
				}
			}
			slices.SortFunc(offers, func(a, b offer) int {
				return cmp.Or(cmp.Compare(a.segment, b.segment), cmp.Compare(a.key, b.key), cmp.Compare(a.x, b.x))
			})
			for from := 0; from < len(offers); {
				to := from + 1
				for to < len(offers) && offers[to].segment == offers[from].segment {
					offers[to-1].y, offers[to].y = offers[to].y, offers[to-1].y
					to++
				}
				from = to
			}
			refused := offers[:0]
			for _, f := range offers {
				most := uint16(0) // number of flows that the pair may already have
				switch {
				case pass >= evenPasses:
					most = flowsOfPair
				case pass >= newPeerPasses:
					most = uint16(r / max(len(p.peers[f.x]), 1))
				}
				if p.mayProbe(l, f.x, f.y) && p.flowCount(f.x, f.y) <= most {
					p.addFlow(f.x, f.y)
				} else {
					refused = append(refused, f)
				}
			}
			offers = refused
		}
		if r == 0 && l.tier > 1 {
			p.serveRest(l, offers)
		}
	}
}

// mayProbe reports whether x may probe y as a peer of a level: under the same leaf, or in another child
// of the block, and never on the same node.
func (p *pairing) mayProbe(l *level, x, y int32) bool {
	if x == y || !p.nodeAllowed(x, y) {
		return false
	}
	return l.tier == 1 || l.child[p.n.nics[x].leaf] != l.child[p.n.nics[y].leaf]
}

// nodeAllowed reports whether y is on another node than x, or the group has no other node.
func (p *pairing) nodeAllowed(x, y int32) bool {
	return p.node[x] != p.node[y] || p.groups[p.n.nics[x].group].oneNode
}

func (p *pairing) alreadyProbes(x, y int32) bool { return p.flowCount(x, y) > 0 }

// flowCount returns the number of flows from x to y.
func (p *pairing) flowCount(x, y int32) uint16 {
	for _, q := range p.peers[x] {
		if q.dst == y {
			return q.flows
		}
	}
	return 0
}

// addFlow adds a flow from x to y.
func (p *pairing) addFlow(x, y int32) {
	for i := range p.peers[x] {
		if q := &p.peers[x][i]; q.dst == y {
			q.flows = min(q.flows+1, flowsOfPair)
			return
		}
	}
	p.peers[x] = append(p.peers[x], peer{y, 1})
	p.proberCounts[y]++
	if p.n.nics[x].leaf != p.n.nics[y].leaf {
		p.crossLeaf[x], p.crossLeaf[y] = true, true
	}
}

// serveRest gives NICs that a first round left without a target or a prober one outside their child,
// spread evenly: if one child has more than half of a block's NICs, the others must serve several.
func (p *pairing) serveRest(l *level, rest []offer) {
	if len(rest) == 0 {
		return
	}
	n := p.n
	type part struct{ block, child int32 }
	waiting := map[part][2][]int32{} // sources, targets
	var parts []part
	for _, f := range rest {
		for side, x := range [2]int32{f.x, f.y} {
			k := part{l.index[x], l.child[n.nics[x].leaf]}
			w, ok := waiting[k]
			if !ok {
				parts = append(parts, k)
			}
			w[side] = append(w[side], x)
			waiting[k] = w
		}
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Or(cmp.Compare(a.block, b.block), cmp.Compare(a.child, b.child)) })
	for _, k := range parts {
		var outside []int32
		for _, y := range l.blocks[k.block] {
			if l.child[n.nics[y].leaf] != k.child {
				outside = append(outside, y)
			}
		}
		if len(outside) == 0 {
			continue
		}
		for side, xs := range waiting[k] {
			s := makeSalt(uint64(l.tier), 2<<20, uint64(side))
			p.byHash(outside, s)
			p.byHash(xs, s)
			for i, x := range xs {
				at := i * len(outside) / len(xs)
				for step := range outside {
					y := outside[(at+step)%len(outside)]
					from, to := x, y
					if side == 1 {
						from, to = y, x
					}
					if p.nodeAllowed(from, to) && !p.alreadyProbes(from, to) {
						p.addFlow(from, to)
						break
					}
				}
			}
		}
	}
}

func (p *pairing) byHash(xs []int32, s uint64) {
	slices.SortFunc(xs, func(a, b int32) int {
		return cmp.Or(cmp.Compare(mixHash(p.n.nics[a].hash^s), mixHash(p.n.nics[b].hash^s)), cmp.Compare(a, b))
	})
}

// railsOf returns the rail that every NIC should stay on, in blocks whose leaves have one rail each.
// The rail is 0 if there is none, or if no other child has it.
func (p *pairing) railsOf(l *level) []int64 {
	n := p.n
	ofLeaf := make([]int32, n.vertices) // -2: not seen; -1: none or several
	for i := range ofLeaf {
		ofLeaf[i] = -2
	}
	for _, x := range p.live {
		switch r := &ofLeaf[n.nics[x].leaf]; {
		case *r == -2:
			*r = n.nics[x].rail
		case *r != n.nics[x].rail:
			*r = -1
		}
	}
	rails := make([]int64, len(n.nics))
	found := false
	for _, nics := range l.blocks {
		firstChild := map[int32]int32{}
		several := map[int32]bool{}
		mixed := false
		for _, x := range nics {
			leaf := n.nics[x].leaf
			r := ofLeaf[leaf]
			mixed = mixed || r < 0
			if c, ok := firstChild[r]; !ok {
				firstChild[r] = l.child[leaf]
			} else if c != l.child[leaf] {
				several[r] = true
			}
		}
		if mixed || len(firstChild) < 2 {
			continue
		}
		for _, x := range nics {
			if r := n.nics[x].rail; several[r] {
				rails[x] = int64(r) + 1
				found = true
			}
		}
	}
	if !found {
		return nil
	}
	return rails
}

// addMissingPeers gives NICs with too few peers, or none across leaves, further peers of their group.
func (p *pairing) addMissingPeers() {
	lists := []*level{&p.leaf}
	for i := range p.levels {
		lists = append(lists, &p.levels[i])
	}
	ordered := map[*level][][]int32{}
	s := makeSalt(3 << 20)
	list := func(l *level, x int32) []int32 {
		if ordered[l] == nil {
			ordered[l] = make([][]int32, len(l.blocks))
		}
		b := l.index[x]
		if ordered[l][b] == nil {
			ordered[l][b] = slices.Clone(l.blocks[b])
			p.byHash(ordered[l][b], s)
		}
		return ordered[l][b]
	}
	// find adds an edge from x, or to it, and reports whether it found one.
	find := func(x int32, inward, otherLeaf bool) bool {
		for _, l := range lists {
			if otherLeaf && l.tier == 1 {
				continue
			}
			ys := list(l, x)
			start := sort.Search(len(ys), func(i int) bool { return mixHash(p.n.nics[ys[i]].hash^s) >= mixHash(p.n.nics[x].hash^s) })
			for _, needy := range []bool{true, false} {
				for step := range ys {
					if needy && step == nearSteps {
						break
					}
					y := ys[(start+1+step)%len(ys)]
					from, to, has := x, y, int(p.proberCounts[y])
					if inward {
						from, to, has = y, x, len(p.peers[y])
					}
					if x == y || !p.nodeAllowed(x, y) || p.alreadyProbes(from, to) || otherLeaf && p.n.nics[x].leaf == p.n.nics[y].leaf || needy && has >= p.o.MinPeers {
						continue
					}
					p.addFlow(from, to)
					return true
				}
			}
		}
		return false
	}
	for _, x := range p.live {
		g := &p.groups[p.n.nics[x].group]
		if len(g.nics) < 2 {
			continue
		}
		if g.leaves > 1 && !p.crossLeaf[x] {
			find(x, false, true)
		}
		for len(p.peers[x]) < p.o.MinPeers && find(x, false, false) {
		}
		for int(p.proberCounts[x]) < p.o.MinPeers && find(x, true, false) {
		}
	}
}
