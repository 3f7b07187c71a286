package clocksync

import (
	"cmp"
	"math"
	"slices"
)

// Limits of a solution.
const (
	mostPasses = 12
	// If a pass moves a clock by more than this (ns), another pass follows: the times of the estimates
	// were wrong by as much, and the products of rates and times are no longer negligible.
	passFloor = 10_000.0

	solveTolerance  = 1e-4 // in standard deviations of a clock
	sketchTolerance = 1e-2
	// sketchesAtFirst samples are drawn per cycle until every clock has sketchEnough. After that a
	// cycle draws one, alternating between offsets and rates, or of each as many as have sketchWork
	// clocks together, up to sketchesMost. When estimates improve all at once, the sketches show it a
	// few cycles later.
	sketchesAtFirst = 4
	sketchEnough    = 8
	sketchesMost    = 16
	sketchWork      = 1 << 15

	// An estimate stands out if it exceeds outlierSigmas deviations and outlierFloor. It returns below
	// half of that.
	outlierSigmas    = 6
	outlierFloor     = 20.0 // ns
	outlierRateFloor = 1e-7
	// An outlier is left out if other estimates check at least this share of it: in a ring the residual
	// of an edge does not distinguish it from the next edge, and of two parallel edges neither is
	// distinguishable.
	crossCheckedShare = 0.55

	// A clock is in doubt if half of its estimates stand out, by more than doubtTypical times what is
	// typical of its part, and none by more than doubtSpread times their median. This requires
	// doubtTerms estimates.
	doubtTypical = 1.5
	doubtSpread  = 4
	doubtTerms   = 3

	// Components of up to denseMost clocks get their exact covariance, unless all of them together are
	// more work than two of the largest.
	denseMost = 512
	denseWork = 2 * denseMost * denseMost * denseMost
)

// rejectCandidate is a term that stands out.
type rejectCandidate struct {
	term  int32
	score float64
}

// fitLines fits the lines to the least squares of all terms that are not rejected. It returns the
// number of iterations.
func (f *Frame) fitLines() (iterations int) {
	c := &f.cycle
	n := len(c.clocks)
	c.b, c.x = resizeSlice(c.b, n), resizeSlice(c.x, n)
	c.doubted = resizeSlice(c.doubted, n)
	clear(c.doubted)
	for pass, changed := 0, true; ; pass++ {
		if changed {
			c.fillWeights()
		}
		// Rates come first: with them, estimates of different moments can be compared.
		clear(c.b)
		for i := range c.terms {
			t := &c.terms[i]
			t.g = (1+c.lines[t.b].rate)*(1+t.rate) - (1 + c.lines[t.a].rate)
			if !t.rejected {
				c.b[t.a] += t.g / t.rateVariance
				c.b[t.b] -= t.g / t.rateVariance
			}
		}
		iterations += c.solver.solve(&c.rates, c.b, c.x, solveTolerance)
		for k := range c.lines {
			c.lines[k].rate += c.x[k]
		}
		c.rx = append(c.rx[:0], c.x...)
		for i := range c.parts {
			f.centerRates(&c.parts[i])
		}

		clear(c.b)
		for i := range c.terms {
			t := &c.terms[i]
			t.g -= c.rx[t.a] - c.rx[t.b]
			near, nearFrac := c.lines[t.a].timeAt(t.ref)
			far, farFrac := c.lines[t.b].timeAt(t.ref + t.offset)
			t.d = float64(far-near) + (farFrac - nearFrac)
			if !t.rejected {
				c.b[t.a] += t.d / t.variance
				c.b[t.b] -= t.d / t.variance
			}
		}
		iterations += c.solver.solve(&c.offsets, c.b, c.x, solveTolerance)
		moved := 0.0
		for k := range c.lines {
			c.lines[k].frac += c.x[k]
			c.lines[k].normalize()
			moved = max(moved, math.Abs(c.x[k]))
		}
		c.measureUnits()
		last := pass == mostPasses-1
		if changed = false; moved > passFloor && !last {
			continue
		}
		if changed = !last && f.discountMovingClocks(); changed {
			continue
		}
		if changed = c.rejectOutliers(last); !changed {
			return iterations
		}
	}
}

