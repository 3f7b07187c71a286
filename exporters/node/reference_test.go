package node

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/nodeagent"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/window"
)

// A reference is a table of the series that a state has: the name of each family, its labels, and the fields that its
// values have to equal. It publishes them by client_golang's own means: constant metrics, native histograms made from
// bucket maps, and a registry that checks. The exposition has to give the same, except for the help texts, which the
// golden files have.

// family represents a row of the table. A family whose name ends in _total counts. Labels are separated by spaces.
type family struct {
	name, labels string
	values       func(st nodeagent.State, add adder)
}

// adder takes a number or a *probe.Histogram, with the values of the labels.
type adder func(v any, labels ...string)

// ofNIC gives each NIC one value. A nil value is absent.
func ofNIC(value func(n *probe.NICStats) any) func(nodeagent.State, adder) {
	return eachNIC(func(n *probe.NICStats, add adder) { add(value(n), n.NIC) })
}

// byKey gives each NIC a value for each key of a map.
func byKey(counts func(n *probe.NICStats) map[string]uint64) func(nodeagent.State, adder) {
	return eachNIC(func(n *probe.NICStats, add adder) {
		for k, v := range counts(n) {
			add(v, n.NIC, k)
		}
	})
}

func eachNIC(f func(n *probe.NICStats, add adder)) func(nodeagent.State, adder) {
	return func(st nodeagent.State, add adder) {
		nics := st.Snapshot().NICs
		for i := range nics {
			f(&nics[i], add)
		}
	}
}

// ofState gives one value without labels.
func ofState(value func(st nodeagent.State) any) func(nodeagent.State, adder) {
	return func(st nodeagent.State, add adder) { add(value(st)) }
}

// withSync leaves the values out without clock sync.
func withSync(values func(nodeagent.State, adder)) func(nodeagent.State, adder) {
	return func(st nodeagent.State, add adder) {
		if st.Config().ClockSync {
			values(st, add)
		}
	}
}

func stalledReference() family {
	return family{"graylink_node_stalled_seconds_total", "nic", ofNIC(func(n *probe.NICStats) any { return n.Stalled.Seconds() })}
}

