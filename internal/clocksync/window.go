package clocksync

import (
	"math"
	"slices"
)

// measureCoarse measures a window without a shape. more is the excess, ns, of one direction's wait over
// the other's.
func (p *Pair) measureCoarse(now int64, more float64) {
	from := p.filter.asRelation()
	share := quarter
	if more > 0 {
		share = twelfth
	}
	c := p.fitWindow(from, share)
	if more > 0 && c.delay+c.excess-p.leastDelay > longWait && p.oddWindows < patienceWindows {
		// Even the packets with the least wait were delayed, in an unknown direction: rule 11.
		p.oddWindows++
		p.quality, p.lastOdd = Held, true
		return
	}
	if c.apart && p.oddWindows < patienceWindows {
		// Hardly any packet took the path of the least delayed ones: rule 12.
		p.oddWindows++
		p.quality, p.lastOdd = Held, true
		return
	}
	f := &p.filter
	back := float64(now-c.at) / 1e9
	h := [3]float64{1, -back, 0}
	off := float64(c.offset - from.OffsetAt(c.at))
	if p.isOtherPath(c.delay-p.leastDelay, c.excess) && !p.restoreKnownRoute(&c, &off) {
		p.recordDetour(&c, off)
		return
	}
	p.asymHeld = false
	p.excess += (c.excess - p.excess) / usualMemory
	p.spread += (c.spread - p.spread) / usualMemory
	f.inflateOffsetAndRate(p.surpriseVariance(h, off, c.sigma*c.sigma))
	f.update(h, off, c.sigma*c.sigma)
	r := c.rateSigma * 1e9
	f.update([3]float64{0, 1, 0}, c.rate*1e9-f.x[1], r*r)
	// The remaining wait of the least delayed packets may be in one direction. That does not average
	// out. It does not show either where the resolution of stamps is no finer than the queues.
	p.queueAsymmetry, p.coarseAsymmetry = more/4, true
	if p.kind == Hardware {
		p.queueAsymmetry = min(p.queueAsymmetry, c.excess+10*p.kind.stampScale())
	}
	f.foldOffset()
	p.oddWindows, p.agreeingOdd, p.lastOdd = 0, 0, false
	p.estimate.Delay = int64(math.Round(c.delay))
	p.quality = Coarse
}

// isOtherPath reports whether a round trip that is longer by so much is of another path. A pair without
// a shape may have seen only queues at first: it accepts a shorter path if it has seen one become
// longer.
func (p *Pair) isOtherPath(longer, excess float64) bool {
	if p.wasFine {
		return math.Abs(longer) > longWait+2*excess
	}
	return math.Abs(longer) > 2*longWait+4*excess && (longer > 0 || len(p.knownRoutes) > 0)
}

// twoPaths is the factor by which the spread of the least delayed packets of a window may exceed the
// usual one. usualMemory is the number of windows over which the usual spread is learnt.
const (
	twoPaths    = 4
	usualMemory = 8
)

// recordDetour records that a changed round trip belongs to the path, which is then longer in one
// direction by off, which would otherwise be the clocks' offset: rule 12.
func (p *Pair) recordDetour(c *windowFit, off float64) {
	if !p.asymHeld {
		p.estimate.Detours++
		p.rememberRoute()
		p.asymHeld, p.inheritBefore = true, p.inherit
	}
	p.asym += off
	p.inherit = p.inheritBefore + max(0, p.filter.p[0][0]*p.misfit) + c.sigma*c.sigma
	p.leastDelay = c.delay
	p.estimate.Delay = int64(math.Round(c.delay))
	p.oddWindows, p.agreeingOdd, p.lastOdd = 0, 0, true
	p.quality = Held
}

