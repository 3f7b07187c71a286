// Package clocksync relates the clocks of a fleet to each other: it computes one time frame with an
// error bound from the four stamps of every exchange of probe and reply. A sample is the measurement of
// one direction of such an exchange.
//
// The package is pure: it has no I/O, and time is passed in. Its parts, in the order of the data:
//
//	Pair      one path of one edge: both directions' stamps -> Estimate     (agent)
//	Report    the estimates of a node's edges, in compact form              (agent -> coordinator)
//	Frame     the graph of all clocks: weighted least squares -> Map, bound (coordinator)
//	Update    the maps an agent needs: its own clocks' and its peers'       (coordinator -> agent)
//	Follower  holds maps and pair estimates -> Relation per edge, Status    (agent)
//
// Times are int64 nanoseconds of some clock, durations nanoseconds, rates dimensionless (seconds per
// second). "The offset of B against A" is the time that B shows minus the time that A shows at one
// moment.
//
// # What cannot be known
//
// A constant asymmetry of two directions is an offset to every estimator that has only stamps.
// Therefore every bound here has two parts that are published separately: the statistical one, which
// this package is responsible for, and the asymmetry allowance, which is configured. The bounds hold for
// asymmetries within the allowance.
package clocksync

import "strings"

// Kind is the method by which the stamps of a sample were taken. Both ends have the same kind.
type Kind uint8

// Kinds of stamps. Stamps of user space make no samples.
const (
	Kernel   Kind = iota // the host's system clock
	Hardware             // the NIC's own clock
	kinds    = iota
)

// ClockOf returns the clock that stamps at a NIC ("node/device"): the node's system clock, which has
// the name of the node, or the NIC's own, which has the name of the NIC.
func ClockOf(nic string, k Kind) string {
	if k == Hardware {
		return nic
	}
	node, _, _ := strings.Cut(nic, "/")
	return node
}

// PairID identifies one path of one edge from the view of its prober.
type PairID struct {
	Src, Dst string // NICs; Src belongs to the prober
	Flow     int
	Kind     Kind
}

// LocalClock returns the prober's clock.
func (p PairID) LocalClock() string { return ClockOf(p.Src, p.Kind) }

// PeerClock returns the far clock.
func (p PairID) PeerClock() string { return ClockOf(p.Dst, p.Kind) }

// Quality is the way in which an estimate was made.
type Quality uint8

// Qualities of estimates.
const (
	None   Quality = iota // there is no estimate: the other fields are zero
	Coarse                // from the extremes of few samples
	Fine                  // from the shape of earlier windows
	Held                  // predicted: the last window had no usable measurement
)

// Estimate is a pair's knowledge of its far clock at one moment.
type Estimate struct {
	Quality   Quality
	Ref       int64   // the moment of the estimate, by the local clock
	Offset    int64   // far clock minus local clock at Ref
	Rate      float64 // gain of the far clock on the local one
	Sigma     float64 // standard deviation of Offset, ns, from noise only
	RateSigma float64 // standard deviation of Rate, from noise only
	// Wander and RateWander are the standard deviations of unobserved changes of both clocks, and of
	// the effect of a queue in one direction on a young pair, which mostly belongs to a NIC. All pairs
	// of a clock share this part.
	Wander, RateWander float64
	// Inherited is the standard deviation, ns, of the estimate that was held when the path last
	// changed, and of the possible effect of unequal queues in the two directions. Unlike noise, it
	// does not shrink with time.
	Inherited float64
	Delay     int64 // one-way delay of a packet that waits in no queue: half of the round trip
	// FirstDelay is Delay on the path on which the pair began. Its two directions are assumed to be
	// alike, and later changes of the path are measured by direction.
	FirstDelay int64
	Samples    [2]int32 // samples of the last window: forward, reverse
	// Moves counts jumps of the clocks against each other, and Detours counts changes of the path's
	// delay, since the pair began.
	Moves, Detours uint32
}

// State is the quality of a clock's map.
type State uint8

// States of a clock.
const (
	Converging State = iota // not related to the frame yet, or not precisely enough
	Locked                  // measured in the last window
	Holdover                // predicted from earlier measurements
	Lost                    // the prediction is too uncertain to be used
)

var stateNames = [...]string{"converging", "locked", "holdover", "lost"}

// StateNames returns the names of all states.
func StateNames() []string { return stateNames[:] }

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// Map converts a clock's times into the frame: frame = local + Offset + Rate x (local - Ref).
type Map struct {
	State  State
	Ref    int64   // time of the clock itself
	Offset int64   // frame minus clock at Ref, to be added
	Rate   float64 // gain of the frame on the clock
	// Sigma is the standard deviation of Offset at Ref, ns, and RateSigma that of Rate. Both are
	// relative to the other clocks of the component, without asymmetry.
	Sigma, RateSigma float64
	Allowance        int64 // the clock's share of the configured asymmetry, ns
	Component        uint32
	// Steps and Drifts count the jumps of this clock's time and of its rate.
	Steps, Drifts uint32
	Peers         uint32 // number of clocks it was measured against in the last window
}

// FrameTime converts a time of the clock into the frame.
func (m *Map) FrameTime(local int64) int64 {
	return local + m.Offset + int64(m.Rate*float64(local-m.Ref))
}
