// Package schedule decides who probes whom: a pure function of the topology,
// without clock, I/O or randomness, so that two coordinators, or one before and
// after a restart, come to the same edges.
package schedule

import (
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// FlowsPerClass is the number of source ports a class of probes has: class c
// uses flow numbers c*FlowsPerClass up to the next class's first.
const FlowsPerClass = 64

// Options are what the schedule depends on besides the topology. The zero value
// of each field stands for its default.
type Options struct {
	Cadence  time.Duration   // between probes of one edge of a near tier; 10 ms
	Budget   float64         // probes a node sends per second at most; 10,000
	MinPeers int             // distinct peers every access link is probed from and to (k); 3
	MinFlows float64         // flows expected over every directed fabric link (k_f); 22
	Classes  []string        // names of the classes probed; one without a name
	Absent   map[string]bool // nodes without an agent: they neither probe nor are probed
	Moves    []Move          // source ports that were moved, applied in order
}

// Edge is one flow of probes. Src and Dst index Schedule.NICs.
type Edge struct {
	Src, Dst int32
	Flow     uint16
	Tier     uint8
	Class    uint8 // indexes Schedule.Classes
	Cadence  time.Duration
}

// Move gives the probes of an edge another source port, which is to say another
// flow number: ECMP then sends it another way.
type Move struct {
	Src, Dst string
	From, To int
}

// Schedule is who probes whom. Edges are sorted by Src, Dst and Flow.
type Schedule struct {
	NICs       []string // sorted; those without edges too
	Classes    []string
	Edges      []Edge
	Components []Component
	Findings   []string // what could not be had, in plain words
}

// Component is a part of the fabric that no link joins to the rest: a plane of
// a multi-plane fabric, a rail of a rail-only one.
type Component struct {
	NICs, Switches int
	Planes, Rails  []string // labels found in it
}

// ID is the edge's published identifier.
func (s *Schedule) ID(e Edge) fabric.Edge {
	return fabric.Edge{Src: s.NICs[e.Src], Dst: s.NICs[e.Dst], Flow: int(e.Flow)}
}
