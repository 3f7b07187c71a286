package report

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/schedule"
)

var update = flag.Bool("update", false, "rewrite the expected output")

func loadGraph(t *testing.T) *fabric.Graph {
	t.Helper()
	topology, found := fabric.LoadTopology("../../../deploy/lab/demo.yaml")
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(topology)
}

func TestGolden(t *testing.T) {
	g := loadGraph(t)
	for name, c := range map[string]struct {
		explain string
		all     bool
		options Options
		change  func(*schedule.Options)
	}{
		"summary.txt": {options: Options{Edges: true, Links: true}},
		"constrained.txt": {change: func(o *schedule.Options) {
			o.Absent, o.Classes, o.Budget, o.MinPeers = map[string]bool{"h2": true}, []string{"bulk", "control"}, 500, 7
		}},
		"edge.txt":           {explain: "h1/eth1>h4/eth1#0"},
		"edge-same-leaf.txt": {explain: "h1/eth1>h2/eth1", change: func(o *schedule.Options) { o.FanOut = [3]int{3, 3, 3} }},
		"link.txt":           {explain: "spine1:dn1--leaf1:up1"},
		"direction.txt":      {explain: "leaf1:dn1->h1/eth1", all: true},
		"summary.json":       {change: func(o *schedule.Options) { o.MinFlows = 2 }},
		"edge.json":          {explain: "h1/eth1>h4/eth1#0"},
		"direction.json":     {explain: "leaf1:up1->spine1:dn1", all: true, change: func(o *schedule.Options) { o.MinFlows = 2 }},
	} {
		o := schedule.DefaultOptions()
		if c.change != nil {
			c.change(&o)
		}
		s, err := schedule.Make(g, o)
		if err != nil {
			t.Fatal(err)
		}
		r := New(g, s, s.ExpectedFlows(g), c.options)
		value, got := any(r), r.Text()
		if c.explain != "" {
			if value, got, err = Explain(g, s, c.explain, c.all); err != nil {
				t.Fatal(err)
			}
		}
		if strings.HasSuffix(name, ".json") {
			var b strings.Builder
			if err := plainjson.NewEncoder(&b).Encode(value); err != nil {
				t.Fatal(err)
			}
			got = b.String()
		}
		golden := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestExplainRefuses(t *testing.T) {
	g := loadGraph(t)
	o := schedule.DefaultOptions()
	o.Absent = map[string]bool{"h1": true}
	s, err := schedule.Make(g, o)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"h99/eth1>h1/eth1":      `no NIC "h99/eth1"`,
		"h2/eth1>h2/eth1":       "not in the schedule: h2/eth1 probes h3/eth1, ",
		"h1/eth1>h2/eth1":       "h1/eth1 probes no NIC",
		"leaf1:up1--spine2:dn1": "no link leaf1:up1--spine2:dn1",
		"leaf1:up1->spine2:dn1": "no link leaf1:up1",
		"leaf1":                 "want SRC>DST#N",
		"leaf1->":               "",
	} {
		if _, _, err := Explain(g, s, name, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
