package schedule_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
)

// fabricsTried is the number of random fabrics for every property.
const fabricsTried = 150

// randomFabric returns a Clos fabric of two or three tiers with the irregularities of real ones: nodes
// that are missing or silent, thin leaves, cut cables, LAGs, rails.
func randomFabric(seed uint64) (*fabric.Topology, schedule.Options) {
	r := rand.New(rand.NewPCG(seed, 7))
	o := clos.Options{
		Tiers: 2 + r.IntN(2), Planes: 1 + r.IntN(4), Pods: 1 + r.IntN(4), LeavesPerPod: 1 + r.IntN(5), SpinesPerPod: 1 + r.IntN(4),
		CoresPerRow: 1 + r.IntN(3), NICsPerLeaf: 1 + r.IntN(8), Parallel: 1 + r.IntN(2), RailOptimised: r.IntN(2) == 0,
	}
	o.NICsPerNode = o.Planes * (1 + r.IntN(2))
	if o.RailOptimised && o.LeavesPerPod%2 == 1 {
		o.LeavesPerPod++
	}
	o.RailOnly = o.RailOptimised && o.Tiers == 2 && r.IntN(3) == 0
	return makeIrregular(r, clos.NewTopology(o), o.Planes)
}

// randomDragonfly returns a Dragonfly+ with the same irregularities.
func randomDragonfly(seed uint64) (*fabric.Topology, schedule.Options) {
	r := rand.New(rand.NewPCG(seed, 8))
	o := dragonfly.Options{Planes: 1 + r.IntN(2), Groups: 2 + r.IntN(5), LeavesPerGroup: 1 + r.IntN(4), SpinesPerGroup: 1 + r.IntN(4),
		NICsPerLeaf: 1 + r.IntN(6), GlobalPerPair: 1 + r.IntN(3), Parallel: 1 + r.IntN(2)}
	o.NICsPerNode = o.Planes * (1 + r.IntN(2))
	return makeIrregular(r, dragonfly.NewTopology(o), 1)
}

// makeIrregular removes nodes and cables, makes nodes silent, joins planes by a stray cable, and makes LAGs.
func makeIrregular(r *rand.Rand, t *fabric.Topology, planes int) (*fabric.Topology, schedule.Options) {
	opt := schedule.Options{Absent: map[string]bool{}}
	missing := []float64{0, 0, 0.1, 0.5}[r.IntN(4)]
	cut := []float64{0, 0, 0, 0.05}[r.IntN(4)]
	gone := map[string]bool{}
	t.Nodes = slices.DeleteFunc(t.Nodes, func(n fabric.Node) bool {
		if r.Float64() < missing {
			gone[n.Name] = true
		} else if r.Float64() < missing/4 {
			opt.Absent[n.Name] = true
		}
		return gone[n.Name]
	})
	t.Links = slices.DeleteFunc(t.Links, func(l fabric.Link) bool {
		return gone[fabric.OwnerOf(l.A)] || r.Float64() < cut
	})
	if planes > 1 && r.IntN(4) == 0 {
		t.Links = append(t.Links, fabric.Link{A: "a-p1-leaf1:stray", B: "b-p1-spine1:stray"}) // between planes
	}
	if r.IntN(4) == 0 {
		for i := range t.Links {
			if l := &t.Links[i]; !l.IsAccess() && r.IntN(2) == 0 {
				l.LAG = "po-" + fabric.OwnerOf(l.A) + "-" + fabric.OwnerOf(l.B)
			}
		}
	}
	return t, opt
}

// nicOf is a test's view of a NIC, computed without the package.
type nicOf struct {
	node, leaf, plane string
	live              bool
	component         string
}

type world struct {
	g    *fabric.Graph
	nics map[string]nicOf
	out  map[string]map[string]int // flows of class 0, src -> dst
	in   map[string]map[string]int
	s    *schedule.Schedule
}

func newWorld(t testing.TB, topo *fabric.Topology, o schedule.Options) *world {
	t.Helper()
	w := &world{g: fabric.NewGraph(topo), nics: map[string]nicOf{}, out: map[string]map[string]int{}, in: map[string]map[string]int{}}
	s, err := schedule.Make(w.g, o)
	if err != nil {
		t.Fatal(err)
	}
	w.s = s
	component := map[string]string{}
	for _, sw := range topo.Switches {
		if component[sw.Name] == "" {
			for other := range w.g.SwitchDistances(sw.Name) {
				component[other] = sw.Name
			}
		}
	}
	for _, id := range w.g.NICIDs() {
		leaf, _ := w.g.LeafOf(id)
		n := w.g.NIC(id)
		w.nics[id] = nicOf{node: n.Node, leaf: leaf, plane: n.Plane, live: leaf != "" && !o.Absent[n.Node], component: component[leaf]}
		w.out[id], w.in[id] = map[string]int{}, map[string]int{}
	}
	for _, e := range s.Edges {
		if e.Class == 0 {
			w.out[s.NICs[e.Src]][s.NICs[e.Dst]]++
			w.in[s.NICs[e.Dst]][s.NICs[e.Src]]++
		}
	}
	return w
}

