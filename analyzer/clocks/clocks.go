// Package clocks names the clocks that moved. It keeps these rules, which the
// tests are named after:
//
//  1. A clock that moved shifts the two directions of all its flows by opposite
//     amounts and leaves their sums alone. Flows with a moved sum are not moved by a
//     clock. A path moves one direction, and the sum by as much. Which of the two it was
//     is decided by likelihood over all flows of the NIC that moved.
//  2. A clock is named when its having moved makes the flows with at least two
//     other nodes agree again, and more than twice as many flows as it sets at
//     odds. Two clocks alone do not show which one moved.
//  3. Several clocks are named one after the other, each by the flows that those before
//     it do not explain.
//  4. NICs of one node that moved by the same amount have one clock: the one
//     with the most flows is named, the others are listed.
//  5. A step or a change of rate that a node counts of its clock needs no confirmation by
//     flows. If it counts both at once, the rate changed: the window of the change shows
//     a step as well.
//  6. A clock is dragged, and not at fault, if the sums of most of its NIC's flows moved in
//     the last half minute, which no clock can cause. A delay began or ended, and the young
//     estimate of the clock followed it. Delays by this clock have no direction then.
//  7. An offset that grows by about as much in every window is a drift, one that
//     stays is a step. Before that is known it is neither.
//  8. With time stamps of the kernel, the NICs of a node share its clock. Where the sums of most of a
//     NIC's flows have moved, these cannot show that the clock moved: if another NIC of the node
//     shows it, and this one looks moved the same way, it is listed with that one.
//
// The package does no I/O, and time is passed in.
package clocks

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// What it takes to name a clock.
const (
	minPeers = 2 // nodes
	maxNamed = 16
	// slack is how far, as a share of the offset, flows may differ over it: their
	// windows do not begin at one instant.
	slack = 0.25
	// maxVote limits the log-likelihood ratio of one flow, in nats, so that one flow over
	// another fault does not outvote the others.
	maxVote = 2.0
)

// Suspect is a clock that moved.
type Suspect struct {
	NIC    string
	Others []string // NICs of the node that moved alike
	// Offset is by how much the clock is ahead of where it was, nanoseconds; nil:
	// not known.
	Offset *int64
	// Stepped and Drifts say which it is; neither: not known yet. Rate is what the
	// clock gains since, in seconds per second, or nil if it is unknown.
	Stepped, Drifts bool
	Rate            *float64
	// Counted: the node itself counted it.
	Counted bool
	// Dragged: a delay moved the estimate of the clock, which itself is innocent (rule 6).
	Dragged bool
	// Explained are the findings that moved with it; Contrary is the number of
	// findings that did not, though they are measured by it; Peers the number of
	// nodes at the other ends.
	Explained       []int
	Contrary, Peers int
}

// pair is a probe's flow with both directions measured.
type pair struct {
	nics     [2]string // NICs: from, to
	offset   float64   // of the clock of ends[1] against that of ends[0], ns
	limit    float64   // what is less is nothing
	sum      float64   // of the shifts of both directions, ns
	sumMoved bool      // by more than a clock explains
	// systemClock is set if both NICs stamp by the clocks of their nodes, and not by clocks of their own.
	systemClock bool
	findings    [2]int // findings
}

// clockVote returns the log-likelihood ratio of an opposite shift of both directions against a shift of one, at most
// maxVote either way. The deviation of one direction is taken as the limit.
func (p *pair) clockVote() float64 {
	// The directions moved by sum/2 + offset and sum/2 - offset. A clock leaves half of the sum in each of them
	// unexplained, a path leaves the lesser of the two.
	byClock := p.sum * p.sum / 2
	byPath := math.Abs(p.offset) - math.Abs(p.sum)/2
	return min(max((byPath*byPath-byClock)/(2*p.limit*p.limit), -maxVote), maxVote)
}

