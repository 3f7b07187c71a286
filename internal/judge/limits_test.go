package judge

import (
	"fmt"
	"math"
	"sync/atomic"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// TestRule3WhatIsAClock: a flow's limit is 10 us, and half of it for the direction that moved the other way.
func TestRule3WhatIsAClock(t *testing.T) {
	for _, tt := range []struct {
		forward, reverse int64
		want             bool
	}{
		{10_001, -5001, true}, {10_000, -5001, false}, {10_001, -5000, false},
		{-10_001, 5001, true}, {-10_000, 5001, false}, {-10_001, 5000, false},
	} {
		f := FindingsOf([]*fabric.Observation{window(fwd, tt.forward, 200, 0), window(rev, tt.reverse, 200, 0)}, DefaultParameters())[0]
		if f.ClockSuspect != tt.want || f.Delayed {
			t.Errorf("%d ns and %d ns: a clock %v, delayed %v; want a clock %v", tt.forward, tt.reverse, f.ClockSuspect, f.Delayed, tt.want)
		}
	}
}

// TestRule4ASumThatMovedAndNoDirection: with neither direction beyond its limit it is a round trip; one nanosecond more of the
// other direction is that direction's.
func TestRule4ASumThatMovedAndNoDirection(t *testing.T) {
	for _, tt := range []struct {
		reverse            int64
		delayed, roundTrip bool
	}{{10_500, true, true}, {10_501, false, false}} {
		obs := []*fabric.Observation{window(fwd, 10_500, 200, 0), window(rev, tt.reverse, 200, 0)}
		for _, o := range obs {
			o.ClockErrorNS = ns(500)
		}
		if f := FindingsOf(obs, DefaultParameters())[0]; f.Delayed != tt.delayed || f.RoundTrip != tt.roundTrip {
			t.Errorf("%d ns back: delayed %v, round trip %v, want %v and %v", tt.reverse, f.Delayed, f.RoundTrip, tt.delayed, tt.roundTrip)
		}
	}
}

// TestWindowsAreComparedByWhatBothHave: a quantile that only one of window and baseline has is not used.
func TestWindowsAreComparedByWhatBothHave(t *testing.T) {
	for _, tt := range []struct {
		what      string
		now, base fabric.Quantiles
		shift     int64
		ok        bool
	}{
		{"a mean, the baseline's median besides", fabric.Quantiles{Mean: ns(7000)}, fabric.Quantiles{P50: ns(5000), Mean: ns(5500)}, 1500, true},
		{"a mean, the window's median besides", fabric.Quantiles{P50: ns(9000), Mean: ns(7000)}, fabric.Quantiles{Mean: ns(5500)}, 1500, true},
		{"the tail alone", fabric.Quantiles{P99: ns(9000)}, fabric.Quantiles{P99: ns(8000)}, 1000, true},
		{"nothing in common", fabric.Quantiles{P50: ns(9000)}, fabric.Quantiles{P99: ns(8000)}, 0, false},
	} {
		o := window(fwd, 0, 200, 0)
		o.OWD, o.Baseline = &tt.now, &tt.base
		if f := FindingsOf([]*fabric.Observation{o}, DefaultParameters())[0]; f.HasShift != tt.ok || f.Shift != tt.shift {
			t.Errorf("%s: shift %d, %v; want %d, %v", tt.what, f.Shift, f.HasShift, tt.shift, tt.ok)
		}
	}
}

// TestRule4LimitsOfTheSum: two directions at their limits, and one that is as far below as its limit allows.
func TestRule4LimitsOfTheSum(t *testing.T) {
	for _, tt := range []struct {
		forward, reverse   int64
		delayed, roundTrip bool
	}{
		{10_000, 10_000, false, false}, {10_001, 10_000, true, false}, {10_000, 10_001, false, false},
		{30_001, -10_000, true, false}, {30_002, -10_001, true, true},
		{-10_000, 30_001, false, false}, {-10_001, 30_002, true, true},
	} {
		f := FindingsOf([]*fabric.Observation{window(fwd, tt.forward, 200, 0), window(rev, tt.reverse, 200, 0)}, DefaultParameters())[0]
		if f.Delayed != tt.delayed || f.RoundTrip != tt.roundTrip || f.ClockSuspect {
			t.Errorf("%d and %d ns: delayed %v, round trip %v, clock %v; want %v, %v and no clock", tt.forward, tt.reverse, f.Delayed, f.RoundTrip, f.ClockSuspect, tt.delayed, tt.roundTrip)
		}
	}
}

// TestRules5And9LimitsOfCounts: losses count from three on, at 7 nats against one in a thousand, and are hard from one half
// on; marks count from eight on, at 7 nats against 2 %. The nats are computed here.
func TestRules5And9LimitsOfCounts(t *testing.T) {
	nats := func(n, of uint64, base float64) float64 {
		q := float64(n) / float64(of)
		if q <= base {
			return 0
		}
		rest := 0.0
		if n < of {
			rest = float64(of-n) * math.Log((1-q)/(1-base))
		}
		return float64(n)*math.Log(q/base) + rest
	}
	both := map[string]int{}
	for _, sent := range []uint64{4, 16, 20, 100, 112, 200, 500, 1000, 3000} {
		for n := uint64(1); n <= min(sent, 120); n++ {
			lossy, marked := n >= 3 && nats(n, sent, 0.001) >= 7, n >= 8 && nats(n, sent, 0.02) >= 7
			hard := lossy && 2*n >= sent
			f := FindingsOf([]*fabric.Observation{window(fwd, 0, sent, n)}, DefaultParameters())[0]
			if f.Lossy != lossy || f.Hard != hard {
				t.Fatalf("%d of %d lost: lossy %v, hard %v; want %v, %v", n, sent, f.Lossy, f.Hard, lossy, hard)
			}
			o := window(fwd, 0, sent, 0)
			o.ECN = &n
			if f := FindingsOf([]*fabric.Observation{o}, DefaultParameters())[0]; f.Marked != marked {
				t.Fatalf("%d of %d marked: %v, want %v", n, sent, f.Marked, marked)
			}
			both[fmt.Sprint("lossy ", lossy)]++
			both[fmt.Sprint("hard ", hard)]++
			both[fmt.Sprint("marked ", marked)]++
		}
	}
	for what, n := range both {
		if n < 10 {
			t.Errorf("%s: only %d cases", what, n)
		}
	}
}

// TestScales: the limits of shifts and tails by kind of stamps, noise and tail.
func TestScales(t *testing.T) {
	for _, tt := range []struct {
		stamps      string
		mad, tail   int64
		scale, late int64
	}{
		{"hardware", 10, 100, 1000, 2000}, {"kernel", 10, 100, 10_000, 20_000}, {"user", 10, 100, 200_000, 400_000},
		{"kernel", 1250, 100, 10_000, 20_000}, {"kernel", 1251, 100, 10_008, 20_000}, {"kernel", 10, 6668, 10_002, 20_000}, {"kernel", 10, 40_000, 60_000, 60_000},
	} {
		o := window(fwd, 0, 200, 0)
		o.Timestamp, o.BaselineMADNS, o.Baseline.P99 = tt.stamps, &tt.mad, ns(5000+tt.tail)
		if f := FindingsOf([]*fabric.Observation{o}, DefaultParameters())[0]; f.Scale != tt.scale || f.TailScale != tt.late {
			t.Errorf("%s stamps, MAD %d, tail %d: limits %d and %d, want %d and %d", tt.stamps, tt.mad, tt.tail, f.Scale, f.TailScale, tt.scale, tt.late)
		}
	}
}

// TestRule8LimitsOfJitter: the 90th percentile moved by the limit, and by one nanosecond more.
func TestRule8LimitsOfJitter(t *testing.T) {
	for _, tt := range []struct {
		p90, p99 int64 // from the median; 0: not measured
		want     bool
	}{{24_000, 90_000, false}, {24_001, 90_000, true}, {0, 84_000, false}, {0, 84_001, true}} {
		o := window(fwd, 0, 200, 0)
		if o.OWD.P99 = ns(5000 + tt.p99); tt.p90 > 0 {
			o.OWD.P90 = ns(5000 + tt.p90)
		}
		if f := FindingsOf([]*fabric.Observation{o}, DefaultParameters())[0]; f.Jittery != tt.want || f.TailShift != tt.p99-4000 {
			t.Errorf("%+v: jittery %v by %d", tt, f.Jittery, f.TailShift)
		}
	}
}

// TestRule7ASumByMeans: the sum of the means replaces that of the medians where it is smaller, not where it is as large.
func TestRule7ASumByMeans(t *testing.T) {
	for mean, want := range map[int64]int64{0: 0, 29_999: 29_999, 30_000: 30_000, -30_000: 30_000, 30_001: 30_000} {
		a, b := window(fwd, 20_000, 200, 0), window(rev, 10_000, 200, 0)
		a.OWD.Mean, b.OWD.Mean = ns(5000+mean), ns(5000)
		for i, f := range FindingsOf([]*fabric.Observation{a, b}, DefaultParameters()) {
			// 4.5 % of the medians, now and before.
			if resolution := int64(1125 + 675 + 225 + 225); !f.HasSum || f.Sum != want || f.SumScale != 20_000+resolution {
				t.Errorf("means moved by %d, direction %d: sum %d of %d, want %d of %d", mean, i, f.Sum, f.SumScale, want, 20_000+resolution)
			}
		}
	}
}

// TestAbsentQuantiles: what window or baseline lack is not compared.
func TestAbsentQuantiles(t *testing.T) {
	for _, tt := range []struct {
		what        string
		drop        func(*fabric.Observation)
		shift, tail bool
	}{
		{"nothing", func(*fabric.Observation) {}, true, true},
		{"delays", func(o *fabric.Observation) { o.OWD = nil }, false, false},
		{"baseline", func(o *fabric.Observation) { o.Baseline = nil }, false, false},
		{"median", func(o *fabric.Observation) { o.OWD.P50 = nil }, true, false},
		{"tail", func(o *fabric.Observation) { o.OWD.P99 = nil }, true, false},
		{"the baseline's median", func(o *fabric.Observation) { o.Baseline.P50 = nil }, true, false},
		{"the baseline's tail", func(o *fabric.Observation) { o.Baseline.P99 = nil }, true, false},
	} {
		o := window(fwd, 0, 200, 0)
		tt.drop(o)
		if f := FindingsOf([]*fabric.Observation{o}, DefaultParameters())[0]; f.HasShift != tt.shift || f.HasTail != tt.tail || f.Condition != Healthy {
			t.Errorf("without %s: shift %v, tail %v, condition %v", tt.what, f.HasShift, f.HasTail, f.Condition)
		}
	}
}

// TestManyWindowsAreJudgedInParts: as each by itself.
func TestManyWindowsAreJudgedInParts(t *testing.T) {
	var obs []*fabric.Observation
	for i := range 3000 {
		shift := int64(i%3) * 40_000
		obs = append(obs, window(fmt.Sprintf("h%d/eth1>h0/eth1#0", i+1), shift, 200, 0), window(fmt.Sprintf("h%d/eth1>h0/eth1#0/r", i+1), 0, 200, uint64(20*(i%2))))
	}
	for i, f := range FindingsOf(obs, DefaultParameters()) {
		slow, lossy := i%2 == 0 && i/2%3 > 0, i%2 == 1 && i/2%2 == 1
		if f.Delayed != slow || f.Lossy != lossy || f.Condition == Undecided || f.Obs != obs[i] || !f.HasSum {
			t.Fatalf("window %d: %+v", i, f)
		}
	}
}

// TestBinomialLLAtTheEnds: a ratio of 0 or 1 stands for one in 10^9.
func TestBinomialLLAtTheEnds(t *testing.T) {
	for _, got := range []float64{BinomialLL(1, 1, 0), BinomialLL(0, 1, 1)} {
		if want := math.Log(1e-9); math.Abs(got-want) > 1e-6 {
			t.Errorf("%g, want %g", got, want)
		}
	}
}

// TestSumOfDirections checks the sum against arithmetic by hand: the smaller of medians and means, and a scale with the
// widths of the four buckets.
func TestSumOfDirections(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for _, tt := range []struct {
		name          string
		means         [2]*int64
		sum, sumScale int64
	}{
		{"medians", [2]*int64{}, 50_000, 287_750},
		{"one mean", [2]*int64{n(950_000), nil}, 50_000, 287_750},
		{"smaller means", [2]*int64{n(950_000), n(2_020_000)}, 20_000, 287_750},
		{"smaller means below zero", [2]*int64{n(950_000), n(1_980_000)}, -20_000, 287_750},
		{"larger means", [2]*int64{n(950_000), n(2_060_000)}, 50_000, 287_750},
	} {
		t.Run(tt.name, func(t *testing.T) {
			obs := []*fabric.Observation{
				{Edge: "a/e>b/e#0", Src: "a/e", Dst: "b/e", Timestamp: "kernel", Sent: 100, OWD: &fabric.Quantiles{P50: n(1_000_000), Mean: tt.means[0]}, Baseline: &fabric.Quantiles{P50: n(900_000)}},
				{Edge: "a/e>b/e#0/r", Src: "b/e", Dst: "a/e", Timestamp: "kernel", Sent: 100, OWD: &fabric.Quantiles{P50: n(2_000_000), Mean: tt.means[1]}, Baseline: &fabric.Quantiles{P50: n(2_050_000)}},
			}
			for i, f := range FindingsOf(obs, DefaultParameters()) {
				if !f.HasSum || f.Sum != tt.sum || f.SumScale != tt.sumScale {
					t.Errorf("direction %d: sum %d of scale %d (%v), want %d of %d", i, f.Sum, f.SumScale, f.HasSum, tt.sum, tt.sumScale)
				}
			}
		})
	}
}

func TestRunInPartsTakesEachOnce(t *testing.T) {
	for _, n := range []int{0, 1, 4095, 4096, 10_007} {
		times := make([]int32, n)
		runInParts(n, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				atomic.AddInt32(&times[i], 1)
			}
		})
		for i, k := range times {
			if k != 1 {
				t.Fatalf("item %d of %d was taken %d times", i, n, k)
			}
		}
	}
}