// metricsReference returns the families of /metrics.
func metricsReference() []family {
	return []family{
		stalledReference(),
		{"fabric_nic_info", "nic node leaf leaf_port plane rail pod side", func(st nodeagent.State, add adder) {
			eachNIC(func(n *probe.NICStats, add adder) {
				rail := ""
				if n.Rail != nil {
					rail = strconv.Itoa(*n.Rail)
				}
				add(1, n.NIC, st.Config().Node, n.Leaf, n.LeafPort, n.Plane, rail, n.Pod, n.Side)
			})(st, add)
		}},
		{"fabric_nic_timestamp_info", "nic stamp kind", eachNIC(func(n *probe.NICStats, add adder) {
			for stamp, kind := range map[string]string{"tx": n.TxKind, "rx": n.RxKind} {
				if kind != "" {
					add(1, n.NIC, stamp, kind)
				}
			}
		})},
		{"fabric_clock_error_bound_seconds", "clock", func(st nodeagent.State, add adder) {
			if bound := st.Config().ErrorBound; bound != nil {
				ofNIC(func(*probe.NICStats) any { return bound.Seconds() })(st, add)
			}
		}},
		{"fabric_nic_kernel_delay_seconds", "nic", ofNIC(func(n *probe.NICStats) any { return &n.KernelDelay })},
		{"fabric_nic_nic_delay_seconds", "nic", eachNIC(func(n *probe.NICStats, add adder) {
			if n.NICDelay.Count > 0 {
				add(&n.NICDelay, n.NIC)
			}
		})},
		{"graylink_node_stamps_unmatched_total", "nic", ofNIC(func(n *probe.NICStats) any { return n.Unmatched })},
		{"graylink_node_probes_skipped_total", "nic", ofNIC(func(n *probe.NICStats) any { return n.Skipped })},
		{"graylink_node_exchanges_dropped_total", "nic", withSync(ofNIC(func(n *probe.NICStats) any { return n.Overrun }))},
		{"graylink_node_unbound_peers", "nic", ofNIC(func(n *probe.NICStats) any { return n.Unbound })},
		{"graylink_node_reflector_sessions", "nic", ofNIC(func(n *probe.NICStats) any { return n.Sessions })},
		{"graylink_node_edges", "nic", ofNIC(func(n *probe.NICStats) any { return len(n.Edges) })},
		{"graylink_node_last_cycle_timestamp_seconds", "nic", ofNIC(func(n *probe.NICStats) any { return float64(n.LastTurn.UnixNano()) / 1e9 })},
		{"graylink_node_send_errors_total", "nic errno", byKey(func(n *probe.NICStats) map[string]uint64 { return n.SendErrors })},
		{"graylink_node_dropped_packets_total", "nic reason", byKey(func(n *probe.NICStats) map[string]uint64 { return n.Dropped })},
		{"graylink_node_stamps_missing_total", "nic stamp", byKey(func(n *probe.NICStats) map[string]uint64 { return n.Missing })},
		{"graylink_node_restarts_total", "nic side", byKey(func(n *probe.NICStats) map[string]uint64 { return n.Restarts })},
		{"graylink_node_socket_drops_total", "nic socket", eachNIC(func(n *probe.NICStats, add adder) {
			for _, s := range n.Sockets {
				add(s.Drops, n.NIC, s.Name)
			}
		})},
		{"graylink_node_icmp_errors_total", "nic type code", eachNIC(func(n *probe.NICStats, add adder) {
			for _, e := range n.ICMPErrors {
				add(e.Count, n.NIC, strconv.Itoa(int(e.Type)), strconv.Itoa(int(e.Code)))
			}
		})},
		{"fabric_leaf_pair_probe_sent_total", leafLabels, eachLeaf(func(a *aggregate, add adder, labels []string) { add(a.sent, labels...) })},
		{"fabric_leaf_pair_probe_lost_total", leafLabels, eachLeaf(func(a *aggregate, add adder, labels []string) { add(a.lost, labels...) })},
		{"fabric_leaf_pair_probe_ecn_marked_total", leafLabels, eachLeaf(func(a *aggregate, add adder, labels []string) { add(a.ecn, labels...) })},
		{"fabric_leaf_pair_owd_seconds", leafLabels + " timestamp", eachLeaf(func(a *aggregate, add adder, labels []string) { addDelays(add, &a.owd, labels) })},
		{"graylink_node_trace_packets_total", "result", func(st nodeagent.State, add adder) {
			sent, answered := st.TraceStats()
			add(sent, "sent")
			add(answered, "answered")
		}},
		{"graylink_node_path_edges", "state", func(st nodeagent.State, add adder) {
			states := map[string]int{"valid": 0, "stale": 0, "unknown": 0}
			_, paths := st.TracedPaths()
			for _, p := range paths {
				states[string(p.State)]++
			}
			for state, n := range states {
				add(n, state)
			}
		}},
		{"graylink_node_path_map_version", "", ofState(func(st nodeagent.State) any { v, _ := st.TracedPaths(); return v })},
		{"graylink_config_hash_info", "hash", func(st nodeagent.State, add adder) { add(1, st.Config().Hash) }},
		{"graylink_config_last_reload_successful", "", ofState(func(st nodeagent.State) any { return map[bool]int{true: 1}[st.ReloadOK] })},
		{"graylink_config_last_reload_success_timestamp_seconds", "", ofState(func(st nodeagent.State) any { return float64(st.Loaded.UnixNano()) / 1e9 })},
		{"graylink_node_collector_duration_seconds", "collector", ofCollectors(0)},
		{"graylink_node_collector_success", "collector", ofCollectors(1)},
	}
}

// ofCollectors gives each collector of a node without other sources the same value.
func ofCollectors(v int) func(nodeagent.State, adder) {
	return func(_ nodeagent.State, add adder) {
		for _, name := range []string{"clocks", "config", "leaves", "nics", "paths", "rdma"} {
			add(v, name)
		}
	}
}

