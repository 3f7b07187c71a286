package sim

import (
	"math"
	"math/rand/v2"
	"testing"
)

// near fails when a share measured over n draws is further than five standard
// deviations from what it should be.
func near(t *testing.T, what string, got, want float64, n int) {
	t.Helper()
	if d := 5 * math.Sqrt(want*(1-want)/float64(n)); math.Abs(got-want) > d {
		t.Errorf("%s: a share of %.5f, want %.5f +- %.5f", what, got, want, d)
	}
}

// TestStamps: the errors of stamps have the quantiles of their models.
func TestStamps(t *testing.T) {
	const n = 1_000_000
	normalAt := func(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }
	tests := []struct {
		noise Noise
		below float64 // ns
		want  float64
	}{
		{Hardware, 0, 0.9*0.5 + 0.1*0.5*4/100/4}, // 0.1 x P(exponential + rounding < 0), to first order
		{Hardware, 100, 0.9 + 0.1*(1-math.Exp(-1))},
		{Hardware, 400, 0.9 + 0.1*(1-math.Exp(-4))},
		{Kernel, 1500, 0.999 * 0.5},
		{Kernel, 10_000, 0.999 * 0.99},
		{Kernel, 1500 * 1500. / 10_000, 0.999 * 0.01},
		{Kernel, 40_000, 0.999 * normalAt(math.Log(40./1.5)/math.Log(10/1.5)*2.326348)},
		{Kernel, 50_000, 0.999 * normalAt(math.Log(50./1.5)/math.Log(10/1.5)*2.326348)},
		{Kernel, 275_000 + 1500, 0.999 + 0.0005}, // half of the late ones
	}
	for _, tt := range tests {
		r := rand.New(rand.NewPCG(1, 2))
		stamp := tt.noise.stampFunc()
		below := 0
		for range n {
			reading := 1e9 * r.Float64()
			s := stamp(reading, r)
			if tt.noise == Hardware && s%8 != 0 {
				t.Fatalf("a hardware stamp of %d ns", s)
			}
			if float64(s)-reading < tt.below {
				below++
			}
		}
		if tt.below > 200_000 {
			near(t, string(tt.noise), 1-float64(below)/n, 1-tt.want, n) // the log-normal part shifts the half a little
			continue
		}
		near(t, string(tt.noise), float64(below)/n, tt.want, n)
	}
	// What is sharp is N(0, 10 ns) and a rounding to 8 ns.
	r := rand.New(rand.NewPCG(1, 3))
	sum, count := 0.0, 0
	for range n {
		reading := 1e9 * r.Float64()
		if e := float64(hardwareStamp(reading, r)) - reading; e < -4 {
			sum += e * e
			count++
		}
	}
	sigma := math.Sqrt(100 + 64./12)
	// The second moment of a normal variable below -4, and how likely that is.
	z := -4 / sigma
	odds := normalAt(z)
	want := sigma * sigma * (1 - z*math.Exp(-z*z/2)/math.Sqrt(2*math.Pi)/odds)
	if got := sum / float64(count); math.Abs(got/want-1) > 0.02 {
		t.Errorf("sharp stamps: a second moment of %.1f ns^2 below -4 ns, want %.1f", got, want)
	}
	near(t, "sharp stamps below -4 ns", float64(count)/n, 0.9*odds, n)
}

