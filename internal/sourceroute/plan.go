package sourceroute

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/srv6"
)

// MinFlows is how many flows, probes or replies, cross a directed link at least.
const MinFlows = 2

const (
	// maxPaths bounds the paths between two leaves that are compared for each flow.
	maxPaths = 256
	// maxShifts bounds the moves of flows that gain nothing by themselves.
	maxShifts = 512
	// headroom is how much more than with an even spread a link may carry, so that a flow that comes or goes does not move most
	// of the others.
	headroom = 1.25
)

// Choice is the paths of one flow. A flow without paths has none of the fields but Flow and Why.
type Choice struct {
	Flow         fabric.Flow
	Probe, Reply fabric.Path
	ProbeCarrier netip.Addr
	ReplyCarrier netip.Addr
	Detour       bool   // the path is longer than the shortest, since no shortest one crosses a link that needs flows
	Why          string // reason why there are no paths
}

// Link is what a plan has of a directed link between switches.
type Link struct {
	fabric.Direction
	Flows int // probes and replies that cross it
	Pairs int // pairs of NICs that these are between
}

// Uncovered is a link that fewer than MinFlows flows cross, and the reason.
type Uncovered struct {
	Link
	Why string
}

// Plan is the paths of all flows.
type Plan struct {
	Choices   []Choice    // in the order of the flows that were given
	Links     []Link      // between switches, in the order of the topology
	Uncovered []Uncovered // those of them without enough flows
}

// candidate is a way between two leaves and back. The first hop has no In, and the last no Out.
type candidate struct {
	path    fabric.Path
	hash    [2]uint64  // of the path, and of the way back
	carrier netip.Addr // of a probe; that of a reply is of the reverse way
	back    netip.Addr
	links   []int32 // directed links between switches that the probe crosses, and then those that the reply does
}

// planner is the state of one plan.
type planner struct {
	t          *Table
	links      []Link
	number     map[fabric.Direction]int32
	candidates map[[2]string][]candidate
	refused    map[[2]string]error // why two leaves have no candidates
	limits     []int
	flows      []*planned
	pairs      []map[int32]int // flows of each pair of NICs over a link
	use        map[use]int     // flows of a pair by a way
	shifts     int             // moves without a gain
}

// use identifies a way of a pair of NICs: the hash of its path in the direction of the pair.
type use struct {
	pair int32
	way  uint64
}

// planned is a flow of a plan.
type planned struct {
	flow     fabric.Flow
	place    int // among those that were given
	hash     uint64
	leaves   [2]string
	pair     int32 // number of the pair of its NICs
	against  int   // 1 if its probes go from the second NIC of the pair to the first, else 0
	chosen   *candidate
	detoured bool
	moved    bool // without a gain, from one link that lacks flows to another
}

// Choose returns the paths of flows, which are of probes.
func (t *Table) Choose(flows []fabric.Flow) *Plan {
	p := t.newPlanner(flows)
	p.setLimits()
	for _, f := range p.flows {
		if ways := p.candidates[f.leaves]; len(ways) > 0 {
			p.assign(f, p.best(f, ways))
		}
	}
	p.coverLinks(p.waysOver)
	p.coverLinks(p.detoursOver)
	return p.result(len(flows))
}

func (t *Table) newPlanner(flows []fabric.Flow) *planner {
	p := &planner{t: t, number: map[fabric.Direction]int32{}, candidates: map[[2]string][]candidate{}, refused: map[[2]string]error{},
		use: map[use]int{}}
	for _, d := range t.g.LinkDirections() {
		if !fabric.IsNIC(d.From) && !fabric.IsNIC(d.To) {
			p.number[d] = int32(len(p.links))
			p.links = append(p.links, Link{Direction: d})
		}
	}
	p.pairs, p.limits = make([]map[int32]int, len(p.links)), make([]int, len(p.links))
	for i := range p.pairs {
		p.pairs[i] = map[int32]int{}
	}
	numbers := map[[2]string]int32{}
	for i, f := range flows {
		from, _ := t.g.LeafOf(f.Src)
		to, _ := t.g.LeafOf(f.Dst)
		x := &planned{flow: f, place: i, hash: hashOf(f.String()), leaves: [2]string{from, to}}
		pair := [2]string{f.Src, f.Dst}
		if f.Dst < f.Src {
			pair, x.against = [2]string{f.Dst, f.Src}, 1
		}
		number, numbered := numbers[pair]
		if !numbered {
			number = int32(len(numbers))
			numbers[pair] = number
		}
		x.pair = number
		p.flows = append(p.flows, x)
		if _, known := p.candidates[x.leaves]; !known {
			p.candidates[x.leaves], p.refused[x.leaves] = p.waysBetween(f)
		}
	}
	slices.SortFunc(p.flows, func(a, b *planned) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.flow.String(), b.flow.String()))
	})
	return p
}

