package bpf

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/unix"
)

// twoSwitches is a lab of two hosts with two switches between them, of which the second one gets no programs.
const twoSwitches = `
version: 1
switches:
  - {name: sw, role: leaf}
  - {name: old, role: leaf}
nodes:
  - {name: h1, nics: [{device: eth1, addresses: [10.0.1.2]}]}
  - {name: h2, nics: [{device: eth1, addresses: [10.0.2.2]}]}
links:
  - {a: "h1/eth1", b: "sw:1"}
  - {a: "sw:2", b: "old:1", a_address: 172.16.1.0/31, b_address: 172.16.1.1/31}
  - {a: "h2/eth1", b: "old:2"}
`

// TestSwitchThatDropsTagsIsNamed sends plain and tagged probes with a hop limit through a switch that does not know tags. The
// plain ones are answered by every hop, and the tagged ones by those before it, so that the first hop that answers the plain
// ones only is the switch.
func TestSwitchThatDropsTagsIsNamed(t *testing.T) {
	for _, f := range csig.Formats {
		t.Run(f.String(), func(t *testing.T) {
			n := buildNetwork(t, twoSwitches, parseProfile(t, "interval: 100ms\n"), nil)
			if err := n.switches["old"].Close(); err != nil {
				t.Fatal(err)
			}
			delete(n.switches, "old")
			near := n.endpoint("h1/eth1", EndpointOptions{EtherTypes: etherTypes, Format: f, Signals: []csig.Signal{csig.Share}})
			if err := near.TagFlows([]csig.TaggedFlow{{From: sender, To: reflector}}); err != nil {
				t.Fatal(err)
			}
			n.socket("h2", reflector)
			var icmp net.PacketConn
			var out *unix.UDP
			n.in("h1", func() (err error) {
				if icmp, err = net.ListenPacket("ip4:icmp", sender.Addr().String()); err != nil {
					return err
				}
				out, err = unix.ListenUDP(sender, unix.UDPOptions{})
				return err
			})
			t.Cleanup(func() { icmp.Close(); out.Close() })
			batch := unix.NewBatch(1)
			answer := func(seq uint32, ttl uint8) netip.Addr {
				copy(batch.OutBuffer(), probe(seq, 44, 0))
				batch.Commit(out, 44, reflector, 0, ttl)
				if err := batch.Send(out, nil); err != nil {
					t.Fatal(err)
				}
				if err := icmp.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				_, from, err := icmp.ReadFrom(make([]byte, 256))
				if err != nil {
					return netip.Addr{}
				}
				return netip.MustParseAddr(from.String())
			}
			first, second := netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("172.16.1.1")
			for _, c := range []struct {
				name string
				seq  uint32
				ttl  uint8
				want netip.Addr
			}{{"plain", 0, 1, first}, {"tagged", 1, 1, first}, {"plain", 2, 2, second}, {"tagged", 3, 2, netip.Addr{}}, {"plain", 4, 2, second}} {
				if got := answer(c.seq, c.ttl); got != c.want {
					t.Errorf("%v: %s probe with hop limit %d: answered by %v, want %v", f, c.name, c.ttl, got, c.want)
				}
			}
		})
	}
}
