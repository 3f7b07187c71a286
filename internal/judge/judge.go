// Package judge decides, flow by flow and window by window, whether what was
// measured is normal. Its rules, in order:
//
//  1. A window of a starved host, or of a NIC that dropped packets before it read or
//     verified them, is excluded as evidence.
//  2. Delay is first tested on the sum of forward and reverse, which no clock error can
//     change. Only a shift of that sum can be a delay of the fabric.
//  3. A shift of one direction beyond the clocks' bound, without an opposite
//     shift of the other, has that direction. Opposite shifts that leave the
//     sum alone come from a clock and are never a fabric delay.
//  4. A moved sum that cannot be split is a round trip: degraded, direction
//     unknown.
//  5. Loss counts have their direction from the counters; a count that could
//     not be separated stays a round trip.
//  6. A flow that was not measured is undecided, never healthy.
//  7. A delay by an untrusted clock is no evidence. Losses are evidence, and so is a sum of
//     both directions that moved by more than noise and the resolution of the histograms at
//     such offsets, as a round trip. Losses and marks keep their direction, and do not need
//     the clock.
//  8. A tail that moved far beyond its median is jitter: one probe in ten beyond
//     what one in a hundred was. Clocks move all quantiles alike and make none. Of
//     packets that take several paths in turn a slow path moves the 99th percentile
//     alone, which has to move further.
//  9. Marks of congestion count like losses, against the ratio a healthy path has.
//  10. A flow whose packets a switch refuses, since it does not know an identifier of their path, is undecided.
//  11. A flow that carries in-band signals has no finding, whatever became of its packets. Switches may treat these differently
//     from those of all other flows.
//
// The package does no I/O and reads no clock.
package judge

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Parameters are the one fixed set used on every fabric.
type Parameters struct {
	// ShiftMADs is the number of median absolute deviations of the baseline's
	// windows by which a window may move.
	ShiftMADs float64
	// TailSpreads is how many times the baseline's p99-p50 a median may move.
	TailSpreads float64
	// Floors are the smallest shifts that count, by kind of timestamp.
	FloorHardware, FloorKernel, FloorUser time.Duration
	// TailFloors is how many floors a tail must move at least.
	TailFloors int64
	// BaseLoss is the loss ratio of a healthy path.
	BaseLoss float64
	// LossEvidence is the log-likelihood ratio (nats) from which loss counts.
	LossEvidence float64
	// MinLost is the least number of lost probes that counts.
	MinLost uint64
	// HardLoss is the ratio from which loss is a hard failure's.
	HardLoss float64
	// BaseMark is the ratio of ECN marks of a healthy path, MinMarked the least
	// number of marks that counts.
	BaseMark  float64
	MinMarked uint64
}

// DefaultParameters returns the published parameter set.
func DefaultParameters() Parameters {
	return Parameters{ShiftMADs: 8, TailSpreads: 1.5, FloorHardware: time.Microsecond, FloorKernel: 10 * time.Microsecond,
		FloorUser: 200 * time.Microsecond, TailFloors: 2, BaseLoss: 1e-3, LossEvidence: 7, MinLost: 3, HardLoss: 0.5, BaseMark: 0.02, MinMarked: 8}
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
	Flow      fabric.Flow
	Obs       *fabric.Observation
	Condition Condition
	Delayed   bool // the delay moved
	Lossy     bool // loss stands out
	Hard      bool // loss at or above HardLoss
	Jittery   bool // the tail moved far beyond the median
	Marked    bool // ECN marks stand out
	// Lasting means that this window alone shows what goes on for longer than a moment: the median moved, which takes half of the
	// window, or packets were lost in each second of a window of two.
	Lasting bool
	// RoundTrip: what moved could not be given a direction.
	RoundTrip bool
	// ClockSuspect: the delay says nothing, because of a clock.
	ClockSuspect bool
	HostSuspect  bool
	// Shift is the added delay against the baseline in nanoseconds, with Scale
	// its spread; HasShift is false where either is missing.
	Shift, Scale int64
	HasShift     bool
	// Sum is Shift of both directions together with SumScale its spread, whatever the
	// clocks do (rule 7); HasSum is false where one is missing.
	Sum, SumScale int64
	HasSum        bool
	measured      bool // Shift and Scale are, by a clock that may be suspect
	// TailShift is how much further the 99th percentile moved than the median,
	// nanoseconds, with TailScale its spread; HasTail is false where either is missing.
	TailShift, TailScale int64
	HasTail              bool
}

