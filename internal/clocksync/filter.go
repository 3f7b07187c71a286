package clocksync

import "math"

// wanderFactor returns the factor by which the assumed wander of clocks exceeds the usual one. For a
// minute or so after a change of temperature clocks wander that much. Precise stamps show that within a
// window.
func (k Kind) wanderFactor() float64 {
	if k == Hardware {
		return 1
	}
	return 2
}

// gainWanderFactor returns the further factor of the wander that the gains assume. The best value for
// one pair is too slow for a clock with many pairs: noise averages out over them, and their common lag
// does not.
func (k Kind) gainWanderFactor() float64 {
	if k == Hardware {
		return 2
	}
	return 1
}

// slotCount returns the number of slots that a window is divided into. Within one slot clocks should
// wander by less than the measurement's precision.
func (k Kind) slotCount() int {
	if k == Hardware {
		return maxSlots
	}
	return 1
}

const maxSlots = 10

// filter is a Kalman filter of three unknowns: the far clock's offset, ns, its rate, ns/s, and the
// path's delay, ns. The clocks' rates wander. The delay hardly does, so that a direction with a known
// place gives the offset even when the other direction does not.
type filter struct {
	at     int64 // time of the local clock
	offset int64 // coarse part of the offset
	x      [3]float64
	p      [3][3]float64 // covariance from which the gains follow
	// n and w are the errors from noise and from the clocks' wander with those gains. All pairs of a
	// clock share the wander: it does not average out over them, as noise does.
	n, w [3][3]float64
}

// startFrom replaces the state by a fit of a window.
func (f *filter) startFrom(now int64, c *windowFit) {
	ahead := float64(now-c.at) / 1e9
	*f = filter{at: now, offset: c.offset}
	rate := c.rate * 1e9
	f.x = [3]float64{rate * ahead, rate, c.delay}
	r := c.rateSigma * 1e9
	f.p[0][0] = c.sigma*c.sigma + r*r*ahead*ahead
	f.p[0][1] = r * r * ahead
	f.p[1][0] = f.p[0][1]
	f.p[1][1] = r * r
	f.n = f.p
	f.foldOffset()
}

// foldOffset keeps the fractional part of the offset small.
func (f *filter) foldOffset() {
	whole := math.Round(f.x[0])
	f.offset += int64(whole)
	f.x[0] -= whole
}

// predict advances the filter to a time of the local clock. Both clocks wander meanwhile by wander
// times the usual. The gains assume unrest times that.
func (f *filter) predict(now int64, wander, unrest float64) {
	t := float64(now-f.at) / 1e9
	if t <= 0 {
		return
	}
	f.at = now
	f.x[0] += f.x[1] * t
	f.foldOffset()
	usual := 2 * wander * wander * wanderRoot * wanderRoot * 1e18
	for i, p := range [3]*[3][3]float64{&f.p, &f.n, &f.w} {
		w := usual * [3]float64{unrest * unrest, 0, 1}[i]
		p[0][0] += 2*t*p[0][1] + t*t*p[1][1]
		p[0][1] += t * p[1][1]
		p[0][2] += t * p[1][2]
		p[0][0] += w * t * t * t / 3
		p[0][1] += w * t * t / 2
		p[1][1] += w * t
		p[1][0], p[2][0], p[2][1] = p[0][1], p[0][2], p[1][2]
	}
}

// update applies a measurement: the observed value of h.x minus the filter's own is off, with a
// variance.
func (f *filter) update(h [3]float64, off, variance float64) {
	var ph [3]float64
	s := variance
	for i := range ph {
		for j := range h {
			ph[i] += f.p[i][j] * h[j]
		}
		s += h[i] * ph[i]
	}
	var k [3]float64
	for i := range k {
		k[i] = ph[i] / s
		f.x[i] += k[i] * off
	}
	for i := range k {
		for j := range k {
			f.p[i][j] -= ph[i] * k[j]
		}
	}
	josephUpdate(&f.n, &h, &k, variance)
	josephUpdate(&f.w, &h, &k, 0)
}

// josephUpdate updates an error covariance for an update with gains k, including the measurement's own
// error (Joseph's form, which holds for any gains).
func josephUpdate(e *[3][3]float64, h, k *[3]float64, variance float64) {
	var eh [3]float64
	heh := variance
	for i := range eh {
		for j := range h {
			eh[i] += e[i][j] * h[j]
		}
		heh += h[i] * eh[i]
	}
	for i := range eh {
		for j := range eh {
			e[i][j] += k[i]*k[j]*heh - k[i]*eh[j] - eh[i]*k[j]
		}
	}
}

// inflateOffsetAndRate adds to the variances of offset and rate.
func (f *filter) inflateOffsetAndRate(variance float64) {
	f.inflateVariance(0, variance)
	f.inflateVariance(1, variance)
}

// inflateVariance adds to the variance of one of the unknowns.
func (f *filter) inflateVariance(i int, variance float64) {
	f.p[i][i] += variance
	f.n[i][i] += variance
}

// quadraticForm returns h.P.h.
func (f *filter) quadraticForm(h [3]float64) (v float64) {
	for i := range h {
		for j := range h {
			v += h[i] * f.p[i][j] * h[j]
		}
	}
	return v
}

// asRelation returns the filter's state as a relation.
func (f *filter) asRelation() Relation {
	return Relation{Ref: f.at, Offset: f.offset + int64(math.Round(f.x[0])), Rate: f.x[1] * 1e-9}
}

// freezeDelay makes the delay a constant that is not estimated.
func (f *filter) freezeDelay() {
	for i := range f.x {
		for _, p := range [3]*[3][3]float64{&f.p, &f.n, &f.w} {
			p[i][2], p[2][i] = 0, 0
		}
	}
}

// predictionErrors are the last errors of a pair's predictions.
type predictionErrors struct {
	lean       float64 // mean of the last errors, in standard deviations
	misfit     float64 // squared ratio of errors to their expectation
	wanderPace float64 // factor by which clocks wander more than usual
}

// startWindow sets the pace for a window.
func (e *predictionErrors) startWindow() { e.wanderPace = 1 + leanGain*max(0, math.Abs(e.lean)-0.5) }

// surpriseVariance adds the error of a prediction, ns, and its expected variance, ns^2. It returns the
// variance that the filter must add to accept an improbable measurement: a change of an oscillator is
// accepted within a window.
func (e *predictionErrors) surpriseVariance(off, expected float64) float64 {
	e.misfit = max(1, e.misfit+(min(off*off/expected, 9)-e.misfit)/30)
	e.lean += (max(-3, min(3, off/math.Sqrt(expected))) - e.lean) / 6
	if off*off > 9*expected {
		return off * off
	}
	return 0
}
