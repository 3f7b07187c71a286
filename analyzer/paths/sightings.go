package paths

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

// Bounds of what one switch may tell.
const (
	maxFlows    = 1 << 16 // flows of its table; what is more is counted and dropped
	maxPorts    = 16      // ports of one flow
	maxFresh    = 10 * time.Minute
	maxInstance = 128 // bytes
)

// noPort stands for every port that the topology does not know.
const noPort = "(unknown)"

// Sightings joins the tables of all switches and binds in a store what they amount
// to. It is safe for concurrent use.
//
// Rules:
//
//  1. A report that continues the version held is taken as a change; one that begins
//     at 0 replaces the table. Any other is not used, and the whole table asked for.
//  2. Only flows that a report names are stitched anew.
//  3. Times are the analyzer's: what a switch saw first was seen at the latest that
//     long after the answer came as it says, what it saw last at the earliest so
//     after the question went out.
//  4. Ports that a flow came in by one after the other are a change of route; those
//     that overlap are a balanced flow.
//  5. A table that was not heard of for sightingHolds is dropped, and the switch
//     silent: its flows are stitched without it. So is a switch that was not heard of
//     for as long since the first one was.
type Sightings struct {
	mapper Mapper
	store  *Store

	mu     sync.Mutex
	st     *Stitcher
	tables map[string]*table
	flows  map[key][]seen
	ports  []string
	portID map[string]uint32
	last   time.Time // of the last words
	begun  time.Time // when the first switch told
	// settled: whoever tells at all has told.
	settled bool
}

// table is what is known of a switch's table beside its flows.
type table struct {
	TableView
	version uint64
	round   uint32    // counts whole reports
	told    time.Time // until when all that changed is known
	until   time.Time
}

// TableView is the state of one switch.
type TableView struct {
	Kind     sighting.Kind
	Instance string // "": the whole table is wanted
	Flows    int
	Heard    time.Time // when it answered last
	Dropped  uint64    // by the switch, since its start
	Foreign  uint64    // flows that belong to no edge
	Over     uint64    // flows beyond maxFlows
}

// seen is one switch's sighting of one flow.
type seen struct {
	sw, port uint32 // index of Stitcher.names, of Sightings.ports
	round    uint32
	balanced bool
	first    int64
	old      *older
}

type older struct {
	ports []uint32
	last  int64
}

// NewSightings returns an empty join of tables that binds paths in store.
func NewSightings(store *Store, m Mapper) *Sightings {
	return &Sightings{mapper: m, store: store, st: NewStitcher(store.Graph()), tables: map[string]*table{}, flows: map[key][]seen{}, ports: []string{noPort}, portID: map[string]uint32{}}
}

// Query is what to ask a switch for: the changes since a version of an instance, or
// all, "" and 0.
func (s *Sightings) Query(sw string) (instance string, since uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[sw]; t != nil && t.Instance != "" {
		return t.Instance, t.version
	}
	return "", 0
}

// Tables shows the state of every switch that tells.
func (s *Sightings) Tables() map[string]TableView {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]TableView, len(s.tables))
	for sw, t := range s.tables {
		out[sw] = t.TableView
	}
	return out
}

// check says what of a report cannot be used.
func check(sw string, r *sighting.Report) error {
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("report of switch %q: field %q: %s", sw, field, fmt.Sprintf(format, args...))
	}
	switch {
	case r.Switch != sw:
		return bad("switch", "%q", r.Switch)
	case r.Instance == "" || len(r.Instance) > maxInstance:
		return bad("instance", "%d bytes, want 1 to %d", len(r.Instance), maxInstance)
	case r.Version < r.Since:
		return bad("version", "%d, before since, %d", r.Version, r.Since)
	case r.At.IsZero():
		return bad("at", "a time is required")
	case r.Through.IsZero() || r.Through.After(r.At):
		return bad("through", "%s, want a time up to at, %s", r.Through, r.At)
	case r.Fresh <= 0 || r.Fresh > maxFresh:
		return bad("fresh_ns", "%s, want up to %s", r.Fresh, maxFresh)
	}
	for i := range r.Seen {
		ports := r.Seen[i].Ports
		if len(ports) == 0 || len(ports) > maxPorts {
			return bad(fmt.Sprintf("seen[%d].ports", i), "%d, want 1 to %d", len(ports), maxPorts)
		}
		for j, p := range ports {
			if p.Last.Before(p.First) {
				return bad(fmt.Sprintf("seen[%d].ports[%d].last", i, j), "before first")
			}
		}
	}
	return nil
}

