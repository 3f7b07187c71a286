// Package clocks names the clocks that moved. It keeps these rules, which the
// tests are named after:
//
//  1. A clock that moved shifts the two directions of all its flows by opposite
//     amounts and leaves their sums alone. What moves a sum is no clock's doing
//     and takes no part.
//  2. A clock is named when its having moved makes the flows with at least two
//     other nodes agree again, and more than twice as many flows as it sets at
//     odds. Between two clocks alone nobody can tell which one moved.
//  3. Several clocks are named one after the other, each by what those before it
//     leave over.
//  4. NICs of one node that moved by the same amount have one clock: the one
//     with the most flows is named, the others are listed.
//  5. A node that counts a step or a change of rate of its clock needs no flows
//     to be believed. If it counts both at once it was the rate: the window in
//     which that changed shows it as a step as well.
//  6. A clock is dragged, and innocent, where the sums of most of its NIC's flows moved in
//     the last half minute: no clock does that. A delay came or went, and the estimate of
//     the clock went with it, as young ones do. Delays by it have no direction then.
//  7. An offset that grows by about as much in every window is a drift, one that
//     stays is a step. Before that is known it is neither.
//
// It is pure: no I/O, and time is passed in.
package clocks

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

// What it takes to name a clock.
const (
	minPeers = 2 // nodes
	maxNamed = 16
	// slack is how far, as a share of the offset, flows may differ over it: their
	// windows do not begin at one instant.
	slack = 0.25
)

// Suspect is a clock that moved.
type Suspect struct {
	NIC    string
	Others []string // NICs of the node that moved alike
	// Offset is by how much the clock is ahead of where it was, nanoseconds; nil:
	// not known.
	Offset *int64
	// Stepped and Drifts say which it is; neither: not known yet. Rate is what the
	// clock gains since, seconds per second; nil: not known.
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
	ends   [2]string // NICs: from, to
	offset float64   // of the clock of ends[1] against that of ends[0], ns
	limit  float64   // what is less is nothing
	at     [2]int    // findings
}

func (p *pair) agrees(tolerance float64) bool { return math.Abs(p.offset) <= p.limit+tolerance }

// Find names the clocks whose having moved explains a moment's findings, by
// rules 1 to 4.
func Find(findings []judge.Finding) []Suspect {
	pairs := pairsOf(findings)
	var out []Suspect
	for len(out) < maxNamed {
		s, ok := best(pairs)
		if !ok {
			break
		}
		out = append(out, s)
	}
	return join(out)
}

// pairsOf is rule 1.
func pairsOf(findings []judge.Finding) []*pair {
	replies := map[fabric.Edge]int{}
	for i := range findings {
		if f := &findings[i]; f.Edge.Reply {
			replies[f.Edge.Probe()] = i
		}
	}
	var out []*pair
	for i := range findings {
		f := &findings[i]
		j, both := replies[f.Edge]
		if f.Edge.Reply || !both {
			continue
		}
		r := &findings[j]
		if !f.HasShift || !r.HasShift || f.HostSuspect || r.HostSuspect {
			continue
		}
		if sum, limit := f.Shift+r.Shift, f.Scale+r.Scale; sum > limit || sum < -limit {
			continue
		}
		out = append(out, &pair{ends: [2]string{f.Edge.Src, f.Edge.Dst}, offset: float64(f.Shift-r.Shift) / 2,
			limit: float64(max(f.Scale, r.Scale) + judge.ClockBound(f.Obs)), at: [2]int{i, j}})
	}
	return out
}

// best names the clock that sets most right, and takes its move out of the pairs.
// A clock is not named twice: what was set right would go wrong again.
func best(pairs []*pair) (Suspect, bool) {
	of := map[string][]*pair{}
	for _, p := range pairs {
		of[p.ends[0]] = append(of[p.ends[0]], p)
		of[p.ends[1]] = append(of[p.ends[1]], p)
	}
	var top Suspect
	most := 0
	for _, nic := range slices.Sorted(maps.Keys(of)) {
		if s, gain := weigh(nic, of[nic]); gain > most {
			top, most = s, gain
		}
	}
	if most == 0 {
		return Suspect{}, false
	}
	for _, p := range of[top.NIC] {
		p.offset -= ahead(p, top.NIC) * float64(*top.Offset)
		if p.agrees(slack * math.Abs(float64(*top.Offset))) {
			p.offset = 0
		}
	}
	return top, true
}

