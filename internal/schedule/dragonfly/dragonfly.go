// Package dragonfly makes topologies of Dragonfly+ fabrics for tests and benchmarks: any number of groups, leaves, spines,
// NICs and global links.
package dragonfly

import (
	"fmt"

	"github.com/graylink/graylink/internal/fabric"
)

// Options are the measures of a fabric. Every count is per plane. A count of zero means one.
type Options struct {
	Planes         int
	Groups         int
	LeavesPerGroup int
	SpinesPerGroup int
	NICsPerLeaf    int
	NICsPerNode    int // over all planes; a multiple of Planes, and a divisor of Planes times NICsPerLeaf
	GlobalPerPair  int // number of global links between two groups
	Parallel       int // number of links between a leaf and a spine
	// RailOptimised gives the NICs of a node that share a plane one leaf each, one leaf per rail.
	// Otherwise they share a leaf.
	RailOptimised bool
	Routing       fabric.Routing // of the topology
}

// Balanced returns the options of a fabric of switches with the given number of ports that is as large as full bandwidth
// between any two groups allows: half of a leaf's ports lead to NICs and half of a spine's to other groups. The groups have
// one global link between them for each (ports/2)^2/(groups-1), rounded down.
func Balanced(ports, groups int) Options {
	half := ports / 2
	return Options{Groups: groups, LeavesPerGroup: half, SpinesPerGroup: half, NICsPerLeaf: half, GlobalPerPair: max(1, half*half/max(groups-1, 1))}
}

// NewTopology returns the topology of a fabric. The global links of a group are spread over its spines in turns, in the
// order of the other groups.
func NewTopology(o Options) *fabric.Topology {
	for _, p := range []*int{&o.Planes, &o.Groups, &o.LeavesPerGroup, &o.SpinesPerGroup, &o.NICsPerLeaf, &o.NICsPerNode, &o.GlobalPerPair, &o.Parallel} {
		*p = max(*p, 1)
	}
	b := builder{o: o, t: &fabric.Topology{Version: 1, Routing: o.Routing}, ports: map[string]int{}}
	for plane := range o.Planes {
		b.addPlane(plane)
	}
	b.addNodes()
	return b.t
}

type builder struct {
	o     Options
	t     *fabric.Topology
	ports map[string]int
}

func (b *builder) nextPort(sw, kind string) string {
	b.ports[sw+kind]++
	return fmt.Sprintf("%s:%s%d", sw, kind, b.ports[sw+kind])
}

func (b *builder) addLink(one, kind, other, otherKind string) {
	b.t.Links = append(b.t.Links, fabric.Link{A: b.nextPort(one, kind), B: b.nextPort(other, otherKind)})
}

func planeName(p int) string { return string(rune('a' + p)) }

func (b *builder) switchName(plane, group int, role fabric.Role, i int) string {
	return fmt.Sprintf("%s-g%d-%s%d", planeName(plane), group+1, role, i+1)
}

func (b *builder) addPlane(plane int) {
	o := b.o
	for group := range o.Groups {
		add := func(role fabric.Role, count int) {
			for i := range count {
				b.t.Switches = append(b.t.Switches, fabric.Switch{Name: b.switchName(plane, group, role, i), Role: role, Group: fmt.Sprintf("g%d", group+1), Plane: planeName(plane)})
			}
		}
		add(fabric.Leaf, o.LeavesPerGroup)
		add(fabric.Spine, o.SpinesPerGroup)
		for i := range o.SpinesPerGroup {
			for j := range o.LeavesPerGroup * o.Parallel {
				b.addLink(b.switchName(plane, group, fabric.Leaf, j/o.Parallel), "up", b.switchName(plane, group, fabric.Spine, i), "dn")
			}
		}
	}
	turn := make([]int, o.Groups)
	for x := range o.Groups {
		for y := x + 1; y < o.Groups; y++ {
			for range o.GlobalPerPair {
				b.addLink(b.switchName(plane, x, fabric.Spine, turn[x]%o.SpinesPerGroup), "gl", b.switchName(plane, y, fabric.Spine, turn[y]%o.SpinesPerGroup), "gl")
				turn[x]++
				turn[y]++
			}
		}
	}
}

// addNodes adds the nodes group by group.
func (b *builder) addNodes() {
	o := b.o
	perPlane := max(o.NICsPerNode/o.Planes, 1)
	rails, perSet := 1, max(o.NICsPerLeaf/perPlane, 1) // number of leaves that a node uses, and of nodes that share them
	if o.RailOptimised {
		rails, perSet = perPlane, o.NICsPerLeaf
	}
	for group := range o.Groups {
		for set := range o.LeavesPerGroup / rails {
			for k := range perSet {
				n := fabric.Node{Name: fmt.Sprintf("h%d-%d-%d", group+1, set+1, k+1)}
				for j := range perPlane * o.Planes {
					plane, rail := j%o.Planes, j/o.Planes
					nic := fabric.NIC{Node: n.Name, Device: fmt.Sprintf("eth%d", j+1), Plane: planeName(plane)}
					if o.RailOptimised {
						nic.Rail = &rail
					}
					n.NICs = append(n.NICs, nic)
					b.t.Links = append(b.t.Links, fabric.Link{A: nic.ID(), B: b.nextPort(b.switchName(plane, group, fabric.Leaf, set*rails+rail%rails), "dn")})
				}
				b.t.Nodes = append(b.t.Nodes, n)
			}
		}
	}
}
