package routing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// linkState is how flows left a link and came back to it.
type linkState struct {
	users      int         // when it was used last
	empty      time.Time   // since when no flow is known to use it, or zero
	left       time.Time   // since when all flows that used it are known to have other paths, or zero
	departures []time.Time // when flows left it
	lost       time.Time   // when the last of its flows left it that had lost packets there, or zero
	faulty     time.Time   // when the link, or its session, was known to be down last
	why        Kind        // why it was left, in the last cycle in which it was
	// losers are the probe flows around it that lost packets while its sessions flapped, with when they did last.
	losers map[fabric.Flow]time.Time
	// finding is that of the link that is left, as it was found at foundAt.
	finding Finding
	foundAt time.Time
}

// followLinks records which links flows left, and which they came back to.
func (w *Watcher) followLinks(m *Moment) {
	for i := range w.usage.ports {
		p := &w.usage.ports[i]
		if p.From > p.To || !p.used {
			continue // a link is counted once, by the direction that is first in order, which linkUsers joins
		}
		w.followLink(m, p.Direction)
	}
	for i := range w.usage.ports { // links that flows cross in the other direction alone
		p := &w.usage.ports[i]
		if _, both := w.usage.numbers[p.Reverse()]; p.From > p.To && !both && p.used {
			w.followLink(m, p.Direction)
		}
	}
}

func (w *Watcher) followLink(m *Moment, d fabric.Direction) {
	id := d.LinkID()
	users, uncertain := 0, 0
	for _, x := range [2]fabric.Direction{d, d.Reverse()} {
		if n, ok := w.usage.numbers[x]; ok {
			users, uncertain = users+w.usage.ports[n].users, uncertain+w.usage.ports[n].uncertain
		}
	}
	s := w.links[id]
	if s == nil {
		s = &linkState{}
		w.links[id] = s
	}
	switch {
	case users > 0:
		s.users, s.empty, s.left, s.lost, s.why = users, time.Time{}, time.Time{}, time.Time{}, LeftLink
	case s.users >= fewFlows:
		if s.empty.IsZero() {
			s.empty = m.Now
		}
		if s.left.IsZero() && uncertain == 0 {
			s.left = m.Now
			s.departures = append(s.departures, m.Now)
			s.departures = s.departures[max(0, len(s.departures)-64):]
		}
	}
	s.departures = slices.DeleteFunc(s.departures, func(t time.Time) bool { return m.Now.Sub(t) > flapSpan })
}

// left reports whether a flow's former path crossed a direction and its present one does not.
func (w *Watcher) left(r *record, d fabric.Direction) bool {
	n, ok := w.usage.numbers[d]
	return ok && slices.Contains(r.former(), n) && !slices.Contains(r.ports, n)
}

// linkFindings returns links that flap by their sessions, and links that flows left (rules 4 and 5). Links at polarized
// switches are left out.
func (w *Watcher) linkFindings(m *Moment, crowded map[string]bool) (out []Finding) {
	var left []Finding
	w.flapping, w.leftPorts = w.flapping[:0], w.leftPorts[:0]
	for i := range m.Graph.Topo.Links {
		l := &m.Graph.Topo.Links[i]
		if l.IsAccess() {
			continue
		}
		s := w.links[l.ID()]
		if s != nil && !s.empty.IsZero() {
			w.leftPorts = append(w.leftPorts, l.A, l.B)
		}
		if f, flaps := w.flapAt(m, l, s); flaps {
			out = append(out, f)
			continue
		}
		if crowded[fabric.OwnerOf(l.A)] || crowded[fabric.OwnerOf(l.B)] || s == nil || s.empty.IsZero() {
			continue
		}
		kind := w.whyLeft(m, l, s)
		s.why = kind
		switch {
		case kind == LinkDown, kind != LeftLink && !s.left.IsZero():
			s.faulty = m.Now
		case s.left.IsZero(), m.Now.Sub(s.left) < settleTime, m.Now.Sub(s.faulty) < returnTime:
			continue
		}
		if s.foundAt.Before(s.left) || m.Now.Sub(s.foundAt) >= settleTime || s.finding.Kind != kind {
			s.finding, s.foundAt = w.leftLink(l, s, kind), m.Now
			if kind == LinkFlap {
				s.finding.Times, s.finding.Span = m.carrierChanges(l)/2, CarrierSpan
			}
		}
		left = append(left, s.finding)
	}
	return append(out, joinLeft(m.Graph, left)...)
}

