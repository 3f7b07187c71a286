package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// Kernel constants that package netlink does not name.
const (
	rtprotStatic    = 4     // rtnetlink(7): installed by an administrator
	ifaNoPrefix     = 0x200 // if_addr.h IFA_F_NOPREFIXROUTE
	ifaNoDAD        = 0x02  // if_addr.h IFA_F_NODAD
	ruleFirstNIC    = 1000  // priority of the first source rule; between "local" (0) and "main" (32766)
	icmpMsgsPerSec  = 1_000_000
	maxRouteSettle  = 5 * time.Second
	routeSettlePoll = 5 * time.Millisecond
)

// setting is one file under /proc/sys/net and its value. An optional one is
// passed over on a kernel that lacks it.
type setting struct {
	path, value string
	optional    bool
}

// linkGroup is the interface group of all of a lab's links, so that one
// message removes those of a switch; the loopback stays in group 0.
const linkGroup = 1

// hashFields are the fields that choose among equal routes: addresses, protocol and ports (fib_multipath_hash_fields in
// Documentation/networking/ip-sysctl.rst of Linux, since 5.13).
const hashFields = "55" // 0x37

// kernelSettings returns the settings of a namespace before it has interfaces, which then inherit "default".
func kernelSettings(ns *Namespace, routing, spray string, family *addressFamily) []setting {
	if family == ipv6Family {
		return kernelSettingsV6(ns)
	}
	out := []setting{
		// A kernel without IPv6 has nothing to switch off.
		{path: "ipv6/conf/all/disable_ipv6", value: "1", optional: true},
		{path: "ipv6/conf/default/disable_ipv6", value: "1", optional: true},
		// Replies come back another way than probes went.
		{path: "ipv4/conf/all/rp_filter", value: "0"},
		{path: "ipv4/conf/default/rp_filter", value: "0"},
		{path: "ipv4/conf/all/accept_redirects", value: "0"},
		{path: "ipv4/conf/default/accept_redirects", value: "0"},
	}
	if !ns.Switch {
		// A node with several NICs answers for an address on its own NIC only.
		return append(out, setting{path: "ipv4/conf/all/arp_ignore", value: "1"}, setting{path: "ipv4/conf/all/arp_announce", value: "2"})
	}
	if routing == RoutingFRR {
		// Only unnumbered ports get an IPv6 address, and it can be used at once: no other host has it.
		out = append(out,
			setting{path: "ipv6/conf/all/disable_ipv6", value: "0"},
			setting{path: "ipv6/conf/default/disable_ipv6", value: "1"},
			setting{path: "ipv6/conf/all/forwarding", value: "1"},
			setting{path: "ipv6/conf/all/accept_dad", value: "0"},
			setting{path: "ipv6/conf/default/accept_dad", value: "0"},
			setting{path: "ipv6/conf/default/addr_gen_mode", value: "0"}) // EUI-64
	}
	return append(out,
		setting{path: "ipv4/ip_forward", value: "1"},
		setting{path: "ipv4/conf/all/send_redirects", value: "0"},
		setting{path: "ipv4/conf/default/send_redirects", value: "0"},
		// ECMP by the 5-tuple, differently in each switch: with one seed for
		// all (Linux before 6.11), every tier chooses the same index. Policy 3 reads
		// the header, as a switch does. Policy 1 takes the hash that a sender in the same
		// kernel gave the packet, which TCP changes when it sends something again.
		setting{path: "ipv4/fib_multipath_hash_fields", value: hashFields},
		setting{path: "ipv4/fib_multipath_hash_policy", value: hashPolicy(spray)},
		hashSeedSetting(ns),
		// A trace is answered at every hop, from the address of the port it
		// came in by. The mask exempts every type from both rate limits; the
		// global one belongs to the root namespace on older kernels.
		setting{path: "ipv4/icmp_ratemask", value: "0"},
		setting{path: "ipv4/icmp_ratelimit", value: "0"},
		setting{path: "ipv4/icmp_msgs_per_sec", value: strconv.Itoa(icmpMsgsPerSec), optional: true},
		setting{path: "ipv4/icmp_msgs_burst", value: strconv.Itoa(icmpMsgsPerSec), optional: true},
		setting{path: "ipv4/icmp_errors_use_inbound_ifaddr", value: "1"},
	)
}

// hashPolicy returns the fib_multipath_hash_policy of switches of IPv4: by the fields of hashFields, or by the hash that
// newSprayProgram gives each packet.
func hashPolicy(spray string) string {
	if spray != "" {
		return "1"
	}
	return "3"
}

// hashSeedSetting returns the setting of a switch's own seed for the hash that chooses among equal routes.
func hashSeedSetting(ns *Namespace) setting {
	return setting{path: "ipv4/fib_multipath_hash_seed", value: strconv.FormatUint(uint64(ns.HashSeed), 10), optional: true}
}

