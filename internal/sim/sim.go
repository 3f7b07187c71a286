// Package sim simulates the probes of a fleet whose clocks it knows, so that
// what an estimator makes of their stamps can be held against the truth.
//
// The models are fixed, so that figures mean the same from one change to the
// next: stamps and queues in noise.go, clocks in clock.go, what goes wrong in
// scenario.go. A run is a function of its options: the same seed gives the same
// stamps.
//
//  1. Every edge is one path each way between a prober and a reflector. It
//     probes once per cadence; every pairEvery-th probe is followed by a twin,
//     pairGap later (TestCadence).
//  2. Times on the wire are true times. Every stamp is the reading of its
//     clock at the true time plus the noise of its kind (TestStamps).
//  3. A queue is either busy or not for all probes that meet it at one moment:
//     twins see one state (TestQueue).
//  4. A window ends with every second of true time. It holds what was sent up
//     to a cadence and a reflector's turn before its end: the reflector's stamp
//     of a reply comes with the next reply.
//  5. An error is an estimate less the truth, less the mean of that over the
//     locked clocks of the component (outliers left out of the mean), at the end
//     of a window (the instant of evaluation), when the window has been solved.
//     Errors in use are those of the same maps one window later (TestErrors).
//  6. Percentiles leave the warm-up out; coverage leaves out nothing that
//     claims a bound (TestErrors).
//
// # The oracle
//
// What an error is measured by is not the bare figure but the error of an oracle
// that sees the same samples. It knows the probability density of the noise on
// every directed path. Of a window of two seconds it knows neither the offset
// nor the rate of any clock nor the delay of any edge, nor how the rates
// wandered; of that it knows the law. (What temperature does to the rates, and
// what a scenario does, the oracle knows. That twins share the state of queues it
// does not use.) Its estimate is the likeliest place for all clocks and edges
// jointly. It climbs there from the truth, so that no maximum elsewhere misleads
// it. An estimator that remembers earlier windows may do better, and so may one
// that weighs all places instead of taking the likeliest: where clean packets are
// rare (load 0.9) the likelihood has many maxima, and the oracle errs by the
// peaks' places.
//
// Beside it stands what Cramer and Rao allow: one step of Fisher scoring from the
// truth, whose covariance is the inverse of the window's information. No unbiased
// estimator that is restricted to the window has less (the wander counts as
// Bayesian information, by van Trees), and where clean packets are rare none
// attains it.
package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
)

const (
	// window is how often estimates are made and looked at, ns.
	window = int64(time.Second)
	// leastWarmUp is before which no oracle has the two windows it looks at.
	leastWarmUp = 2 * time.Second
	// epoch is the reading of a right clock at true time 0. It is as large as readings of this decade, so that code
	// that rounds them fails here.
	epoch = int64(1_800_000_000_000_000_000)
)

// Edge is a path that clock A probes clock B over. Hops is how many queues
// (switches) there are on either way.
type Edge struct {
	A, B int
	Hops int
}

// EdgeDirection is one direction of an edge's path.
type EdgeDirection struct {
	Edge    int
	Reverse bool
}

// Options configure what is simulated.
type Options struct {
	Noise     Noise
	Load      float64 // share of time that a queue is busy
	Clocks    int
	Edges     []Edge
	Link      []EdgeDirection // the ways over the link that scenarios of a link concern
	Seed      uint64
	Scenario  string
	Duration  time.Duration // whole windows
	WarmUp    time.Duration // which percentiles leave out
	Cadence   time.Duration // between the probes of an edge
	PairEvery int           // one in how many probes has a twin
	PairGap   time.Duration // how long after it
}

func (o *Options) validate() error {
	switch {
	case o.Clocks < 2:
		return fmt.Errorf("clocks %d: two at least are expected", o.Clocks)
	case !(o.Load >= 0 && o.Load < 1):
		return fmt.Errorf("load %g: a number from 0 to less than 1 is expected", o.Load)
	case o.WarmUp < leastWarmUp:
		return fmt.Errorf("warm-up %v: %v at least are expected", o.WarmUp, leastWarmUp)
	case o.Duration <= o.WarmUp || o.Duration%time.Duration(window) != 0:
		return fmt.Errorf("duration %v: whole seconds beyond the warm-up of %v are expected", o.Duration, o.WarmUp)
	case o.Cadence < time.Millisecond || o.Cadence > 100*time.Millisecond:
		return fmt.Errorf("cadence %v: 1ms to 100ms are expected", o.Cadence)
	case o.PairEvery < 1:
		return fmt.Errorf("twins of one in %d probes: a positive number is expected", o.PairEvery)
	case o.PairGap <= 0 || o.PairGap > o.Cadence/2:
		return fmt.Errorf("pair gap %v: a positive time up to half the cadence is expected", o.PairGap)
	}
	for i, e := range o.Edges {
		if e.A < 0 || e.B < 0 || e.A >= o.Clocks || e.B >= o.Clocks || e.A == e.B {
			return fmt.Errorf("edge %d joins clocks %d and %d: two of %d are expected", i, e.A, e.B, o.Clocks)
		}
		if e.Hops < 1 || e.Hops > maxHops {
			return fmt.Errorf("edge %d has %d hops: 1 to %d are expected", i, e.Hops, maxHops)
		}
	}
	for _, w := range o.Link {
		if w.Edge < 0 || w.Edge >= len(o.Edges) {
			return fmt.Errorf("edge %d over the link: there are %d", w.Edge, len(o.Edges))
		}
	}
	return nil
}

// Estimator is the interface of the estimators under test.
type Estimator interface {
	// AddSample hands in one direction's stamps of an edge: prober to reflector, or
	// back when reverse.
	AddSample(edge int, reverse bool, sent, received int64)
	// CloseWindow ends a window of all clocks.
	CloseWindow(Window) error
	// MapOf returns the map of a clock, and false if it is not known.
	MapOf(clock int) (clocksync.Map, bool)
}

