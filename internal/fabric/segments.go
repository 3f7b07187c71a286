package fabric

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// DiscoverSegments makes a topology from what NICs report where no switch reports anything: their networks, and the
// neighbours that they hear by LLDP. Every item is marked as discovered, and none is a guess:
//
//  1. NICs of different nodes that have addresses in one network reach each other over it. The network is their plane. A
//     NIC that shares no network is left out, whatever it hears: that two NICs hear switches does not mean that the
//     switches are connected.
//  2. A NIC that hears exactly one system that forwards packets is plugged into the port that this system names. The
//     system is a leaf. It is recognised by the identifier of its chassis, and named by its system name.
//  3. What is between such leaves is not known. One switch stands for it, which each of the leaves has one link to.
//     Networks that have a leaf in common have this switch in common.
//  4. A NIC that hears no such system, several, or one whose port another NIC hears as well, hangs on the switch that
//     stands for its network.
//
// Nodes are in the order in which they came: an address that two nodes report belongs to the first of them. What a
// topology file would add, what is contradictory, and NICs that no other NIC shares a network with are findings. The
// topology is nil if no two nodes share a network.
func DiscoverSegments(nodes []NodeView) (*Topology, Problems) {
	s := &segments{members: map[netip.Prefix]map[string]netip.Addr{}, owners: map[netip.Addr]string{}, plugged: map[string]socket{}, leaves: map[string]string{}}
	for i := range nodes {
		s.addNode(&nodes[i])
	}
	s.findLeaves(nodes)
	standIns := s.findStandIns(nodes)
	t := &Topology{Version: 1}
	behind := map[string]int{}                   // number of NICs behind each stand-in
	deaf := map[string]int{}                     // number of NICs that hang on each stand-in
	below := map[string]map[string]bool{}        // leaves below each stand-in
	planes := map[string]map[netip.Prefix]bool{} // networks of each leaf
	for i := range nodes {
		n := Node{Name: nodes[i].Node, Discovered: true}
		for _, v := range nodes[i].NICs {
			_, device, ok := SplitNIC(v.NIC)
			network := s.networkOf(v)
			switch {
			case !ok || CheckDevice(device) != nil:
				continue
			case !network.IsValid():
				s.warnf(v.NIC, "shares no network with a NIC of another node: only a topology file can say which NICs it reaches")
				continue
			}
			n.NICs = append(n.NICs, NIC{Node: n.Name, Device: device, Plane: segmentName(network), Addresses: []netip.Addr{s.members[network][v.NIC]}})
			standIn := standIns[network]
			behind[standIn]++
			leaf, port := standIn, dottedNIC(v.NIC)
			if at, heard := s.plugged[v.NIC]; heard {
				leaf, port = s.leaves[at.chassis], EncodeDevice(at.port)
				if planes[leaf] == nil {
					planes[leaf] = map[netip.Prefix]bool{}
				}
				planes[leaf][network] = true
				if below[standIn] == nil {
					below[standIn] = map[string]bool{}
				}
				below[standIn][leaf] = true
			} else {
				deaf[standIn]++
			}
			t.Links = append(t.Links, Link{A: v.NIC, B: leaf + ":" + port, Discovered: true})
		}
		if len(n.NICs) > 0 {
			t.Nodes = append(t.Nodes, n)
		}
	}
	for leaf, networks := range planes {
		sw := Switch{Name: leaf, Role: Leaf, Discovered: true}
		for network := range networks {
			if len(networks) == 1 {
				sw.Plane = segmentName(network)
			}
		}
		t.Switches = append(t.Switches, sw)
	}
	for standIn, count := range behind {
		leaves := below[standIn]
		if len(leaves) == 1 && deaf[standIn] == 0 {
			continue // one switch joins all of them
		}
		sw := Switch{Name: standIn, Role: Leaf, Plane: standIn, Discovered: true}
		if len(leaves) > 0 {
			sw.Role = Spine
		}
		for network, other := range standIns {
			if other == standIn && segmentName(network) != standIn {
				sw.Plane = "" // it stands for several networks
			}
		}
		t.Switches = append(t.Switches, sw)
		for leaf := range leaves {
			t.Links = append(t.Links, Link{A: leaf + ":" + standIn, B: standIn + ":" + leaf, Discovered: true})
		}
		switch {
		case len(leaves) == 0:
			s.warnf(standIn, "stands for all switches and cables between %d NICs: a topology file names them", count)
		case deaf[standIn] == 0:
			s.warnf(standIn, "stands for all switches and cables between %d leaves: a topology file names them", len(leaves))
		default:
			s.warnf(standIn, "stands for all switches and cables between %d leaves and %d NICs that hear no switch by LLDP: a topology file names them", len(leaves), deaf[standIn])
		}
	}
	slices.SortFunc(t.Switches, func(a, b Switch) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(t.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(t.Links, func(a, b Link) int { return cmp.Compare(a.A, b.A) })
	slices.SortFunc(s.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
	})
	if len(t.Switches) == 0 {
		t = nil
	}
	return t, s.problems
}

// dottedNIC returns the name of the port that a NIC has at the switch that stands for its network.
func dottedNIC(nic string) string { return strings.ReplaceAll(nic, "/", ".") }

// segmentName returns the name of the switch that stands for a network.
func segmentName(p netip.Prefix) string {
	return "net-" + strings.NewReplacer("/", "_", ":", ".").Replace(p.String())
}

// segments has the networks that nodes report.
type segments struct {
	members  map[netip.Prefix]map[string]netip.Addr // NICs and their addresses, by network
	owners   map[netip.Addr]string                  // nodes, by address
	plugged  map[string]socket                      // where NICs are plugged in, by LLDP
	leaves   map[string]string                      // names of leaves, by chassis
	problems Problems
}

// socket is a port of a system as LLDP names it.
type socket struct{ chassis, port string }

func (s *segments) warnf(field, format string, args ...any) {
	s.problems = append(s.problems, Problem{File: discovered, Field: field, Message: fmt.Sprintf(format, args...), Warning: true})
}

func (s *segments) addNode(n *NodeView) {
	for _, v := range n.NICs {
		for i, a := range v.Addresses {
			if s.owners[a] == "" {
				s.owners[a] = n.Node
			}
			if s.owners[a] != n.Node || i >= len(v.Networks) || !v.Networks[i].IsValid() || v.Networks[i].Bits() == a.BitLen() {
				continue
			}
			if s.members[v.Networks[i]] == nil {
				s.members[v.Networks[i]] = map[string]netip.Addr{}
			}
			if _, earlier := s.members[v.Networks[i]][v.NIC]; !earlier {
				s.members[v.Networks[i]][v.NIC] = a
			}
		}
	}
}

// networkOf returns the network that a NIC shares with the most NICs of other nodes, or an invalid one if it shares none.
func (s *segments) networkOf(v NICView) (best netip.Prefix) {
	most := 0
	for _, network := range v.Networks {
		if _, member := s.members[network][v.NIC]; !member {
			continue
		}
		others := 0
		for nic := range s.members[network] {
			if OwnerOf(nic) != OwnerOf(v.NIC) {
				others++
			}
		}
		if others > most {
			best, most = network, others
		}
	}
	return best
}

// findLeaves finds the leaves that NICs hear, and their names.
func (s *segments) findLeaves(nodes []NodeView) {
	taken := map[string]bool{} // names that leaves cannot have, and ports of leaves that NICs cannot be plugged into
	for network := range s.members {
		taken[segmentName(network)] = true
	}
	names := map[string][]string{} // names that a system has, by chassis
	users := map[socket][]string{} // NICs, by what they hear
	for i := range nodes {
		taken[nodes[i].Node] = true
		for _, v := range nodes[i].NICs {
			taken[dottedNIC(v.NIC)] = true
			if !s.networkOf(v).IsValid() {
				continue
			}
			heard := slices.DeleteFunc(slices.Clone(v.Neighbours), func(n Neighbour) bool {
				return !n.Forwards || n.Chassis == "" || n.Port == "" || isNode(nodes, n.System)
			})
			if len(heard) > 1 {
				s.warnf(v.NIC, "hears port %q of %q and port %q of %q by LLDP: which of them it is plugged into is not known", heard[0].Port, heard[0].System, heard[1].Port, heard[1].System)
			}
			if len(heard) != 1 {
				continue
			}
			at := socket{heard[0].Chassis, heard[0].Port}
			users[at] = append(users[at], v.NIC)
			if !slices.Contains(names[at.chassis], heard[0].System) {
				names[at.chassis] = append(names[at.chassis], heard[0].System)
			}
		}
	}
	for at, nics := range users {
		slices.Sort(nics)
		switch {
		case len(nics) > 1:
			s.warnf(nics[0], "hears port %q of %q by LLDP, as %s: they cannot all be plugged into it", at.port, names[at.chassis][0], strings.Join(nics[1:], ", "))
		case !taken[EncodeDevice(at.port)]:
			s.plugged[nics[0]] = at
		}
	}
	s.nameLeaves(names, taken)
	for nic, at := range s.plugged {
		if s.leaves[at.chassis] == "" {
			delete(s.plugged, nic)
		}
	}
}

// nameLeaves names the systems by their system names. Two systems of one name have that of the chassis behind it.
func (s *segments) nameLeaves(names map[string][]string, taken map[string]bool) {
	chassisOf := map[string][]string{} // by system name
	for _, chassis := range sortedKeys(names) {
		slices.Sort(names[chassis])
		if all := names[chassis]; len(all) > 1 {
			s.warnf(all[0], "is the LLDP name of %s, which has the name %s as well: the first one is used", chassis, strings.Join(all[1:], ", "))
		}
		chassisOf[names[chassis][0]] = append(chassisOf[names[chassis][0]], chassis)
	}
	for _, system := range sortedKeys(chassisOf) {
		all := chassisOf[system]
		if len(all) > 1 {
			s.warnf(system, "is the LLDP name of several systems: %s: each is named with its chassis", strings.Join(all, ", "))
		}
		for _, chassis := range all {
			name := EncodeName(system)
			if len(all) > 1 || taken[name] {
				name = EncodeName(system + "_" + strings.ReplaceAll(chassis, ":", "."))
			}
			if name == "" || taken[name] {
				s.warnf(system, "is the LLDP name of %s, and cannot be the name of a switch: it is left out", chassis)
				continue
			}
			taken[name] = true
			s.leaves[chassis] = name
		}
	}
}

// isNode reports whether a system is a node, by its name or by the first label of its domain name.
func isNode(nodes []NodeView, system string) bool {
	label, _, _ := strings.Cut(system, ".")
	return slices.ContainsFunc(nodes, func(n NodeView) bool { return n.Node == system || n.Node == label })
}

// findStandIns returns the name of the switch that stands for what is not known of each network. Networks that have a
// leaf in common have one, with the name of the first of them.
func (s *segments) findStandIns(nodes []NodeView) map[netip.Prefix]string {
	group := map[netip.Prefix]netip.Prefix{} // first network that is known to be joined
	find := func(p netip.Prefix) netip.Prefix {
		for group[p] != p {
			p = group[p]
		}
		return p
	}
	byLeaf := map[string]netip.Prefix{}
	for i := range nodes {
		for _, v := range nodes[i].NICs {
			network := s.networkOf(v)
			if !network.IsValid() {
				continue
			}
			if _, known := group[network]; !known {
				group[network] = network
			}
			at, heard := s.plugged[v.NIC]
			if !heard {
				continue
			}
			if earlier, known := byLeaf[at.chassis]; known {
				a, b := find(earlier), find(network)
				if segmentName(b) < segmentName(a) {
					a, b = b, a
				}
				group[b] = a
			}
			byLeaf[at.chassis] = network
		}
	}
	out := map[netip.Prefix]string{}
	for network := range group {
		out[network] = segmentName(find(network))
	}
	return out
}
