package clos

import (
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
)

// TestClos checks that topologies pass the check of topology files without a warning, and have the
// requested measures.
func TestClos(t *testing.T) {
	tests := map[string]struct {
		o                           Options
		switches, nodes, nics, link int
	}{
		"the least":        {Options{}, 2, 1, 1, 2},
		"two tiers":        {Options{LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 8, NICsPerNode: 2, Parallel: 2}, 6, 16, 32, 32 + 16},
		"three tiers":      {Options{Tiers: 3, Pods: 3, LeavesPerPod: 2, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: 4}, 3*4 + 4, 24, 24, 24 + 12 + 12},
		"rails and planes": {Options{Planes: 2, LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 4, NICsPerNode: 4, RailOptimised: true}, 12, 8, 32, 32 + 16},
		"rail only":        {Options{LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 4, NICsPerNode: 2, RailOptimised: true, RailOnly: true}, 6, 8, 16, 16 + 4},
	}
	for name, tt := range tests {
		topo := NewTopology(tt.o)
		nics := 0
		for _, n := range topo.Nodes {
			nics += len(n.NICs)
		}
		if len(topo.Switches) != tt.switches || len(topo.Nodes) != tt.nodes || nics != tt.nics || len(topo.Links) != tt.link {
			t.Errorf("%s: %d switches, %d nodes, %d NICs, %d links", name, len(topo.Switches), len(topo.Nodes), nics, len(topo.Links))
		}
		text, err := yaml.Marshal(topo)
		if err != nil {
			t.Fatal(err)
		}
		if _, found := fabric.ParseTopology(name, text); len(found) > 0 && name != "the least" && name != "rail only" {
			t.Errorf("%s: %v", name, found)
		} else if err := found.Err(); err != nil && name != "the least" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
