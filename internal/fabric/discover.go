package fabric

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// PortView is a switch's port as the switch sees it: /api/v1/ports of graylink-switch.
type PortView struct {
	Port      string         `json:"port"`
	MAC       string         `json:"mac"`
	Up        bool           `json:"up"`
	SpeedGbps float64        `json:"speed_gbps,omitempty"`
	Addresses []netip.Prefix `json:"addresses"`
	// LearnedAddresses are those that answer at the far end (ARP, neighbour discovery).
	LearnedAddresses []LearnedAddress `json:"beyond"`
	// System and SystemPort are the far end's names for itself, by LLDP.
	System     string `json:"system,omitempty"`
	SystemPort string `json:"system_port,omitempty"`
}

// LearnedAddress is an address that was learnt at a port.
type LearnedAddress struct {
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
}

// SwitchView represents the ports of a switch as the switch reports them.
type SwitchView struct {
	Switch string     `json:"switch"`
	Ports  []PortView `json:"ports"`
}

// NICView is a NIC as its node sees it: /api/v1/nics of graylink-node.
type NICView struct {
	NIC       string       `json:"nic"` // node/device
	MAC       string       `json:"mac,omitempty"`
	Addresses []netip.Addr `json:"addresses"`
	// Networks are those of the addresses, in their order, if they are known.
	Networks []netip.Prefix `json:"networks,omitempty"`
	// Neighbours announce themselves to the NIC by LLDP. A cable has one.
	Neighbours []Neighbour `json:"neighbours,omitempty"`
	Plane      string      `json:"plane,omitempty"`
	Rail       *int        `json:"rail,omitempty"`
	Side       string      `json:"side,omitempty"`
	// GUID is that of its InfiniBand port, 0x and 16 digits. RDMADevice is its RDMA device. Both are empty where they are not known.
	GUID       string `json:"guid,omitempty"`
	RDMADevice string `json:"rdma_device,omitempty"`
	// MTU is that of its interface, or 0 where it is not known.
	MTU int `json:"mtu,omitempty"`
}

// Neighbour is the far end of a NIC's cable by LLDP.
type Neighbour struct {
	System  string `json:"system"` // its name, or its chassis if it has no name
	Port    string `json:"port"`
	Chassis string `json:"chassis"` // identifier that all ports of the system share
	// Forwards is set if the system states that it forwards packets of others, as switches and routers do.
	Forwards bool `json:"forwards"`
}

// NodeView represents the NICs of a node as the node reports them.
type NodeView struct {
	Node string    `json:"node"`
	NICs []NICView `json:"nics"`
}

