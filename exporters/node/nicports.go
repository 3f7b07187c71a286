package node

import (
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/nichw"
	"github.com/graylink/graylink/internal/nodeagent/health"
)

// portCollector publishes the states and the identity of the ports of the node's NICs.
type portCollector struct{}

func newPortCollector(from *sources) collector {
	if from.health == nil {
		return nil
	}
	return portCollector{}
}

// addSeries implements collector.
func (portCollector) addSeries(s *scrape) error {
	h := s.snapshotHealth()
	if h.Poll == nil {
		return errNothingRead
	}
	f := newPortFamilies(s.exposition)
	for i := range h.Ports {
		f.addPort(&h.Ports[i])
	}
	for i := range h.Interfaces {
		if h.Interfaces[i].WithoutRDMA {
			f.addInterface(&h.Interfaces[i])
		}
	}
	return nil
}

// portFamilies holds the families of the ports.
type portFamilies struct {
	*exposition
	state, phys, rate, expected, info, function, crossed, gids *dto.MetricFamily
}

func newPortFamilies(x *exposition) *portFamilies {
	return &portFamilies{exposition: x,
		state:    x.gaugeFamily("fabric_nic_port_state", "Logical state of the port; without RDMA, ACTIVE means up. All states are 0 if it is not known."),
		phys:     x.gaugeFamily("fabric_nic_port_phys_state", "Physical state of the port."),
		rate:     x.gaugeFamily("fabric_nic_port_rate_bytes_per_second", "Negotiated rate of the port in bytes per second."),
		expected: x.gaugeFamily("fabric_nic_port_expected_rate_bytes_per_second", "Expected rate of the port in bytes per second, from the products table or from its role."),
		info:     x.gaugeFamily("fabric_nic_port_info", "Identity of the port: device, interface, driver, firmware and kind."),
		function: x.gaugeFamily("fabric_nic_port_virtual_function", "Whether the port belongs to a virtual function, which may be down."),
		crossed:  x.counterFamily("fabric_nic_port_threshold_crossings_total", "Times a counter of the port crossed the threshold of a warning, including before a reset."),
		gids:     x.gaugeFamily("fabric_nic_port_gid_entries", "Entries of the GID table that are not empty, by type and address family.")}
}

// addPort adds the series of a port of an RDMA device.
func (f *portFamilies) addPort(p *health.Port) {
	d, nic := p.Device, f.labelPairs("nic", p.NIC)
	f.addStates(f.state, p.NIC, nichw.States[1:], int(p.State))
	f.addStates(f.phys, p.NIC, nichw.PhysStates[1:], int(p.Phys))
	if p.Rate != nil {
		f.addGauge(f.rate, float64(*p.Rate), nic)
	}
	if p.ExpectedRate != nil {
		f.addGauge(f.expected, float64(*p.ExpectedRate), nic)
	}
	f.addGauge(f.function, zeroOrOne(d.Function == nichw.Virtual), nic)
	f.addGauge(f.info, 1, f.labelPairs("board", d.Board, "device", d.Name, "driver", d.Driver, "firmware", d.Firmware, "function", d.Function.String(), "interface", p.Netdev, "kind", string(d.Kind),
		"link_layer", p.LinkLayer, "nic", p.NIC, "pci", addressOf(d.PCI), "port", strconv.Itoa(p.Number), "type", d.HCAType))
	if p.Crossings != nil {
		f.addCounter(f.crossed, float64(*p.Crossings), nic)
	}
	if p.GIDsKnown {
		f.addGIDs(p)
	}
}

