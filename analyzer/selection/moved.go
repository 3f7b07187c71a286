package selection

import (
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// nicState represents a NIC as a whole. Cycles count from 1, and 0 means never.
type nicState struct {
	name                   string
	number                 int       // in the order in which they appeared
	counted, judged        bool      // its node judges flows from it, and all of them
	absent                 bool      // its agent does not answer
	queriedAt              time.Time // when the flows from it were last queried
	queriedFrom, queriedTo int       // the cycles in which the flows from it, and to it, were last queried
	sourceFlows            int       // number of directed flows from it at that time
	moved                  int       // flows from it that its node judges as shifted, lossy or silent
	lastMoved              int       // when flows from it were last not healthy by its node
	movedExtent            extent    // in that cycle
	lastDegraded           int       // when a flow from it was last degraded
	compareUntil           int       // until when it is queried for comparison
	learnCycles            int       // cycles in which flows from it had no baseline; -1 if all have one
}

// extent represents how much of a NIC's traffic moved.
type extent int

const (
	extentNone     extent = iota
	extentUnjudged        // what moved cannot be known
	extentPartial         // some of its flows are affected
	extentMost            // most of them are
)

// mostShare is the share of a NIC's flows from which most of them are affected.
const mostShare = 0.4

// applyOverview notes which NICs moved according to an overview.
func (p *Planner) applyOverview(o *evidence.Overview, cycle int) {
	for name, flows := range o.Flows {
		p.nicFor(name).sourceFlows = 2 * flows
	}
	for _, s := range p.sortedNICs {
		flows, known := o.Flows[s.name]
		unhealthy := o.Unhealthy[s.name]
		s.counted, s.judged = known, known && unhealthy[window.Unjudged] == 0
		s.absent = !o.AgentAnswers(s.name)
		s.moved = movedFlows(unhealthy)
		how := movedExtent(unhealthy, flows)
		if o.StarvedHosts()[fabric.OwnerOf(s.name)] != "" || o.DropsUnread(s.name) || !o.ClockUsable(s.name) {
			how = max(how, extentUnjudged)
		}
		if how != extentNone {
			s.lastMoved, s.movedExtent = cycle, how
		}
	}
}

// movedFlows returns how many of a NIC's flows moved.
func movedFlows(unhealthy map[window.Condition]int) int {
	return unhealthy[window.Shifted] + unhealthy[window.Lossy] + unhealthy[window.Silent]
}

// movedExtent returns how much of a NIC's traffic moved, of so many flows.
func movedExtent(unhealthy map[window.Condition]int, flows int) extent {
	bad := movedFlows(unhealthy)
	switch {
	case bad == 0:
		return extentNone
	case float64(bad) >= mostShare*float64(flows):
		return extentMost
	}
	return extentPartial
}
