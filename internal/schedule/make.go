package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// mostThinning is the factor by which tiers farther away may probe more slowly before the next nearer
// tier is slowed down too.
const mostThinning = 16

// Make returns a schedule of the fabric of g. It returns an error if the options are invalid.
//
// A NIC probes at most FanOut[0] peers under its leaf (MinPeers if there is only one leaf), at every
// level of the hierarchy above it at most 16 or FanOut, whichever is more, and MinPeers more if the
// rounds left it short. As many probe it. Two cases add to that. A NIC with fewer than 32 peers may get
// more for links that only few pairs cross. If a child has more than half of its block's NICs (a leaf
// of 30 beside one of 2), the rest of the block shares the child's NICs evenly, once per level and
// direction.
func Make(g *fabric.Graph, o Options) (*Schedule, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	n := newNetwork(g, o.Absent)
	p := newPairing(n, o)
	p.choosePeers()
	c := newCover(n, p.listPairs())
	c.fillLinks(p, o.MinFlows)
	slices.SortFunc(c.pairs, func(a, b pair) int { return cmp.Or(cmp.Compare(a.src, b.src), cmp.Compare(a.dst, b.dst)) })

	s := &Schedule{Classes: slices.Clone(o.Classes), NICs: make([]string, len(n.nics)), Components: n.describeComponents(g)}
	for i := range n.nics {
		s.NICs[i] = n.nics[i].id
	}
	s.Findings = append(p.pairingShortfalls(g, o.Absent), c.linkShortfalls(g, o.MinFlows)...)
	if g.Topo.Routing == fabric.Adaptive {
		s.Findings = append(s.Findings, "adaptive routing: flows are expected on minimal paths, and those that cross a third group are missing there")
	}
	cadence, thinned := p.chooseCadences(c.pairs)
	s.Findings = append(s.Findings, thinned...)
	s.Edges = expandPairs(c.pairs, len(o.Classes), func(q *pair) time.Duration { return cadence[p.node[q.src]][q.tier] })
	s.applyMoves(o.Moves)
	return s, nil
}

// listPairs returns the pairs of NICs that probe each other. Pairs under one leaf are of tier 1.
func (p *pairing) listPairs() []pair {
	count := 0
	for _, peers := range p.peers {
		count += len(peers)
	}
	pairs := make([]pair, 0, count)
	for x, peers := range p.peers {
		for _, q := range peers {
			pairs = append(pairs, pair{src: int32(x), dst: q.dst, flows: q.flows, tier: 1})
		}
	}
	return pairs
}

func expandPairs(pairs []pair, classes int, cadence func(*pair) time.Duration) []Edge {
	count := 0
	for i := range pairs {
		count += int(pairs[i].flows)
	}
	out := make([]Edge, 0, count*classes)
	for i := range pairs {
		q := &pairs[i]
		for class := range classes {
			for f := range q.flows {
				out = append(out, Edge{Src: q.src, Dst: q.dst, Flow: uint16(class*FlowsPerClass) + f, Tier: q.tier, Class: uint8(class), Cadence: cadence(q)})
			}
		}
	}
	return out
}

// applyMoves gives edges their moved flow numbers. It ignores a move of a flow that does not exist,
// onto one that exists, onto a temporary one, or into another class.
func (s *Schedule) applyMoves(moves []Move) {
	for _, m := range moves {
		if m.From/FlowsPerClass != m.To/FlowsPerClass || m.From < 0 || m.To < 0 || m.To%FlowsPerClass >= flowsOfPair {
			continue
		}
		src, ok := slices.BinarySearch(s.NICs, m.Src)
		dst, ok2 := slices.BinarySearch(s.NICs, m.Dst)
		if !ok || !ok2 {
			continue
		}
		flows := s.flowsBetween(int32(src), int32(dst))
		has := func(f int) int {
			return slices.IndexFunc(flows, func(e Edge) bool { return int(e.Flow) == f })
		}
		at := has(m.From)
		if at < 0 || has(m.To) >= 0 {
			continue
		}
		flows[at].Flow = uint16(m.To)
		slices.SortFunc(flows, func(a, b Edge) int { return cmp.Compare(a.Flow, b.Flow) })
	}
}