// addInterface adds the series of an interface that is a NIC by itself.
func (f *portFamilies) addInterface(i *health.Interface) {
	nic := f.labelPairs("nic", i.NIC)
	switch i.OperState {
	case "up":
		f.addStates(f.state, i.NIC, nichw.States[1:], int(nichw.Active))
	case "down", "lowerlayerdown", "notpresent":
		f.addStates(f.state, i.NIC, nichw.States[1:], int(nichw.Down))
	}
	if i.Speed != nil {
		f.addGauge(f.rate, float64(*i.Speed), nic)
	}
	f.addGauge(f.function, zeroOrOne(i.Function == nichw.Virtual), nic)
	f.addGauge(f.info, 1, f.labelPairs("board", "", "device", "", "driver", i.Driver, "firmware", "", "function", i.Function.String(), "interface", i.Name, "kind", string(i.Kind),
		"link_layer", "Ethernet", "nic", i.NIC, "pci", addressOf(i.PCI), "port", "", "type", ""))
}

// addStates adds one gauge for each state, of which the present one is 1. States count from 1.
func (f *portFamilies) addStates(family *dto.MetricFamily, nic string, names []string, present int) {
	for i, name := range names {
		f.addGauge(family, zeroOrOne(present == i+1), f.labelPairs("nic", nic, "state", name))
	}
}

// addGIDs adds the number of entries of the GID table, by address family and type.
func (f *portFamilies) addGIDs(p *health.Port) {
	table := map[[2]string]int{}
	for i := range p.GIDs {
		g := &p.GIDs[i]
		family := "ipv6"
		if g.IsIPv4() {
			family = "ipv4"
		}
		table[[2]string{family, g.Type}]++
	}
	if len(table) == 0 {
		f.addGauge(f.gids, 0, f.labelPairs("family", "", "nic", p.NIC, "type", ""))
	}
	for k, n := range table {
		f.addGauge(f.gids, float64(n), f.labelPairs("family", k[0], "nic", p.NIC, "type", k[1]))
	}
}

func addressOf(p *nichw.PCI) string {
	if p == nil {
		return ""
	}
	return p.Address
}

// pciCollector publishes the PCI links of the NICs.
type pciCollector struct{}

func newPCICollector(from *sources) collector {
	if from.health == nil {
		return nil
	}
	return pciCollector{}
}

// addSeries implements collector.
func (pciCollector) addSeries(s *scrape) error {
	h := s.snapshotHealth()
	if h.Poll == nil {
		return errNothingRead
	}
	f := &pciFamilies{exposition: s.exposition,
		speed:  s.gaugeFamily("fabric_nic_pci_link_transfers_per_second", "Transfers per second and lane of the PCI link, current and maximum."),
		width:  s.gaugeFamily("fabric_nic_pci_link_lanes", "Lanes of the PCI link, current and maximum."),
		errors: s.counterFamily("fabric_nic_pci_errors_total", "Errors of the PCI function (advanced error reporting).")}
	for i := range h.Ports {
		if p := &h.Ports[i]; p.First && p.Device.PCI != nil {
			f.addFunction(p.NIC, p.Device.PCI)
		}
	}
	for i := range h.Interfaces {
		if n := &h.Interfaces[i]; n.WithoutRDMA && n.PCI != nil {
			f.addFunction(n.NIC, n.PCI)
		}
	}
	return nil
}

// pciFamilies holds the families of the PCI links.
type pciFamilies struct {
	*exposition
	speed, width, errors *dto.MetricFamily
}

// addFunction adds the series of the PCI function of a NIC.
func (f *pciFamilies) addFunction(nic string, p *nichw.PCI) {
	for _, link := range []struct {
		is    string
		speed *float64
		width *uint64
	}{{"current", p.Speed, p.Width}, {"max", p.MaxSpeed, p.MaxWidth}} {
		if link.speed != nil {
			f.addGauge(f.speed, *link.speed, f.labelPairs("is", link.is, "nic", nic))
		}
		if link.width != nil {
			f.addGauge(f.width, float64(*link.width), f.labelPairs("is", link.is, "nic", nic))
		}
	}
	for _, e := range []struct {
		severity string
		n        *uint64
	}{{"correctable", p.Correctable}, {"nonfatal", p.NonFatal}, {"fatal", p.Fatal}} {
		if e.n != nil {
			f.addCounter(f.errors, float64(*e.n), f.labelPairs("nic", nic, "severity", e.severity))
		}
	}
}