func hashOf(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return mix(h.Sum64()) // FNV's high bits change little with the last octets
}

// mix spreads the bits of a hash.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

// waysBetween returns the candidates between the leaves of a flow. The error is that of the first path that has no carrier, if
// none has.
func (p *planner) waysBetween(f fabric.Flow) (ways []candidate, why error) {
	paths := p.t.g.ShortestPaths(f.Src, f.Dst, maxPaths)
	if len(paths) == 0 {
		return nil, fmt.Errorf("no path leads from %s to %s", f.Src, f.Dst)
	}
	for _, path := range paths {
		c, err := p.newCandidate(path)
		if err != nil {
			if why == nil {
				why = err
			}
			continue
		}
		ways = append(ways, c)
	}
	if len(ways) > 0 {
		return ways, nil
	}
	return nil, why
}

func (p *planner) newCandidate(path fabric.Path) (c candidate, err error) {
	c.path = slices.Clone(path)
	back := c.path.Reverse()
	if c.carrier, err = p.t.Carrier(c.path); err != nil {
		return c, err
	}
	if c.back, err = p.t.Carrier(back); err != nil {
		return c, err
	}
	for _, way := range []fabric.Path{c.path, back} {
		for i := 1; i < len(way); i++ {
			from := way[i-1].Switch + ":" + way[i-1].Out
			c.links = append(c.links, p.number[fabric.Direction{From: from, To: way[i].Switch + ":" + way[i].In}])
		}
	}
	for i, way := range []fabric.Path{c.path, back} {
		way[0].In, way[len(way)-1].Out = "", ""
		c.hash[i] = hashOf(way.CanonicalKey())
	}
	return c, nil
}

// setLimits sets the number of flows that each link should not exceed.
func (p *planner) setLimits() {
	even := make([]float64, len(p.links))
	for _, f := range p.flows {
		ways := p.candidates[f.leaves]
		for _, c := range ways {
			for _, l := range c.links {
				even[l] += 1 / float64(len(ways))
			}
		}
	}
	for l, n := range even {
		p.limits[l] = int(math.Ceil(n*headroom - 1e-9))
	}
}

// best returns the candidate of a flow that its pair has used least among those within the limits, by the flow's hash where
// several are alike. Where none is within them, it is the one that exceeds them least.
func (p *planner) best(f *planned, ways []candidate) *candidate {
	type rank struct {
		excess float64
		used   int
		hash   uint64
	}
	var best *candidate
	var least rank
	for i := range ways {
		c := &ways[i]
		r := rank{excess: 1, used: p.use[use{f.pair, c.hash[f.against]}], hash: mix(f.hash ^ c.hash[0])}
		for _, l := range c.links {
			r.excess = max(r.excess, float64(p.links[l].Flows+1)/float64(max(1, p.limits[l])))
		}
		if best == nil || cmp.Or(cmp.Compare(r.excess, least.excess), cmp.Compare(r.used, least.used), cmp.Compare(r.hash, least.hash)) < 0 {
			best, least = c, r
		}
	}
	return best
}

// assign gives a flow a candidate instead of the one it has.
func (p *planner) assign(f *planned, c *candidate) {
	if f.chosen != nil {
		p.count(f, -1)
	}
	if f.chosen = c; c != nil {
		p.count(f, 1)
	}
}

// count adds a flow to the links it crosses, or takes it away.
func (p *planner) count(f *planned, by int) {
	p.use[use{f.pair, f.chosen.hash[f.against]}] += by
	for _, l := range f.chosen.links {
		p.links[l].Flows += by
		if p.pairs[l][f.pair] += by; p.pairs[l][f.pair] == 0 {
			delete(p.pairs[l], f.pair)
		}
	}
}

// lacks returns how much a link lacks, with so many flows of so many pairs: first flows and then pairs.
func lacks(flows, pairs int) int {
	return 2*max(0, MinFlows-flows) + max(0, MinFlows-pairs)
}

