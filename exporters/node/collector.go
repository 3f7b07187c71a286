package node

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/probe"
)

// Source is the interface through which the exposition reads the probe engine. *probe.Engine implements it.
type Source interface {
	Snapshot() *probe.Snapshot
	TracedPaths() (version uint64, paths []probe.TracedPath)
	TraceStats() (sent, answered uint64)
	Config() *probe.Config
}

// state represents a source together with what the node itself knows about it.
type state struct {
	Source
	clocks   *clocks   // nil means that the clocks are not related
	started  time.Time // start of the source's counts
	loaded   time.Time // time when the running configuration was loaded
	reloadOK bool
}

// gatherer is a gatherer of the state at the moment of the scrape.
type gatherer struct {
	read  func(func(state)) // calls its argument once, and keeps the source unchanged until it returns
	build func(*exposition, state)
}

// Gather implements prometheus.Gatherer.
func (g gatherer) Gather() ([]*dto.MetricFamily, error) {
	var families []*dto.MetricFamily
	g.read(func(s state) {
		x := newExposition(s.started)
		g.build(x, s)
		families = x.sortedFamilies()
	})
	return families, nil
}

// disjoint joins gatherers. If two of them have a family with the same name, the family of the later gatherer is left
// out.
type disjoint []prometheus.Gatherer

// Gather implements prometheus.Gatherer.
func (gs disjoint) Gather() ([]*dto.MetricFamily, error) {
	var all []*dto.MetricFamily
	for _, g := range gs {
		families, err := g.Gather()
		if err != nil {
			return nil, err
		}
		all = append(all, families...)
	}
	byName := func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) }
	slices.SortStableFunc(all, byName)
	return slices.CompactFunc(all, func(a, b *dto.MetricFamily) bool { return byName(a, b) == 0 }), nil
}

// Values of the label direction, and of side by direction.
var (
	directionNames = [2]string{"forward", "reverse"}
	sideNames      = [2]string{"source", "destination"}
)

// stamped represents a distribution and the value of its label timestamp.
type stamped struct {
	kind string
	h    *probe.Histogram
}

// stampedDelays returns the distributions of d that are published: those with samples, and also the kernel's unless
// there are better ones, so that the series of an edge exists before its first sample.
func stampedDelays(d *probe.Delays) []stamped {
	out := make([]stamped, 0, 3)
	if d.Hardware.Count > 0 {
		out = append(out, stamped{"hardware", &d.Hardware})
	}
	if d.Kernel.Count > 0 || d.Hardware.Count == 0 {
		out = append(out, stamped{"kernel", &d.Kernel})
	}
	if d.User.Count > 0 {
		out = append(out, stamped{"user", &d.User})
	}
	return out
}

func stalledFamily(x *exposition) *dto.MetricFamily {
	return x.counterFamily("graylink_node_stalled_seconds_total", "Time in seconds by which the probe loop of this host ran late, beyond 20 ms each time.")
}

// unreadSeries adds the counts of packets that were lost at this host and not in the network. They are scraped as often
// as the edges, because they state which of the edges' losses are not losses of the network.
func unreadSeries(x *exposition, nics []probe.NICStats) {
	unread := x.counterFamily("fabric_nic_unread_packets_total", "Packets for a NIC's probe sockets that were dropped unread or unverified, by reason.")
	forged := x.counterFamily("fabric_nic_forged_packets_total", "Packets with a forged HMAC, or unverified because too many had one, by source address.")
	for i := range nics {
		n := &nics[i]
		for _, reason := range sortedKeys(n.Unread) {
			x.addCounter(unread, float64(n.Unread[reason]), x.labelPairs("nic", n.NIC, "reason", reason))
		}
		for _, f := range n.Forgers {
			x.addCounter(forged, float64(f.Packets), x.labelPairs("from", f.From, "nic", n.NIC))
		}
	}
}

