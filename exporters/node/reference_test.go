package node

import (
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/probe"
)

const (
	stampHardware = "hardware"
	stampKernel   = "kernel"
	stampUser     = "user"
)

// The collectors below publish a state by client_golang's own means: constant metrics, native histograms made from bucket
// maps, and a registry that checks. The exposition has to give the same.

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

type sink struct {
	ch      chan<- prometheus.Metric
	created time.Time
}

func (s sink) counter(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sink) histogram(d *prometheus.Desc, h *probe.Histogram, labels ...string) {
	counts := func(each iter.Seq2[int, uint64]) map[int]int64 {
		m := map[int]int64{}
		for i, n := range each {
			m[i] = int64(n)
		}
		return m
	}
	positive, negative := counts(h.PositiveBuckets), counts(h.NegativeBuckets)
	m, err := prometheus.NewConstNativeHistogram(d, h.Count, h.SumNS/1e9, positive, negative, h.Zero,
		probe.HistogramSchema, probe.HistogramZero, s.created, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(d, fmt.Errorf("native histogram: %w", err))
	}
	s.ch <- m
}

// edgeCollector is the reference for edgeSeries.
type edgeCollector struct {
	state state

	owd, sent, lost, ecn, acked, late, duplicate, reordered, unresolved, unplaced, received, stalled, unread, forged *prometheus.Desc
}

func newEdgeCollector(st state) *edgeCollector {
	flow := []string{"src", "dst", "flow", "class", "tier", "plane"}
	directed := []string{"src", "dst", "flow", "direction", "class", "tier", "plane"}
	return &edgeCollector{
		state:      st,
		owd:        desc("fabric_probe_owd_seconds", "One-way delay of probes (forward) and replies (reverse) in seconds.", append(directed, "timestamp")...),
		sent:       desc("fabric_probe_sent_total", "Probes sent (forward), and replies that the reflector reports as sent (reverse).", directed...),
		lost:       desc("fabric_probe_lost_total", "Probes and replies lost, where Direct Measurement gives the direction.", directed...),
		ecn:        desc("fabric_probe_ecn_marked_total", "Probes and replies that arrived marked as congestion experienced.", directed...),
		acked:      desc("fabric_probe_acked_total", "Probes answered within the reply timeout.", flow...),
		late:       desc("fabric_probe_late_total", "Probes answered after the reply timeout.", flow...),
		duplicate:  desc("fabric_probe_duplicate_total", "Replies to probes that were already answered.", flow...),
		reordered:  desc("graylink_node_probe_reordered_total", "Replies that arrived after the reply to a later probe.", flow...),
		unresolved: desc("graylink_node_probe_unresolved", "Probes whose fate is not known: neither answered nor reported lost.", flow...),
		unplaced:   desc("graylink_node_samples_unplaced_total", "Packets whose delay was not measured because the clocks of both ends are not related.", directed...),
		received:   desc("fabric_probe_received_total", "Probes of a peer that this node received as their reflector.", flow...),
		stalled:    stalledDesc(),
		unread:     desc("fabric_nic_unread_packets_total", "Packets for a NIC's probe sockets that were dropped unread or unverified, by reason.", "nic", "reason"),
		forged:     desc("fabric_nic_forged_packets_total", "Packets with a forged HMAC, or unverified because too many had one, by source address.", "nic", "from"),
	}
}

func stalledDesc() *prometheus.Desc {
	return desc("graylink_node_stalled_seconds_total", "Time in seconds by which the probe loop of this host ran late, beyond 20 ms each time.", "nic")
}

func (c *edgeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.owd, c.sent, c.lost, c.ecn, c.acked, c.late, c.duplicate, c.reordered, c.unresolved, c.unplaced, c.received, c.stalled, c.unread, c.forged} {
		ch <- d
	}
}

func (c *edgeCollector) Collect(ch chan<- prometheus.Metric) {
	snap := c.state.Snapshot()
	s := sink{ch, c.state.started}
	for i := range snap.NICs {
		n := &snap.NICs[i]
		s.counter(c.stalled, n.Stalled.Seconds(), n.NIC)
		for reason, v := range n.Unread {
			s.counter(c.unread, float64(v), n.NIC, reason)
		}
		for _, f := range n.Forgers {
			s.counter(c.forged, float64(f.Packets), n.NIC, f.From)
		}
		for j := range n.Edges {
			c.edge(s, &n.Edges[j])
		}
		for _, r := range n.Received {
			s.counter(c.received, float64(r.Received), r.Edge.Src, r.Edge.Dst, strconv.Itoa(r.Edge.Number), r.Class, strconv.Itoa(r.Tier), r.Plane)
		}
	}
}

