package clocksync

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Limits of a pair.
const (
	// Window is what the caller closes: Close is to be called this often.
	Window = time.Second
	// maxWindow bounds the samples of one direction of a window.
	maxWindow = 2048
	// fewestSamples samples of each direction that make a window.
	fewestSamples = 8
	// CodedGap is the most that the two packets of a coded pair lie apart.
	CodedGap = 50 * time.Microsecond
	// settledWindows windows show the same before a change of the path's delay is believed.
	settledWindows = 2
	// patienceWindows is after how many windows that agree with nothing a pair begins anew.
	patienceWindows = 10
	// maxClockRate is the rate that a clock which runs may have.
	maxClockRate = 1e-3
	// leanGain is how much faster a filter follows whose predictions all err to one
	// side: by so many times its unrest for each standard deviation beyond half of one.
	leanGain = 6
	// settledEven windows are enough to know one direction's delay by.
	settledEven = 20
)

// GapGuard is by how much the gap of a coded pair may have changed on its way.
func (k Kind) GapGuard() int64 {
	if k == Hardware {
		return 40
	}
	return 2000
}

// stampScale is how fine stamps are, ns.
func (k Kind) stampScale() float64 {
	if k == Hardware {
		return 8
	}
	return 200
}

// shiftFloor is the least shift, ns, that is more than an inaccuracy.
func (k Kind) shiftFloor() float64 {
	if k == Hardware {
		return 60
	}
	return 3000
}

// Pair estimates a far clock against the local one from the stamps of one path,
// both ways. Its rules, which the tests are named after:
//
//  1. Offset and rate are fitted together, from both directions; of the first
//     windows by the least delayed samples, those of clean coded pairs before
//     others.
//  2. Later windows are compared with the shape of what came before (shape.go).
//     Each direction is looked at by the other one's: queues of one direction
//     move its tail, not its place.
//  3. A round trip that changed is the path's, and the delay shows in its
//     direction. Where one direction is what it was, the clocks are measured by
//     it alone; where both changed, offset and rate are held. The pair's asymmetry
//     is then the one that this implies, and its uncertainty is inherited.
//  4. Directions that moved by opposite amounts, while the round trip did not
//     change, are the clocks': the estimate follows at once.
//  5. A window that fits neither what was nor a change is not used; the estimate
//     is predicted, and its uncertainty grows.
//  6. A path whose round trip is again what it once was has its asymmetry of then.
//  7. A window is gone through in slots: clocks that wander are told where they are at
//     its end, not at its middle.
//  8. A window is looked for where it is known to be. One without packets that tell
//     its place does not move it.
//  9. The shape is looked at most finely where samples tell most.
//  10. Nothing is allocated once a window has been as full as windows get.
//  11. A young pair whose one direction got a queue that hardly anything escapes holds,
//     for ten windows: half of such a wait is not an offset. What it may hide all the same,
//     all pairs of the NIC have in common.
//  12. A delay that is another one every second is the path's as well, however long it
//     lasts: rule 3 holds from window to window, and nothing is measured meanwhile.
//     So it does where samples are few or coarse and no shape was ever learnt. Of a
//     window in which the path changed, those count that went as the least delayed did.
//  13. A pair that begins anew on a path whose round trip is longer than it was cannot
//     know how much of that is one way; all pairs of the NIC have that in common. It
//     begins once more when the round trip is what it was.
type Pair struct {
	kind Kind
	now  [2]window // that is being filled
	last [2]window // the one before, which teaches the shape
	prev [2]packet // the last packet of each direction

	began           bool
	filter          filter
	startFilter     filter // what it was when the window began
	quality         Quality
	shape           shape
	taughtWindows   float64 // windows that the shape learnt from
	asym            float64 // ns: forward longer than the mean of both by this much
	inherit         float64 // its variance, ns^2
	wasFine         bool    // it was fine once
	asymHeld        bool    // the path changed, and nothing was measured since
	inheritBefore   float64 // the variance of the asymmetry when something was
	leastKnownDelay float64 // ns: the path's delay as it was known best, half of a round trip; no clock is in it
	asymLost        bool    // what was known of the path's asymmetry is lost, and it is longer than least
	queueAsymmetry  float64 // ns: what unequal queues may hide
	coarseAsymmetry bool    // of a window without a shape: all pairs of a NIC err alike by it
	leastDelay      float64 // ns: the least delay of a direction, seldom undercut
	excess          float64 // ns: what those that waited least usually waited more than that
	spread          float64 // ns: how much their offsets usually differ
	knownRoutes     []route // round trips and their asymmetries

	noise       [2]float64 // variance of the windows' displacements
	tested      int
	oddWindows  int // windows in a row that fit nothing
	agreeingOdd int // of them, those that agree with the last
	oddShift    [2]float64
	evenWindows int     // windows in a row, or nearly, whose directions were alike
	lean        float64 // mean of the last errors of prediction, in standard deviations
	wanderPace  float64 // by how much more than usual clocks wander
	misfit      float64 // by how much errors are larger than expected, squared
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
	i              int32 // place in the window; -1: none
}

