package lab

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/srv6"
	"github.com/graylink/graylink/internal/unix"
)

// With fabric.SRv6, a packet whose destination is a carrier (package srv6) takes the switches and links that the carrier lists.
// Nothing else decides: a switch has routes to the locators of its neighbours only, and answers a carrier whose next
// identifier it does not know. All other packets are forwarded as with fabric.ECMP.

// defaultBlock is the block of locators that the lab generates. It is of unique local addresses (RFC 4193).
var defaultBlock = netip.MustParsePrefix("fcbb:bb00::/32")

// WithForwarding returns the topology with a kind of forwarding, by default its own. With fabric.SRv6, switches without a locator
// get the lowest free ones in the order of the topology. With other kinds, no switch has one.
func WithForwarding(topo *fabric.Topology, forwarding string) (*fabric.Topology, error) {
	if forwarding == "" {
		forwarding = string(topo.Forwarding)
	}
	if forwarding != "" && !slices.Contains(fabric.ForwardingKinds(), forwarding) {
		return nil, fmt.Errorf("forwarding %q: want one of %s", forwarding, strings.Join(fabric.ForwardingKinds(), ", "))
	}
	t := *topo
	t.Forwarding = fabric.Forwarding(forwarding)
	t.Switches = slices.Clone(topo.Switches)
	if !t.IsSourceRouted() {
		for i := range t.Switches {
			t.Switches[i].Locator = fabric.Locator{}
		}
		return &t, nil
	}
	return &t, fillLocators(&t)
}

// fillLocators gives each switch a locator that has none.
func fillLocators(t *fabric.Topology) error {
	taken := map[fabric.Locator]bool{}
	some := fabric.Locator{Prefix: defaultBlock}
	for _, s := range t.Switches {
		if !s.Locator.IsZero() {
			taken[s.Locator], some = true, s.Locator
		}
	}
	for _, g := range givenAddresses(t) {
		if some.Block().Contains(g.addr) {
			return fmt.Errorf("line %d: %s has address %s, which is in the block of the locators, %s", g.line, g.what, g.addr, some.Block())
		}
	}
	n := 0
	for i := range t.Switches {
		for t.Switches[i].Locator.IsZero() {
			n++
			next, err := some.NumberedLocator(n)
			if err != nil {
				return fmt.Errorf("switch %q: %w", t.Switches[i].Name, err)
			}
			if !taken[next] {
				t.Switches[i].Locator = next
			}
		}
	}
	return nil
}

// locatorOf returns the locator of a switch.
func (x *index) locatorOf(sw string) srv6.Locator { return srv6.LocatorOf(x.graph.Switch(sw).Locator) }

// block returns the block of the fabric's locators.
func (x *index) block() netip.Prefix { return x.Topology.Switches[0].Locator.Block() }

// lastResort is the metric of a route that is used when there is no other with the same prefix.
const lastResort = 4096

// segmentRoutes returns the routes of a switch for carriers.
func (x *index) segmentRoutes(ns *Namespace, rs routeState) []route {
	locator := x.locatorOf(ns.Element)
	out := []route{
		// A carrier whose first identifier is none of those below is answered with ICMPv6 "no route".
		{dst: x.block(), kind: syscall.RTN_UNREACHABLE},
		segmentRoute(locator.Prefix(), &segment{action: actionEnd, block: srv6.BlockBits, shift: srv6.SIDBits}),
	}
	var neighbours []string
	hops := map[string][]hop{}
	hasNICs := false
	for _, i := range ns.Interfaces {
		peer := fabric.OwnerOf(i.Peer)
		if !x.byElement[peer].Switch {
			hasNICs = true
			continue
		}
		if rs.unknown[unknownNeighbour{ns.Element, peer}] {
			continue
		}
		if _, known := hops[peer]; !known {
			neighbours = append(neighbours, peer)
			hops[peer] = nil
		}
		link := fabric.LinkID(i.End, i.Peer)
		usable := !rs.down[link] && !rs.withdrawn[link]
		if usable {
			hops[peer] = append(hops[peer], hop{i.End, i.PeerAdr})
		}
		out = append(out, x.adjacencyRoutes(locator, i, usable)...)
	}
	for _, peer := range neighbours {
		prefix := x.locatorOf(peer).Prefix()
		if len(hops[peer]) > 0 {
			out = append(out, route{dst: prefix, hops: hops[peer]})
		}
		// A neighbour is known as well while no port leads to it, and packets to it are lost without an answer.
		out = append(out, route{dst: prefix, kind: syscall.RTN_BLACKHOLE, metric: lastResort})
	}
	if hasNICs {
		out = append(out, endRoutes(locator, srv6.Decapsulate, segment{action: actionEndDT6, table: mainTable}, 0)...)
	}
	return out
}