// TestWhatLasts: a median that moved lasts, and so do losses in each second of a window of two.
func TestWhatLasts(t *testing.T) {
	base, moved, tail := int64(5000), int64(2_005_000), int64(9000)
	for name, tt := range map[string]struct {
		o    fabric.Observation
		want bool
	}{
		"healthy":               {fabric.Observation{Sent: 100, LastSecond: &fabric.Count{Sent: 50}}, false},
		"lost in both":          {fabric.Observation{Sent: 100, Lost: 10, LastSecond: &fabric.Count{Sent: 50, Lost: 4}}, true},
		"one less before":       {fabric.Observation{Sent: 100, Lost: 5, LastSecond: &fabric.Count{Sent: 50, Lost: 4}}, false},
		"lost before":           {fabric.Observation{Sent: 100, Lost: 10, LastSecond: &fabric.Count{Sent: 50}}, false},
		"too few":               {fabric.Observation{Sent: 10000, Lost: 9, LastSecond: &fabric.Count{Sent: 5000, Lost: 4}}, false},
		"the second is unknown": {fabric.Observation{Sent: 100, Lost: 10}, false},
		"longer windows":        {fabric.Observation{WindowNS: 30e9, Sent: 100, Lost: 10, LastSecond: &fabric.Count{Sent: 50, Lost: 4}}, false},
		"late":                  {fabric.Observation{Sent: 100, OWD: &fabric.Quantiles{P50: &moved, P99: &moved}}, true},
		"late by a bad clock":   {fabric.Observation{Sent: 100, OWD: &fabric.Quantiles{P50: &moved, P99: &moved}, ClockSuspect: true}, false},
		"a tail":                {fabric.Observation{Sent: 100, OWD: &fabric.Quantiles{P50: &base, P90: &moved, P99: &moved}}, false},
	} {
		o := tt.o
		o.Edge, o.Src, o.Dst, o.Timestamp, o.Baseline = "h1/eth1>h2/eth1#0", "h1/eth1", "h2/eth1", "kernel", &fabric.Quantiles{P50: &base, P99: &tail}
		if o.WindowNS == 0 {
			o.WindowNS = 2e9
		}
		f := FindingsOf([]*fabric.Observation{&o}, DefaultParameters())
		if len(f) != 1 || f[0].Lasting != tt.want {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
