package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// subnet returns the topology of a subnet with two hosts of two HCAs each. Leaves have one rail.
func subnet() *Topology {
	t := &Topology{Version: 1, Switches: []Switch{{Name: "leaf0", Role: Leaf}, {Name: "leaf1", Role: Leaf}}}
	for h := range 2 {
		n := Node{Name: fmt.Sprint("h", h)}
		for d := range 2 {
			nic := NIC{Node: n.Name, Device: fmt.Sprint("mlx5_", d), Aliases: []string{fmt.Sprintf("guid:0x%016x", 0x10*h+d+1), fmt.Sprint("lid:", 4*h+d+1)}}
			n.NICs = append(n.NICs, nic)
			t.Links = append(t.Links, Link{A: nic.ID(), B: fmt.Sprintf("leaf%d:%d", d, h+1)})
		}
		t.Nodes = append(t.Nodes, n)
	}
	return t
}

// TestMergeNodes: NICs are found by their GUIDs, and by names where a node knows no GUID. They get the node's name and addresses.
func TestMergeNodes(t *testing.T) {
	rail := 7
	topo := subnet()
	problems := MergeNodes(topo, []NodeView{
		{Node: "h0.example.net", NICs: []NICView{
			{NIC: "h0.example.net/ib0", GUID: "0x0000000000000001", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Plane: "a", Rail: &rail, Side: "s"},
			{NIC: "h0.example.net/ib1", RDMADevice: "mlx5_1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
			{NIC: "h0.example.net/eth0", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		}},
		{Node: "h1", NICs: []NICView{{NIC: "h1/mlx5_0", GUID: "0x0000000000000011"}}},
	})
	if len(problems) > 0 {
		t.Error(problems)
	}
	text := describeNICs(topo)
	for _, want := range []string{
		"h0.example.net/mlx5_0 [guid:0x0000000000000001 lid:1 ib0] [10.0.0.1] a s 7",
		"h0.example.net/mlx5_1 [guid:0x0000000000000002 lid:2 ib1] [10.0.0.2]",
		"h1/mlx5_0 [guid:0x0000000000000011 lid:5] []",
		"h1/mlx5_1 [guid:0x0000000000000012 lid:6] []",
		"h0.example.net/mlx5_0--leaf0:1 h0.example.net/mlx5_1--leaf1:1 h1/mlx5_0--leaf0:2 h1/mlx5_1--leaf1:2",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if len(topo.Nodes) != 2 {
		t.Errorf("%d nodes", len(topo.Nodes))
	}
}

func describeNICs(topo *Topology) string {
	var b strings.Builder
	for _, n := range topo.Nodes {
		for _, nic := range n.NICs {
			rail := ""
			if nic.Rail != nil {
				rail = fmt.Sprint(*nic.Rail)
			}
			fmt.Fprintln(&b, strings.TrimSpace(fmt.Sprintf("%s %v %v %s %s %s", nic.ID(), nic.Aliases, nic.Addresses, nic.Plane, nic.Side, rail)))
		}
	}
	for i := range topo.Links {
		fmt.Fprintf(&b, "%s--%s ", topo.Links[i].A, topo.Links[i].B)
	}
	return b.String()
}

// TestMergeConflicts: what contradicts is listed, and is not merged unless a GUID decides.
func TestMergeConflicts(t *testing.T) {
	address := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	for _, x := range []struct {
		name     string
		nodes    []NodeView
		want     string
		warning  bool
		topology string // what has to be in it
	}{
		{"two of one GUID", []NodeView{{Node: "h0", NICs: []NICView{{NIC: "h0/ib0", GUID: "0x0000000000000001"}, {NIC: "h0/ib1", GUID: "0x0000000000000001"}}}},
			"discovery: h0/ib1: is h0/mlx5_0 of the subnet, which is h0/ib0 already: it is not merged", false, "lid:1 ib0]"},
		{"a name with another GUID", []NodeView{{Node: "h0", NICs: []NICView{{NIC: "h0/mlx5_0", GUID: "0x0000000000000099", Addresses: address("10.0.0.1")}}}},
			"discovery: h0/mlx5_0: has GUID 0x0000000000000099, and h0/mlx5_0 of the subnet has 0x0000000000000001: they are not merged", false, "h0/mlx5_0 [guid:0x0000000000000001 lid:1] []"},
		{"a GUID of no port", []NodeView{{Node: "h0", NICs: []NICView{{NIC: "h0/ib7", GUID: "0x0000000000000099"}}}},
			"discovery: h0/ib7: no port of the subnet has its GUID 0x0000000000000099", true, ""},
		{"another host's GUID", []NodeView{{Node: "h9", NICs: []NICView{{NIC: "h9/ib0", GUID: "0x0000000000000001"}}}},
			"discovery: h9/ib0: the subnet names its host h0: GUID 0x0000000000000001 is believed", true, "h9/mlx5_0 [guid:0x0000000000000001 lid:1 ib0]"},
		{"swapped devices", []NodeView{{Node: "h0", NICs: []NICView{{NIC: "h0/mlx5_1", GUID: "0x0000000000000001"}}}},
			"discovery: h0/mlx5_1: has the name of h0/mlx5_1 in the subnet, and the GUID of h0/mlx5_0: it is not merged", false, "h0/mlx5_0 [guid:0x0000000000000001 lid:1] []"},
		{"two hosts' NICs of one name on a node", []NodeView{{Node: "h0", NICs: []NICView{{NIC: "h0/ib0", GUID: "0x0000000000000001"}, {NIC: "h0/ib8", GUID: "0x0000000000000011"}}}},
			"discovery: h1/mlx5_0: h0 has two NICs mlx5_0: this one stays where the subnet has it", false, "h1/mlx5_0--leaf0:2"},
	} {
		topo := subnet()
		problems := MergeNodes(topo, x.nodes)
		i := slices.IndexFunc(problems, func(p Problem) bool {
			return strings.HasSuffix(p.String(), strings.TrimPrefix(x.want, "discovery: ")) && p.Warning == x.warning
		})
		if i < 0 {
			t.Errorf("%s: %v, want %s", x.name, problems, x.want)
		}
		if text := describeNICs(topo); !strings.Contains(text, x.topology) {
			t.Errorf("%s: %q is not in\n%s", x.name, x.topology, text)
		}
	}
}

// TestJoinTopologies: the NICs of two subnets are on the same nodes, in planes of their own, and without LIDs.
func TestJoinTopologies(t *testing.T) {
	first, second := subnet(), subnet()
	first.SetPlane("a")
	second.SetPlane("b")
	for i := range second.Switches {
		second.Switches[i].Name += "b"
	}
	for i := range second.Nodes {
		for k := range second.Nodes[i].NICs {
			nic := &second.Nodes[i].NICs[k]
			nic.Device = fmt.Sprint("mlx5_", k+2)
			nic.Aliases[0] = fmt.Sprintf("guid:0x%016x", 0x100+0x10*i+k)
		}
	}
	for i := range second.Links {
		l := &second.Links[i]
		l.A, l.B = strings.Replace(strings.Replace(l.A, "mlx5_1", "mlx5_3", 1), "mlx5_0", "mlx5_2", 1), strings.Replace(l.B, ":", "b:", 1)
	}
	topo := JoinTopologies([]*Topology{first, second})
	text := describeNICs(topo)
	for _, want := range []string{"h0/mlx5_1 [guid:0x0000000000000002] [] a", "h0/mlx5_2 [guid:0x0000000000000100] [] b", "h1/mlx5_3--leaf1b:2"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if len(topo.Nodes) != 2 || len(topo.Switches) != 4 || topo.Switches[2].Plane != "b" {
		t.Errorf("%d nodes, switches %+v", len(topo.Nodes), topo.Switches)
	}
	if n := topo.FindRails(); n != 4 {
		t.Errorf("%d rails", n)
	}
	if one := JoinTopologies([]*Topology{first}); one != first {
		t.Error("one subnet is changed")
	}
}

// TestFindRails: rails are the places of GUIDs where each leaf has one of them, and none otherwise.
func TestFindRails(t *testing.T) {
	topo := subnet()
	if n := topo.FindRails(); n != 2 || *topo.Nodes[1].NICs[0].Rail != 0 || *topo.Nodes[1].NICs[1].Rail != 1 {
		t.Errorf("%d rails:\n%s", n, describeNICs(topo))
	}
	if n := topo.FindRails(); n != 0 {
		t.Errorf("%d rails, although the NICs have rails", n)
	}
	for name, change := range map[string]func(*Topology){
		"a leaf of both":       func(t *Topology) { t.Links[3].B = "leaf0:3" },
		"a host with one NIC":  func(t *Topology) { t.Nodes[1].NICs = t.Nodes[1].NICs[:1] },
		"a NIC without a GUID": func(t *Topology) { t.Nodes[1].NICs[1].Aliases = nil },
		"no cables":            func(t *Topology) { t.Links = nil },
	} {
		topo := subnet()
		change(topo)
		if n := topo.FindRails(); n != 0 {
			t.Errorf("%s: %d rails", name, n)
		}
	}
}
