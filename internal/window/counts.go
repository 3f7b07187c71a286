// Package window makes observations of a flow from what was counted of it over some seconds, and keeps and judges the
// last minute of a node's flows.
//
// Rules of a window whose probes got no reply at all:
//
//  1. The counts in replies say nothing then, since none came, and the counter of the reflecting node decides whether
//     probes or replies were lost.
//  2. The counters of the two nodes are of moments up to a second apart. A difference of a tenth does not count, and
//     where about half arrived it is not known what was lost.
//  3. Without that counter, what was lost was lost on the round trip.
package window

import (
	"math"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Directions of a flow, as indices.
const (
	Forward = iota // probes
	Reverse        // replies
	Directions
)

// Kinds lists the kinds of timestamps, the best first.
var Kinds = []string{"hardware", "kernel", "user"}

// MinDelays is the least number of delays that make a distribution. MinLastSent is the least number of probes that make a
// total loss.
const (
	MinDelays   = 10
	MinLastSent = 3
)

// Distribution describes the one-way delays of one direction by one kind of timestamps.
type Distribution struct {
	Count float64 `json:"count"`
	fabric.Quantiles
}

// Counts holds what was counted of one flow over a window. Nil means that it was not counted, which is never zero.
type Counts struct {
	Class string `json:"class"`
	Plane string `json:"plane,omitempty"`
	Tier  int    `json:"tier,omitempty"`
	// Sent, Lost and ECN are by direction.
	Sent [Directions]*float64 `json:"sent"`
	Lost [Directions]*float64 `json:"lost"`
	ECN  [Directions]*float64 `json:"ecn"`
	// Replies is the number of replies that arrived in the window, in time or late.
	Replies *float64 `json:"replies"`
	// LastSent and LastReplies are of the last second of the window alone, and so is LastReceived, which the node that
	// reflects counted.
	LastSent     *float64 `json:"last_sent"`
	LastReplies  *float64 `json:"last_replies"`
	LastReceived *float64 `json:"last_received,omitempty"`
	// Delays are by direction and by kind of timestamps.
	Delays [Directions]map[string]Distribution `json:"delays"`
}

// CountedDirections returns in how many directions packets were counted.
func (c *Counts) CountedDirections() (n int) {
	for _, sent := range c.Sent {
		if sent != nil {
			n++
		}
	}
	return n
}

// Observation returns one direction of a window that ends at a moment, without clocks, path and baseline. It returns nil if
// nothing was measured.
func (c *Counts) Observation(f fabric.Flow, reply bool, end time.Time, span time.Duration) *fabric.Observation {
	f.Reply = reply
	o := &fabric.Observation{Edge: f.String(), Tier: c.Tier, Plane: c.Plane, Class: c.Class, Start: end.Add(-span), WindowNS: int64(span), PathState: fabric.PathUnknown}
	o.Src, o.Dst = f.Endpoints()
	direction := Forward
	if reply {
		direction = Reverse
	}
	counted := c.fillCounts(o, direction)
	delays := c.FillDelays(o, direction)
	if !counted && !delays {
		return nil
	}
	if c.LastSent != nil && c.LastReplies != nil && *c.LastSent >= MinLastSent {
		// One may be on its way.
		sent := math.Round(*c.LastSent)
		o.LastSecond = &fabric.Count{Sent: uint64(sent), Lost: uint64(math.Max(0, sent-math.Round(*c.LastReplies)-1))}
	}
	return o
}

// IsSilent reports whether probes were sent in the last second and no reply came.
func (c *Counts) IsSilent() bool {
	return c.LastSent != nil && *c.LastSent >= MinLastSent && c.LastReplies != nil && *c.LastReplies == 0
}

// Shares of the probes of a second in which no reply came that the reflecting node counted.
const (
	// arrived: from this share on probes arrive, and replies are what is lost.
	arrived = 0.75
	// ceased: below this share it is the probes that are lost.
	ceased = 0.5
)

// fillSilentCounts fills in the counts of a second in which probes were sent and no reply came. It reports whether
// something is known of the direction.
func (c *Counts) fillSilentCounts(o *fabric.Observation, reply bool) bool {
	sent := math.Round(*c.LastSent)
	if c.LastReceived == nil {
		if !reply {
			o.Sent, o.Lost, o.LossScope = uint64(sent), uint64(sent), fabric.LossRoundTrip
		}
		return !reply
	}
	got := math.Round(*c.LastReceived)
	switch {
	case got >= arrived*sent && reply:
		o.Sent = uint64(got)
		o.Lost = o.Sent
		return o.Sent >= MinLastSent
	case got >= arrived*sent:
		// That they arrive is certain, how many of them is not.
		o.Sent, o.Lost = MinDelays, 0
		return got >= MinDelays
	case got < ceased*sent && !reply:
		o.Sent, o.Lost = uint64(sent), uint64(sent-got)
		return true
	}
	return false // the reflecting node's second may be half before what happened, and half after it
}

// fillCounts fills in what was sent and lost.
func (c *Counts) fillCounts(o *fabric.Observation, direction int) bool {
	if c.IsSilent() {
		return c.fillSilentCounts(o, direction == Reverse)
	}
	if c.Sent[direction] == nil || c.Lost[direction] == nil || *c.Sent[direction] < 1 {
		return false
	}
	lost := *c.Lost[direction]
	// The first reply after a silence accounts for all that was lost in it. That
	// is old news: no more can have been lost in a window than went unanswered.
	if probes := c.Sent[Forward]; probes != nil && c.Replies != nil {
		lost = math.Min(lost, math.Max(0, *probes-*c.Replies))
	}
	o.Sent = uint64(math.Round(*c.Sent[direction]))
	o.Lost = min(uint64(math.Round(math.Max(0, lost))), o.Sent)
	if ecn := c.ECN[direction]; ecn != nil {
		n := min(uint64(math.Round(math.Max(0, *ecn))), o.Sent)
		o.ECN = &n
	}
	return true
}

// FillDelays fills in the delays of the best kind of timestamp that has enough, and reports whether one has.
func (c *Counts) FillDelays(o *fabric.Observation, direction int) bool {
	for _, kind := range Kinds {
		if d, ok := c.Delays[direction][kind]; ok && d.Count >= MinDelays && d.P50 != nil {
			q := d.Quantiles
			o.OWD, o.Timestamp = &q, kind
			return true
		}
	}
	return false
}
