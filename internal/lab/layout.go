package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"regexp"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// maxIfName is IFNAMSIZ - 1: the most bytes an interface's name can have.
const maxIfName = 15

// Interface is one linked port of a switch or one linked NIC of a node.
type Interface struct {
	End     string       `json:"end"`              // switch:port or node/device
	Name    string       `json:"name"`             // of the kernel's interface
	MAC     string       `json:"mac"`              //
	Address netip.Prefix `json:"address"`          //
	Extra   []netip.Addr `json:"extra,omitempty"`  // a NIC's further addresses
	Shared  bool         `json:"shared,omitempty"` // other links have addresses of this subnet: routed host by host
	Peer    string       `json:"peer"`             // the other end of the link
	PeerMAC string       `json:"peer_mac"`         //
	PeerAdr netip.Addr   `json:"peer_address"`     //
	PeerExt []netip.Addr `json:"peer_extra,omitempty"`
	// Unnumbered ports have an IPv6 link-local address as well, over which FRR routes.
	Unnumbered bool `json:"unnumbered,omitempty"`
}

// ownAddrs lists the interface's own addresses, that of the link first.
func (i Interface) ownAddrs() []netip.Addr {
	return append([]netip.Addr{i.Address.Addr()}, i.Extra...)
}

// Namespace stands for one switch or node.
type Namespace struct {
	Element    string       `json:"element"`
	Switch     bool         `json:"switch"`
	Netns      string       `json:"netns"`
	HashSeed   uint32       `json:"hash_seed,omitempty"` // net.ipv4.fib_multipath_hash_seed of a switch
	Loopback   []netip.Addr `json:"loopback,omitempty"`  // a switch's own addresses
	Interfaces []Interface  `json:"interfaces"`
}

// Layout is a topology turned into namespaces, interfaces and addresses. It
// is a pure function of the lab's name, the topology and the kind of routing.
type Layout struct {
	Topology   *fabric.Topology `json:"topology"`          // completed with addresses
	Routing    string           `json:"routing,omitempty"` // RoutingFRR, or empty: the lab installs the routes
	Family     string           `json:"family,omitempty"`  // FamilyIPv6, or empty: IPv4
	Spray      string           `json:"spray,omitempty"`   // one of SprayKinds, or empty: switches hash flows
	Namespaces []Namespace      `json:"namespaces"`
}

// index is a Layout made ready for look-up.
type index struct {
	*Layout
	graph     *fabric.Graph
	byElement map[string]*Namespace
	byEnd     map[string]*Interface
}

func (l *Layout) buildIndex() *index {
	x := &index{Layout: l, graph: fabric.NewGraph(l.Topology), byElement: map[string]*Namespace{}, byEnd: map[string]*Interface{}}
	for i := range l.Namespaces {
		ns := &l.Namespaces[i]
		x.byElement[ns.Element] = ns
		for j := range ns.Interfaces {
			x.byEnd[ns.Interfaces[j].End] = &ns.Interfaces[j]
		}
	}
	return x
}

