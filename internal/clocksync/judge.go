package clocksync

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// Limits by which clocks are judged.
const (
	// lockAfter is the number of consecutive cycles in which a clock must agree with its prediction.
	lockAfter = 2
	// A clock jumps if it is off by so many deviations of its prediction and its solution. The number
	// exceeds BoundSigmas, since many clocks are tested for a long time.
	jumpSigmas = 8
	// The sigma of a clock whose pairs lag grows by lagSigmas of the error that they have not corrected
	// yet: its bound has room for two and a half times as much. An error within a window's noise, up to
	// some two deviations of it, is not visible.
	lagSigmas = 0.5
	leastGain = 0.2 // least share of its variance that a filter loses in a window
	// rateUnnoticed is the time for which a rate may have changed before a solved line shows the
	// change.
	rateUnnoticed = 2 * Window
	// driftFloor is the least change of rate that counts: three steps of temperature.
	driftFloor = 3 * temperatureStep
	// A drift is a change against a mean over about usualCycles. It has driftCycles to finish: a window
	// that it falls into shows only part of it.
	usualCycles = 32
	driftCycles = 5
	// mostUnsure is the number of cycles for which an uncertain line is not judged. Where all lines
	// stay uncertain, their level counts as certain.
	mostUnsure = 8
	// anchorKept is the time for which the last certain line of a clock is kept.
	anchorKept = 5 * time.Minute
)

// markLost ends a clock's map. The clock starts anew when it is measured again.
func (o *frameClock) markLost() {
	if o.component != 0 {
		o.state = Lost
	}
	o.known, o.agreement.wasLocked, o.agreement.cycles, o.peers = false, false, 0, 0
}

// centerRates shifts a part's rates so that the frame's rate stays as it was.
func (f *Frame) centerRates(p *part) {
	c := &f.cycle
	var gain float64 // change of the frame's rate, to be subtracted
	switch {
	case p.reference >= 0:
		gain = c.fit.lines[p.reference].rate
	case p.continuedID == 0:
		gain, _ = c.centerVotes(p, func(k int32) vote {
			return vote{c.fit.lines[k].rate, runningRate, 1}
		})
	default:
		gain = f.rateChange(p)
	}
	for _, k := range c.graph.members[p.first:p.last] {
		c.fit.lines[k].rate = (1+c.fit.lines[k].rate)/(1+gain) - 1
	}
}

// rateChange returns how far most clocks of a part changed their rates in the frame. A clock with a
// poorly known rate may have changed far more than the others do, so that it gets less weight.
func (f *Frame) rateChange(p *part) float64 {
	c := &f.cycle
	change, _ := c.centerVotes(p, func(k int32) vote {
		sigma := f.clocks[c.presence.clocks[k]].rateSigma
		return vote{value: c.fit.lines[k].rate - c.fit.predicted[k].rate, tolerance: driftFloor + jumpSigmas*sigma, weight: 1 / (temperatureStep*temperatureStep + sigma*sigma)}
	})
	return change
}

// vote is the move of the frame that one clock suggests, the tolerance of its difference from the
// others, and its weight.
type vote struct{ value, tolerance, weight float64 }

// centerVotes returns the mean of the votes of the clocks that a part continues by, or of all if there
// are none, without those outside their tolerance of the median. agreed is false if these are half of
// them or more; then the result is the median.
func (c *cycle) centerVotes(p *part, of func(k int32) vote) (center float64, agreed bool) {
	c.votes, c.sample = c.votes[:0], c.sample[:0]
	for _, k := range c.graph.members[p.first:p.last] {
		if c.fit.keepsFrame[k] || p.continuedID == 0 {
			v := of(k)
			c.votes, c.sample = append(c.votes, v), append(c.sample, v.value)
		}
	}
	slices.Sort(c.sample)
	n := len(c.sample)
	median := (c.sample[(n-1)/2] + c.sample[n/2]) / 2
	sum, weight, within := 0.0, 0.0, 0
	for _, v := range c.votes {
		if math.Abs(v.value-median) <= v.tolerance {
			sum, weight, within = sum+v.weight*(v.value-median), weight+v.weight, within+1
		}
	}
	if 2*within <= n {
		return median, false
	}
	return median + sum/weight, true
}

