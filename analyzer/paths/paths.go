// Package paths keeps the switches, ports and links that probe flows cross, with times. They
// come from hop-limited traces (fabric.ResolveTrace), from sightings of switches (Stitcher),
// or from InfiniBand's forwarding tables (Tables).
//
// Rules of the store:
//
//  1. A path holds from the first to the last time it was confirmed, and on, until
//     it is contradicted or stale.
//  2. Between the last confirmation of a path and the first of the one that
//     replaced it, both are candidates and none is the path. Before the first
//     confirmation of the oldest path kept, nothing is known.
//  3. What does not resolve leaves the last known path in place, stale: it is where
//     the packets went before. Packets that are balanced one by one have no path.
//  4. The newest report holds, from a trace or from sightings. A path is never made of both.
//     A report that does not resolve leaves a path of the other source in place, unless the
//     observed hops contradict it.
//  5. Every response of the switches that see a path by sightings confirms it, also without
//     a change, and every trace confirms a traced path. For a window that a switch has not
//     reported yet, a path by sightings is stale, since another switch may have seen the flow.
//  6. A path by forwarding tables is confirmed by readings of the tables, and valid
//     only for windows between two of them. Later windows have it, stale, until it is
//     older than the tables' StaleAfter; then the path itself is stale, and later
//     windows have none.
//  7. A path that the sender chose is that of its carrier, which the sender reports with every trace. It needs no trace.
//  8. Without confirmation a path is stale after a while, and in the end forgotten.
package paths

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sourceroute"
)

// What the store remembers. Memory is bounded by the flows of the mesh times
// these: a version takes 32 bytes, a candidate 4, beside the routes they name.
const (
	// maxRoutes bounds what only the past and candidates name: where more routes are
	// known neither is kept. A route takes about 300 bytes.
	maxRoutes = 1_250_000

	maxVersions   = 8  // paths that a flow had before, the newest ones
	maxCandidates = 32 // more than these are not listed, since they distinguish nothing
	maxNotes      = 4
	maxNoteBytes  = 200 // bytes

	keepVersions = time.Hour // since they were last confirmed
	keepFlows    = time.Hour // since anything was heard of them

	// traceHolds is three rounds of the background's re-tracing, sightingHolds many
	// pulls of a switch: without confirmation for longer a path is stale.
	traceHolds    = 3 * time.Minute
	sightingHolds = 10 * time.Second
)

// Source is the source of a path.
type Source string

// Sources of paths.
const (
	noSource    Source = ""
	ByTrace     Source = "trace"
	BySightings Source = "sightings"
	ByTables    Source = "forwarding_tables"
	ByChoice    Source = "chosen" // by the sender
)

// Binding represents the path of one flow and its state.
type Binding struct {
	Path       fabric.Path
	State      fabric.PathState
	Candidates []fabric.Path
	// Sprayed is set if the packets take all of Candidates in turn, and not one of them.
	Sprayed bool
	Source  Source
	// Version is the version of the path map when the path was bound.
	Version uint64
	// Since is when the path was first confirmed, Confirmed when last; Checked is
	// when the flow was last heard of, resolved or not.
	Since, Confirmed, Checked time.Time
	// Elsewhere is set if the flow was seen beside its last path within the window, and no other path was known then. What it lost
	// may be lost there.
	Elsewhere bool
	// Expired is set if Path comes from tables that were last confirmed longer than their StaleAfter before the window's end.
	Expired bool
	// Before is the path before Path or, with candidates in time, the oldest of them.
	Before fabric.Path
	Notes  []string
}

// flowKey names a flow by the indices of its NICs.
type flowKey struct{ src, dst, flow uint32 }

const replyBit = 1 << 31

// record represents one flow in the store. Times are nanoseconds since 1970.
type record struct {
	flowKey
	route  uint32
	index  uint32 // in the route's flows
	state  uint8  // index of states
	source uint8  // index of sources
	live   bool   // false for an unused place in the slab
	ended  bool   // as in word, of what is known now
	// sightedHops has a bit for every hop of the path that a switch saw itself.
	sightedHops               uint32
	version                   uint64
	since, confirmed, checked int64
	past                      []version // oldest first
	details                   *detail
	// hops is a hash of those that answered the last trace, and moved is set if they are others than those of the trace before.
	hops  uint32
	moved bool
}

