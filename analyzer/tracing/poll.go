package tracing

import (
	"context"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Times of the poll of all nodes.
const (
	pollPathsEvery   = time.Second      // until every flow has a path
	pollPathsSeldom  = 10 * time.Second // after that
	pollPathsTimeout = 5 * time.Second
	pollPathsAtOnce  = 64              // concurrent requests
	pollBackOffMax   = 2 * time.Minute // for a node that does not respond
)

// polledNode represents the requests to a node.
type polledNode struct {
	busy    bool
	next    time.Time     // not before, after a failure
	last    time.Time     // successful request
	backOff time.Duration // 0 if the last request succeeded
}

// pollPaths reads the traced paths of all nodes, which matters most after the start. It requests each node
// separately, so that nodes that hang do not delay others. The time until a failing node is requested again
// doubles with each failure.
func (t *Tracer) pollPaths(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	nodes := t.opts.Store.Graph().Topo.Nodes
	polled := make([]polledNode, len(nodes))
	var mu sync.Mutex
	slots := make(chan struct{}, max(pollPathsAtOnce, len(nodes)/8))
	ask := func(i int) {
		defer func() { <-slots }()
		asked, cancel := context.WithTimeout(ctx, pollPathsTimeout)
		defer cancel()
		traces, err := t.opts.Agents.TracedPaths(asked, nodes[i].Name)
		now := time.Now()
		if err == nil {
			t.acceptTraces(nodes[i].Name, traces, now)
		}
		mu.Lock()
		defer mu.Unlock()
		p := &polled[i]
		p.busy = false
		if err == nil {
			p.backOff, p.next, p.last = 0, now, now
			return
		}
		p.backOff = min(max(2*p.backOff, pollPathsEvery), pollBackOffMax)
		p.next = now.Add(p.backOff)
		t.opts.Log.Debug("cannot read the paths of a node", "node", nodes[i].Name, "again_in", p.backOff, "err", err)
	}
	tick := time.NewTicker(pollPathsEvery)
	defer tick.Stop()
	for {
		now := time.Now()
		// Once the path of every flow is known, it polls less often, except nodes that send hop-limited probes.
		seldom := 0 * time.Second
		if expected := int(t.expected.Load()); t.opts.Store.StateCounts()[fabric.PathValid] >= expected && expected > 0 {
			seldom = pollPathsSeldom - pollPathsEvery/2
		}
		for i := range nodes {
			mu.Lock()
			p := &polled[i]
			due := !p.busy && !now.Before(p.next) && (now.Sub(p.last) >= seldom || t.isUrgent(nodes[i].Name))
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
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
