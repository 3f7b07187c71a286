package evidence

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Rules of the lag, which is measured unless it is configured:
//
//  17. A window ends so long ago that nine of ten nodes have a newer sample in the store, in nine of ten of the last cycles.
//     The lag is Settings.Lag and whole scrape intervals besides, so that two analyzers evaluate the same moments, and
//     at most the bound.
//  18. A cycle in which no node has a newer sample than in the cycle before is not counted. Samples that do not arrive at all
//     are an outage, and no lag.
//  19. No moment is evaluated twice. When the lag becomes longer, cycles have no evidence until the window moves on.

// Numbers of the rules.
const (
	lagCycles    = 30  // that are remembered
	lagFewest    = 3   // after which the lag may become longer
	lagPart      = 0.9 // of the nodes, and of the cycles
	lagReserve   = 0.1 // by which the lag exceeds the age of samples, of a scrape interval
	lagShortenBy = 0.2 // by which a shorter lag has to suffice besides, of a scrape interval
)

// ErrSameWindow means that the window of a cycle ends no later than that of an earlier cycle (rule 19).
var ErrSameWindow = errors.New("the window ends no later than that of an earlier cycle, since the lag has become longer")

// LagMeter measures how late samples arrive in the store. Its methods may be called concurrently.
type LagMeter struct {
	base, bound, scrape time.Duration

	mu      sync.Mutex
	more    int           // scrape intervals by which the lag exceeds base
	ages    []float64     // in seconds, of the last cycles
	newest  time.Time     // the time of the newest sample
	lastEnd time.Time     // of a window
	last    time.Duration // the age of the last cycle; negative if it is unknown
}

// NewLagMeter returns a LagMeter for settings whose lag is the least one. It is never longer than the bound.
func NewLagMeter(s *Settings, bound time.Duration) *LagMeter {
	return &LagMeter{base: s.Lag, bound: bound, scrape: s.CycleInterval(), last: -1}
}

// InheritFrom takes over what another LagMeter has measured. Both may be nil.
func (m *LagMeter) InheritFrom(old *LagMeter) {
	if m == nil || old == nil || m.scrape != old.scrape || m.base != old.base {
		return
	}
	old.mu.Lock()
	more, ages, newest, lastEnd, last := old.more, slices.Clone(old.ages), old.newest, old.lastEnd, old.last
	old.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.more, m.ages, m.newest, m.lastEnd, m.last = min(more, m.mostMore()), ages, newest, lastEnd, last
}

// mostMore returns the number of scrape intervals by which the lag may exceed the least one.
func (m *LagMeter) mostMore() int { return int(max(0, m.bound-m.base) / m.scrape) }

// Lag returns how far in the past a window ends now.
func (m *LagMeter) Lag() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.base + time.Duration(m.more)*m.scrape
}

// SampleAge returns how old the samples of nine of ten nodes were at most in the last cycle, and whether that is known.
func (m *LagMeter) SampleAge() (age time.Duration, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, m.last >= 0
}

// beginWindow records the end of the window of a cycle. It fails with ErrSameWindow if an earlier window ended then or
// later.
func (m *LagMeter) beginWindow(end time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A clock that was set back by more than the bound is no reason to wait for it.
	if !end.After(m.lastEnd) && m.lastEnd.Sub(end) <= m.bound {
		return fmt.Errorf("%w to %s", ErrSameWindow, m.base+time.Duration(m.more)*m.scrape)
	}
	m.lastEnd = end
	return nil
}

// addAges adds how old the newest sample of each node is at a moment, in seconds.
func (m *LagMeter) addAges(now time.Time, ages []float64) {
	if m == nil || len(ages) == 0 {
		return
	}
	slices.Sort(ages)
	m.mu.Lock()
	defer m.mu.Unlock()
	age := mostOf(ages)
	m.last = time.Duration(age * float64(time.Second))
	newest := now.Add(-time.Duration(ages[0] * float64(time.Second)))
	if !newest.After(m.newest.Add(time.Millisecond)) { // rule 18
		return
	}
	m.newest = newest
	if m.ages = append(m.ages, age); len(m.ages) > lagCycles {
		m.ages = m.ages[1:]
	}
	if len(m.ages) < lagFewest {
		return
	}
	sorted := slices.Sorted(slices.Values(m.ages))
	need := mostOf(sorted) + lagReserve*m.scrape.Seconds()
	if longer := m.intervalsFor(need); longer > m.more {
		m.more = longer
	} else if shorter := m.intervalsFor(need + lagShortenBy*m.scrape.Seconds()); shorter < m.more {
		m.more = shorter
	}
}

// intervalsFor returns by how many scrape intervals the lag has to exceed the least one to be as long as a number of seconds,
// within the bound.
func (m *LagMeter) intervalsFor(seconds float64) int {
	n := math.Ceil((seconds - m.base.Seconds()) / m.scrape.Seconds())
	return int(min(max(n, 0), float64(m.mostMore())))
}

// mostOf returns the value that nine of ten sorted values do not exceed.
func mostOf(sorted []float64) float64 { return sorted[int(lagPart*float64(len(sorted)-1))] }

// CurrentLag returns how far in the past a window ends now.
func (s *Settings) CurrentLag() time.Duration {
	if s.Arrival != nil {
		return s.Arrival.Lag()
	}
	return s.Lag
}
