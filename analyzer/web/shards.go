package web

import (
	"strings"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// shardRow is another part of the fabric, as its analyzers publish it.
type shardRow struct{ Shard, State, Coverage, Verdicts string }

// maxShardVerdicts bounds the verdicts of another part that are named.
const maxShardVerdicts = 8

func shardRows(s *snapshot.Snapshot) (rows []shardRow) {
	if s.Shard == nil {
		return nil
	}
	for i := range s.Shard.Others {
		x := &s.Shard.Others[i]
		rows = append(rows, shardRow{x.Name, strings.ReplaceAll(string(x.State), "_", " "), formatPercent(x.Coverage), shardVerdicts(x)})
	}
	return rows
}

// shardVerdicts returns the verdicts of another part in words, or absent.
func shardVerdicts(x *evidence.Shard) string {
	var out []string
	for _, v := range x.Verdicts[:min(len(x.Verdicts), maxShardVerdicts)] {
		out = append(out, strings.ReplaceAll(string(v.Kind), "_", " ")+" "+v.ID+" ("+strings.ReplaceAll(string(v.Scenario), "_", " ")+", "+v.Severity+")")
	}
	if more := len(x.Verdicts) - len(out); more > 0 {
		out = append(out, "and "+formatCount(more)+" more")
	}
	if len(out) == 0 {
		return absent
	}
	return strings.Join(out, "; ")
}

// addShards makes a banner about one part of the fabric one that names the part, and is no better than the others are.
func (b *banner) addShards(s *snapshot.Snapshot) {
	if s.Shard == nil {
		return
	}
	b.Head = "Shard " + s.Shard.Own + ": " + strings.ToLower(b.Head[:1]) + b.Head[1:]
	if !s.Shard.Known {
		b.More = append(b.More, "the other shards are unknown")
	}
	for _, part := range s.Shard.Unowned {
		b.More = append(b.More, "no analyzer is responsible for "+part)
	}
	for _, part := range s.Shard.Shared {
		b.More = append(b.More, "analyzers of several shards are responsible for "+part)
	}
	for i := range s.Shard.Others {
		if x := &s.Shard.Others[i]; x.State != fabric.Innocent {
			text := "shard " + x.Name + ": " + strings.ReplaceAll(string(x.State), "_", " ")
			if what := shardVerdicts(x); what != absent {
				text += ", " + what
			}
			b.More = append(b.More, text)
		}
	}
	if b.State != "innocent" {
		return
	}
	switch s.JoinedState() {
	case fabric.Suspect:
		b.State, b.Icon, b.Head = "suspect", "!", b.Head+"; another shard is suspect"
	case fabric.InsufficientEvidence:
		b.State, b.Icon, b.Head = "insufficient", "?", b.Head+"; others are not known to be"
	}
}
