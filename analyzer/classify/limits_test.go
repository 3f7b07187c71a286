package classify

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// Tests on both sides of limits that no scenario reaches exactly.

// flowsUpTo returns the flows a>b#0 to a>b#n-1.
func flowsUpTo(n int) (out []fabric.Flow) {
	for i := range n {
		out = append(out, fabric.Flow{Src: "a/e", Dst: "b/e", Number: i})
	}
	return out
}

func TestRule2APartSharesFourFifthsOfItsFlows(t *testing.T) {
	suspected := func(delay int64, loss float64, edges []fabric.Flow) *suspicion {
		return &suspicion{Suspect: triangulate.Suspect{AddedDelayNS: delay, LossRatio: loss}, edges: edges}
	}
	five := flowsUpTo(5)
	for _, tt := range []struct {
		what    string
		x, wide *suspicion
		want    bool
	}{
		{"four of five flows", suspected(0, 0, five), suspected(0, 0, five[:4]), true},
		{"three of five", suspected(0, 0, five), suspected(0, 0, five[:3]), false},
		{"eight of ten", suspected(0, 0, flowsUpTo(10)), suspected(0, 0, flowsUpTo(8)), true},
		{"seven of ten", suspected(0, 0, flowsUpTo(10)), suspected(0, 0, flowsUpTo(7)), false},
		{"as late", suspected(1000, 0, five), suspected(1000, 0, five), true},
		{"later", suspected(1001, 0, five), suspected(1000, 0, five), false},
		{"loses twice as much and a little", suspected(0, 0.2+cleanLoss, five), suspected(0, 0.1, five), true},
		{"loses more than that", suspected(0, 0.201+cleanLoss, five), suspected(0, 0.1, five), false},
	} {
		if got := tt.x.mildBeside(tt.wide); got != tt.want {
			t.Errorf("%s: part of the wider one: %v", tt.what, got)
		}
	}
}

func TestRule5AThirdOfTheFlowsFlaps(t *testing.T) {
	edges := flowsUpTo(4)
	for _, tt := range []struct {
		of     int
		outage mask
		want   bool
	}{{3, 0b00100100, true}, {4, 0b00100100, false}, {3, 0b00110000, false}} {
		h := &History{moments: 8, flows: map[fabric.Flow]*flowHistory{edges[0]: {last: 8, outage: tt.outage, clean: 0b11011011}}}
		s, yes := h.comesAndGoes(edges[:tt.of])
		if yes != tt.want || yes && s.times != 2 {
			t.Errorf("one of %d flows with outages %b: comes and goes: %v, %d times", tt.of, tt.outage, yes, s.times)
		}
	}
}

func TestRule9HalfOfAGroupIsBad(t *testing.T) {
	flows := flowsUpTo(6)
	for _, tt := range []struct{ second, moments, alone int }{{2, 1, 0}, {3, 0, 1}} {
		h := &History{moments: 1, flows: map[fabric.Flow]*flowHistory{}}
		add := func(group []fabric.Flow) {
			for i, e := range group {
				h.flows[e] = &flowHistory{last: 1, decided: 1}
				if i == 0 {
					h.flows[e].bad = 1
				}
			}
		}
		groups := [][]fabric.Flow{flows[:2], flows[2 : 2+tt.second]}
		add(groups[0])
		add(groups[1])
		if _, moments, alone := h.badTogether(groups); moments != tt.moments || alone != tt.alone {
			t.Errorf("one of 2 flows and one of %d are bad: %d moments together and %d alone, want %d and %d", tt.second, moments, alone, tt.moments, tt.alone)
		}
	}
}

func TestTwoDigitsOfAMove(t *testing.T) {
	for n, want := range map[int64]int64{0: 0, 5: 5, 99: 99, 101: 100, 105: 110, 994: 990, 995: 1000, 12_345: 12_000, 12_500: 13_000} {
		if got := roundTwoDigits(n); got != want {
			t.Errorf("%d is %d, want %d", n, got, want)
		}
	}
}

// TestAStarvedNodeHasFourFifthsOfItsFlowsExcluded counts a node's flows, and not only those that are excluded.
func TestAStarvedNodeHasFourFifthsOfItsFlowsExcluded(t *testing.T) {
	for _, tt := range []struct {
		excluded, healthy int
		want              bool
	}{{8, 2, true}, {7, 3, false}, {2, 0, true}, {1, 0, false}, {2, 30, false}} {
		var found []judge.Finding
		for i := range tt.excluded + tt.healthy {
			found = append(found, judge.Finding{Flow: fabric.Flow{Src: "h1/eth1", Dst: fmt.Sprintf("h%d/eth1", i+2)}, HostSuspect: i < tt.excluded, Obs: &fabric.Observation{}})
			// The other ends have flows of their own.
			for k := range 9 {
				found = append(found, judge.Finding{Flow: fabric.Flow{Src: fmt.Sprintf("h%d/eth1", i+2), Dst: "h99/eth1", Number: k}, Obs: &fabric.Observation{}})
			}
		}
		if got := slices.Contains(starvedNodes(found), "h1"); got != tt.want {
			t.Errorf("%d of %d flows are excluded: starved %v, want %v", tt.excluded, tt.excluded+tt.healthy, got, tt.want)
		}
	}
}