// sample is one packet's delay as the stamps tell it.
type sample struct {
	at    int64 // by the local clock
	delay int64 // received - sent, of different clocks
	clean bool  // of a coded pair that kept its gap
}

type window struct{ samples []sample }

// exchange is a probe with a reply near it, against a relation: at is ns after
// its Ref, sum both ways' delay, offset half of their difference.
type exchange struct {
	at, sum, offset float64
	clean           bool
}

// route is a path's delay and the asymmetry it had.
type route struct{ delay, asym, inherit float64 }

const maxRoutes = 4

// NewPair makes the estimator of one path whose stamps are of a kind.
func NewPair(k Kind) *Pair {
	return &Pair{kind: k, shape: shape{scale: k.stampScale()}, prev: [2]packet{{i: -1}, {i: -1}}, misfit: 1}
}

const (
	forward = iota
	reverse
)

// AddForward takes a packet to the far clock: T1 by the local clock, T2 by the far one.
func (p *Pair) AddForward(sent, received int64) { p.addSample(forward, sent, received, sent) }

// AddReverse takes a packet from the far clock: T3 by the far clock, T4 by the local one.
func (p *Pair) AddReverse(sent, received int64) { p.addSample(reverse, sent, received, received) }

func (p *Pair) addSample(dir int, sent, received, local int64) {
	w := &p.now[dir]
	if len(w.samples) == maxWindow {
		return
	}
	i := int32(len(w.samples))
	w.samples = append(w.samples, sample{at: local, delay: received - sent})
	// Two packets make a coded pair when nothing came between them.
	before := p.prev[dir]
	p.prev[dir] = packet{sent, received, i}
	if gap := sent - before.sent; before.i < 0 || gap < 0 || gap > int64(CodedGap) {
		return
	}
	if change := (received - before.received) - (sent - before.sent); change >= -p.kind.GapGuard() && change <= p.kind.GapGuard() {
		w.samples[i].clean, w.samples[before.i].clean = true, true
	}
}

// SetHint tells what the graph made of both clocks. It is where the next windows
// are looked at from, not evidence: what a window says does not depend on it.
// sigma is its standard deviation, ns.
func (p *Pair) SetHint(r Relation, sigma float64) { p.hint, p.hintSigma, p.hinted = r, sigma, true }

// LastEstimate is what Close returned last.
func (p *Pair) LastEstimate() Estimate { return p.estimate }

// CloseWindow ends a window at a time of the local clock and tells what is known then.
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
		p.reset() // one of the clocks does not run: there is nothing to relate
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

// leastMemory is over how many windows the least delay of a path becomes what it is
// now, if that is more.
const leastMemory = 1800

// widenForLongerPath makes room in the uncertainty for what may be hidden where a pair began anew on
// a path that is longer than it was: all of it may be one way, which looks like an
// offset of half as much, to all pairs of the NIC alike: rule 13.
func (p *Pair) widenForLongerPath() {
	longer := p.leastDelay - p.leastKnownDelay
	switch {
	case p.leastKnownDelay == 0 || longer < 0 && p.quality != Held:
		p.leastKnownDelay = max(p.leastDelay, 1)
	case p.asymLost && longer > longWait:
		// Half as much again: what leads a young pair waited more than the least.
		p.estimate.Wander = math.Hypot(p.estimate.Wander, 1.5*longer/BoundSigmas)
		p.leastKnownDelay += longer / leastMemory
	case p.quality != Held:
		p.asymLost = false
		p.leastKnownDelay += longer / leastMemory
	}
}

// pathReturned reports whether a window's round trip is what it was before all was lost.
func (p *Pair) pathReturned() bool {
	from := p.filter.asRelation()
	u := p.sampleDistances(&p.now, &from)
	for d := range u {
		slices.Sort(u[d])
	}
	return p.leastDelay-p.leastKnownDelay > longWait && p.lowestDelay(u)-p.leastKnownDelay <= longWait
}

