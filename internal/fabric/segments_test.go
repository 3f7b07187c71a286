package fabric

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// view returns what a node reports of interfaces that are written as device=address/bits.
func view(node string, interfaces ...string) NodeView {
	v := NodeView{Node: node}
	for _, text := range interfaces {
		device, prefix, _ := strings.Cut(text, "=")
		nic := NICView{NIC: node + "/" + device}
		for s := range strings.SplitSeq(prefix, ",") {
			p := netip.MustParsePrefix(s)
			nic.Addresses, nic.Networks = append(nic.Addresses, p.Addr()), append(nic.Networks, p.Masked())
		}
		v.NICs = append(v.NICs, nic)
	}
	return v
}

func TestDiscoverSegments(t *testing.T) {
	unknown := view("h2", "eth0=10.1.0.2/24")
	unknown.NICs[0].Networks = nil
	for name, c := range map[string]struct {
		nodes []NodeView
		links string // NICs and their networks
		found string // NICs that reach no other
	}{
		"two networks": {[]NodeView{view("h1", "eth0=10.1.0.1/24", "eth1=10.2.0.1/24"), view("h2", "eth0=10.1.0.2/24", "eth1=10.2.0.2/24")},
			"h1/eth0 net-10.1.0.0_24, h1/eth1 net-10.2.0.0_24, h2/eth0 net-10.1.0.0_24, h2/eth1 net-10.2.0.0_24", ""},
		"one node alone":           {[]NodeView{view("h1", "eth0=10.1.0.1/24", "eth1=10.1.0.2/24")}, "", "h1/eth0 h1/eth1"},
		"a network for each host":  {[]NodeView{view("h1", "eth0=10.1.0.0/31"), view("h2", "eth0=10.1.0.2/31")}, "", "h1/eth0 h2/eth0"},
		"a network of one address": {[]NodeView{view("h1", "lo1=10.1.0.1/32"), view("h2", "lo1=10.1.0.1/32")}, "", "h1/lo1 h2/lo1"},
		"bridges of containers": {[]NodeView{view("h1", "eth0=10.1.0.1/24", "docker0=172.17.0.1/16"), view("h2", "eth0=10.1.0.2/24", "docker0=172.17.0.1/16")},
			"h1/eth0 net-10.1.0.0_24, h2/eth0 net-10.1.0.0_24", "h1/docker0 h2/docker0"},
		"an address of the first": {[]NodeView{view("h2", "eth0=10.1.0.2/24"), view("h3", "eth0=10.1.0.3/24"), view("h1", "eth0=10.1.0.2/24")},
			"h2/eth0 net-10.1.0.0_24, h3/eth0 net-10.1.0.0_24", "h1/eth0"},
		"the network of most": {[]NodeView{view("h1", "eth0=10.1.0.1/24,fd00::1/64"), view("h2", "eth0=fd00::2/64"), view("h3", "eth0=fd00::3/64,10.1.0.3/24")},
			"h1/eth0 net-fd00.._64, h2/eth0 net-fd00.._64, h3/eth0 net-fd00.._64", ""},
		"an agent that reports no networks": {[]NodeView{view("h1", "eth0=10.1.0.1/24"), unknown}, "", "h1/eth0 h2/eth0"},
	} {
		topology, problems := DiscoverSegments(c.nodes)
		var links, found []string
		if topology != nil {
			for _, l := range topology.Links {
				sw, _, _ := SplitPort(l.B)
				links = append(links, l.A+" "+sw)
			}
		}
		for _, p := range problems {
			if IsNIC(p.Field) {
				found = append(found, p.Field)
			}
		}
		if got := strings.Join(links, ", "); got != c.links || strings.Join(found, " ") != c.found {
			t.Errorf("%s: links %q and findings %q, want %q and %q", name, got, found, c.links, c.found)
		}
		if topology == nil {
			continue
		}
		text, err := yaml.Marshal(topology)
		if err != nil {
			t.Fatal(err)
		}
		again, checked := ParseTopology(name, text)
		if len(checked) > 0 || slices.ContainsFunc(again.Switches, func(s Switch) bool { return !s.Discovered }) || !again.Nodes[0].Discovered || !again.Links[0].Discovered {
			t.Errorf("%s: %v, or an item is not marked:\n%s", name, checked, text)
		}
	}
}