// flapAt judges whether the session of a link flaps.
func (w *Watcher) flapAt(m *Moment, l *fabric.Link, s *linkState) (f Finding, flaps bool) {
	departures := 0
	f = Finding{Element: fabric.Element{ID: l.ID(), Kind: fabric.KindLink}, Kind: SessionFlap, Confidence: 0.5, Span: flapSpan, Since: m.Now}
	if s != nil {
		departures = len(s.departures)
		if departures > 0 {
			f.Since = s.departures[0]
		}
	}
	resets, lapses, carriers := 0, 0, 0
	var latest, began time.Time // began is when the session flapped first, if that is known
	note := func(events []time.Time) {
		if n := len(events); n > 0 && events[n-1].After(latest) {
			latest = events[n-1]
		}
	}
	hasBFD, hasCarrier := false, false
	for _, end := range [2]string{l.A, l.B} {
		if n, known := m.CarrierChanges[end]; known {
			hasCarrier, carriers = true, max(carriers, n)
		}
		if x, known := m.SessionHistory[end]; known {
			resets, lapses, hasBFD = max(resets, x.Resets), max(lapses, x.Lapses), hasBFD || x.HasBFD
		}
		c := w.sessions[end]
		if c == nil {
			continue
		}
		resets, lapses = max(resets, recent(c.resets, m.Now)), max(lapses, recent(c.lapses, m.Now))
		hasBFD = hasBFD || c.hasBFD
		for _, events := range [2][]time.Time{c.resets, c.lapses} {
			note(events)
			if len(events) < flapTimes {
				continue
			}
			if began.IsZero() || events[0].Before(began) {
				began = events[0]
			}
			if began.Before(f.Since) {
				f.Since = began
			}
		}
	}
	if s != nil && (began.IsZero() || carriers > 0) { // else it is known when the session flapped last, and flows may leave the link for another reason
		note(s.departures)
	}
	f.Times = max(departures, resets, lapses)
	if f.Times < flapTimes || m.Now.Sub(latest) > flapCalm {
		return f, false
	}
	w.flapping = append(w.flapping, l.A, l.B)
	if s != nil {
		w.rememberLosers(m, s, l.ID())
	}
	passes := s != nil && len(w.unexplainedLosers(m, s, l.ID(), began.Add(-blameMargin))) < fewFlows // data has passed all the while
	switch {
	case carriers >= 2*flapTimes-1 && departures >= flapTimes: // each flap is two changes
		f.Kind, f.Claimed, f.Reported, f.Confidence, f.Times = LinkFlap, true, true, 0.99, departures
	case carriers > 0:
		return f, false
	case passes && lapses >= flapTimes && hasCarrier:
		f.Kind, f.Claimed, f.Reported, f.Confidence = FalseBFD, true, true, 0.99
	case passes && resets >= flapTimes && (hasBFD && lapses < flapTimes || hasCarrier):
		f.Claimed, f.Reported, f.Confidence = true, true, 0.99
	case departures < flapTimes:
		return f, false
	}
	f.Explained = w.flowsAround(l.ID())
	return f, true
}

func recent(events []time.Time, now time.Time) (n int) {
	for _, t := range events {
		if now.Sub(t) <= flapSpan {
			n++
		}
	}
	return n
}

// flowsAround returns the flows that cross a link, or that crossed it before their present path.
func (w *Watcher) flowsAround(link string) []fabric.Flow {
	ids := w.usage.directionsOf(link)
	return w.usage.flowsWhere(func(r *record) bool { return r.isAround(ids) })
}

// rememberLosers adds to the state of a link the probe flows that lost packets for long lately and that cross the link, or that crossed it
// before their present path, themselves or their replies, with when they did last. What is lost for a shorter time than it takes to notice a
// dead link is what moving routes lose. It forgets what was lost long ago.
func (w *Watcher) rememberLosers(m *Moment, s *linkState, link string) {
	ids := w.usage.directionsOf(link)
	for r := range w.losing {
		back := r.flow
		back.Reply = true
		if reply := w.usage.records[back]; !r.isAround(ids) && (reply == nil || !reply.isAround(ids)) {
			continue
		}
		for _, e := range r.losses {
			if e.lasted < longLoss {
				continue
			}
			if s.losers == nil {
				s.losers = map[fabric.Flow]time.Time{}
			}
			if at := e.until(m.Now); at.After(s.losers[r.flow]) {
				s.losers[r.flow] = at
			}
		}
	}
	maps.DeleteFunc(s.losers, func(_ fabric.Flow, t time.Time) bool { return m.Now.Sub(t) > flapSpan })
}

// unexplainedLosers returns the flows that lost packets around a link after some moment and that no other link explains, which was at fault
// then: their packets, or those of their replies, may not cross one on any shortest path. Nothing explains what a link loses while it is at
// fault itself for long.
func (w *Watcher) unexplainedLosers(m *Moment, s *linkState, link string, after time.Time) (out []fabric.Flow) {
	own := w.lossy[link]
	for f, at := range s.losers {
		explained, atFault := at.Before(after), own.lasted() && own.covers(at)
		for other, b := range w.lossy {
			explained = explained || !atFault && other != link && b.covers(at) && w.mayCross(m.Graph, f, other)
		}
		if !explained {
			out = append(out, f)
		}
	}
	return out
}

