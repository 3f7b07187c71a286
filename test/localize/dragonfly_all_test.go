//go:build all

package main

import (
	"maps"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/sim/incident"
)

// TestDragonflyFaults checks that every fault is named on a Dragonfly+ of 16 groups, with all paths known, with half, and
// with none and adaptive routing.
func TestDragonflyFaults(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(dragonflyFaults)) {
		for seed := range uint64(2) {
			gradeDragonfly(t, sixteenGroups(), name, dragonflyFaults[name], incident.Known, 9001+seed)
		}
		gradeDragonfly(t, sixteenGroups(), name, dragonflyFaults[name], incident.Half, 9003)
		gradeDragonfly(t, sixteenAdaptiveGroups(), name, dragonflyFaults[name], incident.Unknown, 9004)
	}
}
