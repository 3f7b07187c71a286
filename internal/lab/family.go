package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
)

// Families of the addresses of a lab's fabric. All addresses of one lab are of one family.
const (
	FamilyIPv4 = "ipv4"
	FamilyIPv6 = "ipv6"
)

// Families returns the values of Options.Family.
func Families() []string { return []string{FamilyIPv4, FamilyIPv6} }

// ShortMTUv6 is what ShortMTU is in a fabric of IPv6. It is the least MTU that IPv6 has (RFC 8200 section 5): with a shorter
// one, the kernel takes IPv6 off an interface. Packets of RoCE with an active MTU of 1024 pass it.
const ShortMTUv6 = 1280

// addressFamily is what depends on the family of a fabric's addresses.
type addressFamily struct {
	name    string
	title   string
	netlink int // AF_INET or AF_INET6
	metric  int // that the kernel gives routes for which none is given
	bits    int // of an address
	// Absent addresses are taken from pools: a subnet of accessBits per NIC, and one of linkBits per link between switches.
	// The first subnet of accessBits is left alone in each: people number its addresses by hand.
	accessPool, fabricPool netip.Prefix
	accessBits, linkBits   int
	minMTU                 int      // octets; links have to carry as much
	shortMTU               int      // octets; that of the fault mtu, if none is given
	headerLen              int      // octets of Ethernet, IP and UDP
	iptables               string   // the program that has the family's rules
	forwarded              []string // matches, for iptables, packets that the switch forwards; all if empty
	expired                []string // matches, for iptables, ICMP time exceeded
}

var ipv4Family = &addressFamily{
	name: FamilyIPv4, title: "IPv4", netlink: netlink.FAMILY_V4, bits: 32,
	accessPool: netip.MustParsePrefix("10.0.0.0/8"), accessBits: 24,
	fabricPool: netip.MustParsePrefix("172.16.0.0/12"), linkBits: 31, // RFC 3021
	minMTU: minMTU, shortMTU: ShortMTU, headerLen: 14 + 20 + 8,
	iptables: "iptables",
	expired:  []string{"-p", "icmp", "--icmp-type", "time-exceeded"},
}

var ipv6Family = &addressFamily{
	name: FamilyIPv6, title: "IPv6", netlink: netlink.FAMILY_V6, metric: 1024, bits: 128,
	accessPool: netip.MustParsePrefix("fd00:a::/32"), accessBits: 64,
	fabricPool: netip.MustParsePrefix("fd00:f::/32"), linkBits: 127, // RFC 6164
	minMTU: ShortMTUv6, shortMTU: ShortMTUv6, headerLen: 14 + 40 + 8,
	iptables: "ip6tables",
	// Packets between link-local addresses cross one link: neighbour discovery, BGP, BFD.
	forwarded: []string{"!", "-s", "fe80::/10"},
	expired:   []string{"-p", "icmpv6", "--icmpv6-type", "time-exceeded"},
}

// family returns the family of the layout's addresses.
func (l *Layout) family() *addressFamily {
	if l.Family == FamilyIPv6 {
		return ipv6Family
	}
	return ipv4Family
}

// familyOf returns the family of an address.
func familyOf(a netip.Addr) *addressFamily {
	if a.Is4() {
		return ipv4Family
	}
	return ipv6Family
}

