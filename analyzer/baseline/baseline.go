// Package baseline remembers flows over windows: what is normal for a flow, and which conditions
// several windows confirm.
//
// A baseline is what is normal for a flow: the median and the spread of its delay while nothing
// is suspected.
//
// Rules:
//
//  1. A flow is degraded when it was in 3 of the last 4 windows, or with hard loss over two
//     consecutive windows. A condition that has just begun or ended is undecided. Two of the last 4 are enough on a path that was
//     chosen, which no routing changes, if the last one alone shows that the condition lasts (judge.Finding.Lasting).
//  2. Routing may avoid a hard failure before every flow has evidence of it, so a confirmed hard
//     loss is remembered for some cycles, with the path that it was measured on.
//  3. Windows confirm each other if every cycle in between queried the flow and there was no gap
//     in the evidence.
//  4. Nothing is learnt from the first windows of a flow, from windows that are not healthy, from
//     delays of inexact clocks, or while an incident is open, so that a fault does not become
//     normal.
//  5. Baselines are kept for flows that are not seen, for some hours.
//  6. A baseline belongs to a path. When a flow takes another one, it gets the baseline that it had
//     there. Otherwise its own is moved by what the two paths usually differ, by the baselines of all
//     flows. On a path of a length that no flow takes it learns anew.
//  7. Temporary flows are not expected, and learn nothing. What is usual on their path is their baseline. They are undecided
//     until enough windows could confirm a fault, since those that are healthy would count before those that are not,
//     and while their path is unknown.
//  8. Flows that are slower at an hour of the day (UTC) than their baseline, on most of the last seven days on which the
//     hour was seen, are usually so at that hour: what lies between the baseline and the median of these days is no
//     shift. The seven days must be of the last fourteen, and the flow on the path on which it was slow then. Five
//     minutes before and after the hour count as well. Such hours are learnt from windows that are not healthy, and
//     while an incident is open, since a slow hour is an incident until it is usual. Three things keep faults
//     from becoming usual. A flow that is slow for more than nine hours in a row teaches no hour at all. A fault on up to
//     three of the seven days leaves their median as it is. A flow that was slow already before the hour gets no other
//     baseline in it. The baselines themselves learn only what is usual without the hour, so that the
//     sensitivity at other hours stays as it is.
package baseline

