package triangulate

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// TestBurstLLIsPolyaAeppli compares with the sum over the numbers of events, as Johnson, Kemp and Kotz have it
// (Univariate Discrete Distributions, 3rd edition, 9.7).
func TestBurstLLIsPolyaAeppli(t *testing.T) {
	logFactorial := func(n int) float64 {
		v, _ := math.Lgamma(float64(n + 1))
		return v
	}
	for _, burst := range []float64{1.5, 3, 10} {
		m := model{burst: burst}
		for _, k := range []int{1, 2, 3, 10, exactLosses} {
			// Two means, since the log-likelihood is known up to a constant.
			exact := func(events float64) float64 {
				goOn, sum := 1-1/burst, 0.0
				for n := 1; n <= k; n++ {
					sum += math.Exp(float64(n)*math.Log(events) - logFactorial(n) + logFactorial(k-1) - logFactorial(n-1) - logFactorial(k-n) + float64(n)*math.Log(1-goOn) + float64(k-n)*math.Log(goOn))
				}
				return math.Log(sum) - events
			}
			for _, events := range []float64{0.01, 0.5, 20} {
				got, want := m.burstLL(uint64(k), events)-m.burstLL(uint64(k), 3), exact(events)-exact(3)
				if math.Abs(got-want) > 1e-6*(1+math.Abs(want)) {
					t.Errorf("bursts of %g, %d lost, %g events: %.9g, want %.9g", burst, k, events, got, want)
				}
			}
			best := m.bestBurstLL(uint64(k), 10_000)
			for events := 0.1; events < 100; events *= 1.1 {
				if ll := m.burstLL(uint64(k), events); ll > best+1e-3 {
					t.Errorf("bursts of %g, %d lost: %g events are likelier than the likeliest, by %g", burst, k, events, ll-best)
				}
			}
		}
	}
}

// TestOneBurstIsOneEvent: a flow that lost ten packets at once says hardly more than one that lost one, and two flows say
// twice as much.
func TestOneBurstIsOneEvent(t *testing.T) {
	m := model{p: DefaultParameters(), hop: 5e-5, burst: 10}
	gain := func(lost uint64) float64 {
		fl := &flow{sent: 100, lost: lost, hops: 6, finding: &judge.Finding{Obs: &fabric.Observation{}}}
		m.prepareFlow(fl)
		return m.lossCost(fl, 0) - m.lossCost(fl, math.Log1p(-0.02))
	}
	if one, ten := gain(1), gain(10); one <= 0 || ten < one || ten > 1.5*one {
		t.Errorf("one packet gains %.2f nats, a burst of ten %.2f", one, ten)
	}
	m.burst = 1
	if one, ten := gain(1), gain(10); ten < 1.2*one {
		t.Errorf("of single losses one packet gains %.2f nats, ten %.2f", one, ten)
	}
}

// TestBurstIsEstimated: from flows beside a faulty link, by their number and not by a few of them.
func TestBurstIsEstimated(t *testing.T) {
	g := graph(t)
	e := NewEngine(g)
	p := DefaultParameters()
	for _, tt := range []struct {
		burst     float64
		every     int // one flow in so many loses something
		least, at float64
	}{{1, 20, 1, 1}, {3, 20, 2.2, 4}, {10, 20, 8, 12}, {10, 400, 1, 1}} {
		rng := rand.New(rand.NewPCG(uint64(tt.every), uint64(tt.burst)))
		var fs []judge.Finding
		for n := range 1000 {
			lost := uint64(0)
			if rng.IntN(tt.every) == 0 {
				for lost = 1; rng.Float64() > 1/tt.burst && lost < 60; lost++ {
				}
			}
			src, dst := []string{"a/e", "b/e"}[n%2], []string{"c/e", "d/e"}[n/2%2]
			fs = append(fs, finding(g, src, dst, n, n%2, 0, lost))
		}
		for n := range 40 { // of a NIC that loses one packet in ten
			fs = append(fs, finding(g, "a/e", "b/e", n, 0, 0, 20))
		}
		if got := estimateBurst(e, e.bindFindings(fs, takeSeveralWays(fs)), p); got < tt.least || got > tt.at {
			t.Errorf("bursts of %g in one flow of %d: estimated %g, want %g to %g", tt.burst, tt.every, got, tt.least, tt.at)
		}
	}
}