const (
	leafLabels = "side leaf peer_leaf class tier plane"
	nicLabels  = "nic side leaf class plane"
)

type aggregate struct {
	sent, lost, ecn uint64
	owd             probe.Delays
}

// eachSum calls f for the sums over edges that have the same values of some labels.
func eachSum(labelsOf func(n *probe.NICStats, e *probe.EdgeStats, side string) []string, f func(a *aggregate, add adder, labels []string)) func(nodeagent.State, adder) {
	return func(st nodeagent.State, add adder) {
		sums := map[string]*aggregate{}
		for _, n := range st.Snapshot().NICs {
			for i := range n.Edges {
				e := &n.Edges[i]
				for d, sent := range [2]uint64{e.Sent, e.RepliesSent} {
					k := strings.Join(labelsOf(&n, e, sideNames[d]), "|")
					if sums[k] == nil {
						sums[k] = &aggregate{}
					}
					a := sums[k]
					a.sent += sent
					a.lost += e.Lost[d]
					a.ecn += e.ECN[d]
					a.owd.Hardware.Add(&e.OWD[d].Hardware)
					a.owd.Kernel.Add(&e.OWD[d].Kernel)
					a.owd.User.Add(&e.OWD[d].User)
				}
			}
		}
		for k, a := range sums {
			f(a, add, strings.Split(k, "|"))
		}
	}
}

// eachLeaf calls f for the sums of each pair of leaves, and eachNICSum for those of each NIC.
func eachLeaf(f func(a *aggregate, add adder, labels []string)) func(nodeagent.State, adder) {
	return eachSum(func(n *probe.NICStats, e *probe.EdgeStats, side string) []string {
		return []string{side, n.Leaf, e.PeerLeaf, e.Class, strconv.Itoa(e.Tier), e.Plane}
	}, f)
}

func eachNICSum(f func(a *aggregate, add adder, labels []string)) func(nodeagent.State, adder) {
	return eachSum(func(n *probe.NICStats, e *probe.EdgeStats, side string) []string {
		return []string{n.NIC, side, n.Leaf, e.Class, e.Plane}
	}, f)
}

func addDelays(add adder, d *probe.Delays, labels []string) {
	if d.Hardware.Count > 0 {
		add(&d.Hardware, append(labels, "hardware")...)
	}
	if d.Kernel.Count > 0 || d.Hardware.Count == 0 {
		add(&d.Kernel, append(labels, "kernel")...)
	}
	if d.User.Count > 0 {
		add(&d.User, append(labels, "user")...)
	}
}

const (
	flowLabels     = "src dst flow class tier plane"
	directedLabels = flowLabels + " direction"
)

// ofFlow gives each flow one value.
func ofFlow(value func(e *probe.EdgeStats) any) func(nodeagent.State, adder) {
	return eachNIC(func(n *probe.NICStats, add adder) {
		for i := range n.Edges {
			e := &n.Edges[i]
			add(value(e), e.Edge.Src, e.Edge.Dst, strconv.Itoa(e.Edge.Number), e.Class, strconv.Itoa(e.Tier), e.Plane)
		}
	})
}

// directed calls f for both directions of each flow, with the values of directedLabels.
func directed(f func(e *probe.EdgeStats, d int, add adder, labels []string)) func(nodeagent.State, adder) {
	return func(st nodeagent.State, add adder) {
		for d, name := range directionNames {
			ofFlow(func(e *probe.EdgeStats) any { return e })(st, func(v any, labels ...string) { f(v.(*probe.EdgeStats), d, add, append(labels, name)) })
		}
	}
}

