package sim

import (
	"fmt"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
)

// Fleet represents the estimation of clocks in a real fleet, joined without a network: a pair for every edge at its
// prober, reports and updates as they travel, the frame that a coordinator solves, and the agents' followers. It is
// an Estimator.
type Fleet struct {
	pairs  []*clocksync.Pair // of the edges
	ids    []clocksync.PairID
	agents []agent // of the clocks
	clocks []string
	frame  *clocksync.Frame
	maps   []clocksync.ClockMap // as the agents have them; one without a name means none yet
	report clocksync.Report
	wire   []byte
}

// agent is a node of one NIC.
type agent struct {
	node     string
	edges    []int    // that it probes
	clocks   []string // its own and those it probes
	follower *clocksync.Follower
}

// NewFleet makes the estimators of a simulation's fleet. The allowance is by how
// much asymmetry may move the offset of two clocks.
func NewFleet(o Options, allowance time.Duration) *Fleet {
	kind := clocksync.Kernel
	if o.Noise == Hardware {
		kind = clocksync.Hardware
	}
	f := &Fleet{agents: make([]agent, o.Clocks), maps: make([]clocksync.ClockMap, o.Clocks), frame: clocksync.NewFrame(clocksync.FrameOptions{
		ID: 1, Allowance: func(clocksync.PairID) time.Duration { return allowance }})}
	nic := func(c int) string { return fmt.Sprintf("h%d/eth0", c+1) }
	for c := range f.agents {
		f.clocks = append(f.clocks, clocksync.ClockOf(nic(c), kind))
		f.agents[c] = agent{node: clocksync.ClockOf(nic(c), clocksync.Kernel), clocks: []string{f.clocks[c]}, follower: clocksync.NewFollower()}
	}
	for i, e := range o.Edges {
		f.pairs = append(f.pairs, clocksync.NewPair(kind))
		f.ids = append(f.ids, clocksync.PairID{Src: nic(e.A), Dst: nic(e.B), Flow: i, Kind: kind})
		a := &f.agents[e.A]
		a.edges = append(a.edges, i)
		a.clocks = append(a.clocks, f.clocks[e.B])
	}
	return f
}

// AddSample implements Estimator.
func (f *Fleet) AddSample(edge int, reverse bool, sent, received int64) {
	if reverse {
		f.pairs[edge].AddReverse(sent, received)
	} else {
		f.pairs[edge].AddForward(sent, received)
	}
}

// CloseWindow implements Estimator.
func (f *Fleet) CloseWindow(w Window) error {
	for c := range f.agents {
		if w.Silent[c] {
			continue
		}
		a, r := &f.agents[c], &f.report
		r.Node, r.End, r.Pairs = a.node, w.Now[c], r.Pairs[:0]
		for _, e := range a.edges {
			estimate := f.pairs[e].CloseWindow(w.Now[c])
			a.follower.AddEstimate(f.ids[e], estimate, w.At)
			r.Pairs = append(r.Pairs, clocksync.PairEstimate{ID: f.ids[e], Estimate: estimate})
		}
		if w.Dead {
			continue
		}
		f.wire = r.AppendTo(f.wire[:0])
		heard, err := clocksync.ParseReport(f.wire)
		if err != nil {
			return err
		}
		f.frame.AddReport(heard, w.At)
	}
	if w.Dead {
		return nil
	}
	f.frame.Solve(w.At)
	for c := range f.agents {
		if err := f.updateAgent(c, &w); err != nil {
			return err
		}
	}
	return nil
}

// updateAgent gives an agent its update; of one that is silent the coordinator's own
// word counts.
func (f *Fleet) updateAgent(c int, w *Window) error {
	if w.Silent[c] {
		f.maps[c] = clocksync.ClockMap{}
		if m, ok := f.frame.MapOf(f.clocks[c]); ok {
			f.maps[c] = clocksync.ClockMap{Clock: f.clocks[c], Map: m}
		}
		return nil
	}
	a := &f.agents[c]
	f.wire = f.frame.UpdateFor(a.clocks).AppendTo(f.wire[:0])
	update, err := clocksync.ParseUpdate(f.wire)
	if err != nil {
		return err
	}
	a.follower.ApplyUpdate(update, w.At, true)
	f.maps[c] = clocksync.ClockMap{}
	for _, m := range update.Maps {
		if m.Clock == f.clocks[c] {
			f.maps[c] = m
		}
	}
	for _, e := range a.edges {
		if r, sigma, ok := a.follower.MapHint(f.ids[e], w.Now[c], w.At); ok {
			f.pairs[e].SetHint(r, sigma)
		}
	}
	return nil
}

// MapOf implements Estimator.
func (f *Fleet) MapOf(clock int) (clocksync.Map, bool) {
	m := &f.maps[clock]
	return m.Map, m.Clock != ""
}
