package paths

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

// bySpine returns a trace of a flow of which every hop limit was answered once, by way of a spine.
func bySpine(n, spine int, at float64) fabric.Trace {
	tr := straight(n, at)
	if spine == 2 {
		tr.Hops = hops("10.0.1.1 172.16.0.3 172.16.0.6")
	}
	return tr
}

// wantMode checks which switch is said to choose otherwise than the topology file says, "" for none, and returns what is said.
func wantMode(t *testing.T, s *Store, at float64, sw string, sprays bool) fabric.SwitchMode {
	t.Helper()
	got := s.Modes(sec(at))
	if sw == "" {
		if len(got) > 0 {
			t.Errorf("at %g: %+v, want nothing", at, got)
		}
		return fabric.SwitchMode{}
	}
	if len(got) != 1 || got[0].Switch != sw || got[0].Sprays != sprays {
		t.Errorf("at %g: %+v, want %s with sprays %t", at, got, sw, sprays)
		return fabric.SwitchMode{}
	}
	return got[0]
}

func TestSprayRule5NoticedByTraces(t *testing.T) {
	for _, c := range []struct {
		name string
		// trace returns how a flow is traced in a round, of which one takes ten seconds.
		trace  func(n, round int) fabric.Trace
		sprays bool
	}{
		{"flows keep their paths", func(n, round int) fabric.Trace { return bySpine(n, 1+n%2, float64(10*round)) }, false},
		{"routes move once, all flows", func(n, round int) fabric.Trace { return bySpine(n, 1+round/5, float64(10*round)) }, false},
		{"routes move once, in the middle of one trace", func(n, round int) fabric.Trace {
			if round == 5 && n == 3 {
				return split(n, 50)
			}
			return bySpine(n, 1+round/5, float64(10*round))
		}, false},
		{"a link goes down and comes back", func(n, round int) fabric.Trace {
			if round == 5 {
				return bySpine(n, 2, 50)
			}
			return bySpine(n, 1+n%2, float64(10*round))
		}, false},
		{"several switches answer", func(n, round int) fabric.Trace {
			if round >= 5 {
				return split(n, float64(10*round))
			}
			return bySpine(n, 1, float64(10*round))
		}, true},
		{"other hops each time", func(n, round int) fabric.Trace { return bySpine(n, 1+(n+round)%2, float64(10*round)) }, true},
	} {
		s := NewStore(graph(t))
		for round := 1; round < 10; round++ {
			for n := range 12 {
				addTraces(t, s, c.trace(n, round))
			}
		}
		if !c.sprays {
			wantMode(t, s, 95, "", false)
			continue
		}
		m := wantMode(t, s, 95, "leaf1", true)
		if m.Since.Before(sec(10)) || m.Since.After(sec(90)) || m.TracesSplit < m.Traces/2 || m.Traces == 0 || !slices.Equal(m.Leaves, []string{"leaf1"}) {
			t.Errorf("%s: %+v", c.name, m)
		}
	}
}

