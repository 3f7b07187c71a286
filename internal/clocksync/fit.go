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
	n := len(c.presence.clocks)
	c.equations.b, c.equations.x = resizeSlice(c.equations.b, n), resizeSlice(c.equations.x, n)
	c.doubts.doubted = resizeSlice(c.doubts.doubted, n)
	clear(c.doubts.doubted)
	for pass, changed := 0, true; ; pass++ {
		if changed {
			c.fillWeights()
		}
		// Rates come first: with them, estimates of different moments can be compared.
		clear(c.equations.b)
		for i := range c.terms {
			t := &c.terms[i]
			t.g = (1+c.fit.lines[t.b].rate)*(1+t.rate) - (1 + c.fit.lines[t.a].rate)
			if !t.rejected {
				c.equations.b[t.a] += t.g / t.rateVariance
				c.equations.b[t.b] -= t.g / t.rateVariance
			}
		}
		iterations += c.equations.solver.solve(&c.graph.rates, c.equations.b, c.equations.x, solveTolerance)
		for k := range c.fit.lines {
			c.fit.lines[k].rate += c.equations.x[k]
		}
		c.equations.rx = append(c.equations.rx[:0], c.equations.x...)
		for i := range c.graph.parts {
			f.centerRates(&c.graph.parts[i])
		}

		clear(c.equations.b)
		for i := range c.terms {
			t := &c.terms[i]
			t.g -= c.equations.rx[t.a] - c.equations.rx[t.b]
			near, nearFrac := c.fit.lines[t.a].timeAt(t.ref)
			far, farFrac := c.fit.lines[t.b].timeAt(t.ref + t.offset)
			t.d = float64(far-near) + (farFrac - nearFrac)
			if !t.rejected {
				c.equations.b[t.a] += t.d / t.variance
				c.equations.b[t.b] -= t.d / t.variance
			}
		}
		iterations += c.equations.solver.solve(&c.graph.offsets, c.equations.b, c.equations.x, solveTolerance)
		moved := 0.0
		for k := range c.fit.lines {
			c.fit.lines[k].frac += c.equations.x[k]
			c.fit.lines[k].normalize()
			moved = max(moved, math.Abs(c.equations.x[k]))
		}
		c.measureUnits()
		last := pass == mostPasses-1
		if changed = false; moved > passFloor && !last {
			continue
		}
		if changed = !last && (c.distrustLongPaths() || f.discountMovingClocks()); changed {
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
	n := len(c.presence.clocks)
	c.doubts.reset(n)
	candidates := 0
	for i := range c.terms {
		t := &c.terms[i]
		if t.rejected {
			continue
		}
		if c.doubts.terms[t.a]++; t.residualSigmas() >= outlierSigmas {
			c.doubts.outliers[t.a]++
			c.doubts.outliers[t.b]++
			candidates++
		}
		c.doubts.terms[t.b]++
	}
	if candidates < doubtTerms/2+1 {
		return false
	}
	for k := range n {
		if 2*c.doubts.outliers[k] >= c.doubts.terms[k] && c.doubts.terms[k] >= doubtTerms && !c.doubts.doubted[k] {
			c.doubts.contradictions[k] = c.medianResidual(int32(k))
		}
	}
	any := false
	for k := range n {
		if c.doubts.contradictions[k] > 0 && c.mostDoubtful(int32(k)) && c.doubts.contradictions[k] > doubtTypical*c.typicalResidual(c.graph.component[k]) && f.inflateTerms(int32(k)) {
			c.doubts.doubted[k], any = true, true
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
	for i := c.graph.offsets.start[k]; i < c.graph.offsets.start[k+1]; i++ {
		if t := &c.terms[c.graph.termOf[i]]; !t.rejected {
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
	for _, e := range c.graph.offsets.entries[c.graph.offsets.start[k]:c.graph.offsets.start[k+1]] {
		if c.doubts.contradictions[e.to] >= c.doubts.contradictions[k] {
			return false
		}
	}
	return true
}

// typicalResidual returns the median size of the residuals of a part's terms.
func (c *cycle) typicalResidual(part int32) float64 {
	c.sample = c.sample[:0]
	every, seen := 1+c.graph.parts[part].terms/sampleMost, 0
	for i := range c.terms {
		if t := &c.terms[i]; c.graph.component[t.a] == part && !t.rejected {
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
	from, to := c.graph.offsets.start[k], c.graph.offsets.start[k+1]
	var d, g, n float64
	for _, i := range c.graph.termOf[from:to] {
		if t := &c.terms[i]; !t.rejected {
			d, g, n = d+t.d*t.d, g+t.g*t.g, n+1
		}
	}
	d, g = d/n, g/n
	if least := leastJump(f.clocks[c.presence.clocks[k]].name) / 4; d < least*least && g < driftFloor*driftFloor/16 {
		return false
	}
	for _, i := range c.graph.termOf[from:to] {
		c.terms[i].variance += d
		c.terms[i].rateVariance += g
	}
	return true
}

// fillWeights fills the matrices.
func (c *cycle) fillWeights() {
	clear(c.graph.offsets.diag)
	clear(c.graph.rates.diag)
	for i := range c.terms {
		t := &c.terms[i]
		var w, rw float32
		if !t.rejected {
			w, rw = float32(1/t.variance), float32(1/t.rateVariance)
		}
		c.graph.offsets.entries[t.inA].w, c.graph.offsets.entries[t.inB].w = w, w
		c.graph.rates.entries[t.inA].w, c.graph.rates.entries[t.inB].w = rw, rw
		c.graph.offsets.diag[t.a] += float64(w)
		c.graph.offsets.diag[t.b] += float64(w)
		c.graph.rates.diag[t.a] += float64(rw)
		c.graph.rates.diag[t.b] += float64(rw)
	}
	c.errors.dense = resizeSlice(c.errors.dense, len(c.graph.parts))
	clear(c.errors.dense)
}

// rejectOutliers leaves out terms that stand out, and reports whether it did. With last it leaves out
// no further terms. An outlier that stays widens the sigmas of its clocks.
func (c *cycle) rejectOutliers(last bool) bool {
	n := len(c.presence.clocks)
	c.outliers.reset(n)
	c.errors.widened = resizeSlice(c.errors.widened, n)
	clear(c.errors.widened)
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
		c.outliers.worstOverall[t.a], c.outliers.worstOverall[t.b] = max(c.outliers.worstOverall[t.a], score), max(c.outliers.worstOverall[t.b], score)
		if last || !c.crossChecked(t) {
			c.errors.widened[t.a] += t.d * t.d
			c.errors.widened[t.b] += t.d * t.d
			continue
		}
		c.outliers.candidates = append(c.outliers.candidates, rejectCandidate{int32(i), score})
		c.outliers.worstChecked[t.a], c.outliers.worstChecked[t.b] = max(c.outliers.worstChecked[t.a], score), max(c.outliers.worstChecked[t.b], score)
	}
	c.outliers.candidates = slices.DeleteFunc(c.outliers.candidates, func(p rejectCandidate) bool {
		t := &c.terms[p.term]
		return p.score < c.outliers.worstChecked[t.a] || p.score < c.outliers.worstChecked[t.b] || c.overshadowedByNeighbour(t.a, p.score) || c.overshadowedByNeighbour(t.b, p.score)
	})
	if len(c.outliers.candidates) == 0 {
		return false
	}
	for _, p := range c.outliers.candidates {
		c.terms[p.term].rejected = true
	}
	c.graph.union.reset(n)
	for i := range c.terms {
		if t := &c.terms[i]; !t.rejected {
			c.graph.union.joinSets(t.a, t.b)
		}
	}
	slices.SortFunc(c.outliers.candidates, func(x, y rejectCandidate) int {
		return cmp.Or(cmp.Compare(x.score, y.score), cmp.Compare(x.term, y.term))
	})
	left := false
	for _, p := range c.outliers.candidates {
		t := &c.terms[p.term]
		t.rejected = !c.graph.union.joinSets(t.a, t.b)
		t.e.rejected = t.rejected
		left = left || t.rejected
	}
	return left
}

// overshadowedByNeighbour reports whether a neighbour of a clock has a much worse estimate that may be
// the cause of the score, whether others check it or not.
func (c *cycle) overshadowedByNeighbour(k int32, score float64) bool {
	for _, e := range c.graph.offsets.entries[c.graph.offsets.start[k]:c.graph.offsets.start[k+1]] {
		if c.outliers.worstOverall[e.to] > 2*score {
			return true
		}
	}
	return false
}

// outlierScore returns the residual of a term in standard deviations, in time or in rate, whichever is
// larger.
func (c *cycle) outlierScore(t *term) float64 {
	p := &c.graph.parts[c.graph.component[t.a]]
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
	part := c.graph.component[t.a]
	variance := 1/c.graph.offsets.diag[t.a] + 1/c.graph.offsets.diag[t.b]
	if p := &c.graph.parts[part]; p.clockCount() <= denseMost {
		if c.errors.dense[part] == nil {
			c.errors.dense[part] = newDense(&c.graph.offsets, c.graph.members[p.first:p.last], c.graph.partIndex, -1)
		}
		if d := c.errors.dense[part]; d != nil {
			variance = d.differenceVariance(int(c.graph.partIndex[t.a]), int(c.graph.partIndex[t.b]))
		}
	}
	return 1-variance/t.variance >= crossCheckedShare
}

// sampleMost is the number of residuals of a part that its variance of unit weight is computed from.
const sampleMost = 4096

// measureUnits subtracts the corrections x from the residuals, and computes the variance of unit weight
// of every part from their median, so that outliers do not count.
func (c *cycle) measureUnits() {
	seen := make([]int, len(c.graph.parts))
	samples, rateSamples := make([][]float64, len(c.graph.parts)), make([][]float64, len(c.graph.parts))
	for i := range c.terms {
		t := &c.terms[i]
		t.d -= c.equations.x[t.a] - c.equations.x[t.b]
		k := c.graph.component[t.a]
		if seen[k]++; !t.rejected && seen[k]%(1+c.graph.parts[k].terms/sampleMost) == 0 {
			samples[k] = append(samples[k], t.d*t.d/t.variance)
			rateSamples[k] = append(rateSamples[k], t.g*t.g/t.rateVariance)
		}
	}
	for k := range c.graph.parts {
		p := &c.graph.parts[k]
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
	n := len(c.presence.clocks)
	c.errors.wander, c.errors.rateWander, c.sample = resizeSlice(c.errors.wander, n), resizeSlice(c.errors.rateWander, n), resizeSlice(c.sample, 2*n)
	weights, rateWeights := c.sample[:n], c.sample[n:]
	clear(c.errors.wander)
	clear(c.errors.rateWander)
	clear(c.sample)
	for i := range c.terms {
		t := &c.terms[i]
		if t.rejected {
			continue
		}
		w, rw := 1/t.variance, 1/t.rateVariance
		for _, k := range [2]int32{t.a, t.b} {
			c.errors.wander[k] += w * (t.e.wander + t.asymmetryVariance())
			c.errors.rateWander[k] += rw * t.e.rateWander
			weights[k] += w
			rateWeights[k] += rw
		}
	}
	for k := range n {
		if weights[k] > 0 {
			c.errors.wander[k] /= weights[k]
			c.errors.rateWander[k] /= rateWeights[k]
		}
	}
}

// computeSigmas computes the sigmas of the solution. It returns the number of iterations.
func (f *Frame) computeSigmas() (iterations int) {
	c := &f.cycle
	n := len(c.presence.clocks)
	c.errors.sigma, c.errors.rateSigma = resizeSlice(c.errors.sigma, n), resizeSlice(c.errors.rateSigma, n)
	c.averageWander()
	work := 0
	var large []*part
	for i := range c.graph.parts {
		p := &c.graph.parts[i]
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
		iterations += f.sketchVariances(large, &c.graph.offsets, c.errors.sigma, turn, func(o *frameClock) *sketch { return &o.sketches.offsets })
		iterations += f.sketchVariances(large, &c.graph.rates, c.errors.rateSigma, 1-turn, func(o *frameClock) *sketch { return &o.sketches.rates })
	}
	for k := range n {
		p := &c.graph.parts[c.graph.component[k]]
		rate := c.errors.rateSigma[k]*p.rateUnit + c.errors.rateWander[k] // variance
		c.errors.rateSigma[k] = math.Sqrt(rate)
		met := c.fit.spread[k] * 1e9
		c.errors.sigma[k] = math.Sqrt(c.errors.sigma[k]*p.unit + c.errors.wander[k] + rate*met*met + c.errors.widened[k])
	}
	return iterations
}

// exactVariances computes the variances of a part's offsets and rates. It returns false if rounding
// prevents that.
func (c *cycle) exactVariances(i int) bool {
	p := &c.graph.parts[i]
	members, ground := c.graph.members[p.first:p.last], -1
	if p.reference >= 0 {
		ground = int(c.graph.partIndex[p.reference])
	}
	offsets := c.errors.dense[i]
	if offsets == nil || ground >= 0 {
		offsets = newDense(&c.graph.offsets, members, c.graph.partIndex, ground)
	}
	rates := newDense(&c.graph.rates, members, c.graph.partIndex, ground)
	if offsets == nil || rates == nil {
		return false
	}
	variances, rateVariances := offsets.variances(), rates.variances()
	for j, k := range members {
		c.errors.sigma[k], c.errors.rateSigma[k] = variances[j], rateVariances[j]
	}
	return true
}

// sketchVariances computes the variances of large parts from random samples. It adds the given number
// of samples, or more to clocks with few.
func (f *Frame) sketchVariances(large []*part, l *laplacian, out []float64, samples int, of func(*frameClock) *sketch) (iterations int) {
	c := &f.cycle
	members := func(yield func(p *part, k int32) bool) {
		for _, p := range large {
			for _, k := range c.graph.members[p.first:p.last] {
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
	in := make([]bool, len(c.graph.parts))
	for _, k := range members {
		in[c.graph.component[k]] = true
		if of(&f.clocks[c.presence.clocks[k]]).n < sketchEnough {
			samples = max(samples, sketchesAtFirst)
		}
	}
	random := f.cycles
	for range samples {
		clear(c.equations.b)
		for k := range c.presence.clocks {
			if !in[c.graph.component[k]] {
				continue
			}
			for _, e := range l.entries[l.start[k]:l.start[k+1]] {
				if int(e.to) > k {
					random = nextRandom(random)
					v := math.Copysign(math.Sqrt(float64(e.w)), float64(int64(random)))
					c.equations.b[k] += v
					c.equations.b[e.to] -= v
				}
			}
		}
		iterations += c.equations.solver.solve(l, c.equations.b, c.equations.x, sketchTolerance)
		for _, k := range members {
			of(&f.clocks[c.presence.clocks[k]]).addSample(l.diag[k], c.equations.b[k], c.equations.x[k])
		}
	}
	for _, k := range members {
		out[k] = of(&f.clocks[c.presence.clocks[k]]).variance(l.diag[k])
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
	members, r := c.graph.members[p.first:p.last], p.reference
	scale := math.Sqrt(l.diag[r])
	clear(c.equations.b)
	for _, k := range members {
		c.equations.b[k] = -scale / float64(p.clockCount())
	}
	c.equations.b[r] += scale
	iterations := c.equations.solver.solve(l, c.equations.b, c.equations.x, sketchTolerance)
	mean := 0.0
	for _, k := range members {
		mean += c.equations.x[k] / float64(p.clockCount())
	}
	own := (c.equations.x[r] - mean) / scale
	for _, k := range members {
		out[k] = max(1/l.diag[k], out[k]+own-2*(c.equations.x[k]-mean)/scale)
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
