package schedule

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/graylink/graylink/internal/fabric"
)

const (
	// mostTurns limits how often flows are added and the loads are computed again.
	mostTurns = 24
	// patientTurns is the number of turns after which a lack that rounding left counts as one that
	// source ports cannot remove.
	patientTurns = 6
	// hopelessRatio is the factor beyond which neither all source ports nor a few more pairs can give a
	// link its flows. The pairs of such a link get hopelessFactor times their flows, once: thinning a
	// node's probes for an unreachable goal has no use.
	hopelessRatio, hopelessFactor = 4 * flowsOfPair, 4
	// mostPeers is the number of peers up to which a NIC may get one more for a link without flows, or
	// with too few.
	mostPeers = 2 * mostRounds
	// mostSearches limits the searches for pairs over links without flows.
	mostSearches = 4096
	// flowTolerance is the distance below MinFlows that a sum of fractions may have.
	flowTolerance = 1e-9
)

// pair is a NIC that probes another one with a number of flows in every class.
type pair struct {
	src, dst int32
	flows    uint16
	tier     uint8
}

// cover computes the loads that the pairs' flows are expected to give every arc.
type cover struct {
	n     *network
	pairs []pair
	added []uint16 // flows of a pair that load does not include yet
	load  []float64
	first []int32  // by leaf: index of its first entry
	entry []uint32 // pair<<1, plus 1 for the replies: flows toward the leaf
}

func newCover(n *network, pairs []pair) *cover {
	c := &cover{n: n, pairs: pairs, added: make([]uint16, len(pairs)), load: make([]float64, len(n.to))}
	for i := range pairs {
		c.added[i] = pairs[i].flows
	}
	c.indexByLeaf()
	return c
}

// indexByLeaf lists the flows toward every leaf.
func (c *cover) indexByLeaf() {
	n := c.n
	c.first = make([]int32, n.vertices+1)
	each := func(f func(leaf int32, entry uint32)) {
		for i := range c.pairs {
			src, dst := n.nics[c.pairs[i].src].leaf, n.nics[c.pairs[i].dst].leaf
			if src != dst {
				f(dst, uint32(i)<<1)
				f(src, uint32(i)<<1|1)
			}
		}
	}
	each(func(leaf int32, _ uint32) { c.first[leaf+1]++ })
	for v := range n.vertices {
		c.first[v+1] += c.first[v]
	}
	c.entry = make([]uint32, c.first[n.vertices])
	at := slices.Clone(c.first)
	each(func(leaf int32, e uint32) { c.entry[at[leaf]] = e; at[leaf]++ })
}

// sourceLeaf returns the leaf that an entry's packets come from.
func (c *cover) sourceLeaf(e uint32) int32 {
	p := &c.pairs[e>>1]
	if e&1 == 0 {
		return c.n.nics[p.src].leaf
	}
	return c.n.nics[p.dst].leaf
}

// updateLoads adds the added flows to the loads, and determines the tiers of the pairs.
func (c *cover) updateLoads() {
	n := c.n
	sums := make([][]float64, chunks)
	n.inChunks(n.vertices, func(chunk, from, to int, w *walk) {
		sums[chunk] = make([]float64, len(n.to))
		for leaf := from; leaf < to; leaf++ {
			entries := c.entry[c.first[leaf]:c.first[leaf+1]]
			if !slices.ContainsFunc(entries, func(e uint32) bool { return c.added[e>>1] > 0 }) {
				continue
			}
			w.searchToward(int32(leaf))
			for _, e := range entries {
				s := c.sourceLeaf(e)
				w.load[s] += float64(c.added[e>>1])
				if e&1 == 0 {
					c.pairs[e>>1].tier = w.highestTier[s]
				}
			}
			w.spreadLoad(sums[chunk])
		}
	})
	for _, s := range sums {
		for a, x := range s {
			c.load[a] += x
		}
	}
	clear(c.added)
}

