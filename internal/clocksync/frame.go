package clocksync

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"
)

// A Frame relates all clocks of a fleet to common time. Its rules:
//
//  1. Offsets and rates are those that minimise the squares of what the pairs'
//     estimates are missed by, each weighted by its own variance. Several
//     estimates of the same two clocks are one of their joint weight.
//  2. Estimates are of different moments. Rates are solved for first, and with
//     them each estimate is met at its own moment: no common instant is needed.
//  3. Sigma is from the covariance of that solution, against the mean of the
//     component, weighted by what is known (or the reference): exact up to some hundred clocks, of random
//     samples beyond, and then overstated by about a twentieth. Estimates that
//     contradict each other more than their sigmas allow widen everybody's. What
//     a clock may have done unseen is common to its estimates and is added whole;
//     so is what its estimates have not made up for while they go one way.
//  4. An estimate that stands out is left out, the worst first, where enough
//     others vouch for that. It may return when it fits again. One that nobody
//     can vouch against stays, and widens the sigma of its two clocks.
//     A clock most of whose estimates contradict each other is moving. They are
//     given the variance that they have, so that no other clock is moved by them.
//  5. Leaving out never tears clocks apart.
//  6. The frame goes on as most of its clocks predict: the mean correction of
//     those that were predicted and did not jump is zero, in time and in rate.
//     One clock that steps does not move it. A new frame shows the time of its
//     median clock and runs at the mean rate.
//  7. With a reference the frame of its component is that clock. While it is not
//     locked the frame is called relative, whatever it was led by before.
//  8. Where components grow together the one with more clocks keeps its frame;
//     where one falls apart the larger part keeps its number.
//  9. A clock that is off its prediction by more than both sigmas, its rate's
//     change and a step of temperature explain has stepped, if more than half of
//     the others have not: of two clocks alone nobody knows which. Its map
//     follows at once, and it is converging again. What it does before it is
//     locked counts as the same step. A step spoils the windows it falls into:
//     while a clock's line is not certain, nothing certain came of it, or it was
//     lost, what it did is judged later, against its last line that was certain;
//     for five minutes. A change of rate is counted once it holds still.
//  10. A clock is locked from the second cycle in a row in which new estimates
//     agreed with its prediction; in holdover while there are none; lost once
//     its bound exceeds 1 ms, or when most of its pairs find it 1000 ppm off or
//     standing still. Nothing relates a clock that stands still: when most pairs
//     of its peers know nothing of it any more, unlike of others, then it claims
//     nothing, and is lost if that goes on. A lost clock starts anew.
//  11. The same estimates give the same maps, in whatever order nodes report.
//  12. No estimate weighs more than the best one of the typical node: a node
//     writes its deviations itself. With that, what one node says of its pairs
//     costs it at most its own clock, whatever it says.
//
// Nothing is filtered over time: memory belongs to the pairs. A Frame is not
// for several goroutines at once.
type Frame struct {
	opts FrameOptions

	clocks        []frameClock
	byName        map[string]int32
	free          []int32 // places in clocks
	order         []int32 // places by name
	reorder       bool
	nodes         map[string]*frameNode
	sorted        []*frameNode // by name
	resort        bool
	id            uint64
	lastComponent uint32 // of components, so far
	absolute      uint32 // component that has the reference's time
	cycles        uint64
	cycle         cycle
}

// FrameOptions are a frame's settings.
type FrameOptions struct {
	// ID is the identifier of the first frame. It should be another one after
	// every restart.
	ID uint64
	// Allowance is by how much an asymmetry of the paths between two NICs may
	// move the offset of their clocks: half of what the two directions differ by.
	// Nil: 0.
	Allowance func(PairID) time.Duration
	// Reference is the clock that is the frame; empty: the frame is relative.
	Reference string
}

// What the frame remembers, and for how long.
const (
	estimateKept = 5 * time.Second // a node's estimates, after its last report
	clockKept    = 4 * time.Hour   // a clock's counts, after its last estimate: beyond the time until it is lost

	maxNodeEdges = 2 * (MaxReportPairs + MaxReportJoins)
	joinsKept    = 8 // readings of one pair of clocks: their rate is over so many

	// unmeasuredRate is the deviation of a rate that nobody measured yet: an
	// oscillator's, as sold.
	unmeasuredRate = 100e-6
	// roundingVariance, ns^2, of an offset in whole nanoseconds, and a floor that
	// keeps weights finite.
	roundingVariance = 0.25
	minRateVariance  = 1e-24
)

