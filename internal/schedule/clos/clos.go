// Package clos makes topologies of folded Clos fabrics for tests and
// benchmarks: two or three tiers, several planes, rails, any size.
package clos

import (
	"fmt"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/cabling"
)

// Options are the measures of a fabric. Every count is per plane. A count of zero means one, and zero
// Tiers mean two.
type Options struct {
	Tiers        int
	Planes       int
	Pods         int // one pod is a two-tier fabric
	LeavesPerPod int
	SpinesPerPod int
	CoresPerRow  int // number of cores that the spines of one row (the same place in every pod) share; three tiers only
	NICsPerLeaf  int
	NICsPerNode  int // over all planes; a multiple of Planes
	Parallel     int // number of links between a leaf and a spine
	// RailOptimised gives the NICs of a node that share a plane one leaf each, one leaf per rail.
	// Otherwise they share a leaf.
	RailOptimised bool
	// RailOnly joins only leaves of one rail. It requires RailOptimised and two tiers.
	RailOnly bool
	// Forwarding is how switches choose between equal next hops. Empty means by a hash.
	Forwarding fabric.Forwarding
}

// FullScale returns the options of a fabric with 131,072 NICs: three tiers without oversubscription,
// four planes of 32 pods with 32 leaves of 32 NICs, rail-optimised nodes of eight NICs.
func FullScale() Options {
	return Options{Tiers: 3, Planes: 4, Pods: 32, LeavesPerPod: 32, SpinesPerPod: 32, CoresPerRow: 32, NICsPerLeaf: 32, NICsPerNode: 8, RailOptimised: true}
}

// NewTopology returns the topology of a fabric.
func NewTopology(o Options) *fabric.Topology {
	for _, p := range []*int{&o.Planes, &o.Pods, &o.LeavesPerPod, &o.SpinesPerPod, &o.CoresPerRow, &o.NICsPerLeaf, &o.NICsPerNode, &o.Parallel} {
		*p = max(*p, 1)
	}
	b := builder{o: o, Builder: cabling.NewBuilder(&fabric.Topology{Version: 1, Forwarding: o.Forwarding})}
	b.nodes = cabling.Nodes{Parts: o.Pods, LeavesPerPart: o.LeavesPerPod, Planes: o.Planes, NICsPerLeaf: o.NICsPerLeaf, NICsPerNode: o.NICsPerNode, RailOptimised: o.RailOptimised, Leaf: b.leafName}
	for plane := range o.Planes {
		b.addPlane(plane)
	}
	b.AddNodes(b.nodes)
	return b.Topology
}

type builder struct {
	*cabling.Builder
	o     Options
	nodes cabling.Nodes
}

func (b *builder) leafName(plane, pod, i int) string {
	return fmt.Sprintf("%s-p%d-leaf%d", cabling.PlaneName(plane), pod+1, i+1)
}

func (b *builder) addPlane(plane int) {
	o, name, rails := b.o, cabling.PlaneName(plane), b.nodes.LeavesPerNode()
	add := func(sw string, role fabric.Role, pod string) string {
		b.Topology.Switches = append(b.Topology.Switches, fabric.Switch{Name: sw, Role: role, Pod: pod, Plane: name})
		return sw
	}
	for pod := range o.Pods {
		podName := fmt.Sprintf("p%d", pod+1)
		for i := range o.LeavesPerPod {
			add(b.leafName(plane, pod, i), fabric.Leaf, podName)
		}
		for i := range o.SpinesPerPod {
			spine := add(fmt.Sprintf("%s-%s-spine%d", name, podName, i+1), fabric.Spine, podName)
			for j := range o.LeavesPerPod {
				if o.RailOnly && i%rails != j%rails {
					continue
				}
				for range o.Parallel {
					b.AddLink(b.leafName(plane, pod, j), "up", spine, "dn")
				}
			}
		}
	}
	if o.Tiers < 3 {
		return
	}
	for row := range o.SpinesPerPod {
		for c := range o.CoresPerRow {
			core := add(fmt.Sprintf("%s-core%d-%d", name, row+1, c+1), fabric.Core, "")
			for pod := range o.Pods {
				b.AddLink(fmt.Sprintf("%s-p%d-spine%d", name, pod+1, row+1), "up", core, "dn")
			}
		}
	}
}