// version represents a path of the past. Route 0 means that it had none.
type version struct {
	route        uint32
	source       uint8
	number       uint64
	since, until int64
}

type detail struct {
	candidates []uint32
	notes      []string
}

var (
	states  = [...]fabric.PathState{fabric.PathUnknown, fabric.PathStale, fabric.PathValid}
	sources = [...]Source{noSource, ByTrace, BySightings, ByTables, ByChoice}
)

const (
	stateUnknown uint8 = iota
	stateStale
	stateValid
)

// switchAnswer is what a switch's answers say of all flows of its table: seen as it said,
// until; heard is when it answered.
type switchAnswer struct{ until, answeredAt int64 }

// pathReport represents the report of a source about one flow at a moment.
type pathReport struct {
	source Source
	at     time.Time
	fabric.Resolved
	// repeated means that the trace was reported before, and does not show the present path.
	repeated bool
	// split: the packets have no one path, whatever path was known.
	split bool
	// ended means that the known path ends here. The same path, reported again, is another version.
	ended bool
	// contradicts reports whether the observed hops contradict a path. Nil means that they cannot.
	contradicts func(fabric.Path) bool
	// left returns when the flow was first seen beside a path after a moment, or zero, and the paths that it may have since then. Nil
	// means that this is not known.
	left func(fabric.Path, time.Time) (time.Time, []fabric.Path)
	// since is when the path was first seen, if not at; oldUntil is until when the
	// one before it was seen, where that is known.
	since, previousUntil time.Time
	sightedHops          uint32 // as in record
}

// Store keeps the paths of every flow. It is safe for concurrent use.
type Store struct {
	nics         map[string]uint32
	nicIDs       []string
	access       []switchPort // the switch port that each NIC is plugged into
	mu           sync.RWMutex
	g            *fabric.Graph
	flows        map[flowKey]uint32
	records      slab[record]
	recordsByNIC [][]uint32 // records whose source or destination it is
	routes       *routes
	// maxRoutes is as the constant.
	maxRoutes     int
	version       uint64
	stateCounts   [len(states)]int
	switchAnswers []switchAnswer // by number of the switch
	tableHolds    []int64        // by switch: the StaleAfter of its tables; 0 means none
	reportedUntil int64          // until when all switches have reported their changes
	// contested are the flows whose path by sightings a trace contradicted since.
	contested map[flowKey]bool
	cabling   *cabling
	spraying  *spraying
	// table translates chosen paths of tableOf, unless tableErr is set.
	table    *sourceroute.Table
	tableErr error
	tableOf  *fabric.Graph
	// strays are the flows that do not take their chosen path.
	strays map[flowKey]Stray
}

// NewStore returns an empty store for a fabric.
func NewStore(g *fabric.Graph) *Store {
	s := &Store{g: g, nics: map[string]uint32{}, flows: map[flowKey]uint32{}, routes: newRoutes(), maxRoutes: maxRoutes, contested: map[flowKey]bool{}, cabling: newCabling(), spraying: newSpraying(), strays: map[flowKey]Stray{}}
	if g == nil {
		return s
	}
	s.nicIDs = g.NICIDs()
	s.access = make([]switchPort, len(s.nicIDs))
	s.recordsByNIC = make([][]uint32, len(s.nicIDs))
	for i, id := range s.nicIDs {
		s.nics[id] = uint32(i)
		sw, port := g.LeafOf(id)
		s.access[i] = switchPort{sw: sw, port: port}
	}
	return s
}

// Graph returns the fabric with its cables as they were found.
func (s *Store) Graph() *fabric.Graph {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.g
}

func (s *Store) keyOf(e fabric.Flow) (flowKey, bool) {
	src, ok1 := s.nics[e.Src]
	dst, ok2 := s.nics[e.Dst]
	if !ok1 || !ok2 || e.Number < 0 || e.Number >= replyBit {
		return flowKey{}, false
	}
	k := flowKey{src, dst, uint32(e.Number)}
	if e.Reply {
		k.flow |= replyBit
	}
	return k, true
}

func (s *Store) flowOf(k flowKey) fabric.Flow {
	return fabric.Flow{Src: s.nicIDs[k.src], Dst: s.nicIDs[k.dst], Number: int(k.flow &^ replyBit), Reply: k.flow&replyBit != 0}
}

