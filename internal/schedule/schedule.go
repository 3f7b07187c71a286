// Package schedule decides which NICs probe each other. A schedule is a pure function of the topology,
// without clock, I/O or randomness, so that two coordinators, or one before and after a restart,
// compute the same edges.
//
// The rules, each with the name of its test:
//
//  1. Every NIC probes, and is probed by, MinPeers distinct peers, one of them across leaves
//     (TestMinPeers).
//  2. Every directed fabric link is expected to carry MinFlows probes and replies of each class,
//     independent of the ECMP hash (TestMinFlows).
//  3. Fan-out and fan-in are bounded and even (TestFanOutAndFanIn).
//  4. A node sends no more than its budget; far tiers are thinned first (TestBudget).
//  5. Nearly the same topology has nearly the same schedule (TestStability).
//  6. A class repeats the edges in flow numbers of its own (TestClasses).
//  7. A NIC probes only within its component and plane, its own rail first, and never its own node
//     (TestPlanesRailsAndOwnNode).
//  8. The order of the input does not matter (TestDeterministic).
//
// docs/schedule.md describes the algorithm.
package schedule

import (
	"fmt"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// FlowsPerClass is fabric.FlowsPerClass.
const FlowsPerClass = fabric.FlowsPerClass

// flowsOfPair is the number of flows of a class that a pair may have. The other flow numbers are for temporary flows.
const flowsOfPair = fabric.ScheduledFlows

// MaxClasses is the maximum number of classes, since Edge.Class is an octet.
const MaxClasses = 256

// Options are the inputs of the schedule besides the topology. The zero value of each field stands for
// its default.
type Options struct {
	Cadence  time.Duration   // time between probes of one edge of a near tier; default 10 ms
	Budget   float64         // maximum number of probes per second that a node sends; default 10,000
	FanOut   [3]int          // minimum number of peers that a NIC probes: under its leaf, in its pod, across pods; default 1, 2, 4
	MinPeers int             // number of distinct peers that every access link is probed from and to (k); default 3
	MinFlows float64         // flows expected over every directed fabric link (k_f); default 22
	Classes  []string        // names of the classes of probes; default is one without a name
	Absent   map[string]bool // nodes without an agent, which neither probe nor are probed
	Moves    []Move          // source ports that were moved, applied in order
}

// DefaultOptions returns the values that zero values stand for.
func DefaultOptions() Options {
	return Options{Cadence: 10 * time.Millisecond, Budget: 10000, FanOut: [3]int{1, 2, 4}, MinPeers: 3, MinFlows: 22, Classes: []string{""}}
}

func (o Options) withDefaults() (Options, error) {
	d := DefaultOptions()
	switch {
	case o.Cadence < 0:
		return o, fmt.Errorf("schedule: cadence %v: a positive time is expected", o.Cadence)
	case o.Budget < 0:
		return o, fmt.Errorf("schedule: budget %g: a positive number of probes per second is expected", o.Budget)
	case o.MinPeers < 0:
		return o, fmt.Errorf("schedule: min peers %d: a positive number is expected", o.MinPeers)
	case !(o.MinFlows >= 0) || o.MinFlows > 1e6:
		return o, fmt.Errorf("schedule: min flows %g: a number up to a million is expected", o.MinFlows)
	case len(o.Classes) > MaxClasses:
		return o, fmt.Errorf("schedule: %d classes: at most %d are possible", len(o.Classes), MaxClasses)
	}
	if o.Cadence == 0 {
		o.Cadence = d.Cadence
	}
	if o.Budget == 0 {
		o.Budget = d.Budget
	}
	if o.MinPeers == 0 {
		o.MinPeers = d.MinPeers
	}
	if o.MinFlows == 0 {
		o.MinFlows = d.MinFlows
	}
	if len(o.Classes) == 0 {
		o.Classes = d.Classes
	}
	seen := map[string]bool{}
	for i, c := range o.Classes {
		if seen[c] {
			return o, fmt.Errorf("schedule: class %d is named %q, as another class is", i, c)
		}
		seen[c] = true
	}
	for i, f := range o.FanOut {
		switch {
		case f < 0 || f > FlowsPerClass:
			return o, fmt.Errorf("schedule: fan-out %d of tier %d: a number from 1 to %d is expected", f, i+1, FlowsPerClass)
		case f == 0:
			o.FanOut[i] = d.FanOut[i]
		}
	}
	return o, nil
}

// Edge is one flow of probes. Src and Dst index Schedule.NICs.
type Edge struct {
	Src, Dst int32
	Flow     uint16
	Tier     uint8 // 1 under one leaf, else the highest tier on the shortest paths
	Class    uint8 // index in Schedule.Classes
	Cadence  time.Duration
}

// Move gives the probes of an edge another source port, that is another flow number. ECMP then sends it
// on another path.
type Move struct {
	Src, Dst string
	From, To int
}

// Schedule is the set of all edges. Edges are sorted by Src, Dst and Flow.
type Schedule struct {
	NICs       []string // sorted; includes NICs without edges
	Classes    []string
	Edges      []Edge
	Components []Component
	Findings   []string // requirements that could not be met, as texts
}

// Component is a part of the fabric without links to the rest: a plane of a multi-plane fabric, or a
// rail of a rail-only one.
type Component struct {
	NICs, Switches int
	Planes, Rails  []string // labels in the component
}

// FlowID returns the published identifier of an edge.
func (s *Schedule) FlowID(e Edge) fabric.Flow {
	return fabric.Flow{Src: s.NICs[e.Src], Dst: s.NICs[e.Dst], Number: int(e.Flow)}
}
