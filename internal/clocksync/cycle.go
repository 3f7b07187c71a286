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

// cycle is the working memory of Solve. It numbers the clocks with estimates in the order of their
// names.
type cycle struct {
	number             []int32 // by index in Frame.clocks; negative if the clock has no number
	estimates, stopped []int32 // by index in Frame.clocks
	missedEstimates    []int32 // by index in Frame.clocks: estimates that peers no longer have
	clocks             []int32 // indexes in Frame.clocks, by number

	edges []*frameEdge
	terms []term

	offsets, rates laplacian // both have the same shape
	termOf         []int32   // term of an entry of the matrices
	next           []int32
	union          unionFind
	component      []int32 // index of the part, by number
	parts          []part
	members        []int32 // numbers, sorted by part
	partIndex      []int32 // index within the part, by number

	lines          []line
	predictedLines []line    // predictions of the lines
	unpredicted    []bool    // by number: the clock had no prediction
	keepsFrame     []bool    // by number: the frame continues by the prediction of this clock, among others
	spread         []float64 // s: deviation of the times of a clock's estimates

	solver                     conjugateSolver
	b, x, rx                   []float64
	dense                      []*denseFactor // of parts that needed one
	worstChecked, worstOverall []float64      // worst score of a clock's estimates that others check, and of all of its estimates
	rejectCandidates           []rejectCandidate
	termCounts, outlierCounts  []int32   // number of a clock's terms, and of those that stand out
	contradictions             []float64 // size of the contradiction between a clock's terms; 0 if there is none
	doubted                    []bool    // the clock's terms have no effect in this cycle
	votes                      []vote
	sample                     []float64
	widened                    []float64 // ns^2, from contradicting terms that stay
	sigma, rateSigma           []float64
	// Variances of unobserved changes of clocks.
	wander, rateWander []float64
}

// term is an estimate in this cycle. Before the solution, d (for offsets, ns) and g (for rates) are the
// wanted correction of its local clock less that of the far clock. After the solution they are the
// residuals.
type term struct {
	e                      *frameEdge
	a, b                   int32 // numbers of the local and the far clock
	inA, inB               int32 // indexes of their entries in the matrices
	rejected, predicted    bool
	ref, offset, allowance int64
	rate                   float64
	variance, rateVariance float64
	d, g                   float64
}

// part is a connected component.
type part struct {
	first, last    int32 // bounds in members
	terms          int
	id             uint32
	continuedID    uint32  // component whose predictions the part continues; 0 if there is none
	reference      int32   // number of the reference clock, or -1
	unit, rateUnit float64 // variance of unit weight, at least 1
}

func (p *part) clockCount() int { return int(p.last - p.first) }

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
		c.buildParts()
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
	c := &f.cycle
	c.number, c.stopped, c.estimates = resizeSlice(c.number, len(f.clocks)), resizeSlice(c.stopped, len(f.clocks)), resizeSlice(c.estimates, len(f.clocks))
	c.missedEstimates = resizeSlice(c.missedEstimates, len(f.clocks))
	clear(c.stopped)
	clear(c.missedEstimates)
	clear(c.estimates)
	c.edges = c.edges[:0]
	for _, n := range f.sorted {
		for i := range n.edges {
			e := &n.edges[i]
			switch {
			case mono-e.reportedAt > FreshFor, e.tooUncertain():
				continue
			case e.absent:
				if e.missed > 0 {
					c.estimates[e.peer]++
					c.missedEstimates[e.peer]++
				}
				if e.missed > 1 {
					c.stopped[e.peer]++
				}
				continue
			}
			c.estimates[e.local]++
			c.estimates[e.peer]++
			if math.Abs(e.rate) > runningRate {
				c.stopped[e.local]++
				c.stopped[e.peer]++
				continue
			}
			c.edges = append(c.edges, e)
		}
	}
	const unnumbered, atStandstill = -1, -2
	for i := range c.number {
		c.number[i] = unnumbered
		if c.estimates[i] > 0 {
			f.clocks[i].estimatedAt = mono
		}
		if 2*c.stopped[i] > c.estimates[i] {
			c.number[i] = atStandstill
			f.clocks[i].markLost()
		}
		f.clocks[i].missed = 2*c.missedEstimates[i] > c.estimates[i]
	}
	c.edges = slices.DeleteFunc(c.edges, func(e *frameEdge) bool {
		return c.number[e.local] == atStandstill || c.number[e.peer] == atStandstill
	})
	clear(c.estimates)
	for _, e := range c.edges {
		c.estimates[e.local]++
		c.estimates[e.peer]++
	}
	c.clocks = c.clocks[:0]
	for _, i := range f.order {
		if c.estimates[i] > 0 {
			c.number[i] = int32(len(c.clocks))
			c.clocks = append(c.clocks, i)
		}
	}

	c.terms = resizeSlice(c.terms, len(c.edges))
	for i, e := range c.edges {
		warm := 0.0
		if e.predicted {
			warm = thermalOffset(mono-e.measuredAt) / BoundSigmas
		}
		c.terms[i] = term{e: e, a: c.number[e.local], b: c.number[e.peer], rejected: e.rejected, ref: e.ref, offset: e.offset, rate: e.rate,
			variance: e.variance + warm*warm, rateVariance: e.rateVariance, allowance: e.allowance, predicted: e.predicted}
	}
	c.boundWeights(f.sorted)
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