// Window is the end of a window.
type Window struct {
	Now    []int64       // what each clock shows
	At     time.Duration // since the start of the run, as a monotonic clock counts it
	Silent []bool        // clocks whose agents report nothing
	Dead   bool          // no coordinator takes reports or solves
}

// path is the state of one edge.
type path struct {
	Edge
	draw       *rand.Rand
	next       int64     // when the next probe leaves
	count      int       // of probes
	delay      [2]int64  // forward and reverse, waiting apart, ns
	queues     [2]queues // the hops of both ways
	addedDelay [2]int64  // delay that a scenario adds from its event on, ns
	down       span      // nothing comes back
}

// span is a time from its first element to before its second.
type span [2]int64

func (s span) contains(t int64) bool { return t >= s[0] && t < s[1] }

// run is the state of a simulation.
type run struct {
	o      Options
	clocks *clocks
	paths  []path
	load   [2]float64 // forward, reverse
	loss   float64    // share of probes without a reply
	event  int64      // when the scenario's fault strikes
	silent []int      // clocks whose agents are gone from then on
	dead   span       // no coordinator solves
	stamp  func(reading float64, r *rand.Rand) int64
	est    Estimator
	oracle *oracle
	probed int64 // probes that were answered
}

// Run simulates; progress is called after every window with the time simulated.
func Run(ctx context.Context, o Options, est Estimator, progress func(time.Duration)) (*Result, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	s := newRun(o, est)
	if err := s.arrangeScenario(); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	s.oracle = newOracle(s)
	t := newTally(s)
	w := Window{Now: make([]int64, o.Clocks), Silent: make([]bool, o.Clocks)}
	for end := window; end <= int64(s.o.Duration); end += window {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.clocks.advanceTo(end)
		s.oracle.openWindow(end)
		for e := range s.paths {
			s.sendProbes(e, end-s.stampDelay())
		}
		for c := range w.Now {
			w.Now[c] = epoch + int64(s.clocks.readingAt(c, end))
		}
		for _, c := range s.silent {
			w.Silent[c] = end > s.event
		}
		w.At, w.Dead = time.Duration(end), s.dead.contains(end)
		t.judgeUsed(&w)
		if err := est.CloseWindow(w); err != nil {
			return nil, fmt.Errorf("sim: the window that ends at %v: %w", w.At, err)
		}
		t.judgeSolved(&w)
		if w.At > o.WarmUp {
			t.addOracle(s.oracle.solveWindow(end))
		}
		progress(time.Duration(end))
	}
	return t.toResult(), nil
}

func newRun(o Options, est Estimator) *run {
	s := &run{o: o, est: est, clocks: newClocks(o.Clocks, o.Seed), paths: make([]path, len(o.Edges)), load: [2]float64{o.Load, o.Load}, stamp: o.Noise.stampFunc()}
	for i := range s.paths {
		r := rand.New(rand.NewPCG(o.Seed, uint64(i)|1<<40))
		e := o.Edges[i]
		d := switching*int64(e.Hops) + r.Int64N(cabling)*int64(e.Hops+1)
		s.paths[i] = path{Edge: e, draw: r, next: r.Int64N(int64(o.Cadence)), delay: [2]int64{d, d}}
	}
	return s
}

// stampDelay returns how long after a probe its sender has all four stamps, ns.
func (s *run) stampDelay() int64 { return int64(s.o.Cadence) + turn }

// sendProbes sends the probes of an edge that leave before a time.
func (s *run) sendProbes(e int, before int64) {
	p := &s.paths[e]
	gap := int64(s.o.PairGap)
	for p.next < before {
		left := s.sendProbe(e, p.next, 0)
		if p.count%s.o.PairEvery == 0 {
			s.sendProbe(e, p.next+gap, left+gap)
		}
		p.count++
		p.next += int64(s.o.Cadence)
	}
}

// sendProbe sends one probe at true time t1 and hands its samples on. Its reply
// leaves when the reflector's turn comes or, for a twin, at t3 or as soon as the
// twin is there. It returns when the reply left.
func (s *run) sendProbe(e int, t1, t3 int64) int64 {
	p := &s.paths[e]
	delay := p.delay
	if t1 >= s.event {
		delay[0] += p.addedDelay[0]
		delay[1] += p.addedDelay[1]
	}
	waited := p.queues[0].waitTime(t1, p.Hops, s.load[0], p.draw)
	t2 := t1 + delay[0] + waited
	if t3 == 0 {
		t3 = t2 + p.draw.Int64N(turn)
	}
	t3 = max(t3, t2)
	back := p.queues[1].waitTime(t3, p.Hops, s.load[1], p.draw)
	t4 := t3 + delay[1] + back
	if p.down.contains(t1) || s.loss > 0 && p.draw.Float64() < s.loss {
		return t3
	}
	c := s.clocks
	r1, r2, r3, r4 := c.readingAt(p.A, t1), c.readingAt(p.B, t2), c.readingAt(p.B, t3), c.readingAt(p.A, t4)
	s1, s2, s3, s4 := s.stamp(r1, p.draw), s.stamp(r2, p.draw), s.stamp(r3, p.draw), s.stamp(r4, p.draw)
	s.probed++
	s.est.AddSample(e, false, epoch+s1, epoch+s2)
	s.est.AddSample(e, true, epoch+s3, epoch+s4)
	s.oracle.addSample(e, 0, t1, float64(s2)-r2-(float64(s1)-r1)+float64(waited))
	s.oracle.addSample(e, 1, t1, float64(s4)-r4-(float64(s3)-r3)+float64(back))
	return t3
}
