package window

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Condition is what a flow's newest windows show.
type Condition string

// Conditions of a flow.
const (
	Unjudged Condition = "unjudged"
	Healthy  Condition = "healthy"
	Shifted  Condition = "shifted" // its delay, its tail, or its marks of congestion
	Lossy    Condition = "lossy"
	Silent   Condition = "silent" // no reply came in the last second
)

// Conditions lists all conditions.
var Conditions = []Condition{Healthy, Lossy, Shifted, Silent, Unjudged}

const (
	// shiftedOf windows are considered, and shiftedBy of them make a flow shifted (rule 5).
	shiftedOf, shiftedBy = 4, 2
	// learnFrom windows make a baseline, of at most keepWindows. It is computed again every recomputeEvery windows.
	learnFrom, keepWindows, recomputeEvery = 8, 120, 10
	// warmUp windows of a new flow teach nothing.
	warmUp = 2
	// forgetAfter shifted windows in a row, a flow learns anew (rule 7).
	forgetAfter = 600
	// lateShare is the share of a window by which a probe loop may be late (rule 6).
	lateShare = 0.15
)

// Baseline is what is normal for one direction of a flow, in nanoseconds.
type Baseline struct {
	P50       int64  `json:"p50"`
	P99       int64  `json:"p99"`
	MAD       int64  `json:"mad"` // median absolute deviation of the windows' medians
	Timestamp string `json:"timestamp"`
	// Replaced means that the flow was shifted for long and learnt anew (rule 7), so that this may be a fault.
	Replaced bool `json:"replaced,omitempty"`
}

// learning is what is kept of one direction of a flow to make its baseline.
type learning struct {
	baseline *Baseline
	kind     string
	p50, p99 []int64
	windows  int
	replaced bool
}

// judged is what is known of a flow beyond its counts.
type judged struct {
	condition  Condition
	shifts     uint8 // of the last windows, the newest in bit 0
	shiftedFor int   // windows in a row
	normal     [Directions]learning
}

// recallBaselines takes over what was learnt before.
func (j *judged) recallBaselines(e fabric.Flow, learnt map[fabric.Flow]Baseline) {
	j.condition = Unjudged
	for d := range Directions {
		e.Reply = d == Reverse
		if b, ok := learnt[e]; ok {
			j.normal[d] = learning{baseline: &b, kind: b.Timestamp, windows: warmUp, replaced: b.Replaced}
			delete(learnt, e)
		}
	}
}

// judgeFlows judges the window that ends with the newest reading.
func (r *Recorder) judgeFlows() {
	n := r.count - 1
	obs := make([]*fabric.Observation, 0, 2*len(r.flows))
	silent := map[*flow]bool{}
	for _, e := range r.flowsInOrder() {
		f := r.flows[e]
		c, ok := r.countsOf(f, n)
		if !ok {
			f.condition = Unjudged
			continue
		}
		silent[f] = c.IsSilent()
		for d := range Directions {
			if o := c.Observation(e, d == Reverse, r.readings[n%Seconds].at, Span); o != nil {
				r.addCircumstances(o, f, e.Src, d, n)
				obs = append(obs, o)
			}
		}
	}
	worst := map[*flow]Condition{}
	findings := judge.FindingsOf(obs, judge.DefaultParameters())
	for i := range findings {
		found, d := &findings[i], Forward
		f := r.flows[found.Flow.ProbeFlow()]
		worst[f] = worse(worst[f], conditionOf(found))
		if found.Flow.Reply {
			d = Reverse
		}
		f.normal[d].learn(found, r.count)
	}
	for f, c := range worst {
		f.update(c, silent[f])
	}
}

// flowsInOrder returns the flows in order of their names, so that both directions of one are neighbours.
func (r *Recorder) flowsInOrder() []fabric.Flow {
	return slices.SortedFunc(maps.Keys(r.flows), func(a, b fabric.Flow) int {
		return cmp.Or(cmp.Compare(a.Src, b.Src), cmp.Compare(a.Dst, b.Dst), cmp.Compare(a.Number, b.Number))
	})
}

// addCircumstances fills in the baseline of one direction, and what the host and the clocks do to the window.
func (r *Recorder) addCircumstances(o *fabric.Observation, f *flow, src string, d, n int) {
	if b := f.normal[d].baseline; b != nil && b.Timestamp == o.Timestamp {
		o.Baseline, o.BaselineMADNS = &fabric.Quantiles{P50: &b.P50, P99: &b.P99}, &b.MAD
	}
	k := r.nics[src]
	if k == nil {
		o.HostSuspect = true
		return
	}
	late, unread := r.hostLosses(k, n)
	o.Unread = unread > 0
	o.HostSuspect = o.Unread || late > time.Duration(lateShare*float64(Span))
	o.ClockSuspect = !k.ClockUsable
	if k.ClockBound != nil && f.peerBound != nil {
		bound := int64(*k.ClockBound + *f.peerBound)
		o.ClockErrorNS = &bound
	}
}

