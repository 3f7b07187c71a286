package probe

import (
	"sync"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/stamp"
)

// Clock sync follows these rules, which the tests are named after:
//
//  1. If clock sync is enabled, every packet that both ends stamped by one better kind is an exchange. Exchanges that
//     are not read within exchangeSpan are discarded and counted.
//  2. A delay is measured by the local clock: the far stamp is translated to it by the relation of the edge and the
//     kind. The program's own times belong to the kernel's clock.
//  3. Without a relation the packet is counted and gives no delay. The counts of sent, lost and answered packets do not
//     depend on clocks.
//  4. If a clock is seen to move, its edge's relation is dropped until there is another one.
//  5. Every pairEvery-th probe has a twin right behind it. Two packets that left together and did not arrive together
//     met a queue.

// pairEvery is the number of probes of an edge of which one has a twin.
const pairEvery = 5

// exchangeSpan is the time for which exchanges are kept: a window of 2 s, and the delay that a busy host may cause.
const exchangeSpan = 3 * time.Second

// exchange represents one packet by the stamps of both ends.
type exchange struct {
	sent, received int64
	kind           clocksync.Kind
}

// exchangeRing keeps the newest exchanges.
type exchangeRing struct {
	slots    []exchange
	first, n int
	overrun  uint64
}

func (r *exchangeRing) push(x exchange) {
	if r.n == len(r.slots) {
		r.first = (r.first + 1) % len(r.slots)
		r.n--
		r.overrun++
	}
	r.slots[(r.first+r.n)%len(r.slots)] = x
	r.n++
}

// drainTo appends the exchanges to dst, oldest first, and empties the ring.
func (r *exchangeRing) drainTo(dst []exchange) []exchange {
	end := r.first + r.n
	dst = append(dst, r.slots[r.first:min(end, len(r.slots))]...)
	dst = append(dst, r.slots[:max(0, end-len(r.slots))]...)
	r.first, r.n = 0, 0
	return dst
}

// relation represents the relation of an edge's clocks for one kind of stamps.
type relation struct {
	clocksync.Relation
	known bool
	watch clocksync.Watch
}

// clocks holds the state that a flow has for clock sync.
type clocks struct {
	rings     [directions]exchangeRing
	relations [clocksync.Hardware + 1]relation
}

// clockOf returns the kind of clock that a stamp is of.
func clockOf(k stampKind) clocksync.Kind {
	if k == hardwareStamps {
		return clocksync.Hardware
	}
	return clocksync.Kernel
}

// setClockSync enables or disables clock sync for a flow of a cadence.
func (f *flow) setClockSync(on bool, cadence time.Duration) {
	if !on {
		f.clocks = nil
		return
	}
	kept := max(16, int(exchangeSpan*(pairEvery+1)/pairEvery/cadence))
	if f.clocks == nil {
		f.clocks = &clocks{}
	}
	for d := range f.clocks.rings {
		if r := &f.clocks.rings[d]; len(r.slots) != kept {
			*r = exchangeRing{slots: make([]exchange, kept), overrun: r.overrun}
		}
	}
}

// recordExchange keeps a packet's stamps for clock sync.
func (f *flow) recordExchange(d int, kind stampKind, sent, received int64) {
	if f.clocks != nil {
		f.clocks.rings[d].push(exchange{sent: sent, received: received, kind: clockOf(kind)})
	}
}

// measureDelay measures the delay of a packet in one direction from the stamps at this end and at the far one.
func (f *flow) measureDelay(d int, kind stampKind, local, far int64) {
	if f.clocks == nil {
		f.recordDelay(d, kind, far-local)
		return
	}
	r := &f.clocks.relations[clockOf(kind)]
	if !r.known {
		f.Unplaced[d]++
		return
	}
	delay := f.recordDelay(d, kind, far-local-r.OffsetAt(local))
	switch {
	case kind == userStamps: // the program's own times are too coarse to observe clocks
	case d == forward:
		r.watch.AddProbe(delay)
	default:
		r.watch.AddReply(clockOf(kind), delay, r.Bound)
		if _, moved, _ := r.watch.MovedBy(); moved {
			r.known = false
		}
	}
}

// recordDelay records the time from the local stamp to the far one as a delay, and returns the delay.
func (f *flow) recordDelay(d int, kind stampKind, ahead int64) (delay int64) {
	if d == reverse {
		ahead = -ahead
	}
	f.owd[d][kind].Observe(ahead)
	return ahead
}

// exchangeRun states which edge the next n of a list of exchanges belong to.
type exchangeRun struct {
	edge EdgeConfig
	dir  int
	n    int
}

// exchanges is memory for the exchanges of one NIC.
type exchanges struct {
	all  []exchange
	runs []exchangeRun
}

// exchangeDrain is the memory of DrainExchanges.
type exchangeDrain struct {
	mu        sync.Mutex // held for one call of DrainExchanges at a time
	exchanges exchanges
}