// Hop-limited probes of a flow that two switches answer in turn show spraying, and those that another switch answers from a time on do
// not.
func TestSprayRule2HopProbes(t *testing.T) {
	spine1, spine2, leaf := netip.MustParseAddr("172.16.0.1"), netip.MustParseAddr("172.16.0.3"), netip.MustParseAddr("10.0.1.1")
	for _, c := range []struct {
		name   string
		answer func(second int) netip.Addr
		ttl    int
		sprays bool
	}{
		{"one switch", func(int) netip.Addr { return spine1 }, 2, false},
		{"routes move", func(second int) netip.Addr { return []netip.Addr{spine1, spine2}[second/10] }, 2, false},
		{"in turn", func(second int) netip.Addr { return []netip.Addr{spine1, spine2}[second%2] }, 2, true},
		{"in turn, at a hop that all ways have", func(second int) netip.Addr { return []netip.Addr{leaf, spine2}[second%2] }, 1, false},
		{"beyond the path", func(second int) netip.Addr { return []netip.Addr{leaf, spine2}[second%2] }, 9, false},
	} {
		s := NewStore(graph(t))
		counts := map[netip.Addr]uint64{}
		for second := range 20 {
			counts[c.answer(second)]++
			s.AddHopCounts(flow(0), []fabric.HopCount{{TTL: c.ttl, Sent: uint64(second + 1), Answered: counts}}, sec(float64(second)))
		}
		if !c.sprays {
			wantMode(t, s, 20, "", false)
			continue
		}
		if m := wantMode(t, s, 20, "leaf1", true); m.HopProbes == 0 || m.HopProbes != m.Traces {
			t.Errorf("%s: %+v", c.name, m)
		}
		wantSprayed(t, s, flow(3), 20, 21, true)
	}
	// Routes of many flows move between two readings.
	moving := NewStore(graph(t))
	for n := range 8 {
		for second, from := range []netip.Addr{spine1, spine2, spine2} {
			moving.AddHopCounts(flow(n), []fabric.HopCount{{TTL: 2, Sent: uint64(second + 1), Answered: map[netip.Addr]uint64{from: uint64(second + 1)}}}, sec(float64(second)))
		}
	}
	wantMode(t, moving, 3, "", false)
	// Counts that are read seldom have both switches, and begin anew with another grant.
	s := NewStore(graph(t))
	for n := range 8 {
		some := uint64(n%4 + 1)
		s.AddHopCounts(flow(0), []fabric.HopCount{{TTL: 2, Sent: 4 * some, Answered: map[netip.Addr]uint64{spine1: 2 * some, spine2: 2 * some}}}, sec(float64(10*n)))
	}
	wantMode(t, s, 80, "leaf1", true)
}

// Only the spines report. While both see a flow, it is split, and not while it moves from the one to the other.
func TestSprayRule2SightedInParallel(t *testing.T) {
	for _, sprays := range []bool{false, true} {
		r := newRig(t)
		all := ""
		for n := range 8 {
			all += fmt.Sprintf("%d:dn1 ", n)
		}
		r.must("spine1", 10, true, all)
		r.must("spine2", 10, true, "")
		r.s.Tick(sec(10.5))
		// All flows come to the second spine. The first one has seen them within Fresh.
		r.must("spine2", 20, false, all)
		r.quiet(20.5, "spine1")
		r.s.Tick(sec(21))
		wantMode(t, r.s.store, 21, "", false)
		if sprays {
			r.quiet(25, "spine1", "spine2")
		} else {
			r.must("spine1", 25, false, "", 0, 1, 2, 3, 4, 5, 6, 7)
			r.quiet(25, "spine2")
		}
		r.s.Tick(sec(25.5))
		if !sprays {
			wantMode(t, r.s.store, 26, "", false)
			wantSprayed(t, r.s.store, flow(0), 26, 27, false)
			continue
		}
		if !r.s.store.IsSpraying("leaf1") || r.s.store.IsSpraying("leaf2") {
			t.Error("want leaf1 to spray, and leaf2 not")
		}
		if m := wantMode(t, r.s.store, 26, "leaf1", true); m.Seen != 8 || m.SeenSplit != 8 || !m.Since.Equal(sec(25.5)) {
			t.Errorf("%+v", m)
		}
		wantSprayed(t, r.s.store, flow(0), 26, 27, true)
		// One spine sees them no more.
		r.must("spine1", 30, false, "", 0, 1, 2, 3, 4, 5, 6, 7)
		r.quiet(30, "spine2")
		r.s.Tick(sec(31))
		wantMode(t, r.s.store, 32, "", false)
	}
}

// threeTiers returns the graph of two pods of a leaf and two spines, with two core switches of each plane.
func threeTiers(t *testing.T) *fabric.Graph {
	t.Helper()
	topo := &fabric.Topology{Version: 1, Nodes: []fabric.Node{{Name: "h1", NICs: []fabric.NIC{{Node: "h1", Device: "eth1"}}}, {Name: "h2", NICs: []fabric.NIC{{Node: "h2", Device: "eth1"}}}}}
	for _, sw := range []string{"leaf1", "leaf2"} {
		topo.Switches = append(topo.Switches, fabric.Switch{Name: sw, Role: fabric.Leaf})
	}
	for _, sw := range []string{"spineA1", "spineB1", "spineA2", "spineB2", "coreA1", "coreA2", "coreB1", "coreB2"} {
		topo.Switches = append(topo.Switches, fabric.Switch{Name: sw, Role: fabric.Spine})
	}
	link := func(a, b string) {
		topo.Links = append(topo.Links, fabric.Link{A: a + ":" + b, B: b + ":" + a})
	}
	for _, pod := range []string{"1", "2"} {
		topo.Links = append(topo.Links, fabric.Link{A: "h" + pod + "/eth1", B: "leaf" + pod + ":dn1"})
		for _, plane := range []string{"A", "B"} {
			link("leaf"+pod, "spine"+plane+pod)
			link("spine"+plane+pod, "core"+plane+"1")
			link("spine"+plane+pod, "core"+plane+"2")
		}
	}
	for i := range topo.Links {
		switch l := &topo.Links[i]; l.A {
		case "h1/eth1":
			l.AAddress = netip.MustParsePrefix("10.0.1.2/24")
		case "h2/eth1":
			l.AAddress = netip.MustParsePrefix("10.0.2.2/24")
		}
	}
	return fabric.NewGraph(topo)
}

