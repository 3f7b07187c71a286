package main

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
	"github.com/graylink/graylink/internal/sim/incident"
)

// sixteenGroups returns a Dragonfly+ of 16 groups of four leaves and four spines with 256 nodes, and one global link
// between two groups.
func sixteenGroups() *fabric.Topology {
	return dragonfly.NewTopology(dragonfly.Options{Groups: 16, LeavesPerGroup: 4, SpinesPerGroup: 4, NICsPerLeaf: 4})
}

// flowsOfSixteenGroups returns the flows of the probe schedule of sixteenGroups.
var flowsOfSixteenGroups = sync.OnceValue(func() []fabric.Flow {
	s, err := schedule.Make(fabric.NewGraph(sixteenGroups()), schedule.Options{})
	if err != nil {
		panic(fmt.Sprintf("the default options are refused: %v", err))
	}
	out := make([]fabric.Flow, len(s.Edges))
	for i, e := range s.Edges {
		out[i] = s.FlowID(e)
	}
	return out
})

// dragonflyFaults are faults of every kind of element that a Dragonfly+ has, by name. Links of tier 3 are global links.
var dragonflyFaults = map[string]incident.Scenario{
	"global-delay": {ID: fabric.Corridor, Variant: "link-delay", Tier: 3},
	"global-loss":  {ID: fabric.Corridor, Variant: "link-loss", Tier: 3},
	"global-dead":  {ID: fabric.HardFailure, Variant: "link", Tier: 3},
	"global-flap":  {ID: fabric.Flap, Tier: 3},
	"spine-port":   {ID: fabric.HOLSame, Tier: 3},
	"slow-spine":   {ID: fabric.HotSpine},
	"dead-spine":   {ID: fabric.HardFailure, Variant: "spine"},
	"uplink":       {ID: fabric.Corridor, Variant: "link-delay", Tier: 2},
	"leaf":         {ID: fabric.SlowLeaf},
	"nic-delay":    {ID: fabric.BadNIC, Variant: "both-delay"},
	"nic-loss":     {ID: fabric.BadNIC, Variant: "in-loss"},
	"black-hole":   {ID: fabric.HardFailure, Variant: "one-way", Tier: 3},
	string(none):   {},
}

// makeDragonflyCase draws a case of a fault on a fabric of sixteenGroups, which is probed by its schedule.
func makeDragonflyCase(o incident.Scenario, know incident.Knowledge) func(*incident.Fabric, uint64) *incident.Case {
	return func(f *incident.Fabric, seed uint64) *incident.Case {
		o.Flows, o.Know = flowsOfSixteenGroups(), know
		return o.MakeCase(f, seed)
	}
}

// sixteenAdaptiveGroups returns the same with adaptive routing.
func sixteenAdaptiveGroups() *fabric.Topology {
	t := sixteenGroups()
	t.Routing = fabric.Adaptive
	return t
}

// dragonflyCells returns the faults of a Dragonfly+. Where paths are not known, flows have the candidates of minimal
// routing, or none. In the cells "adaptive" no path is known, and the topology has adaptive routing. In the cells
// "detours" all paths are known, and a third of the flows between groups go by a third group.
func dragonflyCells() []cell {
	var out []cell
	for _, name := range slices.Sorted(maps.Keys(dragonflyFaults)) {
		out = append(out, cell{"dragonfly-adaptive-" + name, sixteenAdaptiveGroups, makeDragonflyCase(dragonflyFaults[name], incident.Unknown), []contestant{{name: "graylink", run: runVerdicts}}})
	}
	for _, name := range slices.Sorted(maps.Keys(dragonflyFaults)) {
		o := dragonflyFaults[name]
		o.Detours = 1.0 / 3
		out = append(out, cell{"dragonfly-detours-" + name, sixteenAdaptiveGroups, makeDragonflyCase(o, incident.Known), []contestant{{name: "graylink", run: runVerdicts}}})
	}
	for _, know := range []incident.Knowledge{incident.Known, incident.Half, incident.Unknown} {
		for _, name := range slices.Sorted(maps.Keys(dragonflyFaults)) {
			out = append(out, cell{fmt.Sprintf("dragonfly-%s-%s", know, name), sixteenGroups, makeDragonflyCase(dragonflyFaults[name], know), []contestant{{name: "graylink", run: runVerdicts}}})
		}
	}
	return out
}
