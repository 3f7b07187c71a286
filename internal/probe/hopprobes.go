package probe

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Hop-limited probes are copies of a flow's packets, as those of a trace, that end at one switch again and again. The
// share of them that it answers says what is lost before it. The rules are:
//
//  1. Each hop limit of a flow gets one packet every hopProbeEvery, which is what the kernel of a switch answers to one
//     asker (net.ipv4.icmp_ratelimit).
//  2. A packet is sent whatever the budget of the switch is, and charged to it. Traces wait, for longer where the switch
//     limits its answers (see budgets). The silence of the switch does not halve the budget, since the packet may have
//     been lost.
//  3. What was sent is counted once its answer arrived or is overdue, so that no packet in flight looks like a lost one.
//  4. The counts of a hop limit begin with the configuration that has it, and end with it.
const (
	hopProbeEvery   = time.Second
	hopProbeTimeout = 800 * time.Millisecond
)

// hopProber sends the hop-limited probes of a node, and counts their answers.
type hopProber struct {
	tracer *tracer
	wanted atomic.Bool // an edge has hop limits

	mu     sync.Mutex
	counts map[hopKey]*fabric.HopCount
}

type hopKey struct {
	flow fabric.Flow
	ttl  int
}

func newHopProber(t *tracer) *hopProber {
	return &hopProber{tracer: t, counts: map[hopKey]*fabric.HopCount{}}
}

// applyConfig forgets the counts that no edge has any more.
func (h *hopProber) applyConfig(cfg *Config) {
	wanted := map[hopKey]bool{}
	for i := range cfg.Edges {
		for _, ttl := range cfg.Edges[i].Hops {
			wanted[hopKey{cfg.Edges[i].ID(), ttl}] = true
		}
	}
	h.wanted.Store(len(wanted) > 0)
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.counts, func(k hopKey, _ *fabric.HopCount) bool { return !wanted[k] })
}

// addressAt returns the address that answered a flow's last trace at a hop limit. It is invalid if there was none.
func (t *tracer) addressAt(flow fabric.Flow, ttl int) netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.paths[flow]; p != nil {
		if i := slices.IndexFunc(p.Hops, func(h Hop) bool { return h.TTL == ttl }); i >= 0 {
			return p.Hops[i].Address
		}
	}
	return netip.Addr{}
}

// countPackets adds to the numbers of packets that were sent and answered.
func (t *tracer) countPackets(sent, answers uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent += sent
	t.answers += answers
}

// run sends the probes until ctx ends.
func (h *hopProber) run(ctx context.Context) {
	tick := time.NewTicker(hopProbeEvery)
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !h.wanted.Load() {
			continue
		}
		for _, n := range h.tracer.nics() {
			for _, f := range n.traceableFlows() {
				for _, ttl := range f.hops {
					wg.Go(func() { h.probeHop(ctx, f, ttl) })
				}
			}
		}
	}
}

// probeHop sends one probe, and counts it with its answer. It waits for a trace of the flow that is running, as traces wait
// for each other.
func (h *hopProber) probeHop(ctx context.Context, f traceFlow, ttl int) {
	t := h.tracer
	limited, cancel := context.WithTimeout(ctx, hopProbeEvery)
	defer cancel()
	end, err := t.beginTrace(limited, f.edge)
	if err != nil {
		return // it is not sent in this second
	}
	defer end()
	if f.rdma {
		if f.copies, err = f.nic.planCopies(f); err != nil {
			return // the trace of the flow has the reason
		}
	}
	nic, _ := f.edge.Endpoints()
	charged := t.budgets.chargeAlways(hopPosition{nic, ttl}, t.addressAt(f.edge, ttl), time.Now().UnixNano())
	answer := make(chan traceAnswer, 1)
	key, err := f.sendCopy(uint8(ttl), answer)
	if err != nil {
		t.budgets.refundCharge(charged)
		if !errors.Is(err, errGone) {
			t.log.Warn("cannot send a hop-limited probe", "edge", f.edge.String(), "hop", ttl, "err", err)
		}
		return
	}
	t.countPackets(1, 0)
	overdue := time.NewTimer(hopProbeTimeout)
	defer overdue.Stop()
	select {
	case a := <-answer:
		from := a.from
		if a.reached {
			from = f.dst.Addr().Unmap()
			t.budgets.refundCharge(charged)
		} else {
			t.budgets.settleAnswered(charged, from, time.Now().UnixNano())
		}
		t.countPackets(0, 1)
		h.countProbe(f, ttl, from)
	case <-overdue.C:
		f.forgetKeys([]uint32{key})
		h.countProbe(f, ttl, netip.Addr{})
	case <-ctx.Done():
		f.forgetKeys([]uint32{key})
	}
}

// countProbe counts a probe with the address of its answer, which is invalid if there was none.
func (h *hopProber) countProbe(f traceFlow, ttl int, from netip.Addr) {
	if !f.nic.wantsHop(f.edge, ttl) {
		return // the configuration ended it meanwhile
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	k := hopKey{f.edge, ttl}
	c := h.counts[k]
	if c == nil {
		c = &fabric.HopCount{TTL: ttl, Answered: map[netip.Addr]uint64{}}
		h.counts[k] = c
	}
	c.Sent++
	if from.IsValid() {
		c.Answered[from]++
	}
}

// wantsHop reports whether an edge has a hop limit now.
func (n *nic) wantsHop(flow fabric.Flow, ttl int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.sender.edges, func(e *edge) bool { return e.id == flow && slices.Contains(e.cfg.Hops, ttl) })
}

// countsByFlow returns copies of the counts, by hop limit.
func (h *hopProber) countsByFlow() map[fabric.Flow][]fabric.HopCount {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.counts) == 0 {
		return nil
	}
	out := map[fabric.Flow][]fabric.HopCount{}
	for k, c := range h.counts {
		out[k.flow] = append(out[k.flow], fabric.HopCount{TTL: c.TTL, Sent: c.Sent, Answered: maps.Clone(c.Answered)})
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b fabric.HopCount) int { return a.TTL - b.TTL })
	}
	return out
}
