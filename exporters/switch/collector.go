package fabricswitch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/exporters/certificates"
)

// families holds all descriptions that newDesc made.
var families []*prometheus.Desc

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	families = append(families, d)
	return d
}

// The series of the ports have the vocabulary of fabric_switch_port_*, which all receivers share.
var (
	portAdmin    = newDesc("fabric_switch_port_admin_up", "Whether the port is configured to be up.", "switch", "port")
	portOper     = newDesc("fabric_switch_port_oper_up", "Whether the port carries packets.", "switch", "port")
	portChanges  = newDesc("fabric_switch_port_carrier_changes_total", "Changes of the carrier in either direction.", "switch", "port")
	portSpeed    = newDesc("fabric_switch_port_speed_bytes_per_second", "Negotiated rate of the port in bytes per second.", "switch", "port")
	portMTU      = newDesc("fabric_switch_port_mtu_bytes", "Size of the largest packet that the port sends, in bytes.", "switch", "port")
	portRxBytes  = newDesc("fabric_switch_port_receive_bytes_total", "Octets received by the port.", "switch", "port")
	portTxBytes  = newDesc("fabric_switch_port_transmit_bytes_total", "Octets sent by the port.", "switch", "port")
	portRx       = newDesc("fabric_switch_port_receive_packets_total", "Packets received by the port.", "switch", "port")
	portTx       = newDesc("fabric_switch_port_transmit_packets_total", "Packets sent by the port.", "switch", "port")
	portRxErrors = newDesc("fabric_switch_port_receive_errors_total", "Received packets that were damaged or unusable, by reason.", "switch", "port", "reason")
	portTxErrors = newDesc("fabric_switch_port_transmit_errors_total", "Packets that could not be sent, by reason.", "switch", "port", "reason")
	portRxDrops  = newDesc("fabric_switch_port_receive_discards_total", "Intact received packets that were discarded.", "switch", "port")
	portTxDrops  = newDesc("fabric_switch_port_transmit_discards_total", "Intact packets that were discarded instead of sent.", "switch", "port")
	queueBytes   = newDesc("fabric_switch_port_queue_bytes", "Octets in the queue.", "switch", "port")
	queuePackets = newDesc("fabric_switch_port_queue_packets", "Packets in the queue.", "switch", "port")
	queueDrops   = newDesc("fabric_switch_port_queue_discards_total", "Packets of the queue that were discarded, by reason.", "switch", "port")
	queueOver    = newDesc("fabric_switch_port_queue_overlimits_total", "Times the queue held packets back because of its rate limit.", "switch", "port")

	agentKind    = newDesc("graylink_switch_source_info", "Kind of source that probes are seen by.", "switch", "kind")
	agentFlows   = newDesc("graylink_switch_flows", "Flows in the table.", "switch")
	agentVersion = newDesc("graylink_switch_table_version", "Version of the table.", "switch")
	agentDropped = newDesc("graylink_switch_dropped_total", "Samples and flows that were lost because a buffer or the table was full.", "switch")
	agentRounds  = newDesc("graylink_switch_rounds_total", "Rounds in which the table was updated.", "switch")
	agentTook    = newDesc("graylink_switch_round_seconds", "Duration of the last round in seconds.", "switch")
	agentLast    = newDesc("graylink_switch_last_round_timestamp_seconds", "Time of the last round in Unix seconds.", "switch")
	agentLLDP    = newDesc("graylink_switch_lldp_errors_total", "Received LLDP frames that were malformed.", "switch")
	agentScrape  = newDesc("graylink_switch_collector_up", "Whether the last read of this part of the telemetry succeeded.", "switch", "collector")
)

// SeriesDescs returns the descriptions of all series that an agent may publish.
func SeriesDescs() []*prometheus.Desc {
	return append(families[:len(families):len(families)], certificates.Family)
}

// Describe sends nothing, because the set of series depends on the switch.
func (a *Agent) Describe(chan<- *prometheus.Desc) {}

// Collect sends the state of the agent and of the ports.
func (a *Agent) Collect(ch chan<- prometheus.Metric) {
	sw := a.o.Switch
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{sw}, labels...)...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{sw}, labels...)...)
	}
	a.mu.RLock()
	flows, version, dropped, rounds, took, at := a.table.Len(), a.table.Version(), a.table.Dropped, a.rounds, a.roundTime, a.roundEnd
	a.mu.RUnlock()
	gauge(agentKind, 1, string(a.source.Kind()))
	gauge(agentFlows, float64(flows))
	gauge(agentVersion, float64(version))
	count(agentDropped, dropped+a.source.Dropped())
	count(agentRounds, rounds)
	gauge(agentTook, took.Seconds())
	gauge(agentLast, float64(at.UnixNano())/float64(time.Second))
	count(agentLLDP, a.lldp.MalformedFrames())

	up := func(collector string, err error) {
		v := 1.0
		if err != nil {
			v = 0
			a.log.Warn("cannot read telemetry", "collector", collector, "err", err)
		}
		gauge(agentScrape, v, collector)
	}
	links, err := a.links(a.o.Aliases)
	up("links", err)
	waiting, err := listQueues()
	up("queues", err)
	rates := linkSpeeds(links)
	for _, l := range links {
		if !a.o.IsPort(l.Name) {
			continue
		}
		gauge(portAdmin, boolValue(l.Up), l.Name)
		gauge(portOper, boolValue(l.Running), l.Name)
		gauge(portMTU, float64(l.MTU), l.Name)
		if v, ok := rates[l.Name]; ok {
			gauge(portSpeed, v, l.Name)
		}
		if l.Changes != nil {
			count(portChanges, uint64(*l.Changes), l.Name)
		}
		if c := l.Counters; c != nil {
			count(portRxBytes, c.RxBytes, l.Name)
			count(portTxBytes, c.TxBytes, l.Name)
			count(portRx, c.RxPackets, l.Name)
			count(portTx, c.TxPackets, l.Name)
			count(portRxDrops, c.RxDropped, l.Name)
			count(portTxDrops, c.TxDropped, l.Name)
			count(portRxErrors, c.RxCrcErrors, l.Name, "crc")
			count(portRxErrors, c.RxFrameErrors, l.Name, "alignment")
			count(portRxErrors, c.RxLengthErrors, l.Name, "length")
			count(portRxErrors, c.RxOverErrors, l.Name, "overrun")
			count(portRxErrors, c.RxFifoErrors, l.Name, "fifo")
			count(portRxErrors, c.RxMissedErrors, l.Name, "missed")
			count(portTxErrors, c.TxCarrierErrors, l.Name, "carrier")
			count(portTxErrors, c.TxAbortedErrors, l.Name, "aborted")
			count(portTxErrors, c.TxFifoErrors, l.Name, "fifo")
			count(portTxErrors, c.TxHeartbeatErrors, l.Name, "heartbeat")
		}
		if q, ok := waiting[l.Number]; ok {
			gauge(queueBytes, float64(q.octets), l.Name)
			gauge(queuePackets, float64(q.packets), l.Name)
			count(queueDrops, uint64(q.drops), l.Name)
			count(queueOver, uint64(q.overlimits), l.Name)
		}
	}
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