func (p *pair) withinLimit(tolerance float64) bool { return math.Abs(p.offset) <= p.limit+tolerance }

// FindSuspects names the clocks whose having moved explains a moment's findings, by
// rules 1 to 4.
func FindSuspects(findings []judge.Finding) []Suspect {
	pairs := pairsOf(findings)
	var out []Suspect
	for len(out) < maxNamed {
		s, ok := extractBest(pairs)
		if !ok {
			break
		}
		out = append(out, s)
	}
	out = joinByNode(out)
	addSharedClocks(out, pairs)
	return out
}

// addSharedClocks lists the NICs that share the clock of a suspect and cannot show that it moved (rule 8).
func addSharedClocks(suspects []Suspect, pairs []*pair) {
	if len(suspects) == 0 {
		return
	}
	of := map[string][]*pair{}
	for _, p := range pairs {
		if p.systemClock {
			of[p.nics[0]] = append(of[p.nics[0]], p)
			of[p.nics[1]] = append(of[p.nics[1]], p)
		}
	}
	named := map[string]bool{}
	for _, s := range suspects {
		named[s.NIC] = true
		for _, nic := range s.Others {
			named[nic] = true
		}
	}
	for _, nic := range slices.Sorted(maps.Keys(of)) {
		i := slices.IndexFunc(suspects, func(s Suspect) bool { return fabric.OwnerOf(s.NIC) == fabric.OwnerOf(nic) })
		if i < 0 || named[nic] || len(of[suspects[i].NIC]) == 0 {
			continue
		}
		unable, alike := 0, 0
		for _, p := range of[nic] {
			if p.sumMoved {
				unable++
			}
			if !p.withinLimit(0) && offsetSign(p, nic)*p.offset*float64(*suspects[i].Offset) > 0 {
				alike++
			}
		}
		if n := len(of[nic]); 2*unable > n && 2*alike > n {
			suspects[i].Others = append(suspects[i].Others, nic)
		}
	}
}

// pairsOf returns the pairs of forward and reverse findings, and marks those whose sums moved (rule 1).
func pairsOf(findings []judge.Finding) []*pair {
	replies := map[fabric.Flow]int{}
	for i := range findings {
		if f := &findings[i]; f.Flow.Reply {
			replies[f.Flow.ProbeFlow()] = i
		}
	}
	var out []*pair
	for i := range findings {
		f := &findings[i]
		j, both := replies[f.Flow]
		if f.Flow.Reply || !both {
			continue
		}
		r := &findings[j]
		if !f.HasShift || !r.HasShift || f.HostSuspect || r.HostSuspect {
			continue
		}
		sum, limit := f.Shift+r.Shift, f.Scale+r.Scale
		out = append(out, &pair{sum: float64(sum), sumMoved: sum > limit || sum < -limit,
			nics: [2]string{f.Flow.Src, f.Flow.Dst}, offset: float64(f.Shift-r.Shift) / 2,
			systemClock: f.Obs.Timestamp == "kernel" && r.Obs.Timestamp == "kernel",
			limit:       float64(max(f.Scale, r.Scale) + judge.ClockBound(f.Obs)), findings: [2]int{i, j}})
	}
	return out
}

// extractBest names the clock that sets most right, and takes its move out of the pairs.
// A clock is not named twice: what was set right would go wrong again.
func extractBest(pairs []*pair) (Suspect, bool) {
	of := map[string][]*pair{}
	for _, p := range pairs {
		of[p.nics[0]] = append(of[p.nics[0]], p)
		of[p.nics[1]] = append(of[p.nics[1]], p)
	}
	var top Suspect
	most := 0
	for _, nic := range slices.Sorted(maps.Keys(of)) {
		if s, gain := evaluateMove(nic, of[nic]); gain > most {
			top, most = s, gain
		}
	}
	if most == 0 {
		return Suspect{}, false
	}
	for _, p := range of[top.NIC] {
		if p.sumMoved {
			continue
		}
		p.offset -= offsetSign(p, top.NIC) * float64(*top.Offset)
		if p.withinLimit(slack * math.Abs(float64(*top.Offset))) {
			p.offset = 0
		}
	}
	return top, true
}

