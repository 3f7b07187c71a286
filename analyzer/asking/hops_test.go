package asking

import (
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// everyFlow yields a flow between every two NICs, by a path of its own choice.
func everyFlow(g *fabric.Graph, rng *rand.Rand) iter.Seq2[fabric.Flow, fabric.Path] {
	return func(yield func(fabric.Flow, fabric.Path) bool) {
		for _, src := range g.NICIDs() {
			for _, dst := range g.NICIDs() {
				paths := g.ShortestPaths(src, dst, 64)
				if src != dst && !yield(fabric.Flow{Src: src, Dst: dst}, paths[rng.IntN(len(paths))]) {
					return
				}
			}
		}
	}
}

func linkFrom(from, to string) fabric.DirectedElement {
	d := fabric.Direction{From: from, To: to}
	return fabric.DirectedElement{Element: fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}, Direction: d}
}

// TestCoreLinksAreSeparatedFromBothSides: probes that end at the core switch cross one of its links from one pod, and the other
// or neither from the other pod. Answers that return over a suspect count as crossing it.
func TestCoreLinksAreSeparatedFromBothSides(t *testing.T) {
	g := worldtest.NewTwoPods(t)
	up, down := linkFrom("p1s1:up1", "c1:dn1"), linkFrom("c1:dn2", "p2s1:up1")
	for _, tt := range []struct {
		name     string
		suspects []fabric.DirectedElement
		pod1     []bool // what probes of pod 1 meet
		pod2     []bool
	}{
		{"one way", []fabric.DirectedElement{up, down}, []bool{true, false}, []bool{false, true}}, // their answers cross the second
		{"the other way", []fabric.DirectedElement{linkFrom("c1:dn1", "p1s1:up1"), linkFrom("p2s1:up1", "c1:dn2")}, []bool{true, false}, []bool{false, true}},
		{"both ways", []fabric.DirectedElement{{Element: up.Element}, {Element: down.Element}}, []bool{true, false}, []bool{false, true}},
	} {
		probes := NewPlanner(g).PlanHops(tt.suspects, everyFlow(g, rand.New(rand.NewPCG(1, 1))))
		sides := map[string]int{}
		for _, p := range probes {
			want := tt.pod1
			if p.Flow.Src[1] == '2' {
				want = tt.pod2
			}
			if p.Switch != "c1" || p.Hop != 3 || len(p.Before) != 3 || !slices.Equal(p.Meets, want) {
				t.Errorf("%s: %+v, want %v at c1", tt.name, p, want)
			}
			sides[maskOf(p.Meets)]++
		}
		if len(sides) != 2 || sides["x-"] < 3 || sides["-x"] < 3 {
			t.Errorf("%s: %v, want the NICs of each pod that have a flow by c1", tt.name, sides)
		}
	}
}

// TestNothingIsProbedThatFlowsSeparate, nor what no switch lies between.
func TestNothingIsProbedThatFlowsSeparate(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 2}))
	var links []fabric.DirectedElement
	for _, l := range g.Topo.Links {
		if !l.IsAccess() {
			links = append(links, linkFrom(l.A, l.B))
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	if got := NewPlanner(g).PlanHops(links[:2], everyFlow(g, rng)); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	nic := g.NICIDs()[0]
	alike := []fabric.DirectedElement{{Element: fabric.Element{ID: nic, Kind: fabric.KindNIC}}, linkFrom(nic, g.PeerOf(nic))}
	if got := NewPlanner(g).PlanHops(alike, everyFlow(g, rng)); len(got) != 0 {
		t.Errorf("a NIC and its cable: %+v", got)
	}
	two := worldtest.NewTwoPods(t)
	core := []fabric.DirectedElement{linkFrom("p1s1:up1", "c1:dn1"), linkFrom("c1:dn2", "p2s1:up1")}
	// Where a tunnel hides the core switches, no path has them.
	hidden := func(yield func(fabric.Flow, fabric.Path) bool) {
		for f, path := range everyFlow(two, rng) {
			path = slices.DeleteFunc(slices.Clone(path), func(h fabric.Hop) bool { return h.Switch[0] != 'p' || h.Switch[2] == 's' })
			if !yield(f, path) {
				return
			}
		}
	}
	if got := NewPlanner(two).PlanHops(core, hidden); len(got) != 0 {
		t.Errorf("hidden switches: %+v", got)
	}
}

// answered draws the answers to probes of askers of two sides. Each asker gets a share of its own around that of its side.
func answered(rng *rand.Rand, perSide, sent int, spread float64, share [2]float64, loss float64, at int) (out []HopTally) {
	for side := range 2 {
		for range perSide {
			own := min(max(share[side]+spread*rng.NormFloat64(), 0), 1)
			if side == at {
				own *= 1 - loss
			}
			k := uint64(0)
			for range sent {
				if rng.Float64() < own {
					k++
				}
			}
			out = append(out, HopTally{Switch: "c1", Meets: []bool{side == 0, side == 1}, Sent: uint64(sent), Answered: k})
		}
	}
	return out
}

// TestWeighingHoldsItsOdds: over drawn questions the truth is excluded at odds of 1,000 to 1 in fewer than one of 200, where
// the switch answers all sides alike and where it limits each asker differently, and most losses are decided. Where it limits
// one side by up to a half more than the other, which is taken for very unlikely, the truth is seldom excluded.
func TestWeighingHoldsItsOdds(t *testing.T) {
	const cases = 600
	for _, tt := range []struct {
		name         string
		spread       float64
		sides        float64 // by how much the share of one side may be less
		wrong, right int     // at most, at least
	}{
		{"alike", 0, 0, 2, cases * 8 / 10},
		{"askers differ", 0.1, 0, 2, cases * 6 / 10},
		{"sides differ", 0, 0.5, cases * 4 / 100, 0},
	} {
		rng := rand.New(rand.NewPCG(3, 4))
		wrong, right := 0, 0
		for range cases {
			truth := rng.IntN(2)
			loss := math.Exp(rng.Float64()*math.Log(5)) / 5
			share := 0.3 + 0.7*rng.Float64()
			shares := [2]float64{share, share}
			shares[rng.IntN(2)] *= 1 - tt.sides*rng.Float64()
			ll := WeighSuspects(2, loss*(0.9+0.2*rng.Float64()), answered(rng, 4+rng.IntN(5), 55, tt.spread, shares, loss, truth))
			switch by := ll[truth] - ll[1-truth]; {
			case by >= 6.9:
				right++
			case by <= -6.9:
				wrong++
			}
		}
		t.Logf("%s: %d right, %d wrong, %d open", tt.name, right, wrong, cases-right-wrong)
		if wrong > tt.wrong || right < tt.right {
			t.Errorf("%s: %d right, %d wrong", tt.name, right, wrong)
		}
	}
}

// TestAnswersLLIsABinomial: where all askers are alike, the sum over the share is the integral of a binomial likelihood, which
// is a beta function.
func TestAnswersLLIsABinomial(t *testing.T) {
	tallies := []HopTally{{Meets: []bool{false}, Sent: 20, Answered: 13}, {Meets: []bool{false}, Sent: 10, Answered: 4}}
	got, want := answersLL(tallies, 0, 0.5, 1e6), logBeta(18, 14)
	if math.Abs(got-want) > 0.01 {
		t.Errorf("%.4f, want %.4f", got, want)
	}
	if ll := WeighSuspects(2, 0.5, nil); math.Abs(ll[0]) > 1e-9 || math.Abs(ll[1]) > 1e-9 {
		t.Errorf("without tallies: %v, want no evidence", ll)
	}
}
