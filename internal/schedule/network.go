package schedule

import (
	"encoding/binary"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/graylink/graylink/internal/fabric"
)

// network is the fabric as numbered vertices and arcs. A vertex represents a switch. Switches without
// NICs that have exactly the same neighbours (the cores of a row, all spines of a two-tier fabric) are
// one vertex, since ECMP treats them alike: the expected load of their links is the same by symmetry.
// An arc represents all links from one vertex to another in one direction.
type network struct {
	vertices int
	tier     []uint8
	name     []string // name of the first switch of a vertex
	size     []int32  // number of switches of a vertex

	first   []int32 // the arcs of vertex v are first[v] up to first[v+1]
	to      []int32
	arcTier []uint8   // tier of the arc's cables, at least those of both vertices
	weight  []float64 // number of next hops in the arc, which divide a vertex's load among its arcs
	links   []int32   // number of cables of the arc
	rev     []int32   // the same arc in the other direction
	least   []float64 // the least share of the arc's load that a cable has

	cables []cable // links between switches, in the topology's order
	access []int32 // links to NICs, as indexes of the topology's links
	comp   []int32 // component by vertex

	nics    []nic // sorted by identifier
	nicByID map[string]int32
}

// cable is a link between two switches, as the arcs see it.
type cable struct {
	link  int32 // index in the topology's links
	a, b  int32 // switches, in the order of the link's ends
	arc   int32 // from a to b
	share float64
}

// nic is a NIC with its attributes for the schedule.
type nic struct {
	id, node, plane string
	rail            int32 // -1 if there is none
	leaf            int32 // vertex, or -1 if the NIC has no link
	hash            uint64
	live            bool // it has a link and an agent
	group           int32
}

func newNetwork(g *fabric.Graph, absent map[string]bool) *network {
	t := g.Topo
	order := make([]int32, len(t.Switches))
	for i := range order {
		order[i] = int32(i)
	}
	sort.Slice(order, func(a, b int) bool { return t.Switches[order[a]].Name < t.Switches[order[b]].Name })
	byName := make(map[string]int32, len(order))
	for i, o := range order {
		byName[t.Switches[o].Name] = int32(i)
	}
	n := &network{}
	n.indexNICs(t, absent)
	n.plugIn(t, byName)
	hops := n.groupCables(g)
	class := n.mergeSwitches(t, order, hops)
	n.connectVertices(hops, class)
	for i := range n.nics {
		if l := n.nics[i].leaf; l >= 0 {
			n.nics[i].leaf = class[l]
			if n.nics[i].plane == "" {
				n.nics[i].plane = t.Switches[order[l]].Plane
			}
		}
	}
	n.findComponents()
	return n
}

func (n *network) indexNICs(t *fabric.Topology, absent map[string]bool) {
	for i := range t.Nodes {
		for _, x := range t.Nodes[i].NICs {
			rail := int32(-1)
			if x.Rail != nil {
				rail = int32(*x.Rail)
			}
			id := x.ID()
			n.nics = append(n.nics, nic{id: id, node: t.Nodes[i].Name, plane: x.Plane, rail: rail, leaf: -1, hash: hashName(id), live: !absent[t.Nodes[i].Name], group: -1})
		}
	}
	sort.Slice(n.nics, func(a, b int) bool { return n.nics[a].id < n.nics[b].id })
	n.nicByID = make(map[string]int32, len(n.nics))
	for i := range n.nics {
		n.nicByID[n.nics[i].id] = int32(i)
	}
}

// plugIn assigns the links: leaves to NICs, and switches to cables.
func (n *network) plugIn(t *fabric.Topology, byName map[string]int32) {
	for i := range t.Links {
		l := &t.Links[i]
		swA, _, isA := fabric.SplitPort(l.A)
		swB, _, isB := fabric.SplitPort(l.B)
		switch {
		case isA && isB:
			n.cables = append(n.cables, cable{link: int32(i), a: byName[swA], b: byName[swB], arc: -1})
		case isA || isB:
			end, sw := l.A, swB
			if isA {
				end, sw = l.B, swA
			}
			if x, ok := n.nicByID[end]; ok {
				n.nics[x].leaf = byName[sw]
				n.access = append(n.access, int32(i))
			}
		}
	}
	for i := range n.nics {
		n.nics[i].live = n.nics[i].live && n.nics[i].leaf >= 0
	}
}

// cableGroup is the set of all cables between two switches.
type cableGroup struct {
	a, b   int32
	tier   uint8
	weight float64 // number of next hops: a LAG is one, independent of the number of its cables
	cables []int32 // indexes in network.cables
}

