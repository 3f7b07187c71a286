package paths

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Sprayed flows: their packets take several paths in turn, and none is the path. The rules:
//
//  1. With forwarding spray in the topology file, every flow with several shortest paths is sprayed, and takes all of them.
//     Traces and sightings of it join different packets, and are evidence of no path and of no cable.
//  2. Without it, flows that leave a leaf are sprayed from when three of four of them that were seen take several ports of
//     one switch in turn, or cross at the same time several switches of which a shortest path crosses one, or half of the
//     recent traces had answers of several switches at one hop limit, or other hops than the trace before and that as well,
//     until less than a quarter do. The answers to hop-limited probes count as those of traces do. A link that goes down and
//     up again moves flows too, but not most of a leaf's.
//  3. Where the sightings show that the packets part behind the leaf, a flow takes some of its shortest paths. No switch
//     reports which, so that its path is unknown and traces are evidence of none.
//  4. Where forwarding tables with adaptive routing bind a flow, they say whether it is sprayed, and over which paths.
//  5. What the topology file does not say is reported (Modes): leaves that spray without spray in the file, and with it leaves
//     whose flows have stayed on one path each for modeCalm.

const (
	// maxSprayedPaths bounds the paths of a sprayed flow. A flow with more is not said to be sprayed.
	maxSprayedPaths = 1024
	// maxExpandedHops bounds the hops of paths that are kept for all windows, of 48 octets each. The paths of further pairs of
	// NICs are made for each window.
	maxExpandedHops = 1 << 21
	// leastSprayed is how many flows or traces of a leaf have to be known before it is said to spray.
	leastSprayed = 4
	// recentTraces is how many traces of a leaf count. Earlier ones count less and less.
	recentTraces = 64
	// checkedFlows bounds the flows that one look at the sightings counts, and sprayCheck is the interval between two.
	checkedFlows = 1 << 13
	sprayCheck   = 2 * time.Second
	// modeCalm is for how long the flows of a leaf have to stay on one path each until it is said not to spray.
	modeCalm = 5 * time.Minute
	// steadyNats is the logarithm of how unlikely traces must be that found the paths of before, if packets were sprayed.
	steadyNats = 14
	// followedHops bounds the hop limits of flows whose answers are remembered.
	followedHops = 1 << 12
)

// spraying is what is known of how switches choose between equal paths. The store's lock guards it.
type spraying struct {
	leaves map[string]*leafSpray
	// ways are the shortest paths between two leaves, by their names. The first hops have no In, and the last ones no Out.
	ways map[[2]string][]fabric.Path
	// expanded are the same of pairs of NICs, from which packets go to the other, by their numbers. hops counts theirs.
	expanded map[[2]uint32][]fabric.Path
	hops     int
	tables   []*Tables // that bind flows of the store
	// answers are the last answers to hop-limited probes.
	answers map[hopKey]*hopAnswers
}

// leafSpray is what was seen of the flows that leave a leaf.
type leafSpray struct {
	traces, split float64 // recent ones, and how many of these are split; hop-limited probes are among both
	hopProbes     float64 // of these
	since         [2]int64
	// seen and seenSplit count the flows of the last look at the sightings, and those that were split.
	seen, seenSplit int
	// behind is the switch behind the leaf where the packets part, or "" if they part at the leaf, or where is not known.
	behind string
	steady steadiness
}

// Places in leafSpray.since, by the source that shows the spraying.
const (
	sprayTraced = iota
	spraySighted
)

// sprayShares are the shares of flows or traces from which a leaf is said to spray. With two ways, nine of sixteen traces have
// other hops than the last, of which the same holds, and with four more than seven of eight.
var sprayShares = [...]float64{sprayTraced: 0.5, spraySighted: 0.75}

func newSpraying() *spraying {
	return &spraying{leaves: map[string]*leafSpray{}, ways: map[[2]string][]fabric.Path{}, expanded: map[[2]uint32][]fabric.Path{},
		answers: map[hopKey]*hopAnswers{}}
}

