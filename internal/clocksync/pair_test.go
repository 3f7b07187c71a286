package clocksync

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// bench has two clocks and a path between them, with known truth.
type bench struct {
	rng        *rand.Rand
	kind       Kind
	load       [2]float64
	hops       int
	delay      [2]float64 // ns
	t          float64    // true time, ns
	offset     float64    // offset of the far clock, ns
	rate       float64    // ppm
	local      float64    // rate of the local clock, ppm
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
func (b *bench) farAt(t float64) int64 {
	return int64(t) + int64(math.Round(b.offset+b.rate*1e-6*(t-b.t)))
}

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

// second gives a pair the samples of a second and closes its window.
func (b *bench) second(p *Pair) Estimate {
	for range 100 {
		b.step(10e6)
		t1 := b.t
		t2 := t1 + b.wait(forward)
		p.AddForward(b.stamp(b.localAt(t1)), b.stamp(b.farAt(t2)))
		t3 := t2 + 1e6
		t4 := t3 + b.wait(reverse)
		p.AddReverse(b.stamp(b.farAt(t3)), b.stamp(b.localAt(t4)))
	}
	return p.CloseWindow(b.localAt(b.t))
}

// truth returns the far clock minus the local one.
func (b *bench) truth() int64 { return b.farAt(b.t) - b.localAt(b.t) }

// off returns the error of an estimate in units of its own standard deviation.
func off(b *bench, e Estimate) float64 {
	return float64(e.Offset-b.truth()) / math.Hypot(math.Hypot(e.Sigma, e.Wander), e.Inherited)
}

// run lets a pair work for some seconds and returns its last estimate.
func run(b *bench, p *Pair, seconds int) (e Estimate) {
	for range seconds {
		e = b.second(p)
	}
	return e
}

func TestPairRule1BeginsWithOffsetAndRateTogether(t *testing.T) {
	for _, k := range []Kind{Kernel, Hardware} {
		for seed := range uint64(20) {
			b := newBench(k, 0.8, 3, seed)
			p := NewPair(k)
			e := b.second(p)
			if e.Quality != Coarse || math.Abs(off(b, e)) > BoundSigmas || e.Sigma > 10e3 {
				t.Errorf("kind %d, seed %d: after one window %+v, %.1f sigmas off", k, seed, e, off(b, e))
			}
			if d := e.Rate - (b.rate-b.local)*1e-6; math.Abs(d) > BoundSigmas*e.RateSigma {
				t.Errorf("kind %d, seed %d: rate off by %.1f ppm, sigma %.1f ppm", k, seed, d*1e6, e.RateSigma*1e6)
			}
			for range 3 {
				e = b.second(p)
			}
			if e.Sigma > 3e3 {
				t.Errorf("kind %d, seed %d: sigma %.0f ns after four windows", k, seed, e.Sigma)
			}
		}
	}
}

// TestPairRule1PrefersCleanCodedPairs has a path whose queue lets three packets in a hundred through at
// once, and twins that show which.
func TestPairRule1PrefersCleanCodedPairs(t *testing.T) {
	coded := func(twins bool) float64 {
		var errs []float64
		for seed := range uint64(30) {
			b := newBench(Hardware, 0, 1, seed)
			p := NewPair(Hardware)
			for range 600 {
				b.step(1.6e6)
				// Forward packets meet a queue that grows and shrinks slowly. Twins meet the same queue
				// unless they meet none. Replies wait for nothing.
				queued := b.rng.Float64() < 0.97
				for i := range 2 {
					wait := 2000.0
					if queued {
						wait += 30e3 * b.rng.ExpFloat64()
					}
					at := b.t + float64(i)*5e3
					if !twins {
						at = b.t + float64(i)*0.8e6
					}
					p.AddForward(b.localAt(at), b.farAt(at+wait))
					p.AddReverse(b.farAt(at+0.1e6), b.localAt(at+0.1e6+2000))
				}
			}
			e := p.CloseWindow(b.localAt(b.t))
			errs = append(errs, math.Abs(float64(e.Offset-b.truth())))
		}
		return medianInPlace(errs)
	}
	if with, without := coded(true), coded(false); with > without/2 {
		t.Errorf("error with twins %.0f ns, without %.0f: clean pairs must have more information than small sums", with, without)
	}
}

func TestPairRule2LearnsTheShapeOfEachPath(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates hours of one path; nothing of it runs at once")
	}
	for _, c := range []struct {
		kind Kind
		load float64
		hops int
		p99  float64 // ns; a quarter above the present result of the estimator
	}{
		{Hardware, 0, 1, 12}, {Hardware, 0.4, 3, 51}, {Hardware, 0.8, 1, 29}, {Hardware, 0.8, 3, 650}, {Hardware, 0.9, 5, 1700},
		{Kernel, 0, 3, 400}, {Kernel, 0.4, 3, 800}, {Kernel, 0.8, 1, 650}, {Kernel, 0.9, 3, 1200},
	} {
		var errs []float64
		outside, windows, fine := 0, 0, 0
		for seed := range uint64(6) {
			b := newBench(c.kind, c.load, c.hops, seed)
			p := NewPair(c.kind)
			for i := range 90 {
				e := b.second(p)
				windows++
				if math.Abs(off(b, e)) > BoundSigmas {
					outside++
				}
				if i >= 30 {
					errs = append(errs, math.Abs(float64(e.Offset-b.truth())))
				}
				if e.Quality == Fine {
					fine++
				}
			}
		}
		slices.Sort(errs)
		p99 := errs[len(errs)*99/100]
		t.Logf("kind %d, load %.1f, %d hops: p50 %.0f ns, p99 %.0f ns; %d of %d windows outside %d sigmas", c.kind, c.load, c.hops, errs[len(errs)/2], p99, outside, windows, BoundSigmas)
		if p99 > c.p99 || outside > windows/100 || fine < windows*8/10 {
			t.Errorf("%+v: p99 %.0f ns, %d of %d windows outside, %d fine", c, p99, outside, windows, fine)
		}
	}
}