// hostLossReference returns the families of what was lost at the host.
func hostLossReference() []family {
	return []family{
		stalledReference(),
		{"fabric_nic_unread_packets_total", "nic reason", byKey(func(n *probe.NICStats) map[string]uint64 { return n.Unread })},
		{"fabric_nic_forged_packets_total", "nic from", eachNIC(func(n *probe.NICStats, add adder) {
			for _, f := range n.Forgers {
				add(f.Packets, n.NIC, f.From)
			}
		})},
		{"fabric_nic_refused_packets_total", "nic from sid", eachNIC(func(n *probe.NICStats, add adder) {
			for _, r := range n.Refusals {
				add(r.Answers, n.NIC, r.From.String(), r.SID.String())
			}
		})},
		{"fabric_nic_refused_flows", "nic from sid", eachNIC(func(n *probe.NICStats, add adder) {
			for _, r := range n.Refusals {
				if r.Flows > 0 {
					add(r.Flows, n.NIC, r.From.String(), r.SID.String())
				}
			}
		})},
	}
}

// nicsReference returns the families of /metrics/nics.
func nicsReference() []family {
	return append(hostLossReference(), []family{
		{"fabric_nic_probe_sent_total", nicLabels, eachNICSum(func(a *aggregate, add adder, labels []string) { add(a.sent, labels...) })},
		{"fabric_nic_probe_lost_total", nicLabels, eachNICSum(func(a *aggregate, add adder, labels []string) { add(a.lost, labels...) })},
		{"fabric_nic_probe_ecn_marked_total", nicLabels, eachNICSum(func(a *aggregate, add adder, labels []string) { add(a.ecn, labels...) })},
		{"fabric_nic_owd_seconds", nicLabels + " timestamp", eachNICSum(func(a *aggregate, add adder, labels []string) { addDelays(add, &a.owd, labels) })},
		{"graylink_node_unhealthy_flows", "", ofState(func(st nodeagent.State) any {
			n := 0
			for _, counts := range st.Windows.CountConditions() {
				n += counts[window.Lossy] + counts[window.Shifted] + counts[window.Silent] + counts[window.Unjudged]
			}
			return n
		})},
		{"graylink_node_loop_late_seconds_total", "", ofState(func(st nodeagent.State) any {
			var most time.Duration
			for _, n := range st.Snapshot().NICs {
				most = max(most, n.Stalled)
			}
			return most.Seconds()
		})},
		{"graylink_node_host_losses_total", "", ofState(func(st nodeagent.State) any {
			all := uint64(0)
			for _, n := range st.Snapshot().NICs {
				for _, packets := range n.Unread {
					all += packets
				}
				for _, f := range n.Forgers {
					all += f.Packets
				}
			}
			return all
		})},
		{"graylink_node_clock_error_bound_seconds", "", func(st nodeagent.State, add adder) {
			if bound := st.Config().ErrorBound; bound != nil {
				add(bound.Seconds())
			}
		}},
		{"fabric_nic_flows", "nic condition plane", func(st nodeagent.State, add adder) {
			counts := st.Windows.CountConditions()
			for _, nic := range st.Snapshot().NICs {
				for condition, n := range counts[nic.NIC] {
					add(n, nic.NIC, string(condition), nic.Plane)
				}
			}
		}},
	}...)
}

