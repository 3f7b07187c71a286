package paths

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// steadiness is for how long the traces of a leaf's flows have found the paths of the traces before.
type steadiness struct {
	since, last int64   // of the first and the last trace
	again       int     // traces that found the path of the one before
	nats        float64 // how unlikely that is if packets are sprayed
	// seen is the number of flows that came in at their last leaf by one port for modeCalm, by the last look at the sightings.
	seen int
}

// add takes a trace of a flow with several ways, which found the path of before, or another one.
func (c *steadiness) add(same, moved bool, ways int, at time.Time) {
	c.last = at.UnixNano()
	switch {
	case moved || c.since == 0:
		c.since, c.again, c.nats = c.last, 0, 0
	case same:
		c.again++
		c.nats += math.Log(float64(ways))
	}
}

// isSteady reports whether the flows of a leaf stay on one path each: by their traces or by what switches see, and by neither not.
func (l *leafSpray) isSteady(now time.Time) bool {
	if _, sprays := l.spraysSince(); sprays || l.seenSplit > 0 {
		return false
	}
	c := &l.steady
	lasts, fresh := c.last-c.since >= int64(modeCalm), now.UnixNano()-c.last <= int64(traceHolds)
	traced := c.again >= leastSprayed && c.nats >= steadyNats && lasts && fresh
	seen := c.seen >= leastSprayed && 4*c.seen >= 3*l.seen
	return traced || seen
}

// Modes returns the switches that choose between equal paths otherwise than the topology file says, by name. A leaf that is joined with
// others, since packets of all of them part at one switch behind, has the earliest time.
func (s *Store) Modes(now time.Time) (out []fabric.SwitchMode) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, leaf := range slices.Sorted(maps.Keys(s.spraying.leaves)) {
		l := s.spraying.leaves[leaf]
		m := fabric.SwitchMode{Switch: leaf, Leaves: []string{leaf}, Sprays: !s.g.Topo.Sprays(), Seen: l.seen, SeenSplit: l.seenSplit,
			Traces: int(l.traces), TracesSplit: int(l.split), HopProbes: int(l.hopProbes)}
		since, sprays := l.spraysSince()
		switch {
		case m.Sprays && !sprays, !m.Sprays && !l.isSteady(now):
			continue
		case m.Sprays:
			m.Since = timeOf(since)
		default:
			m.Traces, m.TracesSplit, m.Since = l.steady.again, 0, timeOf(l.steady.since)
			if l.steady.since == 0 {
				m.Since = now.Add(-modeCalm)
			}
		}
		if l.behind != "" {
			m.Switch = l.behind
		}
		i := slices.IndexFunc(out, func(x fabric.SwitchMode) bool { return x.Switch == m.Switch })
		if i < 0 {
			out = append(out, m)
			continue
		}
		x := &out[i]
		x.Leaves = append(x.Leaves, leaf)
		if m.Since.Before(x.Since) {
			x.Since = m.Since
		}
		x.Seen, x.SeenSplit, x.Traces = x.Seen+m.Seen, x.SeenSplit+m.SeenSplit, x.Traces+m.Traces
		x.TracesSplit, x.HopProbes = x.TracesSplit+m.TracesSplit, x.HopProbes+m.HopProbes
	}
	slices.SortFunc(out, func(a, b fabric.SwitchMode) int { return strings.Compare(a.Switch, b.Switch) })
	return out
}

// IsSpraying reports whether packets of the flows that leave a leaf are known to be sprayed now, at the leaf or behind it.
func (s *Store) IsSpraying(leaf string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.g.Topo.Sprays() {
		return true
	}
	l := s.spraying.leaves[leaf]
	if l == nil {
		return false
	}
	_, sprays := l.spraysSince()
	return sprays
}

// hopKey names a hop limit of a flow.
type hopKey struct {
	flowKey
	ttl int
}

// hopAnswers are the answers to the hop-limited probes of a flow at one hop limit.
type hopAnswers struct {
	counts map[netip.Addr]uint64
	last   netip.Addr // that answered last
	moved  bool       // another one had answered before, or several answered at once
}