// edgeSeries writes the exposition of /metrics/edges.
func edgeSeries(x *exposition, st state) {
	var (
		owd        = x.histogramFamily("fabric_probe_owd_seconds", "One-way delay of probes (forward) and replies (reverse) in seconds.")
		sent       = x.counterFamily("fabric_probe_sent_total", "Probes sent (forward), and replies that the reflector reports as sent (reverse).")
		lost       = x.counterFamily("fabric_probe_lost_total", "Probes and replies lost, where Direct Measurement gives the direction.")
		ecn        = x.counterFamily("fabric_probe_ecn_marked_total", "Probes and replies that arrived marked as congestion experienced.")
		acked      = x.counterFamily("fabric_probe_acked_total", "Probes answered within the reply timeout.")
		late       = x.counterFamily("fabric_probe_late_total", "Probes answered after the reply timeout.")
		duplicate  = x.counterFamily("fabric_probe_duplicate_total", "Replies to probes that were already answered.")
		reordered  = x.counterFamily("graylink_node_probe_reordered_total", "Replies that arrived after the reply to a later probe.")
		unresolved = x.gaugeFamily("graylink_node_probe_unresolved", "Probes whose fate is not known: neither answered nor reported lost.")
		received   = x.counterFamily("fabric_probe_received_total", "Probes of a peer that this node received as their reflector.")
		stalled    = stalledFamily(x)
	)
	synced := st.Config().ClockSync
	var unplaced *dto.MetricFamily // without clock sync all samples are placed
	if synced {
		unplaced = x.counterFamily("graylink_node_samples_unplaced_total", "Packets whose delay was not measured because the clocks of both ends are not related.")
	}
	directions := [2]*dto.LabelPair{x.labelPair("direction", directionNames[0]), x.labelPair("direction", directionNames[1])}
	flowLabels := func(class, dst string, flow int, plane, src string, tier int) []*dto.LabelPair {
		return x.labelPairs("class", class, "dst", dst, "flow", strconv.Itoa(flow), "plane", plane, "src", src, "tier", strconv.Itoa(tier))
	}
	snap := st.Snapshot()
	unreadSeries(x, snap.NICs)
	for i := range snap.NICs {
		n := &snap.NICs[i]
		x.addCounter(stalled, n.Stalled.Seconds(), x.labelPairs("nic", n.NIC))
		for j := range n.Edges {
			e := &n.Edges[j]
			labels := flowLabels(e.Class, e.Edge.Dst, e.Edge.Number, e.Plane, e.Edge.Src, e.Tier)
			for d, total := range [2]uint64{e.Sent, e.RepliesSent} {
				directed := withLabel(labels, directions[d])
				x.addCounter(sent, float64(total), directed)
				x.addCounter(lost, float64(e.Lost[d]), directed)
				x.addCounter(ecn, float64(e.ECN[d]), directed)
				if synced {
					x.addCounter(unplaced, float64(e.Unplaced[d]), directed)
				}
				for _, k := range stampedDelays(&e.OWD[d]) {
					x.addHistogram(owd, k.h, withLabel(directed, x.labelPair("timestamp", k.kind)))
				}
			}
			x.addCounter(acked, float64(e.Acked), labels)
			x.addCounter(late, float64(e.Late), labels)
			x.addCounter(duplicate, float64(e.Duplicate), labels)
			x.addCounter(reordered, float64(e.Reordered), labels)
			x.addGauge(unresolved, float64(e.Unresolved), labels)
		}
		for _, r := range n.Received {
			x.addCounter(received, float64(r.Received), flowLabels(r.Class, r.Edge.Dst, r.Edge.Number, r.Plane, r.Edge.Src, r.Tier))
		}
	}
}

