package node

import (
	"maps"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/nodeagent"
)

// gatherValues returns the values of the families of in-band signals by name and labels.
func gatherValues(t *testing.T, g interface {
	Gather() ([]*dto.MetricFamily, error)
}) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if !strings.Contains(f.GetName(), "_csig_") {
			continue
		}
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetName() + "=" + l.GetValue()
			}
			out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

// TestSeriesOfSignals checks that what in-band signals say of flows is published under /metrics/edges, by nodes with a profile, and nowhere
// else.
func TestSeriesOfSignals(t *testing.T) {
	p, err := csig.ParseProfile("csig.yml", []byte("ethertypes: {compact: 0x88b5}\ninterval: 1ms\n"+
		"locators:\n  compact: {\"leaf1:up1\": 1, \"spine1:dn1\": 1}\ncompact:\n  2: {edges: [0, 1us, 2us]}\nfastest_gbps: 100\n"))
	if err != nil {
		t.Fatal(err)
	}
	o := observe.New(p, observe.Options{})
	f := o.NewFlow()
	tag := csig.Tag{Format: csig.Compact, Signal: csig.Delay, Code: 1, Locator: 1}
	for range 3 {
		if why := f.Add(&tag, 1e9); why != observe.Used {
			t.Fatal(why)
		}
	}
	stats := &observe.Stats{ProfileHash: p.Hash(), NICs: []observe.NICStats{{NIC: "h1/eth1", Dropped: observe.DropCounts{observe.Stranger: 4},
		Capture: &observe.CaptureCounts{Packets: 9, Drops: 2}}},
		Flows: []observe.FlowStats{{Src: "h1/eth1", Dst: "h2/eth1", Number: 3, Supported: observe.Supported}}}
	stats.Flows[0].Directions[1].Fill(f, 2e9)
	m := smallNode()
	from := m.sources()
	from.signalProfile = p
	from.readState = func(f func(nodeagent.State)) {
		s := m.state()
		s.Signals = func() *observe.Stats { return stats }
		f(s)
	}
	want := map[string]float64{
		"fabric_csig_packets_total direction=reverse dst=h2/eth1 flow=3 format=compact locator=1 signal=delay src=h1/eth1": 3,
		"fabric_csig_hop_delay_seconds bound=lower direction=reverse dst=h2/eth1 flow=3 src=h1/eth1":                       1e-6,
		"fabric_csig_hop_delay_seconds bound=upper direction=reverse dst=h2/eth1 flow=3 src=h1/eth1":                       2e-6,
		"fabric_csig_locator_info format=compact locator=1 port=up1 switch=leaf1":                                          1,
		"fabric_csig_locator_info format=compact locator=1 port=dn1 switch=spine1":                                         1,
		"fabric_csig_path_supported dst=h2/eth1 flow=3 src=h1/eth1":                                                        1,
		"graylink_csig_captured_packets_total nic=h1/eth1":                                                                 9,
		"graylink_csig_capture_drops_total nic=h1/eth1":                                                                    2,
		"graylink_csig_profile_info hash=" + p.Hash():                                                                      1,
	}
	for _, why := range observe.Reasons() {
		want["fabric_csig_dropped_total nic=h1/eth1 reason="+why.String()] = 0
	}
	want["fabric_csig_dropped_total nic=h1/eth1 reason=stranger"] = 4
	got := gatherValues(t, newGatherer(from, edgesConstructors(), newRuns(), false))
	if !maps.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	for _, constructors := range [][]constructor{metricsConstructors(), nicsConstructors()} {
		if got := gatherValues(t, newGatherer(from, constructors, newRuns(), false)); len(got) != 0 {
			t.Errorf("%v is published beside /metrics/edges", got)
		}
	}
	without := newGatherer(m.sources(), edgesConstructors(), newRuns(), false)
	if got := gatherValues(t, without); len(got) != 0 {
		t.Errorf("%v of a node without a profile", got)
	}
	if slices.ContainsFunc(without.collectors, func(c namedCollector) bool { return c.name == "csig" }) {
		t.Error("a node without a profile has the collector")
	}
}
