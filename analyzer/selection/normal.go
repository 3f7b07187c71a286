package selection

import (
	"math"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// nicState represents a NIC as a whole. Cycles count from 1, and 0 means never.
type nicState struct {
	name                   string
	groups                 []*group
	queriedAt              time.Time // when the flows from it were last queried
	queriedFrom, queriedTo int       // the cycles in which the flows from it, and to it, were last queried
	sourceFlows            int       // number of directed flows from it at that time
	lastMoved              int       // when its aggregates were last not normal
	movedExtent            extent    // in that cycle
	lastDegraded           int       // when a flow from it was last degraded
	compareUntil           int       // until when it is queried for comparison
	calmCycles             int       // consecutive cycles in which it moved and all flows from it were healthy
	learnCycles            int       // cycles in which flows from it had no baseline; -1 if all have one
}

// extent represents how much of a NIC's traffic moved.
type extent int

const (
	extentNone    extent = iota
	extentTail           // only the 99th percentile
	extentPartial        // some of its flows are affected
	extentMost           // most of them are
)

// group represents a recorded series of a NIC and its normal values.
type group struct {
	key             evidence.NICSeries
	nic             *nicState
	values          []float32
	med, mad        float64
	hasNormal       bool // med and mad are known
	value           float64
	lastReported    int // the latest cycle that had a value
	deviatingCycles int // consecutive cycles in which it was not normal
}

// applyOverview notes which NICs moved according to an overview. It learns no normal values while frozen.
func (p *Planner) applyOverview(o *evidence.Overview, cycle int, frozen bool) {
	for key, v := range o.Values {
		g := p.groups[key]
		if g == nil {
			g = &group{key: key, nic: p.nicFor(key.NIC), hasNormal: key.Metric == evidence.Lost || key.Metric == evidence.Marked}
			p.groups[key] = g
			g.nic.groups = append(g.nic.groups, g)
		}
		g.value, g.lastReported = v, cycle
	}
	for i, s := range p.sortedNICs {
		how := extentNone
		s.groups = slices.DeleteFunc(s.groups, func(g *group) bool {
			if cycle-g.lastReported > baseline.ExpectedCycles {
				delete(p.groups, g.key)
				return true
			}
			off, known := g.updateDeviation(cycle)
			if off {
				how = max(how, g.deviationExtent(cycle))
			}
			if known && (!g.hasNormal || !off && !frozen) {
				g.learnValue(cycle + i)
			}
			return false
		})
		if o.StarvedHosts()[fabric.OwnerOf(s.name)] != "" || o.DropsUnread(s.name) || !o.AgentAnswers(s.name) || !o.ClockUsable(s.name) {
			how = max(how, extentTail)
		}
		if how != extentNone {
			s.lastMoved, s.movedExtent = cycle, how
		}
	}
}

// updateDeviation reports whether a group is not normal, and notes for how long. A group without a value in this
// cycle is not. The second result reports whether the value is known.
func (g *group) updateDeviation(cycle int) (off, known bool) {
	known = g.lastReported == cycle
	if !known && (g.key.Metric == evidence.Lost || g.key.Metric == evidence.Marked) {
		g.value, known = 0, true
	}
	off = g.hasNormal && (!known || g.deviatesFromNormal())
	if off {
		g.deviatingCycles++
	} else {
		g.deviatingCycles = 0
	}
	return off, known
}

// The smallest differences of ratios that count.
const (
	leastLost, leastMarked, leastAnswered = 5e-4, 5e-3, 0.01
	// groupMADs is the number of median absolute deviations by which a normal value may differ.
	groupMADs = 8
	// bucketWidth is the width of a bucket of a native histogram of schema 4.
	bucketWidth = 0.045
)

func (g *group) deviatesFromNormal() bool {
	by, noise := g.value-g.med, groupMADs*g.mad
	floor := judge.DefaultParameters().FloorKernel.Seconds()
	switch g.key.Timestamp {
	case "hardware":
		floor = judge.DefaultParameters().FloorHardware.Seconds()
	case "user":
		floor = judge.DefaultParameters().FloorUser.Seconds()
	}
	switch g.key.Metric {
	case evidence.MedianDelay:
		return math.Abs(by) > max(floor, noise, bucketWidth*math.Abs(g.med))
	case evidence.TailDelay:
		return by > max(2*floor, noise, 2*bucketWidth*math.Abs(g.med))
	case evidence.Lost:
		return by > max(leastLost, noise)
	case evidence.Marked:
		return by > max(leastMarked, noise)
	}
	return -by > max(leastAnswered, noise)
}

// deviationExtent returns the extent that a deviating group shows. A tail may move in a single window by chance.
func (g *group) deviationExtent(cycle int) extent {
	const most = 0.4 // of the packets
	switch g.key.Metric {
	case evidence.TailDelay:
		if g.deviatingCycles < 2 {
			return extentNone
		}
		return extentTail
	case evidence.MedianDelay:
		return extentMost
	}
	if g.lastReported != cycle && g.key.Metric == evidence.Answered || math.Abs(g.value-g.med) > most {
		return extentMost
	}
	return extentPartial
}

// learnValue adds the value to the normal ones. The cycles that count differ from NIC to NIC, so that the work is
// spread over cycles.
func (g *group) learnValue(turn int) {
	if len(g.values) >= baseline.LearnWindows && turn%groupEvery != 0 {
		return
	}
	if g.values = append(g.values, float32(g.value)); len(g.values) > groupWindows {
		g.values = g.values[1:]
	}
	if len(g.values) < baseline.LearnWindows && g.key.Metric != evidence.Lost && g.key.Metric != evidence.Marked {
		return
	}
	ring := slices.Clone(g.values)
	slices.Sort(ring)
	med := ring[len(ring)/2]
	for i, v := range ring {
		ring[i] = max(v-med, med-v)
	}
	slices.Sort(ring)
	g.med, g.mad, g.hasNormal = float64(med), float64(ring[len(ring)/2]), true
}

// canDetectMove reports whether normal values of all aggregates of a NIC are known, so that a move shows.
func (s *nicState) canDetectMove() bool {
	for _, g := range s.groups {
		if !g.hasNormal {
			return false
		}
	}
	return true
}