// minJump returns the least jump of a clock, ns, that is distinguishable from the effect of a busy host
// on its stamps for a second.
func (k Kind) minJump() float64 {
	if k == Hardware {
		return 1e3
	}
	return 10e3
}

func leastJump(clock string) float64 {
	if strings.Contains(clock, "/") { // the clock is a NIC's
		return Hardware.minJump()
	}
	return Kernel.minJump()
}

// judgeClocks sets the time of every part, and the state of every clock in it.
func (f *Frame) judgeClocks(mono time.Duration) {
	c := &f.cycle
	fresh := f.describeClocks()
	anew := false
	for i := range c.graph.parts {
		p := &c.graph.parts[i]
		// miss returns how far a clock is off its prediction, and how far it may be off without a jump.
		miss := func(k int32) vote {
			o, b, l := &f.clocks[c.presence.clocks[k]], &c.fit.predicted[k], &c.fit.lines[k]
			age := mono - o.solvedAt
			spread := math.Hypot(GrownSigma(o.sigma, o.rateSigma, age), c.errors.sigma[k])
			turned := math.Abs(l.rate-b.rate) * float64(age+rateUnnoticed)
			return vote{value: float64(l.off-b.off) + l.frac - b.frac, weight: 1 / (spread*spread + turned*turned + 1),
				tolerance: leastJump(o.name) + jumpSigmas*spread + temperatureStep*float64(age) + turned}
		}
		center, agreed := 0.0, false
		if p.continuedID != 0 {
			center, agreed = c.centerVotes(p, miss)
		}
		gain := 0.0 // gain of the reference, which its frame shows as a loss of all others
		if p.reference >= 0 && p.continuedID != 0 {
			gain = f.rateChange(p)
		}
		referred := p.reference >= 0 && p.id != f.absolute
		members := c.graph.members[p.first:p.last]
		for _, k := range members {
			o := &f.clocks[c.presence.clocks[k]]
			news := c.fit.lines[k].ref != o.ref
			moved, lag := 0.0, 0.0
			switch v := miss(k); {
			case c.fit.unpredicted[k] || o.component != p.continuedID:
				o.agreement.cycles, o.agreement.wasLocked = 0, false
			case referred || !agreed:
				o.agreement.cycles = 0
			case math.Abs(v.value-center) > v.tolerance:
				o.agreement.cycles = 0
			case news && fresh[k]:
				o.agreement.cycles = min(o.agreement.cycles+1, lockAfter)
				moved = v.value - center
				lag = lagSigmas * estimateLag(o.agreement.lastMiss, moved, GrownSigma(o.agreement.solvedSigma, o.rateSigma, mono-o.solvedAt), c.errors.sigma[k])
			}
			o.agreement.lastMiss, o.agreement.solvedSigma = moved, c.errors.sigma[k]
			c.errors.sigma[k] = math.Hypot(c.errors.sigma[k], lag)
		}
		slip := 0.0 // difference of the frame from the prediction of most clocks, ns
		switch {
		case p.reference >= 0:
			r := c.fit.lines[p.reference]
			c.shiftTime(members, r.off, r.frac)
			slip = float64(r.off) + r.frac - center
			if referred {
				f.absolute, anew = p.id, true
			}
		case p.continuedID == 0:
			c.shiftTime(members, c.medianOffset(members), 0)
			anew = true
		default:
			c.shiftTime(members, 0, center)
		}
		for _, k := range members {
			o := &f.clocks[c.presence.clocks[k]]
			o.drifts.usualRate += gain
			if c.fit.unpredicted[k] && !o.steps.anchor.stillValid(p, mono) {
				o.drifts.usualRate, o.drifts.settlingCycles = c.fit.lines[k].rate, driftCycles
			}
			if fresh[k] || c.fit.unpredicted[k] {
				o.measuredAt = mono
			} else {
				c.widenForTemperature(k, mono-o.measuredAt)
			}
			o.known, o.line, o.sigma, o.rateSigma, o.component, o.solvedAt = true, c.fit.lines[k], c.errors.sigma[k], c.errors.rateSigma[k], p.id, mono
			if agreed && !referred {
				f.countChanges(k, p, slip, gain, mono)
			} else {
				o.steps.anchor = solvedLine{}
			}
			switch {
			case math.Abs(o.rate) > runningRate:
				o.markLost()
			case o.agreement.cycles < lockAfter || BoundSigmas*o.sigma > o.boundLimit():
				o.state = Converging
			case fresh[k]:
				o.state, o.agreement.wasLocked = Locked, true
			default:
				o.state = Holdover
			}
		}
	}
	if anew {
		f.id++
	}
}