// Packets part at a spine behind the leaf. Their flows are not bound to all paths of the leaf, and to none of them.
func TestSprayRule3PartsBehindTheLeaf(t *testing.T) {
	seen := func(at float64, names ...string) (out []sighting.Port) {
		for _, n := range names {
			out = append(out, sighting.Port{Name: n, First: sec(at - 1).Add(-behind), Last: sec(at).Add(-behind), Count: 9})
		}
		return out
	}
	for _, c := range []struct {
		name     string
		at       map[string][]string // the ports by which switches see all flows
		without  string              // has no agent
		switchAt string
	}{
		{"at the spine", map[string][]string{"leaf1": {"dn1"}, "spineA1": {"leaf1"}, "coreA1": {"spineA1"}, "coreA2": {"spineA1"}, "spineA2": {"coreA1", "coreA2"}, "leaf2": {"spineA2"}}, "", "spineA1"},
		{"at the leaf", map[string][]string{"leaf1": {"dn1"}, "spineA1": {"leaf1"}, "spineB1": {"leaf1"}, "coreA1": {"spineA1"}, "coreB1": {"spineB1"}, "spineA2": {"coreA1"}, "spineB2": {"coreB1"}, "leaf2": {"spineA2", "spineB2"}}, "", "leaf1"},
		{"not known where", map[string][]string{"leaf1": {"dn1"}, "spineA1": {"leaf1"}, "coreA1": {"spineA1"}, "coreA2": {"spineA1"}, "spineA2": {"coreA1", "coreA2"}, "leaf2": {"spineA2"}}, "spineB1", "leaf1"},
	} {
		g := threeTiers(t)
		s := NewSightings(NewStore(g), ports)
		for _, at := range []float64{20, 24} {
			for i := range g.Topo.Switches {
				sw := g.Topo.Switches[i].Name
				if sw == c.without {
					continue
				}
				rep := &sighting.Report{Switch: sw, Kind: sighting.KindEBPF, Instance: "i", Version: uint64(at), At: sec(at + 0.05).Add(-behind), Through: sec(at + 0.05).Add(-behind), Fresh: 3 * time.Second}
				for n := range 8 {
					if in := c.at[sw]; in != nil {
						rep.Flows = append(rep.Flows, sighting.FlowPorts{Flow: wire(n), Ports: seen(20, in...)})
					}
				}
				if err := s.ApplyReport(sw, rep, sec(at), sec(at+0.1)); err != nil {
					t.Fatal(err)
				}
			}
			s.Tick(sec(at + 0.5))
		}
		if m := wantMode(t, s.store, 25, c.switchAt, true); !slices.Equal(m.Leaves, []string{"leaf1"}) {
			t.Errorf("%s: %+v", c.name, m)
		}
		b, _ := s.store.BindingAt(flow(0), sec(25), sec(26))
		if b.State != fabric.PathUnknown || b.Sprayed != (c.switchAt == "leaf1") {
			t.Errorf("%s: %s, sprayed %t, notes %q", c.name, b.State, b.Sprayed, b.Notes)
		}
		// A trace that looks like a path is none.
		tr := fabric.Trace{Edge: flow(0).String(), State: fabric.PathValid, TracedAt: sec(30), Reached: true, Hops: hops("* * * * *")}
		if err := s.store.AddTrace(tr); err != nil {
			t.Fatal(err)
		}
		if b, _ := s.store.CurrentBinding(flow(0)); b.State != fabric.PathUnknown {
			t.Errorf("%s: after a trace: %s", c.name, b.State)
		}
	}
}

