package routing

import (
	"cmp"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

const (
	// fewLost is the least number of probes that a flow must have lost to show a failover.
	fewLost = 3
	// gatherFor is how long after the last loss a failover is reported, in which the flows' new paths are learnt, and
	// failoverSpan is how long afterwards a path may become known.
	gatherFor    = 2 * time.Second
	failoverSpan = 20 * time.Second
	// mostAffected is the share of the flows that left a direction of a link which must have lost probes.
	mostAffected = 0.6
)

// episode is a time in which a flow's probes were lost, by cycles.
type episode struct {
	start, end time.Time // end is zero while it lasts
	lost       uint64
	lasted     time.Duration // by the share of probes without reply in each second
	// share is that of the second that was counted last, which ended at counted.
	share   float64
	counted time.Time
	// asked is how often its probes were asked for, which lasted is by if they are known.
	asked int
}

// until returns when an episode ended, or now if it lasts.
func (e *episode) until(now time.Time) time.Time {
	if e.end.IsZero() {
		return now
	}
	return e.end
}

// mostLosses bounds the episodes of a flow that are remembered. Packets may be lost again while routes settle.
const mostLosses = 3

// LossSpan is a time within which a probe flow lost probes, with a margin on both sides.
type LossSpan struct {
	Flow     fabric.Flow
	From, To time.Time
}

// LossCount is how many probes of a flow were not answered within a span, and how many it sends per second.
type LossCount struct {
	LossSpan
	Unanswered, PerSecond float64
}

const (
	// lossMargin is how long before the cycle that noticed a loss its span begins: the windows of cycles end earlier.
	lossMargin = 4 * time.Second
	// mostSpans bounds the flows whose probes are asked for in a cycle, and mostAsked how often they are for one episode.
	mostSpans, mostAsked = 256, 3
)

// span returns the span of an episode that has ended.
func (e *episode) span(f fabric.Flow) LossSpan { return LossSpan{f, e.start.Add(-lossMargin), e.end} }

// addSecond adds the share of the probes of the last second that had no reply. Seconds that were not counted, as those of cycles that were
// missed, lie within the loss if the next one has loss too, and are taken for the worse of the two. Else it ended in them: they are taken
// for half of the one before.
func (e *episode) addSecond(share float64, m *Moment) {
	if missed := m.Now.Sub(e.counted) - m.Step; !e.counted.IsZero() && missed > m.Step/2 {
		of := max(e.share, share)
		if share == 0 {
			of /= 2
		}
		e.lasted += time.Duration(of * float64(missed))
	}
	e.lasted += time.Duration(share * float64(m.Step))
	e.share, e.counted = share, m.Now
}

// followLosses takes what was lost of a probe flow in the last second.
func (r *record) followLosses(f *Flow, m *Moment) {
	if f.Reply || !f.Counted || f.Sent == 0 {
		return
	}
	var e *episode
	if n := len(r.losses); n > 0 {
		e = r.losses[n-1]
	}
	switch {
	case f.Unanswered > 0:
		if e == nil || !e.end.IsZero() && m.Now.Sub(e.end) > m.Step+m.Step/2 {
			e = &episode{start: m.Now.Add(-m.Step)}
			r.losses = append(r.losses[max(0, len(r.losses)+1-mostLosses):], e)
		}
		e.end = time.Time{}
		e.lost += f.Unanswered
		e.addSecond(float64(min(f.Unanswered, f.Sent))/float64(f.Sent), m)
	case e == nil:
	case e.end.IsZero():
		e.end = m.Now
		e.addSecond(0, m)
	}
}

// forgetLosses forgets what flows lost long ago.
func (w *Watcher) forgetLosses(now time.Time) {
	for r := range w.losing {
		r.losses = slices.DeleteFunc(r.losses, func(e *episode) bool {
			return now.Sub(r.seen) > failoverSpan || !e.end.IsZero() && now.Sub(e.end) > failoverSpan+gatherFor
		})
		if len(r.losses) == 0 {
			delete(w.losing, r)
		}
	}
}

// takeCounts takes how many probes were not answered in the episodes that were asked for. What cycles add up is less exact: each sees one
// second, and a busy server shows some of them twice or never.
func (w *Watcher) takeCounts(counts []LossCount) {
	for i := range counts {
		c := &counts[i]
		r := w.usage.records[c.Flow]
		if r == nil || c.PerSecond <= 0 {
			continue
		}
		for _, e := range r.losses {
			if !e.end.IsZero() && e.span(c.Flow) == c.LossSpan {
				e.asked, e.lasted = mostAsked, time.Duration(c.Unanswered/c.PerSecond*float64(time.Second))
			}
		}
	}
}

// askForCounts asks how many probes some victims lost, unless that is known or cannot be known.
func (w *Watcher) askForCounts(all []*victim) {
	for _, v := range all {
		if v.asked < mostAsked && len(w.lossSpans) < mostSpans {
			v.asked++
			w.lossSpans = append(w.lossSpans, v.span(v.flow))
		}
	}
}

// victim is a probe flow that lost probes for a while.
type victim struct {
	flow fabric.Flow
	*episode
	links map[string]*crossing // that the probe or its reply crossed when the loss began
}

// crossing is how a victim crossed a link.
type crossing struct {
	direction fabric.Direction
	both      bool // the probe crossed it in one direction, and the reply in the other
	left      bool // the present path of the probe or the reply does not cross it any more
	unsettled bool // the present path of what crossed it is not known
}

// leftDirection reports whether a victim left a direction of a link, or may have.
func (v *victim) leftDirection(d fabric.Direction) bool {
	x := v.links[d.LinkID()]
	return x != nil && (x.left || x.unsettled) && (x.both || x.direction == d)
}

// victims returns the flows whose loss ended, with the links that they crossed when it began.
func (w *Watcher) victims(m *Moment) (out []*victim) {
	for r := range w.losing {
		for _, e := range r.losses {
			if !e.end.IsZero() && e.lost >= fewLost && m.Now.Sub(e.end) <= failoverSpan {
				out = append(out, w.victimOf(r, e))
			}
		}
	}
	slices.SortFunc(out, func(a, b *victim) int { return cmp.Or(compareFlows(a.flow, b.flow), a.start.Compare(b.start)) })
	return out
}

// victimOf returns a probe flow in an episode.
func (w *Watcher) victimOf(r *record, e *episode) *victim {
	v := &victim{flow: r.flow, episode: e, links: map[string]*crossing{}}
	back := r.flow
	back.Reply = true
	for _, x := range [2]*record{r, w.usage.records[back]} {
		if x == nil {
			continue
		}
		for _, n := range x.portsBefore(e.start) {
			v.cross(w.usage.ports[n].Direction, x.valid && !slices.Contains(x.ports, n), !x.valid)
		}
	}
	return v
}

// cross adds that the probe or the reply of a victim crossed a direction of a link.
func (v *victim) cross(d fabric.Direction, left, unsettled bool) {
	x := v.links[d.LinkID()]
	if x == nil {
		x = &crossing{direction: d}
		v.links[d.LinkID()] = x
	}
	x.both = x.both || x.direction != d
	x.left, x.unsettled = x.left || left, x.unsettled || unsettled
}

// leavers returns the victims that are known to have left a link, by link.
func leavers(all []*victim) map[string][]*victim {
	by := map[string][]*victim{}
	for _, v := range all {
		for link, x := range v.links {
			if x.left {
				by[link] = append(by[link], v)
			}
		}
	}
	return by
}

// departed returns the probe flows that left a direction of a link since a moment, with their probes or their replies. Those whose present
// path is not known are among them.
func (w *Watcher) departed(d fabric.Direction, since time.Time) map[fabric.Flow]bool {
	flows := map[fabric.Flow]bool{}
	n, known := w.usage.numbers[d]
	if !known {
		return flows
	}
	for _, r := range w.usage.records {
		if slices.Contains(r.portsBefore(since), n) && (!r.valid || !slices.Contains(r.ports, n)) {
			flows[r.flow.ProbeFlow()] = true
		}
	}
	return flows
}

// failedDirections returns the directions of a link in which it failed: most flows that left them lost probes. Flows of the other direction
// may have left without loss. Those that left both say nothing of one of them, if there are others. share is the largest share of a
// direction.
func (w *Watcher) failedDirections(link string, victims []*victim) (failed []fabric.Direction, share float64) {
	a, b, _ := fabric.SplitLink(link)
	since := victims[0].start
	for _, v := range victims {
		if v.start.Before(since) {
			since = v.start
		}
	}
	directions := [2]fabric.Direction{{From: a, To: b}, {From: b, To: a}}
	departed := [2]map[fabric.Flow]bool{w.departed(directions[0], since), w.departed(directions[1], since)}
	for i, d := range directions {
		var lost, lostAlone, alone int
		for f := range departed[i] {
			if !departed[1-i][f] {
				alone++
			}
		}
		for _, v := range victims {
			if v.leftDirection(d) {
				lost++
				if !departed[1-i][v.flow] {
					lostAlone++
				}
			}
		}
		if lost < fewFlows {
			continue
		}
		of := float64(lost) / float64(max(1, len(departed[i])))
		share = max(share, of)
		if alone >= fewFlows {
			of = float64(lostAlone) / float64(alone)
		}
		if of >= mostAffected {
			failed = append(failed, d)
		}
	}
	if len(failed) == 0 {
		failed = directions[:]
	}
	return failed, share
}

// failovers finds losses that ended when flows left a link (rule 6). A failover is reported for convergedFor.
func (w *Watcher) failovers(m *Moment) (out []Finding) {
	w.takeCounts(m.LossCounts)
	w.lossSpans = w.lossSpans[:0]
	victims := w.victims(m)
	for rest := victims; len(rest) >= fewFlows; {
		link, alike, own := w.commonLink(m, rest, victims)
		if link == "" {
			break
		}
		mine := setOf(own)
		rest = slices.DeleteFunc(slices.Clone(rest), func(v *victim) bool { return mine[v] })
		// A link that other flows cross works: the routes of some flows moved.
		if a, b, ok := fabric.SplitLink(link); ok && w.usage.works(m, fabric.Direction{From: a, To: b}) {
			continue
		}
		all := withUnsettled(link, own, victims)
		failed, _ := w.failedDirections(link, all)
		f, last := failoverOf(link, all, failed)
		f.Others = alike
		for _, e := range append(alike, f.Element) {
			if s := w.links[e.ID]; s != nil && !s.left.IsZero() {
				s.lost = last
			}
		}
		if m.Now.Sub(last) < gatherFor {
			continue
		}
		w.askForCounts(all)
		was, known := w.failed[link]
		if !known || last.After(was.ended.Add(settleTime)) || f.measuredBy() >= was.finding.measuredBy() {
			w.failed[link] = failover{finding: f, ended: last}
		}
	}
	for _, link := range sortedKeys(w.failed) {
		x := w.failed[link]
		if m.Now.Sub(x.ended) > convergedFor {
			delete(w.failed, link)
			continue
		}
		out = append(out, x.finding)
	}
	return out
}

// measuredBy returns the number of flows by which the durations of a failover were measured. What more flows show is nearer to the truth.
func (f *Finding) measuredBy() (flows int) {
	for _, x := range f.Failovers {
		flows += x.Flows
	}
	return flows
}

// failover is one that was found.
type failover struct {
	finding Finding
	ended   time.Time
}

// commonLink returns the link that most of some victims left, others that the same flows left, and these flows. Most flows that left the
// link must be among all victims. Of links that the same flows left, one that is known to be down comes first.
func (w *Watcher) commonLink(m *Moment, some, all []*victim) (string, []fabric.Element, []*victim) {
	by := leavers(some)
	links := sortedKeys(by)
	slices.SortStableFunc(links, func(a, b string) int { return cmp.Compare(len(by[b]), len(by[a])) })
	best, bestShare := "", 0.0
	for _, link := range links {
		if len(by[link]) < fewFlows || best != "" && len(by[link])*10 < len(by[best])*9 {
			break
		}
		if _, s := w.failedDirections(link, withUnsettled(link, by[link], all)); s >= mostAffected && (best == "" || s > bestShare) {
			best, bestShare = link, s
		}
	}
	var alike []fabric.Element
	for _, link := range links {
		if link != best && best != "" && slices.Equal(by[link], by[best]) {
			alike = append(alike, fabric.Element{ID: link, Kind: fabric.KindLink})
		}
	}
	if i := slices.IndexFunc(alike, m.isDown); i >= 0 && !m.isDown(fabric.Element{ID: best, Kind: fabric.KindLink}) {
		best, alike[i].ID = alike[i].ID, best
	}
	return best, alike, by[best]
}

// withUnsettled returns the victims of a link, and those that lost probes at the same time, crossed the link, and whose present path is
// not known: routes have left the link, so that they have as well. They make the mean that of all flows sooner.
func withUnsettled(link string, own, all []*victim) (out []*victim) {
	from, to := own[0].start, own[0].end
	for _, v := range own {
		if v.start.Before(from) {
			from = v.start
		}
		if v.end.After(to) {
			to = v.end
		}
	}
	mine := setOf(own)
	for _, v := range all {
		x := v.links[link]
		if mine[v] || x != nil && x.unsettled && !v.end.Before(from) && !v.start.After(to) {
			out = append(out, v)
		}
	}
	return out
}

func setOf(all []*victim) map[*victim]bool {
	set := make(map[*victim]bool, len(all))
	for _, v := range all {
		set[v] = true
	}
	return set
}

// failoverOf returns the finding on a failover of a link that failed in some directions, and when its last loss ended.
func failoverOf(link string, all []*victim, failed []fabric.Direction) (Finding, time.Time) {
	f := Finding{Element: fabric.Element{ID: link, Kind: fabric.KindLink}, Kind: Converged, Since: all[0].start, Flows: len(all), Confidence: 0.99, Claimed: true}
	var last time.Time
	groups := map[fabric.Direction][]time.Duration{}
	for _, v := range all {
		if v.start.Before(f.Since) {
			f.Since = v.start
		}
		if v.end.After(last) {
			last = v.end
		}
		switch x := v.links[link]; {
		case len(failed) == 1 && v.leftDirection(failed[0]):
			groups[failed[0]] = append(groups[failed[0]], v.lasted)
		case x.both: // which of them lost more is unknown
			groups[fabric.Direction{}] = append(groups[fabric.Direction{}], v.lasted)
		case slices.Contains(failed, x.direction):
			groups[x.direction] = append(groups[x.direction], v.lasted)
		}
		back := v.flow
		back.Reply = true
		f.Explained = append(f.Explained, v.flow, back)
	}
	settleBoth(groups, failed)
	for d, g := range groups {
		f.Failovers = append(f.Failovers, Failover{Direction: d, Loss: meanOfMost(g), Flows: len(g)})
	}
	slices.SortFunc(f.Failovers, func(a, b Failover) int { return cmp.Or(cmp.Compare(b.Loss, a.Loss), cmp.Compare(a.From, b.From)) })
	slices.SortFunc(f.Explained, compareFlows)
	return f, last
}

// settleBoth decides what the flows show that crossed a link in both directions. They lost packets for as long as the worse of the two:
// if one direction is known to have lost them for shorter, that is how long the other one did.
func settleBoth(groups map[fabric.Direction][]time.Duration, failed []fabric.Direction) {
	both := groups[fabric.Direction{}]
	if len(groups) == 1 || len(both) == 0 {
		return
	}
	delete(groups, fabric.Direction{})
	for i, d := range failed {
		other := failed[len(failed)-1-i]
		if d != other && len(groups[d]) == 0 && len(both) >= fewFlows && meanOfMost(both) > meanOfMost(groups[other])+nearDuration {
			groups[d] = both
			return
		}
	}
}

// nearDuration is up to which difference from their median durations of one failover are taken for the same.
const nearDuration = 50 * time.Millisecond

// meanOfMost returns the mean of the durations that are near the median. The others are of flows that lost something else as well, or whose
// paths were not what they seemed to be.
func meanOfMost(all []time.Duration) time.Duration {
	const share = 10
	slices.Sort(all)
	median := all[len(all)/2]
	sum, n := time.Duration(0), 0
	for _, d := range all {
		if (d - median).Abs() <= max(nearDuration, median/share) {
			sum += d
			n++
		}
	}
	return sum / time.Duration(n)
}
