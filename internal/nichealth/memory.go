package nichealth

import (
	"cmp"
	"slices"
	"time"
)

// Memory holds what a monitor keeps over a restart of the agent: only what decides whether an event is new. It
// belongs to one boot.
type Memory struct {
	Boot          string       `json:"boot"`
	KnownEntities []Entity     `json:"seen"`
	Findings      []Remembered `json:"findings,omitempty"`
	Counters      []Count      `json:"counters,omitempty"`
}

// Remembered holds a finding that was reported.
type Remembered struct {
	Entity     Entity    `json:"entity"`
	Code       string    `json:"code"`
	Check      string    `json:"check"`
	Fatal      bool      `json:"fatal,omitempty"`
	Quiet      bool      `json:"quiet,omitempty"`
	Latched    bool      `json:"latched,omitempty"`
	Since      time.Time `json:"since"`
	Message    string    `json:"message"`
	EndMessage string    `json:"over"`
}

// Count is the last value of a counter, so that what it grew by meanwhile is not lost.
type Count struct {
	Entity  Entity    `json:"entity"`
	Counter string    `json:"counter"`
	Value   uint64    `json:"value"`
	At      time.Time `json:"at"`
}

// SaveMemory returns what is to be remembered. It returns nil while the boot is not known, since then the memory
// could not be checked later.
func (m *Monitor) SaveMemory() *Memory {
	if m.boot == "" {
		return nil
	}
	out := &Memory{Boot: m.boot, KnownEntities: []Entity{}}
	for e := range m.knownEntities {
		out.KnownEntities = append(out.KnownEntities, e)
	}
	for k, o := range m.open {
		if o.confirmed {
			out.Findings = append(out.Findings, Remembered{k.Entity, k.Code, o.check, o.fatal, o.quiet, o.latched, o.since, o.message, o.endMessage})
		}
	}
	for k, g := range m.series {
		if g.known {
			out.Counters = append(out.Counters, Count{k.Entity, k.Counter, g.last.value, g.last.at})
		}
	}
	byEntity := func(a, b Entity) int { return cmp.Or(cmp.Compare(a.Value, b.Value), cmp.Compare(a.Type, b.Type)) }
	slices.SortFunc(out.KnownEntities, byEntity)
	slices.SortFunc(out.Findings, func(a, b Remembered) int { return cmp.Or(byEntity(a.Entity, b.Entity), cmp.Compare(a.Code, b.Code)) })
	slices.SortFunc(out.Counters, func(a, b Count) int { return cmp.Or(byEntity(a.Entity, b.Entity), cmp.Compare(a.Counter, b.Counter)) })
	return out
}

// restoreMemory takes over what another run of the same boot knew.
func (m *Monitor) restoreMemory(r *Memory) {
	if r == nil || r.Boot == "" || r.Boot != m.boot {
		return
	}
	for _, e := range r.KnownEntities {
		m.knownEntities[e] = true
	}
	for _, f := range r.Findings {
		m.open[findingKey{f.Entity, f.Code}] = &openFinding{since: f.Since, confirmed: true, latched: f.Latched,
			finding: finding{findingKey: findingKey{f.Entity, f.Code}, check: f.Check, fatal: f.Fatal, quiet: f.Quiet, message: f.Message, endMessage: f.EndMessage}}
	}
	for _, c := range r.Counters {
		g := &growth{}
		var windows []time.Duration
		for i := range m.c.Thresholds {
			if t := &m.c.Thresholds[i]; t.Counter == c.Counter {
				windows = append(windows, t.Window)
			}
		}
		g.addSample(sample{c.At, c.Value}, windows)
		m.series[counterKey{c.Entity, c.Counter}] = g
	}
}

// Reset releases what is latched of an entity, or of all if it is the zero value, and returns
// the events that say so.
func (m *Monitor) Reset(e Entity, now time.Time) (events []Event) {
	m.now = now
	for k, o := range m.open {
		if !o.latched || e != (Entity{}) && k.Entity != e {
			continue
		}
		delete(m.open, k)
		events = m.appendEndEvent(events, o)
		for ck, g := range m.series {
			if ck.Entity == k.Entity {
				g.windows = map[time.Duration][]sample{} // what grew before is dealt with
			}
		}
	}
	return events
}

// Finding is something that holds, for series and pages.
type Finding struct {
	Entity  Entity
	Code    string
	Fatal   bool
	Latched bool
	Since   time.Time
	Message string
}

// OpenFindings returns the findings that hold and are confirmed, in order.
func (m *Monitor) OpenFindings() (out []Finding) {
	for k, o := range m.open {
		if o.confirmed && !o.quiet {
			out = append(out, Finding{k.Entity, k.Code, o.fatal, o.latched, o.since, o.message})
		}
	}
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Entity.Value, b.Entity.Value), cmp.Compare(a.Code, b.Code))
	})
	return out
}

// CrossingCount returns how often counters of an entity exceeded the thresholds of warnings since the monitor began.
// ok is false if none of its counters has such a rule.
func (m *Monitor) CrossingCount(e Entity) (n uint64, ok bool) {
	n, ok = m.crossings[e]
	return n, ok
}

// ExpectedRate returns the expected rate of a port in bytes per second. ok is false if it is not known.
func (m *Monitor) ExpectedRate(e Entity) (rate int64, ok bool) {
	rate, ok = m.expected[e]
	return rate, ok
}

// PortCounts returns how many ports the table has for this node's product, and how many there are. ok is false
// without a line of the table.
func (m *Monitor) PortCounts() (expected, found int, ok bool) {
	if p := m.c.nodeProduct(); p != nil {
		return p.Ports, m.ports, true
	}
	return 0, 0, false
}

// IsSaturated reports whether a counter stands at the end of its range.
func (m *Monitor) IsSaturated(e Entity, counter string) bool {
	return m.saturated[counterKey{e, counter}]
}
