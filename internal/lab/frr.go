package lab

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Who routes between the switches of a lab.
const (
	// RoutingStatic makes the lab install all routes, and withdraw those over a link WithdrawAfter its failure.
	RoutingStatic = "static"
	// RoutingFRR makes every switch run FRR: eBGP over each link between switches, unnumbered (RFC 7938, RFC 8950), with BFD.
	RoutingFRR = "frr"
)

// RoutingKinds returns the values of Options.Routing, the default first.
func RoutingKinds() []string { return []string{RoutingStatic, RoutingFRR} }

// firstASN is the number of the first switch's autonomous system. Private numbers of four octets begin at 4200000000
// (RFC 6996 section 5).
const firstASN = 4_200_000_001

// maxPaths is how many equal paths BGP installs.
const maxPaths = 64

// setRouting records who routes. Links between switches need IPv6 link-local addresses if FRR does.
func (l *Layout) setRouting(routing string) {
	if routing != RoutingFRR {
		return
	}
	l.Routing = routing
	for i := range l.Namespaces {
		ns := &l.Namespaces[i]
		for j := range ns.Interfaces {
			in := &ns.Interfaces[j]
			in.Unnumbered = ns.Switch && !fabric.IsNIC(in.Peer)
		}
	}
}

// linkLocalOf returns the IPv6 link-local address that the kernel gives an interface with this MAC (modified EUI-64,
// RFC 4291 appendix A).
func linkLocalOf(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

// asnOf returns the number of a switch's autonomous system. Each switch has its own.
func (x *index) asnOf(element string) uint32 {
	i := slices.IndexFunc(x.Namespaces, func(ns Namespace) bool { return ns.Element == element })
	return uint32(firstASN + i)
}

// announcedPrefixes returns what a switch announces: its own addresses, and the subnets or hosts at its ports.
func (x *index) announcedPrefixes(element string) []netip.Prefix {
	var out []netip.Prefix
	for _, d := range x.allDestinations() {
		if d.sw == element {
			out = append(out, d.prefix)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// zebraConfig returns the configuration of a switch's zebra. Sessions learn their neighbour's address from its router
// advertisements (RFC 4861), and BGP alone would have them sent every 10 s: whoever missed one would wait as long.
//
// A group of next hops that no route uses is forgotten after a second. By default, zebra keeps it for 180 s and takes it to be
// in the kernel as it was, but the kernel has removed the next hops of a port that was down from it. Routes that used the
// group again when the link was back were without this port for good (FRR 8.4.4: compare "show ip route" and "ip route").
func zebraConfig(ns *Namespace) string {
	var b strings.Builder
	fmt.Fprintf(&b, "! Written by graylink for zebra of switch %s.\nfrr defaults traditional\nip forwarding\nipv6 forwarding\nzebra nexthop-group keep 1\n", ns.Element)
	for _, i := range ns.Interfaces {
		if i.Unnumbered {
			fmt.Fprintf(&b, "interface %s\n no ipv6 nd suppress-ra\n ipv6 nd ra-interval 1\nexit\n", i.Name)
		}
	}
	return b.String()
}

// bfdProfile is the name of the timers that all sessions have: three packets that are missing, one each 100 ms, end one.
const bfdProfile = "fabric"

// bfddConfig returns the configuration of a switch's bfdd.
func bfddConfig(ns *Namespace) string {
	return fmt.Sprintf("! Written by graylink for bfdd of switch %s.\nfrr defaults traditional\nbfd\n profile %s\n  %s\n exit\nexit\n",
		ns.Element, bfdProfile, strings.Join(fastBFD.profileLines(), "\n  "))
}

// bgpdConfig returns the configuration of a switch's bgpd.
func (x *index) bgpdConfig(ns *Namespace) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("! Written by graylink for bgpd of switch %s.", ns.Element)
	line("frr defaults traditional")
	line("router bgp %d", x.asnOf(ns.Element))
	if id := x.routerID(ns); id.IsValid() {
		line(" bgp router-id %s", id)
	}
	if x.family() == ipv6Family {
		line(" no bgp default ipv4-unicast") // before the first neighbour
	}
	line(" bgp log-neighbor-changes")
	line(" no bgp ebgp-requires-policy")
	line(" bgp network import-check")
	// Equal paths lead through switches with different numbers.
	line(" bgp bestpath as-path multipath-relax")
	line(" timers bgp %d %d", DefaultHold/time.Second/3, DefaultHold/time.Second)
	line(" neighbor fabric peer-group")
	line(" neighbor fabric remote-as external")
	line(" neighbor fabric bfd profile %s", bfdProfile)
	line(" neighbor fabric advertisement-interval 0")
	line(" neighbor fabric timers connect 1")
	for _, i := range ns.Interfaces {
		if i.Unnumbered {
			// Without v6only, FRR takes the other address of a /30 or /31, if the port has one.
			line(" neighbor %s interface v6only peer-group fabric", i.Name)
			line(" neighbor %s description %s", i.Name, i.Peer)
		}
	}
	line(" address-family %s unicast", x.family().name)
	if x.family() == ipv6Family {
		line("  neighbor fabric activate")
	}
	for _, p := range x.announcedPrefixes(ns.Element) {
		line("  network %s", p)
	}
	line("  maximum-paths %d", maxPaths)
	line(" exit-address-family")
	line("exit")
	return b.String()
}

// routerID returns an address that no other switch has. It is not valid if the switch has neither links nor addresses.
func (x *index) routerID(ns *Namespace) netip.Addr {
	if x.family() == ipv6Family {
		return x.numberAsID(ns)
	}
	if len(ns.Loopback) > 0 {
		return ns.Loopback[0]
	}
	if len(ns.Interfaces) > 0 {
		return ns.Interfaces[0].Address.Addr()
	}
	return netip.Addr{}
}
