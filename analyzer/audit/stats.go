package audit

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// UpperBound returns the one-sided upper bound of a probability, by Clopper and Pearson, after some of n trials failed. For 0
// failures it is 1-(1-confidence)^(1/n). It is 1 if there were no trials.
func UpperBound(failed, n uint64, confidence float64) float64 {
	switch {
	case failed >= n:
		return 1
	case failed == 0:
		return -math.Expm1(math.Log1p(-confidence) / float64(n))
	}
	return distuv.Beta{Alpha: float64(failed + 1), Beta: float64(n - failed)}.Quantile(confidence)
}

// LowerBound returns the one-sided lower bound of a probability, by Clopper and Pearson.
func LowerBound(failed, n uint64, confidence float64) float64 {
	switch {
	case failed == 0:
		return 0
	case failed >= n:
		return math.Pow(1-confidence, 1/float64(n))
	}
	return distuv.Beta{Alpha: float64(failed), Beta: float64(n - failed + 1)}.Quantile(1 - confidence)
}

// probesFor returns how many probes without a loss bound the loss at a ratio.
func probesFor(ratio, confidence float64) float64 {
	return math.Ceil(math.Log1p(-confidence) / math.Log1p(-ratio))
}

// median returns the median of values, which it sorts. It is 0 without values.
func median[T int64 | float64](v []T) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	m := len(v) / 2
	if len(v)%2 == 1 {
		return float64(v[m])
	}
	return (float64(v[m-1]) + float64(v[m])) / 2
}

// medianAndMAD returns the median, and the median absolute deviation scaled to the standard deviation of a normal
// distribution.
func medianAndMAD(v []float64) (middle, spread float64) {
	v = slices.Clone(v)
	middle = median(v)
	for i := range v {
		v[i] = math.Abs(v[i] - middle)
	}
	return middle, 1.4826 * median(v)
}

// minExpected is the least expected count of each class for which the chi-square distribution is used.
const minExpected = 5

// uniformProbability returns the probability that counts as uneven as these, or more so, come from a uniform choice. With few
// counts it is an upper bound, from the exact binomial distribution of each count.
func uniformProbability(counts []int) float64 {
	n := 0
	for _, c := range counts {
		n += c
	}
	k := float64(len(counts))
	expected := float64(n) / k
	if n == 0 || k < 2 {
		return 1
	}
	if expected >= minExpected {
		x := 0.0
		for _, c := range counts {
			x += (float64(c) - expected) * (float64(c) - expected) / expected
		}
		return distuv.ChiSquared{K: k - 1}.Survival(x)
	}
	b := distuv.Binomial{N: float64(n), P: 1 / k}
	least := 1.0
	for _, c := range counts {
		tail := b.CDF(float64(c))
		if float64(c) > expected {
			tail = 1 - b.CDF(float64(c)-1)
		}
		least = min(least, tail)
	}
	return min(1, 2*k*least)
}
