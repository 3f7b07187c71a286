package nodeagent

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
)

func octets(s string) []byte { return netip.MustParseAddr(s).AsSlice() }

func exampleAssignment() *agentapi.Assignment {
	return &agentapi.Assignment{Version: 3, Hash: bytes.Repeat([]byte{0xab}, 16), Node: "h1", Authenticated: true, CadenceNs: 1e7,
		Stamp: &agentapi.Stamp{Port: 862, SourcePort: 49152, Padding: 8, Classes: []*agentapi.Class{{}, {Name: "storage", Dscp: 26, Sl: 3}}},
		Nics: []*agentapi.NIC{
			{Nic: "h1/eth1", Address: octets("10.0.0.1"), Device: "eth1", Leaf: "leaf1", LeafPort: "dn1", Plane: "a", Rail: proto.Uint32(0), Pod: "p1", Side: "left", Ssid: 7},
			{Nic: "h1/eth2", Address: octets("10.0.1.1"), Ssid: 8}},
		Peers: []*agentapi.Peer{
			{Nic: "h2/eth1", Address: octets("10.0.0.2"), Leaf: "leaf2", Plane: "a", Ssid: 9, Hardware: true},
			{Nic: "h3/eth1", Address: octets("10.0.0.3")}},
		Edges:   []*agentapi.Edge{{Nic: 0, Peer: 0, Flow: 64, Tier: 2, CadenceNs: 1e7}, {Nic: 1, Peer: 1, Tier: 2, CadenceNs: 2e7}},
		Answers: []*agentapi.Edge{{Nic: 1, Peer: 0, Flow: 1, Tier: 3, CadenceNs: 2e7}, {Nic: 0, Peer: 1, Tier: 1, CadenceNs: 1e7}}}
}

func TestFleetConfig(t *testing.T) {
	keys := &agentapi.Keys{Ids: []uint32{5, 4}, Peers: []*agentapi.PeerKeys{
		{Node: "h2", Keys: []*agentapi.Key{{Id: 5, Secret: bytes.Repeat([]byte{1}, 32)}, {Id: 4, Secret: bytes.Repeat([]byte{2}, 32)}}}}}
	show := func(a *agentapi.Assignment, k *agentapi.Keys) string {
		c := fleetConfig(a, k, &FleetOptions{Timestamps: "kernel"})
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s %s %v %v %d %d %d %+v\n", c.Node, c.Hash, c.Cadence, c.ReplyTimeout, c.Stamp.Port, c.Stamp.SourcePort, c.Stamp.Padding, c.Stamp.Classes)
		for _, n := range c.NICs {
			rail := "none"
			if n.Rail != nil {
				rail = fmt.Sprint(*n.Rail)
			}
			fmt.Fprintf(&b, "nic %s %v %q %s:%s plane %s rail %s pod %s side %s ssid %d %s\n", n.NIC, n.Address, n.Device, n.Leaf, n.LeafPort, n.Plane, rail, n.Pod, n.Side, n.SSID, n.Timestamps)
		}
		for _, p := range c.Peers {
			fmt.Fprintf(&b, "peer %s %v %s %s ssid %d hardware %v keys", p.NIC, p.Address, p.Leaf, p.Plane, p.SSID, p.Hardware)
			for _, k := range p.Keys {
				fmt.Fprintf(&b, " %d:%x", k.ID, k.Secret[:1])
			}
			b.WriteString("\n")
		}
		for _, e := range c.Edges {
			fmt.Fprintf(&b, "edge %s tier %d every %v\n", e.ID().String(), e.Tier, e.Cadence)
		}
		for _, e := range c.Answers {
			fmt.Fprintf(&b, "answer %s tier %d every %v\n", e.ID().String(), e.Tier, e.Cadence)
		}
		return b.String()
	}
	head := `h1 abababababababab 10ms 1s 862 49152 8 [{Name: DSCP:0 SL:0} {Name:storage DSCP:26 SL:3}]
nic h1/eth1 10.0.0.1 "eth1" leaf1:dn1 plane a rail 0 pod p1 side left ssid 7 kernel
nic h1/eth2 10.0.1.1 "" : plane  rail none pod  side  ssid 8 kernel
`
	// h3 has no keys, so it is neither probed nor answered.
	want := head + `peer h2/eth1 10.0.0.2 leaf2 a ssid 9 hardware true keys 5:01 4:02
edge h1/eth1>h2/eth1#64 tier 2 every 10ms
answer h2/eth1>h1/eth2#1 tier 3 every 20ms
`
	if got := show(exampleAssignment(), keys); got != want {
		t.Errorf("with keys:\n%swant\n%s", got, want)
	}
	open := exampleAssignment()
	open.Authenticated = false
	want = head + `peer h2/eth1 10.0.0.2 leaf2 a ssid 9 hardware true keys
peer h3/eth1 10.0.0.3   ssid 0 hardware false keys
edge h1/eth1>h2/eth1#64 tier 2 every 10ms
edge h1/eth2>h3/eth1#0 tier 2 every 20ms
answer h2/eth1>h1/eth2#1 tier 3 every 20ms
answer h3/eth1>h1/eth1#0 tier 1 every 10ms
`
	if got := show(open, nil); got != want {
		t.Errorf("without:\n%swant\n%s", got, want)
	}
	for _, on := range []bool{true, false} {
		if fleetConfig(open, nil, &FleetOptions{Clock: ClockOptions{Sync: on}}).ClockSync != on {
			t.Errorf("clock sync asked for: %v, and it is not so", on)
		}
	}
	if got := show(exampleAssignment(), nil); got != head {
		t.Errorf("authenticated without keys:\n%swant\n%s", got, head)
	}
}