// buildParts builds the shape of the matrices and the parts. Rejected terms count again where no other
// term connects the clocks.
func (c *cycle) buildParts() {
	n := len(c.clocks)
	c.union.reset(n)
	for i := range c.terms {
		if t := &c.terms[i]; !t.rejected {
			c.union.joinSets(t.a, t.b)
		}
	}
	for i := range c.terms {
		if t := &c.terms[i]; t.rejected && c.union.joinSets(t.a, t.b) {
			t.rejected, t.e.rejected = false, false
		}
	}

	start := resizeSlice(c.offsets.start, n+1)
	clear(start)
	for i := range c.terms {
		start[c.terms[i].a+1]++
		start[c.terms[i].b+1]++
	}
	for k := range n {
		start[k+1] += start[k]
	}
	c.offsets.start, c.rates.start = start, start
	m := 2 * len(c.terms)
	c.next, c.termOf = resizeSlice(c.next, n), resizeSlice(c.termOf, m)
	copy(c.next, start[:n])
	for _, l := range []*laplacian{&c.offsets, &c.rates} {
		l.entries, l.diag = resizeSlice(l.entries, m), resizeSlice(l.diag, n)
	}
	for i := range c.terms {
		t := &c.terms[i]
		t.inA, t.inB = c.next[t.a], c.next[t.b]
		c.next[t.a]++
		c.next[t.b]++
		c.termOf[t.inA], c.termOf[t.inB] = int32(i), int32(i)
		c.offsets.entries[t.inA].to, c.offsets.entries[t.inB].to = t.b, t.a
		c.rates.entries[t.inA].to, c.rates.entries[t.inB].to = t.b, t.a
	}

	c.component, c.parts = resizeSlice(c.component, n), c.parts[:0]
	for k := range n {
		root := c.union.find(int32(k)) // the smallest number of its component
		if int(root) == k {
			c.component[k] = int32(len(c.parts))
			c.parts = append(c.parts, part{reference: -1, unit: 1, rateUnit: 1})
		} else {
			c.component[k] = c.component[root]
		}
		c.parts[c.component[k]].last++
	}
	at := int32(0)
	for i := range c.parts {
		p := &c.parts[i]
		p.first, p.last, at = at, at, at+p.last
	}
	c.members, c.partIndex = resizeSlice(c.members, n), resizeSlice(c.partIndex, n)
	for k := range n {
		p := &c.parts[c.component[k]]
		c.members[p.last], c.partIndex[k] = int32(k), p.last-p.first
		p.last++
	}
	for i := range c.terms {
		c.parts[c.component[c.terms[i].a]].terms++
	}
}

