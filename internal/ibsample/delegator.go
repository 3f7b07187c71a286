package ibsample

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Target represents a port to be read, and what the delegator knows of it.
type Target struct {
	Key
	LID     uint16 `json:"lid"` // of the port, or of the switch that it belongs to
	Element string `json:"element"`
	Switch  bool   `json:"switch,omitempty"`
	// Remote is the port at the other end of the cable, or "" if there is none.
	Remote     string `json:"remote,omitempty"`
	RemoteLID  uint16 `json:"remote_lid,omitempty"`
	RemotePort uint8  `json:"remote_port,omitempty"`
	Vendor     uint32 `json:"vendor,omitempty"` // IEEE company id
	Device     uint16 `json:"device,omitempty"`
	Traits     Traits `json:"traits,omitzero"` // as found by a sampler
}

// Assignment is the work of a sampler.
type Assignment struct {
	Revision uint64        `json:"revision"`
	Interval time.Duration `json:"interval_ns"`
	Metrics  Selection     `json:"metrics,omitempty"`
	Targets  []Target      `json:"targets"`
}

// Report is a sampler's message: that it begins a tick (no readings, Done false), or what it read.
type Report struct {
	Sampler    string `json:"sampler"`
	Instance   string `json:"instance"`
	Vocabulary string `json:"vocabulary"`
	Tick       int64  `json:"tick"`
	// Began is when the sweep began, in Unix nanoseconds of the delegator's clock as the sampler estimates it;
	// ClockError bounds the error of the estimate.
	Began      int64         `json:"began_ns"`
	ClockError time.Duration `json:"clock_error_ns"`
	Done       bool          `json:"done,omitempty"`
	Took       time.Duration `json:"took_ns,omitempty"`
	Missed     uint64        `json:"missed,omitempty"` // ticks that found the sampler still sweeping, since its start
	Readings   []Reading     `json:"readings,omitempty"`
}

// Reading holds one port at one tick.
type Reading struct {
	Key
	Traits  *Traits     `json:"traits,omitempty"` // when they were found again
	Answers []Answer    `json:"answers,omitempty"`
	Errors  []ReadError `json:"errors,omitempty"`
}

// Answer is the answer to one query.
type Answer struct {
	At   int64    `json:"at_ns"` // Unix nanoseconds of the delegator's clock
	IDs  []ID     `json:"ids"`
	Raws []uint64 `json:"raws"` // as the port holds them, one for each of IDs
}

// ReadError is a query that was not answered, or was answered by an error.
type ReadError struct {
	Query string `json:"query"`
	Kind  string `json:"kind"`
}

// Options are the options of a delegator.
type Options struct {
	Interval   time.Duration
	Redundancy int // samplers per port; 0 means 1
	Metrics    Selection
	Pins       []Pin
}

// Delegator divides the fabric among samplers and keeps what they report. Time is passed in.
type Delegator struct {
	options Options
	Store   *Store

	mu              sync.Mutex
	targets         map[Key]Target
	pins            map[Key]string
	plan            Plan
	members         map[string]*member
	revision        uint64
	changed         chan struct{} // closed when an assignment changes
	pollBroken      chan struct{} // holds a token when a waiting connection broke
	deaths          uint64
	moves           uint64
	offClockReports uint64
}

// member represents a sampler that has joined.
type member struct {
	instance string
	lastTick int64 // the last tick it began
	polls    int   // waiting connections
	broken   time.Time
	revision uint64 // of the last change of its assignment
	status   SamplerStatus
}

// SamplerStatus is the status of a sampler.
type SamplerStatus struct {
	Name       string        `json:"name"`
	Ports      int           `json:"ports"`
	Skew       time.Duration `json:"skew_ns"` // start of its last sweep after the tick
	ClockError time.Duration `json:"clock_error_ns"`
	Took       time.Duration `json:"took_ns"`
	Missed     uint64        `json:"missed"`
}

// NewDelegator returns a delegator without ports; SetTargets sets them.
func NewDelegator(o Options) *Delegator {
	return &Delegator{options: o, Store: newStore(o.Interval), members: map[string]*member{}, plan: Plan{}, changed: make(chan struct{}), pollBroken: make(chan struct{}, 1), revision: 1}
}

func (d *Delegator) gracePeriod() time.Duration { return d.options.Interval / 2 }

func (d *Delegator) tickOf(t time.Time) int64 { return t.UnixNano() / int64(d.options.Interval) }

// SetTargets replaces the ports of the fabric. If anything changed, the traits of ports are determined again.
func (d *Delegator) SetTargets(targets []Target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := make(map[Key]Target, len(targets))
	for _, t := range targets {
		t.Traits = Traits{}
		next[t.Key] = t
	}
	same := func(a, b Target) bool { b.Traits = Traits{}; return a == b }
	if maps.EqualFunc(next, d.targets, same) {
		return
	}
	d.targets = next
	d.pins = resolvePins(d.options.Pins, targets)
	d.Store.retainTargets(next)
	d.dividePorts(true)
}

// dividePorts divides the ports again (rule 5). It notifies the samplers whose work changed, or all of them if
// the ports themselves changed.
func (d *Delegator) dividePorts(all bool) {
	ports := slices.Collect(maps.Keys(d.targets))
	before := d.plan
	d.plan = AssignPorts(ports, slices.Collect(maps.Keys(d.members)), d.pins, d.options.Redundancy, before)
	counts := map[string]int{}
	touched := map[string]bool{}
	for k, holders := range d.plan {
		for _, s := range holders {
			counts[s]++
			if !slices.Contains(before[k], s) {
				touched[s] = true
				d.moves++
			}
		}
		for _, s := range before[k] {
			if !slices.Contains(holders, s) {
				touched[s] = true
			}
		}
	}
	d.revision++
	for name, m := range d.members {
		m.status.Ports = counts[name]
		if all || touched[name] || m.revision == 0 {
			m.revision = d.revision
		}
	}
	close(d.changed)
	d.changed = make(chan struct{})
}

