package probe

import (
	"iter"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// exactIndex returns ceil(16*log2(ns*1e-9)), computed in whole numbers: the smallest i with (ns)^16 <= 2^i * (10^9)^16.
func exactIndex(ns uint64) int {
	v := new(big.Int).Exp(new(big.Int).SetUint64(ns), big.NewInt(16), nil)
	unit := new(big.Int).Exp(big.NewInt(1_000_000_000), big.NewInt(16), nil)
	i := int(math.Floor(16*math.Log2(float64(ns)/1e9))) - 2
	for {
		a, b := new(big.Int).Set(v), new(big.Int).Set(unit)
		if i >= 0 {
			b.Lsh(b, uint(i))
		} else {
			a.Lsh(a, uint(-i))
		}
		if a.Cmp(b) <= 0 {
			return i
		}
		i++
	}
}

func TestBucketIndexIsExact(t *testing.T) {
	check := func(ns uint64) {
		t.Helper()
		got := buckets.bucketIndex(ns) + firstOctave*perOctave
		if want := exactIndex(ns); got != want {
			t.Fatalf("%d ns: bucket %d, want %d", ns, got, want)
		}
		// The same index is computed by logarithm, away from the bounds, where a logarithm cannot decide.
		l := 16 * math.Log2(float64(ns)/1e9)
		if f := l - math.Floor(l); f > 1e-6 && f < 1-1e-6 && got != int(math.Ceil(l)) {
			t.Fatalf("%d ns: bucket %d, log2 says %v", ns, got, l)
		}
	}
	for ns := uint64(2); ns < 5000; ns++ {
		check(ns)
	}
	for _, b := range buckets.bounds {
		for d := uint64(0); d < 3; d++ {
			// Beyond three days a float64 cannot distinguish the bound from its neighbours.
			if b+d > 2 && b < 1<<48 {
				check(b + d - 1)
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		check(2 + rng.Uint64()>>(rng.UintN(40)+16))
	}
}

func TestHistogramCountsBothSides(t *testing.T) {
	var h Histogram
	for _, ns := range []int64{0, 1, -1, 2, -2, 5000, -5000, 1_000_000_000, math.MaxInt64, math.MinInt64} {
		h.Observe(ns)
	}
	pos, neg := maps.Collect(h.PositiveBuckets), maps.Collect(h.NegativeBuckets)
	if h.Count != 10 || h.Zero != 3 {
		t.Fatalf("count %d zero %d, want 10 and 3", h.Count, h.Zero)
	}
	if pos[0] != 1 {
		t.Errorf("one second is in the bucket that ends at it: %v", pos)
	}
	if n := len(pos) + len(neg); n != 7 {
		t.Errorf("%d buckets, want 7: %v %v", n, pos, neg)
	}
	if i := exactIndex(5000); pos[i] != 1 || neg[i] != 1 {
		t.Errorf("5 us: %d and %d, want 1 and 1", pos[i], neg[i])
	}
}

func TestQuantile(t *testing.T) {
	var h Histogram
	for i := int64(-100); i < 900; i++ {
		h.Observe(i * 1000)
	}
	for _, tc := range []struct{ q, want float64 }{{0.05, -50_000}, {0.5, 400_000}, {0.99, 890_000}} {
		got, ok := h.Quantile(tc.q)
		if !ok || math.Abs(got-tc.want) > 0.05*math.Abs(tc.want) {
			t.Errorf("q%v = %v, want %v within 5 %%", tc.q, got, tc.want)
		}
	}
	if _, ok := (&Histogram{}).Quantile(0.5); ok {
		t.Error("an empty histogram has a quantile")
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	var h Histogram
	h.Observe(5000)
	if n := testing.AllocsPerRun(1000, func() { h.Observe(5001) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// TestAddAndClone checks that sums and copies hold every count and share none.
func TestAddAndClone(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		var a, b, both Histogram
		for range rng.IntN(400) {
			v := rng.Int64N(1<<(1+rng.IntN(60))) - 1<<20
			part := &a
			if rng.IntN(2) == 0 {
				part = &b
			}
			part.Observe(v)
			both.Observe(v)
		}
		sum := a.Clone()
		sum.Add(&b)
		for name, side := range map[string]func(*Histogram) iter.Seq2[int, uint64]{
			"positive": func(h *Histogram) iter.Seq2[int, uint64] { return h.PositiveBuckets },
			"negative": func(h *Histogram) iter.Seq2[int, uint64] { return h.NegativeBuckets },
		} {
			if got, want := maps.Collect(side(&sum)), maps.Collect(side(&both)); !maps.Equal(got, want) {
				t.Fatalf("%s: %v, want %v", name, got, want)
			}
		}
		if sum.Count != both.Count || sum.Zero != both.Zero {
			t.Fatalf("count %d zero %d, want %d and %d", sum.Count, sum.Zero, both.Count, both.Zero)
		}
		before := maps.Collect(a.PositiveBuckets)
		sum.Observe(5000)
		if after := maps.Collect(a.PositiveBuckets); !maps.Equal(before, after) {
			t.Fatal("a clone shares its counts with the original")
		}
	}
}

// TestBucketsComeInOrder checks that the order is upwards in magnitude, which spans rely on.
func TestBucketsComeInOrder(t *testing.T) {
	var h Histogram
	for _, ns := range []int64{1 << 40, 3, -77, 1 << 20, -1 << 50, 5000, -3, 2} {
		h.Observe(ns)
	}
	for _, side := range []iter.Seq2[int, uint64]{h.PositiveBuckets, h.NegativeBuckets} {
		last := math.MinInt
		for i := range side {
			if i <= last {
				t.Errorf("bucket %d comes after %d", i, last)
			}
			last = i
		}
	}
	for range h.PositiveBuckets {
		break // a reader may stop
	}
}

func BenchmarkClone(b *testing.B) {
	var h Histogram
	for i := range int64(4096) {
		h.Observe(4000 + 10*i)
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = h.Clone()
	}
}

func BenchmarkObserve(b *testing.B) {
	var h Histogram
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		h.Observe(int64(4000 + i&4095))
	}
}