// fillLinks adds flows until every link has minFlows or no flow can be added.
func (c *cover) fillLinks(p *pairing, minFlows float64) {
	n := c.n
	c.updateLoads()
	factor := make([]float64, len(n.to))
	toProbes, toReplies := make([]float64, len(c.pairs)), make([]float64, len(c.pairs))
	searched, raised := make([]bool, len(n.to)), make([]bool, len(n.to))
	for turn := range mostTurns {
		poor := false
		var none []int32
		for a := range factor {
			factor[a] = 0
			switch l := c.load[a] * n.least[a]; {
			case l >= minFlows-flowTolerance:
			case l > 0:
				poor = true
				switch f := minFlows / l; {
				case raised[a]:
				case f > hopelessRatio:
					factor[a], raised[a] = hopelessFactor, true
				default:
					factor[a] = f
				}
			case !searched[a]:
				searched[a] = true
				none = append(none, int32(a))
			}
		}
		found := c.searchPairs(p, none)
		if found {
			toProbes, toReplies = make([]float64, len(c.pairs)), make([]float64, len(c.pairs))
		}
		if !poor && !found {
			return
		}
		clear(toProbes)
		clear(toReplies)
		n.inChunks(n.vertices, func(_, from, to int, w *walk) {
			for leaf := from; leaf < to; leaf++ {
				entries := c.entry[c.first[leaf]:c.first[leaf+1]]
				if len(entries) == 0 {
					continue
				}
				w.searchToward(int32(leaf))
				w.maxOnPaths(factor)
				for _, e := range entries {
					m := w.best[c.sourceLeaf(e)]
					if e&1 == 0 {
						toProbes[e>>1] = m
					} else {
						toReplies[e>>1] = m
					}
				}
			}
		})
		changed := found
		for i := range c.pairs {
			q := &c.pairs[i]
			m := max(toProbes[i], toReplies[i])
			if m <= 1 {
				continue
			}
			// The fraction of a flow is rounded by a hash, so that a small lack adds a flow to a few of
			// many pairs.
			m = math.Round(m*1e6) / 1e6 * (1 + 0.01*float64(turn))
			more := math.Floor(float64(q.flows)*(m-1) + hashToUnit(mixHash(n.nics[q.src].hash^mixHash(n.nics[q.dst].hash^uint64(turn)))))
			add := uint16(min(more, float64(flowsOfPair-q.flows)))
			if add > 0 {
				q.flows += add
				c.added[i] += add
				changed = true
			}
		}
		if changed {
			c.updateLoads()
			continue
		}
		// Source ports alone cannot add more flows. Other NICs of the same leaves may.
		var short []int32
		for a, f := range factor {
			if f > 1 && turn >= patientTurns {
				short = append(short, int32(a))
			}
		}
		if c.searchPairs(p, short) {
			toProbes, toReplies = make([]float64, len(c.pairs)), make([]float64, len(c.pairs))
		} else if turn >= patientTurns {
			return
		}
	}
}

// searchPairs finds two NICs with a shortest path over each arc without flows, and makes one probe the
// other. It reports whether it found any.
func (c *cover) searchPairs(p *pairing, arcs []int32) bool {
	if len(arcs) == 0 {
		return false
	}
	n := c.n
	ofLeaf := map[int32][]int32{}
	for _, x := range p.live {
		ofLeaf[n.nics[x].leaf] = append(ofLeaf[n.nics[x].leaf], x)
	}
	leaves := make([]int32, 0, len(ofLeaf))
	for l := range ofLeaf {
		leaves = append(leaves, l)
	}
	slices.Sort(leaves)
	from := n.arcTails()
	toA, toB, toGoal := n.newWalk(), n.newWalk(), n.newWalk()
	near := func(w, other *walk) []int32 {
		var ls []int32
		for _, l := range leaves {
			if w.dist[l] >= 0 && other.dist[l] == w.dist[l]+1 {
				ls = append(ls, l)
			}
		}
		sort.SliceStable(ls, func(i, j int) bool { return w.dist[ls[i]] < w.dist[ls[j]] })
		return ls[:min(len(ls), 8)]
	}
	done := map[[2]int32]bool{}   // leaf pairs whose way and reply way were served
	joined := map[[2]int32]bool{} // leaves that were joined
	found := false
	for i, a := range arcs {
		if i == mostSearches {
			break
		}
		u, v := from[a], n.to[a]
		if done[[2]int32{v, u}] {
			continue // the replies cross the arc
		}
		toA.searchToward(u)
		toB.searchToward(v)
		sources, goals := near(toA, toB), near(toB, toA)
	search:
		for _, d := range goals {
			toGoal.searchToward(d)
			for _, s := range sources {
				if toGoal.dist[s] != toA.dist[s]+1+toB.dist[d] {
					continue
				}
				if joined[[2]int32{s, d}] || joined[[2]int32{d, s}] {
					break search
				}
				if x, y, ok := p.pickUnpaired(ofLeaf[s], ofLeaf[d]); ok {
					joined[[2]int32{s, d}] = true
					p.addFlow(x, y)
					c.pairs = append(c.pairs, pair{src: x, dst: y, flows: 1})
					c.added = append(c.added, 1)
					done[[2]int32{u, v}] = true
					found = true
					break search
				}
			}
		}
	}
	if found {
		c.indexByLeaf()
		c.updateLoads()
	}
	return found
}