// seedLines gives every clock a line at the middle time of its estimates: its prediction, or the line
// that follows from a neighbour's line and one estimate.
func (f *Frame) seedLines() {
	c := &f.cycle
	n := len(c.clocks)
	c.lines, c.predictedLines, c.unpredicted, c.spread = resizeSlice(c.lines, n), resizeSlice(c.predictedLines, n), resizeSlice(c.unpredicted, n), resizeSlice(c.spread, n)
	reached := make([]bool, n)
	queue := make([]int32, 0, n)
	for k, i := range c.clocks {
		c.unpredicted[k] = !f.clocks[i].known
		if !c.unpredicted[k] {
			c.lines[k], reached[k] = f.clocks[i].line, true
			queue = append(queue, int32(k))
		}
	}
	queue = c.extendLines(queue, 0, reached)
	for root := range n {
		if !reached[root] {
			c.lines[root], reached[root] = line{}, true // its own time, until judgeClocks sets the time of the part
			queue = c.extendLines(append(queue, int32(root)), len(queue), reached)
		}
	}

	first, middle, counts := make([]int64, n), resizeSlice(c.x, n), make([]int32, n)
	c.x = middle
	clear(middle)
	clear(c.spread)
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
			c.spread[m.k] += since * since
			counts[m.k]++
		}
	}
	for k := range n {
		mean := middle[k] / float64(counts[k])
		c.spread[k] = math.Sqrt(max(0, c.spread[k]/float64(counts[k])-mean*mean)) * 1e-9
		c.lines[k].moveRef(first[k] + int64(mean))
		c.predictedLines[k] = c.lines[k]
	}
	// An estimate at another time than the middle has additional variance, since rates wander in
	// between.
	for i := range c.terms {
		t := &c.terms[i]
		wander := GrownSigma(0, 0, time.Duration(t.ref-c.lines[t.a].ref))
		t.variance += wander * wander
	}
}

// extendLines gives lines to all clocks that are connected to those in the queue from an index on, and
// appends them to the queue. It returns the queue.
func (c *cycle) extendLines(queue []int32, from int, reached []bool) []int32 {
	for ; from < len(queue); from++ {
		k := queue[from]
		for i := c.offsets.start[k]; i < c.offsets.start[k+1]; i++ {
			if j, t := c.offsets.entries[i].to, &c.terms[c.termOf[i]]; !reached[j] && !t.rejected {
				c.lines[j], reached[j] = t.neighbourLine(c.lines[k], k), true
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
	for k, i := range c.clocks {
		if !c.unpredicted[k] {
			counts[share{id: f.clocks[i].component, part: c.component[k]}]++
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
		p := &c.parts[s.part]
		if p.continuedID == 0 {
			p.continuedID = s.id
		}
		if p.id == 0 && p.continuedID == s.id && !taken[s.id] {
			p.id, taken[s.id] = s.id, true
		}
	}
	for i := range c.parts {
		if p := &c.parts[i]; p.id == 0 {
			f.lastComponent++
			p.id = f.lastComponent
		}
	}
	if i, ok := f.byName[f.opts.Reference]; ok && c.number[i] >= 0 {
		c.parts[c.component[c.number[i]]].reference = c.number[i]
	}

	// Clocks that were locked come before those that were converging.
	c.keepsFrame = resizeSlice(c.keepsFrame, len(c.clocks))
	locked := make([]bool, len(c.parts))
	for pass := range 2 {
		for k, i := range c.clocks {
			p, o := c.component[k], &f.clocks[i]
			mine := !c.unpredicted[k] && o.component == c.parts[p].continuedID
			if pass == 0 {
				locked[p] = locked[p] || mine && o.agreedCycles >= lockAfter
			} else {
				c.keepsFrame[k] = mine && (o.agreedCycles >= lockAfter || !locked[p])
			}
		}
	}
}

// unionFind joins numbers to sets. The smallest number identifies a set.
type unionFind struct{ parents []int32 }

func (u *unionFind) reset(n int) {
	u.parents = resizeSlice(u.parents, n)
	for i := range u.parents {
		u.parents[i] = int32(i)
	}
}

func (u *unionFind) find(i int32) int32 {
	for u.parents[i] != i {
		u.parents[i] = u.parents[u.parents[i]]
		i = u.parents[i]
	}
	return i
}

// joinSets joins the sets of two numbers. It reports whether the sets were different.
func (u *unionFind) joinSets(i, j int32) bool {
	i, j = u.find(i), u.find(j)
	u.parents[max(i, j)] = min(i, j)
	return i != j
}
