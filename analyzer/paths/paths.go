// Package paths keeps which switches, ports and links probe flows cross, and when:
// as hop-limited traces told (fabric.Resolve), as switches that saw the probes told
// (Stitch), or as InfiniBand's forwarding tables say (Tables).
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
//  4. The newest word holds, be it of a trace or of sightings; a path is never made
//     of both. A word that does not resolve is silent about a path of the other
//     source, unless what was seen contradicts it.
//  5. A path by sightings is confirmed by every answer of the switches that see it,
//     unsaid; one by a trace by every trace. For a window that a switch has not told
//     of yet a path by sightings is stale: another switch may have seen the flow.
//  6. A path by forwarding tables is confirmed by readings of the tables, and valid
//     only for windows between two of them.
//  7. Without confirmation a path is stale after a while, and in the end forgotten.
package paths

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// What the store remembers. Memory is bounded by the flows of the mesh times
// these: a version takes 32 bytes, a candidate 4, beside the routes they name.
const (
	// maxRoutes bounds what only the past and candidates name: where more routes are
	// known neither is kept. A route takes about 300 bytes.
	maxRoutes = 1_250_000

	maxVersions   = 8  // paths that a flow had before, the newest ones
	maxCandidates = 32 // more than these are not listed: they tell nothing apart
	maxNotes      = 4
	maxNote       = 200 // bytes

	keepVersions = time.Hour // since they were last confirmed
	keepFlows    = time.Hour // since anything was heard of them

	// traceHolds is three rounds of the background's re-tracing, sightingHolds many
	// pulls of a switch: without confirmation for longer a path is stale.
	traceHolds    = 3 * time.Minute
	sightingHolds = 10 * time.Second
)

// Source is who told of a path.
type Source string

// Sources of paths.
const (
	unsaid      Source = ""
	ByTrace     Source = "trace"
	BySightings Source = "sightings"
	ByTables    Source = "forwarding_tables"
)

// Binding is what the store knows of one flow.
type Binding struct {
	Path       fabric.Path
	State      fabric.PathState
	Candidates []fabric.Path
	Source     Source
	// Version is the path map's when the path was bound.
	Version uint64
	// Since is when the path was first confirmed, Confirmed when last; Checked is
	// when the flow was last heard of, resolved or not.
	Since, Confirmed, Checked time.Time
	// Before is the path before Path or, with candidates in time, the oldest of them.
	Before fabric.Path
	Notes  []string
}

// key names a flow by the indices of its NICs.
type key struct{ src, dst, flow uint32 }

const replyBit = 1 << 31

// record is what is kept of one flow. Times are nanoseconds since 1970.
type record struct {
	key
	route  uint32
	index  uint32 // in the route's flows
	state  uint8  // index of states
	source uint8  // index of sources
	live   bool   // false: a place in the slab that nobody uses
	over   bool   // as in word, of what is known now
	// seen has a bit for every hop of the path that a switch saw itself.
	seen                      uint32
	version                   uint64
	since, confirmed, checked int64
	past                      []version // oldest first
	more                      *detail
}

// version is a path of the past; route 0: it had none.
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
	sources = [...]Source{unsaid, ByTrace, BySightings, ByTables}
)

const (
	unknown uint8 = iota
	stale
	valid
)

// vouch is what a switch's answers say of all flows of its table: seen as it said,
// until; heard is when it answered.
type vouch struct{ until, heard int64 }

// word is what a source says of one flow at a moment.
type word struct {
	source Source
	at     time.Time
	fabric.Resolved
	// repeated: the trace was told before; it is no news of where packets go now.
	repeated bool
	// split: the packets have no one path, whatever path was known.
	split bool
	// over: what was known ends here; the same path, told again, is another version.
	over bool
	// against reports whether what was seen contradicts a path; nil: it cannot.
	against func(fabric.Path) bool
	// since is when the path was first seen, if not at; oldUntil is until when the
	// one before it was seen, where that is known.
	since, oldUntil time.Time
	seen            uint32 // as in record
}