// pickUnpaired returns, of the NICs of two leaves, the two with the fewest peers that may probe each
// other and do not.
func (p *pairing) pickUnpaired(xs, ys []int32) (x, y int32, ok bool) {
	least := math.MaxInt
	for _, a := range xs {
		for _, b := range ys {
			if p.n.nics[a].group != p.n.nics[b].group || !p.nodeAllowed(a, b) || p.alreadyProbes(a, b) || len(p.peers[a]) >= mostPeers || p.proberCounts[b] >= mostPeers {
				continue
			}
			if peers := len(p.peers[a]) + int(p.proberCounts[b]); peers < least {
				x, y, ok, least = a, b, true, peers
			}
		}
	}
	return x, y, ok
}

// LinkFlows is the expected load of a directed link.
type LinkFlows struct {
	fabric.Direction
	Tier  int     // 1 between a NIC and its leaf, else the higher tier of its ends
	Flows float64 // probes and replies of all classes
}

// TierFlows summarises the directed links of a tier.
type TierFlows struct {
	Tier      int
	Links     int // number of directed links
	Min, Mean float64
	Least     fabric.Direction // a link with Min
	Empty     int              // number of links that no flow may cross
}

// Coverage is the expected coverage of the fabric by a schedule. ECMP's hash is unknown: each flow
// takes each next hop on a shortest path with equal odds.
type Coverage struct {
	Links []LinkFlows // every directed link of the topology, sorted
	Tiers []TierFlows
	// Gap is an upper bound of the odds that any fabric link stays without a flow, among the links that
	// flows may cross. It is an upper bound because it treats a link's flows as many rare ones.
	Gap float64
}

// ExpectedFlows returns the expected number of flows over every directed link.
func (s *Schedule) ExpectedFlows(g *fabric.Graph) Coverage {
	n := newNetwork(g, nil)
	at := make([]int32, len(s.NICs))
	for i, id := range s.NICs {
		at[i] = -1
		if x, ok := n.nicByID[id]; ok && n.nics[x].leaf >= 0 {
			at[i] = x
		}
	}
	var pairs []pair
	access := make([]float64, len(n.nics))
	for i, e := range s.Edges {
		src, dst := at[e.Src], at[e.Dst]
		if src < 0 || dst < 0 {
			continue
		}
		access[src]++
		access[dst]++
		if i > 0 && len(pairs) > 0 && pairs[len(pairs)-1].src == src && pairs[len(pairs)-1].dst == dst {
			pairs[len(pairs)-1].flows++
			continue
		}
		pairs = append(pairs, pair{src: src, dst: dst, flows: 1})
	}
	c := newCover(n, pairs)
	c.updateLoads()
	return n.summarizeFlows(g, c.load, access)
}

func (n *network) summarizeFlows(g *fabric.Graph, load, access []float64) Coverage {
	t := g.Topo
	cov := Coverage{Links: make([]LinkFlows, 0, 2*len(t.Links))}
	for i := range n.cables {
		cb := &n.cables[i]
		l := &t.Links[cb.link]
		tier := g.LinkTier(l)
		cov.Links = append(cov.Links, LinkFlows{fabric.Direction{From: l.A, To: l.B}, tier, load[cb.arc] * cb.share},
			LinkFlows{fabric.Direction{From: l.B, To: l.A}, tier, load[n.rev[cb.arc]] * cb.share})
	}
	for _, i := range n.access {
		l := &t.Links[i]
		end := l.A
		if !fabric.IsNIC(end) {
			end = l.B
		}
		f := access[n.nicByID[end]]
		cov.Links = append(cov.Links, LinkFlows{fabric.Direction{From: l.A, To: l.B}, 1, f}, LinkFlows{fabric.Direction{From: l.B, To: l.A}, 1, f})
	}
	slices.SortFunc(cov.Links, func(a, b LinkFlows) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	tiers := map[int]*TierFlows{}
	covered := 0.0 // logarithm of the odds that every link has a flow
	for _, l := range cov.Links {
		tf := tiers[l.Tier]
		if tf == nil {
			tf = &TierFlows{Tier: l.Tier, Min: math.Inf(1)}
			tiers[l.Tier] = tf
		}
		tf.Links++
		tf.Mean += l.Flows
		if l.Flows == 0 {
			tf.Empty++
		} else if l.Tier > 1 {
			covered += math.Log1p(-math.Exp(-l.Flows))
		}
		if l.Flows < tf.Min {
			tf.Min, tf.Least = l.Flows, l.Direction
		}
	}
	cov.Gap = -math.Expm1(covered)
	for _, tf := range tiers {
		tf.Mean /= float64(tf.Links)
		cov.Tiers = append(cov.Tiers, *tf)
	}
	slices.SortFunc(cov.Tiers, func(a, b TierFlows) int { return cmp.Compare(a.Tier, b.Tier) })
	return cov
}