// Apply takes a switch's answer to a question that was sent and answered at these
// times. The error says what is wrong with it; nothing of it was used then.
func (s *Sightings) Apply(sw string, r *sighting.Report, sent, received time.Time) error {
	if err := check(sw, r); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	index, ok := s.st.index[sw]
	if !ok {
		return fmt.Errorf("switch %q: not of this topology", sw)
	}
	if s.begun.IsZero() {
		s.begun = received
	}
	t := s.tables[sw]
	before := 0
	switch {
	case r.Since == 0:
		if t == nil {
			t = &table{}
			s.tables[sw] = t
		}
		t.round++
		before, t.Flows = t.Flows, 0
	case t == nil || t.Instance != r.Instance || t.version != r.Since:
		if t != nil {
			t.Instance = ""
		}
		return fmt.Errorf("report of switch %q: field %q: continues version %d of instance %q, which is not held", sw, "since", r.Since, r.Instance)
	}
	dirty := map[key]bool{}
	s.take(t, uint32(index), r, sent.Sub(r.At), received.Sub(r.At), dirty)
	if before > 0 {
		s.sweep(func(x seen) bool { return x.sw == uint32(index) && x.round != t.round }, dirty)
	}
	t.Kind, t.Instance, t.version, t.Dropped = r.Kind, r.Instance, r.Version, r.Dropped
	told := sent.Add(-r.At.Sub(r.Through))
	t.Heard, t.told, t.until = received, told, told.Add(-r.Fresh)
	at := s.moment(received)
	for k := range dirty {
		s.bind(k, at)
	}
	// Not before: what changed is no more vouched for.
	s.store.vouchFor(sw, t.until, received)
	s.tell()
	s.store.neighbours(sw, r.Neighbours)
	return nil
}

// tell says until when all switches have told what changed.
func (s *Sightings) tell() {
	var all time.Time
	for _, t := range s.tables {
		if all.IsZero() || t.told.Before(all) {
			all = t.told
		}
	}
	s.store.toldUntil(all)
}

// moment is a time for words that is after that of all words before.
func (s *Sightings) moment(now time.Time) time.Time {
	if !now.After(s.last) {
		now = s.last.Add(1)
	}
	s.last = now
	return now
}

// take enters the flows of a report; early and late lead from the switch's clock to
// the analyzer's.
func (s *Sightings) take(t *table, sw uint32, r *sighting.Report, early, late time.Duration, dirty map[key]bool) {
	for i := range r.Seen {
		k, ok := s.key(r.Seen[i].Flow)
		if !ok {
			t.Foreign++
			continue
		}
		ports := slices.Clone(r.Seen[i].Ports)
		slices.SortStableFunc(ports, func(a, b sighting.Port) int { return a.First.Compare(b.First) })
		now := ports[len(ports)-1]
		x := seen{sw: sw, port: s.port(sw, now.Name), round: t.round, first: now.First.Add(late).UnixNano()}
		for j, p := range ports[:len(ports)-1] {
			if x.old == nil {
				x.old = &older{last: p.Last.Add(early).UnixNano()}
			}
			x.old.ports = append(x.old.ports, s.port(sw, p.Name))
			x.balanced = x.balanced || !p.Last.Before(ports[j+1].First)
		}
		have := s.flows[k]
		at := slices.IndexFunc(have, func(x seen) bool { return x.sw == sw })
		switch fresh := at < 0 || have[at].round != t.round; {
		case fresh && t.Flows >= maxFlows:
			t.Over++
			continue
		case fresh:
			t.Flows++
		}
		if at < 0 {
			s.flows[k] = slices.Concat(have, []seen{x}) // to size: there are millions
		} else {
			have[at] = x
		}
		dirty[k] = true
	}
	for _, f := range r.Gone {
		k, ok := s.key(f)
		have := s.flows[k]
		if at := slices.IndexFunc(have, func(x seen) bool { return x.sw == sw }); ok && at >= 0 {
			s.flows[k] = slices.Delete(have, at, at+1)
			t.Flows--
			dirty[k] = true
		}
	}
}