import (
	"iter"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

const (
	// ConfirmWindows is the number of windows of which ConfirmedBy must be degraded (rule 1).
	ConfirmWindows, ConfirmedBy = 4, 3
	// hardMemory is the number of cycles for which a hard loss is remembered (rule 2).
	hardMemory = 5
	// LearnWindows is the number of windows that a baseline needs, keepWindows the number that it keeps.
	LearnWindows, keepWindows = 8, 120
	// WarmUp is the number of windows of a flow from which nothing is learnt (rule 4).
	WarmUp = 2
	// maxLearnBound is the bound of the two clocks of a flow, in nanoseconds, from which a known
	// baseline learns nothing. Clocks begin with less: clocksync.LockBound each.
	maxLearnBound = 2e6
	// recomputeEvery is the number of cycles between two computations of a known baseline, if
	// every cycle queries every flow.
	recomputeEvery = 10
)

// Lifetimes of flows in cycles. A flow seen in the last ExpectedCycles is expected. Baselines are kept for
// forgetAfter cycles (rule 5).
const (
	ExpectedCycles = 600
	forgetAfter    = 6 * 3600
)

// Book holds the records of all flows. Its methods must not be called concurrently. Cycles count from 1.
type Book struct {
	records map[fabric.Flow]*record
	ports   portNumbers
	cycle   int                  // the latest that learnt
	learnt  int                  // records with a baseline
	hard    map[fabric.Flow]bool // flows that may have a remembered hard loss
	usual   *usualDelays         // nil until a cycle needs it
	hourly  *usualDelays         // the same with the hour of the day
}

// NewBook returns a Book without flows.
func NewBook() *Book {
	return &Book{records: map[fabric.Flow]*record{}, ports: portNumbers{}, hard: map[fabric.Flow]bool{}}
}

// record represents what is remembered of one flow.
type record struct {
	p50, p99    []int64
	baseline    *fabric.Quantiles
	baselineMAD int64
	windowCount int
	lastCycle   int             // the latest cycle with an observation
	route       fabric.Path     // of the last window with a known path
	routeKey    uint64          // 0 while there is none
	ports       []int32         // of route, but for the port to the receiver
	estimated   bool            // the baseline was not learnt on this route
	earlier     []routeBaseline // the latest last
	hours       flowHours
	confirmation
}

// DegradedWindows returns how many of the last windows of a flow were degraded.
func (b *Book) DegradedWindows(f fabric.Flow) (n int) {
	if r := b.records[f]; r != nil {
		for _, c := range r.recentConditions {
			if c == judge.Degraded {
				n++
			}
		}
	}
	return n
}

// BaselineOf returns the baseline of a flow, and the median absolute deviation of its medians in nanoseconds. It
// returns nil if the flow has no baseline.
func (b *Book) BaselineOf(f fabric.Flow) (base *fabric.Quantiles, madNS int64) {
	if r := b.records[f]; r != nil {
		return r.baseline, r.baselineMAD
	}
	return nil, 0
}

// HasBaseline reports whether a flow has a baseline.
func (b *Book) HasBaseline(f fabric.Flow) bool {
	r := b.records[f]
	return r != nil && r.baseline != nil
}

// CountBaselines returns the number of flows with a baseline, among those for which counts returns true. Nil means all.
func (b *Book) CountBaselines(counts func(fabric.Flow) bool) (n int) {
	if counts == nil {
		return b.learnt
	}
	for f, r := range b.records {
		if r.baseline != nil && counts(f) {
			n++
		}
	}
	return n
}

// countChange counts a record that had a baseline or had none, and may have changed.
func (b *Book) countChange(had bool, r *record) {
	switch has := r.baseline != nil; {
	case has && !had:
		b.learnt++
	case had && !has:
		b.learnt--
	}
}

// IsEmpty reports whether no flow is remembered.
func (b *Book) IsEmpty() bool { return len(b.records) == 0 }

// IsExpected reports whether a flow was seen in the ExpectedCycles before a cycle.
func (b *Book) IsExpected(f fabric.Flow, cycle int) bool {
	r := b.records[f]
	return r != nil && !f.IsTemporary() && cycle-r.lastCycle <= ExpectedCycles
}

// ExpectedFlows yields the flows that are expected in a cycle, and whether they have a baseline.
func (b *Book) ExpectedFlows(cycle int) iter.Seq2[fabric.Flow, bool] {
	return func(yield func(fabric.Flow, bool) bool) {
		for f, r := range b.records {
			if !f.IsTemporary() && cycle-r.lastCycle <= ExpectedCycles && !yield(f, r.baseline != nil) {
				return
			}
		}
	}
}

func (b *Book) recordFor(f fabric.Flow) *record {
	r := b.records[f]
	if r == nil {
		r = &record{}
		b.records[f] = r
	}
	return r
}

// Learning describes the conditions under which a cycle learns.
type Learning struct {
	Cycle int
	// At is the moment of the windows. Without it no hours are learnt.
	At time.Time
	// Frozen means that an incident is open, so that known baselines stay as they are.
	Frozen bool
	// Seldom means that a cycle does not query every flow, so that each window counts at once.
	Seldom bool
	// Excluded reports whether nothing is learnt from a flow. It may be nil.
	Excluded func(fabric.Flow) bool
}

// LearnWindows adds the healthy windows among findings to the baselines (rule 4).
func (b *Book) LearnWindows(findings []judge.Finding, how Learning) {
	b.cycle = how.Cycle
	p := judge.DefaultParameters()
	for i := range findings {
		f := &findings[i]
		if f.Flow.IsTemporary() {
			continue
		}
		r := b.recordFor(f.Flow)
		r.windowCount++
		if how.Excluded != nil && how.Excluded(f.Flow) || r.windowCount <= WarmUp || f.Obs.OWD == nil || f.Obs.OWD.P50 == nil || f.HostSuspect || f.ClockSuspect {
			continue
		}
		slow := r.learnHour(f, how.At, &p)
		if r.baseline != nil && (how.Frozen || f.Condition != judge.Healthy || slow || judge.ClockBound(f.Obs) > maxLearnBound) {
			continue
		}
		r.p50 = appendBounded(r.p50, *f.Obs.OWD.P50)
		if f.Obs.OWD.P99 != nil {
			r.p99 = appendBounded(r.p99, *f.Obs.OWD.P99)
		}
		if len(r.p50) < LearnWindows || r.baseline != nil && how.Cycle%recomputeEvery != 0 && !how.Seldom {
			continue
		}
		had := r.baseline != nil
		r.recomputeBaseline()
		b.countChange(had, r)
	}
}

// SeedFlow sets the windows of a flow from history, the oldest first. A flow with too few windows for a baseline keeps
// them as the first windows of one.
func (b *Book) SeedFlow(f fabric.Flow, p50, p99 []int64) {
	r := b.recordFor(f)
	r.p50, r.p99, r.windowCount = p50, p99, WarmUp
	if len(r.p50) >= LearnWindows {
		had := r.baseline != nil
		r.recomputeBaseline()
		b.countChange(had, r)
	}
}

// AdoptBaseline sets what a node has as normal for a flow, if the flow has no baseline. Windows that the flow learns from
// replace it.
func (b *Book) AdoptBaseline(f fabric.Flow, base *fabric.Quantiles, madNS int64) {
	if r := b.recordFor(f); r.baseline == nil {
		r.baseline, r.baselineMAD, r.windowCount = base, madNS, max(r.windowCount, WarmUp)
		b.countChange(false, r)
	}
}

// ForgetFlow drops all that is remembered of a flow.
func (b *Book) ForgetFlow(f fabric.Flow) {
	if b.HasBaseline(f) {
		b.learnt--
	}
	delete(b.records, f)
}

// ForgetUnseen drops the flows that were not seen for some hours, and returns them.
func (b *Book) ForgetUnseen(cycle int) (forgotten []fabric.Flow) {
	for f, r := range b.records {
		if cycle-r.lastCycle > forgetAfter {
			b.ForgetFlow(f)
			forgotten = append(forgotten, f)
		}
	}
	return forgotten
}

// recomputeBaseline computes the baseline from the remembered windows.
func (r *record) recomputeBaseline() {
	p50, mad := judge.MedianMAD(slices.Clone(r.p50))
	r.estimated = false
	r.baseline, r.baselineMAD = &fabric.Quantiles{P50: &p50}, mad
	if len(r.p99) > 0 {
		p99, _ := judge.MedianMAD(slices.Clone(r.p99))
		r.baseline.P99 = &p99
	}
}

func appendBounded(ring []int64, v int64) []int64 {
	ring = append(ring, v)
	if len(ring) > keepWindows {
		ring = ring[1:]
	}
	return ring
}
