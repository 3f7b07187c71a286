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

// Source is what the exposition reads. *probe.Engine is one.
type Source interface {
	Snapshot() *probe.Snapshot
	TracedPaths() (version uint64, paths []probe.TracedPath)
	TraceStats() (sent, answered uint64)
	Config() *probe.Config
}

// state is a source and what the node itself knows about it.
type state struct {
	Source
	clocks   *clocks   // nil: the clocks are not related
	started  time.Time // when the source's counts began
	loaded   time.Time // when the configuration that runs was loaded
	reloadOK bool
}

// gatherer is an exposition of the state at the moment of the scrape.
type gatherer struct {
	read  func(func(state)) // calls its argument once, while the source stays as it is
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

// disjoint joins gatherers that share no family: the later one's family is
// left out where two have the same.
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

// stamped is a distribution and the value of its label timestamp.
type stamped struct {
	kind string
	h    *probe.Histogram
}

// stampedDelays are the distributions of d to be published: those with samples, and
// the kernel's unless there are better, so that the series of an edge is there
// before its first sample.
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
	return x.counterFamily("graylink_node_stalled_seconds_total", "Time by which the probe loop ran late, beyond 20 ms each time: the host's doing, not the fabric's.")
}

// unreadSeries counts what was lost at this host and not in the network. It is
// scraped as often as the edges are, since it says which of their losses are
// none.
func unreadSeries(x *exposition, nics []probe.NICStats) {
	unread := x.counterFamily("fabric_nic_unread_packets_total", "Packets for a NIC's probe sockets that were dropped unread or unverified, by reason.")
	forged := x.counterFamily("fabric_nic_forged_packets_total", "Packets with a forged HMAC, or not verified because too many had one, by source address.")
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

// edgeSeries is the exposition of /metrics/edges.
func edgeSeries(x *exposition, st state) {
	var (
		owd        = x.histogramFamily("fabric_probe_owd_seconds", "One-way delay of probes (forward) and replies (reverse).")
		sent       = x.counterFamily("fabric_probe_sent_total", "Probes sent (forward) and replies the reflector says it sent (reverse).")
		lost       = x.counterFamily("fabric_probe_lost_total", "Probes and replies lost, where Direct Measurement tells the direction.")
		ecn        = x.counterFamily("fabric_probe_ecn_marked_total", "Probes and replies that arrived marked congestion experienced.")
		acked      = x.counterFamily("fabric_probe_acked_total", "Probes answered within the reply timeout.")
		late       = x.counterFamily("fabric_probe_late_total", "Probes answered after the reply timeout.")
		duplicate  = x.counterFamily("fabric_probe_duplicate_total", "Replies to probes that had one.")
		reordered  = x.counterFamily("graylink_node_probe_reordered_total", "Replies that came after the reply to a later probe.")
		unresolved = x.gaugeFamily("graylink_node_probe_unresolved", "Probes nothing is known about: neither answered nor told lost.")
		received   = x.counterFamily("fabric_probe_received_total", "Probes of a peer that arrived at this node, which reflects them.")
		stalled    = stalledFamily(x)
	)
	synced := st.Config().ClockSync
	var unplaced *dto.MetricFamily // without clock sync there is nothing to be placed
	if synced {
		unplaced = x.counterFamily("graylink_node_samples_unplaced_total", "Packets whose delay was not measured, the clocks of both ends not being related.")
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

// nicSeries is the exposition of /metrics: everything but the edges.
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
	pathEdges := x.gaugeFamily("graylink_node_path_edges", "Flows traced by this node, by state of the path.")
	for _, name := range sortedKeys(states) {
		x.addGauge(pathEdges, float64(states[name]), x.labelPairs("state", name))
	}
	x.addGauge(x.gaugeFamily("graylink_node_path_map_version", "Version of the traced paths; grows with every change."), float64(version), nil)
	sent, answered := st.TraceStats()
	tracePackets := x.counterFamily("graylink_node_trace_packets_total", "Trace packets, sent and answered.")
	x.addCounter(tracePackets, float64(sent), x.labelPairs("result", "sent"))
	x.addCounter(tracePackets, float64(answered), x.labelPairs("result", "answered"))

	x.addGauge(x.gaugeFamily("graylink_config_hash_info", "First eight octets of the configuration's SHA-256."), 1, x.labelPairs("hash", cfg.Hash))
	ok := 0.0
	if st.reloadOK {
		ok = 1
	}
	x.addGauge(x.gaugeFamily("graylink_config_last_reload_successful", "Whether the last reload was successful."), ok, nil)
	x.addGauge(x.gaugeFamily("graylink_config_last_reload_success_timestamp_seconds", "When the configuration that runs was loaded."), float64(st.loaded.UnixNano())/1e9, nil)
}

func nicState(x *exposition, cfg *probe.Config, nics []probe.NICStats) {
	var (
		info        = x.gaugeFamily("fabric_nic_info", "Where a NIC is in the fabric.")
		stampInfo   = x.gaugeFamily("fabric_nic_timestamp_info", "Kind of the stamps a NIC's probes get.")
		kernelDelay = x.histogramFamily("fabric_nic_kernel_delay_seconds", "From user space to the kernel's transmit stamp.")
		nicDelay    = x.histogramFamily("fabric_nic_nic_delay_seconds", "From the kernel's transmit stamp to the NIC's own.")
		stalled     = stalledFamily(x)
		drops       = x.counterFamily("graylink_node_socket_drops_total", "Packets the kernel dropped because a socket's receive buffer was full.")
		sendErrors  = x.counterFamily("graylink_node_send_errors_total", "Packets that could not be sent, by errno; none of them counts as sent.")
		icmpErrors  = x.counterFamily("graylink_node_icmp_errors_total", "ICMP errors about probes and replies, by type and code.")
		dropped     = x.counterFamily("graylink_node_dropped_packets_total", "Received packets that were not used, by reason.")
		missing     = x.counterFamily("graylink_node_stamps_missing_total", "Samples without the stamp they wanted, by which of T1 to T4.")
		unmatched   = x.counterFamily("graylink_node_stamps_unmatched_total", "Transmit stamps of packets no longer known.")
		overrun     = x.counterFamily("graylink_node_exchanges_dropped_total", "Stamped packets that gave way before clock sync took them.")
		skipped     = x.counterFamily("graylink_node_probes_skipped_total", "Probes that were not sent because their time went by.")
		restarts    = x.counterFamily("graylink_node_restarts_total", "Restarts noticed, of the senders and reflectors at the other side.")
		unbound     = x.gaugeFamily("graylink_node_unbound_peers", "Peers whose authenticated packets carry no life number, so that old ones can be replayed.")
		sessions    = x.gaugeFamily("graylink_node_reflector_sessions", "Sessions the reflector keeps.")
		edges       = x.gaugeFamily("graylink_node_edges", "Flows a NIC probes.")
		lastTurn    = x.gaugeFamily("graylink_node_last_cycle_timestamp_seconds", "When the probe loop last ran.")
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

// clockState tells what is known of the clocks that stamp at the NICs.
func clockState(x *exposition, st state, nics []probe.NICStats) {
	var (
		bound     = x.gaugeFamily("fabric_clock_error_bound_seconds", "Bound of the clock's error against the frame, asymmetry apart; as configured where clocks are not related.")
		offset    = x.gaugeFamily("fabric_clock_offset_seconds", "What the NIC's clock shows beyond the frame, without graylink_node_clock_whole_seconds.")
		whole     = x.gaugeFamily("graylink_node_clock_whole_seconds", "Whole seconds that the NIC's clock was beyond the frame when that was known first.")
		drift     = x.gaugeFamily("fabric_clock_drift_ratio", "What the NIC's clock gains on the frame.")
		allowance = x.gaugeFamily("fabric_clock_asymmetry_allowance_seconds", "What paths of different length both ways may add to the clock's error, as configured.")
		states    = x.gaugeFamily("fabric_clock_state", "What the NIC's clock is known by: 1 for the state it is in.")
		steps     = x.counterFamily("fabric_clock_steps_total", "Jumps of the NIC's clock.")
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

// leafSeries are the sums over a NIC's edges toward one peer leaf.
type leafSeries struct {
	x                    *exposition
	owd, sent, lost, ecn *dto.MetricFamily
}

func newLeafSeries(x *exposition) leafSeries {
	return leafSeries{x: x,
		owd:  x.histogramFamily("fabric_nic_owd_seconds", "One-way delay of all probes and replies of a NIC toward (source) or from (destination) one peer leaf."),
		sent: x.counterFamily("fabric_nic_probe_sent_total", "Probes sent, or replies sent to this NIC, by peer leaf."),
		lost: x.counterFamily("fabric_nic_probe_lost_total", "Probes or replies lost, by peer leaf."),
		ecn:  x.counterFamily("fabric_nic_probe_ecn_marked_total", "Probes or replies marked congestion experienced, by peer leaf.")}
}

type leafKey struct {
	peerLeaf, class, plane string
	tier                   int
}

// leafSum is what the edges of one key add up to, by direction.
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
