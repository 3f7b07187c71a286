// Package locator gives egress ports the locators of CSIG tags, and finds the port that a locator stands for. It does no
// I/O.
//
//  1. A wide locator is unique to a port.
//  2. A compact tag has 127 locators, which are too few for a fabric. A compact locator is unique among the egress ports of
//     each candidate path, so that it names a port of a flow whose path is known.
//  3. Where a path is not known, the ports that a flow may cross and that have the locator are candidates. One of them is
//     never taken for the port.
//  4. Candidate paths are those of the topology's routing (fabric.Graph.CandidatePaths): shortest ones and, with adaptive
//     routing, those by a third group. They are not listed: ports of one switch that lead the same way (up, across, down, to
//     NICs) are one class, and it is computed which classes packets to a leaf cross one after the other.
//     In a Clos, a class for each tier and way is enough, which is tried first.
//  5. Classes that one path may cross get different bands of codes. Codes that are left make the bands wider, first where
//     flows have most ports to choose from, so that few candidates share a code.
package locator

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
)

// PortLocators are the locators of an egress port.
type PortLocators struct {
	Port    string // switch:port
	Compact uint16 // 0 if there are too few codes
	Wide    uint16 // 0 if there are too few codes
}

// Assignment has the locators of all ports of switches that have a cable.
type Assignment struct {
	Ports []PortLocators // sorted by name
	// CodesNeeded is the number of compact locators with which no two ports of one candidate path are equal. It is the
	// number that the coloring finds, which may not be the least one.
	CodesNeeded int
	// LongestPath is the number of switches of the longest candidate path: fewer compact locators are never enough.
	LongestPath int
}

// CheckCompact returns an error if compact tags have too few locators.
func (a *Assignment) CheckCompact() error {
	if most := int(csig.Compact.MaxLocator()); a.CodesNeeded > most {
		return fmt.Errorf("compact locators: %d are needed so that no two ports of a path are equal, and there are %d", a.CodesNeeded, most)
	}
	return nil
}

// CheckWide returns an error if wide tags have too few locators.
func (a *Assignment) CheckWide() error {
	if most := int(csig.Wide.MaxLocator()); len(a.Ports) > most {
		return fmt.Errorf("wide locators: %d are needed, one for each port, and there are %d", len(a.Ports), most)
	}
	return nil
}

// LocatorsOf returns the locators of a format by port, as a profile has them. It is empty if there are too few codes.
func (a *Assignment) LocatorsOf(f csig.Format) map[string]uint16 {
	out := make(map[string]uint16, len(a.Ports))
	for _, p := range a.Ports {
		l := p.Wide
		if f == csig.Compact {
			l = p.Compact
		}
		if l != 0 {
			out[p.Port] = l
		}
	}
	return out
}

// AssignLocators gives every port of a switch that has a cable its locators.
func AssignLocators(g *fabric.Graph) *Assignment {
	n := newNetwork(g)
	a := &Assignment{}
	a.CodesNeeded = n.colorClasses()
	a.LongestPath = n.longest
	if a.CheckCompact() == nil {
		n.spreadCodes(a.CodesNeeded)
	}
	for _, p := range n.ports {
		a.Ports = append(a.Ports, PortLocators{Port: p.id, Compact: p.code})
	}
	slices.SortFunc(a.Ports, func(x, y PortLocators) int { return cmp.Compare(x.Port, y.Port) })
	if a.CheckWide() == nil {
		for i := range a.Ports {
			a.Ports[i].Wide = uint16(i + 1)
		}
	}
	return a
}

// kind is the way that a port leads.
type kind uint8

const (
	up kind = iota
	across
	down
	access // to a NIC
	kinds
)

// port is an egress port of a switch.
type port struct {
	id    string
	class int
	next  int // switch that it leads to, or -1
	code  uint16
}

// class has the ports of a switch that lead the same way.
type class struct {
	sw        int
	kind      kind
	color     int
	conflicts set // classes that a path may cross as well
}

// step leads from a switch to the next one by a class of ports.
type step struct{ next, class int }

// node is a switch.
type node struct {
	name    string
	group   string // of a Dragonfly+
	tier    int
	part    int // connected part of the fabric
	classes [kinds]int
	ports   []int
	steps   []step // each once
	above   []int  // switches that have ports of kind down to this one
	hasNICs bool

	// Of the paths to one leaf at a time:
	far     int    // links that are left, or -1
	crossed bool   // whether a path from a leaf crosses the switch
	before  uint64 // colors that such paths may have crossed before
}

// network is a topology with numbers for names.
type network struct {
	graph    *fabric.Graph
	adaptive bool
	nodes    []node
	number   map[string]int
	ports    []port
	classes  []class
	longest  int // switches of the longest candidate path
}

// newNetwork numbers switches and their ports, in the order of their names.
func newNetwork(g *fabric.Graph) *network {
	n := &network{graph: g, adaptive: g.Topo.Routing == fabric.Adaptive, number: map[string]int{}}
	for i := range g.Topo.Switches {
		s := &g.Topo.Switches[i]
		n.nodes = append(n.nodes, node{name: s.Name, group: s.Group, tier: g.SwitchTier(s.Name), part: -1, classes: [kinds]int{-1, -1, -1, -1}})
	}
	slices.SortFunc(n.nodes, func(a, b node) int { return cmp.Compare(a.name, b.name) })
	for i := range n.nodes {
		n.number[n.nodes[i].name] = i
	}
	for i := range n.nodes {
		n.addPorts(i)
	}
	parts := 0
	for i := range n.nodes {
		if n.nodes[i].part < 0 {
			n.markPart(i, parts)
			parts++
		}
	}
	return n
}

// addPorts adds the ports of a switch.
func (n *network) addPorts(i int) {
	from := &n.nodes[i]
	for _, end := range n.graph.EndsOf(from.name) {
		peer := n.graph.PeerOf(end)
		k, next := access, -1
		if at, known := n.number[fabric.OwnerOf(peer)]; !fabric.IsNIC(peer) && known {
			next, k = at, kindOf(from, &n.nodes[at])
		} else {
			from.hasNICs = true
		}
		c := from.classes[k]
		if c < 0 {
			c = len(n.classes)
			from.classes[k] = c
			n.classes = append(n.classes, class{sw: i, kind: k, color: -1})
		}
		from.ports = append(from.ports, len(n.ports))
		n.ports = append(n.ports, port{id: end, class: c, next: next})
		if s := (step{next, c}); next >= 0 && !slices.Contains(from.steps, s) {
			from.steps = append(from.steps, s)
			if k == down {
				n.nodes[next].above = append(n.nodes[next].above, i)
			}
		}
	}
}

// kindOf returns the way of a link from one switch to another, as fabric.Graph follows it: across to another group of a
// Dragonfly+, and down within a tier.
func kindOf(from, to *node) kind {
	switch {
	case from.group != "" && to.group != "" && from.group != to.group:
		return across
	case to.tier > from.tier:
		return up
	}
	return down
}

// markPart numbers the part of the fabric that a switch is in.
func (n *network) markPart(i, part int) {
	n.nodes[i].part = part
	for queue := []int{i}; len(queue) > 0; queue = queue[1:] {
		for _, s := range n.nodes[queue[0]].steps {
			if n.nodes[s.next].part < 0 {
				n.nodes[s.next].part = part
				queue = append(queue, s.next)
			}
		}
	}
}
