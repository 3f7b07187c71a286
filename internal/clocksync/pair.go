package clocksync

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Limits of a pair.
const (
	// Window is the interval at which the caller has to call CloseWindow.
	Window = time.Second
	// maxWindow is the maximum number of samples of one direction of a window.
	maxWindow = 2048
	// fewestSamples is the number of samples of each direction that a window needs.
	fewestSamples = 8
	// CodedGap is the largest distance between the two packets of a coded pair.
	CodedGap = 50 * time.Microsecond
	// settledWindows is the number of windows that have to agree before a change of the path's delay is
	// accepted.
	settledWindows = 2
	// patienceWindows is the number of windows without agreement after which a pair starts anew.
	patienceWindows = 10
	// maxClockRate is the largest rate of a clock that runs.
	maxClockRate = 1e-3
	// leanGain is how much faster a filter follows when its predictions all err to one side: the factor
	// of its unrest for each standard deviation beyond half of one.
	leanGain = 6
	// settledEven is the number of windows with alike directions from which the delay of one direction
	// is known.
	settledEven = 20
)

// GapGuard returns the largest change of the gap of a coded pair on its way, ns.
func (k Kind) GapGuard() int64 {
	if k == Hardware {
		return 40
	}
	return 2000
}

// stampScale returns the resolution of stamps, ns.
func (k Kind) stampScale() float64 {
	if k == Hardware {
		return 8
	}
	return 200
}

// shiftFloor returns the least shift, ns, that exceeds an inaccuracy.
func (k Kind) shiftFloor() float64 {
	if k == Hardware {
		return 60
	}
	return 3000
}

// Pair estimates a far clock against the local one from the stamps of one path in both directions. Its
// rules, which the tests are named after:
//
//  1. Offset and rate are fitted together, from both directions. In the first windows the least
//     delayed samples are used, and those of clean coded pairs before others.
//  2. Later windows are compared with the shape of earlier ones (shape.go). Each direction is compared
//     with the scores of the other one: queues of one direction move its tail, not its place.
//  3. A changed round trip is a change of the path, and the delay shows in its direction. If one
//     direction is unchanged, the clocks are measured by it alone. If both changed, offset and rate
//     are held. The pair's asymmetry is then the one that this implies, and its uncertainty is
//     inherited.
//  4. Directions that moved by opposite amounts, while the round trip did not change, are a move of
//     the clocks: the estimate follows at once.
//  5. A window that fits neither the earlier ones nor a change is not used. The estimate is predicted,
//     and its uncertainty grows.
//  6. A path whose round trip returns to an earlier value has the asymmetry of that time, unless its
//     directions show another: it may have become longer by as much in the other direction.
//  7. A window is processed in slots: the estimate of clocks that wander is that of the window's end,
//     not of its middle.
//  8. A window is searched near its known place. A window without packets that show its place does not
//     move it.
//  9. The shape has its finest bins where samples have most information.
//  10. Nothing is allocated once a window has been as full as windows get.
//  11. A young pair holds for ten windows when one direction gets a queue that delays almost all
//     packets: half of such a wait is not an offset. The remaining possible error is common to all
//     pairs of the NIC.
//  12. A delay that changes every second belongs to the path as well, however long it lasts: rule 3
//     holds from window to window, and nothing is measured meanwhile. The same holds where samples
//     are few or coarse and no shape was ever learnt. In a window in which the path changed, the
//     samples on the path of the least delayed ones count.
//  13. A pair that restarts on a path with a longer round trip than before cannot know how much of the
//     difference is in one direction. This error is common to all pairs of the NIC. The pair restarts
//     once more when the round trip is back.
type Pair struct {
	kind        Kind
	began       bool
	wasFine     bool // the quality was fine before
	quality     Quality
	samples     packetSamples
	filter      filter
	startFilter filter // its state when the window began
	errors      predictionErrors
	shape       shape
	path        pathState
	noise       windowNoise
	history     windowHistory
	hint        graphHint
	estimate    Estimate
	buffers     pairBuffers
}

// pairBuffers is memory that windows use again.
type pairBuffers struct {
	slopes    []float64
	distances [2][]float64
	exchanges []exchange
}

// NewPair returns an estimator for one path with stamps of a kind.
func NewPair(k Kind) *Pair {
	return &Pair{kind: k, shape: shape{scale: k.stampScale()}, samples: packetSamples{prev: [2]packet{{i: -1}, {i: -1}}}, errors: predictionErrors{misfit: 1}}
}

const (
	forward = iota
	reverse
)

// AddForward adds a packet to the far clock: T1 by the local clock, T2 by the far one.
func (p *Pair) AddForward(sent, received int64) { p.samples.add(p.kind, forward, sent, received, sent) }

// AddReverse adds a packet from the far clock: T3 by the far clock, T4 by the local one.
func (p *Pair) AddReverse(sent, received int64) {
	p.samples.add(p.kind, reverse, sent, received, received)
}

// SetHint sets the relation of both clocks by the graph. The next windows are compared with it. It is
// no evidence: the result of a window does not depend on it. sigma is its standard deviation, ns.
func (p *Pair) SetHint(r Relation, sigma float64) { p.hint = graphHint{r, sigma, true} }

// LastEstimate returns the last result of CloseWindow.
func (p *Pair) LastEstimate() Estimate { return p.estimate }