// mates returns the NICs that id may probe.
func (w *world) mates(id string) (mates []string, otherLeaf bool) {
	me := w.nics[id]
	own := []string{}
	for other, n := range w.nics {
		if other == id || !n.live || !me.live || n.component != me.component || n.plane != me.plane {
			continue
		}
		if n.node == me.node {
			own = append(own, other)
			continue
		}
		mates = append(mates, other)
		otherLeaf = otherLeaf || n.leaf != me.leaf
	}
	if len(mates) == 0 {
		mates = own
		for _, o := range own {
			otherLeaf = otherLeaf || w.nics[o].leaf != me.leaf
		}
	}
	return mates, otherLeaf
}

func forRandomFabrics(t *testing.T, check func(t *testing.T, w *world, o schedule.Options)) {
	tried := uint64(fabricsTried)
	if testing.Short() {
		tried /= 3
	}
	for seed := range tried {
		topo, o := randomFabric(seed)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { check(t, newWorld(t, topo, o), o) })
	}
	for seed := range tried / 5 {
		topo, o := randomDragonfly(seed)
		t.Run(fmt.Sprintf("dragonfly-%d", seed), func(t *testing.T) { check(t, newWorld(t, topo, o), o) })
	}
}

func has(findings []string, part string) bool {
	return slices.ContainsFunc(findings, func(f string) bool { return strings.Contains(f, part) })
}

func TestMinPeers(t *testing.T) {
	forRandomFabrics(t, func(t *testing.T, w *world, _ schedule.Options) {
		k := schedule.DefaultOptions().MinPeers
		short := false
		for id, n := range w.nics {
			mates, otherLeaf := w.mates(id)
			want := min(k, len(mates))
			short = short || n.live && len(mates) > 0 && len(mates) < k
			if len(w.out[id]) < want || len(w.in[id]) < want {
				t.Errorf("%s probes %d and is probed by %d peers, want %d of %d", id, len(w.out[id]), len(w.in[id]), want, len(mates))
			}
			across := false
			for _, peers := range []map[string]int{w.out[id], w.in[id]} {
				for p := range peers {
					across = across || w.nics[p].leaf != n.leaf
				}
			}
			if otherLeaf && !across {
				t.Errorf("%s has no edge across leaves", id)
			}
		}
		if short != has(w.s.Findings, "NICs with fewer than 3 peers") {
			t.Errorf("some NIC lacks peers: %v; findings %q", short, w.s.Findings)
		}
	})
}

// TestMinFlows computes the expected flows over all shortest paths, as fabric.Graph lists them, by
// another method than the package.
func TestMinFlows(t *testing.T) {
	forRandomFabrics(t, func(t *testing.T, w *world, _ schedule.Options) {
		flows, most := bruteFlows(w)
		cov := w.s.ExpectedFlows(w.g)
		poor, none := 0, 0
		for _, l := range cov.Links {
			if got := flows[l.Direction]; math.Abs(got-l.Flows) > 1e-6*(1+got) {
				t.Errorf("%s: %g flows are expected, ExpectedFlows has %g", l.Direction, got, l.Flows)
			}
			switch {
			case l.Tier == 1:
			case l.Flows == 0:
				none++
			case l.Flows < 22-1e-6:
				poor++
				if most[l.Direction] >= 22 {
					t.Errorf("%s: %g flows are expected, and source ports could give %g", l.Direction, l.Flows, most[l.Direction])
				}
			}
		}
		if poor > 0 && !has(w.s.Findings, fmt.Sprintf("more source ports do not help: %d: ", poor)) {
			t.Errorf("%d links have too few flows; findings %q", poor, w.s.Findings)
		}
		if none > 0 && !has(w.s.Findings, fmt.Sprintf("directed links on no shortest path between NICs that probe: %d: ", none)) {
			t.Errorf("%d links have no flow; findings %q", none, w.s.Findings)
		}
		// A link that some pair could cross has flows.
		if none > 0 {
			could := map[fabric.Direction]bool{}
			seen := map[[2]string]bool{}
			for id := range w.nics {
				mates, _ := w.mates(id)
				for _, m := range mates {
					if pair := [2]string{w.nics[id].leaf, w.nics[m].leaf}; seen[pair] {
						continue
					} else {
						seen[pair] = true
					}
					for _, p := range w.g.ShortestPaths(id, m, 1<<12) {
						for _, d := range p.LinkDirections(id, m) {
							could[d] = true
						}
					}
				}
			}
			for _, l := range cov.Links {
				if l.Tier > 1 && l.Flows == 0 && could[l.Direction] {
					t.Errorf("%s has no flow, and NICs to probe over it", l.Direction)
				}
			}
		}
	})
}

