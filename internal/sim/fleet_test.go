package sim

import (
	"testing"
	"time"
)

// TestFleet: agents, frame and followers find each other through the wire's
// formats; queues that are empty leave little to err about.
func TestFleet(t *testing.T) {
	var edges []Edge
	for i := range 8 {
		edges = append(edges, Edge{i, (i + 1) % 8, 1}, Edge{i, (i + 3) % 8, 3})
	}
	o := options(8, edges)
	o.Load, o.Duration = 0, 26*time.Second
	f := NewFleet(o, 100*time.Nanosecond)
	r, err := Run(t.Context(), o, f, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if r.SecondsToLock == nil || *r.SecondsToLock > 10 || r.Error.P50 > 100 || r.Windows != 6 || r.FinalStates["locked"] < 7 {
		t.Errorf("result %+v", r)
	}
	for c := range 8 {
		if m, ok := f.MapOf(c); !ok || m.Allowance == 0 || m.Peers != 4 {
			t.Errorf("clock %d: map %+v", c, m)
		}
	}
}

// TestFleetWithoutReports checks that a silent agent keeps the map that the frame predicts, and that without a
// coordinator all keep their last maps.
func TestFleetWithoutReports(t *testing.T) {
	o := options(4, []Edge{{0, 1, 1}, {1, 2, 1}, {2, 3, 1}, {3, 0, 1}, {0, 2, 1}})
	o.Load, o.Duration, o.Scenario = 0, 30*time.Second, "lost-agents"
	r, err := Run(t.Context(), o, NewFleet(o, 0), quiet)
	if err != nil {
		t.Fatal(err)
	}
	if r.States["holdover"] == 0 || r.Held == nil {
		t.Errorf("lost agents: states %v, held %+v", r.States, r.Held)
	}
	o.Scenario = "coordinator-dead"
	if r, err = Run(t.Context(), o, NewFleet(o, 0), quiet); err != nil {
		t.Fatal(err)
	}
	if r.Held == nil || r.Held.Claims < 500 {
		t.Errorf("coordinator dead: held %+v", r.Held)
	}
}

// TestSamplesAllocateNothing: millions of samples a run must cost no garbage.
func TestSamplesAllocateNothing(t *testing.T) {
	o := options(2, []Edge{{0, 1, 3}})
	s := newRun(o, idle{})
	s.oracle = newOracle(s)
	s.clocks.advanceTo(window)
	before := int64(0)
	if n := testing.AllocsPerRun(5, func() {
		before += int64(100 * time.Millisecond)
		s.sendProbes(0, before)
	}); n != 0 {
		t.Errorf("%v allocations in 12 probes", n)
	}
}

// BenchmarkProbes measures the cost of a probe: both samples and what the oracle keeps.
func BenchmarkProbes(b *testing.B) {
	o := options(64, ring(64))
	o.Load = 0.8
	s := newRun(o, idle{})
	s.oracle = newOracle(s)
	end := int64(0)
	for b.Loop() {
		end += window
		s.clocks.advanceTo(end)
		s.oracle.openWindow(end)
		for e := range s.paths {
			s.sendProbes(e, end-s.stampDelay())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(s.probed), "ns/probe")
}