// blame is when other verdicts put lost packets to a link.
type blame struct {
	first, last time.Time
	since       time.Time     // it has been blamed in each cycle since, if last is now
	longest     time.Duration // that it was blamed without a break
}

// blameMargin is how long before a link is blamed it may have lost packets, and how long afterwards flows are known to have lost them.
const blameMargin = 15 * time.Second

// lastingBlame is how long a link must be blamed to be at fault itself: a verdict of a cycle or two may be about the packets that its flows lost
// when they moved.
const lastingBlame = 3 * time.Second

// lasted reports whether a link was blamed for long.
func (b blame) lasted() bool { return b.longest >= lastingBlame }

// covers reports whether a link that was blamed may have lost the packets that were lost at a moment.
func (b blame) covers(at time.Time) bool {
	return !at.Before(b.first.Add(-blameMargin)) && !at.After(b.last.Add(blameMargin))
}

// followLossyLinks remembers the links at fault that other verdicts name.
func (w *Watcher) followLossyLinks(m *Moment) {
	for _, link := range m.LossyLinks {
		b := w.lossy[link]
		if m.Now.Sub(b.last) > 2*blameMargin {
			b.first = m.Now
		}
		if b.since.IsZero() || m.Now.Sub(b.last) >= 2*m.Step {
			b.since = m.Now
		}
		b.last, b.longest = m.Now, max(b.longest, m.Now.Sub(b.since))
		w.lossy[link] = b
	}
	maps.DeleteFunc(w.lossy, func(_ string, b blame) bool { return m.Now.Sub(b.last) > flapSpan })
}

// mayCross reports whether a link is on a shortest path of a probe flow or of its replies.
func (w *Watcher) mayCross(g *fabric.Graph, f fabric.Flow, link string) bool {
	a, b, ok := fabric.SplitLink(link)
	from, _ := g.LeafOf(f.Src)
	to, _ := g.LeafOf(f.Dst)
	if !ok || from == "" || to == "" {
		return false
	}
	there, back := w.distances.of(g, to), w.distances.of(g, from)
	near, far := fabric.OwnerOf(a), fabric.OwnerOf(b)
	length, known := there[from]
	for _, x := range [2][2]string{{near, far}, {far, near}} {
		before, ok := back[x[0]]
		after, ok2 := there[x[1]]
		if known && ok && ok2 && before+1+after == length {
			return true
		}
	}
	return false
}

// isAround reports whether a flow crosses some directions, or crossed them before its present path.
func (r *record) isAround(ids []portID) bool {
	return slices.ContainsFunc(ids, func(n portID) bool { return slices.Contains(r.ports, n) || slices.Contains(r.former(), n) })
}

// linkReport is what switches report of both ends of a link together.
type linkReport struct {
	portDown          bool // at one end or both
	portsKnown        int
	bgpKnown, bgpDown bool
	bgpDownLong       bool // for settleTime
	bfdDown, bfdUp    bool // at one end or both
}

// addBGP adds the state of a session of BGP.
func (r *linkReport) addBGP(up, downLong bool) {
	r.bgpKnown, r.bgpDown, r.bgpDownLong = true, r.bgpDown || !up, r.bgpDownLong || !up && downLong
}

// addBFD adds the state of a session of BFD.
func (r *linkReport) addBFD(up bool) { r.bfdDown, r.bfdUp = r.bfdDown || !up, r.bfdUp || up }

// reportOf returns what is reported of a link in this cycle. What a database has of sessions has been so for a while.
func (w *Watcher) reportOf(m *Moment, l *fabric.Link) (r linkReport) {
	for _, end := range [2]string{l.A, l.B} {
		if up, known := m.PortUp[end]; known {
			r.portsKnown, r.portDown = r.portsKnown+1, r.portDown || !up
		}
		if x := m.SessionHistory[end]; x.HasBGP {
			r.addBGP(x.BGPUp, true)
		}
		if x := m.SessionHistory[end]; x.HasBFD {
			r.addBFD(x.BFDUp)
		}
		c := w.sessions[end]
		if c == nil {
			continue
		}
		if c.bgpCycle == w.cycles {
			r.addBGP(c.bgpUp, m.Now.Sub(c.downSince) >= settleTime)
		}
		if c.bfdCycle == w.cycles {
			r.addBFD(c.bfdUp)
		}
	}
	return r
}

// manyChanges is how often the carrier of a link changes that went down twice at least and came back, from which the link flaps.
const manyChanges = 4

