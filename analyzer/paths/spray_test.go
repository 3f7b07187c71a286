package paths

import (
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/sighting"
)

// sprayingGraph returns the graph of the tests, whose topology says that it sprays.
func sprayingGraph(t *testing.T) *fabric.Graph {
	t.Helper()
	topo := *graph(t).Topo
	topo.Forwarding = fabric.Spray
	return fabric.NewGraph(&topo)
}

// wantSprayed checks that a window has both paths of the flow, or that it is not said to be sprayed.
func wantSprayed(t *testing.T, s *Store, f fabric.Flow, from, to float64, want bool) Binding {
	t.Helper()
	b, _ := s.BindingAt(f, sec(from), sec(to))
	if b.Sprayed != want {
		t.Errorf("%s, window %g to %g: sprayed %t, want %t", f, from, to, b.Sprayed, want)
	}
	if !want {
		return b
	}
	ways := map[string]bool{}
	for _, p := range b.Candidates {
		ways[p.CanonicalKey()] = true
	}
	if b.State != fabric.PathUnknown || len(b.Path) > 0 || len(ways) != 2 || !ways[by(1).CanonicalKey()] || !ways[by(2).CanonicalKey()] {
		t.Errorf("%s, window %g to %g: %s %q, candidates %v; want both paths and none of them", f, from, to, b.State, b.Path.CanonicalKey(), ways)
	}
	return b
}

// split returns the trace of a flow whose packets two spines answered.
func split(n int, at float64) fabric.Trace {
	return fabric.Trace{Edge: flow(n).String(), State: fabric.PathUnknown, TracedAt: sec(at), Reached: true, Balanced: true, Hops: hops("10.0.1.1 172.16.0.1 172.16.0.4")}
}

// straight returns the trace of a flow that goes by the first spine.
func straight(n int, at float64) fabric.Trace {
	return fabric.Trace{Edge: flow(n).String(), State: fabric.PathValid, TracedAt: sec(at), Reached: true, Hops: hops("10.0.1.1 172.16.0.1 172.16.0.4")}
}

