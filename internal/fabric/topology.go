package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"sync"
)

// Role is a switch's place in the Clos.
type Role string

// Roles of the topology file.
const (
	Leaf  Role = "leaf"
	Spine Role = "spine"
	Core  Role = "core"
)

// DefaultTier returns the tier of a role if the file does not give one.
func (r Role) DefaultTier() int {
	switch r {
	case Leaf:
		return 1
	case Spine:
		return 2
	case Core:
		return 3
	}
	return 0
}

// Switch is a switch of the topology file.
type Switch struct {
	// Name is the switch's name, unique among switches and nodes.
	Name string `yaml:"name" schema:"required,form=name"`
	// Role is the switch's place in the Clos.
	Role Role `yaml:"role" schema:"required,enum=leaf|spine|core"`
	// Tier is the height in the Clos; NICs are below tier 1. Without it, the role decides: leaf 1, spine 2, core 3.
	Tier int `yaml:"tier,omitempty" schema:"min=1,max=9"`
	// Pod is the pod that the switch belongs to.
	Pod string `yaml:"pod,omitempty"`
	// Group is the group of a Dragonfly+ that the switch belongs to.
	Group string `yaml:"group,omitempty"`
	// Plane is the plane that the switch belongs to.
	Plane string `yaml:"plane,omitempty"`
	// Addresses are addresses of the switch itself, such as its loopback.
	Addresses []netip.Addr `yaml:"addresses,omitempty,flow"`
	// Locator is the prefix of the switch in the destinations of source-routed packets. It is required with forwarding: srv6.
	Locator Locator `yaml:"locator,omitempty"`
	// Discovered marks a switch that was concluded from reports.
	Discovered bool `yaml:"discovered,omitempty"`
	Line       int  `yaml:"-"`
}

// NIC is one network port of a node.
type NIC struct {
	Node string `yaml:"-"`
	// Device is the name on the node: a network interface or an RDMA device.
	Device string `yaml:"device" schema:"required,form=device"`
	// Plane is the NIC's plane. Without it, it is that of the NIC's leaf.
	Plane string `yaml:"plane,omitempty"`
	// Rail is the number of the NIC's position on its node.
	Rail *int `yaml:"rail,omitempty" schema:"min=0,max=65536"`
	// Side is a label of the NIC in series, for example of dual-homed hosts.
	Side string `yaml:"side,omitempty"`
	// Addresses are addresses of the NIC, of which probes use the first. Without them, probes use the address on its link.
	Addresses []netip.Addr `yaml:"addresses,omitempty,flow"`
	// Aliases are other names of the same NIC.
	Aliases []string `yaml:"aliases,omitempty,flow"`
	Line    int      `yaml:"-"`
}

// ID returns the NIC's canonical identifier, node/device.
func (n NIC) ID() string { return n.Node + "/" + n.Device }

// Bond joins NICs of one node.
type Bond struct {
	// Name is the bond's device name, unique on the node.
	Name string `yaml:"name" schema:"required,form=device"`
	// Members are devices of this node's NICs.
	Members []string `yaml:"members,flow" schema:"required,minItems=1"`
	Line    int      `yaml:"-"`
}

// Node is a host of the topology file.
type Node struct {
	// Name is the node's name, unique among switches and nodes. The agent on the node has the same name.
	Name string `yaml:"name" schema:"required,form=name"`
	// Address is the IP address or host name, without a port, at which the node's agent is scraped.
	Address string `yaml:"address,omitempty" schema:"form=host"`
	// NICs are the node's NICs.
	NICs []NIC `yaml:"nics"`
	// Bonds are the node's bonds.
	Bonds []Bond `yaml:"bonds,omitempty"`
	// Discovered marks a node that was concluded from reports.
	Discovered bool `yaml:"discovered,omitempty"`
	Line       int  `yaml:"-"`
}