// joinSampler adds a sampler (rule 4) and returns its member.
func (d *Delegator) joinSampler(name, instance string, now time.Time) *member {
	m := d.members[name]
	if m != nil && m.instance == instance {
		return m
	}
	m = &member{instance: instance, lastTick: d.tickOf(now), status: SamplerStatus{Name: name}}
	d.members[name] = m
	d.dividePorts(false)
	return m
}

// maxTickDistance is the largest distance in ticks between a report and the delegator's clock. A report beyond
// it is from a sampler whose clock has not been compared yet.
const maxTickDistance = 5

// AcceptReport takes the report of a sampler, which joins if it is unknown.
func (d *Delegator) AcceptReport(r *Report, now time.Time) {
	d.mu.Lock()
	m := d.joinSampler(r.Sampler, r.Instance, now)
	if off := r.Tick - d.tickOf(now); off > maxTickDistance || off < -maxTickDistance {
		d.offClockReports++
		d.mu.Unlock()
		return
	}
	m.lastTick = max(m.lastTick, r.Tick)
	m.status.Skew = time.Duration(r.Began - r.Tick*int64(d.options.Interval))
	m.status.ClockError, m.status.Missed = r.ClockError, r.Missed
	if !r.Done {
		d.Store.recordSkew(m.status.Skew)
	} else {
		m.status.Took = r.Took
		for i := range r.Readings {
			// The traits of a port are determined once and passed on with the port.
			if t, ok := d.targets[r.Readings[i].Key]; ok && r.Readings[i].Traits != nil {
				t.Traits = *r.Readings[i].Traits
				d.targets[t.Key] = t
			}
		}
	}
	d.mu.Unlock()
	if r.Done {
		d.Store.addReport(r)
	}
}

// AssignmentFor returns a sampler's assignment, and a channel that is closed when any assignment changes.
func (d *Delegator) AssignmentFor(name, instance string, now time.Time) (Assignment, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.joinSampler(name, instance, now)
	a := Assignment{Revision: m.revision, Interval: d.options.Interval, Metrics: d.options.Metrics}
	for k, holders := range d.plan {
		if slices.Contains(holders, name) {
			a.Targets = append(a.Targets, d.targets[k])
		}
	}
	slices.SortFunc(a.Targets, func(x, y Target) int { return x.compareKey(y.Key) })
	return a, d.changed
}

// revisionOf returns the revision of a sampler's assignment, and a channel that is closed when any assignment
// changes.
func (d *Delegator) revisionOf(name, instance string, now time.Time) (uint64, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.joinSampler(name, instance, now).revision, d.changed
}

// markWaiting records that a sampler waits for a change of its work; endWaiting records that it no longer does.
// broken means that its connection broke before an answer.
func (d *Delegator) markWaiting(name, instance string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.members[name]; m != nil && m.instance == instance {
		m.polls++
		m.broken = time.Time{}
	}
}

func (d *Delegator) endWaiting(name, instance string, broken bool, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.members[name]
	if m == nil || m.instance != instance {
		return
	}
	if m.polls--; broken && m.polls == 0 {
		m.broken = now
		select {
		case d.pollBroken <- struct{}{}:
		default:
		}
	}
}

// RemoveDead removes dead samplers (rule 6). It returns when to call it again.
func (d *Delegator) RemoveDead(now time.Time) (next time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	due := d.tickOf(now.Add(-d.gracePeriod())) // the last tick that all must have begun
	next = time.Unix(0, (due+1)*int64(d.options.Interval)).Add(d.gracePeriod())
	dead := false
	for name, m := range d.members {
		hung := !m.broken.IsZero()
		if m.lastTick < due || hung && !now.Before(m.broken.Add(d.gracePeriod())) {
			delete(d.members, name)
			d.deaths++
			dead = true
		} else if at := m.broken.Add(d.gracePeriod()); hung && at.Before(next) {
			next = at
		}
	}
	if dead {
		d.dividePorts(false)
	}
	return next
}

// Status is the status of the delegation.
type Status struct {
	Targets         []Target
	Samplers        []SamplerStatus // samplers that have joined, by name
	Plan            Plan
	Revision        uint64
	Deaths          uint64 // samplers removed as dead, since the start
	Moves           uint64 // ports given to another sampler, since the start
	OffClockReports uint64 // reports of ticks far from the delegator's clock, since the start
}

// Status returns the status of the delegation.
func (d *Delegator) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Status{Plan: maps.Clone(d.plan), Revision: d.revision, Deaths: d.deaths, Moves: d.moves, OffClockReports: d.offClockReports}
	for _, t := range d.targets {
		s.Targets = append(s.Targets, t)
	}
	slices.SortFunc(s.Targets, func(x, y Target) int { return x.compareKey(y.Key) })
	for _, name := range slices.Sorted(maps.Keys(d.members)) {
		s.Samplers = append(s.Samplers, d.members[name].status)
	}
	return s
}

// WatchSamplers removes dead samplers until the context ends.
func (d *Delegator) WatchSamplers(ctx context.Context) {
	for {
		next := d.RemoveDead(time.Now())
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-d.pollBroken:
			timer.Stop()
		case <-timer.C:
		}
	}
}