// restoreKnownRoute reports whether a window's round trip is that of an earlier path. If so, it
// restores the asymmetry of that path, and off gets the remainder: rule 6.
func (p *Pair) restoreKnownRoute(c *windowFit, off *float64) bool {
	for _, r := range p.knownRoutes {
		if math.Abs(r.delay-c.delay) <= p.kind.shiftFloor()+c.excess {
			p.filter.inflateVariance(0, p.inherit) // the value that led the filter has changed
			*off += p.asym - r.asym
			c.offset += int64(math.Round(p.asym - r.asym))
			p.asym, p.inherit, p.leastDelay = r.asym, r.inherit, c.delay
			return true
		}
	}
	return false
}

// longWait is a wait, ns, that is too long to lead an estimate.
const longWait = 3000

// surpriseVariance returns the variance, ns^2, that the filter must add to accept an improbable
// measurement: a change of an oscillator is accepted within a window.
func (p *Pair) surpriseVariance(h [3]float64, off, variance float64) float64 {
	s := p.filter.quadraticForm(h) + variance
	p.misfit = max(1, p.misfit+(min(off*off/s, 9)-p.misfit)/30)
	p.lean += (max(-3, min(3, off/math.Sqrt(s))) - p.lean) / 6
	if off*off > 9*s {
		return off * off
	}
	return 0
}

// hintIsFresh reports whether the last hint of the graph is fresh.
func (p *Pair) hintIsFresh(now int64) bool { return p.hinted && now-p.hint.Ref < int64(FreshFor) }

// windowRelation returns the relation that a window is compared with, and its standard deviation: the
// graph's, which has more data than one pair, unless it is far from the pair's.
func (p *Pair) windowRelation(now int64) (Relation, float64) {
	own, sigma := p.filter.asRelation(), math.Sqrt(p.filter.p[0][0]*p.misfit)
	if !p.hintIsFresh(now) || math.Abs(float64(p.hint.OffsetAt(now)-own.OffsetAt(now))) > BoundSigmas*math.Sqrt(sigma*sigma+p.inherit)+p.kind.shiftFloor()/4 {
		return own, sigma
	}
	return p.hint, p.hintSigma
}

// yieldToHint replaces the pair's relation by the graph's where the two contradict each other and the
// samples do not contradict the graph's. Some pairs notice an oscillator that changed its rate before
// others can.
func (p *Pair) yieldToHint(now int64) {
	f := &p.filter
	own := f.asRelation()
	if !p.hintIsFresh(now) {
		return
	}
	apart := float64(p.hint.OffsetAt(now) - own.OffsetAt(now))
	if math.Abs(apart) < 3*math.Sqrt(f.p[0][0]*p.misfit+p.inherit) || !p.shape.learnScores(p.kind, p.hintSigma) {
		return
	}
	better := -4.0 // nats: equal likelihood suffices
	for _, look := range []struct {
		from *Relation
		sign float64
	}{{&own, 1}, {&p.hint, -1}} {
		u := p.sampleDistances(&p.now, look.from)
		for d := range u {
			better += look.sign * p.shape.logLikelihood(d, u[d])
		}
	}
	if better > 0 {
		return
	}
	turn := p.hint.Rate*1e9 - f.x[1]
	p.lean = 0
	past := float64(now-p.startFilter.at) / 1e9
	p.startFilter.x[0] -= turn * past
	for _, f := range [2]*filter{f, &p.startFilter} {
		f.inflateVariance(0, apart*apart)
		f.inflateVariance(1, turn*turn)
		f.x[0] += apart
		f.x[1] += turn
		f.foldOffset()
	}
}

// sampleDistances returns the delays of a window's samples by direction, relative to a relation and to
// the delay and asymmetry of the path.
func (p *Pair) sampleDistances(w *[2]window, from *Relation) *[2][]float64 {
	for d := range w {
		u := p.residuals[d][:0]
		sign, rest := int64(1), p.filter.x[2]+p.asym
		if d == reverse {
			sign, rest = -1, p.filter.x[2]-p.asym
		}
		for i := range w[d].samples {
			s := &w[d].samples[i]
			u = append(u, float64(s.delay-sign*from.OffsetAt(s.at))-rest)
		}
		p.residuals[d] = u
	}
	return &p.residuals
}

