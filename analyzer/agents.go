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

// HTTPAgents reaches the nodes' APIs over HTTP.
type HTTPAgents struct {
	Client *http.Client
	// URL is a node's base, without a path; "": it is not known.
	URL func(node string) string
}

// maxReply bounds what an agent may answer, in bytes.
const maxReply = 64 << 20

type tracesReply struct {
	// Now is the node's clock when it answered; zero: an older agent, which does not send it.
	Now   time.Time      `json:"now"`
	Paths []fabric.Trace `json:"paths"`
}

// toLocalTime moves the times of the traces from the node's clock to this machine's, where the
// two differ by more than the exchange leaves open.
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

// TracedPaths implements Agents.
func (a HTTPAgents) TracedPaths(ctx context.Context, node string) ([]fabric.Trace, error) {
	return a.fetchTraces(ctx, http.MethodGet, node, "/api/v1/paths", nil)
}

// TraceFlows implements Agents.
func (a HTTPAgents) TraceFlows(ctx context.Context, node string, edges []string) ([]fabric.Trace, error) {
	return a.fetchTraces(ctx, http.MethodPost, node, "/api/v1/trace", map[string]any{"edges": edges})
}

func (a HTTPAgents) fetchTraces(ctx context.Context, method, node, path string, body any) ([]fabric.Trace, error) {
	base := a.URL(node)
	if base == "" {
		return nil, fmt.Errorf("agent of %q: nobody has said where it is", node)
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

// Targets are the addresses of agents, as a coordinator tells them to Prometheus.
type Targets struct {
	Client *http.Client
	// Coordinator is the base of its web listener.
	Coordinator string
	Log         *slog.Logger

	mu       sync.RWMutex
	baseURLs map[string]string // base by node
}

// URLOf is where a node's agent was told to be last, or "".
func (t *Targets) URLOf(node string) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.baseURLs[node]
}

// Run asks at once and every interval until ctx ends. While the coordinator is
// away, what it said last holds.
func (t *Targets) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := t.refreshTargets(ctx); err != nil && ctx.Err() == nil {
			t.Log.Warn("where the agents are", "err", err)
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

// parseTargets reads target groups of Prometheus' HTTP service discovery as the
// coordinator makes them: one node each.
func parseTargets(r io.Reader) (map[string]string, error) {
	var groups []struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	if err := json.NewDecoder(r).Decode(&groups); err != nil {
		return nil, fmt.Errorf("target groups are expected: %w", err)
	}
	out := make(map[string]string, len(groups))
	for _, g := range groups {
		node, scheme := g.Labels["__meta_graylink_node"], g.Labels["__scheme__"]
		if node == "" || len(g.Targets) != 1 || scheme != "http" && scheme != "https" {
			return nil, fmt.Errorf("the group of %q: one target of one node is expected, by http or https", g.Targets)
		}
		out[node] = scheme + "://" + g.Targets[0]
	}
	return out, nil
}