// A node that joins later changes no name of the others' links.
func TestDiscoveredNamesStay(t *testing.T) {
	h1, h2, h3 := view("h1", "eth0=10.1.0.1/24"), view("h2", "eth0=10.1.0.2/24"), view("h3", "eth0=10.1.0.3/24")
	before, _ := DiscoverSegments([]NodeView{h2, h3})
	after, _ := DiscoverSegments([]NodeView{h1, h2, h3})
	for _, l := range before.Links {
		if !slices.ContainsFunc(after.Links, func(o Link) bool { return o.ID() == l.ID() }) {
			t.Errorf("%s has another name after h1 joined: %v", l.ID(), after.Links)
		}
	}
}

// hearing returns the view of a node whose interfaces hear neighbours, which are written as
// device=system:port@chassis, with ! behind it for those that do not forward packets.
func hearing(v NodeView, heard ...string) NodeView {
	for _, text := range heard {
		device, rest, _ := strings.Cut(text, "=")
		rest, host := strings.CutSuffix(rest, "!")
		name, chassis, _ := strings.Cut(rest, "@")
		system, port, _ := strings.Cut(name, ":")
		for i := range v.NICs {
			if v.NICs[i].NIC == v.Node+"/"+device {
				v.NICs[i].Neighbours = append(v.NICs[i].Neighbours, Neighbour{System: system, Port: port, Chassis: chassis, Forwards: !host})
			}
		}
	}
	return v
}