// CloseWindow ends a window at a time of the local clock and returns the estimate.
func (p *Pair) CloseWindow(now int64) Estimate {
	n := p.samples.counts()
	if p.began {
		p.startFilter = p.filter
		p.errors.startWindow()
		p.predictFilter(now)
		p.teachShape()
	}
	switch {
	case n[forward] < fewestSamples || n[reverse] < fewestSamples:
		if p.began {
			p.quality = Held
		}
	case !p.began:
		p.startAnew(now)
	default:
		if p.path.asymLost && p.pathReturned() {
			p.reset()
			p.path.asymLost = false
			p.startAnew(now)
			break
		}
		p.measureFine(now)
	}
	if !(math.Abs(p.filter.x[1]) <= maxClockRate*1e9) || !p.hasSaneState() {
		p.reset() // one of the clocks does not run, so that there is nothing to relate
	}
	p.samples.startWindow()
	p.estimate.Quality, p.estimate.Samples = p.quality, n
	if p.began {
		p.fillEstimate(now)
	}
	return p.estimate
}

// fillEstimate fills in the estimate from the filter and the path.
func (p *Pair) fillEstimate(now int64) {
	f, e := &p.filter, &p.estimate
	e.Ref, e.Offset, e.Rate = now, f.offset+int64(math.Round(f.x[0])), f.x[1]*1e-9
	e.Sigma, e.RateSigma = p.sigmaOf(0), p.sigmaOf(1)*1e-9
	e.Wander, e.RateWander = math.Sqrt(max(f.w[0][0], 0)), math.Sqrt(max(f.w[1][1], 0))*1e-9
	if p.path.coarseAsymmetry {
		e.Wander, e.Inherited = math.Hypot(e.Wander, p.path.queueAsymmetry), math.Sqrt(p.path.inherit)
	} else {
		e.Inherited = math.Sqrt(p.path.inherit + p.path.queueAsymmetry*p.path.queueAsymmetry)
	}
	e.Wander = math.Hypot(e.Wander, p.path.longerPathSigma(p.quality == Held))
	if p.quality != Held && p.history.odd == 0 {
		p.path.learnFirstDelay(float64(e.Delay))
	}
	e.FirstDelay = int64(math.Round(p.path.assumedDelay()))
}

// predictFilter advances the filter to a time of the local clock.
func (p *Pair) predictFilter(to int64) {
	p.filter.predict(to, p.errors.wanderPace*p.kind.wanderFactor(), p.kind.gainWanderFactor())
}

// offsetVariance returns the variance of the filter's offset, ns^2, as its predictions showed it.
func (p *Pair) offsetVariance() float64 { return p.filter.p[0][0] * p.errors.misfit }

// sigmaOf returns the standard deviation of the filter's offset, ns, or rate, ns/s, without the part of
// the clocks' usual wander.
func (p *Pair) sigmaOf(of int) float64 {
	n, w, more := p.filter.n[of][of], p.filter.w[of][of], p.errors.misfit
	if p.quality == Fine {
		more *= 1 + (youngWindows/p.shape.windows)*(youngWindows/p.shape.windows)
	}
	return math.Sqrt(max(0, n*more+w*(more-1)))
}

// youngWindows is the number of windows after which the first places that a shape was taught matter no
// more than the result of a window. Only the least delayed packets gave those places, and the graph
// passed on their errors: the errors were common to all pairs of a leaf.
const youngWindows = 9

// hasSaneState reports whether the state can be that of clocks: stamps that jump by years lead to
// impossible numbers.
func (p *Pair) hasSaneState() bool {
	f := &p.filter
	for _, v := range [...]float64{f.x[0], f.x[2], f.p[0][0], f.p[1][1], f.p[2][2], f.n[0][0], f.n[1][1], f.w[0][0], f.w[1][1], p.errors.misfit, p.path.asym, p.path.inherit, p.path.queueAsymmetry, p.path.leastDelay, p.path.firstDelay, p.path.excess, p.path.spread} {
		if !(math.Abs(v) < absurdValue) {
			return false
		}
	}
	return true
}

// absurdValue exceeds any useful offset, delay or variance in nanoseconds.
const absurdValue = 1e30

// reset forgets everything but the counts.
func (p *Pair) reset() {
	moves, detours := p.estimate.Moves, p.estimate.Detours
	*p = Pair{kind: p.kind, samples: p.samples, shape: shape{scale: p.shape.scale}, errors: predictionErrors{misfit: 1},
		path: pathState{leastKnownDelay: p.path.leastKnownDelay, asymLost: p.path.leastKnownDelay > 0}}
	p.estimate.Moves, p.estimate.Detours = moves, detours
}

// startAnew starts without a state: rule 1.
func (p *Pair) startAnew(now int64) {
	from := Relation{Ref: now, Offset: p.crudeOffset()}
	// The second pass knows the rate, which the first one had to find.
	for range 2 {
		f := p.fitWindow(from, quarter)
		p.filter.startFrom(now, &f)
		from, p.path.excess, p.path.spread = p.filter.asRelation(), f.excess, f.spread
	}
	u := p.sortedDistances(&from)
	p.path.leastDelay = p.filter.x[2]
	p.centreShape(p.lowestDelay(u))
	if more := waitDifference(u, p.kind); more > 0 {
		p.measureCoarse(now, more)
	}
	p.began, p.quality = true, Coarse
}

// crudeOffset returns the offset with an error of a delay or two, from the least sum of two directions.
func (p *Pair) crudeOffset() int64 {
	f := slices.MinFunc(p.samples.now[forward].samples, func(a, b sample) int { return cmp.Compare(a.delay, b.delay) })
	r := slices.MinFunc(p.samples.now[reverse].samples, func(a, b sample) int { return cmp.Compare(a.delay, b.delay) })
	return (f.delay - r.delay) / 2
}
