package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/publish"
	"github.com/graylink/graylink/internal/fabric"
)

// brief is what every answer says of a verdict.
type brief struct {
	ID         string          `json:"id"`
	Element    string          `json:"element"`
	Kind       fabric.Kind     `json:"kind"`
	Direction  string          `json:"direction,omitempty"`
	Scenario   fabric.Scenario `json:"scenario"`
	Severity   string          `json:"severity"`
	Confidence float64         `json:"confidence"`
	Open       bool            `json:"open"`
	FirstSeen  time.Time       `json:"first_seen"`
	Cleared    *time.Time      `json:"cleared_at,omitempty"`
	Closed     string          `json:"closed,omitempty"`
	Held       string          `json:"held,omitempty"`
	Recalled   bool            `json:"recalled,omitempty"`
	Summary    string          `json:"summary"`
}

func briefOf(in *incident.Incident) brief {
	return brief{ID: in.ID, Element: in.Element.ID, Kind: in.Kind, Direction: in.Direction, Scenario: in.Scenario, Severity: in.Severity,
		Confidence: in.Confidence, Open: in.Open,
		FirstSeen: in.FirstSeen, Cleared: in.Cleared, Closed: in.Closed, Held: in.Held, Recalled: in.Recalled, Summary: in.Summary}
}

func briefsOf(all []incident.Incident) []brief {
	out := []brief{}
	for i := range all {
		out = append(out, briefOf(&all[i]))
	}
	return out
}

type verdictsArguments struct {
	Which string `json:"which,omitempty" jsonschema:"open (the default), closed or all"`
	Job   string `json:"job,omitempty" jsonschema:"only verdicts that affect this job"`
	Limit int    `json:"limit,omitempty" jsonschema:"number of verdicts, 1 to 100, 20 by default"`
}

// verdictsAnswer is the answer of the tool verdicts.
type verdictsAnswer struct {
	State    fabric.State    `json:"state"`
	At       time.Time       `json:"at"`
	Coverage fabric.Coverage `json:"coverage"`
	Verdicts []brief         `json:"verdicts"`
	Warnings []string        `json:"warnings,omitempty"`
}

func (s *server) answerVerdicts(ctx context.Context, in verdictsArguments) (*answer, error) {
	limit, err := orDefault("limit", in.Limit, 20, 100)
	if err != nil {
		return nil, err
	}
	request := "/api/v1/verdicts"
	if in.Job != "" {
		request += "?job=" + url.QueryEscape(in.Job)
	}
	var all publish.VerdictsAnswer
	if err := s.read(ctx, request, &all); err != nil {
		return nil, err
	}
	if in.Which != "all" {
		all.Verdicts = slices.DeleteFunc(all.Verdicts, func(v incident.Incident) bool { return v.Open != (in.Which != "closed") })
	}
	kept := keepFirst(briefsOf(all.Verdicts), limit)
	content := verdictsAnswer{all.State, all.At, all.Coverage, kept, all.Warnings}
	return &answer{content, Summary, map[string]int{"verdicts": len(all.Verdicts)}}, nil
}

type verdictArguments struct {
	ID     string `json:"id" jsonschema:"identifier of the verdict, from the tools job or verdicts"`
	Detail string `json:"detail,omitempty" jsonschema:"summary (the default), evidence or full"`
}

// verdictSummary is the answer of the tool verdict at the level summary.
type verdictSummary struct {
	brief
	Symptom     fabric.Symptom     `json:"symptom"`
	Causes      []string           `json:"causes"`
	CauseText   string             `json:"cause_summary,omitempty"`
	Action      string             `json:"recommended_action"`
	Jobs        []string           `json:"jobs"`
	BlastRadius fabric.BlastRadius `json:"blast_radius"`
	Equivalent  []fabric.Element   `json:"equivalent"`
}

// verdictEvidence is the answer of the tool verdict at the level evidence.
type verdictEvidence struct {
	verdictSummary
	Tier        int                  `json:"tier,omitempty"`
	Plane       string               `json:"plane,omitempty"`
	Class       string               `json:"class,omitempty"`
	Prefix      string               `json:"prefix,omitempty"`
	Evidence    fabric.EvidenceCount `json:"evidence"`
	Attribution *fabric.Attribution  `json:"attribution,omitempty"`
	WouldSplit  []fabric.Measurement `json:"would_split,omitempty"`
	Failovers   []fabric.Failover    `json:"failovers,omitempty"`
	Runbook     string               `json:"runbook,omitempty"`
}

// verdictFull is the answer of the tool verdict at the level full: the analyzer's own answer, and what the flows measured when it
// opened or was narrowed last.
type verdictFull struct {
	Verdict      json.RawMessage   `json:"verdict"`
	Observations []json.RawMessage `json:"observations"`
	// Problem says why there are no observations.
	Problem string `json:"observations_problem,omitempty"`
}

// maxObservations is more than fit in an answer.
const maxObservations = 2000

func (s *server) answerVerdict(ctx context.Context, in verdictArguments) (*answer, error) {
	request, err := pathOf("/api/v1/verdicts/", "id", in.ID)
	if err != nil {
		return nil, err
	}
	raw, err := s.fetch(ctx, request)
	if err != nil {
		return nil, err
	}
	var v incident.Incident
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, err
	}
	summary := verdictSummary{brief: briefOf(&v), Symptom: v.Symptom, Causes: v.Causes, Action: v.Action, Jobs: v.Jobs,
		BlastRadius: v.BlastRadius, Equivalent: v.Equivalent}
	if v.Attribution != nil {
		summary.CauseText = v.Attribution.Summary
	}
	switch in.Detail {
	case "", Summary:
		return &answer{summary, Summary, nil}, nil
	case Evidence:
		content := verdictEvidence{summary, v.Tier, v.Plane, v.Class, v.Prefix, v.Evidence, v.Attribution, v.WouldSplit, v.Failovers, v.Runbook}
		return &answer{content, Evidence, nil}, nil
	case Full:
		full := verdictFull{Verdict: raw, Observations: []json.RawMessage{}}
		lines, err := s.fetch(ctx, request+"/observations")
		if err != nil {
			full.Problem = err.Error()
		}
		total := 0
		for line := range bytes.Lines(lines) {
			if total++; total <= maxObservations {
				full.Observations = append(full.Observations, line)
			}
		}
		return &answer{full, Full, map[string]int{"observations": total}}, nil
	}
	return nil, errNoLevel
}
