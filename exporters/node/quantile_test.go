package node

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/probe"
)

// bucketOf represents a bucket of a decoded histogram, with samples in (low, high], or in [low, high] for the zero
// bucket.
type bucketOf struct {
	low, high float64
	n         float64
}

// bucketsOf decodes a native histogram by the definition of its data model, and returns its buckets from the smallest
// value to the largest: https://prometheus.io/docs/specs/native_histograms/
func bucketsOf(h *dto.Histogram) []bucketOf {
	base := math.Exp2(math.Exp2(-float64(h.GetSchema())))
	side := func(runs []*dto.BucketSpan, deltas []int64) (out []bucketOf) {
		index, count, at := 0, int64(0), 0
		for _, r := range runs {
			index += int(r.GetOffset())
			for range r.GetLength() {
				count += deltas[at]
				at++
				out = append(out, bucketOf{math.Pow(base, float64(index-1)), math.Pow(base, float64(index)), float64(count)})
				index++
			}
		}
		return out
	}
	var all []bucketOf
	negative := side(h.GetNegativeSpan(), h.GetNegativeDelta())
	for _, b := range slices.Backward(negative) {
		all = append(all, bucketOf{-b.high, -b.low, b.n})
	}
	zero := bucketOf{-h.GetZeroThreshold(), h.GetZeroThreshold(), float64(h.GetZeroCount())}
	positive := side(h.GetPositiveSpan(), h.GetPositiveDelta())
	// Without samples on one side, the zero bucket ends at 0 on that side.
	if len(negative) == 0 && len(positive) > 0 {
		zero.low = 0
	} else if len(positive) == 0 && len(negative) > 0 {
		zero.high = 0
	}
	return append(append(all, zero), positive...)
}

// quantileOf computes a quantile as histogram_quantile does: linear in the zero bucket, exponential in all others.
func quantileOf(q float64, h *dto.Histogram) float64 {
	rank := q * float64(h.GetSampleCount())
	seen := 0.0
	for _, b := range bucketsOf(h) {
		if seen+b.n < rank || b.n == 0 {
			seen += b.n
			continue
		}
		part := (rank - seen) / b.n
		if b.low <= 0 && b.high >= 0 {
			return b.low + part*(b.high-b.low)
		}
		return b.low * math.Pow(b.high/b.low, part)
	}
	return math.NaN()
}

// published returns the histogram of the samples as a scrape decodes it.
func published(tb testing.TB, samples []int64) *dto.Histogram {
	var s probe.EdgeStats
	for _, ns := range samples {
		s.OWD[0].Kernel.Observe(ns)
	}
	m := &madeUp{cfg: &probe.Config{}, snap: &probe.Snapshot{NICs: []probe.NICStats{{Edges: []probe.EdgeStats{s}}}}}
	_, _, edges := m.gatherers()
	for _, f := range decode(tb, encode(tb, edges, expfmt.NewFormat(expfmt.TypeProtoDelim))) {
		if f.GetName() == "fabric_probe_owd_seconds" {
			return proto.CloneOf(f.GetMetric()[0].GetHistogram())
		}
	}
	tb.Fatal("no fabric_probe_owd_seconds")
	return nil
}

// bucketWidth is the growth of a bucket of schema 4. Two values in the same bucket differ by at most that, 4.4 %.
var bucketWidth = math.Exp2(1.0/16) - 1

// quantileError returns the largest error of the published quantiles, relative to the exact ones, and the quantile that
// has it. Within 1 ns of zero, where a ratio has no meaning, an error of 2 ns is allowed.
func quantileError(tb testing.TB, samples []int64) (worst, at float64) {
	h := published(tb, samples)
	sorted := slices.Sorted(slices.Values(samples))
	for _, q := range []float64{0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999} {
		exact := float64(sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)])
		off := math.Abs(quantileOf(q, h)*1e9 - exact)
		if math.Abs(exact) <= 1 {
			if off > 2 {
				tb.Errorf("q%v = %v ns: off by %v ns", q, exact, off)
			}
			continue
		}
		if e := off / math.Abs(exact); e > worst {
			worst, at = e, q
		}
	}
	return worst, at
}

