package clocksync

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// runningRate is the largest error of an oscillator's rate. Beyond it a clock stands still or is being
// set.
const runningRate = 1000e-6

// cycle is the working memory of Solve.
type cycle struct {
	presence  clockPresence
	edges     []*frameEdge
	terms     []term
	graph     termGraph
	fit       lineFit
	equations normalEquations
	doubts    clockDoubts
	outliers  outlierScores
	errors    solutionErrors
	delays    []delayGroup
	longPaths bool // some path takes longer than usual
	votes     []vote
	sample    []float64
	// contradicted has the clocks, by number, with estimates that stand out.
	contradicted []bool
}

// clockPresence counts the estimates of every clock, by index in Frame.clocks. It numbers the clocks
// with usable estimates in the order of their names.
type clockPresence struct {
	number             []int32 // negative if the clock has no number
	estimates, stopped []int32
	missed             []int32 // estimates that peers no longer have
	clocks             []int32 // indexes in Frame.clocks, by number
}

// reset forgets the counts of n clocks.
func (p *clockPresence) reset(n int) {
	p.number, p.estimates, p.stopped, p.missed = resizeSlice(p.number, n), resizeSlice(p.estimates, n), resizeSlice(p.stopped, n), resizeSlice(p.missed, n)
	clear(p.estimates)
	clear(p.stopped)
	clear(p.missed)
}

// lineFit has the lines of clocks, by number.
type lineFit struct {
	lines       []line
	predicted   []line    // predictions of the lines
	unpredicted []bool    // the clock had no prediction
	keepsFrame  []bool    // the frame continues by the prediction of this clock, among others
	spread      []float64 // s: deviation of the times of a clock's estimates
}

// normalEquations solves for the corrections x of the right-hand sides b.
type normalEquations struct {
	solver conjugateSolver
	b, x   []float64
	rx     []float64 // corrections of the rates
}

// clockDoubts has what shows that a clock moves, by number.
type clockDoubts struct {
	terms, outliers []int32   // number of a clock's terms, and of those that stand out
	contradictions  []float64 // size of the contradiction between a clock's terms; 0 if there is none
	doubted         []bool    // the clock's terms have no effect in this cycle
}

// reset forgets the counts of n clocks, but not which of them are in doubt.
func (d *clockDoubts) reset(n int) {
	d.terms, d.outliers, d.contradictions = resizeSlice(d.terms, n), resizeSlice(d.outliers, n), resizeSlice(d.contradictions, n)
	clear(d.terms)
	clear(d.outliers)
	clear(d.contradictions)
}

// outlierScores has the worst scores of the terms of every clock, by number.
type outlierScores struct {
	worstChecked, worstOverall []float64 // of a clock's terms that others check, and of all of its terms
	candidates                 []rejectCandidate
}

// reset forgets the scores of n clocks.
func (o *outlierScores) reset(n int) {
	o.worstChecked, o.worstOverall, o.candidates = resizeSlice(o.worstChecked, n), resizeSlice(o.worstOverall, n), o.candidates[:0]
	clear(o.worstChecked)
	clear(o.worstOverall)
}

// solutionErrors has the deviations of the solution, by number.
type solutionErrors struct {
	dense              []*denseFactor // by part, of those that needed one
	widened            []float64      // ns^2, from contradicting terms that stay
	sigma, rateSigma   []float64
	wander, rateWander []float64 // variances of unobserved changes of clocks
}

// term is an estimate in this cycle. Before the solution, d (for offsets, ns) and g (for rates) are the
// wanted correction of its local clock less that of the far clock. After the solution they are the
// residuals.
type term struct {
	clockDifference
	e                   *frameEdge
	a, b                int32 // numbers of the local and the far clock
	inA, inB            int32 // indexes of their entries in the matrices
	rejected, predicted bool
	group               uint16  // index of its delayGroup
	distrusted          float32 // ns: what its path takes longer than usual, as far as that counts in the variance
	allowance           int64
	d, g                float64
}

// Solve runs a cycle at a monotonic time: it uses the estimates that arrived within the last FreshFor,
// updates maps and states, and returns a summary. It is meant to run once a second.
func (f *Frame) Solve(mono time.Duration) *Summary {
	f.cycles++
	f.forgetEdges(mono)
	f.sortNames()
	f.gatherTerms(mono)
	s := &Summary{}
	c := &f.cycle
	if len(c.terms) > 0 {
		c.graph.build(len(c.presence.clocks), c.terms)
		f.seedLines()
		f.identifyParts()
		s.Iterations = f.fitLines()
		s.Iterations += f.computeSigmas()
		f.judgeClocks(mono)
	}
	f.updateIdleClocks(mono)
	f.fillSummary(s)
	f.forgetClocks(mono)
	return s
}