// Link is a cable between two ends, each a switch port or a NIC.
type Link struct {
	// A is one end: switch:port or node/device. At least one of the two ends is a switch's port.
	A string `yaml:"a" schema:"required,form=end"`
	// B is the other end.
	B string `yaml:"b" schema:"required,form=end"`
	// SpeedGbps is the speed in gigabits per second. Simulated fabrics take 100 where it is absent.
	SpeedGbps float64 `yaml:"speed_gbps,omitempty" schema:"above=0,max=1000000"`
	// LAG is the name of the LAG that the cable belongs to.
	LAG string `yaml:"lag,omitempty"`
	// AAddress is the address of end a, with the length of its prefix.
	AAddress netip.Prefix `yaml:"a_address,omitempty"`
	// BAddress is the address of end b, with the length of its prefix.
	BAddress netip.Prefix `yaml:"b_address,omitempty"`
	// Discovered marks a cable that was concluded from reports.
	Discovered bool `yaml:"discovered,omitempty"`
	Line       int  `yaml:"-"`
}

// MarshalYAML writes the addresses that are there; yaml.v3 takes every
// netip.Prefix for an empty one.
func (l Link) MarshalYAML() (any, error) {
	out := struct {
		A          string  `yaml:"a"`
		B          string  `yaml:"b"`
		SpeedGbps  float64 `yaml:"speed_gbps,omitempty"`
		LAG        string  `yaml:"lag,omitempty"`
		AAddress   string  `yaml:"a_address,omitempty"`
		BAddress   string  `yaml:"b_address,omitempty"`
		Discovered bool    `yaml:"discovered,omitempty"`
	}{A: l.A, B: l.B, SpeedGbps: l.SpeedGbps, LAG: l.LAG, Discovered: l.Discovered}
	if l.AAddress.IsValid() {
		out.AAddress = l.AAddress.String()
	}
	if l.BAddress.IsValid() {
		out.BAddress = l.BAddress.String()
	}
	return out, nil
}

// ID returns the link's canonical identifier.
func (l Link) ID() string { return LinkID(l.A, l.B) }

// IsAccess reports whether one end is a NIC.
func (l Link) IsAccess() bool { return IsNIC(l.A) || IsNIC(l.B) }

// Topology is the content of a topology file.
type Topology struct {
	// Version is the version of the format, of which there is one.
	Version int `yaml:"version" schema:"required,min=1,max=1"`
	// Routing is which paths packets take between groups of a Dragonfly+: minimal ones, which is the default, or also
	// those by a third group.
	Routing Routing `yaml:"routing,omitempty" schema:"enum=minimal|adaptive"`
	// Forwarding is how the path of a packet is chosen: by switches with a hash of the flow, which is the default, by switches
	// anew for each packet, or by hosts with SRv6.
	Forwarding Forwarding `yaml:"forwarding,omitempty" schema:"enum=ecmp|spray|srv6"`
	// Switches are the switches.
	Switches []Switch `yaml:"switches" schema:"required,minItems=1"`
	// Nodes are the hosts, with at least two NICs together.
	Nodes []Node `yaml:"nodes" schema:"required,minItems=1"`
	// Links are the cables.
	Links []Link `yaml:"links"`
}

// WithSwappedCables returns the topology with the far ends of the cables at two ports exchanged. Addresses stay with
// their ports.
func (t *Topology) WithSwappedCables(one, other string) *Topology {
	out := *t
	out.Links = slices.Clone(t.Links)
	address := map[string]netip.Prefix{}
	for _, l := range t.Links {
		address[l.A], address[l.B] = l.AAddress, l.BAddress
	}
	moved := map[string]string{one: other, other: one}
	for i := range out.Links {
		l := &out.Links[i]
		if to, ok := moved[l.A]; ok {
			l.A, l.AAddress = to, address[to]
		}
		if to, ok := moved[l.B]; ok {
			l.B, l.BAddress = to, address[to]
		}
	}
	return &out
}

// Graph indexes a topology for look-up. It does not change after NewGraph.
type Graph struct {
	Topo     *Topology
	switches map[string]*Switch
	nodes    map[string]*Node
	nics     map[string]*NIC
	alias    map[string]string
	byEnd    map[string]*Link
	byOwner  map[string][]string // ends of a switch or node, sorted
	byAddr   map[netip.Addr]string
	nicIDs   []string
	tiers    int // highest tier of any link or switch
	cabled   func() *cabledSwitches
	directed func() []Direction
}

