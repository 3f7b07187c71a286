package paths

import (
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// maxHops bounds the switches of one flow; record.seen has a bit for each.
const maxHops = 32

// maxSteps bounds the search for paths that fit.
const maxSteps = 1 << 14

// Sighting represents the report of one switch about one flow.
type Sighting struct {
	Switch string
	Port   string    // it came in by, last
	First  time.Time // it was seen there at the latest by then
	// Older are the ports it came in by before, within what the switch remembers,
	// and OldLast is until when it was seen at the first of them to end.
	Older   []string
	OldLast time.Time
	// Balanced: it came in by Port and Older in turns.
	Balanced bool
}

// Stitched is what the sightings of one flow amount to.
type Stitched struct {
	fabric.Resolved
	// Split: the packets have no one path.
	Split bool
	// Since is when the path was first seen whole; OldUntil is until when the one
	// before it was seen, zero where that is not known.
	Since, PreviousUntil time.Time
	// SightedHops has a bit for every hop of the path that its switch reported.
	SightedHops uint32
	// Mismatch is a cable that is not where the topology says.
	Mismatch *PortMismatch
}

// PortMismatch says that packets which came in by the switch port At came from the switch
// or NIC From, which the topology does not plug in there.
type PortMismatch struct{ At, From string }

// Stitcher puts sightings in order by the cables of one fabric. It is not safe for
// concurrent use.
//
// Rules:
//
//  1. An ingress port names the switch before it: from the destination's leaf back
//     to the source's NIC every hop follows from the one after it.
//  2. A silent switch is filled in if one shortest path fits that crosses every switch
//     that saw the flow, no two silent switches follow each other on it, and the flow came
//     in by one port everywhere, since reports of different moments make no path. Notes
//     name the switch. A switch that reports and did not see the flow is never filled in.
//  3. A switch beside the path that saw the flow is explained by a change of route
//     when a port that the flow came in by before leads to it. Else nothing is known.
//  4. Two ports of one switch at the same time: the packets have no one path.
//  5. Whatever else does not join up is unknown. Candidates, where any are listed,
//     are all shortest paths that fit.
type Stitcher struct {
	g      *fabric.Graph
	index  map[string]int
	names  []string
	cables [][]cable
	dist   map[int][]uint8 // links from a leaf to every switch
}

// cable leads from a port of a switch to another switch.
type cable struct {
	port    string
	far     int
	farPort string
}

const unreachable = 255

// NewStitcher returns a stitcher for a fabric.
func NewStitcher(g *fabric.Graph) *Stitcher {
	s := &Stitcher{g: g, index: map[string]int{}, dist: map[int][]uint8{}}
	for i := range g.Topo.Switches {
		s.index[g.Topo.Switches[i].Name] = i
		s.names = append(s.names, g.Topo.Switches[i].Name)
	}
	s.cables = make([][]cable, len(s.names))
	for i, name := range s.names {
		for _, e := range g.EndsOf(name) {
			_, port, _ := fabric.SplitPort(e)
			if far, farPort, ok := fabric.SplitPort(g.PeerOf(e)); ok {
				s.cables[i] = append(s.cables[i], cable{port, s.index[far], farPort})
			}
		}
	}
	return s
}

// distancesFrom returns the distances from a leaf.
func (s *Stitcher) distancesFrom(leaf int) []uint8 {
	if d, ok := s.dist[leaf]; ok {
		return d
	}
	d := make([]uint8, len(s.names))
	for i := range d {
		d[i] = unreachable
	}
	d[leaf] = 0
	queue := []int{leaf}
	for len(queue) > 0 {
		sw := queue[0]
		queue = queue[1:]
		for _, c := range s.cables[sw] {
			if d[c.far] == unreachable && d[sw] < unreachable-1 {
				d[c.far] = d[sw] + 1
				queue = append(queue, c.far)
			}
		}
	}
	s.dist[leaf] = d
	return d
}

// sightingsBySwitch are the sightings of a flow by switch.
type sightingsBySwitch map[string]*Sighting

// StitchPath binds the sightings of a flow from NIC src to NIC dst. silent reports
// whether a switch reports no flow at all. Nil means that this is not known yet, and incomplete
// sightings give no path then.
func (s *Stitcher) StitchPath(src, dst string, seen []Sighting, silent func(sw string) bool) Stitched {
	unknown := func(note string, cands []fabric.Path) Stitched {
		return Stitched{Resolved: fabric.Resolved{State: fabric.PathUnknown, Candidates: cands, Notes: []string{note}}}
	}
	switch n := len(seen); {
	case n == 0:
		return unknown("no switch sees it", nil)
	case n > maxHops:
		return unknown(fmt.Sprintf("%d switches see it, more than any path crosses", n), nil)
	}
	at := make(sightingsBySwitch, len(seen))
	balanced := ""
	for i := range seen {
		x := &seen[i]
		for _, port := range append([]string{x.Port}, x.Older...) {
			if s.g.Switch(x.Switch) == nil || s.g.LinkAt(x.Switch+":"+port) == nil {
				return unknown(fmt.Sprintf("seen at %s:%s, which is not in the topology", x.Switch, port), nil)
			}
		}
		if at[x.Switch] != nil {
			return unknown(fmt.Sprintf("%s reports it twice", x.Switch), nil)
		}
		at[x.Switch] = x
		if x.Balanced {
			balanced = x.Switch
		}
	}
	first, in := s.g.LeafOf(src)
	last, out := s.g.LeafOf(dst)
	if first == "" || last == "" {
		return unknown("an end is not plugged in", nil)
	}
	access := [2]fabric.Hop{{Switch: first, In: in}, {Switch: last, Out: out}}
	if balanced != "" {
		all, _ := s.fittingPaths(access, at)
		r := unknown(fmt.Sprintf("balanced per packet: it enters %s by several ports in turns", balanced), all)
		r.Split = true
		return r
	}
	if p, stop := s.walkBack(src, access[1], at); stop == "" {
		if x := s.unexplainedSwitch(p, at); x != "" {
			all, _ := s.fittingPaths(access, at)
			return unknown(fmt.Sprintf("%s also sees it, beside the path", x), all)
		}
		return provenPath(p, at, nil)
	}
	if silent == nil {
		return unknown("not all switches have reported yet", nil)
	}
	all, whole := s.fittingPaths(access, at)
	var fit []fabric.Path
	for _, p := range all {
		if s.unexplainedSwitch(p, at) == "" {
			fit = append(fit, p)
		}
	}
	if len(fit) == 1 && !routeChanged(at) {
		if note, ok := describeGaps(fit[0], at, silent); ok {
			return provenPath(fit[0], at, []string{note})
		}
	}
	note := fmt.Sprintf("the sightings do not form one path: %d paths fit", len(all))
	if !whole {
		note = fmt.Sprintf("the sightings fit more than %d paths", maxCandidates)
	}
	r := unknown(note, all)
	r.Mismatch = s.findMismatch(src, access[1], at, silent)
	return r
}

// provenPath returns the result for a path that the sightings prove.
func provenPath(p fabric.Path, at sightingsBySwitch, notes []string) Stitched {
	r := Stitched{Resolved: fabric.Resolved{Path: p, State: fabric.PathValid, Notes: notes}}
	for i, h := range p {
		if x := at[h.Switch]; x != nil {
			r.SightedHops |= 1 << i
			if x.First.After(r.Since) {
				r.Since = x.First
			}
		}
	}
	for _, x := range at {
		if len(x.Older) > 0 && (r.PreviousUntil.IsZero() || x.OldLast.Before(r.PreviousUntil)) {
			r.PreviousUntil = x.OldLast
		}
	}
	return r
}

// walkBack walks back from the destination's leaf. stop is where the walk ended
// before the NIC src, "" when it did not: a switch that did not see the flow, or
// the ingress port that leads back into the path or to another NIC.
func (s *Stitcher) walkBack(src string, last fabric.Hop, at sightingsBySwitch) (p fabric.Path, stop string) {
	h := last
	for {
		x := at[h.Switch]
		if x == nil {
			slices.Reverse(p)
			return p, h.Switch
		}
		h.In = x.Port
		p = append(p, h)
		in := h.Switch + ":" + h.In
		peer := s.g.PeerOf(in)
		sw, port, ok := fabric.SplitPort(peer)
		back := ok && slices.ContainsFunc(p, func(h fabric.Hop) bool { return h.Switch == sw })
		if !ok || back {
			slices.Reverse(p)
			if peer == src {
				return p, ""
			}
			return p, in
		}
		h = fabric.Hop{Switch: sw, Out: port}
	}
}

// unexplainedSwitch names a switch that saw the flow, is not on the path, and is not
// where the flow went before, or "".
func (s *Stitcher) unexplainedSwitch(p fabric.Path, at sightingsBySwitch) string {
	known := map[string]bool{}
	var before []string
	take := func(x *Sighting, ports []string) {
		known[x.Switch] = true
		for _, port := range ports {
			before = append(before, x.Switch+":"+port)
		}
	}
	for _, h := range p {
		if x := at[h.Switch]; x != nil {
			take(x, x.Older)
		}
	}
	for len(before) > 0 {
		sw, _, ok := fabric.SplitPort(s.g.PeerOf(before[0]))
		before = before[1:]
		if x := at[sw]; ok && x != nil && !known[sw] {
			take(x, append([]string{x.Port}, x.Older...))
		}
	}
	odd := ""
	for sw := range at {
		if !known[sw] && (odd == "" || sw < odd) {
			odd = sw
		}
	}
	return odd
}

// describeGaps returns notes on the hops that no switch reported. ok is false if there are too many
// for a path.
func describeGaps(p fabric.Path, at sightingsBySwitch, silent func(string) bool) (note string, ok bool) {
	gap := false
	for _, h := range p {
		if at[h.Switch] != nil {
			gap = false
			continue
		}
		if gap || !silent(h.Switch) {
			return "", false
		}
		gap = true
		if note != "" {
			note += ", "
		}
		note += h.Switch
	}
	return "filled, as one way fits: " + note, true
}

// fittingPaths lists shortest paths whose hops came in by the ports they were seen at,
// and that at every distance cross a switch that saw the flow, if one did. whole is
// false, and none is listed, when they are too many.
func (s *Stitcher) fittingPaths(access [2]fabric.Hop, at sightingsBySwitch) (out []fabric.Path, whole bool) {
	if s.g.Topo.Routing == fabric.Adaptive {
		return s.fittingCandidates(access, at)
	}
	dist := s.distancesFrom(s.index[access[0].Switch])
	last := s.index[access[1].Switch]
	if dist[last] == unreachable || int(dist[last]) >= maxHops {
		return nil, true
	}
	var known [maxHops]bool
	for sw := range at {
		if d := dist[s.index[sw]]; d < maxHops {
			known[d] = true
		}
	}
	p := make(fabric.Path, dist[last]+1)
	steps := 0
	var walk func(sw int, port string, level int)
	walk = func(sw int, port string, level int) {
		if steps++; steps > maxSteps || len(out) > maxCandidates {
			return
		}
		x := at[s.names[sw]]
		if x == nil && known[level] {
			return
		}
		p[level] = fabric.Hop{Switch: s.names[sw], Out: port}
		if level == 0 {
			p[0].In = access[0].In
			if x == nil || slices.Contains(x.currentPorts(), p[0].In) {
				out = append(out, slices.Clone(p))
			}
			return
		}
		for _, c := range s.cables[sw] {
			if int(dist[c.far]) == level-1 && (x == nil || slices.Contains(x.currentPorts(), c.port)) {
				p[level].In = c.port
				walk(c.far, c.farPort, level-1)
			}
		}
	}
	walk(last, access[1].Out, int(dist[last]))
	if steps > maxSteps || len(out) > maxCandidates {
		return nil, false
	}
	return out, true
}

// fittingCandidates lists the paths of a topology with adaptive routing whose hops came in by the ports they were seen at.
// whole is false, and none is listed, when they are too many.
func (s *Stitcher) fittingCandidates(access [2]fabric.Hop, at sightingsBySwitch) (out []fabric.Path, whole bool) {
	src, dst := s.g.PeerOf(access[0].Switch+":"+access[0].In), s.g.PeerOf(access[1].Switch+":"+access[1].Out)
	fits := func(_ int, sw, in string) bool {
		x := at[sw]
		return x == nil || slices.Contains(x.currentPorts(), in)
	}
	return s.g.FittingPaths(src, dst, maxCandidates, fits)
}

// routeChanged reports whether the flow's route changed lately.
func routeChanged(at sightingsBySwitch) bool {
	for _, x := range at {
		if len(x.Older) > 0 {
			return true
		}
	}
	return false
}

// isBeside reports whether a flow that comes in by the port of a sighting does not take a path.
func (x *Sighting) isBeside(p fabric.Path) bool {
	return !slices.ContainsFunc(p, func(h fabric.Hop) bool { return h.Switch == x.Switch && h.In == x.Port })
}

// leftPath returns when a flow was first seen beside a path after a moment, and the shortest paths by the switches that saw it there. What
// others saw may be of before. The time is zero if no switch saw it beside the path, and the paths are none if that is where no
// shortest path leads.
func (s *Stitcher) leftPath(src, dst string, seen []Sighting, p fabric.Path, since time.Time) (left time.Time, by []fabric.Path) {
	at := sightingsBySwitch{}
	for i := range seen {
		x := &seen[i]
		if _, known := s.index[x.Switch]; !known || !x.isBeside(p) || !x.First.After(since) {
			continue
		}
		at[x.Switch] = x
		if left.IsZero() || x.First.Before(left) {
			left = x.First
		}
	}
	first, in := s.g.LeafOf(src)
	last, out := s.g.LeafOf(dst)
	if len(at) == 0 || first == "" || last == "" {
		return left, nil
	}
	by, _ = s.fittingPaths([2]fabric.Hop{{Switch: first, In: in}, {Switch: last, Out: out}}, at)
	return left, by
}

// currentPorts returns the ports by which packets come in now.
func (x *Sighting) currentPorts() []string {
	if x.Balanced {
		return append([]string{x.Port}, x.Older...)
	}
	return []string{x.Port}
}

// findMismatch finds the one cable that has to be elsewhere for the sightings to join up: the
// walk back stops at a port, and what is left makes one way from the source's NIC to
// one switch, or nothing is left and the NIC itself is plugged in there.
func (s *Stitcher) findMismatch(src string, last fabric.Hop, at sightingsBySwitch, silent func(string) bool) *PortMismatch {
	if routeChanged(at) {
		return nil
	}
	tail, stop := s.walkBack(src, last, at)
	if len(tail) == 0 {
		return nil
	}
	if _, _, port := fabric.SplitPort(stop); !port {
		if silent(stop) {
			return nil
		}
		stop = tail[0].Switch + ":" + tail[0].In
	}
	rest := make(sightingsBySwitch, len(at))
	for sw, x := range at {
		rest[sw] = x
	}
	for _, h := range tail {
		delete(rest, h.Switch)
	}
	if len(rest) == 0 {
		if !fabric.IsNIC(s.g.PeerOf(stop)) {
			return nil // from a switch that is not named
		}
		return &PortMismatch{At: stop, From: src}
	}
	for sw := range rest {
		p, stop2 := s.walkBack(src, fabric.Hop{Switch: sw}, rest)
		if stop2 == "" && len(p) == len(rest) {
			return &PortMismatch{At: stop, From: sw}
		}
	}
	return nil
}