// frameClock is a clock from cycle to cycle.
type frameClock struct {
	name  string
	known bool // line predicts it
	line
	sigma, rateSigma      float64
	solvedSigma           float64 // of the solution, without what lags
	lastMiss              float64 // ns: by how much it was off its prediction
	state                 State
	component             uint32
	steps, drifts         uint32
	peers                 uint32
	allowance             int64
	wasLocked             bool          // it was locked, and not lost since
	missed                bool          // most of its estimates are no more
	agreedCycles          int           // cycles in a row with its prediction
	solvedAt, estimatedAt time.Duration // its line; its last estimate
	measuredAt            time.Duration // its last estimate that was not predicted
	usualRate             float64       // rate, slowly following
	settlingCycles        int           // cycles in which usual follows at once
	certainAnchor         anchor
	uncertainCycles       int // cycles in a row that were not
	offsets, rates        sketch
}

// anchor is the last line of a clock that was certain. A step is what it is off
// that: lines that came between may have been led astray by it.
type anchor struct {
	line
	sigma, rateSigma float64
	component        uint32        // 0: there is none
	solvedAt         time.Duration // its cycle
}

// line takes a clock's times into the frame: t + off + frac + rate (t - ref).
type line struct {
	ref, off int64
	frac     float64 // ns, within half of one after normal
	rate     float64
}

// timeAt is the frame's time, as t plus off plus a fraction.
func (l *line) timeAt(t int64) (whole int64, frac float64) {
	return t + l.off, l.frac + l.rate*float64(t-l.ref)
}

// normalize brings the fraction's whole nanoseconds into off.
func (l *line) normalize() {
	if n := int64(l.frac); n != 0 {
		l.off += n
		l.frac -= float64(n)
	}
}

// moveRef is the same line from another moment.
func (l *line) moveRef(t int64) {
	_, l.frac = l.timeAt(t)
	l.ref = t
	l.normalize()
}

// frameNode holds the latest estimates of a node's edges.
type frameNode struct {
	name  string
	edges []frameEdge
}

// frameEdge is the latest estimate of one pair, or the latest reading of a join.
type frameEdge struct {
	id           PairID // of a join: the clocks, and flow -1
	local, peer  int32  // places in clocks
	reportedAt   time.Duration
	measuredAt   time.Duration // when it was last taken and not predicted
	ref, offset  int64
	rate         float64
	variance     float64 // of offset
	rateVariance float64
	wander       float64 // variance of what either clock may have done unseen
	rateWander   float64
	allowance    int64
	predicted    bool // the last window told nothing
	rejected     bool // left out
	absent       bool // the last report does not have it
	missed       int  // reports in a row without it, when they had most others
	readings     []reading
}

type reading struct{ ref, offset int64 }

// NewFrame makes a frame without clocks.
func NewFrame(opts FrameOptions) *Frame {
	return &Frame{opts: opts, id: opts.ID, byName: map[string]int32{}, nodes: map[string]*frameNode{}}
}

// AddReport keeps what a node reports, until its next report, at the monotonic time
// at which it came.
func (f *Frame) AddReport(r *Report, mono time.Duration) {
	n := f.nodes[r.Node]
	if n == nil {
		n = &frameNode{name: r.Node}
		f.nodes[r.Node] = n
		f.sorted, f.resort = append(f.sorted, n), true
	}
	find := n.edgeFinder()
	for i := range r.Pairs {
		p := &r.Pairs[i]
		if p.Quality == None || p.ID.LocalClock() == p.ID.PeerClock() {
			continue
		}
		e := find(p.ID)
		if e == nil {
			return
		}
		if e.id != p.ID {
			f.startEdge(e, p.ID, p.ID.LocalClock(), p.ID.PeerClock())
		}
		e.reportedAt, e.ref, e.offset, e.rate, e.predicted = mono, p.Ref, p.Offset, p.Rate, p.Quality == Held
		e.absent, e.missed = false, 0
		if !e.predicted || e.measuredAt == 0 {
			e.measuredAt = mono
		}
		e.wander, e.rateWander = p.Wander*p.Wander/2, p.RateWander*p.RateWander/2
		e.variance = p.Sigma*p.Sigma + p.Wander*p.Wander + p.Inherited*p.Inherited + roundingVariance
		e.rateVariance = max(p.RateSigma*p.RateSigma+p.RateWander*p.RateWander, minRateVariance)
	}
	for _, j := range r.Joins {
		id := PairID{Src: j.A, Dst: j.B, Flow: -1}
		e := find(id)
		if e == nil {
			return
		}
		if e.id != id {
			f.startEdge(e, id, j.A, j.B)
		}
		e.reportedAt, e.ref, e.offset = mono, j.Ref, j.Offset
		e.addReading(j)
	}
	n.markMissing(mono)
}

