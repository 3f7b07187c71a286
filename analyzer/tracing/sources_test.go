package tracing

import (
	"errors"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/judge"
)

// Observations of flows between InfiniBand NICs get the path of the forwarding tables
// that two readings around their window confirm.
func TestLoopBindsByForwardingTables(t *testing.T) {
	f := worldtest.TreeSubnet(t)
	topo, _ := f.BuildTopology()
	now := time.Unix(1_800_000_000, 0)
	var failed error
	l := NewSources(Options{Store: paths.NewStore(fabric.NewGraph(topo)), Log: slog.New(slog.DiscardHandler), Subnets: []Subnet{{}}})
	read := func() {
		now = now.Add(time.Second)
		l.applyReading(0, ibfabric.Reading{Fabric: f, Begun: now, Ended: now.Add(10 * time.Millisecond)}, failed)
	}
	bound := func(start time.Time) *fabric.Observation {
		o := &fabric.Observation{Edge: "h0/hca>h3/hca#0/r", Src: "h3/hca", Dst: "h0/hca", Start: start, WindowNS: int64(time.Second)}
		l.BindPath(o)
		return o
	}
	read()
	start := now.Add(20 * time.Millisecond)
	if o := bound(start); o.PathState != fabric.PathStale {
		t.Errorf("after one reading: %s %v", o.PathState, o.Path)
	}
	read()
	read()
	if o := bound(start); o.PathState != fabric.PathValid || o.Path.CanonicalKey() != "leaf1[2>3] spine0[2>1] leaf0[3>1]" {
		t.Errorf("between readings: %s %v", o.PathState, o.Path)
	}
	failed = errors.New("no answer")
	read()
	if o := bound(now); o.PathState != fabric.PathStale {
		t.Errorf("after a reading that failed: %s %v", o.PathState, o.Path)
	}
}

// TestSprayedAgain has a flow with one path while a link is down, and with two for each of its packets once the link is back: windows
// after that are of packets that took both, also if all of them were lost.
func TestSprayedAgain(t *testing.T) {
	one := worldtest.TreeSubnet(t)
	topo, _ := one.BuildTopology()
	two := one.WithTables(one.LFTs)
	leaf, ok := two.ByName("leaf1")
	lid, err := two.FindLID("h0/hca")
	if !ok || err != nil {
		t.Fatal(leaf, err)
	}
	two.Adaptive = make([]*ibfabric.Adaptive, two.Switches)
	two.Adaptive[leaf.Node] = ibfabric.NewAdaptive(1, map[ibfabric.LID][]uint8{lid: {3, 4}})
	now := time.Unix(1_800_000_000, 0)
	s := NewSources(Options{Store: paths.NewStore(fabric.NewGraph(topo)), Log: slog.New(slog.DiscardHandler), Subnets: []Subnet{{}}})
	read := func(f *ibfabric.Fabric) {
		now = now.Add(time.Second)
		s.applyReading(0, ibfabric.Reading{Fabric: f, Begun: now, Ended: now.Add(10 * time.Millisecond)}, nil)
	}
	bound := func(start time.Time, lost uint64) *fabric.Observation {
		o := &fabric.Observation{Edge: "h0/hca>h3/hca#0/r", Src: "h3/hca", Dst: "h0/hca", Start: start, WindowNS: int64(time.Second), Sent: 100, Lost: lost}
		s.BindPath(o)
		return o
	}
	read(one)
	bound(now, 0)
	read(one)
	read(one)
	before := now.Add(-500 * time.Millisecond)
	read(two)
	start := now.Add(20 * time.Millisecond)
	read(two)
	read(two)
	for _, lost := range []uint64{0, 100} {
		if o := bound(start, lost); !o.Sprayed || len(o.Paths) != 2 || o.PathState != fabric.PathUnknown {
			t.Errorf("%d lost: sprayed %v over %d paths, %s", lost, o.Sprayed, len(o.Paths), o.PathState)
		}
	}
	if o := bound(before, 0); o.Sprayed {
		t.Error("a window that began with one path is sprayed")
	}
}

// tracedTwice returns sources with two traces of a flow, four seconds apart, that has another path in the second, which is changed before it
// is added. The first is at the returned moment.
func tracedTwice(t *testing.T, change func(second *fabric.Trace)) (*Sources, fabric.Flow, []fabric.Path, time.Time) {
	t.Helper()
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 8)
	s := NewSources(Options{Store: paths.NewStore(w.Graph), Log: slog.New(slog.DiscardHandler)})
	e := fabric.Flow{Src: "h1/eth1", Dst: "h8/eth1"}
	ways := w.Graph.ShortestPaths("h1/eth1", "h8/eth1", 2)
	at := time.Unix(100000, 0)
	for i, p := range ways {
		w.Paths[e] = p
		trace := w.TraceOf(e, at.Add(time.Duration(i)*4*time.Second))
		if i == 1 {
			change(&trace)
		}
		if err := s.opts.Store.AddTrace(trace); err != nil {
			t.Fatal(err)
		}
	}
	return s, e, ways, at
}