// accessPorts returns the switch ports where packets of a flow enter and leave the fabric.
func (s *Store) accessPorts(k flowKey) (from, to switchPort) {
	if k.flow&replyBit != 0 {
		return s.access[k.dst], s.access[k.src]
	}
	return s.access[k.src], s.access[k.dst]
}

// AddTrace adds a node's trace. It fails if the flow is not of this topology.
func (s *Store) AddTrace(t fabric.Trace) error {
	e, err := fabric.ParseFlow(t.Edge)
	if err != nil {
		return err
	}
	k, ok := s.keyOf(e)
	if !ok {
		return fmt.Errorf("edge %q: not of this topology", t.Edge)
	}
	if s.hasTrace(k, t.TracedAt) {
		return nil
	}
	if t.Carrier.IsValid() {
		s.addChosen(k, e, t)
		return nil
	}
	src, dst := e.Endpoints()
	g := s.Graph()
	r := fabric.ResolveTrace(g, src, dst, t)
	odd, known := traceMismatch(g, src, t, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.State != fabric.PathStale {
		defer s.countTrace(k, t, s.isNewer(k, t.TracedAt))
	}
	if _, sprayed := s.sprayedSince(k); sprayed {
		s.applySplit(k, ByTrace, t.TracedAt)
		return nil
	}
	if s.partsBehind(k) {
		return nil
	}
	if known && t.State != fabric.PathStale {
		s.cabling.recordMismatch(k, odd, t.TracedAt)
	}
	w := pathReport{source: ByTrace, at: t.TracedAt, Resolved: r, repeated: t.State == fabric.PathStale, split: t.Balanced}
	w.left = func(p fabric.Path, _ time.Time) (time.Time, []fabric.Path) {
		if len(r.Candidates) == 0 || slices.ContainsFunc(r.Candidates, func(c fabric.Path) bool { return slices.Equal(c, p) }) {
			return time.Time{}, nil
		}
		return t.TracedAt, r.Candidates
	}
	s.applyReport(k, w)
	return nil
}

// addChosen adds the path that the sender of a flow chose. Without locators in the topology, or by a carrier that is none of them,
// it is not known.
func (s *Store) addChosen(k flowKey, e fabric.Flow, t fabric.Trace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tableOf != s.g {
		s.tableOf = s.g
		s.table, s.tableErr = sourceroute.NewTable(s.g)
	}
	r := fabric.Resolved{State: fabric.PathUnknown}
	if s.tableErr != nil {
		r.Notes = []string{"chosen by the sender: " + s.tableErr.Error()}
	} else {
		src, dst := e.Endpoints()
		r = s.compareTrace(k, e, t.Hops, s.table.Resolve(src, dst, t))
	}
	w := pathReport{source: ByChoice, at: t.TracedAt, Resolved: r}
	if _, strays := s.strays[k]; strays {
		w.left = func(fabric.Path, time.Time) (time.Time, []fabric.Path) { return t.TracedAt, nil }
	}
	s.applyReport(k, w)
}

// applySplit takes a report of a sprayed flow, of which only the time is used. The lock is held.
func (s *Store) applySplit(k flowKey, by Source, at time.Time) {
	s.cabling.recordMismatch(k, nil, at)
	s.applyReport(k, pathReport{source: by, at: at, Resolved: fabric.Resolved{State: fabric.PathUnknown}, split: true})
}

// hasTrace reports whether a flow has its path from a trace that is not older than a moment.
func (s *Store) hasTrace(k flowKey, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.flows[k]
	if !ok {
		return false
	}
	b := s.records.entryAt(id)
	return b.route != 0 && (sources[b.source] == ByTrace || sources[b.source] == ByChoice) && b.checked >= at.UnixNano()
}

// applyReport applies a report to the store. The lock is held.
func (s *Store) applyReport(k flowKey, w pathReport) {
	at := w.at.UnixNano()
	id, ok := s.flows[k]
	if !ok {
		id = s.records.allocEntry()
		*s.records.entryAt(id) = record{flowKey: k, live: true}
		s.flows[k] = id
		s.recordsByNIC[k.src] = append(s.recordsByNIC[k.src], id)
		if k.dst != k.src {
			s.recordsByNIC[k.dst] = append(s.recordsByNIC[k.dst], id)
		}
		s.stateCounts[stateUnknown]++
	}
	b := s.records.entryAt(id)
	from, to := s.accessPorts(k)
	foreign := b.route != 0 && sources[b.source] != w.source
	confirmed := s.confirmedUntil(b)
	if at <= b.checked || foreign && at <= confirmed {
		return
	}
	resolved := w.State == fabric.PathValid
	news := w.split || resolved && !w.repeated
	if foreign && !news && b.state == stateValid && at-s.lastReported(b) <= int64(holdTime(sources[b.source])) {
		if w.contradicts == nil || !w.contradicts(s.routes.expandPath(b.route, from, to)) {
			return
		}
	}
	b.checked = at
	s.stateCounts[b.state]--
	defer func() { s.stateCounts[b.state]++ }()
	var cands []fabric.Path
	left, by := s.leftPath(b, w)
	switch {
	case resolved && w.repeated:
		if b.route == 0 {
			s.bindPath(id, w, from, to)
		}
		b.state = stateStale
	case resolved:
		s.bindPath(id, w, from, to)
		b.state = stateValid
	case w.split:
		if b.route != 0 {
			s.markContested(b, w)
			s.retirePath(id, confirmed)
			b.since, b.version = at, s.nextVersion()
		}
		b.state, b.confirmed, b.source = stateUnknown, at, sourceIndex(w.source)
		cands = w.Candidates
	case left != 0 && b.route == 0:
		b.state, cands = stateUnknown, by
	case left != 0:
		s.markContested(b, w)
		s.retirePath(id, min(confirmed, left))
		b.since, b.version = left, s.nextVersion()
		b.state, b.confirmed, b.source = stateUnknown, left, sourceIndex(w.source)
		cands = by
	case b.route != 0:
		b.confirmed, b.sightedHops, b.state = confirmed, 0, stateStale
		b.ended = b.ended || w.ended
	default:
		b.state = stateUnknown
		cands = w.Candidates
	}
	s.setDetail(b, w.Notes, cands, from, to)
}

// leftPath returns when a flow was first seen beside its last path, after that was learnt, by a report that shows no whole path, and the
// paths that it may have since then. It returns 0 if the report does not contradict the path: packets may be lost before they come to
// all switches.
func (s *Store) leftPath(b *record, w pathReport) (at int64, by []fabric.Path) {
	route, since := b.route, b.since
	if n := len(b.past); route == 0 && n > 0 {
		route, since = b.past[n-1].route, b.past[n-1].since
	}
	if route == 0 || w.left == nil || w.State == fabric.PathValid || w.split || w.repeated || w.ended {
		return 0, nil
	}
	from, to := s.accessPorts(b.flowKey)
	left, by := w.left(s.routes.expandPath(route, from, to), timeOf(since))
	if left.IsZero() {
		return 0, nil
	}
	return max(min(left.UnixNano(), w.at.UnixNano()), since), by
}

// bindPath takes a resolved path into a record.
func (s *Store) bindPath(id uint32, w pathReport, from, to switchPort) {
	b := s.records.entryAt(id)
	since := w.at.UnixNano()
	if !w.since.IsZero() {
		since = min(since, w.since.UnixNano())
	}
	now := s.routes.acquireRoute(w.Path, from, to)
	confirmed := s.confirmedUntil(b)
	if now == b.route && !b.ended {
		s.routes.releaseRoute(now)
		b.confirmed = max(confirmed, since)
		if w.source == ByTrace && b.sightedHops != 0 {
			return // the switches go on seeing it
		}
	} else {
		s.markContested(b, w)
		if !w.previousUntil.IsZero() {
			confirmed = max(confirmed, w.previousUntil.UnixNano())
		}
		since = max(since, b.confirmed)
		if b.route == 0 && len(b.past) > 0 && since-b.since <= int64(betweenPaths) {
			s.extendFormer(b, w.previousUntil)
		} else {
			s.retirePath(id, min(confirmed, since))
		}
		b.route, b.since, b.confirmed, b.version = now, since, since, s.nextVersion()
		x := s.routes.all.entryAt(now)
		b.index = uint32(len(x.flows))
		x.flows = append(x.flows, id)
	}
	b.source, b.sightedHops, b.ended = sourceIndex(w.source), w.sightedHops, false
}

// betweenPaths is the longest time from when a flow was first seen beside its path until it was first seen on all of another one in which it
// went from the one to the other.
const betweenPaths = time.Second

// extendFormer extends the time until which the former path of a flow was seen, which left it for a path that was not known at once.
func (s *Store) extendFormer(b *record, until time.Time) {
	former := &b.past[len(b.past)-1]
	if !until.IsZero() {
		former.until = max(former.until, min(until.UnixNano(), b.since))
	}
}

// markContested notes that a trace has another path than the sightings.
func (s *Store) markContested(b *record, w pathReport) {
	if b.route != 0 && sources[b.source] == BySightings && w.source == ByTrace {
		s.contested[b.flowKey] = true
	}
}

func (s *Store) nextVersion() uint64 { s.version++; return s.version }

// retirePath moves a record's path into its past, as confirmed until then.
func (s *Store) retirePath(id uint32, until int64) {
	b := s.records.entryAt(id)
	if b.version == 0 {
		return
	}
	s.unlinkRoute(b)
	room := maxVersions
	if len(s.routes.byEnds) > s.maxRoutes {
		room = 0
	}
	b.past = append(b.past, version{b.route, b.source, b.version, b.since, max(until, b.since)})
	s.dropVersions(b, len(b.past)-room)
	b.route, b.sightedHops = 0, 0
}

// dropVersions forgets the n oldest versions of a record.
func (s *Store) dropVersions(b *record, n int) {
	if n <= 0 {
		return
	}
	for _, v := range b.past[:n] {
		s.routes.releaseRoute(v.route)
	}
	b.past = slices.Delete(b.past, 0, n)
	if len(b.past) == 0 {
		b.past = nil
	}
}

// unlinkRoute takes a record off its route's list; the route keeps its holder.
func (s *Store) unlinkRoute(b *record) {
	if b.route == 0 {
		return
	}
	x := s.routes.all.entryAt(b.route)
	last := x.flows[len(x.flows)-1]
	x.flows[b.index] = last
	s.records.entryAt(last).index = b.index
	x.flows = x.flows[:len(x.flows)-1]
}

func (s *Store) setDetail(b *record, notes []string, cands []fabric.Path, from, to switchPort) {
	if b.details != nil {
		for _, r := range b.details.candidates {
			s.routes.releaseRoute(r)
		}
		b.details = nil
	}
	if len(cands) > maxCandidates || len(cands) > 0 && len(s.routes.byEnds) > s.maxRoutes {
		notes = append(slices.Clone(notes[:min(len(notes), maxNotes-1)]), fmt.Sprintf("%d candidates are not listed", len(cands)))
		cands = nil
	}
	if len(notes)+len(cands) == 0 {
		return
	}
	b.details = &detail{}
	for _, n := range notes[:min(len(notes), maxNotes)] {
		b.details.notes = append(b.details.notes, strings.Clone(n[:min(len(n), maxNoteBytes)]))
	}
	for _, p := range cands {
		b.details.candidates = append(b.details.candidates, s.routes.acquireRoute(p, from, to))
	}
}

func sourceIndex(s Source) uint8 { return uint8(slices.Index(sources[:], s)) }

func holdTime(s Source) time.Duration {
	if s != ByTrace && s != ByChoice {
		return sightingHolds
	}
	return traceHolds
}

// confirmedUntil returns the time at which a record's path was last confirmed, by a report or by
// the responses of all switches that see it.
func (s *Store) confirmedUntil(b *record) int64 {
	until, _ := s.switchesConfirmed(b)
	return max(b.confirmed, until)
}

// checkedAt returns when the path was last checked, whatever that found.
func (s *Store) checkedAt(b *record) int64 { return max(b.checked, s.confirmedUntil(b)) }

// lastReported returns the time of the last report of the path.
func (s *Store) lastReported(b *record) int64 {
	_, heard := s.switchesConfirmed(b)
	return max(b.confirmed, heard)
}

func (s *Store) switchesConfirmed(b *record) (until, heard int64) {
	if b.sightedHops == 0 || b.route == 0 {
		return 0, 0
	}
	first := true
	for i, sw := range s.routes.switchesOf(b.route) {
		if b.sightedHops&(1<<i) == 0 {
			continue
		}
		var v switchAnswer
		if int(sw) < len(s.switchAnswers) {
			v = s.switchAnswers[sw]
		}
		if first {
			until, heard, first = v.until, v.answeredAt, false
		}
		until, heard = min(until, v.until), min(heard, v.answeredAt)
	}
	return until, heard
}

// setReportedUntil sets the time until which all reporting switches have reported their changes. A
// later window may have another path that is not reported yet.
func (s *Store) setReportedUntil(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reportedUntil = t.UnixNano()
}

// isStale reports whether a record's path is stale at a moment, as nothing has confirmed it for long.
func (s *Store) isStale(b *record, t int64) bool {
	if hold := s.tablesHold(b); hold > 0 {
		return t-s.confirmedUntil(b) > hold
	}
	return t-s.lastReported(b) > int64(holdTime(sources[b.source]))
}

// tablesHold returns the StaleAfter of the tables that a record's path is from, in nanoseconds. It returns 0 if there is none.
func (s *Store) tablesHold(b *record) int64 {
	if sources[b.source] != ByTables || b.route == 0 {
		return 0
	}
	for _, sw := range s.routes.switchesOf(b.route) {
		if int(sw) < len(s.tableHolds) {
			return s.tableHolds[sw]
		}
		break
	}
	return 0
}

// setTablesHold sets the StaleAfter of the tables that a switch's table was read for.
func (s *Store) setTablesHold(sw string, hold time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int(s.routes.switchNumber(sw))
	for len(s.tableHolds) <= n {
		s.tableHolds = append(s.tableHolds, 0)
	}
	s.tableHolds[n] = int64(hold)
}

// recordSwitchAnswer takes an answer of a switch: what its table holds was seen until then.
func (s *Store) recordSwitchAnswer(sw string, until, heard time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int(s.routes.switchNumber(sw))
	for len(s.switchAnswers) <= n {
		s.switchAnswers = append(s.switchAnswers, switchAnswer{})
	}
	s.switchAnswers[n] = switchAnswer{until.UnixNano(), heard.UnixNano()}
}

// CurrentBinding returns what is known of a flow now; ok is false when nothing is.
func (s *Store) CurrentBinding(e fabric.Flow) (Binding, bool) {
	if out, ok := s.sprayedBinding(e, math.MaxInt64, 0); ok {
		return out, true
	}
	out, ok := s.currentPath(e)
	out.Sprayed = s.sprayedByTables(e, &out, time.Unix(0, math.MaxInt64))
	return out, ok
}

// currentPath returns the same of a flow that is not sprayed over all shortest paths.
func (s *Store) currentPath(e fabric.Flow) (Binding, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b := s.recordOf(e)
	if b == nil {
		return Binding{State: fabric.PathUnknown}, false
	}
	return s.bindingOf(b), true
}

func (s *Store) recordOf(e fabric.Flow) *record {
	k, ok := s.keyOf(e)
	if !ok {
		return nil
	}
	id, ok := s.flows[k]
	if !ok {
		return nil
	}
	return s.records.entryAt(id)
}

func (s *Store) bindingOf(b *record) Binding {
	from, to := s.accessPorts(b.flowKey)
	out := Binding{Path: s.routes.expandPath(b.route, from, to), State: states[b.state], Source: sources[b.source], Version: b.version,
		Since: timeOf(b.since), Confirmed: timeOf(s.confirmedUntil(b)), Checked: timeOf(s.checkedAt(b))}
	for i := len(b.past) - 1; i >= 0; i-- {
		if before := b.past[i].route; before != b.route {
			out.Before = s.routes.expandPath(before, from, to)
			break
		}
	}
	if b.details != nil {
		out.Notes = b.details.notes
		for _, r := range b.details.candidates {
			out.Candidates = append(out.Candidates, s.routes.expandPath(r, from, to))
		}
	}
	return out
}

func timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// BindingAt returns the binding for a window of the past, by the rules 1 and 2.
func (s *Store) BindingAt(e fabric.Flow, start, end time.Time) (Binding, bool) {
	if out, ok := s.sprayedBinding(e, start.UnixNano(), end.UnixNano()); ok {
		return out, true
	}
	out, ok := s.pathAt(e, start, end)
	out.Sprayed = s.sprayedByTables(e, &out, start)
	return out, ok
}

// pathAt returns the same of a flow that is not sprayed over all shortest paths.
func (s *Store) pathAt(e fabric.Flow, start, end time.Time) (Binding, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b := s.recordOf(e)
	if b == nil {
		return Binding{State: fabric.PathUnknown}, false
	}
	from, to := s.accessPorts(b.flowKey)
	t0, t1 := start.UnixNano(), end.UnixNano()
	out := s.bindingOf(b)
	if b.version == 0 || t0 >= b.since {
		if b.route != 0 {
			out.Expired = out.Source == ByTables && s.tablesHold(b) > 0 && s.isStale(b, t1)
			switch heard := s.lastReported(b); {
			case t1 <= s.confirmedUntil(b):
				out.State = fabric.PathValid
			case b.state == stateStale || t1-heard > int64(holdTime(sources[b.source])), out.Source == BySightings && t1 > s.reportedUntil, out.Source == ByTables:
				out.State = fabric.PathStale
			}
		}
		out.Elsewhere = b.route == 0 && len(b.past) > 0
		return out, true
	}
	now := out.Candidates
	out.Candidates, out.Notes = nil, nil
	all := append(slices.Clip(b.past), version{b.route, b.source, b.version, b.since, s.confirmedUntil(b)})
	for _, v := range all {
		if v.since <= t0 && t1 <= v.until {
			out.Path, out.Source, out.Version = s.routes.expandPath(v.route, from, to), sources[v.source], v.number
			out.Since, out.Confirmed, out.State = timeOf(v.since), timeOf(v.until), fabric.PathValid
			if v.route == 0 {
				out.State, out.Elsewhere = fabric.PathUnknown, true
			}
			return out, true
		}
	}
	out.Path, out.State, out.Before = nil, fabric.PathUnknown, nil
	var taken []uint32
	for i, v := range all {
		// It may have begun when its predecessor was last seen, and may have gone on
		// until its successor was.
		begun := i == 0 || t1 > all[i-1].until
		over := i+1 < len(all) && t0 >= all[i+1].since
		if !begun || over || slices.Contains(taken, v.route) {
			continue
		}
		if v.route == 0 {
			out.Elsewhere = true
			if i+1 < len(all) || len(now) == 0 {
				out.Candidates, out.Notes = nil, []string{"the path was not known in a part of the window"}
				return out, true
			}
			for _, p := range now {
				if !slices.ContainsFunc(out.Candidates, func(c fabric.Path) bool { return slices.Equal(c, p) }) {
					out.Candidates = append(out.Candidates, p)
				}
			}
			continue
		}
		taken = append(taken, v.route)
		p := s.routes.expandPath(v.route, from, to)
		if out.Before == nil && i+1 < len(all) {
			out.Before = p
		}
		out.Candidates = append(out.Candidates, p)
	}
	if t0 < all[0].since {
		out.Notes = []string{"the window begins before the path was first known"}
	}
	return out, true
}

// ExpireFlows marks paths stale that were not confirmed for long, and forgets what is
// too old to be asked for.
func (s *Store) ExpireFlows(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := now.UnixNano()
	var dead []uint32
	for id := uint32(1); id < s.records.next; id++ {
		b := s.records.entryAt(id)
		if !b.live {
			continue
		}
		heard := s.lastReported(b)
		if t-max(b.checked, heard) > int64(keepFlows) {
			dead = append(dead, id)
			continue
		}
		if b.state == stateValid && s.isStale(b, t) {
			s.stateCounts[b.state]--
			b.confirmed, b.sightedHops, b.state = s.confirmedUntil(b), 0, stateStale
			s.stateCounts[b.state]++
		}
		old := 0
		for old < len(b.past) && t-b.past[old].until > int64(keepVersions) {
			old++
		}
		s.dropVersions(b, old)
	}
	s.removeRecords(dead)
}

func (s *Store) removeRecords(dead []uint32) {
	gone := map[uint32]bool{}
	nics := map[uint32]bool{}
	for _, id := range dead {
		b := s.records.entryAt(id)
		gone[id], nics[b.src], nics[b.dst] = true, true, true
	}
	for nic := range nics {
		s.recordsByNIC[nic] = slices.DeleteFunc(s.recordsByNIC[nic], func(id uint32) bool { return gone[id] })
	}
	for _, id := range dead {
		b := s.records.entryAt(id)
		s.stateCounts[b.state]--
		s.setDetail(b, nil, nil, switchPort{}, switchPort{})
		s.dropVersions(b, len(b.past))
		s.unlinkRoute(b)
		s.routes.releaseRoute(b.route)
		delete(s.flows, b.flowKey)
		delete(s.contested, b.flowKey)
		delete(s.strays, b.flowKey)
		delete(s.cabling.mismatches, b.flowKey)
		s.records.freeEntry(id)
	}
}

// Version counts the changes of paths.
func (s *Store) Version() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.version
}

