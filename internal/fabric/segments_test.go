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
