//go:build all

package main

import (
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
)

// largeFabrics are those whose rows of docs/scaling.md are predicted again.
var largeFabrics = []scalingFabric{
	{"two tiers", 8, func() *fabric.Topology {
		return clos.NewTopology(clos.Options{Planes: 8, LeavesPerPod: 500, SpinesPerPod: 32, NICsPerLeaf: 25, NICsPerNode: 8, RailOptimised: true})
	}},
	{"three tiers", 1, func() *fabric.Topology {
		return clos.NewTopology(clos.Options{Tiers: 3, Pods: 50, LeavesPerPod: 80, SpinesPerPod: 32, CoresPerRow: 16, NICsPerLeaf: 25, NICsPerNode: 8, RailOptimised: true})
	}},
	{"Dragonfly+, 25 groups", 1, func() *fabric.Topology {
		return dragonfly.NewTopology(dragonfly.Options{Groups: 25, LeavesPerGroup: 160, SpinesPerGroup: 64, GlobalPerPair: 56, NICsPerLeaf: 25, NICsPerNode: 8, RailOptimised: true})
	}},
	{"three tiers", 8, func() *fabric.Topology {
		return clos.NewTopology(clos.Options{Tiers: 3, Planes: 8, Pods: 20, LeavesPerPod: 64, SpinesPerPod: 32, CoresPerRow: 16, NICsPerLeaf: 25, NICsPerNode: 8, RailOptimised: true})
	}},
}
