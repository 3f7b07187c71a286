package otelname

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/otlptranslator"
)

// back translates a name as receivers that feed Prometheus do.
func back(t *testing.T, name, unit string, kind dto.MetricType) string {
	t.Helper()
	types := map[dto.MetricType]otlptranslator.MetricType{dto.MetricType_COUNTER: otlptranslator.MetricTypeMonotonicCounter,
		dto.MetricType_GAUGE: otlptranslator.MetricTypeGauge, dto.MetricType_HISTOGRAM: otlptranslator.MetricTypeExponentialHistogram, dto.MetricType_SUMMARY: otlptranslator.MetricTypeSummary}
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	out, err := namer.Build(otlptranslator.Metric{Name: name, Unit: unit, Type: types[kind]})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestNames(t *testing.T) {
	const c, g, h = dto.MetricType_COUNTER, dto.MetricType_GAUGE, dto.MetricType_HISTOGRAM
	for _, tc := range []struct {
		family     string
		kind       dto.MetricType
		name, unit string
	}{
		{"fabric_probe_owd_seconds", h, "fabric.probe.owd", "s"},
		{"fabric_probe_sent_total", c, "fabric.probe.sent", "{probe}"},
		{"fabric_probe_ecn_marked_total", c, "fabric.probe.ecn_marked", "{probe}"},
		{"fabric_nic_probe_lost_total", c, "fabric.nic.probe.lost", "{probe}"},
		{"fabric_nic_kernel_delay_seconds", h, "fabric.nic.kernel_delay", "s"},
		{"fabric_nic_nic_delay_seconds", h, "fabric.nic.nic_delay", "s"},
		{"fabric_nic_info", g, "fabric.nic.info", ""},
		{"fabric_nic_timestamp_info", g, "fabric.nic.timestamp_info", ""},
		{"fabric_nic_port_rate_bytes_per_second", g, "fabric.nic.port.rate", "By/s"},
		{"fabric_clock_error_bound_seconds", g, "fabric.clock.error_bound", "s"},
		{"fabric_clock_drift_ratio", g, "fabric.clock.drift", "1"},
		{"fabric_suspect_loss_ratio", g, "fabric.suspect.loss", "1"},
		{"fabric_suspect_affected_jobs", g, "fabric.suspect.affected_jobs", "{job}"},
		{"fabric_link_probe_edges", g, "fabric.link.probe_edges", "{edge}"},
		{"fabric_path_map_version", g, "fabric.path.map_version", ""},
		{"graylink_node_stalled_seconds_total", c, "graylink.node.stalled", "s"},
		{"graylink_node_probe_unresolved", g, "graylink.node.probe.unresolved", "{probe}"},
		{"graylink_config_last_reload_success_timestamp_seconds", g, "graylink.config.last_reload_success_timestamp", "s"},
		{"process_cpu_seconds_total", c, "process.cpu", "s"},
		{"something_else_total", c, "something_else", "1"},
		{"something_else", g, "something_else", ""},
	} {
		name, unit := Metric(tc.family, tc.kind)
		if name != tc.name || unit != tc.unit {
			t.Errorf("%s: %s in %q, want %s in %q", tc.family, name, unit, tc.name, tc.unit)
		}
		if got := back(t, name, unit, tc.kind); got != tc.family {
			t.Errorf("%s comes back as %s", tc.family, got)
		}
	}
}

// TestProcessNames: what the client library says about the process comes back,
// and no two families become one metric.
func TestProcessNames(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]string{}
	for _, f := range families {
		name, unit := Metric(f.GetName(), f.GetType())
		if got := back(t, name, unit, f.GetType()); got != f.GetName() {
			t.Errorf("%s is %s in %q and comes back as %s", f.GetName(), name, unit, got)
		}
		if other, taken := of[name]; taken {
			t.Errorf("%s and %s are both %s", other, f.GetName(), name)
		}
		of[name] = f.GetName()
	}
}

func TestNoPrefixIsListedTwice(t *testing.T) {
	for _, list := range [][]string{namespaces, func() (s []string) {
		for _, t := range countedItems {
			s = append(s, t.prefix)
		}
		return s
	}()} {
		sorted := slices.Sorted(slices.Values(list))
		if c := slices.Compact(slices.Clone(sorted)); len(c) != len(sorted) {
			t.Errorf("twice in %v", sorted)
		}
	}
	for _, n := range namespaces {
		if !strings.HasSuffix(n, "_") {
			t.Errorf("namespace %q does not end a word", n)
		}
	}
}
