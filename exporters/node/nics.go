package node

import (
	"maps"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/probe"
)

// nicCollector publishes what the probe engine counts for each NIC.
type nicCollector struct{}

func newNICCollector(*sources) collector { return nicCollector{} }

// addSeries implements collector.
func (nicCollector) addSeries(s *scrape) error {
	cfg, nics := s.Config(), s.snapshotNICs()
	addPlaces(s.exposition, cfg.Node, nics)
	addStampDelays(s.exposition, nics)
	f := newNICFamilies(s.exposition, nics)
	addStalls(f)
	f.addCountersBy("errno", "graylink_node_send_errors_total", "Packets that could not be sent, by errno; none of them counts as sent.", func(n *probe.NICStats) map[string]uint64 { return n.SendErrors })
	f.addCountersBy("reason", "graylink_node_dropped_packets_total", "Received packets that were not used, by reason.", func(n *probe.NICStats) map[string]uint64 { return n.Dropped })
	f.addCountersBy("stamp", "graylink_node_stamps_missing_total", "Samples that lack a stamp, by stamp T1 to T4.", func(n *probe.NICStats) map[string]uint64 { return n.Missing })
	f.addCountersBy("side", "graylink_node_restarts_total", "Observed restarts of the senders and reflectors of peers.", func(n *probe.NICStats) map[string]uint64 { return n.Restarts })
	f.addCounters("graylink_node_stamps_unmatched_total", "Transmit stamps of packets that are no longer kept.", func(n *probe.NICStats) float64 { return float64(n.Unmatched) })
	f.addCounters("graylink_node_probes_skipped_total", "Probes that were not sent because their time had passed.", func(n *probe.NICStats) float64 { return float64(n.Skipped) })
	if cfg.ClockSync {
		f.addCounters("graylink_node_exchanges_dropped_total", "Stamped packets that were discarded before clock sync used them.", func(n *probe.NICStats) float64 { return float64(n.Overrun) })
	}
	f.addGauges("graylink_node_unbound_peers", "Peers whose authenticated packets carry no life number, so that old ones can be replayed.", func(n *probe.NICStats) float64 { return float64(n.Unbound) })
	f.addGauges("graylink_node_reflector_sessions", "Sessions that the reflector keeps.", func(n *probe.NICStats) float64 { return float64(n.Sessions) })
	f.addGauges("graylink_node_edges", "Flows that a NIC probes.", func(n *probe.NICStats) float64 { return float64(len(n.Edges)) })
	f.addGauges("graylink_node_last_cycle_timestamp_seconds", "Time of the last run of the probe loop in Unix seconds.", func(n *probe.NICStats) float64 { return float64(n.LastTurn.UnixNano()) / 1e9 })
	addSocketErrors(s.exposition, nics)
	return nil
}

// nicFamilies adds families that have the same series for every NIC.
type nicFamilies struct {
	*exposition
	nics   []probe.NICStats
	labels [][]*dto.LabelPair // of the NICs
}

func newNICFamilies(x *exposition, nics []probe.NICStats) *nicFamilies {
	f := &nicFamilies{exposition: x, nics: nics, labels: make([][]*dto.LabelPair, len(nics))}
	for i := range nics {
		f.labels[i] = x.labelPairs("nic", nics[i].NIC)
	}
	return f
}

// addCounters adds a family with a counter of each NIC.
func (f *nicFamilies) addCounters(name, help string, value func(n *probe.NICStats) float64) {
	family := f.counterFamily(name, help)
	for i := range f.nics {
		f.addCounter(family, value(&f.nics[i]), f.labels[i])
	}
}

// addGauges adds a family with a gauge of each NIC.
func (f *nicFamilies) addGauges(name, help string, value func(n *probe.NICStats) float64) {
	family := f.gaugeFamily(name, help)
	for i := range f.nics {
		f.addGauge(family, value(&f.nics[i]), f.labels[i])
	}
}

// addCountersBy adds a family with counters of each NIC. They have the keys of a map as a label.
func (f *nicFamilies) addCountersBy(label, name, help string, counts func(n *probe.NICStats) map[string]uint64) {
	family := f.counterFamily(name, help)
	for i := range f.nics {
		of := counts(&f.nics[i])
		for _, k := range sortedKeys(of) {
			f.addCounter(family, float64(of[k]), withLabel(f.labels[i], f.labelPair(label, k)))
		}
	}
}

// addStalls adds the time by which the probe loop ran late.
func addStalls(f *nicFamilies) {
	f.addCounters("graylink_node_stalled_seconds_total", "Time in seconds by which the probe loop of this host ran late, beyond 20 ms each time.", func(n *probe.NICStats) float64 { return n.Stalled.Seconds() })
}

// addPlaces adds where the NICs are in the fabric, and the kind of their time stamps.
func addPlaces(x *exposition, node string, nics []probe.NICStats) {
	info := x.gaugeFamily("fabric_nic_info", "Position of a NIC in the fabric.")
	stampInfo := x.gaugeFamily("fabric_nic_timestamp_info", "Kind of time stamps that a NIC's probes get.")
	for i := range nics {
		n := &nics[i]
		rail := ""
		if n.Rail != nil {
			rail = strconv.Itoa(*n.Rail)
		}
		x.addGauge(info, 1, x.labelPairs("leaf", n.Leaf, "leaf_port", n.LeafPort, "nic", n.NIC, "node", node, "plane", n.Plane, "pod", n.Pod, "rail", rail, "side", n.Side))
		for _, k := range []struct{ stamp, kind string }{{"tx", n.TxKind}, {"rx", n.RxKind}} {
			if k.kind != "" {
				x.addGauge(stampInfo, 1, x.labelPairs("kind", k.kind, "nic", n.NIC, "stamp", k.stamp))
			}
		}
	}
}

// addStampDelays adds the delays between the stamps that one packet gets on its way out of this host.
func addStampDelays(x *exposition, nics []probe.NICStats) {
	kernel := x.histogramFamily("fabric_nic_kernel_delay_seconds", "Delay from user space to the kernel's transmit stamp in seconds.")
	hardware := x.histogramFamily("fabric_nic_nic_delay_seconds", "Delay from the kernel's transmit stamp to the NIC's own in seconds.")
	for i := range nics {
		n := &nics[i]
		nic := x.labelPairs("nic", n.NIC)
		x.addHistogram(kernel, &n.KernelDelay, nic)
		if n.NICDelay.Count > 0 {
			x.addHistogram(hardware, &n.NICDelay, nic)
		}
	}
}

// addSocketErrors adds what went wrong at the sockets.
func addSocketErrors(x *exposition, nics []probe.NICStats) {
	drops := x.counterFamily("graylink_node_socket_drops_total", "Packets the kernel dropped because a socket's receive buffer was full.")
	icmp := x.counterFamily("graylink_node_icmp_errors_total", "ICMP errors about probes and replies, by type and code.")
	for i := range nics {
		n := &nics[i]
		for _, socket := range n.Sockets {
			x.addCounter(drops, float64(socket.Drops), x.labelPairs("nic", n.NIC, "socket", socket.Name))
		}
		for _, e := range n.ICMPErrors {
			x.addCounter(icmp, float64(e.Count), x.labelPairs("code", strconv.Itoa(int(e.Code)), "nic", n.NIC, "type", strconv.Itoa(int(e.Type))))
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