// AddHopCounts takes the counts of a flow's hop-limited probes, as an agent has them at a time. What answered since the counts before
// counts as the answer to a trace. Hop limits at which all ways have the same switch show nothing.
func (s *Store) AddHopCounts(e fabric.Flow, counts []fabric.HopCount, at time.Time) {
	k, ok := s.keyOf(e)
	if !ok || len(counts) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range counts {
		if c := &counts[i]; s.partsBefore(k, c.TTL) {
			s.countHopProbe(hopKey{k, c.TTL}, c.Answered, at)
		}
	}
}

// partsBefore reports whether the ways of a flow have several hops at a hop limit. The lock is held for writing.
func (s *Store) partsBefore(k flowKey, ttl int) bool {
	ways := s.waysOf(k)
	return len(ways) > 1 && ttl >= 1 && ttl <= len(ways[0]) && slices.ContainsFunc(ways, func(p fabric.Path) bool {
		return p[ttl-1].Switch != ways[0][ttl-1].Switch || p[ttl-1].In != ways[0][ttl-1].In
	})
}

// countHopProbe counts what has answered at a hop limit since the counts before. The lock is held.
func (s *Store) countHopProbe(k hopKey, counts map[netip.Addr]uint64, at time.Time) {
	h := s.spraying.answers[k]
	if h == nil {
		if len(s.spraying.answers) >= followedHops {
			clear(s.spraying.answers)
		}
		h = &hopAnswers{}
		s.spraying.answers[k] = h
	}
	answered, last := 0, netip.Addr{}
	for from, n := range counts {
		before := h.counts[from]
		if before > n {
			before = 0 // the counts began anew
		}
		if n > before {
			answered, last = answered+1, from
		}
	}
	first := h.counts == nil
	h.counts = maps.Clone(counts)
	if answered == 0 {
		return
	}
	moved := answered > 1 || h.last.IsValid() && h.last != last
	split := moved && h.moved
	h.last, h.moved = last, moved
	if first {
		return // a count may span changes of before
	}
	l := s.leafOf(k.flowKey)
	l.hopProbes++
	l.countAnswers(split, at)
	l.steady.add(!moved, moved, len(s.waysOf(k.flowKey)), at)
}

// sightedFlow is what the sightings of a flow say of how switches choose its way.
type sightedFlow struct {
	flowKey
	// split is set if a switch saw it at several ports in turn, or several switches of which a path crosses one at the same time.
	// chooser is the switch where its packets part then, and "" if that is not known.
	split   bool
	chooser string
	// steady is set if its last leaf has seen it by one port alone for modeCalm.
	steady bool
}

// countSightings counts how many of the flows that leave each leaf are split. It reports whether a leaf has begun to spray, or
// ended.
func (s *Store) countSightings(flows []sightedFlow, at time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := map[*leafSpray]map[string]int{}
	for _, l := range s.spraying.leaves {
		l.seen, l.seenSplit, l.steady.seen = 0, 0, 0
	}
	for i := range flows {
		f := &flows[i]
		if !s.hasSeveralWays(f.flowKey) {
			continue
		}
		l := s.leafOf(f.flowKey)
		l.seen++
		if f.steady {
			l.steady.seen++
		}
		if !f.split {
			continue
		}
		l.seenSplit++
		if parts[l] == nil {
			parts[l] = map[string]int{}
		}
		parts[l][f.chooser]++
	}
	for leaf, l := range s.spraying.leaves {
		changed = l.setShare(spraySighted, float64(l.seenSplit), float64(l.seen), at) || changed
		if where := partingSwitch(leaf, parts[l], l); where != l.behind {
			l.behind, changed = where, true
		}
	}
	return changed
}

// partingSwitch returns the switch behind a leaf where most packets part, if three of four flows of a leaf that sprays part behind it.
func partingSwitch(leaf string, parts map[string]int, l *leafSpray) (where string) {
	if l.since[spraySighted] == 0 {
		return ""
	}
	if len(parts) == 0 {
		return l.behind
	}
	most, behind, all := 0, 0, 0
	for _, sw := range slices.Sorted(maps.Keys(parts)) {
		n := parts[sw]
		if all += n; sw == leaf || sw == "" {
			continue
		}
		if behind += n; n > most {
			most, where = n, sw
		}
	}
	if 4*behind < 3*all {
		return ""
	}
	return where
}

