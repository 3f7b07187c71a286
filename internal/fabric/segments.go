package fabric

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// DiscoverSegments makes a topology from the networks of NICs, where nothing is known of switches and cables: NICs with
// addresses in one network reach each other over it, so that the network stands for whatever switches are in it. Every
// item is marked as discovered. Nodes are in the order in which they came: an address that two nodes report belongs to the
// first of them. What a topology file would add, and NICs that no other NIC shares a network with, are findings. The
// topology is nil if no two nodes share a network.
func DiscoverSegments(nodes []NodeView) (*Topology, Problems) {
	s := &segments{members: map[netip.Prefix]map[string]netip.Addr{}, owners: map[netip.Addr]string{}}
	for i := range nodes {
		s.addNode(&nodes[i])
	}
	t := &Topology{Version: 1}
	ports := map[netip.Prefix]int{}
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
			name := segmentName(network)
			ports[network]++
			port := strings.ReplaceAll(v.NIC, "/", ".")
			n.NICs = append(n.NICs, NIC{Node: n.Name, Device: device, Plane: name, Addresses: []netip.Addr{s.members[network][v.NIC]}})
			t.Links = append(t.Links, Link{A: v.NIC, B: name + ":" + port, Discovered: true})
		}
		if len(n.NICs) > 0 {
			t.Nodes = append(t.Nodes, n)
		}
	}
	for network, count := range ports {
		name := segmentName(network)
		t.Switches = append(t.Switches, Switch{Name: name, Role: Leaf, Plane: name, Discovered: true})
		s.warnf(name, "stands for all switches and cables between %d NICs: a topology file names them", count)
	}
	slices.SortFunc(t.Switches, func(a, b Switch) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(t.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(t.Links, func(a, b Link) int { return cmp.Compare(a.A, b.A) })
	slices.SortFunc(s.problems, func(a, b Problem) int { return cmp.Compare(a.Field, b.Field) })
	if len(t.Switches) == 0 {
		t = nil
	}
	return t, s.problems
}

// segmentName returns the name of the switch that stands for a network.
func segmentName(p netip.Prefix) string {
	return "net-" + strings.NewReplacer("/", "_", ":", ".").Replace(p.String())
}

// segments has the networks that nodes report.
type segments struct {
	members  map[netip.Prefix]map[string]netip.Addr // NICs and their addresses, by network
	owners   map[netip.Addr]string                  // nodes, by address
	problems Problems
}

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
