package evidence

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/promqltest"

	"github.com/graylink/graylink/internal/fabric"
)

// inPlaneB are series of another plane, whose nodes have an interface in both. All of them are worse than those of
// healthy.
const inPlaneB = `  fabric_probe_sent_total{src="h1/eth2", dst="h2/eth2", flow="0", class="", tier="2", plane="b", direction="forward"} 0+100x30
  fabric_probe_sent_total{src="h1/eth2", dst="h2/eth2", flow="0", class="", tier="2", plane="b", direction="reverse"} 0+1x30
  fabric_probe_acked_total{src="h1/eth2", dst="h2/eth2", flow="0", class="", tier="2", plane="b"} 0+1x30
  graylink_node_stalled_seconds_total{nic="h1/eth2"} 0+1x30
  fabric_nic_unread_packets_total{nic="h1/eth2", reason="socket_full"} 0+9x30
  fabric_nic_forged_packets_total{nic="h1/eth2", from="10.9.9.9"} 0+900x30
  fabric_clock_error_bound_seconds{clock="h1/eth2"} 1x30
`

// TestScopeOfOnePlane: what is read about plane a is the same with and without the series of plane b, in one step and in two.
func TestScopeOfOnePlane(t *testing.T) {
	s := DefaultSettings()
	s.Scope = Scope{Planes: []string{"a"}, Has: func(nic string) bool { return strings.HasSuffix(nic, "/eth1") }}
	alone, both := healthy(), healthy()
	counts := func(nic, plane, moved string) (out string) {
		for condition, values := range map[string]string{"healthy": "9x30", "shifted": moved, "lossy": "0x30", "silent": "0x30", "unjudged": "0x30"} {
			out += fmt.Sprintf("  fabric_nic_flows{nic=%q, plane=%q, condition=%q} %s\n", nic, plane, condition, values)
		}
		return out
	}
	node := "  graylink_node_unhealthy_flows{instance=\"h1\"} 1x30\n"
	alone.more = counts("h1/eth1", "a", "1x30") + node
	both.more = alone.more + inPlaneB + counts("h1/eth2", "b", "7x30")
	type reading struct {
		window   Window
		flows    int
		overview Overview
	}
	read := func(of series) (r reading) {
		db, now := of.load(t), time.Unix(20, 0)
		var err error
		if r.window, err = ReadWindow(t.Context(), db, s, now); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(r.window.Observations, func(a, b *fabric.Observation) int { return strings.Compare(a.Edge, b.Edge) })
		c, err := BeginCycle(t.Context(), db, s, now)
		if err != nil {
			t.Fatal(err)
		}
		if r.flows, err = c.CountFlows(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r.overview, err = c.ReadOverview(t.Context(), &OverviewCache{}); err != nil {
			t.Fatal(err)
		}
		return r
	}
	want, got := read(alone), read(both)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("with plane b: %+v\nwithout: %+v", got, want)
	}
	if len(want.window.Observations) != 2 || want.flows != 2 || !maps.Equal(want.overview.Flows, map[string]int{"h1/eth1": 10}) {
		t.Errorf("plane a: %d observations, %d flows, %v", len(want.window.Observations), want.flows, want.overview.Flows)
	}
	s.Scope = Scope{}
	if all := read(both); all.flows != 4 || all.window.Hosts["h1"] == "" || len(all.window.Floods) != 1 {
		t.Errorf("without a scope: %d flows, hosts %v, floods %v", all.flows, all.window.Hosts, all.window.Floods)
	}
}

// TestReadShards: what two analyzers of a part publish is one state and one list of verdicts, and the own part is left out.
func TestReadShards(t *testing.T) {
	var series strings.Builder
	series.WriteString("load 1s\n")
	publish := func(instance, shard string, state fabric.State, covered float64, verdicts ...string) {
		labels := fmt.Sprintf("job=\"graylink-analyzer\", instance=%q", instance)
		if shard != "" {
			labels += fmt.Sprintf(", shard=%q", shard)
		}
		for _, s := range []fabric.State{fabric.Innocent, fabric.Suspect, fabric.InsufficientEvidence} {
			v := 0
			if s == state {
				v = 1
			}
			fmt.Fprintf(&series, "  fabric_verdict_state{%s, scope=\"fabric\", state=%q} %dx10\n", labels, s, v)
			fmt.Fprintf(&series, "  fabric_verdict_state{%s, scope=\"pod:p1\", state=%q} 1x10\n", labels, s)
		}
		fmt.Fprintf(&series, "  fabric_evidence_coverage_ratio{%s, scope=\"fabric\"} %gx10\n", labels, covered)
		for _, v := range verdicts {
			fmt.Fprintf(&series, "  fabric_suspect_info{%s, %s} 1x10\n", labels, v)
		}
	}
	const spine, cleared = `element="bspine1", kind="switch", scenario="corridor", severity="critical", plane="b"`, `element="bspine2", kind="switch", scenario="corridor", severity="critical", plane="b"`
	publish("a1", "a", fabric.Suspect, 1, `element="spine9", kind="switch", scenario="corridor", severity="warning", plane="a"`)
	publish("b1", "b", fabric.Innocent, 0.9)
	publish("b2", "b", fabric.Suspect, 0.8, spine)
	for _, of := range []string{`instance="b1", shard="b", part="a/p2"`, `instance="b2", shard="b", part="a/p2"`, `instance="b2", shard="b", part="a/core"`, `instance="a1", shard="a", part="a/p1"`} {
		fmt.Fprintf(&series, "  graylink_analyzer_part_info{%s} 1x10\n", of)
	}
	publish("c1", "c+d", fabric.InsufficientEvidence, 0.5)
	publish("old", "", fabric.Suspect, 1, `element="spine7", kind="switch", scenario="corridor", severity="warning", plane="a"`)
	fmt.Fprintf(&series, "  fabric_suspect_info{instance=\"b1\", shard=\"b\", %s} 0x10\n", cleared)
	storage := promqltest.LoadedStorage(t, series.String())
	t.Cleanup(func() { storage.Close() })
	db := loaded{promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery), storage}
	got, err := ReadShards(t.Context(), db, DefaultSettings(), "a", time.Unix(5, 0))
	if err != nil {
		t.Fatal(err)
	}
	want := []Shard{{Name: "b", State: fabric.Suspect, Parts: []string{"a/core", "a/p2"}, Coverage: 0.9, Verdicts: []ShardVerdict{{Element: fabric.Element{ID: "bspine1", Kind: "switch"}, Scenario: "corridor", Severity: "critical", Plane: "b"}}},
		{Name: "c+d", State: fabric.InsufficientEvidence, Coverage: 0.5, Verdicts: []ShardVerdict{}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
