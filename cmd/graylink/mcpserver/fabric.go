package mcpserver

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/publish"
	"github.com/graylink/graylink/analyzer/scope"
	"github.com/graylink/graylink/internal/fabric"
)

type pathsArguments struct {
	Src   string `json:"src" jsonschema:"NIC that sends, as node/device"`
	Dst   string `json:"dst" jsonschema:"NIC that receives, as node/device"`
	At    string `json:"at,omitempty" jsonschema:"a moment in the past (RFC 3339); the present by default"`
	Limit int    `json:"limit,omitempty" jsonschema:"number of flows, 1 to 100, 20 by default"`
}

func (s *server) answerPaths(ctx context.Context, in pathsArguments) (*answer, error) {
	limit, err := orDefault("limit", in.Limit, 20, 100)
	if err != nil {
		return nil, err
	}
	for _, x := range []struct{ argument, nic string }{{"src", in.Src}, {"dst", in.Dst}} {
		if !fabric.IsNIC(x.nic) {
			return nil, fmt.Errorf("%s: %s: a NIC is expected, as node/device", x.argument, quote(x.nic))
		}
	}
	query := url.Values{"src": {in.Src}, "dst": {in.Dst}}
	if in.At != "" {
		query.Set("at", in.At)
	}
	var v publish.PathsAnswer
	if err := s.read(ctx, "/api/v1/paths?"+query.Encode(), &v); err != nil {
		return nil, err
	}
	if len(v.Paths) == 0 {
		return nil, fmt.Errorf("no flow from %s to %s is known: a NIC is not in the topology, or they do not probe each other",
			quote(in.Src), quote(in.Dst))
	}
	total := len(v.Paths)
	v.Paths = keepFirst(v.Paths, limit)
	return &answer{v, Summary, map[string]int{"paths": total}}, nil
}

type coverageArguments struct{}

// coverageAnswer is the answer of the tool coverage.
type coverageAnswer struct {
	State    fabric.State      `json:"state"`
	At       time.Time         `json:"at"`
	Coverage fabric.Coverage   `json:"coverage"`
	Edges    fabric.EdgeCounts `json:"edges"`
	Paths    fabric.PathChoice `json:"paths"`
	Warnings []string          `json:"warnings,omitempty"`
	Findings []string          `json:"findings,omitempty"`
	// Hosts are nodes whose probes are no evidence, and Unseen the directions of links that no evidence speaks of.
	Hosts  []host        `json:"hosts"`
	Unseen []direction   `json:"links_without_evidence"`
	Scopes []scope.Scope `json:"scopes"`
}

type host struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

type direction struct {
	From string `json:"from"`
	To   string `json:"to"`
}

func (s *server) answerCoverage(ctx context.Context, _ coverageArguments) (*answer, error) {
	var v publish.VerdictsAnswer
	if err := s.read(ctx, "/api/v1/verdicts", &v); err != nil {
		return nil, err
	}
	var l publish.LinksAnswer
	if err := s.read(ctx, "/api/v1/links", &l); err != nil {
		return nil, err
	}
	out := coverageAnswer{State: v.State, At: v.At, Coverage: v.Coverage, Edges: v.Edges, Paths: v.Paths, Warnings: v.Warnings,
		Findings: v.Findings, Hosts: []host{}, Unseen: []direction{}, Scopes: v.Scopes}
	for _, node := range slices.Sorted(maps.Keys(v.Hosts)) {
		out.Hosts = append(out.Hosts, host{node, v.Hosts[node]})
	}
	for i := range l.Links {
		if l.Links[i].Edges == 0 {
			out.Unseen = append(out.Unseen, direction{l.Links[i].From, l.Links[i].To})
		}
	}
	return &answer{out, Summary, nil}, nil
}
