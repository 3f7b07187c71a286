package paths

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/sighting"
)

// miswired is a fabric whose cables are not all as the store believes, with flows
// that go by the real ones.
type miswired struct {
	t     *testing.T
	real  *fabric.Graph
	s     *Store
	st    *Stitcher
	rng   *rand.Rand
	truth map[fabric.Flow]fabric.Path
}

func miswire(t *testing.T, believed *fabric.Topology, w swap, seed uint64) *miswired {
	g := fabric.NewGraph(believed)
	return &miswired{t: t, real: fabric.NewGraph(believed.WithSwappedCables(w.aFar, w.b)), s: NewStore(g), st: NewStitcher(g), rng: rand.New(rand.NewPCG(seed, 1)), truth: map[fabric.Flow]fabric.Path{}}
}

// route sends flows of every pair of NICs, both ways, by shortest paths.
func (m *miswired) route(flows int) {
	for _, src := range m.real.NICIDs() {
		for _, dst := range m.real.NICIDs() {
			ways := m.real.ShortestPaths(src, dst, 64)
			if src == dst || len(ways) == 0 {
				continue
			}
			for n := range flows {
				m.truth[fabric.Flow{Src: src, Dst: dst, Number: n}] = ways[m.rng.IntN(len(ways))]
			}
		}
	}
}

// see passes the sightings of all switches to the store.
func (m *miswired) see(at time.Time) {
	for e, p := range m.truth {
		all := sightings(p)
		src, dst := e.Endpoints()
		m.s.applySightings(mustKey(m.t, m.s, e), m.st, m.st.StitchPath(src, dst, all, none), all, at)
	}
	for i := range m.real.Topo.Switches {
		m.s.recordSwitchAnswer(m.real.Topo.Switches[i].Name, at, at)
	}
}

// visible counts the ports at which enough flows come in from elsewhere.
func (m *miswired) visible(w swap) (n int) {
	for end, from := range w.expectedOwners() {
		flows := 0
		for e, p := range m.truth {
			src, dst := e.Endpoints()
			for _, d := range p.LinkDirections(src, dst) {
				if d.To == end && from != endOwner(m.s.Graph().PeerOf(end)) {
					flows++
				}
			}
		}
		if flows >= minMismatchFlows {
			n++
		}
	}
	return n
}

// TestMiscabledNamesTheSwap: two random cables of a Clos between the same tiers are
// swapped; they are named, nothing else is, and all paths are right then.
func TestMiscabledNamesTheSwap(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	access, trunk := 0, 0
	for _, o := range fabrics {
		topo := clos.NewTopology(o)
		g := fabric.NewGraph(topo)
		for range 24 {
			l1, l2 := topo.Links[rng.IntN(len(topo.Links))], topo.Links[rng.IntN(len(topo.Links))]
			w := swap{a: l1.B, aFar: l1.A, b: l2.A, bFar: l2.B}
			plane := func(e string) string {
				if n := g.NIC(e); n != nil {
					return n.Plane
				}
				return g.Switch(fabric.OwnerOf(e)).Plane
			}
			tier := func(e string) int { return g.SwitchTier(fabric.OwnerOf(e)) }
			same := endOwner(l1.A) == endOwner(l2.A) && endOwner(l1.B) == endOwner(l2.B)
			if same || tier(l1.A) != tier(l2.A) || tier(l1.B) != tier(l2.B) || plane(l1.B) != plane(l2.B) {
				continue // cannot be seen, or is not looked for
			}
			m := miswire(t, topo, w, rng.Uint64())
			if o.RailOnly && m.real.ShortestPaths(g.NICIDs()[0], g.NICIDs()[2], 1) == nil {
				continue // it tears the fabric apart
			}
			m.route(8 + 64/len(g.NICIDs()))
			m.see(sec(10))
			if m.visible(w) < 2 {
				// A link that nothing crosses any more has no sightings.
				if got, _ := m.s.CheckCables(sec(60)); len(got) != 0 {
					t.Fatalf("%s and %s: nothing crosses them; %+v", l1.ID(), l2.ID(), got)
				}
				continue
			}
			if got, changed := m.s.CheckCables(sec(10).Add(mismatchSettleTime - 1)); changed || len(got) != 0 {
				t.Fatalf("%s and %s: named at once: %+v", l1.ID(), l2.ID(), got)
			}
			got, changed := m.s.CheckCables(sec(10).Add(mismatchSettleTime))
			want := Miscabling{Topology: w.topologyLinks(), Fabric: w.fabricLinks()}
			if !changed || len(got) != 1 || got[0].Topology != want.Topology || got[0].Fabric != want.Fabric || got[0].Flows < 2*minMismatchFlows {
				t.Fatalf("%+v: found %+v, changed %v; want %+v; odd %v", o, got, changed, want, m.s.settledPorts(sec(20)))
			}
			m.st = NewStitcher(m.s.Graph())
			m.see(sec(30))
			for e, p := range m.truth {
				if b, _ := m.s.CurrentBinding(e); b.State != fabric.PathValid || b.Path.CanonicalKey() != p.CanonicalKey() {
					t.Fatalf("%s: %s %s, want %s", e, b.State, b.Path.CanonicalKey(), p.CanonicalKey())
				}
			}
			if got, changed := m.s.CheckCables(sec(60)); changed || len(got) != 1 {
				t.Fatalf("found again: %+v, %v", got, changed)
			}
			if l1.IsAccess() {
				access++
			} else {
				trunk++
			}
		}
	}
	t.Logf("%d swaps of access cables, %d of others", access, trunk)
	if access < 5 || trunk < 5 {
		t.Error("the test tests little")
	}
}