// TestHopLimitsWithinTheNodesOwnLimits: whatever an assignment has, a NIC sends to at most maxHopProbes hop limits.
func TestHopLimitsWithinTheNodesOwnLimits(t *testing.T) {
	a := exampleAssignment()
	a.Authenticated = false
	a.Edges = nil
	for flow := range uint32(8) {
		a.Edges = append(a.Edges, &agentapi.Edge{Nic: flow % 2, Peer: 0, Flow: flow, Tier: 2, CadenceNs: 1e7, Hops: []uint32{0, 1, 3, 3, 5, 7, 9, agentapi.MaxHops, agentapi.MaxHops + 1}})
	}
	a.Answers[0].Hops = []uint32{2}
	c := fleetConfig(a, nil, &FleetOptions{})
	perNIC := map[string]int{}
	for _, e := range c.Edges {
		perNIC[e.Src] += len(e.Hops)
	}
	if first := c.Edges[0].Hops; !slices.Equal(first, []int{1, 3, 5, 7, 9, agentapi.MaxHops}) || perNIC["h1/eth1"] != maxHopProbes || perNIC["h1/eth2"] != maxHopProbes {
		t.Errorf("hop limits %v of the first edge, by NIC %v", first, perNIC)
	}
	for _, e := range c.Answers {
		if len(e.Hops) != 0 {
			t.Errorf("hop limits %v of replies", e.Hops)
		}
	}
}

// The node follows the address of a device before the coordinator has heard of a change, and prefers the assigned
// address if the device has several.
func TestAssignedAddressesFollowTheDevice(t *testing.T) {
	a := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	for name, c := range map[string]struct {
		device []netip.Addr
		err    error
		want   string
	}{
		"the assigned":        {[]netip.Addr{a("10.9.0.1"), a("10.0.0.1")}, nil, "10.0.0.1"},
		"another by now":      {[]netip.Addr{a("10.9.0.1")}, nil, "10.9.0.1"},
		"none for the moment": {nil, nil, "10.0.0.1"},
		"the device is gone":  {nil, fmt.Errorf("no such device"), "10.0.0.1"},
	} {
		r := resolver{assigned: map[string]netip.Addr{"h1/eth1": a("10.0.0.1")}, lookup: func(string) ([]netip.Addr, error) { return c.device, c.err }}
		cfg := fleetConfig(exampleAssignment(), nil, &FleetOptions{})
		cfg.NICs[0].Address = netip.Addr{}
		out, err := r.resolveAddresses(cfg, nil)
		if err != nil || out.NICs[0].Address.String() != c.want {
			t.Errorf("%s: %v %v, want %s", name, out.NICs[0].Address, err, c.want)
		}
	}
}