// sigmaOf is the standard deviation of the filter's offset, ns, or rate, ns/s, without
// what the clocks' usual wander makes of it.
func (p *Pair) sigmaOf(of int) float64 {
	n, w, more := p.filter.n[of][of], p.filter.w[of][of], p.misfit
	if p.quality == Fine {
		more *= 1 + (youngWindows/p.taughtWindows)*(youngWindows/p.taughtWindows)
	}
	return math.Sqrt(max(0, n*more+w*(more-1)))
}

// youngWindows is by how many windows a shape must have been taught until the places of the
// first of them do not matter more than what a window says. Only the least delayed
// packets told those places, and the graph passed on what was wrong with them: they
// were wrong together, and of all pairs of a leaf alike.
const youngWindows = 9

// hasSaneState reports whether what is known is of clocks: stamps that jump about by years
// leave numbers that are none.
func (p *Pair) hasSaneState() bool {
	f := &p.filter
	for _, v := range [...]float64{f.x[0], f.x[2], f.p[0][0], f.p[1][1], f.p[2][2], f.n[0][0], f.n[1][1], f.w[0][0], f.w[1][1], p.misfit, p.asym, p.inherit, p.queueAsymmetry, p.leastDelay, p.excess, p.spread} {
		if !(math.Abs(v) < absurdValue) {
			return false
		}
	}
	return true
}

// absurdValue is more than any offset, delay or variance in nanoseconds that is of use.
const absurdValue = 1e30

// reset forgets everything but the counts.
func (p *Pair) reset() {
	moves, detours := p.estimate.Moves, p.estimate.Detours
	*p = Pair{kind: p.kind, shape: shape{scale: p.shape.scale}, misfit: 1, now: p.now, last: p.last, prev: p.prev, leastKnownDelay: p.leastKnownDelay, asymLost: p.leastKnownDelay > 0}
	p.estimate.Moves, p.estimate.Detours = moves, detours
}

// startAnew starts from nothing: rule 1.
func (p *Pair) startAnew(now int64) {
	from := Relation{Ref: now, Offset: p.crudeOffset()}
	// The second look knows the rate, which the first one had to find.
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

// crudeOffset is the offset to a delay or two: what the least sum of two directions says.
func (p *Pair) crudeOffset() int64 {
	f := slices.MinFunc(p.now[forward].samples, func(a, b sample) int { return cmp.Compare(a.delay, b.delay) })
	r := slices.MinFunc(p.now[reverse].samples, func(a, b sample) int { return cmp.Compare(a.delay, b.delay) })
	return (f.delay - r.delay) / 2
}

// Shares of a window's exchanges that are fitted. Where one direction's queues are
// longer, only the least delayed are not moved by them.
const (
	quarter = 4
	twelfth = 12
)

// windowFit is what a fit of one window tells, against the relation it was looked at from.
type windowFit struct {
	at               int64 // by the local clock: where offset and rate are least dependent
	offset           int64 // of the far clock
	rate             float64
	sigma, rateSigma float64 // ns; ns per ns
	delay            float64 // ns
	excess           float64 // ns: what the samples behind it waited more than that
	spread           float64 // ns: of their offsets, as of a normal one
	apart            bool    // too few are near the least delayed
}

// fitWindow is a straight line through the least delayed exchanges of a window: those
// whose packets kept their coded gap, or a share of all, one in so many.
func (p *Pair) fitWindow(from Relation, share int) windowFit {
	x := p.exchanges[:0]
	r, i := p.now[reverse].samples, 0
	for _, f := range p.now[forward].samples {
		// A reply belongs to the probe it follows at once; for the sum of both
		// ways any reply near it will do.
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
		// Where the path changes within the window, some went one way and some another.
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
	// Half as much again: the least delayed were chosen, and not at random.
	f.sigma = max(spread/math.Sqrt(float64(len(x))), p.kind.stampScale()/8) * 1.5
	if lever > 0 {
		f.rateSigma = max(spread, p.kind.stampScale()/4) / math.Sqrt(lever) * 1.5
	} else {
		f.rateSigma = 1e-3
	}
	// A stamp that came late makes a sum too small; there are few such.
	f.delay, f.excess = x[len(x)/10].sum/2, (x[len(x)/2].sum-x[len(x)/10].sum)/2
	return f
}

// theilSenLine fits offset = level + rate x at so that outliers do not count (Theil and
// Sen: the median of slopes), and tells the spread about it, as of a normal one.
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

// medianInPlace sorts its argument.
func medianInPlace(s []float64) float64 {
	slices.Sort(s)
	return s[len(s)/2]
}