// flowsBetween returns the part of Edges from one NIC to another.
func (s *Schedule) flowsBetween(src, dst int32) []Edge {
	before := func(e Edge, k [2]int32) int { return cmp.Or(cmp.Compare(e.Src, k[0]), cmp.Compare(e.Dst, k[1])) }
	from, _ := slices.BinarySearchFunc(s.Edges, [2]int32{src, dst}, before)
	to, _ := slices.BinarySearchFunc(s.Edges, [2]int32{src, dst + 1}, before)
	return s.Edges[from:to]
}

// chooseCadences thins every node's probes to its budget: first those of the farthest tier, up to
// mostThinning times, then the next nearer tier with it. The cadence that three of four nodes can keep
// becomes the cadence of all faster nodes, so that the series of a tier are comparable. The others are
// slower individually. It returns the cadences by node and tier, and findings about slower tiers.
func (p *pairing) chooseCadences(pairs []pair) ([]map[uint8]time.Duration, []string) {
	nodes := int32(0)
	for _, id := range p.node {
		nodes = max(nodes, id+1)
	}
	flows := make([]map[uint8]float64, nodes) // by node and tier
	for i := range pairs {
		at := p.node[pairs[i].src]
		if flows[at] == nil {
			flows[at] = map[uint8]float64{}
		}
		flows[at][pairs[i].tier] += float64(pairs[i].flows) * float64(len(p.o.Classes))
	}
	times := make([]map[uint8]int, nodes)
	byTier := map[uint8][]int{}
	busiest := 0.0
	for i := range flows {
		if flows[i] == nil {
			continue
		}
		var full float64
		times[i], full = thinToBudget(flows[i], p.o.Budget*p.o.Cadence.Seconds())
		busiest = max(busiest, full/p.o.Cadence.Seconds())
		for tier, n := range times[i] {
			byTier[tier] = append(byTier[tier], n)
		}
	}
	tiers := make([]uint8, 0, len(byTier))
	for tier, ns := range byTier {
		slices.Sort(ns)
		tiers = append(tiers, tier)
	}
	slices.Sort(tiers)
	type slowed struct {
		tier  uint8
		times int
	}
	count := map[slowed]int{}
	out := make([]map[uint8]time.Duration, nodes)
	for i := range times {
		if times[i] == nil {
			continue
		}
		out[i] = map[uint8]time.Duration{}
		last := 1
		for _, tier := range tiers {
			own, ok := times[i][tier]
			if !ok {
				continue
			}
			ns := byTier[tier]
			last = max(last, own, ns[len(ns)*3/4])
			out[i][tier] = time.Duration(last) * p.o.Cadence
			if last > 1 {
				count[slowed{tier, last}]++
			}
		}
	}
	keys := make([]slowed, 0, len(count))
	for k := range count {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b slowed) int { return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(a.times, b.times)) })
	var found []string
	for _, k := range keys {
		found = append(found, fmt.Sprintf("budget: tier %d is probed every %v instead of %v by %d of %d nodes: at the full rate the busiest node would send %.0f probes/s, and its budget is %g",
			k.tier, time.Duration(k.times)*p.o.Cadence, p.o.Cadence, count[k], len(byTier[k.tier]), busiest, p.o.Budget))
	}
	return out, found
}

// thinToBudget returns the factor by which each tier must be slowed down so that the flows of a node
// fit into the budget, and the sum at full rate. The budget and the sum are in probes per cadence.
func thinToBudget(flows map[uint8]float64, budget float64) (times map[uint8]int, full float64) {
	tiers := make([]uint8, 0, len(flows))
	for t, f := range flows {
		tiers = append(tiers, t)
		full += f
	}
	slices.Sort(tiers)
	times = map[uint8]int{}
	near, far := full, 0.0
	for i := len(tiers) - 1; i >= 0; i-- {
		near -= flows[tiers[i]]
		far += flows[tiers[i]]
		slow := 1
		if full > budget {
			if near >= budget && i > 0 {
				continue
			}
			slow = roundFactor(far / (budget - near))
			if slow > mostThinning && i > 0 {
				continue
			}
		}
		for j, t := range tiers {
			times[t] = 1
			if j >= i {
				times[t] = slow
			}
		}
		break
	}
	return times, full
}

// roundFactor rounds a factor up to 1, 2, 3, 4, 6, 8, 12 and so on, so that there are few cadences and
// they do not change with every node.
func roundFactor(factor float64) int {
	for n := 1; ; n *= 2 {
		switch {
		case float64(n) >= factor-1e-9:
			return n
		case n > 1 && float64(n+n/2) >= factor-1e-9:
			return n + n/2
		}
	}
}

