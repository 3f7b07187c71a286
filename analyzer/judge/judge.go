// Package judge decides, flow by flow and window by window, whether what was
// measured is normal. Its rules, in order:
//
//  1. A window touched by a starved host is evidence of nothing.
//  2. Delay is tested first on forward plus reverse, which no clock error can
//     change; only what moves that sum can be a delay of the fabric.
//  3. A shift of one direction beyond the clocks' bound, without an opposite
//     shift of the other, has that direction. Opposite shifts that leave the
//     sum alone are a clock's doing and are never a fabric delay.
//  4. A moved sum that cannot be split is a round trip: degraded, direction
//     unknown.
//  5. Loss counts have their direction from the counters; a count that could
//     not be separated stays a round trip.
//  6. What was not measured is undecided, never healthy.
//  7. A delay by a clock that is not to be trusted is no evidence; what was lost
//     is.
//
// It is pure: no I/O and no clock.
package judge

import (
	"math"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Parameters are the one fixed set used on every fabric.
type Parameters struct {
	// ShiftMADs is how many median absolute deviations of the baseline's
	// windows a window may move.
	ShiftMADs float64
	// TailSpreads is how many times the baseline's p99-p50 a median may move.
	TailSpreads float64
	// Floors are the smallest shifts that count, by kind of timestamp.
	FloorHardware, FloorKernel, FloorUser time.Duration
	// BaseLoss is the loss ratio of a healthy path.
	BaseLoss float64
	// LossEvidence is the log-likelihood ratio (nats) from which loss counts.
	LossEvidence float64
	// MinLost is the least number of lost probes that counts.
	MinLost uint64
	// HardLoss is the ratio from which loss is a hard failure's.
	HardLoss float64
}

// Defaults returns the published parameter set.
func Defaults() Parameters {
	return Parameters{ShiftMADs: 8, TailSpreads: 1.5, FloorHardware: time.Microsecond, FloorKernel: 10 * time.Microsecond,
		FloorUser: 200 * time.Microsecond, BaseLoss: 1e-3, LossEvidence: 7, MinLost: 3, HardLoss: 0.5}
}

// Condition is the judgement of one flow in one window.
type Condition int

// Conditions of a flow.
const (
	Undecided Condition = iota
	Healthy
	Degraded
)

// Finding is a judged window of one directed flow.
type Finding struct {
	Edge      fabric.Edge
	Obs       *fabric.Observation
	Condition Condition
	Delayed   bool // the delay moved
	Lossy     bool // loss stands out
	Hard      bool // loss at or above HardLoss
	// RoundTrip: what moved could not be given a direction.
	RoundTrip bool
	// ClockSuspect: the delay says nothing, because of a clock.
	ClockSuspect bool
	HostSuspect  bool
	// Shift is the added delay against the baseline in nanoseconds, with Scale
	// its spread; HasShift is false where either is missing.
	Shift, Scale int64
	HasShift     bool
}

// All judges windows that belong to one moment, at most one per directed flow
// and kind of duplicate; forward and reverse of a probe are judged together.
func All(obs []*fabric.Observation, p Parameters) []Finding {
	out := make([]Finding, 0, len(obs))
	partner := make(map[fabric.Edge]int, len(obs))
	for _, o := range obs {
		e, err := o.Flow()
		if err != nil {
			continue
		}
		f := Finding{Edge: e, Obs: o, HostSuspect: o.HostSuspect, ClockSuspect: o.ClockSuspect}
		if !o.ClockSuspect {
			f.Shift, f.Scale, f.HasShift = shift(o, p)
		}
		if _, dup := partner[e]; !dup {
			partner[e] = len(out)
		}
		out = append(out, f)
	}
	for i := range out {
		f := &out[i]
		other := f.Edge
		other.Reply = !other.Reply
		var back *Finding
		if j, ok := partner[other]; ok {
			back = &out[j]
		}
		judge(f, back, p)
	}
	return out
}

func judge(f, back *Finding, p Parameters) {
	if f.HostSuspect {
		return
	}
	measured := f.HasShift
	if f.HasShift {
		f.Delayed, f.RoundTrip, f.ClockSuspect = delayed(f, back, p)
	}
	if ratio, ok := f.Obs.LossRatio(); ok {
		measured = true
		if f.Obs.Lost >= p.MinLost && LossLLR(f.Obs.Lost, f.Obs.Sent, p.BaseLoss) >= p.LossEvidence {
			f.Lossy, f.Hard = true, ratio >= p.HardLoss
			f.RoundTrip = f.RoundTrip || f.Obs.LossScope == fabric.LossRoundTrip
		}
	}
	switch {
	case f.Delayed || f.Lossy:
		f.Condition = Degraded
	case f.ClockSuspect || !measured:
		f.Condition = Undecided
	default:
		f.Condition = Healthy
	}
}

// Distrust takes the delay back, because of a clock (rule 7).
func (f *Finding) Distrust() {
	f.ClockSuspect, f.Delayed = true, false
	f.RoundTrip = f.Lossy && f.Obs.LossScope == fabric.LossRoundTrip
	if !f.Lossy {
		f.Condition = Undecided
	}
}

// delayed applies rules 2 to 4.
func delayed(f, back *Finding, p Parameters) (yes, roundTrip, clock bool) {
	bound := ClockBound(f.Obs)
	limit := f.Scale + bound
	if back == nil || !back.HasShift {
		return f.Shift > limit, false, false
	}
	sum, sumLimit := f.Shift+back.Shift, f.Scale+back.Scale
	backLimit := back.Scale + bound
	if sum > sumLimit {
		switch {
		case back.Shift < -backLimit || f.Shift < -limit:
			// The clock moved as well as the path: the size of each way is not known.
			return true, true, false
		case f.Shift > limit:
			return true, false, false
		case back.Shift > backLimit:
			return false, false, false
		}
		return true, true, false
	}
	if f.Shift > limit && back.Shift < -backLimit/2 || f.Shift < -limit && back.Shift > backLimit/2 {
		return false, false, true
	}
	return false, false, false
}

// ClockBound is by how much the two clocks of an observation may be wrong in
// all, nanoseconds; 0 where nobody says so.
func ClockBound(o *fabric.Observation) int64 {
	if o.ClockErrorNS == nil {
		return 0
	}
	return *o.ClockErrorNS
}

// shift compares the best quantile that window and baseline have in common.
// The median is preferred: the tail of a few hundred probes is the host's as
// often as the fabric's.
func shift(o *fabric.Observation, p Parameters) (by, scale int64, ok bool) {
	if o.OWD == nil || o.Baseline == nil {
		return 0, 0, false
	}
	now, base, ok := common(o.OWD, o.Baseline)
	if !ok {
		return 0, 0, false
	}
	floor := p.FloorKernel
	switch o.Timestamp {
	case "hardware":
		floor = p.FloorHardware
	case "user":
		floor = p.FloorUser
	}
	scale = int64(floor)
	if o.BaselineMADNS != nil {
		scale = max(scale, int64(p.ShiftMADs*float64(*o.BaselineMADNS)))
	}
	if o.Baseline.P99 != nil && o.Baseline.P50 != nil {
		scale = max(scale, int64(p.TailSpreads*float64(*o.Baseline.P99-*o.Baseline.P50)))
	}
	return now - base, scale, true
}

func common(a, b *fabric.Quantiles) (x, y int64, ok bool) {
	for _, q := range [][2]*int64{{a.P50, b.P50}, {a.Mean, b.Mean}, {a.P90, b.P90}, {a.Min, b.Min}, {a.P99, b.P99}} {
		if q[0] != nil && q[1] != nil {
			return *q[0], *q[1], true
		}
	}
	return 0, 0, false
}

// LossLLR is the log-likelihood ratio (nats) of lost out of sent under its own
// ratio against the ratio base: 0 when it is no worse than base.
func LossLLR(lost, sent uint64, base float64) float64 {
	if sent == 0 || lost == 0 {
		return 0
	}
	q := float64(min(lost, sent)) / float64(sent)
	if q <= base {
		return 0
	}
	return BinomialLL(lost, sent, q) - BinomialLL(lost, sent, base)
}

// BinomialLL is the log-likelihood of lost out of sent at loss ratio q, without
// the binomial coefficient.
func BinomialLL(lost, sent uint64, q float64) float64 {
	const tiny = 1e-9
	q = math.Min(math.Max(q, tiny), 1-tiny)
	lost = min(lost, sent)
	return float64(lost)*math.Log(q) + float64(sent-lost)*math.Log1p(-q)
}