// With spray in the topology file, flows that stay on one path each for long show that it is not so.
func TestSprayRule5FlowsKeepOnePath(t *testing.T) {
	for _, c := range []struct {
		name   string
		trace  func(n, round int) fabric.Trace
		steady bool
	}{
		{"one path each", func(n, round int) fabric.Trace { return bySpine(n, 1+n%2, float64(60*round)) }, true},
		{"packets take both", func(n, round int) fabric.Trace { return bySpine(n, 1+(n+round)%2, float64(60*round)) }, false},
		{"several switches answer now and then", func(n, round int) fabric.Trace {
			if n == round {
				return split(n, float64(60*round))
			}
			return bySpine(n, 1, float64(60*round))
		}, false},
	} {
		s := NewStore(sprayingGraph(t))
		for round := 1; round <= 7; round++ {
			for n := range 8 {
				addTraces(t, s, c.trace(n, round))
			}
			if round == 4 {
				wantMode(t, s, 245, "", false) // not for long enough
			}
		}
		if !c.steady {
			wantMode(t, s, 425, "", false)
			continue
		}
		if m := wantMode(t, s, 425, "leaf1", false); !m.Since.Equal(sec(60)) || m.Traces != 48 {
			t.Errorf("%s: %+v", c.name, m)
		}
		// The file is still what decides: it may be right of what is not traced.
		wantSprayed(t, s, flow(0), 420, 425, true)
		wantMode(t, s, 900, "", false) // nothing was traced for long
	}
	// By sightings.
	for _, one := range []bool{true, false} {
		r := &rig{t: t, s: NewSightings(NewStore(sprayingGraph(t)), ports), version: map[string]uint64{}, instance: "i"}
		seen := map[int][]sighting.Port{}
		for n := range 8 {
			if seen[n] = byOne(20); !one {
				seen[n] = inTurn(20)
			}
		}
		r.reportPorts(20, seen)
		for at := 21.0; at < 400; at += 5 {
			r.reportPorts(at, nil)
			r.s.Tick(sec(at))
			if at < 300 {
				wantMode(t, r.s.store, at, "", false)
			}
		}
		if !one {
			wantMode(t, r.s.store, 400, "", false)
		} else if m := wantMode(t, r.s.store, 400, "leaf1", false); m.Seen != 8 {
			t.Errorf("%+v", m)
		}
	}
}

// Whatever single moves of routes do to flows is no spraying, and sprayed packets are, in the end without any flow that is bound to one
// path.
func TestModesOfDrawnTraces(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s := NewStore(graph(t))
		flows, way := 4+rng.IntN(20), make([]int, 24)
		for n := range way {
			way[n] = 1 + rng.IntN(2)
		}
		// trace is a trace of a flow whose hop limits are answered by way of a spine that is drawn for each packet.
		trace := func(n int, at float64, sprays bool) fabric.Trace {
			if !sprays {
				return bySpine(n, way[n], at)
			}
			if rng.IntN(8) < 3 { // the share of traces in which two packets of a hop limit differ
				return split(n, at)
			}
			return bySpine(n, 1+rng.IntN(2), at)
		}
		moves := rng.Perm(9)[:2]
		for round := 1; round <= 9; round++ {
			for n := range flows {
				if slices.Contains(moves, round) && rng.IntN(2) == 0 {
					way[n] = 3 - way[n]
				}
				addTraces(t, s, trace(n, float64(30*round+n), false))
			}
			if m := s.Modes(sec(float64(30*round + 25))); len(m) > 0 {
				t.Fatalf("seed %d: routes moved in rounds %v, and after round %d: %+v", seed, moves, round, m)
			}
		}
		for round := 10; round <= 40; round++ {
			for n := range flows {
				addTraces(t, s, trace(n, float64(30*round+n), true))
			}
		}
		if m := s.Modes(sec(1226)); len(m) != 1 || m[0].Since.Before(sec(300)) {
			t.Fatalf("seed %d: packets of %d flows are sprayed: %+v", seed, flows, m)
		}
		for n := range flows {
			wantSprayed(t, s, flow(n), 1226, 1228, true)
		}
	}
}
