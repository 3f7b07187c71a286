package classify

import (
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

const topo = `version: 1
switches: [{name: leaf1, role: leaf, plane: a}, {name: leaf2, role: leaf, plane: a}, {name: spine1, role: spine, plane: a}, {name: core1, role: core, plane: a}]
nodes:
  - {name: a, nics: [{device: e, plane: a}]}
  - {name: b, nics: [{device: e, plane: a}]}
  - {name: c, nics: [{device: e, plane: a}]}
links:
  - {a: "a/e", b: "leaf1:1"}
  - {a: "b/e", b: "leaf1:2"}
  - {a: "c/e", b: "leaf2:1"}
  - {a: "leaf1:u1", b: "spine1:1"}
  - {a: "leaf2:u1", b: "spine1:2"}
  - {a: "spine1:u", b: "core1:1"}
`

func setup(t *testing.T) (*fabric.Graph, []judge.Finding) {
	t.Helper()
	tp, found := fabric.ParseTopology("t.yaml", []byte(topo))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	g := fabric.NewGraph(tp)
	var fs []judge.Finding
	for i, ends := range [][2]string{{"a/e", "c/e"}, {"b/e", "c/e"}, {"a/e", "b/e"}, {"c/e", "a/e"}} {
		e := fabric.Flow{Src: ends[0], Dst: ends[1]}
		f := judge.Finding{Flow: e, Condition: judge.Healthy, Obs: &fabric.Observation{Edge: e.String(), Path: g.ShortestPaths(ends[0], ends[1], 1)[0], PathState: fabric.PathValid}}
		if i < 2 {
			f.Condition = judge.Degraded
		}
		fs = append(fs, f)
	}
	return g, fs
}

func TestRule10WhatLastsIsNamedByItsElement(t *testing.T) {
	g, fs := setup(t)
	up := fabric.Direction{From: "leaf1:u1", To: "spine1:1"}
	in := fabric.Direction{From: "leaf1:1", To: "a/e"}
	tests := []struct {
		name     string
		el       triangulate.Element
		loss     float64
		scenario fabric.Scenario
		severity string
		tier     int
		equal    string
		words    string
	}{
		{"a link", triangulate.Element{Kind: fabric.KindLink, Name: up.LinkID(), Direction: up}, 0, fabric.Corridor, "warning", 2, "leaf1:u1 spine1:1", "from leaf1:u1 to spine1:1"},
		{"a lossy link", triangulate.Element{Kind: fabric.KindLink, Name: up.LinkID()}, 0.1, fabric.Corridor, "warning", 2, "leaf1:u1 spine1:1", "adds 48 µs to the packets that cross it in either direction and loses 10 % of them"},
		{"a dead link", triangulate.Element{Kind: fabric.KindLink, Name: up.LinkID(), Direction: up}, 1, fabric.HardFailure, "critical", 2, "leaf1:u1 spine1:1", "loses all of"},
		{"a NIC", triangulate.Element{Kind: fabric.KindNIC, Name: "a/e", Direction: in}, 0, fabric.BadNIC, "warning", 1, "a/e--leaf1:1", "the packets it receives"},
		{"a NIC, outward", triangulate.Element{Kind: fabric.KindNIC, Name: "a/e", Direction: in.Reverse()}, 0, fabric.BadNIC, "warning", 1, "a/e--leaf1:1", "the packets it sends"},
		{"a spine", triangulate.Element{Kind: fabric.KindSwitch, Name: "spine1"}, 0, fabric.HotSpine, "critical", 2, "", "the packets it forwards"},
		{"a core", triangulate.Element{Kind: fabric.KindSwitch, Name: "core1"}, 0, fabric.HotSpine, "critical", 3, "", "the packets it forwards"},
		{"a leaf, or all its uplinks", triangulate.Element{Kind: fabric.KindSwitch, Name: "leaf1"}, 0, fabric.SlowLeaf, "critical", 1, "leaf1", "No flow stays within the leaf"},
		{"a corridor", triangulate.Element{Kind: fabric.KindCorridor, Name: "leaf1->spine1->leaf2"}, 0, fabric.Corridor, "warning", 2, "", "The path from leaf1 to spine1 to leaf2 adds 48 µs to the packets that take it"},
		{"a pair", triangulate.Element{Kind: fabric.KindPair, Name: "leaf1->leaf2"}, 0.01, fabric.PairOnly, "warning", 2, "", "A fault between leaf leaf1 and leaf leaf2 adds 48 µs to the packets from the first to the second and loses 1 % of them."},
	}
	first := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	for _, tt := range tests {
		s := triangulate.Suspect{Element: tt.el, Confidence: 0.9996, AddedDelayNS: 48000, LossRatio: tt.loss, Explained: []int{0, 1}}
		v := (&Scene{Graph: g, Findings: fs, First: first}).VerdictsFor([]triangulate.Suspect{s})[0]
		var equal []string
		for _, e := range v.Equivalent {
			equal = append(equal, e.ID)
		}
		if v.Scenario != tt.scenario || v.Severity != tt.severity || v.Tier != tt.tier || v.Plane != "a" || strings.Join(equal, " ") != tt.equal {
			t.Errorf("%s: %s %s tier %d plane %q, equivalent %q", tt.name, v.Scenario, v.Severity, v.Tier, v.Plane, equal)
		}
		if !strings.Contains(v.Summary, tt.words) || v.Action == "" {
			t.Errorf("%s: %q lacks %q", tt.name, v.Summary, tt.words)
		}
		if v.Confidence > 0.999 || v.ID == "" || v.BlastRadius.NICs != 3 || v.Evidence.ExplainedEdges != 2 {
			t.Errorf("%s: %+v", tt.name, v)
		}
		if v.Causes == nil || v.Jobs == nil || v.Equivalent == nil {
			t.Errorf("%s: a list is null in JSON", tt.name)
		}
	}
}

func TestIDIsTheSameOnEveryReplica(t *testing.T) {
	at := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	if VerdictID(fabric.KindLink, "x", at) != VerdictID(fabric.KindLink, "x", at.In(time.FixedZone("CET", 3600))) {
		t.Error("the time zone changes the identifier")
	}
	if VerdictID(fabric.KindLink, "x", at) == VerdictID(fabric.KindNIC, "x", at) || VerdictID(fabric.KindLink, "x", at) == VerdictID(fabric.KindLink, "x", at.Add(time.Second)) {
		t.Error("two incidents share an identifier")
	}
}

func TestDelayText(t *testing.T) {
	for ns, want := range map[int64]string{0: "0 ns", 999: "999 ns", 1000: "1 µs", 1200: "1.2 µs", -999: "-999 ns", -1000: "-1 µs", 999_000: "999 µs", 1_000_000: "1 ms", -1_000_000: "-1 ms", 48000: "48 µs", 2_130_000: "2.13 ms", -5000: "-5 µs"} {
		if got := FormatDelay(ns); got != want {
			t.Errorf("%d: %q, want %q", ns, got, want)
		}
	}
}

func TestClockInWords(t *testing.T) {
	g, _ := setup(t)
	off := func(ns int64) *int64 { return &ns }
	rate := func(r float64) *float64 { return &r }
	findings := []judge.Finding{{Flow: fabric.Flow{Src: "h3/eth1", Dst: "h4/eth1"}}, {Flow: fabric.Flow{Src: "h3/eth1", Dst: "h4/eth1", Reply: true}}}
	for _, tc := range []struct {
		s    clocks.Suspect
		want string
	}{
		{clocks.Suspect{Offset: off(997_800), Explained: []int{0, 1}, Peers: 7}, "The clock of h3/eth1 moved ahead by about 1 ms: the delays of 2 flows with 7 nodes changed by opposite amounts forward and reverse, while their round trips stayed the same."},
		{clocks.Suspect{Offset: off(-20_000), Stepped: true, Explained: []int{0, 1}, Peers: 7, Counted: true}, "jumped back by about 20 µs: the delays of 2 flows with 7 nodes changed by opposite amounts forward and reverse, while their round trips stayed the same, and its node recorded the change."},
		{clocks.Suspect{Stepped: true, Counted: true}, "The clock of h3/eth1 jumped: its node recorded the change."},
		{clocks.Suspect{Drifts: true, Rate: rate(50.04e-6), Counted: true}, "runs about 50 ppm faster than before: its node recorded the change."},
		{clocks.Suspect{Drifts: true, Rate: rate(512.3e-6), Counted: true}, "runs about 512 ppm faster"},
		{clocks.Suspect{Drifts: true, Rate: rate(-3e-6), Counted: true}, "runs about 3 ppm slower than before"},
		{clocks.Suspect{Drifts: true, Counted: true}, "runs at another rate than before"},
	} {
		tc.s.NIC, tc.s.Others = "h3/eth1", []string{"h3/eth2"}
		v := ClockVerdict(g, tc.s, findings, time.Unix(1000, 0))
		if !strings.Contains(v.Summary, tc.want) {
			t.Errorf("%q, want %q in it", v.Summary, tc.want)
		}
		if v.Element != (fabric.Element{ID: "h3/eth1", Kind: fabric.KindClock}) || v.Scenario != fabric.ClockTrouble || len(v.Equivalent) != 1 || v.Confidence < 0.9 || v.Symptom != (fabric.Symptom{}) {
			t.Errorf("%+v", v)
		}
		if (v.Severity == fabric.SeverityWarning) != (len(tc.s.Explained) > 0) {
			t.Errorf("%q: severity %s", v.Summary, v.Severity)
		}
		if len(v.Edges) != len(tc.s.Explained) || v.ID == "" || v.Action == "" {
			t.Errorf("%+v", v)
		}
	}
}
