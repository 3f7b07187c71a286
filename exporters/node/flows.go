package node

import (
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/probe"
)

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

// uptimePublished is the time for which an agent publishes how long it runs. What its peers lost before it ran is not of the
// network, which matters while windows of that time are judged.
const uptimePublished = 10 * time.Minute

// hostLossCollector publishes what was lost at this host and not in the network. It is scraped as often as the flows,
// because it states which of the flows' losses are not losses of the network.
type hostLossCollector struct{}

func newHostLossCollector(*sources) collector { return hostLossCollector{} }

// addSeries implements collector.
func (hostLossCollector) addSeries(s *scrape) error {
	unread := s.counterFamily("fabric_nic_unread_packets_total", "Packets for a NIC's probe sockets that were dropped unread or unverified, by reason.")
	forged := s.counterFamily("fabric_nic_forged_packets_total", "Packets with a forged HMAC, or unverified because too many had one, by source address.")
	refused := s.counterFamily("fabric_nic_refused_packets_total", "Packets that a switch refused with an ICMP error, for an identifier of their path.")
	flows := s.gaugeFamily("fabric_nic_refused_flows", "Flows of a NIC that a switch refuses now, for an identifier of their path.")
	nics := s.snapshotNICs()
	if up := s.from.uptime(); up < uptimePublished {
		s.addGauge(s.gaugeFamily("graylink_node_uptime_seconds", "Time in seconds since the agent started, in its first ten minutes."), up.Seconds(), nil)
	}
	addStalls(newNICFamilies(s.exposition, nics))
	for i := range nics {
		n := &nics[i]
		for _, reason := range sortedKeys(n.Unread) {
			s.addCounter(unread, float64(n.Unread[reason]), s.labelPairs("nic", n.NIC, "reason", reason))
		}
		for _, f := range n.Forgers {
			s.addCounter(forged, float64(f.Packets), s.labelPairs("from", f.From, "nic", n.NIC))
		}
		for _, r := range n.Refusals {
			labels := s.labelPairs("from", r.From.String(), "nic", n.NIC, "sid", r.SID.String())
			s.addCounter(refused, float64(r.Answers), labels)
			if r.Flows > 0 {
				s.addGauge(flows, float64(r.Flows), labels)
			}
		}
	}
	return nil
}

// flowCollector publishes the flows.
type flowCollector struct{}

func newFlowCollector(*sources) collector { return flowCollector{} }

// addSeries implements collector.
func (flowCollector) addSeries(s *scrape) error {
	f := newFlowFamilies(s.exposition, s.Config().ClockSync)
	nics := s.snapshotNICs()
	for i := range nics {
		n := &nics[i]
		for j := range n.Edges {
			f.addEdge(&n.Edges[j])
		}
		for _, r := range n.Received {
			f.addCounter(f.received, float64(r.Received), f.flowLabels(r.Class, r.Edge.Dst, r.Edge.Number, r.Plane, r.Edge.Src, r.Tier))
		}
	}
	return nil
}

// flowFamilies holds the families of the flows.
type flowFamilies struct {
	*exposition
	owd, sent, lost, ecn, acked, late, duplicate, reordered, unresolved, refused, received *dto.MetricFamily

	unplaced   *dto.MetricFamily // nil without clock sync, because all samples are placed then
	directions [2]*dto.LabelPair
}

func newFlowFamilies(x *exposition, synced bool) *flowFamilies {
	f := &flowFamilies{exposition: x,
		owd:        x.histogramFamily("fabric_probe_owd_seconds", "One-way delay of probes (forward) and replies (reverse) in seconds."),
		sent:       x.counterFamily("fabric_probe_sent_total", "Probes sent (forward), and replies that the reflector reports as sent (reverse)."),
		lost:       x.counterFamily("fabric_probe_lost_total", "Probes and replies lost, where Direct Measurement gives the direction."),
		ecn:        x.counterFamily("fabric_probe_ecn_marked_total", "Probes and replies that arrived marked as congestion experienced."),
		acked:      x.counterFamily("fabric_probe_acked_total", "Probes answered within the reply timeout."),
		late:       x.counterFamily("fabric_probe_late_total", "Probes answered after the reply timeout."),
		duplicate:  x.counterFamily("fabric_probe_duplicate_total", "Replies to probes that were already answered."),
		reordered:  x.counterFamily("graylink_node_probe_reordered_total", "Replies that arrived after the reply to a later probe."),
		unresolved: x.gaugeFamily("graylink_node_probe_unresolved", "Probes whose fate is not known: neither answered nor reported lost."),
		refused:    x.counterFamily("fabric_probe_refused_total", "Probes sent while a switch refused the identifiers of their path; they are not lost."),
		received:   x.counterFamily("fabric_probe_received_total", "Probes of a peer that this node received as their reflector."),
		directions: [2]*dto.LabelPair{x.labelPair("direction", directionNames[0]), x.labelPair("direction", directionNames[1])},
	}
	if synced {
		f.unplaced = x.counterFamily("graylink_node_samples_unplaced_total", "Packets whose delay was not measured because the clocks of both ends are not related.")
	}
	return f
}

func (f *flowFamilies) flowLabels(class, dst string, flow int, plane, src string, tier int) []*dto.LabelPair {
	return f.labelPairs("class", class, "dst", dst, "flow", strconv.Itoa(flow), "plane", plane, "src", src, "tier", strconv.Itoa(tier))
}

// addEdge adds the series of a flow that this node probes.
func (f *flowFamilies) addEdge(e *probe.EdgeStats) {
	labels := f.flowLabels(e.Class, e.Edge.Dst, e.Edge.Number, e.Plane, e.Edge.Src, e.Tier)
	for d, total := range [2]uint64{e.Sent, e.RepliesSent} {
		directed := withLabel(labels, f.directions[d])
		f.addCounter(f.sent, float64(total), directed)
		f.addCounter(f.lost, float64(e.Lost[d]), directed)
		f.addCounter(f.ecn, float64(e.ECN[d]), directed)
		if f.unplaced != nil {
			f.addCounter(f.unplaced, float64(e.Unplaced[d]), directed)
		}
		for _, k := range stampedDelays(&e.OWD[d]) {
			f.addHistogram(f.owd, k.h, withLabel(directed, f.labelPair("timestamp", k.kind)))
		}
	}
	f.addCounter(f.acked, float64(e.Acked), labels)
	f.addCounter(f.late, float64(e.Late), labels)
	f.addCounter(f.duplicate, float64(e.Duplicate), labels)
	f.addCounter(f.reordered, float64(e.Reordered), labels)
	f.addGauge(f.unresolved, float64(e.Unresolved), labels)
	if e.Carried {
		f.addCounter(f.refused, float64(e.Refused), labels)
	}
}
