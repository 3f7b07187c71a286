// Package clos makes topologies of folded Clos fabrics for tests and
// benchmarks: two or three tiers, several planes, rails, any size.
package clos

import (
	"fmt"

	"github.com/graylink/graylink/internal/fabric"
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
	b := builder{o: o, t: &fabric.Topology{Version: 1}, ports: map[string]int{}}
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

func (b *builder) addLink(lower, upper string) {
	b.t.Links = append(b.t.Links, fabric.Link{A: b.nextPort(lower, "up"), B: b.nextPort(upper, "dn")})
}

func planeName(p int) string { return string(rune('a' + p)) }

func (b *builder) leafName(plane, pod, i int) string {
	return fmt.Sprintf("%s-p%d-leaf%d", planeName(plane), pod+1, i+1)
}

// railCount returns the number of leaves that the NICs of one node and plane use.
func (b *builder) railCount() int {
	if !b.o.RailOptimised {
		return 1
	}
	return max(b.o.NICsPerNode/b.o.Planes, 1)
}

func (b *builder) addPlane(plane int) {
	o, name := b.o, planeName(plane)
	add := func(sw string, role fabric.Role, pod string) string {
		b.t.Switches = append(b.t.Switches, fabric.Switch{Name: sw, Role: role, Pod: pod, Plane: name})
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
				if o.RailOnly && i%b.railCount() != j%b.railCount() {
					continue
				}
				for range o.Parallel {
					b.addLink(b.leafName(plane, pod, j), spine)
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
				b.addLink(fmt.Sprintf("%s-p%d-spine%d", name, pod+1, row+1), core)
			}
		}
	}
}

func (b *builder) addNodes() {
	o, rails := b.o, b.railCount()
	perPlane := max(o.NICsPerNode/o.Planes, 1)
	perLeaf := o.NICsPerLeaf // number of nodes that share a set of leaves
	if rails == 1 {
		perLeaf = max(o.NICsPerLeaf/perPlane, 1)
	}
	for pod := range o.Pods {
		for set := range o.LeavesPerPod / rails {
			for k := range perLeaf {
				n := fabric.Node{Name: fmt.Sprintf("h%d-%d-%d", pod+1, set+1, k+1)}
				for j := range perPlane * o.Planes {
					plane, rail := j%o.Planes, j/o.Planes
					nic := fabric.NIC{Node: n.Name, Device: fmt.Sprintf("eth%d", j+1), Plane: planeName(plane)}
					if o.RailOptimised {
						nic.Rail = &rail
					}
					n.NICs = append(n.NICs, nic)
					leaf := b.leafName(plane, pod, set*rails+rail%rails)
					b.t.Links = append(b.t.Links, fabric.Link{A: nic.ID(), B: b.nextPort(leaf, "dn")})
				}
				b.t.Nodes = append(b.t.Nodes, n)
			}
		}
	}
}