// boundLimit returns the bound, ns, up to which a clock stays related.
func (o *frameClock) boundLimit() float64 {
	if o.agreement.wasLocked {
		return LostBound
	}
	return LockBound
}

// stillValid reports whether a part continues the frame of an anchor, and whether the anchor is recent
// enough.
func (a *solvedLine) stillValid(p *part, mono time.Duration) bool {
	return a.component != 0 && a.component == p.continuedID && mono-a.solvedAt <= anchorKept
}

// countChanges counts the changes of a clock once its line is certain again. A step within a window
// spoils the fit of that window, and restarted pairs are imprecise at first: by such a line alone a
// step may be missed, or be taken for a change of rate. slip and gain are the differences of the frame
// from the prediction of most clocks.
func (f *Frame) countChanges(k int32, p *part, slip, gain float64, mono time.Duration) {
	c := &f.cycle
	o := &f.clocks[c.presence.clocks[k]]
	a := &o.steps.anchor
	turning := math.Abs(o.rate-c.fit.predicted[k].rate-gain) * float64(rateUnnoticed)
	least := leastJump(o.name)
	if certain := jumpSigmas*o.sigma+turning <= least/2; certain && !c.fit.unpredicted[k] {
		o.steps.uncertainCycles = 0
	} else {
		o.steps.uncertainCycles++
	}
	certain := o.steps.uncertainCycles == 0 || o.steps.uncertainCycles > mostUnsure
	if a.stillValid(p, mono) {
		a.moveRef(o.ref)
		a.frac -= slip
		a.normalize()
		a.rate += gain
		age := mono - a.solvedAt
		turned := math.Abs(o.rate-a.rate) * float64(age+rateUnnoticed)
		spread := math.Hypot(GrownSigma(a.sigma, a.rateSigma, age), o.sigma)
		off := float64(o.off-a.off) + o.frac - a.frac
		if math.Abs(off) > least+jumpSigmas*spread+thermalOffset(max(age, FreshFor))+turned {
			o.steps.count++
			*a = solvedLine{}
		}
	} else {
		*a = solvedLine{}
	}
	if certain {
		o.drifts.addRate(&o.solvedLine)
		if o.agreement.cycles >= lockAfter {
			*a = o.solvedLine
		}
	}
}

// estimateLag returns how far, ns, a changing clock is ahead of the expectation of its pairs, if their
// corrections in two cycles show it. before and after are the deviations of a filter before a window
// and after it. Its correction has the variance that it loses, and it corrects the share of an error
// that its variance loses.
func estimateLag(last, now, before, after float64) float64 {
	if last*now <= 0 {
		return 0
	}
	after = min(after, before) // the filter may have restarted
	lost := max(before*before-after*after, leastGain*before*before)
	return max(0, min(math.Abs(last), math.Abs(now))-math.Sqrt(lost)) * after * after / lost
}

// widenForTemperature widens the sigma of a clock that was measured age ago: if its temperature has
// changed since, all of its predictions have the same error.
func (c *cycle) widenForTemperature(k int32, age time.Duration) {
	c.errors.sigma[k] = math.Hypot(c.errors.sigma[k], thermalOffset(age)/BoundSigmas)
	c.errors.rateSigma[k] = math.Hypot(c.errors.rateSigma[k], temperatureStep/BoundSigmas)
}