// FindingsOf judges windows that belong to one moment, at most one per directed flow
// and kind of duplicate; forward and reverse of a probe are judged together. Windows of flows
// that carry in-band signals are left out.
func FindingsOf(obs []*fabric.Observation, p Parameters) []Finding {
	out := make([]Finding, len(obs))
	runInParts(len(obs), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			o := obs[i]
			e, err := o.ParseFlow()
			if err != nil || o.CarriesSignals() {
				continue
			}
			f := Finding{Flow: e, Obs: o, HostSuspect: o.HostSuspect, ClockSuspect: o.ClockSuspect}
			f.Shift, f.Scale, f.measured = delayShift(o, p)
			f.HasShift = f.measured && !o.ClockSuspect
			if !o.ClockSuspect {
				f.TailShift, f.TailScale, f.HasTail = tailShift(o, p)
			}
			out[i] = f
		}
	})
	out = slices.DeleteFunc(out, func(f Finding) bool { return f.Obs == nil })
	// Only delays are judged against those of the other direction.
	find := reverseFinder(out)
	back := make([]*Finding, len(out))
	runInParts(len(out), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			if back[i] = find(i); back[i] != nil {
				out[i].sumDirections(back[i])
			}
		}
	})
	runInParts(len(out), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			judgeFinding(&out[i], back[i], p)
		}
	})
	for i := range out {
		if out[i].ClockSuspect {
			out[i].DistrustDelay()
		}
	}
	return out
}

// reverseFinder returns what finds the other direction of a probe, if both were measured.
// Where the two are neighbours, as in an order by edge, nothing is looked up.
func reverseFinder(all []Finding) func(i int) *Finding {
	if !slices.ContainsFunc(all, func(f Finding) bool { return f.Flow.Reply }) {
		return func(int) *Finding { return nil }
	}
	index := sync.OnceValue(func() map[fabric.Flow]int {
		at := make(map[fabric.Flow]int, len(all))
		for i := range all {
			if f := &all[i]; f.measured {
				if _, dup := at[f.Flow]; !dup {
					at[f.Flow] = i
				}
			}
		}
		return at
	})
	return func(i int) *Finding {
		if !all[i].measured {
			return nil
		}
		other := all[i].Flow
		other.Reply = !other.Reply
		for _, j := range []int{i - 1, i + 1} {
			if j >= 0 && j < len(all) && all[j].measured && all[j].Flow == other {
				return &all[j]
			}
		}
		if j, ok := index()[other]; ok {
			return &all[j]
		}
		return nil
	}
}

// sumDirections sets the shift of the sum of both directions, which no clock can change. A step within a window may
// separate the medians, but not the means.
func (f *Finding) sumDirections(back *Finding) {
	f.Sum, f.SumScale, f.HasSum = f.Shift+back.Shift, f.Scale+back.Scale, true
	// A bucket of a native histogram of schema 4 is 4.4 % wide.
	const resolution = 0.045
	a, b := f.Obs, back.Obs
	for _, q := range []*fabric.Quantiles{a.OWD, b.OWD, a.Baseline, b.Baseline} {
		if q.P50 != nil {
			f.SumScale += int64(resolution * math.Abs(float64(*q.P50)))
		}
	}
	if a.OWD.Mean != nil && b.OWD.Mean != nil && a.Baseline.P50 != nil && b.Baseline.P50 != nil {
		mean := *a.OWD.Mean + *b.OWD.Mean - *a.Baseline.P50 - *b.Baseline.P50
		if max(mean, -mean) < max(f.Sum, -f.Sum) {
			f.Sum = mean
		}
	}
}

