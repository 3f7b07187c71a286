package ibsample

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// Count is the value of a counter of a port.
type Count struct {
	ID  ID
	Raw uint64
	At  int64 // Unix nanoseconds
	// Since is when it was first read, or was first found lower than before.
	Since int64
	// Rate is per second, in the series' unit; it is valid if Rated is set.
	Rate  float64
	Rated bool
}

// PortState holds a port's last reading.
type PortState struct {
	Target  Target
	At      int64 // of the last reading with an answer, Unix nanoseconds
	Suspect bool
	Counts  []Count           // by ID
	Errors  map[string]uint64 // by kind, since the start
	Resets  uint64            // readings that found a counter reset, since the start

	tick     int64 // of the last reading
	answered bool  // the last reading had an answer
}

// Store keeps the last reading of every port (rules 9 to 13).
type Store struct {
	interval time.Duration

	mu         sync.RWMutex
	ports      map[Key]*PortState
	duplicates uint64
	late       uint64
	accepted   uint64
	linkDowns  uint64
	skews      [recentSkews]time.Duration
	starts     uint64
}

func newStore(interval time.Duration) *Store {
	return &Store{interval: interval, ports: map[Key]*PortState{}}
}

// retainTargets forgets the ports that are not targets.
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

// addReport adds the readings of a sweep.
func (s *Store) addReport(r *Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range r.Readings {
		reading := &r.Readings[i]
		p := s.ports[reading.Key]
		switch {
		case p == nil: // no longer a target
		case r.Tick == p.tick && p.answered:
			s.duplicates++
		case r.Tick < p.tick:
			s.late++
		default:
			s.accepted++
			s.linkDowns += p.applyReading(r.Tick, reading)
		}
	}
}

// applyReading takes a reading of the port. It returns how often it says that the link went down since the one before.
func (p *PortState) applyReading(tick int64, r *Reading) (linkDowns uint64) {
	p.tick, p.answered = tick, len(r.Answers) > 0
	for _, e := range r.Errors {
		p.Errors[e.Kind]++
	}
	if !p.answered {
		return 0 // the counters become too old, and are left out (rule 13)
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
			if Counters[id].Name == "link_downed" && c.Raw > before.Raw {
				linkDowns += c.Raw - before.Raw
			}
			p.Suspect = p.Suspect || c.Raw > before.Raw && Counters[id].Field == "VL15Dropped"
			c.completeFrom(before)
			p.Counts[at] = c
		}
	}
	if reset {
		p.Resets++
	}
	return linkDowns
}

// LinkDowns returns how often links went down, by the counters of all ports, since the start.
func (s *Store) LinkDowns() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.linkDowns
}

// completeFrom sets Since and Rate from the count before (rules 10 and 11).
func (c *Count) completeFrom(before Count) {
	if c.Raw < before.Raw {
		return // Since stays this reading's time: when the reset happened is unknown
	}
	c.Since = before.Since
	if c.IsSaturated() || c.At <= before.At {
		return
	}
	c.Rate = float64(c.Raw-before.Raw) * float64(Counters[c.ID].UnitScale()) / (float64(c.At-before.At) / float64(time.Second))
	c.Rated = true
}

// IsSaturated reports whether the counter is at its limit (rule 11).
func (c *Count) IsSaturated() bool { return c.Raw == Counters[c.ID].MaxValue() }

// ScaledValue returns the counter in its series' unit. Values above 2^53 are rounded.
func (c *Count) ScaledValue() float64 { return float64(c.Raw) * float64(Counters[c.ID].UnitScale()) }

// recentSkews is the number of starts of sweeps that quantiles cover.
const recentSkews = 4096

func (s *Store) recordSkew(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skews[s.starts%recentSkews] = d.Abs()
	s.starts++
}

// Snapshot holds everything that can be published.
type Snapshot struct {
	Ports      []PortState // sorted by key; counts that are too old are absent
	Accepted   uint64      // readings kept, since the start
	Duplicates uint64      // readings that repeat a port and tick, since the start
	Late       uint64      // readings of a tick before the last, since the start
	Starts     uint64      // sweeps begun, since the start
	// SkewP99 and SkewMax are the distances from the tick over the last recentSkews starts.
	SkewP99, SkewMax time.Duration
}

// Snapshot returns the current state.
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

// staleAfter is the age of rule 13: two intervals, and one in which the sweep ends.
const staleAfter = 3
