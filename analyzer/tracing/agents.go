package tracing

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/queuepair"
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

// TraceTuples makes a node trace tuples, and returns the traces in the same order, with times of this host's clock. It
// returns an error if the node does not respond with 200, or not with all of them.
func (a HTTPAgents) TraceTuples(ctx context.Context, node string, tuples []fabric.Tuple) ([]fabric.TupleTrace, error) {
	var out struct {
		Now    time.Time           `json:"now"`
		Traces []fabric.TupleTrace `json:"traces"`
	}
	asked, err := a.fetchJSON(ctx, http.MethodPost, node, "/api/v1/trace-tuples", nil, map[string]any{"tuples": tuples}, &out)
	if err != nil {
		return nil, err
	}
	if len(out.Traces) != len(tuples) {
		return nil, fmt.Errorf("agent of %q: %d traces of %d tuples", node, len(out.Traces), len(tuples))
	}
	reply := tracesReply{Now: out.Now, Paths: make([]fabric.Trace, len(tuples))}
	for i := range out.Traces {
		reply.Paths[i] = out.Traces[i].Trace
	}
	reply.toLocalTime(asked.began, asked.ended)
	for i := range out.Traces {
		if out.Traces[i].Trace = reply.Paths[i]; out.Traces[i].Tuple != tuples[i] {
			return nil, fmt.Errorf("agent of %q: trace %d is of another tuple than the request has", node, i)
		}
	}
	return out.Traces, nil
}

// ProbePathMTU has a node test the paths of flows with packets of a length, and returns what it found in the same order. It returns an
// error if the node does not respond with 200, or not with all of them.
func (a HTTPAgents) ProbePathMTU(ctx context.Context, node string, edges []string, octets int) ([]fabric.PathMTU, error) {
	var out struct {
		Found []fabric.PathMTU `json:"found"`
	}
	if _, err := a.fetchJSON(ctx, http.MethodPost, node, "/api/v1/path-mtu", nil, map[string]any{"edges": edges, "octets": octets}, &out); err != nil {
		return nil, err
	}
	if len(out.Found) != len(edges) {
		return nil, fmt.Errorf("agent of %q: %d results for %d flows", node, len(out.Found), len(edges))
	}
	for i := range out.Found {
		if out.Found[i].Edge != edges[i] || out.Found[i].Octets != octets {
			return nil, fmt.Errorf("agent of %q: result %d is for another flow or length than the request has", node, i)
		}
	}
	return out.Found, nil
}

// NICs returns a node's NICs as its agent reports them. It returns an error if the node does not respond with 200.
func (a HTTPAgents) NICs(ctx context.Context, node string) (out fabric.NodeView, err error) {
	_, err = a.fetchJSON(ctx, http.MethodGet, node, "/api/v1/nics", nil, nil, &out)
	return out, err
}

// maxQueuePairs bounds the list of queue pairs of a node, in bytes.
const maxQueuePairs = 32 << 20

// QueuePairs returns the queue pairs of a node's processes, as its kernel lists them. It returns an error if the node does not respond with 200.
func (a HTTPAgents) QueuePairs(ctx context.Context, node string) (*queuepair.Node, error) {
	var line json.RawMessage
	if _, err := a.fetchJSON(ctx, http.MethodGet, node, "/api/v1/queue-pairs", nil, nil, &line); err != nil {
		var status *statusError
		if errors.As(err, &status) && status.code == http.StatusNotFound {
			return nil, fmt.Errorf("agent of %q: it runs without --rdma.queue-pairs, or is of an earlier version (404)", node)
		}
		return nil, err
	}
	if len(line) > maxQueuePairs {
		return nil, fmt.Errorf("agent of %q: a list of %d bytes, want %d at most", node, len(line), maxQueuePairs)
	}
	var bad error
	list, err := queuepair.Read("queue pairs", bytes.NewReader(line), func(e error) { bad = e })
	if err = cmp.Or(err, bad); err != nil {
		return nil, fmt.Errorf("agent of %q: %w", node, err)
	}
	if len(list) != 1 || list[0].Node != node {
		return nil, fmt.Errorf("agent of %q: its list is not of this node", node)
	}
	return &list[0], nil
}

// statusError is the error of a response that is not 200.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

// IsRefused reports whether an error means that an agent does not let this client request what it requested: it answered 401 or 403.
func IsRefused(err error) bool {
	var status *statusError
	return errors.As(err, &status) && (status.code == http.StatusUnauthorized || status.code == http.StatusForbidden)
}

// span is the time that a request took.
type span struct{ began, ended time.Time }

// fetchTraces sends a request to a node, and returns the traces of the response, with times of this host's clock.
func (a HTTPAgents) fetchTraces(ctx context.Context, method, node, path string, query url.Values, body any) ([]fabric.Trace, error) {
	var out tracesReply
	asked, err := a.fetchJSON(ctx, method, node, path, query, body, &out)
	if err != nil {
		return nil, err
	}
	out.toLocalTime(asked.began, asked.ended)
	return out.Paths, nil
}

// fetchJSON sends a request to a node and decodes the response. It returns the time of the request.
func (a HTTPAgents) fetchJSON(ctx context.Context, method, node, path string, query url.Values, body, out any) (asked span, err error) {
	base := a.URL(node)
	if base == "" {
		return asked, fmt.Errorf("agent of %q: its address is unknown", node)
	}
	at, err := url.JoinPath(base, path)
	if err != nil {
		return asked, fmt.Errorf("agent of %q: %w", node, err)
	}
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return asked, fmt.Errorf("agent of %q: %w", node, err)
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, at, in)
	if err != nil {
		return asked, fmt.Errorf("agent of %q: %w", node, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	asked.began = time.Now()
	resp, err := a.Client.Do(req)
	if err != nil {
		return asked, fmt.Errorf("agent of %q: %w", node, err)
	}
	asked.ended = time.Now()
	defer resp.Body.Close()
	limited := io.LimitReader(resp.Body, maxReply)
	if resp.StatusCode != http.StatusOK {
		msg, _ := io.ReadAll(io.LimitReader(limited, 512))
		return asked, &statusError{resp.StatusCode, fmt.Sprintf("agent of %q: %s: %s", node, resp.Status, strings.TrimSpace(string(msg)))}
	}
	if err := json.NewDecoder(limited).Decode(out); err != nil {
		return asked, fmt.Errorf("agent of %q: %w", node, err)
	}
	return asked, nil
}