// NewGraph indexes t, which must have passed its check without errors.
func NewGraph(t *Topology) *Graph {
	g := &Graph{Topo: t, switches: map[string]*Switch{}, nodes: map[string]*Node{}, nics: map[string]*NIC{}, alias: map[string]string{},
		byEnd: map[string]*Link{}, byOwner: map[string][]string{}, byAddr: map[netip.Addr]string{}}
	for i := range t.Switches {
		g.switches[t.Switches[i].Name] = &t.Switches[i]
	}
	for i := range t.Nodes {
		g.nodes[t.Nodes[i].Name] = &t.Nodes[i]
		for j := range t.Nodes[i].NICs {
			n := &t.Nodes[i].NICs[j]
			g.nics[n.ID()] = n
			g.nicIDs = append(g.nicIDs, n.ID())
			for _, a := range n.Aliases {
				g.alias[n.Node+"/"+a] = n.ID()
			}
			for _, a := range n.Addresses {
				g.byAddr[a] = n.ID()
			}
		}
	}
	for i := range t.Links {
		l := &t.Links[i]
		for _, e := range []struct {
			end  string
			addr netip.Prefix
		}{{l.A, l.AAddress}, {l.B, l.BAddress}} {
			g.byEnd[e.end] = l
			g.byOwner[OwnerOf(e.end)] = append(g.byOwner[OwnerOf(e.end)], e.end)
			if e.addr.IsValid() {
				g.byAddr[e.addr.Addr()] = e.end
			}
		}
	}
	sort.Strings(g.nicIDs)
	for _, ends := range g.byOwner {
		sort.Strings(ends)
	}
	for i := range t.Switches {
		g.tiers = max(g.tiers, g.SwitchTier(t.Switches[i].Name))
	}
	for i := range t.Links {
		g.tiers = max(g.tiers, g.LinkTier(&t.Links[i]))
	}
	g.cabled = sync.OnceValue(g.numberSwitches)
	g.directed = sync.OnceValue(func() (out []Direction) {
		for i := range t.Links {
			out = append(out, Direction{From: t.Links[i].A, To: t.Links[i].B}, Direction{From: t.Links[i].B, To: t.Links[i].A})
		}
		return out
	})
	return g
}

// LinkDirections returns both directions of every link, in the order of the topology. It must not be changed.
func (g *Graph) LinkDirections() []Direction { return g.directed() }

// NICIDs lists all NIC identifiers, sorted.
func (g *Graph) NICIDs() []string { return g.nicIDs }

// Switch returns a switch by name, or nil.
func (g *Graph) Switch(name string) *Switch { return g.switches[name] }

// Node returns a node by name, or nil.
func (g *Graph) Node(name string) *Node { return g.nodes[name] }

// NIC returns a NIC by identifier or alias, or nil.
func (g *Graph) NIC(id string) *NIC {
	if n := g.nics[id]; n != nil {
		return n
	}
	return g.nics[g.alias[id]]
}

// LinkAt returns the link plugged into an end, or nil.
func (g *Graph) LinkAt(end string) *Link { return g.byEnd[end] }

// ElementIDs lists the switches, nodes, NICs, ports and links there are.
func (g *Graph) ElementIDs() []string {
	var out []string
	for i := range g.Topo.Switches {
		out = append(out, g.Topo.Switches[i].Name)
	}
	for i := range g.Topo.Nodes {
		out = append(out, g.Topo.Nodes[i].Name)
	}
	for i := range g.Topo.Links {
		l := &g.Topo.Links[i]
		out = append(out, l.A, l.B, l.ID())
	}
	return out
}

// CheckElement returns an error if there is no such switch, node, NIC, port or link. A NIC has to be named by its identifier.
func (g *Graph) CheckElement(element string) error {
	switch {
	case element == "":
		return errors.New("is missing: want a switch, a node, a NIC, a port or a link")
	case g.Switch(element) != nil, len(g.EndsOf(element)) > 0, g.LinkAt(element) != nil, g.NIC(element) != nil && g.NIC(element).ID() == element:
		return nil
	}
	if a, b, ok := SplitLink(element); ok && g.PeerOf(a) == b && b != "" && LinkID(a, b) == element {
		return nil
	}
	return fmt.Errorf("%q is not in the topology: want a switch, a node, a NIC (node/device), a port (switch:port) or a link (END--END, in byte order)", element)
}

