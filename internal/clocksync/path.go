package clocksync

import "math"

// pathState is what a pair knows of its path apart from the filter's delay.
type pathState struct {
	asym            float64 // ns: excess of the forward delay over the mean of both directions
	inherit         float64 // variance of asym, ns^2
	firstDelay      float64 // ns: delay of the path on which the pair began, with directions that are assumed to be alike
	detoured        bool    // the path has changed since
	asymHeld        bool    // the path changed, and nothing was measured since
	inheritBefore   float64 // variance of the asymmetry at the last measurement
	leastKnownDelay float64 // ns: best known delay of the path, half of a round trip; it does not depend on clocks
	asymLost        bool    // the path's asymmetry is no longer known, and the path is longer than leastKnownDelay
	queueAsymmetry  float64 // ns: possible effect of unequal queues
	coarseAsymmetry bool    // of a window without a shape: the error is common to all pairs of a NIC
	leastDelay      float64 // ns: the least delay of a direction, rarely undercut
	excess          float64 // ns: usual further wait of the samples with the least wait
	spread          float64 // ns: usual spread of their offsets
	knownRoutes     []route // round trips and their asymmetries
}

// route is a path's delay with its asymmetry at that time.
type route struct{ delay, asym, inherit float64 }

const maxRoutes = 4

// isAlike reports whether an asymmetry, with its variance, is that of the route. A path that becomes longer in one direction has
// the round trip of one that became longer by as much in the other, and the opposite asymmetry.
func (r route) isAlike(asym, variance, width float64) bool {
	return math.Abs(r.asym-asym) <= width+BoundSigmas*math.Sqrt(max(variance, r.inherit))
}

// rememberRoute keeps the path's round trip and asymmetry for the time when the path returns. Round
// trips within width are of the same path, if their asymmetries are alike as well.
func (s *pathState) rememberRoute(delay, width float64) {
	now := route{delay, s.asym, s.inherit}
	for i := range s.knownRoutes {
		if math.Abs(s.knownRoutes[i].delay-now.delay) <= width && s.knownRoutes[i].isAlike(s.asym, s.inherit, width) {
			s.knownRoutes[i] = now
			return
		}
	}
	if len(s.knownRoutes) == maxRoutes {
		s.knownRoutes = append(s.knownRoutes[:0], s.knownRoutes[1:]...)
	}
	s.knownRoutes = append(s.knownRoutes, now)
}

// restoreKnownRoute reports whether a window's round trip is that of an earlier path. If so, it
// restores the asymmetry of that path, and off gets the remainder: rule 6.
func (p *Pair) restoreKnownRoute(c *windowFit, off *float64) bool {
	for _, r := range p.path.knownRoutes {
		// What is left over is said to be the clocks'. A path whose other direction became longer leaves more than there was.
		width, rest := p.kind.shiftFloor()+c.excess, *off+p.path.asym-r.asym
		if math.Abs(r.delay-c.delay) <= width && math.Abs(rest) <= math.Abs(*off)+width {
			p.filter.inflateVariance(0, p.path.inherit) // the value that led the filter has changed
			*off = rest
			c.offset += int64(math.Round(p.path.asym - r.asym))
			p.path.asym, p.path.inherit, p.path.leastDelay = r.asym, r.inherit, c.delay
			return true
		}
	}
	return false
}

// isOtherPath reports whether a round trip that is longer by so much is of another path. A pair without
// a shape may have seen only queues at first: it accepts a shorter path if it has seen one become
// longer.
func (p *Pair) isOtherPath(longer, excess float64) bool {
	if p.wasFine {
		return math.Abs(longer) > longWait+2*excess
	}
	return math.Abs(longer) > 2*longWait+4*excess && (longer > 0 || len(p.path.knownRoutes) > 0)
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
	if !p.path.asymHeld {
		p.estimate.Detours++
		p.path.rememberRoute(p.filter.x[2], p.kind.shiftFloor())
		p.path.asymHeld, p.path.inheritBefore = true, p.path.inherit
	}
	p.path.detoured = true
	p.path.asym += off
	p.path.inherit = p.path.inheritBefore + max(0, p.offsetVariance()) + c.sigma*c.sigma
	p.path.leastDelay = c.delay
	p.estimate.Delay = int64(math.Round(c.delay))
	p.history.endOdd(true)
	p.quality = Held
}

// longWait is a wait, ns, that is too long to lead an estimate.
const longWait = 3000

// pathReturned reports whether a window's round trip is what it was before the asymmetry was lost.
func (p *Pair) pathReturned() bool {
	from := p.filter.asRelation()
	u := p.sortedDistances(&from)
	return p.path.leastDelay-p.path.leastKnownDelay > longWait && p.lowestDelay(u)-p.path.leastKnownDelay <= longWait
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

// learnFirstDelay adds the delay of a window to that of the path on which the pair began.
func (s *pathState) learnFirstDelay(delay float64) {
	switch {
	case s.firstDelay == 0:
		s.firstDelay = delay
	case !s.detoured:
		s.firstDelay += (delay - s.firstDelay) / usualMemory
	}
}

// assumedDelay returns the delay, ns, of a path whose directions are assumed to be alike. What a pair that restarted
// knows of an earlier path is not assumed (rule 13).
func (s *pathState) assumedDelay() float64 {
	if s.asymLost {
		return min(s.firstDelay, s.leastKnownDelay)
	}
	return s.firstDelay
}

// leastMemory is the number of windows over which the least delay of a path rises to the present one.
const leastMemory = 1800

// longerPathSigma returns the standard deviation, ns, of a possible offset of a pair that restarted on a
// path that is longer than it was: all of the difference may be in one direction, which looks like an
// offset of half as much to all pairs of the NIC: rule 13. held means that nothing was measured.
func (s *pathState) longerPathSigma(held bool) float64 {
	longer := s.leastDelay - s.leastKnownDelay
	switch {
	case s.leastKnownDelay == 0 || longer < 0 && !held:
		s.leastKnownDelay = max(s.leastDelay, 1)
	case s.asymLost && longer > longWait:
		s.leastKnownDelay += longer / leastMemory
		// The factor 1.5 allows for the wait of the samples that lead a young pair.
		return 1.5 * longer / BoundSigmas
	case !held:
		s.asymLost = false
		s.leastKnownDelay += longer / leastMemory
	}
	return 0
}

// centreShape keeps zero at the finest bins of the shape: at the least delayed packets or, if fine
// stamps sometimes have errors above their resolution, where samples have most information.
func (p *Pair) centreShape(low float64) {
	if low > p.path.leastDelay {
		low = p.path.leastDelay + (low-p.path.leastDelay)/centreMemory
	}
	p.path.leastDelay = low
	by := p.path.leastDelay - p.filter.x[2]
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