func (x *index) configureKernel(ns *Namespace) error {
	for _, s := range kernelSettings(ns, x.Routing, x.Spray, x.family()) {
		err := s.write()
		if s.optional && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// write sets it in the thread's namespace.
func (s setting) write() error {
	if err := os.WriteFile(filepath.Join("/proc/sys/net", s.path), []byte(s.value), 0); err != nil {
		return fmt.Errorf("setting net/%s to %s: %w", s.path, s.value, err)
	}
	return nil
}

func errNameTaken(netns string) error {
	return fmt.Errorf("namespace %q exists and is not this lab's; choose another --name", netns)
}

// checkFree finds out, before anything is recorded, whether a name is taken:
// in a half-built lab, a name without a recorded identity is the lab's own.
func checkFree(x *index) error {
	for _, ns := range x.Namespaces {
		if _, err := os.Lstat(unix.NetnsPath(ns.Netns)); err == nil {
			return errNameTaken(ns.Netns)
		}
	}
	return nil
}

// buildLab makes the lab that st's layout describes.
func buildLab(ctx context.Context, root string, st *state, x *index) error {
	for i := range x.Namespaces {
		ns := &x.Namespaces[i]
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := unix.CreateNetns(ns.Netns); err != nil {
			if errors.Is(err, os.ErrExist) {
				st.NetnsIDs[ns.Element] = unix.NetnsID{} // not ours: no namespace has this identity
				return errNameTaken(ns.Netns)
			}
			return err
		}
		id, err := unix.NetnsIDOf(unix.NetnsPath(ns.Netns))
		if err != nil {
			return fmt.Errorf("identifying namespace %q: %w", ns.Netns, err)
		}
		st.NetnsIDs[ns.Element] = id
	}
	if err := st.saveState(root); err != nil {
		return err
	}
	steps := []func(*Namespace) error{
		x.configureKernel,
		x.makeLinks,
		x.configureInterfaces,
	}
	for _, step := range steps {
		for i := range x.Namespaces {
			ns := &x.Namespaces[i]
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := unix.InNetns(ns.Netns, func() error { return step(ns) }); err != nil {
				return fmt.Errorf("%s: %w", ns.Element, err)
			}
		}
	}
	if err := x.syncRoutes(ctx, routeState{}); err != nil {
		return err
	}
	if err := x.awaitStableRoutes(ctx, x.Namespaces); err != nil || x.Routing != RoutingFRR {
		return err
	}
	if err := x.startDaemons(ctx, root, st.Name); err != nil {
		return err
	}
	return x.awaitConvergence(ctx)
}

// withHandle runs fn with a netlink socket of the thread's namespace.
func withHandle(fn func(h *netlink.Handle) error) error {
	h, err := netlink.NewHandle(syscall.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer h.Close()
	return fn(h)
}

// makeLinks brings the loopback up and makes those of the namespace's links
// whose end A is here. The veth pair is created across the two namespaces in
// one step.
func (x *index) makeLinks(ns *Namespace) error {
	return withHandle(func(h *netlink.Handle) error {
		lo, err := raiseLoopback(h)
		if err != nil {
			return err
		}
		for _, a := range ns.Loopback {
			if err := h.AddrAdd(lo, kernelAddr(hostPrefix(a))); err != nil {
				return fmt.Errorf("giving the loopback interface address %s: %w", a, err)
			}
		}
		for _, i := range ns.Interfaces {
			if x.graph.LinkAt(i.End).A != i.End {
				continue
			}
			if err := x.makeVeth(h, i); err != nil {
				return fmt.Errorf("making link %s: %w", fabric.LinkID(i.End, i.Peer), err)
			}
		}
		return nil
	})
}

// raiseLoopback sets the loopback interface up and returns it.
func raiseLoopback(h *netlink.Handle) (netlink.Link, error) {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("finding the loopback interface: %w", err)
	}
	if err := h.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("setting the loopback interface up: %w", err)
	}
	return lo, nil
}

func (x *index) makeVeth(h *netlink.Handle, i Interface) error {
	peer := x.byEnd[i.Peer]
	far, err := os.Open(unix.NetnsPath(x.byElement[fabric.OwnerOf(i.Peer)].Netns))
	if err != nil {
		return err
	}
	defer far.Close()
	mac, err := net.ParseMAC(i.MAC)
	if err != nil {
		return err
	}
	peerMAC, err := net.ParseMAC(peer.MAC)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = i.Name, mac
	return h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer.Name, PeerHardwareAddr: peerMAC, PeerNamespace: netlink.NsFd(far.Fd())})
}

