package clocksync

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Follower holds a node's knowledge of clocks: the maps from its coordinator, and the estimates of its
// own pairs for times without a coordinator. Its rules, which the tests are named after:
//
//  1. Fresh maps relate two clocks each of which is locked or in holdover.
//  2. When maps age, the source with the smaller bound places each edge: the aged maps, or the
//     estimate of the edge's own pair.
//  3. A clock whose maps age is in holdover, and lost once its bound exceeds LostBound. Silence never
//     locks a clock. A pair relates once its bound is below LockBound, and until it exceeds LostBound.
//  4. Maps of two frames relate nothing. A new frame, which a restarted coordinator makes, is used
//     from the moment when a clock is locked in it and the present frame has no updates any more. While the present
//     frame has updates, it stays, unless the coordinator that leads has had another one for some time, and all clocks
//     are locked in that.
//  5. Without maps and estimates there is no relation, and the edge's samples have no place.
//  6. A clock that watches saw move is no longer claimed: one clock of the node's own, if most of its
//     edges saw the same and edges of at least two peers are among them; else the far clock of each
//     edge that saw it. It is claimed again when all its data are from windows that began later.
//
// Times named mono are of any clock of this process that does not jump.
type Follower struct {
	allowance   int64 // allowance of a pair, unless a map has another
	frame       uint64
	other       otherFrame
	changes     map[string]clockChanges // by clock
	relative    bool
	updatedAt   time.Duration // time of the last update
	hasUpdate   bool
	maps        map[string]*followedMap
	pairs       map[PairID]pairRecord
	movedClocks map[string]time.Duration // clocks of the node that moved, with the time
	movedPairs  map[PairID]time.Duration // pairs with a clock that moved, with the time
}

type followedMap struct {
	Map
	wasLocked bool // the clock was locked before
}

type pairRecord struct {
	Estimate
	closedAt, measuredAt time.Duration // times of the last window, and of the last one with a measurement
	related              bool          // its bound has been below LockBound
}

// Limits of usable maps and estimates.
const (
	// LockBound is the bound, ns, below which a clock becomes related.
	LockBound = 1e6
	// LostBound is the bound, ns, above which a map is not used. It is larger than LockBound: while a
	// path is not what it was, the clocks behind it become more and more uncertain, and a path that
	// became longer by far more than that should still be reported.
	LostBound = 10e6
	// stalePair is the time after its last window for which a pair's estimate is used.
	stalePair = 30 * time.Second
	// DefaultAllowance is the asymmetry allowance, ns, of a pair of clocks. It equals the value of a
	// coordinator without a topology.
	DefaultAllowance = 125
	// settlingTime is the time after a clock moved until an update is based only on windows that began
	// later: up to a window until each ends, as much until the coordinator's cycle, and the delay of
	// the update.
	settlingTime = 2*Window + 200*time.Millisecond
	// silentFrame is the time after its last update from which another frame may be used: coordinators send one a second.
	silentFrame = 1500 * time.Millisecond
	// steadyFrame is the time for which another frame of the coordinator that leads must have had updates.
	steadyFrame = 10 * time.Second
)

// otherFrame is what is known of a frame that is not used: that of another coordinator.
type otherFrame struct {
	update  *Update // the last one; nil if there is none
	at      time.Duration
	since   time.Duration        // of updates without a gap
	counted map[string][2]uint32 // steps and drifts of its clocks when the present frame had its last update
}

// clockChanges counts the changes of a clock over all frames.
type clockChanges struct {
	steps, drifts uint32
	counted       [2]uint32 // those that the frame in use has counted
}

// NewFollower returns a follower without maps and estimates.
func NewFollower() *Follower {
	return &Follower{allowance: DefaultAllowance, maps: map[string]*followedMap{}, pairs: map[PairID]pairRecord{},
		movedClocks: map[string]time.Duration{}, movedPairs: map[PairID]time.Duration{}, changes: map[string]clockChanges{}}
}

// Frame returns the identifier of the frame in use, or 0.
func (f *Follower) Frame() uint64 { return f.frame }