// discountMovingClocks finds clocks whose estimates contradict each other, and of neighbouring ones the
// worst. A moving clock is at different places in windows that end at different times. Its estimates
// get the variance that they show, so that it has no effect on other clocks, and its own sigma grows.
// It reports whether there are such clocks.
func (f *Frame) discountMovingClocks() bool {
	c := &f.cycle
	n := len(c.clocks)
	c.outlierCounts, c.termCounts = resizeSlice(c.outlierCounts, n), resizeSlice(c.termCounts, n)
	clear(c.outlierCounts)
	clear(c.termCounts)
	candidates := 0
	for i := range c.terms {
		t := &c.terms[i]
		if t.rejected {
			continue
		}
		if c.termCounts[t.a]++; t.residualSigmas() >= outlierSigmas {
			c.outlierCounts[t.a]++
			c.outlierCounts[t.b]++
			candidates++
		}
		c.termCounts[t.b]++
	}
	if candidates < doubtTerms/2+1 {
		return false
	}
	c.contradictions = resizeSlice(c.contradictions, n)
	clear(c.contradictions)
	for k := range n {
		if 2*c.outlierCounts[k] >= c.termCounts[k] && c.termCounts[k] >= doubtTerms && !c.doubted[k] {
			c.contradictions[k] = c.medianResidual(int32(k))
		}
	}
	any := false
	for k := range n {
		if c.contradictions[k] > 0 && c.mostDoubtful(int32(k)) && c.contradictions[k] > doubtTypical*c.typicalResidual(c.component[k]) && f.inflateTerms(int32(k)) {
			c.doubted[k], any = true, true
		}
	}
	return any
}

// residualSigmas returns the residual of a term in its own standard deviations.
func (t *term) residualSigmas() float64 {
	square := 0.0
	if math.Abs(t.d) > outlierFloor {
		square = t.d * t.d / t.variance
	}
	if math.Abs(t.g) > outlierRateFloor {
		square = max(square, t.g*t.g/t.rateVariance)
	}
	return math.Sqrt(square)
}

// medianResidual returns the median size of the residuals of a clock's terms. It returns 0 if only one
// or a few of them contradict all others.
func (c *cycle) medianResidual(k int32) float64 {
	c.sample = c.sample[:0]
	for i := c.offsets.start[k]; i < c.offsets.start[k+1]; i++ {
		if t := &c.terms[c.termOf[i]]; !t.rejected {
			c.sample = append(c.sample, t.residualSigmas())
		}
	}
	slices.Sort(c.sample)
	middle := c.sample[len(c.sample)/2]
	if c.sample[len(c.sample)-1] > doubtSpread*middle {
		return 0
	}
	return middle
}

func (c *cycle) mostDoubtful(k int32) bool {
	for _, e := range c.offsets.entries[c.offsets.start[k]:c.offsets.start[k+1]] {
		if c.contradictions[e.to] >= c.contradictions[k] {
			return false
		}
	}
	return true
}

// typicalResidual returns the median size of the residuals of a part's terms.
func (c *cycle) typicalResidual(part int32) float64 {
	c.sample = c.sample[:0]
	every, seen := 1+c.parts[part].terms/sampleMost, 0
	for i := range c.terms {
		if t := &c.terms[i]; c.component[t.a] == part && !t.rejected {
			if seen++; seen%every == 0 {
				c.sample = append(c.sample, t.residualSigmas())
			}
		}
	}
	if len(c.sample) == 0 {
		return 0
	}
	slices.Sort(c.sample)
	return c.sample[len(c.sample)/2]
}

// inflateTerms adds the contradiction between a clock's terms to their variances, if it exceeds the
// usual. It reports whether it did.
func (f *Frame) inflateTerms(k int32) bool {
	c := &f.cycle
	from, to := c.offsets.start[k], c.offsets.start[k+1]
	var d, g, n float64
	for _, i := range c.termOf[from:to] {
		if t := &c.terms[i]; !t.rejected {
			d, g, n = d+t.d*t.d, g+t.g*t.g, n+1
		}
	}
	d, g = d/n, g/n
	if least := leastJump(f.clocks[c.clocks[k]].name) / 4; d < least*least && g < driftFloor*driftFloor/16 {
		return false
	}
	for _, i := range c.termOf[from:to] {
		c.terms[i].variance += d
		c.terms[i].rateVariance += g
	}
	return true
}