func (c *edgeCollector) edge(s sink, e *probe.EdgeStats) {
	flow, tier := strconv.Itoa(e.Edge.Number), strconv.Itoa(e.Tier)
	labels := []string{e.Edge.Src, e.Edge.Dst, flow, e.Class, tier, e.Plane}
	sent := [2]uint64{e.Sent, e.RepliesSent}
	for d, name := range directionNames {
		directed := []string{e.Edge.Src, e.Edge.Dst, flow, name, e.Class, tier, e.Plane}
		s.counter(c.sent, float64(sent[d]), directed...)
		s.counter(c.lost, float64(e.Lost[d]), directed...)
		s.counter(c.ecn, float64(e.ECN[d]), directed...)
		if c.state.Config().ClockSync {
			s.counter(c.unplaced, float64(e.Unplaced[d]), directed...)
		}
		if e.OWD[d].Hardware.Count > 0 {
			s.histogram(c.owd, &e.OWD[d].Hardware, append(directed, stampHardware)...)
		}
		if e.OWD[d].Kernel.Count > 0 || e.OWD[d].Hardware.Count == 0 {
			s.histogram(c.owd, &e.OWD[d].Kernel, append(directed, stampKernel)...)
		}
		if e.OWD[d].User.Count > 0 {
			s.histogram(c.owd, &e.OWD[d].User, append(directed, stampUser)...)
		}
	}
	s.counter(c.acked, float64(e.Acked), labels...)
	s.counter(c.late, float64(e.Late), labels...)
	s.counter(c.duplicate, float64(e.Duplicate), labels...)
	s.counter(c.reordered, float64(e.Reordered), labels...)
	s.gauge(c.unresolved, float64(e.Unresolved), labels...)
}

// nicCollector is the reference for nicSeries.
type nicCollector struct {
	state state

	owd, sent, lost, ecn, kernelDelay, nicDelay, info, stampInfo, errorBound                                                            *prometheus.Desc
	stalled, drops, sendErrors, icmpErrors, dropped, missing, unmatched, skipped, overrun, restarts, unbound, sessions, edges, lastTurn *prometheus.Desc
	tracePackets, pathEdges, pathVersion, configHash, reloadOK, reloadTime                                                              *prometheus.Desc
}