// adjacencyRoutes returns the routes of a switch for the identifiers of one of its ports.
func (x *index) adjacencyRoutes(l srv6.Locator, i Interface, usable bool) []route {
	sid, err := srv6.Adjacency(x.graph.PortNumber(i.End))
	if err != nil {
		return nil // more ports than there are identifiers
	}
	out := endRoutes(l, sid, segment{action: actionEndX, via: i.PeerAdr, block: srv6.BlockBits, shift: srv6.SIDBits}, srv6.SIDBits)
	// The kernel looks the neighbour's address up. It is no way to it if another port leads to its subnet.
	if usable {
		out = append(out, route{dst: hostPrefix(i.PeerAdr), hops: []hop{{end: i.End}}})
	}
	return append(out, route{dst: hostPrefix(i.PeerAdr), kind: syscall.RTN_BLACKHOLE, metric: lastResort})
}

// endRoutes returns the two routes of an identifier that means something at one switch only. It stands alone behind the block
// when the neighbour's identifier of a port stood before it, and behind the switch's own else: Linux does not go on from one
// identifier of its own to another. own is what is removed besides in that case.
func endRoutes(l srv6.Locator, sid srv6.SID, s segment, own int) []route {
	behind := s
	behind.shift += own
	a := l.Prefix().Addr().As16()
	a[(srv6.BlockBits+srv6.SIDBits)/8], a[(srv6.BlockBits+srv6.SIDBits)/8+1] = byte(sid>>8), byte(sid)
	return []route{segmentRoute(l.Block.AdjacencyPrefix(sid), &s), segmentRoute(netip.PrefixFrom(netip.AddrFrom16(a), srv6.BlockBits+2*srv6.SIDBits), &behind)}
}

// carrierRoutes returns the routes of a node for carriers, whose first identifier is that of the leaf.
func (x *index) carrierRoutes(ns *Namespace) []route {
	if len(ns.Interfaces) == 1 {
		i := ns.Interfaces[0]
		return []route{{dst: x.block(), hops: []hop{{i.End, i.PeerAdr}}}}
	}
	var out []route
	for n, i := range ns.Interfaces {
		// Packets from the address of another NIC of the node have a table of their own: nodeRoutes.
		leaf := fabric.OwnerOf(i.Peer)
		if slices.ContainsFunc(ns.Interfaces[:n], func(o Interface) bool { return fabric.OwnerOf(o.Peer) == leaf }) {
			continue
		}
		out = append(out, route{dst: x.locatorOf(leaf).Prefix(), hops: []hop{{i.End, i.PeerAdr}}})
	}
	return out
}

// unknownNeighbour is a switch that does not know the identifiers by which packets go to a neighbour.
type unknownNeighbour struct{ sw, neighbour string }

// resolveSIDUnknown completes a fault by which a switch does not know the identifiers that lead to a neighbour.
func (x *index) resolveSIDUnknown(af *ActiveFault) error {
	if !x.Topology.IsSourceRouted() {
		return fmt.Errorf("%s takes a lab with forwarding %s", af.Kind, fabric.SRv6)
	}
	u, err := x.parseUnknown(af.At)
	if err != nil {
		return err
	}
	af.Mechanism, af.Exclusive = "routes", af.Kind+" "+u.sw+"->"+u.neighbour
	return nil
}

// parseUnknown reads SWITCH->SWITCH, which are neighbours.
func (x *index) parseUnknown(at string) (unknownNeighbour, error) {
	first, second, ok := strings.Cut(at, "->")
	for _, sw := range []string{first, second} {
		if ns := x.byElement[sw]; !ok || ns == nil || !ns.Switch {
			return unknownNeighbour{}, fmt.Errorf("%q: want SWITCH->SWITCH, of which the first is not to know the second", at)
		}
	}
	if !slices.ContainsFunc(x.byElement[first].Interfaces, func(i Interface) bool { return fabric.OwnerOf(i.Peer) == second }) {
		return unknownNeighbour{}, fmt.Errorf("%q: no link joins the two switches, so that the first does not know the second anyway", at)
	}
	return unknownNeighbour{first, second}, nil
}

// checkSegments returns an error if the kernel cannot process segments as labs need it. An old kernel takes a segment with
// a flavor that it does not know, and leaves the flavor out.
func checkSegments() error {
	locator := srv6.Locator{Block: srv6.Block{0xfc, 0xbb, 0xbb, 0}, Node: 1}
	want := &segment{action: actionEndX, via: locator.Prefix().Addr(), block: srv6.BlockBits, shift: srv6.SIDBits}
	err := unix.InNewNetns(func() error {
		return withHandle(func(h *netlink.Handle) error {
			lo, err := raiseLoopback(h)
			if err != nil {
				return err
			}
			ids := map[string]int{lo.Attrs().Name: lo.Attrs().Index}
			for _, r := range []route{segmentRoute(locator.Prefix(), want), segmentRoute(locator.DecapsulationPrefix(), &segment{action: actionEndDT6, table: mainTable})} {
				if err := h.RouteReplace(r.netlinkRoute(nil, ids)); err != nil {
					return fmt.Errorf("adding %s: %w", r.segment, err)
				}
			}
			got, err := routeQuery{src: netip.IPv6Loopback(), dst: locator.Prefix().Addr(), proto: syscall.IPPROTO_IPV6}.requestRoute(lo.Attrs().Index)
			if err == nil && (got.segment == nil || *got.segment != *want) {
				err = fmt.Errorf("%s was added, and the kernel has %v", want, got.segment)
			}
			return err
		})
	})
	return explainSegments(err)
}

