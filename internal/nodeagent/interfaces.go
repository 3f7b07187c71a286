package nodeagent

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/rdma"
)

// kindHardware is the kind of a NIC's own stamps.
const kindHardware = "hardware"

// maxInterfaces limits the interfaces that are reported. The first ones with addresses are.
const maxInterfaces = agentapi.MaxInterfaces

// Interfaces returns the interfaces of this host with their addresses. It implements client.Agent.
func (f *fleet) Interfaces() ([]*agentapi.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	hardware, pairs := map[string]*bool{}, map[string]*agentapi.RDMA{}
	for _, s := range f.node.engine.Snapshot().NICs {
		if s.Device != "" && s.Port != nil {
			pairs[s.Device] = advertisedQueuePair(&s)
		}
		if s.Device != "" && s.TxKind != "" && s.RxKind != "" {
			hardware[s.Device] = proto.Bool(s.TxKind == kindHardware && s.RxKind == kindHardware)
		}
	}
	f.listenForNeighbours(all)
	ports := listIBPorts(f.sys)
	var out []*agentapi.Interface
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 || len(out) == maxInterfaces {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it vanished in the meantime
		}
		v := &agentapi.Interface{Name: i.Name, Mtu: uint32(i.MTU), Up: i.Flags&net.FlagUp != 0, SpeedBps: linkSpeed(i.Name), HardwareStamps: hardware[i.Name], Rdma: pairs[i.Name]}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && probe.CheckAddress(p.Addr()) == nil && len(v.Addresses) < agentapi.MaxInterfaceAddresses {
				v.Addresses, v.PrefixLengths = append(v.Addresses, p.Addr().AsSlice()), append(v.PrefixLengths, uint32(p.Bits()))
			}
		}
		if len(v.Addresses) > 0 {
			if p := portOfInterface(ports, i.HardwareAddr); p != nil {
				v.Ib = p.message()
			}
			v.Lldp = f.neighboursAt(i.Index)
			out = append(out, v)
		}
	}
	return append(out, bareIBPorts(ports, out, pairs, f.options.RDMA && rdma.CheckLibrary() == nil)...), nil
}

// listenForNeighbours sets the interfaces to hear LLDP at: those that have a carrier. What was heard at an interface is
// forgotten when its carrier is lost, since another cable may be plugged in.
func (f *fleet) listenForNeighbours(all []net.Interface) {
	l := f.node.neighbours
	if l == nil {
		return
	}
	var numbers []uint32
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagRunning != 0 && len(numbers) < maxInterfaces {
			numbers = append(numbers, uint32(i.Index))
		}
	}
	text := ""
	if err := l.SetPorts(numbers); err != nil {
		text = err.Error()
	}
	if text != "" && text != f.lldpError {
		f.node.log.Warn("cannot listen for the switches that NICs are plugged into", "err", text)
	}
	f.lldpError = text
}

// neighboursAt returns the neighbours that announce themselves at an interface.
func (f *fleet) neighboursAt(ifindex int) (out []*agentapi.LLDPNeighbour) {
	if f.node.neighbours == nil {
		return nil
	}
	for _, n := range f.node.neighbours.NeighboursAt(time.Now(), ifindex) {
		out = append(out, &agentapi.LLDPNeighbour{System: n.System, Port: n.Port, Chassis: n.Chassis, Forwards: n.Capabilities.Forwards()})
	}
	return out
}

// advertisedQueuePair returns the queue pair of a NIC as peers see it. Without a queue pair, or without a GID, it
// returns an RDMA that states only that there will be one. The same holds for an InfiniBand port without a LID.
func advertisedQueuePair(s *probe.NICStats) *agentapi.RDMA {
	p := s.Port
	if !p.Queue || !p.GID.IsValid() || p.InfiniBand && p.LID == 0 {
		return &agentapi.RDMA{Device: p.Device, Port: uint32(p.Port)}
	}
	gid := p.GID.As16()
	return &agentapi.RDMA{Device: p.Device, Port: uint32(p.Port), Gid: gid[:], Qpn: p.QPN, QKey: s.RDMA.QKey, Lid: uint32(p.LID), Hardware: p.Hardware}
}

