// Package incident makes incidents of a fabric of which the truth is known:
// observations as probes would have made them, and what was wrong. It is for
// measuring the inference, with which it shares the vocabulary of elements and
// nothing else: what happens to a packet follows from queues, hosts, clocks and
// routes, not from any formula that the inference would use.
//
// Rules:
//  1. The same topology, options and seed make the same case.
//  2. Packets go by a hash in every switch over the next hops of equal cost.
//  3. What a case gives away of the truth is what a mesh of probes could measure:
//     baselines come from windows that were generated healthy.
//  4. A fault has one line in the truth, whatever follows from it.
package incident

import (
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Epoch is when the first window of every case begins, Window how long it is.
var Epoch = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// Window is the length of a case's windows.
const Window = 2 * time.Second

// Case holds observations and the truth about them.
type Case struct {
	Topology     *fabric.Topology
	Observations []*fabric.Observation
	Truth        Truth
}

// Truth states what was at fault.
type Truth struct {
	Seed    uint64  `json:"seed"`
	Windows int     `json:"windows"`
	Faults  []Fault `json:"faults"`
}

// Fault is one thing that was wrong in the windows from First to Last, counted
// from 0. Direction is set where it was one way only.
type Fault struct {
	fabric.Element
	Direction string          `json:"direction,omitempty"`
	Class     string          `json:"class,omitempty"`
	Scenario  fabric.Scenario `json:"scenario"`
	First     int             `json:"first_window"`
	Last      int             `json:"last_window"`
	// What it did to a packet: nanoseconds on the mean, shares of packets.
	DelayNS int64   `json:"delay_ns,omitempty"`
	Loss    float64 `json:"loss_ratio,omitempty"`
	ECN     float64 `json:"ecn_ratio,omitempty"`
	// Equivalent are names of the same fault that no probe can distinguish from it.
	Equivalent []fabric.Element `json:"also,omitempty"`
}

// onDirection names a fault of one direction of a cable: the NIC's, where it is
// plugged into one.
func (f *Fabric) onDirection(d int32, x Fault) Fault {
	at := &f.dirs[d]
	x.Direction = at.String()
	x.Kind, x.ID, x.Scenario = fabric.KindLink, at.LinkID(), fabric.Corridor
	for _, end := range []string{at.From, at.To} {
		if fabric.IsNIC(end) {
			x.Kind, x.ID, x.Scenario = fabric.KindNIC, end, fabric.BadNIC
		}
	}
	return x
}

// highestTier returns the highest tier of the links that a path crosses.
func (f *Fabric) highestTier(way []int32) int {
	t := 0
	for _, d := range way {
		t = max(t, f.dirs[d].tier)
	}
	return t
}