func (n *network) groupCables(g *fabric.Graph) []cableGroup {
	t := g.Topo
	byPair := map[uint64]int32{}
	var out []cableGroup
	for i := range n.cables {
		c := &n.cables[i]
		key := uint64(min(c.a, c.b))<<32 | uint64(max(c.a, c.b))
		at, ok := byPair[key]
		if !ok {
			at = int32(len(out))
			byPair[key] = at
			out = append(out, cableGroup{a: min(c.a, c.b), b: max(c.a, c.b), tier: uint8(g.LinkTier(&t.Links[c.link]))})
		}
		out[at].cables = append(out[at].cables, int32(i))
	}
	for i := range out {
		h := &out[i]
		lags := map[string]int{}
		for _, c := range h.cables {
			if lag := t.Links[n.cables[c].link].LAG; lag != "" {
				lags[lag]++
			} else {
				h.weight++
			}
		}
		h.weight += float64(len(lags))
		for _, c := range h.cables {
			n.cables[c].share = 1 / h.weight
			if lag := t.Links[n.cables[c].link].LAG; lag != "" {
				n.cables[c].share /= float64(lags[lag])
			}
		}
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].a < out[j].a || out[i].a == out[j].a && out[i].b < out[j].b
	})
	return out
}

// mergeSwitches returns the vertex of every switch.
func (n *network) mergeSwitches(t *fabric.Topology, order []int32, hops []cableGroup) []int32 {
	hasNIC := make([]bool, len(order))
	for i := range n.nics {
		if l := n.nics[i].leaf; l >= 0 {
			hasNIC[l] = true
		}
	}
	keys := make([][]byte, len(order))
	for _, h := range hops {
		plain := int(h.weight) == len(h.cables)
		for _, e := range [2][2]int32{{h.a, h.b}, {h.b, h.a}} {
			if !plain {
				hasNIC[e[0]] = true // the shares of LAG members differ, so that such a switch has a vertex of its own
			}
			keys[e[0]] = binary.AppendUvarint(keys[e[0]], uint64(e[1]))
			keys[e[0]] = binary.AppendUvarint(keys[e[0]], uint64(h.weight))
		}
	}
	class := make([]int32, len(order))
	byKey := map[string]int32{}
	for i, o := range order {
		sw := &t.Switches[o]
		tier := sw.Tier
		if tier == 0 {
			tier = sw.Role.DefaultTier()
		}
		if !hasNIC[i] && len(keys[i]) > 0 {
			key := string(append(keys[i], byte(tier)))
			if v, ok := byKey[key]; ok {
				class[i] = v
				n.size[v]++
				continue
			}
			byKey[key] = int32(len(n.tier))
		}
		class[i] = int32(len(n.tier))
		n.tier = append(n.tier, uint8(tier))
		n.name = append(n.name, sw.Name)
		n.size = append(n.size, 1)
	}
	n.vertices = len(n.tier)
	return class
}

// connectVertices creates the arcs.
func (n *network) connectVertices(hops []cableGroup, class []int32) {
	type between struct {
		from, to  int32
		tier      uint8
		pairs     int32 // number of pairs of switches
		weight    float64
		links     int32
		leastFrom float64
		hops      []int32
	}
	at := map[uint64]int32{}
	var arcs []between
	for i := range hops {
		h := &hops[i]
		a, b := class[h.a], class[h.b]
		for _, e := range [2][2]int32{{a, b}, {b, a}} {
			key := uint64(e[0])<<32 | uint64(e[1])
			k, ok := at[key]
			if !ok {
				k = int32(len(arcs))
				at[key] = k
				arcs = append(arcs, between{from: e[0], to: e[1], tier: h.tier, leastFrom: 1})
			}
			arcs[k].pairs++
			arcs[k].weight += h.weight
			arcs[k].links += int32(len(h.cables))
			arcs[k].hops = append(arcs[k].hops, int32(i))
			for _, c := range h.cables {
				arcs[k].leastFrom = min(arcs[k].leastFrom, n.cables[c].share)
			}
		}
	}
	sort.Slice(arcs, func(i, j int) bool {
		return arcs[i].from < arcs[j].from || arcs[i].from == arcs[j].from && arcs[i].to < arcs[j].to
	})
	n.first = make([]int32, n.vertices+1)
	for i := range arcs {
		a := &arcs[i]
		at[uint64(a.from)<<32|uint64(a.to)] = int32(i)
		n.first[a.from+1]++
		n.to = append(n.to, a.to)
		n.arcTier = append(n.arcTier, a.tier)
		n.weight = append(n.weight, a.weight)
		n.links = append(n.links, a.links)
		n.least = append(n.least, a.leastFrom/float64(a.pairs))
	}
	for v := range n.vertices {
		n.first[v+1] += n.first[v]
	}
	n.rev = make([]int32, len(arcs))
	for i := range arcs {
		a := &arcs[i]
		n.rev[i] = at[uint64(a.to)<<32|uint64(a.from)]
		for _, h := range a.hops {
			for _, c := range hops[h].cables {
				if cb := &n.cables[c]; cb.arc < 0 && class[cb.a] == a.from {
					cb.arc = int32(i)
					cb.share /= float64(a.pairs)
				}
			}
		}
	}
}