// teachShape lets the shape learn from the window before, whose place later hints have made more
// precise.
func (p *Pair) teachShape() {
	if p.lastOdd || len(p.last[forward].samples) < fewestSamples || len(p.last[reverse].samples) < fewestSamples {
		return
	}
	from, _ := p.windowRelation(p.filter.at)
	for d, u := range p.sampleDistances(&p.last, &from) {
		for _, v := range u {
			p.shape.addDistance(d, v)
		}
	}
	p.taughtWindows++
	p.shape.endWindow(p.taughtWindows)
}

func sortedQuantile(sorted []float64, q float64) float64 {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// measureFine compares a window with the shape: rules 2 to 6.
func (p *Pair) measureFine(now int64) {
	p.yieldToHint(now)
	from, sigma := p.windowRelation(now)
	u := p.sampleDistances(&p.now, &from)
	for d := range u {
		slices.Sort(u[d])
	}
	low := p.lowestDelay(u)
	more := waitDifference(u, p.kind)
	if !p.shape.learnScores(p.kind, sigma) {
		p.measureCoarse(now, more)
		if p.quality != Held {
			p.centreShape(low)
		}
		return
	}
	var shift, limit, least, usual [2]float64
	for d := range u {
		least[d], usual[d] = sortedQuantile(u[d], 0.02)+p.filter.x[2], sortedQuantile(u[d], 0.5)+p.filter.x[2]+p.asym
		if d == reverse {
			usual[d] -= 2 * p.asym
		}
		shift[d], limit[d] = p.windowShift(d, u[d])
	}
	if min(usual[0], usual[1]) < -p.kind.shiftFloor()-BoundSigmas*sigma {
		// Packets do not arrive before they were sent: the present state is impossible.
		p.reset()
		return
	}
	p.estimate.Delay = int64(math.Round((least[0] + least[1]) / 2))
	most := max(limit[0], limit[1])
	off := [2]bool{math.Abs(shift[0]) > limit[0], math.Abs(shift[1]) > limit[1]}
	if off[0] && off[1] {
		if both, clocks := shift[forward]+shift[reverse], shift[forward]-shift[reverse]; math.Abs(both) > math.Abs(clocks)/3 {
			p.handleOddWindow(now, shift, most)
			return
		}
		p.restartAfterMove(now, &from, most)
		return
	}
	if one := off[0] || off[1]; (one || more > 0) && p.evenWindows >= settledEven {
		late := widerDirection(u)
		if one {
			late = forward
			if off[reverse] {
				late = reverse
			}
		}
		p.measureOneWay(now, &from, 1-late, shift, most)
		return
	} else if one && more == 0 {
		p.handleOddWindow(now, shift, most)
		return
	}
	if more > 0 {
		p.measureCoarse(now, more)
		if p.quality == Held {
			return
		}
		p.evenWindows = 0
		p.learnNoise(shift)
		p.centreShape(low)
		return
	}
	place, likely := p.locateSamples(u, sigma)
	if own := p.filter.asRelation(); !likely && from != own {
		from, sigma = own, math.Sqrt(p.filter.p[0][0]*p.misfit)
		u = p.sampleDistances(&p.now, &from)
		if p.shape.learnScores(p.kind, sigma) {
			place, likely = p.locateSamples(u, sigma)
		}
	}
	if !likely {
		// Both directions are smeared and neither is late: a rate changed.
		p.restartAfterMove(now, &from, most)
		return
	}
	p.learnNoise(shift)
	f := &p.filter
	z, variance, usually := p.measureShift(u, 1)
	for d := range z {
		z[d] += place[d]
	}
	back, apart := p.offsetAtMiddle(now, &from)
	z[forward] += apart
	z[reverse] -= apart
	noise := (variance[0] + variance[1]) / 4
	if f.p[2][2] == 0 {
		// From now on the delay is the place of the shape's zero, with the precision of the windows
		// that made it.
		f.inflateVariance(2, usually/10)
		p.startFilter.inflateVariance(2, usually/10)
	}
	// Clocks that move faster than assumed are located imprecisely, in both directions, but oppositely
	// above all.
	both, clocks := (z[0]+z[1])/2, (z[forward]-z[reverse])/2
	if math.Abs(both) > max(p.kind.shiftFloor(), math.Abs(clocks)/2) && both*both > 36*(f.p[2][2]+noise) {
		seen := [2]float64{z[0] - apart, z[1] + apart}
		late := forward
		if math.Abs(z[reverse]) > math.Abs(z[forward]) {
			late = reverse
		}
		if math.Abs(z[1-late]) > math.Abs(z[late])/3 {
			p.handleOddWindow(now, seen, p.kind.shiftFloor())
			return
		}
		seen[1-late] = 0
		p.measureOneWay(now, &from, 1-late, seen, p.kind.shiftFloor())
		return
	}
	p.oddWindows, p.agreeingOdd, p.lastOdd = 0, 0, false
	p.evenWindows++
	surprise := p.surpriseVariance([3]float64{1, -back, 0}, clocks, noise)
	*f = p.startFilter
	f.inflateVariance(2, usually/steadyWindowsSquared)
	f.inflateOffsetAndRate(surprise)
	p.traceSlots(now, &from, place)
	p.queueAsymmetry, p.coarseAsymmetry = p.shape.queueAsymmetry(), false
	p.quality, p.wasFine, p.asymHeld = Fine, true, false
	p.centreShape(low)
}

// traceSlots updates the filter slot by slot through the window: clocks that wander are not at their
// place of its middle. place is the place of each direction's samples, relative to a relation.
func (p *Pair) traceSlots(now int64, from *Relation, place [2]float64) {
	f, s, n := &p.filter, &p.shape, p.kind.slotCount()
	var slots [maxSlots]struct {
		at, n  float64
		scores [2]scoreSum
	}
	began, span := f.at, max(float64(now-f.at), 1)
	for d, u := range p.sampleDistances(&p.now, from) {
		for i, v := range u {
			at := max(0, min(span, float64(p.now[d].samples[i].at-began)))
			t := &slots[min(int(at/span*float64(n)), n-1)]
			t.at += at
			t.n++
			t.scores[d].addScore(s.scoreAt(d, v-place[d]))
		}
	}
	delay := f.x[2]
	for k := range n {
		t := &slots[k]
		if t.n == 0 {
			continue
		}
		f.predict(began+int64(t.at/t.n), p.wanderPace*p.kind.wanderFactor(), p.kind.gainWanderFactor())
		there := float64(from.Offset-f.offset) + from.Rate*float64(f.at-from.Ref)
		for d, h := range [2][3]float64{{1, 0, 1}, {-1, 0, 1}} {
			if t.scores[d].n > 0 {
				off, variance := s.zeroShift(d, &t.scores[d], leastInformation)
				f.update(h, place[d]+off+h[0]*(there-f.x[0])-(f.x[2]-delay), variance)
			}
		}
	}
	f.predict(now, p.wanderPace*p.kind.wanderFactor(), p.kind.gainWanderFactor())
}

// steadyWindowsSquared is the time, in windows squared, for which a path's delay stays constant: the
// assumed movement of the filter's delay smears the shape.
const steadyWindowsSquared = 20_000

// offsetAtMiddle returns the time from the middle of the window until now, in seconds, and the
// difference of a relation from the filter's there, in ns.
func (p *Pair) offsetAtMiddle(now int64, from *Relation) (back, apart float64) {
	f, at := &p.filter, p.middleTime()
	own := f.asRelation()
	return float64(now-at) / 1e9, float64(from.OffsetAt(at)-own.OffsetAt(at)) - (f.x[0] - math.Round(f.x[0]))
}

// measureOneWay measures the clocks by one direction when the other one has another delay than before:
// the path of the good one is unchanged. shift is the distance of each direction from its place as a
// whole.
func (p *Pair) measureOneWay(now int64, from *Relation, good int, shift [2]float64, limit float64) {
	u := p.sampleDistances(&p.now, from)
	z := p.shape.searchPlace(good, u[good], anywhereSigma)
	for i := range u[good] {
		u[good][i] -= z
	}
	off, variances, _ := p.measureShift(u, leastInformation)
	z += off[good]
	// No other measurement checks one direction: it is no better than the agreement of windows.
	variance := max(variances[good], p.noise[good])
	if p.shape.fitSigmas(good, u[good]) < -2*unlikelySigmas {
		p.handleOddWindow(now, shift, limit)
		return
	}
	f := &p.filter
	back, apart := p.offsetAtMiddle(now, from)
	h := [3]float64{1, -back, 1}
	if good == reverse {
		h, apart = [3]float64{-1, back, 1}, -apart
	}
	f.inflateOffsetAndRate(p.surpriseVariance(h, z+apart, variance))
	f.update(h, z+apart, variance)
	f.foldOffset()
	f.inflateVariance(2, variance/steadyWindowsSquared)
	if math.Abs(shift[1-good]) > limit {
		shift[good] = 0
		p.handleOddWindow(now, shift, limit)
	} else {
		p.oddWindows, p.agreeingOdd, p.lastOdd = 0, 0, true
	}
	p.quality = Fine
}

// lowestDelay returns the delay of the least delayed packets of a window, whose samples are sorted. The
// clocks' offset cancels in the sum of both directions.
func (p *Pair) lowestDelay(u *[2][]float64) float64 {
	low := p.filter.x[2]
	for d := range u {
		if p.kind == Hardware {
			low += u[d][1] / 2
		} else {
			low += sortedQuantile(u[d], 0.1) / 2
		}
	}
	return low
}

// centreShape keeps zero at the finest bins of the shape: at the least delayed packets or, if fine
// stamps sometimes have errors above their resolution, where samples have most information.
func (p *Pair) centreShape(low float64) {
	if low > p.leastDelay {
		low = p.leastDelay + (low-p.leastDelay)/centreMemory
	}
	p.leastDelay = low
	by := p.leastDelay - p.filter.x[2]
	if p.kind == Hardware && p.quality == Fine {
		if at := p.shape.sharpestDistance(); at >= by && at <= by+stampErrorLimit {
			by = at
		}
	}
	if math.Abs(by) > 4*p.kind.stampScale() {
		p.filter.x[2] += by
		p.shape.shiftZero(by)
	}
}

// stampErrorLimit is the largest error, ns, of the least delayed packets' stamps.
const stampErrorLimit = 500

// centreMemory is the number of windows over which the earlier least delay is forgotten.
const centreMemory = 300

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

// restartAfterMove restarts at the present place of the clocks: rule 4. The state of the path stays. If
// the round trip has changed, the clocks did not move.
func (p *Pair) restartAfterMove(now int64, from *Relation, limit float64) {
	f := &p.filter
	delay, uncertain := f.x[2], f.p[2][2]
	c := p.fitWindow(*from, quarter)
	if longer := c.delay - p.leastDelay; math.Abs(longer) > limit+2*c.excess {
		p.handleOddWindow(now, [2]float64{longer, longer}, limit)
		return
	}
	p.estimate.Moves++
	f.startFrom(now, &c)
	p.lean = 0
	f.x[2], f.p[2][2] = delay, uncertain
	p.quality, p.hinted = Coarse, false
	p.oddWindows, p.agreeingOdd, p.lastOdd = 0, 0, false
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

// middleTime returns the mean time of a window's samples, by the local clock.
func (p *Pair) middleTime() int64 {
	var sum, n int64
	first := p.now[forward].samples[0].at
	for d := range p.now {
		for i := range p.now[d].samples {
			sum += p.now[d].samples[i].at - first
			n++
		}
	}
	return first + sum/n
}

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
	usual := max(math.Sqrt(p.noise[dir]), width/math.Sqrt(float64(len(sorted))))
	limit = max(p.kind.shiftFloor(), 6*usual)
	if by[len(by)-1]-by[0] > math.Abs(shift)/3+limit {
		shift = 0
	}
	return shift, limit
}

// learnNoise learns the usual difference between windows.
func (p *Pair) learnNoise(shift [2]float64) {
	p.tested++
	for d := range shift {
		p.noise[d] += (shift[d]*shift[d] - p.noise[d]) / float64(min(p.tested, 60))
	}
}

// handleOddWindow processes a window whose round trip has changed: rules 3, 5 and 6.
func (p *Pair) handleOddWindow(now int64, shift [2]float64, limit float64) {
	p.quality, p.lastOdd = Held, true
	p.oddWindows++
	if p.oddWindows > 1 && max(math.Abs(shift[0]-p.oddShift[0]), math.Abs(shift[1]-p.oddShift[1])) > pathChangeLimit {
		p.reset()
		return
	}
	alike := p.oddWindows > 1 && math.Abs(shift[0]-p.oddShift[0]) <= limit && math.Abs(shift[1]-p.oddShift[1]) <= limit
	p.oddShift = shift
	if !alike {
		p.agreeingOdd = 0
	}
	if p.agreeingOdd++; p.agreeingOdd < settledWindows && p.oddWindows < patienceWindows {
		return
	}
	if p.agreeingOdd < settledWindows {
		// The windows resemble neither earlier ones nor each other: a new shape.
		p.shape = shape{scale: p.shape.scale}
		p.filter.freezeDelay()
		p.taughtWindows, p.tested = 0, 0
		p.oddWindows, p.agreeingOdd, p.lastOdd = 0, 0, false
		return
	}
	p.oddWindows, p.agreeingOdd = 0, 0
	p.estimate.Detours++
	p.rememberRoute()
	f := &p.filter
	before := f.x[2]
	// The quantiles give the shift roughly, the shape exactly.
	var noise float64
	for range 2 {
		from, _ := p.windowRelation(now)
		f.x[2] += (shift[forward] + shift[reverse]) / 2
		p.asym += (shift[forward] - shift[reverse]) / 2
		u := p.sampleDistances(&p.now, &from)
		if noise != 0 || !p.shape.learnScores(p.kind, limit/6) {
			break
		}
		var variance [2]float64
		shift, _ = p.locateSamples(u, limit/6)
		_, variance, _ = p.measureShift(u, leastInformation)
		noise = (variance[0] + variance[1]) / 4
	}
	p.inherit += max(0, f.p[0][0]*p.misfit) + noise
	for _, r := range p.knownRoutes {
		if math.Abs(r.delay-f.x[2]) <= limit {
			f.inflateVariance(0, p.inherit) // the value that led the filter has changed
			p.asym, p.inherit = r.asym, r.inherit
		}
	}
	p.leastDelay += f.x[2] - before
	f.freezeDelay()
	f.p[2][2] = max(noise, p.kind.stampScale()*p.kind.stampScale())
}

// pathChangeLimit is the largest change, ns, of a path in a second. Beyond it a clock has stopped.
const pathChangeLimit = 1e8

// rememberRoute keeps the path's round trip and asymmetry for the time when the path returns.
func (p *Pair) rememberRoute() {
	f := &p.filter
	now := route{f.x[2], p.asym, p.inherit}
	for i := range p.knownRoutes {
		if math.Abs(p.knownRoutes[i].delay-now.delay) <= p.kind.shiftFloor() {
			p.knownRoutes[i] = now
			return
		}
	}
	if len(p.knownRoutes) == maxRoutes {
		p.knownRoutes = append(p.knownRoutes[:0], p.knownRoutes[1:]...)
	}
	p.knownRoutes = append(p.knownRoutes, now)
}