// TestPairRule2QueuesOfOneDirectionDoNotBias loads one direction from the start.
func TestPairRule2QueuesOfOneDirectionDoNotBias(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates hours of one path; nothing of it runs at once")
	}
	for _, c := range []struct {
		kind  Kind
		load  float64
		worst float64 // ns
	}{{Hardware, 0.4, 200}, {Hardware, 0.6, 500}, {Hardware, 0.8, 3000}, {Kernel, 0.6, 6000}, {Kernel, 0.8, 10000}} {
		var worst float64
		outside := 0
		for seed := range uint64(8) {
			b := newBench(c.kind, 0, 3, seed)
			b.load[forward] = c.load
			p := NewPair(c.kind)
			for range 60 {
				e := b.second(p)
				if math.Abs(off(b, e)) > BoundSigmas {
					outside++
				}
			}
			worst = max(worst, math.Abs(float64(p.LastEstimate().Offset-b.truth())))
		}
		t.Logf("kind %d, three hops busy %.0f %% of the time one way: %.0f ns off at worst, %d of %d windows outside", c.kind, c.load*100, worst, outside, 8*60)
		if worst > c.worst || outside > 8*60/50 {
			t.Errorf("%+v: %.0f ns off, %d of %d windows outside", c, worst, outside, 8*60)
		}
	}
}

