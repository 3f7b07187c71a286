package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	config_util "github.com/prometheus/common/config"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/maintenance"
)

// readScope returns the part of the fabric that --scope names. An analyzer has the element of a maintenance window.
func (f *auditFlags) readScope(ctx context.Context, in *inputs) (audit.Scope, error) {
	id, named := audit.MaintenanceWindow(f.scope)
	if !named {
		return audit.ParseScope(in.graph, f.scope)
	}
	if f.analyzer == "" {
		return audit.Scope{}, fmt.Errorf("%s: --analyzer is required: the analyzer has the maintenance windows", f.scope)
	}
	client, err := config_util.NewClientFromConfig(in.http, "graylink_audit", config_util.WithUserAgent("graylink-audit"))
	if err != nil {
		return audit.Scope{}, fmt.Errorf("--http.config: %w", err)
	}
	client.Timeout = agentTimeout
	var windows struct {
		Maintenance []maintenance.Window `json:"maintenance"`
	}
	if _, err := fetchFromAnalyzer(ctx, client, f.analyzer, "/api/v1/maintenance", &windows); err != nil {
		return audit.Scope{}, err
	}
	i := slices.IndexFunc(windows.Maintenance, func(w maintenance.Window) bool { return w.ID == id })
	if i < 0 {
		var known []string
		for _, w := range windows.Maintenance {
			known = append(known, w.ID+" ("+w.Element+")")
		}
		if len(known) == 0 {
			return audit.Scope{}, fmt.Errorf("%s: the analyzer has no maintenance window that goes on or is to come", f.scope)
		}
		return audit.Scope{}, fmt.Errorf("%s: the analyzer has no such maintenance window: one of %s is expected", f.scope, strings.Join(known, ", "))
	}
	return audit.MaintenanceScope(in.graph, id, windows.Maintenance[i].Element)
}

// errNotFound means that an analyzer answered 404.
var errNotFound = errors.New("not found")

// fetchFromAnalyzer decodes what an analyzer answers at a path, and returns the text of it. errors.Is holds for errNotFound.
func fetchFromAnalyzer(ctx context.Context, client *http.Client, base, path string, out any) (raw []byte, err error) {
	if raw, err = readFromAnalyzer(ctx, client, base, path); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("cannot parse the analyzer's answer: %w", err)
	}
	return raw, nil
}

// readFromAnalyzer returns what an analyzer answers at a path, which may have parameters. What is special in a URL is escaped in the
// path. errors.Is holds for errNotFound.
func readFromAnalyzer(ctx context.Context, client *http.Client, base, path string) ([]byte, error) {
	u, err := evidence.ServerURL(base)
	if err != nil {
		return nil, fmt.Errorf("--analyzer: %w", err)
	}
	path, query, _ := strings.Cut(path, "?")
	u = u.JoinPath(path)
	u.RawQuery = query
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, jobTimeout)
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the analyzer does not answer: %w", err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	text := strings.TrimSpace(string(raw[:min(len(raw), 500)]))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read the analyzer's answer: %w", err)
	case resp.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("the analyzer at %s: %w: %s", u.Host, errNotFound, text)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the analyzer at %s: %s: %s", u.Host, resp.Status, text)
	}
	return raw, nil
}