func TestDiscoverLeaves(t *testing.T) {
	one := func(n string, heard ...string) NodeView {
		return hearing(view("h"+n, "eth0=10.1.0."+n+"/24"), heard...)
	}
	const net = "net-10.1.0.0_24"
	for name, c := range map[string]struct {
		nodes    []NodeView
		switches string // name, role and plane
		links    string
		found    string // elements of findings
	}{
		"one switch": {[]NodeView{one("1", "eth0=leaf1:swp1@c1"), one("2", "eth0=leaf1:swp2@c1")},
			"leaf1 leaf " + net, "h1/eth0--leaf1:swp1, h2/eth0--leaf1:swp2", ""},
		"two leaves": {[]NodeView{one("1", "eth0=leaf1:swp1@c1"), one("2", "eth0=leaf2:swp1@c2")},
			"leaf1 leaf " + net + ", leaf2 leaf " + net + ", " + net + " spine " + net,
			"h1/eth0--leaf1:swp1, h2/eth0--leaf2:swp1, leaf1:" + net + "--" + net + ":leaf1, leaf2:" + net + "--" + net + ":leaf2", net},
		"one hears nothing": {[]NodeView{one("1", "eth0=leaf1:swp1@c1"), one("2")},
			"leaf1 leaf " + net + ", " + net + " spine " + net, "h1/eth0--leaf1:swp1, h2/eth0--" + net + ":h2.eth0, leaf1:" + net + "--" + net + ":leaf1", net},
		"a host is no switch": {[]NodeView{one("1", "eth0=h9:eth0@c1!"), one("2", "eth0=h1.example.com:eth0@c2")},
			net + " leaf " + net, "h1/eth0--" + net + ":h1.eth0, h2/eth0--" + net + ":h2.eth0", net},
		"a host beside a switch": {[]NodeView{one("1", "eth0=h1:vf0@c9", "eth0=leaf1:swp1@c1"), one("2", "eth0=leaf1:swp2@c1")},
			"leaf1 leaf " + net, "h1/eth0--leaf1:swp1, h2/eth0--leaf1:swp2", ""},
		"two switches at one NIC": {[]NodeView{one("1", "eth0=leaf1:swp1@c1", "eth0=leaf2:swp1@c2"), one("2", "eth0=leaf1:swp2@c1")},
			"leaf1 leaf " + net + ", " + net + " spine " + net, "h1/eth0--" + net + ":h1.eth0, h2/eth0--leaf1:swp2, leaf1:" + net + "--" + net + ":leaf1", "h1/eth0 " + net},
		"one port at two NICs": {[]NodeView{one("1", "eth0=leaf1:swp1@c1"), one("2", "eth0=leaf1:swp1@c1")},
			net + " leaf " + net, "h1/eth0--" + net + ":h1.eth0, h2/eth0--" + net + ":h2.eth0", "h1/eth0 " + net},
		"two switches of one name": {[]NodeView{one("1", "eth0=sonic:e1@02:01"), one("2", "eth0=sonic:e1@02:02")},
			net + " spine " + net + ", sonic_02.01 leaf " + net + ", sonic_02.02 leaf " + net,
			"h1/eth0--sonic_02.01:e1, h2/eth0--sonic_02.02:e1, " + net + ":sonic_02.01--sonic_02.01:" + net + ", " + net + ":sonic_02.02--sonic_02.02:" + net, net + " sonic"},
		"a switch that was renamed": {[]NodeView{one("1", "eth0=leaf1:swp1@c1"), one("2", "eth0=old:swp2@c1")},
			"leaf1 leaf " + net, "h1/eth0--leaf1:swp1, h2/eth0--leaf1:swp2", "leaf1"},
		"names that are no names": {[]NodeView{one("1", "eth0=my switch/1:port 1#a@c1"), one("2", "eth0=my switch/1:port--2@c1")},
			"my%20switch%2F1 leaf " + net, "h1/eth0--my%20switch%2F1:port%201%23a, h2/eth0--my%20switch%2F1:port%2D-2", ""},
		"the names of a network and of a NIC's port": {[]NodeView{one("1", "eth0="+net+":swp1@c1"), one("2", "eth0=h1.eth0:x@c2"), one("3", "eth0=leaf3:"+net+"@c3")},
			net + " spine " + net + ", " + net + "_c1 leaf " + net,
			"h1/eth0--" + net + "_c1:swp1, h2/eth0--" + net + ":h2.eth0, h3/eth0--" + net + ":h3.eth0, " + net + ":" + net + "_c1--" + net + "_c1:" + net, net},
		"two networks of one leaf": {[]NodeView{
			hearing(view("h1", "eth0=10.1.0.1/24", "eth1=10.2.0.1/24"), "eth0=leaf1:swp1@c1", "eth1=leaf1:swp2@c1"),
			hearing(view("h2", "eth0=10.1.0.2/24", "eth1=10.2.0.2/24"), "eth0=leaf2:swp1@c2")},
			"leaf1 leaf , leaf2 leaf " + net + ", " + net + " spine ",
			"h1/eth0--leaf1:swp1, h1/eth1--leaf1:swp2, h2/eth0--leaf2:swp1, h2/eth1--" + net + ":h2.eth1, leaf1:" + net + "--" + net + ":leaf1, leaf2:" + net + "--" + net + ":leaf2", net},
		"a network for each host": {[]NodeView{hearing(view("h1", "eth0=10.1.0.0/31"), "eth0=leaf1:swp1@c1"), hearing(view("h2", "eth0=10.1.0.2/31"), "eth0=leaf1:swp2@c1")},
			"", "", "h1/eth0 h2/eth0"},
	} {
		topology, problems := DiscoverSegments(c.nodes)
		var switches, links, found []string
		if topology != nil {
			for _, sw := range topology.Switches {
				switches = append(switches, sw.Name+" "+string(sw.Role)+" "+sw.Plane)
			}
			for _, l := range topology.Links {
				links = append(links, l.A+"--"+l.B)
				if l.A > l.B {
					links[len(links)-1] = l.B + "--" + l.A
				}
			}
		}
		slices.Sort(links)
		for _, p := range problems {
			found = append(found, p.Field)
		}
		if got := strings.Join(switches, ", "); got != c.switches {
			t.Errorf("%s: switches\n%q, want\n%q", name, got, c.switches)
		}
		if got := strings.Join(links, ", "); got != c.links {
			t.Errorf("%s: links\n%q, want\n%q", name, got, c.links)
		}
		if got := strings.Join(slices.Compact(found), " "); got != c.found {
			t.Errorf("%s: findings at %q, want %q: %v", name, got, c.found, problems)
		}
		if topology != nil {
			checkDiscovered(t, name, topology, c.nodes)
		}
	}
}

