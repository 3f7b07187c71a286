// Package paths keeps the switches, ports and links that probe flows cross, as
// their traces told and fabric.Resolve bound them.
package paths

import (
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

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
	Raw fabric.Trace
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
func (s *Store) Update(t fabric.Trace) error {
	e, err := fabric.ParseEdge(t.Edge)
	if err != nil {
		return err
	}
	src, dst := e.Ends()
	if s.g.NIC(src) == nil || s.g.NIC(dst) == nil {
		return fmt.Errorf("edge %q: not of this topology", t.Edge)
	}
	r := fabric.Resolve(s.g, src, dst, t)
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