// PeerOf returns the other end of the link plugged into end, or "".
func (g *Graph) PeerOf(end string) string {
	l := g.byEnd[end]
	switch {
	case l == nil:
		return ""
	case l.A == end:
		return l.B
	}
	return l.A
}

// EndsOf lists the linked ends of a switch or node, sorted.
func (g *Graph) EndsOf(owner string) []string { return g.byOwner[owner] }

// EndOf maps an interface address to the port or NIC that owns it, or "".
func (g *Graph) EndOf(a netip.Addr) string { return g.byAddr[a] }

// LeafOf returns the leaf port that faces a NIC, or "" when it has no link.
func (g *Graph) LeafOf(nic string) (leaf, port string) {
	sw, p, ok := SplitPort(g.PeerOf(nic))
	if !ok {
		return "", ""
	}
	return sw, p
}

// ProbeAddress returns the address a NIC is probed at: its first own address, else
// the one on its link. It is invalid when the topology has none.
func (g *Graph) ProbeAddress(nic string) netip.Addr {
	if n := g.nics[nic]; n != nil && len(n.Addresses) > 0 {
		return n.Addresses[0]
	}
	if l := g.byEnd[nic]; l != nil {
		if l.A == nic {
			return l.AAddress.Addr()
		}
		return l.BAddress.Addr()
	}
	return netip.Addr{}
}

// SwitchTier returns the tier of a switch, from its role when the file is silent.
func (g *Graph) SwitchTier(name string) int {
	s := g.switches[name]
	switch {
	case s == nil:
		return 0
	case s.Tier > 0:
		return s.Tier
	}
	return s.Role.DefaultTier()
}

func splitEnd(end string) (owner, name string) {
	owner = OwnerOf(end)
	return owner, end[len(owner)+1:]
}

// Hop is one switch of a path with the ports the packet came in and went out by.
type Hop struct {
	Switch string `json:"switch"`
	In     string `json:"in"`
	Out    string `json:"out"`
}

// Path is the switches from one NIC to another, in order.
type Path []Hop

// LinkDirections lists the directed links a packet crosses from NIC src to NIC dst
// over p: the access link first, the far access link last. A hop whose port is
// not known yields no direction on that side.
func (p Path) LinkDirections(src, dst string) []Direction {
	if len(p) == 0 {
		return nil
	}
	out := make([]Direction, 0, len(p)+1)
	from := src
	for _, h := range p {
		if from != "" && h.In != "" {
			out = append(out, Direction{from, h.Switch + ":" + h.In})
		}
		from = ""
		if h.Out != "" {
			from = h.Switch + ":" + h.Out
		}
	}
	if from != "" {
		out = append(out, Direction{from, dst})
	}
	return out
}

// Reverse returns the way back over a path.
func (p Path) Reverse() Path {
	out := make(Path, len(p))
	for i, h := range p {
		out[len(p)-1-i] = Hop{Switch: h.Switch, In: h.Out, Out: h.In}
	}
	return out
}

// CanonicalKey returns a canonical text of the path, for interning and comparison.
func (p Path) CanonicalKey() string {
	s := ""
	for i, h := range p {
		if i > 0 {
			s += " "
		}
		s += fmt.Sprintf("%s[%s>%s]", h.Switch, h.In, h.Out)
	}
	return s
}

// HasElement reports whether an element is part of the fabric.
func (g *Graph) HasElement(e Element) bool {
	switch e.Kind {
	case KindNIC, KindClock:
		return g.NIC(e.ID) != nil
	case KindLink, KindAccessLink:
		a, b, ok := e.LinkEnds()
		return ok && g.PeerOf(a) == b
	case KindPair, KindCorridor:
		return !slices.ContainsFunc(e.Waypoints(), func(sw string) bool { return len(g.EndsOf(sw)) == 0 })
	}
	return len(g.EndsOf(OwnerOf(e.ID))) > 0
}