// bruteFlows sums the odds of every shortest path of every edge: at each switch the reciprocal of the
// number of next hops on shortest paths. Members of a LAG share one. most is the load of each link if
// every pair had all source ports.
func bruteFlows(w *world) (flows, most map[fabric.Direction]float64) {
	flows, most = map[fabric.Direction]float64{}, map[fabric.Direction]float64{}
	memo := map[[2]string]map[fabric.Direction]float64{}
	odds := func(src, dst string) map[fabric.Direction]float64 {
		goal, _ := w.g.LeafOf(dst)
		start, _ := w.g.LeafOf(src)
		if m := memo[[2]string{start, goal}]; m != nil {
			return m
		}
		m := map[fabric.Direction]float64{}
		memo[[2]string{start, goal}] = m
		dist := w.g.SwitchDistances(goal)
		var walk func(sw string, p float64)
		walk = func(sw string, p float64) {
			hops := map[string][]string{} // next hop: its ends
			for _, end := range w.g.EndsOf(sw) {
				next, _, ok := fabric.SplitPort(w.g.PeerOf(end))
				if d, known := dist[next]; !ok || !known || d != dist[sw]-1 {
					continue
				}
				hop := end
				if lag := w.g.LinkAt(end).LAG; lag != "" {
					hop = next + " " + lag
				}
				hops[hop] = append(hops[hop], end)
			}
			for _, ends := range hops {
				for _, end := range ends {
					q := p / float64(len(hops)) / float64(len(ends))
					m[fabric.Direction{From: end, To: w.g.PeerOf(end)}] += q
					next, _, _ := fabric.SplitPort(w.g.PeerOf(end))
					walk(next, q)
				}
			}
		}
		walk(start, 1)
		return m
	}
	for _, e := range w.s.Edges {
		src, dst := w.s.NICs[e.Src], w.s.NICs[e.Dst]
		for _, way := range [2][2]string{{src, dst}, {dst, src}} {
			from, to := way[0], way[1]
			flows[fabric.Direction{From: from, To: w.g.PeerOf(from)}]++
			flows[fabric.Direction{From: w.g.PeerOf(to), To: to}]++
			for d, p := range odds(from, to) {
				flows[d] += p
				if e.Flow == 0 {
					most[d] += p * fabric.ScheduledFlows
				}
			}
		}
	}
	return flows, most
}

// TestThinLeaf checks that a single NIC, which cannot give eight uplinks their flows with peers alone,
// gets more source ports for its pairs.
func TestThinLeaf(t *testing.T) {
	topo := clos.NewTopology(clos.Options{LeavesPerPod: 40, SpinesPerPod: 8, NICsPerLeaf: 8})
	kept := 0
	topo.Links = slices.DeleteFunc(topo.Links, func(l fabric.Link) bool {
		if l.IsAccess() && fabric.OwnerOf(l.B) == "a-p1-leaf3" {
			kept++
			return kept > 1
		}
		return false
	})
	w := newWorld(t, topo, schedule.Options{})
	for id, n := range w.nics {
		if flows := w.out[id]; n.leaf == "a-p1-leaf3" && (len(flows) > 20 || slices.Max(slices.Collect(maps.Values(flows))) < 2) {
			t.Errorf("%s has these flows to %d peers: %v", id, len(flows), flows)
		}
	}
	for _, tf := range w.s.ExpectedFlows(w.g).Tiers {
		if tf.Tier == 2 && tf.Min < 22-1e-6 {
			t.Errorf("%+v", tf)
		}
	}
}

// TestThinLeaves checks that fan-out stays bounded if all leaves are thin.
func TestThinLeaves(t *testing.T) {
	w := newWorld(t, clos.NewTopology(clos.Options{LeavesPerPod: 60, SpinesPerPod: 16, NICsPerLeaf: 1}), schedule.Options{})
	for id := range w.nics {
		if n := max(len(w.out[id]), len(w.in[id])); n > 20 {
			t.Errorf("%s probes %d and is probed by %d", id, len(w.out[id]), len(w.in[id]))
		}
	}
	if has(w.s.Findings, "give no more") {
		t.Errorf("findings %q", w.s.Findings)
	}
}

// TestHopeless checks that a NIC alone in its pod, which cannot give all links to the cores their
// flows, does not waste its budget.
func TestHopeless(t *testing.T) {
	topo := clos.NewTopology(clos.Options{Tiers: 3, Pods: 4, LeavesPerPod: 4, SpinesPerPod: 8, CoresPerRow: 64, NICsPerLeaf: 16})
	kept := 0
	topo.Links = slices.DeleteFunc(topo.Links, func(l fabric.Link) bool {
		if l.IsAccess() && strings.HasPrefix(l.B, "a-p2-") {
			kept++
			return kept > 1
		}
		return false
	})
	w := newWorld(t, topo, schedule.Options{})
	for id, n := range w.nics {
		if !strings.HasPrefix(n.leaf, "a-p2-") {
			continue
		}
		for dst, flows := range w.out[id] {
			if flows > 8 {
				t.Errorf("%s has %d flows to %s", id, flows, dst)
			}
		}
	}
	if !has(w.s.Findings, "do not help: 1024: ") {
		t.Errorf("findings %q", w.s.Findings)
	}
}