// Store keeps the paths of every flow. It is safe for concurrent use.
type Store struct {
	nics   map[string]uint32
	nicIDs []string
	access []end // the switch port that each NIC is plugged into
	mu     sync.RWMutex
	g      *fabric.Graph
	flows  map[key]uint32
	recs   slab[record]
	ofNIC  [][]uint32 // records whose source or destination it is
	routes *routes
	// maxRoutes is as the constant.
	maxRoutes int
	version   uint64
	count     [len(states)]int
	heard     []vouch // by number of the switch
	told      int64   // until when all switches have told what changed
	// contested are the flows whose path by sightings a trace contradicted since.
	contested map[key]bool
	cabling   *cabling
}

// NewStore returns an empty store for a fabric.
func NewStore(g *fabric.Graph) *Store {
	s := &Store{g: g, nics: map[string]uint32{}, flows: map[key]uint32{}, routes: newRoutes(), maxRoutes: maxRoutes, contested: map[key]bool{}, cabling: newCabling()}
	if g == nil {
		return s
	}
	s.nicIDs = g.NICs()
	s.access = make([]end, len(s.nicIDs))
	s.ofNIC = make([][]uint32, len(s.nicIDs))
	for i, id := range s.nicIDs {
		s.nics[id] = uint32(i)
		sw, port := g.LeafOf(id)
		s.access[i] = end{sw: sw, port: port}
	}
	return s
}

// Graph is the fabric with its cables as they were found.
func (s *Store) Graph() *fabric.Graph {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.g
}

func (s *Store) key(e fabric.Edge) (key, bool) {
	src, ok1 := s.nics[e.Src]
	dst, ok2 := s.nics[e.Dst]
	if !ok1 || !ok2 || e.Flow < 0 || e.Flow >= replyBit {
		return key{}, false
	}
	k := key{src, dst, uint32(e.Flow)}
	if e.Reply {
		k.flow |= replyBit
	}
	return k, true
}

func (s *Store) edge(k key) fabric.Edge {
	return fabric.Edge{Src: s.nicIDs[k.src], Dst: s.nicIDs[k.dst], Flow: int(k.flow &^ replyBit), Reply: k.flow&replyBit != 0}
}

// ends are the switch ports where packets of a flow enter and leave the fabric.
func (s *Store) ends(k key) (from, to end) {
	if k.flow&replyBit != 0 {
		return s.access[k.dst], s.access[k.src]
	}
	return s.access[k.src], s.access[k.dst]
}