// gatherTerms collects the usable estimates between running clocks as terms, in the order of nodes and
// of their reports.
func (f *Frame) gatherTerms(mono time.Duration) {
	f.countEstimates(mono)
	f.numberClocks(mono)
	c := &f.cycle
	c.terms = resizeSlice(c.terms, len(c.edges))
	c.delays = c.delays[:0]
	every := 1 + len(c.edges)/(4*sampleMost)
	for i, e := range c.edges {
		warm := 0.0
		if e.predicted {
			warm = thermalOffset(mono-e.measuredAt) / BoundSigmas
		}
		c.terms[i] = term{e: e, a: c.presence.number[e.local], b: c.presence.number[e.peer], rejected: e.rejected, clockDifference: e.clockDifference, allowance: e.allowance, predicted: e.predicted}
		c.terms[i].variance += warm * warm
		c.sampleDelay(&c.terms[i], i%every == 0)
	}
	c.boundWeights(f.sorted)
	c.measureLongPaths()
}

// countEstimates counts the estimates of every clock, and collects those between running clocks as
// edges.
func (f *Frame) countEstimates(mono time.Duration) {
	c := &f.cycle
	p := &c.presence
	p.reset(len(f.clocks))
	c.edges = c.edges[:0]
	for _, n := range f.sorted {
		for i := range n.edges {
			e := &n.edges[i]
			switch {
			case mono-e.reportedAt > FreshFor, e.tooUncertain():
				continue
			case e.absent:
				if e.missed > 0 {
					p.estimates[e.peer]++
					p.missed[e.peer]++
				}
				if e.missed > 1 {
					p.stopped[e.peer]++
				}
				continue
			}
			p.estimates[e.local]++
			p.estimates[e.peer]++
			if math.Abs(e.rate) > runningRate {
				p.stopped[e.local]++
				p.stopped[e.peer]++
				continue
			}
			c.edges = append(c.edges, e)
		}
	}
}

// numberClocks numbers the clocks with edges, without those that stand still.
func (f *Frame) numberClocks(mono time.Duration) {
	c := &f.cycle
	p := &c.presence
	const unnumbered, atStandstill = -1, -2
	for i := range p.number {
		p.number[i] = unnumbered
		if p.estimates[i] > 0 {
			f.clocks[i].estimatedAt = mono
		}
		if 2*p.stopped[i] > p.estimates[i] {
			p.number[i] = atStandstill
			f.clocks[i].markLost()
		}
		f.clocks[i].missed = 2*p.missed[i] > p.estimates[i]
	}
	c.edges = slices.DeleteFunc(c.edges, func(e *frameEdge) bool {
		return p.number[e.local] == atStandstill || p.number[e.peer] == atStandstill
	})
	clear(p.estimates)
	for _, e := range c.edges {
		p.estimates[e.local]++
		p.estimates[e.peer]++
	}
	p.clocks = p.clocks[:0]
	for _, i := range f.order {
		if p.estimates[i] > 0 {
			p.number[i] = int32(len(p.clocks))
			p.clocks = append(p.clocks, i)
		}
	}
}

// boundWeights raises the variances of terms whose node claims much more certainty than nodes typically
// have (rule 12).
func (c *cycle) boundWeights(nodes []*frameNode) {
	type best struct{ variance, rateVariance float64 }
	var typical [kinds]best
	var samples [kinds][2][]float64
	for _, n := range nodes {
		var of [kinds]best
		for i := range n.edges {
			e := &n.edges[i]
			if e.id.Flow < 0 || e.absent || e.tooUncertain() || int(e.id.Kind) >= int(kinds) {
				continue
			}
			b := &of[e.id.Kind]
			if b.variance == 0 {
				*b = best{e.variance, e.rateVariance}
				continue
			}
			b.variance, b.rateVariance = min(b.variance, e.variance), min(b.rateVariance, e.rateVariance)
		}
		for k, b := range of {
			if b.variance > 0 {
				samples[k][0], samples[k][1] = append(samples[k][0], b.variance), append(samples[k][1], b.rateVariance)
			}
		}
	}
	for k := range samples {
		if n := len(samples[k][0]); n > 0 {
			slices.Sort(samples[k][0])
			slices.Sort(samples[k][1])
			typical[k] = best{samples[k][0][n/2], samples[k][1][n/2]}
		}
	}
	for i := range c.terms {
		t := &c.terms[i]
		if t.e.id.Flow >= 0 && int(t.e.id.Kind) < int(kinds) {
			least := typical[t.e.id.Kind]
			t.variance, t.rateVariance = max(t.variance, least.variance), max(t.rateVariance, least.rateVariance)
		}
	}
}

// tooUncertain reports whether an estimate is too imprecise to show whether the clocks run, or to place
// them with a deviation of LockBound.
func (e *frameEdge) tooUncertain() bool {
	return e.rateVariance > runningRate*runningRate || e.variance > LockBound*LockBound
}

