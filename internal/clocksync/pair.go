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
//  6. A path whose round trip returns to an earlier value has the asymmetry of that time.
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
	kind Kind
	now  [2]window // the windows that are being filled
	last [2]window // the windows before, which teach the shape
	prev [2]packet // the last packet of each direction

	began           bool
	filter          filter
	startFilter     filter // its state when the window began
	quality         Quality
	shape           shape
	taughtWindows   float64 // number of windows that the shape learnt from
	asym            float64 // ns: excess of the forward delay over the mean of both directions
	inherit         float64 // variance of asym, ns^2
	wasFine         bool    // the quality was fine before
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

	noise       [2]float64 // variance of the displacements of windows
	tested      int
	oddWindows  int // consecutive windows that fit nothing
	agreeingOdd int // number of these that agree with the last one
	oddShift    [2]float64
	evenWindows int     // nearly consecutive windows whose directions were alike
	lean        float64 // mean of the last errors of prediction, in standard deviations
	wanderPace  float64 // factor by which clocks wander more than usual
	misfit      float64 // squared ratio of errors to their expectation
	lastOdd     bool    // the window before teaches nothing
	hint        Relation
	hintSigma   float64
	hinted      bool
	estimate    Estimate
	scratch     []float64
	residuals   [2][]float64
	exchanges   []exchange
}

type packet struct {
	sent, received int64
	i              int32 // index in the window; -1 if there is none
}

// sample is the delay of one packet in one direction, by its stamps.
type sample struct {
	at    int64 // time of the local clock
	delay int64 // received minus sent, by different clocks
	clean bool  // the packet is of a coded pair that kept its gap
}

type window struct{ samples []sample }

// exchange is a probe with a reply near it, relative to a relation: at is ns after its Ref, sum is the
// delay of both ways, and offset is half of their difference.
type exchange struct {
	at, sum, offset float64
	clean           bool
}

// route is a path's delay with its asymmetry at that time.
type route struct{ delay, asym, inherit float64 }

const maxRoutes = 4

// NewPair returns an estimator for one path with stamps of a kind.
func NewPair(k Kind) *Pair {
	return &Pair{kind: k, shape: shape{scale: k.stampScale()}, prev: [2]packet{{i: -1}, {i: -1}}, misfit: 1}
}

const (
	forward = iota
	reverse
)

// AddForward adds a packet to the far clock: T1 by the local clock, T2 by the far one.
func (p *Pair) AddForward(sent, received int64) { p.addSample(forward, sent, received, sent) }

// AddReverse adds a packet from the far clock: T3 by the far clock, T4 by the local one.
func (p *Pair) AddReverse(sent, received int64) { p.addSample(reverse, sent, received, received) }

func (p *Pair) addSample(dir int, sent, received, local int64) {
	w := &p.now[dir]
	if len(w.samples) == maxWindow {
		return
	}
	i := int32(len(w.samples))
	w.samples = append(w.samples, sample{at: local, delay: received - sent})
	// Two consecutive packets make a coded pair.
	before := p.prev[dir]
	p.prev[dir] = packet{sent, received, i}
	if gap := sent - before.sent; before.i < 0 || gap < 0 || gap > int64(CodedGap) {
		return
	}
	if change := (received - before.received) - (sent - before.sent); change >= -p.kind.GapGuard() && change <= p.kind.GapGuard() {
		w.samples[i].clean, w.samples[before.i].clean = true, true
	}
}

// SetHint sets the relation of both clocks by the graph. The next windows are compared with it. It is
// no evidence: the result of a window does not depend on it. sigma is its standard deviation, ns.
func (p *Pair) SetHint(r Relation, sigma float64) { p.hint, p.hintSigma, p.hinted = r, sigma, true }

// LastEstimate returns the last result of CloseWindow.
func (p *Pair) LastEstimate() Estimate { return p.estimate }

