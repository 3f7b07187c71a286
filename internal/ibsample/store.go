package ibsample

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// Count is a counter of a port.
type Count struct {
	ID  ID
	Raw uint64
	At  int64 // Unix nanoseconds
	// Since is when it was first read, or was first read lower than before.
	Since int64
	// Rate is per second, scaled; valid when Rated.
	Rate  float64
	Rated bool
}

// PortState is what a port's last reading tells.
type PortState struct {
	Target  Target
	At      int64 // of the last reading that held something, Unix nanoseconds
	Suspect bool
	Counts  []Count           // by ID
	Errors  map[string]uint64 // by kind, ever
	Resets  uint64            // readings that found a counter reset, ever

	tick     int64 // of the last reading
	answered bool  // it held something
}

// Store keeps the last reading of every port (rules 9 to 13).
type Store struct {
	interval time.Duration

	mu         sync.RWMutex
	ports      map[Key]*PortState
	duplicates uint64
	late       uint64
	accepted   uint64
	skews      [recentSkews]time.Duration
	starts     uint64
}

func newStore(interval time.Duration) *Store {
	return &Store{interval: interval, ports: map[Key]*PortState{}}
}

// retainTargets forgets the ports that are no targets.
func (s *Store) retainTargets(targets map[Key]Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.ports {
		if _, ok := targets[k]; !ok {
			delete(s.ports, k)
		}
	}
	for k, t := range targets {
		p := s.ports[k]
		if p == nil {
			p = &PortState{tick: math.MinInt64, Errors: map[string]uint64{}}
			s.ports[k] = p
		}
		p.Target = t
	}
}

// addReport takes a sweep's readings.
func (s *Store) addReport(r *Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range r.Readings {
		reading := &r.Readings[i]
		p := s.ports[reading.Key]
		switch {
		case p == nil: // no target any more
		case r.Tick == p.tick && p.answered:
			s.duplicates++
		case r.Tick < p.tick:
			s.late++
		default:
			s.accepted++
			p.applyReading(r.Tick, reading)
		}
	}
}

func (p *PortState) applyReading(tick int64, r *Reading) {
	p.tick, p.answered = tick, len(r.Answers) > 0
	for _, e := range r.Errors {
		p.Errors[e.Kind]++
	}
	if !p.answered {
		return // the counters grow old, and go (rule 13)
	}
	reset := false
	p.Suspect = false
	for _, answer := range r.Answers {
		p.At = max(p.At, answer.At)
		for i, id := range answer.IDs {
			if int(id) >= len(Counters) || i >= len(answer.Raws) || answer.Raws[i] > Counters[id].MaxValue() {
				continue
			}
			c := Count{ID: id, Raw: answer.Raws[i], At: answer.At, Since: answer.At}
			at, there := slices.BinarySearchFunc(p.Counts, id, func(c Count, id ID) int { return int(c.ID) - int(id) })
			if !there {
				p.Counts = slices.Insert(p.Counts, at, c)
				continue
			}
			before := p.Counts[at]
			reset = reset || c.Raw < before.Raw
			p.Suspect = p.Suspect || c.Raw > before.Raw && Counters[id].Field == "VL15Dropped"
			c.completeFrom(before)
			p.Counts[at] = c
		}
	}
	if reset {
		p.Resets++
	}
}

// completeFrom completes a count by the one before: rules 10 and 11.
func (c *Count) completeFrom(before Count) {
	if c.Raw < before.Raw {
		return // Since is now: it was reset, when is not known
	}
	c.Since = before.Since
	if c.IsSaturated() || c.At <= before.At {
		return
	}
	c.Rate = float64(c.Raw-before.Raw) * float64(Counters[c.ID].UnitScale()) / (float64(c.At-before.At) / float64(time.Second))
	c.Rated = true
}

// IsSaturated reports whether the counter stands at its limit (rule 11).
func (c *Count) IsSaturated() bool { return c.Raw == Counters[c.ID].MaxValue() }

// ScaledValue is the counter in its series' unit. Above 2^53 a float rounds.
func (c *Count) ScaledValue() float64 { return float64(c.Raw) * float64(Counters[c.ID].UnitScale()) }

// recentSkews is over how many starts of sweeps quantiles are.
const recentSkews = 4096

func (s *Store) recordSkew(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skews[s.starts%recentSkews] = d.Abs()
	s.starts++
}

// Snapshot is everything there is to publish.
type Snapshot struct {
	Ports      []PortState // in order of their keys; counts are absent where they are too old
	Accepted   uint64      // readings kept, ever
	Duplicates uint64      // readings of a port and tick that were there already
	Late       uint64      // readings of a tick before the last
	Starts     uint64      // sweeps begun, ever
	// SkewP99 and SkewMax are of the last recentSkews starts: how far from the tick.
	SkewP99, SkewMax time.Duration
}

// Snapshot tells what is known now.
func (s *Store) Snapshot(now time.Time) Snapshot {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := Snapshot{Accepted: s.accepted, Duplicates: s.duplicates, Late: s.late, Starts: s.starts, Ports: make([]PortState, 0, len(s.ports))}
	for _, p := range s.ports {
		c := *p
		old := func(n Count) bool { return now.UnixNano()-n.At > int64(staleAfter*s.interval) }
		c.Counts, c.Errors = slices.DeleteFunc(slices.Clone(p.Counts), old), maps.Clone(p.Errors)
		out.Ports = append(out.Ports, c)
	}
	slices.SortFunc(out.Ports, func(a, b PortState) int { return a.Target.compareKey(b.Target.Key) })
	if n := min(s.starts, recentSkews); n > 0 {
		sorted := slices.Sorted(slices.Values(s.skews[:n]))
		out.SkewP99, out.SkewMax = sorted[(n*99+99)/100-1], sorted[n-1]
	}
	return out
}

// staleAfter is rule 13: two intervals, and one in which the sweep ends.
const staleAfter = 3
