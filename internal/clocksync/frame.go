package clocksync

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strings"
	"time"
)

// A Frame relates all clocks of a fleet to a common time. Its rules:
//
//  1. Offsets and rates minimise the squares of the residuals of the pairs' estimates, each weighted
//     by its own variance. Several estimates of the same two clocks are one of their joint weight.
//  2. Estimates are of different moments. Rates are solved first, and with them each estimate is
//     compared at its own moment: no common instant is needed.
//  3. Sigma is from the covariance of that solution, relative to the weighted mean of the component or
//     to the reference. It is exact for up to some hundred clocks. Beyond that it is computed from
//     random samples, and is about a twentieth too large. Estimates that contradict each other more
//     than their sigmas allow widen all sigmas. Unobserved changes of a clock are common to its
//     estimates and are added as a whole, and so is the lag of estimates that keep changing in one
//     direction.
//  4. An estimate that stands out is left out, the worst first, if enough other estimates check it. It
//     may return when it fits again. One that no others check stays, and widens the sigma of its two
//     clocks. A clock most of whose estimates contradict each other is moving. They get the variance
//     that they show, so that no other clock is moved by them.
//  5. Leaving out estimates never disconnects clocks.
//  6. The frame continues as most of its clocks predict: the mean correction of those that were
//     predicted and did not jump is zero, in time and in rate. One clock that steps does not move it.
//     A new frame shows the time of its median clock and runs at the mean rate.
//  7. With a reference the frame of its component is that clock. While the reference is not locked,
//     the frame is marked relative, independent of what led it before.
//  8. When components join, the one with more clocks keeps its frame. When a component splits, the
//     larger part keeps its number.
//  9. A clock has stepped if it is off its prediction by more than both sigmas, its change of rate and
//     a step of temperature explain, and if more than half of the others have not: of two clocks alone
//     it is unknown which one stepped. Its map follows at once, and it is converging again. Further
//     changes before it is locked count as the same step. A step spoils the windows it falls into:
//     while a clock's line is uncertain, or it was lost, its changes are judged later, against its
//     last certain line, for up to five minutes. A change of rate is counted once the rate holds
//     still.
//  10. A clock is locked from the second consecutive cycle in which new estimates agreed with its
//     prediction. It is in holdover while there are none. It is lost once its bound exceeds LostBound, or
//     when most of its pairs find it 1000 ppm off or standing still. No estimate relates a clock that
//     stands still: when most pairs of its peers no longer have an estimate of it, unlike of others,
//     it claims nothing, and it is lost if that continues. A lost clock starts anew.
//  11. The same estimates give the same maps, independent of the order in which nodes report.
//  12. No estimate weighs more than the best one of the typical node, since a node reports its own
//     deviations. Therefore a node's reports on its pairs can spoil at most its own clock.
//  13. What a path takes longer than those of the same tier may be in one direction. Of a pair that
//     began on such a path, half of that may be an offset: where it is much, or where the
//     estimates of a clock contradict each other, it counts as uncertain.
//
// Nothing is filtered over time: the pairs have the memory. A Frame must not be used by several
// goroutines at once.
type Frame struct {
	opts FrameOptions

	clocks        []frameClock
	byName        map[string]int32
	free          []int32 // free indexes in clocks
	order         []int32 // indexes in clocks, sorted by name
	reorder       bool
	nodes         map[string]*frameNode
	sorted        []*frameNode // sorted by name
	resort        bool
	id            uint64
	lastComponent uint32 // the last number of a component
	absolute      uint32 // the component that has the reference's time
	cycles        uint64
	cycle         cycle
}

// FrameOptions are the settings of a frame.
type FrameOptions struct {
	// ID is the identifier of the first frame. It should differ after every restart.
	ID uint64
	// Allowance returns how far an asymmetry of the paths between two NICs may move the offset of their
	// clocks: half of the difference of the two directions. Nil means 0.
	Allowance func(PairID) time.Duration
	// Reference is the name of the clock that defines the frame. If it is empty, the frame is relative.
	Reference string
}

// Times for which the frame remembers estimates and clocks.
const (
	estimateKept = 5 * time.Second // time for which a node's estimates stay after its last report
	clockKept    = 4 * time.Hour   // time for which a clock's counts stay after its last estimate: beyond the time until it is lost

	maxNodeEdges = 2 * (MaxReportPairs + MaxReportJoins)
	joinsKept    = 8 // readings of one pair of clocks that their rate is computed over

	// unmeasuredRate is the deviation of a rate that was never measured: that of oscillators as sold.
	unmeasuredRate = 100e-6
	// roundingVariance, ns^2, is that of an offset in whole nanoseconds. It is also a floor that keeps
	// weights finite.
	roundingVariance = 0.25
	minRateVariance  = 1e-24
)

// frameClock is the state of a clock between cycles.
type frameClock struct {
	name        string
	known       bool // the solution predicts the clock
	solvedLine       // the last solution
	state       State
	peers       uint32
	allowance   int64
	missed      bool          // most of its estimates have disappeared
	estimatedAt time.Duration // time of its last estimate
	measuredAt  time.Duration // time of its last estimate that was not predicted
	agreement   predictionAgreement
	steps       stepDetector
	drifts      driftDetector
	sketches    clockSketches
}

// solvedLine is the line of a clock in a cycle's solution.
type solvedLine struct {
	line
	sigma, rateSigma float64
	component        uint32        // 0 if there is none
	solvedAt         time.Duration // time of its cycle
}