// fillWeights fills the matrices.
func (c *cycle) fillWeights() {
	clear(c.offsets.diag)
	clear(c.rates.diag)
	for i := range c.terms {
		t := &c.terms[i]
		var w, rw float32
		if !t.rejected {
			w, rw = float32(1/t.variance), float32(1/t.rateVariance)
		}
		c.offsets.entries[t.inA].w, c.offsets.entries[t.inB].w = w, w
		c.rates.entries[t.inA].w, c.rates.entries[t.inB].w = rw, rw
		c.offsets.diag[t.a] += float64(w)
		c.offsets.diag[t.b] += float64(w)
		c.rates.diag[t.a] += float64(rw)
		c.rates.diag[t.b] += float64(rw)
	}
	c.dense = resizeSlice(c.dense, len(c.parts))
	clear(c.dense)
}

// rejectOutliers leaves out terms that stand out, and reports whether it did. With last it leaves out
// no further terms. An outlier that stays widens the sigmas of its clocks.
func (c *cycle) rejectOutliers(last bool) bool {
	n := len(c.clocks)
	c.worstChecked, c.worstOverall, c.widened, c.rejectCandidates = resizeSlice(c.worstChecked, n), resizeSlice(c.worstOverall, n), resizeSlice(c.widened, n), c.rejectCandidates[:0]
	clear(c.worstChecked)
	clear(c.worstOverall)
	clear(c.widened)
	for i := range c.terms {
		t := &c.terms[i]
		score := c.outlierScore(t)
		if t.rejected {
			t.e.rejected = score > outlierSigmas/2
			continue
		}
		if score < outlierSigmas {
			continue
		}
		c.worstOverall[t.a], c.worstOverall[t.b] = max(c.worstOverall[t.a], score), max(c.worstOverall[t.b], score)
		if last || !c.crossChecked(t) {
			c.widened[t.a] += t.d * t.d
			c.widened[t.b] += t.d * t.d
			continue
		}
		c.rejectCandidates = append(c.rejectCandidates, rejectCandidate{int32(i), score})
		c.worstChecked[t.a], c.worstChecked[t.b] = max(c.worstChecked[t.a], score), max(c.worstChecked[t.b], score)
	}
	c.rejectCandidates = slices.DeleteFunc(c.rejectCandidates, func(p rejectCandidate) bool {
		t := &c.terms[p.term]
		return p.score < c.worstChecked[t.a] || p.score < c.worstChecked[t.b] || c.overshadowedByNeighbour(t.a, p.score) || c.overshadowedByNeighbour(t.b, p.score)
	})
	if len(c.rejectCandidates) == 0 {
		return false
	}
	for _, p := range c.rejectCandidates {
		c.terms[p.term].rejected = true
	}
	c.union.reset(n)
	for i := range c.terms {
		if t := &c.terms[i]; !t.rejected {
			c.union.joinSets(t.a, t.b)
		}
	}
	slices.SortFunc(c.rejectCandidates, func(x, y rejectCandidate) int {
		return cmp.Or(cmp.Compare(x.score, y.score), cmp.Compare(x.term, y.term))
	})
	left := false
	for _, p := range c.rejectCandidates {
		t := &c.terms[p.term]
		t.rejected = !c.union.joinSets(t.a, t.b)
		t.e.rejected = t.rejected
		left = left || t.rejected
	}
	return left
}

// overshadowedByNeighbour reports whether a neighbour of a clock has a much worse estimate that may be
// the cause of the score, whether others check it or not.
func (c *cycle) overshadowedByNeighbour(k int32, score float64) bool {
	for _, e := range c.offsets.entries[c.offsets.start[k]:c.offsets.start[k+1]] {
		if c.worstOverall[e.to] > 2*score {
			return true
		}
	}
	return false
}

// outlierScore returns the residual of a term in standard deviations, in time or in rate, whichever is
// larger.
func (c *cycle) outlierScore(t *term) float64 {
	p := &c.parts[c.component[t.a]]
	score := 0.0
	if d := math.Abs(t.d); d > outlierFloor {
		score = d / math.Sqrt(t.variance*p.unit)
	}
	if g := math.Abs(t.g); g > outlierRateFloor {
		score = max(score, g/math.Sqrt(t.rateVariance*p.rateUnit))
	}
	return score
}