// seedLines gives every clock a line at the middle time of its estimates: its prediction, or the line
// that follows from a neighbour's line and one estimate.
func (f *Frame) seedLines() {
	c := &f.cycle
	n := len(c.presence.clocks)
	c.fit.lines, c.fit.predicted, c.fit.unpredicted, c.fit.spread = resizeSlice(c.fit.lines, n), resizeSlice(c.fit.predicted, n), resizeSlice(c.fit.unpredicted, n), resizeSlice(c.fit.spread, n)
	reached := make([]bool, n)
	queue := make([]int32, 0, n)
	for k, i := range c.presence.clocks {
		c.fit.unpredicted[k] = !f.clocks[i].known
		if !c.fit.unpredicted[k] {
			c.fit.lines[k], reached[k] = f.clocks[i].line, true
			queue = append(queue, int32(k))
		}
	}
	queue = c.extendLines(queue, 0, reached)
	for root := range n {
		if !reached[root] {
			c.fit.lines[root], reached[root] = line{}, true // its own time, until judgeClocks sets the time of the part
			queue = c.extendLines(append(queue, int32(root)), len(queue), reached)
		}
	}

	first, middle, counts := make([]int64, n), resizeSlice(c.equations.x, n), make([]int32, n)
	c.equations.x = middle
	clear(middle)
	clear(c.fit.spread)
	for i := range c.terms {
		t := &c.terms[i]
		for _, m := range [2]struct {
			k int32
			t int64
		}{{t.a, t.ref}, {t.b, t.ref + t.offset}} {
			if counts[m.k] == 0 {
				first[m.k] = m.t
			}
			since := float64(m.t - first[m.k])
			middle[m.k] += since
			c.fit.spread[m.k] += since * since
			counts[m.k]++
		}
	}
	for k := range n {
		mean := middle[k] / float64(counts[k])
		c.fit.spread[k] = math.Sqrt(max(0, c.fit.spread[k]/float64(counts[k])-mean*mean)) * 1e-9
		c.fit.lines[k].moveRef(first[k] + int64(mean))
		c.fit.predicted[k] = c.fit.lines[k]
	}
	// An estimate at another time than the middle has additional variance, since rates wander in
	// between.
	for i := range c.terms {
		t := &c.terms[i]
		wander := GrownSigma(0, 0, time.Duration(t.ref-c.fit.lines[t.a].ref))
		t.variance += wander * wander
	}
}

// extendLines gives lines to all clocks that are connected to those in the queue from an index on, and
// appends them to the queue. It returns the queue.
func (c *cycle) extendLines(queue []int32, from int, reached []bool) []int32 {
	for ; from < len(queue); from++ {
		k := queue[from]
		for i := c.graph.offsets.start[k]; i < c.graph.offsets.start[k+1]; i++ {
			if j, t := c.graph.offsets.entries[i].to, &c.terms[c.graph.termOf[i]]; !reached[j] && !t.rejected {
				c.fit.lines[j], reached[j] = t.neighbourLine(c.fit.lines[k], k), true
				queue = append(queue, j)
			}
		}
	}
	return queue
}

// neighbourLine returns the line of the other clock of an estimate, given that of clock k.
func (t *term) neighbourLine(from line, k int32) line {
	at, to, rate := t.ref, t.ref+t.offset, (1+from.rate)/(1+t.rate)-1
	if k == t.b {
		at, to, rate = to, at, (1+from.rate)*(1+t.rate)-1
	}
	whole, frac := from.timeAt(at)
	l := line{ref: to, off: whole - to, frac: frac, rate: rate}
	l.normalize()
	return l
}

// identifyParts assigns components to the parts, and finds whose predictions each part continues.
func (f *Frame) identifyParts() {
	c := &f.cycle
	type share struct {
		id   uint32
		part int32
		n    int
	}
	counts := map[share]int{}
	for k, i := range c.presence.clocks {
		if !c.fit.unpredicted[k] {
			counts[share{id: f.clocks[i].component, part: c.graph.component[k]}]++
		}
	}
	shares := make([]share, 0, len(counts))
	for s, n := range counts {
		s.n = n
		shares = append(shares, s)
	}
	slices.SortFunc(shares, func(x, y share) int {
		return cmp.Or(cmp.Compare(y.n, x.n), cmp.Compare(x.id, y.id), cmp.Compare(x.part, y.part))
	})
	taken := map[uint32]bool{}
	for _, s := range shares {
		p := &c.graph.parts[s.part]
		if p.continuedID == 0 {
			p.continuedID = s.id
		}
		if p.id == 0 && p.continuedID == s.id && !taken[s.id] {
			p.id, taken[s.id] = s.id, true
		}
	}
	for i := range c.graph.parts {
		if p := &c.graph.parts[i]; p.id == 0 {
			f.lastComponent++
			p.id = f.lastComponent
		}
	}
	if i, ok := f.byName[f.opts.Reference]; ok && c.presence.number[i] >= 0 {
		c.graph.parts[c.graph.component[c.presence.number[i]]].reference = c.presence.number[i]
	}

	// Clocks that were locked come before those that were converging.
	c.fit.keepsFrame = resizeSlice(c.fit.keepsFrame, len(c.presence.clocks))
	locked := make([]bool, len(c.graph.parts))
	for pass := range 2 {
		for k, i := range c.presence.clocks {
			p, o := c.graph.component[k], &f.clocks[i]
			mine := !c.fit.unpredicted[k] && o.component == c.graph.parts[p].continuedID
			if pass == 0 {
				locked[p] = locked[p] || mine && o.agreement.cycles >= lockAfter
			} else {
				c.fit.keepsFrame[k] = mine && (o.agreement.cycles >= lockAfter || !locked[p])
			}
		}
	}
}