// nicSeries writes the exposition of /metrics, which has everything but the edges.
func nicSeries(x *exposition, st state) {
	cfg := st.Config()
	nics := st.Snapshot().NICs
	nicState(x, cfg, nics)
	rdmaState(x, nics)
	clockState(x, st, nics)

	version, paths := st.TracedPaths()
	states := map[string]int{"valid": 0, "stale": 0, "unknown": 0}
	for _, p := range paths {
		states[string(p.State)]++
	}
	pathEdges := x.gaugeFamily("graylink_node_path_edges", "Flows traced by this node, by state of their path.")
	for _, name := range sortedKeys(states) {
		x.addGauge(pathEdges, float64(states[name]), x.labelPairs("state", name))
	}
	x.addGauge(x.gaugeFamily("graylink_node_path_map_version", "Version of the traced paths. It grows with every change."), float64(version), nil)
	sent, answered := st.TraceStats()
	tracePackets := x.counterFamily("graylink_node_trace_packets_total", "Trace packets, sent and answered.")
	x.addCounter(tracePackets, float64(sent), x.labelPairs("result", "sent"))
	x.addCounter(tracePackets, float64(answered), x.labelPairs("result", "answered"))

	x.addGauge(x.gaugeFamily("graylink_config_hash_info", "First eight octets of the configuration's SHA-256, as a label."), 1, x.labelPairs("hash", cfg.Hash))
	ok := 0.0
	if st.reloadOK {
		ok = 1
	}
	x.addGauge(x.gaugeFamily("graylink_config_last_reload_successful", "Whether the last reload was successful."), ok, nil)
	x.addGauge(x.gaugeFamily("graylink_config_last_reload_success_timestamp_seconds", "Time when the running configuration was loaded, in Unix seconds."), float64(st.loaded.UnixNano())/1e9, nil)
}