// ahead is the sign by which a NIC's clock enters a pair's offset.
func ahead(p *pair, nic string) float64 {
	if p.ends[1] == nic {
		return 1
	}
	return -1
}

// weigh asks how much the pairs of a NIC gain if its clock moved; 0: it did not.
func weigh(nic string, pairs []*pair) (s Suspect, gain int) {
	var moved []float64
	for _, p := range pairs {
		if !p.agrees(0) {
			moved = append(moved, ahead(p, nic)*p.offset)
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
	right, wrong := 0, 0
	for _, p := range pairs {
		after := *p
		after.offset -= ahead(p, nic) * offset
		switch was, is := p.agrees(0), after.agrees(slack*math.Abs(offset)); {
		case !was && is:
			right++
			s.Explained = append(s.Explained, p.at[:]...)
			peers[fabric.OwnerOf(p.ends[0])], peers[fabric.OwnerOf(p.ends[1])] = true, true
		case was && !is:
			wrong++
		}
	}
	s.Peers = len(peers) - 1
	s.Contrary = 2 * wrong
	if s.Peers < minPeers || right <= 2*wrong {
		return s, 0
	}
	return s, right - wrong
}

// join is rule 4.
func join(in []Suspect) []Suspect {
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

// Series is what a node says of the clock of one of its NICs; nil: nothing.
type Series struct {
	Steps, Drifts *float64 // counted since it began
	Offset        *float64 // seconds to the frame
	Drift         *float64 // what the clock gains on the frame, seconds per second
}

// fresh is in how many windows a count that rose names its clock: in the one that
// shows it and the one that confirms it.
const fresh = 2

// trendOf is how many windows running tell a drift from a step.
const trendOf = 4

// Watch follows clocks from window to window.
type Watch struct {
	windows int
	seen    map[string]seen // by NIC, in the last window
	known   map[string]seen // by NIC, in the last window in which its offset was
	counts  map[string]*count
	trends  map[string]*trend
	sums    map[string]*sums // by NIC
}

// remembered is for how many windows a sum that moved is known: a node is sure of a step
// only some time after it.
const remembered = 30

// sums are the medians of how far the sums of a NIC's flows have moved, and of what is
// nothing, in the last windows.
type sums struct {
	window       int // the last one
	moved, least []int64
}

// drags reports whether a delay came or went. One window alone says nothing once it is
// past: a step in its middle tears the medians of the two directions apart.
func (s *sums) drags() bool {
	if s == nil {
		return false
	}
	last := len(s.moved) - 1
	steady := []int64{s.moved[0], s.moved[last]}
	for i := range max(0, last-1) {
		steady = append(steady, median(slices.Clone(s.moved[i:i+3])))
	}
	return slices.Max(steady)-slices.Min(steady) > slices.Max(s.least)
}

// sum takes down how far the sums of the NICs' flows have moved.
func (w *Watch) sum(findings []judge.Finding) {
	moved, least := map[string][]int64{}, map[string][]int64{}
	for i := range findings {
		f := &findings[i]
		if !f.HasSum || f.Edge.Reply || f.HostSuspect {
			continue
		}
		for _, nic := range []string{f.Edge.Src, f.Edge.Dst} {
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
		s.window = w.windows
		s.moved, s.least = append(s.moved, median(all)), append(s.least, median(least[nic]))
		if len(s.moved) > remembered {
			s.moved, s.least = s.moved[1:], s.least[1:]
		}
	}
	maps.DeleteFunc(w.sums, func(_ string, s *sums) bool { return w.windows-s.window > remembered })
}

func median(of []int64) int64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// seen is what a node said at a moment.
type seen struct {
	Series
	at time.Time
}

// moved is by how much a clock is further ahead than it would be had it gone on
// as before, ns; nil: not known.
func (s *seen) moved(is seen) *int64 {
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

// count is a step or drift that a node counted.
type count struct {
	window int  // that shows it
	drifts bool // else it stepped
	before seen
}

// trend is the offset of a clock in windows running.
type trend struct {
	window  int       // the last one
	offsets []float64 // the newest trendOf
	seconds []float64 // when that was, since first
	first   time.Time
}

// NewWatch returns a Watch that has seen nothing.
func NewWatch() *Watch {
	return &Watch{seen: map[string]seen{}, known: map[string]seen{}, counts: map[string]*count{}, trends: map[string]*trend{}, sums: map[string]*sums{}}
}

// Update takes a window and names the clocks that moved, the best supported at
// first, and those that were dragged.
func (w *Watch) Update(now time.Time, findings []judge.Finding, series map[string]Series) []Suspect {
	w.windows++
	w.sum(findings)
	out := Find(findings)
	for i := range out {
		w.follow(now, &out[i])
	}
	for nic, t := range w.trends {
		if t.window != w.windows {
			delete(w.trends, nic)
		}
	}
	for nic, s := range series {
		w.counted(nic, s)
		w.seen[nic] = seen{s, now}
		if s.Offset != nil {
			w.known[nic] = seen{s, now}
		}
	}
	for _, nic := range slices.Sorted(maps.Keys(w.counts)) {
		c := w.counts[nic]
		if w.windows-c.window >= fresh {
			delete(w.counts, nic)
			continue
		}
		out = c.join(out, nic, w.seen[nic])
	}
	for i := range out {
		out[i].Dragged = w.sums[out[i].NIC].drags()
	}
	slices.SortStableFunc(out, func(a, b Suspect) int {
		return cmp.Or(len(b.Explained)-len(a.Explained), cmp.Compare(a.NIC, b.NIC))
	})
	return out
}

// follow is rule 7.
func (w *Watch) follow(now time.Time, s *Suspect) {
	t := w.trends[s.NIC]
	if t == nil {
		t = &trend{first: now}
		w.trends[s.NIC] = t
	}
	t.window = w.windows
	t.offsets = append(t.offsets, float64(*s.Offset))
	t.seconds = append(t.seconds, now.Sub(t.first).Seconds())
	if len(t.offsets) > trendOf {
		t.offsets, t.seconds = t.offsets[1:], t.seconds[1:]
	}
	if len(t.offsets) < trendOf {
		return
	}
	grew := t.offsets[trendOf-1] - t.offsets[0]
	least := math.Inf(1) // growth between two windows, as a share of an even one
	for i := 1; i < trendOf; i++ {
		even := grew * (t.seconds[i] - t.seconds[i-1]) / (t.seconds[trendOf-1] - t.seconds[0])
		least = min(least, (t.offsets[i]-t.offsets[i-1])/even)
	}
	// A step's offset wanders by the noise of its windows, which has no direction
	// and is small against it.
	if least > 0.5 && math.Abs(grew) > 0.1*math.Abs(t.offsets[trendOf-1]) {
		rate := grew / 1e9 / (t.seconds[trendOf-1] - t.seconds[0])
		s.Drifts, s.Rate = true, &rate
		return
	}
	s.Stepped = true
}

// counted is rule 5: a count that rises. One that is new or that fell is of a
// node that started anew.
func (w *Watch) counted(nic string, s Series) {
	old := w.seen[nic]
	rose := func(was, is *float64) bool { return was != nil && is != nil && *is > *was }
	stepped, drifts := rose(old.Steps, s.Steps), rose(old.Drifts, s.Drifts)
	if !stepped && !drifts {
		return
	}
	// A clock that just moved claims no offset until it is known again.
	c := &count{window: w.windows, drifts: drifts, before: w.known[nic]}
	if last := w.counts[nic]; last != nil { // of the window before: it is all one
		c.drifts, c.before = c.drifts || last.drifts, last.before
	}
	w.counts[nic] = c
}

// join adds a counted event to the suspect it is about, or as one of its own.
func (c *count) join(out []Suspect, nic string, is seen) []Suspect {
	i := slices.IndexFunc(out, func(s Suspect) bool { return fabric.OwnerOf(s.NIC) == fabric.OwnerOf(nic) })
	if i < 0 {
		i = len(out)
		out = append(out, Suspect{NIC: nic})
	}
	s := &out[i]
	s.Counted, s.Stepped, s.Drifts = true, !c.drifts, c.drifts
	if s.NIC != nic && !slices.Contains(s.Others, nic) {
		s.Others = append(s.Others, nic)
	}
	if s.Offset == nil && s.Stepped {
		s.Offset = c.before.moved(is)
	}
	if s.Rate == nil && s.Drifts && c.before.Drift != nil && is.Drift != nil {
		rate := *is.Drift - *c.before.Drift
		s.Rate = &rate
	}
	return out
}
