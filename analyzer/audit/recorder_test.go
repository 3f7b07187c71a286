package audit

import (
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// observation returns a window of the flow a/eth0>b/eth0#0 by a path of one switch.
func observation(change func(*fabric.Observation)) *Window {
	p50, bound := int64(1000), int64(50)
	o := &fabric.Observation{Edge: "a/eth0>b/eth0#0", Src: "a/eth0", Dst: "b/eth0", Class: "be", Sent: 100, PathState: fabric.PathValid,
		Path: fabric.Path{{Switch: "leaf1", In: "leaf1:1", Out: "leaf1:2"}}, OWD: &fabric.Quantiles{P50: &p50}, ClockErrorNS: &bound}
	change(o)
	return &Window{Observations: []*fabric.Observation{o}}
}

func TestRecorderLeavesOutWhatIsNoEvidence(t *testing.T) {
	for name, x := range map[string]struct {
		change        func(*fabric.Observation)
		flows, delays int
		path, clock   bool
	}{
		"a window":            {func(*fabric.Observation) {}, 1, 1, true, true},
		"a starved host":      {func(o *fabric.Observation) { o.HostSuspect = true }, 0, 0, false, false},
		"a temporary flow":    {func(o *fabric.Observation) { o.Edge = "a/eth0>b/eth0#60" }, 0, 0, false, false},
		"in-band signals":     {func(o *fabric.Observation) { o.Class = fabric.ClassCSIG }, 0, 0, false, false},
		"a lost clock":        {func(o *fabric.Observation) { o.ClockSuspect = true }, 1, 0, true, false},
		"a clock of no bound": {func(o *fabric.Observation) { o.ClockErrorNS = nil }, 1, 1, true, false},
		"no delay":            {func(o *fabric.Observation) { o.OWD = nil }, 1, 0, true, false},
		"no median":           {func(o *fabric.Observation) { o.OWD = &fabric.Quantiles{} }, 1, 0, true, true},
		"sprayed":             {func(o *fabric.Observation) { o.Sprayed = true }, 1, 1, false, true},
		"stale, no loss":      {func(o *fabric.Observation) { o.PathState = fabric.PathStale }, 1, 1, false, true},
		"stale, with loss":    {func(o *fabric.Observation) { o.PathState, o.Lost = fabric.PathStale, 100 }, 1, 1, true, true},
		"no flow":             {func(o *fabric.Observation) { o.Edge = "?" }, 0, 0, false, false},
	} {
		r := NewRecorder(fabric.NewGraph(&fabric.Topology{}), start)
		r.AddWindow(observation(x.change))
		e := r.Evidence(start, nil, nil)
		if len(e.Flows) != x.flows {
			t.Errorf("%s: %d flows, want %d", name, len(e.Flows), x.flows)
			continue
		}
		if x.flows == 0 {
			continue
		}
		if f := e.Flows[0]; len(f.Medians) != x.delays || (len(f.Path) > 0) != x.path || (f.ClockErrorNS != nil) != x.clock {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// A loss of which the direction is not known is placed on no link: the check of loss is unknown.
func TestLossOfTheRoundTripIsPlacedNowhere(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	e := s.observe()
	e.Flows[0].RoundTrip = 5
	r := Run(e, DefaultCriteria(), whole(s.g))
	if a3 := checkOf(t, &r, "A3"); a3.Status != Unknown || len(a3.Items) != 1 || a3.Items[0].Population != 1 {
		t.Errorf("%+v", a3)
	}
	rec := NewRecorder(fabric.NewGraph(&fabric.Topology{}), start)
	rec.AddWindow(observation(func(o *fabric.Observation) { o.Lost, o.LossScope, o.OWD = 100, fabric.LossRoundTrip, nil }))
	if f := rec.Evidence(start, nil, nil).Flows[0]; f.RoundTrip != 100 || f.Lost != 0 || f.Sent != 0 {
		t.Errorf("%+v", f)
	}
}

// A clock without a bound in one window has none, whatever the others have.
func TestRecorderForgetsTheBoundOfDelays(t *testing.T) {
	r := NewRecorder(fabric.NewGraph(&fabric.Topology{}), start)
	for _, known := range []bool{true, false, true} {
		r.AddWindow(observation(func(o *fabric.Observation) {
			if !known {
				o.ClockErrorNS = nil
			}
		}))
	}
	if f := r.Evidence(start, nil, nil).Flows[0]; f.ClockErrorNS != nil || len(f.Medians) != 3 || f.Sent != 300 {
		t.Errorf("%+v", f)
	}
}

// Steps are those during the audit. An agent that was restarted counts from 0.
func TestRecorderCountsStepsDuringTheAudit(t *testing.T) {
	r := NewRecorder(fabric.NewGraph(&fabric.Topology{}), start)
	for _, n := range []float64{7, 7, 8, 0, 0, 1} {
		r.AddWindow(&Window{Clocks: map[string]ClockState{"a/eth0": {State: lockedState, Steps: &n}}})
	}
	if k := r.Evidence(start, nil, nil).Clocks["a/eth0"]; k.Steps != 2 || k.Windows != 6 || k.Locked != 6 {
		t.Errorf("%+v", k)
	}
}

// A flow whose path changed has a record for each, and at most MaxWindows delays.
func TestRecorderKeepsPathsApartAndIsBounded(t *testing.T) {
	r := NewRecorder(fabric.NewGraph(&fabric.Topology{}), start)
	for i := range 2*MaxWindows + 1 {
		r.AddWindow(observation(func(o *fabric.Observation) {
			if i == 0 {
				o.Path = fabric.Path{{Switch: "leaf2", In: "leaf2:1", Out: "leaf2:2"}}
			}
		}))
	}
	e := r.Evidence(start, nil, nil)
	if len(e.Flows) != 2 || e.Flows[0].Windows != 2*MaxWindows || len(e.Flows[0].Medians) != MaxWindows || e.Flows[1].Windows != 1 {
		t.Errorf("%+v", e.Flows)
	}
}
