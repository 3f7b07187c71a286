// Package cabling builds topologies link by link, for the generators of test fabrics. It does what fabrics of all shapes
// have in common: it numbers ports, and joins nodes to leaves.
package cabling

import (
	"fmt"

	"github.com/graylink/graylink/internal/fabric"
)

// Builder builds a topology.
type Builder struct {
	Topology *fabric.Topology
	ports    map[string]int // ports in use, by switch and kind
}

// NewBuilder returns a builder of a topology that may already have settings.
func NewBuilder(t *fabric.Topology) *Builder { return &Builder{Topology: t, ports: map[string]int{}} }

// PlaneName returns the name of a plane by its number.
func PlaneName(p int) string { return string(rune('a' + p)) }

func (b *Builder) nextPort(sw, kind string) string {
	b.ports[sw+kind]++
	return fmt.Sprintf("%s:%s%d", sw, kind, b.ports[sw+kind])
}

// AddLink joins two switches by their next free ports of a kind each.
func (b *Builder) AddLink(one, kind, other, otherKind string) {
	b.Topology.Links = append(b.Topology.Links, fabric.Link{A: b.nextPort(one, kind), B: b.nextPort(other, otherKind)})
}

// Nodes describes the nodes of a fabric whose leaves are in parts, such as pods or groups.
type Nodes struct {
	Parts, LeavesPerPart int
	Planes               int
	NICsPerLeaf          int
	NICsPerNode          int // over all planes; a multiple of Planes
	// RailOptimised gives the NICs of a node that share a plane one leaf each. Otherwise they share a leaf.
	RailOptimised bool
	// Leaf returns the name of a leaf, by the numbers of its plane, part and place.
	Leaf func(plane, part, i int) string
}

// LeavesPerNode returns the number of leaves that the NICs of one node and plane use.
func (n *Nodes) LeavesPerNode() int {
	if !n.RailOptimised {
		return 1
	}
	return max(n.NICsPerNode/n.Planes, 1)
}

// AddNodes adds the nodes, part by part.
func (b *Builder) AddNodes(o Nodes) {
	rails, perPlane := o.LeavesPerNode(), max(o.NICsPerNode/o.Planes, 1)
	perSet := o.NICsPerLeaf // number of nodes that share a set of leaves
	if rails == 1 {
		perSet = max(o.NICsPerLeaf/perPlane, 1)
	}
	for part := range o.Parts {
		for set := range o.LeavesPerPart / rails {
			for k := range perSet {
				n := fabric.Node{Name: fmt.Sprintf("h%d-%d-%d", part+1, set+1, k+1)}
				for j := range perPlane * o.Planes {
					plane, rail := j%o.Planes, j/o.Planes
					nic := fabric.NIC{Node: n.Name, Device: fmt.Sprintf("eth%d", j+1), Plane: PlaneName(plane)}
					if o.RailOptimised {
						nic.Rail = &rail
					}
					n.NICs = append(n.NICs, nic)
					b.Topology.Links = append(b.Topology.Links, fabric.Link{A: nic.ID(), B: b.nextPort(o.Leaf(plane, part, set*rails+rail%rails), "dn")})
				}
				b.Topology.Nodes = append(b.Topology.Nodes, n)
			}
		}
	}
}
