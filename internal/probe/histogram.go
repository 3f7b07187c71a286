package probe

import (
	"math"
	"math/bits"
	"slices"
)

// Native histogram parameters of the published series.
const (
	// HistogramSchema is the Prometheus schema, in which bucket bounds grow by 2^(1/16).
	HistogramSchema = 4
	// HistogramZero is the width of the zero bucket in seconds. It holds durations of at most one nanosecond either way.
	HistogramZero = 1e-9

	perOctave = 1 << HistogramSchema
	// The bucket firstBucket holds 2 ns, and lastBucket the longest int64. Octave 0 starts at firstOctave, so that page
	// numbers are never negative.
	firstOctave = -30
	octaves     = 64
)

// bucketTable holds tables for the search of a bucket.
//
// bounds[i] is the inclusive upper bound, in whole nanoseconds, of the bucket with index i+firstOctave*perOctave:
// 2^(index/16) seconds.
//
// cell[k*16+m] is the place in bounds of the bucket that holds the smallest value with highest bit k and next four bits m.
// A cell is at most a factor of 17/16 wide, less than two buckets, so the search from there is short.
type bucketTable struct {
	bounds [octaves * perOctave]uint64
	cell   [64 * 16]uint16
}

func newBucketTable() *bucketTable {
	t := &bucketTable{}
	for i := range t.bounds {
		b := math.Exp2(float64(i+firstOctave*perOctave)/perOctave) * 1e9
		if b >= math.MaxUint64 {
			t.bounds[i] = math.MaxUint64
		} else {
			t.bounds[i] = uint64(b)
		}
	}
	t.bounds[len(t.bounds)-1] = math.MaxUint64 // it ends every search
	for k := range 64 {
		for m := range 16 {
			v := uint64(1)<<k | uint64(m)<<max(k-4, 0)>>max(4-k, 0)
			i := 0
			for v > t.bounds[i] {
				i++
			}
			t.cell[k*16+m] = uint16(i)
		}
	}
	return t
}

// buckets is read-only after the program has started.
var buckets = newBucketTable()

// bucketIndex returns the place in bounds of the bucket of v, at least 2.
func (t *bucketTable) bucketIndex(v uint64) int {
	k := bits.Len64(v) - 1
	var m uint64
	if k >= 4 {
		m = v >> (k - 4) & 15
	} else {
		m = v << (4 - k) & 15
	}
	i := int(t.cell[k*16+int(m)])
	for v > t.bounds[i] {
		i++
	}
	return i
}

// page holds the buckets of one octave.
type page [perOctave]uint64

// Histogram counts signed durations in exponential buckets. It allocates the memory of an octave with its first count, so a
// steady distribution allocates nothing. All memory is in one piece, so a copy costs one allocation. The zero Histogram is
// empty and ready to use. A Histogram that was assigned shares its counts with the original. Clone copies them.
type Histogram struct {
	Count uint64
	Zero  uint64
	SumNS float64
	// index[o] is one more than the place in pages of the o-th octave of positive durations, and index[octaves+o] of negative
	// ones. It is 0 while the octave has no count.
	index [2 * octaves]uint8
	pages []page
}

// Observe counts a duration in nanoseconds.
func (h *Histogram) Observe(ns int64) {
	h.Count++
	h.SumNS += float64(ns)
	side, v := 0, uint64(ns)
	if ns < 0 {
		side, v = octaves, -uint64(ns)
	}
	if v <= 1 {
		h.Zero++
		return
	}
	i := buckets.bucketIndex(v)
	h.octavePage(side + i/perOctave)[i%perOctave]++
}

// octavePage returns the page of an octave. It allocates the page if necessary.
func (h *Histogram) octavePage(octave int) *page {
	if h.index[octave] == 0 {
		h.pages = append(h.pages, page{})
		h.index[octave] = uint8(len(h.pages))
	}
	return &h.pages[h.index[octave]-1]
}

// Add adds the counts of o.
func (h *Histogram) Add(o *Histogram) {
	h.Count += o.Count
	h.Zero += o.Zero
	h.SumNS += o.SumNS
	for octave, at := range o.index {
		if at == 0 {
			continue
		}
		to, from := h.octavePage(octave), &o.pages[at-1]
		for j, n := range from {
			to[j] += n
		}
	}
}

// Clone copies the histogram.
func (h *Histogram) Clone() Histogram {
	c := *h
	c.pages = slices.Clone(h.pages)
	return c
}

// PositiveBuckets yields the buckets of positive durations that have counts, by index as Prometheus numbers them, in
// increasing order. It is an iter.Seq2.
func (h *Histogram) PositiveBuckets(yield func(index int, count uint64) bool) { h.eachBucket(0, yield) }

// NegativeBuckets yields the buckets of negative durations that have counts, from the smallest magnitude to the largest. It
// is an iter.Seq2.
func (h *Histogram) NegativeBuckets(yield func(index int, count uint64) bool) {
	h.eachBucket(octaves, yield)
}

func (h *Histogram) eachBucket(side int, yield func(int, uint64) bool) {
	for o, at := range h.index[side : side+octaves] {
		if at == 0 {
			continue
		}
		for j, n := range &h.pages[at-1] {
			if n > 0 && !yield((o+firstOctave)*perOctave+j, n) {
				return
			}
		}
	}
}

// Quantile estimates the q-quantile in nanoseconds by the geometric middle of its bucket. It returns false if the histogram
// is empty.
func (h *Histogram) Quantile(q float64) (ns float64, ok bool) {
	if h.Count == 0 {
		return 0, false
	}
	rank := uint64(math.Ceil(q * float64(h.Count)))
	rank = max(rank, 1)
	var seen uint64
	for o := octaves - 1; o >= 0; o-- {
		for j := perOctave - 1; j >= 0 && h.index[octaves+o] != 0; j-- {
			if seen += h.pages[h.index[octaves+o]-1][j]; seen >= rank {
				return -bucketMiddle(o, j), true
			}
		}
	}
	if seen += h.Zero; seen >= rank {
		return 0, true
	}
	for o := range octaves {
		for j := 0; j < perOctave && h.index[o] != 0; j++ {
			if seen += h.pages[h.index[o]-1][j]; seen >= rank {
				return bucketMiddle(o, j), true
			}
		}
	}
	return 0, false
}

func bucketMiddle(octave, j int) float64 {
	return math.Exp2((float64((octave+firstOctave)*perOctave+j)-0.5)/perOctave) * 1e9
}
