package paths

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

// Bounds of the report of one switch.
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

	mu           sync.Mutex
	stitcher     *Stitcher
	tables       map[string]*table
	flows        map[flowKey][]switchSighting
	ports        []string
	portID       map[string]uint32
	lastMoment   time.Time // of the last reports
	firstReport  time.Time // when the first switch reported
	sprayChecked time.Time // when flows were last looked at for spraying
	sawSplit     bool      // whether a flow was split since then, or then
	// allReported is set when every reporting switch has reported.
	allReported bool
}

// table is what is known of a switch's table beside its flows.
type table struct {
	TableView
	version       uint64
	round         uint32    // counts whole reports
	reportedUntil time.Time // until when all that changed is known
	until         time.Time
}

// TableView is the state of one switch.
type TableView struct {
	Kind       sighting.Kind
	Instance   string // "": the whole table is wanted
	Flows      int
	AnsweredAt time.Time // when it answered last
	Dropped    uint64    // by the switch, since its start
	Foreign    uint64    // flows that belong to no edge
	OverLimit  uint64    // flows beyond maxFlows
}

// switchSighting is one switch's sighting of one flow.
type switchSighting struct {
	sw, port uint32 // index of Stitcher.names, of Sightings.ports
	round    uint32
	balanced bool
	first    int64
	old      *olderPorts
}

type olderPorts struct {
	ports []uint32
	last  int64
}

// NewSightings returns an empty join of tables that binds paths in store.
func NewSightings(store *Store, m Mapper) *Sightings {
	return &Sightings{mapper: m, store: store, stitcher: NewStitcher(store.Graph()), tables: map[string]*table{}, flows: map[flowKey][]switchSighting{}, ports: []string{noPort}, portID: map[string]uint32{}}
}

// NextQuery returns the instance and version since which to request changes from a switch. It
// returns "" and 0 to request the whole table.
func (s *Sightings) NextQuery(sw string) (instance string, since uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[sw]; t != nil && t.Instance != "" {
		return t.Instance, t.version
	}
	return "", 0
}

// TableViews returns the state of every switch that reports sightings.
func (s *Sightings) TableViews() map[string]TableView {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]TableView, len(s.tables))
	for sw, t := range s.tables {
		out[sw] = t.TableView
	}
	return out
}

