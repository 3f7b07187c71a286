package fabric

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

// twoWays returns h1 - l1 = s1 = l2 - h2: two cables between l1 and s1, one from s1 to l2, and loopback addresses on
// all switches.
func twoWays() *Graph {
	p := netip.MustParsePrefix
	a := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	return NewGraph(&Topology{Version: 1,
		Switches: []Switch{{Name: "l1", Role: Leaf, Addresses: a("10.255.0.1")}, {Name: "s1", Role: Spine, Addresses: a("10.255.0.2")}, {Name: "l2", Role: Leaf, Addresses: a("10.255.0.3")}},
		Nodes: []Node{{Name: "h1", NICs: []NIC{{Node: "h1", Device: "eth1", Addresses: a("10.0.1.2")}}},
			{Name: "h2", NICs: []NIC{{Node: "h2", Device: "eth1", Addresses: a("10.0.2.2")}}}},
		Links: []Link{
			{A: "h1/eth1", B: "l1:dn1", BAddress: p("10.0.1.1/24")},
			{A: "l1:up1", B: "s1:dn1", BAddress: p("10.1.1.1/31")},
			{A: "l1:up2", B: "s1:dn2", BAddress: p("10.1.2.1/31")},
			{A: "s1:dn3", B: "l2:up1", BAddress: p("10.1.3.1/31")},
			{A: "h2/eth1", B: "l2:dn1", BAddress: p("10.0.2.1/24")},
		}})
}

func TestResolveByIncomingInterface(t *testing.T) {
	addr := func(s string) netip.Addr {
		if s == "" {
			return netip.Addr{}
		}
		return netip.MustParseAddr(s)
	}
	over2 := "l1[dn1>up2] s1[dn2>dn3] l2[up1>dn1]"
	for name, c := range map[string]struct {
		spine     string // that hop 2 answers from
		reported  *Interface
		want      string // path; "" : unknown
		candidate int
		note      string
	}{
		"a port's own address":              {"10.1.2.1", nil, over2, 0, ""},
		"a loopback address only":           {"10.255.0.2", nil, "", 2, "2 paths fit"},
		"the name of the port":              {"10.255.0.2", &Interface{Name: "dn2"}, over2, 0, ""},
		"the address of the port":           {"10.255.0.2", &Interface{Address: addr("10.1.2.1")}, over2, 0, ""},
		"from another port, by the name":    {"10.1.1.1", &Interface{Name: "dn2"}, over2, 0, ""},
		"from another port, by the address": {"10.1.1.1", &Interface{Address: addr("10.1.2.1")}, over2, 0, ""},
		"from nowhere, by the address":      {"192.0.2.9", &Interface{Address: addr("10.1.2.1"), Name: "x"}, over2, 0, ""},
		"a name of no port":                 {"10.1.2.1", &Interface{Name: "Ethernet9", Index: 4}, over2, 0, ""},
		"a name alone":                      {"192.0.2.9", &Interface{Name: "dn2"}, "", 0, "which no port of the topology has"},
		"another switch's port":             {"10.255.0.2", &Interface{Address: addr("10.1.3.1")}, "", 0, "says that the packet came in at l2:up1"},
	} {
		tr := Trace{State: PathValid, Reached: true, Hops: []RawHop{{TTL: 1, Address: addr("10.0.1.1")},
			{TTL: 2, Address: addr(c.spine), Interface: c.reported}, {TTL: 3, Address: addr("10.1.3.1")}}}
		r := ResolveTrace(twoWays(), "h1/eth1", "h2/eth1", tr)
		if r.Path.CanonicalKey() != c.want || (r.State == PathValid) != (c.want != "") || len(r.Candidates) != c.candidate || !strings.Contains(strings.Join(r.Notes, "\n"), c.note) {
			t.Errorf("%s: %s %q, %d candidates, notes %q; want %q", name, r.State, r.Path.CanonicalKey(), len(r.Candidates), r.Notes, c.want)
		}
	}
}