// waysOf returns the shortest paths of a flow, without the ports at its ends. It returns none if there are more than
// maxSprayedPaths. The lock is held for writing.
func (s *Store) waysOf(k flowKey) []fabric.Path {
	from, to := s.accessPorts(k)
	key := [2]string{from.sw, to.sw}
	ways, ok := s.spraying.ways[key]
	if !ok {
		src, dst := s.flowOf(k).Endpoints()
		ways = s.g.ShortestPaths(src, dst, maxSprayedPaths+1)
		if len(ways) > maxSprayedPaths {
			ways = nil
		}
		for _, p := range ways {
			p[0].In, p[len(p)-1].Out = "", ""
		}
		s.spraying.ways[key] = slices.Clip(ways)
	}
	return ways
}

// hasSeveralWays reports whether a flow has several shortest paths. The lock is held for writing.
func (s *Store) hasSeveralWays(k flowKey) bool { return len(s.waysOf(k)) > 1 }

// leafSprays returns from when on the first leaf of a flow is known to spray. ok is false if it does not, or if packets part behind
// it. The lock is held.
func (s *Store) leafSprays(k flowKey) (since int64, ok bool) {
	if s.g.Topo.Sprays() {
		return 0, true
	}
	from, _ := s.accessPorts(k)
	l := s.spraying.leaves[from.sw]
	if l == nil || l.behind != "" {
		return 0, false
	}
	return l.spraysSince()
}

// spraysSince returns from when on packets of the leaf's flows are known to be sprayed. ok is false if they are not.
func (l *leafSpray) spraysSince() (since int64, ok bool) {
	for _, at := range l.since {
		if at != 0 && (!ok || at < since) {
			since, ok = at, true
		}
	}
	return since, ok
}

// partsBehind reports whether the packets of the flows that leave a flow's first leaf part behind it. The lock is held.
func (s *Store) partsBehind(k flowKey) bool {
	from, _ := s.accessPorts(k)
	l := s.spraying.leaves[from.sw]
	return l != nil && l.behind != "" && !s.g.Topo.Sprays()
}

// sprayedSince returns from when on a flow is known to be sprayed over all its shortest paths. ok is false if it is not. The
// lock is held for writing.
func (s *Store) sprayedSince(k flowKey) (since int64, ok bool) {
	if since, ok = s.leafSprays(k); !ok || !s.hasSeveralWays(k) {
		return 0, false
	}
	if id, known := s.flows[k]; known && sources[s.records.entryAt(id).source] == ByTables {
		return 0, false
	}
	return since, true
}

