package clocksync

import (
	"math"
	"testing"
	"time"
)

// TestPairRule12WhateverTheCadence has far tiers, which are probed rarely, and the coarse stamps of a
// program. Their pairs never learn a shape. When a NIC begins to send late, half of the delay is not an
// offset for them either, nor when that ends.
func TestPairRule12WhateverTheCadence(t *testing.T) {
	const late = 40e6
	for _, cadence := range []int64{10e6, 40e6, 100e6} {
		for _, noise := range []float64{0, 30, 300} { // noise of a program's stamps: like the kernel's, and tens and hundreds of us
			seeds := uint64(6)
			if testing.Short() {
				seeds = 1
			}
			placed, worst := 0, 0.0
			for seed := range seeds {
				l := newSmallLab(4, 3, 1, Kernel, 0.2, seed)
				l.cadence, l.fine, l.user = cadence, noise, true
				l.run(20e9 + l.rng.Int64N(2e9))
				l.late = map[*labNode]int64{l.nodes[2]: late}
				for s := range 40 {
					if s == 20 {
						l.late = nil
					}
					l.run(1e9)
					for _, n := range l.nodes {
						now := n.read(l.t)
						for _, e := range n.edges {
							r, ok := n.follower.RelationFor(e.id, now, time.Duration(l.t))
							if !ok {
								continue
							}
							placed++
							beyond := math.Abs(float64(r.OffsetAt(now)-(e.to.read(l.t)-now))) - float64(r.Bound)
							worst = max(worst, beyond)
							// Half of the delay would be 20 ms.
							if beyond > late/40 {
								t.Errorf("cadence %d ms, noise x %g, seed %d, %d s after it began: %v is placed %.0f ns beyond a bound of %d ns", cadence/1e6, noise, seed, s+1, e.id, beyond, r.Bound)
							}
						}
					}
				}
			}
			if placed < int(seeds)*400 {
				t.Errorf("cadence %d ms, noise x %g: only %d of %d relations", cadence/1e6, noise, placed, seeds*480)
			}
			t.Logf("cadence %d ms, noise x %g: %d of %d relations, none more than %.0f ns beyond its bound", cadence/1e6, noise, placed, seeds*480, worst)
		}
	}
}

// TestRule9NoiseIsNoDrift checks that no change of rate is reported that did not happen, for clocks
// that are known to a millisecond, from few stamps of a busy program, in quiet and while a NIC sends
// late.
func TestRule9NoiseIsNoDrift(t *testing.T) {
	for _, cadence := range []int64{10e6, 40e6, 100e6} {
		seeds := uint64(10)
		if testing.Short() {
			seeds = 2
		}
		for seed := range seeds {
			l := newSmallLab(4, 3, 1, Kernel, 0.2, seed)
			l.cadence, l.fine, l.user, l.stalls = cadence, 700, true, 2
			l.run(10e9 + l.rng.Int64N(2e9))
			before := l.maps()
			l.run(30e9)
			l.late = map[*labNode]int64{l.nodes[2]: 40e6}
			l.run(20e9)
			l.late = nil
			l.run(20e9)
			for clock, counts := range l.moved(before) {
				t.Errorf("cadence %d ms, seed %d: clock %d is said to have stepped %d times and drifted %d times", cadence/1e6, seed, clock, counts[0], counts[1])
			}
		}
	}
}
