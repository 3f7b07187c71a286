package clocksync

import (
	"math"
	"testing"
)

// TestPairRule3ADelayThatIsNeverTheSameIsThePathsToo has a NIC or a relay with a different delay in one
// direction every second. Its windows are like none before and not like each other. For as long as that
// lasts no half of the delay is an offset, or the uncertainty has room for it. When it is over all
// values are as before.
func TestPairRule3ADelayThatIsNeverTheSameIsThePathsToo(t *testing.T) {
	for _, k := range []Kind{Kernel, Hardware} {
		seeds := uint64(4)
		if testing.Short() {
			seeds = 1
		}
		for seed := range seeds {
			for dir := range 2 {
				for name, slow := range map[string]func(b *bench, i int){
					"wandering":  func(b *bench, i int) { b.extra[dir] = 2e6 + float64(i%7)*70e3 },
					"queueing":   func(b *bench, i int) { b.extra[dir], b.load[dir], b.queueScale = 1e6+float64(i%5)*90e3, 0.9, 200e3 },
					"two places": func(b *bench, i int) { b.extra[dir] = 2e6 + float64(i%2)*300e3 },
				} {
					b := newBench(k, 0.2, 3, seed)
					p := NewPair(k)
					run(b, p, 40)
					load := b.load
					worst, at := 0.0, 0
					for i := range 60 {
						slow(b, i)
						e := b.second(p)
						if w := math.Abs(off(b, e)); e.Quality != None && w > worst {
							worst, at = w, i
						}
					}
					last := float64(p.LastEstimate().Offset - b.truth())
					if worst > BoundSigmas {
						t.Errorf("kind %d, seed %d, %s in direction %d: %.1f sigmas off in window %d, %.0f ns at last", k, seed, name, dir, worst, at, last)
					}
					b.extra, b.load = [2]float64{}, load
					for i := range 30 {
						if e := b.second(p); e.Quality != None && math.Abs(off(b, e)) > BoundSigmas {
							t.Errorf("kind %d, seed %d, %s in direction %d, %d s after it was over: %.1f sigmas off, %d ns", k, seed, name, dir, i, off(b, e), e.Offset-b.truth())
							break
						}
					}
				}
			}
		}
	}
}