// TestHeavyLeaf checks that if a leaf has most NICs, the few others share them evenly.
func TestHeavyLeaf(t *testing.T) {
	topo := clos.NewTopology(clos.Options{LeavesPerPod: 2, SpinesPerPod: 2, NICsPerLeaf: 30})
	kept := 0
	topo.Links = slices.DeleteFunc(topo.Links, func(l fabric.Link) bool {
		if l.IsAccess() && fabric.OwnerOf(l.B) == "a-p1-leaf2" {
			kept++
			return kept > 3
		}
		return false
	})
	w := newWorld(t, topo, schedule.Options{})
	for id, n := range w.nics {
		across := [2]int{}
		for way, peers := range []map[string]int{w.out[id], w.in[id]} {
			for p := range peers {
				if w.nics[p].leaf != n.leaf {
					across[way]++
				}
			}
		}
		switch {
		case n.leaf == "a-p1-leaf1" && (across[0] < 1 || across[1] < 1):
			t.Errorf("%s probes %d and is probed by %d across leaves", id, across[0], across[1])
		case n.leaf == "a-p1-leaf2" && (across[0] < 10 || across[1] < 10 || across[0] > 16 || across[1] > 16):
			t.Errorf("%s probes %d and is probed by %d of 30 NICs", id, across[0], across[1])
		}
	}
}

// TestRareLinks checks that a spine between two leaves of many gets its flows although fan-out alone
// need not pair the two.
func TestRareLinks(t *testing.T) {
	topo := clos.NewTopology(clos.Options{LeavesPerPod: 40, SpinesPerPod: 2, NICsPerLeaf: 2})
	for i := 1; i < 40; i += 2 {
		name := fmt.Sprintf("extra%d", i)
		topo.Switches = append(topo.Switches, fabric.Switch{Name: name, Role: fabric.Spine})
		for j := i; j < i+2; j++ {
			topo.Links = append(topo.Links, fabric.Link{A: fmt.Sprintf("a-p1-leaf%d:extra", j), B: fmt.Sprintf("%s:dn%d", name, j)})
		}
	}
	w := newWorld(t, topo, schedule.Options{})
	for _, l := range w.s.ExpectedFlows(w.g).Links {
		if l.Flows < 22-1e-6 && l.Tier > 1 {
			t.Errorf("%s: %g flows", l.Direction, l.Flows)
		}
	}
}

// TestTierOfMixedPaths checks that the tier is the highest on any shortest path.
func TestTierOfMixedPaths(t *testing.T) {
	for _, core := range []string{"a-core", "z-core"} {
		topo := clos.NewTopology(clos.Options{LeavesPerPod: 2, SpinesPerPod: 2, NICsPerLeaf: 2})
		topo.Switches = append(topo.Switches, fabric.Switch{Name: core, Role: fabric.Core})
		for i, leaf := range []string{"a-p1-leaf1", "a-p1-leaf2"} {
			topo.Links = append(topo.Links, fabric.Link{A: leaf + ":core", B: fmt.Sprintf("%s:dn%d", core, i)})
		}
		w := newWorld(t, topo, schedule.Options{})
		for _, e := range w.s.Edges {
			if want := w.g.PathTier(w.s.NICs[e.Src], w.s.NICs[e.Dst]); int(e.Tier) != want {
				t.Errorf("%s: %s is of tier %d, want %d", core, w.s.FlowID(e), e.Tier, want)
			}
		}
	}
}

func TestFanOutAndFanIn(t *testing.T) {
	forRandomFabrics(t, func(t *testing.T, w *world, _ schedule.Options) {
		// The promise of Make: one peer or MinPeers under the leaf, 16 a level, MinPeers to mend, and a
		// fair share of a child that outweighs the rest.
		children := []func(string) string{
			func(id string) string { return w.nics[id].leaf },
			func(id string) string { return w.g.Switch(w.nics[id].leaf).PodName() },
		}
		weight := 0
		for _, child := range children {
			size, total := map[string]int{}, map[string]int{}
			for id, n := range w.nics {
				if n.live {
					group := n.component + n.plane
					total[group]++
					size[group+" "+child(id)]++
				}
			}
			most := 0
			for key, s := range size {
				if rest := total[strings.Split(key, " ")[0]] - s; rest > 0 {
					most = max(most, (s+rest-1)/rest)
				}
			}
			weight += 2 * most
		}
		for id := range w.nics {
			if n := max(len(w.out[id]), len(w.in[id])); n > 3+2*16+3+3+weight {
				t.Errorf("%s probes %d and is probed by %d; %d allowed", id, len(w.out[id]), len(w.in[id]), 41+weight)
			}
			for _, n := range w.out[id] {
				if n > fabric.ScheduledFlows {
					t.Errorf("%s has %d flows to one peer", id, n)
				}
			}
		}
	})
}

