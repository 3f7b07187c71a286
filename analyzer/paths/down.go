package paths

import (
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibmad"
)

// When the readings of a subnet show that something is down, though no probe needs to suffer: the subnet manager routes
// around it at once.
//
// A link between two switches is down when all readings for downSettles have both of its ports in the state Down. It flaps
// when it went down flapTimes in flapSpan: that lasts until it has stayed up for flapCalm. A switch is down when readings do
// not find it, and have all ports that lead to it in that state. Links to NICs are left to the agents of their nodes, which
// also go when a node is shut down. What readings do not say is not down: a port that did not answer, a file without the
// states of ports, a subnet that was not read for downForgets.
const (
	downSettles = 3 * time.Second
	downForgets = 10 * time.Second
	flapTimes   = 2
	flapSpan    = time.Minute
	flapCalm    = 8 * time.Second
)

// DownElement is a link or a switch that is down, or a link that flaps.
type DownElement struct {
	fabric.Element
	// Since is when the first of the readings that show it ended.
	Since time.Time
	// Outages is how often a link that flaps went down in the last minute. It is 0 for what is down.
	Outages int
}

// downtime is what the readings have of an element that was down.
type downtime struct {
	down bool
	// changed is when it went down or came up last, began holds when it went down in the last flapSpan.
	changed time.Time
	began   []time.Time
}

// findDown finds what is down in a reading that differs from the one before.
func (t *Tables) findDown(r ibfabric.Reading) {
	g := t.store.Graph()
	now := map[fabric.Element]bool{}
	add := func(e fabric.Element) { now[e] = true }
	isDown := func(end string) bool {
		e, ok := r.Fabric.ByName(end)
		if !ok {
			return false
		}
		p := r.Fabric.PortAt(e)
		return p.State == ibmad.PortDown && !p.Linked
	}
	found := func(sw string) bool {
		_, ok := r.Fabric.ByName(sw)
		return ok
	}
	for i := range g.Topo.Links {
		l := &g.Topo.Links[i]
		if !l.IsAccess() && isDown(l.A) && isDown(l.B) {
			add(fabric.Element{ID: l.ID(), Kind: fabric.KindLink})
		}
	}
	for i := range g.Topo.Switches {
		sw := g.Topo.Switches[i].Name
		if found(sw) {
			continue
		}
		var near []string
		for _, end := range g.EndsOf(sw) {
			if peer := g.PeerOf(end); peer != "" && !fabric.IsNIC(peer) {
				near = append(near, peer)
			}
		}
		if len(near) > 0 && !slices.ContainsFunc(near, func(end string) bool { return !isDown(end) }) {
			add(fabric.Element{ID: sw, Kind: fabric.KindSwitch})
		}
	}
	t.recordDown(now, r.Ended)
}

// recordDown records what is down at the end of a reading.
func (t *Tables) recordDown(now map[fabric.Element]bool, at time.Time) {
	for e := range now {
		d := t.down[e]
		if d == nil {
			d = &downtime{}
			t.down[e] = d
		}
		if !d.down {
			d.down, d.changed, d.began = true, at, append(d.began, at)
		}
	}
	for e, d := range t.down {
		if d.down && !now[e] {
			d.down, d.changed = false, at
		}
	}
}

// DownElements returns what the readings of the subnet show to be down or to flap, sorted.
func (t *Tables) DownElements(now time.Time) (out []DownElement) {
	t.mu.Lock()
	defer t.mu.Unlock()
	read := t.last.Ended
	for e, d := range t.down {
		d.began = slices.DeleteFunc(d.began, func(b time.Time) bool { return read.Sub(b) > flapSpan })
		settled := read.Sub(d.changed)
		switch {
		case now.Sub(read) > downForgets:
		case len(d.began) >= flapTimes && (settled < flapCalm || d.down):
			out = append(out, DownElement{Element: e, Since: d.began[0], Outages: len(d.began)})
		case d.down && settled >= downSettles:
			out = append(out, DownElement{Element: e, Since: d.changed})
		case !d.down && len(d.began) == 0:
			delete(t.down, e)
		}
	}
	slices.SortFunc(out, func(a, b DownElement) int { return strings.Compare(a.ID, b.ID) })
	return out
}
