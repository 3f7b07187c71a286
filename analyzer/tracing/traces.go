package tracing

import (
	"context"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// retraceAfter is the age at which the path of a flow that matters now is traced again. Tracing all flows in the
// background takes retraceAll. Flows of a cleared suspect are traced again for RetraceAfterClear.
const (
	RetraceAfterClear = 10 * time.Second
	retraceAfter      = 3 * time.Second
	retraceAll        = 60 * time.Second
)

const (
	// traceTimeout bounds the time in which a node traces the flows of one request.
	traceTimeout = 20 * time.Second
	// concurrentTraces is the number of nodes that trace at a time, and queuedTraces that of waiting requests.
	concurrentTraces, queuedTraces = 8, 64
	// urgentNodes is the number of nodes up to which flows that matter make nodes urgent.
	urgentNodes = 128
	// traceFailureEvery is the shortest time between two warnings about flows that cannot be traced.
	traceFailureEvery = 10 * time.Minute
)

// TracerOptions configure a Tracer.
type TracerOptions struct {
	// Agents trace flows. Without them, a Tracer does nothing.
	Agents Agents
	Store  *paths.Store
	// HopCounts takes the counts of hop-limited probes that come with traces. It may be nil.
	HopCounts func(fabric.Flow, []fabric.HopCount)
	// Log must not be nil.
	Log *slog.Logger
}

// Tracer has the nodes trace flows, reads what they have traced, and adds it to a store. Its methods may be called
// concurrently.
type Tracer struct {
	opts     TracerOptions
	requests chan traceRequest

	mu       sync.Mutex
	urgent   map[string]bool      // nodes that are polled as often as possible
	running  map[fabric.Flow]bool // requested and not answered yet
	warnedAt time.Time            // of a trace that failed
	refused  map[TraceRefusal]uint64
	dropped  uint64
}

// traceRequest represents flows that a node shall trace.
type traceRequest struct {
	node  string
	flows []fabric.Flow
}

// NewTracer returns a Tracer that does not run yet.
func NewTracer(o TracerOptions) *Tracer {
	return &Tracer{opts: o, requests: make(chan traceRequest, queuedTraces), running: map[fabric.Flow]bool{}, refused: map[TraceRefusal]uint64{}}
}

// InheritFrom takes over the counters of another Tracer, which has stopped.
func (t *Tracer) InheritFrom(old *Tracer) { t.refused, t.dropped = old.refused, old.dropped }

// Run answers requests for traces and polls the nodes until ctx ends, and waits for the goroutines that it started.
func (t *Tracer) Run(ctx context.Context) {
	if t.opts.Agents == nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { t.pollPaths(ctx) })
	for range concurrentTraces {
		wg.Go(func() { t.traceWorker(ctx) })
	}
}

// Demand describes what a cycle wants traced.
type Demand struct {
	Now   time.Time
	Cycle int
	// Interval is the time between two cycles.
	Interval time.Duration
	Findings []judge.Finding
	// Pending yields the flows that will be degraded if the next window confirms it. Their path may have changed.
	Pending iter.Seq[fabric.Flow]
	// Watched yields the flows that cross suspects, or crossed those of late.
	Watched iter.Seq[fabric.Flow]
	// Urgent are the nodes that send hop-limited probes, whose counts come with the traces.
	Urgent []string
}