// regular has fabrics without any irregularity.
var regular = map[string]*fabric.Topology{
	"two tiers":      clos.NewTopology(clos.Options{LeavesPerPod: 16, SpinesPerPod: 8, NICsPerLeaf: 8, NICsPerNode: 1}),
	"two tiers, 2:1": clos.NewTopology(clos.Options{LeavesPerPod: 12, SpinesPerPod: 4, NICsPerLeaf: 8, NICsPerNode: 2}),
	"three tiers":    clos.NewTopology(clos.Options{Tiers: 3, Pods: 8, LeavesPerPod: 8, SpinesPerPod: 8, CoresPerRow: 8, NICsPerLeaf: 8, NICsPerNode: 1}),
	"rails, planes":  clos.NewTopology(clos.Options{Tiers: 3, Planes: 2, Pods: 4, LeavesPerPod: 8, SpinesPerPod: 4, CoresPerRow: 4, NICsPerLeaf: 8, NICsPerNode: 8, RailOptimised: true}),
}

// TestEven checks that in a regular fabric all NICs probe and are probed alike, and the pairs of leaves
// share the flows.
func TestEven(t *testing.T) {
	for name, topo := range regular {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, topo, schedule.Options{})
			least, most := math.MaxInt, 0
			byPair := map[[2]string]float64{}
			perTier := map[uint8]float64{}
			ofLeaf := map[string]string{} // one NIC of every leaf
			for id, n := range w.nics {
				ofLeaf[n.leaf] = id
				least, most = min(least, len(w.out[id]), len(w.in[id])), max(most, len(w.out[id]), len(w.in[id]))
			}
			if most-least > 4 {
				t.Errorf("NICs have %d to %d peers", least, most)
			}
			for _, e := range w.s.Edges {
				if e.Tier > 1 {
					byPair[[2]string{w.nics[w.s.NICs[e.Src]].leaf, w.nics[w.s.NICs[e.Dst]].leaf}]++
					perTier[e.Tier]++
				}
			}
			for tier, total := range perTier {
				pairs, most := 0, 0.0
				for a, x := range ofLeaf {
					for b, y := range ofLeaf {
						if a != b && uint8(w.g.PathTier(x, y)) == tier {
							pairs++
							most = max(most, byPair[[2]string{a, b}])
						}
					}
				}
				mean := total / float64(pairs)
				t.Logf("tier %d: %.2f flows per pair of leaves, the most %.0f", tier, mean, most)
				if most > 2*mean+5*math.Sqrt(mean)+2 {
					t.Errorf("tier %d: a pair of leaves has %.0f flows, the mean is %.2f", tier, most, mean)
				}
			}
			for _, tf := range w.s.ExpectedFlows(w.g).Tiers {
				if tf.Tier > 1 && tf.Min < 0.9*tf.Mean {
					t.Errorf("tier %d: links carry %.1f at least and %.1f on average", tf.Tier, tf.Min, tf.Mean)
				}
			}
		})
	}
}

// TestDragonfly checks that a Dragonfly+ of 16 groups has the flows of a Clos with as many NICs: over every global link as
// over a link to a core, in both directions, and with no more peers of a NIC. It has explanations as a Clos has.
func TestDragonfly(t *testing.T) {
	like := newWorld(t, clos.NewTopology(clos.Options{Tiers: 3, Pods: 16, LeavesPerPod: 8, SpinesPerPod: 8, CoresPerRow: 8, NICsPerLeaf: 8}), schedule.Options{})
	w := newWorld(t, dragonfly.NewTopology(dragonfly.Balanced(16, 16)), schedule.Options{})
	if len(w.s.Findings) > 0 {
		t.Errorf("findings %q", w.s.Findings)
	}
	least := map[int]float64{}
	for _, tf := range like.s.ExpectedFlows(like.g).Tiers {
		least[tf.Tier] = math.Min(tf.Min, 22)
	}
	for _, tf := range w.s.ExpectedFlows(w.g).Tiers {
		if tf.Tier > 1 && (tf.Min < least[tf.Tier]-1e-6 || tf.Mean > 1.25*least[tf.Tier] || tf.Tier == 3 && tf.Links != 2*16*15/2*4) {
			t.Errorf("%+v; a Clos has at least %.2f", tf, least[tf.Tier])
		}
	}
	if got, most := len(w.s.Edges), len(like.s.Edges)*11/10; got > most {
		t.Errorf("%d edges, and the Clos has %d", got, len(like.s.Edges))
	}
	for id := range w.nics {
		if n := max(len(w.out[id]), len(w.in[id])); n > 3+16 {
			t.Errorf("%s probes %d and is probed by %d", id, len(w.out[id]), len(w.in[id]))
		}
	}
	global := w.g.Topo.Links[slices.IndexFunc(w.g.Topo.Links, func(l fabric.Link) bool { return w.g.IsGlobal(&l) })]
	for _, d := range []fabric.Direction{{From: global.A, To: global.B}, {From: global.B, To: global.A}} {
		crossing, err := w.s.CrossingFlows(w.g, d)
		sum := 0.0
		for _, e := range crossing {
			sum += e.Odds
			if a, b := e.Edge.Endpoints(); w.g.PathTier(a, b) != 3 {
				t.Errorf("%s crosses the global link %s", e.Edge, d)
			}
		}
		if err != nil || sum < 22-1e-6 {
			t.Errorf("%s: %g flows are explained (%v)", d, sum, err)
		}
	}
}