// ApplyUpdate replaces the maps by those of a coordinator's update, or keeps the update for later: rule 4. leads is set if
// the coordinator leads.
func (f *Follower) ApplyUpdate(u *Update, mono time.Duration, leads bool) {
	if u.Frame == f.frame || len(f.maps) == 0 {
		f.use(u, mono)
		return
	}
	f.other.keep(u, mono)
	if f.supersedes(u, mono) || leads && mono-f.other.since >= steadyFrame && f.allLockedIn(u) {
		f.use(u, mono)
	}
}

// FallBack begins to use the frame of another coordinator if the present one has no updates any more: rule 4. It reports
// whether it did.
func (f *Follower) FallBack(mono time.Duration) bool {
	u := f.other.update
	if u == nil || len(f.maps) == 0 || mono-f.other.at >= silentFrame || !f.supersedes(u, mono) {
		return false
	}
	f.use(u, f.other.at)
	return true
}

// supersedes reports whether the update of another frame is to be used, since the present one has none: at first if all clocks
// that are locked stay so, and later, when they would not be in any case, if any clock is locked.
func (f *Follower) supersedes(u *Update, mono time.Duration) bool {
	if f.mapsFresh(mono) {
		return mono-f.updatedAt >= silentFrame && f.allLockedIn(u)
	}
	return slices.ContainsFunc(u.Maps, func(m ClockMap) bool { return m.State == Locked })
}

// allLockedIn reports whether every clock that is locked, of which there is one, is locked in an update as well.
func (f *Follower) allLockedIn(u *Update) bool {
	locked := map[string]bool{}
	for i := range u.Maps {
		if u.Maps[i].State == Locked {
			locked[u.Maps[i].Clock] = true
		}
	}
	if len(locked) == 0 {
		return false
	}
	for name, m := range f.maps {
		if m.State == Locked && !locked[name] {
			return false
		}
	}
	return true
}

// keep keeps the update of a frame that is not used.
func (o *otherFrame) keep(u *Update, mono time.Duration) {
	if o.update == nil || o.update.Frame != u.Frame || mono-o.at >= silentFrame {
		o.since, o.counted = mono, nil
	}
	o.update, o.at = u, mono
}

// note remembers what the other frame has counted until now.
func (o *otherFrame) note() {
	if o.update == nil {
		return
	}
	o.counted = make(map[string][2]uint32, len(o.update.Maps))
	for i := range o.update.Maps {
		m := &o.update.Maps[i]
		o.counted[m.Clock] = [2]uint32{m.Steps, m.Drifts}
	}
}

// count counts the changes of the clocks of an update. Those that a frame counted before it was used, and while another one
// was, count once.
func (f *Follower) count(u *Update) {
	for i := range u.Maps {
		m := &u.Maps[i]
		now := [2]uint32{m.Steps, m.Drifts}
		k, known := f.changes[m.Clock]
		before := k.counted
		if u.Frame != f.frame {
			var noted bool
			if before, noted = f.other.counted[m.Clock]; !noted || f.other.update.Frame != u.Frame {
				before = now
			}
		}
		if !known {
			before = [2]uint32{}
		}
		k.steps += now[0] - min(before[0], now[0])
		k.drifts += now[1] - min(before[1], now[1])
		k.counted = now
		f.changes[m.Clock] = k
	}
}

// use replaces the maps by those of an update.
func (f *Follower) use(u *Update, mono time.Duration) {
	f.count(u)
	if u.Frame != f.frame {
		clear(f.maps)
		f.other = otherFrame{}
	}
	f.other.note()
	f.frame, f.relative, f.updatedAt, f.hasUpdate = u.Frame, u.Relative, mono, true
	over := func(at time.Duration) bool { return mono-at >= settlingTime }
	maps.DeleteFunc(f.movedClocks, func(_ string, at time.Duration) bool { return over(at) })
	maps.DeleteFunc(f.movedPairs, func(_ PairID, at time.Duration) bool { return over(at) })
	named := make(map[string]bool, len(u.Maps))
	for i := range u.Maps {
		m := &u.Maps[i]
		named[m.Clock] = true
		old := f.maps[m.Clock]
		f.maps[m.Clock] = &followedMap{Map: m.Map, wasLocked: m.State == Locked || old != nil && old.wasLocked}
	}
	for c := range f.maps {
		if !named[c] {
			delete(f.maps, c)
		}
	}
	maps.DeleteFunc(f.changes, func(c string, _ clockChanges) bool { return !named[c] })
}