// configureInterfaces gives the interfaces their addresses and sets them up.
func (x *index) configureInterfaces(ns *Namespace) (err error) {
	var program *ebpf.Program
	if ns.Switch {
		if program, err = x.newHashProgram(); err != nil {
			return err
		}
		defer program.Close()
	}
	return withHandle(func(h *netlink.Handle) error {
		for n, i := range ns.Interfaces {
			if err := configureInterface(h, ns, n, i, program); err != nil {
				return fmt.Errorf("interface %s of %s: %w", i.Name, i.End, err)
			}
		}
		return nil
	})
}

func configureInterface(h *netlink.Handle, ns *Namespace, n int, i Interface, program *ebpf.Program) error {
	link, err := h.LinkByName(i.Name)
	if err != nil {
		return err
	}
	if err := h.LinkSetGroup(link, linkGroup); err != nil {
		return fmt.Errorf("putting it into group %d: %w", linkGroup, err)
	}
	// The kernel's name may be another than the topology's, which has more letters.
	if err := h.LinkSetAlias(link, portOf(i.End)); err != nil {
		return fmt.Errorf("naming it %q: %w", portOf(i.End), err)
	}
	if program != nil {
		if err := classify(h, link, program); err != nil {
			return err
		}
	}
	addr := kernelAddr(i.Address)
	if i.Shared {
		addr.Flags |= ifaNoPrefix
	}
	if err := h.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("adding address %s: %w", i.Address, err)
	}
	for _, a := range i.Extra {
		if err := h.AddrAdd(link, kernelAddr(hostPrefix(a))); err != nil {
			return fmt.Errorf("adding address %s: %w", a, err)
		}
	}
	if i.Unnumbered {
		enable := setting{path: "ipv6/conf/" + i.Name + "/disable_ipv6", value: "0"}
		if err := enable.write(); err != nil {
			return err
		}
	}
	if err := raiseInterface(h, link, i); err != nil {
		return err
	}
	if ns.Switch || len(ns.Interfaces) < 2 {
		return nil
	}
	for _, a := range i.ownAddrs() {
		rule := netlink.NewRule()
		rule.Family = familyOf(a).netlink
		rule.Src = ipNet(hostPrefix(a))
		rule.Table = nicTable(n)
		rule.Priority = ruleFirstNIC + n
		if err := h.RuleAdd(rule); err != nil {
			return fmt.Errorf("adding the rule for traffic from %s: %w", a, err)
		}
	}
	return nil
}

// raiseInterface sets an interface up and pins its neighbour, so that no probe is ever
// lost to address resolution. Setting an interface down forgets the neighbour.
func raiseInterface(h *netlink.Handle, link netlink.Link, i Interface) error {
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting it up: %w", err)
	}
	mac, err := net.ParseMAC(i.PeerMAC)
	if err != nil {
		return err
	}
	neighbours := append([]netip.Addr{i.PeerAdr}, i.PeerExt...)
	if i.Unnumbered {
		neighbours = append(neighbours, linkLocalOf(mac))
	}
	for _, a := range neighbours {
		n := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: familyOf(a).netlink, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
		if err := h.NeighSet(n); err != nil {
			return fmt.Errorf("pinning its neighbour %s: %w", a, err)
		}
	}
	return nil
}

// kernelAddr returns an address of an interface. One of IPv6 can be used at once: no other interface has it.
func kernelAddr(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = ifaNoDAD
	}
	return a
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// syncRoutes makes every namespace's static routes what they ought to be in a state of faults. It writes only what differs.
func (x *index) syncRoutes(ctx context.Context, rs routeState) error {
	want := x.labRoutes(rs)
	for i := range x.Namespaces {
		ns := &x.Namespaces[i]
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := unix.InNetns(ns.Netns, func() error { return syncNamespace(ns, x.family(), want[ns.Element]) }); err != nil {
			return fmt.Errorf("routes of %s: %w", ns.Element, err)
		}
	}
	return nil
}

type routeKey struct {
	table  int
	dst    netip.Prefix
	metric int
}

func syncNamespace(ns *Namespace, family *addressFamily, want []route) error {
	return withHandle(func(h *netlink.Handle) error {
		ids, err := interfaceIDs(h)
		if err != nil {
			return err
		}
		have, err := staticRoutes(h, family)
		if err != nil {
			return err
		}
		byEnd := map[string]Interface{}
		for _, i := range ns.Interfaces {
			byEnd[i.End] = i
		}
		for _, r := range want {
			nr := r.netlinkRoute(byEnd, ids)
			if !ns.Switch {
				nr.MTU = DefaultMTU // also if SetLinkMTU makes room for what is added to packets
			}
			key := routeKey{nr.Table, r.dst, r.metric}
			old, ok := have[key]
			delete(have, key)
			if ok && sameRoute(old, nr) {
				continue
			}
			if err := h.RouteReplace(nr); err != nil {
				return fmt.Errorf("installing the route to %s: %w", r.dst, err)
			}
		}
		for key, r := range have {
			if err := h.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("removing the route to %s: %w", key.dst, err)
			}
		}
		return nil
	})
}

