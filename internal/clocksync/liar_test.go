package clocksync

import (
	"math"
	"strings"
	"testing"
)

// TestRule12LiarLosesItsOwnClockOnly checks that the clocks of the others stay right within their
// bounds, whatever one node reports of its pairs.
func TestRule12LiarLosesItsOwnClockOnly(t *testing.T) {
	for _, tc := range []struct {
		name string
		lie  func(w *world, n int, p *PairEstimate)
	}{
		{"the same lie to all", func(_ *world, _ int, p *PairEstimate) { p.Offset += 1e6 }},
		{"a lie to each, said to be sure", func(_ *world, n int, p *PairEstimate) { p.Offset += int64(n) * 100_000; p.Sigma, p.RateSigma = 0, 0 }},
		{"a lie to each", func(_ *world, n int, p *PairEstimate) { p.Offset += int64(n) * 100_000 }},
		{"small lies, said to be sure", func(_ *world, n int, p *PairEstimate) { p.Offset += int64(n) * 700; p.Sigma, p.RateSigma = 0, 0 }},
		{"half the pairs, said to be sure", func(_ *world, n int, p *PairEstimate) {
			if n%2 == 0 {
				p.Offset += 50_000
			}
			p.Sigma, p.RateSigma = 0, 0
		}},
		{"rates", func(_ *world, n int, p *PairEstimate) { p.Rate += float64(n) * 1e-6; p.RateSigma = 0 }},
		{"noise", func(w *world, _ int, p *PairEstimate) { p.Offset += int64(w.rng.NormFloat64() * 1e5) }},
		{"a drift, said to be sure", func(w *world, n int, p *PairEstimate) {
			p.Offset += int64(w.now * 2000 * float64(n-3))
			p.Sigma, p.RateSigma = 0, 0
		}},
		{"seconds, said to be sure", func(_ *world, n int, p *PairEstimate) {
			p.Offset += int64(n) * 700_000_000
			p.Sigma, p.RateSigma = 0, 0
		}},
		{"one pair", func(_ *world, n int, p *PairEstimate) {
			if n == 3 {
				p.Offset += 200_000
			}
			p.Sigma, p.RateSigma = 0, 0
		}},
	} {
		for _, late := range []bool{false, true} {
			name := tc.name
			if late {
				name += ", after an honest start"
			}
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, FrameOptions{}, 8, ringWith(8, 1, 2, 3, 4, 5, 6, 7))
				w.noise, w.rnoise = 100, 2e-9
				if late {
					w.run(20)
				}
				n := 0
				w.spoil = func(p *PairEstimate) {
					if strings.HasPrefix(p.ID.Src, w.names[2]+"/") {
						n = n%7 + 1
						tc.lie(w, n, p)
					}
				}
				others := []int{0, 1, 3, 4, 5, 6, 7}
				for range 20 {
					w.run(1)
					for k, e := range w.errors(others...) {
						m := w.get(others[k])
						if m.State == Lost || m.State == Converging {
							continue
						}
						if limit := 5*m.Sigma + 100; math.Abs(e) > limit {
							t.Fatalf("at %v s %s is %.0f ns off and said to be known to %.0f (%v)", w.now, w.names[others[k]], e, m.Sigma, m.State)
						}
					}
				}
				locked := 0
				for _, i := range others {
					if w.get(i).State == Locked {
						locked++
					}
				}
				if locked < len(others) {
					t.Errorf("%d of %d honest clocks are locked", locked, len(others))
				}
				t.Logf("liar %v sigma %.0f; others' sigma %.0f, error %.0f", w.get(2).State, w.get(2).Sigma, w.get(0).Sigma, most(w.errors(others...)))
			})
		}
	}
}
