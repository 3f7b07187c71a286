package clocksync

import (
	"slices"
)

// A pair that begins on a path which is slow in one direction takes half of that for an offset, and nothing in its own
// stamps contradicts. Others are known to be faster: all of what a path takes longer than usual may be in one direction
// (rule 13).

// Limits by which a path is long.
const (
	// longHaul is by how much longer than usual, ns, a path is when its asymmetry is uncertain in any case: as long as
	// four kilometres of fibre take. From half of that on some of it is.
	longHaul = 20e3
	// longShare is the deviation of an offset as a share of what the path takes longer. The most that the offset can be
	// wrong by is all of it: with BoundSigmas it is once and a half.
	longShare = 1.5 / BoundSigmas
	// mostDelayGroups bounds how many groups are distinguished. There are as many as tiers and kinds of stamps.
	mostDelayGroups = 64
)

// delayGroup is the pairs whose paths should take about as long: those of one kind of stamps, with the same allowance.
type delayGroup struct {
	kind      Kind
	allowance int64
	sample    []int32 // ns: delays of some of them
	usual     int32   // ns: that of the path at the shortest quarter
}

// sampleDelay puts a term into its group, and its delay into the sample of the group if it is a term's turn, which every
// so many have. The first of each group is in any case.
func (c *cycle) sampleDelay(t *term, turn bool) {
	if t.e.id.Flow < 0 {
		return
	}
	t.group = c.delayGroupOf(t.e)
	if g := &c.delays[t.group]; turn || len(g.sample) == 0 {
		g.sample = append(g.sample, t.e.firstDelay)
	}
}

// measureLongPaths raises the variances of terms whose path took much longer than usual when the pair began.
func (c *cycle) measureLongPaths() {
	for i := range c.delays {
		g := &c.delays[i]
		slices.Sort(g.sample)
		g.usual = g.sample[len(g.sample)/4]
	}
	c.longPaths = false
	for i := range c.terms {
		t := &c.terms[i]
		if longer := c.longerThanUsual(t); longer > 0 {
			c.longPaths = c.longPaths || longer > t.e.id.Kind.shiftFloor()
			t.distrustAsymmetry(min(longer, 2*longer-longHaul))
		}
	}
}

// longerThanUsual returns by how much longer than usual, ns, the path of a term was when its pair began.
func (c *cycle) longerThanUsual(t *term) float64 {
	if t.e.id.Flow < 0 {
		return 0
	}
	return float64(max(0, t.e.firstDelay-c.delays[t.group].usual))
}

// delayGroupOf returns the index of a pair's group. There is one for each tier and kind of stamps.
func (c *cycle) delayGroupOf(e *frameEdge) uint16 {
	for i := range c.delays {
		if g := &c.delays[i]; g.kind == e.id.Kind && g.allowance == e.allowance {
			return uint16(i)
		}
	}
	if len(c.delays) == mostDelayGroups {
		return mostDelayGroups - 1
	}
	c.delays = append(c.delays, delayGroup{kind: e.id.Kind, allowance: e.allowance})
	return uint16(len(c.delays) - 1)
}

// distrustAsymmetry adds an error that a long path may cause, ns, to the variance of a term. All pairs of a NIC may share
// it.
func (t *term) distrustAsymmetry(by float64) {
	if by > float64(t.distrusted) {
		t.variance -= t.asymmetryVariance()
		t.distrusted = float32(by)
		t.variance += t.asymmetryVariance()
	}
}

// asymmetryVariance returns the part of a term's variance that a long path is the reason of, ns^2.
func (t *term) asymmetryVariance() float64 {
	sigma := longShare * float64(t.distrusted)
	return sigma * sigma
}

// distrustLongPaths distrusts the long paths of clocks whose estimates contradict each other, and lets all of their other
// estimates count again: the wrong ones may have been the majority. It reports whether there are such paths.
func (c *cycle) distrustLongPaths() bool {
	if !c.longPaths {
		return false
	}
	c.contradicted = resizeSlice(c.contradicted, len(c.presence.clocks))
	clear(c.contradicted)
	for i := range c.terms {
		if t := &c.terms[i]; t.rejected || t.residualSigmas() >= outlierSigmas {
			c.contradicted[t.a], c.contradicted[t.b] = true, true
		}
	}
	any := false
	for i := range c.terms {
		t := &c.terms[i]
		if !c.contradicted[t.a] && !c.contradicted[t.b] {
			continue
		}
		if longer := c.longerThanUsual(t); float32(longer) > max(t.distrusted, float32(t.e.id.Kind.shiftFloor())) {
			t.distrustAsymmetry(longer)
			any = true
		}
	}
	if any {
		for i := range c.terms {
			if t := &c.terms[i]; t.rejected && (c.contradicted[t.a] || c.contradicted[t.b]) {
				t.rejected, t.e.rejected = false, false
			}
		}
	}
	return any
}