func (p *planner) lackOf(l int32) int { return lacks(p.links[l].Flows, len(p.pairs[l])) }

// coverLinks moves flows to the links that lack some, as long as the links together lack less by that, or at least no more: what
// lacks is elsewhere then, where another flow may do, and a flow moves once at most without a gain. over lists what flows
// between two leaves can take to cross a link.
func (p *planner) coverLinks(over func(leaves [2]string, l int32) []*candidate) {
	known := map[int32]map[[2]string][]*candidate{}
	for moved := true; moved; {
		moved = false
		for l := range int32(len(p.links)) {
			if p.lackOf(l) == 0 {
				continue
			}
			ways := known[l]
			if ways == nil {
				ways = map[[2]string][]*candidate{}
				for leaves := range p.candidates {
					ways[leaves] = over(leaves, l)
				}
				known[l] = ways
			}
			for p.lackOf(l) > 0 && p.coverLink(l, ways) {
				moved = true
			}
		}
	}
}

// mostGain is what a flow gives a link and its reverse at most: itself, and its pair.
const mostGain = 2 * 3

// coverLink moves one flow to a link: the one by which all links together lack least afterwards, and the first by its hash among
// these. It reports whether there is one.
func (p *planner) coverLink(l int32, ways map[[2]string][]*candidate) bool {
	var flow *planned
	var way *candidate
	gain := -1
	for _, f := range p.flows {
		if f.chosen == nil || len(ways[f.leaves]) == 0 || slices.Contains(f.chosen.links, l) {
			continue
		}
		for _, c := range ways[f.leaves] {
			if g := p.gainOf(f, c); g > gain && (g > 0 || !f.moved && p.shifts < maxShifts) {
				flow, way, gain = f, c, g
			}
		}
		if gain >= mostGain {
			break
		}
	}
	if flow == nil {
		return false
	}
	if gain == 0 {
		flow.moved = true
		p.shifts++
	}
	flow.detoured = len(way.path) > len(p.candidates[flow.leaves][0].path)
	p.assign(flow, way)
	return true
}

// gainOf returns by how much less all links lack if a flow takes another way.
func (p *planner) gainOf(f *planned, c *candidate) (gain int) {
	was := f.chosen
	links := slices.Concat(was.links, c.links)
	slices.Sort(links)
	links = slices.Compact(links)
	for _, l := range links {
		gain += p.lackOf(l)
	}
	p.assign(f, c)
	for _, l := range links {
		gain -= p.lackOf(l)
	}
	p.assign(f, was)
	return gain
}

// waysOver returns the candidates between two leaves that cross a link.
func (p *planner) waysOver(leaves [2]string, l int32) (out []*candidate) {
	ways := p.candidates[leaves]
	for i := range ways {
		if slices.Contains(ways[i].links, l) {
			out = append(out, &ways[i])
		}
	}
	return out
}

// detoursOver returns the shortest way between two leaves that crosses a link, if it has a carrier.
func (p *planner) detoursOver(leaves [2]string, l int32) []*candidate {
	path := p.t.pathOver(leaves[0], leaves[1], p.links[l].Direction)
	if path == nil {
		return nil
	}
	c, err := p.newCandidate(path)
	if err != nil {
		return nil
	}
	return []*candidate{&c}
}

// pathOver returns a path from one leaf to another over a link, by as few switches as that takes, or nil.
func (t *Table) pathOver(from, to string, over fabric.Direction) fabric.Path {
	path, sw, in := t.walk(nil, from, "", fabric.OwnerOf(over.From))
	if sw == "" {
		return nil
	}
	path, sw, in = t.cross(path, over, in)
	if path, sw, in = t.walk(path, sw, in, to); sw == "" {
		return nil
	}
	return append(path, fabric.Hop{Switch: sw, In: in})
}

// walk continues a path from a switch to another by the first link that leads nearer. It returns "" if none does, or if the path
// becomes longer than any carrier.
func (t *Table) walk(p fabric.Path, sw, in, goal string) (_ fabric.Path, at, port string) {
	dist := t.g.SwitchDistances(goal)
	for sw != goal {
		far, known := dist[sw]
		var next fabric.Direction
		for _, end := range t.g.EndsOf(sw) {
			peer := t.g.PeerOf(end)
			if d, ok := dist[fabric.OwnerOf(peer)]; peer != "" && !fabric.IsNIC(peer) && ok && d < far {
				next = fabric.Direction{From: end, To: peer}
				break
			}
		}
		if !known || next.To == "" || len(p) >= srv6.MaxSIDs {
			return nil, "", ""
		}
		p, sw, in = t.cross(p, next, in)
	}
	return p, sw, in
}