// edgesReference returns the families of /metrics/edges.
func edgesReference() []family {
	return append(hostLossReference(), []family{
		{"fabric_probe_sent_total", directedLabels, directed(func(e *probe.EdgeStats, d int, add adder, labels []string) {
			add([2]uint64{e.Sent, e.RepliesSent}[d], labels...)
		})},
		{"fabric_probe_lost_total", directedLabels, directed(func(e *probe.EdgeStats, d int, add adder, labels []string) { add(e.Lost[d], labels...) })},
		{"fabric_probe_ecn_marked_total", directedLabels, directed(func(e *probe.EdgeStats, d int, add adder, labels []string) { add(e.ECN[d], labels...) })},
		{"graylink_node_samples_unplaced_total", directedLabels, withSync(directed(func(e *probe.EdgeStats, d int, add adder, labels []string) { add(e.Unplaced[d], labels...) }))},
		{"fabric_probe_owd_seconds", directedLabels + " timestamp", directed(func(e *probe.EdgeStats, d int, add adder, labels []string) { addDelays(add, &e.OWD[d], labels) })},
		{"fabric_probe_acked_total", flowLabels, ofFlow(func(e *probe.EdgeStats) any { return e.Acked })},
		{"fabric_probe_late_total", flowLabels, ofFlow(func(e *probe.EdgeStats) any { return e.Late })},
		{"fabric_probe_duplicate_total", flowLabels, ofFlow(func(e *probe.EdgeStats) any { return e.Duplicate })},
		{"graylink_node_probe_reordered_total", flowLabels, ofFlow(func(e *probe.EdgeStats) any { return e.Reordered })},
		{"graylink_node_probe_unresolved", flowLabels, ofFlow(func(e *probe.EdgeStats) any { return e.Unresolved })},
		{"fabric_probe_refused_total", flowLabels, eachNIC(func(n *probe.NICStats, add adder) {
			for i := range n.Edges {
				if e := &n.Edges[i]; e.Carried {
					add(e.Refused, e.Edge.Src, e.Edge.Dst, strconv.Itoa(e.Edge.Number), e.Class, strconv.Itoa(e.Tier), e.Plane)
				}
			}
		})},
		{"fabric_probe_received_total", flowLabels, eachNIC(func(n *probe.NICStats, add adder) {
			for _, r := range n.Received {
				add(r.Received, r.Edge.Src, r.Edge.Dst, strconv.Itoa(r.Edge.Number), r.Class, strconv.Itoa(r.Tier), r.Plane)
			}
		})},
	}...)
}

// reference publishes a state by a table.
type reference struct {
	state    nodeagent.State
	families []family
}

func newReference(st nodeagent.State, families []family) *reference { return &reference{st, families} }

func (f *family) desc() *prometheus.Desc {
	return prometheus.NewDesc(f.name, "See the golden files.", strings.Fields(f.labels), nil)
}

// Describe implements prometheus.Collector.
func (r *reference) Describe(ch chan<- *prometheus.Desc) {
	for i := range r.families {
		ch <- r.families[i].desc()
	}
}

// oneSnapshot is a source whose snapshot is taken once.
type oneSnapshot struct {
	nodeagent.Source
	snap *probe.Snapshot
}

func (s oneSnapshot) Snapshot() *probe.Snapshot { return s.snap }

// Collect implements prometheus.Collector.
func (r *reference) Collect(ch chan<- prometheus.Metric) {
	st := r.state
	st.Source = oneSnapshot{st.Source, st.Snapshot()}
	for i := range r.families {
		f := &r.families[i]
		desc, kind := f.desc(), prometheus.GaugeValue
		if strings.HasSuffix(f.name, "_total") {
			kind = prometheus.CounterValue
		}
		f.values(st, func(v any, labels ...string) {
			switch v := v.(type) {
			case *probe.Histogram:
				ch <- nativeHistogram(desc, v, r.state.Started, labels)
			case float64:
				ch <- prometheus.MustNewConstMetric(desc, kind, v, labels...)
			case uint64:
				ch <- prometheus.MustNewConstMetric(desc, kind, float64(v), labels...)
			case int:
				ch <- prometheus.MustNewConstMetric(desc, kind, float64(v), labels...)
			default:
				ch <- prometheus.NewInvalidMetric(desc, fmt.Errorf("a value of the type %T", v))
			}
		})
	}
}

func nativeHistogram(desc *prometheus.Desc, h *probe.Histogram, created time.Time, labels []string) prometheus.Metric {
	counts := func(each iter.Seq2[int, uint64]) map[int]int64 {
		m := map[int]int64{}
		for i, n := range each {
			m[i] = int64(n)
		}
		return m
	}
	m, err := prometheus.NewConstNativeHistogram(desc, h.Count, h.SumNS/1e9, counts(h.PositiveBuckets), counts(h.NegativeBuckets), h.Zero,
		probe.HistogramSchema, probe.HistogramZero, created, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, fmt.Errorf("native histogram: %w", err))
	}
	return m
}
