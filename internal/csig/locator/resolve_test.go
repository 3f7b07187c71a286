package locator

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
)

// profileOf returns a profile with the locators of a fabric.
func profileOf(a *Assignment) *csig.Profile {
	return &csig.Profile{CompactLocators: a.LocatorsOf(csig.Compact), WideLocators: a.LocatorsOf(csig.Wide)}
}

// Rules 2 and 3: of flows between random NICs, every port of every path that they may take is resolved. With a known path the
// port is exact, in 100 % of cases; without one, the port is among the candidates, and it is never named.
func TestRule3EveryPortOfEveryPathIsResolved(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	fabrics := map[string]*fabric.Topology{
		"demo":                loadTopology(t, "../../../deploy/lab/demo.yaml"),
		"clos3":               loadTopology(t, "../../lab/testdata/clos3.yaml"),
		"odd":                 loadTopology(t, "../../lab/testdata/odd.yaml"),
		"adaptive Dragonfly+": dragonfly.NewTopology(dragonfly.Options{Groups: 5, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 2, Routing: fabric.Adaptive}),
	}
	most := map[string]int{}
	for name, c := range largeFabrics {
		fabrics[name], most[name] = c.topo(), c.candidates
	}
	for name, topo := range fabrics {
		g := fabric.NewGraph(topo)
		p := profileOf(AssignLocators(g))
		r := NewResolver(g, p)
		nics := g.NICIDs()
		ports, widest := 0, 0
		for range 60 {
			src, dst := nics[rng.IntN(len(nics))], nics[rng.IntN(len(nics))]
			paths, all := g.CandidatePaths(src, dst, candidateLimit)
			if !all {
				t.Fatalf("%s: too many paths from %s to %s", name, src, dst)
			}
			rng.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
			for _, path := range paths[:min(len(paths), 4)] {
				for _, h := range path {
					port := h.Switch + ":" + h.Out
					ports++
					exact := Resolution{State: Exact, Port: port}
					if got := r.ResolveOnPath(csig.Compact, p.CompactLocators[port], path); !reflect.DeepEqual(got, exact) {
						t.Fatalf("%s: %s on its path is %+v", name, port, got)
					}
					for _, got := range []Resolution{r.ResolveOnPath(csig.Wide, p.WideLocators[port], path), r.ResolveBetween(csig.Wide, p.WideLocators[port], src, dst), r.ResolveAmong(csig.Wide, p.WideLocators[port], nil)} {
						if !reflect.DeepEqual(got, exact) {
							t.Fatalf("%s: wide %s is %+v", name, port, got)
						}
					}
					got := r.ResolveBetween(csig.Compact, p.CompactLocators[port], src, dst)
					if got.State != Candidates || got.Port != "" || !slices.Contains(got.Ports, port) {
						t.Fatalf("%s: %s from %s to %s is %+v", name, port, src, dst, got)
					}
					widest = max(widest, len(got.Ports))
				}
			}
		}
		t.Logf("%s: %d ports resolved, at most %d candidates", name, ports, widest)
		if most[name] > 0 && widest > most[name] {
			t.Errorf("%s: %d candidates for one locator, want %d at most", name, widest, most[name])
		}
	}
}

func TestResolveOtherLocators(t *testing.T) {
	g := fabric.NewGraph(fatTree(4))
	p := profileOf(AssignLocators(g))
	p.CompactDown = map[uint16]string{127: "a-core1-1:dn1"}
	p.WideDown = map[uint16]string{60000: "a-core1-1:dn1"}
	r := NewResolver(g, p)
	nics := g.NICIDs()
	path := g.ShortestPaths(nics[0], nics[len(nics)-1], 1)[0]
	for f, down := range map[csig.Format]uint16{csig.Compact: 127, csig.Wide: 60000} {
		for l, want := range map[uint16]Resolution{
			0: {State: Unset}, down: {State: Down, Port: "a-core1-1:dn1"}, down - 1: {State: Unknown},
		} {
			for _, got := range []Resolution{r.ResolveOnPath(f, l, path), r.ResolveBetween(f, l, nics[0], nics[1]), r.ResolveAmong(f, l, []fabric.Path{path})} {
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%v %d: %+v, want %+v", f, l, got, want)
				}
			}
		}
	}
	// A port that is not on the path, and one that no path between the NICs has.
	other := p.CompactLocators["a-p2-leaf1:dn1"]
	if got := r.ResolveOnPath(csig.Compact, other, path); got.State != Unknown {
		t.Errorf("a port beside the path is %+v", got)
	}
	if got := r.ResolveBetween(csig.Compact, other, nics[0], nics[1]); got.State != Unknown {
		t.Errorf("a port between other NICs is %+v", got)
	}
	// Two ports of a path that the topology does not have.
	twice := append(fabric.Path{}, path...)
	twice = append(twice, fabric.Hop{Switch: "x", Out: "1"})
	p.CompactLocators["x:1"] = p.CompactLocators[path[0].Switch+":"+path[0].Out]
	if got := r.ResolveOnPath(csig.Compact, p.CompactLocators["x:1"], twice); got.State != Candidates || len(got.Ports) != 2 {
		t.Errorf("two ports of one locator on a path are %+v", got)
	}
	for s := range Down + 1 {
		if s.String() == "" {
			t.Errorf("state %d has no name", s)
		}
	}
}

// Beyond the number of paths that are listed, every port of the code is a candidate.
func TestManyPathsHaveCandidates(t *testing.T) {
	g := fabric.NewGraph(dragonfly.NewTopology(dragonfly.Options{Groups: 8, LeavesPerGroup: 4, SpinesPerGroup: 4, NICsPerLeaf: 1, GlobalPerPair: 4, Routing: fabric.Adaptive}))
	a := AssignLocators(g)
	if err := a.CheckCompact(); err != nil {
		t.Fatal(err)
	}
	p := profileOf(a)
	r := NewResolver(g, p)
	nics := g.NICIDs()
	src, dst := nics[0], nics[len(nics)-1]
	if _, all := g.CandidatePaths(src, dst, candidateLimit); all {
		t.Fatal("the fabric has too few paths for this test")
	}
	for _, path := range g.ShortestPaths(src, dst, 64) {
		for _, h := range path {
			port := h.Switch + ":" + h.Out
			if got := r.ResolveBetween(csig.Compact, p.CompactLocators[port], src, dst); got.State != Candidates || !slices.Contains(got.Ports, port) {
				t.Errorf("%s is %+v", port, got)
			}
		}
	}
}
