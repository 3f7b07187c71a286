package health

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nichw"
)

// Snapshot represents what is known of the node's NICs at one moment. Each NIC has its name in the fabric.
type Snapshot struct {
	Node       string
	Poll       *nichw.Poll // the last poll; nil before the first one, and then there are no ports, interfaces and findings
	Took       time.Duration
	Polls      uint64
	ReadErrors map[nichw.Sort]uint64
	Events     map[EventKey]uint64
	PortCounts *PortCounts // nil if the products table has no entry for the node

	Ports      []Port
	Interfaces []Interface
	Findings   []Finding

	Log     *LogState     // nil if the log is not read
	Ethtool *EthtoolState // nil if ethtool is not used
}

// PortCounts represents the number of ports that the products table expects, and that were found.
type PortCounts struct{ Expected, Found int }

// Port represents a port of an RDMA device, with what the rules know of it.
type Port struct {
	*nichw.Port
	Device       *nichw.Device
	NIC          string
	First        bool            // the first port of the device
	ExpectedRate *int64          // bytes per second; nil if it is not known
	Crossings    *uint64         // times a counter crossed the threshold of a warning; nil if no rule applies
	Saturated    map[string]bool // counters that stand at their limits
}

// Interface represents a network interface.
type Interface struct {
	*nichw.Interface
	NIC         string
	WithoutRDMA bool // it is a NIC by itself, and not the interface of an RDMA port
}

// Finding represents an open finding.
type Finding struct {
	nichealth.Finding
	NIC string
}

// Snapshot returns what is known now.
func (w *Watcher) Snapshot() *Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.polled.last
	s := &Snapshot{Node: w.polled.node, Poll: p, Took: w.polled.took, Polls: w.polled.count, ReadErrors: maps.Clone(w.polled.errors), Events: w.events.copyCounts()}
	name := newNICNamer(s.Node, w.polled.nics, p)
	if w.kernel != nil {
		s.Log = w.kernel.copyState(p, name)
	}
	if w.ethtool != nil {
		s.Ethtool = w.ethtool.copyState()
	}
	if p == nil {
		return s
	}
	if want, have, ok := w.monitor.PortCounts(); ok {
		s.PortCounts = &PortCounts{want, have}
	}
	s.Ports = w.listPorts(p, name)
	for i := range p.Interfaces {
		f := &p.Interfaces[i]
		s.Interfaces = append(s.Interfaces, Interface{f, nicOf(p, f, name), f.Device == "" || f.Master != ""})
	}
	for _, f := range w.monitor.OpenFindings() {
		device, number := entityParts(f.Entity)
		s.Findings = append(s.Findings, Finding{f, name(device, number, "")})
	}
	if s.Ethtool != nil {
		seen := map[string]bool{}
		for _, f := range s.Interfaces {
			if !seen[f.NIC] {
				s.Ethtool.NICs[f.Name], seen[f.NIC] = f.NIC, true
			}
		}
	}
	return s
}

// listPorts returns the ports of the devices that are watched. Watcher.mu must be held.
func (w *Watcher) listPorts(p *nichw.Poll, name nicNamer) (out []Port) {
	for i := range p.Devices {
		d := &p.Devices[i]
		if w.o.Rules.IsExcluded(d.Name) {
			continue
		}
		for j := range d.Ports {
			q := &d.Ports[j]
			e := nichealth.PortEntity(d.Name, q.Number)
			port := Port{Port: q, Device: d, NIC: name(d.Name, q.Number, q.Netdev), First: j == 0}
			if rate, ok := w.monitor.ExpectedRate(e); ok {
				port.ExpectedRate = &rate
			}
			if n, ok := w.monitor.CrossingCount(e); ok {
				port.Crossings = &n
			}
			for k := range q.Counters {
				if c := q.Counters[k].Name; w.monitor.IsSaturated(e, c) {
					if port.Saturated == nil {
						port.Saturated = map[string]bool{}
					}
					port.Saturated[c] = true
				}
			}
			out = append(out, port)
		}
	}
	return out
}

// nicNamer returns the name of a port in the fabric. The interface is that of the port, or empty if it is not known.
type nicNamer func(device string, port int, netdev string) string

// newNICNamer returns a nicNamer for the devices of a poll. A port has the name of the NIC that probes through the
// port's interface, if there is one. Otherwise it has that of the device, with the number of the port from the second
// port on. Before the first poll, names are empty.
func newNICNamer(node string, nics map[string]string, p *nichw.Poll) nicNamer {
	if p == nil {
		return func(string, int, string) string { return "" }
	}
	netdevs := map[string]string{}
	for i := range p.Devices {
		d := &p.Devices[i]
		for j := range d.Ports {
			netdevs[d.Name+" "+strconv.Itoa(d.Ports[j].Number)] = d.Ports[j].Netdev
		}
	}
	return func(device string, port int, netdev string) string {
		if netdev == "" {
			netdev = netdevs[device+" "+strconv.Itoa(port)]
		}
		for _, n := range []string{device, netdev} {
			if nic := nics[n]; nic != "" {
				return nic
			}
		}
		if port > 1 {
			return fmt.Sprintf("%s/%s.%d", node, device, port)
		}
		return node + "/" + device
	}
}

// nicOf returns the name of an interface in the fabric. An interface that is the only one of an RDMA port, and no
// member of a bond, has the name of that port. Others of the port's function, such as representors, have their own
// names.
func nicOf(p *nichw.Poll, f *nichw.Interface, name nicNamer) string {
	if f.Device != "" && f.Master == "" {
		if device, port, ok := portOf(p, f.Name); ok {
			return name(device, port, f.Name)
		}
	}
	return name(f.Name, 1, f.Name)
}

// portOf returns the RDMA port that an interface is the only one of.
func portOf(p *nichw.Poll, netdev string) (device string, port int, ok bool) {
	for i := range p.Devices {
		for j := range p.Devices[i].Ports {
			if q := &p.Devices[i].Ports[j]; q.Netdev == netdev {
				return p.Devices[i].Name, q.Number, true
			}
		}
	}
	return "", 0, false
}

// entityParts returns the device and the number of the port of an entity.
func entityParts(e nichealth.Entity) (device string, port int) {
	if e.Type == nichealth.EntityPort {
		if i := strings.LastIndex(e.Value, "_port"); i >= 0 {
			if port, err := strconv.Atoi(e.Value[i+len("_port"):]); err == nil {
				return e.Value[:i], port
			}
		}
	}
	return e.Value, 1
}