// explainSegments says what a kernel lacks that does not process segments.
func explainSegments(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("forwarding srv6 needs a kernel that processes SRv6 segments with the flavor NEXT-C-SID: Linux 6.6 or newer with CONFIG_IPV6_SEG6_LWTUNNEL: %w", err)
}

// CarrierPath queries each switch's kernel in turn for the route of a packet to a carrier, and returns the path that it takes.
// The last switch takes the packet inside out, which has the given addresses and ports, and goes on by the kernel's ordinary
// routes. If the path ends early, CarrierPath returns its part, and an error that names the switch. errors.Is holds for
// syscall.EHOSTUNREACH where the switch answers that it does not know the next identifier.
func (l *Lab) CarrierPath(ctx context.Context, carrier, src, dst netip.Addr, proto uint8, sport, dport uint16) (fabric.Path, error) {
	w, err := l.NewWalk()
	if err != nil {
		return nil, err
	}
	return w.CarrierPath(ctx, carrier, src, dst, proto, sport, dport)
}

// CarrierPath returns the same as that of the Lab.
func (w *Walk) CarrierPath(ctx context.Context, carrier, src, dst netip.Addr, proto uint8, sport, dport uint16) (fabric.Path, error) {
	x := w.x
	if !x.Topology.IsSourceRouted() {
		return nil, fmt.Errorf("path of carrier %s: lab %q has forwarding %s", carrier, w.name, cmp.Or(x.Topology.Forwarding, fabric.ECMP))
	}
	start := x.ownerOf(src)
	if start == "" {
		return nil, fmt.Errorf("path of carrier %s: source %s is not the address of a NIC of lab %q", carrier, src, w.name)
	}
	inside := routeQuery{src: src, dst: dst, proto: proto, sport: sport, dport: dport}
	q := routeQuery{src: src, dst: carrier, proto: syscall.IPPROTO_IPV6}
	var path fabric.Path
	at, in := start, ""
	for range maxHops {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		out, next, err := w.forwardCarrier(at, in, q, inside)
		if err != nil {
			return path, fmt.Errorf("path of carrier %s: %s: %w", carrier, at, err)
		}
		if at != start || in != "" {
			path = append(path, fabric.Hop{Switch: at, In: portOf(in), Out: portOf(out)})
		}
		q, in = next, x.byEnd[out].Peer
		at = fabric.OwnerOf(in)
		if ns := x.byElement[at]; ns.Switch {
			continue
		}
		if q != inside || at != x.ownerOf(dst) {
			return path, fmt.Errorf("path of carrier %s: it ends at node %q with destination %s, want %q with %s", carrier, at, q.dst, x.ownerOf(dst), dst)
		}
		return path, nil
	}
	return path, fmt.Errorf("path of carrier %s: a loop, more than %d switches", carrier, maxHops)
}

// forwardCarrier returns the end by which packets leave an element that came in by another, and what they are then: with the
// next identifier first, or those inside.
func (w *Walk) forwardCarrier(at, in string, q, inside routeQuery) (out string, next routeQuery, err error) {
	answer, err := w.lookUp(at, in, q)
	if err != nil {
		return "", q, fmt.Errorf("%s: %w", q.dst, err)
	}
	s := answer.segment
	if s == nil {
		return answer.end, q, nil
	}
	switch s.action {
	case actionEndDT6:
		q = inside
	case actionEnd, actionEndX:
		if q.dst, err = s.nextCarrier(q.dst); err != nil {
			return "", q, err
		}
	default:
		return "", q, fmt.Errorf("%s: %s is not what the lab installs", q.dst, s)
	}
	by := q
	if s.action == actionEndX {
		by.dst = s.via
	}
	if answer, err = w.lookUp(at, in, by); err != nil {
		return "", q, fmt.Errorf("%s: %w", by.dst, err)
	}
	if answer.segment != nil {
		return "", q, fmt.Errorf("%s: this identifier is the switch's own as well, and Linux drops the packet", by.dst)
	}
	if n := w.x.linksBeside(answer.end); s.action == actionEnd && n > 1 {
		return "", q, fmt.Errorf("%s: %d links lead to this neighbour, and the carrier does not say which", q.dst, n)
	}
	return answer.end, q, nil
}

// linksBeside returns how many links join the two elements of a port's link.
func (x *index) linksBeside(end string) (n int) {
	peer := fabric.OwnerOf(x.byEnd[end].Peer)
	for _, i := range x.byElement[fabric.OwnerOf(end)].Interfaces {
		if fabric.OwnerOf(i.Peer) == peer {
			n++
		}
	}
	return n
}
