package asking

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// TestPlannedFlowsDistinguish draws a path for every wanted flow and its replies at random, as a hash does, and counts how
// often some of them meets one of two directions and avoids the other. Limits of NICs hold in every plan.
func TestPlannedFlowsDistinguish(t *testing.T) {
	for name, o := range map[string]clos.Options{
		"two tiers":   {LeavesPerPod: 4, SpinesPerPod: 4, NICsPerLeaf: 2},
		"three tiers": {Tiers: 3, Pods: 3, LeavesPerPod: 3, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: 2},
	} {
		g := fabric.NewGraph(clos.NewTopology(o))
		p := NewPlanner(g)
		rng := rand.New(rand.NewPCG(1, 2))
		var directions []fabric.Direction
		for _, l := range g.Topo.Links {
			if d := (fabric.Direction{From: l.A, To: l.B}); !l.IsAccess() {
				directions = append(directions, d, d.Reverse())
			}
		}
		suspect := func(d fabric.Direction) fabric.DirectedElement {
			return fabric.DirectedElement{Element: fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}, Direction: d}
		}
		split, separable, flows := 0, 0, 0
		for range 400 {
			a, b := directions[rng.IntN(len(directions))], directions[rng.IntN(len(directions))]
			if a == b {
				continue
			}
			wanted := p.PlanFlows([]fabric.DirectedElement{suspect(a), suspect(b)})
			if _, ok := p.findSplit(target(suspect(a)), target(suspect(b))); len(wanted) > 0 && !ok {
				t.Fatalf("%s: flows are wanted for %s and %s, which no flow distinguishes", name, a, b)
			}
			if len(wanted) == 0 {
				continue
			}
			separable++
			used := map[string]int{}
			found := false
			for _, w := range wanted {
				used[w.Src] += w.Flows
				used[w.Dst] += w.Flows
				flows += w.Flows
				for range w.Flows {
					for _, ends := range [][2]string{{w.Src, w.Dst}, {w.Dst, w.Src}} {
						all := g.ShortestPaths(ends[0], ends[1], maxPaths)
						path := all[rng.IntN(len(all))]
						met := map[fabric.Direction]bool{}
						for _, d := range path.LinkDirections(ends[0], ends[1]) {
							met[d] = true
						}
						found = found || met[a] != met[b]
					}
				}
			}
			for nic, n := range used {
				if n > fabric.TemporaryFlows {
					t.Fatalf("%s: %d flows at %s", name, n, nic)
				}
			}
			if found {
				split++
			}
		}
		t.Logf("%s: %d of %d pairs are distinguished, by %.1f flows each", name, split, separable, float64(flows)/float64(separable))
		if separable < 300 || float64(split) < (1-3*missChance)*float64(separable) {
			t.Errorf("%s: %d of %d", name, split, separable)
		}
	}
}

// TestChosenPathsDistinguish checks that flows whose paths are chosen distinguish each two directions for certain, in the order in which
// coordinators choose their paths.
func TestChosenPathsDistinguish(t *testing.T) {
	topo := clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: 8, NICsPerLeaf: 2})
	topo.Forwarding = fabric.SRv6
	g := fabric.NewGraph(topo)
	p := NewPlanner(g)
	var suspects []fabric.DirectedElement
	for _, l := range topo.Links {
		if d := (fabric.Direction{From: l.A, To: l.B}); !l.IsAccess() {
			for _, x := range []fabric.Direction{d, d.Reverse()} {
				suspects = append(suspects, fabric.DirectedElement{Element: fabric.Element{ID: x.LinkID(), Kind: fabric.KindLink}, Direction: x})
			}
		}
	}
	pairs, flows := 0, 0
	for i, a := range suspects {
		for _, b := range suspects[:i] {
			found := false
			for _, w := range p.PlanFlows([]fabric.DirectedElement{a, b}) {
				flows += w.Flows
				all := g.ShortestPaths(w.Src, w.Dst, maxPaths)
				for n := range w.Flows {
					way := all[n%len(all)]
					for _, d := range [][]fabric.Direction{way.LinkDirections(w.Src, w.Dst), way.Reverse().LinkDirections(w.Dst, w.Src)} {
						found = found || slices.Contains(d, a.Direction) != slices.Contains(d, b.Direction)
					}
				}
			}
			if pairs++; !found {
				t.Errorf("%s and %s stay together", a.Direction, b.Direction)
			}
		}
	}
	t.Logf("%d pairs, by %.1f flows each", pairs, float64(flows)/float64(pairs))
}

// TestNothingIsWantedForWhatNoFlowSplits: a link and its ports, a NIC and its cable.
func TestNothingIsWantedForWhatNoFlowSplits(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 2}))
	nic := g.NICIDs()[0]
	cable := fabric.Direction{From: nic, To: g.PeerOf(nic)}
	p := NewPlanner(g)
	got := p.PlanFlows([]fabric.DirectedElement{{Element: fabric.Element{ID: nic, Kind: fabric.KindNIC}}, {Element: fabric.Element{ID: cable.LinkID(), Kind: fabric.KindAccessLink}}})
	if len(got) != 0 {
		t.Errorf("%+v", got)
	}
}
