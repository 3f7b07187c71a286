package tracing

import (
	"maps"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Reasons for which a trace that a node reports is not used.
const (
	foreignFlow  = "foreign_flow" // another node sends its packets
	futureTrace  = "future_time"  // its time is later than the response
	unknownEdge  = "unknown_edge" // not an edge of this topology
	maxTraceLead = time.Second    // the largest accepted difference between the clocks of a node and the analyzer
)

// TraceRefusal represents a node and the reason for which its traces were refused.
type TraceRefusal struct{ Node, Reason string }

// acceptTraces adds the traces of a node to the store. It accepts traces of packets that the node itself sends, which
// are its probes and replies. It refuses and counts traces of other packets, and those with a time in the future.
func (t *Tracer) acceptTraces(node string, traces []fabric.Trace, received time.Time) {
	refused := map[string]uint64{}
	own := traces[:0:0]
	for _, trace := range traces {
		e, err := fabric.ParseFlow(trace.Edge)
		from, _ := e.Endpoints()
		switch {
		case err != nil:
			refused[unknownEdge]++
			continue
		case fabric.OwnerOf(from) != node:
			refused[foreignFlow]++
			continue
		case trace.TracedAt.Sub(received) > maxTraceLead:
			refused[futureTrace]++
			continue
		case trace.TracedAt.After(received):
			trace.TracedAt = received
		}
		own = append(own, trace)
	}
	for _, trace := range own {
		if err := t.opts.Store.AddTrace(trace); err != nil {
			t.opts.Log.Warn("refused a trace", "edge", trace.Edge, "err", err)
			continue
		}
		if e, err := fabric.ParseFlow(trace.Edge); err == nil && len(trace.HopProbes) > 0 {
			t.opts.Store.AddHopCounts(e, trace.HopProbes, received)
			if t.opts.HopCounts != nil {
				t.opts.HopCounts(e, trace.HopProbes)
			}
		}
	}
	if len(refused) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for reason, n := range refused {
		r := TraceRefusal{Node: node, Reason: reason}
		if t.refused[r] == 0 {
			t.opts.Log.Warn("refused traces of a node", "node", node, "reason", reason, "traces", n)
		}
		t.refused[r] += n
	}
}

// RefusedTraces returns the number of refused traces by node and reason.
func (t *Tracer) RefusedTraces() map[TraceRefusal]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.refused)
}
