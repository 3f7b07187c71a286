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
//  17. A window ends so long ago that nine of ten nodes have a newer sample in the store, however long ago samples last
//     came. The longest such waits of the last minute do not count: one of ten, and two at least.
//     The lag is Settings.Lag and whole scrape intervals besides, so that two analyzers evaluate the same moments, and
//     at most the bound.
//  18. A wait for samples that is longer than the bound is an outage, and not counted. The lag does not change before
//     samples come again.
//  19. No moment is evaluated twice. When the lag becomes longer, cycles have no evidence until the window moves on.

// Numbers of the rules.
const (
	lagCycles    = 60  // for which waits are remembered
	lagLongest   = 2   // waits that do not count
	lagPart      = 0.9 // of the nodes
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
	waits   []sampleWait  // of the last lagCycles
	current sampleWait    // since the newest sample came
	newest  time.Time     // the time of the newest sample
	lastEnd time.Time     // of a window
	last    time.Duration // the age of the last cycle; negative if it is unknown
}

// sampleWait represents the cycles from one in which newer samples had come to the next such one.
type sampleWait struct {
	began, ended time.Time
	age          float64 // of the samples of nine of ten nodes in the cycle in which they were oldest, in seconds
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
	more, waits, current, newest, lastEnd, last := old.more, slices.Clone(old.waits), old.current, old.newest, old.lastEnd, old.last
	old.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.more, m.waits, m.current, m.newest, m.lastEnd, m.last = min(more, m.mostMore()), waits, current, newest, lastEnd, last
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
	age := ages[int(lagPart*float64(len(ages)-1))]
	m.last = time.Duration(age * float64(time.Second))
	if m.current.began.IsZero() {
		m.current.began = now
	}
	m.current.age, m.current.ended = max(m.current.age, age), now
	newest := now.Add(-time.Duration(ages[0] * float64(time.Second)))
	if !newest.After(m.newest.Add(time.Millisecond)) {
		return
	}
	m.newest = newest
	if now.Sub(m.current.began) <= m.bound {
		m.waits = append(m.waits, m.current)
	}
	m.current = sampleWait{began: now}
	m.waits = slices.DeleteFunc(m.waits, func(w sampleWait) bool { return now.Sub(w.ended) > lagCycles*m.scrape })
	m.follow()
}

// follow sets the lag from the waits.
func (m *LagMeter) follow() {
	ages := make([]float64, len(m.waits))
	for i, w := range m.waits {
		ages[i] = w.age
	}
	slices.Sort(ages)
	counted := len(ages) - max(lagLongest, len(ages)/10)
	if counted < 1 {
		return
	}
	need := ages[counted-1] + lagReserve*m.scrape.Seconds()
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

// CurrentLag returns how far in the past a window ends now.
func (s *Settings) CurrentLag() time.Duration {
	if s.Arrival != nil {
		return s.Arrival.Lag()
	}
	return s.Lag
}
