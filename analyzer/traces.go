package analyzer

import (
	"context"
	"time"

	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

type traceAsk struct {
	node  string
	edges []fabric.Edge
}

// askTraces requests the paths that matter now: of degraded flows, of flows
// that cross an open suspect, of flows without a path; and slowly of all.
func (l *Loop) askTraces(findings []judge.Finding, now time.Time) {
	want := map[fabric.Edge]bool{}
	old := func(e fabric.Edge, age time.Duration) {
		if b, ok := l.store.Bind(e); !ok || now.Sub(b.Checked) >= age {
			want[e] = true
		}
	}
	for i := range findings {
		f := &findings[i]
		switch {
		case f.Condition == judge.Degraded:
			old(f.Edge, retraceAfter)
		case f.Obs.PathState != fabric.PathValid:
			old(f.Edge, 2*retraceAfter)
		}
	}
	for _, in := range l.open {
		for e := range in.crossing {
			old(e, retraceAfter)
		}
	}
	// What was routed around a suspect goes back when it is healed.
	for i := len(l.past) - 1; i >= 0 && now.Sub(*l.past[i].Cleared) < afterCare; i-- {
		for e := range l.past[i].crossing {
			old(e, retraceAfter)
		}
	}
	for _, e := range l.store.Turn(l.cycle, max(1, int(retraceAll/l.o.every()))) {
		old(e, retraceAll/2)
	}
	byNode := map[string][]fabric.Edge{}
	dropped := uint64(0)
	l.workMu.Lock()
	for e := range want {
		if !l.inWork[e] {
			from, _ := e.Ends()
			node := fabric.OwnerOf(from)
			byNode[node] = append(byNode[node], e)
		}
	}
	for node, edges := range byNode {
		select {
		case l.asks <- traceAsk{node, edges}:
			for _, e := range edges {
				l.inWork[e] = true
			}
		default: // the queue is full: the next cycle asks again
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
		case a := <-l.asks:
			names := make([]string, len(a.edges))
			for i, e := range a.edges {
				names[i] = e.String()
			}
			tctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			traces, err := l.o.Agents.Trace(tctx, a.node, names)
			cancel()
			if err != nil && ctx.Err() == nil {
				l.o.Log.Debug("trace failed", "node", a.node, "err", err)
			}
			l.take(traces)
			l.workMu.Lock()
			for _, e := range a.edges {
				delete(l.inWork, e)
			}
			l.workMu.Unlock()
		}
	}
}

func (l *Loop) take(traces []fabric.Trace) {
	for _, t := range traces {
		if err := l.store.Update(t); err != nil {
			l.o.Log.Warn("trace not used", "edge", t.Edge, "err", err)
		}
	}
}

// pollPaths reads what the nodes traced of themselves, at start above all.
func (l *Loop) pollPaths(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		for i := range l.o.Graph.Topo.Nodes {
			traces, err := l.o.Agents.Paths(ctx, l.o.Graph.Topo.Nodes[i].Name)
			if err == nil {
				l.take(traces)
			}
		}
		// Once every flow is known, asking now and then is enough.
		if expected := l.Snapshot().Expected; l.store.States()[fabric.PathValid] >= expected && expected > 0 {
			tick.Reset(10 * time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
