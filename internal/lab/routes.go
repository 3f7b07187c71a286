package lab

import (
	"net/netip"
	"slices"
	"sort"

	"github.com/graylink/graylink/internal/fabric"
)

// hop is one next hop of a route: the peer's address behind an interface of
// ours. An invalid gateway is a directly connected destination.
type hop struct {
	end     string
	gateway netip.Addr
}

// route is one static route of the main table, or of a NIC's own table.
type route struct {
	dst   netip.Prefix
	table int // 0: main
	hops  []hop
	// Routes with a kind (RTN_UNREACHABLE of rtnetlink(7)) have no next hops.
	kind    int
	segment *segment // of RTN_LOCAL: what the switch does with the packet
	metric  int      // 0: that of the family
}

// isLocal reports whether the destination is at the element's own port.
func (r route) isLocal() bool { return len(r.hops) > 0 && !r.hops[0].gateway.IsValid() }

// nicTable returns the number of the routing table of a node's i-th NIC.
func nicTable(i int) int { return 100 + i }

// destination is a subnet and the switch it hangs off.
type destination struct {
	prefix    netip.Prefix
	sw        string
	end       string // the switch's port that faces it; "" for the switch's own addresses
	owner     string
	connected bool // the kernel makes the last switch's route from the port's address
}

func (x *index) allDestinations() []destination {
	var out []destination
	for _, ns := range x.Namespaces {
		if ns.Switch {
			for _, a := range ns.Loopback {
				out = append(out, destination{prefix: hostPrefix(a), sw: ns.Element, owner: ns.Element, connected: true})
			}
			continue
		}
		for _, i := range ns.Interfaces {
			sw := fabric.OwnerOf(i.Peer)
			d := destination{prefix: i.Address.Masked(), sw: sw, end: i.Peer, owner: ns.Element, connected: true}
			if i.Shared {
				d.prefix, d.connected = hostPrefix(i.Address.Addr()), false
			}
			out = append(out, d)
			for _, a := range i.Extra {
				out = append(out, destination{prefix: hostPrefix(a), sw: sw, end: i.Peer, owner: ns.Element})
			}
		}
	}
	return out
}

// linkSet is a set of links by identifier.
type linkSet map[string]bool

// routeState is what faults do to the routes that the lab installs.
type routeState struct {
	down, withdrawn linkSet
	unknown         map[unknownNeighbour]bool
}

// computeRoutes computes every namespace's static routes: all shortest paths through
// switches to every destination. withdrawn links are out of all elements'
// routes, as after a routing daemon's convergence: a switch left without a way
// down to a destination is no longer a way to it for its neighbours either.
// Links that are down but not yet withdrawn are missing only at their own ends.
func (x *index) computeRoutes(down, withdrawn linkSet) map[string][]route {
	out := map[string][]route{}
	byLeaf := map[string]map[string][]hop{}
	dist := map[string]map[string]int{}
	dests := x.allDestinations()
	for _, d := range dests {
		if byLeaf[d.sw] == nil {
			dist[d.sw] = x.graph.SwitchDistances(d.sw)
			byLeaf[d.sw] = x.hopsTo(dist[d.sw], down, withdrawn)
		}
		for _, ns := range x.Namespaces {
			if !ns.Switch {
				continue
			}
			if ns.Element == d.sw {
				if !d.connected {
					out[ns.Element] = append(out[ns.Element], route{dst: d.prefix, hops: []hop{{end: d.end}}})
				}
			} else if h := byLeaf[d.sw][ns.Element]; len(h) > 0 {
				out[ns.Element] = append(out[ns.Element], route{dst: d.prefix, hops: h})
			}
		}
	}
	for _, ns := range x.Namespaces {
		if !ns.Switch {
			out[ns.Element] = x.nodeRoutes(ns, dests, dist)
		}
	}
	return out
}

// allRoutes returns the routes of every namespace: those of computeRoutes, and those for carriers where hosts choose paths.
func (x *index) allRoutes(rs routeState) map[string][]route {
	all := x.computeRoutes(rs.down, rs.withdrawn)
	if !x.Topology.IsSourceRouted() {
		return all
	}
	for i := range x.Namespaces {
		ns := &x.Namespaces[i]
		if ns.Switch {
			all[ns.Element] = append(all[ns.Element], x.segmentRoutes(ns, rs)...)
		} else {
			all[ns.Element] = append(all[ns.Element], x.carrierRoutes(ns)...)
		}
	}
	return all
}

// labRoutes returns those of allRoutes that the lab installs itself. Where FRR routes between switches, these are the routes
// of nodes, and those of switches to what is at their own ports.
func (x *index) labRoutes(rs routeState) map[string][]route {
	all := x.allRoutes(rs)
	if x.Routing != RoutingFRR {
		return all
	}
	for _, ns := range x.Namespaces {
		if ns.Switch {
			all[ns.Element] = slices.DeleteFunc(all[ns.Element], func(r route) bool { return !r.isLocal() })
		}
	}
	return all
}

// hopsTo returns each switch's next hops on the shortest paths to the switch
// that dist counts from.
func (x *index) hopsTo(dist map[string]int, down, withdrawn linkSet) map[string][]hop {
	order := make([]string, 0, len(dist))
	for sw := range dist {
		order = append(order, sw)
	}
	sort.Slice(order, func(i, j int) bool {
		if a, b := dist[order[i]], dist[order[j]]; a != b {
			return a < b
		}
		return order[i] < order[j]
	})
	reaches := map[string]bool{}
	hops := map[string][]hop{}
	for _, sw := range order {
		if dist[sw] == 0 {
			reaches[sw] = true
			continue
		}
		for _, i := range x.byElement[sw].Interfaces {
			next := fabric.OwnerOf(i.Peer)
			if d, isSwitch := dist[next]; !isSwitch || d != dist[sw]-1 || !reaches[next] {
				continue
			}
			link := fabric.LinkID(i.End, i.Peer)
			if withdrawn[link] {
				continue
			}
			// A link that is down but not withdrawn still counts for the
			// neighbours, which do not know yet.
			reaches[sw] = true
			if !down[link] {
				hops[sw] = append(hops[sw], hop{i.End, i.PeerAdr})
			}
		}
	}
	return hops
}

// nodeRoutes gives a node with one NIC a default route. One with several has
// a default route per NIC, in the table that traffic from the NIC's address
// uses, and in the main table, for traffic that has not chosen an address, the
// NICs nearest to each destination (planes are not joined with each other).
func (x *index) nodeRoutes(ns Namespace, dests []destination, dist map[string]map[string]int) []route {
	def := x.family().everywhere()
	if len(ns.Interfaces) == 1 {
		i := ns.Interfaces[0]
		return []route{{dst: def, hops: []hop{{i.End, i.PeerAdr}}}}
	}
	var out []route
	for n, i := range ns.Interfaces {
		out = append(out, route{dst: def, table: nicTable(n), hops: []hop{{i.End, i.PeerAdr}}})
	}
	for _, d := range dests {
		if d.owner == ns.Element {
			continue
		}
		best := -1
		var hops []hop
		for _, i := range ns.Interfaces {
			n, ok := dist[d.sw][fabric.OwnerOf(i.Peer)]
			switch {
			case !ok || best >= 0 && n > best:
			case n == best:
				hops = append(hops, hop{i.End, i.PeerAdr})
			default:
				best, hops = n, []hop{{i.End, i.PeerAdr}}
			}
		}
		if len(hops) > 0 {
			out = append(out, route{dst: d.prefix, hops: hops})
		}
	}
	return out
}
