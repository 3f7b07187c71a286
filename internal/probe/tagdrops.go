package probe

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Where a path does not carry in-band signals, hop-limited packets with a tag find the switch that drops them: the first one of the
// path that no longer answers, although it answered packets without a tag. It is the switch that drops what is tagged, or one whose
// neighbour before it does so when it sends. Replies that are dropped are found by their own flow, from the other end.

const (
	tagDropCheckEvery = time.Second
	tagDropAttempts   = 2  // packets of a hop limit; as many more if all were silent
	tagDropPatience   = 10 // looks, while there is no path or none can be sent
)

// seekTagDrops looks for the switches that drop tagged packets, of flows whose paths were found not to carry them, one after the
// other.
func (e *Engine) seekTagDrops(ctx context.Context) {
	tick := time.NewTicker(tagDropCheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, n := range e.allNICs() {
			for _, f := range n.flowsDroppingTags() {
				if err := e.tracer.locateTagDrop(ctx, f); err != nil && ctx.Err() == nil && !errors.Is(err, errGone) {
					e.log.Warn("cannot look for the switch that drops tagged packets", "edge", f.edge.String(), "err", err)
				}
			}
		}
	}
}

// flowsDroppingTags returns the flows of the NIC for which the switch that drops tagged packets is to be looked for.
func (n *nic) flowsDroppingTags() (out []traceFlow) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.sender.edges {
		if e.signals != nil && e.signals.trial.locating {
			out = append(out, traceFlow{nic: n, edge: e.id, sock: e.sock, dst: e.target, dscp: e.dscp, peer: e.peer, signals: true, tagged: true})
		}
	}
	return out
}

// endTagSearch records where tagged packets of an edge are dropped, if that was found, and ends the search if it was or has taken too
// long.
func (n *nic) endTagSearch(id fabric.Flow, at netip.Addr, ended bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.sender.edges {
		if e.id != id || e.signals == nil || !e.signals.trial.locating {
			continue
		}
		t := &e.signals.trial
		if t.looks++; ended || t.looks > tagDropPatience {
			t.locating, t.droppedAt = false, at
			n.sender.retagEdges()
		}
	}
}

// locateTagDrop looks for the switch that drops the tagged packets of a flow.
func (t *tracer) locateTagDrop(ctx context.Context, f traceFlow) error {
	t.mu.Lock()
	plain := t.paths[f.edge]
	t.mu.Unlock()
	if plain == nil || plain.State != fabric.PathValid {
		f.nic.endTagSearch(f.edge, netip.Addr{}, false)
		return nil
	}
	answers, err := t.seekTagged(ctx, f, plain)
	if err != nil {
		f.nic.endTagSearch(f.edge, netip.Addr{}, false)
		return err
	}
	f.nic.endTagSearch(f.edge, firstUnanswered(plain.Hops, answers), true)
	return nil
}

// firstUnanswered returns the address of the first hop that answered plain packets and no tagged one. It is invalid if there is none, or if
// a hop behind it answered, or if the one before it answers neither.
func firstUnanswered(plain []Hop, tagged []bool) (at netip.Addr) {
	silent := false // the hop before answers neither
	for i, h := range plain {
		switch {
		case tagged[i] && at.IsValid():
			return netip.Addr{}
		case tagged[i]:
			silent = false
		case !h.Address.IsValid():
			silent = true
		case silent:
			return netip.Addr{}
		case !at.IsValid():
			at = h.Address
		}
	}
	return at
}

// probeTagged sends tagged packets to each hop of a path, and returns which of them answered. A hop that was not probed for lack of
// budget counts as one that answered.
func (t *tracer) probeTagged(ctx context.Context, f traceFlow, plain *TracedPath) ([]bool, error) {
	q := &pathTrace{tracer: t, flow: f, lastPath: plain, length: len(plain.Hops) + 1}
	q.nic, _ = f.edge.Endpoints()
	for range 2 {
		packets := map[int]int{}
		for i := range plain.Hops {
			if ttl := i + 1; len(q.answers[ttl]) == 0 {
				packets[ttl] = tagDropAttempts
			}
		}
		if err := q.sendPackets(ctx, packets); err != nil {
			return nil, err
		}
	}
	answered := make([]bool, len(plain.Hops))
	for i := range plain.Hops {
		ttl := i + 1
		answered[i] = len(q.answers[ttl]) > 0 || q.packetsSent[ttl] == 0 || q.budgets.isLimited(hopPosition{q.nic, ttl}, time.Now().UnixNano())
	}
	return answered, nil
}

// followKnownTagged returns a function that takes what tagged packets reach from known, in place of probeTagged.
func (t *tracer) followKnownTagged(known func(f fabric.Flow, tagged bool) (hops []Hop, reached bool)) func(context.Context, traceFlow, *TracedPath) ([]bool, error) {
	return func(_ context.Context, f traceFlow, plain *TracedPath) ([]bool, error) {
		hops, _ := known(f.edge, true)
		answered := make([]bool, len(plain.Hops))
		for i := range answered {
			answered[i] = i < len(hops) && hops[i].Address.IsValid()
		}
		return answered, nil
	}
}
