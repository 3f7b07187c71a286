package node

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/nodeagent"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/nodeagent/health/healthtest"
	"github.com/graylink/graylink/internal/nvsentinel"
)

// seriesOf returns the lines of a gatherer's series that begin with a prefix.
func seriesOf(t *testing.T, g prometheus.Gatherer, prefix string) (out []string) {
	t.Helper()
	for line := range strings.Lines(string(encode(t, g, expfmt.NewFormat(expfmt.TypeTextPlain)))) {
		if strings.HasPrefix(line, prefix) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// TestRunsOfCollectors checks that each run has its own duration, that a collector without data fails alone, and that
// /metrics has the runs of /metrics/edges.
func TestRunsOfCollectors(t *testing.T) {
	m := smallNode()
	now := time.Unix(1700000000, 0)
	p := newPatient(t, "h100", nil)
	from := &sources{readState: m.read, health: p.Snapshot, now: func() time.Time { now = now.Add(250 * time.Millisecond); return now },
		uptime: func() time.Duration { return time.Hour }}
	r := newRuns()
	of := []constructor{{"paths", newPathCollector}, {"nic_ports", newPortCollector}, {"nic_findings", newFindingCollector}}
	metrics, edges := newGatherer(from, of, r, true), newGatherer(from, []constructor{{"host_losses", newHostLossCollector}}, r, false)
	if got := seriesOf(t, edges, "graylink_node_collector"); len(got) != 0 {
		t.Errorf("/metrics/edges has %q", got)
	}
	want := []string{
		`graylink_node_collector_duration_seconds{collector="host_losses"} 0.25`, `graylink_node_collector_duration_seconds{collector="nic_findings"} 0.25`,
		`graylink_node_collector_duration_seconds{collector="nic_ports"} 0.25`, `graylink_node_collector_duration_seconds{collector="paths"} 0.25`,
		`graylink_node_collector_success{collector="host_losses"} 1`, `graylink_node_collector_success{collector="nic_findings"} 0`,
		`graylink_node_collector_success{collector="nic_ports"} 0`, `graylink_node_collector_success{collector="paths"} 1`,
	}
	if got := seriesOf(t, metrics, "graylink_node_collector"); !slices.Equal(got, want) {
		t.Errorf("before the first poll:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	p.PollFor(time.Second)
	for _, line := range seriesOf(t, metrics, "graylink_node_collector_success") {
		if !strings.HasSuffix(line, " 1") {
			t.Errorf("after the first poll: %s", line)
		}
	}
	if got := seriesOf(t, metrics, "fabric_nic_port_state"); len(got) == 0 {
		t.Error("no states of ports")
	}
}

// TestCollectorsNeedSources checks that a collector exists only if its source does.
func TestCollectorsNeedSources(t *testing.T) {
	names := func(from *sources) (out []string) {
		for _, c := range newGatherer(from, metricsConstructors(), newRuns(), true).collectors {
			out = append(out, c.name)
		}
		return out
	}
	from := smallNode().sources()
	bare := []string{"nics", "leaves", "rdma", "clocks", "paths", "config"}
	if got := names(from); !slices.Equal(got, bare) {
		t.Errorf("without other sources: %q, want %q", got, bare)
	}
	from.health = healthtest.NewPatient(t, "h100", func(o *health.Options) { o.Log, o.Ethtool.Mode = health.LogKmsg, health.EthtoolOn }).Snapshot
	from.files = map[string]func() (done, failed uint64){fileNICs: func() (uint64, uint64) { return 5, 1 }}
	from.chrony = func() map[string]uint64 { return map[string]uint64{"sent": 3, "failed": 0} }
	from.nvsentinel = func() nvsentinel.Stats { return nvsentinel.Stats{Sent: 7, Failures: 2} }
	from.collectives = newFollower(t, 1).CollectPoints
	all := append(bare, "nic_polls", "nic_ports", "nic_counters", "nic_pci", "nic_findings", "nic_log", "ethtool_polls", "ethtool_links", "ethtool_modules", "state_files", "chrony", "nvsentinel", "collectives")
	if got := names(from); !slices.Equal(got, all) {
		t.Errorf("with them: %q, want %q", got, all)
	}
	g := newGatherer(from, metricsConstructors(), newRuns(), true)
	for _, want := range []string{
		`graylink_node_state_writes_total{file="nics",result="done"} 5`, `graylink_node_state_writes_total{file="nics",result="failed"} 1`,
		`graylink_node_chrony_samples_total{result="sent"} 3`, `graylink_node_nvsentinel_events_total{result="sent"} 7`, `graylink_node_nvsentinel_failures_total 2`,
	} {
		if got := seriesOf(t, g, want); len(got) != 1 {
			t.Errorf("%q, want %s", got, want)
		}
	}
}

// fixedClocks knows the clock of one NIC.
type fixedClocks map[string]nodeagent.ClockView

func (c fixedClocks) ViewOf(nic string) (nodeagent.ClockView, bool) {
	v, ok := c[nic]
	return v, ok
}

func TestClockSeries(t *testing.T) {
	m := smallNode()
	known := nodeagent.ClockView{Status: clocksync.Status{State: clocksync.Locked, Known: true, Counted: true, Offset: -4_250_000_000, Drift: 1e-6, Bound: 200, Allowance: 50, Steps: 2, Drifts: 1}, WholeSeconds: -4}
	clocks := fixedClocks{"h1/eth1": known}
	from := m.sources()
	from.readState = func(f func(nodeagent.State)) {
		st := m.state()
		st.Clocks = clocks
		f(st)
	}
	g := newGatherer(from, []constructor{{"clocks", newClockCollector}}, newRuns(), true)
	for _, want := range []string{
		`fabric_clock_error_bound_seconds{clock="h1/eth1"} 2e-07`, `fabric_clock_offset_seconds{clock="h1/eth1"} -0.25`, `graylink_node_clock_whole_seconds{clock="h1/eth1"} -4`,
		`fabric_clock_drift_ratio{clock="h1/eth1"} 1e-06`, `fabric_clock_asymmetry_allowance_seconds{clock="h1/eth1"} 5e-08`, `fabric_clock_state{clock="h1/eth1",state="locked"} 1`,
		`fabric_clock_state{clock="h1/eth1",state="lost"} 0`, `fabric_clock_steps_total{clock="h1/eth1"} 2`, `fabric_clock_drift_changes_total{clock="h1/eth1"} 1`,
		`graylink_node_collector_success{collector="clocks"} 0`, // nothing is known of h1/eth2
	} {
		if got := seriesOf(t, g, want); len(got) != 1 {
			t.Errorf("%q, want %s", got, want)
		}
	}
	summary := newGatherer(from, []constructor{{"node_summary", newSummaryCollector}}, newRuns(), false)
	for _, want := range []string{"graylink_node_unlocked_clocks 1", "graylink_node_clock_changes_total 3", "graylink_node_clock_error_bound_seconds 2e-07"} {
		if got := seriesOf(t, summary, want); len(got) != 1 {
			t.Errorf("%q, want %s", got, want)
		}
	}
	clocks["h1/eth2"] = nodeagent.ClockView{Status: clocksync.Status{State: clocksync.Converging}}
	for _, want := range []string{`graylink_node_collector_success{collector="clocks"} 1`, `fabric_clock_state{clock="h1/eth2",state="converging"} 1`} {
		if got := seriesOf(t, g, want); len(got) != 1 {
			t.Errorf("%q, want %s", got, want)
		}
	}
	if got := seriesOf(t, g, `fabric_clock_offset_seconds{clock="h1/eth2"}`); len(got) != 0 {
		t.Errorf("%q of a clock that is not known", got)
	}
}

// TestExporterJoinsParts checks that the parts that are added to an Exporter are served with the node's own series.
func TestExporterJoinsParts(t *testing.T) {
	n := startNode(t, writeConfig(t, 1, 2, ""))
	p := newPatient(t, "h100", nil)
	p.PollFor(time.Second)
	e := New(n, slog.New(slog.DiscardHandler))
	e.AddHealth(p.Watcher)
	e.AddNVSentinel(func() nvsentinel.Stats { return nvsentinel.Stats{Queued: 4} })
	e.Registry().MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "graylink_test_part", Help: "A part of the process."}, func() float64 { return 1 }))
	metrics, _, _ := e.Gatherers()
	for _, want := range []string{`graylink_node_edges{nic="h1/eth1"} 1`, `graylink_node_nic_polls_total`, `graylink_node_nvsentinel_queued_events 4`, `graylink_test_part 1`, `graylink_node_build_info{`} {
		if got := seriesOf(t, metrics, want); len(got) != 1 {
			t.Errorf("%q, want %s", got, want)
		}
	}
}

// TestUptime: an agent publishes how long it runs while that matters, with its flows and with its sums.
func TestUptime(t *testing.T) {
	from := smallNode().sources()
	up := 1500 * time.Millisecond
	from.uptime = func() time.Duration { return up }
	for name, c := range map[string][]constructor{"edges": edgesConstructors(), "nics": nicsConstructors()} {
		g := newGatherer(from, c, newRuns(), false)
		up = 1500 * time.Millisecond
		if got := seriesOf(t, g, "graylink_node_uptime_seconds 1.5"); len(got) != 1 {
			t.Errorf("%s: %q, want an uptime of 1.5 s", name, got)
		}
		up = uptimePublished
		if got := seriesOf(t, g, "graylink_node_uptime_seconds"); len(got) != 0 {
			t.Errorf("%s: %q after %s, want none", name, got, up)
		}
	}
}
