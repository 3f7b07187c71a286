package node

import (
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/nodeagent/health"
)

// portNames maps sysfs' counters to the vocabulary that graylink-ib has for the same counters when it reads them
// through the fabric: the family, and the value of the label reason.
var portNames = map[string][2]string{
	"symbol_error": {"symbol_errors"}, "link_error_recovery": {"link_recoveries"}, "link_downed": {"link_downed"}, "port_rcv_errors": {"receive_errors", "damaged"},
	"port_rcv_remote_physical_errors": {"receive_errors", "remote_physical"}, "port_rcv_switch_relay_errors": {"receive_errors", "switch_relay"},
	"port_rcv_constraint_errors": {"receive_errors", "constraint"}, "port_xmit_constraint_errors": {"transmit_errors", "constraint"}, "port_xmit_discards": {"transmit_discards"},
	"local_link_integrity_errors": {"local_link_integrity_errors"}, "excessive_buffer_overrun_errors": {"buffer_overruns"}, "VL15_dropped": {"vl15_dropped"},
	"port_xmit_data": {"transmit_bytes"}, "port_rcv_data": {"receive_bytes"}, "port_xmit_packets": {"transmit_packets"}, "port_rcv_packets": {"receive_packets"},
	"unicast_xmit_packets": {"transmit_unicast_packets"}, "unicast_rcv_packets": {"receive_unicast_packets"}, "multicast_xmit_packets": {"transmit_multicast_packets"},
	"multicast_rcv_packets": {"receive_multicast_packets"}, "port_xmit_wait": {"transmit_wait_ticks"},
}

// octetsPerUnit is the size of a unit of port_xmit_data and port_rcv_data in octets (IBA 16.1.3.5).
const octetsPerUnit = 4

// counterCollector publishes the kernel's counters of the node's NICs.
type counterCollector struct{}

func newCounterCollector(from *sources) collector {
	if from.health == nil {
		return nil
	}
	return counterCollector{}
}

// addSeries implements collector.
func (counterCollector) addSeries(s *scrape) error {
	h := s.snapshotHealth()
	if h.Poll == nil {
		return errNothingRead
	}
	f := newCounterFamilies(s.exposition)
	for i := range h.Ports {
		f.addPort(&h.Ports[i])
	}
	for i := range h.Interfaces {
		f.addInterface(&h.Interfaces[i])
	}
	return nil
}

// counterFamilies holds the families of the counters.
type counterFamilies struct {
	*exposition
	filled, hardware, other, carrier, statistic *dto.MetricFamily

	ports map[string]*dto.MetricFamily // by the part of the name that portNames has
}

func newCounterFamilies(x *exposition) *counterFamilies {
	return &counterFamilies{exposition: x, ports: map[string]*dto.MetricFamily{},
		filled:    x.gaugeFamily("fabric_nic_port_saturated", "Whether the counter stands at its limit and no longer counts."),
		hardware:  x.counterFamily("fabric_nic_port_hardware_total", "Counters of the port's hw_counters/ directory, under the kernel's names."),
		other:     x.counterFamily("fabric_nic_port_other_total", "Counters of the port's counters/ directory without a family of their own, under the kernel's names."),
		carrier:   x.counterFamily("fabric_nic_port_carrier_changes_total", "Changes of the interface's carrier in either direction."),
		statistic: x.counterFamily("fabric_nic_interface_total", "Counters of the interface's statistics/ directory, under the kernel's names.")}
}

// portFamily returns the family of a counter that has one of its own.
func (f *counterFamilies) portFamily(name string) *dto.MetricFamily {
	if f.ports[name] == nil {
		f.ports[name] = f.counterFamily("fabric_nic_port_"+name+"_total", "Counter of the port, as the kernel reads it from the device.")
	}
	return f.ports[name]
}

// addPort adds the counters of a port of an RDMA device.
func (f *counterFamilies) addPort(p *health.Port) {
	for _, c := range p.Counters {
		v := float64(c.Value)
		name, known := portNames[c.Name]
		switch {
		case !known:
			f.addCounter(f.other, v, f.labelPairs("counter", c.Name, "nic", p.NIC))
			continue
		case name[1] != "":
			f.addCounter(f.portFamily(name[0]), v, f.labelPairs("nic", p.NIC, "reason", name[1]))
		case strings.HasSuffix(name[0], "_bytes"):
			f.addCounter(f.portFamily(name[0]), v*octetsPerUnit, f.labelPairs("nic", p.NIC))
		default:
			f.addCounter(f.portFamily(name[0]), v, f.labelPairs("nic", p.NIC))
		}
		if p.Saturated[c.Name] {
			f.addGauge(f.filled, 1, f.labelPairs("counter", c.Name, "nic", p.NIC))
		}
	}
	for _, c := range p.Hardware {
		f.addCounter(f.hardware, float64(c.Value), f.labelPairs("counter", c.Name, "nic", p.NIC))
	}
}

// addInterface adds the counters of an interface.
func (f *counterFamilies) addInterface(i *health.Interface) {
	if i.Changes != nil {
		f.addCounter(f.carrier, float64(*i.Changes), f.labelPairs("nic", i.NIC))
	}
	for _, c := range i.Counters {
		f.addCounter(f.statistic, float64(c.Value), f.labelPairs("counter", c.Name, "nic", i.NIC))
	}
}