func (s *Sightings) key(f sighting.Flow) (key, bool) {
	e, err := s.mapper.Edge(s.st.g, f)
	if err != nil {
		return key{}, false
	}
	return s.store.key(e)
}

func (s *Sightings) port(sw uint32, name string) uint32 {
	id, ok := s.portID[name]
	if !ok && s.st.g.LinkAt(s.st.names[sw]+":"+name) != nil {
		id = uint32(len(s.ports))
		s.ports = append(s.ports, name)
		s.portID[name] = id
	}
	return id
}

// sweep removes sightings, from all flows.
func (s *Sightings) sweep(gone func(seen) bool, dirty map[key]bool) {
	for k, have := range s.flows {
		if slices.ContainsFunc(have, gone) {
			s.flows[k] = slices.DeleteFunc(have, gone)
			dirty[k] = true
		}
	}
}

// stitch puts the sightings of a flow in order.
func (s *Sightings) stitch(k key) (r Stitched, all []Sighting) {
	for _, x := range s.flows[k] {
		y := Sighting{Switch: s.st.names[x.sw], Port: s.ports[x.port], First: moment(x.first), Balanced: x.balanced}
		if x.old != nil {
			y.OldLast = moment(x.old.last)
			for _, p := range x.old.ports {
				y.Older = append(y.Older, s.ports[p])
			}
		}
		all = append(all, y)
	}
	var silent func(string) bool
	if s.settled {
		silent = func(sw string) bool { return s.tables[sw] == nil }
	}
	src, dst := s.store.edge(k).Ends()
	return s.st.Stitch(src, dst, all, silent), all
}

// bind stitches a flow and tells the store.
func (s *Sightings) bind(k key, at time.Time) {
	r, all := s.stitch(k)
	if len(all) == 0 {
		delete(s.flows, k)
	}
	s.store.hear(k, r, all, at)
}

// Tick drops the tables of switches that were not heard of for long, and asks the
// switches again about flows of which a trace told something else.
func (s *Sightings) Tick(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirty := map[key]bool{}
	silent := map[uint32]bool{}
	for sw, t := range s.tables {
		if now.Sub(t.Heard) > sightingHolds {
			delete(s.tables, sw)
			silent[uint32(s.st.index[sw])] = true
		}
	}
	if len(silent) > 0 {
		s.sweep(func(x seen) bool { return silent[x.sw] }, dirty)
	}
	if !s.settled && !s.begun.IsZero() && now.Sub(s.begun) > sightingHolds {
		s.settled = true
		for k := range s.flows {
			dirty[k] = true
		}
	}
	s.tell()
	at := s.moment(now)
	for k := range dirty {
		s.bind(k, at)
	}
	for _, k := range s.store.contestedFlows() {
		r, all := s.stitch(k)
		// They speak of the time that they vouch for.
		until := at
		for i, h := range r.Path {
			if t := s.tables[h.Switch]; t != nil && r.Seen&(1<<i) != 0 && t.until.Before(until) {
				until = t.until
			}
		}
		s.store.hear(k, r, all, until)
	}
}

// Recable reads everything again by the store's cables.
func (s *Sightings) Recable(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st = NewStitcher(s.store.Graph())
	at := s.moment(now)
	for k := range s.flows {
		s.bind(k, at)
	}
}

// hear takes what sightings of a flow amount to.
func (s *Store) hear(k key, r Stitched, all []Sighting, at time.Time) {
	w := word{source: BySightings, at: at, Resolved: r.Resolved, split: r.Split, since: r.Since, oldUntil: r.OldUntil, seen: r.Seen}
	if len(all) > 0 {
		w.against = func(p fabric.Path) bool {
			return slices.ContainsFunc(all, func(x Sighting) bool {
				return !slices.ContainsFunc(p, func(h fabric.Hop) bool { return h.Switch == x.Switch && h.In == x.Port })
			})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.say(k, w)
	s.cabling.tell(k, r.Odd, at)
	if b := s.recs.at(s.flows[k]); len(all) == 0 || sources[b.source] == BySightings {
		delete(s.contested, k)
	}
}

func (s *Store) contestedFlows() []key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]key, 0, len(s.contested))
	for k := range s.contested {
		out = append(out, k)
	}
	return out
}