// CloseWindow ends a window at a time of the local clock and returns the estimate.
func (p *Pair) CloseWindow(now int64) Estimate {
	n := [2]int32{int32(len(p.now[forward].samples)), int32(len(p.now[reverse].samples))}
	if p.began {
		p.startFilter = p.filter
		p.wanderPace = 1 + leanGain*max(0, math.Abs(p.lean)-0.5)
		p.filter.predict(now, p.wanderPace*p.kind.wanderFactor(), p.kind.gainWanderFactor())
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
		if p.asymLost && p.pathReturned() {
			p.reset()
			p.asymLost = false
			p.startAnew(now)
			break
		}
		p.measureFine(now)
	}
	if !(math.Abs(p.filter.x[1]) <= maxClockRate*1e9) || !p.hasSaneState() {
		p.reset() // one of the clocks does not run, so that there is nothing to relate
	}
	p.now, p.last = p.last, p.now
	for d := range p.now {
		p.now[d].samples = p.now[d].samples[:0]
		p.prev[d].i = -1
	}
	p.estimate.Quality, p.estimate.Samples = p.quality, n
	if p.began {
		f := &p.filter
		e := &p.estimate
		e.Ref, e.Offset, e.Rate = now, f.offset+int64(math.Round(f.x[0])), f.x[1]*1e-9
		e.Sigma, e.RateSigma = p.sigmaOf(0), p.sigmaOf(1)*1e-9
		e.Wander, e.RateWander = math.Sqrt(max(f.w[0][0], 0)), math.Sqrt(max(f.w[1][1], 0))*1e-9
		if p.coarseAsymmetry {
			e.Wander, e.Inherited = math.Hypot(e.Wander, p.queueAsymmetry), math.Sqrt(p.inherit)
		} else {
			e.Inherited = math.Sqrt(p.inherit + p.queueAsymmetry*p.queueAsymmetry)
		}
		p.widenForLongerPath()
	}
	return p.estimate
}

// leastMemory is the number of windows over which the least delay of a path rises to the present one.
const leastMemory = 1800

// widenForLongerPath widens the uncertainty of a pair that restarted on a path that is longer than it
// was: all of the difference may be in one direction, which looks like an offset of half as much to all
// pairs of the NIC: rule 13.
func (p *Pair) widenForLongerPath() {
	longer := p.leastDelay - p.leastKnownDelay
	switch {
	case p.leastKnownDelay == 0 || longer < 0 && p.quality != Held:
		p.leastKnownDelay = max(p.leastDelay, 1)
	case p.asymLost && longer > longWait:
		// The factor 1.5 allows for the wait of the samples that lead a young pair.
		p.estimate.Wander = math.Hypot(p.estimate.Wander, 1.5*longer/BoundSigmas)
		p.leastKnownDelay += longer / leastMemory
	case p.quality != Held:
		p.asymLost = false
		p.leastKnownDelay += longer / leastMemory
	}
}

// pathReturned reports whether a window's round trip is what it was before the asymmetry was lost.
func (p *Pair) pathReturned() bool {
	from := p.filter.asRelation()
	u := p.sampleDistances(&p.now, &from)
	for d := range u {
		slices.Sort(u[d])
	}
	return p.leastDelay-p.leastKnownDelay > longWait && p.lowestDelay(u)-p.leastKnownDelay <= longWait
}