// offsetSign returns the sign with which a NIC's clock enters a pair's offset.
func offsetSign(p *pair, nic string) float64 {
	if p.nics[1] == nic {
		return 1
	}
	return -1
}

// evaluateMove asks how much the pairs of a NIC gain if its clock moved; 0: it did not.
func evaluateMove(nic string, pairs []*pair) (s Suspect, gain int) {
	var moved []float64
	for _, p := range pairs {
		if !p.sumMoved && !p.withinLimit(0) {
			moved = append(moved, offsetSign(p, nic)*p.offset)
		}
	}
	if len(moved) == 0 {
		return s, 0
	}
	slices.Sort(moved)
	offset := moved[len(moved)/2]
	s = Suspect{NIC: nic, Offset: new(int64)}
	*s.Offset = int64(offset)
	peers := map[string]bool{}
	right, wrong, votes := 0, 0, 0.0
	for _, p := range pairs {
		// A flow that moved the other way has another cause.
		if !p.withinLimit(0) && offsetSign(p, nic)*p.offset*offset > 0 {
			votes += p.clockVote()
		}
		if p.sumMoved {
			continue
		}
		after := *p
		after.offset -= offsetSign(p, nic) * offset
		switch was, is := p.withinLimit(0), after.withinLimit(slack*math.Abs(offset)); {
		case !was && is:
			right++
			s.Explained = append(s.Explained, p.findings[:]...)
			peers[fabric.OwnerOf(p.nics[0])], peers[fabric.OwnerOf(p.nics[1])] = true, true
		case was && !is:
			wrong++
		}
	}
	s.Peers = len(peers) - 1
	s.Contrary = 2 * wrong
	if s.Peers < minPeers || right <= 2*wrong || votes <= 0 {
		return s, 0
	}
	return s, right - wrong
}

// joinByNode joins suspects of one node that moved by the same amount (rule 4).
func joinByNode(in []Suspect) []Suspect {
	slices.SortStableFunc(in, func(a, b Suspect) int { return len(b.Explained) - len(a.Explained) })
	var out []Suspect
	for _, s := range in {
		i := slices.IndexFunc(out, func(o Suspect) bool {
			return fabric.OwnerOf(o.NIC) == fabric.OwnerOf(s.NIC) && math.Abs(float64(*o.Offset-*s.Offset)) <= slack*math.Abs(float64(*o.Offset))
		})
		if i < 0 {
			out = append(out, s)
			continue
		}
		o := &out[i]
		o.Others = append(o.Others, s.NIC)
		o.Explained = append(o.Explained, s.Explained...)
		o.Contrary += s.Contrary
		o.Peers = max(o.Peers, s.Peers)
	}
	return out
}

// Series represents the series that a node reports of the clock of one of its NICs. Nil means that a value is absent.
type Series struct {
	Steps, Drifts *float64 // counted since it began
	Offset        *float64 // seconds to the frame
	Drift         *float64 // what the clock gains on the frame, seconds per second
}

// eventWindows is in how many windows a count that rose names its clock: in the one that
// shows it and the one that confirms it.
const eventWindows = 2

// trendWindows is the number of consecutive windows that distinguish a drift from a step.
const trendWindows = 4

// Watch follows clocks from window to window.
type Watch struct {
	windowCount      int
	latest           map[string]clockReading // by NIC, in the last window
	latestWithOffset map[string]clockReading // by NIC, in the last window in which its offset was
	events           map[string]*countedEvent
	trends           map[string]*trend
	sums             map[string]*sums // by NIC
}

// sumWindows is for how many windows a sum that moved is known: a node is sure of a step
// only some time after it.
const sumWindows = 30