// predictionAgreement is what is known of the agreement of a clock with its predictions.
type predictionAgreement struct {
	cycles      int     // consecutive cycles that agreed with the prediction
	wasLocked   bool    // it was locked, and has not been lost since
	lastMiss    float64 // ns: difference from the prediction
	solvedSigma float64 // sigma of the solution, without the part for lag
}

// stepDetector counts the steps of a clock. A step is the difference from the last certain line, the
// anchor, since the step may have distorted the lines in between.
type stepDetector struct {
	anchor          solvedLine
	uncertainCycles int // consecutive cycles in which the line was uncertain
	count           uint32
}

// driftDetector counts the changes of a clock's rate.
type driftDetector struct {
	usualRate      float64 // slow average of the rate
	settlingCycles int     // cycles in which usualRate follows at once
	count          uint32
}

// clockSketches estimate the variances of a clock.
type clockSketches struct{ offsets, rates sketch }

// line converts a clock's times into the frame: t + off + frac + rate (t - ref).
type line struct {
	ref, off int64
	frac     float64 // ns, within half of one after normalize
	rate     float64
}

// timeAt returns the frame's time at t, in whole nanoseconds and a fraction.
func (l *line) timeAt(t int64) (whole int64, frac float64) {
	return t + l.off, l.frac + l.rate*float64(t-l.ref)
}

// normalize moves the whole nanoseconds of the fraction into off.
func (l *line) normalize() {
	if n := int64(l.frac); n != 0 {
		l.off += n
		l.frac -= float64(n)
	}
}

// moveRef changes the reference time of the line without changing the line.
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
	clockDifference
	id          PairID // for a join: the clocks, and flow -1
	local, peer int32  // indexes in clocks
	reportedAt  time.Duration
	measuredAt  time.Duration // time when it was last measured and not predicted
	wander      float64       // variance of unobserved changes of either clock
	rateWander  float64
	allowance   int64
	firstDelay  int32 // ns: delay of the path on which the pair began
	predicted   bool  // the last window had no measurement
	rejected    bool  // it is left out
	absent      bool  // the last report does not have it
	missed      int   // consecutive reports without it that had most others
	readings    []reading
}

// clockDifference is an estimated difference of two clocks: the far one against the local one.
type clockDifference struct {
	ref, offset  int64
	rate         float64
	variance     float64 // variance of the offset
	rateVariance float64
}

type reading struct{ ref, offset int64 }

// NewFrame returns a frame without clocks.
func NewFrame(opts FrameOptions) *Frame {
	return &Frame{opts: opts, id: opts.ID, byName: map[string]int32{}, nodes: map[string]*frameNode{}}
}

// AddReport stores the estimates of a node's report, which arrived at a monotonic time. The next report
// replaces them.
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
		e.firstDelay = int32(min(max(p.FirstDelay, 0), math.MaxInt32))
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

// markMissing marks the pairs of a node that the report of a moment no longer has. If they are few, the
// node itself works and has lost their far clocks.
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
	id.Src, id.Dst = strings.Clone(id.Src), strings.Clone(id.Dst) // a report's strings keep all of it in memory
	*e = frameEdge{id: id, local: f.clockIndex(local), peer: f.clockIndex(peer)}
	if f.opts.Allowance != nil && id.Flow >= 0 {
		e.allowance = int64(f.opts.Allowance(id))
	}
}

// edgeFinder returns a function that looks up a node's edges. Edges in the order of the last report are
// found at once. The function returns nil for new edges beyond maxNodeEdges.
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

// clockIndex returns the index of a clock. It adds a clock that is new.
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

// addReading adds a reading of a join. Its error is evenly distributed over the width, and its rate is
// that since the oldest reading. A reading that does not fit the earlier ones starts anew.
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
	ID    PairID  // for a join: the clocks, and flow -1
	Error float64 // residual, ns
	Rate  float64 // residual of the rate
}

// Summary has the results of a cycle.
type Summary struct {
	Clocks     [Lost + 1]int // number by state
	Components int
	Edges      int       // estimates that were used
	Dropped    int       // estimates that were left out
	Outliers   []Outlier // the worst of the dropped ones
	Iterations int       // iterations of the solver
}

// mostOutliers is the maximum number of outliers in a summary.
const mostOutliers = 50

// MapOf returns the map of a clock into the frame. It returns false before the clock's first estimate,
// and long after its last.
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
		Component: c.component, Steps: c.steps.count, Drifts: c.drifts.count, Peers: c.peers}
}

// SolvedAt returns the monotonic time of the cycle that a clock's map is from. After that time the map
// is a prediction. It returns false if there is no such clock.
func (f *Frame) SolvedAt(clock string) (mono time.Duration, ok bool) {
	i, ok := f.byName[clock]
	if !ok || f.clocks[i].component == 0 {
		return 0, false
	}
	return f.clocks[i].solvedAt, true
}

// AllMaps returns all maps, sorted by name.
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

// UpdateFor returns an update with the maps of the given clocks.
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

// referenceLocked reports whether the reference was measured in the last cycle. Otherwise the frame
// continues as most of the other clocks predict: a clock must not be steered by itself.
func (f *Frame) referenceLocked() bool {
	i, ok := f.byName[f.opts.Reference]
	return ok && f.absolute != 0 && f.clocks[i].component == f.absolute && f.clocks[i].state == Locked
}

// ID returns the identifier of the frame. It changes when a component gets a time that none of its
// clocks had before.
func (f *Frame) ID() uint64 { return f.id }

// sortNames sorts clocks and nodes by their names.
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

// forgetEdges removes estimates that no report has confirmed.
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

// forgetClocks removes clocks without estimates for a long time.
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