// Len returns the number of flows in the store.
func (s *Store) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.flows)
}

// FlowsBetween lists the flows the store knows between two NICs, the probing one src and
// the probed one dst, sorted; "" is any NIC.
func (s *Store) FlowsBetween(src, dst string) []fabric.Flow {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []fabric.Flow
	take := func(id uint32) {
		e := s.flowOf(s.records.entryAt(id).flowKey)
		if (src == "" || e.Src == src) && (dst == "" || e.Dst == dst) {
			out = append(out, e)
		}
	}
	nic := src
	if nic == "" {
		nic = dst
	}
	if i, ok := s.nics[nic]; ok {
		for _, id := range s.recordsByNIC[i] {
			take(id)
		}
	} else if nic == "" {
		for _, id := range s.flows {
			take(id)
		}
	}
	slices.SortFunc(out, compareFlows)
	return out
}

func compareFlows(a, b fabric.Flow) int {
	if c := strings.Compare(a.Src, b.Src); c != 0 {
		return c
	}
	if c := strings.Compare(a.Dst, b.Dst); c != 0 {
		return c
	}
	if a.Number != b.Number {
		return a.Number - b.Number
	}
	switch {
	case a.Reply == b.Reply:
		return 0
	case b.Reply:
		return -1
	}
	return 1
}

