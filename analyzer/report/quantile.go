package report

import (
	"math"

	"github.com/graylink/graylink/analyzer/evidence"
)

// upperQuantile returns a quantile, from 0.5 on, of a native histogram with exponential buckets, as histogram_quantile of Prometheus 3 has
// it: within a bucket the logarithms of the values are spread evenly, and within the bucket around zero the values. It is NaN for an empty
// histogram.
func upperQuantile(h *evidence.Histogram, phi float64) float64 {
	if h.Count <= 0 || len(h.Buckets) == 0 {
		return math.NaN()
	}
	above, at := 0.0, len(h.Buckets)-1
	rank := (1 - phi) * h.Count
	for ; at > 0; at-- {
		if above += h.Buckets[at].Count; above >= rank {
			break
		}
	}
	if at == 0 {
		above = h.Count
	}
	b := h.Buckets[at]
	share := min(max((above-rank)/b.Count, 0), 1)
	switch {
	case b.Lower <= 0 && b.Upper >= 0:
		// The bucket around zero has values of the sign that all others have.
		if at == 0 && len(h.Buckets) > 1 {
			b.Lower = 0
		} else if at > 0 && at == len(h.Buckets)-1 {
			b.Upper = 0
		}
		return b.Lower + (b.Upper-b.Lower)*share
	case b.Lower > 0:
		return b.Lower * math.Pow(b.Upper/b.Lower, share)
	}
	return b.Upper * math.Pow(b.Lower/b.Upper, 1-share)
}