func addTraces(t *testing.T, s *Store, all ...fabric.Trace) {
	t.Helper()
	for _, tr := range all {
		if err := s.AddTrace(tr); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSprayRule1Declared(t *testing.T) {
	s := NewStore(sprayingGraph(t))
	// Before anything is known of the flow.
	if b := wantSprayed(t, s, flow(0), 10, 12, true); !b.Confirmed.Equal(sec(12)) {
		t.Errorf("confirmed at %s, want the end of the window", b.Confirmed)
	}
	// Answers of different packets may look like a path, or like one over a cable that is not there.
	addTraces(t, s, straight(0, 20), fabric.Trace{Edge: flow(1).String(), State: fabric.PathValid, TracedAt: sec(20), Reached: true, Hops: hops("10.0.1.1 172.16.0.1 172.16.0.6")})
	if b := wantSprayed(t, s, flow(0), 19, 22, true); !b.Confirmed.Equal(sec(20)) {
		t.Errorf("confirmed at %s, want the time of the trace", b.Confirmed)
	}
	wantSprayed(t, s, flow(1), 19, 22, true)
	if n := len(s.cabling.mismatches); n != 0 {
		t.Errorf("%d flows show cables that are elsewhere", n)
	}
	if b, ok := s.CurrentBinding(flow(0)); !ok || !b.Sprayed || len(b.Candidates) != 2 {
		t.Errorf("now: sprayed %t, %d candidates", b.Sprayed, len(b.Candidates))
	}
	// Reports of switches are of single packets as well.
	r := &rig{t: t, s: NewSightings(NewStore(sprayingGraph(t)), ports), version: map[string]uint64{}, instance: "i"}
	r.begin(10)
	wantSprayed(t, r.s.store, flow(0), 10, 12, true)
	// A reply has the same paths, the other way.
	b, _ := s.BindingAt(fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1", Reply: true}, sec(10), sec(12))
	if !b.Sprayed || len(b.Candidates) != 2 || b.Candidates[0][0].Switch != "leaf2" || b.Candidates[0][0].In != "dn1" || b.Candidates[0][2].Out != "dn1" {
		t.Errorf("a reply: sprayed %t, %v", b.Sprayed, b.Candidates)
	}
	// Cables that are found elsewhere change the paths.
	s.mu.Lock()
	s.applySwap(swap{a: "leaf1:up1", aFar: "spine1:dn1", b: "spine2:dn1", bFar: "leaf1:up2"})
	s.mu.Unlock()
	if b, _ := s.CurrentBinding(flow(0)); len(b.Candidates) != 2 || b.Candidates[0][0].Out == "up1" && b.Candidates[0][1].Switch == "spine1" {
		t.Errorf("after cables were swapped: %v", b.Candidates)
	}
	// What does not cross a spine is not sprayed.
	if b, _ := s.CurrentBinding(fabric.Flow{Src: "h1/eth1", Dst: "h3/eth1"}); b.Sprayed {
		t.Error("a flow within a leaf is sprayed")
	}
}

// reportPorts reports that leaf2 saw flows by ports with the times of first and last packet, in seconds.
func (r *rig) reportPorts(at float64, seen map[int][]sighting.Port) {
	r.t.Helper()
	since := r.version["leaf2"]
	r.version["leaf2"]++
	rep := &sighting.Report{Switch: "leaf2", Kind: sighting.KindEBPF, Instance: r.instance, Since: since, Version: r.version["leaf2"], At: sec(at + 0.05).Add(-behind), Through: sec(at + 0.05).Add(-behind), Fresh: 3 * time.Second}
	for n, all := range seen {
		rep.Flows = append(rep.Flows, sighting.FlowPorts{Flow: wire(n), Ports: all})
	}
	if err := r.s.ApplyReport("leaf2", rep, sec(at), sec(at+0.1)); err != nil {
		r.t.Fatal(err)
	}
}

// inTurn returns the ports of a flow that came by both spines in turn until a time.
func inTurn(at float64) []sighting.Port {
	return []sighting.Port{{Name: "up1", First: sec(at - 1).Add(-behind), Last: sec(at).Add(-behind), Count: 9}, {Name: "up2", First: sec(at - 0.9).Add(-behind), Last: sec(at).Add(-behind), Count: 9}}
}

// byOne returns the ports of a flow that came by one spine until a time.
func byOne(at float64) []sighting.Port {
	return []sighting.Port{{Name: "up1", First: sec(at - 1).Add(-behind), Last: sec(at).Add(-behind), Count: 9}}
}

func TestSprayRule2Sighted(t *testing.T) {
	r := newRig(t)
	s := r.s.store
	// A link that flaps moves half of the flows to and fro.
	half := map[int][]sighting.Port{}
	for n := range 8 {
		if half[n] = byOne(20); n%2 == 0 {
			half[n] = inTurn(20)
		}
	}
	r.reportPorts(20, half)
	r.s.Tick(sec(20.5))
	wantSprayed(t, s, flow(0), 21, 22, false)
	wantSprayed(t, s, flow(1), 21, 22, false)
	// Few flows show nothing.
	few := newRig(t)
	few.reportPorts(20, map[int][]sighting.Port{0: inTurn(20), 1: inTurn(20), 2: inTurn(20)})
	few.s.Tick(sec(20.5))
	wantSprayed(t, few.s.store, flow(0), 21, 22, false)
	// Most of the flows are sprayed, and so are those that were not seen in turn yet.
	most := map[int][]sighting.Port{}
	for n := range 8 {
		if most[n] = inTurn(30); n < 2 {
			most[n] = byOne(30)
		}
	}
	r.reportPorts(30, most)
	r.s.Tick(sec(30.5))
	wantSprayed(t, s, flow(0), 31, 32, true)
	wantSprayed(t, s, flow(7), 31, 32, true)
	wantSprayed(t, s, flow(7), 29, 31, false) // it was not known yet
	// The replies leave another leaf, of which nothing is known.
	if b, _ := s.BindingAt(fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1", Number: 7, Reply: true}, sec(31), sec(32)); b.Sprayed {
		t.Error("replies from a leaf that nothing is known of are sprayed")
	}
	// The leaf hashes flows again.
	all := map[int][]sighting.Port{}
	for n := range 8 {
		all[n] = byOne(40)
	}
	r.reportPorts(40, all)
	r.s.Tick(sec(40.5))
	wantSprayed(t, s, flow(7), 41, 42, false)
	// All flows have paths again, although no switch reports a change.
	r.must("leaf1", 50, true, "0:dn1 1:dn1 2:dn1 3:dn1 4:dn1 5:dn1 6:dn1 7:dn1")
	r.must("spine1", 50, true, "0:dn1 1:dn1 2:dn1 3:dn1 4:dn1 5:dn1 6:dn1 7:dn1")
	r.reportPorts(50, most)
	r.reportPorts(51, map[int][]sighting.Port{0: inTurn(51), 1: inTurn(51)})
	r.s.Tick(sec(53))
	wantSprayed(t, s, flow(7), 54, 55, true)
	r.quiet(60, "leaf1", "spine1")
	r.reportPorts(60, all)
	wantSprayed(t, s, flow(7), 61, 62, true)
	r.s.Tick(sec(61))
	for n := range 8 {
		r.want(n, fabric.PathValid, by(1))
	}
}

func TestSprayRule2Traced(t *testing.T) {
	s := NewStore(graph(t))
	addTraces(t, s, straight(0, 10), straight(1, 10), straight(2, 10), straight(3, 10))
	wantSprayed(t, s, flow(0), 10, 12, false)
	ask(t, s, flow(0), asked{10, 10, fabric.PathValid, by(1), 0})
	for n := range 12 {
		addTraces(t, s, split(n, 20))
	}
	wantSprayed(t, s, flow(0), 20, 22, true)
	wantSprayed(t, s, flow(0), 15, 22, false)
	// What is known of the time before stays.
	if b, _ := s.BindingAt(flow(0), sec(10), sec(10)); b.Sprayed || b.Path.CanonicalKey() != by(1).CanonicalKey() {
		t.Errorf("the window before: sprayed %t, path %q", b.Sprayed, b.Path.CanonicalKey())
	}
	for n := range 60 {
		addTraces(t, s, straight(n, 30))
	}
	wantSprayed(t, s, flow(40), 30, 32, false)
	addTraces(t, s, straight(0, 31))
	if b, _ := s.CurrentBinding(flow(0)); b.State != fabric.PathValid || b.Sprayed {
		t.Errorf("after the spraying: %s, sprayed %t", b.State, b.Sprayed)
	}
}

// TestSprayRule2Moved has traces of which every hop is answered by one switch, and another each time.
func TestSprayRule2Moved(t *testing.T) {
	bySpine := func(n, spine int, at float64) fabric.Trace {
		tr := straight(n, at)
		if spine == 2 {
			tr.Hops = hops("10.0.1.1 172.16.0.3 172.16.0.6")
		}
		return tr
	}
	s := NewStore(graph(t))
	for n := range 16 {
		addTraces(t, s, bySpine(n, 1, 10))
	}
	// Routes change once, for all flows, and the same trace may come again.
	for n := range 16 {
		addTraces(t, s, bySpine(n, 2, 20), bySpine(n, 2, 20))
	}
	wantSprayed(t, s, flow(0), 20, 22, false)
	for n := range 16 {
		addTraces(t, s, bySpine(n, 2, 30))
	}
	wantSprayed(t, s, flow(0), 30, 32, false)
	// A hop that is silent once is no other hop.
	for at := 40.0; at < 80; at += 10 {
		for n := range 16 {
			tr := bySpine(n, 2, at)
			if int(at)%20 == 0 {
				tr.Hops = hops("10.0.1.1 * 172.16.0.6")
			}
			addTraces(t, s, tr)
		}
	}
	wantSprayed(t, s, flow(0), 80, 82, false)
	for i, at := range []float64{90, 100, 110, 120, 130} {
		for n := range 16 {
			addTraces(t, s, bySpine(n, 1+i%2, at))
		}
	}
	wantSprayed(t, s, flow(0), 130, 132, true)
	for at := 140.0; at < 190; at += 10 {
		for n := range 16 {
			addTraces(t, s, bySpine(n, 1, at))
		}
	}
	wantSprayed(t, s, flow(0), 185, 187, false)
}

func TestSprayedPathsAreBounded(t *testing.T) {
	for ways, want := range map[int]bool{maxSprayedPaths: true, maxSprayedPaths + 1: false} {
		topo := &fabric.Topology{Version: 1, Forwarding: fabric.Spray, Switches: []fabric.Switch{{Name: "leaf1", Role: fabric.Leaf}, {Name: "leaf2", Role: fabric.Leaf}, {Name: "spine1", Role: fabric.Spine}},
			Nodes: []fabric.Node{{Name: "h1", NICs: []fabric.NIC{{Node: "h1", Device: "eth1"}}}, {Name: "h2", NICs: []fabric.NIC{{Node: "h2", Device: "eth1"}}}},
			Links: []fabric.Link{{A: "h1/eth1", B: "leaf1:dn1"}, {A: "h2/eth1", B: "leaf2:dn1"}}}
		port := func(sw string, n int) string {
			return sw + ":p" + string(rune('a'+n/100)) + string(rune('a'+n/10%10)) + string(rune('a'+n%10))
		}
		topo.Links = append(topo.Links, fabric.Link{A: "leaf2:up1", B: "spine1:dn1"})
		for n := range ways {
			topo.Links = append(topo.Links, fabric.Link{A: port("leaf1", n), B: port("spine1", n)})
		}
		s := NewStore(fabric.NewGraph(topo))
		b, _ := s.CurrentBinding(fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"})
		if b.Sprayed != want || want && len(b.Candidates) != ways {
			t.Errorf("%d paths: sprayed %t, %d candidates", ways, b.Sprayed, len(b.Candidates))
		}
	}
}

// BenchmarkSprayedBinding binds windows of flows with 64 paths each.
func BenchmarkSprayedBinding(b *testing.B) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 32, SpinesPerPod: 64, NICsPerLeaf: 32, Forwarding: fabric.Spray}))
	s, nics := NewStore(g), g.NICIDs()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		f := fabric.Flow{Src: nics[i%len(nics)], Dst: nics[(i+len(nics)/2+i%7)%len(nics)]}
		if x, _ := s.BindingAt(f, sec(1), sec(2)); len(x.Candidates) != 64 {
			b.Fatal(f, len(x.Candidates))
		}
	}
}