// rdmaPorts returns a function that finds the RDMA port of an interface, also of an IPoIB interface, and the InfiniBand
// port of a name that no interface has. keys has the Q_Key, and the P_Key of ports without an IPoIB interface.
func rdmaPorts(sys string, keys probe.RDMAConfig) func(netdev string) *probe.RDMAConfig {
	return func(netdev string) *probe.RDMAConfig {
		if port := ipoibPort(sys, netdev, keys.QKey); port != nil {
			return port
		}
		// Documentation/ABI/stable/sysfs-class-infiniband: the interface of each GID.
		files, err := filepath.Glob(filepath.Join(sys, "class/infiniband/*/ports/*/gid_attrs/ndevs/[0-7]"))
		if err != nil {
			return nil
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil || strings.TrimSpace(string(b)) != netdev {
				continue
			}
			port := filepath.Dir(filepath.Dir(filepath.Dir(f)))
			number, err := strconv.Atoi(filepath.Base(port))
			if err != nil {
				continue
			}
			return &probe.RDMAConfig{Device: filepath.Base(filepath.Dir(filepath.Dir(port))), Port: number, PKey: rdma.DefaultPKey, QKey: keys.QKey}
		}
		if port := portByName(listIBPorts(sys), netdev); port != nil {
			return port.queuePair(keys)
		}
		return nil
	}
}

// withLibrary returns a function that finds RDMA ports as find does, and none while check returns an error.
func withLibrary(check func() error, find func(netdev string) *probe.RDMAConfig) func(netdev string) *probe.RDMAConfig {
	return func(netdev string) *probe.RDMAConfig {
		if check() != nil {
			return nil
		}
		return find(netdev)
	}
}

// linkSpeed returns a link's speed (Documentation/ABI/testing/sysfs-class-net, /sys/class/net/<iface>/speed, in Mbit/s,
// negative when not known). It returns 0 if the speed is not known.
func linkSpeed(name string) uint64 {
	b, err := os.ReadFile(filepath.Join("/sys/class/net", name, "speed"))
	if err != nil {
		return 0
	}
	v, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 32)
	if err != nil || v <= 0 {
		return 0
	}
	return uint64(v) * 1e6
}

// DescribeNICs returns the node's NICs as they are configured, for programs that draw the fabric.
func (n *Node) DescribeNICs() fabric.NodeView {
	cfg := n.Config()
	out := fabric.NodeView{Node: cfg.Node, NICs: make([]fabric.NICView, 0, len(cfg.NICs))}
	ports := listIBPorts("/sys")
	byName, byAddress := localInterfaces(ports)
	for i := range cfg.NICs {
		c := &cfg.NICs[i]
		v := fabric.NICView{NIC: c.NIC, Addresses: []netip.Addr{}, Plane: c.Plane, Rail: c.Rail, Side: c.Side}
		d, ok := byName[c.Device]
		if !ok {
			d = byAddress[c.Address]
		}
		if p := configuredPort(ports, c); p != nil && d.guid == "" {
			d.guid, d.rdma = formatGUID(p.portGUID), p.device
		}
		v.MAC, v.GUID, v.RDMADevice, v.MTU = d.mac, d.guid, d.rdma, d.mtu
		if c.Address.IsValid() {
			v.Addresses = append(v.Addresses, c.Address)
		} else {
			v.Addresses = append(v.Addresses, d.addresses...)
		}
		out.NICs = append(out.NICs, v)
	}
	return out
}

// configuredPort returns the InfiniBand port of a NIC that is no interface. It returns nil if there is none.
func configuredPort(ports []ibPort, c *probe.NICConfig) *ibPort {
	name := c.Device
	if r := c.RDMA; name == "" && r != nil {
		name = (&ibPort{device: r.Device, number: r.Port}).name()
	}
	return portByName(ports, name)
}

// device represents an interface of the node.
type device struct {
	mac       string
	guid      string // of the InfiniBand port; empty for other interfaces
	rdma      string // the RDMA device of an InfiniBand port
	mtu       int    // 0 if it is not known
	addresses []netip.Addr
}

// localInterfaces returns the node's interfaces by name and by address. What cannot be read is absent.
func localInterfaces(ports []ibPort) (byName map[string]device, byAddress map[netip.Addr]device) {
	byName, byAddress = map[string]device{}, map[netip.Addr]device{}
	list, err := net.Interfaces()
	if err != nil {
		return byName, byAddress
	}
	for _, i := range list {
		d := device{mac: i.HardwareAddr.String(), mtu: i.MTU}
		if p := portOfInterface(ports, i.HardwareAddr); p != nil {
			d.guid, d.rdma = formatGUID(p.portGUID), p.device
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					d.addresses = append(d.addresses, ip.Unmap())
				}
			}
		}
		byName[i.Name] = d
		for _, a := range d.addresses {
			byAddress[a] = d
		}
	}
	return byName, byAddress
}
