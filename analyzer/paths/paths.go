// Package paths binds probe flows to the switches, ports and links they cross.
//
// A trace yields the addresses that answered at each hop limit. Resolve turns
// them into a path by the topology: a hop's address is that of its ingress
// port, its egress port is where the next hop's cable begins. A silent hop is
// filled only when a single shortest path fits what did answer; when several
// fit they are candidates and the state is unknown. A path is never guessed.
package paths

import (
	"fmt"
	"net/netip"
	"sort"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// candidateLimit bounds the shortest paths considered for one flow.
const candidateLimit = 256

// RawHop is what answered at one hop limit; an invalid Address is a silent hop.
type RawHop struct {
	TTL     int        `json:"ttl"`
	Address netip.Addr `json:"address,omitzero"`
	RTTNS   *int64     `json:"rtt_ns,omitempty"`
}

// Trace is one hop-limited trace as a node reports it.
type Trace struct {
	Edge     string           `json:"edge"`
	State    fabric.PathState `json:"state"`
	TracedAt time.Time        `json:"traced_at"`
	Reached  bool             `json:"reached"`
	// Balanced: several ways answered at one hop limit; Hops are one of each.
	Balanced bool     `json:"balanced,omitempty"`
	Hops     []RawHop `json:"hops"`
	Notes    []string `json:"notes,omitempty"`
}

// Resolved is a trace in the topology's terms.
type Resolved struct {
	Path       fabric.Path
	State      fabric.PathState
	Candidates []fabric.Path
	Notes      []string
}

// Resolve binds the hops of a trace from NIC src to NIC dst.
func Resolve(g *fabric.Graph, src, dst string, t Trace) Resolved {
	unknown := func(note string, cands []fabric.Path) Resolved {
		return Resolved{State: fabric.PathUnknown, Candidates: cands, Notes: append(append([]string{}, t.Notes...), note)}
	}
	if t.State == fabric.PathUnknown && len(t.Hops) == 0 {
		return unknown("no hop answered", nil)
	}
	if t.Balanced {
		return unknown("balanced per packet: the flow has no one path", g.ShortestPaths(src, dst, candidateLimit))
	}
	hops := t.Hops
	if !t.Reached {
		for len(hops) > 0 && !hops[len(hops)-1].Address.IsValid() {
			hops = hops[:len(hops)-1]
		}
	}
	// The number of hops is known when the destination answered, or when the
	// last hop is the leaf that the destination is plugged into.
	complete := t.Reached
	ends := make([]string, len(hops)) // ingress port or switch, "" when silent
	for i, h := range hops {
		if !h.Address.IsValid() {
			continue
		}
		end := g.EndOf(h.Address)
		if end == "" {
			end = switchOf(g, h.Address)
		}
		if end == "" {
			return unknown(fmt.Sprintf("hop %d answered from %s, which no port of the topology has", h.TTL, h.Address), nil)
		}
		ends[i] = end
	}
	leaf, _ := g.LeafOf(dst)
	if len(ends) > 0 && leaf != "" && fabric.OwnerOf(ends[len(ends)-1]) == leaf {
		complete = true
	}
	if p, ok := direct(g, src, dst, ends); ok && complete {
		return Resolved{Path: p, State: fabric.PathValid, Notes: t.Notes}
	}
	var fit []fabric.Path
	for _, c := range g.ShortestPaths(src, dst, candidateLimit) {
		if matches(c, ends, complete) {
			fit = append(fit, c)
		}
	}
	switch {
	case len(fit) == 1 && complete:
		return Resolved{Path: fit[0], State: fabric.PathValid, Notes: append(append([]string{}, t.Notes...), "silent hops filled: one path fits")}
	case len(fit) == 0:
		return unknown("no path of the topology fits the hops that answered", nil)
	}
	return unknown(fmt.Sprintf("%d paths fit the hops that answered", len(fit)), fit)
}

func switchOf(g *fabric.Graph, a netip.Addr) string {
	for i := range g.Topo.Switches {
		for _, own := range g.Topo.Switches[i].Addresses {
			if own == a {
				return g.Topo.Switches[i].Name
			}
		}
	}
	return ""
}

// direct builds a path from ingress ports that all answered and join up.
func direct(g *fabric.Graph, src, dst string, ends []string) (fabric.Path, bool) {
	if len(ends) == 0 {
		return nil, false
	}
	p := make(fabric.Path, 0, len(ends))
	prev := src
	for i, end := range ends {
		sw, port, ok := fabric.SplitPort(end)
		if !ok {
			return nil, false
		}
		peer := g.Peer(end)
		if i == 0 {
			if peer != src {
				return nil, false
			}
		} else {
			owner, out, ok := fabric.SplitPort(peer)
			if !ok || owner != prev {
				return nil, false
			}
			p[i-1].Out = out
		}
		p = append(p, fabric.Hop{Switch: sw, In: port})
		prev = sw
	}
	leaf, out := g.LeafOf(dst)
	if prev != leaf {
		return nil, false
	}
	p[len(p)-1].Out = out
	return p, true
}

// matches reports whether a candidate agrees with every hop that answered;
// exact also asks for the same length.
func matches(c fabric.Path, ends []string, exact bool) bool {
	if len(ends) > len(c) || exact && len(ends) != len(c) {
		return false
	}
	for i, end := range ends {
		if end == "" {
			continue
		}
		if sw, port, ok := fabric.SplitPort(end); ok {
			if c[i].Switch != sw || c[i].In != port {
				return false
			}
		} else if c[i].Switch != end {
			return false
		}
	}
	return true
}

// Binding is what the store knows of one flow.
type Binding struct {
	Path       fabric.Path
	State      fabric.PathState
	Candidates []fabric.Path
	// Since is when the path was first seen, Checked when it was last traced.
	Since, Checked time.Time
	// Before is the path that Path replaced, last confirmed at BeforeChecked.
	Before        fabric.Path
	BeforeChecked time.Time
	Notes         []string
	// Raw is the trace behind the binding.
	Raw Trace
}

// Store keeps the newest binding of every flow. It is safe for concurrent use.
type Store struct {
	g       *fabric.Graph
	mu      sync.RWMutex
	flows   map[fabric.Edge]*Binding
	intern  map[string]fabric.Path
	version uint64
}

// NewStore returns an empty store for a fabric.
func NewStore(g *fabric.Graph) *Store {
	return &Store{g: g, flows: map[fabric.Edge]*Binding{}, intern: map[string]fabric.Path{}}
}

// Update takes a node's trace. A trace that does not resolve leaves the last
// known path in place, marked stale: it is where the packets went before they
// stopped answering.
func (s *Store) Update(t Trace) error {
	e, err := fabric.ParseEdge(t.Edge)
	if err != nil {
		return err
	}
	src, dst := e.Ends()
	if s.g.NIC(src) == nil || s.g.NIC(dst) == nil {
		return fmt.Errorf("edge %q: not of this topology", t.Edge)
	}
	r := Resolve(s.g, src, dst, t)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.flows[e]
	if b != nil && !t.TracedAt.After(b.Checked) {
		return nil
	}
	if b == nil {
		b = &Binding{State: fabric.PathUnknown}
		s.flows[e] = b
	}
	lastChecked := b.Checked
	b.Checked, b.Notes, b.Raw = t.TracedAt, r.Notes, t
	switch {
	case r.State == fabric.PathValid && t.State == fabric.PathStale:
		// The node repeats its last good trace: no news of where packets go now.
		if len(b.Path) == 0 {
			b.Path, b.Since = s.interned(r.Path), t.TracedAt
			s.version++
		}
		b.State = fabric.PathStale
	case r.State == fabric.PathValid:
		if b.Path.Key() != r.Path.Key() {
			b.Before, b.BeforeChecked = b.Path, lastChecked
			b.Path, b.Since = s.interned(r.Path), t.TracedAt
			s.version++
		}
		b.State, b.Candidates = fabric.PathValid, nil
	case len(b.Path) > 0:
		b.State = fabric.PathStale
	default:
		b.State, b.Candidates = fabric.PathUnknown, r.Candidates
	}
	return nil
}

func (s *Store) interned(p fabric.Path) fabric.Path {
	k := p.Key()
	if have, ok := s.intern[k]; ok {
		return have
	}
	s.intern[k] = p
	return p
}

// Bind returns what is known of a flow; ok is false when nothing is.
func (s *Store) Bind(e fabric.Edge) (Binding, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b, ok := s.flows[e]
	if !ok {
		return Binding{State: fabric.PathUnknown}, false
	}
	return *b, true
}

// At returns the binding for a window of the past. A path that was replaced
// holds for windows that ended before it was last confirmed; in between, the
// flow may have taken either, and both are candidates.
func (s *Store) At(e fabric.Edge, start, end time.Time) (Binding, bool) {
	b, ok := s.Bind(e)
	if !ok || len(b.Before) == 0 || !start.Before(b.Since) {
		return b, ok
	}
	if !end.After(b.BeforeChecked) {
		b.Path = b.Before
		b.State = fabric.PathStale
		return b, true
	}
	b.Candidates = []fabric.Path{b.Before, b.Path}
	b.Path, b.State = nil, fabric.PathUnknown
	return b, true
}

// Version counts the changes of paths.
func (s *Store) Version() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.version
}

// Edges lists the flows the store knows, sorted.
func (s *Store) Edges() []fabric.Edge {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]fabric.Edge, 0, len(s.flows))
	for e := range s.flows {
		out = append(out, e)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].String() < out[j].String() })
	return out
}

// States counts flows by the state of their path.
func (s *Store) States() map[fabric.PathState]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := map[fabric.PathState]int{fabric.PathValid: 0, fabric.PathStale: 0, fabric.PathUnknown: 0}
	for _, b := range s.flows {
		n[b.State]++
	}
	return n
}

// Crossing lists the flows whose path crosses a link in either direction, or a
// switch, with the time each was last traced.
func (s *Store) Crossing(el fabric.Element) map[fabric.Edge]Binding {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := map[fabric.Edge]Binding{}
	for e, b := range s.flows {
		src, dst := e.Ends()
		if Crosses(b.Path, src, dst, el) {
			out[e] = *b
		}
	}
	return out
}

// Crosses reports whether a path from src to dst crosses an element.
func Crosses(p fabric.Path, src, dst string, el fabric.Element) bool {
	if el.Kind == fabric.KindNIC {
		return src == el.Element || dst == el.Element
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
