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
	oddFlows   = 3
	oddSettles = 10 * time.Second
	maxOdd     = 1 << 17 // flows
)

// Miscabling is two cables that are swapped.
type Miscabling struct {
	// Topology are the links as the topology says, Fabric as they were found.
	Topology [2]string `json:"topology"`
	Fabric   [2]string `json:"fabric"`
	// Flows is how many flows showed it, LLDP whether neighbours did.
	Flows int       `json:"flows"`
	LLDP  bool      `json:"lldp"`
	Found time.Time `json:"found"`
}

// cabling is what contradicts the topology's cables.
type cabling struct {
	odd map[key]oddity
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

type oddity struct {
	Odd
	since time.Time
}

func newCabling() *cabling {
	c := &cabling{odd: map[key]oddity{}}
	for i := range c.neighbours {
		c.neighbours[i] = map[string]string{}
	}
	return c
}

// tell takes what a flow shows; nil: nothing odd.
func (c *cabling) tell(k key, o *Odd, at time.Time) {
	have, ok := c.odd[k]
	switch {
	case o == nil:
		delete(c.odd, k)
	case (!ok || have.Odd != *o) && len(c.odd) < maxOdd:
		c.odd[k] = oddity{*o, at}
	}
}

// neighbours takes what LLDP told a switch, whole.
func (s *Store) neighbours(sw string, all []sighting.Neighbour) { s.plugged(fromFabric, sw, all) }

// Neighbours takes what series tell of a switch's neighbours, whole. What it takes does
// not replace what the switch's own agent tells.
func (s *Store) Neighbours(sw string, all []sighting.Neighbour) { s.plugged(fromSeries, sw, all) }

func (s *Store) plugged(source int, sw string, all []sighting.Neighbour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.cabling.neighbours[source]
	for _, end := range s.g.Ends(sw) {
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

// traceOdd finds the one hop of a trace that did not come from where its ingress
// port's cable leads; told is false when the trace does not say.
func traceOdd(g *fabric.Graph, src string, t fabric.Trace, r fabric.Resolved) (o *Odd, told bool) {
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
		if ok && before != "" && owner(g.Peer(in)) != before {
			if o != nil {
				return nil, false
			}
			o = &Odd{At: in, From: before}
		}
		before = sw
	}
	return o, o != nil
}

// owner is the switch of a port, or the NIC itself.
func owner(end string) string {
	if fabric.IsNIC(end) {
		return end
	}
	return fabric.OwnerOf(end)
}

// swap plugs the cables of two links the other way: a to b, a's far end to b's.
type swap struct{ a, aFar, b, bFar string }

func (w swap) topology() [2]string {
	return sorted(fabric.LinkID(w.a, w.aFar), fabric.LinkID(w.b, w.bFar))
}
func (w swap) found() [2]string {
	return sorted(fabric.LinkID(w.a, w.b), fabric.LinkID(w.aFar, w.bFar))
}

func sorted(a, b string) [2]string {
	if b < a {
		a, b = b, a
	}
	return [2]string{a, b}
}

// expects says from whom packets would come in at the four ends.
func (w swap) expects() map[string]string {
	return map[string]string{w.a: owner(w.b), w.b: owner(w.a), w.aFar: owner(w.bFar), w.bFar: owner(w.aFar)}
}

// CheckCables names cables that are swapped, those found before included. changed
// tells that the fabric's graph is another one since: Sightings must be recabled.
func (s *Store) CheckCables(now time.Time) (standing []Miscabling, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	holding := s.holding(now)
	for _, w := range append(s.byLLDP(), s.byFlows(holding)...) {
		if s.g.Peer(w.a) != w.aFar || s.g.Peer(w.b) != w.bFar {
			continue // an earlier one has taken its cables
		}
		m := Miscabling{Topology: w.topology(), Fabric: w.found(), LLDP: s.cabling.heard(w.a, w.b) || s.cabling.heard(w.aFar, w.bFar), Found: now}
		for end, from := range w.expects() {
			if h, ok := holding[end]; ok && h.from == from {
				m.Flows += h.flows
			}
		}
		s.recable(w)
		changed = true
		undone := func(x Miscabling) bool { return x.Topology == m.Fabric && x.Fabric == m.Topology }
		if n := len(s.cabling.standing); slices.ContainsFunc(s.cabling.standing, undone) {
			s.cabling.standing = slices.DeleteFunc(s.cabling.standing, undone)
		} else if n < len(s.g.Topo.Links) {
			s.cabling.standing = append(s.cabling.standing, m)
		}
	}
	if changed {
		clear(s.cabling.odd)
	}
	return slices.Clone(s.cabling.standing), changed
}

// held is what flows agree on at one port.
type held struct {
	from  string
	flows int
}

// holding are the ports at which what flows show holds.
func (s *Store) holding(now time.Time) map[string]held {
	type count struct {
		held
		since time.Time
		mixed bool
	}
	at := map[string]*count{}
	for _, o := range s.cabling.odd {
		if now.Sub(o.since) < oddSettles {
			continue
		}
		c := at[o.At]
		if c == nil {
			c = &count{held: held{from: o.From}, since: o.since}
			at[o.At] = c
		}
		c.flows++
		c.mixed = c.mixed || c.from != o.From
		if o.since.Before(c.since) {
			c.since = o.since
		}
	}
	out := map[string]held{}
	for end, c := range at {
		if c.flows >= oddFlows && !c.mixed && !s.usedAsPlugged(end, c.since) {
			out[end] = c.held
		}
	}
	return out
}

// usedAsPlugged reports whether a flow was seen after a moment to come in by a port
// over the topology's cable.
func (s *Store) usedAsPlugged(in string, after time.Time) bool {
	used := func(id uint32) bool {
		b := s.recs.at(id)
		if b.state != valid || s.confirmed(b) <= after.UnixNano() {
			return false
		}
		from, to := s.ends(b.key)
		return slices.ContainsFunc(s.routes.path(b.route, from, to), func(h fabric.Hop) bool { return h.Switch+":"+h.In == in })
	}
	peer := s.g.Peer(in)
	if i, ok := s.nics[peer]; ok {
		return slices.ContainsFunc(s.ofNIC[i], used)
	}
	return slices.ContainsFunc(s.routes.crossing(fabric.LinkID(in, peer)), func(r uint32) bool { return slices.ContainsFunc(s.routes.all.at(r).flows, used) })
}

// byFlows lists the swaps that explain what holds.
func (s *Store) byFlows(holding map[string]held) []swap {
	best := map[string][]swap{} // by port that they explain
	score := map[string]int{}
	for end, h := range holding {
		ends := s.g.Ends(h.from)
		if fabric.IsNIC(h.from) {
			ends = []string{h.from}
		}
		for _, far := range ends {
			w := swap{a: end, aFar: s.g.Peer(end), b: far, bFar: s.g.Peer(far)}
			n := s.explains(w, holding)
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
		for e, from := range w.expects() {
			if holding[e].from == from && (len(best[e]) != 1 || best[e][0].found() != w.found()) {
				sure = false
			}
		}
		if sure && !slices.ContainsFunc(out, func(x swap) bool { return x.found() == w.found() }) {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b swap) int {
		return strings.Compare(a.topology()[0]+a.topology()[1], b.topology()[0]+b.topology()[1])
	})
	return out
}

// explains counts the ports whose strangeness a swap explains; 0: it cannot be.
func (s *Store) explains(w swap, holding map[string]held) int {
	tier := func(end string) int { return s.g.SwitchTier(fabric.OwnerOf(end)) }
	if w.bFar == "" || w.aFar == w.b || tier(w.a) != tier(w.bFar) || tier(w.aFar) != tier(w.b) {
		return 0
	}
	n := 0
	for end, from := range w.expects() {
		switch h, ok := holding[end]; {
		case ok && h.from == from:
			n++
		case ok:
			return 0
		case from != owner(s.g.Peer(end)) && !fabric.IsNIC(end) && s.usedAsPlugged(end, s.oddSince(w, holding)):
			return 0
		}
	}
	return n
}

// oddSince is when the first flow showed something that a swap explains.
func (s *Store) oddSince(w swap, holding map[string]held) time.Time {
	var first time.Time
	want := w.expects()
	for _, o := range s.cabling.odd {
		if _, ok := holding[o.At]; ok && want[o.At] == o.From && (first.IsZero() || o.since.Before(first)) {
			first = o.since
		}
	}
	return first
}

// byLLDP lists the swaps that neighbours tell of.
func (s *Store) byLLDP() []swap {
	told := map[string][]string{} // of every port, by itself and by others
	for _, known := range s.cabling.neighbours {
		for a, b := range known {
			told[a] = append(told[a], b)
			told[b] = append(told[b], a)
		}
	}
	says := func(a, b string) bool {
		return !slices.ContainsFunc(told[a], func(x string) bool { return x != b })
	}
	var out []swap
	for _, known := range s.cabling.neighbours {
		for a, b := range known {
			w := swap{a: a, aFar: s.g.Peer(a), b: b, bFar: s.g.Peer(b)}
			if w.aFar == b || w.aFar == "" || w.bFar == "" || !says(a, b) || !says(b, a) || !says(w.aFar, w.bFar) || !says(w.bFar, w.aFar) {
				continue
			}
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b swap) int { return strings.Compare(a.a, b.a) })
	return out
}

// heard reports whether a port's neighbour is another, by either source.
func (c *cabling) heard(port, other string) bool {
	return c.neighbours[fromFabric][port] == other || c.neighbours[fromSeries][port] == other
}

// recable takes a swap into the graph. What traces told of paths over the two links
// is not believed any more; what sightings told is read again.
func (s *Store) recable(w swap) {
	for _, l := range w.topology() {
		for _, r := range s.routes.crossing(l) {
			for _, id := range s.routes.all.at(r).flows {
				if b := s.recs.at(id); b.state == valid && sources[b.source] == ByTrace {
					s.count[b.state]--
					b.confirmed, b.state = b.since, stale
					s.count[b.state]++
				}
			}
		}
	}
	s.g = fabric.NewGraph(s.g.Topo.Replugged(w.aFar, w.b))
}