func TestBudget(t *testing.T) {
	for seed := range uint64(fabricsTried) {
		topo, o := randomFabric(seed)
		o.Budget = []float64{10000, 1000, 137}[seed%3]
		w := newWorld(t, topo, o)
		rate := map[string]float64{}
		cadence := map[string]map[uint8]time.Duration{}
		for _, e := range w.s.Edges {
			node := w.nics[w.s.NICs[e.Src]].node
			rate[node] += 1 / e.Cadence.Seconds()
			if cadence[node] == nil {
				cadence[node] = map[uint8]time.Duration{}
			}
			if was := cadence[node][e.Tier]; was != 0 && was != e.Cadence {
				t.Errorf("seed %d: %s probes tier %d every %v and every %v", seed, node, e.Tier, was, e.Cadence)
			}
			cadence[node][e.Tier] = e.Cadence
			if e.Cadence <= 0 || e.Cadence%(10*time.Millisecond) != 0 {
				t.Fatalf("seed %d: cadence %v", seed, e.Cadence)
			}
		}
		thinned := false
		for node, r := range rate {
			if r > o.Budget*(1+1e-9) {
				t.Errorf("seed %d: %s sends %.1f probes/s of %g", seed, node, r, o.Budget)
			}
			last := time.Duration(0)
			for _, tier := range slices.Sorted(maps.Keys(cadence[node])) {
				if cadence[node][tier] < last {
					t.Errorf("seed %d: %s probes tier %d oftener than a nearer one", seed, node, tier)
				}
				last = cadence[node][tier]
				thinned = thinned || last > 10*time.Millisecond
			}
		}
		if thinned != has(w.s.Findings, "budget: ") {
			t.Errorf("seed %d: thinned %v, findings %q", seed, thinned, w.s.Findings)
		}
	}
}

func TestPlanesRailsAndOwnNode(t *testing.T) {
	forRandomFabrics(t, func(t *testing.T, w *world, _ schedule.Options) {
		for src, peers := range w.out {
			mates, _ := w.mates(src)
			for dst := range peers {
				if !slices.Contains(mates, dst) {
					t.Errorf("%s probes %s", src, dst)
				}
			}
		}
		tiers := map[[2]string]int{}
		for _, e := range w.s.Edges {
			src, dst := w.s.NICs[e.Src], w.s.NICs[e.Dst]
			pair := [2]string{w.nics[src].leaf, w.nics[dst].leaf}
			if tiers[pair] == 0 {
				tiers[pair] = w.g.PathTier(src, dst)
			}
			want := tiers[pair]
			if pair[0] == pair[1] {
				want = 1
			}
			if int(e.Tier) != want {
				t.Fatalf("%s is of tier %d, want %d", w.s.FlowID(e), e.Tier, want)
			}
		}
	})
	// If leaves have one rail each and other pods have it too, at least half of a NIC's peers there are
	// of its rail.
	w := newWorld(t, clos.NewTopology(clos.Options{Tiers: 3, Pods: 6, LeavesPerPod: 4, SpinesPerPod: 4, CoresPerRow: 4, NICsPerLeaf: 8, NICsPerNode: 4, RailOptimised: true}), schedule.Options{})
	same, all := 0, 0
	for src, peers := range w.out {
		mine, far := 0, 0
		for dst := range peers {
			if w.g.PathTier(src, dst) == 3 {
				far++
				if *w.g.NIC(src).Rail == *w.g.NIC(dst).Rail {
					mine++
				}
			}
		}
		same, all = same+mine, all+far
		if mine < 2 {
			t.Errorf("%s has %d of %d peers across pods on its rail", src, mine, far)
		}
	}
	if 2*same < all {
		t.Errorf("%d of %d peers across pods are on the own rail", same, all)
	}
}

func edgeSet(s *schedule.Schedule) map[fabric.Flow]bool {
	m := map[fabric.Flow]bool{}
	for _, e := range s.Edges {
		m[s.FlowID(e)] = true
	}
	return m
}

