package fabric

import (
	"fmt"
	"slices"
	"time"
)

// PathState states how far the path of an observation can be trusted.
type PathState string

// Path states of the observation file.
const (
	PathValid   PathState = "valid"
	PathStale   PathState = "stale"
	PathUnknown PathState = "unknown"
)

// Quantiles are a window's one-way delays in nanoseconds, signed: a negative
// delay is a clock's doing and is kept.
type Quantiles struct {
	Min  *int64 `json:"min,omitempty"`
	Mean *int64 `json:"mean,omitempty"`
	P50  *int64 `json:"p50,omitempty"`
	P90  *int64 `json:"p90,omitempty"`
	P99  *int64 `json:"p99,omitempty"`
	Max  *int64 `json:"max,omitempty"`
}

// Observation is one window of one directed flow: a line of the observation
// file. A nil pointer is a value that was not measured, never zero.
type Observation struct {
	Edge         string     `json:"edge"`
	Src          string     `json:"src"`
	Dst          string     `json:"dst"`
	Tier         int        `json:"tier,omitempty"`
	Plane        string     `json:"plane,omitempty"`
	Class        string     `json:"class"`
	Start        time.Time  `json:"start"`
	WindowNS     int64      `json:"window_ns"`
	Sent         uint64     `json:"sent"`
	Lost         uint64     `json:"lost"`
	LossScope    string     `json:"loss_scope,omitempty"`
	ECN          *uint64    `json:"ecn,omitempty"`
	OWD          *Quantiles `json:"owd_ns,omitempty"`
	Baseline     *Quantiles `json:"baseline_ns,omitempty"`
	ClockErrorNS *int64     `json:"clock_error_ns,omitempty"`
	Timestamp    string     `json:"timestamp,omitempty"`
	HostSuspect  bool       `json:"host_suspect,omitempty"`
	// Unread: a NIC at one end dropped packets before it read or verified them,
	// so that the window is evidence of nothing. HostSuspect is set as well.
	Unread       bool      `json:"unread,omitempty"`
	ClockSuspect bool      `json:"clock_suspect,omitempty"` // a clock it was measured by is not related to the others
	Path         Path      `json:"path,omitempty"`
	Paths        []Path    `json:"paths,omitempty"`
	PathState    PathState `json:"path_state,omitempty"`
	// Sprayed is set if the packets take all of Paths in turn, as with adaptive routing, and not one of them.
	Sprayed bool `json:"sprayed,omitempty"`
	// Weights are the shares of the packets that take each of Paths, up to a common factor. Without them all shares are equal. Only
	// observations with Sprayed have some.
	Weights []float64 `json:"weights,omitempty"`

	// Chosen is set if the sender chose the path, and Refused if a switch on it does not know where to send the packets. Neither is
	// part of the file.
	Chosen  bool `json:"-"`
	Refused bool `json:"-"`
	// BaselineMADNS is the median absolute deviation of the windows behind
	// Baseline's median, where they are known; not part of the file.
	BaselineMADNS *int64 `json:"-"`
	// PathSince is when the path was learnt, where that is known; not part of the file.
	PathSince time.Time `json:"-"`
	// LastSecond counts the probes of the last second and their replies. It is nil if they are not known, and not
	// part of the file.
	LastSecond *Count `json:"-"`
}

// Count is how many packets were sent and how many of them were lost.
type Count struct{ Sent, Lost uint64 }

// LossRoundTrip marks a loss count that could not be separated by direction.
const LossRoundTrip = "round_trip"

// ClassCSIG is the class of the flows whose probes carry in-band signals. A switch that does not know such a tag may drop its packets, or
// send them another way, so that a flow of this class is never evidence of loss or delay.
const ClassCSIG = "csig"

// CarriesSignals reports whether the observation is of a flow that carries in-band signals.
func (o *Observation) CarriesSignals() bool { return o.Class == ClassCSIG }

// ParseFlow parses the observation's edge.
func (o *Observation) ParseFlow() (Flow, error) { return ParseFlow(o.Edge) }

// LossRatio returns the share of sent probes that were lost. ok is false if none were sent.
func (o *Observation) LossRatio() (r float64, ok bool) {
	if o.Sent == 0 {
		return 0, false
	}
	return float64(min(o.Lost, o.Sent)) / float64(o.Sent), true
}

// What a line may hold. Within these bounds no sum or difference of a window's numbers
// overflows, however many windows are joined.
const (
	// maxCount bounds counts of packets, maxDelayNS delays either way (nine years: a
	// clock may be that wrong), maxWindowNS a window.
	maxCount    = 1 << 40
	maxDelayNS  = 1 << 58
	maxWindowNS = int64(24 * time.Hour)
	// maxHops bounds a path, maxPaths the candidates for it.
	maxHops, maxPaths = 64, 1024
	maxTier           = 16
	// maxWeight bounds the weight of a path.
	maxWeight = 1e12
)