func TestPairRule3ADelayThatAppearsIsThePaths(t *testing.T) {
	for _, k := range []Kind{Kernel, Hardware} {
		for _, extra := range []float64{20e3, 2e6} {
			for dir := range 2 {
				b := newBench(k, 0.4, 3, 1)
				p := NewPair(k)
				before := run(b, p, 40)
				b.extra[dir] = extra
				for i := range 20 {
					e := b.second(p)
					if math.Abs(off(b, e)) > BoundSigmas {
						t.Errorf("kind %d, %.0f us more one way: %d ns off in window %d, sigma %.0f, inherited %.0f", k, extra/1e3, e.Offset-b.truth(), i, e.Sigma, e.Inherited)
					}
				}
				e := p.LastEstimate()
				if limit := []float64{1500, 150}[k]; e.Detours != before.Detours+1 || e.Moves != before.Moves || math.Abs(float64(e.Offset-b.truth())) > limit {
					t.Errorf("kind %d, %.0f us more one way: %d ns off, %+v, want one detour and no move", k, extra/1e3, e.Offset-b.truth(), e)
				}
				if d := float64(e.Delay) - 2000 - extra/2; math.Abs(d) > 5e3 {
					t.Errorf("kind %d: delay %d ns, want half of both ways", k, e.Delay)
				}
			}
		}
	}
}

func TestPairRule4ClocksThatMovedAreFollowedAtOnce(t *testing.T) {
	for _, k := range []Kind{Kernel, Hardware} {
		for name, move := range map[string]func(*bench){
			"a step of 1 ms":             func(b *bench) { b.offset += 1e6 },
			"a step back of 5 s":         func(b *bench) { b.offset -= 5e9 },
			"a drift of 20 ppm more":     func(b *bench) { b.rate += 20 },
			"a temperature step, -1 ppm": func(b *bench) { b.rate-- },
		} {
			b := newBench(k, 0.4, 3, 1)
			p := NewPair(k)
			run(b, p, 40)
			move(b)
			outside := 0
			for range 10 {
				if e := b.second(p); math.Abs(off(b, e)) > BoundSigmas {
					outside++
				}
			}
			e := p.LastEstimate()
			// A step of temperature of 1 ppm is below the resolution of kernel stamps in a window.
			if limit := 2; outside > limit || e.Detours != 0 || math.Abs(float64(e.Offset-b.truth())) > 2e3 {
				t.Errorf("kind %d, %s: %d of 10 windows outside, at last %d ns off: %+v", k, name, outside, e.Offset-b.truth(), e)
			}
		}
	}
}

func TestPairRule5WhatFitsNothingIsNotUsed(t *testing.T) {
	b := newBench(Kernel, 0.4, 3, 1)
	p := NewPair(Kernel)
	run(b, p, 40)
	// Another delay in one direction every second.
	for i := range 6 {
		b.extra[forward] = float64(i%3) * 300e3
		e := b.second(p)
		if i%3 == 0 {
			continue
		}
		if math.Abs(off(b, e)) > BoundSigmas || e.Sigma > 1e3 {
			t.Errorf("window %d: %+v, %.1f sigmas off, want the direction that is used", i, e, off(b, e))
		}
	}
	// Another delay in both directions every second.
	for i := range 6 {
		b.extra = [2]float64{float64(i%3) * 300e3, float64(i%2) * 400e3}
		if e := b.second(p); i > 0 && (e.Quality == Coarse || math.Abs(off(b, e)) > BoundSigmas) {
			t.Errorf("window %d: %+v, %.1f sigmas off, want it held", i, e, off(b, e))
		}
	}
	before := p.LastEstimate()
	b.extra = [2]float64{}
	for range 40 {
		b.step(1e9 / 40)
	}
	if e := p.CloseWindow(b.localAt(b.t)); e.Quality != Held || e.Sigma < before.Sigma {
		t.Errorf("a window without packets: %+v, want a prediction that is worth less", e)
	}
}

func TestPairRule6ThePathOfBeforeIsKnown(t *testing.T) {
	b := newBench(Hardware, 0.4, 3, 1)
	p := NewPair(Hardware)
	run(b, p, 40)
	b.extra[reverse] = 50e3
	run(b, p, 20)
	b.extra[reverse] = 0
	e := run(b, p, 20)
	if e.Inherited != 0 || math.Abs(off(b, e)) > BoundSigmas || e.Sigma > 40 {
		t.Errorf("back on its path: %+v, %d ns off; want nothing inherited", e, e.Offset-b.truth())
	}
}

