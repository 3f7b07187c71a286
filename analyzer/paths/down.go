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
// A link between two switches is down when all readings for downSettles have both of its ports in the state Down. A switch
// is down when they do not find it, and have all ports that lead to it in that state. Links to NICs are left to the agents
// of their nodes, which also go when a node is shut down. What readings do not say is not down: a port that did not answer,
// a file without the states of ports, a subnet that was not read for downForgets.
const (
	downSettles = 3 * time.Second
	downForgets = 10 * time.Second
)

// DownElement is a link or a switch that is down.
type DownElement struct {
	fabric.Element
	// Since is when the first of the readings that show it ended.
	Since time.Time
}

// findDown finds what is down in a reading that differs from the one before. What is down already stays so since when it was
// found.
func (t *Tables) findDown(r ibfabric.Reading) {
	g := t.store.Graph()
	before := t.down
	t.down = map[fabric.Element]time.Time{}
	add := func(e fabric.Element) {
		since, ok := before[e]
		if !ok {
			since = r.Ended
		}
		t.down[e] = since
	}
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
}

// DownElements returns what the readings of the subnet show to be down, sorted.
func (t *Tables) DownElements(now time.Time) (out []DownElement) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.last.Ended) > downForgets {
		return nil
	}
	for e, since := range t.down {
		if t.last.Ended.Sub(since) >= downSettles {
			out = append(out, DownElement{Element: e, Since: since})
		}
	}
	slices.SortFunc(out, func(a, b DownElement) int { return strings.Compare(a.ID, b.ID) })
	return out
}
