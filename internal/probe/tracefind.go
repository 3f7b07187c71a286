package probe

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Times that a round waits for the budgets of switches in their full budget, and of switches that limit their answers.
const (
	budgetWait  = time.Second
	limitedWait = 50 * time.Millisecond
)

// pathTrace represents one trace in progress: what is known by hop limit.
type pathTrace struct {
	*tracer
	flow          traceFlow
	nic           string      // that sends the packets
	lastPath      *TracedPath // result of the last trace, or nil
	oldPath       *TracedPath // the same if it was a path
	length        int         // hop limit of the destination's answer, as known before; 0: not known
	packetsSent   [maxHops + 1]int
	overBudget    [maxHops + 1]bool
	answers       [maxHops + 1][]traceAnswer
	first         *Hop // hop limit 1, as other flows found it
	awaitsFirst   bool // another flow is about to find hop limit 1
	attempts      int  // packets of a hop limit that had no answer before
	silentCharges []charge
}

// networksWith returns the networks of this host that an address is in.
func networksWith(address netip.Addr) (out []netip.Prefix) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil // then they are not known
	}
	for _, a := range addresses {
		if network, err := netip.ParsePrefix(a.String()); err == nil && network.Contains(address.Unmap()) {
			out = append(out, network.Masked())
		}
	}
	return out
}

// isNeighbour reports whether the NIC has reached a host in one of these networks at hop limit 1.
func (t *tracer) isNeighbour(nic string, networks []netip.Prefix) bool {
	if len(networks) == 0 {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for at, length := range t.lengths {
		if length == 1 && at.nic == nic && slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(at.dst.Unmap()) }) {
			return true
		}
	}
	return false
}

// findPath traces one flow.
func (t *tracer) findPath(ctx context.Context, f traceFlow) (TracedPath, error) {
	q := &pathTrace{tracer: t, flow: f, attempts: traceAttempts}
	q.nic, _ = f.edge.Endpoints()
	t.mu.Lock()
	if f.tuple != nil {
		q.attempts = max(1, f.tuple.Packets)
	} else if q.lastPath = t.paths[f.edge]; q.lastPath != nil && q.lastPath.State != fabric.PathUnknown {
		q.oldPath = q.lastPath
	}
	q.length = t.lengths[nicDestination{q.nic, f.dst.Addr()}]
	switch {
	case f.tuple != nil && q.length == 0:
		q.length = t.tupleLengths[nicDestination{q.nic, f.dst.Addr()}]
	case f.isMute() && q.oldPath != nil:
		q.length = len(q.oldPath.Hops) + 1
	}
	if f.tuple != nil && q.attempts > 1 {
		// The packets of one hop limit are compared with each other.
	} else if q.first = t.sharedFirstHop(q.nic, time.Now()); q.first == nil {
		q.awaitsFirst = !t.searchesFirstHop(q.nic, time.Now())
	}
	t.mu.Unlock()
	if q.length == 0 && f.isMute() && t.isNeighbour(q.nic, networksWith(f.dst.Addr())) {
		q.length = 1
	}
	p := TracedPath{Edge: f.edge, TracedAt: time.Now(), mute: f.isMute()}
	if f.tuple != nil && q.length > 0 {
		err := q.findBefore(ctx, &p, q.length-1)
		return p, err
	}
	tail := maxSilentProbe
	if f.isMute() {
		tail = maxSilent
	}
	end := 0 // highest hop limit that was probed
	for q.silentTail(end) < tail && end < maxHops && !q.reachedBy(end) {
		from := end + 1
		switch {
		case end > 0 || q.length == 0:
			end += hopsAtOnce
		case f.isMute():
			end = q.length - 1 + maxSilent
		default:
			end = q.length
		}
		end = min(end, maxHops)
		if err := q.probeHops(ctx, from, end); err != nil {
			return p, err
		}
	}
	if err := q.takeFirst(ctx); err != nil {
		return p, err
	}
	q.buildPath(&p, end)
	return p, nil
}

