package fabric

import (
	"net/netip"
	"slices"
	"testing"
)

func TestNameTrace(t *testing.T) {
	topo, found := LoadTopology("../../deploy/lab/demo.yaml")
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	g := NewGraph(topo)
	edge := Flow{Src: "h1/eth1", Dst: "h8/eth1"}
	hop := func(ttl int, address string) RawHop { return RawHop{TTL: ttl, Address: netip.MustParseAddr(address)} }
	for name, c := range map[string]struct {
		g     *Graph
		trace Trace
		state PathState
		hops  []NamedHop
		ports []string // by which each hop is left
		notes int
	}{
		"known": {g, Trace{State: PathValid, Reached: true, Hops: []RawHop{hop(1, "10.0.1.1"), hop(2, "172.16.17.1"), hop(3, "172.16.65.0")}}, PathValid,
			[]NamedHop{{Switch: "leaf1", In: "dn1", Out: "up1", Address: "10.0.1.1"}, {Switch: "spine1", In: "dn1", Out: "dn4", Address: "172.16.17.1"}, {Switch: "leaf4", In: "up1", Out: "dn2", Address: "172.16.65.0"}},
			[]string{"leaf1:up1", "spine1:dn4", "leaf4:dn2"}, 0},
		"two of three answered": {g, Trace{State: PathUnknown, Hops: []RawHop{hop(1, "10.0.1.1"), hop(2, "172.16.0.1")}}, PathUnknown,
			[]NamedHop{{Switch: "leaf1", In: "dn1", Address: "10.0.1.1"}, {Switch: "spine1", Address: "172.16.0.1"}}, []string{"", ""}, 2},
		"without topology": {nil, Trace{State: PathValid, Hops: []RawHop{{TTL: 1}, hop(2, "192.0.2.1")}}, PathValid, []NamedHop{{}, {Address: "192.0.2.1"}}, []string{"", ""}, 0},
	} {
		got := NameTrace(c.g, edge, c.trace)
		if got.Edge != edge.String() || got.State != c.state || len(got.Notes) != c.notes || len(got.Hops) != len(c.hops) {
			t.Fatalf("%s: %+v", name, got)
		}
		for i := range got.Hops {
			h, want := &got.Hops[i], &c.hops[i]
			if h.Switch != want.Switch || h.In != want.In || h.Out != want.Out || h.Address != want.Address || h.PortID(h.Out) != c.ports[i] {
				t.Errorf("%s, hop %d: %+v, left by %q; want %+v and %q", name, i+1, *h, h.PortID(h.Out), *want, c.ports[i])
			}
		}
		if name == "two of three answered" && !slices.Contains(got.Notes, "candidate: leaf1[dn1>up1] spine1[dn1>dn4] leaf4[up1>dn2]") {
			t.Errorf("%s: notes %q", name, got.Notes)
		}
	}
}