// checkSpraying looks at some of the flows for spraying, if a flow was split since the last look or before it, or if the topology file
// says that all are. It reports whether flows have to be bound again, because a leaf has begun to spray, or ended: switches need not
// report the flows then. The lock of the sightings is held.
func (s *Sightings) checkSpraying(now time.Time) (changed bool) {
	if now.Sub(s.sprayChecked) < sprayCheck || !s.sawSplit && !s.stitcher.g.Topo.Sprays() {
		return false
	}
	s.sprayChecked, s.sawSplit = now, false
	flows := make([]sightedFlow, 0, min(len(s.flows), checkedFlows))
	for k, seen := range s.flows {
		f, suspicious := s.waysSeen(k, seen, now)
		s.sawSplit = s.sawSplit || suspicious
		if flows = append(flows, f); len(flows) == checkedFlows {
			break
		}
	}
	return s.store.countSightings(flows, now)
}

// waysSeen returns what the sightings of a flow say of its ways. suspicious is set if they may be of several ways at the same time, also
// where the reports of the switches are too old to say so. The lock of the sightings is held.
func (s *Sightings) waysSeen(k flowKey, seen []switchSighting, now time.Time) (f sightedFlow, suspicious bool) {
	f.flowKey = k
	from, to := s.store.accessPorts(k)
	first, known := s.stitcher.index[from.sw]
	if !known {
		return f, false
	}
	distances := s.stitcher.distancesFrom(first)
	parted := maxHops // the least distance from the first leaf at which the flow is at several places at once
	for i := range seen {
		x := &seen[i]
		d := int(distances[x.sw])
		if s.stitcher.names[x.sw] == to.sw {
			f.steady = x.old == nil && now.UnixNano()-x.first >= int64(modeCalm)
		}
		if x.balanced {
			f.split, parted = true, min(parted, s.partedBefore(x, d))
		}
		for j := range seen[:i] {
			y := &seen[j]
			if s.stitcher.g.Topo.Routing == fabric.Adaptive || int(distances[y.sw]) != d || d == unreachable {
				continue // a path that is not minimal may cross both
			}
			suspicious = true
			if s.overlap(x, y) {
				f.split, parted = true, min(parted, d)
			}
		}
	}
	if f.split {
		f.chooser = s.chooserAt(k, seen, distances, parted)
	}
	return f, suspicious || f.split
}

// overlap reports whether each of two switches saw a flow after the other one had seen it first.
func (s *Sightings) overlap(x, y *switchSighting) bool {
	a, b := s.tables[s.stitcher.names[x.sw]], s.tables[s.stitcher.names[y.sw]]
	return a != nil && b != nil && a.until.UnixNano() > y.first && b.until.UnixNano() > x.first
}

// partedBefore returns the distance at which a flow is at several places that a switch at a distance sees at several ports in turn: the
// switches before it, or else the ends of parallel links.
func (s *Sightings) partedBefore(x *switchSighting, distance int) int {
	before := ""
	for _, port := range append([]uint32{x.port}, x.old.ports...) {
		sw := fabric.OwnerOf(s.stitcher.g.PeerOf(s.stitcher.names[x.sw] + ":" + s.ports[port]))
		if before != "" && sw != before {
			return distance - 1
		}
		before = sw
	}
	return distance
}

// chooserAt returns the switch where the packets of a flow part that are at several places at a distance from its first leaf. It is "" if
// the switches up to there do not all report.
func (s *Sightings) chooserAt(k flowKey, seen []switchSighting, distances []uint8, parted int) string {
	from, _ := s.store.accessPorts(k)
	chooser := from.sw
	for d := 1; d < parted; d++ {
		chooser = ""
		for i := range seen {
			if int(distances[seen[i].sw]) == d {
				chooser = s.stitcher.names[seen[i].sw]
			}
		}
		if chooser == "" || !s.allReport(k, d) {
			return ""
		}
	}
	return chooser
}

// allReport reports whether all switches report that the ways of a flow cross at a distance from its first leaf.
func (s *Sightings) allReport(k flowKey, distance int) bool {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	for _, p := range s.store.waysOf(k) {
		if distance < len(p) && s.tables[p[distance].Switch] == nil {
			return false
		}
	}
	return true
}
