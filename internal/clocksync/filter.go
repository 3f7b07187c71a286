package clocksync

import "math"

// unrest is by how much more than they wander clocks are expected to change their
// rates: for a minute or so after a change of temperature they do. Stamps that are
// fine see that within a window or two.
func (k Kind) unrest() float64 {
	if k == Hardware {
		return 1
	}
	return 2
}

// filter is a Kalman filter of three unknowns: the far clock's offset, ns, its
// rate, ns/s, and the path's delay, ns. The clocks' rates wander; the delay hardly
// does, which is how a direction that shows its place tells of the offset also
// when the other one does not.
type filter struct {
	at     int64 // by the local clock
	offset int64 // coarse part of the offset
	x      [3]float64
	p      [3][3]float64
	// w is the part of p that the clocks' wander made. All pairs of a clock have
	// it in common: it does not average out over them, as noise does.
	w [3][3]float64
}

// start forgets everything for what was found.
func (f *filter) start(now int64, c *found) {
	ahead := float64(now-c.at) / 1e9
	*f = filter{at: now, offset: c.offset}
	rate := c.rate * 1e9
	f.x = [3]float64{rate * ahead, rate, c.delay}
	r := c.rateSigma * 1e9
	f.p[0][0] = c.sigma*c.sigma + r*r*ahead*ahead
	f.p[0][1] = r * r * ahead
	f.p[1][0] = f.p[0][1]
	f.p[1][1] = r * r
	f.fold()
}

// fold keeps the fine part of the offset small.
func (f *filter) fold() {
	whole := math.Round(f.x[0])
	f.offset += int64(whole)
	f.x[0] -= whole
}

// predict moves on to a time of the local clock: both clocks wander meanwhile, by
// unrest times what is usual.
func (f *filter) predict(now int64, unrest float64) {
	t := float64(now-f.at) / 1e9
	if t <= 0 {
		return
	}
	f.at = now
	f.x[0] += f.x[1] * t
	f.fold()
	w := 2 * unrest * unrest * wanderRoot * wanderRoot * 1e18
	for _, p := range [2]*[3][3]float64{&f.p, &f.w} {
		p[0][0] += 2*t*p[0][1] + t*t*p[1][1]
		p[0][1] += t * p[1][1]
		p[0][2] += t * p[1][2]
		p[0][0] += w * t * t * t / 3
		p[0][1] += w * t * t / 2
		p[1][1] += w * t
		p[1][0], p[2][0], p[2][1] = p[0][1], p[0][2], p[1][2]
	}
}

// update takes a measurement: h.x was seen to differ from what the filter says
// by off, with a variance.
func (f *filter) update(h [3]float64, off, variance float64) {
	var ph [3]float64
	s := variance
	for i := range ph {
		for j := range h {
			ph[i] += f.p[i][j] * h[j]
		}
		s += h[i] * ph[i]
	}
	var wh [3]float64
	hwh := 0.0
	for i := range wh {
		for j := range h {
			wh[i] += f.w[i][j] * h[j]
		}
		hwh += h[i] * wh[i]
	}
	for i := range ph {
		f.x[i] += ph[i] / s * off
		for j := range ph {
			f.p[i][j] -= ph[i] * ph[j] / s
			f.w[i][j] += ph[i]*ph[j]/s/s*hwh - (ph[i]*wh[j]+wh[i]*ph[j])/s
		}
	}
}

// along is h.P.h.
func (f *filter) along(h [3]float64) (v float64) {
	for i := range h {
		for j := range h {
			v += h[i] * f.p[i][j] * h[j]
		}
	}
	return v
}

// relation is the far clock as the filter sees it.
func (f *filter) relation() Relation {
	return Relation{Ref: f.at, Offset: f.offset + int64(math.Round(f.x[0])), Rate: f.x[1] * 1e-9}
}

// still makes the delay a constant that is not estimated.
func (f *filter) still() {
	for i := range f.x {
		f.p[i][2], f.p[2][i], f.w[i][2], f.w[2][i] = 0, 0, 0, 0
	}
}