// TestStability checks that a change affects only edges that touch the changed part, and about as many
// others.
func TestStability(t *testing.T) {
	base := clos.Options{Tiers: 3, Pods: 4, LeavesPerPod: 8, SpinesPerPod: 8, CoresPerRow: 8, NICsPerLeaf: 8, NICsPerNode: 2, Planes: 2}
	two := clos.Options{Tiers: 2, LeavesPerPod: 24, SpinesPerPod: 8, NICsPerLeaf: 8, NICsPerNode: 1}
	for name, build := range map[string]func() *fabric.Topology{
		"three tiers": func() *fabric.Topology { return clos.NewTopology(base) },
		"two tiers":   func() *fabric.Topology { return clos.NewTopology(two) },
		"dragonfly":   func() *fabric.Topology { return dragonfly.NewTopology(dragonfly.Balanced(8, 9)) },
	} {
		topo := build()
		before := newWorld(t, topo, schedule.Options{})
		node := topo.Nodes[len(topo.Nodes)/3].Name
		leaf := before.nics[topo.Nodes[0].NICs[0].ID()].leaf

		gone := build()
		gone.Nodes = slices.DeleteFunc(gone.Nodes, func(n fabric.Node) bool { return n.Name == node })
		gone.Links = slices.DeleteFunc(gone.Links, func(l fabric.Link) bool { return fabric.OwnerOf(l.A) == node || fabric.OwnerOf(l.B) == node })

		bare := build()
		lost := map[string]bool{}
		bare.Switches = slices.DeleteFunc(bare.Switches, func(s fabric.Switch) bool { return s.Name == leaf })
		bare.Links = slices.DeleteFunc(bare.Links, func(l fabric.Link) bool {
			out := fabric.OwnerOf(l.A) == leaf || fabric.OwnerOf(l.B) == leaf
			if out {
				lost[l.A], lost[l.B] = true, true
			}
			return out
		})
		touches := func(id string) bool { return lost[id] || before.nics[id].node == node }
		for what, after := range map[string]*world{
			"a node is silent":  newWorld(t, topo, schedule.Options{Absent: map[string]bool{node: true}}),
			"a node is missing": newWorld(t, gone, schedule.Options{}),
			"a leaf is missing": newWorld(t, bare, schedule.Options{}),
		} {
			near, other := 0, 0
			a, b := edgeSet(before.s), edgeSet(after.s)
			for e := range a {
				if touched := strings.Contains(what, "node") && before.nics[e.Src].node == node || strings.Contains(what, "node") && before.nics[e.Dst].node == node ||
					strings.Contains(what, "leaf") && (touches(e.Src) || touches(e.Dst)); touched {
					near++
				} else if !b[e] {
					other++
				}
			}
			for e := range b {
				if !a[e] {
					other++
				}
			}
			t.Logf("%s, %s: %d edges of %d touch it, %d others changed", name, what, near, len(a), other)
			if other > 3*near {
				t.Errorf("%s, %s: %d other edges changed; %d touch it", name, what, other, near)
			}
		}
	}
}

func TestClasses(t *testing.T) {
	for seed := range uint64(20) {
		topo, o := randomFabric(seed)
		g := fabric.NewGraph(topo)
		one, err := schedule.Make(g, o)
		if err != nil {
			t.Fatal(err)
		}
		o.Classes = []string{"bulk", "control", "storage"}
		three, err := schedule.Make(g, o)
		if err != nil {
			t.Fatal(err)
		}
		if len(three.Edges) != 3*len(one.Edges) {
			t.Fatalf("seed %d: %d edges in one class, %d in three", seed, len(one.Edges), len(three.Edges))
		}
		set := edgeSet(one)
		for _, e := range three.Edges {
			id := three.FlowID(e)
			if id.Number/schedule.FlowsPerClass != int(e.Class) {
				t.Errorf("seed %d: %s is in class %d", seed, id, e.Class)
			}
			id.Number %= schedule.FlowsPerClass
			if !set[id] {
				t.Errorf("seed %d: %s is not in the schedule of one class", seed, id)
			}
		}
	}
}

func TestDeterministic(t *testing.T) {
	for seed := range uint64(30) {
		topo, o := randomFabric(seed)
		a, err := schedule.Make(fabric.NewGraph(topo), o)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(seed, 9))
		other, _ := randomFabric(seed)
		r.Shuffle(len(other.Switches), func(i, j int) {
			other.Switches[i], other.Switches[j] = other.Switches[j], other.Switches[i]
		})
		r.Shuffle(len(other.Nodes), func(i, j int) { other.Nodes[i], other.Nodes[j] = other.Nodes[j], other.Nodes[i] })
		r.Shuffle(len(other.Links), func(i, j int) { other.Links[i], other.Links[j] = other.Links[j], other.Links[i] })
		for i := range other.Links {
			if l := &other.Links[i]; r.IntN(2) == 0 {
				l.A, l.B = l.B, l.A
			}
		}
		b, err := schedule.Make(fabric.NewGraph(other), o)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(a.Edges, b.Edges) || !slices.Equal(a.NICs, b.NICs) || !slices.Equal(a.Findings, b.Findings) || fmt.Sprint(a.Components) != fmt.Sprint(b.Components) {
			t.Errorf("seed %d: the order of the input changes the schedule: %d and %d edges\n%q\n%q", seed, len(a.Edges), len(b.Edges), a.Findings, b.Findings)
		}
		if !slices.IsSortedFunc(a.Edges, func(x, y schedule.Edge) int {
			return slices.Compare([]int32{x.Src, x.Dst, int32(x.Flow)}, []int32{y.Src, y.Dst, int32(y.Flow)})
		}) {
			t.Errorf("seed %d: edges are not sorted", seed)
		}
	}
}