// carrierChanges returns how often the carrier of a link changed, at the end where it changed more often.
func (m *Moment) carrierChanges(l *fabric.Link) int {
	return max(m.CarrierChanges[l.A], m.CarrierChanges[l.B])
}

// whyLeft says why flows left a link, by what switches report of its ports and sessions: LinkFlap, LinkDown, LinkSilent, SessionsDown, or
// LeftLink if that is not known (rule 5). A link at fault remains so while nothing is reported of it.
func (w *Watcher) whyLeft(m *Moment, l *fabric.Link, s *linkState) Kind {
	r := w.reportOf(m, l)
	switch {
	case m.carrierChanges(l) >= manyChanges:
		return LinkFlap
	case r.portDown && m.Now.Sub(s.empty) >= downTime:
		return LinkDown
	case !s.lost.IsZero() && (r.bfdDown || r.bgpDown && !r.bfdUp):
		return LinkSilent
	case r.bgpDownLong && r.bfdUp:
		return SessionsDown
	case s.why == LinkDown && r.portsKnown < 2, s.why == LinkSilent && !r.bgpKnown:
		return s.why
	}
	return LeftLink
}

// leftLink returns the finding on a link that no flow crosses any more, with what carries its load.
func (w *Watcher) leftLink(l *fabric.Link, s *linkState, kind Kind) Finding {
	f := Finding{Element: fabric.Element{ID: l.ID(), Kind: fabric.KindLink}, Kind: kind, Since: s.empty, Confidence: 0.9, Flows: s.users}
	if kind != LeftLink {
		f.Claimed, f.Reported, f.Confidence = true, true, 0.99
	}
	d := fabric.Direction{From: l.A, To: l.B}
	moved := map[portID]int{}
	for _, r := range w.usage.records {
		if !r.valid || !w.left(r, d) && !w.left(r, d.Reverse()) {
			continue
		}
		f.Explained = append(f.Explained, r.flow)
		for _, n := range r.ports {
			if !slices.Contains(r.former(), n) {
				moved[n]++
			}
		}
	}
	slices.SortFunc(f.Explained, compareFlows)
	for n, flows := range moved {
		p := &w.usage.ports[n]
		f.Carries = append(f.Carries, Share{Direction: p.Direction, Flows: p.users, Moved: flows})
	}
	slices.SortFunc(f.Carries, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Moved, a.Moved), cmp.Compare(a.Direction.From, b.Direction.From))
	})
	f.Carries = f.Carries[:min(len(f.Carries), mostListed)]
	return f
}

// joinLeft joins the links of a switch that flows left altogether.
func joinLeft(g *fabric.Graph, left []Finding) []Finding {
	at := map[string][]int{}
	for i := range left {
		a, b, _ := fabric.SplitLink(left[i].ID)
		for _, end := range [2]string{a, b} {
			at[fabric.OwnerOf(end)] = append(at[fabric.OwnerOf(end)], i)
		}
	}
	joined := map[int]bool{}
	var out []Finding
	for _, sw := range sortedKeys(at) {
		links := 0
		for _, end := range g.EndsOf(sw) {
			if peer := g.PeerOf(end); peer != "" && !fabric.IsNIC(peer) {
				links++
			}
		}
		if len(at[sw]) < 2 || len(at[sw]) < links {
			continue
		}
		f := left[at[sw][0]]
		if slices.ContainsFunc(at[sw], func(i int) bool { return left[i].Kind != LinkDown }) {
			f.Kind, f.Claimed = LeftLink, false
		}
		f.Element, f.Carries, f.Explained = fabric.Element{ID: sw, Kind: fabric.KindSwitch}, nil, nil
		for _, i := range at[sw] {
			joined[i] = true
			f.Explained = append(f.Explained, left[i].Explained...)
			f.Others = append(f.Others, left[i].Element)
			if left[i].Since.Before(f.Since) {
				f.Since = left[i].Since
			}
		}
		slices.SortFunc(f.Explained, compareFlows)
		f.Explained, f.Others = slices.Compact(f.Explained), sortedElements(f.Others)
		f.Flows = len(f.Explained)
		out = append(out, f)
	}
	for i := range left {
		if !joined[i] {
			out = append(out, left[i])
		}
	}
	return out
}

// DescribeLoad says in words what carries the load of a link that flows left. It returns "" if that is unknown.
func (f *Finding) DescribeLoad() string {
	text := ""
	for i, s := range f.Carries {
		switch {
		case i == 4:
			return text + fmt.Sprintf(", and %d more", len(f.Carries)-i)
		case i > 0:
			text += ", "
		}
		text += fmt.Sprintf("%s (%d flows, %d of them more than before)", s.Direction, s.Flows, min(s.Moved, s.Flows))
	}
	return text
}
