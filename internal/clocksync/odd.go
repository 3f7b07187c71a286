package clocksync

import "math"

// windowHistory has what is known of the fit of the last windows.
type windowHistory struct {
	odd      int // consecutive windows that fit nothing
	agreeing int // number of these that agree with the last one
	oddShift [2]float64
	lastOdd  bool // the window before teaches nothing
	even     int  // nearly consecutive windows whose directions were alike
}

// addOdd counts a window that fits nothing.
func (h *windowHistory) addOdd() { h.odd, h.lastOdd = h.odd+1, true }

// endOdd ends a series of odd windows. lastOdd means that this window teaches nothing either.
func (h *windowHistory) endOdd(lastOdd bool) { h.odd, h.agreeing, h.lastOdd = 0, 0, lastOdd }

// oddSeries is what follows from a series of odd windows.
type oddSeries uint8

const (
	oddUndecided  oddSeries = iota
	oddImpossible           // no path changes by so much: a clock has stopped
	oddNewShape             // the windows resemble neither earlier ones nor each other
	oddNewPath              // the windows agree with each other
)

// addOddShift counts a window that fits nothing, whose directions are displaced by shift. Displacements
// within limit agree.
func (h *windowHistory) addOddShift(shift [2]float64, limit float64) oddSeries {
	h.addOdd()
	change := [2]float64{math.Abs(shift[0] - h.oddShift[0]), math.Abs(shift[1] - h.oddShift[1])}
	if h.odd > 1 && max(change[0], change[1]) > pathChangeLimit {
		return oddImpossible
	}
	if h.odd == 1 || !(change[0] <= limit && change[1] <= limit) {
		h.agreeing = 0
	}
	h.oddShift = shift
	switch h.agreeing++; {
	case h.agreeing >= settledWindows:
		return oddNewPath
	case h.odd >= patienceWindows:
		return oddNewShape
	}
	return oddUndecided
}

// pathChangeLimit is the largest change, ns, of a path in a second. Beyond it a clock has stopped.
const pathChangeLimit = 1e8

// windowNoise is the usual difference between windows, by direction.
type windowNoise struct {
	variance [2]float64 // of the displacements of windows
	windows  int
}

// learn adds the displacement of a window.
func (n *windowNoise) learn(shift [2]float64) {
	n.windows++
	for d := range shift {
		n.variance[d] += (shift[d]*shift[d] - n.variance[d]) / float64(min(n.windows, 60))
	}
}

// handleOddWindow processes a window whose round trip has changed: rules 3, 5 and 6.
func (p *Pair) handleOddWindow(now int64, shift [2]float64, limit float64) {
	p.quality = Held
	switch p.history.addOddShift(shift, limit) {
	case oddImpossible:
		p.reset()
	case oddNewShape:
		p.shape = shape{scale: p.shape.scale}
		p.filter.freezeDelay()
		p.noise.windows = 0
		p.history.endOdd(false)
	case oddNewPath:
		p.history.endOdd(true)
		p.acceptDetour(now, shift, limit)
	}
}

// acceptDetour moves the path's delay and asymmetry by the shift of its two directions: rules 3 and 6.
func (p *Pair) acceptDetour(now int64, shift [2]float64, limit float64) {
	p.estimate.Detours++
	p.path.detoured = true
	p.path.rememberRoute(p.filter.x[2], p.kind.shiftFloor())
	f := &p.filter
	before := f.x[2]
	// The quantiles give the shift roughly, the shape exactly.
	var noise float64
	for range 2 {
		from, _ := p.windowRelation(now)
		f.x[2] += (shift[forward] + shift[reverse]) / 2
		p.path.asym += (shift[forward] - shift[reverse]) / 2
		u := p.sampleDistances(&p.samples.now, &from)
		if noise != 0 || !p.shape.learnScores(p.kind, limit/6) {
			break
		}
		var variance [2]float64
		shift, _ = p.locateSamples(u, limit/6)
		_, variance, _ = p.measureShift(u, leastInformation)
		noise = (variance[0] + variance[1]) / 4
	}
	p.path.inherit += max(0, p.offsetVariance()) + noise
	for _, r := range p.path.knownRoutes {
		if math.Abs(r.delay-f.x[2]) <= limit && r.isAlike(p.path.asym, p.path.inherit, limit) {
			f.inflateVariance(0, p.path.inherit) // the value that led the filter has changed
			p.path.asym, p.path.inherit = r.asym, r.inherit
			break
		}
	}
	p.path.leastDelay += f.x[2] - before
	f.freezeDelay()
	f.p[2][2] = max(noise, p.kind.stampScale()*p.kind.stampScale())
}
