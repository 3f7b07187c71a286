package probe

import (
	"time"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/stamp"
)

// Clock sync under these rules, which the tests are named after:
//
//  1. Where it is asked for, every packet that both ends stamped by one better
//     kind is an exchange; what nobody takes for exchangeSpan gives way, and is
//     counted.
//  2. A delay is measured by the local clock: the far stamp is taken into it by
//     the relation of the edge and the kind. The program's own times are the
//     kernel clock's.
//  3. Without a relation there is no delay, but a count of the packet: what was
//     sent, lost and answered does not depend on clocks.
//  4. A clock that is seen to move takes its edge's relation with it, until there
//     is another one.
//  5. Every pairEvery-th probe has a twin right behind it. Two packets that left
//     together and did not come together met a queue.

// pairEvery says which probe of an edge has a twin.
const pairEvery = 5

// exchangeSpan is for how long exchanges are kept: a window of 2 s and as much
// again as a busy host may come late.
const exchangeSpan = 3 * time.Second

// exchange is one packet by the stamps of both ends.
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

// drainTo moves the exchanges to the end of dst, the oldest at first.
func (r *exchangeRing) drainTo(dst []exchange) []exchange {
	end := r.first + r.n
	dst = append(dst, r.slots[r.first:min(end, len(r.slots))]...)
	dst = append(dst, r.slots[:max(0, end-len(r.slots))]...)
	r.first, r.n = 0, 0
	return dst
}

// relation is an edge's, of one kind of stamps.
type relation struct {
	clocksync.Relation
	known bool
	watch clocksync.Watch
}

// clocks is what a flow has for clock sync.
type clocks struct {
	rings     [directions]exchangeRing
	relations [clocksync.Hardware + 1]relation
}

// clockOf is the kind of clock that a stamp is of.
func clockOf(k stampKind) clocksync.Kind {
	if k == hardwareStamps {
		return clocksync.Hardware
	}
	return clocksync.Kernel
}

// setClockSync switches a flow's part in clock sync on or off, for a cadence.
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

// measureDelay takes the delay of a packet in one direction from its stamps at this
// end and at the far one.
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
	case kind == userStamps: // the program's own times are too rough to watch by
	case d == forward:
		r.watch.AddProbe(delay)
	default:
		r.watch.AddReply(clockOf(kind), delay, r.Bound)
		if _, moved, _ := r.watch.MovedBy(); moved {
			r.known = false
		}
	}
}

// recordDelay keeps what the far stamp is ahead of the local one as a delay.
func (f *flow) recordDelay(d int, kind stampKind, ahead int64) (delay int64) {
	if d == reverse {
		ahead = -ahead
	}
	f.owd[d][kind].Observe(ahead)
	return ahead
}

// exchangeRun says whose the next n of some exchanges are.
type exchangeRun struct {
	edge EdgeConfig
	dir  int
	n    int
}

// exchanges is memory for those of one NIC.
type exchanges struct {
	all  []exchange
	runs []exchangeRun
}

// drainExchanges empties the rings of a NIC.
func (n *nic) drainExchanges(x *exchanges) {
	x.all, x.runs = x.all[:0], x.runs[:0]
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.edges {
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

// DrainExchanges hands out every exchange since the last call, those of one pair in
// the order in which they became known: the clock that sent said sent, the one
// that received received. dir is 0 for probes, the local clock being the
// sender's, and 1 for replies. A NIC's loop is held up only while its exchanges
// are copied. yield may call the engine, but not Exchanges.
func (e *Engine) DrainExchanges(yield func(id clocksync.PairID, dir int, sent, received int64)) {
	e.drainMu.Lock()
	defer e.drainMu.Unlock()
	for _, n := range e.allNICs() {
		n.drainExchanges(&e.drained)
		rest := e.drained.all
		for i := range e.drained.runs {
			run := &e.drained.runs[i]
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

// SetRelations says how the far clocks stand against the local ones from now on. An
// edge and kind that related has not is measured no more.
func (e *Engine) SetRelations(related map[clocksync.PairID]clocksync.Relation) {
	e.visitRelations(func(id clocksync.PairID, r *relation) {
		to, ok := related[id]
		r.updateTo(id.Kind, to, ok)
	})
}

// visitRelations visits those of every edge that has clocks, under its NIC's lock.
func (e *Engine) visitRelations(visit func(clocksync.PairID, *relation)) {
	for _, n := range e.allNICs() {
		n.mu.Lock()
		for _, e := range n.edges {
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

// updateTo is the relation from now on, if it is known.
func (r *relation) updateTo(k clocksync.Kind, to clocksync.Relation, known bool) {
	if r.known = known; known {
		r.watch.ChangeRelation(k, to.Offset-r.OffsetAt(to.Ref), max(to.Bound, r.Bound))
		r.Relation = to
	}
}

// ClockWitnesses tells what is seen of the clocks of every edge and kind since its
// relation was given, where that is enough to go by.
func (e *Engine) ClockWitnesses(yield func(clocksync.Witness)) {
	e.visitRelations(func(id clocksync.PairID, r *relation) {
		if by, moved, ok := r.watch.MovedBy(); ok {
			yield(clocksync.Witness{ID: id, By: by, Moved: moved})
		}
	})
}

// ClockKinds tells by which kind of clock each NIC's packets are stamped: its own
// where all are, in both directions. A NIC's own is told as the system's time, by
// readings of both that are width nanoseconds wide.
func (e *Engine) ClockKinds(yield func(nic string, k clocksync.Kind, width int64)) {
	for _, n := range e.allNICs() {
		n.mu.Lock()
		nic, k, width := n.cfg.NIC, clocksync.Kernel, int64(0)
		if n.stamps[0][hardwareStamps] && n.stamps[1][hardwareStamps] && n.clock != nil {
			k, width = clocksync.Hardware, n.clock.width
		}
		if n.reflector == nil && n.rdmaClock != nil {
			k, width = clocksync.Hardware, n.rdmaClock.width
		}
		n.mu.Unlock()
		yield(nic, k, width)
	}
}

// SetClockBound says to the peers of a NIC how wrong its clock may be. The frame
// is a relative one, so that no clock is told to be synchronised. It counts
// under Config.ClockSync; without that Config.ErrorBound does.
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

// setEstimate chooses what packets say of the NIC's clock.
func (n *nic) setEstimate() {
	switch {
	case n.node.ClockSync:
		n.estimate = stamp.NewErrorEstimate(n.bound, false, true)
	case n.node.ErrorBound != nil:
		n.estimate = stamp.NewErrorEstimate(int64(*n.node.ErrorBound), true, true)
	default:
		n.estimate = stamp.NewErrorEstimate(stamp.UnknownBound, false, true)
	}
}

// clockBound is what the peer's replies said last of its clock; nil: nothing.
func (p *peer) clockBound() *time.Duration {
	ns := p.estimate.BoundNS()
	if ns == stamp.UnknownBound {
		return nil
	}
	d := time.Duration(ns)
	return &d
}