// markMissing finds the pairs of a node that the report of a moment does not have any
// more. If they are few the node itself is well, and misses their far clocks.
func (n *frameNode) markMissing(mono time.Duration) {
	gone := 0
	for i := range n.edges {
		if e := &n.edges[i]; e.id.Flow >= 0 && e.reportedAt != mono {
			gone++
		}
	}
	if gone == 0 {
		return
	}
	for i := range n.edges {
		e := &n.edges[i]
		if e.id.Flow < 0 || e.reportedAt == mono {
			continue
		}
		if e.missed > 0 || !e.absent && 2*gone <= len(n.edges) {
			e.missed++
		}
		e.absent = true
	}
}

func (f *Frame) startEdge(e *frameEdge, id PairID, local, peer string) {
	id.Src, id.Dst = strings.Clone(id.Src), strings.Clone(id.Dst) // a report's strings keep all of it
	*e = frameEdge{id: id, local: f.clockIndex(local), peer: f.clockIndex(peer)}
	if f.opts.Allowance != nil && id.Flow >= 0 {
		e.allowance = int64(f.opts.Allowance(id))
	}
}

// edgeFinder looks up a node's edges; those that come in the order of the last
// report are found at once. Beyond maxNodeEdges there are none.
func (n *frameNode) edgeFinder() func(PairID) *frameEdge {
	next := 0
	var index map[PairID]int
	return func(id PairID) *frameEdge {
		if next >= len(n.edges) || n.edges[next].id != id {
			if index == nil && len(n.edges) > 0 {
				index = make(map[PairID]int, len(n.edges))
				for i := range n.edges {
					index[n.edges[i].id] = i
				}
			}
			i, ok := index[id]
			if !ok {
				if len(n.edges) >= maxNodeEdges {
					return nil
				}
				i = len(n.edges)
				n.edges = append(n.edges, frameEdge{})
				if index != nil {
					index[id] = i
				}
			}
			next = i
		}
		next++
		return &n.edges[next-1]
	}
}

// clockIndex of a clock, a new one if it has none.
func (f *Frame) clockIndex(name string) int32 {
	if i, ok := f.byName[name]; ok {
		return i
	}
	var i int32
	if n := len(f.free); n > 0 {
		i, f.free = f.free[n-1], f.free[:n-1]
	} else {
		i = int32(len(f.clocks))
		f.clocks = append(f.clocks, frameClock{})
	}
	name = strings.Clone(name)
	f.clocks[i] = frameClock{name: name}
	f.byName[name] = i
	f.reorder = true
	return i
}

// addReading takes a reading of a join: its error is evenly spread over the width, and
// its rate is that since the oldest reading. One that the others do not lead to
// begins anew.
func (e *frameEdge) addReading(j Join) {
	const twelfth = 1.0 / 12
	width := float64(j.Width) * float64(j.Width) * twelfth
	e.variance = width + roundingVariance
	if n := len(e.readings); n > 0 {
		last := e.readings[n-1]
		if j.Ref == last.ref {
			return
		}
		seconds := float64(j.Ref-last.ref) * 1e-9
		gone := float64(j.Offset-last.offset) - e.rate*float64(j.Ref-last.ref)
		spare := float64(j.Width) + (3*unmeasuredRate)*1e9*seconds
		if seconds <= 0 || gone > spare || gone < -spare {
			e.readings = e.readings[:0]
		}
	}
	if len(e.readings) == joinsKept {
		e.readings = slices.Delete(e.readings, 0, 1)
	}
	e.readings = append(e.readings, reading{j.Ref, j.Offset})
	e.rate, e.rateVariance = 0, unmeasuredRate*unmeasuredRate
	if first := e.readings[0]; len(e.readings) > 1 {
		dt := float64(j.Ref - first.ref)
		e.rate = float64(j.Offset-first.offset) / dt
		e.rateVariance = 2*e.variance/(dt*dt) + minRateVariance
	}
}

// Outlier is an estimate that was left out.
type Outlier struct {
	A, B  string  // clocks
	ID    PairID  // of a join: the clocks, and flow -1
	Error float64 // ns by which it misses the solution
	Rate  float64 // and its rate
}