func nicState(x *exposition, cfg *probe.Config, nics []probe.NICStats) {
	var (
		info        = x.gaugeFamily("fabric_nic_info", "Position of a NIC in the fabric.")
		stampInfo   = x.gaugeFamily("fabric_nic_timestamp_info", "Kind of time stamps that a NIC's probes get.")
		kernelDelay = x.histogramFamily("fabric_nic_kernel_delay_seconds", "Delay from user space to the kernel's transmit stamp in seconds.")
		nicDelay    = x.histogramFamily("fabric_nic_nic_delay_seconds", "Delay from the kernel's transmit stamp to the NIC's own in seconds.")
		stalled     = stalledFamily(x)
		drops       = x.counterFamily("graylink_node_socket_drops_total", "Packets the kernel dropped because a socket's receive buffer was full.")
		sendErrors  = x.counterFamily("graylink_node_send_errors_total", "Packets that could not be sent, by errno; none of them counts as sent.")
		icmpErrors  = x.counterFamily("graylink_node_icmp_errors_total", "ICMP errors about probes and replies, by type and code.")
		dropped     = x.counterFamily("graylink_node_dropped_packets_total", "Received packets that were not used, by reason.")
		missing     = x.counterFamily("graylink_node_stamps_missing_total", "Samples that lack a stamp, by stamp T1 to T4.")
		unmatched   = x.counterFamily("graylink_node_stamps_unmatched_total", "Transmit stamps of packets that are no longer kept.")
		overrun     = x.counterFamily("graylink_node_exchanges_dropped_total", "Stamped packets that were discarded before clock sync used them.")
		skipped     = x.counterFamily("graylink_node_probes_skipped_total", "Probes that were not sent because their time had passed.")
		restarts    = x.counterFamily("graylink_node_restarts_total", "Observed restarts of the senders and reflectors of peers.")
		unbound     = x.gaugeFamily("graylink_node_unbound_peers", "Peers whose authenticated packets carry no life number, so that old ones can be replayed.")
		sessions    = x.gaugeFamily("graylink_node_reflector_sessions", "Sessions that the reflector keeps.")
		edges       = x.gaugeFamily("graylink_node_edges", "Flows that a NIC probes.")
		lastTurn    = x.gaugeFamily("graylink_node_last_cycle_timestamp_seconds", "Time of the last run of the probe loop in Unix seconds.")
		sums        = newLeafSeries(x)
	)
	for i := range nics {
		n := &nics[i]
		rail := ""
		if n.Rail != nil {
			rail = strconv.Itoa(*n.Rail)
		}
		nic := x.labelPairs("nic", n.NIC)
		x.addGauge(info, 1, x.labelPairs("leaf", n.Leaf, "leaf_port", n.LeafPort, "nic", n.NIC, "node", cfg.Node, "plane", n.Plane, "pod", n.Pod, "rail", rail, "side", n.Side))
		for _, k := range []struct{ stamp, kind string }{{"tx", n.TxKind}, {"rx", n.RxKind}} {
			if k.kind != "" {
				x.addGauge(stampInfo, 1, x.labelPairs("kind", k.kind, "nic", n.NIC, "stamp", k.stamp))
			}
		}
		x.addHistogram(kernelDelay, &n.KernelDelay, nic)
		if n.NICDelay.Count > 0 {
			x.addHistogram(nicDelay, &n.NICDelay, nic)
		}
		x.addCounter(stalled, n.Stalled.Seconds(), nic)
		for _, sock := range n.Sockets {
			x.addCounter(drops, float64(sock.Drops), withLabel(nic, x.labelPair("socket", sock.Name)))
		}
		for _, by := range []struct {
			family *dto.MetricFamily
			label  string
			counts map[string]uint64
		}{{sendErrors, "errno", n.SendErrors}, {dropped, "reason", n.Dropped}, {missing, "stamp", n.Missing}, {restarts, "side", n.Restarts}} {
			for _, k := range sortedKeys(by.counts) {
				x.addCounter(by.family, float64(by.counts[k]), withLabel(nic, x.labelPair(by.label, k)))
			}
		}
		for _, e := range n.ICMPErrors {
			x.addCounter(icmpErrors, float64(e.Count), x.labelPairs("code", strconv.Itoa(int(e.Code)), "nic", n.NIC, "type", strconv.Itoa(int(e.Type))))
		}
		x.addCounter(unmatched, float64(n.Unmatched), nic)
		x.addCounter(skipped, float64(n.Skipped), nic)
		if cfg.ClockSync {
			x.addCounter(overrun, float64(n.Overrun), nic)
		}
		x.addGauge(unbound, float64(n.Unbound), nic)
		x.addGauge(sessions, float64(n.Sessions), nic)
		x.addGauge(edges, float64(len(n.Edges)), nic)
		x.addGauge(lastTurn, float64(n.LastTurn.UnixNano())/1e9, nic)
		sums.addNIC(n)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// clockState adds the state of the clocks that stamp at the NICs.
func clockState(x *exposition, st state, nics []probe.NICStats) {
	var (
		bound     = x.gaugeFamily("fabric_clock_error_bound_seconds", "Bound of the clock's error against the frame in seconds, without asymmetry, or as configured.")
		offset    = x.gaugeFamily("fabric_clock_offset_seconds", "Offset of the NIC's clock from the frame in seconds, without its whole seconds.")
		whole     = x.gaugeFamily("graylink_node_clock_whole_seconds", "Whole seconds of the offset of the NIC's clock from the frame, when first known.")
		drift     = x.gaugeFamily("fabric_clock_drift_ratio", "Rate by which the NIC's clock gains on the frame.")
		allowance = x.gaugeFamily("fabric_clock_asymmetry_allowance_seconds", "Configured allowance for the clock error from asymmetric paths, in seconds.")
		states    = x.gaugeFamily("fabric_clock_state", "State of the NIC's clock: 1 for the current state and 0 for the others.")
		steps     = x.counterFamily("fabric_clock_steps_total", "Steps of the NIC's clock.")
		drifts    = x.counterFamily("fabric_clock_drift_changes_total", "Sudden changes of the rate of the NIC's clock.")
	)
	configured := st.Config().ErrorBound
	for i := range nics {
		nic := nics[i].NIC
		clock := x.labelPairs("clock", nic)
		if st.clocks == nil {
			if configured != nil {
				x.addGauge(bound, configured.Seconds(), clock)
			}
			continue
		}
		v, ok := st.clocks.viewOf(nic)
		if !ok {
			continue
		}
		for _, s := range clocksync.StateNames() {
			in := 0.0
			if s == v.State.String() {
				in = 1
			}
			x.addGauge(states, in, x.labelPairs("clock", nic, "state", s))
		}
		if v.Counted {
			x.addCounter(steps, float64(v.Steps), clock)
			x.addCounter(drifts, float64(v.Drifts), clock)
		}
		if v.Known {
			x.addGauge(offset, float64(v.Offset)/1e9-v.WholeSeconds, clock)
			x.addGauge(whole, v.WholeSeconds, clock)
			x.addGauge(drift, v.Drift, clock)
			x.addGauge(bound, float64(v.Bound)/1e9, clock)
			x.addGauge(allowance, float64(v.Allowance)/1e9, clock)
		}
	}
}

// leafSeries holds the families of the sums over a NIC's edges toward one peer leaf.
type leafSeries struct {
	x                    *exposition
	owd, sent, lost, ecn *dto.MetricFamily
}

func newLeafSeries(x *exposition) leafSeries {
	return leafSeries{x: x,
		owd:  x.histogramFamily("fabric_nic_owd_seconds", "One-way delay between a NIC and a peer leaf in seconds; side is the NIC's end of the path."),
		sent: x.counterFamily("fabric_nic_probe_sent_total", "Probes that a NIC sent, or replies that were sent to it, by peer leaf."),
		lost: x.counterFamily("fabric_nic_probe_lost_total", "Probes or replies lost, by peer leaf."),
		ecn:  x.counterFamily("fabric_nic_probe_ecn_marked_total", "Probes or replies marked as congestion experienced, by peer leaf.")}
}

type leafKey struct {
	peerLeaf, class, plane string
	tier                   int
}

// leafSum represents the sum over the edges of one key, by direction.
type leafSum struct {
	leafKey
	sent, lost, ecn [2]uint64
	owd             [2]probe.Delays
}

func (l leafSeries) addNIC(n *probe.NICStats) {
	var sums []*leafSum
	at := map[leafKey]*leafSum{}
	for i := range n.Edges {
		e := &n.Edges[i]
		k := leafKey{e.PeerLeaf, e.Class, e.Plane, e.Tier}
		s := at[k]
		if s == nil {
			s = &leafSum{leafKey: k}
			at[k], sums = s, append(sums, s)
		}
		for d, sent := range [2]uint64{e.Sent, e.RepliesSent} {
			s.sent[d] += sent
			s.lost[d] += e.Lost[d]
			s.ecn[d] += e.ECN[d]
			s.owd[d].Hardware.Add(&e.OWD[d].Hardware)
			s.owd[d].Kernel.Add(&e.OWD[d].Kernel)
			s.owd[d].User.Add(&e.OWD[d].User)
		}
	}
	for _, s := range sums {
		for d, side := range sideNames {
			labels := l.x.labelPairs("class", s.class, "leaf", n.Leaf, "nic", n.NIC, "peer_leaf", s.peerLeaf, "plane", s.plane, "side", side, "tier", strconv.Itoa(s.tier))
			l.x.addCounter(l.sent, float64(s.sent[d]), labels)
			l.x.addCounter(l.lost, float64(s.lost[d]), labels)
			l.x.addCounter(l.ecn, float64(s.ecn[d]), labels)
			for _, k := range stampedDelays(&s.owd[d]) {
				l.x.addHistogram(l.owd, k.h, withLabel(labels, l.x.labelPair("timestamp", k.kind)))
			}
		}
	}
}