// result returns the plan.
func (p *planner) result(flows int) *Plan {
	out := &Plan{Choices: make([]Choice, flows), Links: p.links}
	for _, f := range p.flows {
		c := Choice{Flow: f.flow}
		switch {
		case f.chosen != nil:
			_, in := p.t.g.LeafOf(f.flow.Src)
			_, last := p.t.g.LeafOf(f.flow.Dst)
			c.Probe = slices.Clone(f.chosen.path)
			c.Probe[0].In, c.Probe[len(c.Probe)-1].Out = in, last
			c.Reply, c.Detour = c.Probe.Reverse(), f.detoured
			c.ProbeCarrier, c.ReplyCarrier = f.chosen.carrier, f.chosen.back
		case p.refused[f.leaves] != nil:
			c.Why = p.refused[f.leaves].Error()
		}
		out.Choices[f.place] = c
	}
	for l := range p.links {
		p.links[l].Pairs = len(p.pairs[l])
		if p.links[l].Flows < MinFlows {
			out.Uncovered = append(out.Uncovered, Uncovered{Link: p.links[l], Why: p.whyUncovered(int32(l))})
		}
	}
	return out
}

// whyUncovered returns the reason why a link has too few flows.
func (p *planner) whyUncovered(l int32) string {
	d := p.links[l].Direction
	for _, end := range []string{d.From, d.To} {
		if _, ok := p.t.sids[fabric.OwnerOf(end)]; !ok {
			return fmt.Sprintf("switch %q has no locator", fabric.OwnerOf(end))
		}
	}
	reached := false
	for _, f := range p.flows {
		path := p.t.pathOver(f.leaves[0], f.leaves[1], d)
		if path == nil {
			continue
		}
		reached = true
		if _, err := p.newCandidate(path); err == nil {
			return fmt.Sprintf("there are %d flows in all, and those that could cross it are needed elsewhere", len(p.flows))
		}
	}
	if reached {
		return fmt.Sprintf("paths over it have more than %d identifiers", srv6.MaxSIDs)
	}
	return "no probed pair of NICs has a path over it"
}

// LowerBound returns the least number of flows by which the links that have enough of them could have them: no flow crosses more
// links of one tier, with its replies, than the one that crosses most.
func (p *Plan) LowerBound(g *fabric.Graph) int {
	need, most := map[int]int{}, map[int]int{}
	for _, l := range p.Links {
		if l.Flows >= MinFlows {
			need[g.LinkTier(g.LinkAt(l.From))] += MinFlows
		}
	}
	for i := range p.Choices {
		own := map[int]int{}
		for _, d := range p.Choices[i].crossed() {
			own[g.LinkTier(g.LinkAt(d.From))]++
		}
		for tier, n := range own {
			most[tier] = max(most[tier], n)
		}
	}
	bound := 0
	for tier, n := range need {
		bound = max(bound, (n+most[tier]-1)/most[tier])
	}
	return bound
}

// crossed returns the directed links between switches that a flow and its replies cross.
func (c *Choice) crossed() (out []fabric.Direction) {
	for _, way := range []fabric.Path{c.Probe, c.Reply} {
		if all := way.LinkDirections("", ""); len(all) > 0 {
			out = append(out, all[:len(all)-1]...) // the last one is the NIC's
		}
	}
	return out
}

// Sufficient returns flows of the plan that suffice for what it covers, with their paths: those that cross most links that lack
// some, one after the other.
func (p *Plan) Sufficient() (out []fabric.Flow) {
	need := map[fabric.Direction]int{}
	for _, l := range p.Links {
		need[l.Direction] = min(l.Flows, MinFlows)
	}
	left := make([]*Choice, len(p.Choices))
	for i := range p.Choices {
		left[i] = &p.Choices[i]
	}
	for {
		best, most := -1, 0
		for i, c := range left {
			n := 0
			for _, d := range c.crossed() {
				n += min(need[d], 1)
			}
			if n > most {
				best, most = i, n
			}
		}
		if best < 0 {
			return out
		}
		for _, d := range left[best].crossed() {
			need[d]--
		}
		out = append(out, left[best].Flow)
		left = slices.Delete(left, best, best+1)
	}
}
