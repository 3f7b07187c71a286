package bpf

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/lab"
)

// tunnelled is a lab of two hosts with three switches between them, of which the outer ones are the ends of a tunnel.
const tunnelled = `
version: 1
switches:
  - {name: l1, role: leaf, addresses: [172.16.9.1]}
  - {name: s, role: spine}
  - {name: l2, role: leaf, addresses: [172.16.9.2]}
nodes:
  - {name: h1, nics: [{device: eth1, addresses: [10.0.1.2]}]}
  - {name: h2, nics: [{device: eth1, addresses: [10.0.2.2]}]}
links:
  - {a: "h1/eth1", b: "l1:dn", speed_gbps: 90.7}
  - {a: "l1:up", b: "s:1", speed_gbps: 60.7, a_address: 172.16.1.0/31, b_address: 172.16.1.1/31}
  - {a: "l2:up", b: "s:2", speed_gbps: 30.5, a_address: 172.16.2.0/31, b_address: 172.16.2.1/31}
  - {a: "h2/eth1", b: "l2:dn", speed_gbps: 90.7}
`

const (
	vxlanPort    = 4789
	vxlanHeaders = 14 + 20 + 8 + 8 // to the frame inside
)

// addTunnel makes the end of a VXLAN tunnel on a switch, by which packets to a subnet go from then on.
func (n *network) addTunnel(element string, own, remote netip.Addr, mac, remoteMAC string, address, gateway, subnet string) {
	n.t.Helper()
	n.in(element, func() error {
		hardware, err := net.ParseMAC(mac)
		if err != nil {
			return err
		}
		far, err := net.ParseMAC(remoteMAC)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr, attrs.MTU = "tunnel", hardware, lab.DefaultMTU
		v := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: 7, SrcAddr: own.AsSlice(), Group: remote.AsSlice(), Port: vxlanPort}
		if err := netlink.LinkAdd(v); err != nil {
			return err
		}
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(v, a); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(v); err != nil {
			return err
		}
		via := net.ParseIP(gateway)
		if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: v.Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: via, HardwareAddr: far}); err != nil {
			return err
		}
		_, dst, err := net.ParseCIDR(subnet)
		if err != nil {
			return err
		}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: v.Index, Dst: dst, Gw: via, Table: 254, Protocol: 4}); err != nil {
			return err
		}
		return n.switches[element].AttachTunnel(v.Index)
	})
}

// TestTunnelCarriesTags sends probes and replies between two hosts, without and with a VXLAN tunnel between the leaf switches.
// The tags at the end are equal. In the tunnel, the outer link header has the tag, and nothing inside is tagged.
func TestTunnelCarriesTags(t *testing.T) {
	for _, f := range csig.Formats {
		t.Run(f.String(), func(t *testing.T) {
			p := parseProfile(t, "interval: 100ms\n")
			p.CompactLocators = map[string]uint16{"l1:dn": 1, "l1:up": 2, "s:1": 3, "s:2": 4, "l2:up": 5, "l2:dn": 6}
			p.WideLocators = map[string]uint16{"l1:dn": 1001, "l1:up": 1002, "s:1": 1003, "s:2": 1004, "l2:up": 1005, "l2:dn": 1006}
			n := buildNetwork(t, tunnelled, p, nil)
			o := EndpointOptions{EtherTypes: etherTypes, Format: f, Signals: []csig.Signal{csig.Bandwidth}}
			x := &exchange{n, n.endpoint("h1/eth1", o), n.endpoint("h2/eth1", o), n.socket("h1", sender), n.socket("h2", reflector)}
			if err := x.near.TagFlows([]csig.TaggedFlow{{From: sender, To: reflector}}); err != nil {
				t.Fatal(err)
			}
			forward, reverse := x.send(1, 1472)
			narrow := p.WideLocators
			if f == csig.Compact {
				narrow = p.CompactLocators
			}
			if forward.Tag.Locator != narrow["s:2"] || reverse.Tag.Locator != narrow["l2:up"] {
				t.Errorf("without a tunnel: %+v and %+v, want the locators of s:2 and l2:up", forward, reverse)
			}
			if err := n.SetLinkMTU(lab.DefaultMTU + vxlanHeaders + int(csig.Wide)); err != nil {
				t.Fatal(err)
			}
			one, two := netip.MustParseAddr("172.16.9.1"), netip.MustParseAddr("172.16.9.2")
			n.addTunnel("l1", one, two, "02:00:00:00:00:01", "02:00:00:00:00:02", "192.168.7.1/24", "192.168.7.2", "10.0.2.0/24")
			n.addTunnel("l2", two, one, "02:00:00:00:00:02", "02:00:00:00:00:01", "192.168.7.2/24", "192.168.7.1", "10.0.1.0/24")
			const probes = 40
			captures := []func() [][]byte{n.capture("l1:up", probes), n.capture("l2:up", probes)}
			for seq := uint32(3); seq < 3+probes; seq++ {
				to, back := x.send(seq, []int{44, 1472}[seq>>1&1])
				wantForward, wantReverse := forward, reverse
				if seq&1 == 0 {
					wantForward, wantReverse = csig.ArrivedSignal{}, csig.ArrivedSignal{}
				}
				if to != wantForward || back != wantReverse {
					t.Errorf("probe %d: %+v and %+v in a tunnel, want %+v and %+v", seq, to, back, wantForward, wantReverse)
				}
			}
			for _, capture := range captures {
				outer, tagged := 0, 0
				for _, frame := range capture() {
					rest, found, s := etherTypes.Strip(bytes.Clone(frame))
					if len(rest) < vxlanHeaders+14 || rest[14+9] != protocolUDP || int(rest[14+22])<<8|int(rest[14+23]) != vxlanPort {
						t.Errorf("a frame that is not of the tunnel: %x", frame)
						continue
					}
					outer++
					if s == csig.Tagged && found.Format == f {
						tagged++
					}
					if _, s := etherTypes.Parse(rest[vxlanHeaders:]); s != csig.Foreign {
						t.Errorf("the frame inside is %v: %x", s, rest[vxlanHeaders:])
					}
				}
				if outer != probes || tagged != probes/2 {
					t.Errorf("%d frames of the tunnel, %d with a tag; want %d and %d", outer, tagged, probes, probes/2)
				}
			}
		})
	}
}
