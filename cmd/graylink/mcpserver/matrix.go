package mcpserver

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/matrix"
)

type matrixArguments struct {
	Of    string `json:"of,omitempty" jsonschema:"degraded (the share of degraded flows, the default), shift (added delay), median, p99, loss or marks"`
	Pod   string `json:"pod,omitempty" jsonschema:"name of a pod; all by default"`
	Plane string `json:"plane,omitempty" jsonschema:"name of a plane; all by default"`
	At    string `json:"at,omitempty" jsonschema:"a moment in the past (RFC 3339, or how long ago, like 10m); the present by default"`
	Limit int    `json:"limit,omitempty" jsonschema:"number of cells, 1 to 100, 20 by default"`
}

// matrixAnswer is the answer of the tool matrix: the cells with the largest values first, and those of which nothing is known last.
type matrixAnswer struct {
	At         time.Time       `json:"at,omitzero"`
	Of         matrix.Quantity `json:"of"`
	Unit       string          `json:"unit"`
	Flows      int             `json:"flows"`
	KnownFlows int             `json:"known_flows"`
	Warning    string          `json:"warning,omitempty"`
	Cells      []leafPair      `json:"cells"`
}

// leafPair is what is known of the flows from one leaf to another one.
type leafPair struct {
	From       string   `json:"from"`
	To         string   `json:"to"`
	Value      *float64 `json:"value"` // null: it is not known
	Flows      int      `json:"flows"`
	KnownFlows int      `json:"known_flows"`
}

func (s *server) answerMatrix(ctx context.Context, in matrixArguments) (*answer, error) {
	limit, err := orDefault("limit", in.Limit, 20, 100)
	if err != nil {
		return nil, err
	}
	var v matrix.Table
	query := url.Values{"of": {in.Of}, "pod": {in.Pod}, "plane": {in.Plane}, "at": {in.At}}
	if err := s.read(ctx, "/api/v1/matrix?"+query.Encode(), &v); err != nil {
		return nil, err
	}
	slices.SortStableFunc(v.Cells, func(a, b matrix.TableCell) int {
		if a.Value == nil || b.Value == nil {
			return cmp.Compare(knownFirst(a), knownFirst(b))
		}
		return cmp.Compare(*b.Value, *a.Value)
	})
	out := matrixAnswer{v.At, v.Of, v.Unit, v.Flows, v.KnownFlows, v.Warning, []leafPair{}}
	for _, c := range keepFirst(v.Cells, limit) {
		out.Cells = append(out.Cells, leafPair{v.Groups[c.Row].Name, v.Groups[c.Column].Name, c.Value, c.Flows, c.KnownFlows})
	}
	return &answer{out, Summary, map[string]int{"cells": len(v.Cells)}}, nil
}

// knownFirst orders the cells of which something is known before all others.
func knownFirst(c matrix.TableCell) int {
	if c.Value == nil {
		return 1
	}
	return 0
}
