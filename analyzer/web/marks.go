package web

import (
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
)

// level is how strongly an element is implicated; a higher one hides a lower.
type level int

const (
	unmarked level = iota
	equivalent
	held
	suspect
)

func (l level) String() string { return [...]string{"", "equivalent", "held", "suspect"}[l] }

// marks holds the elements that open incidents implicate.
type marks struct {
	dirs   map[fabric.Direction]level
	nics   map[string]level
	owners map[string]level // switches and nodes
}

// target represents the parts of the drawing that an element identifier stands for.
type target struct {
	dirs         []fabric.Direction
	nics, owners []string
}

func newMarks(g *fabric.Graph, open []incident.Incident) marks {
	m := marks{map[fabric.Direction]level{}, map[string]level{}, map[string]level{}}
	for _, in := range open {
		l := suspect
		if in.Held != "" {
			l = held
		}
		m.addTarget(locateElement(g, in.Element, in.Direction), l)
		for _, eq := range in.Equivalent {
			m.addTarget(locateElement(g, eq, in.Direction), equivalent)
		}
	}
	return m
}

func (m marks) addTarget(t target, l level) {
	for _, d := range t.dirs {
		m.dirs[d] = max(m.dirs[d], l)
	}
	for _, n := range t.nics {
		m.nics[n] = max(m.nics[n], l)
	}
	for _, o := range t.owners {
		m.owners[o] = max(m.owners[o], l)
	}
}

// locateElement finds an element in the fabric. It returns an empty target for an element that
// the topology does not have, which is listed, but not drawn.
func locateElement(g *fabric.Graph, el fabric.Element, direction string) target {
	var t target
	both := func(l *fabric.Link) {
		if l == nil {
			return
		}
		if d, err := fabric.ParseDirection(direction); err == nil && d.LinkID() == l.ID() {
			t.dirs = append(t.dirs, d)
			return
		}
		t.dirs = append(t.dirs, fabric.Direction{From: l.A, To: l.B}, fabric.Direction{From: l.B, To: l.A})
	}
	switch el.Kind {
	case fabric.KindLink, fabric.KindAccessLink:
		if a, b, _ := el.LinkEnds(); g.PeerOf(a) == b {
			both(g.LinkAt(a))
		}
	case fabric.KindPort: // the cable is drawn whole
		both(g.LinkAt(el.ID))
	case fabric.KindQueue, fabric.KindCorridor:
		t.dirs = el.Footprint(g)
	case fabric.KindPair:
		t.owners = el.Waypoints()
	case fabric.KindLeafUplinks:
		for _, end := range g.Uplinks(el.ID) {
			both(g.LinkAt(end))
		}
	case fabric.KindNIC, fabric.KindClock:
		if n := g.NIC(el.ID); n != nil {
			t.nics = []string{n.ID()}
			if direction != "" {
				both(g.LinkAt(n.ID()))
			}
		}
	case fabric.KindSwitch, fabric.KindHost:
		t.owners = []string{el.ID}
	}
	return t
}

// ownersOf lists the switches and nodes that a target touches.
func (t target) ownersOf() []string {
	out := append([]string{}, t.owners...)
	for _, d := range t.dirs {
		out = append(out, fabric.OwnerOf(d.From), fabric.OwnerOf(d.To))
	}
	for _, n := range t.nics {
		out = append(out, fabric.OwnerOf(n))
	}
	return out
}
