package gnmi

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/gnmi/decode"
	"github.com/graylink/graylink/internal/gnmi/preset"
)

// Point is a sample of a family of one switch.
type Point struct {
	Family *preset.Family
	Switch string   // empty for families without a switch (OfSwitch)
	Values []string // of Family.Labels
	Value  float64
	At     time.Time
	Since  time.Time // when the counter began to count, as far as is known
}

// series holds the state of one series.
type series struct {
	leaf       *preset.Leaf
	values     []string
	value      float64
	at         int64 // the switch's time, ns since 1970
	since      int64
	receivedAt time.Time // this process's time
	stream     uint32    // the stream that sent it; 0 for a subscription
	onChange   bool
	part       preset.SessionPart // what it states of a session; then it is no series itself
	text       string             // of a SessionText
}

// store holds the series of a target. It is the sink of the target's decoder.
type store struct {
	mu       sync.Mutex
	decoder  *decode.Decoder
	all      map[string]*series
	ports    map[string][]string // ports by component
	hopTable *nextHopTable
	families map[*preset.Family]uint16
	key      []byte
	now      time.Time
	stream   uint32
	sampled  time.Time // when the last sample, not change, arrived
	onChange bool      // seldom changing leaves are sent on change, not with every sample
	max      int
	rejected uint64 // samples for which there was no room
	resets   uint64 // resets of counters
	parts    map[*preset.Family]preset.SessionPart
	// unplacedSessions counts the sessions without a known port when points were collected last.
	unplacedSessions int
}

func newStore(tree *preset.Tree, changes bool, max int) *store {
	s := &store{hopTable: newNextHopTable(), onChange: changes, all: map[string]*series{}, ports: map[string][]string{}, families: map[*preset.Family]uint16{}, max: max,
		parts: map[*preset.Family]preset.SessionPart{}}
	for _, l := range tree.Leaves {
		if _, ok := s.families[l.Family]; !ok {
			s.families[l.Family] = uint16(len(s.families))
		}
	}
	for f := range s.families {
		if part := preset.SessionPartOf(f); part != preset.NoSessionPart {
			s.parts[f] = part
		}
	}
	s.decoder = decode.New(tree, s)
	return s
}

// AddSample implements decode.Sink; the store must be locked.
func (s *store) AddSample(l *preset.Leaf, identity []byte, c *preset.Captures, v float64, text string, at int64) {
	if l.Family.Kind == preset.Member || l.Family.Kind == preset.HopPort {
		if !s.hopTable.recordLeaf(l.Family.Kind, l.LabelValues(c), text, s.now) {
			s.rejected++
		}
		return
	}
	s.key = append(binary.BigEndian.AppendUint16(s.key[:0], s.families[l.Family]), identity...)
	x := s.all[string(s.key)]
	if x == nil {
		if len(s.all) >= s.max {
			s.rejected++
			return
		}
		x = &series{leaf: l, values: l.LabelValues(c), since: at, part: s.parts[l.Family]}
		s.all[string(s.key)] = x
	}
	switch {
	case l.Family.Kind == preset.Relation:
		s.assignPort(x, strings.ToValidUTF8(text, "\ufffd"))
	case l.Family.Kind == preset.SessionText:
		x.text = strings.Clone(strings.ToValidUTF8(text, "\ufffd"))
	case l.TextLabelIndex >= 0:
		x.values[l.TextLabelIndex] = strings.Clone(strings.ToValidUTF8(text, "\ufffd"))
	case l.Family.Kind == preset.Counter && v < x.value:
		x.since = at
		s.resets++
	}
	x.since = min(x.since, at) // a switch's clock may be set back
	x.value, x.at, x.receivedAt, x.stream, x.onChange = v, at, s.now, s.stream, s.onChange && l.Rule.OnChange
	if !x.onChange {
		s.sampled = s.now
	}
}

// assignPort records that a component belongs to a port.
func (s *store) assignPort(x *series, component string) {
	port := x.values[0]
	s.unassignPort(port)
	if !slices.Contains(s.ports[component], port) {
		s.ports[strings.Clone(component)] = append(s.ports[component], port)
	}
}

func (s *store) unassignPort(port string) {
	for component, list := range s.ports {
		if i := slices.Index(list, port); i >= 0 {
			if s.ports[component] = slices.Delete(list, i, i+1); len(list) == 1 {
				delete(s.ports, component)
			}
		}
	}
}