// TestBondsAndStrays checks that members of a bond are NICs of their own, and that a NIC without a
// link, or alone in its component, has a finding and no edge.
func TestBondsAndStrays(t *testing.T) {
	topo := clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 4, NICsPerNode: 2, RailOptimised: true})
	topo.Nodes[0].Bonds = []fabric.Bond{{Name: "bond0", Members: []string{"eth1", "eth2"}}}
	topo.Nodes = append(topo.Nodes, fabric.Node{Name: "stray", NICs: []fabric.NIC{{Node: "stray", Device: "eth1"}, {Node: "stray", Device: "eth2"}}})
	topo.Switches = append(topo.Switches, fabric.Switch{Name: "island", Role: fabric.Leaf})
	topo.Links = append(topo.Links, fabric.Link{A: "stray/eth2", B: "island:dn1"})
	w := newWorld(t, topo, schedule.Options{})
	for _, d := range []string{"eth1", "eth2"} {
		if id := topo.Nodes[0].Name + "/" + d; len(w.out[id]) < 3 || len(w.in[id]) < 3 {
			t.Errorf("the bond's member %s has %d and %d peers", id, len(w.out[id]), len(w.in[id]))
		}
		if len(w.out["stray/"+d])+len(w.in["stray/"+d]) > 0 {
			t.Errorf("stray/%s has edges", d)
		}
	}
	for _, want := range []string{"NICs without a link, and so without edges: 1: stray/eth1", "NICs without a peer in their component and plane: 1: stray/eth2"} {
		if !has(w.s.Findings, want) {
			t.Errorf("%q is missing in %q", want, w.s.Findings)
		}
	}
	if len(w.s.Components) != 2 {
		t.Errorf("components %+v", w.s.Components)
	}
}

func TestMoves(t *testing.T) {
	topo := clos.NewTopology(clos.Options{LeavesPerPod: 2, SpinesPerPod: 2, NICsPerLeaf: 2})
	g := fabric.NewGraph(topo)
	src, dst := topo.Nodes[0].NICs[0].ID(), topo.Nodes[2].NICs[0].ID()
	flows := func(moves ...schedule.Move) []int {
		s, err := schedule.Make(g, schedule.Options{Classes: []string{"a", "b"}, Moves: moves})
		if err != nil {
			t.Fatal(err)
		}
		var out []int
		for _, e := range s.Edges {
			if id := s.FlowID(e); id.Src == src && id.Dst == dst {
				out = append(out, id.Number)
			}
		}
		return out
	}
	base := flows()
	if len(base) < 2 || base[0] != 0 || !slices.Contains(base, 64) {
		t.Fatalf("flows %v", base)
	}
	with := func(from, to int) []int {
		out := slices.Clone(base)
		out[slices.Index(out, from)] = to
		slices.Sort(out)
		return out
	}
	tests := map[string]struct {
		moves []schedule.Move
		want  []int
	}{
		"a move":             {[]schedule.Move{{src, dst, 0, 47}}, with(0, 47)},
		"a chain":            {[]schedule.Move{{src, dst, 0, 47}, {src, dst, 47, 46}}, with(0, 46)},
		"of class 1":         {[]schedule.Move{{src, dst, 64, 111}}, with(64, 111)},
		"onto a temporary":   {[]schedule.Move{{src, dst, 0, 48}, {src, dst, 64, 127}}, base},
		"from nothing":       {[]schedule.Move{{src, dst, 40, 41}}, base},
		"onto another":       {[]schedule.Move{{src, dst, 0, base[1]}}, base},
		"into another class": {[]schedule.Move{{src, dst, 0, 111}}, base},
		"below zero":         {[]schedule.Move{{src, dst, 0, -1}, {src, dst, -1, 3}}, base},
		"no such NIC":        {[]schedule.Move{{"x/y", dst, 0, 40}, {src, "x/y", 0, 40}}, base},
	}
	for name, tt := range tests {
		if got := flows(tt.moves...); !slices.Equal(got, tt.want) {
			t.Errorf("%s: flows %v, want %v", name, got, tt.want)
		}
	}
}

func TestBadOptions(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 2, NICsPerLeaf: 2}))
	for want, o := range map[string]schedule.Options{
		"cadence -1s":             {Cadence: -time.Second},
		"budget -1":               {Budget: -1},
		"min peers -1":            {MinPeers: -1},
		"min flows NaN":           {MinFlows: math.NaN()},
		"fan-out 65":              {FanOut: [3]int{1, 65, 1}},
		"257 classes":             {Classes: make([]string, 257)},
		`class 1 is named "bulk"`: {Classes: []string{"bulk", "bulk"}},
	} {
		if _, err := schedule.Make(g, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestOneLeaf checks that a pair under one leaf has one flow, since all flows there take the same path.
func TestOneLeaf(t *testing.T) {
	for _, nics := range []int{2, 3, 9} {
		w := newWorld(t, clos.NewTopology(clos.Options{LeavesPerPod: 1, NICsPerLeaf: nics}), schedule.Options{})
		for id, peers := range w.out {
			for dst, n := range peers {
				if n != 1 {
					t.Errorf("%d NICs: %s has %d flows to %s", nics, id, n, dst)
				}
			}
			if want := min(3, nics-1); len(peers) < want || len(peers) > want+1 {
				t.Errorf("%d NICs: %s probes %d peers, want %d", nics, id, len(peers), want)
			}
		}
	}
}