func TestRawHopsJSON(t *testing.T) {
	for want, h := range map[string]RawHop{
		`{"ttl":2}`: {TTL: 2},
		`{"ttl":3,"address":"10.0.0.1","interface":{"name":"up1","address":"10.0.0.2","index":7,"mtu":9100},"mpls":[{"label":3,"tc":1,"bottom":true,"ttl":9}]}`: {TTL: 3,
			Address: netip.MustParseAddr("10.0.0.1"), Interface: &Interface{Name: "up1", Address: netip.MustParseAddr("10.0.0.2"), Index: 7, MTU: 9100},
			MPLS: []Label{{Label: 3, TC: 1, Bottom: true, TTL: 9}}},
	} {
		if got, err := json.Marshal(h); err != nil || string(got) != want {
			t.Errorf("%s %v, want %s", got, err, want)
		}
	}
}

// A trace without any hop goes by the one path of switches that do not route.
func TestResolveBetweenLeaves(t *testing.T) {
	nodes := []NodeView{
		hearing(view("h1", "eth0=10.1.0.1/24"), "eth0=leaf1:swp1@c1"), hearing(view("h2", "eth0=10.1.0.2/24"), "eth0=leaf2:swp1@c2")}
	const want = "leaf1[swp1>net-10.1.0.0_24] net-10.1.0.0_24[leaf1>leaf2] leaf2[net-10.1.0.0_24>swp1]"
	for name, c := range map[string]struct {
		change func(*Topology)
		valid  bool
	}{
		"as discovered":      {func(*Topology) {}, true},
		"a switch routes":    {func(t *Topology) { t.Switches[0].Addresses = []netip.Addr{netip.MustParseAddr("10.9.0.1")} }, false},
		"a link is routed":   {func(t *Topology) { t.Links[len(t.Links)-1].AAddress = netip.MustParsePrefix("10.9.0.0/31") }, false},
		"there are two ways": {func(t *Topology) { t.Links = append(t.Links, Link{A: "leaf1:b", B: "net-10.1.0.0_24:b"}) }, false},
	} {
		topology, _ := DiscoverSegments(nodes)
		c.change(topology)
		got := ResolveTrace(NewGraph(topology), "h1/eth0", "h2/eth0", Trace{State: PathValid, Reached: true})
		if (got.State == PathValid) != c.valid || c.valid && got.Path.CanonicalKey() != want {
			t.Errorf("%s: %s %q %v, want valid: %v", name, got.State, got.Path.CanonicalKey(), got.Notes, c.valid)
		}
	}
}

// A trace without any hop: no router is on the way.
func TestResolveNeighbours(t *testing.T) {
	g := twoWays()
	g.Topo.Nodes = append(g.Topo.Nodes, Node{Name: "h3", NICs: []NIC{{Node: "h3", Device: "eth1"}}})
	g.Topo.Links = append(g.Topo.Links, Link{A: "h3/eth1", B: "l1:dn3"})
	g = NewGraph(g.Topo)
	for name, c := range map[string]struct {
		dst, want string
		state     PathState
		note      string
	}{
		"under one switch":               {"h3/eth1", "l1[dn1>dn3]", PathValid, "l1 joins both NICs"},
		"kept from before":               {"h3/eth1", "l1[dn1>dn3]", PathStale, "l1 joins both NICs"},
		"nothing answered":               {"h3/eth1", "", PathUnknown, "no hop answered"},
		"under two, the file is wrong":   {"h2/eth1", "", PathValid, "no switch that both NICs are plugged into"},
		"to a NIC that no file mentions": {"h9/eth1", "", PathValid, "no switch that both NICs are plugged into"},
	} {
		got := ResolveTrace(g, "h1/eth1", c.dst, Trace{State: c.state, Reached: c.state == PathValid})
		if got.Path.CanonicalKey() != c.want || (got.State == PathValid) != (c.want != "") || !strings.Contains(strings.Join(got.Notes, "; "), c.note) {
			t.Errorf("%s: %+v, want %q and the note %q", name, got, c.want, c.note)
		}
	}
}
