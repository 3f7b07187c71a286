package looptest

import (
	"math/bits"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/window"
)

// nodeJudges represents what the nodes know of their own flows. They learn what is normal from the first windows.
type nodeJudges struct {
	flows    map[fabric.Flow]*nodeFlow
	findings map[fabric.Flow]*judge.Finding // of the last frame
}

// nodeFlow is what a node knows of one direction of a flow.
type nodeFlow struct {
	p50, p99 []int64
	baseline *fabric.Quantiles
	mad      int64
	shifts   uint8 // of the last windows, the newest in bit 0
}

// learnFrames is the number of windows from which a node learns.
const learnFrames = 10

// addFrame judges the windows of a second.
func (j *nodeJudges) addFrame(frame map[fabric.Flow]*fabric.Observation) {
	if j.flows == nil {
		j.flows = map[fabric.Flow]*nodeFlow{}
	}
	var obs []*fabric.Observation
	for e, o := range frame {
		f := j.flows[e]
		if f == nil {
			f = &nodeFlow{}
			j.flows[e] = f
		}
		if o.OWD != nil && len(f.p50) < learnFrames {
			f.p50 = append(f.p50, *o.OWD.P50)
			if o.OWD.P99 != nil {
				f.p99 = append(f.p99, *o.OWD.P99)
			}
			if len(f.p50) == learnFrames {
				var p50, p99 int64
				p50, f.mad = judge.MedianMAD(slices.Clone(f.p50))
				f.baseline = &fabric.Quantiles{P50: &p50}
				if len(f.p99) > 0 {
					p99, _ = judge.MedianMAD(slices.Clone(f.p99))
					f.baseline.P99 = &p99
				}
			}
		}
		own := *o
		own.Baseline, own.BaselineMADNS = f.baseline, &f.mad
		obs = append(obs, &own)
	}
	j.findings = map[fabric.Flow]*judge.Finding{}
	findings := judge.FindingsOf(obs, judge.DefaultParameters())
	for i := range findings {
		f := &findings[i]
		j.findings[f.Flow] = f
		s := j.flows[f.Flow]
		if s.shifts <<= 1; f.Condition == judge.Degraded {
			s.shifts |= 1
		}
	}
}

// countConditions returns how many flows from a NIC are in each condition.
func (j *nodeJudges) countConditions(frame map[fabric.Flow]*fabric.Observation, nic string) map[window.Condition]int {
	out := map[window.Condition]int{}
	for e := range frame {
		if e.Src == nic && !e.Reply && !e.IsTemporary() {
			out[j.conditionOf(frame, e)]++
		}
	}
	return out
}

// conditionOf returns the condition of a flow by the rules of package window.
func (j *nodeJudges) conditionOf(frame map[fabric.Flow]*fabric.Observation, e fabric.Flow) window.Condition {
	back := e
	back.Reply = true
	if o := frame[back]; o != nil && o.Lost == o.Sent {
		return window.Silent
	}
	c := window.Healthy
	for _, d := range []fabric.Flow{e, back} {
		f := j.findings[d]
		if f == nil {
			continue
		}
		switch {
		case f.Lossy:
			return window.Lossy
		case bits.OnesCount8(j.flows[d].shifts&15) >= 2:
			c = window.Shifted
		case c == window.Healthy && (f.Condition == judge.Undecided || f.Obs.Baseline == nil):
			c = window.Unjudged
		}
	}
	return c
}
