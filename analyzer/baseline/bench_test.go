package baseline

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// BenchmarkEstimateOnRoute measures what a temporary flow costs each cycle, beside 100,000 flows with baselines.
func BenchmarkEstimateOnRoute(bench *testing.B) {
	b := NewBook()
	for i := range 100_000 {
		f := fabric.Flow{Src: fmt.Sprintf("h%d/e", i/50), Dst: fmt.Sprintf("h%d/e", i%2000), Number: i % 4}
		leaf, spine, other := fmt.Sprint("l", i/500), fmt.Sprint("s", i%16), fmt.Sprint("l", i%200)
		all := make([]int64, LearnWindows)
		for k := range all {
			all[k] = int64(5000 + i%300 + k)
		}
		b.SeedFlow(f, all, all)
		b.FollowRoute(f, pathBy("1", "2", leaf, spine, other))
	}
	p := pathBy("1", "2", "l1", "s1", "l2")
	for n := range bench.N {
		b.LearnWindows(nil, Learning{Cycle: n})
		b.EstimateOnRoute(p, time.Time{})
	}
}

// BenchmarkLearnWindows measures what a cycle costs for each of 30,000 flows: finding its baseline, and learning, in a
// cycle that computes no baselines. Without hours is what it cost before there were any.
func BenchmarkLearnWindows(bench *testing.B) {
	const flows = 30_000
	slowDay := func(h *flowHours, hour int32) {
		h.minute, h.lastQuiet, h.slowMinutes, h.samples = hour*60, hour-1, 59, new([60 / minutesPerSample]delaySample)
		for i := range h.samples {
			h.samples[i] = delaySample{p50: 300_000, p99: 304_000}
		}
		h.closeHour()
	}
	start := time.Date(2026, 3, 9, 2, 30, 0, 0, time.UTC)
	for name, tt := range map[string]struct{ learns, slowHours, isSlow bool }{
		"without hours": {}, "usual": {learns: true}, "usual at a slow hour": {true, true, false}, "slow at a slow hour": {true, true, true}} {
		bench.Run(name, func(bench *testing.B) {
			b := NewBook()
			var obs []*fabric.Observation
			var flow []fabric.Flow
			for i := range flows {
				f := fabric.Flow{Src: fmt.Sprintf("h%d/e", i/50), Dst: fmt.Sprintf("h%d/e", i%2000), Number: i % 4}
				p50s, p99s := slices.Repeat([]int64{5000}, keepWindows), slices.Repeat([]int64{9000}, keepWindows)
				b.SeedFlow(f, p50s, p99s)
				flow = append(flow, f)
				r := b.recordFor(f)
				for day := int32(hourDays); tt.slowHours && day > 0; day-- {
					slowDay(&r.hours, int32(start.Unix()/3600)-24*day)
				}
				p50, p99 := int64(5000), int64(9000)
				if tt.isSlow {
					p50, p99 = 250_000, 260_000
				}
				obs = append(obs, &fabric.Observation{Edge: f.String(), Sent: 100, Timestamp: "kernel", OWD: &fabric.Quantiles{P50: &p50, P99: &p99}})
			}
			found := make([]judge.Finding, flows)
			bench.ReportAllocs()
			bench.ResetTimer()
			for n := range bench.N {
				at := start.Add(time.Duration(n%1200) * time.Second)
				how := Learning{Cycle: recomputeEvery*n + 1}
				if tt.learns {
					how.At = at
				}
				for i, o := range obs {
					found[i] = judge.Finding{Flow: flow[i], Obs: o, Condition: judge.Healthy}
					base, mad := b.BaselineAt(flow[i], o.OWD, at)
					o.Baseline, o.BaselineMADNS = base, &mad
				}
				b.LearnWindows(found, how)
			}
			bench.ReportMetric(float64(bench.Elapsed().Nanoseconds())/float64(bench.N)/flows, "ns/flow")
		})
	}
}