// hostLosses returns by how much the probe loop was late, and how many packets were lost at this host, from the beginning
// of the window that ended with a reading until now.
func (r *Recorder) hostLosses(k *nic, n int) (late time.Duration, unread uint64) {
	for i := max(n-spanSeconds+1, r.count-Seconds, 0); i < r.count; i++ {
		late += k.late[i%Seconds]
		unread += k.unread[i%Seconds]
	}
	return late, unread
}

// conditionOf returns what one direction shows.
func conditionOf(f *judge.Finding) Condition {
	switch {
	case f.Lossy:
		return Lossy
	case f.Condition == judge.Degraded:
		return Shifted
	case f.Condition == judge.Undecided || f.Obs.Baseline == nil:
		return Unjudged
	}
	return Healthy
}

// severity orders conditions. An unjudged direction hides no healthy one, but a degraded one.
var severity = map[Condition]int{"": 0, Healthy: 1, Unjudged: 2, Shifted: 3, Lossy: 4, Silent: 5}

// worse returns the worse of two conditions.
func worse(a, b Condition) Condition {
	if severity[a] >= severity[b] {
		return a
	}
	return b
}

// update sets the condition of a flow after a window (rule 5).
func (j *judged) update(now Condition, silent bool) {
	j.shifts <<= 1
	j.shiftedFor++
	if now == Shifted {
		j.shifts |= 1
	} else {
		j.shiftedFor = 0
	}
	switch {
	case silent:
		j.condition = Silent
	case now != Shifted && now != Healthy:
		j.condition = now
	case bits.OnesCount8(j.shifts&(1<<shiftedOf-1)) >= shiftedBy:
		j.condition = Shifted
	default:
		j.condition = Healthy
	}
	if j.shiftedFor >= forgetAfter {
		j.shiftedFor = 0
		for d := range j.normal {
			j.normal[d] = learning{replaced: true}
		}
	}
}

// learn adds a window to a baseline if it may teach (rules 6 and 7). turn spreads the work over the seconds.
func (l *learning) learn(f *judge.Finding, turn int) {
	o := f.Obs
	if o.OWD == nil || o.OWD.P50 == nil || o.OWD.P99 == nil || f.HostSuspect || f.ClockSuspect || f.Lossy {
		return
	}
	if o.Timestamp != l.kind {
		*l = learning{kind: o.Timestamp, replaced: l.replaced}
	}
	if l.windows++; l.windows <= warmUp || l.baseline != nil && f.Condition != judge.Healthy {
		return
	}
	l.p50, l.p99 = appendBounded(l.p50, *o.OWD.P50), appendBounded(l.p99, *o.OWD.P99)
	if len(l.p50) < learnFrom || l.baseline != nil && turn%recomputeEvery != 0 {
		return
	}
	l.baseline = &Baseline{Timestamp: l.kind, Replaced: l.replaced}
	l.baseline.P50, l.baseline.MAD = judge.MedianMAD(slices.Clone(l.p50))
	l.baseline.P99, _ = judge.MedianMAD(slices.Clone(l.p99))
}

func appendBounded(ring []int64, v int64) []int64 {
	if len(ring) == keepWindows {
		copy(ring, ring[1:])
		ring = ring[:keepWindows-1]
	}
	return append(ring, v)
}

// MovedFlows returns the flows that are shifted, lossy or silent.
func (r *Recorder) MovedFlows() (out []fabric.Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e, f := range r.flows {
		if f.condition != Healthy && f.condition != Unjudged {
			out = append(out, e)
		}
	}
	return out
}

// CountConditions returns the number of flows of each NIC in each condition. Flows that carry in-band signals have none.
func (r *Recorder) CountConditions() map[string]map[Condition]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]map[Condition]int, len(r.nics))
	for name := range r.nics {
		out[name] = map[Condition]int{}
		for _, c := range Conditions {
			out[name][c] = 0
		}
	}
	for e, f := range r.flows {
		if of := out[e.Src]; of != nil && !e.IsTemporary() && f.class != fabric.ClassCSIG {
			of[f.condition]++
		}
	}
	return out
}

// Baselines returns what is normal for each direction of the flows.
func (r *Recorder) Baselines() map[fabric.Flow]Baseline {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := maps.Clone(r.learnt)
	for e, f := range r.flows {
		for d := range Directions {
			if b := f.normal[d].baseline; b != nil && !e.IsTemporary() {
				e.Reply = d == Reverse
				out[e] = *b
			}
		}
	}
	return out
}

// Recall sets what was normal for flows before the node started. It is called before the first reading.
func (r *Recorder) Recall(baselines map[fabric.Flow]Baseline) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.learnt, baselines)
}
