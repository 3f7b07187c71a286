package sim

import (
	"testing"
	"time"
)

// TestEvents: what happens to a clock counts once and for this clock, and what
// happens to paths, queues or agents, and the weather, for none.
func TestEvents(t *testing.T) {
	const n = 16
	var edges []Edge
	for i := range n {
		for j, stride := range []int{1, 3, 6} {
			edges = append(edges, Edge{i, (i + stride) % n, 1 + 2*(j/2)})
		}
	}
	type counts struct{ steps, drifts uint32 }
	for scenario, want := range map[string]counts{
		"none": {}, "step": {steps: 1}, "drift": {drifts: 1}, "temperature": {}, "frozen": {},
		"asymmetry-later": {}, "delay": {}, "route-change": {}, "route-change-one-way": {}, "loss": {}, "queue-asymmetry": {},
		"lost-agents": {}, "partition": {},
	} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			o := options(n, edges)
			o.Noise, o.Scenario, o.Duration = Kernel, scenario, 28*time.Second
			o.Link = []EdgeDirection{{0, false}, {4, true}, {10, false}}
			f := NewFleet(o, 100*time.Nanosecond)
			if _, err := Run(t.Context(), o, f, quiet); err != nil {
				t.Fatal(err)
			}
			victim := newRun(o, idle{}).victimClock()
			for c := range n {
				expected := counts{}
				if c == victim {
					expected = want
				}
				if m, ok := f.MapOf(c); !ok || (counts{m.Steps, m.Drifts}) != expected {
					t.Errorf("clock %d (the victim is %d): %d steps and %d drifts (%v), want %+v", c, victim, m.Steps, m.Drifts, ok, expected)
				}
			}
		})
	}
}