// minStart and maxStart bound the start of a window: times that nanoseconds since 1970
// can express, with room for the window.
var (
	minStart = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	maxStart = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// completeLine checks the fields that nothing can do without, and fills in what may be left out.
func (o *Observation) completeLine() error {
	e, err := ParseFlow(o.Edge)
	if err != nil {
		return fmt.Errorf("field %q: %w", "edge", err)
	}
	o.Edge = e.String() // "#0" may be missing
	from, to := e.Endpoints()
	if o.Src == "" && o.Dst == "" {
		o.Src, o.Dst = from, to
	}
	if o.Src != from || o.Dst != to {
		return fmt.Errorf("field %q: src %q and dst %q are not the ends of edge %q in the direction it measures", "src", o.Src, o.Dst, o.Edge)
	}
	if o.Start.IsZero() {
		return fmt.Errorf("field %q: an RFC 3339 time is required", "start")
	}
	if err := o.checkNumbers(); err != nil {
		return err
	}
	if o.LossScope != "" && o.LossScope != LossRoundTrip {
		return fmt.Errorf("field %q: %q, want %q or nothing", "loss_scope", o.LossScope, LossRoundTrip)
	}
	switch o.PathState {
	case PathValid, PathStale:
		if len(o.Path) == 0 {
			return fmt.Errorf("field %q: %q without a path", "path_state", o.PathState)
		}
	case PathUnknown:
		if len(o.Path) > 0 {
			return fmt.Errorf("field %q: unknown, but a path is given", "path_state")
		}
	case "":
		o.PathState = PathUnknown
		if len(o.Path) > 0 {
			o.PathState = PathValid
		}
	default:
		return fmt.Errorf("field %q: %q, want valid, stale or unknown", "path_state", o.PathState)
	}
	return nil
}

// checkNumbers refuses what cannot have been measured.
func (o *Observation) checkNumbers() error {
	if o.Start.Before(minStart) || o.Start.After(maxStart) {
		return fmt.Errorf("field %q: %s, a time from 1970 to 2200 is expected", "start", o.Start.Format(time.RFC3339))
	}
	if o.WindowNS > maxWindowNS {
		return fmt.Errorf("field %q: %d, at most a day is expected", "window_ns", o.WindowNS)
	}
	if o.Sent > maxCount {
		return fmt.Errorf("field %q: %d, at most %d is expected", "sent", o.Sent, uint64(maxCount))
	}
	if o.Lost > o.Sent {
		return fmt.Errorf("field %q: %d of %d sent", "lost", o.Lost, o.Sent)
	}
	if o.ECN != nil && *o.ECN > o.Sent {
		return fmt.Errorf("field %q: %d of %d sent", "ecn", *o.ECN, o.Sent)
	}
	if o.Tier < 0 || o.Tier > maxTier {
		return fmt.Errorf("field %q: %d, 0 to %d is expected", "tier", o.Tier, maxTier)
	}
	if n := o.ClockErrorNS; n != nil && (*n < 0 || *n > maxDelayNS) {
		return fmt.Errorf("field %q: %d, 0 to %d is expected", "clock_error_ns", *n, int64(maxDelayNS))
	}
	for _, q := range []struct {
		field string
		*Quantiles
	}{{"owd_ns", o.OWD}, {"baseline_ns", o.Baseline}} {
		if q.Quantiles == nil {
			continue
		}
		for _, v := range []*int64{q.Min, q.Mean, q.P50, q.P90, q.P99, q.Max} {
			if v != nil && (*v < -maxDelayNS || *v > maxDelayNS) {
				return fmt.Errorf("field %q: %d, at most %d either way is expected", q.field, *v, int64(maxDelayNS))
			}
		}
	}
	if len(o.Paths) > maxPaths {
		return fmt.Errorf("field %q: %d candidates, at most %d are expected", "paths", len(o.Paths), maxPaths)
	}
	for _, p := range append([]Path{o.Path}, o.Paths...) {
		if len(p) > maxHops {
			return fmt.Errorf("field %q: %d hops, at most %d are expected", "path", len(p), maxHops)
		}
		if slices.ContainsFunc(p, func(h Hop) bool { return h.Switch == "" }) {
			return fmt.Errorf("field %q: a hop without a switch", "path")
		}
	}
	return o.checkWeights()
}

// checkWeights refuses weights that are not the shares of the packets that take each of several paths.
func (o *Observation) checkWeights() error {
	if o.Weights == nil {
		return nil
	}
	if !o.Sprayed {
		return fmt.Errorf("field %q: weights are expected only where %q is true", "weights", "sprayed")
	}
	if len(o.Weights) != len(o.Paths) {
		return fmt.Errorf("field %q: %d weights for %d paths, one for each is expected", "weights", len(o.Weights), len(o.Paths))
	}
	sum := 0.0
	for i, w := range o.Weights {
		if !(w >= 0 && w <= maxWeight) {
			return fmt.Errorf("field %q: %g, 0 to %g is expected", fmt.Sprintf("weights.%d", i), w, float64(maxWeight))
		}
		sum += w
	}
	if sum == 0 {
		return fmt.Errorf("field %q: all weights are 0, a positive one is expected", "weights")
	}
	return nil
}
