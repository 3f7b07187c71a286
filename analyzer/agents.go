package analyzer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

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
func (a HTTPAgents) TracedPaths(ctx context.Context, node string) ([]fabric.Trace, error) {
	return a.fetchTraces(ctx, http.MethodGet, node, "/api/v1/paths", nil)
}

// TraceFlows implements Agents. It returns an error if the node does not respond with 200.
func (a HTTPAgents) TraceFlows(ctx context.Context, node string, edges []string) ([]fabric.Trace, error) {
	return a.fetchTraces(ctx, http.MethodPost, node, "/api/v1/trace", map[string]any{"edges": edges})
}

func (a HTTPAgents) fetchTraces(ctx context.Context, method, node, path string, body any) ([]fabric.Trace, error) {
	base := a.URL(node)
	if base == "" {
		return nil, fmt.Errorf("agent of %q: its address is unknown", node)
	}
	at, err := url.JoinPath(base, path)
	if err != nil {
		return nil, fmt.Errorf("agent of %q: %w", node, err)
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

// Targets holds the addresses of agents, as a coordinator publishes them for Prometheus.
type Targets struct {
	Client *http.Client
	// Coordinator is the base URL of the coordinator's web listener.
	Coordinator string
	Log         *slog.Logger

	mu       sync.RWMutex
	baseURLs map[string]string // by node
}

// URLOf returns the latest base URL of a node's agent, or "".
func (t *Targets) URLOf(node string) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.baseURLs[node]
}

// Run reads the addresses at once and every interval until ctx ends. While the coordinator does
// not respond, the latest addresses stay.
func (t *Targets) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := t.refreshTargets(ctx); err != nil && ctx.Err() == nil {
			t.Log.Warn("cannot read the addresses of the agents", "coordinator", t.Coordinator, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (t *Targets) refreshTargets(ctx context.Context) error {
	at, err := url.JoinPath(t.Coordinator, "/api/v1/targets")
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	resp, err := t.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body := io.LimitReader(resp.Body, maxReply)
	if resp.StatusCode != http.StatusOK {
		msg, _ := io.ReadAll(io.LimitReader(body, 512))
		return fmt.Errorf("%s: %s: %s", at, resp.Status, strings.TrimSpace(string(msg)))
	}
	found, err := parseTargets(body)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	t.mu.Lock()
	t.baseURLs = found
	t.mu.Unlock()
	return nil
}

// parseTargets reads the target groups of Prometheus' HTTP service discovery, and returns the base URLs by
// node. The coordinator writes one group for each node.
func parseTargets(r io.Reader) (map[string]string, error) {
	var groups []struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	if err := json.NewDecoder(r).Decode(&groups); err != nil {
		return nil, fmt.Errorf("cannot read the target groups: %w", err)
	}
	out := make(map[string]string, len(groups))
	for _, g := range groups {
		node, scheme := g.Labels["__meta_graylink_node"], g.Labels["__scheme__"]
		if node == "" || len(g.Targets) != 1 || scheme != "http" && scheme != "https" {
			return nil, fmt.Errorf("target group %q: want one target of one node, with scheme http or https", g.Targets)
		}
		out[node] = scheme + "://" + g.Targets[0]
	}
	return out, nil
}