// TestLostFlowsTookTheOldPath: between two traces a flow may have taken
// either path, unless all it sent was lost: the new one carries packets.
func TestLostFlowsTookTheOldPath(t *testing.T) {
	s, e, ways, at := tracedTwice(t, func(*fabric.Trace) {})
	for _, tt := range []struct {
		lost  uint64
		state fabric.PathState
		path  string
	}{{100, fabric.PathStale, ways[0].CanonicalKey()}, {50, fabric.PathUnknown, ""}, {0, fabric.PathUnknown, ""}} {
		o := &fabric.Observation{Edge: e.String(), Src: e.Src, Dst: e.Dst, Start: at.Add(time.Second), WindowNS: 1e9, Sent: 100, Lost: tt.lost}
		s.BindPath(o)
		if o.PathState != tt.state || o.Path.CanonicalKey() != tt.path || (tt.path == "") != (len(o.Paths) == 2) {
			t.Errorf("%d of 100 lost: %s %q, %d candidates; want %s %q", tt.lost, o.PathState, o.Path.CanonicalKey(), len(o.Paths), tt.state, tt.path)
		}
	}
}

// TestLostFlowsThatWereSeenElsewhere: a trace that does not come to its end shows another switch than that of the path that is known. What
// is lost from then on is not lost on that path.
func TestLostFlowsThatWereSeenElsewhere(t *testing.T) {
	s, e, ways, at := tracedTwice(t, func(second *fabric.Trace) {
		second.Reached, second.State, second.Hops = false, fabric.PathUnknown, second.Hops[:2]
	})
	o := &fabric.Observation{Edge: e.String(), Src: e.Src, Dst: e.Dst, Start: at.Add(5 * time.Second), WindowNS: 1e9, Sent: 100, Lost: 100}
	if changed := s.BindPath(o); !changed || o.PathState != fabric.PathUnknown || len(o.Path) > 0 || len(o.Paths) != 1 || o.Paths[0].CanonicalKey() != ways[1].CanonicalKey() {
		t.Errorf("changed %v: %s %v, candidates %v", changed, o.PathState, o.Path, o.Paths)
	}
}

// TestDeclaredSprayIsBound checks the windows of a fabric whose topology says that it sprays, and that its flows are not traced
// again and again.
func TestDeclaredSprayIsBound(t *testing.T) {
	g := worldtest.NewClos(t, 2, 4, 2)
	g.Topo.Forwarding = fabric.Spray
	now := time.Unix(1_800_000_000, 0)
	s := NewSources(Options{Store: paths.NewStore(g), Log: slog.New(slog.DiscardHandler), Agents: HTTPAgents{}})
	flows := map[string]bool{"h1/eth1>h3/eth1#0": true, "h1/eth1>h3/eth1#0/r": true, "h1/eth1>h2/eth1#0": false}
	var findings []judge.Finding
	for edge, sprayed := range flows {
		f, err := fabric.ParseFlow(edge)
		if err != nil {
			t.Fatal(err)
		}
		src, dst := f.Endpoints()
		o := &fabric.Observation{Edge: edge, Src: src, Dst: dst, Start: now, WindowNS: int64(time.Second), Sent: 100, Lost: 100}
		if changed := s.BindPath(o); changed {
			t.Errorf("%s: its path changed", edge)
		}
		if o.Sprayed != sprayed || o.PathState != fabric.PathUnknown || len(o.Path) > 0 || sprayed && len(o.Paths) != len(g.ShortestPaths(src, dst, 64)) {
			t.Errorf("%s: sprayed %t, %s %v, %d paths", edge, o.Sprayed, o.PathState, o.Path, len(o.Paths))
		}
		findings = append(findings, judge.Finding{Flow: f, Obs: o, Condition: judge.Degraded})
	}
	s.Tracer().RequestTraces(&Demand{Now: now, Findings: findings, Interval: time.Second, Pending: maps.Keys(map[fabric.Flow]bool{}), Watched: maps.Keys(map[fabric.Flow]bool{})})
	for e := range s.Tracer().running {
		if flows[e.String()] {
			t.Errorf("%s is to be traced, although it has no path", e)
		}
	}
	if len(s.Tracer().running) != 1 {
		t.Errorf("%d flows are to be traced, want the one within a leaf", len(s.Tracer().running))
	}
}