// sprayedBinding returns the binding of a flow that was sprayed all the time from a moment on. ok is false if it was not.
func (s *Store) sprayedBinding(e fabric.Flow, start, end int64) (out Binding, ok bool) {
	k, known := s.keyOf(e)
	if !known {
		return Binding{}, false
	}
	s.mu.RLock()
	_, ok = s.leafSprays(k)
	s.mu.RUnlock()
	if !ok {
		return Binding{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	since, ok := s.sprayedSince(k)
	if !ok || start < since {
		return Binding{}, false
	}
	out = Binding{State: fabric.PathUnknown, Sprayed: true, Since: timeOf(since), Confirmed: timeOf(end), Checked: timeOf(end)}
	if id, known := s.flows[k]; known {
		b := s.records.entryAt(id)
		out.Source, out.Version = sources[b.source], b.version
		out.Confirmed = timeOf(s.checkedAt(b))
		out.Checked = out.Confirmed
	}
	out.Candidates = s.expandWays(k)
	out.Notes = []string{"sprayed: switches choose the path of each packet anew"}
	return out, true
}

// sprayedByTables reports whether forwarding tables say that a flow has taken all candidates of its binding since a time.
func (s *Store) sprayedByTables(e fabric.Flow, b *Binding, since time.Time) bool {
	return b.State == fabric.PathUnknown && len(b.Candidates) > 0 &&
		slices.ContainsFunc(s.spraying.tables, func(t *Tables) bool { return t.isSprayed(e, since) })
}

// expandWays returns the shortest paths of a flow. They are shared: callers do not change them. The lock is held for writing.
func (s *Store) expandWays(k flowKey) []fabric.Path {
	pair := [2]uint32{k.src, k.dst}
	if k.flow&replyBit != 0 {
		pair = [2]uint32{k.dst, k.src}
	}
	if out, ok := s.spraying.expanded[pair]; ok {
		return out
	}
	ways := s.waysOf(k)
	from, to := s.accessPorts(k)
	hops := make([]fabric.Hop, 0, len(ways)*len(ways[0]))
	out := make([]fabric.Path, len(ways))
	for i, p := range ways {
		at := len(hops)
		hops = append(hops, p...)
		out[i] = hops[at:len(hops):len(hops)]
		out[i][0].In, out[i][len(p)-1].Out = from.port, to.port
	}
	if s.spraying.hops+len(hops) <= maxExpandedHops {
		s.spraying.expanded[pair], s.spraying.hops = out, s.spraying.hops+len(hops)
	}
	return out
}

// forgetWays forgets the shortest paths, because cables are elsewhere. The lock is held.
func (s *Store) forgetWays() {
	clear(s.spraying.ways)
	clear(s.spraying.expanded)
	s.spraying.hops = 0
}

// leafOf returns what was seen of the flows that leave a flow's first leaf. The lock is held.
func (s *Store) leafOf(k flowKey) *leafSpray {
	from, _ := s.accessPorts(k)
	l := s.spraying.leaves[from.sw]
	if l == nil {
		l = &leafSpray{}
		s.spraying.leaves[from.sw] = l
	}
	return l
}

// isNewer reports whether nothing is known of a flow that is as new as a time. The lock is held.
func (s *Store) isNewer(k flowKey, at time.Time) bool {
	id, ok := s.flows[k]
	return !ok || at.UnixNano() > s.records.entryAt(id).checked
}

// countTrace counts a trace of a flow with several ways, unless it is known already. It is split if several switches answered at
// one hop limit, or if other hops answered than those of the trace before, of which the same holds: a change of route moves a
// flow once. Traces with silent hops are not compared, and those of flows without a record are not counted. The lock is held.
func (s *Store) countTrace(k flowKey, t fabric.Trace, newer bool) {
	silent := slices.ContainsFunc(t.Hops, func(h fabric.RawHop) bool { return !h.Address.IsValid() })
	id, known := s.flows[k]
	if !known || !newer || !t.Balanced && (silent || len(t.Hops) == 0) || !s.hasSeveralWays(k) {
		return
	}
	b, l := s.records.entryAt(id), s.leafOf(k)
	split, same := t.Balanced, false
	if !silent {
		h := fnv.New32a()
		for _, hop := range t.Hops {
			h.Write(hop.Address.AsSlice())
		}
		hops := max(h.Sum32(), 1)
		moved := b.hops != 0 && b.hops != hops
		same = b.hops == hops && !split
		split = split || moved && b.moved
		b.hops, b.moved = hops, moved
	}
	l.countAnswers(split, t.TracedAt)
	l.steady.add(same, split || b.moved, len(s.waysOf(k)), t.TracedAt)
}

// countAnswers counts what answered a flow's packets once.
func (l *leafSpray) countAnswers(split bool, at time.Time) {
	if l.traces++; split {
		l.split++
	}
	l.setShare(sprayTraced, l.split, l.traces, at)
	if l.traces >= recentTraces {
		l.traces, l.split, l.hopProbes = l.traces/2, l.split/2, l.hopProbes/2
	}
}

// setShare notes how many of the known flows or traces of a leaf were split. It reports whether the leaf has begun to spray by
// this source, or ended.
func (l *leafSpray) setShare(source int, split, known float64, at time.Time) (changed bool) {
	before := l.since[source]
	switch {
	case known < leastSprayed, 4*split < known:
		l.since[source] = 0
	case split >= sprayShares[source]*known && l.since[source] == 0:
		l.since[source] = at.UnixNano()
	}
	return l.since[source] != before
}
