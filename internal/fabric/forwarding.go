package fabric

import (
	"fmt"
	"net/netip"
	"time"
)

// Forwarding is how a packet's path through the switches is chosen.
type Forwarding string

// Kinds of forwarding of the topology file. ECMP is the default.
const (
	ECMP  Forwarding = "ecmp"  // switches choose by a hash of the packet's addresses and ports, so that a flow has one path
	Spray Forwarding = "spray" // switches choose anew for each packet, so that a flow takes all paths in turn
	SRv6  Forwarding = "srv6"  // hosts choose, by the switches that a packet's destination lists; switches choose as with ECMP for other packets
)

// ForwardingKinds returns the kinds of forwarding, the default first.
func ForwardingKinds() []string { return []string{string(ECMP), string(Spray), string(SRv6)} }

// Sprays reports whether the switches of the topology choose a next hop anew for each packet.
func (t *Topology) Sprays() bool { return t.Forwarding == Spray }

// IsSourceRouted reports whether hosts can choose the path of a packet: all switches that the topology file has given have locators.
func (t *Topology) IsSourceRouted() bool { return t.Forwarding == SRv6 }

// Locator is the prefix of a switch's segment identifiers (RFC 8986 section 3.1). The zero value is none.
type Locator struct{ netip.Prefix }

// IsZero reports whether there is no locator.
func (l Locator) IsZero() bool { return !l.IsValid() }

// Lengths of the parts of a locator in bits, and the bounds of the last. Identifiers of 16 bits name one switch each (a
// "uSID", RFC 9800). Those from 0xe000 on mean something at one switch only.
const (
	locatorBlockBits = 32
	locatorBits      = locatorBlockBits + 16
	maxSwitchSID     = 0xdfff
)

// ParseLocator reads a locator such as fcbb:bb00:1::/48.
func ParseLocator(s string) (Locator, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is6() || p.Addr().Is4In6() || p.Bits() != locatorBits {
		return Locator{}, fmt.Errorf("%q: an IPv6 prefix of %d bits is expected, such as fcbb:bb00:1::/48", s, locatorBits)
	}
	l := Locator{p}
	switch {
	case p.Masked() != p:
		return Locator{}, fmt.Errorf("%q: zeros are expected behind the first %d bits", s, locatorBits)
	case !p.Addr().IsGlobalUnicast() || l.Block().Addr().IsUnspecified():
		return Locator{}, fmt.Errorf("%q: a prefix that packets are forwarded to is expected", s)
	case l.switchSID() == 0 || l.switchSID() > maxSwitchSID:
		return Locator{}, fmt.Errorf("%q: the last %d bits of the prefix are expected from 1 to %x", s, locatorBits-locatorBlockBits, maxSwitchSID)
	}
	return l, nil
}

// Block returns the prefix that the locators of a fabric share.
func (l Locator) Block() netip.Prefix {
	return netip.PrefixFrom(l.Addr(), locatorBlockBits).Masked()
}

// switchSID returns the identifier of the switch.
func (l Locator) switchSID() int {
	a := l.Addr().As16()
	return int(a[locatorBlockBits/8])<<8 | int(a[locatorBlockBits/8+1])
}

// NumberedLocator returns the locator of the n-th switch, from 1, in the block of a locator.
func (l Locator) NumberedLocator(n int) (Locator, error) {
	if n < 1 || n > maxSwitchSID {
		return Locator{}, fmt.Errorf("locator %d of block %s: want 1 to %d", n, l.Block(), maxSwitchSID)
	}
	a := l.Block().Addr().As16()
	a[locatorBlockBits/8], a[locatorBlockBits/8+1] = byte(n>>8), byte(n)
	return Locator{netip.PrefixFrom(netip.AddrFrom16(a), locatorBits)}, nil
}

// SwitchMode is how a switch chooses between equal paths, where the topology file says something else.
type SwitchMode struct {
	// Switch is the one that chooses: a leaf, or a switch behind it where packets part. Leaves are those whose flows show it.
	Switch string
	Leaves []string
	// Sprays is set if the switch chooses anew for each packet. It is not set if the file says so, and flows have one path each.
	Sprays bool
	Since  time.Time
	// Seen and SeenSplit count flows that switches see, and those of them whose packets take several ways. Traces and TracesSplit count
	// recent traces and hop-limited probes, HopProbes the latter alone.
	Seen, SeenSplit                int
	Traces, TracesSplit, HopProbes int
}

// PortNumber returns the position of a switch's port among its linked ports in order, from 0, by which source routing names
// one of several links to the same switch. It returns -1 for another end.
func (g *Graph) PortNumber(end string) int {
	if IsNIC(end) {
		return -1
	}
	for i, e := range g.EndsOf(OwnerOf(end)) {
		if e == end {
			return i
		}
	}
	return -1
}