// crossChecked reports whether other terms check a term: its residual is its error times the share of
// the others. In large components that share follows from the two clocks' weights alone, as if they had
// no common neighbour.
func (c *cycle) crossChecked(t *term) bool {
	part := c.component[t.a]
	variance := 1/c.offsets.diag[t.a] + 1/c.offsets.diag[t.b]
	if p := &c.parts[part]; p.clockCount() <= denseMost {
		if c.dense[part] == nil {
			c.dense[part] = newDense(&c.offsets, c.members[p.first:p.last], c.partIndex, -1)
		}
		if d := c.dense[part]; d != nil {
			variance = d.differenceVariance(int(c.partIndex[t.a]), int(c.partIndex[t.b]))
		}
	}
	return 1-variance/t.variance >= crossCheckedShare
}

// sampleMost is the number of residuals of a part that its variance of unit weight is computed from.
const sampleMost = 4096

// measureUnits subtracts the corrections x from the residuals, and computes the variance of unit weight
// of every part from their median, so that outliers do not count.
func (c *cycle) measureUnits() {
	seen := make([]int, len(c.parts))
	samples, rateSamples := make([][]float64, len(c.parts)), make([][]float64, len(c.parts))
	for i := range c.terms {
		t := &c.terms[i]
		t.d -= c.x[t.a] - c.x[t.b]
		k := c.component[t.a]
		if seen[k]++; !t.rejected && seen[k]%(1+c.parts[k].terms/sampleMost) == 0 {
			samples[k] = append(samples[k], t.d*t.d/t.variance)
			rateSamples[k] = append(rateSamples[k], t.g*t.g/t.rateVariance)
		}
	}
	for k := range c.parts {
		p := &c.parts[k]
		p.unit, p.rateUnit = 1, 1
		// With fewer redundant terms the median depends more on the graph's shape than on noise.
		if spare := p.terms - p.clockCount() + 1; spare >= minSpare {
			share := float64(spare) / float64(p.terms) // share of an error's variance that its residual has on average
			p.unit, p.rateUnit = max(1, medianSquare(samples[k])/share), max(1, medianSquare(rateSamples[k])/share)
		}
	}
}

// minSpare is the redundancy, in terms, that a variance can be computed from.
const minSpare = 8

// medianSquare returns the variance of normal variables from the median of their squares.
func medianSquare(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[len(v)/2] / 0.4549
}

// averageWander computes the variance of unobserved changes of clocks from their estimates, weighted
// like these.
func (c *cycle) averageWander() {
	n := len(c.clocks)
	c.wander, c.rateWander, c.sample = resizeSlice(c.wander, n), resizeSlice(c.rateWander, n), resizeSlice(c.sample, 2*n)
	weights, rateWeights := c.sample[:n], c.sample[n:]
	clear(c.wander)
	clear(c.rateWander)
	clear(c.sample)
	for i := range c.terms {
		t := &c.terms[i]
		if t.rejected {
			continue
		}
		w, rw := 1/t.variance, 1/t.rateVariance
		for _, k := range [2]int32{t.a, t.b} {
			c.wander[k] += w * t.e.wander
			c.rateWander[k] += rw * t.e.rateWander
			weights[k] += w
			rateWeights[k] += rw
		}
	}
	for k := range n {
		if weights[k] > 0 {
			c.wander[k] /= weights[k]
			c.rateWander[k] /= rateWeights[k]
		}
	}
}

// computeSigmas computes the sigmas of the solution. It returns the number of iterations.
func (f *Frame) computeSigmas() (iterations int) {
	c := &f.cycle
	n := len(c.clocks)
	c.sigma, c.rateSigma = resizeSlice(c.sigma, n), resizeSlice(c.rateSigma, n)
	c.averageWander()
	work := 0
	var large []*part
	for i := range c.parts {
		p := &c.parts[i]
		if s := p.clockCount(); s <= denseMost && work+s*s*s <= denseWork {
			work += s * s * s
			if c.exactVariances(i) {
				continue
			}
		}
		large = append(large, p)
	}
	if len(large) > 0 {
		turn := int(f.cycles % 2)
		iterations += f.sketchVariances(large, &c.offsets, c.sigma, turn, func(o *frameClock) *sketch { return &o.offsets })
		iterations += f.sketchVariances(large, &c.rates, c.rateSigma, 1-turn, func(o *frameClock) *sketch { return &o.rates })
	}
	for k := range n {
		p := &c.parts[c.component[k]]
		rate := c.rateSigma[k]*p.rateUnit + c.rateWander[k] // variance
		c.rateSigma[k] = math.Sqrt(rate)
		met := c.spread[k] * 1e9
		c.sigma[k] = math.Sqrt(c.sigma[k]*p.unit + c.wander[k] + rate*met*met + c.widened[k])
	}
	return iterations
}

