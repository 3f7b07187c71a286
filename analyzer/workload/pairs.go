package workload

import (
	"math/bits"
	"slices"

	"github.com/graylink/graylink/internal/ccl"
)

// Limits of what is remembered of operations between two ranks: how many sides of those of a connection wait for the other side, and
// how many connections there are.
const (
	maxHalves = 32
	maxPairs  = 32 // connections and sizes of a communicator, for each of its ranks
)

// half is what one side of an operation between two ranks says: all times are of its own clock, which is wrong by bound at most.
type half struct {
	seq        uint64
	start, end int64
	bound      int64
	timing     string
}

// connection is the operations of one size that a rank sends to another one, as both sides reported them.
type connection struct {
	from, to     int
	log2         int
	sends, recvs []half
	s            *series // of the operations of which both sides are known; shape.from is the sender
	back         history // ns for which the sender waited for the receiver; s.wait is the other way round
}

// connKey is a connection within its communicator.
type connKey struct{ from, to, log2 int }

// addHalf takes one side of an operation between two ranks. Without a bound of the clock's error it is not compared with the other side.
func (t *Tracker) addHalf(c *comm, o *ccl.Op, start, exec int64) {
	if o.Peer == nil || *o.Peer == o.Rank || !o.ClockError.Known || o.Bytes == nil || !o.StartNS.Known && !o.EndNS.Known || bounded(o.Timing) {
		return
	}
	k := connKey{o.Rank, *o.Peer, bits.Len64(*o.Bytes)}
	if o.Op == "Recv" {
		k.from, k.to = k.to, k.from
	}
	p := c.pairs[k]
	if p == nil {
		if len(c.pairs) >= maxPairs*c.n {
			t.dropped++
			return
		}
		p = &connection{from: k.from, to: k.to, log2: k.log2, back: history{size: historySize}}
		p.s = c.seriesOf(shape{op: "Send", log2: k.log2, peer: k.to, from: k.from})
		c.pairs[k] = p
	}
	side := &p.sends
	if o.Op == "Recv" {
		side = &p.recvs
	}
	if len(*side) == maxHalves {
		*side = (*side)[1:]
	}
	*side = append(*side, half{o.Seq, start, start + exec, o.ClockError.NS, o.Timing})
	p.match(t)
}

// bounded says whether durations of a kind of timing are bounds by a watchdog, or of the enqueueing only.
func bounded(timing string) bool {
	return timing == ccl.TimingWatchdog || timing == ccl.TimingEnqueued
}

// match judges the operations of which both sides are known. A connection keeps the order of its operations. Sides belong together if
// they overlap whatever the errors of the clocks are. What surely was over before the other side began has lost its other side, and
// so may have what neither overlaps nor not.
func (p *connection) match(t *Tracker) {
	for len(p.sends) > 0 && len(p.recvs) > 0 {
		a, b := p.sends[0], p.recvs[0]
		bound := a.bound + b.bound
		overlap := min(a.end, b.end) - max(a.start, b.start)
		switch {
		case overlap > bound:
			p.sends, p.recvs = p.sends[1:], p.recvs[1:]
			if a.timing == b.timing {
				p.judge(t, a, b)
			}
		case a.end <= b.end:
			p.sends = p.sends[1:]
		default:
			p.recvs = p.recvs[1:]
		}
	}
}