// EveryNth lists the flows among every of-th, from the given one on, whose path was not checked after a moment: of turns with
// different numbers meet all flows.
func (s *Store) EveryNth(turn, of int, since time.Time) []fabric.Flow {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []fabric.Flow
	for id := turn%of + 1; id < int(s.records.next); id += of {
		if b := s.records.entryAt(uint32(id)); b.live && s.checkedAt(b) <= since.UnixNano() {
			out = append(out, s.flowOf(b.flowKey))
		}
	}
	return out
}

// StateCounts counts flows by the state of their path.
func (s *Store) StateCounts() map[fabric.PathState]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := map[fabric.PathState]int{}
	for i, state := range states {
		n[state] = s.stateCounts[i]
	}
	return n
}

// FlowsCrossing lists the flows whose path, valid or stale, crosses an element, or that begin
// or end at it.
func (s *Store) FlowsCrossing(el fabric.Element) []fabric.Flow {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []fabric.Flow
	add := func(ids []uint32) {
		for _, id := range ids {
			b := s.records.entryAt(id)
			from, to := s.accessPorts(b.flowKey)
			e := s.flowOf(b.flowKey)
			src, dst := e.Endpoints()
			if el.CrossedBy(s.routes.expandPath(b.route, from, to), src, dst) {
				out = append(out, e)
			}
		}
	}
	nics, wider := s.crossingIndex(el)
	for _, nic := range nics {
		if i, ok := s.nics[nic]; ok {
			add(s.recordsByNIC[i])
		}
	}
	for _, r := range s.routes.routesCrossing(wider) {
		add(s.routes.all.entryAt(r).flows)
	}
	return out
}

// crossingIndex says where the flows that cross an element are found: at NICs, and on a link
// or switch that holds the element.
func (s *Store) crossingIndex(el fabric.Element) (nics []string, wider string) {
	switch el.Kind {
	case fabric.KindNIC:
		return []string{el.ID}, ""
	case fabric.KindHost:
		return s.g.EndsOf(el.ID), ""
	case fabric.KindPort, fabric.KindQueue:
		port := el.Port()
		return s.crossingIndex(fabric.Element{ID: fabric.LinkID(port, s.g.PeerOf(port)), Kind: fabric.KindLink})
	case fabric.KindPair, fabric.KindCorridor:
		return nil, el.Waypoints()[0]
	}
	a, b, _ := fabric.SplitLink(el.ID)
	for _, e := range []string{a, b} {
		if fabric.IsNIC(e) {
			nics = append(nics, e)
		}
	}
	return nics, el.ID
}
