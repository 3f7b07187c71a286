// Package dragonfly makes topologies of Dragonfly+ fabrics for tests and benchmarks: any number of groups, leaves, spines,
// NICs and global links.
package dragonfly

import (
	"fmt"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/cabling"
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
	b := builder{o: o, Builder: cabling.NewBuilder(&fabric.Topology{Version: 1, Routing: o.Routing})}
	for plane := range o.Planes {
		b.addPlane(plane)
	}
	b.AddNodes(cabling.Nodes{Parts: o.Groups, LeavesPerPart: o.LeavesPerGroup, Planes: o.Planes, NICsPerLeaf: o.NICsPerLeaf, NICsPerNode: o.NICsPerNode, RailOptimised: o.RailOptimised,
		Leaf: func(plane, group, i int) string { return b.switchName(plane, group, fabric.Leaf, i) }})
	return b.Topology
}

type builder struct {
	*cabling.Builder
	o Options
}

func (b *builder) switchName(plane, group int, role fabric.Role, i int) string {
	return fmt.Sprintf("%s-g%d-%s%d", cabling.PlaneName(plane), group+1, role, i+1)
}

func (b *builder) addPlane(plane int) {
	o := b.o
	for group := range o.Groups {
		add := func(role fabric.Role, count int) {
			for i := range count {
				b.Topology.Switches = append(b.Topology.Switches, fabric.Switch{Name: b.switchName(plane, group, role, i), Role: role, Group: fmt.Sprintf("g%d", group+1), Plane: cabling.PlaneName(plane)})
			}
		}
		add(fabric.Leaf, o.LeavesPerGroup)
		add(fabric.Spine, o.SpinesPerGroup)
		for i := range o.SpinesPerGroup {
			for j := range o.LeavesPerGroup * o.Parallel {
				b.AddLink(b.switchName(plane, group, fabric.Leaf, j/o.Parallel), "up", b.switchName(plane, group, fabric.Spine, i), "dn")
			}
		}
	}
	turn := make([]int, o.Groups)
	for x := range o.Groups {
		for y := x + 1; y < o.Groups; y++ {
			for range o.GlobalPerPair {
				b.AddLink(b.switchName(plane, x, fabric.Spine, turn[x]%o.SpinesPerGroup), "gl", b.switchName(plane, y, fabric.Spine, turn[y]%o.SpinesPerGroup), "gl")
				turn[x]++
				turn[y]++
			}
		}
	}
}
