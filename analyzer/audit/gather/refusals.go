package gather

import (
	"context"
	"maps"
	"sync"

	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/fabric"
)

// refusals are the agents that did not let the audit request what it requested.
type refusals struct {
	mu    sync.Mutex
	nodes map[string]string // the error, by node
}

// note records the error of a request if it is a refusal.
func (r *refusals) note(node string, err error) {
	if !tracing.IsRefused(err) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes[node] = err.Error()
}

// list returns the refusals so far, by node.
func (r *refusals) list() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.nodes) == 0 {
		return nil
	}
	return maps.Clone(r.nodes)
}

// watchedAgents are agents whose refusals are recorded.
type watchedAgents struct {
	tracing.Agents
	refusals *refusals
}

// TraceFlows implements tracing.Agents.
func (a watchedAgents) TraceFlows(ctx context.Context, node string, edges []string) ([]fabric.Trace, error) {
	traces, err := a.Agents.TraceFlows(ctx, node, edges)
	a.refusals.note(node, err)
	return traces, err
}
