package fabric

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// views returns what the switches and nodes of a topology would report, without the ends that are left out.
func views(t *testing.T, topo *Topology, lldp, addresses func(end string) bool) ([]SwitchView, []NodeView) {
	t.Helper()
	g := NewGraph(topo)
	mac := func(end string) string { return "02:" + end }
	var switches []SwitchView
	for _, s := range topo.Switches {
		v := SwitchView{Switch: s.Name}
		for _, end := range g.EndsOf(s.Name) {
			l, peer := g.LinkAt(end), g.PeerOf(end)
			own, far := l.AAddress, l.BAddress
			if l.B == end {
				own, far = far, own
			}
			p := PortView{Port: end[len(s.Name)+1:], MAC: mac(end), Up: true, SpeedGbps: l.SpeedGbps, Addresses: []netip.Prefix{}}
			if own.IsValid() {
				p.Addresses = append(p.Addresses, own)
			}
			if lldp(end) {
				p.System, p.SystemPort = OwnerOf(peer), peer[len(OwnerOf(peer))+1:]
			}
			if addresses(end) && far.IsValid() {
				p.LearnedAddresses = append(p.LearnedAddresses, LearnedAddress{far.Addr(), mac(peer)})
			}
			v.Ports = append(v.Ports, p)
		}
		switches = append(switches, v)
	}
	var nodes []NodeView
	for _, n := range topo.Nodes {
		v := NodeView{Node: n.Name}
		for _, c := range n.NICs {
			v.NICs = append(v.NICs, NICView{NIC: c.ID(), MAC: mac(c.ID()), Addresses: c.Addresses, Plane: c.Plane, Rail: c.Rail, Side: c.Side})
		}
		nodes = append(nodes, v)
	}
	return switches, nodes
}

func links(t *Topology) (ids []string) {
	for _, l := range t.Links {
		ids = append(ids, l.ID())
	}
	slices.Sort(ids)
	return ids
}

func all(string) bool  { return true }
func none(string) bool { return false }

func TestDiscover(t *testing.T) {
	topo, found := LoadTopology("../../deploy/lab/demo.yaml")
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ lldp, addresses func(string) bool }{
		"LLDP":                 {all, none},
		"addresses":            {none, all},
		"both":                 {all, all},
		"LLDP at switches":     {func(end string) bool { return !strings.Contains(end, ":dn") || strings.HasPrefix(end, "spine") }, all},
		"one end of each link": {func(end string) bool { return strings.HasPrefix(end, "leaf") }, none},
	} {
		got, found := DiscoverTopology(views(t, topo, c.lldp, c.addresses))
		if err := found.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Equal(links(got), links(topo)) {
			t.Errorf("%s: links %v, want %v", name, links(got), links(topo))
		}
		for i, s := range got.Switches {
			if want := topo.Switches[slices.IndexFunc(topo.Switches, func(o Switch) bool { return o.Name == s.Name })]; s.Role != want.Role {
				t.Errorf("%s: %s is a %s, want %s", name, s.Name, got.Switches[i].Role, want.Role)
			}
		}
		// What is written can be read, and is complete.
		text, err := yaml.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		again, found := ParseTopology("discovered", text)
		if err := found.Err(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		g, want := NewGraph(again), NewGraph(topo)
		for _, nic := range want.NICIDs() {
			if g.ProbeAddress(nic) != want.ProbeAddress(nic) || g.PathTier(nic, "h8/eth1") != want.PathTier(nic, "h8/eth1") {
				t.Errorf("%s: %s is not what it was", name, nic)
			}
		}
	}
}

// TestDiscoverNeverInvents checks that missing, repeated and wrong reports never make a cable that does not exist,
// and that what is wrong is a finding.
func TestDiscoverNeverInvents(t *testing.T) {
	topo, _ := LoadTopology("../../deploy/lab/demo.yaml")
	want := links(topo)
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		some := func(string) bool { return rng.IntN(3) > 0 }
		switches, nodes := views(t, topo, some, some)
		wrong := ""
		if rng.IntN(2) == 0 {
			// One port says something else than the truth; its far end says the truth.
			s := &switches[rng.IntN(len(switches))]
			p := &s.Ports[rng.IntN(len(s.Ports))]
			g := NewGraph(topo)
			peer := g.PeerOf(s.Switch + ":" + p.Port)
			if !IsNIC(peer) {
				wrong = s.Switch + ":" + p.Port
				p.System, p.SystemPort = "leaf2", "up2"
				for i := range switches {
					for j := range switches[i].Ports {
						if end := switches[i].Switch + ":" + switches[i].Ports[j].Port; end == peer {
							switches[i].Ports[j].System, switches[i].Ports[j].SystemPort = s.Switch, p.Port
						}
					}
				}
			}
		}
		got, found := DiscoverTopology(switches, nodes)
		for _, id := range links(got) {
			if !slices.Contains(want, id) && !strings.Contains(id, wrong) {
				t.Errorf("seed %d: made the cable %s of nothing; findings %v", seed, id, found)
			}
			if wrong != "" && strings.Contains(id, wrong) && !slices.Contains(want, id) {
				t.Errorf("seed %d: believed %s against its far end; findings %v", seed, id, found)
			}
		}
		if n := len(got.Links); n < len(want) && len(found) == 0 {
			t.Errorf("seed %d: %d of %d cables, and no finding", seed, n, len(want))
		}
	}
}

func TestDiscoverFindings(t *testing.T) {
	a := netip.MustParseAddr
	for name, c := range map[string]struct {
		switches []SwitchView
		nodes    []NodeView
		says     string
	}{
		"stranger":         {[]SwitchView{{"s1", []PortView{{Port: "p1", System: "router", SystemPort: "e0"}}}}, nil, `"router"`},
		"no such port":     {[]SwitchView{{"s1", []PortView{{Port: "p1", System: "s2", SystemPort: "p9"}}}, {"s2", nil}}, nil, `"p9" of s2`},
		"reported twice":   {[]SwitchView{{"s1", nil}, {"s1", nil}}, nil, "two switches"},
		"bridge":           {[]SwitchView{{"s1", []PortView{{Port: "p1", LearnedAddresses: []LearnedAddress{{a("10.0.0.1"), ""}, {a("10.0.0.2"), ""}}}}}}, []NodeView{{"h1", []NICView{{NIC: "h1/e", Addresses: []netip.Addr{a("10.0.0.1")}}}}, {"h2", []NICView{{NIC: "h2/e", Addresses: []netip.Addr{a("10.0.0.2")}}}}}, "which of them"},
		"unseen NIC":       {nil, []NodeView{{"h1", []NICView{{NIC: "h1/e"}}}}, "no switch sees it"},
		"name":             {[]SwitchView{{"s:1", nil}}, nil, "s:1"},
		"LLDP and address": {[]SwitchView{{"s1", []PortView{{Port: "p1", System: "h1", SystemPort: "e", LearnedAddresses: []LearnedAddress{{a("10.0.0.2"), ""}}}}}}, []NodeView{{"h1", []NICView{{NIC: "h1/e"}}}, {"h2", []NICView{{NIC: "h2/e", Addresses: []netip.Addr{a("10.0.0.2")}}}}}, "LLDP is believed"},
	} {
		_, found := DiscoverTopology(c.switches, c.nodes)
		if !slices.ContainsFunc(found, func(f Problem) bool { return strings.Contains(f.String(), c.says) }) {
			t.Errorf("%s: %v, want a finding about %s", name, found, c.says)
		}
	}
}
