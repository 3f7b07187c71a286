package clocksync

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// bench is two clocks and a path between them, with what is true known.
type bench struct {
	rng        *rand.Rand
	kind       Kind
	load       [2]float64
	hops       int
	delay      [2]float64 // ns
	t          float64    // true time, ns
	offset     float64    // of the far clock, ns
	rate       float64    // ppm
	local      float64    // of the local clock, ppm
	wander     bool
	queueScale float64
	extra      [2]float64
}

func newBench(k Kind, load float64, hops int, seed uint64) *bench {
	r := rand.New(rand.NewPCG(seed, 7))
	return &bench{rng: r, kind: k, load: [2]float64{load, load}, hops: hops, delay: [2]float64{2000, 2000}, t: 1e18,
		offset: (r.Float64() - 0.5) * 1e10, rate: (r.Float64() - 0.5) * 60, local: (r.Float64() - 0.5) * 60, wander: true, queueScale: 5000}
}

func (b *bench) localAt(t float64) int64 { return int64(t) + int64((t-1e18)*b.local*1e-6) }
func (b *bench) farAt(t float64) int64   { return int64(t) + int64(math.Round(b.offset)) }

func (b *bench) noise() int64 {
	r := b.rng
	if b.kind == Hardware {
		if r.Float64() < 0.9 {
			return int64(math.Round(r.NormFloat64() * 10))
		}
		return int64(r.ExpFloat64() * 100)
	}
	v := 1500 * math.Exp(0.8156*r.NormFloat64())
	if r.IntN(1000) == 0 {
		v += 50000 + 450000*r.Float64()
	}
	return int64(v)
}

func (b *bench) stamp(at int64) int64 {
	at += b.noise()
	if b.kind == Hardware {
		at = at / 8 * 8
	}
	return at
}

func (b *bench) wait(dir int) float64 {
	w := b.delay[dir] + b.extra[dir]
	for range b.hops {
		if b.rng.Float64() < b.load[dir] {
			w += b.queueScale * b.rng.ExpFloat64()
		}
	}
	return w
}

func (b *bench) step(dt float64) {
	b.t += dt
	b.offset += b.rate * 1e-6 * dt
	if b.wander {
		b.rate += 0.1 * math.Sqrt(dt/60e9) * b.rng.NormFloat64()
	}
}

// second feeds a pair for a second and closes its window.
func (b *bench) second(p *Pair) Estimate {
	for range 100 {
		b.step(10e6)
		t1 := b.t
		t2 := t1 + b.wait(forward)
		p.Forward(b.stamp(b.localAt(t1)), b.stamp(b.farAt(t2)))
		t3 := t2 + 1e6
		t4 := t3 + b.wait(reverse)
		p.Reverse(b.stamp(b.farAt(t3)), b.stamp(b.localAt(t4)))
	}
	return p.Close(b.localAt(b.t))
}

// truth is the far clock against the local one.
func (b *bench) truth() int64 { return b.farAt(b.t) - b.localAt(b.t) }

func TestFigures(t *testing.T) {
	for _, k := range []Kind{Hardware, Kernel} {
		for _, load := range []float64{0, 0.4, 0.8, 0.9} {
			for _, hops := range []int{1, 3, 5} {
				var errs, sig []float64
				outside, n, lock := 0, 0, 0
				fine := 0
				for seed := range uint64(6) {
					b := newBench(k, load, hops, seed)
					p := NewPair(k)
					for i := range 90 {
						e := b.second(p)
						d := math.Abs(float64(e.Offset - b.truth()))
						if e.Quality != None && lock == 0 {
							lock = i + 1
						}
						if d > BoundSigmas*math.Hypot(e.Sigma, e.Inherited) {
							outside++
						}
						n++
						if i > 30 {
							errs = append(errs, d)
							sig = append(sig, e.Sigma)
							if e.Quality == Fine {
								fine++
							}
						}
					}
				}
				slices.Sort(errs)
				slices.Sort(sig)
				q := func(p float64) float64 { return errs[int(p*float64(len(errs)-1))] }
				t.Logf("kind %d load %.1f hops %d: p50 %.0f p68 %.0f p99 %.0f max %.0f; sigma %.0f; outside %d of %d, fine %d of %d", k, load, hops, q(.5), q(.68), q(.99), q(1), sig[len(sig)/2], outside, n, fine, len(errs))
			}
		}
	}
}

func trace(t *testing.T, i int, b *bench, p *Pair, e Estimate) {
	t.Helper()
	t.Logf("%3d q%d err %7d sigma %6.0f inh %5.0f rate err %7.1f+-%6.1f d %6.0f+-%.0f asym %.0f odd %d moves %d det %d noise %.0f %.0f shift %.0f misfit %.1f", i, e.Quality, e.Offset-b.truth(), e.Sigma, e.Inherited, e.Rate*1e9-(b.rate-b.local)*1e3, e.RateSigma*1e9,
		p.filter.x[2], math.Sqrt(p.filter.p[2][2]), p.asym, p.odd, e.Moves, e.Detours, math.Sqrt(p.noise[0]), math.Sqrt(p.noise[1]), p.oddShift, p.misfit)
}

func TestScen(t *testing.T) {
	for _, k := range []Kind{Hardware, Kernel} {
		if k == Kernel {
			continue
		}
		for name, change := range map[string]func(i int, b *bench){
			"step": func(i int, b *bench) {
				if i == 40 {
					b.offset += 1e6
				}
			},
			"drift": func(i int, b *bench) {
				if i == 40 {
					b.rate += 20
				}
			},
			"temp": func(i int, b *bench) {
				if i == 40 {
					b.rate += 1
				}
			},
			"oneway": func(i int, b *bench) {
				if i == 40 {
					b.extra[forward] = 2e6
				}
				if i == 60 {
					b.extra[forward] = 0
				}
			},
			"small": func(i int, b *bench) {
				if i == 40 {
					b.extra[forward] = 20e3
				}
				if i == 60 {
					b.extra[forward] = 0
				}
			},
			"tiny": func(i int, b *bench) {
				if i == 40 {
					b.extra[forward] = 500
				}
				if i == 60 {
					b.extra[forward] = 0
				}
			},
			"route": func(i int, b *bench) {
				if i == 40 {
					b.extra = [2]float64{3e3, 3e3}
				}
			},
			"load": func(i int, b *bench) {
				if i == 40 {
					b.load[forward] = 0.9
				}
				if i == 60 {
					b.load[forward] = 0.4
				}
			},
			"frozen": func(i int, b *bench) {
				if i >= 40 {
					b.rate = -1e6
				}
			},
		} {
			t.Run(name+[]string{"K", "H"}[k], func(t *testing.T) {
				b := newBench(k, 0.4, 3, 1)
				p := NewPair(k)
				for i := range 80 {
					change(i, b)
					e := b.second(p)
					if i > 38 && i < 46 || i > 59 && i < 65 || i == 79 {
						trace(t, i, b, p, e)
					}
				}
			})
		}
	}
}