// findComponents numbers the connected components in the order of the name of their first switch.
func (n *network) findComponents() {
	n.comp = n.joinUpTo(255)
}

// joinUpTo returns the part of the network of every vertex when only arcs of at most the given tier
// join vertices. Parts are numbered by their first vertex.
func (n *network) joinUpTo(tier uint8) []int32 {
	part := make([]int32, n.vertices)
	for i := range part {
		part[i] = -1
	}
	var stack []int32
	parts := int32(0)
	for v := range int32(n.vertices) {
		if part[v] >= 0 {
			continue
		}
		part[v] = parts
		stack = append(stack[:0], v)
		for len(stack) > 0 {
			u := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			for a := n.first[u]; a < n.first[u+1]; a++ {
				if w := n.to[a]; part[w] < 0 && n.arcTier[a] <= tier {
					part[w] = parts
					stack = append(stack, w)
				}
			}
		}
		parts++
	}
	return part
}

// walk has the working memory of searches through the network.
type walk struct {
	n           *network
	dist        []int32 // number of links to the goal, or -1 if it is not reached
	highestTier []uint8 // highest tier of arcs on shortest paths to the goal
	order       []int32 // vertices by distance
	load        []float64
	best        []float64
}

func (n *network) newWalk() *walk {
	return &walk{n: n, dist: make([]int32, n.vertices), highestTier: make([]uint8, n.vertices), order: make([]int32, 0, n.vertices),
		load: make([]float64, n.vertices), best: make([]float64, n.vertices)}
}

// searchToward computes every vertex's distance and highest tier to the goal.
func (w *walk) searchToward(goal int32) {
	n := w.n
	for i := range w.dist {
		w.dist[i] = -1
	}
	w.dist[goal], w.highestTier[goal] = 0, n.tier[goal]
	w.order = append(w.order[:0], goal)
	for i := 0; i < len(w.order); i++ {
		u := w.order[i]
		d, h := w.dist[u]+1, w.highestTier[u]
		for a := n.first[u]; a < n.first[u+1]; a++ {
			v, h := n.to[a], max(h, n.arcTier[a])
			switch w.dist[v] {
			case -1:
				w.dist[v], w.highestTier[v] = d, h
				w.order = append(w.order, v)
			case d:
				w.highestTier[v] = max(w.highestTier[v], h)
			}
		}
	}
}

// spreadLoad moves the load in w.load toward the goal, in equal parts per next hop, adds the load of
// every arc to out, and clears w.load.
func (w *walk) spreadLoad(out []float64) {
	n := w.n
	for i := len(w.order) - 1; i > 0; i-- {
		u := w.order[i]
		l := w.load[u]
		if l == 0 {
			continue
		}
		w.load[u] = 0
		d := w.dist[u] - 1
		total := 0.0
		for a := n.first[u]; a < n.first[u+1]; a++ {
			if w.dist[n.to[a]] == d {
				total += n.weight[a]
			}
		}
		for a := n.first[u]; a < n.first[u+1]; a++ {
			if v := n.to[a]; w.dist[v] == d {
				x := l * n.weight[a] / total
				out[a] += x
				w.load[v] += x
			}
		}
	}
	w.load[w.order[0]] = 0
}

// maxOnPaths sets w.best to the greatest value of any arc on a shortest path from each vertex to the
// goal.
func (w *walk) maxOnPaths(value []float64) {
	n := w.n
	w.best[w.order[0]] = 0
	for _, u := range w.order[1:] {
		d, best := w.dist[u]-1, 0.0
		for a := n.first[u]; a < n.first[u+1]; a++ {
			if v := n.to[a]; w.dist[v] == d {
				best = max(best, value[a], w.best[v])
			}
		}
		w.best[u] = best
	}
}

// chunks is the number of parts of work over all leaves. It is fixed, so that sums of floating-point
// numbers do not depend on the machine.
const chunks = 8

// inChunks calls work for the parts of [0,n) in parallel, and waits for all.
func (n *network) inChunks(count int, work func(chunk, from, to int, w *walk)) {
	jobs := make(chan int, chunks)
	for i := range chunks {
		jobs <- i
	}
	close(jobs)
	var wg sync.WaitGroup
	for range min(chunks, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			w := n.newWalk()
			for i := range jobs {
				work(i, count*i/chunks, count*(i+1)/chunks, w)
			}
		})
	}
	wg.Wait()
}

// hashName returns the 64-bit FNV-1a hash of a name after mixing. It decides about schedules and must
// not change between versions.
func hashName(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mixHash(h)
}

// mixHash returns the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
func mixHash(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hashToUnit maps a hash to [0,1).
func hashToUnit(h uint64) float64 { return float64(h>>11) / (1 << 53) }

// abbreviateNames returns the first names of a list, and the number of the others.
func abbreviateNames(names []string) string {
	slices.Sort(names)
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:most], ", ") + " and " + strconv.Itoa(len(names)-most) + " more"
}
