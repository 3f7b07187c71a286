package asking

import (
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// allTargets returns all directions of a topology's links, and all elements that probes may cross.
func allTargets(g *fabric.Graph) (out []target) {
	for _, l := range g.Topo.Links {
		d := fabric.Direction{From: l.A, To: l.B}
		e := fabric.Element{ID: l.ID(), Kind: fabric.KindLink}
		out = append(out, target{e, d}, target{e, d.Reverse()}, target{Element: e})
		for _, end := range []string{l.A, l.B} {
			if fabric.IsNIC(end) {
				out = append(out, target{Element: fabric.Element{ID: end, Kind: fabric.KindNIC}}, target{Element: fabric.Element{ID: fabric.OwnerOf(end), Kind: fabric.KindHost}})
			} else {
				out = append(out, target{Element: fabric.Element{ID: end, Kind: fabric.KindPort}}, target{Element: fabric.Element{ID: end + "@tc3", Kind: fabric.KindQueue}})
			}
		}
	}
	for _, s := range g.Topo.Switches {
		out = append(out, target{Element: fabric.Element{ID: s.Name, Kind: fabric.KindSwitch}})
	}
	return out
}

// probe is what a packet crosses, in order: NICs, hosts, ports, links and switches by their names. If it ends at a
// switch, that switch is its end.
type probe struct {
	crossed map[string]bool
	end     string
}

// probesOf returns the flow from one NIC to another by a path, and the probes of it that end at each of its switches.
func probesOf(path fabric.Path, src, dst string) (flow probe, hops []probe) {
	now := probe{crossed: map[string]bool{src: true, fabric.OwnerOf(src): true}}
	from := src
	cross := func(to string) {
		d := fabric.Direction{From: from, To: to}
		now.crossed[d.String()], now.crossed[d.LinkID()], now.crossed["by "+from] = true, true, true
	}
	for _, h := range path {
		cross(h.Switch + ":" + h.In)
		ended := probe{crossed: map[string]bool{}, end: h.Switch}
		for name := range now.crossed {
			ended.crossed[name] = true
		}
		hops = append(hops, ended)
		now.crossed[h.Switch] = true
		from = h.Switch + ":" + h.Out
	}
	cross(dst)
	now.crossed[dst], now.crossed[fabric.OwnerOf(dst)] = true, true
	return now, hops
}

// nameOf returns the name of a target among what probes cross.
func nameOf(t target) string {
	switch {
	case t.Direction.From != "":
		return t.Direction.String()
	case t.Port() != "":
		return "by " + t.Port()
	}
	return t.ID
}

func (p *probe) splits(a, b target) bool {
	if p.end != "" && (p.end == a.ID || p.end == b.ID) {
		return false
	}
	return p.crossed[nameOf(a)] != p.crossed[nameOf(b)]
}

// TestEverySplitThatExistsIsFound compares with all shortest paths between all NICs, for all pairs of elements: a flow
// distinguishes them, or only a hop-limited probe, or nothing.
func TestEverySplitThatExistsIsFound(t *testing.T) {
	for name, o := range map[string]clos.Options{
		"two nodes":  {LeavesPerPod: 2, SpinesPerPod: 1, NICsPerLeaf: 1},
		"two tiers":  {LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 2},
		"two pods":   {Tiers: 3, Pods: 2, LeavesPerPod: 2, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: 1},
		"three pods": {Tiers: 3, Pods: 3, LeavesPerPod: 2, SpinesPerPod: 2, CoresPerRow: 1, NICsPerLeaf: 1},
	} {
		g := fabric.NewGraph(clos.NewTopology(o))
		var flows, hops []probe
		for _, src := range g.NICIDs() {
			for _, dst := range g.NICIDs() {
				if src != dst {
					for _, p := range g.ShortestPaths(src, dst, 100) {
						flow, ended := probesOf(p, src, dst)
						flows, hops = append(flows, flow), append(hops, ended...)
					}
				}
			}
		}
		all := allTargets(g)
		planner := NewPlanner(g)
		by := map[string]int{}
		for i, a := range all {
			for _, b := range all[:i] {
				splits := func(p probe) bool { return p.splits(a, b) }
				want := "nothing"
				if slices.ContainsFunc(flows, splits) {
					want = "flow"
				} else if slices.ContainsFunc(hops, splits) {
					want = "hop"
				}
				by[want]++
				m, ok := planner.findSplit(a, b)
				got := "nothing"
				if ok {
					flow, ended := probesOf(m.Path, m.Src, m.Dst)
					found := flow
					if got = "flow"; m.EndsAt != "" {
						got = "hop"
						found = ended[slices.IndexFunc(m.Path, func(h fabric.Hop) bool { return h.Switch == m.EndsAt })]
					}
					met := a
					if found.crossed[nameOf(b)] {
						met = b
					}
					if !found.splits(a, b) || m.Meets != met.Element {
						t.Fatalf("%s: %s and %s: %s", name, nameOf(a), nameOf(b), &m)
					}
				}
				if got != want {
					t.Fatalf("%s: %s %s and %s %s: split by %s, want %s", name, a.Kind, nameOf(a), b.Kind, nameOf(b), got, want)
				}
			}
		}
		t.Logf("%s: %v", name, by)
		if by["flow"] == 0 || by["nothing"] == 0 || (by["hop"] > 0) == (name == "two tiers" || name == "three pods") {
			t.Errorf("%s: %v", name, by)
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
