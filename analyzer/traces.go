package analyzer

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

type traceRequest struct {
	node  string
	edges []fabric.Flow
}

// requestTraces queues traces of degraded flows, of flows that cross an open suspect and of flows without a path,
// and slowly of all flows.
func (l *Loop) requestTraces(findings []judge.Finding, now time.Time) {
	want := map[fabric.Flow]bool{}
	old := func(e fabric.Flow, age time.Duration) {
		if b, ok := l.store.CurrentBinding(e); !ok || now.Sub(b.Checked) >= age {
			want[e] = true
		}
	}
	for i := range findings {
		f := &findings[i]
		switch {
		case f.Condition == judge.Degraded:
			old(f.Flow, retraceAfter)
		case f.Obs.PathState != fabric.PathValid:
			old(f.Flow, 2*retraceAfter)
		}
	}
	for _, in := range l.openIncidents {
		for e := range in.crossingFlows {
			old(e, retraceAfter)
		}
	}
	// Flows that routing moved away from a suspect return when it has healed.
	for i := len(l.pastIncidents) - 1; i >= 0 && now.Sub(*l.pastIncidents[i].Cleared) < retraceAfterClear; i-- {
		for e := range l.pastIncidents[i].crossingFlows {
			old(e, retraceAfter)
		}
	}
	for _, e := range l.store.EveryNth(l.cycle, max(1, int(retraceAll/l.opts.cycleInterval()))) {
		old(e, retraceAll/2)
	}
	byNode := map[string][]fabric.Flow{}
	dropped := uint64(0)
	l.workMu.Lock()
	for e := range want {
		if !l.beingTraced[e] {
			from, _ := e.Endpoints()
			node := fabric.OwnerOf(from)
			byNode[node] = append(byNode[node], e)
		}
	}
	for node, edges := range byNode {
		select {
		case l.traceRequests <- traceRequest{node, edges}:
			for _, e := range edges {
				l.beingTraced[e] = true
			}
		default: // the queue is full, so the next cycle tries again
			dropped++
		}
	}
	l.workMu.Unlock()
	l.mu.Lock()
	l.counts.TracesDropped += dropped
	l.mu.Unlock()
}

func (l *Loop) traceWorker(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-l.traceRequests:
			names := make([]string, len(a.edges))
			for i, e := range a.edges {
				names[i] = e.String()
			}
			tctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			traces, err := l.opts.Agents.TraceFlows(tctx, a.node, names)
			cancel()
			if err != nil && ctx.Err() == nil {
				l.opts.Log.Log(ctx, l.traceFailureLevel(a.node, time.Now()), "cannot trace flows of a node", "node", a.node, "err", err)
			}
			l.acceptTraces(a.node, traces, time.Now())
			l.workMu.Lock()
			for _, e := range a.edges {
				delete(l.beingTraced, e)
			}
			l.workMu.Unlock()
		}
	}
}

func (l *Loop) storeTraces(traces []fabric.Trace) {
	for _, t := range traces {
		if err := l.store.AddTrace(t); err != nil {
			l.opts.Log.Warn("refused a trace", "edge", t.Edge, "err", err)
		}
	}
}

// traceFailureEvery is the shortest time between two warnings about a node that cannot trace its flows.
const traceFailureEvery = 10 * time.Minute

// traceFailureLevel returns the level at which a failed trace of a node is logged. It is a warning once in
// traceFailureEvery, since paths of that node's flows stay unknown, and otherwise debug.
func (l *Loop) traceFailureLevel(node string, now time.Time) slog.Level {
	l.workMu.Lock()
	defer l.workMu.Unlock()
	if last, ok := l.traceWarnedAt[node]; ok && now.Sub(last) < traceFailureEvery {
		return slog.LevelDebug
	}
	l.traceWarnedAt[node] = now
	return slog.LevelWarn
}

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
func (l *Loop) acceptTraces(node string, traces []fabric.Trace, received time.Time) {
	refused := map[string]uint64{}
	own := traces[:0:0]
	for _, t := range traces {
		e, err := fabric.ParseFlow(t.Edge)
		from, _ := e.Endpoints()
		switch {
		case err != nil:
			refused[unknownEdge]++
			continue
		case fabric.OwnerOf(from) != node:
			refused[foreignFlow]++
			continue
		case t.TracedAt.Sub(received) > maxTraceLead:
			refused[futureTrace]++
			continue
		case t.TracedAt.After(received):
			t.TracedAt = received
		}
		own = append(own, t)
	}
	l.storeTraces(own)
	if len(refused) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for reason, n := range refused {
		r := TraceRefusal{Node: node, Reason: reason}
		if l.refusedTraces[r] == 0 {
			l.opts.Log.Warn("refused traces of a node", "node", node, "reason", reason, "traces", n)
		}
		l.refusedTraces[r] += n
	}
}

// TracesRefused returns the number of refused traces by node and reason.
func (l *Loop) TracesRefused() map[TraceRefusal]uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return maps.Clone(l.refusedTraces)
}

// Times of the poll of all nodes.
const (
	pollPathsEvery   = time.Second      // until every flow has a path
	pollPathsSeldom  = 10 * time.Second // after that
	pollPathsTimeout = 5 * time.Second
	pollPathsAtOnce  = 64              // concurrent requests
	pollBackOffMax   = 2 * time.Minute // for a node that does not respond
)

// polledNode represents the time of the next request to a node.
type polledNode struct {
	busy    bool
	next    time.Time
	backOff time.Duration // 0 if the last request succeeded
}

// pollPaths reads the traced paths of all nodes, which matters most after the start. It requests each node
// separately, so that nodes that hang do not delay others. The time until a failing node is requested again
// doubles with each failure.
func (l *Loop) pollPaths(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	nodes := l.opts.Graph.Topo.Nodes
	polled := make([]polledNode, len(nodes))
	var mu sync.Mutex
	slots := make(chan struct{}, max(pollPathsAtOnce, len(nodes)/8))
	every := pollPathsEvery
	ask := func(i int) {
		defer func() { <-slots }()
		asked, cancel := context.WithTimeout(ctx, pollPathsTimeout)
		defer cancel()
		traces, err := l.opts.Agents.TracedPaths(asked, nodes[i].Name)
		now := time.Now()
		if err == nil {
			l.acceptTraces(nodes[i].Name, traces, now)
		}
		mu.Lock()
		defer mu.Unlock()
		p := &polled[i]
		p.busy = false
		if err == nil {
			p.backOff, p.next = 0, now
			return
		}
		p.backOff = min(max(2*p.backOff, pollPathsEvery), pollBackOffMax)
		p.next = now.Add(p.backOff)
		l.opts.Log.Debug("cannot read the paths of a node", "node", nodes[i].Name, "again_in", p.backOff, "err", err)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		now := time.Now()
		for i := range nodes {
			mu.Lock()
			p := &polled[i]
			due := !p.busy && !now.Before(p.next)
			p.busy = p.busy || due
			mu.Unlock()
			if !due {
				continue
			}
			select {
			case slots <- struct{}{}:
				wg.Go(func() { ask(i) })
			case <-ctx.Done():
				return
			}
		}
		// Once the path of every flow is known, it polls less often.
		want := pollPathsEvery
		if expected := l.Snapshot().Expected; l.store.StateCounts()[fabric.PathValid] >= expected && expected > 0 {
			want = pollPathsSeldom
		}
		if want != every {
			every = want
			tick.Reset(every)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