// hostPrefix returns the prefix that holds one address alone.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// everywhere returns the prefix of the default route.
func (f *addressFamily) everywhere() netip.Prefix {
	if f == ipv4Family {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// givenAddress is an address that a topology file has.
type givenAddress struct {
	line int
	what string
	addr netip.Addr
}

// givenAddresses returns the addresses of switches, NICs and links, in this order.
func givenAddresses(t *fabric.Topology) []givenAddress {
	var out []givenAddress
	for _, s := range t.Switches {
		for _, a := range s.Addresses {
			out = append(out, givenAddress{s.Line, fmt.Sprintf("switch %q", s.Name), a})
		}
	}
	for _, n := range t.Nodes {
		for _, nic := range n.NICs {
			for _, a := range nic.Addresses {
				out = append(out, givenAddress{nic.Line, fmt.Sprintf("NIC %q", nic.ID()), a})
			}
		}
	}
	for _, l := range t.Links {
		for _, p := range []netip.Prefix{l.AAddress, l.BAddress} {
			if p.IsValid() {
				out = append(out, givenAddress{l.Line, fmt.Sprintf("link %q", l.ID()), p.Addr()})
			}
		}
	}
	return out
}

// chooseFamily returns the family of a fabric: the wanted one, or that of the file's addresses if none is wanted, or IPv4 if
// there are none. Where hosts choose paths by SRv6, it is IPv6. It fails if an address is of another family, or is none by
// which packets are forwarded.
func chooseFamily(given []givenAddress, wanted string, sourceRouted bool) (*addressFamily, error) {
	var family *addressFamily
	why := ""
	switch {
	case sourceRouted && wanted == FamilyIPv4:
		return nil, fmt.Errorf("family %s: forwarding %s takes addresses of IPv6", wanted, fabric.SRv6)
	case sourceRouted && (wanted == "" || wanted == FamilyIPv6):
		family, why = ipv6Family, "forwarding is srv6"
	case wanted == FamilyIPv4:
		family, why = ipv4Family, "was asked for"
	case wanted == FamilyIPv6:
		family, why = ipv6Family, "was asked for"
	case wanted == "":
		family = ipv4Family
		if len(given) > 0 {
			family, why = familyOf(given[0].addr), fmt.Sprintf("line %d has %s", given[0].line, given[0].addr)
		}
	default:
		return nil, fmt.Errorf("family %q: want one of %s", wanted, strings.Join(Families(), ", "))
	}
	for _, g := range given {
		switch a := g.addr; {
		case a.Is4In6(), a.Zone() != "", a.IsLinkLocalUnicast(), a.IsMulticast(), a.IsLoopback(), a.IsUnspecified():
			return nil, fmt.Errorf("line %d: %s has address %s: want one that packets are forwarded to", g.line, g.what, a)
		case familyOf(a) != family:
			return nil, fmt.Errorf("line %d: %s has address %s: all addresses of a lab are of one family, and this one's is %s (%s)",
				g.line, g.what, a, family.title, why)
		}
	}
	return family, nil
}

// nextSubnet returns the first address after the subnet of so many bits that begins with a. It is not valid after the last.
func nextSubnet(a netip.Addr, bits int) netip.Addr {
	b := slices.Clone(a.AsSlice())
	at, carry := (bits-1)/8, 1<<(7-(bits-1)%8)
	for ; at >= 0 && carry > 0; at-- {
		sum := int(b[at]) + carry
		b[at], carry = byte(sum), sum>>8
	}
	if carry > 0 {
		return netip.Addr{}
	}
	next, _ := netip.AddrFromSlice(b)
	return next
}

// kernelSettingsV6 returns the settings of a namespace of an IPv6 fabric. Routers find each other by link-local addresses,
// which every interface has.
func kernelSettingsV6(ns *Namespace) []setting {
	out := []setting{
		{path: "ipv6/conf/all/disable_ipv6", value: "0"},
		{path: "ipv6/conf/default/disable_ipv6", value: "0"},
		// An address can be used at once: no other interface has it. It stays while the interface is down.
		{path: "ipv6/conf/all/accept_dad", value: "0"},
		{path: "ipv6/conf/default/accept_dad", value: "0"},
		{path: "ipv6/conf/all/keep_addr_on_down", value: "1"},
		{path: "ipv6/conf/default/keep_addr_on_down", value: "1"},
		{path: "ipv6/conf/default/addr_gen_mode", value: "0"}, // EUI-64
		// All routes are the lab's, or FRR's.
		{path: "ipv6/conf/all/accept_ra", value: "0"},
		{path: "ipv6/conf/default/accept_ra", value: "0"},
		{path: "ipv6/conf/default/router_solicitations", value: "0"},
		{path: "ipv6/conf/all/accept_redirects", value: "0"},
		{path: "ipv6/conf/default/accept_redirects", value: "0"},
	}
	if !ns.Switch {
		return out
	}
	return append(out,
		setting{path: "ipv6/conf/all/forwarding", value: "1"},
		setting{path: "ipv6/conf/default/forwarding", value: "1"},
		// Addresses, protocol and ports, as with IPv4: forgetFlowHash. The seed is of both families.
		setting{path: "ipv6/fib_multipath_hash_policy", value: "1"},
		setting{path: "ipv4/fib_multipath_hash_seed", value: strconv.FormatUint(uint64(ns.HashSeed), 10), optional: true},
		// A trace is answered at every hop. Linux chooses an address of the port that a packet came in by (icmp6_send in
		// net/ipv6/icmp.c, since 5.1).
		setting{path: "ipv6/icmp/ratelimit", value: "0"},
		setting{path: "ipv6/icmp/ratemask", value: "127"}, // a type that is not used: RFC 4443 section 2.1
		setting{path: "ipv4/icmp_msgs_per_sec", value: strconv.Itoa(icmpMsgsPerSec), optional: true},
		setting{path: "ipv4/icmp_msgs_burst", value: strconv.Itoa(icmpMsgsPerSec), optional: true},
	)
}

// numberAsID returns the identifier of a switch that has no address of IPv4: its number, which is that of no other switch
// (RFC 6286 section 2.1).
func (x *index) numberAsID(ns *Namespace) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, x.asnOf(ns.Element)-firstASN+1)))
}
