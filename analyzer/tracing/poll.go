package tracing

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Times of the poll of all nodes.
const (
	pollPathsEvery   = time.Second      // until nothing new comes from the node
	pollPathsSeldom  = 10 * time.Second // after that
	pollOverlap      = 2 * time.Second  // by which requests for what is new overlap
	pollPathsTimeout = 5 * time.Second
	pollPathsAtOnce  = 64              // concurrent requests
	pollBackOffMax   = 2 * time.Minute // for a node that does not respond
)

// polledNode represents the requests to a node.
type polledNode struct {
	busy    bool
	next    time.Time     // when it is due, unless it is urgent
	last    time.Time     // start of the last successful request
	traced  bool          // it has returned a trace
	settled bool          // its last answer had nothing new
	backOff time.Duration // 0 if the last request succeeded
}

// pollPaths reads the traced paths of all nodes, which matters most after the start: all of them once, and then what is
// new. It requests each node separately, so that nodes that hang do not delay others. The time until a failing node is
// requested again doubles with each failure. Nodes from which nothing new came are polled less often, except urgent ones,
// and not all in the same second.
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
		mu.Lock()
		last, within := time.Now(), time.Duration(0)
		if !polled[i].last.IsZero() {
			within = last.Sub(polled[i].last) + pollOverlap
		}
		mu.Unlock()
		traces, err := t.opts.Agents.TracedPaths(asked, nodes[i].Name, within)
		now := time.Now()
		news := err == nil && slices.ContainsFunc(traces, t.isNew)
		if err == nil {
			t.acceptTraces(nodes[i].Name, traces, now)
		}
		mu.Lock()
		defer mu.Unlock()
		p := &polled[i]
		p.busy = false
		if err == nil {
			before := p.settled
			p.backOff, p.next, p.last = 0, now, last
			p.traced = p.traced || len(traces) > 0
			p.settled = p.traced && !news
			if p.settled {
				p.next = last.Add(seldomAfter(i, before))
			}
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
		for i := range nodes {
			mu.Lock()
			p := &polled[i]
			due := !p.busy && (!now.Before(p.next) || p.settled && p.backOff == 0 && t.isUrgent(nodes[i].Name))
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

// seldomAfter returns the time between two requests to a settled node. The first time after it settled is shorter, by its
// number, so that the nodes, which settle together, are spread over the seconds from then on.
func seldomAfter(number int, before bool) time.Duration {
	const tolerance = pollPathsEvery / 2 // of ticks
	if before {
		return pollPathsSeldom - tolerance
	}
	return pollPathsSeldom - time.Duration(number)%(pollPathsSeldom/pollPathsEvery)*pollPathsEvery - tolerance
}

// isNew reports whether the flow of a trace has no path yet.
func (t *Tracer) isNew(trace fabric.Trace) bool {
	e, err := fabric.ParseFlow(trace.Edge)
	if err != nil {
		return false
	}
	b, known := t.opts.Store.CurrentBinding(e)
	return !known || b.State != fabric.PathValid && !b.Sprayed
}