// findBefore traces a path whose length is known, up to the switch at a hop limit, and sends nothing that arrives at the
// destination.
func (q *pathTrace) findBefore(ctx context.Context, p *TracedPath, end int) error {
	if err := q.probeHops(ctx, 1, end); err != nil {
		return err
	}
	if err := q.takeFirst(ctx); err != nil {
		return err
	}
	q.buildPath(p, end)
	return nil
}

// takeFirst takes the first hop that another flow was about to find, or probes it if that flow did not.
func (q *pathTrace) takeFirst(ctx context.Context) error {
	if !q.awaitsFirst {
		return nil
	}
	q.mu.Lock()
	q.first = q.sharedFirstHop(q.nic, time.Now())
	q.mu.Unlock()
	if q.awaitsFirst = false; q.first == nil {
		return q.probeHops(ctx, 1, 1)
	}
	return nil
}

// followKnown returns a function that takes the path of a flow from known, in place of findPath.
func (t *tracer) followKnown(known func(f fabric.Flow, tagged bool) (hops []Hop, reached bool)) func(context.Context, traceFlow) (TracedPath, error) {
	return func(_ context.Context, f traceFlow) (TracedPath, error) {
		p := TracedPath{Edge: f.edge, TracedAt: time.Now()}
		p.Hops, p.Reached = known(f.edge, false)
		q := pathTrace{tracer: t, flow: f}
		q.concludeState(&p, false)
		return p, nil
	}
}

// probeHops probes the hop limits from, ..., to.
func (q *pathTrace) probeHops(ctx context.Context, from, to int) error {
	packets := map[int]int{}
	for ttl := from; ttl <= to; ttl++ {
		switch {
		case ttl == 1 && (q.first != nil || q.awaitsFirst):
		case q.previousAnswer(ttl).IsValid() || q.oldPath != nil && ttl == q.length:
			packets[ttl] = 1
		default:
			packets[ttl] = q.attempts
		}
	}
	if err := q.sendPackets(ctx, packets); err != nil {
		return err
	}
	again := map[int]int{}
	for ttl := range packets {
		before := q.previousAnswer(ttl)
		switch {
		case q.reachedBy(ttl - 1):
		case len(q.answers[ttl]) == 0 && q.packetsSent[ttl] > 0 && !q.budgets.isLimited(hopPosition{q.nic, ttl}, time.Now().UnixNano()):
			again[ttl] = 1
		case before.IsValid() && slices.ContainsFunc(q.answers[ttl], func(a traceAnswer) bool { return a.from != before }):
			again[ttl] = traceAttempts
		}
	}
	return q.sendPackets(ctx, again)
}

// previousAnswer returns the address that answered at a hop limit in the flow's last trace.
func (q *pathTrace) previousAnswer(ttl int) netip.Addr {
	if q.oldPath == nil || ttl < 1 || ttl > len(q.oldPath.Hops) {
		return netip.Addr{}
	}
	return q.oldPath.Hops[ttl-1].Address
}

// sendPackets sends packets by hop limit and gathers the answers. If quotes are short, only one packet of the flow is
// in flight at a time.
func (q *pathTrace) sendPackets(ctx context.Context, packets map[int]int) error {
	short := false
	if !q.flow.rdma { // copies can be distinguished by more fields
		q.flow.nic.mu.Lock()
		short = q.flow.nic.traces.shortQuotes
		q.flow.nic.mu.Unlock()
	}
	var rounds [][]int
	var all []int
	for _, ttl := range slices.Sorted(maps.Keys(packets)) {
		for range packets[ttl] {
			all = append(all, ttl)
			rounds = append(rounds, []int{ttl})
		}
	}
	if !short {
		rounds = [][]int{all}
	}
	for _, limits := range rounds {
		if len(limits) == 0 || short && q.reachedBy(limits[0]-1) {
			continue
		}
		if err := q.runRound(ctx, limits); err != nil {
			return err
		}
	}
	return nil
}

