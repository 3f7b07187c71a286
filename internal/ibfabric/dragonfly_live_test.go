package ibfabric

import (
	"slices"
	"strconv"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

// TestDragonflyRoutedByOpenSM compares all walks by the tables that OpenSM makes for a Dragonfly+ with the candidate paths
// of the topology that is imported from it: with all links, and without the only one between two groups, whose packets
// then cross a third group.
func TestDragonflyRoutedByOpenSM(t *testing.T) {
	ibtest.RequireTools(t)
	const groups = 5
	for _, engine := range []string{"minhop", "updn"} {
		t.Run(engine, func(t *testing.T) {
			sim := ibtest.Start(t, ibtest.Dragonfly(groups, 3, 2, 2), ibtest.Options{Engine: engine})
			compareWithCandidates(t, readFabric(t, sim), groups, 0)
			sim.ChangeAndWait(`Unlink "g0spine0"[4]`)
			compareWithCandidates(t, readFabric(t, sim), groups, 2*6*6)
		})
	}
}

// compareWithCandidates walks between all CAs, and fails the test if a walk is no candidate path by minimal routing. around
// is the number of walks that cross three groups.
func compareWithCandidates(t *testing.T, f *Fabric, groups, around int) {
	t.Helper()
	topo, found := f.BuildTopology()
	if n := topo.FindGroups(); n != groups || len(found) > 0 {
		t.Fatalf("%d groups were found, want %d; %q", n, groups, found)
	}
	for _, s := range topo.Switches {
		if first := topo.Switches[0]; (s.Group == first.Group) != (s.Name[:2] == first.Name[:2]) {
			t.Errorf("%s is in group %s, and %s in %s", s.Name, s.Group, first.Name, first.Group)
		}
	}
	text, err := yaml.Marshal(topo)
	if err != nil {
		t.Fatal(err)
	}
	if _, problems := fabric.ParseTopology("imported", text); len(problems) != min(around, 1) {
		t.Errorf("the imported topology: %v", problems)
	}
	g := fabric.NewGraph(topo)
	walks, three := 0, 0
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			from, okFrom := f.ByName(src)
			to, okTo := f.ByName(dst)
			if !okFrom || !okTo {
				t.Fatalf("%s or %s is not in the fabric", src, dst)
			}
			if src == dst {
				continue
			}
			hops, err := f.Walk(f.FirstLID(from), f.FirstLID(to))
			if err != nil {
				t.Fatal(err)
			}
			var p fabric.Path
			for _, h := range hops {
				p = append(p, fabric.Hop{Switch: f.NodeName(h.Switch), In: strconv.Itoa(int(h.In)), Out: strconv.Itoa(int(h.Out))})
			}
			walks++
			if len(p) > 4 {
				three++
			}
			paths, _ := g.CandidatePaths(src, dst, 1000)
			if !slices.ContainsFunc(paths, func(c fabric.Path) bool { return c.CanonicalKey() == p.CanonicalKey() }) {
				t.Errorf("%s to %s: %s is none of %d candidates", src, dst, p.CanonicalKey(), len(paths))
			}
		}
	}
	if walks != 30*29 || three != around {
		t.Errorf("%d walks, %d of them by a third group, want %d and %d", walks, three, 30*29, around)
	}
}