// AddEstimate stores the estimate of a pair at the end of a window.
func (f *Follower) AddEstimate(id PairID, e Estimate, mono time.Duration) {
	if e.Quality == None {
		delete(f.pairs, id)
		return
	}
	if f.WindowSpoilt(id, mono) {
		delete(f.pairs, id)
		return
	}
	before, ok := f.pairs[id]
	p := pairRecord{e, mono, mono, before.related}
	if ok && e.Quality == Held {
		p.measuredAt = before.measuredAt
	}
	f.pairs[id] = p
}

// ForgetPairs drops the pairs for which keep returns false.
func (f *Follower) ForgetPairs(keep func(PairID) bool) {
	maps.DeleteFunc(f.pairs, func(id PairID, _ pairRecord) bool { return !keep(id) })
	maps.DeleteFunc(f.movedPairs, func(id PairID, _ time.Duration) bool { return !keep(id) })
}

// Witness is the finding of an edge's watch: how far, ns, its far clock is ahead of the relation that
// places the edge, if it is.
type Witness struct {
	ID    PairID
	By    float64
	Moved bool
}

// ApplyWitnesses applies the findings of all watches that have one: rule 6. changed is true if less is
// claimed than before.
func (f *Follower) ApplyWitnesses(all []Witness, mono time.Duration) (changed bool) {
	type votes struct{ edges, ahead, behind int }
	count := map[string]*votes{}
	for i := range all {
		w := &all[i]
		v := count[w.ID.LocalClock()]
		if v == nil {
			v = &votes{}
			count[w.ID.LocalClock()] = v
		}
		v.edges++
		if w.Moved && w.By > 0 {
			v.ahead++
		} else if w.Moved {
			v.behind++
		}
	}
	doubt := func(id PairID) {
		// A pair that was used again in between has moved again.
		_, had := f.movedPairs[id]
		if _, placed := f.pairs[id]; !had || placed {
			f.movedPairs[id], changed = mono, true
			delete(f.pairs, id)
		}
	}
	for clock, v := range count {
		if _, had := f.movedClocks[clock]; had || 2*max(v.ahead, v.behind) <= v.edges {
			continue
		}
		peers := map[string]bool{}
		for i := range all {
			if w := &all[i]; w.Moved && w.ID.LocalClock() == clock && w.By > 0 == (v.ahead > v.behind) {
				peers[w.ID.PeerClock()] = true
			}
		}
		if len(peers) < 2 {
			continue
		}
		f.movedClocks[clock], changed = mono, true
		for id := range f.pairs {
			if id.LocalClock() == clock {
				doubt(id)
			}
		}
	}
	for i := range all {
		if all[i].Moved {
			doubt(all[i].ID)
		}
	}
	return changed
}

// WindowSpoilt reports whether the window of a pair that ends now began before one of its clocks was
// seen to move.
func (f *Follower) WindowSpoilt(id PairID, mono time.Duration) bool {
	at, doubted := f.movedPairs[id]
	return doubted && mono-at < Window
}

// usableMap returns the map of a clock if it can place samples, or nil.
func (f *Follower) usableMap(clock string) *followedMap {
	if _, struck := f.movedClocks[clock]; struck {
		return nil
	}
	m := f.maps[clock]
	if m == nil || m.State != Locked && m.State != Holdover {
		return nil
	}
	return m
}

// RelateByMaps relates two clocks by their maps at a time of the local one. sigma is the standard
// deviation, ns, without the allowance. ok is false if the maps do not relate them.
func (f *Follower) RelateByMaps(local, peer string, now int64) (r Relation, sigma float64, ok bool) {
	a, b := f.usableMap(local), f.usableMap(peer)
	if a == nil || b == nil || a.Component != b.Component {
		return r, 0, false
	}
	// At that time the peer's clock shows the time that its map converts to the same frame time.
	ahead := a.FrameTime(now) - b.Ref - b.Offset
	there := b.Ref + ahead - int64(math.Round(b.Rate/(1+b.Rate)*float64(ahead)))
	r = Relation{Ref: now, Offset: there - now, Rate: (1+a.Rate)/(1+b.Rate) - 1}
	sa, sb := a.grownSigma(now), b.grownSigma(there)
	bound := a.statisticalBound(now) + b.statisticalBound(there)
	r.Bound = int64(math.Ceil(bound)) + a.Allowance + b.Allowance
	return r, math.Hypot(sa, sb), true
}

