package nodeagent

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/rdma"
)

// ibPort represents an InfiniBand port of this host. Nil and the zero Addr stand for what cannot be read, or is not
// assigned yet.
type ibPort struct {
	device   string
	number   int
	nodeGUID *uint64
	portGUID *uint64
	gid      netip.Addr // the first one, of the subnet's prefix and the port's GUID
	lid      *uint16
	smLID    *uint16
	speed    *uint64 // bits per second
	active   bool
}

// name returns the port's name among the devices of its host, as topologies of subnets have it.
func (p *ibPort) name() string {
	if p.number == 1 {
		return p.device
	}
	return p.device + "." + strconv.Itoa(p.number)
}

// message returns what a registration has of the port.
func (p *ibPort) message() *agentapi.InfiniBandPort {
	m := &agentapi.InfiniBandPort{Device: p.device, Port: uint32(p.number), NodeGuid: p.nodeGUID, PortGuid: p.portGUID}
	if p.gid.IsValid() {
		m.SubnetPrefix = proto.Uint64(rdma.SubnetPrefix(p.gid))
	}
	if p.lid != nil {
		m.Lid = proto.Uint32(uint32(*p.lid))
	}
	if p.smLID != nil {
		m.SmLid = proto.Uint32(uint32(*p.smLID))
	}
	return m
}

// listIBPorts returns the InfiniBand ports of this host in the order of their names
// (Documentation/ABI/stable/sysfs-class-infiniband). A port whose number or link layer cannot be read is not among them.
func listIBPorts(sys string) (out []ibPort) {
	dirs, err := filepath.Glob(filepath.Join(sys, "class/infiniband/*/ports/*"))
	if err != nil {
		return nil
	}
	for _, dir := range dirs {
		number, err := strconv.ParseUint(filepath.Base(dir), 10, 8)
		layer, failed := readTrimmed(filepath.Join(dir, "link_layer"))
		if err != nil || number == 0 || failed != nil || layer != "InfiniBand" {
			continue
		}
		device := filepath.Dir(filepath.Dir(dir))
		p := ibPort{device: filepath.Base(device), number: int(number), nodeGUID: readGUID(filepath.Join(device, "node_guid")),
			lid: readLID(filepath.Join(dir, "lid")), smLID: readLID(filepath.Join(dir, "sm_lid")), speed: readRate(filepath.Join(dir, "rate"))}
		if text, err := readTrimmed(filepath.Join(dir, "gids/0")); err == nil {
			p.setGID(text)
		}
		state, err := readTrimmed(filepath.Join(dir, "state"))
		p.active = err == nil && strings.HasPrefix(state, "4:") // enum ib_port_state: "4: ACTIVE"
		out = append(out, p)
	}
	return out
}

// setGID sets the first GID and the GUID in it. A GID without a GUID is not assigned.
func (p *ibPort) setGID(text string) {
	gid, err := netip.ParseAddr(text)
	if err != nil || !gid.Is6() || gid.Is4In6() {
		return
	}
	if guid := rdma.PortGUID(gid); guid != 0 {
		p.gid, p.portGUID = gid, &guid
	}
}

// readGUID returns the GUID in a file, as b859:9f03:00fd:0b22. It returns nil if there is none.
func readGUID(file string) *uint64 {
	text, err := readTrimmed(file)
	if err != nil {
		return nil
	}
	groups := strings.Split(text, ":")
	if len(groups) != 4 {
		return nil
	}
	guid := uint64(0)
	for _, g := range groups {
		v, err := strconv.ParseUint(g, 16, 16)
		if err != nil || len(g) != 4 {
			return nil
		}
		guid = guid<<16 | v
	}
	if guid == 0 {
		return nil
	}
	return &guid
}

// readLID returns the LID in a file, as 0x2a. It returns nil if there is none: 0, and one that is not of a single port,
// are no LIDs of ports.
func readLID(file string) *uint16 {
	text, err := readTrimmed(file)
	if err != nil {
		return nil
	}
	v, err := strconv.ParseUint(text, 0, 16)
	if err != nil || v == 0 || v > agentapi.MaxLID {
		return nil
	}
	lid := uint16(v)
	return &lid
}

// readRate returns the rate in a file, as "100 Gb/sec (4X EDR)", in bits per second. It returns nil if there is none.
func readRate(file string) *uint64 {
	text, err := readTrimmed(file)
	if err != nil {
		return nil
	}
	number, _, ok := strings.Cut(text, " Gb/sec")
	v, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(v > 0 && v < 1e6) {
		return nil
	}
	rate := uint64(v * 1e9)
	return &rate
}

// portOfInterface returns the port of an IPoIB interface by the GID in its hardware address. If the port is not listed,
// it has only what the address says. It returns nil for other interfaces.
func portOfInterface(ports []ibPort, address net.HardwareAddr) *ibPort {
	gid, ok := ipoibGID(address)
	if !ok {
		return nil
	}
	for i := range ports {
		if ports[i].gid == gid {
			return &ports[i]
		}
	}
	p := &ibPort{}
	p.setGID(gid.String())
	return p
}

// portByName returns the InfiniBand port of a name. It returns nil if this host has none.
func portByName(ports []ibPort, name string) *ibPort {
	for i := range ports {
		if ports[i].name() == name {
			return &ports[i]
		}
	}
	return nil
}

// formatGUID returns a GUID as topologies have it, and nothing if it is not known.
func formatGUID(guid *uint64) string {
	if guid == nil {
		return ""
	}
	return fmt.Sprintf("0x%016x", *guid)
}

// bareIBPorts returns the registrations of the ports without an interface that is among the reported ones. pairs has
// the queue pairs of NICs by their devices. probed states that the agent opens a queue pair when one is assigned.
func bareIBPorts(ports []ibPort, reported []*agentapi.Interface, pairs map[string]*agentapi.RDMA, probed bool) (out []*agentapi.Interface) {
	for i := range ports {
		p := &ports[i]
		if len(reported)+len(out) == maxInterfaces {
			break
		}
		if slices.ContainsFunc(reported, func(f *agentapi.Interface) bool {
			return f.GetIb().GetDevice() == p.device && f.GetIb().GetPort() == uint32(p.number)
		}) {
			continue
		}
		v := &agentapi.Interface{Name: p.name(), Up: p.active, Rdma: pairs[p.name()], Ib: p.message()}
		if p.speed != nil {
			v.SpeedBps = *p.speed
		}
		if v.Rdma == nil && probed {
			v.Rdma = &agentapi.RDMA{Device: p.device, Port: uint32(p.number)}
		}
		out = append(out, v)
	}
	return out
}

// queuePair returns the configuration of a queue pair on the port, with the keys of another one.
func (p *ibPort) queuePair(keys probe.RDMAConfig) *probe.RDMAConfig {
	return &probe.RDMAConfig{Device: p.device, Port: p.number, PKey: keys.PKey, PKeyIndex: keys.PKeyIndex, QKey: keys.QKey}
}