// Update takes a node's trace.
func (s *Store) Update(t fabric.Trace) error {
	e, err := fabric.ParseEdge(t.Edge)
	if err != nil {
		return err
	}
	k, ok := s.key(e)
	if !ok {
		return fmt.Errorf("edge %q: not of this topology", t.Edge)
	}
	src, dst := e.Ends()
	g := s.Graph()
	r := fabric.Resolve(g, src, dst, t)
	odd, told := traceOdd(g, src, t, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if told && t.State != fabric.PathStale {
		s.cabling.tell(k, odd, t.TracedAt)
	}
	s.say(k, word{source: ByTrace, at: t.TracedAt, Resolved: r, repeated: t.State == fabric.PathStale, split: t.Balanced})
	return nil
}

// say takes a word into the store. The lock is held.
func (s *Store) say(k key, w word) {
	at := w.at.UnixNano()
	id, ok := s.flows[k]
	if !ok {
		id = s.recs.add()
		*s.recs.at(id) = record{key: k, live: true}
		s.flows[k] = id
		s.ofNIC[k.src] = append(s.ofNIC[k.src], id)
		if k.dst != k.src {
			s.ofNIC[k.dst] = append(s.ofNIC[k.dst], id)
		}
		s.count[unknown]++
	}
	b := s.recs.at(id)
	from, to := s.ends(k)
	foreign := b.route != 0 && sources[b.source] != w.source
	confirmed := s.confirmed(b)
	if at <= b.checked || foreign && at <= confirmed {
		return
	}
	resolved := w.State == fabric.PathValid
	news := w.split || resolved && !w.repeated
	if foreign && !news && b.state == valid && at-s.lastHeard(b) <= int64(holds(sources[b.source])) {
		if w.against == nil || !w.against(s.routes.path(b.route, from, to)) {
			return
		}
	}
	b.checked = at
	s.count[b.state]--
	defer func() { s.count[b.state]++ }()
	var cands []fabric.Path
	switch {
	case resolved && w.repeated:
		if b.route == 0 {
			s.bind(id, w, from, to)
		}
		b.state = stale
	case resolved:
		s.bind(id, w, from, to)
		b.state = valid
	case w.split:
		if b.route != 0 {
			s.contest(b, w)
			s.retire(id, confirmed)
			b.since, b.version = at, s.bump()
		}
		b.state, b.confirmed, b.source = unknown, at, sourceIndex(w.source)
		cands = w.Candidates
	case b.route != 0:
		b.confirmed, b.seen, b.state = confirmed, 0, stale
		b.over = b.over || w.over
	default:
		b.state = unknown
		cands = w.Candidates
	}
	s.detail(b, w.Notes, cands, from, to)
}

// bind takes a resolved path into a record.
func (s *Store) bind(id uint32, w word, from, to end) {
	b := s.recs.at(id)
	since := w.at.UnixNano()
	if !w.since.IsZero() {
		since = min(since, w.since.UnixNano())
	}
	now := s.routes.hold(w.Path, from, to)
	confirmed := s.confirmed(b)
	if now == b.route && !b.over {
		s.routes.release(now)
		b.confirmed = max(confirmed, since)
		if w.source == ByTrace && b.seen != 0 {
			return // the switches go on seeing it
		}
	} else {
		s.contest(b, w)
		if !w.oldUntil.IsZero() {
			confirmed = max(confirmed, w.oldUntil.UnixNano())
		}
		since = max(since, b.confirmed)
		s.retire(id, min(confirmed, since))
		b.route, b.since, b.confirmed, b.version = now, since, since, s.bump()
		x := s.routes.all.at(now)
		b.index = uint32(len(x.flows))
		x.flows = append(x.flows, id)
	}
	b.source, b.seen, b.over = sourceIndex(w.source), w.seen, false
}

// contest notes that a trace tells of another path than the switches did.
func (s *Store) contest(b *record, w word) {
	if b.route != 0 && sources[b.source] == BySightings && w.source == ByTrace {
		s.contested[b.key] = true
	}
}

func (s *Store) bump() uint64 { s.version++; return s.version }

// retire moves a record's path into its past, as confirmed until then.
func (s *Store) retire(id uint32, until int64) {
	b := s.recs.at(id)
	if b.version == 0 {
		return
	}
	s.unlist(b)
	room := maxVersions
	if len(s.routes.byEnds) > s.maxRoutes {
		room = 0
	}
	b.past = append(b.past, version{b.route, b.source, b.version, b.since, max(until, b.since)})
	s.shorten(b, len(b.past)-room)
	b.route, b.seen = 0, 0
}

// shorten forgets the n oldest versions of a record.
func (s *Store) shorten(b *record, n int) {
	if n <= 0 {
		return
	}
	for _, v := range b.past[:n] {
		s.routes.release(v.route)
	}
	b.past = slices.Delete(b.past, 0, n)
	if len(b.past) == 0 {
		b.past = nil
	}
}

// unlist takes a record off its route's list; the route keeps its holder.
func (s *Store) unlist(b *record) {
	if b.route == 0 {
		return
	}
	x := s.routes.all.at(b.route)
	last := x.flows[len(x.flows)-1]
	x.flows[b.index] = last
	s.recs.at(last).index = b.index
	x.flows = x.flows[:len(x.flows)-1]
}

func (s *Store) detail(b *record, notes []string, cands []fabric.Path, from, to end) {
	if b.more != nil {
		for _, r := range b.more.candidates {
			s.routes.release(r)
		}
		b.more = nil
	}
	if len(cands) > maxCandidates || len(cands) > 0 && len(s.routes.byEnds) > s.maxRoutes {
		notes = append(slices.Clone(notes[:min(len(notes), maxNotes-1)]), fmt.Sprintf("%d candidates are not listed", len(cands)))
		cands = nil
	}
	if len(notes)+len(cands) == 0 {
		return
	}
	b.more = &detail{}
	for _, n := range notes[:min(len(notes), maxNotes)] {
		b.more.notes = append(b.more.notes, strings.Clone(n[:min(len(n), maxNote)]))
	}
	for _, p := range cands {
		b.more.candidates = append(b.more.candidates, s.routes.hold(p, from, to))
	}
}

func sourceIndex(s Source) uint8 { return uint8(slices.Index(sources[:], s)) }

func holds(s Source) time.Duration {
	if s != ByTrace {
		return sightingHolds
	}
	return traceHolds
}

// confirmed is when a record's path was last confirmed: said, or vouched for by
// the answers of all switches that see it.
func (s *Store) confirmed(b *record) int64 {
	until, _ := s.vouched(b)
	return max(b.confirmed, until)
}

// lastHeard is when the path was last spoken of.
func (s *Store) lastHeard(b *record) int64 {
	_, heard := s.vouched(b)
	return max(b.confirmed, heard)
}

func (s *Store) vouched(b *record) (until, heard int64) {
	if b.seen == 0 || b.route == 0 {
		return 0, 0
	}
	first := true
	for i, sw := range s.routes.switches(b.route) {
		if b.seen&(1<<i) == 0 {
			continue
		}
		var v vouch
		if int(sw) < len(s.heard) {
			v = s.heard[sw]
		}
		if first {
			until, heard, first = v.until, v.heard, false
		}
		until, heard = min(until, v.until), min(heard, v.heard)
	}
	return until, heard
}

// toldUntil takes until when all switches that tell have told what changed: a
// later window may have another path, though none was heard of.
func (s *Store) toldUntil(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = t.UnixNano()
}

// vouchFor takes an answer of a switch: what its table holds was seen until then.
func (s *Store) vouchFor(sw string, until, heard time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int(s.routes.switchNumber(sw))
	for len(s.heard) <= n {
		s.heard = append(s.heard, vouch{})
	}
	s.heard[n] = vouch{until.UnixNano(), heard.UnixNano()}
}

// Bind returns what is known of a flow now; ok is false when nothing is.
func (s *Store) Bind(e fabric.Edge) (Binding, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b := s.record(e)
	if b == nil {
		return Binding{State: fabric.PathUnknown}, false
	}
	return s.binding(b), true
}

func (s *Store) record(e fabric.Edge) *record {
	k, ok := s.key(e)
	if !ok {
		return nil
	}
	id, ok := s.flows[k]
	if !ok {
		return nil
	}
	return s.recs.at(id)
}

func (s *Store) binding(b *record) Binding {
	from, to := s.ends(b.key)
	confirmed := s.confirmed(b)
	out := Binding{Path: s.routes.path(b.route, from, to), State: states[b.state], Source: sources[b.source], Version: b.version,
		Since: moment(b.since), Confirmed: moment(confirmed), Checked: moment(max(b.checked, confirmed))}
	if n := len(b.past); n > 0 {
		out.Before = s.routes.path(b.past[n-1].route, from, to)
	}
	if b.more != nil {
		out.Notes = b.more.notes
		for _, r := range b.more.candidates {
			out.Candidates = append(out.Candidates, s.routes.path(r, from, to))
		}
	}
	return out
}

func moment(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// At returns the binding for a window of the past, by the rules 1 and 2.
func (s *Store) At(e fabric.Edge, start, end time.Time) (Binding, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b := s.record(e)
	if b == nil {
		return Binding{State: fabric.PathUnknown}, false
	}
	from, to := s.ends(b.key)
	t0, t1 := start.UnixNano(), end.UnixNano()
	out := s.binding(b)
	if b.version == 0 || t0 >= b.since {
		if b.route != 0 {
			switch heard := s.lastHeard(b); {
			case t1 <= s.confirmed(b):
				out.State = fabric.PathValid
			case b.state == stale || t1-heard > int64(holds(sources[b.source])), out.Source == BySightings && t1 > s.told, out.Source == ByTables:
				out.State = fabric.PathStale
			}
		}
		return out, true
	}
	out.Candidates, out.Notes = nil, nil
	all := append(slices.Clip(b.past), version{b.route, b.source, b.version, b.since, s.confirmed(b)})
	for _, v := range all {
		if v.since <= t0 && t1 <= v.until {
			out.Path, out.Source, out.Version = s.routes.path(v.route, from, to), sources[v.source], v.number
			out.Since, out.Confirmed, out.State = moment(v.since), moment(v.until), fabric.PathValid
			if v.route == 0 {
				out.State = fabric.PathUnknown
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
		if !begun || over || v.route == 0 || slices.Contains(taken, v.route) {
			continue
		}
		taken = append(taken, v.route)
		p := s.routes.path(v.route, from, to)
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

// Expire marks paths stale that were not confirmed for long, and forgets what is
// too old to be asked for.
func (s *Store) Expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := now.UnixNano()
	var dead []uint32
	for id := uint32(1); id < s.recs.next; id++ {
		b := s.recs.at(id)
		if !b.live {
			continue
		}
		heard := s.lastHeard(b)
		if t-max(b.checked, heard) > int64(keepFlows) {
			dead = append(dead, id)
			continue
		}
		if b.state == valid && t-heard > int64(holds(sources[b.source])) {
			s.count[b.state]--
			b.confirmed, b.seen, b.state = s.confirmed(b), 0, stale
			s.count[b.state]++
		}
		old := 0
		for old < len(b.past) && t-b.past[old].until > int64(keepVersions) {
			old++
		}
		s.shorten(b, old)
	}
	s.forget(dead)
}

func (s *Store) forget(dead []uint32) {
	gone := map[uint32]bool{}
	nics := map[uint32]bool{}
	for _, id := range dead {
		b := s.recs.at(id)
		gone[id], nics[b.src], nics[b.dst] = true, true, true
	}
	for nic := range nics {
		s.ofNIC[nic] = slices.DeleteFunc(s.ofNIC[nic], func(id uint32) bool { return gone[id] })
	}
	for _, id := range dead {
		b := s.recs.at(id)
		s.count[b.state]--
		s.detail(b, nil, nil, end{}, end{})
		s.shorten(b, len(b.past))
		s.unlist(b)
		s.routes.release(b.route)
		delete(s.flows, b.key)
		delete(s.contested, b.key)
		delete(s.cabling.odd, b.key)
		s.recs.drop(id)
	}
}

// Version counts the changes of paths.
func (s *Store) Version() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.version
}

// Len is the number of flows that the store knows.
func (s *Store) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.flows)
}

// Edges lists the flows the store knows between two NICs, the probing one src and
// the probed one dst, sorted; "" is any NIC.
func (s *Store) Edges(src, dst string) []fabric.Edge {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []fabric.Edge
	take := func(id uint32) {
		e := s.edge(s.recs.at(id).key)
		if (src == "" || e.Src == src) && (dst == "" || e.Dst == dst) {
			out = append(out, e)
		}
	}
	nic := src
	if nic == "" {
		nic = dst
	}
	if i, ok := s.nics[nic]; ok {
		for _, id := range s.ofNIC[i] {
			take(id)
		}
	} else if nic == "" {
		for _, id := range s.flows {
			take(id)
		}
	}
	slices.SortFunc(out, compare)
	return out
}

func compare(a, b fabric.Edge) int {
	if c := strings.Compare(a.Src, b.Src); c != 0 {
		return c
	}
	if c := strings.Compare(a.Dst, b.Dst); c != 0 {
		return c
	}
	if a.Flow != b.Flow {
		return a.Flow - b.Flow
	}
	switch {
	case a.Reply == b.Reply:
		return 0
	case b.Reply:
		return -1
	}
	return 1
}

// Turn lists every of-th flow, from the given one on: of turns with different
// numbers meet all flows.
func (s *Store) Turn(turn, of int) []fabric.Edge {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []fabric.Edge
	for id := turn%of + 1; id < int(s.recs.next); id += of {
		if b := s.recs.at(uint32(id)); b.live {
			out = append(out, s.edge(b.key))
		}
	}
	return out
}

// States counts flows by the state of their path.
func (s *Store) States() map[fabric.PathState]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := map[fabric.PathState]int{}
	for i, state := range states {
		n[state] = s.count[i]
	}
	return n
}

// Crossing lists the flows whose path, valid or stale, crosses an element, or that begin
// or end at it.
func (s *Store) Crossing(el fabric.Element) []fabric.Edge {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []fabric.Edge
	add := func(ids []uint32) {
		for _, id := range ids {
			b := s.recs.at(id)
			from, to := s.ends(b.key)
			e := s.edge(b.key)
			src, dst := e.Ends()
			if Crosses(s.routes.path(b.route, from, to), src, dst, el) {
				out = append(out, e)
			}
		}
	}
	nics, wider := s.within(el)
	for _, nic := range nics {
		if i, ok := s.nics[nic]; ok {
			add(s.ofNIC[i])
		}
	}
	for _, r := range s.routes.crossing(wider) {
		add(s.routes.all.at(r).flows)
	}
	return out
}

// within says where the flows that cross an element are found: at NICs, and on a link
// or switch that holds the element.
func (s *Store) within(el fabric.Element) (nics []string, wider string) {
	switch el.Kind {
	case fabric.KindNIC:
		return []string{el.Element}, ""
	case fabric.KindHost:
		return s.g.Ends(el.Element), ""
	case fabric.KindPort, fabric.KindQueue:
		port, _, _ := strings.Cut(el.Element, "@")
		return s.within(fabric.Element{Element: fabric.LinkID(port, s.g.Peer(port)), Kind: fabric.KindLink})
	case fabric.KindPair, fabric.KindCorridor:
		wider, _, _ = strings.Cut(el.Element, "->")
		return nil, wider
	}
	a, b, _ := fabric.SplitLink(el.Element)
	for _, e := range []string{a, b} {
		if fabric.IsNIC(e) {
			nics = append(nics, e)
		}
	}
	return nics, el.Element
}

// Crosses reports whether a path from src to dst crosses an element.
func Crosses(p fabric.Path, src, dst string, el fabric.Element) bool {
	switch el.Kind {
	case fabric.KindNIC:
		return src == el.Element || dst == el.Element
	case fabric.KindHost:
		return fabric.OwnerOf(src) == el.Element || fabric.OwnerOf(dst) == el.Element
	case fabric.KindPort, fabric.KindQueue:
		port, _, _ := strings.Cut(el.Element, "@")
		return slices.ContainsFunc(p, func(h fabric.Hop) bool { return h.Switch+":"+h.Out == port })
	case fabric.KindPair:
		from, to, _ := strings.Cut(el.Element, "->")
		return len(p) > 0 && p[0].Switch == from && p[len(p)-1].Switch == to
	case fabric.KindCorridor:
		way := strings.Split(el.Element, "->")
		for i := range p {
			if len(p)-i >= len(way) && slices.EqualFunc(p[i:i+len(way)], way, func(h fabric.Hop, sw string) bool { return h.Switch == sw }) {
				return true
			}
		}
		return false
	case fabric.KindLeafUplinks:
		return len(p) > 1 && (p[0].Switch == el.Element || p[len(p)-1].Switch == el.Element)
	}
	for _, h := range p {
		if h.Switch == el.Element {
			return true
		}
	}
	for _, d := range p.Directions(src, dst) {
		if d.Link() == el.Element {
			return true
		}
	}
	return false
}
