package main

import (
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sim/incident"
)

// gradeDragonfly fails the test if a fault of a Dragonfly+ is not named, something else is, or the direction is wrong, or
// the scenario where paths are known. Without paths a class at a port is not distinguished from its link.
func gradeDragonfly(t *testing.T, topology *fabric.Topology, name string, o incident.Scenario, know incident.Knowledge, seed uint64) {
	t.Helper()
	f := incident.NewFabric(topology)
	cs := makeDragonflyCase(o, know)(f, seed)
	if s := runVerdicts(f.Graph, cs.Observations).gradeCase(cs); s.wrong > 0 || s.missed > 0 || s.sameDirection < s.directionGraded || know != incident.Unknown && s.sameScenario < s.right {
		t.Errorf("%s, routing %q, paths %s, seed %d: %d wrong, %d missed, %d of %d directions and %d of %d scenarios right; the fault is %+v", name, topology.Routing, know, seed, s.wrong, s.missed,
			s.sameDirection, s.directionGraded, s.sameScenario, s.right, cs.Truth.Faults)
	}
}

// TestDragonfly checks a fault of a global link, and a fabric without a fault, in fewer and
// shorter windows than TestDragonflyFaults has.
func TestDragonfly(t *testing.T) {
	for _, name := range []string{"global-loss", string(none)} {
		o := dragonflyFaults[name]
		o.Windows, o.Probes = 5, 60
		gradeDragonfly(t, sixteenGroups(), name, o, incident.Known, 9001)
	}
}