func newNICCollector(st state) *nicCollector {
	perNIC := []string{"nic", "side", "leaf", "peer_leaf", "class", "tier", "plane"}
	return &nicCollector{
		state:        st,
		owd:          desc("fabric_nic_owd_seconds", "One-way delay between a NIC and a peer leaf in seconds; side is the NIC's end of the path.", append(perNIC, "timestamp")...),
		sent:         desc("fabric_nic_probe_sent_total", "Probes that a NIC sent, or replies that were sent to it, by peer leaf.", perNIC...),
		lost:         desc("fabric_nic_probe_lost_total", "Probes or replies lost, by peer leaf.", perNIC...),
		ecn:          desc("fabric_nic_probe_ecn_marked_total", "Probes or replies marked as congestion experienced, by peer leaf.", perNIC...),
		kernelDelay:  desc("fabric_nic_kernel_delay_seconds", "Delay from user space to the kernel's transmit stamp in seconds.", "nic"),
		nicDelay:     desc("fabric_nic_nic_delay_seconds", "Delay from the kernel's transmit stamp to the NIC's own in seconds.", "nic"),
		unmatched:    desc("graylink_node_stamps_unmatched_total", "Transmit stamps of packets that are no longer kept.", "nic"),
		skipped:      desc("graylink_node_probes_skipped_total", "Probes that were not sent because their time had passed.", "nic"),
		overrun:      desc("graylink_node_exchanges_dropped_total", "Stamped packets that were discarded before clock sync used them.", "nic"),
		info:         desc("fabric_nic_info", "Position of a NIC in the fabric.", "nic", "node", "leaf", "leaf_port", "plane", "rail", "pod", "side"),
		stampInfo:    desc("fabric_nic_timestamp_info", "Kind of time stamps that a NIC's probes get.", "nic", "stamp", "kind"),
		errorBound:   desc("fabric_clock_error_bound_seconds", "Bound of the clock's error against the frame in seconds, without asymmetry, or as configured.", "clock"),
		stalled:      stalledDesc(),
		drops:        desc("graylink_node_socket_drops_total", "Packets the kernel dropped because a socket's receive buffer was full.", "nic", "socket"),
		sendErrors:   desc("graylink_node_send_errors_total", "Packets that could not be sent, by errno; none of them counts as sent.", "nic", "errno"),
		icmpErrors:   desc("graylink_node_icmp_errors_total", "ICMP errors about probes and replies, by type and code.", "nic", "type", "code"),
		dropped:      desc("graylink_node_dropped_packets_total", "Received packets that were not used, by reason.", "nic", "reason"),
		missing:      desc("graylink_node_stamps_missing_total", "Samples that lack a stamp, by stamp T1 to T4.", "nic", "stamp"),
		restarts:     desc("graylink_node_restarts_total", "Observed restarts of the senders and reflectors of peers.", "nic", "side"),
		unbound:      desc("graylink_node_unbound_peers", "Peers whose authenticated packets carry no life number, so that old ones can be replayed.", "nic"),
		sessions:     desc("graylink_node_reflector_sessions", "Sessions that the reflector keeps.", "nic"),
		edges:        desc("graylink_node_edges", "Flows that a NIC probes.", "nic"),
		lastTurn:     desc("graylink_node_last_cycle_timestamp_seconds", "Time of the last run of the probe loop in Unix seconds.", "nic"),
		tracePackets: desc("graylink_node_trace_packets_total", "Trace packets, sent and answered.", "result"),
		pathEdges:    desc("graylink_node_path_edges", "Flows traced by this node, by state of their path.", "state"),
		pathVersion:  desc("graylink_node_path_map_version", "Version of the traced paths. It grows with every change."),
		configHash:   desc("graylink_config_hash_info", "First eight octets of the configuration's SHA-256, as a label.", "hash"),
		reloadOK:     desc("graylink_config_last_reload_successful", "Whether the last reload was successful."),
		reloadTime:   desc("graylink_config_last_reload_success_timestamp_seconds", "Time when the running configuration was loaded, in Unix seconds."),
	}
}

func (c *nicCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.owd, c.sent, c.lost, c.ecn, c.kernelDelay, c.nicDelay, c.info, c.stampInfo, c.errorBound,
		c.stalled, c.drops, c.sendErrors, c.icmpErrors, c.dropped, c.missing, c.unmatched, c.skipped, c.overrun, c.restarts, c.unbound, c.sessions, c.edges, c.lastTurn,
		c.tracePackets, c.pathEdges, c.pathVersion, c.configHash, c.reloadOK, c.reloadTime} {
		ch <- d
	}
}

type aggregate struct {
	sent, lost, ecn uint64
	owd             probe.Delays
}

type aggregateKey struct {
	side                   int
	peerLeaf, class, plane string
	tier                   int
}

func (c *nicCollector) Collect(ch chan<- prometheus.Metric) {
	snap := c.state.Snapshot()
	s := sink{ch, c.state.started}
	cfg, paths := c.nodeState(s)
	for i := range snap.NICs {
		c.nic(s, cfg, &snap.NICs[i])
	}
	states := map[string]int{"valid": 0, "stale": 0, "unknown": 0}
	for _, p := range paths {
		states[string(p.State)]++
	}
	for state, v := range states {
		s.gauge(c.pathEdges, float64(v), state)
	}
}