// sums are the medians of how far the sums of a NIC's flows have moved, and of what is
// nothing, in the last windows.
type sums struct {
	lastWindow    int // the last one
	moved, scales []int64
}

// delayMoved reports whether a delay came or went. One window alone says nothing once it is
// past: a step in its middle tears the medians of the two directions apart.
func (s *sums) delayMoved() bool {
	if s == nil {
		return false
	}
	last := len(s.moved) - 1
	steady := []int64{s.moved[0], s.moved[last]}
	for i := range max(0, last-1) {
		steady = append(steady, medianOf(slices.Clone(s.moved[i:i+3])))
	}
	return slices.Max(steady)-slices.Min(steady) > slices.Max(s.scales)
}

// recordSums takes down how far the sums of the NICs' flows have moved.
func (w *Watch) recordSums(findings []judge.Finding) {
	moved, least := map[string][]int64{}, map[string][]int64{}
	for i := range findings {
		f := &findings[i]
		if !f.HasSum || f.Flow.Reply || f.HostSuspect {
			continue
		}
		for _, nic := range []string{f.Flow.Src, f.Flow.Dst} {
			moved[nic] = append(moved[nic], f.Sum)
			least[nic] = append(least[nic], f.SumScale)
		}
	}
	for nic, all := range moved {
		s := w.sums[nic]
		if s == nil {
			s = &sums{}
			w.sums[nic] = s
		}
		s.lastWindow = w.windowCount
		s.moved, s.scales = append(s.moved, medianOf(all)), append(s.scales, medianOf(least[nic]))
		if len(s.moved) > sumWindows {
			s.moved, s.scales = s.moved[1:], s.scales[1:]
		}
	}
	maps.DeleteFunc(w.sums, func(_ string, s *sums) bool { return w.windowCount-s.lastWindow > sumWindows })
}

func medianOf(of []int64) int64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// clockReading is what a node said at a moment.
type clockReading struct {
	Series
	at time.Time
}

// unexpectedOffset returns by how many nanoseconds a clock is ahead of its predicted offset, or nil if that is
// unknown.
func (s *clockReading) unexpectedOffset(is clockReading) *int64 {
	if s.Offset == nil || is.Offset == nil {
		return nil
	}
	by := *is.Offset - *s.Offset
	if s.Drift != nil {
		by -= *s.Drift * is.at.Sub(s.at).Seconds()
	}
	ns := int64(by * 1e9)
	return &ns
}

// countedEvent is a step or drift that a node counted.
type countedEvent struct {
	window    int  // that shows it
	isDrift   bool // else it stepped
	lastKnown clockReading
}

// trend is the offset of a clock in windows running.
type trend struct {
	lastWindow int       // the last one
	offsets    []float64 // the newest trendOf
	seconds    []float64 // when that was, since first
	first      time.Time
}

// NewWatch returns a Watch that has seen nothing.
func NewWatch() *Watch {
	return &Watch{latest: map[string]clockReading{}, latestWithOffset: map[string]clockReading{}, events: map[string]*countedEvent{}, trends: map[string]*trend{}, sums: map[string]*sums{}}
}

// AddWindow takes a window and names the clocks that moved, the best supported at
// first, and those that were dragged.
func (w *Watch) AddWindow(now time.Time, findings []judge.Finding, series map[string]Series) []Suspect {
	w.windowCount++
	w.recordSums(findings)
	out := FindSuspects(findings)
	for i := range out {
		w.classifyTrend(now, &out[i])
	}
	for nic, t := range w.trends {
		if t.lastWindow != w.windowCount {
			delete(w.trends, nic)
		}
	}
	for nic, s := range series {
		w.recordCounts(nic, s)
		w.latest[nic] = clockReading{s, now}
		if s.Offset != nil {
			w.latestWithOffset[nic] = clockReading{s, now}
		}
	}
	for _, nic := range slices.Sorted(maps.Keys(w.events)) {
		c := w.events[nic]
		if w.windowCount-c.window >= eventWindows {
			delete(w.events, nic)
			continue
		}
		out = c.mergeInto(out, nic, w.latest[nic])
	}
	for i := range out {
		out[i].Dragged = w.sums[out[i].NIC].delayMoved()
	}
	slices.SortStableFunc(out, func(a, b Suspect) int {
		return cmp.Or(len(b.Explained)-len(a.Explained), cmp.Compare(a.NIC, b.NIC))
	})
	return out
}