// describeComponents describes the components of the fabric that have switches.
func (n *network) describeComponents(g *fabric.Graph) []Component {
	parts := 0
	for _, c := range n.comp {
		parts = max(parts, int(c)+1)
	}
	out := make([]Component, parts)
	planes, rails := make([]map[string]bool, parts), make([]map[string]bool, parts)
	for i := range out {
		planes[i], rails[i] = map[string]bool{}, map[string]bool{}
	}
	for v, c := range n.comp {
		out[c].Switches += int(n.size[v])
		if sw := g.Switch(n.name[v]); sw.Plane != "" {
			planes[c][sw.Plane] = true
		}
	}
	for i := range n.nics {
		x := &n.nics[i]
		if x.leaf < 0 {
			continue
		}
		c := n.comp[x.leaf]
		out[c].NICs++
		if x.plane != "" {
			planes[c][x.plane] = true
		}
		if x.rail >= 0 {
			rails[c][fmt.Sprint(x.rail)] = true
		}
	}
	for i := range out {
		out[i].Planes, out[i].Rails = sortedLabels(planes[i]), sortedLabels(rails[i])
	}
	return out
}

func sortedLabels(set map[string]bool) []string {
	var out []string
	for s := range set {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return out
}

// pairingShortfalls returns findings about what the pairing could not provide.
func (p *pairing) pairingShortfalls(g *fabric.Graph, absent map[string]bool) []string {
	n := p.n
	var out, gone, unplugged, alone, fewPeers, oneLeaf, ownNode []string
	for i := range g.Topo.Nodes {
		if name := g.Topo.Nodes[i].Name; absent[name] {
			gone = append(gone, name)
		}
	}
	for i := range n.nics {
		x := &n.nics[i]
		switch {
		case x.leaf < 0:
			unplugged = append(unplugged, x.id)
			continue
		case !x.live:
			continue
		}
		gr := &p.groups[x.group]
		switch {
		case len(gr.nics) == 1:
			alone = append(alone, x.id)
			continue
		case gr.oneNode:
			ownNode = append(ownNode, x.id)
		}
		if len(p.peers[i]) < p.o.MinPeers || int(p.proberCounts[i]) < p.o.MinPeers {
			fewPeers = append(fewPeers, x.id)
		}
		if gr.leaves > 1 && !p.crossLeaf[i] {
			oneLeaf = append(oneLeaf, x.id)
		}
	}
	addFinding := func(names []string, what string) {
		if len(names) > 0 {
			out = append(out, fmt.Sprintf("%s: %d: %s", what, len(names), abbreviateNames(names)))
		}
	}
	addFinding(gone, "nodes without an agent, left out")
	addFinding(unplugged, "NICs without a link, and so without edges")
	addFinding(alone, "NICs without a peer in their component and plane")
	addFinding(ownNode, "NICs that have only NICs of their own node to probe")
	addFinding(fewPeers, fmt.Sprintf("NICs with fewer than %d peers, since their component and plane have no more", p.o.MinPeers))
	addFinding(oneLeaf, "NICs without a peer of another node across leaves")
	return out
}

// linkShortfalls returns findings about the links that cannot have their flows.
func (c *cover) linkShortfalls(g *fabric.Graph, minFlows float64) []string {
	n := c.n
	var none, poor []string
	least := math.Inf(1)
	for i := range n.cables {
		cb := &n.cables[i]
		l := &g.Topo.Links[cb.link]
		for _, way := range []struct {
			load float64
			dir  fabric.Direction
		}{{c.load[cb.arc] * cb.share, fabric.Direction{From: l.A, To: l.B}}, {c.load[n.rev[cb.arc]] * cb.share, fabric.Direction{From: l.B, To: l.A}}} {
			switch {
			case way.load >= minFlows-flowTolerance:
			case way.load == 0:
				none = append(none, way.dir.String())
			default:
				poor = append(poor, way.dir.String())
				least = min(least, way.load)
			}
		}
	}
	var out []string
	if len(poor) > 0 {
		out = append(out, fmt.Sprintf("directed links expected to carry fewer than %g flows (the least %.2f) and more source ports do not help: %d: %s", minFlows, least, len(poor), abbreviateNames(poor)))
	}
	if len(none) > 0 {
		out = append(out, fmt.Sprintf("directed links on no shortest path between NICs that probe: %d: %s", len(none), abbreviateNames(none)))
	}
	return out
}
