// Package clocksync relates the clocks of a fleet to each other: from the four
// stamps of every probe exchange to one time frame with an error bound.
//
// It is pure: no I/O, and time is passed in. Its parts, in the order of the data:
//
//	Pair      one path of one edge: both directions' stamps -> Estimate     (agent)
//	Report    the estimates of a node's edges, in compact form              (agent -> coordinator)
//	Frame     the graph of all clocks: weighted least squares -> Map, bound (coordinator)
//	Update    the maps an agent needs: its own clocks' and its peers'       (coordinator -> agent)
//	Follower  holds maps and pair estimates -> Relation per edge, Status    (agent)
//
// Times are int64 nanoseconds of some clock, durations nanoseconds, rates
// dimensionless (seconds per second). "The offset of B against A" is what B
// shows minus what A shows at one moment.
//
// # What cannot be known
//
// A constant asymmetry of two directions is an offset to every estimator that
// sees only stamps. Every bound here has therefore two parts that are published
// apart: the statistical one, which this package owes, and the asymmetry
// allowance, which is configured. Coverage is claimed for asymmetries within the
// allowance.
package clocksync

import "strings"

// Kind is how the stamps of a sample were taken; both ends' are of one kind.
type Kind uint8

// Kinds of stamps. Those of user space make no samples.
const (
	Kernel   Kind = iota // the host's system clock
	Hardware             // the NIC's own clock
	kinds    = iota
)

// ClockOf is the clock that stamps at a NIC ("node/device"): the node's system
// clock, named like the node, or the NIC's own, named like the NIC.
func ClockOf(nic string, k Kind) string {
	if k == Hardware {
		return nic
	}
	node, _, _ := strings.Cut(nic, "/")
	return node
}

// PairID names one path of one edge as its prober sees it.
type PairID struct {
	Src, Dst string // NICs; Src is the prober's own
	Flow     int
	Kind     Kind
}

// LocalClock and Peer are the clocks it relates.
func (p PairID) LocalClock() string { return ClockOf(p.Src, p.Kind) }

// PeerClock is the far clock.
func (p PairID) PeerClock() string { return ClockOf(p.Dst, p.Kind) }

// Quality is how an estimate came about.
type Quality uint8

// Qualities.
const (
	None   Quality = iota // nothing known: the other fields are zero
	Coarse                // from the extremes of few samples
	Fine                  // from the shape of what was seen before
	Held                  // predicted: the last window told nothing that could be used
)

// Estimate is what a pair knows about its far clock at one moment.
type Estimate struct {
	Quality   Quality
	Ref       int64   // the moment it holds for, by the local clock
	Offset    int64   // of the far clock against the local one at Ref
	Rate      float64 // what the far clock gains on the local one
	Sigma     float64 // standard deviation of Offset, ns: noise only
	RateSigma float64 // standard deviation of Rate, likewise
	// Wander and RateWander are the standard deviations of what both clocks may
	// have done unseen, and of what a queue of one direction hides from a young pair: it
	// is mostly a NIC's own. All pairs of a clock have its share of it in common.
	Wander, RateWander float64
	// Inherited is the standard deviation, ns, of what was held when the path
	// last changed, and of what unequal queues both ways may hide. It does not
	// shrink with time, as noise does.
	Inherited float64
	Delay     int64    // one-way delay of a packet that waits for nothing: half of the round trip
	Samples   [2]int32 // of the last window: forward, reverse
	// Moves counts jumps of the clocks against each other, Detours changes of
	// the path's delay, since the pair began.
	Moves, Detours uint32
}

// State is what a clock's map is worth.
type State uint8

// States of a clock.
const (
	Converging State = iota // not related to the frame yet, or not well enough
	Locked                  // measured in the last window
	Holdover                // predicted from what was measured before
	Lost                    // the prediction is worth nothing any more
)

var stateNames = [...]string{"converging", "locked", "holdover", "lost"}

// StateNames lists the names of all states.
func StateNames() []string { return stateNames[:] }

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// Map takes a clock's times into the frame: frame = local + Offset + Rate x (local - Ref).
type Map struct {
	State  State
	Ref    int64   // by the clock itself
	Offset int64   // of the frame against the clock at Ref: what is to be added
	Rate   float64 // what the frame gains on the clock
	// Sigma is the standard deviation of Offset at Ref, ns, RateSigma that of
	// Rate; both against the other clocks of the component, without asymmetry.
	Sigma, RateSigma float64
	Allowance        int64 // share of the configured asymmetry, ns
	Component        uint32
	// Steps and Drifts count the jumps of this clock's time and of its rate.
	Steps, Drifts uint32
	Peers         uint32 // clocks it was measured against in the last window
}

// FrameTime takes a time of the clock into the frame.
func (m *Map) FrameTime(local int64) int64 {
	return local + m.Offset + int64(m.Rate*float64(local-m.Ref))
}