func interfaceIDs(h *netlink.Handle) (map[string]int, error) {
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	ids := map[string]int{}
	for _, l := range links {
		ids[l.Attrs().Name] = l.Attrs().Index
	}
	return ids, nil
}

// mainTable is RT_TABLE_MAIN of rtnetlink(7).
const mainTable = 254

// staticRoutes reads the routes that the lab installed, from all tables.
func staticRoutes(h *netlink.Handle, family *addressFamily) (map[routeKey]netlink.Route, error) {
	list, err := h.RouteListFiltered(family.netlink, &netlink.Route{Protocol: rtprotStatic, Table: 0}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	out := map[routeKey]netlink.Route{}
	for _, r := range list {
		key := routeKey{r.Table, family.prefixOf(r.Dst), r.Priority}
		if key.metric == family.metric {
			key.metric = 0
		}
		out[key] = r
	}
	return out, nil
}

// prefixOf returns the prefix of a route's destination. nil stands for the default route.
func (f *addressFamily) prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return f.everywhere()
	}
	a, _ := netip.AddrFromSlice(n.IP)
	if f == ipv4Family {
		a = a.Unmap()
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a, bits)
}

func (r route) netlinkRoute(byEnd map[string]Interface, ids map[string]int) *netlink.Route {
	nr := &netlink.Route{Dst: ipNet(r.dst), Protocol: rtprotStatic, Table: mainTable}
	if r.table != 0 {
		nr.Table = r.table
	}
	if r.kind != 0 {
		nr.Type, nr.Priority, nr.LinkIndex = r.kind, r.metric, ids["lo"]
		if r.segment != nil {
			nr.Encap = r.segment
		}
		return nr
	}
	var hops []*netlink.NexthopInfo
	for _, p := range r.hops {
		n := &netlink.NexthopInfo{LinkIndex: ids[byEnd[p.end].Name]}
		if p.gateway.IsValid() {
			// The file's addresses need not share a subnet.
			n.Gw, n.Flags = p.gateway.AsSlice(), int(netlink.FLAG_ONLINK)
		}
		hops = append(hops, n)
	}
	if len(hops) > 1 {
		nr.MultiPath = hops
		return nr
	}
	nr.LinkIndex, nr.Gw, nr.Flags = hops[0].LinkIndex, hops[0].Gw, hops[0].Flags
	if nr.Gw == nil {
		nr.Scope = netlink.SCOPE_LINK
	}
	return nr
}

func sameRoute(have netlink.Route, want *netlink.Route) bool {
	a, b := nextHops(&have), nextHops(want)
	if len(a) != len(b) || have.Type != max(want.Type, syscall.RTN_UNICAST) || (have.Encap == nil) != (want.Encap == nil) ||
		want.Encap != nil && !want.Encap.Equal(have.Encap) {
		return false
	}
	for i := range a {
		if a[i].LinkIndex != b[i].LinkIndex || !a[i].Gw.Equal(b[i].Gw) || a[i].Flags != b[i].Flags {
			return false
		}
	}
	return true
}

func nextHops(r *netlink.Route) []*netlink.NexthopInfo {
	if len(r.MultiPath) > 0 {
		return r.MultiPath
	}
	return []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Flags: r.Flags}}
}

// RTNH_F_DEAD and RTNH_F_LINKDOWN of rtnetlink(7).
const hopOut = 0x1 | 0x10

// awaitStableRoutes waits until the kernel has noticed every link's carrier: it
// updates routes a moment after the interface is up.
func (x *index) awaitStableRoutes(ctx context.Context, spaces []Namespace) error {
	deadline := time.Now().Add(maxRouteSettle)
	for i := range spaces {
		ns := &spaces[i]
		for {
			settled := false
			err := unix.InNetns(ns.Netns, func() (err error) {
				settled, err = hopsAlive(x.family())
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", ns.Element, err)
			}
			if settled {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s: links have no carrier %s after both ends were set up", ns.Element, maxRouteSettle)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(routeSettlePoll):
			}
		}
	}
	return nil
}

// hopsAlive reports whether no route of the thread's namespace goes by an
// interface that is down or without carrier.
func hopsAlive(family *addressFamily) (bool, error) {
	alive := true
	err := withHandle(func(h *netlink.Handle) error {
		list, err := h.RouteListFiltered(family.netlink, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return fmt.Errorf("listing routes: %w", err)
		}
		for i := range list {
			for _, n := range nextHops(&list[i]) {
				if n.Flags&hopOut != 0 {
					alive = false
				}
			}
		}
		return nil
	})
	return alive, err
}