// Summary is what a cycle did.
type Summary struct {
	Clocks     [Lost + 1]int // by state
	Components int
	Edges      int       // estimates that counted
	Dropped    int       // estimates that were left out
	Outliers   []Outlier // the worst of them
	Iterations int       // of the solver
}

// mostOutliers are named in a summary.
const mostOutliers = 50

// MapOf is what a clock's times are in the frame. There is none before the clock's
// first estimate, and none long after its last.
func (f *Frame) MapOf(clock string) (Map, bool) {
	i, ok := f.byName[clock]
	if !ok || f.clocks[i].component == 0 {
		return Map{}, false
	}
	return f.clocks[i].asMap(), true
}

func (c *frameClock) asMap() Map {
	l := c.line
	l.normalize()
	if l.frac > 0.5 {
		l.off++
	} else if l.frac < -0.5 {
		l.off--
	}
	return Map{State: c.state, Ref: l.ref, Offset: l.off, Rate: l.rate, Sigma: c.sigma, RateSigma: c.rateSigma, Allowance: c.allowance,
		Component: c.component, Steps: c.steps, Drifts: c.drifts, Peers: c.peers}
}

// SolvedAt is the monotonic time of the cycle that a clock's map is of. Since then
// it is a prediction.
func (f *Frame) SolvedAt(clock string) (mono time.Duration, ok bool) {
	i, ok := f.byName[clock]
	if !ok || f.clocks[i].component == 0 {
		return 0, false
	}
	return f.clocks[i].solvedAt, true
}

// AllMaps are all maps, by name.
func (f *Frame) AllMaps() iter.Seq[ClockMap] {
	return func(yield func(ClockMap) bool) {
		f.sortNames()
		for _, i := range f.order {
			if c := &f.clocks[i]; c.component != 0 && !yield(ClockMap{c.name, c.asMap()}) {
				return
			}
		}
	}
}

// UpdateFor is what is known of the given clocks.
func (f *Frame) UpdateFor(clocks []string) *Update {
	u := &Update{Frame: f.id, Relative: !f.referenceLocked()}
	for _, name := range clocks {
		if m, ok := f.MapOf(name); ok {
			u.Maps = append(u.Maps, ClockMap{name, m})
			u.Relative = u.Relative || m.Component != f.absolute
		}
	}
	return u
}

// referenceLocked reports whether the reference was measured in the last cycle. Without it
// the frame goes on as most of the other clocks predict: what they are steered by
// must not be themselves.
func (f *Frame) referenceLocked() bool {
	i, ok := f.byName[f.opts.Reference]
	return ok && f.absolute != 0 && f.clocks[i].component == f.absolute && f.clocks[i].state == Locked
}

// ID is the identifier of the frame. It changes when a component gets a time
// that none of its clocks had been told before.
func (f *Frame) ID() uint64 { return f.id }

// sortNames brings clocks and nodes into the order of their names.
func (f *Frame) sortNames() {
	if f.reorder {
		f.order = f.order[:0]
		for _, i := range f.byName {
			f.order = append(f.order, i)
		}
		slices.SortFunc(f.order, func(a, b int32) int { return cmp.Compare(f.clocks[a].name, f.clocks[b].name) })
		f.reorder = false
	}
	if f.resort {
		slices.SortFunc(f.sorted, func(a, b *frameNode) int { return cmp.Compare(a.name, b.name) })
		f.resort = false
	}
}

// forgetEdges lets go of estimates that no report has confirmed.
func (f *Frame) forgetEdges(mono time.Duration) {
	kept := f.sorted[:0]
	for _, n := range f.sorted {
		old := 0
		for i := range n.edges {
			if mono-n.edges[i].reportedAt > estimateKept {
				old++
			} else if old > 0 {
				n.edges[i-old] = n.edges[i]
			}
		}
		clear(n.edges[len(n.edges)-old:])
		n.edges = n.edges[:len(n.edges)-old]
		if len(n.edges) == 0 {
			delete(f.nodes, n.name)
			continue
		}
		kept = append(kept, n)
	}
	clear(f.sorted[len(kept):])
	f.sorted = kept
}

// forgetClocks lets go of clocks that nobody has told of for long.
func (f *Frame) forgetClocks(mono time.Duration) {
	for _, i := range f.order {
		if c := &f.clocks[i]; !c.known && mono-c.estimatedAt > clockKept {
			delete(f.byName, c.name)
			*c = frameClock{}
			f.free = append(f.free, i)
			f.reorder = true
		}
	}
}
