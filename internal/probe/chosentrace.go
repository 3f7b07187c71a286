package probe

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/srv6"
)

// Traces of flows whose path is chosen. What they find is reported beside the carrier, and changes no path here: the analyzer, which
// knows which switches the carrier lists, compares the two. The rules:
//
//  1. The copies of a flow's packets are sent to its carrier. The hop limit is that of the outer header, which each switch decrements, and
//     a switch at which it expires quotes the packet with what is left of the carrier.
//  2. The switch that takes the outer header off looks at the hop limit of the packet inside, which is 1. It answers that this one
//     expired, so that no copy of a trace arrives, and the path ends at this switch.
//  3. The path is traced as often as others, within the budgets of the switches and the pace of the node, while no switch refuses the
//     carrier. Hops that were traced for another carrier are forgotten.

// asTraced returns the path of a chosen flow as far as traces are concerned: it is as old as its last trace. It returns nil if there was none.
func (p *TracedPath) asTraced() *TracedPath {
	if p.hopsAt.IsZero() {
		return nil
	}
	out := *p
	out.TracedAt = p.hopsAt
	return &out
}

// mostSwitches returns how many switches a carrier can list: one for each identifier but the last one, and the first one where a link
// stands in its place.
func mostSwitches(carrier netip.Addr) int {
	_, sids, err := srv6.DecodeCarrier(carrier)
	if err != nil {
		return 0
	}
	n := len(sids) - 1
	if sids[0].IsAdjacency() {
		n++
	}
	return n
}

// traceChosen traces a flow whose path is chosen, and returns the path with the hops that it found.
func (t *tracer) traceChosen(ctx context.Context, f traceFlow) (TracedPath, error) {
	t.keepsChosen(f, time.Now())
	if f.refused == nil && !t.simulated {
		if err := t.inSlot(ctx, f.edge, func() error { return t.findChosen(ctx, f) }); err != nil {
			return TracedPath{}, fmt.Errorf("trace %s by its carrier: %w", f.edge, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.paths[f.edge]; p != nil {
		return *p, nil
	}
	return TracedPath{Edge: f.edge, State: fabric.PathUnknown, TracedAt: time.Now()}, nil // the configuration no longer has it
}

// findChosen sends the packets of a trace, and keeps the hops that answered.
func (t *tracer) findChosen(ctx context.Context, f traceFlow) error {
	q := &pathTrace{tracer: t, flow: f, attempts: traceAttempts}
	q.nic, _ = f.edge.Endpoints()
	end := mostSwitches(f.carrier)
	t.mu.Lock()
	if old := t.paths[f.edge]; old != nil && old.Carrier == f.carrier && len(old.Hops) > 0 {
		q.lastPath, q.oldPath = old, old // a switch beyond its last hop may have been silent
	}
	t.mu.Unlock()
	if err := q.probeHops(ctx, 1, min(end, maxHops)); err != nil {
		return err
	}
	p := TracedPath{Edge: f.edge, State: fabric.PathValid, Carrier: f.carrier, mute: true}
	q.buildChosen(&p, end)
	t.budgets.learnPath(q.nic, p.Hops, netip.Addr{}, time.Now().UnixNano())
	t.keepHops(&p, time.Now())
	return nil
}

// buildChosen makes hops from the answers, up to the switch that took the outer header off.
func (q *pathTrace) buildChosen(p *TracedPath, end int) {
	answered := 0 // the last hop limit that was
	for ttl := 1; ttl <= end; ttl++ {
		hop, last := Hop{TTL: ttl}, false
		for _, a := range q.answers[ttl] {
			switch {
			case a.reached || a.closed || a.tooBig || a.unsent:
				continue
			case !hop.Address.IsValid():
				hop.Address, hop.RTT, hop.Incoming, hop.Labels = a.from, a.rtt, a.ext.incoming, a.ext.labels
			case hop.Address == a.from:
				hop.RTT = min(hop.RTT, a.rtt)
			default:
				p.Balanced = true
				p.addNote("%v and %v both answer at hop limit %d of one carrier", hop.Address, a.from, ttl)
			}
			last = last || a.inside
			answered = ttl
		}
		p.Hops = append(p.Hops, hop)
		if last {
			return
		}
	}
	p.Hops = p.Hops[:answered]
}

// keepHops stores what a trace found of a chosen path, unless the flow has another carrier by now.
func (t *tracer) keepHops(p *TracedPath, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.paths[p.Edge]
	if old == nil || old.Carrier != p.Carrier {
		return
	}
	kept := *old
	kept.hopsAt = at
	if p.Balanced || !agreesWith(p.Hops, old.Hops) {
		kept.Hops, kept.Notes, kept.Balanced = p.Hops, p.Notes, p.Balanced
		t.version++
	}
	t.paths[p.Edge] = &kept
}

// agreesWith reports whether nothing in the hops of a trace differs from those of the one before, which has as many or more. Silence is no
// difference: switches limit how often they answer.
func agreesWith(hops, before []Hop) bool {
	if len(hops) > len(before) {
		return false
	}
	for i, h := range hops {
		if h.Address.IsValid() && h.Address != before[i].Address {
			return false
		}
	}
	return true
}
