package clocksync

import "math"

// measureFine compares a window with the shape: rules 2 to 6.
func (p *Pair) measureFine(now int64) {
	p.yieldToHint(now)
	o := p.compareWindow(now)
	p.applyOutcome(now, &o)
}

// measurement is the way in which a window is used.
type measurement uint8

const (
	bothDirections measurement = iota // both directions are at their places in the shape
	oneDirection                      // only one direction has the delay of before
	leastDelayed                      // one direction waits longer: only the least delayed samples count
	withoutShape                      // the shape is not known yet
	clocksMoved                       // both directions moved by opposite amounts
	oddWindow                         // the window fits nothing
	impossible                        // no delay is negative: the present state is impossible
)

// outcome is the result of the comparison of a window with the shape.
type outcome struct {
	how   measurement
	from  Relation   // relation that the samples were compared with
	delay int64      // ns: delay of a packet that waits in no queue
	low   float64    // ns: delay of the least delayed samples
	more  float64    // ns: excess of one direction's wait over the other's
	shift [2]float64 // ns: displacement of each direction by its quantiles
	moved [2]float64 // ns: displacement of each direction, of oneDirection and oddWindow
	limit float64    // ns: limit of the usual displacement
	good  int        // direction with the delay of before, of oneDirection
	fit   shapeFit
}

// shapeFit has the place of a window in the shape.
type shapeFit struct {
	found  bool       // the window has a place
	place  [2]float64 // ns: place of each direction's samples
	back   float64    // s: time since the middle of the window
	clocks float64    // ns: move of the clocks
	noise  float64    // ns^2: variance of clocks
	usual  float64    // ns^2: usual variance of the delay
}

// compareWindow compares a window with the shape. It changes no estimate.
func (p *Pair) compareWindow(now int64) outcome {
	from, sigma := p.windowRelation(now)
	u := p.sortedDistances(&from)
	o := outcome{from: from, delay: p.estimate.Delay, low: p.lowestDelay(u), more: waitDifference(u, p.kind)}
	if !p.shape.learnScores(p.kind, sigma) {
		o.how = withoutShape
		return o
	}
	if p.compareQuantiles(u, sigma, &o); o.how == bothDirections {
		p.compareShape(now, u, sigma, &o)
	}
	return o
}

// compareQuantiles compares a window as a whole with the shape. The samples are sorted. sigma is the
// standard deviation of the relation.
func (p *Pair) compareQuantiles(u *[2][]float64, sigma float64, o *outcome) {
	var limit, least, usual [2]float64
	for d := range u {
		least[d], usual[d] = sortedQuantile(u[d], 0.02)+p.filter.x[2], sortedQuantile(u[d], 0.5)+p.filter.x[2]+p.path.asym
		if d == reverse {
			usual[d] -= 2 * p.path.asym
		}
		o.shift[d], limit[d] = p.windowShift(d, u[d])
	}
	if min(usual[0], usual[1]) < -p.kind.shiftFloor()-BoundSigmas*sigma {
		o.how = impossible
		return
	}
	o.delay = int64(math.Round((least[0] + least[1]) / 2))
	o.moved, o.limit = o.shift, max(limit[0], limit[1])
	off := [2]bool{math.Abs(o.shift[0]) > limit[0], math.Abs(o.shift[1]) > limit[1]}
	one := off[0] != off[1]
	switch {
	case off[0] && off[1]:
		o.how = clocksMoved
		if both, clocks := o.shift[forward]+o.shift[reverse], o.shift[forward]-o.shift[reverse]; math.Abs(both) > math.Abs(clocks)/3 {
			o.how = oddWindow
		}
	case (one || o.more > 0) && p.history.even >= settledEven:
		late := widerDirection(u)
		if one {
			late = forward
			if off[reverse] {
				late = reverse
			}
		}
		o.how, o.good = oneDirection, 1-late
	case o.more > 0:
		o.how = leastDelayed
	case one:
		o.how = oddWindow
	}
}