// classifyTrend sets whether a suspect drifts or has stepped (rule 7).
func (w *Watch) classifyTrend(now time.Time, s *Suspect) {
	t := w.trends[s.NIC]
	if t == nil {
		t = &trend{first: now}
		w.trends[s.NIC] = t
	}
	t.lastWindow = w.windowCount
	t.offsets = append(t.offsets, float64(*s.Offset))
	t.seconds = append(t.seconds, now.Sub(t.first).Seconds())
	if len(t.offsets) > trendWindows {
		t.offsets, t.seconds = t.offsets[1:], t.seconds[1:]
	}
	if len(t.offsets) < trendWindows {
		return
	}
	grew := t.offsets[trendWindows-1] - t.offsets[0]
	least := math.Inf(1) // growth between two windows, as a share of an even one
	for i := 1; i < trendWindows; i++ {
		even := grew * (t.seconds[i] - t.seconds[i-1]) / (t.seconds[trendWindows-1] - t.seconds[0])
		least = min(least, (t.offsets[i]-t.offsets[i-1])/even)
	}
	// A step's offset wanders by the noise of its windows, which has no direction
	// and is small against it.
	if least > 0.5 && math.Abs(grew) > 0.1*math.Abs(t.offsets[trendWindows-1]) {
		rate := grew / 1e9 / (t.seconds[trendWindows-1] - t.seconds[0])
		s.Drifts, s.Rate = true, &rate
		return
	}
	s.Stepped = true
}

// recordCounts records the counts of steps and rate changes, and notes those that rose (rule 5). A new count, or one that
// fell, belongs to a node that has restarted.
func (w *Watch) recordCounts(nic string, s Series) {
	old := w.latest[nic]
	rose := func(was, is *float64) bool { return was != nil && is != nil && *is > *was }
	stepped, drifts := rose(old.Steps, s.Steps), rose(old.Drifts, s.Drifts)
	if !stepped && !drifts {
		return
	}
	// A clock that just moved claims no offset until it is known again.
	c := &countedEvent{window: w.windowCount, isDrift: drifts, lastKnown: w.latestWithOffset[nic]}
	if last := w.events[nic]; last != nil { // of the window before: it is all one
		c.isDrift, c.lastKnown = c.isDrift || last.isDrift, last.lastKnown
	}
	w.events[nic] = c
}

// mergeInto adds a counted event to the suspect it is about, or as one of its own.
func (c *countedEvent) mergeInto(out []Suspect, nic string, is clockReading) []Suspect {
	i := slices.IndexFunc(out, func(s Suspect) bool { return fabric.OwnerOf(s.NIC) == fabric.OwnerOf(nic) })
	if i < 0 {
		i = len(out)
		out = append(out, Suspect{NIC: nic})
	}
	s := &out[i]
	s.Counted, s.Stepped, s.Drifts = true, !c.isDrift, c.isDrift
	if s.NIC != nic && !slices.Contains(s.Others, nic) {
		s.Others = append(s.Others, nic)
	}
	if s.Offset == nil && s.Stepped {
		s.Offset = c.lastKnown.unexpectedOffset(is)
	}
	if s.Rate == nil && s.Drifts && c.lastKnown.Drift != nil && is.Drift != nil {
		rate := *is.Drift - *c.lastKnown.Drift
		s.Rate = &rate
	}
	return out
}
