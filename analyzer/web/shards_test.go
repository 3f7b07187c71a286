package web

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// otherShards returns two shards, one with a suspect whose name has an underscore.
func otherShards() []evidence.Shard {
	return []evidence.Shard{{Name: "b", State: fabric.Suspect, Coverage: 0.98, Verdicts: []evidence.ShardVerdict{{Element: fabric.Element{ID: "b_spine3", Kind: "switch"}, Scenario: "hard_failure", Severity: "critical", Plane: "b"}}},
		{Name: "c+d", State: fabric.Innocent, Coverage: 1, Verdicts: []evidence.ShardVerdict{}}}
}

// TestShardsOnThePage checks that the answer names its part of the fabric, and is no better than the others are.
func TestShardsOnThePage(t *testing.T) {
	g := loadDemo(t)
	for name, c := range map[string]struct {
		shard    *snapshot.Shard
		head     string
		says     []string
		state    fabric.State
		rows     int
		suspects bool
	}{
		"the whole":             {nil, "The network is innocent", nil, fabric.Innocent, 0, false},
		"another has a suspect": {&snapshot.Shard{Own: "a", Known: true, Others: otherShards()}, "Shard a: the network is innocent; another shard is suspect", []string{"shard b: suspect, switch b_spine3 (hard failure, critical)"}, fabric.Suspect, 2, false},
		"the others are well":   {&snapshot.Shard{Own: "a", Known: true, Others: otherShards()[1:]}, "Shard a: the network is innocent", nil, fabric.Innocent, 1, false},
		"others lack evidence":  {&snapshot.Shard{Own: "a", Known: true, Others: []evidence.Shard{{Name: "b", State: fabric.InsufficientEvidence}}}, "Shard a: the network is innocent; others are not known to be", []string{"shard b: insufficient evidence"}, fabric.InsufficientEvidence, 1, false},
		"others are unknown":    {&snapshot.Shard{Own: "a"}, "Shard a: the network is innocent; others are not known to be", []string{"the other shards are unknown"}, fabric.InsufficientEvidence, 0, false},
		"a part has no owner":   {&snapshot.Shard{Own: "p1", Known: true, Others: otherShards()[1:], Unowned: []string{"a/p3"}, Shared: []string{"a/core"}}, "Shard p1: the network is innocent; others are not known to be", []string{"no analyzer is responsible for a/p3", "analyzers of several shards are responsible for a/core"}, fabric.InsufficientEvidence, 1, false},
		"it has a suspect":      {&snapshot.Shard{Own: "a", Known: true, Others: otherShards()}, "Shard a: suspect: leaf1:up1--spine1:dn1", []string{"shard b: suspect"}, fabric.Suspect, 2, true},
	} {
		s := healthy(g)
		if c.suspects {
			_, s = demoFault(t)
		}
		s.Shard = c.shard
		h := handler(g, s)
		text, all := page(t, h, "/")
		if got := headline(t, all); !strings.HasPrefix(got, c.head) {
			t.Errorf("%s: %q, want %q", name, got, c.head)
		}
		contains(t, text, c.says...)
		rows := 0
		for _, e := range all {
			if e.attr["data-shard"] != "" {
				rows++
			}
		}
		if rows != c.rows {
			t.Errorf("%s: %d shards are listed, want %d", name, rows, c.rows)
		}
		if got := s.JoinedState(); got != c.state {
			t.Errorf("%s: the whole fabric is %s, want %s", name, got, c.state)
		}
	}
}

// TestLookAtShards takes a picture of the page of a shard, if somebody wants to look at it.
func TestLookAtShards(t *testing.T) {
	if os.Getenv("GRAYLINK_SCREENSHOTS") == "" {
		return
	}
	g := loadDemo(t)
	s := healthy(g)
	s.Shard = &snapshot.Shard{Own: "a", Known: true, Others: otherShards()}
	shoot(t, handler(g, s), "shards", "/", false)
}

// TestPageOfAPodsShard checks that links of other pods, of which a shard publishes nothing, are drawn as links without evidence.
func TestPageOfAPodsShard(t *testing.T) {
	g := worldtest.NewPods(t, 3, 1)
	part, err := fabric.NewPart(g, []string{"p1"}, true)
	if err != nil {
		t.Fatal(err)
	}
	s := healthy(g)
	own := len(s.Links)
	s.Links = slices.DeleteFunc(s.Links, func(l snapshot.LinkView) bool { return !part.OwnsDirection(fabric.Direction{From: l.From, To: l.To}) })
	if own = own - len(s.Links); len(s.Links) == 0 || own == 0 {
		t.Fatalf("%d links of others, %d own ones", own, len(s.Links))
	}
	s.Shard = snapshot.NewShard("p1/core", part, &[]evidence.Shard{{Name: "p2", State: fabric.Innocent, Parts: []string{"a/p2"}}})
	text, all := page(t, handler(g, s), "/")
	if got := headline(t, all); !strings.HasPrefix(got, "Shard p1/core: the network is innocent; others are not known to be") {
		t.Error(got)
	}
	contains(t, text, "no analyzer is responsible for a/p3", "p3s1")
}