// compareShape finds the place of a window in the shape.
func (p *Pair) compareShape(now int64, u *[2][]float64, sigma float64, o *outcome) {
	place, likely := p.locateSamples(u, sigma)
	if own := p.filter.asRelation(); !likely && o.from != own {
		o.from, sigma = own, math.Sqrt(p.offsetVariance())
		u = p.sampleDistances(&p.samples.now, &o.from)
		if p.shape.learnScores(p.kind, sigma) {
			place, likely = p.locateSamples(u, sigma)
		}
	}
	if !likely {
		// Both directions are smeared and neither is late: a rate changed.
		o.how = clocksMoved
		return
	}
	z, variance, usual := p.measureShift(u, 1)
	for d := range z {
		z[d] += place[d]
	}
	back, apart := p.offsetAtMiddle(now, &o.from)
	z[forward] += apart
	z[reverse] -= apart
	both, clocks := (z[0]+z[1])/2, (z[forward]-z[reverse])/2
	o.fit = shapeFit{found: true, place: place, back: back, clocks: clocks, noise: (variance[0] + variance[1]) / 4, usual: usual}
	delayVariance := p.filter.p[2][2]
	if delayVariance == 0 {
		delayVariance = o.fit.firstDelayVariance()
	}
	// Clocks that move faster than assumed are located imprecisely, in both directions, but oppositely
	// above all.
	if math.Abs(both) <= max(p.kind.shiftFloor(), math.Abs(clocks)/2) || both*both <= 36*(delayVariance+o.fit.noise) {
		return
	}
	o.moved, o.limit = [2]float64{z[0] - apart, z[1] + apart}, p.kind.shiftFloor()
	late := forward
	if math.Abs(z[reverse]) > math.Abs(z[forward]) {
		late = reverse
	}
	if math.Abs(z[1-late]) > math.Abs(z[late])/3 {
		o.how = oddWindow
		return
	}
	o.moved[1-late] = 0
	o.how, o.good = oneDirection, 1-late
}

// firstDelayVariance returns the variance of the delay in the first window with a place in the shape.
// From then on the delay is the place of the shape's zero, with the precision of the windows that made
// it.
func (s *shapeFit) firstDelayVariance() float64 { return s.usual / 10 }

// applyOutcome changes the estimate by the result of a comparison.
func (p *Pair) applyOutcome(now int64, o *outcome) {
	p.estimate.Delay = o.delay
	if o.fit.found {
		p.noise.learn(o.shift)
		if p.filter.p[2][2] == 0 {
			p.filter.inflateVariance(2, o.fit.firstDelayVariance())
			p.startFilter.inflateVariance(2, o.fit.firstDelayVariance())
		}
	}
	switch o.how {
	case bothDirections:
		p.measureBothWays(now, o)
	case oneDirection:
		p.measureOneWay(now, o)
	case leastDelayed:
		if p.measureCoarse(now, o.more) {
			p.history.even = 0
			p.noise.learn(o.shift)
			p.centreShape(o.low)
		}
	case withoutShape:
		if p.measureCoarse(now, o.more) {
			p.centreShape(o.low)
		}
	case clocksMoved:
		p.restartAfterMove(now, &o.from, o.limit)
	case oddWindow:
		p.handleOddWindow(now, o.moved, o.limit)
	case impossible:
		p.reset()
	}
}

// measureBothWays measures the clocks by both directions.
func (p *Pair) measureBothWays(now int64, o *outcome) {
	p.history.endOdd(false)
	p.history.even++
	expected := p.filter.quadraticForm([3]float64{1, -o.fit.back, 0}) + o.fit.noise
	surprise := p.errors.surpriseVariance(o.fit.clocks, expected)
	f := &p.filter
	*f = p.startFilter
	f.inflateVariance(2, o.fit.usual/steadyWindowsSquared)
	f.inflateOffsetAndRate(surprise)
	p.traceSlots(now, &o.from, o.fit.place)
	p.path.queueAsymmetry, p.path.coarseAsymmetry, p.path.asymHeld = p.shape.queueAsymmetry(), false, false
	p.quality, p.wasFine = Fine, true
	p.centreShape(o.low)
}