func TestQuantileErrorOfTheScrapedHistograms(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	for _, d := range []struct {
		name string
		draw func() float64 // nanoseconds
	}{
		{"uniform 1 us..1 ms", func() float64 { return 1e3 + 999e3*rng.Float64() }},
		{"lognormal 5 us", func() float64 { return 5e3 * math.Exp(0.3*rng.NormFloat64()) }},
		{"lognormal 5 us, wide", func() float64 { return 5e3 * math.Exp(2*rng.NormFloat64()) }},
		{"bimodal 4 us, 2 ms", func() float64 {
			if rng.IntN(3) == 0 {
				return 2e6 + 1e4*rng.NormFloat64()
			}
			return 4e3 + 100*rng.NormFloat64()
		}},
		{"Pareto, shape 1.1", func() float64 { return 3e3 * math.Pow(1-rng.Float64(), -1/1.1) }},
		{"negative: clock 1 ms ahead", func() float64 { return -1e6 + 5e3*math.Exp(0.5*rng.NormFloat64()) }},
		{"around zero", func() float64 { return 2e3 * rng.NormFloat64() }},
		{"a few nanoseconds", func() float64 { return math.Round(8 * rng.NormFloat64()) }},
		{"constant 5000 ns", func() float64 { return 5000 }},
		{"constant at a bucket's low end", func() float64 { return 1e9 + 1 }},
		{"constant -731 ns", func() float64 { return -731 }},
		{"constant 0", func() float64 { return 0 }},
	} {
		samples := make([]int64, 50_000)
		for i := range samples {
			samples[i] = int64(d.draw())
		}
		worst, at := quantileError(t, samples)
		t.Logf("%-32s %.2f %% at q%v", d.name, 100*worst, at)
		if worst > bucketWidth {
			t.Errorf("%s: q%v is off by %.2f %%, want no more than %.2f %%", d.name, at, 100*worst, 100*bucketWidth)
		}
	}
}

// TestNegativeDelaysAreKept checks that every sample is in a bucket of its sign, and that the sum is exact.
func TestNegativeDelaysAreKept(t *testing.T) {
	samples := []int64{-1_000_000, -4_500, -4_500, -2, -1, 0, 1, 2, 7_000}
	h := published(t, samples)
	var below, above, sum float64
	for _, b := range bucketsOf(h) {
		if b.high <= -1e-9 {
			below += b.n
		} else if b.low >= 1e-9 {
			above += b.n
		}
	}
	for _, ns := range samples {
		sum += float64(ns)
	}
	if below != 4 || above != 2 || h.GetZeroCount() != 3 || h.GetSampleCount() != 9 || math.Abs(h.GetSampleSum()*1e9-sum) > 1e-3 {
		t.Errorf("%v below, %v about, %v above zero; count %v, sum %v s", below, h.GetZeroCount(), above, h.GetSampleCount(), h.GetSampleSum())
	}
}

// TestQuantileErrorProperty draws random distributions, and not only samples.
func TestQuantileErrorProperty(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		samples := make([]int64, 1+rng.IntN(2000))
		var parts [3]struct{ at, width float64 }
		for i := range parts {
			parts[i].at = math.Exp2(31 * rng.Float64())
			parts[i].width = parts[i].at * rng.Float64()
			if rng.IntN(3) == 0 {
				parts[i].at = -parts[i].at
			}
		}
		var total uint64
		for i := range samples {
			p := parts[rng.IntN(len(parts))]
			samples[i] = int64(p.at + p.width*rng.NormFloat64())
		}
		for _, b := range bucketsOf(published(t, samples)) {
			total += uint64(b.n)
		}
		if total != uint64(len(samples)) {
			t.Fatalf("seed %d: %d samples in the buckets, want %d", seed, total, len(samples))
		}
		if worst, at := quantileError(t, samples); worst > bucketWidth || t.Failed() {
			t.Fatalf("seed %d: %d samples of %s: q%v is off by %.3f %%", seed, len(samples), fmt.Sprint(parts), at, 100*worst)
		}
	}
}
