package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

func TestTraceAsText(t *testing.T) {
	topo, found := fabric.LoadTopology("../../deploy/lab/demo.yaml")
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	g := fabric.NewGraph(topo)
	hop := func(ttl int, address string) fabric.RawHop {
		rtt := int64(ttl * 15_200)
		return fabric.RawHop{TTL: ttl, Address: netip.MustParseAddr(address), RTTNS: &rtt}
	}
	edge := fabric.Flow{Src: "h1/eth1", Dst: "h8/eth1"}
	labelled := hop(2, "172.16.17.1")
	labelled.MPLS = []fabric.Label{{Label: 16001, Bottom: true, TTL: 1}}
	loopback := hop(2, "172.16.0.1")
	for name, c := range map[string]struct {
		g    *fabric.Graph
		t    fabric.Trace
		want string
	}{
		"known": {g, fabric.Trace{Edge: edge.String(), State: fabric.PathValid, Reached: true, Notes: []string{"hop 2: MPLS labels L=16001,TC=0,S=1,TTL=1"},
			Hops: []fabric.RawHop{hop(1, "10.0.1.1"), labelled, hop(3, "172.16.65.0")}}, `
trace of h1/eth1>h8/eth1#0, from h1/eth1 to h8/eth1: path valid
hop  switch   in   out  answered from  RTT at least  over link
  1  leaf1    dn1  up1  10.0.1.1       15.2 µs       h1/eth1--leaf1:dn1
  2  spine1   dn1  dn4  172.16.17.1    30.4 µs       leaf1:up1--spine1:dn1
  3  leaf4    up1  dn2  172.16.65.0    45.6 µs       leaf4:up1--spine1:dn4
     h8/eth1                                         h8/eth1--leaf4:dn2
  note: hop 2: MPLS labels L=16001,TC=0,S=1,TTL=1
`},
		"only the first two answered": {g, fabric.Trace{Edge: edge.String(), State: fabric.PathUnknown, Hops: []fabric.RawHop{hop(1, "10.0.1.1"), loopback}}, `
trace of h1/eth1>h8/eth1#0, from h1/eth1 to h8/eth1: path unknown
hop  switch   in   out  answered from  RTT at least  over link
  1  leaf1    dn1  *    10.0.1.1       15.2 µs       h1/eth1--leaf1:dn1
  2  spine1   *    *    172.16.0.1     30.4 µs       *
     h8/eth1                                         *
  note: 1 paths fit the hops that answered
  note: candidate: leaf1[dn1>up1] spine1[dn1>dn4] leaf4[up1>dn2]
`},
		"without topology": {nil, fabric.Trace{Edge: edge.String(), State: fabric.PathValid, Reached: true,
			Hops: []fabric.RawHop{{TTL: 1}, {TTL: 2, Address: netip.MustParseAddr("192.0.2.1"), Interface: &fabric.Interface{Name: "Ethernet4"}}}}, `
trace of h1/eth1>h8/eth1#0, from h1/eth1 to h8/eth1: path valid
hop  switch   in         out  answered from  RTT at least  over link
  1  *        *          *    *              *             *
  2  *        Ethernet4  *    192.0.2.1      *             *
     h8/eth1                                               *
`},
	} {
		var b strings.Builder
		if err := printTrace(&b, fabric.NameTrace(c.g, edge, c.t), "h1/eth1", "h8/eth1"); err != nil || b.String() != c.want[1:] {
			t.Errorf("%s: %v\n%swant%s", name, err, b.String(), c.want)
		}
	}
}
