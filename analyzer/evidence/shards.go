package evidence

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Shard is what the analyzer of another part of the fabric publishes of it.
type Shard struct {
	Name  string       `json:"shard"`
	State fabric.State `json:"state"`
	// Parts are the pods that it is responsible for, as fabric.Part names them, or none if it has whole planes.
	Parts []string `json:"parts,omitempty"`
	// Coverage is the share of its link directions with evidence.
	Coverage float64 `json:"coverage"`
	// Verdicts are its open ones, by element.
	Verdicts []ShardVerdict `json:"verdicts"`
}

// ShardVerdict is an open verdict of another part of the fabric.
type ShardVerdict struct {
	fabric.Element
	Scenario fabric.Scenario `json:"scenario"`
	Severity string          `json:"severity"`
	Plane    string          `json:"plane,omitempty"`
}

// ShardQueries returns the queries about other parts of the fabric by name, as WindowQueries does.
func (s Settings) ShardQueries() map[string]string {
	return s.expandQueries(defaultShardQueries(), "")
}

func defaultShardQueries() map[string]string {
	return map[string]string{
		"shardStates":   `max by (shard, state) (fabric_verdict_state{scope="fabric", shard!=""}) == 1`,
		"shardCoverage": `max by (shard) (fabric_evidence_coverage_ratio{scope="fabric", shard!=""})`,
		"shardParts":    `max by (shard, part) (graylink_analyzer_part_info{shard!=""}) == 1`,
		"shardVerdicts": `max by (shard, element, kind, scenario, severity, plane) (fabric_suspect_info{shard!=""}) == 1`,
	}
}

// ReadShards returns the other parts of the fabric that the server has analyzers of at a moment, by name. Two analyzers of one
// part are one: it is suspect if one of them has a suspect, and innocent if both say so. It fails if a query fails.
func ReadShards(ctx context.Context, db Querier, s Settings, own string, now time.Time) ([]Shard, error) {
	ctx, cancel := s.WithPatience(ctx)
	defer cancel()
	s.Scope, s.Arrival = Scope{}, nil // the answers are about others, and are no window
	c, err := BeginCycle(ctx, db, s, now)
	if err != nil {
		return nil, err
	}
	var queries []timedQuery
	for name, query := range s.ShardQueries() {
		queries = append(queries, timedQuery{name, query, now.Add(c.offset)})
	}
	answers, _, err := s.runQueries(ctx, db, queries)
	if err != nil {
		return nil, fmt.Errorf("cannot read the other parts of the fabric: %w", err)
	}
	return shardsOf(eachNumber(answers), own), nil
}

// shardsOf returns the shards that answers are about, without the own one.
func shardsOf(each func(string, func(Sample)), own string) []Shard {
	found := map[string]*Shard{}
	each("shardStates", func(v Sample) {
		name, state := v.Labels["shard"], fabric.State(v.Labels["state"])
		if name == own {
			return
		}
		if found[name] == nil {
			found[name] = &Shard{Name: name, State: state, Verdicts: []ShardVerdict{}}
		}
		worse := []fabric.State{fabric.Innocent, fabric.InsufficientEvidence, fabric.Suspect}
		if slices.Index(worse, state) > slices.Index(worse, found[name].State) {
			found[name].State = state
		}
	})
	each("shardCoverage", func(v Sample) {
		if x := found[v.Labels["shard"]]; x != nil {
			x.Coverage = v.Value
		}
	})
	each("shardParts", func(v Sample) {
		if x := found[v.Labels["shard"]]; x != nil {
			x.Parts = append(x.Parts, v.Labels["part"])
		}
	})
	each("shardVerdicts", func(v Sample) {
		l := v.Labels
		if x := found[l["shard"]]; x != nil {
			x.Verdicts = append(x.Verdicts, ShardVerdict{Element: fabric.Element{Kind: fabric.Kind(l["kind"]), ID: l["element"]}, Scenario: fabric.Scenario(l["scenario"]), Severity: l["severity"], Plane: l["plane"]})
		}
	})
	out := []Shard{}
	for _, x := range found {
		slices.SortFunc(x.Verdicts, func(a, b ShardVerdict) int {
			return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Scenario, b.Scenario), cmp.Compare(a.Severity, b.Severity))
		})
		x.Verdicts = slices.CompactFunc(x.Verdicts, func(a, b ShardVerdict) bool { return a.Element == b.Element })
		slices.Sort(x.Parts)
		out = append(out, *x)
	}
	slices.SortFunc(out, func(a, b Shard) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