// RequestTraces queues traces of degraded flows and of those that are about to be, of flows that cross a suspect and of flows without a path,
// and slowly of all flows.
func (t *Tracer) RequestTraces(d *Demand) {
	if t.opts.Agents == nil {
		return
	}
	want := map[fabric.Flow]bool{}
	old := func(e fabric.Flow, age time.Duration) {
		// A trace of a sprayed flow finds no path. The slow traces of all flows notice when it is sprayed no more.
		if b, ok := t.opts.Store.CurrentBinding(e); !ok || !b.Sprayed && d.Now.Sub(b.Checked) >= age {
			want[e] = true
		}
	}
	for i := range d.Findings {
		f := &d.Findings[i]
		switch {
		case f.Condition == judge.Degraded:
			old(f.Flow, retraceAfter)
		case f.Obs.PathState != fabric.PathValid:
			old(f.Flow, 2*retraceAfter)
		}
	}
	for e := range d.Pending {
		old(e, retraceAfter)
	}
	// Flows that routing moved away from a suspect return when it has healed.
	for e := range d.Watched {
		old(e, retraceAfter)
	}
	t.setUrgent(d.Urgent, want)
	for _, e := range t.opts.Store.EveryNth(d.Cycle, max(1, int(retraceAll/d.Interval)), d.Now.Add(-retraceAll/2)) {
		want[e] = true
	}
	t.queueTraces(maps.Keys(want))
}

// setUrgent sets the nodes to poll as often as possible: some that the cycle names, and those at the beginning of flows that
// matter now. Agents trace such flows by themselves.
func (t *Tracer) setUrgent(nodes []string, flows map[fabric.Flow]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.urgent = make(map[string]bool, len(nodes))
	for _, n := range nodes {
		t.urgent[n] = true
	}
	for e := range flows {
		if len(t.urgent) >= urgentNodes {
			break
		}
		from, _ := e.Endpoints()
		t.urgent[fabric.OwnerOf(from)] = true
	}
}

// isUrgent reports whether a node is polled as often as possible.
func (t *Tracer) isUrgent(node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.urgent[node]
}

// queueTraces queues one request for each node that has flows to trace. Flows whose traces are awaited are left out.
func (t *Tracer) queueTraces(flows iter.Seq[fabric.Flow]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	byNode := map[string][]fabric.Flow{}
	for e := range flows {
		if !t.running[e] {
			from, _ := e.Endpoints()
			node := fabric.OwnerOf(from)
			byNode[node] = append(byNode[node], e)
		}
	}
	for node, flows := range byNode {
		select {
		case t.requests <- traceRequest{node, flows}:
			for _, e := range flows {
				t.running[e] = true
			}
		default: // the queue is full, so the next cycle tries again
			t.dropped++
		}
	}
}

// DroppedRequests returns the number of requests that found the queue full.
func (t *Tracer) DroppedRequests() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropped
}

func (t *Tracer) traceWorker(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-t.requests:
			t.answerRequest(ctx, r)
		}
	}
}

// AnswerQueued answers the requests that are queued now, and polls the urgent nodes, for callers that do not use Run.
func (t *Tracer) AnswerQueued(ctx context.Context) {
	t.mu.Lock()
	urgent := slices.Sorted(maps.Keys(t.urgent))
	t.mu.Unlock()
	for _, node := range urgent {
		if traces, err := t.opts.Agents.TracedPaths(ctx, node, 0); err == nil {
			t.acceptTraces(node, traces, time.Now())
		}
	}
	for {
		select {
		case r := <-t.requests:
			t.answerRequest(ctx, r)
		default:
			return
		}
	}
}

func (t *Tracer) answerRequest(ctx context.Context, r traceRequest) {
	names := make([]string, len(r.flows))
	for i, e := range r.flows {
		names[i] = e.String()
	}
	limited, cancel := context.WithTimeout(ctx, traceTimeout)
	traces, err := t.opts.Agents.TraceFlows(limited, r.node, names)
	cancel()
	if err != nil && ctx.Err() == nil {
		t.opts.Log.Log(ctx, t.traceFailureLevel(time.Now()), "cannot trace flows of a node; agents trace them by themselves, later", "node", r.node, "err", err)
	}
	t.acceptTraces(r.node, traces, time.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range r.flows {
		delete(t.running, e)
	}
}

// traceFailureLevel returns the level at which a failed request for traces is logged. It is a warning once in
// traceFailureEvery, and otherwise debug.
func (t *Tracer) traceFailureLevel(now time.Time) slog.Level {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.warnedAt) < traceFailureEvery {
		return slog.LevelDebug
	}
	t.warnedAt = now
	return slog.LevelWarn
}
