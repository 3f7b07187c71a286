package analyzer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// HTTPAgents reaches the nodes' APIs over HTTP.
type HTTPAgents struct {
	Client *http.Client
	// URL is a node's base, without a path.
	URL func(node string) string
}

// maxReply bounds what an agent may answer, in bytes.
const maxReply = 64 << 20

type tracesReply struct {
	Paths []fabric.Trace `json:"paths"`
}

// Paths implements Agents.
func (a HTTPAgents) Paths(ctx context.Context, node string) ([]fabric.Trace, error) {
	return a.do(ctx, http.MethodGet, node, "/api/v1/paths", nil)
}

// Trace implements Agents.
func (a HTTPAgents) Trace(ctx context.Context, node string, edges []string) ([]fabric.Trace, error) {
	return a.do(ctx, http.MethodPost, node, "/api/v1/trace", map[string]any{"edges": edges})
}

func (a HTTPAgents) do(ctx context.Context, method, node, path string, body any) ([]fabric.Trace, error) {
	at, err := url.JoinPath(a.URL(node), path)
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
	resp, err := a.Client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("agent of %q: %w", node, err)
	}
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
	return out.Paths, nil
}
