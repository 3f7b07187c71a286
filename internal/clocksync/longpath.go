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
)

// delayGroup is the pairs whose paths should take about as long: those of one kind of stamps, with the same allowance.
type delayGroup struct {
	kind        Kind
	allowance   int64
	pairs, seen int
	sample      []int64
	usual       int64 // ns
}

// measureLongPaths sets by how much longer than usual the path of each term was when its pair began, and raises the
// variances of those that are much longer. The usual delay is that of the path at the shortest quarter.
func (c *cycle) measureLongPaths() {
	c.delays = c.delays[:0]
	pairs := func(yield func(*term, *delayGroup) bool) {
		for i := range c.terms {
			if t := &c.terms[i]; t.e.id.Flow >= 0 && !yield(t, c.delayGroupOf(t.e)) {
				return
			}
		}
	}
	for _, g := range pairs {
		g.pairs++
	}
	for t, g := range pairs {
		if g.seen%(1+g.pairs/sampleMost) == 0 {
			g.sample = append(g.sample, t.e.firstDelay)
		}
		g.seen++
	}
	for i := range c.delays {
		g := &c.delays[i]
		slices.Sort(g.sample)
		g.usual = g.sample[len(g.sample)/4]
	}
	for t, g := range pairs {
		t.longer = float64(max(0, t.e.firstDelay-g.usual))
		t.distrustAsymmetry(min(t.longer, 2*t.longer-longHaul))
	}
}

// delayGroupOf returns the group of a pair. There is one for each tier and kind of stamps.
func (c *cycle) delayGroupOf(e *frameEdge) *delayGroup {
	i := slices.IndexFunc(c.delays, func(g delayGroup) bool { return g.kind == e.id.Kind && g.allowance == e.allowance })
	if i < 0 {
		i = len(c.delays)
		c.delays = append(c.delays, delayGroup{kind: e.id.Kind, allowance: e.allowance})
	}
	return &c.delays[i]
}

// distrustAsymmetry adds an error that a long path may cause, ns, to the variance of a term. All pairs of a NIC may share
// it.
func (t *term) distrustAsymmetry(by float64) {
	if by <= t.distrusted {
		return
	}
	more := longShare * longShare * (by*by - t.distrusted*t.distrusted)
	t.distrusted = by
	t.variance += more
	t.wander += more
}

// distrustLongPaths distrusts the long paths of clocks whose estimates contradict each other, and lets all of their other
// estimates count again: the wrong ones may have been the majority. It reports whether there are such paths.
func (c *cycle) distrustLongPaths() bool {
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
		if (c.contradicted[t.a] || c.contradicted[t.b]) && t.longer > max(t.distrusted, t.e.id.Kind.shiftFloor()) {
			t.distrustAsymmetry(t.longer)
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
