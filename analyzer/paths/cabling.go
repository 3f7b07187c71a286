package paths

import (
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

// When two cables are said to be swapped.
//
// Flows show it: packets that came in by a port came from another switch, or NIC,
// than the topology plugs in there (Odd). That holds for a port when oddFlows flows
// say so and have said so for oddSettles, all of them the same, and no flow has been
// seen since to come in there as the topology says. One port can be explained by many
// swaps: a swap is named when it explains two ports or more, nothing that holds
// contradicts it at its other ports, and no other explains as much of them.
//
// LLDP shows it: a port's neighbour is another port of the topology, and no neighbour
// that is known of the four ports says otherwise. Neighbours are known from switches'
// agents, forwarding tables and series; where two of them differ neither is believed.
//
// What is not named: cables that were swapped between different tiers, more than two
// cables in a ring, a cable plugged into a port that was free, and, by flows, two
// cables between the same two switches.
const (
	minMismatchFlows   = 3
	mismatchSettleTime = 10 * time.Second
	maxMismatches      = 1 << 17 // flows
)

// Miscabling represents two swapped cables.
type Miscabling struct {
	// Topology has the links of the topology, and Fabric the links as they were found.
	Topology [2]string `json:"topology"`
	Fabric   [2]string `json:"fabric"`
	// Flows is the number of flows that showed it. LLDP is set if neighbours showed it.
	Flows int       `json:"flows"`
	LLDP  bool      `json:"lldp"`
	Found time.Time `json:"found"`
}

// cabling holds the observations that contradict the topology's cables.
type cabling struct {
	mismatches map[flowKey]timedMismatch
	// neighbours are by source: switch port to port or NIC, of those with a cable.
	neighbours [neighbourSources]map[string]string
	standing   []Miscabling
}

// The sources of neighbours.
const (
	fromFabric = iota // switches' agents, or forwarding tables
	fromSeries
	neighbourSources
)

type timedMismatch struct {
	PortMismatch
	since time.Time
}

func newCabling() *cabling {
	c := &cabling{mismatches: map[flowKey]timedMismatch{}}
	for i := range c.neighbours {
		c.neighbours[i] = map[string]string{}
	}
	return c
}

// recordMismatch records the mismatch that a flow shows. Nil means that it shows none.
func (c *cabling) recordMismatch(k flowKey, o *PortMismatch, at time.Time) {
	have, ok := c.mismatches[k]
	switch {
	case o == nil:
		delete(c.mismatches, k)
	case (!ok || have.PortMismatch != *o) && len(c.mismatches) < maxMismatches:
		c.mismatches[k] = timedMismatch{*o, at}
	}
}

// setAgentNeighbours replaces the LLDP neighbours that a switch's agent reported.
func (s *Store) setAgentNeighbours(sw string, all []sighting.Neighbour) {
	s.setNeighbours(fromFabric, sw, all)
}

// SetSeriesNeighbours replaces the neighbours of a switch from series. They do not replace those that the
// switch's own agent reports.
func (s *Store) SetSeriesNeighbours(sw string, all []sighting.Neighbour) {
	s.setNeighbours(fromSeries, sw, all)
}

func (s *Store) setNeighbours(source int, sw string, all []sighting.Neighbour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.cabling.neighbours[source]
	for _, end := range s.g.EndsOf(sw) {
		delete(known, end)
	}
	for _, n := range all {
		near, far := sw+":"+n.Port, n.System+":"+n.SystemPort
		if nic := s.g.NIC(n.System + "/" + n.SystemPort); nic != nil {
			far = nic.ID()
		}
		if s.g.LinkAt(near) != nil && s.g.LinkAt(far) != nil {
			known[near] = far
		}
	}
}

// traceMismatch finds the one hop of a trace that did not come from where its ingress
// port's cable leads. known is false if the trace does not show it.
func traceMismatch(g *fabric.Graph, src string, t fabric.Trace, r fabric.Resolved) (o *PortMismatch, known bool) {
	if r.State == fabric.PathValid {
		return nil, true
	}
	if t.Balanced {
		return nil, false
	}
	before := src
	for _, h := range t.Hops {
		in := g.EndOf(h.Address)
		sw, _, ok := fabric.SplitPort(in)
		if ok && before != "" && endOwner(g.PeerOf(in)) != before {
			if o != nil {
				return nil, false
			}
			o = &PortMismatch{At: in, From: before}
		}
		before = sw
	}
	return o, o != nil
}

// endOwner returns the switch of a port, or the NIC itself.
func endOwner(end string) string {
	if fabric.IsNIC(end) {
		return end
	}
	return fabric.OwnerOf(end)
}

// swap plugs the cables of two links the other way: a to b, a's far end to b's.
type swap struct{ a, aFar, b, bFar string }

func (w swap) topologyLinks() [2]string {
	return sortedPair(fabric.LinkID(w.a, w.aFar), fabric.LinkID(w.b, w.bFar))
}
func (w swap) fabricLinks() [2]string {
	return sortedPair(fabric.LinkID(w.a, w.b), fabric.LinkID(w.aFar, w.bFar))
}

func sortedPair(a, b string) [2]string {
	if b < a {
		a, b = b, a
	}
	return [2]string{a, b}
}

// expectedOwners returns the switches or NICs from which packets would come in at the four ends.
func (w swap) expectedOwners() map[string]string {
	return map[string]string{w.a: endOwner(w.b), w.b: endOwner(w.a), w.aFar: endOwner(w.bFar), w.bFar: endOwner(w.aFar)}
}

// CheckCables returns the swapped cables, including those found before. changed reports whether
// the graph of the fabric has changed, so that sightings must be bound again.
func (s *Store) CheckCables(now time.Time) (standing []Miscabling, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	holding := s.settledPorts(now)
	for _, w := range append(s.byLLDP(), s.byFlows(holding)...) {
		if s.g.PeerOf(w.a) != w.aFar || s.g.PeerOf(w.b) != w.bFar {
			continue // an earlier one has taken its cables
		}
		m := Miscabling{Topology: w.topologyLinks(), Fabric: w.fabricLinks(), LLDP: s.cabling.hasNeighbour(w.a, w.b) || s.cabling.hasNeighbour(w.aFar, w.bFar), Found: now}
		for end, from := range w.expectedOwners() {
			if h, ok := holding[end]; ok && h.from == from {
				m.Flows += h.flows
			}
		}
		s.applySwap(w)
		changed = true
		undone := func(x Miscabling) bool { return x.Topology == m.Fabric && x.Fabric == m.Topology }
		if n := len(s.cabling.standing); slices.ContainsFunc(s.cabling.standing, undone) {
			s.cabling.standing = slices.DeleteFunc(s.cabling.standing, undone)
		} else if n < len(s.g.Topo.Links) {
			s.cabling.standing = append(s.cabling.standing, m)
		}
	}
	if changed {
		clear(s.cabling.mismatches)
	}
	return slices.Clone(s.cabling.standing), changed
}

// settledOwner is what flows agree on at one port.
type settledOwner struct {
	from  string
	flows int
}

// settledPorts returns the ports at which flows have settled.
func (s *Store) settledPorts(now time.Time) map[string]settledOwner {
	type count struct {
		settledOwner
		since time.Time
		mixed bool
	}
	at := map[string]*count{}
	for _, o := range s.cabling.mismatches {
		if now.Sub(o.since) < mismatchSettleTime {
			continue
		}
		c := at[o.At]
		if c == nil {
			c = &count{settledOwner: settledOwner{from: o.From}, since: o.since}
			at[o.At] = c
		}
		c.flows++
		c.mixed = c.mixed || c.from != o.From
		if o.since.Before(c.since) {
			c.since = o.since
		}
	}
	out := map[string]settledOwner{}
	for end, c := range at {
		if c.flows >= minMismatchFlows && !c.mixed && !s.usedAsPlugged(end, c.since) {
			out[end] = c.settledOwner
		}
	}
	return out
}

// usedAsPlugged reports whether a flow was seen after a moment to come in by a port
// over the topology's cable.
func (s *Store) usedAsPlugged(in string, after time.Time) bool {
	used := func(id uint32) bool {
		b := s.records.entryAt(id)
		if b.state != stateValid || s.confirmedUntil(b) <= after.UnixNano() {
			return false
		}
		from, to := s.accessPorts(b.flowKey)
		return slices.ContainsFunc(s.routes.expandPath(b.route, from, to), func(h fabric.Hop) bool { return h.Switch+":"+h.In == in })
	}
	peer := s.g.PeerOf(in)
	if i, ok := s.nics[peer]; ok {
		return slices.ContainsFunc(s.recordsByNIC[i], used)
	}
	return slices.ContainsFunc(s.routes.routesCrossing(fabric.LinkID(in, peer)), func(r uint32) bool { return slices.ContainsFunc(s.routes.all.entryAt(r).flows, used) })
}

// byFlows returns the swaps that explain the settled ports.
func (s *Store) byFlows(holding map[string]settledOwner) []swap {
	best := map[string][]swap{} // by port that they explain
	score := map[string]int{}
	for end, h := range holding {
		ends := s.g.EndsOf(h.from)
		if fabric.IsNIC(h.from) {
			ends = []string{h.from}
		}
		for _, far := range ends {
			w := swap{a: end, aFar: s.g.PeerOf(end), b: far, bFar: s.g.PeerOf(far)}
			n := s.countExplained(w, holding)
			switch {
			case n < 2 || n < score[end]:
			case n > score[end]:
				score[end], best[end] = n, []swap{w}
			default:
				best[end] = append(best[end], w)
			}
		}
	}
	var out []swap
	for _, all := range best {
		w := all[0]
		sure := true
		for e, from := range w.expectedOwners() {
			if holding[e].from == from && (len(best[e]) != 1 || best[e][0].fabricLinks() != w.fabricLinks()) {
				sure = false
			}
		}
		if sure && !slices.ContainsFunc(out, func(x swap) bool { return x.fabricLinks() == w.fabricLinks() }) {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b swap) int {
		return strings.Compare(a.topologyLinks()[0]+a.topologyLinks()[1], b.topologyLinks()[0]+b.topologyLinks()[1])
	})
	return out
}

// countExplained returns the number of ports whose mismatch a swap explains, or 0 if the swap is impossible.
func (s *Store) countExplained(w swap, holding map[string]settledOwner) int {
	tier := func(end string) int { return s.g.SwitchTier(fabric.OwnerOf(end)) }
	if w.bFar == "" || w.aFar == w.b || tier(w.a) != tier(w.bFar) || tier(w.aFar) != tier(w.b) {
		return 0
	}
	n := 0
	for end, from := range w.expectedOwners() {
		switch h, ok := holding[end]; {
		case ok && h.from == from:
			n++
		case ok:
			return 0
		case from != endOwner(s.g.PeerOf(end)) && !fabric.IsNIC(end) && s.usedAsPlugged(end, s.mismatchSince(w, holding)):
			return 0
		}
	}
	return n
}

// mismatchSince returns the time at which a flow first showed a mismatch that a swap explains.
func (s *Store) mismatchSince(w swap, holding map[string]settledOwner) time.Time {
	var first time.Time
	want := w.expectedOwners()
	for _, o := range s.cabling.mismatches {
		if _, ok := holding[o.At]; ok && want[o.At] == o.From && (first.IsZero() || o.since.Before(first)) {
			first = o.since
		}
	}
	return first
}

// byLLDP returns the swaps that neighbours show.
func (s *Store) byLLDP() []swap {
	reported := map[string][]string{} // of every port, by itself and by others
	for _, known := range s.cabling.neighbours {
		for a, b := range known {
			reported[a] = append(reported[a], b)
			reported[b] = append(reported[b], a)
		}
	}
	says := func(a, b string) bool {
		return !slices.ContainsFunc(reported[a], func(x string) bool { return x != b })
	}
	var out []swap
	for _, known := range s.cabling.neighbours {
		for a, b := range known {
			w := swap{a: a, aFar: s.g.PeerOf(a), b: b, bFar: s.g.PeerOf(b)}
			if w.aFar == b || w.aFar == "" || w.bFar == "" || !says(a, b) || !says(b, a) || !says(w.aFar, w.bFar) || !says(w.bFar, w.aFar) {
				continue
			}
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b swap) int { return strings.Compare(a.a, b.a) })
	return out
}

// hasNeighbour reports whether a port's neighbour is another port, by either source.
func (c *cabling) hasNeighbour(port, other string) bool {
	return c.neighbours[fromFabric][port] == other || c.neighbours[fromSeries][port] == other
}

// applySwap applies a swap to the graph. It drops traced paths over the two links. Sightings are
// bound again.
func (s *Store) applySwap(w swap) {
	for _, l := range w.topologyLinks() {
		for _, r := range s.routes.routesCrossing(l) {
			for _, id := range s.routes.all.entryAt(r).flows {
				if b := s.records.entryAt(id); b.state == stateValid && sources[b.source] == ByTrace {
					s.stateCounts[b.state]--
					b.confirmed, b.state = b.since, stateStale
					s.stateCounts[b.state]++
				}
			}
		}
	}
	s.g = fabric.NewGraph(s.g.Topo.WithSwappedCables(w.aFar, w.b))
	s.forgetWays()
}
