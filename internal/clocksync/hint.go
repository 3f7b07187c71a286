package clocksync

import "math"

// graphHint is the relation of a pair's clocks by the graph.
type graphHint struct {
	relation Relation
	sigma    float64 // ns
	set      bool
}

// isFresh reports whether the last hint of the graph is fresh.
func (h *graphHint) isFresh(now int64) bool { return h.set && now-h.relation.Ref < int64(FreshFor) }

// windowRelation returns the relation that a window is compared with, and its standard deviation: the
// graph's, which has more data than one pair, unless it is far from the pair's.
func (p *Pair) windowRelation(now int64) (Relation, float64) {
	own, sigma := p.filter.asRelation(), math.Sqrt(p.offsetVariance())
	if !p.hint.isFresh(now) || math.Abs(float64(p.hint.relation.OffsetAt(now)-own.OffsetAt(now))) > BoundSigmas*math.Sqrt(sigma*sigma+p.path.inherit)+p.kind.shiftFloor()/4 {
		return own, sigma
	}
	return p.hint.relation, p.hint.sigma
}

// yieldToHint replaces the pair's relation by the graph's where the two contradict each other and the
// samples do not contradict the graph's. Some pairs notice an oscillator that changed its rate before
// others can.
func (p *Pair) yieldToHint(now int64) {
	f := &p.filter
	own := f.asRelation()
	if !p.hint.isFresh(now) {
		return
	}
	apart := float64(p.hint.relation.OffsetAt(now) - own.OffsetAt(now))
	if math.Abs(apart) < 3*math.Sqrt(p.offsetVariance()+p.path.inherit) || !p.shape.learnScores(p.kind, p.hint.sigma) {
		return
	}
	better := -4.0 // nats: equal likelihood suffices
	for _, look := range []struct {
		from *Relation
		sign float64
	}{{&own, 1}, {&p.hint.relation, -1}} {
		u := p.sampleDistances(&p.samples.now, look.from)
		for d := range u {
			better += look.sign * p.shape.logLikelihood(d, u[d])
		}
	}
	if better > 0 {
		return
	}
	turn := p.hint.relation.Rate*1e9 - f.x[1]
	p.errors.lean = 0
	past := float64(now-p.startFilter.at) / 1e9
	p.startFilter.x[0] -= turn * past
	for _, f := range [2]*filter{f, &p.startFilter} {
		f.inflateVariance(0, apart*apart)
		f.inflateVariance(1, turn*turn)
		f.x[0] += apart
		f.x[1] += turn
		f.foldOffset()
	}
}
