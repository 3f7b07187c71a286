package clocksync

import (
	"math"
	"slices"
)

// sampleDistances returns the delays of a window's samples by direction, relative to a relation and to
// the delay and asymmetry of the path.
func (p *Pair) sampleDistances(w *[2]window, from *Relation) *[2][]float64 {
	for d := range w {
		u := p.buffers.distances[d][:0]
		sign, rest := int64(1), p.filter.x[2]+p.path.asym
		if d == reverse {
			sign, rest = -1, p.filter.x[2]-p.path.asym
		}
		for i := range w[d].samples {
			s := &w[d].samples[i]
			u = append(u, float64(s.delay-sign*from.OffsetAt(s.at))-rest)
		}
		p.buffers.distances[d] = u
	}
	return &p.buffers.distances
}

// sortedDistances returns the sorted distances of the window's samples.
func (p *Pair) sortedDistances(from *Relation) *[2][]float64 {
	u := p.sampleDistances(&p.samples.now, from)
	for d := range u {
		slices.Sort(u[d])
	}
	return u
}

// teachShape lets the shape learn from the window before, whose place later hints have made more
// precise.
func (p *Pair) teachShape() {
	if p.history.lastOdd || len(p.samples.last[forward].samples) < fewestSamples || len(p.samples.last[reverse].samples) < fewestSamples {
		return
	}
	from, _ := p.windowRelation(p.filter.at)
	for d, u := range p.sampleDistances(&p.samples.last, &from) {
		for _, v := range u {
			p.shape.addDistance(d, v)
		}
	}
	p.shape.windows++
	p.shape.endWindow(p.shape.windows)
}

func sortedQuantile(sorted []float64, q float64) float64 {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// waitDifference returns how much longer, ns, one direction waits than the other, or 0 for hardly any
// difference. The samples are sorted. Different shapes cannot be compared, only the packets with the
// least wait.
func waitDifference(u *[2][]float64, k Kind) float64 {
	var width [2]float64
	for d := range u {
		width[d] = sortedQuantile(u[d], 0.5) - sortedQuantile(u[d], 0.1)
	}
	less, more := min(width[0], width[1]), max(width[0], width[1])
	if more < 2*less || more-less < 16*k.stampScale() {
		return 0
	}
	return more - less
}

// widerDirection returns the direction that waits longer. The samples are sorted.
func widerDirection(u *[2][]float64) int {
	if sortedQuantile(u[reverse], 0.5)-sortedQuantile(u[reverse], 0.1) > sortedQuantile(u[forward], 0.5)-sortedQuantile(u[forward], 0.1) {
		return reverse
	}
	return forward
}

// locateSamples returns the place of each direction's samples, which is zero with standard deviation
// sigma. If the samples are so unlikely that the place must be elsewhere, it searches in wider and
// wider circles. likely is false if it does not find the place.
func (p *Pair) locateSamples(u *[2][]float64, sigma float64) (place [2]float64, likely bool) {
	s := &p.shape
	fits := func() bool {
		return max(s.fitSigmas(forward, u[forward]), s.fitSigmas(reverse, u[reverse])) > -unlikelySigmas
	}
	look := func(sigma float64) {
		for d := range u {
			shift := s.searchPlace(d, u[d], sigma)
			place[d] += shift
			for i := range u[d] {
				u[d][i] -= shift
			}
		}
	}
	sigma = max(sigma, 2*s.scale) // clocks may have moved more than assumed
	if fits() {
		look(sigma)
		return place, fits()
	}
	for wide := max(4*sigma, s.scale); wide < 128*s.scale; wide *= 4 {
		if !s.learnScores(p.kind, wide) {
			return place, false
		}
		look(wide)
		if !s.learnScores(p.kind, sigma) {
			return place, false
		}
		if fits() {
			look(sigma)
			return place, true
		}
	}
	return place, false
}

// measureShift returns how far each direction's samples lie beyond their place zero, and the variance
// of that. usual is the usual variance of half of the sum of both, over windows.
func (p *Pair) measureShift(u *[2][]float64, least float64) (off, variance [2]float64, usual float64) {
	s := &p.shape
	for d := range u {
		var t scoreSum
		for _, v := range u[d] {
			t.addScore(s.scoreAt(d, v))
		}
		off[d], variance[d] = s.zeroShift(d, &t, least)
		usual += s.variance[d] / (s.slope[d] * s.slope[d] * t.n) / 4
	}
	return off, variance, usual
}

// anywhereSigma is the standard deviation, ns, of an unknown place.
const anywhereSigma = 1e9

// unlikelySigmas is how many standard deviations below the usual likelihood both directions must be. A
// single direction may have got a queue.
const unlikelySigmas = 2.5

// windowShift returns how far a window, whose samples are sorted, lies beyond the shape's place as a
// whole, and the limit of the usual shift. A window whose quantiles moved by different amounts got
// another queue, not another place.
func (p *Pair) windowShift(dir int, sorted []float64) (shift, limit float64) {
	s := &p.shape
	var by [len(levels)]float64
	for k, q := range levels {
		by[k] = sortedQuantile(sorted, q) - s.quantile[dir][k]
	}
	slices.Sort(by[:])
	shift = by[1]
	width := s.quantile[dir][len(levels)-1] - s.quantile[dir][0]
	usual := max(math.Sqrt(p.noise.variance[dir]), width/math.Sqrt(float64(len(sorted))))
	limit = max(p.kind.shiftFloor(), 6*usual)
	if by[len(by)-1]-by[0] > math.Abs(shift)/3+limit {
		shift = 0
	}
	return shift, limit
}
