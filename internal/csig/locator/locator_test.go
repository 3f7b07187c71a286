package locator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
)

// fatTree returns a k-ary fat tree with k/2 NICs per leaf.
func fatTree(k int) *fabric.Topology {
	return clos.NewTopology(clos.Options{Tiers: 3, Pods: k, LeavesPerPod: k / 2, SpinesPerPod: k / 2, CoresPerRow: k / 2, NICsPerLeaf: k / 2})
}

// fourPlanes returns a fabric of four planes and 4,096 NICs in nodes of eight.
func fourPlanes() *fabric.Topology {
	return clos.NewTopology(clos.Options{Planes: 4, LeavesPerPod: 32, SpinesPerPod: 16, NICsPerLeaf: 32, NICsPerNode: 8, RailOptimised: true})
}

func loadTopology(t testing.TB, file string) *fabric.Topology {
	t.Helper()
	topo, found := fabric.LoadTopology(file)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return topo
}

// randomTopology returns leaves with two NICs each and spines, joined at random in one tier or two, with parallel cables.
func randomTopology(rng *rand.Rand) *fabric.Topology {
	topo := &fabric.Topology{Version: 1}
	switches := 2 + rng.IntN(8)
	ports := map[string]int{}
	plug := func(sw string) string {
		ports[sw]++
		return fmt.Sprintf("%s:p%d", sw, ports[sw])
	}
	for i := range switches {
		name := fmt.Sprintf("s%d", i)
		role := []fabric.Role{fabric.Leaf, fabric.Spine, fabric.Core}[rng.IntN(3)]
		topo.Switches = append(topo.Switches, fabric.Switch{Name: name, Role: role, Tier: rng.IntN(4)})
		if i > 0 {
			topo.Links = append(topo.Links, fabric.Link{A: plug(name), B: plug(fmt.Sprintf("s%d", rng.IntN(i)))})
		}
		if i < 2 || rng.IntN(2) == 0 {
			n := fabric.Node{Name: fmt.Sprintf("h%d", i)}
			for j := range 2 {
				nic := fabric.NIC{Node: n.Name, Device: fmt.Sprintf("eth%d", j)}
				n.NICs = append(n.NICs, nic)
				topo.Links = append(topo.Links, fabric.Link{A: nic.ID(), B: plug(name)})
			}
			topo.Nodes = append(topo.Nodes, n)
		}
	}
	for range rng.IntN(12) {
		if a, b := rng.IntN(switches), rng.IntN(switches); a != b {
			topo.Links = append(topo.Links, fabric.Link{A: plug(fmt.Sprintf("s%d", a)), B: plug(fmt.Sprintf("s%d", b))})
		}
	}
	return topo
}

// oneNICPerLeaf returns two NICs of each leaf, or one where it has one.
func oneNICPerLeaf(g *fabric.Graph) []string {
	count := map[string]int{}
	var out []string
	for _, nic := range g.NICIDs() {
		if leaf, _ := g.LeafOf(nic); leaf != "" && count[leaf] < 2 {
			count[leaf]++
			out = append(out, nic)
		}
	}
	return out
}

// checkPaths checks that no two egress ports of a candidate path have one compact locator, and returns the longest path.
func checkPaths(t *testing.T, name string, g *fabric.Graph, locators map[string]uint16, pairs [][2]string, limit int) (longest int) {
	t.Helper()
	for _, pair := range pairs {
		paths, all := g.CandidatePaths(pair[0], pair[1], limit)
		if !all {
			t.Fatalf("%s: more than %d paths from %s to %s", name, limit, pair[0], pair[1])
		}
		for _, path := range paths {
			seen := map[uint16]string{0: "no port"}
			for _, h := range path {
				port := h.Switch + ":" + h.Out
				l := locators[port]
				if twin, taken := seen[l]; taken || l > 127 {
					t.Fatalf("%s: %s and %s have locator %d on %s", name, twin, port, l, path.CanonicalKey())
				}
				seen[l] = port
			}
			longest = max(longest, len(path))
		}
	}
	return longest
}

func allPairs(nics []string) (out [][2]string) {
	for _, a := range nics {
		for _, b := range nics {
			if a != b {
				out = append(out, [2]string{a, b})
			}
		}
	}
	return out
}

// checkWide checks that every switch port with a cable has a wide locator of its own.
func checkWide(t *testing.T, name string, g *fabric.Graph, a *Assignment) {
	t.Helper()
	seen := map[uint16]bool{0: true}
	for _, p := range a.Ports {
		if seen[p.Wide] || g.LinkAt(p.Port) == nil {
			t.Fatalf("%s: %+v", name, p)
		}
		seen[p.Wide] = true
	}
	ends := 0
	for i := range g.Topo.Switches {
		ends += len(g.EndsOf(g.Topo.Switches[i].Name))
	}
	if len(a.Ports) != ends || len(a.LocatorsOf(csig.Wide)) != ends || len(a.LocatorsOf(csig.Compact)) != ends {
		t.Errorf("%s: %d ports of %d have locators", name, len(a.Ports), ends)
	}
}