// DiscoverTopology makes a topology from the reports of switches and nodes. A cable is where one end reports it and
// the other does not contradict. What is contradicted, unclear or missing is a finding, and no cable is made of it.
// Roles follow from the distance to the NICs: a switch with NICs is a leaf, its neighbours without NICs are spines,
// and theirs are cores.
func DiscoverTopology(switches []SwitchView, nodes []NodeView) (*Topology, Problems) {
	d := &discovery{ports: map[string]*PortView{}, byAddr: map[netip.Addr][]string{}, byMAC: map[string][]string{}, reported: map[string]bool{}, nics: map[string]NICView{}}
	for i := range switches {
		d.addSwitch(&switches[i])
	}
	for i := range nodes {
		d.addNode(&nodes[i])
	}
	// The far ends that each end is reported to be plugged into, by either end.
	said := map[string][]string{}
	reported := map[Direction]bool{}
	for end := range d.ports {
		f := d.farEnd(end)
		if f == "" {
			continue
		}
		reported[Direction{end, f}] = true
		for _, pair := range [2][2]string{{end, f}, {f, end}} {
			if !slices.Contains(said[pair[0]], pair[1]) {
				said[pair[0]] = append(said[pair[0]], pair[1])
			}
		}
	}
	t := &Topology{Version: 1}
	plugged := map[string]bool{}
	for _, end := range sortedKeys(said) {
		others := said[end]
		f := others[0]
		switch {
		case len(others) > 1:
			slices.Sort(others)
			d.errorf(end, "is said to be plugged into %s: no cable is made of that", strings.Join(others, " and into "))
			continue
		case f == end:
			d.errorf(end, "is said to be plugged into itself")
			continue
		case len(said[f]) > 1 || plugged[end] || IsNIC(end):
			continue // reported there, or the other way round
		}
		plugged[end], plugged[f] = true, true
		l := Link{A: end, B: f, SpeedGbps: d.ports[end].SpeedGbps, AAddress: d.portAddress(end), BAddress: d.portAddress(f)}
		if IsNIC(f) {
			l.A, l.B, l.AAddress, l.BAddress = f, end, d.nicAddress(f, end), l.AAddress
		} else if !reported[Direction{end, f}] || !reported[Direction{f, end}] {
			d.warnf(end, "only one end reports the cable to %s", f)
		}
		t.Links = append(t.Links, l)
	}
	slices.SortFunc(t.Links, func(a, b Link) int {
		return cmp.Or(compareBool(b.IsAccess(), a.IsAccess()), cmp.Compare(a.A, b.A), cmp.Compare(a.B, b.B))
	})
	d.assignRoles(t, switches)
	for i := range nodes {
		n := Node{Name: nodes[i].Node}
		for _, v := range nodes[i].NICs {
			_, device, ok := SplitNIC(v.NIC)
			if !ok {
				d.errorf(v.NIC, "is no NIC of %s: node/device is expected", nodes[i].Node)
				continue
			}
			if !plugged[v.NIC] {
				d.warnf(v.NIC, "no switch sees it")
			}
			n.NICs = append(n.NICs, NIC{Node: n.Name, Device: device, Plane: v.Plane, Rail: v.Rail, Side: v.Side, Addresses: v.Addresses})
		}
		t.Nodes = append(t.Nodes, n)
	}
	slices.SortFunc(t.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(d.problems, func(a, b Problem) int { return cmp.Compare(a.Field, b.Field) })
	return t, d.problems
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

type discovery struct {
	ports    map[string]*PortView
	nics     map[string]NICView
	reported map[string]bool // switches and nodes that reported
	byAddr   map[netip.Addr][]string
	byMAC    map[string][]string
	problems Problems
}

// discovered stands for the file in findings about a topology without a file.
const discovered = "discovery"

func (d *discovery) errorf(field, format string, args ...any) {
	d.problems = append(d.problems, Problem{File: discovered, Field: field, Message: fmt.Sprintf(format, args...)})
}

func (d *discovery) warnf(field, format string, args ...any) {
	d.problems = append(d.problems, Problem{File: discovered, Field: field, Message: fmt.Sprintf(format, args...), Warning: true})
}

func (d *discovery) addSwitch(s *SwitchView) {
	if err := CheckName(s.Switch); err != nil {
		d.errorf(s.Switch, "%v", err)
		return
	}
	if d.reported[s.Switch] {
		d.errorf(s.Switch, "two switches report this name")
		return
	}
	d.reported[s.Switch] = true
	for i := range s.Ports {
		p := &s.Ports[i]
		if err := CheckDevice(p.Port); err != nil {
			d.errorf(s.Switch, "%v", err)
			continue
		}
		end := s.Switch + ":" + p.Port
		d.ports[end] = p
		for _, a := range p.Addresses {
			d.byAddr[a.Addr()] = append(d.byAddr[a.Addr()], end)
		}
		if p.MAC != "" {
			d.byMAC[strings.ToLower(p.MAC)] = append(d.byMAC[strings.ToLower(p.MAC)], end)
		}
	}
}

func (d *discovery) addNode(n *NodeView) {
	d.reported[n.Node] = true
	for _, v := range n.NICs {
		d.nics[v.NIC] = v
		for _, a := range v.Addresses {
			d.byAddr[a] = append(d.byAddr[a], v.NIC)
		}
		if v.MAC != "" {
			d.byMAC[strings.ToLower(v.MAC)] = append(d.byMAC[strings.ToLower(v.MAC)], v.NIC)
		}
	}
}

// farEnd returns the far end of a port's cable, and "" if no end reports it. LLDP is about the cable itself, while an
// address may have been learnt across a bridge.
func (d *discovery) farEnd(end string) string {
	p := d.ports[end]
	var heard string
	if p.System != "" {
		sw, nic := p.System+":"+p.SystemPort, p.System+"/"+p.SystemPort
		switch {
		case d.ports[sw] != nil:
			heard = sw
		case d.nics[nic].NIC != "":
			heard = nic
		case d.reported[p.System]:
			d.warnf(end, "LLDP names port %q of %s, which that does not have", p.SystemPort, p.System)
		default:
			d.warnf(end, "LLDP names %q, port %q, which was not asked", p.System, p.SystemPort)
		}
	}
	var learnt []string
	for _, b := range p.LearnedAddresses {
		for _, e := range append(slices.Clone(d.byAddr[b.Address]), d.byMAC[strings.ToLower(b.MAC)]...) {
			if e != end && !slices.Contains(learnt, e) {
				learnt = append(learnt, e)
			}
		}
	}
	slices.Sort(learnt)
	switch {
	case heard != "" && len(learnt) > 0 && !slices.Contains(learnt, heard):
		d.warnf(end, "LLDP names %s, the addresses behind it are of %s; LLDP is believed", heard, strings.Join(learnt, ", "))
		return heard
	case heard != "":
		return heard
	case len(learnt) > 1:
		d.warnf(end, "addresses of %s answer behind it: which of them is plugged in is not known", strings.Join(learnt, ", "))
		return ""
	case len(learnt) == 1:
		return learnt[0]
	}
	return ""
}

// portAddress returns the address of a port, if it has one.
func (d *discovery) portAddress(end string) netip.Prefix {
	if p := d.ports[end]; p != nil && len(p.Addresses) > 0 {
		return p.Addresses[0]
	}
	return netip.Prefix{}
}

// nicAddress returns the address of a NIC in the subnet of the port that it is plugged into.
func (d *discovery) nicAddress(nic, port string) netip.Prefix {
	for _, a := range d.nics[nic].Addresses {
		for _, own := range d.ports[port].Addresses {
			if own.Contains(a) {
				return netip.PrefixFrom(a, own.Bits())
			}
		}
	}
	return netip.Prefix{}
}

// assignRoles names the tiers.
func (d *discovery) assignRoles(t *Topology, switches []SwitchView) {
	tier := tiersByDistance(t.Links)
	for i := range switches {
		s := &switches[i]
		if tier[s.Switch] == 0 {
			d.warnf(s.Switch, "no cable leads from it to a NIC: it is left out")
			continue
		}
		t.Switches = append(t.Switches, Switch{Name: s.Switch, Role: []Role{Leaf, Spine, Core}[tier[s.Switch]-1]})
	}
	t.Links = slices.DeleteFunc(t.Links, func(l Link) bool { return !IsNIC(l.A) && tier[OwnerOf(l.A)] == 0 })
	slices.SortFunc(t.Switches, func(a, b Switch) int { return cmp.Compare(a.Name, b.Name) })
}

// tiersByDistance returns the tier of each switch by its distance to the nearest NIC, up to 3. The NIC is end A of its link.
func tiersByDistance(links []Link) map[string]int {
	tier := map[string]int{}
	for _, l := range links {
		if l.IsAccess() {
			tier[OwnerOf(l.B)] = 1
		}
	}
	for next := 1; next < 3; next++ {
		for _, l := range links {
			for _, pair := range [2][2]string{{l.A, l.B}, {l.B, l.A}} {
				from, to := OwnerOf(pair[0]), OwnerOf(pair[1])
				if !IsNIC(pair[0]) && !IsNIC(pair[1]) && tier[from] == next && tier[to] == 0 {
					tier[to] = next + 1
				}
			}
		}
	}
	return tier
}