// drainExchanges moves the exchanges of a NIC to x.
func (n *nic) drainExchanges(x *exchanges) {
	x.all, x.runs = x.all[:0], x.runs[:0]
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.sender.edges {
		if e.clocks == nil {
			continue
		}
		for d := range e.clocks.rings {
			before := len(x.all)
			x.all = e.clocks.rings[d].drainTo(x.all)
			x.runs = append(x.runs, exchangeRun{edge: e.cfg, dir: d, n: len(x.all) - before})
		}
	}
}

// DrainExchanges yields every exchange since the last call, those of one pair in the order in which they became known.
// A packet was sent at sent by the clock of its sender, and received at received by the clock of its receiver. dir is 0
// for probes, for which the local clock is the sender's, and 1 for replies. A NIC's loop waits only while its exchanges
// are copied. yield may call the engine, except for DrainExchanges.
func (e *Engine) DrainExchanges(yield func(id clocksync.PairID, dir int, sent, received int64)) {
	e.drain.mu.Lock()
	defer e.drain.mu.Unlock()
	for _, n := range e.allNICs() {
		n.drainExchanges(&e.drain.exchanges)
		rest := e.drain.exchanges.all
		for i := range e.drain.exchanges.runs {
			run := &e.drain.exchanges.runs[i]
			for _, x := range rest[:run.n] {
				yield(pairOf(&run.edge, x.kind), run.dir, x.sent, x.received)
			}
			rest = rest[run.n:]
		}
	}
}

func pairOf(e *EdgeConfig, k clocksync.Kind) clocksync.PairID {
	return clocksync.PairID{Src: e.Src, Dst: e.Dst, Flow: e.Flow, Kind: k}
}

// SetRelations sets the relations of the far clocks to the local ones from now on. An edge and kind that is not in
// related is no longer measured.
func (e *Engine) SetRelations(related map[clocksync.PairID]clocksync.Relation) {
	e.visitRelations(func(id clocksync.PairID, r *relation) {
		to, ok := related[id]
		r.updateTo(id.Kind, to, ok)
	})
}

// visitRelations visits the relations of every edge that has clocks, under its NIC's lock.
func (e *Engine) visitRelations(visit func(clocksync.PairID, *relation)) {
	for _, n := range e.allNICs() {
		n.mu.Lock()
		for _, e := range n.sender.edges {
			if e.clocks == nil {
				continue
			}
			for k := range e.clocks.relations {
				visit(pairOf(&e.cfg, clocksync.Kind(k)), &e.clocks.relations[k])
			}
		}
		n.mu.Unlock()
	}
}

// updateTo sets the relation from now on. If known is false, there is none.
func (r *relation) updateTo(k clocksync.Kind, to clocksync.Relation, known bool) {
	if r.known = known; known {
		r.watch.ChangeRelation(k, to.Offset-r.OffsetAt(to.Ref), max(to.Bound, r.Bound))
		r.Relation = to
	}
}

// ClockWitnesses yields what was observed of the clocks of every edge and kind since its relation was set, if there are
// enough observations to rely on.
func (e *Engine) ClockWitnesses(yield func(clocksync.Witness)) {
	e.visitRelations(func(id clocksync.PairID, r *relation) {
		if by, moved, ok := r.watch.MovedBy(); ok {
			yield(clocksync.Witness{ID: id, By: by, Moved: moved})
		}
	})
}

// ClockKinds yields the kind of clock that stamps each NIC's packets. It is the NIC's own if it stamps all of them, in
// both directions. Stamps of a NIC's own clock are translated to the system's time, by readings of both that are width
// nanoseconds wide.
func (e *Engine) ClockKinds(yield func(nic string, k clocksync.Kind, width int64)) {
	for _, n := range e.allNICs() {
		n.mu.Lock()
		nic := n.cfg.NIC
		k, width := n.ports.clockKind()
		n.mu.Unlock()
		yield(nic, k, width)
	}
}

// clockKind returns the kind of clock that stamps all packets of the NIC, and the width of its readings in nanoseconds.
func (p *ports) clockKind() (k clocksync.Kind, width int64) {
	switch {
	case p.udp.reflector == nil && p.rdma.clock != nil:
		return clocksync.Hardware, p.rdma.clock.width
	case p.stamped[0][hardwareStamps] && p.stamped[1][hardwareStamps] && p.udp.clock != nil:
		return clocksync.Hardware, p.udp.clock.width
	}
	return clocksync.Kernel, 0
}

// SetClockBound sets the error bound that packets of a NIC state for its clock. The frame is a relative one, so packets
// never claim that the clock is synchronized. Under Config.ClockSync this bound applies, and otherwise
// Config.ErrorBound.
func (e *Engine) SetClockBound(nic string, bound time.Duration, known bool) {
	for _, n := range e.allNICs() {
		n.mu.Lock()
		if n.cfg.NIC == nic {
			n.bound = stamp.UnknownBound
			if known {
				n.bound = int64(bound)
			}
			n.setEstimate()
		}
		n.mu.Unlock()
	}
}

// clockBound returns the error bound that the peer's last reply stated for its clock, or nil if it stated none.
func (p *peer) clockBound() *time.Duration {
	ns := p.estimate.BoundNS()
	if ns == stamp.UnknownBound {
		return nil
	}
	d := time.Duration(ns)
	return &d
}
