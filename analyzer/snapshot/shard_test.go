package snapshot

import (
	"slices"
	"testing"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// TestPartsWithoutOneOwner: pods and the core that no analyzer has, or that several have, are known as soon as the others are.
func TestPartsWithoutOneOwner(t *testing.T) {
	part, err := fabric.NewPart(worldtest.NewPods(t, 3, 1), []string{"p1"}, false)
	if err != nil {
		t.Fatal(err)
	}
	others := func(parts ...[]string) *[]evidence.Shard {
		var out []evidence.Shard
		for _, p := range parts {
			out = append(out, evidence.Shard{State: fabric.Innocent, Parts: p})
		}
		return &out
	}
	for name, c := range map[string]struct {
		others          *[]evidence.Shard
		unowned, shared []string
		state           fabric.State
	}{
		"each has one":      {others([]string{"a/core", "a/p2"}, []string{"a/p3"}), nil, nil, fabric.Innocent},
		"one has none":      {others([]string{"a/core", "a/p2"}), []string{"a/p3"}, nil, fabric.InsufficientEvidence},
		"one has two":       {others([]string{"a/core", "a/p2"}, []string{"a/p2", "a/p3"}), nil, []string{"a/p2"}, fabric.Innocent},
		"no other is there": {others(), []string{"a/core", "a/p2", "a/p3"}, nil, fabric.InsufficientEvidence},
		"it is not read":    {nil, nil, nil, fabric.InsufficientEvidence},
	} {
		s := Snapshot{Report: fabric.Report{State: fabric.Innocent}, Shard: NewShard("p1", part, c.others)}
		if !slices.Equal(s.Shard.Unowned, c.unowned) || !slices.Equal(s.Shard.Shared, c.shared) || !slices.Equal(s.Shard.Parts, []string{"a/p1"}) {
			t.Errorf("%s: %+v", name, s.Shard)
		}
		if got := s.JoinedState(); got != c.state {
			t.Errorf("%s: %s, want %s", name, got, c.state)
		}
	}
	if s := NewShard("a", nil, others()); s.Unowned != nil || s.Parts != nil {
		t.Errorf("an analyzer of whole planes: %+v", s)
	}
}