// TestPairRule7EstimatesAreOfTheWindowsEnd has clocks that wander five times as fast as usual: within a
// window by more than the precision of the measurement.
func TestPairRule7EstimatesAreOfTheWindowsEnd(t *testing.T) {
	var sum, n float64
	for seed := range uint64(6) {
		b := newBench(Hardware, 0, 1, seed)
		p := NewPair(Hardware)
		for i := range 60 {
			for range 100 {
				b.step(10e6)
				b.rate += 0.4 * math.Sqrt(10e6/60e9) * b.rng.NormFloat64()
				p.AddForward(b.stamp(b.localAt(b.t)), b.stamp(b.farAt(b.t+b.wait(forward))))
				p.AddReverse(b.stamp(b.farAt(b.t+1e6)), b.stamp(b.localAt(b.t+1e6+b.wait(reverse))))
			}
			if e := p.CloseWindow(b.localAt(b.t)); i >= 20 {
				d := float64(e.Offset - b.truth())
				sum, n = sum+d*d, n+1
			}
		}
	}
	rms := math.Sqrt(sum / n)
	t.Logf("%.1f ns rms at the end of windows", rms)
	if rms > 7 {
		t.Errorf("%.1f ns rms at the end of windows, want 7", rms)
	}
}

// TestPairRule8WithoutCleanPacketsNothingMoves has windows of queued packets only, on a path that
// usually lets some through.
func TestPairRule8WithoutCleanPacketsNothingMoves(t *testing.T) {
	for seed := range uint64(6) {
		b := newBench(Hardware, 0.8, 2, seed)
		b.wander = false
		p := NewPair(Hardware)
		run(b, p, 60)
		for range 3 {
			p.SetHint(Relation{Ref: b.localAt(b.t), Offset: b.truth(), Rate: (b.rate - b.local) * 1e-6}, 10)
			before := p.LastEstimate().Offset - b.truth()
			for range 100 {
				b.step(10e6)
				for dir := range 2 {
					wait := 0.0
					for wait < b.delay[dir]+1000 {
						wait = b.wait(dir)
					}
					if dir == forward {
						p.AddForward(b.stamp(b.localAt(b.t)), b.stamp(b.farAt(b.t+wait)))
					} else {
						p.AddReverse(b.stamp(b.farAt(b.t+1e6)), b.stamp(b.localAt(b.t+1e6+wait)))
					}
				}
			}
			e := p.CloseWindow(b.localAt(b.t))
			if moved := float64(e.Offset - b.truth() - before); math.Abs(moved) > 30 {
				t.Errorf("seed %d: moved by %.0f ns to %.0f, sigma %.0f", seed, moved, float64(e.Offset-b.truth()), e.Sigma)
			}
		}
	}
}

// TestPairRule9TheShapeIsLookedAtWhereItIsSharp compares the information of a sample with Fisher's
// information of the stamps' noise: 17 ns for one sample.
func TestPairRule9TheShapeIsLookedAtWhereItIsSharp(t *testing.T) {
	b := newBench(Hardware, 0, 1, 1)
	p := NewPair(Hardware)
	run(b, p, 40)
	for d := range 2 {
		if sd := math.Sqrt(p.shape.variance[d]) / p.shape.slope[d]; sd > 30 {
			t.Errorf("direction %d: a sample gives the place to %.1f ns, want 30", d, sd)
		}
	}
}

func TestPairRule10NothingIsAllocated(t *testing.T) {
	b := newBench(Kernel, 0.4, 3, 1)
	p := NewPair(Kernel)
	run(b, p, 30)
	if n := testing.AllocsPerRun(20, func() { b.second(p) }); n != 0 {
		t.Errorf("%.1f allocations a window", n)
	}
}