// runInParts runs fn over n items, side by side where they are many.
func runInParts(n int, fn func(lo, hi int)) {
	workers := runtime.GOMAXPROCS(0)
	if n < 4096 {
		workers = 1
	}
	part := (n + workers - 1) / workers
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { fn(min(w*part, n), min((w+1)*part, n)) })
	}
	wg.Wait()
}

func judgeFinding(f, back *Finding, p Parameters) {
	if f.HostSuspect || f.Obs.Refused {
		return
	}
	measured := f.HasShift
	if f.HasShift {
		f.Delayed, f.RoundTrip, f.ClockSuspect = checkDelay(f, back, p)
	}
	if ratio, ok := f.Obs.LossRatio(); ok {
		measured = true
		if f.Obs.Lost >= p.MinLost && LossLLR(f.Obs.Lost, f.Obs.Sent, p.BaseLoss) >= p.LossEvidence {
			f.Lossy, f.Hard = true, ratio >= p.HardLoss
			f.RoundTrip = f.RoundTrip || f.Obs.LossScope == fabric.LossRoundTrip
		}
	}
	f.Lasting = f.Delayed || f.Lossy && losesInEachSecond(f.Obs)
	f.Jittery = f.HasTail && isJittery(f)
	if f.Obs.ECN != nil && f.Obs.Sent > 0 {
		measured = true
		f.Marked = *f.Obs.ECN >= p.MinMarked && LossLLR(*f.Obs.ECN, f.Obs.Sent, p.BaseMark) >= p.LossEvidence
	}
	switch {
	case f.Delayed || f.Lossy || f.Jittery || f.Marked:
		f.Condition = Degraded
	case f.ClockSuspect || !measured:
		f.Condition = Undecided
	default:
		f.Condition = Healthy
	}
}

// losesInEachSecond reports whether packets were lost in the last second of a window of two, and before it. Of the last second, only
// probes without a reply are known, and one of these may be on its way.
func losesInEachSecond(o *fabric.Observation) bool {
	last := o.LastSecond
	return last != nil && o.WindowNS <= int64(2*time.Second) && last.Lost > 0 && o.Lost > last.Lost+1
}

// DistrustDelay takes back what one direction's delay says, because of a clock (rule 7).
func (f *Finding) DistrustDelay() {
	f.ClockSuspect, f.Delayed, f.Jittery = true, false, false
	f.Lasting = f.Lossy && losesInEachSecond(f.Obs)
	f.RoundTrip = f.Lossy && f.Obs.LossScope == fabric.LossRoundTrip
	switch {
	case f.HostSuspect:
	case f.HasSum && f.Sum > f.SumScale && !f.Lossy && !f.Marked: // those have their direction by themselves
		f.ClockSuspect, f.Delayed, f.RoundTrip, f.Condition = false, true, true, Degraded
		f.Shift, f.Scale, f.HasShift, f.HasTail = f.Sum, f.SumScale, true, false
	case !f.Lossy && !f.Marked:
		f.Condition = Undecided
	}
}