// outstanding represents a trace packet in flight.
type outstanding struct {
	ttl    int
	charge charge
}

// runRound sends one packet for each of the hop limits listed.
func (q *pathTrace) runRound(ctx context.Context, limits []int) error {
	answer := make(chan traceAnswer, len(limits))
	sent := map[uint32]outstanding{}
	defer func() { q.flow.forgetKeys(slices.Collect(maps.Keys(sent))) }()
	left := limits
	began := time.Now()
	for {
		var later []int
		soon := time.Duration(0)
		for _, ttl := range left {
			c, wait := q.chargeHop(ttl)
			if wait > 0 {
				later = append(later, ttl)
				if soon == 0 || wait < soon {
					soon = wait
				}
				continue
			}
			if err := q.waitForPace(ctx); err != nil {
				q.budgets.refundCharge(c)
				return err
			}
			key, err := q.flow.sendCopy(uint8(ttl), answer)
			if err != nil {
				q.budgets.refundCharge(c)
				return err
			}
			sent[key] = outstanding{ttl, c}
			q.packetsSent[ttl]++
			q.countPackets(1, 0)
		}
		if left = later; len(left) == 0 || !q.keepsWaiting(left, time.Since(began)) {
			break
		}
		if err := sleepContext(ctx, soon); err != nil {
			return err
		}
	}
	for _, ttl := range left {
		q.overBudget[ttl] = true
	}
	return q.gatherAnswers(ctx, answer, sent)
}

// chargeHop charges a packet. A packet that will reach the destination costs no switch.
func (q *pathTrace) chargeHop(ttl int) (charge, time.Duration) {
	if ttl == q.length && !q.flow.isMute() {
		return charge{position: hopPosition{q.nic, ttl}}, 0
	}
	return q.budgets.chargePacket(hopPosition{q.nic, ttl}, q.expectedAnswer(ttl), time.Now().UnixNano())
}

// expectedAnswer returns the address that will answer at a hop limit if the flow takes the same path as last time.
func (q *pathTrace) expectedAnswer(ttl int) netip.Addr {
	if q.lastPath == nil || ttl > len(q.lastPath.Hops) {
		return netip.Addr{}
	}
	if a := q.lastPath.Hops[ttl-1].Address; a.IsValid() || ttl == len(q.lastPath.Hops) {
		return a
	}
	return q.budgets.switchBefore(hopPosition{q.nic, ttl}, q.lastPath.Hops[ttl].Address)
}

// keepsWaiting reports whether to wait longer for the budgets of hop limits.
func (q *pathTrace) keepsWaiting(limits []int, waited time.Duration) bool {
	for _, ttl := range limits {
		most := budgetWait
		if q.budgets.isLimited(hopPosition{q.nic, ttl}, time.Now().UnixNano()) {
			most = limitedWait
		}
		if waited < most {
			return true
		}
	}
	return false
}

// waitForPace waits until the node may send another trace packet.
func (t *tracer) waitForPace(ctx context.Context) error {
	for {
		t.mu.Lock()
		ok := t.pace.takeToken(time.Now().UnixNano())
		wait := time.Duration((1-t.pace.tokens)/t.pace.rate*1e9) + time.Microsecond
		t.mu.Unlock()
		if ok {
			return ctx.Err()
		}
		if err := sleepContext(ctx, wait); err != nil {
			return err
		}
	}
}