var labName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$`)

func checkLabName(name string) error {
	if !labName.MatchString(name) {
		return fmt.Errorf("lab name %q: want 1 to 32 letters, digits, '_', '.' or '-', the first a letter or digit", name)
	}
	return nil
}

// planLayout lays the topology out; topo itself is not changed. topo must have
// passed fabric's check.
func planLayout(name string, topo *fabric.Topology) (*index, error) {
	if err := checkLabName(name); err != nil {
		return nil, err
	}
	t, f, err := completeAddresses(topo, "")
	if err != nil {
		return nil, err
	}
	l := &Layout{Topology: t}
	if f == ipv6Family {
		l.Family = f.name
	}
	for _, s := range t.Switches {
		l.Namespaces = append(l.Namespaces, Namespace{Element: s.Name, Switch: true, Netns: netnsName(name, s.Name),
			HashSeed: hashSeed(s.Name), Loopback: s.Addresses})
	}
	for _, n := range t.Nodes {
		l.Namespaces = append(l.Namespaces, Namespace{Element: n.Name, Netns: netnsName(name, n.Name)})
	}
	g := fabric.NewGraph(t)
	shared := sharedSubnets(t)
	for i := range l.Namespaces {
		ns := &l.Namespaces[i]
		taken := map[string]bool{}
		for _, end := range g.EndsOf(ns.Element) {
			link, peer := g.LinkAt(end), g.PeerOf(end)
			own, far := link.AAddress, link.BAddress
			if link.B == end {
				own, far = far, own
			}
			ns.Interfaces = append(ns.Interfaces, Interface{
				End: end, Name: ifName(end[len(ns.Element)+1:], taken), MAC: macOf(end), Address: own, Extra: extraAddrs(g, end, own.Addr()),
				Shared: shared[link.ID()],
				Peer:   peer, PeerMAC: macOf(peer), PeerAdr: far.Addr(), PeerExt: extraAddrs(g, peer, far.Addr()),
			})
		}
	}
	return l.buildIndex(), nil
}

// netnsName keeps within NAME_MAX, 255 bytes of a file's name.
func netnsName(lab, element string) string {
	s := "gl-" + lab + "-" + element
	if len(s) > 255 {
		s = s[:230] + "~" + hexDigest(element)[:16]
	}
	return s
}

// hashSeed returns the seed of an element's ECMP hash. It is never 0: to the kernel that means "draw one at random".
func hashSeed(element string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(element))
	return h.Sum32() | 1
}

func hexDigest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// macOf derives a locally administered unicast address from the end's name.
func macOf(end string) string {
	sum := sha256.Sum256([]byte(end))
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}.String()
}

// ifName turns a port's name into one that the kernel, its sysctl tree and
// iptables accept as an interface's, unique among those in taken.
func ifName(port string, taken map[string]bool) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '-'
	}, port)
	bad := name == "" || name[0] == '-' || name[0] == '.'
	switch name {
	case "lo", "all", "default": // the loopback, and what net.ipv4.conf keeps for itself
		bad = true
	}
	if bad {
		name = "p" + name
	}
	if len(name) > maxIfName || taken[name] {
		// The tail distinguishes ports of one line card. The digest distinguishes the rest.
		base, sum := name, hexDigest(port)
		keep := min(len(base), maxIfName-5)
		name = "p" + sum[:3] + "-" + base[len(base)-keep:]
		for n := 0; taken[name]; n++ {
			name = "p" + hexDigest(fmt.Sprint(port, n))[:10]
		}
	}
	taken[name] = true
	return name
}

// extraAddrs returns the addresses of a NIC beyond that of its link.
func extraAddrs(g *fabric.Graph, end string, own netip.Addr) []netip.Addr {
	nic := g.NIC(end)
	if nic == nil {
		return nil
	}
	var out []netip.Addr
	for _, a := range nic.Addresses {
		if a != own {
			out = append(out, a)
		}
	}
	return out
}

// WithAddresses returns a topology with the addresses that a lab of it has.
func WithAddresses(topo *fabric.Topology) (*fabric.Topology, error) {
	t, _, err := completeAddresses(topo, "")
	return t, err
}

// completeAddresses copies topo and gives every link both of its addresses and every
// linked NIC one of its own. The same file always yields the same addresses. They are of the family of those that the file
// has, unless another one is given. If there are none, they are of IPv6 where hosts choose paths by SRv6, and of IPv4 elsewhere.
func completeAddresses(topo *fabric.Topology, family string) (*fabric.Topology, *addressFamily, error) {
	given := givenAddresses(topo)
	f, err := chooseFamily(given, family, topo.IsSourceRouted())
	if err != nil {
		return nil, nil, err
	}
	t := &fabric.Topology{Version: topo.Version, Routing: topo.Routing, Forwarding: topo.Forwarding}
	t.Switches = append(t.Switches, topo.Switches...)
	t.Links = append(t.Links, topo.Links...)
	for _, n := range topo.Nodes {
		n.NICs = append([]fabric.NIC(nil), n.NICs...)
		for j := range n.NICs {
			n.NICs[j].Addresses = append([]netip.Addr(nil), n.NICs[j].Addresses...)
		}
		t.Nodes = append(t.Nodes, n)
	}

	al := &allocator{family: f, used: map[netip.Addr]bool{}}
	for _, g := range given {
		al.used[g.addr] = true
	}
	nics := map[string]*fabric.NIC{}
	for i := range t.Nodes {
		for j := range t.Nodes[i].NICs {
			nic := &t.Nodes[i].NICs[j]
			nics[nic.ID()] = nic
		}
	}
	for _, l := range t.Links {
		for _, p := range []netip.Prefix{l.AAddress, l.BAddress} {
			if p.IsValid() {
				al.nets = append(al.nets, p.Masked())
			}
		}
	}
	for i := range t.Links {
		if err := al.assignAddresses(&t.Links[i], nics); err != nil {
			return nil, nil, err
		}
	}
	return t, f, nil
}

// allocator hands out addresses that the file left out.
type allocator struct {
	family *addressFamily
	used   map[netip.Addr]bool
	nets   []netip.Prefix
}

func (al *allocator) assignAddresses(l *fabric.Link, nics map[string]*fabric.NIC) error {
	nicEnd, nicAddr, portAddr := l.A, &l.AAddress, &l.BAddress
	if !fabric.IsNIC(l.A) {
		nicEnd, nicAddr, portAddr = l.B, &l.BAddress, &l.AAddress
	}
	nic := nics[nicEnd]
	if nic != nil && !nicAddr.IsValid() && len(nic.Addresses) > 0 {
		bits := al.family.accessBits
		if portAddr.IsValid() {
			bits = portAddr.Bits()
		}
		*nicAddr = netip.PrefixFrom(nic.Addresses[0], bits)
	}
	if !nicAddr.IsValid() && !portAddr.IsValid() {
		pool, bits := al.family.fabricPool, al.family.linkBits
		if nic != nil {
			pool, bits = al.family.accessPool, al.family.accessBits
		}
		free, err := al.allocateSubnet(pool, bits)
		if err != nil {
			return fmt.Errorf("line %d: link %q: %w", l.Line, l.ID(), err)
		}
		// On an access link the gateway is .1 and the NIC .2; between
		// switches end A has the even address.
		first := &l.AAddress
		if nic != nil {
			first = portAddr
		}
		if err := al.fillAddress(first, free); err != nil {
			return fmt.Errorf("line %d: link %q: %w", l.Line, l.ID(), err)
		}
	}
	for _, pair := range [][2]*netip.Prefix{{nicAddr, portAddr}, {portAddr, nicAddr}} {
		if !pair[1].IsValid() {
			if err := al.fillAddress(pair[1], pair[0].Masked()); err != nil {
				return fmt.Errorf("line %d: link %q: %w", l.Line, l.ID(), err)
			}
		}
	}
	if nic != nil && len(nic.Addresses) == 0 {
		nic.Addresses = []netip.Addr{nicAddr.Addr()}
	}
	return nil
}

// fillAddress sets p to the lowest free host address of subnet.
func (al *allocator) fillAddress(p *netip.Prefix, subnet netip.Prefix) error {
	a := subnet.Addr()
	more := subnet.Bits() < al.family.linkBits
	if more {
		a = a.Next() // the network's own address, or that of its routers (RFC 4291 section 2.6.1)
	}
	for ; subnet.Contains(a); a = a.Next() {
		if more && a.Is4() && !subnet.Contains(a.Next()) {
			break // the broadcast address
		}
		if !al.used[a] {
			al.used[a] = true
			*p = netip.PrefixFrom(a, subnet.Bits())
			return nil
		}
	}
	return fmt.Errorf("no free address is left in %s for its other end", subnet)
}

// allocateSubnet takes the lowest subnet of the pool that holds nothing yet. The first
// one of accessBits is left alone: 10.0.0.x and 172.16.0.x are what people number by hand.
func (al *allocator) allocateSubnet(pool netip.Prefix, bits int) (netip.Prefix, error) {
	for a := nextSubnet(pool.Addr(), al.family.accessBits); pool.Contains(a); a = nextSubnet(a, bits) {
		p := netip.PrefixFrom(a, bits)
		if !al.overlapsUsed(p) {
			al.nets = append(al.nets, p)
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("no free /%d is left in %s", bits, pool)
}

func (al *allocator) overlapsUsed(p netip.Prefix) bool {
	for _, n := range al.nets {
		if n.Overlaps(p) {
			return true
		}
	}
	for a := range al.used {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// sharedSubnets finds the links whose subnet overlaps another link's.
func sharedSubnets(t *fabric.Topology) map[string]bool {
	shared := map[string]bool{}
	for i, a := range t.Links {
		for _, b := range t.Links[i+1:] {
			if a.AAddress.Masked().Overlaps(b.AAddress.Masked()) {
				shared[a.ID()], shared[b.ID()] = true, true
			}
		}
	}
	return shared
}