// TestRule3ANICHasADirectionIfAllFlowsGoOneWay: by the NIC at which they begin or end, replies the other way.
func TestRule3ANICHasADirectionIfAllFlowsGoOneWay(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 2, SpinesPerPod: 1, NICsPerLeaf: 2}))
	nic, far := g.NICIDs()[0], g.NICIDs()[3]
	in, out := fabric.Flow{Src: far, Dst: nic}, fabric.Flow{Src: nic, Dst: far}
	back := fabric.Flow{Src: nic, Dst: far, Reply: true} // into the NIC
	into := fabric.Direction{From: g.PeerOf(nic), To: nic}
	for _, tt := range []struct {
		edges []fabric.Flow
		want  fabric.Direction
	}{{[]fabric.Flow{in, back}, into}, {[]fabric.Flow{out}, into.Reverse()}, {[]fabric.Flow{in, out}, fabric.Direction{}}} {
		x := &suspicion{Suspect: triangulate.Suspect{Element: triangulate.Element{Kind: fabric.KindSwitch, Name: "leaf"}}, edges: tt.edges}
		x.narrowToNIC(nic, g)
		if x.Kind != fabric.KindNIC || x.Name != nic || x.Direction != tt.want || len(x.Equivalent) != 1 || x.Equivalent[0].Name != "leaf" {
			t.Errorf("%v: %+v, want direction %s", tt.edges, x.Element, tt.want)
		}
	}
}

// TestEquivalentsAreListedOnce: neither twice nor the element itself, whatever the directions.
func TestEquivalentsAreListedOnce(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 2, SpinesPerPod: 1, NICsPerLeaf: 2}))
	var l fabric.Link
	for _, x := range g.Topo.Links {
		if !x.IsAccess() {
			l = x
		}
	}
	own, other := triangulate.Element{Kind: fabric.KindLink, Name: l.ID()}, triangulate.Element{Kind: fabric.KindLink, Name: g.Topo.Links[0].ID()}
	both := other
	both.Direction = fabric.Direction{From: g.Topo.Links[0].A, To: g.Topo.Links[0].B}
	c := &Scene{Graph: g}
	v := c.newVerdict(c.newSuspicion(triangulate.Suspect{Element: own, Equivalent: []triangulate.Element{own, other, both}}), 0)
	want := []fabric.Element{{ID: l.A, Kind: fabric.KindPort}, {ID: l.B, Kind: fabric.KindPort}, other.Named()}
	if !slices.Equal(v.Equivalent, want) || len(v.SameFlowEquivalents) != 3 {
		t.Errorf("%v and %v", v.Equivalent, v.SameFlowEquivalents)
	}
}

func TestConfidenceInSwappedCables(t *testing.T) {
	g := newStage(t).c.Graph
	for _, tt := range []struct {
		flows int
		lldp  bool
		want  float64
	}{{0, true, 0.999}, {1, false, 0.5}, {2, true, 0.75}, {3, false, 0.875}, {9, false, 0.998}, {10, false, 0.999}, {30, true, 0.999}} {
		s := Swap{Topology: [2]string{"leaf1:u1--spine1:d1", "leaf2:u2--spine2:d2"}, Flows: tt.flows, LLDP: tt.lldp}
		if v := SwapVerdict(g, s); v.Confidence != tt.want {
			t.Errorf("%d flows, LLDP %v: %g, want %g", tt.flows, tt.lldp, v.Confidence, tt.want)
		}
	}
}

func TestUplinksInUseAreThoseOfBothWays(t *testing.T) {
	s := newStage(t)
	leaf := func(nic string) string { return fabric.OwnerOf(s.c.Graph.PeerOf(nic)) }
	out := s.flow("h1/e", "h3/e", 0, "").Obs.Path
	in := s.flow("h3/e", "h1/e", 0, "").Obs.Path
	if leaf("h1/e") == leaf("h3/e") || len(out) < 2 || len(in) < 2 {
		t.Fatalf("the flows stay below one leaf: %v, %v", out, in)
	}
	s.flow("h1/e", "h2/e", 0, "").Obs.Path = fabric.Path{{Switch: leaf("h1/e"), In: "d1", Out: "d2"}} // stays below the leaf
	s.flow("h1/e", "h3/e", 1, "").Obs.Path = nil
	used, flows, all := s.c.uplinksInUse(leaf("h1/e"))
	ends := []string{out[0].Switch + ":" + out[0].Out, leaf("h1/e") + ":" + in[len(in)-1].In}
	want := map[string]bool{}
	for _, e := range ends {
		want[fabric.LinkID(e, s.c.Graph.PeerOf(e))] = true
	}
	if !maps.Equal(used, want) || flows != 2 || all != len(s.c.Graph.Uplinks(leaf("h1/e"))) {
		t.Errorf("%v by %d flows, of %d; want %v", used, flows, all, want)
	}
}