func (c *nicCollector) nic(s sink, cfg *probe.Config, n *probe.NICStats) {
	rail := ""
	if n.Rail != nil {
		rail = strconv.Itoa(*n.Rail)
	}
	s.gauge(c.info, 1, n.NIC, cfg.Node, n.Leaf, n.LeafPort, n.Plane, rail, n.Pod, n.Side)
	for _, k := range []struct{ stamp, kind string }{{"tx", n.TxKind}, {"rx", n.RxKind}} {
		if k.kind != "" {
			s.gauge(c.stampInfo, 1, n.NIC, k.stamp, k.kind)
		}
	}
	if cfg.ErrorBound != nil {
		s.gauge(c.errorBound, cfg.ErrorBound.Seconds(), n.NIC)
	}
	s.histogram(c.kernelDelay, &n.KernelDelay, n.NIC)
	if n.NICDelay.Count > 0 {
		s.histogram(c.nicDelay, &n.NICDelay, n.NIC)
	}
	s.counter(c.unmatched, float64(n.Unmatched), n.NIC)
	s.counter(c.skipped, float64(n.Skipped), n.NIC)
	if cfg.ClockSync {
		s.counter(c.overrun, float64(n.Overrun), n.NIC)
	}
	s.counter(c.stalled, n.Stalled.Seconds(), n.NIC)
	for _, sock := range n.Sockets {
		s.counter(c.drops, float64(sock.Drops), n.NIC, sock.Name)
	}
	for _, by := range []struct {
		desc   *prometheus.Desc
		counts map[string]uint64
	}{{c.sendErrors, n.SendErrors}, {c.dropped, n.Dropped}, {c.missing, n.Missing}, {c.restarts, n.Restarts}} {
		for k, v := range by.counts {
			s.counter(by.desc, float64(v), n.NIC, k)
		}
	}
	for _, e := range n.ICMPErrors {
		s.counter(c.icmpErrors, float64(e.Count), n.NIC, strconv.Itoa(int(e.Type)), strconv.Itoa(int(e.Code)))
	}
	s.gauge(c.unbound, float64(n.Unbound), n.NIC)
	s.gauge(c.sessions, float64(n.Sessions), n.NIC)
	s.gauge(c.edges, float64(len(n.Edges)), n.NIC)
	s.gauge(c.lastTurn, float64(n.LastTurn.UnixNano())/1e9, n.NIC)

	sums := map[aggregateKey]*aggregate{}
	for i := range n.Edges {
		e := &n.Edges[i]
		sent := [2]uint64{e.Sent, e.RepliesSent}
		for d := range directionNames {
			k := aggregateKey{d, e.PeerLeaf, e.Class, e.Plane, e.Tier}
			a := sums[k]
			if a == nil {
				a = &aggregate{}
				sums[k] = a
			}
			a.sent += sent[d]
			a.lost += e.Lost[d]
			a.ecn += e.ECN[d]
			a.owd.Hardware.Add(&e.OWD[d].Hardware)
			a.owd.Kernel.Add(&e.OWD[d].Kernel)
			a.owd.User.Add(&e.OWD[d].User)
		}
	}
	for k, a := range sums {
		labels := []string{n.NIC, sideNames[k.side], n.Leaf, k.peerLeaf, k.class, strconv.Itoa(k.tier), k.plane}
		s.counter(c.sent, float64(a.sent), labels...)
		s.counter(c.lost, float64(a.lost), labels...)
		s.counter(c.ecn, float64(a.ecn), labels...)
		if a.owd.Hardware.Count > 0 {
			s.histogram(c.owd, &a.owd.Hardware, append(labels, stampHardware)...)
		}
		if a.owd.Kernel.Count > 0 || a.owd.Hardware.Count == 0 {
			s.histogram(c.owd, &a.owd.Kernel, append(labels, stampKernel)...)
		}
		if a.owd.User.Count > 0 {
			s.histogram(c.owd, &a.owd.User, append(labels, stampUser)...)
		}
	}
}

func (c *nicCollector) nodeState(s sink) (*probe.Config, []probe.TracedPath) {
	version, paths := c.state.TracedPaths()
	sent, answered := c.state.TraceStats()
	s.counter(c.tracePackets, float64(sent), "sent")
	s.counter(c.tracePackets, float64(answered), "answered")
	s.gauge(c.pathVersion, float64(version))
	s.gauge(c.configHash, 1, c.state.Config().Hash)
	ok := 0.0
	if c.state.reloadOK {
		ok = 1
	}
	s.gauge(c.reloadOK, ok)
	s.gauge(c.reloadTime, float64(c.state.loaded.UnixNano())/1e9)
	return c.state.Config(), paths
}