func sleepContext(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// gatherAnswers receives the answers of a round and settles its charges.
func (q *pathTrace) gatherAnswers(ctx context.Context, answer chan traceAnswer, sent map[uint32]outstanding) error {
	timeout := time.NewTimer(traceTimeout)
	defer timeout.Stop()
	left := maps.Clone(sent)
	for len(left) > 0 {
		select {
		case a := <-answer:
			s := sent[a.key]
			delete(left, a.key)
			q.answers[s.ttl] = append(q.answers[s.ttl], a)
			if a.reached || a.closed {
				q.budgets.refundCharge(s.charge)
			} else {
				q.budgets.settleAnswered(s.charge, a.from, time.Now().UnixNano())
			}
			q.countPackets(0, 1)
		case <-timeout.C:
			for _, s := range left {
				q.silentCharges = append(q.silentCharges, s.charge)
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// reachedBy reports whether the destination answered at a hop limit or before it.
func (q *pathTrace) reachedBy(ttl int) bool {
	for i := 1; i <= ttl; i++ {
		if slices.ContainsFunc(q.answers[i], func(a traceAnswer) bool { return a.reached || a.closed }) {
			return true
		}
	}
	return false
}

// silentTail returns the number of silent hop limits after the last one that answered.
func (q *pathTrace) silentTail(end int) (n int) {
	for ttl := end; ttl > 0 && len(q.answers[ttl]) == 0 && (ttl > 1 || q.first == nil && !q.awaitsFirst); ttl-- {
		n++
	}
	return n
}

// buildPath makes a path from the answers.
func (q *pathTrace) buildPath(p *TracedPath, end int) {
	closed := false
	for ttl := 1; ttl <= end && !p.Reached && !closed; ttl++ {
		hop := Hop{TTL: ttl}
		if ttl == 1 && q.first != nil {
			hop = *q.first
		}
		arrived := false
		for _, a := range q.answers[ttl] {
			switch {
			case a.reached, a.closed:
				arrived = true
				p.Reached = p.Reached || a.reached
				closed = closed || a.closed
			case !hop.Address.IsValid():
				hop.Address, hop.RTT, hop.Incoming, hop.Labels = a.from, a.rtt, a.ext.incoming, a.ext.labels
				if a.extErr != nil {
					p.addNote("hop %d: %v", ttl, a.extErr)
				}
			case hop.Address == a.from:
				hop.RTT = min(hop.RTT, a.rtt)
			default:
				p.Balanced = true
				p.addNote("per-packet balancing: %v and %v both answer at hop limit %d", hop.Address, a.from, ttl)
			}
		}
		if arrived {
			if hop.Address.IsValid() {
				p.Balanced = true
				p.addNote("per-packet balancing: the destination and %v both answer at hop limit %d", hop.Address, ttl)
			}
			break
		}
		p.Hops = append(p.Hops, hop)
	}
	if !p.Reached && !closed {
		// Silent switches, the far end, or nothing may follow the last answer.
		p.Hops = p.Hops[:len(p.Hops)-q.silentTail(end)]
	}
	q.judgeSilence(p)
	q.concludeState(p, closed)
	q.learnFrom(p)
}

// concludeState sets the state that a path of these hops has.
func (q *pathTrace) concludeState(p *TracedPath, closed bool) {
	for _, h := range p.Hops {
		if len(h.Labels) > 0 {
			p.addNote("hop %d: MPLS labels %s", h.TTL, fabric.LabelText(h.Labels))
		}
	}
	switch {
	case p.Balanced:
		p.State = fabric.PathUnknown
	case closed:
		p.State = fabric.PathUnknown
		p.addNote("the destination's port is closed")
	case !p.Reached && len(p.Hops) == 0 && q.flow.isMute() && q.length == 1:
		// The destination, or another host of its network, answered another flow's packet at hop limit 1: no router is on the
		// way to it.
		p.State = fabric.PathValid
	case !p.Reached && (!q.flow.isMute() || len(p.Hops) == 0):
		p.State = fabric.PathUnknown
		p.addNote("nothing answered beyond hop limit %d", len(p.Hops))
	case p.limited:
		p.State = fabric.PathUnknown
	default:
		p.State = fabric.PathValid
	}
}

func (p *TracedPath) addNote(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// judgeSilence distinguishes rate limits from silence at the hops without address.
func (q *pathTrace) judgeSilence(p *TracedPath) {
	now := time.Now().UnixNano()
	if q.flow.isMute() {
		// The end of a reply's path is known only from earlier traces.
		for ttl := len(p.Hops) + 1; ttl < q.length && (q.overBudget[ttl] || q.budgets.isLimited(hopPosition{q.nic, ttl}, now)); ttl++ {
			p.Hops = append(p.Hops, Hop{TTL: ttl})
		}
	}
	fits := q.oldPath != nil && confirmsPath(*p, q.oldPath)
	for i, h := range p.Hops {
		if h.Address.IsValid() {
			continue
		}
		at := hopPosition{q.nic, h.TTL}
		if q.packetsSent[h.TTL] == 0 && q.overBudget[h.TTL] {
			p.limited = true
			p.addNote("hop %d: rate limited: not probed, because the budget of its switch is used up", h.TTL)
			continue
		}
		var on netip.Addr
		if i+1 < len(p.Hops) {
			on = q.budgets.switchBefore(at, p.Hops[i+1].Address)
		}
		if !on.IsValid() && fits {
			on = q.previousAnswer(h.TTL)
		}
		switch {
		case on.IsValid() && q.budgets.recordSilence(on, now):
			p.limited = true
			p.addNote("hop %d: rate limited: %v is on the way and did not answer", h.TTL, on)
		case q.budgets.isLimited(at, now):
			p.limited = true
			p.addNote("hop %d: rate limited: switches that answer at this hop limit hold answers back", h.TTL)
		}
	}
}

// learnFrom records what the trace shows about all flows.
func (q *pathTrace) learnFrom(p *TracedPath) {
	if p.Balanced {
		return
	}
	now := time.Now()
	dst := netip.Addr{}
	if p.Reached {
		dst = q.flow.dst.Addr()
	}
	if n := len(p.Hops); q.flow.isMute() && n > 0 && q.budgets.isLast(p.Hops[n-1].Address, q.flow.dst.Addr()) {
		// Packets that were sent beyond the last switch reached the destination.
		for _, c := range q.silentCharges {
			if c.position.ttl > n {
				q.budgets.refundCharge(c)
			}
		}
	}
	q.budgets.learnPath(q.nic, p.Hops, dst, now.UnixNano())
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.Reached {
		q.lengths[nicDestination{q.nic, dst}] = len(p.Hops) + 1
	}
	if len(p.Hops) > 0 && q.first == nil && p.Hops[0].Address.IsValid() {
		q.recordFirstHop(q.nic, q.flow.edge, p.Hops[0], now)
	}
}

// sharedFirstHop returns the first switch of a NIC's flows if it need not be probed, and otherwise nil.
func (t *tracer) sharedFirstHop(nic string, now time.Time) *Hop {
	f := t.first[nic]
	if f == nil || len(f.flows) < shareFlows || now.Sub(f.at) >= shareFor {
		return nil
	}
	h := f.hop
	h.shared = true
	return &h
}

// searchesFirstHop reports whether a flow has to look for the first switch itself. All flows do as long as it is not
// shared, and one flow in shareFor does after that.
func (t *tracer) searchesFirstHop(nic string, now time.Time) bool {
	f := t.first[nic]
	if f == nil || len(f.flows) < shareFlows || now.Sub(f.searchedAt) >= shareFor {
		if f != nil {
			f.searchedAt = now
		}
		return true
	}
	return false
}

// recordFirstHop records what a flow found at hop limit 1.
func (t *tracer) recordFirstHop(nic string, flow fabric.Flow, h Hop, now time.Time) {
	f := t.first[nic]
	if f != nil && f.hop.Address != h.Address {
		for e, p := range t.paths {
			from, _ := e.Endpoints()
			if from == nic && p.State == fabric.PathValid && len(p.Hops) > 0 && p.Hops[0].shared && !p.TracedAt.Before(f.at) {
				stale := *p
				stale.State = fabric.PathStale
				t.paths[e] = &stale
				t.version++
			}
		}
		f = nil
	}
	if f == nil {
		f = &firstHop{flows: map[fabric.Flow]bool{}}
		t.first[nic] = f
	}
	f.hop, f.at = h, now
	if len(f.flows) < shareFlows {
		f.flows[flow] = true
	}
}