// checkReport returns an error that names the first field of a report that cannot be used.
func checkReport(sw string, r *sighting.Report) error {
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
	for i := range r.Flows {
		ports := r.Flows[i].Ports
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

// ApplyReport applies a switch's response to a request that was sent and answered at these times. It
// returns an error, and uses nothing of the report, if the report is invalid.
func (s *Sightings) ApplyReport(sw string, r *sighting.Report, sent, received time.Time) error {
	if err := checkReport(sw, r); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	index, ok := s.stitcher.index[sw]
	if !ok {
		return fmt.Errorf("switch %q: not of this topology", sw)
	}
	if s.firstReport.IsZero() {
		s.firstReport = received
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
	dirty := map[flowKey]bool{}
	s.applyFlows(t, uint32(index), r, sent.Sub(r.At), received.Sub(r.At), dirty)
	if before > 0 {
		s.removeSightings(func(x switchSighting) bool { return x.sw == uint32(index) && x.round != t.round }, dirty)
	}
	t.Kind, t.Instance, t.version, t.Dropped = r.Kind, r.Instance, r.Version, r.Dropped
	through := sent.Add(-r.At.Sub(r.Through))
	t.AnsweredAt, t.reportedUntil, t.until = received, through, through.Add(-r.Fresh)
	at := s.nextMoment(received)
	for k := range dirty {
		s.bindFlow(k, at)
	}
	// Not before: what changed is no more vouched for.
	s.store.recordSwitchAnswer(sw, t.until, received)
	s.updateReportedUntil()
	s.store.setAgentNeighbours(sw, r.Neighbours)
	return nil
}

// updateReportedUntil updates the time until which all switches have reported their changes.
func (s *Sightings) updateReportedUntil() {
	var all time.Time
	for _, t := range s.tables {
		if all.IsZero() || t.reportedUntil.Before(all) {
			all = t.reportedUntil
		}
	}
	s.store.setReportedUntil(all)
}

// nextMoment returns a time for reports that is later than that of all earlier reports.
func (s *Sightings) nextMoment(now time.Time) time.Time {
	if !now.After(s.lastMoment) {
		now = s.lastMoment.Add(1)
	}
	s.lastMoment = now
	return now
}

// applyFlows enters the flows of a report; early and late lead from the switch's clock to
// the analyzer's.
func (s *Sightings) applyFlows(t *table, sw uint32, r *sighting.Report, early, late time.Duration, dirty map[flowKey]bool) {
	for i := range r.Flows {
		k, ok := s.keyOf(r.Flows[i].Flow)
		if !ok {
			t.Foreign++
			continue
		}
		ports := slices.Clone(r.Flows[i].Ports)
		slices.SortStableFunc(ports, func(a, b sighting.Port) int { return a.First.Compare(b.First) })
		now := ports[len(ports)-1]
		x := switchSighting{sw: sw, port: s.portIndex(sw, now.Name), round: t.round, first: now.First.Add(late).UnixNano()}
		for j, p := range ports[:len(ports)-1] {
			if x.old == nil {
				x.old = &olderPorts{last: p.Last.Add(early).UnixNano()}
			}
			x.old.ports = append(x.old.ports, s.portIndex(sw, p.Name))
			x.balanced = x.balanced || !p.Last.Before(ports[j+1].First)
		}
		have := s.flows[k]
		at := slices.IndexFunc(have, func(x switchSighting) bool { return x.sw == sw })
		switch fresh := at < 0 || have[at].round != t.round; {
		case fresh && t.Flows >= maxFlows:
			t.OverLimit++
			continue
		case fresh:
			t.Flows++
		}
		if at < 0 {
			s.flows[k] = slices.Concat(have, []switchSighting{x}) // to size: there are millions
		} else {
			have[at] = x
		}
		dirty[k] = true
	}
	for _, f := range r.Gone {
		k, ok := s.keyOf(f)
		have := s.flows[k]
		if at := slices.IndexFunc(have, func(x switchSighting) bool { return x.sw == sw }); ok && at >= 0 {
			s.flows[k] = slices.Delete(have, at, at+1)
			t.Flows--
			dirty[k] = true
		}
	}
}

func (s *Sightings) keyOf(f sighting.Flow) (flowKey, bool) {
	e, err := s.mapper.ProbeFlow(s.stitcher.g, f)
	if err != nil {
		return flowKey{}, false
	}
	return s.store.keyOf(e)
}

func (s *Sightings) portIndex(sw uint32, name string) uint32 {
	id, ok := s.portID[name]
	if !ok && s.stitcher.g.LinkAt(s.stitcher.names[sw]+":"+name) != nil {
		id = uint32(len(s.ports))
		s.ports = append(s.ports, name)
		s.portID[name] = id
	}
	return id
}

// removeSightings removes sightings, from all flows.
func (s *Sightings) removeSightings(gone func(switchSighting) bool, dirty map[flowKey]bool) {
	for k, have := range s.flows {
		if slices.ContainsFunc(have, gone) {
			s.flows[k] = slices.DeleteFunc(have, gone)
			dirty[k] = true
		}
	}
}

// stitchFlow puts the sightings of a flow in order.
func (s *Sightings) stitchFlow(k flowKey) (r Stitched, all []Sighting) {
	for _, x := range s.flows[k] {
		y := Sighting{Switch: s.stitcher.names[x.sw], Port: s.ports[x.port], First: timeOf(x.first), Balanced: x.balanced}
		if x.old != nil {
			y.OldLast = timeOf(x.old.last)
			for _, p := range x.old.ports {
				y.Older = append(y.Older, s.ports[p])
			}
		}
		all = append(all, y)
	}
	var silent func(string) bool
	if s.allReported {
		silent = func(sw string) bool { return s.tables[sw] == nil }
	}
	src, dst := s.store.flowOf(k).Endpoints()
	return s.stitcher.StitchPath(src, dst, all, silent), all
}

// bindFlow stitches a flow and binds the result in the store.
func (s *Sightings) bindFlow(k flowKey, at time.Time) {
	r, all := s.stitchFlow(k)
	if len(all) == 0 {
		delete(s.flows, k)
	}
	if !s.sawSplit && (r.Split || len(all) > 1) {
		_, s.sawSplit = s.waysSeen(k, s.flows[k], at)
	}
	s.store.applySightings(k, s.stitcher, r, all, at)
}

// Tick drops the tables of switches that have not reported for long, and applies the sightings
// of flows again whose traces had another path.
func (s *Sightings) Tick(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirty := map[flowKey]bool{}
	silent := map[uint32]bool{}
	for sw, t := range s.tables {
		if now.Sub(t.AnsweredAt) > sightingHolds {
			delete(s.tables, sw)
			silent[uint32(s.stitcher.index[sw])] = true
		}
	}
	if len(silent) > 0 {
		s.removeSightings(func(x switchSighting) bool { return silent[x.sw] }, dirty)
	}
	if !s.allReported && !s.firstReport.IsZero() && now.Sub(s.firstReport) > sightingHolds {
		s.allReported = true
		for k := range s.flows {
			dirty[k] = true
		}
	}
	s.updateReportedUntil()
	if s.checkSpraying(now) {
		for k := range s.flows {
			dirty[k] = true
		}
	}
	at := s.nextMoment(now)
	for k := range dirty {
		s.bindFlow(k, at)
	}
	for _, k := range s.store.contestedFlows() {
		r, all := s.stitchFlow(k)
		// They report the time until which they are confirmed.
		until := at
		for i, h := range r.Path {
			if t := s.tables[h.Switch]; t != nil && r.SightedHops&(1<<i) != 0 && t.until.Before(until) {
				until = t.until
			}
		}
		s.store.applySightings(k, s.stitcher, r, all, until)
	}
}

// RebindAll stitches all flows again with the store's cables.
func (s *Sightings) RebindAll(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stitcher = NewStitcher(s.store.Graph())
	at := s.nextMoment(now)
	for k := range s.flows {
		s.bindFlow(k, at)
	}
}

// applySightings applies the result of stitching a flow.
func (s *Store) applySightings(k flowKey, stitcher *Stitcher, r Stitched, all []Sighting, at time.Time) {
	w := pathReport{source: BySightings, at: at, Resolved: r.Resolved, split: r.Split, since: r.Since, previousUntil: r.PreviousUntil, sightedHops: r.SightedHops}
	if len(all) > 0 {
		w.contradicts = func(p fabric.Path) bool {
			return slices.ContainsFunc(all, func(x Sighting) bool { return x.isBeside(p) })
		}
	}
	w.left = func(p fabric.Path, since time.Time) (time.Time, []fabric.Path) {
		src, dst := s.flowOf(k).Endpoints()
		return stitcher.leftPath(src, dst, all, p, since)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, sprayed := s.sprayedSince(k); sprayed && len(all) > 0 {
		s.applySplit(k, BySightings, at)
		delete(s.contested, k)
		return
	}
	s.applyReport(k, w)
	s.cabling.recordMismatch(k, r.Mismatch, at)
	if b := s.records.entryAt(s.flows[k]); len(all) == 0 || sources[b.source] == BySightings {
		delete(s.contested, k)
	}
}

func (s *Store) contestedFlows() []flowKey {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]flowKey, 0, len(s.contested))
	for k := range s.contested {
		out = append(out, k)
	}
	return out
}