// TestMiscablingIsUndone: cables that are plugged back are no finding any more.
func TestMiscablingIsUndone(t *testing.T) {
	topo := clos.NewTopology(clos.Options{LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 2})
	w := swap{a: "a-p1-leaf1:up1", aFar: "a-p1-spine1:dn1", b: "a-p1-spine2:dn2", bFar: "a-p1-leaf2:up2"}
	m := miswire(t, topo, w, 5)
	m.route(6)
	m.see(sec(10))
	if got, _ := m.s.CheckCables(sec(30)); len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	m.st, m.real = NewStitcher(m.s.Graph()), fabric.NewGraph(topo)
	m.route(6)
	m.see(sec(40))
	if got, changed := m.s.CheckCables(sec(60)); !changed || len(got) != 0 {
		t.Fatalf("%+v, changed %v", got, changed)
	}
	if m.s.Graph().PeerOf(w.a) != w.aFar {
		t.Error("the graph is still another one")
	}
}

// TestOddTracesAreNotEnough: nor are flows that disagree, or one port alone.
func TestOddIsNotEnough(t *testing.T) {
	topo := clos.NewTopology(clos.Options{LeavesPerPod: 3, SpinesPerPod: 3, NICsPerLeaf: 2})
	g := fabric.NewGraph(topo)
	three := func(all ...PortMismatch) (out []PortMismatch) {
		for _, o := range all {
			out = append(out, o, o, o)
		}
		return out
	}
	up1, up2 := PortMismatch{"a-p1-leaf1:up1", "a-p1-spine2"}, PortMismatch{"a-p1-leaf1:up2", "a-p1-spine1"}
	for name, tt := range map[string]struct {
		odd  []PortMismatch
		want int
	}{
		"both ports":             {[]PortMismatch{up1, up1, up1, up2, up2, up2}, 1},
		"too few":                {[]PortMismatch{up1, up1, up2, up2, up2}, 0},
		"one port":               {[]PortMismatch{up1, up1, up1, up1}, 0},
		"they disagree":          {[]PortMismatch{up1, up1, up1, up2, up2, up2, {up1.At, "a-p1-spine3"}}, 0},
		"two that do not belong": {three(up1, PortMismatch{"a-p1-leaf2:up1", "a-p1-spine3"}), 0},
		"two leaves":             {three(up1, PortMismatch{"a-p1-spine2:dn2", "a-p1-leaf1"}), 1},
		"two swaps could be it":  {three(up1, PortMismatch{"a-p1-spine2:dn2", "a-p1-leaf1"}, PortMismatch{"a-p1-spine2:dn3", "a-p1-leaf1"}), 0},
	} {
		s := NewStore(g)
		for i := range tt.odd {
			s.cabling.recordMismatch(flowKey{flow: uint32(i)}, &tt.odd[i], sec(0))
		}
		if got, changed := s.CheckCables(sec(60)); len(got) != tt.want || changed != (tt.want > 0) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// A flow that comes in as the topology says, seen later, speaks against them: at a
	// port where others showed something, or at another one of the swap.
	for in, odd := range map[string][]PortMismatch{up1.At: three(up1, up2), "a-p1-leaf2:up2": three(up1, PortMismatch{"a-p1-spine2:dn2", "a-p1-leaf1"})} {
		s := NewStore(g)
		for i, o := range odd {
			s.cabling.recordMismatch(flowKey{flow: uint32(i)}, &o, sec(10))
		}
		e := fabric.Flow{Src: "h1-3-1/eth1", Dst: "h1-1-1/eth1"}
		if fabric.OwnerOf(in) == "a-p1-leaf2" {
			e.Dst = "h1-2-1/eth1"
		}
		for _, p := range g.ShortestPaths(e.Src, e.Dst, 3) {
			if p[2].Switch+":"+p[2].In == in {
				applyReport(t, s, e, traced(5, resolved(p)))
			}
		}
		if got, _ := s.CheckCables(sec(60)); len(got) != 1 {
			t.Errorf("%s was used as plugged before: %+v", in, got)
		}
		s = NewStore(g)
		for i, o := range odd {
			s.cabling.recordMismatch(flowKey{flow: uint32(i)}, &o, sec(10))
		}
		for _, p := range g.ShortestPaths(e.Src, e.Dst, 3) {
			if p[2].Switch+":"+p[2].In == in {
				applyReport(t, s, e, traced(15, resolved(p)))
			}
		}
		if got, _ := s.CheckCables(sec(60)); len(got) != 0 {
			t.Errorf("%s is used as plugged: %+v", in, got)
		}
	}
}

// TestTracesShowMiscabling: traces of a leaf whose uplinks are swapped, and what
// becomes of the paths that were traced before.
func TestTracesShowMiscabling(t *testing.T) {
	s := NewStore(graph(t))
	trace := func(flow int, at float64, src, dst, h string) {
		t.Helper()
		e := fabric.Flow{Src: src, Dst: dst, Number: flow}
		if err := s.AddTrace(fabric.Trace{Edge: e.String(), State: fabric.PathValid, TracedAt: sec(at), Reached: true, Hops: hops(h)}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 3 {
		trace(n, 1, "h1/eth1", "h2/eth1", "10.0.1.1 172.16.0.1 172.16.0.6") // into leaf2:up2 from spine1
		trace(n+3, 1, "h1/eth1", "h2/eth1", "10.0.1.1 172.16.0.3 172.16.0.4")
		trace(n, 1, "h2/eth1", "h1/eth1", "10.0.2.1 172.16.0.5 172.16.0.0") // up: nothing to be seen
	}
	back := fabric.Flow{Src: "h2/eth1", Dst: "h1/eth1"}
	if b, _ := s.CurrentBinding(back); b.State != fabric.PathValid || b.Path[0].Out != "up1" {
		t.Fatalf("%+v", b)
	}
	got, changed := s.CheckCables(sec(20))
	want := [2]string{"leaf2:up1--spine1:dn2", "leaf2:up2--spine2:dn2"}
	if !changed || len(got) != 1 || got[0].Topology != want || got[0].Fabric != [2]string{"leaf2:up1--spine2:dn2", "leaf2:up2--spine1:dn2"} || got[0].Flows != 6 || got[0].LLDP {
		t.Fatalf("%+v", got)
	}
	// A node that repeats what it traced before changes nothing of that.
	again := fabric.Trace{Edge: flow(3).String(), State: fabric.PathStale, TracedAt: sec(21), Reached: true, Hops: hops("10.0.1.1 172.16.0.3 172.16.0.4")}
	s.cabling.recordMismatch(mustKey(t, s, flow(3)), &PortMismatch{At: "leaf2:up1", From: "spine2"}, sec(20))
	if err := s.AddTrace(again); err != nil || len(s.cabling.mismatches) != 1 {
		t.Errorf("%v; %d flows show something odd", err, len(s.cabling.mismatches))
	}
	if b, _ := s.BindingAt(back, sec(2), sec(3)); b.State != fabric.PathStale {
		t.Errorf("a path by the wrong cable is still %s", b.State)
	}
	trace(0, 21, "h2/eth1", "h1/eth1", "10.0.2.1 172.16.0.5 172.16.0.0")
	if b, _ := s.CurrentBinding(back); b.State != fabric.PathValid || b.Path[0].Out != "up2" {
		t.Errorf("traced anew: %+v", b)
	}
}

// TestNeighboursShowSwappedNICs: hosts send their names by LLDP, too.
func TestNeighboursShowSwappedNICs(t *testing.T) {
	s := NewStore(graph(t))
	s.setAgentNeighbours("leaf1", []sighting.Neighbour{{Port: "dn1", System: "h3", SystemPort: "eth1"}, {Port: "dn2", System: "h1", SystemPort: "eth1"}})
	got, _ := s.CheckCables(sec(0))
	if len(got) != 1 || got[0].Topology != [2]string{"h1/eth1--leaf1:dn1", "h3/eth1--leaf1:dn2"} || got[0].Fabric != [2]string{"h1/eth1--leaf1:dn2", "h3/eth1--leaf1:dn1"} {
		t.Errorf("%+v", got)
	}
	if a := s.Graph().ProbeAddress("h1/eth1").String(); a != "10.0.1.2" || s.Graph().EndOf(netip.MustParseAddr("10.0.1.1")) != "leaf1:dn1" {
		t.Errorf("addresses do not stay with their ports: h1/eth1 has %s", a)
	}
}

func TestNeighboursShowMiscabling(t *testing.T) {
	for _, tt := range []struct {
		name, neighbours string
		want             int
	}{
		{"one port", "leaf1:up1=spine2:dn1", 1},
		{"both ends", "leaf1:up1=spine2:dn1 spine2:dn1=leaf1:up1", 1},
		{"all four", "leaf1:up1=spine2:dn1 spine2:dn1=leaf1:up1 leaf1:up2=spine1:dn1 spine1:dn1=leaf1:up2", 1},
		{"the far end says no", "leaf1:up1=spine2:dn1 spine2:dn1=leaf1:up2", 0},
		{"the other cable says no", "leaf1:up1=spine2:dn1 leaf1:up2=spine2:dn2", 0},
		{"as the topology says", "leaf1:up1=spine1:dn1 leaf1:up2=spine2:dn1", 0},
		{"an unknown port", "leaf1:up1=spine2:eth7 leaf1:up2=other:dn1", 0},
		{"a port without a cable", "leaf1:zz=spine2:dn1", 0},
	} {
		s := NewStore(graph(t))
		of := map[string][]sighting.Neighbour{}
		for _, f := range strings.Fields(tt.neighbours) {
			near, far, _ := strings.Cut(f, "=")
			sw, port, _ := fabric.SplitPort(near)
			sys, sysPort, _ := fabric.SplitPort(far)
			of[sw] = append(of[sw], sighting.Neighbour{Port: port, System: sys, SystemPort: sysPort})
		}
		for sw, all := range of {
			s.setAgentNeighbours(sw, all)
		}
		got, changed := s.CheckCables(sec(0))
		if len(got) != tt.want || changed != (tt.want > 0) {
			t.Errorf("%s: %+v", tt.name, got)
			continue
		}
		if tt.want > 0 && (!got[0].LLDP || got[0].Topology != [2]string{"leaf1:up1--spine1:dn1", "leaf1:up2--spine2:dn1"} || s.Graph().PeerOf("leaf1:up2") != "spine1:dn1") {
			t.Errorf("%s: %+v", tt.name, got)
		}
		// What it says no more is forgotten.
		for sw := range of {
			s.setAgentNeighbours(sw, nil)
		}
		if len(s.cabling.neighbours[fromFabric])+len(s.cabling.neighbours[fromSeries]) != 0 {
			t.Errorf("%s: neighbours are left", tt.name)
		}
		if !slices.Equal(s.Graph().NICIDs(), graph(t).NICIDs()) {
			t.Error("other NICs")
		}
	}
}