// judge compares an operation between two ranks with what is normal for their connection. The transfer begins when both sides have
// come: what one of them waits before is no transfer. How long it takes is known where the receiver came first, since buffers take data
// before a receiver has come. A value counts only beyond the errors of both clocks, now and before.
func (p *connection) judge(t *Tracker, a, b half) {
	c, s := p.s.comm, p.s
	floor := max(floorOf(a.timing), 2*(a.bound+b.bound))
	r := &result{s: s, seq: a.seq, end: max(a.end, b.end), transfer: max(0, b.end-a.start), wait: max(0, a.start-b.start)}
	back := max(0, b.start-a.start)
	period := int64(0)
	if before, ok := s.lastStart[p.from]; ok {
		period = a.start - before
	}
	s.lastStart, s.lastSeq = map[int]int64{p.from: a.start}, a.seq
	normalPeriod, _, known := s.period.normal(normalOps / 2)
	tn, tm, ok := s.transfer.normal(normalOps)
	measured := a.start-b.start > a.bound+b.bound
	if ok {
		s.judged, r.normal = true, tn
		if over := r.transfer - tn; measured && over > max(spread*tm, tn/10, floor) {
			r.transferOver = over
		}
	}
	wait := r.wait
	for _, side := range []struct {
		h    *history
		wait int64
		late int
		at   int64
	}{{&s.wait, wait, p.from, a.start}, {&p.back, back, p.to, b.start}} {
		n, m, ok := side.h.normal(normalOps)
		if !ok || !known {
			continue
		}
		// The ranks of a pipeline wait for each other at some places of a step and not at others.
		if over := side.wait - max(n, side.h.recurring()); over > max(spread*m, normalPeriod/10, floor) {
			r.wait, r.waitOver, r.late = side.wait, over, []int{side.late}
			if q := c.members[side.late]; q != nil {
				r.cause = newSearch(normalPeriod, over).explain(c, side.late, q, side.at, 0)
			}
		}
	}
	if measured {
		p.addCell(t, r, a, floor)
	} else {
		r.transfer = 0
	}
	c.observe(c, r)
	if s.keep(r) {
		if measured {
			s.transfer.push(r.transfer)
		}
		s.wait.push(wait)
		p.back.push(back)
		if period > 0 {
			s.period.push(period)
		}
	}
}

// addCell adds the time of a transfer to the delay matrix, where the wire times of its sender are not known.
func (p *connection) addCell(t *Tracker, r *result, a half, floor int64) {
	c := p.s.comm
	k := cellKey{c.members[p.from], c.members[p.to], c, "Send", p.log2, false}
	if k.from == nil || k.to == nil {
		return
	}
	if wire := c.job.cells[k]; wire != nil && wire.ready() {
		return
	}
	k.byClocks = true
	s := t.cellOf(k, p.from, p.to)
	if s == nil {
		return
	}
	// The size of operations of one connection is known by its power of two: times are of the largest size.
	mib := float64(uint64(1)<<p.log2) / mebibyte
	m, mad, ok := s.values.normal(rankNormal)
	v := int64(float64(r.transfer) / mib)
	s.add(v, ok && v-m > max(spread*mad, m/10, int64(float64(floor)/mib)), a.end, c.job.frozen)
}

// floorOf returns what durations may always vary, by what measured them.
func floorOf(timing string) int64 {
	if timing == ccl.TimingKernelGPU || timing == ccl.TimingEvent {
		return floorGPU
	}
	return floorCPU
}

// rooted says whether an operation has a root, from which or to which all data moves.
func rooted(op string) bool {
	return slices.Contains([]string{"Broadcast", "Reduce", "Gather", "Scatter"}, op)
}

// judgeRooted compares an operation that has a root with what is normal. Its ranks do not leave together, so that their times have to be
// compared: it does nothing unless the clocks of all of them have bounds. Data of a broadcast or scatter waits for the root, and that of a
// reduce or gather for the last of the others.
func (c *comm) judgeRooted(x *operation) {
	root := x.root
	if x.noClock || root < 0 || x.state[root] != finished {
		return
	}
	r := &result{s: x.s, seq: x.key.seq, end: x.last}
	var waits, transfers []int64
	last := x.start[root]
	for i, st := range x.state {
		if st == finished && i != root {
			last = max(last, x.start[i])
			waits = append(waits, max(0, x.start[root]-x.start[i]))
			transfers = append(transfers, max(0, x.start[i]+x.exec[i]-max(x.start[i], x.start[root])))
		}
	}
	if x.key.op == "Broadcast" || x.key.op == "Scatter" {
		r.wait, r.transfer, r.late = middle(waits), middle(transfers), []int{root}
	} else {
		r.wait, r.transfer = max(0, last-x.start[root]), max(0, x.start[root]+x.exec[root]-last)
		for i, st := range x.state {
			if st == finished && i != root && 2*(last-x.start[i]) < r.wait {
				r.late = append(r.late, i)
			}
		}
	}
	c.settle(x, r, max(floorOf(x.timing), 4*x.clock))
}
