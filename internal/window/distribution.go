package window

import (
	"iter"
	"math"
	"slices"
)

// perOctave is the number of buckets of an octave: bounds grow by 2^(1/16), as in native histograms of schema 4.
const perOctave = 16

// Buckets holds the buckets of a native histogram of Prometheus with schema 4, whose counts only grow.
type Buckets struct {
	Zero               uint64
	Positive, Negative iter.Seq2[int, uint64] // by index as Prometheus numbers them, in increasing order
}

// delayCount is how many delays of one direction and kind fell into one bucket. Buckets are ordered by their delays:
// negative ones are those of negative delays, and 0 is the bucket around zero.
type delayCount struct {
	direction, kind uint8
	bucket          int16
	count           uint32
}

// offset makes the indices of all buckets positive. The smallest index is that of a nanosecond.
const offset = 31 * perOctave

// sameBucket reports whether two counts are of the same bucket.
func (d delayCount) sameBucket(o delayCount) bool {
	return d.direction == o.direction && d.kind == o.kind && d.bucket == o.bucket
}

// compare orders counts by direction, kind and delay.
func (d delayCount) compare(o delayCount) int {
	key := func(d delayCount) int64 {
		return int64(d.direction)<<32 | int64(d.kind)<<24 | int64(int32(d.bucket)+1<<15)
	}
	return int(key(d) - key(o))
}

// appendBuckets appends the counts of a histogram that are not 0, in the order of compare.
func appendBuckets(to []delayCount, direction, kind int, b *Buckets) []delayCount {
	at := func(bucket int, n uint64) delayCount {
		return delayCount{uint8(direction), uint8(kind), int16(bucket), uint32(n)}
	}
	if b.Negative != nil {
		from := len(to)
		for i, n := range b.Negative {
			to = append(to, at(-(i+offset), n))
		}
		for i, j := from, len(to)-1; i < j; i, j = i+1, j-1 {
			to[i], to[j] = to[j], to[i]
		}
	}
	if b.Zero > 0 {
		to = append(to, at(0, b.Zero))
	}
	if b.Positive != nil {
		for i, n := range b.Positive {
			to = append(to, at(i+offset, n))
		}
	}
	return to
}

// appendGrowth appends by how much the counts grew from old to now, both in the order of compare. Counts wrap.
func appendGrowth(to, old, now []delayCount) []delayCount {
	i := 0
	for _, n := range now {
		for i < len(old) && old[i].compare(n) < 0 {
			i++
		}
		if i < len(old) && old[i].sameBucket(n) {
			n.count -= old[i].count
		}
		if n.count > 0 {
			to = append(to, n)
		}
	}
	return to
}

// mergeBuckets sorts counts, and adds up those of one bucket, in place.
func mergeBuckets(counts []delayCount) []delayCount {
	slices.SortFunc(counts, delayCount.compare)
	out := counts[:0]
	for _, c := range counts {
		if n := len(out); n > 0 && out[n-1].sameBucket(c) {
			out[n-1].count += c.count
		} else {
			out = append(out, c)
		}
	}
	return out
}

// bucketBound returns the bound of a bucket that is farther from zero, in nanoseconds.
func bucketBound(bucket int16) float64 {
	switch {
	case bucket > 0:
		return math.Exp2(float64(int(bucket)-offset)/perOctave) * 1e9
	case bucket < 0:
		return -math.Exp2(float64(-int(bucket)-offset)/perOctave) * 1e9
	}
	return 0
}

// distributionOf describes counts in the order of delays. Within a bucket it interpolates exponentially, as Prometheus
// does.
func distributionOf(counts []delayCount) (d Distribution) {
	total := uint64(0)
	for _, c := range counts {
		total += uint64(c.count)
	}
	d.Count = float64(total)
	if total == 0 {
		return d
	}
	for share, to := range map[float64]**int64{0.5: &d.P50, 0.9: &d.P90, 0.99: &d.P99} {
		v := int64(quantileOf(counts, share*d.Count))
		*to = &v
	}
	return d
}

// quantileOf returns the delay in nanoseconds below which so many delays are.
func quantileOf(counts []delayCount, rank float64) float64 {
	seen := 0.0
	for i, c := range counts {
		n := float64(c.count)
		if seen+n < rank && i < len(counts)-1 {
			seen += n
			continue
		}
		share := math.Min(1, math.Max(0, rank-seen)/n)
		bound := bucketBound(c.bucket)
		switch {
		case c.bucket > 0:
			return bound * math.Exp2((share-1)/perOctave)
		case c.bucket < 0:
			return bound * math.Exp2(-share/perOctave)
		}
		return 0
	}
	return 0
}