// measureCoarse measures a window without a shape. more is the excess, ns, of one direction's wait over
// the other's. measured is false if the estimate is held.
func (p *Pair) measureCoarse(now int64, more float64) (measured bool) {
	from := p.filter.asRelation()
	share := quarter
	if more > 0 {
		share = twelfth
	}
	c := p.fitWindow(from, share)
	// Even the packets with the least wait were delayed, in an unknown direction: rule 11.
	waited := more > 0 && c.delay+c.excess-p.path.leastDelay > longWait
	// If c.apart, hardly any packet took the path of the least delayed ones: rule 12.
	if (waited || c.apart) && p.history.odd < patienceWindows {
		p.history.addOdd()
		p.quality = Held
		return false
	}
	f := &p.filter
	back := float64(now-c.at) / 1e9
	h := [3]float64{1, -back, 0}
	off := float64(c.offset - from.OffsetAt(c.at))
	if p.isOtherPath(c.delay-p.path.leastDelay, c.excess) && !p.restoreKnownRoute(&c, &off) {
		p.recordDetour(&c, off)
		return false
	}
	p.path.asymHeld = false
	p.path.excess += (c.excess - p.path.excess) / usualMemory
	p.path.spread += (c.spread - p.path.spread) / usualMemory
	f.inflateOffsetAndRate(p.errors.surpriseVariance(off, f.quadraticForm(h)+c.sigma*c.sigma))
	f.update(h, off, c.sigma*c.sigma)
	r := c.rateSigma * 1e9
	f.update([3]float64{0, 1, 0}, c.rate*1e9-f.x[1], r*r)
	// The remaining wait of the least delayed packets may be in one direction. That does not average
	// out. It does not show either where the resolution of stamps is no finer than the queues.
	p.path.queueAsymmetry, p.path.coarseAsymmetry = more/4, true
	if p.kind == Hardware {
		p.path.queueAsymmetry = min(p.path.queueAsymmetry, c.excess+10*p.kind.stampScale())
	}
	f.foldOffset()
	p.history.endOdd(false)
	p.estimate.Delay = int64(math.Round(c.delay))
	p.quality = Coarse
	return true
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
	for d, u := range p.sampleDistances(&p.samples.now, from) {
		for i, v := range u {
			at := max(0, min(span, float64(p.samples.now[d].samples[i].at-began)))
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
		p.predictFilter(began + int64(t.at/t.n))
		there := float64(from.Offset-f.offset) + from.Rate*float64(f.at-from.Ref)
		for d, h := range [2][3]float64{{1, 0, 1}, {-1, 0, 1}} {
			if t.scores[d].n > 0 {
				off, variance := s.zeroShift(d, &t.scores[d], leastInformation)
				f.update(h, place[d]+off+h[0]*(there-f.x[0])-(f.x[2]-delay), variance)
			}
		}
	}
	p.predictFilter(now)
}

// steadyWindowsSquared is the time, in windows squared, for which a path's delay stays constant: the
// assumed movement of the filter's delay smears the shape.
const steadyWindowsSquared = 20_000

// offsetAtMiddle returns the time from the middle of the window until now, in seconds, and the
// difference of a relation from the filter's there, in ns.
func (p *Pair) offsetAtMiddle(now int64, from *Relation) (back, apart float64) {
	f, at := &p.filter, p.samples.middleTime()
	own := f.asRelation()
	return float64(now-at) / 1e9, float64(from.OffsetAt(at)-own.OffsetAt(at)) - (f.x[0] - math.Round(f.x[0]))
}

// measureOneWay measures the clocks by one direction when the other one has another delay than before:
// the path of the good one is unchanged.
func (p *Pair) measureOneWay(now int64, o *outcome) {
	good, shift := o.good, o.moved
	u := p.sampleDistances(&p.samples.now, &o.from)
	z := p.shape.searchPlace(good, u[good], anywhereSigma)
	for i := range u[good] {
		u[good][i] -= z
	}
	off, variances, _ := p.measureShift(u, leastInformation)
	z += off[good]
	// No other measurement checks one direction: it is no better than the agreement of windows.
	variance := max(variances[good], p.noise.variance[good])
	if p.shape.fitSigmas(good, u[good]) < -2*unlikelySigmas {
		p.handleOddWindow(now, shift, o.limit)
		return
	}
	f := &p.filter
	back, apart := p.offsetAtMiddle(now, &o.from)
	h := [3]float64{1, -back, 1}
	if good == reverse {
		h, apart = [3]float64{-1, back, 1}, -apart
	}
	f.inflateOffsetAndRate(p.errors.surpriseVariance(z+apart, f.quadraticForm(h)+variance))
	f.update(h, z+apart, variance)
	f.foldOffset()
	f.inflateVariance(2, variance/steadyWindowsSquared)
	if math.Abs(shift[1-good]) > o.limit {
		shift[good] = 0
		p.handleOddWindow(now, shift, o.limit)
	} else {
		p.history.endOdd(true)
	}
	p.quality = Fine
}

// restartAfterMove restarts at the present place of the clocks: rule 4. The state of the path stays. If
// the round trip has changed, the clocks did not move.
func (p *Pair) restartAfterMove(now int64, from *Relation, limit float64) {
	f := &p.filter
	delay, uncertain := f.x[2], f.p[2][2]
	c := p.fitWindow(*from, quarter)
	if longer := c.delay - p.path.leastDelay; math.Abs(longer) > limit+2*c.excess {
		p.handleOddWindow(now, [2]float64{longer, longer}, limit)
		return
	}
	p.estimate.Moves++
	f.startFrom(now, &c)
	p.errors.lean = 0
	f.x[2], f.p[2][2] = delay, uncertain
	p.quality, p.hint.set = Coarse, false
	p.history.endOdd(false)
}