// sigmaOf returns the standard deviation of the filter's offset, ns, or rate, ns/s, without the part of
// the clocks' usual wander.
func (p *Pair) sigmaOf(of int) float64 {
	n, w, more := p.filter.n[of][of], p.filter.w[of][of], p.misfit
	if p.quality == Fine {
		more *= 1 + (youngWindows/p.taughtWindows)*(youngWindows/p.taughtWindows)
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
	for _, v := range [...]float64{f.x[0], f.x[2], f.p[0][0], f.p[1][1], f.p[2][2], f.n[0][0], f.n[1][1], f.w[0][0], f.w[1][1], p.misfit, p.asym, p.inherit, p.queueAsymmetry, p.leastDelay, p.excess, p.spread} {
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
	*p = Pair{kind: p.kind, shape: shape{scale: p.shape.scale}, misfit: 1, now: p.now, last: p.last, prev: p.prev, leastKnownDelay: p.leastKnownDelay, asymLost: p.leastKnownDelay > 0}
	p.estimate.Moves, p.estimate.Detours = moves, detours
}

// startAnew starts without a state: rule 1.
func (p *Pair) startAnew(now int64) {
	from := Relation{Ref: now, Offset: p.crudeOffset()}
	// The second pass knows the rate, which the first one had to find.
	for range 2 {
		f := p.fitWindow(from, quarter)
		p.filter.startFrom(now, &f)
		from, p.excess, p.spread = p.filter.asRelation(), f.excess, f.spread
	}
	u := p.sampleDistances(&p.now, &from)
	for d := range u {
		slices.Sort(u[d])
	}
	p.leastDelay = p.filter.x[2]
	p.centreShape(p.lowestDelay(u))
	if more := waitDifference(u, p.kind); more > 0 {
		p.measureCoarse(now, more)
	}
	p.began, p.quality = true, Coarse
}

// crudeOffset returns the offset with an error of a delay or two, from the least sum of two directions.
func (p *Pair) crudeOffset() int64 {
	f := slices.MinFunc(p.now[forward].samples, func(a, b sample) int { return cmp.Compare(a.delay, b.delay) })
	r := slices.MinFunc(p.now[reverse].samples, func(a, b sample) int { return cmp.Compare(a.delay, b.delay) })
	return (f.delay - r.delay) / 2
}

// Shares of a window's exchanges that are fitted. If one direction has longer queues, they do not move
// the least delayed exchanges.
const (
	quarter = 4
	twelfth = 12
)

// windowFit is the result of the fit of one window, relative to a relation.
type windowFit struct {
	at               int64 // by the local clock: the time at which offset and rate are least dependent
	offset           int64 // offset of the far clock
	rate             float64
	sigma, rateSigma float64 // ns; ns per ns
	delay            float64 // ns
	excess           float64 // ns: further wait of the samples behind the delay
	spread           float64 // ns: spread of their offsets, as of a normal distribution
	apart            bool    // too few samples are near the least delayed one
}

// fitWindow fits a straight line to the least delayed exchanges of a window: those whose packets kept
// their coded gap, or one in share of all.
func (p *Pair) fitWindow(from Relation, share int) windowFit {
	x := p.exchanges[:0]
	r, i := p.now[reverse].samples, 0
	for _, f := range p.now[forward].samples {
		// A reply belongs to the probe directly before it. For the sum of both ways any near reply will
		// do.
		for i+1 < len(r) && r[i].at < f.at {
			i++
		}
		there := float64(f.delay - from.OffsetAt(f.at))
		back := float64(r[i].delay + from.OffsetAt(r[i].at))
		x = append(x, exchange{at: float64(f.at-from.Ref)/2 + float64(r[i].at-from.Ref)/2, sum: there + back, offset: (there - back) / 2,
			clean: f.clean && r[i].clean})
	}
	p.exchanges = x
	slices.SortFunc(x, func(a, b exchange) int {
		if a.clean != b.clean {
			if a.clean {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.sum, b.sum)
	})
	clean := 0
	for clean < len(x) && x[clean].clean {
		clean++
	}
	if clean < 2*fewestSamples {
		slices.SortFunc(x, func(a, b exchange) int { return cmp.Compare(a.sum, b.sum) })
		clean = len(x)
	}
	x = x[:min(clean, max(fewestSamples, len(x)/share))]
	var f windowFit
	if p.began {
		// If the path changes within the window, the exchanges are on different paths.
		alike := len(x)
		for most := x[len(x)/10].sum + 2*(longWait+twoPaths*p.excess); x[alike-1].sum > most; {
			alike--
		}
		if f.apart = alike < fewestSamples/2; !f.apart {
			x = x[:alike]
		}
	}
	level, rate, spread := theilSenLine(x, &p.scratch)
	f.spread = spread
	if p.began && p.kind == Kernel && len(x) < 2*fewestSamples {
		spread = max(spread, p.spread) // of a few coarse stamps it is small by chance
	}
	at := 0.0
	for _, e := range x {
		at += e.at
	}
	at /= float64(len(x))
	var lever float64
	for _, e := range x {
		lever += (e.at - at) * (e.at - at)
	}
	f.at = from.Ref + int64(at)
	f.offset = from.OffsetAt(f.at) + int64(math.Round(level+rate*at-p.asym))
	f.rate = from.Rate + rate
	// The factor 1.5 allows for the choice of the least delayed, which is not random.
	f.sigma = max(spread/math.Sqrt(float64(len(x))), p.kind.stampScale()/8) * 1.5
	if lever > 0 {
		f.rateSigma = max(spread, p.kind.stampScale()/4) / math.Sqrt(lever) * 1.5
	} else {
		f.rateSigma = 1e-3
	}
	// A stamp that came late makes a sum too small. There are few of them.
	f.delay, f.excess = x[len(x)/10].sum/2, (x[len(x)/2].sum-x[len(x)/10].sum)/2
	return f
}

// theilSenLine fits offset = level + rate x at so that outliers do not count (Theil and Sen: the median
// of slopes), and returns the spread around the line, as of a normal distribution.
func theilSenLine(x []exchange, scratch *[]float64) (level, rate, spread float64) {
	s := (*scratch)[:0]
	step := max(1, len(x)/40)
	for i := 0; i < len(x); i += step {
		for j := i + step; j < len(x); j += step {
			if d := x[j].at - x[i].at; math.Abs(d) > 1e8 {
				s = append(s, (x[j].offset-x[i].offset)/d)
			}
		}
	}
	if len(s) > 0 {
		rate = medianInPlace(s)
	}
	s = s[:0]
	for _, e := range x {
		s = append(s, e.offset-rate*e.at)
	}
	level = medianInPlace(s)
	for i := range s {
		s[i] = math.Abs(s[i] - level)
	}
	spread = 1.4826 * medianInPlace(s)
	*scratch = s
	return level, rate, spread
}

// medianInPlace sorts its argument and returns the median.
func medianInPlace(s []float64) float64 {
	slices.Sort(s)
	return s[len(s)/2]
}
