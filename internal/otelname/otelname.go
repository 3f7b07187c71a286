// Package otelname turns the names of Prometheus families into OpenTelemetry's names and units.
//
// A Prometheus name becomes an OTel name and unit by these rules, in this order, and by no others:
//
//  1. A counter loses "_total", because a sum has that information in its type.
//  2. A unit at the end becomes the unit (units).
//  3. A family without a unit that counts things has an annotation as its unit (countedItems). A gauge that counts
//     nothing (a state, an info, a version) has no unit, and any other counter has the unit 1.
//  4. The namespace (namespaces) is written with dots. What follows it stays a name of words with underscores between
//     them.
//
// Label names stay. The tests translate back with otlptranslator's rules.
package otelname

import (
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// units holds the unit suffixes, the longer ones first, with their UCUM notation.
var units = []struct{ suffix, unit string }{
	{"_bytes_per_second", "By/s"},
	{"_seconds", "s"},
	{"_bytes", "By"},
	{"_ratio", "1"},
	{"_celsius", "Cel"},
	{"_watts", "W"},
	{"_volts", "V"},
	{"_amperes", "A"},
	{"_percent", "%"},
}

// namespaces holds the prefixes that are written with dots. The longest one that matches applies.
var namespaces = []string{
	"fabric_probe_", "fabric_nic_", "fabric_nic_probe_", "fabric_nic_port_", "fabric_leaf_pair_", "fabric_leaf_pair_probe_", "fabric_clock_", "fabric_path_", "fabric_edge_",
	"fabric_link_", "fabric_switch_", "fabric_switch_port_", "fabric_element_", "fabric_suspect_", "fabric_verdict_", "fabric_evidence_",
	"fabric_subnet_", "fabric_collective_", "fabric_csig_", "fabric_ufm_", "graylink_csig_", "graylink_ufm_", "graylink_gnmi_", "graylink_ib_", "graylink_node_", "graylink_node_probe_", "graylink_node_trace_", "graylink_node_collectives_", "graylink_config_", "graylink_otlp_", "graylink_otlp_log_",
	"graylink_coordinator_", "graylink_certificate_",
	"go_", "go_memstats_", "go_gc_", "go_sched_", "process_", "process_network_",
}

// countedItems holds the counted things of families without a unit, by prefixes of the names. The longest one that
// matches applies.
var countedItems = []struct{ prefix, thing string }{
	{"fabric_probe_", "probe"},
	{"fabric_nic_probe_", "probe"},
	{"fabric_leaf_pair_probe_", "probe"},
	{"fabric_path_edges", "edge"},
	{"fabric_link_probe_edges", "edge"},
	{"fabric_suspect_edges", "edge"},
	{"fabric_suspect_affected_jobs", "job"},
	{"graylink_node_probe_", "probe"},
	{"fabric_nic_unread_packets", "packet"},
	{"fabric_nic_forged_packets", "packet"},
	{"fabric_nic_refused_packets", "packet"},
	{"graylink_node_socket_drops", "packet"},
	{"graylink_node_send_errors", "packet"},
	{"graylink_node_icmp_errors", "error"},
	{"graylink_node_dropped_packets", "packet"},
	{"graylink_node_host_losses", "packet"},
	{"graylink_node_trace_packets", "packet"},
	{"graylink_node_stamps_", "stamp"},
	{"graylink_node_probes_skipped", "probe"},
	{"graylink_node_exchanges_", "exchange"},
	{"graylink_node_samples_", "sample"},
	{"graylink_node_restarts", "restart"},
	{"graylink_node_reflector_sessions", "session"},
	{"graylink_node_unbound_peers", "peer"},
	{"graylink_node_edges", "edge"},
	{"graylink_node_path_edges", "edge"},
	{"graylink_node_kubernetes_requests", "request"},
	{"graylink_node_kubernetes_dropped_events", "event"},
	{"graylink_node_kubernetes_queued_events", "event"},
	{"fabric_csig_packets", "packet"},
	{"fabric_csig_dropped", "packet"},
	{"graylink_csig_capture", "packet"},
	{"fabric_collective_operations", "operation"},
	{"fabric_collective_dropped", "operation"},
	{"graylink_node_collectives_files", "file"},
	{"graylink_node_collectives_refused_files", "file"},
	{"graylink_node_collectives_truncated_files", "file"},
	{"graylink_node_collectives_lines_unreadable", "line"},
	{"graylink_node_collectives_poll_errors", "error"},
	{"graylink_node_collectives_records_held", "record"},
	{"graylink_node_collectives_ras_queries", "query"},
	{"graylink_node_collectives_connections", "connection"},
	{"graylink_node_collectives_refused_connections", "connection"},
	{"graylink_otlp_pushes", "push"},
	{"graylink_otlp_dropped_pushes", "push"},
	{"graylink_otlp_queued_pushes", "push"},
	{"graylink_otlp_rejected_points", "point"},
	{"graylink_otlp_gather_errors", "error"},
	{"graylink_otlp_log_pushes", "push"},
	{"graylink_otlp_log_dropped_records", "record"},
	{"graylink_otlp_log_rejected_records", "record"},
	{"graylink_otlp_log_queued_records", "record"},
	{"go_goroutines", "goroutine"},
	{"go_threads", "thread"},
	{"go_sched_gomaxprocs_threads", "thread"},
	{"go_memstats_heap_objects", "object"},
	{"go_memstats_mallocs", "object"},
	{"go_memstats_frees", "object"},
	{"process_open_fds", "fd"},
	{"process_max_fds", "fd"},
}

// exceptions holds families that keep the unit in the name. Without it, a gauge and a counter of the Go runtime would
// have the same name, and so would two units of what is available on a path.
var exceptions = map[string]string{"go_memstats_alloc_bytes": "go.memstats.alloc_bytes", "fabric_csig_available_ratio": "fabric.csig.available_ratio"}

// Metric returns the OpenTelemetry name and unit of a Prometheus family. The unit is "" for a gauge that counts
// nothing, such as a state.
func Metric(family string, kind dto.MetricType) (name, unit string) {
	name = family
	if kind == dto.MetricType_COUNTER {
		name = strings.TrimSuffix(name, "_total")
	}
	for _, u := range units {
		if stem, ok := strings.CutSuffix(name, u.suffix); ok {
			name, unit = stem, u.unit
			break
		}
	}
	if unit == "" {
		unit = countUnit(name, kind)
	}
	if exception, ok := exceptions[family]; ok {
		return exception, unit
	}
	longest := ""
	for _, n := range namespaces {
		if len(n) > len(longest) && strings.HasPrefix(name, n) {
			longest = n
		}
	}
	return strings.ReplaceAll(longest, "_", ".") + name[len(longest):], unit
}

func countUnit(name string, kind dto.MetricType) string {
	longest, thing := 0, ""
	for _, t := range countedItems {
		if len(t.prefix) > longest && strings.HasPrefix(name, t.prefix) {
			longest, thing = len(t.prefix), t.thing
		}
	}
	switch {
	case thing != "":
		return "{" + thing + "}"
	case kind == dto.MetricType_COUNTER:
		return "1"
	default:
		return ""
	}
}