// Rules 1, 2 and 5 on all candidate paths of small fabrics. In a Clos, as many codes are needed as a path has ports.
func TestRule2NoTwoPortsOfAPath(t *testing.T) {
	fabrics := map[string]struct {
		topo *fabric.Topology
		need int // 0: as many as the longest path has switches
	}{
		"demo":                {loadTopology(t, "../../../deploy/lab/demo.yaml"), 0},
		"clos3":               {loadTopology(t, "../../lab/testdata/clos3.yaml"), 0},
		"odd":                 {loadTopology(t, "../../lab/testdata/odd.yaml"), 0},
		"fat tree of 4":       {fatTree(4), 0},
		"one leaf":            {clos.NewTopology(clos.Options{NICsPerLeaf: 4}), 0},
		"parallel cables":     {clos.NewTopology(clos.Options{LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 2, Parallel: 3}), 0},
		"rail only":           {clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 4, NICsPerNode: 2, RailOptimised: true, RailOnly: true}), 0},
		"minimal Dragonfly+":  {dragonfly.NewTopology(dragonfly.Options{Groups: 5, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 2}), 10},
		"adaptive Dragonfly+": {dragonfly.NewTopology(dragonfly.Options{Groups: 5, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 2, Routing: fabric.Adaptive}), 16},
	}
	for name, c := range fabrics {
		g := fabric.NewGraph(c.topo)
		a := AssignLocators(g)
		checkWide(t, name, g, a)
		longest := checkPaths(t, name, g, a.LocatorsOf(csig.Compact), allPairs(oneNICPerLeaf(g)), 100_000)
		if need := max(c.need, longest); a.LongestPath != longest || a.CodesNeeded > need || c.need == 0 && a.CodesNeeded != need {
			t.Errorf("%s: %d codes, longest path %d; want %d and %d", name, a.CodesNeeded, a.LongestPath, need, longest)
		}
	}
}

// The same on random fabrics, whose shortest paths go up and down in any order.
func TestRule2RandomFabrics(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	for i := range 200 {
		g := fabric.NewGraph(randomTopology(rng))
		a := AssignLocators(g)
		name := fmt.Sprintf("fabric %d", i)
		checkWide(t, name, g, a)
		if longest := checkPaths(t, name, g, a.LocatorsOf(csig.Compact), allPairs(oneNICPerLeaf(g)), 100_000); longest > a.LongestPath || a.CodesNeeded < longest {
			t.Errorf("%s: %d codes, longest path %d, found %d", name, a.CodesNeeded, a.LongestPath, longest)
		}
	}
}

// Small fabrics have no two ports with one code.
func TestRule5SmallFabricsHaveUniqueCodes(t *testing.T) {
	for name, topo := range map[string]*fabric.Topology{"demo": loadTopology(t, "../../../deploy/lab/demo.yaml"), "fat tree of 4": fatTree(4)} {
		a := AssignLocators(fabric.NewGraph(topo))
		seen := map[uint16]bool{}
		for _, p := range a.Ports {
			if seen[p.Compact] {
				t.Errorf("%s: %+v is not the only port of its code (%d ports)", name, p, len(a.Ports))
			}
			seen[p.Compact] = true
		}
	}
}

// largeFabrics are those of the specification. Codes are as many as a path has ports.
var largeFabrics = map[string]struct {
	topo       func() *fabric.Topology
	codes      int
	candidates int // at most, of one code between two NICs
}{
	"fat tree of 16": {func() *fabric.Topology { return fatTree(16) }, 5, 2},
	"4,096 NICs":     {fourPlanes, 3, 1},
}

// Rule 2 on large fabrics: for leaf pairs at random.
func TestRule2LargeFabrics(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for name, c := range largeFabrics {
		g := fabric.NewGraph(c.topo())
		a := AssignLocators(g)
		if a.CodesNeeded != c.codes || a.LongestPath != c.codes || a.CheckCompact() != nil || a.CheckWide() != nil {
			t.Errorf("%s: %d codes, longest path %d, want %d", name, a.CodesNeeded, a.LongestPath, c.codes)
		}
		checkWide(t, name, g, a)
		var pairs [][2]string
		nics := g.NICIDs()
		for range 300 {
			pairs = append(pairs, [2]string{nics[rng.IntN(len(nics))], nics[rng.IntN(len(nics))]})
		}
		checkPaths(t, name, g, a.LocatorsOf(csig.Compact), pairs, candidateLimit)
	}
}

// The same fabric has the same locators, in whatever order its file has them.
func TestLocatorsDoNotDependOnTheOrder(t *testing.T) {
	topo := fatTree(4)
	want := AssignLocators(fabric.NewGraph(topo))
	slices.Reverse(topo.Switches)
	slices.Reverse(topo.Links)
	if got := AssignLocators(fabric.NewGraph(topo)); !slices.Equal(got.Ports, want.Ports) {
		t.Error("another order of the file gives other locators")
	}
}

// Where 127 codes are too few, the error says how many are needed.
func TestTooFewCodes(t *testing.T) {
	g := fabric.NewGraph(dragonfly.NewTopology(dragonfly.Options{Groups: 45, LeavesPerGroup: 1, SpinesPerGroup: 2, NICsPerLeaf: 1, Routing: fabric.Adaptive}))
	a := AssignLocators(g)
	err := a.CheckCompact()
	if want := fmt.Sprintf("%d are needed", a.CodesNeeded); a.CodesNeeded <= 127 || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%d codes: %v", a.CodesNeeded, err)
	}
	if len(a.LocatorsOf(csig.Compact)) > 0 || a.CheckWide() != nil || len(a.LocatorsOf(csig.Wide)) != len(a.Ports) {
		t.Errorf("%d compact and %d wide locators of %d ports", len(a.LocatorsOf(csig.Compact)), len(a.LocatorsOf(csig.Wide)), len(a.Ports))
	}
	many := &Assignment{Ports: make([]PortLocators, 65_536)}
	if err := many.CheckWide(); err == nil || !strings.Contains(err.Error(), "65536 are needed") {
		t.Errorf("65,536 ports: %v", err)
	}
	if (&Assignment{Ports: make([]PortLocators, 65_535), CodesNeeded: 127}).CheckWide() != nil {
		t.Error("65,535 ports are too many")
	}
}