// TestQueue checks that a hop is busy as often as configured, forgets its state with the time constant of its bursts
// and pauses, and makes a probe wait 5 us on average.
func TestQueue(t *testing.T) {
	const n = 200_000
	for _, load := range []float64{0.4, 0.8, 0.9} {
		for _, gap := range []int64{0, 5_000, 50_000, 10_000_000} {
			r := rand.New(rand.NewPCG(4, uint64(gap)))
			var q queues
			busy, both, sum := 0, 0, 0.0
			at := int64(0)
			for range n {
				at += 20_000_000
				sum += float64(q.waitTime(at, 1, load, r))
				first := q.busy == 1
				at += gap
				q.waitTime(at, 1, load, r)
				if first {
					busy++
					if q.busy == 1 {
						both++
					}
				}
			}
			near(t, "busy", float64(busy)/n, load, n)
			// Bursts end at 1/200 us, pauses so that the load comes out.
			ends := 1. / 200_000
			begins := ends * load / (1 - load)
			stays := load + (1-load)*math.Exp(-(ends+begins)*float64(gap))
			near(t, "still busy", float64(both)/float64(busy), min(stays, 1-1e-12), busy)
			if mean := sum / n; math.Abs(mean-load*5000) > 5*5000/math.Sqrt(n)+1 {
				t.Errorf("load %g: a mean wait of %.0f ns, want %.0f", load, mean, load*5000)
			}
		}
	}
	r := rand.New(rand.NewPCG(5, 5))
	var q queues
	sum, squares := 0.0, 0.0
	for i := range n {
		w := float64(q.waitTime(int64(i)*20_000_000, 5, 0.8, r))
		sum += w
		squares += w * w
	}
	mean := sum / n
	// Of one hop: 2 x 0.8 x 5000^2 - (0.8 x 5000)^2.
	want := 5 * (2*0.8*25e6 - 16e6)
	if v := squares/n - mean*mean; math.Abs(mean/20_000-1) > 0.01 || math.Abs(v/want-1) > 0.03 {
		t.Errorf("5 hops: mean %.0f and variance %.3g, want 20000 and %.3g", mean, v, want)
	}
	if q.waitTime(0, 3, 0, r) != 0 {
		t.Error("an empty queue makes wait")
	}
}

// TestDensity: what the oracle knows is what samples are drawn from: scores have
// mean zero and the variance that is Fisher's information.
func TestDensity(t *testing.T) {
	const n = 400_000
	for _, noise := range []Noise{Hardware, Kernel} {
		for _, load := range []float64{0, 0.4, 0.8} {
			for _, hops := range []int{1, 3} {
				d := newDensity(noise, load, hops)
				mass, mean := 0.0, 0.0
				for i, m := range d.mass {
					mass += m
					mean += m * (d.low + float64(i)*d.step)
				}
				if math.Abs(mass-1) > 1e-5 || math.Abs(mean-5000*load*float64(hops)) > d.step {
					t.Errorf("%s, load %g, %d hops: mass %g, mean %g", noise, load, hops, mass, mean)
				}
				// Moved by a little, noise has scores whose mean is the move times the information.
				slope := 0.0
				for i := 1; i < len(d.mass)-1; i++ {
					_, _, curve := d.evaluateAt(d.low + float64(i)*d.step)
					slope += d.mass[i] * curve
				}
				if math.Abs(slope/d.info-1) > 0.02 {
					t.Errorf("%s, load %g, %d hops: scores grow by %.4g a ns, want %.4g", noise, load, hops, slope, d.info)
				}
				r := rand.New(rand.NewPCG(6, 7))
				stamp := noise.stampFunc()
				var q queues
				sum, squares, fourth := 0.0, 0.0, 0.0
				for i := range n {
					a, b := 1e9*r.Float64(), 1e9*r.Float64()
					x := float64(stamp(b, r)) - b - (float64(stamp(a, r)) - a) + float64(q.waitTime(int64(i)*20_000_000, hops, load, r))
					_, s, _ := d.evaluateAt(x)
					sum += s
					squares += s * s
					fourth += s * s * s * s
				}
				info := squares / n
				off := 5 * math.Sqrt(fourth/n-info*info) / math.Sqrt(n)
				if math.Abs(info-d.info) > off || math.Abs(sum/n) > 5*math.Sqrt(info/n) {
					t.Errorf("%s, load %g, %d hops: scores of mean %.3g and variance %.4g, want 0 and %.4g +- %.2g", noise, load, hops, sum/n, info, d.info, off)
				}
			}
		}
	}
	// Two normal stamps alone have the information of their sum's variance.
	plain := cellsOf(-100, 1, 201, func(x float64) float64 { return normalCDF(x / 10) })
	diff := differenceMass(plain)
	info := 0.0
	for i := 1; i < len(diff)-1; i++ {
		if diff[i] > leastMass {
			g := (diff[i+1] - diff[i-1]) / 2
			info += g * g / diff[i]
		}
	}
	if math.Abs(info*200-1) > 0.01 {
		t.Errorf("information of N(0, 200): %g, want %g", info, 1./200)
	}
}
