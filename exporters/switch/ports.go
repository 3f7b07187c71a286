package fabricswitch

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/switchagent"
)

// The series of the ports have the vocabulary of fabric_switch_port_*, which all receivers share.

// portTopic publishes the states of the ports.
type portTopic struct {
	admin, oper, changes, speed, mtu *prometheus.Desc
}

func newPortTopic() *portTopic {
	return &portTopic{
		admin:   newDesc("fabric_switch_port_admin_up", "Whether the port is configured to be up.", "switch", "port"),
		oper:    newDesc("fabric_switch_port_oper_up", "Whether the port carries packets.", "switch", "port"),
		changes: newDesc("fabric_switch_port_carrier_changes_total", "Changes of the carrier, either way.", "switch", "port"),
		speed:   newDesc("fabric_switch_port_speed_bytes_per_second", "Negotiated rate.", "switch", "port"),
		mtu:     newDesc("fabric_switch_port_mtu_bytes", "Largest packet.", "switch", "port"),
	}
}

func (t *portTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.admin, t.oper, t.changes, t.speed, t.mtu}
}

func (t *portTopic) collect(s sink, _ *switchagent.Status, read *switchagent.Telemetry) {
	for i := range read.Ports {
		p := &read.Ports[i]
		s.sendGauge(t.admin, zeroOrOne(p.Up), p.Name)
		s.sendGauge(t.oper, zeroOrOne(p.Running), p.Name)
		s.sendGauge(t.mtu, float64(p.MTU), p.Name)
		if p.BytesPerSecond != nil {
			s.sendGauge(t.speed, *p.BytesPerSecond, p.Name)
		}
		if p.Changes != nil {
			s.sendCounter(t.changes, uint64(*p.Changes), p.Name)
		}
	}
}

// trafficTopic publishes the kernel's counters of the ports.
type trafficTopic struct {
	rxBytes, txBytes, rx, tx, rxErrors, txErrors, rxDrops, txDrops *prometheus.Desc
}

func newTrafficTopic() *trafficTopic {
	return &trafficTopic{
		rxBytes:  newDesc("fabric_switch_port_receive_bytes_total", "Octets received.", "switch", "port"),
		txBytes:  newDesc("fabric_switch_port_transmit_bytes_total", "Octets sent.", "switch", "port"),
		rx:       newDesc("fabric_switch_port_receive_packets_total", "Packets received.", "switch", "port"),
		tx:       newDesc("fabric_switch_port_transmit_packets_total", "Packets sent.", "switch", "port"),
		rxErrors: newDesc("fabric_switch_port_receive_errors_total", "Packets received that were of no use, by reason.", "switch", "port", "reason"),
		txErrors: newDesc("fabric_switch_port_transmit_errors_total", "Packets that could not be sent, by reason.", "switch", "port", "reason"),
		rxDrops:  newDesc("fabric_switch_port_receive_discards_total", "Whole packets received and thrown away.", "switch", "port"),
		txDrops:  newDesc("fabric_switch_port_transmit_discards_total", "Whole packets thrown away instead of sent.", "switch", "port"),
	}
}

func (t *trafficTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.rxBytes, t.txBytes, t.rx, t.tx, t.rxErrors, t.txErrors, t.rxDrops, t.txDrops}
}

func (t *trafficTopic) collect(s sink, _ *switchagent.Status, read *switchagent.Telemetry) {
	for i := range read.Ports {
		c, port := read.Ports[i].Counters, read.Ports[i].Name
		if c == nil {
			continue
		}
		s.sendCounter(t.rxBytes, c.RxBytes, port)
		s.sendCounter(t.txBytes, c.TxBytes, port)
		s.sendCounter(t.rx, c.RxPackets, port)
		s.sendCounter(t.tx, c.TxPackets, port)
		s.sendCounter(t.rxDrops, c.RxDropped, port)
		s.sendCounter(t.txDrops, c.TxDropped, port)
		s.sendCounter(t.rxErrors, c.RxCrcErrors, port, "crc")
		s.sendCounter(t.rxErrors, c.RxFrameErrors, port, "alignment")
		s.sendCounter(t.rxErrors, c.RxLengthErrors, port, "length")
		s.sendCounter(t.rxErrors, c.RxOverErrors, port, "overrun")
		s.sendCounter(t.rxErrors, c.RxFifoErrors, port, "fifo")
		s.sendCounter(t.rxErrors, c.RxMissedErrors, port, "missed")
		s.sendCounter(t.txErrors, c.TxCarrierErrors, port, "carrier")
		s.sendCounter(t.txErrors, c.TxAbortedErrors, port, "aborted")
		s.sendCounter(t.txErrors, c.TxFifoErrors, port, "fifo")
		s.sendCounter(t.txErrors, c.TxHeartbeatErrors, port, "heartbeat")
	}
}

// queueTopic publishes the queues of the ports.
type queueTopic struct {
	bytes, packets, drops, overlimits *prometheus.Desc
}

func newQueueTopic() *queueTopic {
	return &queueTopic{
		bytes:      newDesc("fabric_switch_port_queue_bytes", "Octets that wait to be sent.", "switch", "port"),
		packets:    newDesc("fabric_switch_port_queue_packets", "Packets that wait to be sent.", "switch", "port"),
		drops:      newDesc("fabric_switch_port_queue_discards_total", "Packets of a queue that were thrown away, by why.", "switch", "port"),
		overlimits: newDesc("fabric_switch_port_queue_overlimits_total", "Times that the queue had to hold packets back.", "switch", "port"),
	}
}

func (t *queueTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.bytes, t.packets, t.drops, t.overlimits}
}

func (t *queueTopic) collect(s sink, _ *switchagent.Status, read *switchagent.Telemetry) {
	for i := range read.Ports {
		q, port := read.Ports[i].Queue, read.Ports[i].Name
		if q == nil {
			continue
		}
		s.sendGauge(t.bytes, float64(q.Octets), port)
		s.sendGauge(t.packets, float64(q.Packets), port)
		s.sendCounter(t.drops, uint64(q.Drops), port)
		s.sendCounter(t.overlimits, uint64(q.Overlimits), port)
	}
}