// checkDiscovered checks that a topology can be read again, and that no item is a guess: each NIC hangs on a port that it
// alone hears, or on the switch that stands for a network; each plane is a network that its NICs have an address in; and
// all NICs of a plane are connected.
func checkDiscovered(t *testing.T, name string, topology *Topology, nodes []NodeView) {
	t.Helper()
	text, err := yaml.Marshal(topology)
	if err != nil {
		t.Fatal(err)
	}
	again, problems := ParseTopology(name, text)
	if bad := problems.OnlyErrors(); len(bad) > 0 {
		t.Fatalf("%s: %v\n%s", name, bad, text)
	}
	views := map[string]NICView{}
	for _, n := range nodes {
		for _, v := range n.NICs {
			views[v.NIC] = v
		}
	}
	g := NewGraph(again)
	anchor := map[string]string{} // a NIC of each plane
	for _, id := range g.NICIDs() {
		nic, v := g.NIC(id), views[id]
		if !slices.ContainsFunc(v.Networks, func(p netip.Prefix) bool { return segmentName(p) == nic.Plane }) {
			t.Errorf("%s: %s is in plane %s, and in networks %v", name, id, nic.Plane, v.Networks)
		}
		leaf, port := g.LeafOf(id)
		heard := slices.ContainsFunc(v.Neighbours, func(n Neighbour) bool { return n.Forwards && EncodeDevice(n.Port) == port })
		if standsIn := strings.HasPrefix(leaf, "net-") && port == dottedNIC(id); !heard && !standsIn {
			t.Errorf("%s: %s is plugged into %s:%s, which it does not hear: %v", name, id, leaf, port, v.Neighbours)
		}
		if other := anchor[nic.Plane]; other != "" && OwnerOf(other) != OwnerOf(id) && len(g.ShortestPaths(id, other, 2)) != 1 {
			t.Errorf("%s: not one path from %s to %s of plane %s", name, id, other, nic.Plane)
		}
		anchor[nic.Plane] = id
	}
	for _, sw := range again.Switches {
		if !sw.Discovered {
			t.Errorf("%s: %s is not marked", name, sw.Name)
		}
	}
	for _, l := range again.Links {
		if !l.Discovered {
			t.Errorf("%s: %s is not marked", name, l.ID())
		}
	}
}

// Whatever agents report, the topology can be used and has no guess.
func FuzzDiscoverLeaves(f *testing.F) {
	f.Add("leaf1", "swp1", "c1", "leaf2", "swp1", "c2", uint8(0))
	f.Add("net-10.1.0.0_24", "h1.eth0", "c1", "h2", "net-10.2.0.0_24", "c1", uint8(255))
	f.Add("a->b", "--", ":", "%", "@#", "/", uint8(85))
	f.Fuzz(func(t *testing.T, system1, port1, chassis1, system2, port2, chassis2 string, which uint8) {
		all := [2]Neighbour{{system1, port1, chassis1, true}, {system2, port2, chassis2, true}}
		nodes := []NodeView{view("h1", "eth0=10.1.0.1/24", "eth1=10.2.0.1/24"), view("h2", "eth0=10.1.0.2/24", "eth1=10.2.0.2/24")}
		for i := range 8 {
			if which&(1<<i) != 0 {
				v := &nodes[i/4].NICs[i/2%2]
				v.Neighbours = append(v.Neighbours, all[i%2])
			}
		}
		topology, _ := DiscoverSegments(nodes)
		checkDiscovered(t, "fuzz", topology, nodes)
	})
}
