package analyzer

import (
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

// flowRecord represents the state of one flow between cycles.
type flowRecord struct {
	p50, p99         []int64
	baseline         *fabric.Quantiles
	baselineMAD      int64
	windowCount      int
	lastCycle        int // the latest cycle with an observation
	recentConditions []judge.Condition
	// lastSent and lastLost are the counts of the last window if it was lossy, otherwise 0.
	lastSent, lastLost uint64
	// hard is the worst window of a confirmed hard loss, remembered until the
	// cycle hardUntil.
	hard      *judge.Finding
	hardUntil int
	// state holds data between the cycles that query the flow. It is nil if every cycle does.
	state *flowState
}

func (l *Loop) recordFor(e fabric.Flow) *flowRecord {
	m := l.flowRecords[e]
	if m == nil {
		m = &flowRecord{}
		l.flowRecords[e] = m
	}
	return m
}

// learnBaselines adds healthy windows to the baselines. It learns nothing while an incident is open, so
// that a fault does not become normal.
func (l *Loop) learnBaselines(raw []judge.Finding) {
	for i := range raw {
		f := &raw[i]
		m := l.recordFor(f.Flow)
		m.windowCount++
		if l.excluded.excludesFlow(f.Flow) || m.windowCount <= warmUp || f.Obs.OWD == nil || f.Obs.OWD.P50 == nil || f.HostSuspect || f.ClockSuspect {
			continue
		}
		if m.baseline != nil && (len(l.openIncidents) > 0 || f.Condition != judge.Healthy || judge.ClockBound(f.Obs) > maxLearnBound) {
			continue
		}
		m.p50 = appendBounded(m.p50, *f.Obs.OWD.P50)
		if f.Obs.OWD.P99 != nil {
			m.p99 = appendBounded(m.p99, *f.Obs.OWD.P99)
		}
		if len(m.p50) < learnWindows || m.baseline != nil && l.cycle%10 != 0 && l.planner.current == nil {
			continue
		}
		m.recomputeBaseline()
	}
}

// recomputeBaseline computes the baseline from the remembered windows.
func (m *flowRecord) recomputeBaseline() {
	p50, mad := medianMAD(append([]int64(nil), m.p50...))
	m.baseline, m.baselineMAD = &fabric.Quantiles{P50: &p50}, mad
	if len(m.p99) > 0 {
		p99, _ := medianMAD(append([]int64(nil), m.p99...))
		m.baseline.P99 = &p99
	}
}

func appendBounded(ring []int64, v int64) []int64 {
	ring = append(ring, v)
	if len(ring) > keepWindows {
		ring = ring[1:]
	}
	return ring
}

// hardLoss adds a window, and reports whether it and the window before were both lossy, with hard loss over
// the two. The counters of the two nodes are not read at the same instant, so the first window of a total
// loss can look like half of one. A second in which the replies end counts as the first window, since
// lost packets cannot be counted until a reply comes back.
func (m *flowRecord) hardLoss(f *judge.Finding) bool {
	switch {
	case f.Condition == judge.Undecided:
		return false
	case endedIn(f):
		m.lastSent, m.lastLost = f.Obs.LastSecond.Sent, f.Obs.LastSecond.Lost
		return false
	case !f.Lossy:
		m.lastSent, m.lastLost = 0, 0
		return false
	}
	sent, lost := m.lastSent, m.lastLost
	m.lastSent, m.lastLost = f.Obs.Sent, f.Obs.Lost
	return sent > 0 && float64(lost+m.lastLost) >= judge.DefaultParameters().HardLoss*float64(sent+m.lastSent)
}

// endedIn reports whether replies to a flow that looks healthy were missing in the last second. A total loss
// may have begun in that second.
func endedIn(f *judge.Finding) bool {
	const least = 0.05 // of the probes
	l, p := f.Obs.LastSecond, judge.DefaultParameters()
	return f.Condition == judge.Healthy && l != nil && l.Lost >= p.MinLost && float64(l.Lost) >= least*float64(l.Sent)
}
