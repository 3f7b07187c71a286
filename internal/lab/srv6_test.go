package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/srv6"
	"github.com/graylink/graylink/internal/unix"
)

const srv6File = "../../deploy/lab/srv6.yaml"

// upSourceRouted builds a lab whose hosts choose paths, of any topology.
func upSourceRouted(t *testing.T, file, suffix string, tools ...string) *Lab {
	t.Helper()
	needsSegments(t, tools...)
	return upWith(t, load(t, file), Options{Name: testName(suffix), Forwarding: string(fabric.SRv6)})
}

// carrierForms are ways to write the carrier of a path.
const carrierForms = 4

// carrierOf returns the carrier of a path: with links where several join two switches, with all links, with all links from the
// first on, or with each switch and each link, if there is room for that.
func carrierOf(t *testing.T, l *Lab, p fabric.Path, form int) netip.Addr {
	t.Helper()
	var sids []srv6.SID
	for i, h := range p {
		locator := l.x.locatorOf(h.Switch)
		last := i == len(p)-1
		link, err := srv6.Adjacency(l.x.graph.PortNumber(h.Switch + ":" + h.Out))
		if err != nil {
			t.Fatal(err)
		}
		byLink := !last && (form > 0 || l.x.linksBeside(h.Switch+":"+h.Out) > 1)
		cameByLink := i > 0 && (form > 0 || l.x.linksBeside(h.Switch+":"+h.In) > 1)
		switch {
		case form == 3, form == 2 && last, form < 2 && !cameByLink:
			sids = append(sids, locator.Node)
		}
		if byLink {
			sids = append(sids, link)
		}
	}
	carrier, err := srv6.EncodeCarrier(l.x.locatorOf(p[0].Switch).Block, append(sids, srv6.Decapsulate)...)
	if errors.Is(err, srv6.ErrTooLong) && form == 3 {
		return carrierOf(t, l, p, 2)
	}
	if err != nil {
		t.Fatal(err)
	}
	return carrier
}

// probePacket is a whole packet of IPv6 and UDP, as it stands inside of one to a carrier.
type probePacket struct {
	src, dst     netip.Addr
	sport, dport uint16
	class        byte
	payload      []byte
	wrongSum     bool
}

// octets returns the packet with its checksum (RFC 8200 section 8.1).
func (p probePacket) octets() []byte {
	udp := binary.BigEndian.AppendUint16(nil, p.sport)
	udp = binary.BigEndian.AppendUint16(udp, p.dport)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(p.payload)))
	udp = append(append(udp, 0, 0), p.payload...)
	pseudo := slices.Concat(p.src.AsSlice(), p.dst.AsSlice(), []byte{0, 0, byte(len(udp) >> 8), byte(len(udp)), 0, 0, 0, syscall.IPPROTO_UDP}, udp, make([]byte, len(udp)%2))
	var sum uint32
	for i := 0; i < len(pseudo); i += 2 {
		sum += uint32(pseudo[i])<<8 | uint32(pseudo[i+1])
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	if sum = sum ^ 0xffff; sum == 0 {
		sum = 0xffff
	}
	if p.wrongSum {
		sum ^= 1
	}
	binary.BigEndian.PutUint16(udp[6:], uint16(sum))
	header := []byte{0x60 | p.class>>4, p.class << 4, 0, 0, byte(len(udp) >> 8), byte(len(udp)), syscall.IPPROTO_UDP, 64}
	return slices.Concat(header, p.src.AsSlice(), p.dst.AsSlice(), udp)
}

// carrierSender sends packets inside of others from one NIC.
type carrierSender struct {
	l    *Lab
	nic  string
	conn *net.IPConn
}

func newCarrierSender(t *testing.T, l *Lab, nic string) *carrierSender {
	t.Helper()
	conn, err := l.ListenPacket(t.Context(), fabric.OwnerOf(nic), "ip6:41", l.addr(nic).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &carrierSender{l, nic, conn.(*net.IPConn)}
}

// send sends n packets, each with its number and time.
func (s *carrierSender) send(t *testing.T, carrier netip.Addr, p probePacket, n int, gap time.Duration) {
	t.Helper()
	start := time.Now()
	for seq := range n {
		time.Sleep(time.Until(start.Add(time.Duration(seq) * gap)))
		p.payload = stamp(make([]byte, 16), uint32(seq))
		if _, err := s.conn.WriteTo(p.octets(), &net.IPAddr{IP: carrier.AsSlice()}); err != nil {
			t.Fatal(err)
		}
	}
}

// arrivals is what came to a socket.
type arrivals struct {
	n, marked int
	delays    []time.Duration
	from      netip.AddrPort
}

// receive reads from a socket until n packets are there, or nothing came for so long.
func receive(t *testing.T, c *net.UDPConn, n int, quiet time.Duration) (a arrivals) {
	t.Helper()
	setIP(t, c, syscall.IP_RECVTOS, 1)
	buf, oob := make([]byte, 128), make([]byte, 64)
	for a.n < n {
		deadline(t, c, quiet)
		m, o, _, from, err := c.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			return a
		}
		_, sent := readStamp(buf[:m])
		a.delays = append(a.delays, time.Since(testEpoch)-sent)
		if msgs, err := syscall.ParseSocketControlMessage(oob[:o]); err == nil && len(msgs) == 1 && msgs[0].Data[0]&3 == 3 {
			a.marked++
		}
		a.from = from
		a.n++
	}
	return a
}