// DeleteBeneath implements decode.Sink; the store must be locked.
func (s *store) DeleteBeneath(n *preset.Node, c *preset.Captures) {
	gone := map[uint16][]*preset.Leaf{}
	n.WalkLeaves(func(l *preset.Leaf) {
		if l.Family.Kind == preset.Member || l.Family.Kind == preset.HopPort {
			s.hopTable.removeMatching(l.Family.Kind, l.LabelValues(c))
			return
		}
		f := s.families[l.Family]
		gone[f] = append(gone[f], l)
	})
	if len(gone) == 0 {
		return
	}
	for key, x := range s.all {
		for _, l := range gone[binary.BigEndian.Uint16([]byte(key[:2]))] {
			if l.TextLabelIndex < 0 && l != x.leaf || !l.MatchesIdentity(key[2:], c) {
				continue
			}
			if l.TextLabelIndex >= 0 { // the other leaves of the neighbor may remain
				x.values[l.TextLabelIndex] = ""
				continue
			}
			if l.Family.Kind == preset.Relation {
				s.unassignPort(x.values[0])
			}
			delete(s.all, key)
			break
		}
	}
}

// applyNotification decodes a notification. One without a body marks the end of a session: values that were
// sent on change are unknown from then on, except for the ports of components.
func (s *store) applyNotification(n message, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.body == nil {
		for key, x := range s.all {
			if x.onChange && x.stream == n.stream && x.leaf.Family.Kind != preset.Relation {
				delete(s.all, key)
			}
		}
		if s.onChange {
			s.hopTable = newNextHopTable()
		}
		return
	}
	s.now, s.stream = now, n.stream
	s.decoder.DecodeNotification(n.body, now)
}

// appendPoints appends the known points: samples that are not older than stale, and values sent on change.
// unplaced counts the series whose component has no port.
func (s *store) appendPoints(out []Point, name string, now time.Time, stale time.Duration) (_ []Point, unplaced int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, unplaced = s.appendNextHops(out, name, now, stale)
	var sessions *sessionTable
	if len(s.parts) > 0 {
		sessions = newSessionTable()
	}
	var infos map[string]bool
	for key, x := range s.all {
		f := x.leaf.Family
		if !x.onChange && now.Sub(x.receivedAt) > stale {
			delete(s.all, key)
			continue
		}
		if f.Kind == preset.Relation {
			continue
		}
		if sessions != nil && (x.part != preset.NoSessionPart || f == familyOper) {
			sessions.addSeries(x)
		}
		if x.part != preset.NoSessionPart {
			continue
		}
		p := Point{f, name, x.values, x.value, unixTime(x.at), unixTime(x.since)}
		switch {
		case f.Kind == preset.Info:
			values := slices.Clone(x.values) // the values change after the lock is released
			id := strings.Join(append([]string{f.Name}, values...), "\xff")
			if slices.Index(values[1:], "") >= 0 && strings.Join(values[1:], "") == "" || infos[id] {
				continue
			}
			if infos == nil {
				infos = map[string]bool{}
			}
			infos[id], p.Values = true, values
			out = append(out, p)
		case x.leaf.Component:
			ports := s.ports[x.values[0]]
			if len(ports) == 0 {
				unplaced++
			}
			for _, port := range ports {
				p.Values = append([]string{port}, x.values[1:]...)
				out = append(out, p)
			}
		default:
			out = append(out, p)
		}
	}
	if sessions != nil {
		out, s.unplacedSessions = sessions.appendPoints(out, name)
	}
	return out, unplaced
}

// unixTime returns the time of nanoseconds since 1970.
func unixTime(ns int64) time.Time { return time.Unix(0, ns) }

// appendNextHops appends the number of group members that leave by each port.
func (s *store) appendNextHops(out []Point, name string, now time.Time, stale time.Duration) (_ []Point, unplaced int) {
	if !s.onChange {
		s.hopTable.expireMembers(now.Add(-stale))
	}
	ports, unplaced := s.hopTable.byPort()
	for port, n := range ports {
		out = append(out, Point{Family: familyMembers, Switch: name, Values: []string{port}, Value: float64(n), At: now})
	}
	return out, unplaced
}

var familyMembers = preset.LookupFamily(preset.FamilyMembers)