// exactVariances computes the variances of a part's offsets and rates. It returns false if rounding
// prevents that.
func (c *cycle) exactVariances(i int) bool {
	p := &c.parts[i]
	members, ground := c.members[p.first:p.last], -1
	if p.reference >= 0 {
		ground = int(c.partIndex[p.reference])
	}
	offsets := c.dense[i]
	if offsets == nil || ground >= 0 {
		offsets = newDense(&c.offsets, members, c.partIndex, ground)
	}
	rates := newDense(&c.rates, members, c.partIndex, ground)
	if offsets == nil || rates == nil {
		return false
	}
	variances, rateVariances := offsets.variances(), rates.variances()
	for j, k := range members {
		c.sigma[k], c.rateSigma[k] = variances[j], rateVariances[j]
	}
	return true
}

// sketchVariances computes the variances of large parts from random samples. It adds the given number
// of samples, or more to clocks with few.
func (f *Frame) sketchVariances(large []*part, l *laplacian, out []float64, samples int, of func(*frameClock) *sketch) (iterations int) {
	c := &f.cycle
	members := func(yield func(p *part, k int32) bool) {
		for _, p := range large {
			for _, k := range c.members[p.first:p.last] {
				if !yield(p, k) {
					return
				}
			}
		}
	}
	size := 0
	for _, p := range large {
		size += p.clockCount()
	}
	samples = max(samples, min(sketchesMost, sketchWork/size))
	in := make([]bool, len(c.parts))
	for _, k := range members {
		in[c.component[k]] = true
		if of(&f.clocks[c.clocks[k]]).n < sketchEnough {
			samples = max(samples, sketchesAtFirst)
		}
	}
	random := f.cycles
	for range samples {
		clear(c.b)
		for k := range c.clocks {
			if !in[c.component[k]] {
				continue
			}
			for _, e := range l.entries[l.start[k]:l.start[k+1]] {
				if int(e.to) > k {
					random = nextRandom(random)
					v := math.Copysign(math.Sqrt(float64(e.w)), float64(int64(random)))
					c.b[k] += v
					c.b[e.to] -= v
				}
			}
		}
		iterations += c.solver.solve(l, c.b, c.x, sketchTolerance)
		for _, k := range members {
			of(&f.clocks[c.clocks[k]]).addSample(l.diag[k], c.b[k], c.x[k])
		}
	}
	for _, k := range members {
		out[k] = of(&f.clocks[c.clocks[k]]).variance(l.diag[k])
	}
	for _, p := range large {
		if p.reference >= 0 {
			iterations += c.relateToReference(p, l, out)
		}
	}
	return iterations
}

// relateToReference converts variances relative to the mean of a part to those relative to its
// reference. The covariances with the reference are one column of the inverse, exactly. It returns the
// number of iterations.
func (c *cycle) relateToReference(p *part, l *laplacian, out []float64) int {
	members, r := c.members[p.first:p.last], p.reference
	scale := math.Sqrt(l.diag[r])
	clear(c.b)
	for _, k := range members {
		c.b[k] = -scale / float64(p.clockCount())
	}
	c.b[r] += scale
	iterations := c.solver.solve(l, c.b, c.x, sketchTolerance)
	mean := 0.0
	for _, k := range members {
		mean += c.x[k] / float64(p.clockCount())
	}
	own := (c.x[r] - mean) / scale
	for _, k := range members {
		out[k] = max(1/l.diag[k], out[k]+own-2*(c.x[k]-mean)/scale)
	}
	out[r] = 0
	return iterations
}

// nextRandom returns the next of a sequence of random numbers (Steele and others, SplitMix64, OOPSLA
// 2014).
func nextRandom(state uint64) uint64 {
	state += 0x9e3779b97f4a7c15
	state = (state ^ state>>30) * 0xbf58476d1ce4e5b9
	state = (state ^ state>>27) * 0x94d049bb133111eb
	return state ^ state>>31
}