// describeClocks counts every clock's peers and computes its share of the allowance. It returns which
// clocks a pair measured, rather than predicted.
func (f *Frame) describeClocks() (measured []bool) {
	c := &f.cycle
	measured = make([]bool, len(c.presence.clocks))
	allowance := make([]int64, len(c.presence.clocks))
	for i := range c.terms {
		t := &c.terms[i]
		if t.rejected || t.predicted {
			c.graph.termOf[t.inA], c.graph.termOf[t.inB] = noTerm, noTerm
		} else {
			measured[t.a], measured[t.b] = true, true
		}
		if share := (t.allowance + 1) / 2; !t.rejected {
			allowance[t.a], allowance[t.b] = max(allowance[t.a], share), max(allowance[t.b], share)
		}
	}
	counted := make([]int32, len(c.presence.clocks)) // by peer: the last clock that it counted for, plus one
	for k := range c.presence.clocks {
		o := &f.clocks[c.presence.clocks[k]]
		o.allowance, o.peers = allowance[k], 0
		for i := c.graph.offsets.start[k]; i < c.graph.offsets.start[k+1]; i++ {
			if j := c.graph.offsets.entries[i].to; c.graph.termOf[i] != noTerm && counted[j] != int32(k)+1 {
				counted[j] = int32(k) + 1
				o.peers++
			}
		}
	}
	return measured
}

// noTerm replaces a term that measures nothing.
const noTerm = -1

// addRate adds the rate of a line, and counts it if it changed. A change that has no effect on the
// clock's place by the time that it is over is not distinguishable from noise.
func (d *driftDetector) addRate(l *solvedLine) {
	least := max(driftFloor, jumpSigmas*max(l.rateSigma, l.sigma/float64(driftCycles*Window)))
	switch change := math.Abs(l.rate - d.usualRate); {
	case d.settlingCycles > 0:
		d.usualRate = l.rate
		d.settlingCycles--
	case change > least:
		d.count++
		d.usualRate, d.settlingCycles = l.rate, driftCycles
	default:
		d.usualRate += (l.rate - d.usualRate) / usualCycles
	}
}

// shiftTime subtracts a time from the frame's time.
func (c *cycle) shiftTime(members []int32, whole int64, frac float64) {
	for _, k := range members {
		l := &c.fit.lines[k]
		l.off -= whole
		l.frac -= frac
		l.normalize()
	}
}

func (c *cycle) medianOffset(members []int32) int64 {
	offs := make([]int64, len(members))
	for i, k := range members {
		offs[i] = c.fit.lines[k].off
	}
	slices.Sort(offs)
	return offs[(len(offs)-1)/2]
}

// updateIdleClocks updates the clocks without estimates.
func (f *Frame) updateIdleClocks(mono time.Duration) {
	for i := range f.clocks {
		o := &f.clocks[i]
		if !o.known || f.cycle.presence.number[i] >= 0 {
			continue
		}
		o.peers = 0
		switch {
		case StatisticalBound(o.sigma, o.rateSigma, mono-o.solvedAt) > LostBound:
			o.markLost()
		case o.missed:
			o.state = Converging
		case o.state == Locked:
			o.state = Holdover
		}
	}
}

// fillSummary fills in the counts of a summary.
func (f *Frame) fillSummary(s *Summary) {
	c := &f.cycle
	for i := range f.clocks {
		if o := &f.clocks[i]; o.component != 0 {
			s.Clocks[o.state]++
		}
	}
	if len(c.terms) == 0 {
		return
	}
	s.Components = len(c.graph.parts)
	var out []int32
	for i := range c.terms {
		if c.terms[i].rejected {
			out = append(out, int32(i))
		}
	}
	s.Dropped, s.Edges = len(out), len(c.terms)-len(out)
	slices.SortStableFunc(out, func(x, y int32) int { return cmp.Compare(c.outlierScore(&c.terms[y]), c.outlierScore(&c.terms[x])) })
	for _, i := range out[:min(len(out), mostOutliers)] {
		t := &c.terms[i]
		s.Outliers = append(s.Outliers, Outlier{A: f.clocks[c.presence.clocks[t.a]].name, B: f.clocks[c.presence.clocks[t.b]].name, ID: t.e.id, Error: t.d, Rate: t.g})
	}
}