// checkDelay applies rules 2 to 4.
func checkDelay(f, back *Finding, p Parameters) (yes, roundTrip, clock bool) {
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

// ClockBound returns by how many nanoseconds the two clocks of an observation may be wrong
// together. It is 0 where no bound is known.
func ClockBound(o *fabric.Observation) int64 {
	if o.ClockErrorNS == nil {
		return 0
	}
	return *o.ClockErrorNS
}

// delayShift compares the best quantile that window and baseline have in common.
// The median is preferred: the tail of a few hundred probes is the host's as
// often as the fabric's.
func delayShift(o *fabric.Observation, p Parameters) (by, scale int64, ok bool) {
	if o.OWD == nil || o.Baseline == nil {
		return 0, 0, false
	}
	now, base, ok := commonQuantile(o.OWD, o.Baseline)
	if !ok {
		return 0, 0, false
	}
	scale = int64(p.shiftFloor(o))
	if o.BaselineMADNS != nil {
		scale = max(scale, int64(p.ShiftMADs*float64(*o.BaselineMADNS)))
	}
	if o.Baseline.P99 != nil && o.Baseline.P50 != nil {
		scale = max(scale, int64(p.TailSpreads*float64(*o.Baseline.P99-*o.Baseline.P50)))
	}
	return now - base, scale, true
}

// ExceedsBaseline reports whether the median or the tail of a window lies above a baseline, whose windows have a median
// absolute deviation, by more than noise. The clocks are taken as exact. It is false if there is nothing to compare.
func ExceedsBaseline(o *fabric.Observation, base *fabric.Quantiles, madNS int64, p Parameters) bool {
	c := fabric.Observation{OWD: o.OWD, Timestamp: o.Timestamp, Baseline: base, BaselineMADNS: &madNS}
	if by, scale, ok := delayShift(&c, p); ok && by > scale {
		return true
	}
	f := Finding{Obs: &c}
	f.TailShift, f.TailScale, f.HasTail = tailShift(&c, p)
	return f.HasTail && isJittery(&f)
}

// tailShift compares how far the tail lies from the median, now and in the baseline: no
// clock can change that.
func tailShift(o *fabric.Observation, p Parameters) (by, scale int64, ok bool) {
	if o.OWD == nil || o.Baseline == nil || o.OWD.P50 == nil || o.OWD.P99 == nil || o.Baseline.P50 == nil || o.Baseline.P99 == nil {
		return 0, 0, false
	}
	base := *o.Baseline.P99 - *o.Baseline.P50
	return *o.OWD.P99 - *o.OWD.P50 - base, max(p.TailFloors*int64(p.shiftFloor(o)), int64(p.TailSpreads*float64(base))), true
}

// isJittery reports whether a finding is jitter (rule 8). Without a 90th percentile the 99th has to move further.
func isJittery(f *Finding) bool {
	o := f.Obs
	if far := f.TailShift > 4*f.TailScale; o.OWD.P90 == nil || far && o.Sprayed {
		return far
	}
	return *o.OWD.P90-*o.OWD.P50-(*o.Baseline.P99-*o.Baseline.P50) > f.TailScale
}

// shiftFloor returns the smallest shift that counts.
func (p Parameters) shiftFloor(o *fabric.Observation) time.Duration {
	switch o.Timestamp {
	case "hardware":
		return p.FloorHardware
	case "user":
		return p.FloorUser
	}
	return p.FloorKernel
}

func commonQuantile(a, b *fabric.Quantiles) (x, y int64, ok bool) {
	for _, q := range [][2]*int64{{a.P50, b.P50}, {a.Mean, b.Mean}, {a.P90, b.P90}, {a.Min, b.Min}, {a.P99, b.P99}} {
		if q[0] != nil && q[1] != nil {
			return *q[0], *q[1], true
		}
	}
	return 0, 0, false
}

// LossLLR returns the log-likelihood ratio (nats) of lost out of sent under its own
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

// BinomialLL returns the log-likelihood of lost out of sent at loss ratio q, without
// the binomial coefficient.
func BinomialLL(lost, sent uint64, q float64) float64 {
	const tiny = 1e-9
	q = math.Min(math.Max(q, tiny), 1-tiny)
	lost = min(lost, sent)
	return float64(lost)*math.Log(q) + float64(sent-lost)*math.Log1p(-q)
}

// MedianMAD returns the median and the median absolute deviation. It reorders v.
func MedianMAD(v []int64) (median, mad int64) {
	if len(v) == 0 {
		return 0, 0
	}
	slices.Sort(v)
	median = v[len(v)/2]
	dev := make([]int64, len(v))
	for i, x := range v {
		dev[i] = max(x-median, median-x)
	}
	slices.Sort(dev)
	return median, dev[len(dev)/2]
}
