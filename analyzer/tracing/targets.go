package tracing

import (
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
)

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