func TestPairRule11HalfOfAWaitIsNoOffset(t *testing.T) {
	for _, k := range []Kind{Kernel, Hardware} {
		for seed := range uint64(4) {
			for _, age := range []int{5, 8, 12, 16} {
				for dir := range 2 {
					b := newBench(k, 0, 1, seed)
					p := NewPair(k)
					run(b, p, age)
					b.extra[dir], b.load[dir], b.queueScale = 62e3, 0.9, 300e3
					for i := range patienceWindows {
						if e := b.second(p); math.Abs(off(b, e)) > BoundSigmas || math.Abs(float64(e.Offset-b.truth())) > 10e3 {
							t.Errorf("kind %d, seed %d, a queue in direction %d after %d s: %d ns off in window %d, sigma %.0f, inherited %.0f", k, seed, dir, age, e.Offset-b.truth(), i, e.Sigma, e.Inherited)
						}
					}
				}
			}
		}
	}
}

// TestPairRule11WhatAQueueHidesIsSharedByAll checks that a pair that begins behind a queue of one
// direction has an error in common with the other pairs of its NIC, so that their mean is no better.
func TestPairRule11WhatAQueueHidesIsSharedByAll(t *testing.T) {
	for seed := range uint64(4) {
		b := newBench(Kernel, 0, 1, seed)
		b.extra[forward], b.load[forward], b.queueScale = 62e3, 0.9, 300e3
		p := NewPair(Kernel)
		for range 4 {
			e := b.second(p)
			if wrong := math.Abs(float64(e.Offset - b.truth())); p.quality == Coarse && e.Wander*BoundSigmas < wrong {
				t.Errorf("seed %d: %.0f ns off, wander %.0f, inherited %.0f", seed, wrong, e.Wander, e.Inherited)
			}
		}
		if !p.path.coarseAsymmetry {
			t.Errorf("seed %d: %+v: the test shows nothing", seed, p.estimate)
		}
	}
}

func TestPairOfAClockThatStandsStillIsUnknown(t *testing.T) {
	for _, k := range []Kind{Kernel, Hardware} {
		b := newBench(k, 0.4, 3, 1)
		p := NewPair(k)
		run(b, p, 40)
		b.rate = -1e6
		for i := range 10 {
			if e := b.second(p); i > 0 && e.Quality != None {
				t.Errorf("kind %d: %d s after the far clock stopped: %+v", k, i+1, e)
			}
		}
		b.rate = 10
		if e := run(b, p, 20); e.Quality == None || math.Abs(off(b, e)) > BoundSigmas {
			t.Errorf("kind %d: it runs again: %+v, %.1f sigmas off", k, e, off(b, e))
		}
	}
}

func BenchmarkPairWindow(b *testing.B) {
	for _, k := range []Kind{Kernel, Hardware} {
		b.Run([]string{"Kernel", "Hardware"}[k], func(b *testing.B) {
			w := newBench(k, 0.4, 3, 1)
			p := NewPair(k)
			run(w, p, 30)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				for range 100 {
					w.step(10e6)
					p.AddForward(w.localAt(w.t), w.farAt(w.t+w.wait(forward)))
					p.AddReverse(w.farAt(w.t+1e6), w.localAt(w.t+1e6+w.wait(reverse)))
				}
				b.StartTimer()
				p.CloseWindow(w.localAt(w.t))
			}
		})
	}
}

// TestPairRule6TheOtherDirectionIsAnotherPath has a path that becomes longer in one direction, is healed, and becomes longer by
// as much in the other direction: the round trip alone looks like the path of before.
func TestPairRule6TheOtherDirectionIsAnotherPath(t *testing.T) {
	for _, kind := range []Kind{Hardware, Kernel} {
		for _, learn := range []int{20, 40} {
			for seed := range uint64(4) {
				b := newBench(kind, 0.2, 3, seed)
				p := NewPair(kind)
				run(b, p, learn)
				for _, way := range []int{forward, reverse, forward} {
					b.extra[way] = 2e6
					for i := range 8 {
						if e := run(b, p, 1); math.Abs(float64(e.Offset-b.truth())) > BoundSigmas*e.Sigma+3000 {
							t.Errorf("kind %v, %d windows, seed %d, direction %d, window %d: %+v, %d ns off", kind, learn, seed, way, i, e, e.Offset-b.truth())
							break
						}
					}
					b.extra[way] = 0
					run(b, p, 7)
				}
			}
		}
	}
}
