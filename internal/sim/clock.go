package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// How a clock goes.
const (
	offsetRange = 5e9   // ns: offsets at the start, either way
	driftRange  = 30e-6 // rates at the start, either way
	// wander is by how much a rate walks, per square root of a second.
	wander = 0.1e-6 / 7.745966692 // 0.1 ppm in a minute
	// temperature is by how much a rate changes when the temperature does, and
	// weather how often that is. A crystal has mass: its rate approaches the new
	// value exponentially, with the time constant inertia. A change at once within
	// the last tenths of a second of a window is seen by no causal estimator, and
	// would alone cost more than one window in 10,000.
	temperature = 1e-6
	weather     = 10 * time.Minute
	inertia     = 30 * time.Second
	// tick is how often a rate changes, ns. Within one a walk would move a clock
	// by less than 0.7 ns.
	tick  = int64(200 * time.Millisecond)
	ticks = 16 // kept, of each clock: those of a window and some
)

// segment is a tick of one clock.
type segment struct {
	offset      float64 // reading less true time at its start, ns
	rate        float64 // what the clock gains
	rateWalk    float64 // by how much wander changed the rate at its start
	pendingRate float64 // by how much temperature is still going to change the rate
}

// change represents the change of a clock by a scenario at the start of a tick.
type change struct {
	clock int
	at    int64   // true time, a multiple of tick
	step  float64 // ns
	rate  float64
	stops bool
}

type clocks struct {
	draw    []*rand.Rand
	segs    []segment // ticks of every clock, as a ring
	last    int64     // number of the tick that was drawn last
	changes []change
}

func newClocks(n int, seed uint64) *clocks {
	c := &clocks{draw: make([]*rand.Rand, n), segs: make([]segment, n*ticks)}
	for i := range n {
		r := rand.New(rand.NewPCG(seed, uint64(i)|1<<41))
		c.draw[i] = r
		c.segs[i*ticks] = segment{offset: math.Round(offsetRange * (2*r.Float64() - 1)), rate: driftRange * (2*r.Float64() - 1)}
	}
	return c
}

// advanceTo draws the ticks up to the one that starts at a true time.
func (c *clocks) advanceTo(to int64) {
	sigma := wander * math.Sqrt(float64(tick)/1e9)
	odds := float64(tick) / float64(weather)
	warms := -math.Expm1(-float64(tick) / float64(inertia)) // of what is ahead, in a tick
	for c.last < to/tick {
		k := c.last + 1
		for i, r := range c.draw {
			old := c.segs[int64(i)*ticks+c.last%ticks]
			s := segment{offset: old.offset + old.rate*float64(tick), rate: old.rate, rateWalk: sigma * r.NormFloat64(), pendingRate: old.pendingRate * (1 - warms)}
			s.rate += s.rateWalk + old.pendingRate*warms
			if r.Float64() < odds {
				s.pendingRate += math.Copysign(temperature, r.Float64()-0.5)
			}
			if old.rate == stopped {
				s.rate = stopped
			}
			c.segs[int64(i)*ticks+k%ticks] = s
		}
		c.last = k
		for _, ch := range c.changes {
			if ch.at == k*tick {
				s := &c.segs[int64(ch.clock)*ticks+k%ticks]
				s.offset += ch.step
				s.rate += ch.rate
				if ch.stops {
					s.rate = stopped
				}
			}
		}
	}
}

// stopped is the rate of a clock that shows the same all the time.
const stopped = -1

func (c *clocks) segmentAt(clock int, t int64) *segment {
	return &c.segs[int64(clock)*ticks+t/tick%ticks]
}

// readingAt returns the reading of a clock at a true time, ns since the epoch.
func (c *clocks) readingAt(clock int, t int64) float64 {
	s := c.segmentAt(clock, t)
	return float64(t) + s.offset + s.rate*float64(t%tick)
}
