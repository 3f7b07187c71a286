package asking

import (
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// directedLinks returns all directions of a topology's links as targets.
func directedLinks(g *fabric.Graph) (out []target) {
	for _, l := range g.Topo.Links {
		d := fabric.Direction{From: l.A, To: l.B}
		for _, d := range []fabric.Direction{d, d.Reverse()} {
			kind := fabric.KindLink
			id := d.LinkID()
			for _, end := range []string{l.A, l.B} {
				if fabric.IsNIC(end) {
					kind, id = fabric.KindNIC, end
				}
			}
			out = append(out, target{fabric.Element{ID: id, Kind: kind}, d})
		}
	}
	return out
}

// TestEverySplitThatExistsIsFound compares with all shortest paths between all NICs, for all pairs of directed links: a
// flow distinguishes them, or only a hop-limited probe, or nothing.
func TestEverySplitThatExistsIsFound(t *testing.T) {
	for name, o := range map[string]clos.Options{
		"two tiers":  {LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 2},
		"two pods":   {Tiers: 3, Pods: 2, LeavesPerPod: 2, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: 1},
		"three pods": {Tiers: 3, Pods: 3, LeavesPerPod: 2, SpinesPerPod: 2, CoresPerRow: 1, NICsPerLeaf: 1},
	} {
		g := fabric.NewGraph(clos.NewTopology(o))
		var paths [][]fabric.Direction
		for _, src := range g.NICIDs() {
			for _, dst := range g.NICIDs() {
				if src != dst {
					for _, p := range g.ShortestPaths(src, dst, 100) {
						paths = append(paths, p.LinkDirections(src, dst))
					}
				}
			}
		}
		all := directedLinks(g)
		byFlow, byHop, by := 0, 0, map[string]int{}
		for i, a := range all {
			for _, b := range all[:i] {
				flow, hop := false, false
				for _, p := range paths {
					atA, atB := slices.Index(p, a.Direction), slices.Index(p, b.Direction)
					flow = flow || (atA < 0) != (atB < 0)
					// A hop-limited probe ends at a switch between the two.
					hop = hop || atA >= 0 && atB >= 0
				}
				m, ok := NewPlanner(g).findSplit(a, b)
				switch {
				case ok != (flow || hop):
					t.Fatalf("%s: %s and %s: found %v, want by a flow %v, by a hop %v", name, a.Direction, b.Direction, ok, flow, hop)
				case !ok:
					continue
				case (m.EndsAt == "") != flow:
					t.Fatalf("%s: %s and %s: %s, want by a flow %v", name, a.Direction, b.Direction, &m, flow)
				}
				by[m.EndsAt]++
				crossed := m.Path.LinkDirections(m.Src, m.Dst)
				if byHop++; flow {
					byFlow, byHop = byFlow+1, byHop-1
				} else {
					end := slices.IndexFunc(m.Path, func(h fabric.Hop) bool { return h.Switch == m.EndsAt })
					crossed = crossed[:end+1]
				}
				if meetsA := slices.Contains(crossed, a.Direction); meetsA == slices.Contains(crossed, b.Direction) || meetsA != (m.Meets == a.Element) && a.Element != b.Element {
					t.Fatalf("%s: %s and %s: %s crosses %v", name, a.Direction, b.Direction, &m, crossed)
				}
			}
		}
		t.Logf("%s: %d pairs by a flow, %d by a hop-limited probe only", name, byFlow, byHop)
		if byFlow == 0 || (byHop > 0) != (name == "two pods") {
			t.Errorf("%s: %d pairs by a flow, %d by a hop", name, byFlow, byHop)
		}
	}
}

// TestWhatNothingSplits: a NIC and its cable, a link and its port, are met by the same probes.
func TestWhatNothingSplits(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 2}))
	nic := g.NICIDs()[0]
	port := g.PeerOf(nic)
	cable := fabric.Direction{From: nic, To: port}.LinkID()
	p := NewPlanner(g)
	for _, b := range []fabric.Element{{ID: cable, Kind: fabric.KindAccessLink}, {ID: cable, Kind: fabric.KindLink}} {
		if m, ok := p.findSplit(target{Element: fabric.Element{ID: nic, Kind: fabric.KindNIC}}, target{Element: b}); ok {
			t.Errorf("%s: %s", b.ID, &m)
		}
	}
	c := fabric.Candidate{Element: fabric.Element{ID: nic, Kind: fabric.KindNIC}, Others: []fabric.DirectedElement{{Element: fabric.Element{ID: cable, Kind: fabric.KindAccessLink}}}, WouldSplit: []fabric.Measurement{}}
	if out := p.AddMeasurements([]fabric.Candidate{c}); len(out) != 1 || len(out[0].WouldSplit) != 0 {
		t.Errorf("%+v", out)
	}
}

// TestRivalsComeFirst: what would split a candidate from its rivals is listed before what would split it from its
// equivalents, and the candidates that were passed in are not changed.
func TestRivalsComeFirst(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{Tiers: 3, Pods: 2, LeavesPerPod: 2, SpinesPerPod: 2, CoresPerRow: 1, NICsPerLeaf: 1}))
	var core string
	for _, s := range g.Topo.Switches {
		if s.Role == "core" {
			core = s.Name
			break
		}
	}
	var links []fabric.Element
	for _, end := range g.EndsOf(core) {
		links = append(links, fabric.Element{ID: g.LinkAt(end).ID(), Kind: fabric.KindLink})
	}
	leaf, _ := g.LeafOf(g.NICIDs()[0])
	in := []fabric.Candidate{{Element: links[0], Direction: (fabric.Direction{From: g.PeerOf(g.EndsOf(core)[0]), To: g.EndsOf(core)[0]}).String(),
		Others: []fabric.DirectedElement{{Element: fabric.Element{ID: leaf, Kind: fabric.KindSwitch}}, {Element: links[1], Direction: fabric.Direction{From: g.EndsOf(core)[1], To: g.PeerOf(g.EndsOf(core)[1])}}}}}
	out := NewPlanner(g).AddMeasurements(in)
	if w := out[0].WouldSplit; len(w) != 2 || w[1].EndsAt != core || w[1].Meets != links[0] || w[0].EndsAt != "" || in[0].WouldSplit != nil {
		t.Errorf("%+v", w)
	}
}
