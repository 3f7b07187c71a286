package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Agents represents the APIs of the nodes.
type Agents interface {
	// TracedPaths returns what a node has traced: all of it, or with within above zero what it traced not longer ago than
	// that, and flows with hop-limited probes. Earlier versions of agents return all of it in any case.
	TracedPaths(ctx context.Context, node string, within time.Duration) ([]fabric.Trace, error)
	// TraceFlows makes a node trace flows, and returns the traces.
	TraceFlows(ctx context.Context, node string, edges []string) ([]fabric.Trace, error)
}

// ScopedAgents are nodes of which only the traces of flows between some NICs are read.
type ScopedAgents struct {
	Agents
	Has func(nic string) bool
}

// TracedPaths implements Agents.
func (a ScopedAgents) TracedPaths(ctx context.Context, node string, within time.Duration) ([]fabric.Trace, error) {
	all, err := a.Agents.TracedPaths(ctx, node, within)
	return slices.DeleteFunc(all, func(t fabric.Trace) bool {
		e, err := fabric.ParseFlow(t.Edge)
		return err == nil && (!a.Has(e.Src) || !a.Has(e.Dst))
	}), err
}

// HTTPAgents calls the APIs of the nodes over HTTP.
type HTTPAgents struct {
	Client *http.Client
	// URL returns the base URL of a node, without a path, or "" if it is unknown.
	URL func(node string) string
}

// maxReply bounds the response of an agent, in bytes.
const maxReply = 64 << 20

type tracesReply struct {
	// Now is the time of the response by the clock of the node. It is zero from older agents, which do not send it.
	Now   time.Time      `json:"now"`
	Paths []fabric.Trace `json:"paths"`
}

// toLocalTime converts the times of the traces from the node's clock to this machine's clock, if the
// two differ by more than half of the exchange took.
func (r *tracesReply) toLocalTime(asked, answered time.Time) {
	if r.Now.IsZero() {
		return
	}
	half := answered.Sub(asked) / 2
	ahead := r.Now.Sub(asked.Add(half))
	if ahead.Abs() <= half {
		return
	}
	for i := range r.Paths {
		r.Paths[i].TracedAt = r.Paths[i].TracedAt.Add(-ahead)
	}
}

// TracedPaths implements Agents. It returns an error if the node does not respond with 200.
func (a HTTPAgents) TracedPaths(ctx context.Context, node string, within time.Duration) ([]fabric.Trace, error) {
	var query url.Values
	if within > 0 {
		query = url.Values{"within": {within.String()}}
	}
	return a.fetchTraces(ctx, http.MethodGet, node, "/api/v1/paths", query, nil)
}

// TraceFlows implements Agents. It returns an error if the node does not respond with 200.
func (a HTTPAgents) TraceFlows(ctx context.Context, node string, edges []string) ([]fabric.Trace, error) {
	return a.fetchTraces(ctx, http.MethodPost, node, "/api/v1/trace", nil, map[string]any{"edges": edges})
}

func (a HTTPAgents) fetchTraces(ctx context.Context, method, node, path string, query url.Values, body any) ([]fabric.Trace, error) {
	base := a.URL(node)
	if base == "" {
		return nil, fmt.Errorf("agent of %q: its address is unknown", node)
	}
	at, err := url.JoinPath(base, path)
	if err != nil {
		return nil, fmt.Errorf("agent of %q: %w", node, err)
	}
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("agent of %q: %w", node, err)
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, at, in)
	if err != nil {
		return nil, fmt.Errorf("agent of %q: %w", node, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	asked := time.Now()
	resp, err := a.Client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("agent of %q: %w", node, err)
	}
	answered := time.Now()
	defer resp.Body.Close()
	limited := io.LimitReader(resp.Body, maxReply)
	if resp.StatusCode != http.StatusOK {
		msg, _ := io.ReadAll(io.LimitReader(limited, 512))
		return nil, fmt.Errorf("agent of %q: %s: %s", node, resp.Status, strings.TrimSpace(string(msg)))
	}
	var out tracesReply
	if err := json.NewDecoder(limited).Decode(&out); err != nil {
		return nil, fmt.Errorf("agent of %q: %w", node, err)
	}
	out.toLocalTime(asked, answered)
	return out.Paths, nil
}