// sentByAll returns how many packets the kernel has sent by each port and NIC.
func sentByAll(t *testing.T, l *Lab) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, ns := range l.x.Namespaces {
		err := unix.InNetns(ns.Netns, func() error {
			return withHandle(func(h *netlink.Handle) error {
				links, err := h.LinkList()
				if err != nil {
					return err
				}
				for _, i := range ns.Interfaces {
					for _, link := range links {
						if link.Attrs().Name == i.Name {
							out[i.End] = int(link.Attrs().Statistics.TxPackets)
						}
					}
				}
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// checkCrossed checks that n packets crossed each of some links, and no others did.
func checkCrossed(t *testing.T, what string, before, after map[string]int, crossed []fabric.Direction, n int) {
	t.Helper()
	want := map[string]int{}
	for _, d := range crossed {
		want[d.From] += n
	}
	const others = 12 // neighbour discovery of IPv6
	for end, sent := range after {
		if got := sent - before[end]; got < want[end] || got > want[end]+others {
			t.Errorf("%s: %s sent %d packets, want %d", what, end, got, want[end])
		}
	}
}

// loopsOf returns the paths from a NIC to a switch next to its leaf and back.
func loopsOf(x *index, nic string) []fabric.Path {
	leaf, port := x.graph.LeafOf(nic)
	var out []fabric.Path
	for _, there := range x.byElement[leaf].Interfaces {
		if fabric.IsNIC(there.Peer) {
			continue
		}
		spine := fabric.OwnerOf(there.Peer)
		for _, back := range x.byElement[spine].Interfaces {
			if fabric.OwnerOf(back.Peer) == leaf {
				out = append(out, fabric.Path{{Switch: leaf, In: port, Out: portOf(there.End)}, {Switch: spine, In: portOf(there.Peer), Out: portOf(back.End)}, {Switch: leaf, In: portOf(back.Peer), Out: port}})
			}
		}
	}
	return out
}

// TestCarriersTakeTheirPath sends packets over every shortest path between any two NICs and around every loop, and compares
// what the kernel's counters say of all ports.
func TestCarriersTakeTheirPath(t *testing.T) {
	for _, file := range []string{srv6File, clos3File, oddFileV6} {
		t.Run(filepath.Base(file), func(t *testing.T) {
			l := upSourceRouted(t, file, "carriers")
			nics := l.x.graph.NICIDs()
			const n = 30
			paths := 0
			for _, src := range nics {
				sender := newCarrierSender(t, l, src)
				for _, dst := range nics {
					all := l.x.graph.ShortestPaths(src, dst, 64)
					if dst == src {
						all = loopsOf(l.x, src)
					} else if fabric.OwnerOf(dst) == fabric.OwnerOf(src) {
						continue
					}
					receiver := socket(t, l, dst, echoPort)
					for _, p := range all {
						carrier := carrierOf(t, l, p, paths%carrierForms)
						what := fmt.Sprintf("%s to %s by %s, %s", src, dst, carrier, p.CanonicalKey())
						got, err := l.CarrierPath(t.Context(), carrier, l.addr(src), l.addr(dst), syscall.IPPROTO_UDP, 20000, echoPort)
						if err != nil || got.CanonicalKey() != p.CanonicalKey() {
							t.Errorf("%s: the kernels say %s, %v", what, got.CanonicalKey(), err)
						}
						before := sentByAll(t, l)
						sender.send(t, carrier, probePacket{src: l.addr(src), dst: l.addr(dst), sport: 20000, dport: echoPort}, n, 0)
						if a := receive(t, receiver, n, 2*time.Second); a.n != n || a.from != netip.AddrPortFrom(l.addr(src), 20000) {
							t.Errorf("%s: %d of %d packets arrived, from %s", what, a.n, n, a.from)
						}
						checkCrossed(t, what, before, sentByAll(t, l), p.LinkDirections(src, dst), n)
						paths++
					}
					receiver.Close()
				}
			}
			t.Logf("%d paths, %d packets by each", paths, n)
			if want := map[string]int{srv6File: 8*6*4 + 8 + 8*4}[file]; want > 0 && paths != want {
				t.Errorf("%d paths, want %d", paths, want)
			}
		})
	}
}

// TestWrongChecksumsInCarriers: the socket's kernel checks what is inside.
func TestWrongChecksumsInCarriers(t *testing.T) {
	l := upSourceRouted(t, srv6File, "sums")
	p := l.x.graph.ShortestPaths("h1/eth1", "h5/eth1", 1)[0]
	sender, receiver := newCarrierSender(t, l, "h1/eth1"), socket(t, l, "h5/eth1", echoPort)
	probe := probePacket{src: l.addr("h1/eth1"), dst: l.addr("h5/eth1"), sport: 20000, dport: echoPort}
	wrong := probe
	wrong.wrongSum = true
	before := sentByAll(t, l)
	sender.send(t, carrierOf(t, l, p, 0), wrong, 20, 0)
	sender.send(t, carrierOf(t, l, p, 0), probe, 1, 0)
	if a := receive(t, receiver, 2, 500*time.Millisecond); a.n != 1 {
		t.Errorf("%d packets arrived, want the one whose checksum is right", a.n)
	}
	checkCrossed(t, "wrong checksums", before, sentByAll(t, l), p.LinkDirections("h1/eth1", "h5/eth1"), 21)
}

// carrier returns one of the lab of srv6File by names of switches, and by identifiers in hexadecimal.
func (l *Lab) carrier(t *testing.T, names ...string) netip.Addr {
	t.Helper()
	var sids []srv6.SID
	for _, name := range names {
		var sid srv6.SID
		if l.x.byElement[name] != nil {
			sid = l.x.locatorOf(name).Node
		} else if _, err := fmt.Sscanf(name, "%x", &sid); err != nil {
			t.Fatal(err)
		}
		sids = append(sids, sid)
	}
	a, err := srv6.EncodeCarrier(l.x.locatorOf("leaf1").Block, sids...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// unreachable is a message that a switch did not know an identifier.
type unreachable struct {
	sw   string
	dst  netip.Addr // of the packet that it quotes
	code byte
}

// readUnreachable reads the next message of that kind. It returns false if none comes for so long.
func readUnreachable(t *testing.T, l *Lab, c net.PacketConn, quiet time.Duration) (u unreachable, ok bool) {
	t.Helper()
	deadline(t, c, quiet)
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return u, false
		}
		if n < 48 || buf[0] != 1 { // RFC 4443 section 3.1
			continue
		}
		quoted, _ := netip.AddrFromSlice(buf[8+24 : 8+40])
		return unreachable{fabric.OwnerOf(l.x.graph.EndOf(netip.MustParseAddr(from.String()))), quoted, buf[1]}, true
	}
}

// TestUnknownIdentifiers checks who answers a carrier that leads nowhere, and that nothing of it arrives.
func TestUnknownIdentifiers(t *testing.T) {
	l := upSourceRouted(t, srv6File, "unknown")
	src, dst := "h1/eth1", "h5/eth1"
	sender, receiver := newCarrierSender(t, l, src), socket(t, l, dst, echoPort)
	icmp, err := l.ListenPacket(t.Context(), "h1", "ip6:ipv6-icmp", l.addr(src).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { icmp.Close() })
	probe := probePacket{src: l.addr(src), dst: l.addr(dst), sport: 20000, dport: echoPort}
	for _, c := range []struct {
		carrier []string
		sw      string
		crossed []string // ports that the packet leaves by
	}{
		{[]string{"leaf1", "77", "leaf3", "e000"}, "leaf1", nil},
		{[]string{"leaf1", "spine2", "77", "e000"}, "spine2", []string{"leaf1:up2"}},
		{[]string{"leaf1", "spine2", "leaf3", "77", "e000"}, "leaf3", []string{"leaf1:up2", "spine2:dn3"}},
		// A switch that is no neighbour.
		{[]string{"leaf1", "leaf3", "e000"}, "leaf1", nil},
		{[]string{"leaf1", "spine2", "spine3", "leaf3", "e000"}, "spine2", []string{"leaf1:up2"}},
		// A function that no leaf has, and that of the end of the path at a spine.
		{[]string{"leaf1", "spine2", "leaf3", "e001"}, "leaf3", []string{"leaf1:up2", "spine2:dn3"}},
		{[]string{"leaf1", "spine2", "e000"}, "spine2", []string{"leaf1:up2"}},
		// A port that the leaf does not have.
		{[]string{"leaf1", "f0ff", "leaf3", "e000"}, "leaf1", nil},
	} {
		carrier := l.carrier(t, c.carrier...)
		what := strings.Join(c.carrier, " ")
		p, err := l.CarrierPath(t.Context(), carrier, probe.src, probe.dst, syscall.IPPROTO_UDP, probe.sport, probe.dport)
		if !errors.Is(err, syscall.EHOSTUNREACH) || len(p) != len(c.crossed) || !strings.Contains(fmt.Sprint(err), c.sw) {
			t.Errorf("%s: the kernels say %s, %v", what, p.CanonicalKey(), err)
		}
		before := sentByAll(t, l)
		const n = 20
		sender.send(t, carrier, probe, n, 0)
		for i := range n {
			u, ok := readUnreachable(t, l, icmp, 5*time.Second)
			if !ok || u.sw != c.sw || u.code != 0 {
				t.Errorf("%s: message %d is from %s with code %d, want %s with 0", what, i, u.sw, u.code, c.sw)
				break
			}
			want := srv6.SID(0)
			for _, name := range c.carrier {
				if k := slices.Index(c.carrier, name); k == len(c.crossed)+1 {
					want = srv6.FirstSID(l.carrier(t, name))
				}
			}
			if got := srv6.FirstSID(u.dst); got != want {
				t.Errorf("%s: the message quotes %s, whose first identifier is %s, want %s", what, u.dst, got, want)
				break
			}
		}
		if a := receive(t, receiver, 1, 50*time.Millisecond); a.n > 0 {
			t.Errorf("%s: a packet arrived", what)
		}
		crossed := []fabric.Direction{{From: src, To: "leaf1:dn1"}}
		for _, end := range c.crossed {
			crossed = append(crossed, fabric.Direction{From: end, To: l.x.graph.PeerOf(end)})
		}
		// The messages come back by ordinary routes.
		after := sentByAll(t, l)
		for end := range after {
			if l.x.graph.PeerOf(end) == src || strings.HasPrefix(end, "spine") && l.x.graph.PeerOf(end) != "leaf3:up2" || strings.HasPrefix(end, "leaf3:up") {
				delete(after, end)
			}
		}
		checkCrossed(t, what, before, after, crossed, n)
	}
}

// TestCarriersOnTheWire compares what a switch sends with how tcpdump reads it.
func TestCarriersOnTheWire(t *testing.T) {
	l := upSourceRouted(t, srv6File, "wire", "tcpdump")
	p := l.x.graph.ShortestPaths("h1/eth1", "h5/eth1", 2)[1]
	carrier, err := srv6.EncodeCarrier(l.x.locatorOf("leaf1").Block, l.x.locatorOf(p[1].Switch).Node, l.x.locatorOf("leaf3").Node, srv6.Decapsulate)
	if err != nil {
		t.Fatal(err)
	}
	const n = 3
	cmd := l.Command(t.Context(), "leaf1", "tcpdump", "-l", "-nn", "-v", "-c", fmt.Sprint(n), "-i", l.x.byEnd["leaf1:"+p[0].Out].Name, "ip6 proto 41")
	var out, progress strings.Builder
	cmd.Stdout = &out
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 512)
	for !strings.Contains(progress.String(), "listening on") {
		m, err := stderr.Read(buf)
		if err != nil {
			t.Fatalf("tcpdump: %v: %s", err, &progress)
		}
		progress.Write(buf[:m])
	}
	newCarrierSender(t, l, "h1/eth1").send(t, carrierOf(t, l, p, 0), probePacket{src: l.addr("h1/eth1"), dst: l.addr("h5/eth1"), sport: 20000, dport: echoPort}, n, time.Millisecond)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("tcpdump: %v: %s", err, &progress)
	}
	want := fmt.Sprintf("%s > %s: IP6 (hlim 64, next-header UDP (17) payload length: 20) %s.20000 > %s.862: [udp sum ok] UDP, length 12", l.addr("h1/eth1"), carrier, l.addr("h1/eth1"), l.addr("h5/eth1"))
	if got := strings.Count(out.String(), want); got != n || strings.Count(out.String(), "next-header IPv6 (41)") != n {
		t.Errorf("tcpdump reads %d of %d packets as %q:\n%s", got, n, want, &out)
	}
}

// TestLocatorsOfLabs checks which locators a lab has, and what is refused.
func TestLocatorsOfLabs(t *testing.T) {
	locators := func(x *index) (out []string) {
		for _, s := range x.Topology.Switches {
			out = append(out, s.Locator.String())
		}
		return out
	}
	generated := []string{"fcbb:bb00:1::/48", "fcbb:bb00:2::/48", "fcbb:bb00:3::/48", "fcbb:bb00:4::/48", "fcbb:bb00:5::/48", "fcbb:bb00:6::/48"}
	for _, c := range []struct {
		name string
		topo *fabric.Topology
		o    Options
		want []string
		err  string
	}{
		{"generated", load(t, demoFileV6), Options{Forwarding: "srv6"}, generated, ""},
		{"without srv6", load(t, demoFileV6), Options{}, slices.Repeat([]string{"invalid Prefix"}, 6), ""},
		{"of the file", load(t, srv6File), Options{}, []string{"fcbb:bb00:1::/48", "fcbb:bb00:2::/48", "fcbb:bb00:3::/48", "fcbb:bb00:4::/48", "fcbb:bb00:11::/48", "fcbb:bb00:12::/48", "fcbb:bb00:13::/48", "fcbb:bb00:14::/48"}, ""},
		{"of the file, not used", load(t, srv6File), Options{Forwarding: "ecmp"}, slices.Repeat([]string{"invalid Prefix"}, 8), ""},
		{"some", func() *fabric.Topology {
			topo := load(t, srv6File)
			topo.Switches = topo.Switches[:4]
			topo.Switches[0].Locator, topo.Switches[3].Locator = fabric.Locator{}, fabric.Locator{}
			topo.Nodes, topo.Links = nil, nil
			return topo
		}(), Options{}, []string{"fcbb:bb00:1::/48", "fcbb:bb00:2::/48", "fcbb:bb00:3::/48", "fcbb:bb00:4::/48"}, ""},
		{"IPv4", load(t, demoFile), Options{Forwarding: "srv6"}, nil, "line 4: switch \"spine1\" has address"},
		{"IPv4 wanted", load(t, srv6File), Options{Family: FamilyIPv4}, nil, "forwarding srv6 takes addresses of IPv6"},
		{"sprayed", load(t, srv6File), Options{Spray: SprayRandom}, nil, "this lab's is srv6"},
		{"addresses in the block", parse(t, strings.ReplaceAll(smallV6, "fd09::", "fcbb:bb00:9::")), Options{Forwarding: "srv6"}, nil, `NIC "h1/eth1" has address fcbb:bb00:9::5, which is in the block of the locators, fcbb:bb00::/32`},
	} {
		c.o.Name = "layout"
		x, err := planLab(c.topo, c.o)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want %q", c.name, err, c.err)
			}
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case !slices.Equal(locators(x), c.want):
			t.Errorf("%s: locators %v, want %v", c.name, locators(x), c.want)
		case x.Topology.IsSourceRouted() && x.family() != ipv6Family:
			t.Errorf("%s: the family is %s", c.name, x.family().name)
		}
	}
	if _, err := exec.LookPath("bgpd"); err == nil {
		if _, err := planLab(load(t, srv6File), Options{Name: "layout", Routing: RoutingFRR}); err == nil || !strings.Contains(err.Error(), "goes with routing static") {
			t.Errorf("with FRR: %v", err)
		}
	}
}

const smallV6 = `version: 1
switches:
  - {name: leaf1, role: leaf}
nodes:
  - {name: h1, nics: [{device: eth1, addresses: ["fd09::5"]}]}
  - {name: h2, nics: [{device: eth1, addresses: ["fd09::6"]}]}
links:
  - {a: h1/eth1, b: "leaf1:1"}
  - {a: h2/eth1, b: "leaf1:2"}
`

// TestStatusOfSourceRoutedLabs checks what status says, and that all routes are there.
func TestStatusOfSourceRoutedLabs(t *testing.T) {
	l := upSourceRouted(t, oddFileV6, "status")
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Forwarding != "srv6" || s.Family != FamilyIPv6 {
		t.Errorf("forwarding %s, family %s", s.Forwarding, s.Family)
	}
	for _, n := range s.Namespaces {
		if n.Routes != n.RoutesWant || (n.Locator != "") != (n.Kind == "switch") {
			t.Errorf("%s has locator %q, and %d of %d routes", n.Element, n.Locator, n.Routes, n.RoutesWant)
		}
	}
	before := routing(t, l)
	if err := l.x.syncRoutes(t.Context(), routeState{}); err != nil {
		t.Fatal(err)
	}
	if after := routing(t, l); after != before {
		t.Errorf("routes that are as they ought to be were written again:\n%s", diff(before, after))
	}
}