func (m *followedMap) grownSigma(now int64) float64 {
	return GrownSigma(m.Sigma, m.RateSigma, time.Duration(now-m.Ref))
}

func (m *followedMap) statisticalBound(now int64) float64 {
	return StatisticalBound(m.Sigma, m.RateSigma, time.Duration(now-m.Ref))
}

// mapsFresh reports whether the last update of the coordinator is fresh.
func (f *Follower) mapsFresh(mono time.Duration) bool {
	return f.hasUpdate && mono-f.updatedAt < FreshFor
}

// MapHint returns the relation of a pair by the maps, if they are fresh: rule 1.
func (f *Follower) MapHint(id PairID, now int64, mono time.Duration) (r Relation, sigma float64, ok bool) {
	if _, doubted := f.movedPairs[id]; doubted || !f.mapsFresh(mono) {
		return r, 0, false
	}
	return f.RelateByMaps(id.LocalClock(), id.PeerClock(), now)
}

// RelationFor returns the relation that places an edge's samples from now on. It returns false if there
// is none.
func (f *Follower) RelationFor(id PairID, now int64, mono time.Duration) (Relation, bool) {
	r, _, mapped := f.RelateByMaps(id.LocalClock(), id.PeerClock(), now)
	if _, doubted := f.movedPairs[id]; doubted {
		mapped = false
	}
	if mapped && f.mapsFresh(mono) {
		return r, true
	}
	p, paired := f.pairs[id]
	if !paired || mono-p.closedAt > stalePair {
		return r, mapped && r.Bound < LostBound
	}
	age := time.Duration(now - p.Ref)
	own := Relation{Ref: now, Offset: p.Offset + int64(math.Round(p.Rate*float64(age))), Rate: p.Rate}
	allowance := f.allowance
	if a, b := f.maps[id.LocalClock()], f.maps[id.PeerClock()]; a != nil && b != nil {
		allowance = a.Allowance + b.Allowance
	}
	grown := GrownSigma(math.Hypot(math.Hypot(p.Sigma, p.Wander), p.Inherited), math.Hypot(p.RateSigma, p.RateWander), age)
	own.Bound = int64(math.Ceil(BoundSigmas*grown+thermalOffset(mono-p.measuredAt))) + allowance
	limit := int64(LockBound)
	if p.related {
		limit = LostBound
	}
	p.related = own.Bound < limit
	f.pairs[id] = p
	if mapped && r.Bound < LostBound && (!p.related || r.Bound <= own.Bound) {
		return r, true
	}
	return own, p.related
}

// Status is the state of a clock of the node: its offset and drift against the frame, and their bound.
// In holdover the offset and the drift are predicted, since nothing measures them at present.
type Status struct {
	State    State
	Relative bool
	Frame    uint64
	// Offset is the clock minus the frame, ns, and Drift is the rate at which it grows. Both are valid
	// only if Known is set.
	Known     bool
	Offset    int64
	Drift     float64
	Bound     int64 // statistical part, ns
	Allowance int64
	// Counted is set if Steps and Drifts are valid.
	Counted bool
	Steps   uint32
	Drifts  uint32
	Peers   uint32
}

// StatusOf returns the status of a clock at a time of its own.
func (f *Follower) StatusOf(clock string, now int64, mono time.Duration) Status {
	m := f.maps[clock]
	s := Status{State: Converging, Relative: f.relative, Frame: f.frame}
	if m == nil {
		return s
	}
	s.State, s.Counted, s.Peers, s.Allowance = m.State, true, m.Peers, m.Allowance
	s.Steps, s.Drifts = f.changes[clock].steps, f.changes[clock].drifts
	if _, struck := f.movedClocks[clock]; struck {
		s.State = Converging
		return s
	}
	if !m.wasLocked && m.State != Locked {
		return s
	}
	s.Known, s.Offset, s.Drift = true, now-m.FrameTime(now), -m.Rate/(1+m.Rate)
	s.Bound = int64(math.Ceil(m.statisticalBound(now)))
	if s.State == Locked && !f.mapsFresh(mono) {
		s.State = Holdover
	}
	if s.State == Holdover && s.Bound > LostBound {
		s.State = Lost
	}
	return s
}
