package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

// object returns an extension object: RFC 4884 section 7.1.
func object(class, typ byte, body ...byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(extObject+len(body))), append([]byte{class, typ}, body...)...)
}

// structure returns an extension structure with its checksum.
func structure(objects ...[]byte) []byte {
	b := append([]byte{extVersion << 4, 0, 0, 0}, bytes.Join(objects, nil)...)
	binary.BigEndian.PutUint16(b[2:], ^onesSum(b))
	return b
}

func nameObject(name string) []byte {
	n := (len(name) + 1 + 3) / 4 * 4
	return append(append([]byte{byte(n)}, name...), make([]byte, n-1-len(name))...)
}

var (
	// ifIndex 7, 10.84.0.1, Ethernet1/1, MTU 9100.
	wholeInterface = object(classInterface, infoIndex|infoAddress|infoName|infoMTU,
		bytes.Join([][]byte{{0, 0, 0, 7}, {0, 1, 0, 0, 10, 84, 0, 1}, nameObject("Ethernet1/1"), {0, 0, 0x23, 0x8c}}, nil)...)
	// 16001 with traffic class 5 and TTL 254, above 3 at the bottom with TTL 1.
	twoLabels = object(classMPLS, typeLabelStack, 0x03, 0xe8, 0x1a, 0xfe, 0, 0, 0x31, 1)

	testInterface = fabric.Interface{Name: "Ethernet1/1", Address: netip.MustParseAddr("10.84.0.1"), Index: 7, MTU: 9100}
	testLabels    = []fabric.Label{{Label: 16001, TC: 5, TTL: 254}, {Label: 3, Bottom: true, TTL: 1}}
)

func TestParseExtension(t *testing.T) {
	x, err := parseExtension(structure(object(9, 9, 1, 2, 3, 4), wholeInterface, twoLabels, object(classInterface, infoRole|infoIndex, 0, 0, 0, 9)))
	if err != nil || !reflect.DeepEqual(x, extension{&testInterface, testLabels}) {
		t.Errorf("%+v %v", x, err)
	}
	v6 := object(classInterface, infoAddress, append([]byte{0, 2, 0, 0}, netip.MustParseAddr("fd84::1").AsSlice()...)...)
	if x, err = parseExtension(structure(v6)); err != nil || *x.incoming != (fabric.Interface{Address: netip.MustParseAddr("fd84::1")}) {
		t.Errorf("IPv6: %+v %v", x, err)
	}
	unsummed := structure(twoLabels)
	unsummed[2], unsummed[3] = 0, 0
	if x, err = parseExtension(unsummed); err != nil || len(x.labels) != 2 {
		t.Errorf("without checksum: %+v %v", x, err)
	}
	if got := fabric.LabelText(testLabels); got != "L=16001,TC=5,S=0,TTL=254 L=3,TC=0,S=1,TTL=1" {
		t.Errorf("labels as text: %s", got)
	}
}

func TestBadExtensions(t *testing.T) {
	wrong := structure(twoLabels)
	wrong[9] ^= 1
	old := structure(twoLabels)
	old[0] = 0x10
	long := structure(twoLabels)
	long[5] = 200
	long[2], long[3] = 0, 0
	for want, b := range map[string][]byte{
		"extension: 3 octets":             {0x20, 0, 0},
		"extension version: 1":            old,
		"extension checksum":              wrong,
		"extension object: 2 octets left": {0x20, 0, 0, 0, 0, 8},
		"extension object length: 3":      {0x20, 0, 0, 0, 0, 3, 1, 1},
		"extension object length: 200":    long,
		"MPLS label stack: 3 octets":      structure(object(classMPLS, typeLabelStack, 1, 2, 3)),
		"MPLS label stack: 68 octets":     structure(object(classMPLS, typeLabelStack, make([]byte, 68)...)),
		"interface index: 3 octets left":  structure(object(classInterface, infoIndex, 1, 2, 3)),
		"interface address family: 3":     structure(object(classInterface, infoAddress, 0, 3, 0, 0, 1, 2, 3, 4)),
		"interface address: 3 octets":     structure(object(classInterface, infoAddress, 0, 1, 0, 0, 1, 2, 3)),
		"interface name: no length":       structure(object(classInterface, infoName)),
		"interface name length: 5":        structure(object(classInterface, infoName, 5, 'e', 't', 'h', '1', 0, 0, 0)),
		"interface name length: 68":       structure(object(classInterface, infoName, append([]byte{68}, make([]byte, 67)...)...)),
		"interface name: 4 octets left":   structure(object(classInterface, infoName, 8, 'e', 't', 'h')),
		`interface name: "\x1b[2J"`:       structure(object(classInterface, infoName, nameObject("\x1b[2J")...)),
		`interface name: "\xff"`:          structure(object(classInterface, infoName, nameObject("\xff")...)),
		"interface MTU: 0 octets left":    structure(object(classInterface, infoMTU)),
	} {
		if x, err := parseExtension(b); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%x: %+v, error %v, want %q", b, x, err, want)
		}
	}
}

func FuzzExtension(f *testing.F) {
	f.Add(structure(wholeInterface, twoLabels))
	f.Add([]byte{0x20, 0, 0, 0, 0, 3, 1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := parseExtension(b)
		if err != nil && (x.incoming != nil || x.labels != nil) {
			t.Errorf("%+v beside %v", x, err)
		}
		if len(x.labels) > maxLabels || x.incoming != nil && len(x.incoming.Name) >= maxInterfaceName {
			t.Errorf("more than is allowed: %+v", x)
		}
		for _, kind := range []unix.ReportKind{unix.ReportICMP, unix.ReportICMP6} {
			_, _ = extensionOf(&unix.Report{Kind: kind, Data: b})
		}
	})
}

// router answers hop-limited packets that leave a namespace, as the switches of a path would. Each hop limit is
// answered in another way.
type router struct {
	t       *testing.T
	ns      string
	packet  *unix.Packet
	ifindex int
	v6      bool
}

const lastOfRouter = 4 // the destination comes next

func newRouter(t *testing.T, v6 bool) *router {
	t.Helper()
	testneeds.Root(t, "network namespaces")
	if _, err := exec.LookPath("ip"); err != nil {
		testneeds.Missing(t, "ip (Debian package iproute2)")
	}
	r := &router{t: t, ns: fmt.Sprintf("glexttest-%d-h", os.Getpid()), v6: v6}
	far := fmt.Sprintf("glexttest-%d-r", os.Getpid())
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	for _, ns := range []string{r.ns, far} {
		if err := unix.CreateNetns(ns); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.RemoveNetns(ns); err != nil {
				t.Errorf("remove namespace: %v", err)
			}
		})
	}
	const mac = "02:00:00:00:84:01"
	run("link", "add", "eth1", "netns", r.ns, "type", "veth", "peer", "name", "dn1", "address", mac, "netns", far)
	run("-n", r.ns, "link", "set", "lo", "up")
	run("-n", far, "link", "set", "dn1", "up")
	if v6 {
		run("-n", r.ns, "addr", "add", "fd84::2/64", "dev", "eth1", "nodad")
	} else {
		run("-n", r.ns, "addr", "add", "10.84.0.2/24", "dev", "eth1")
	}
	run("-n", r.ns, "link", "set", "eth1", "up")
	gateway := map[bool]string{true: "fd84::1", false: "10.84.0.1"}[v6]
	run("-n", r.ns, "neigh", "add", gateway, "lladdr", mac, "dev", "eth1", "nud", "permanent")
	run("-n", r.ns, "route", "add", "default", "via", gateway)
	if err := unix.InNetns(far, func() (err error) {
		// The far end is not a host, so the kernel's answers to these packets are suppressed.
		if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf/all/disable_ipv6"), []byte("1"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		i, err := net.InterfaceByName("dn1")
		if err != nil {
			return err
		}
		r.ifindex = i.Index
		r.packet, err = unix.OpenPacket(0x0003, i.Index, 2048)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var closing atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			err := r.packet.Recv(time.Now().Add(time.Minute), func(_ int, frame []byte) { r.take(frame) })
			if err != nil {
				if !closing.Load() {
					t.Errorf("receive: %v", err)
				}
				return
			}
		}
	}()
	t.Cleanup(func() { closing.Store(true); r.packet.Close(); <-done })
	return r
}

// take answers a frame that contains a UDP packet.
func (r *router) take(frame []byte) {
	const ether = 14
	ip := frame[ether:]
	header, udp, ttl, family := 20, 9, 8, uint16(0x0800)
	if r.v6 {
		header, udp, ttl, family = 40, 6, 7, 0x86dd
	}
	if len(ip) < header+8 || binary.BigEndian.Uint16(frame[12:]) != family || ip[udp] != 17 {
		return
	}
	hop := int(ip[ttl])
	icmp := []byte{icmpTimeExceeded, 0, 0, 0, 0, 0, 0, 0}
	if r.v6 {
		icmp[0] = icmp6TimeExceeded
	}
	short := ip[:header+8]
	padded := func(quote []byte) []byte {
		// The unit of the length attribute is 32 bits, and 64 in ICMPv6 (RFC 4884 section 4).
		if r.v6 {
			icmp[4] = 128 / 8
		} else {
			icmp[5] = 128 / 4
		}
		return append(append([]byte{}, quote...), make([]byte, max(0, 128-len(quote)))...)[:128]
	}
	switch hop {
	case 1:
		icmp = append(icmp, append(padded(ip), structure(wholeInterface, twoLabels)...)...)
	case 2:
		icmp = append(icmp, short...)
	case 3:
		icmp = append(icmp, append(padded(short), structure(object(classInterface, infoName, nameObject("up7")...))...)...)
	case lastOfRouter:
		quote := padded(ip)
		icmp[4], icmp[5] = 0, 0
		icmp = append(icmp, append(quote, structure(twoLabels)...)...)
	case lastOfRouter + 1:
		icmp[0], icmp[1] = icmpUnreachable, 3
		if r.v6 {
			icmp[0], icmp[1] = icmp6Unreachable, 4
		}
		icmp = append(icmp, ip...)
	default:
		return
	}
	out := append(append(append([]byte{}, frame[6:12]...), frame[:6]...), frame[12:14]...)
	if r.v6 {
		src := netip.MustParseAddr(fmt.Sprintf("fd84:%d::1", hop)).As16()
		if hop > lastOfRouter {
			src = [16]byte(ip[24:40])
		}
		pseudo := append(append(src[:], ip[8:24]...), 0, 0, 0, 0, 0, 0, 0, 58)
		binary.BigEndian.PutUint32(pseudo[32:], uint32(len(icmp)))
		binary.BigEndian.PutUint16(icmp[2:], ^onesSum(append(pseudo, icmp...)))
		head := []byte{0x60, 0, 0, 0, 0, 0, 58, 64}
		binary.BigEndian.PutUint16(head[4:], uint16(len(icmp)))
		out = append(append(append(append(out, head...), src[:]...), ip[8:24]...), icmp...)
	} else {
		src := []byte{10, 84, byte(hop), 1}
		if hop > lastOfRouter {
			src = ip[16:20]
		}
		binary.BigEndian.PutUint16(icmp[2:], ^onesSum(icmp))
		head := append(append([]byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0}, src...), ip[12:16]...)
		binary.BigEndian.PutUint16(head[2:], uint16(20+len(icmp)))
		binary.BigEndian.PutUint16(head[10:], ^onesSum(head))
		out = append(append(out, head...), icmp...)
	}
	if err := r.packet.Send(r.ifindex, out); err != nil && !errors.Is(err, os.ErrClosed) {
		r.t.Errorf("answer at hop limit %d: %v", hop, err)
	}
}

// TestExtensionsOfAnswers reads, through the kernel, answers with extensions, answers that quote as little as RFC 792
// allows, with and without zeros for the rest, and answers from before RFC 4884.
func TestExtensionsOfAnswers(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			r := newRouter(t, v6)
			self, peer := "10.84.0.2", "10.85.0.2"
			want := "10.84.1.1 10.84.2.1 10.84.3.1 10.84.4.1"
			if v6 {
				self, peer = "fd84::2", "fd85::2"
				want = "fd84:1::1 fd84:2::1 fd84:3::1 fd84:4::1"
			}
			c := defaultConfig()
			c.Node, c.Cadence, c.ReplyTimeout, c.Stamp.Padding = "h1", time.Minute, time.Minute, 100
			c.NICs = []NICConfig{{NIC: "h1/eth1", Address: netip.MustParseAddr(self)}}
			c.connectPeers([]filePeer{{PeerConfig: PeerConfig{NIC: "h2/eth1", Address: netip.MustParseAddr(peer)}, flows: 1, tier: 2, probe: true}})
			var e *Engine
			if err := unix.InNetns(r.ns, func() (err error) {
				e, err = startHere(&c)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			// Several traces of one flow do not take each other's answers.
			var p TracedPath
			var traces sync.WaitGroup
			for i := range 3 {
				traces.Go(func() {
					paths, err := e.TraceFlows(ctx, []fabric.Flow{traced})
					switch {
					case err != nil:
						t.Error(err)
					case hops(paths[0]) != want || paths[0].Balanced:
						t.Errorf("hops %q, balanced %v, notes %q; want %q", hops(paths[0]), paths[0].Balanced, paths[0].Notes, want)
					case i == 0:
						p = paths[0]
					}
				})
			}
			if traces.Wait(); t.Failed() {
				t.FailNow()
			}
			if h := p.Hops[0]; h.Incoming == nil || *h.Incoming != testInterface || !reflect.DeepEqual(h.Labels, testLabels) {
				t.Errorf("hop 1: %+v %+v", h.Incoming, h.Labels)
			}
			if h := p.Hops[1]; h.Incoming != nil || h.Labels != nil {
				t.Errorf("hop 2: %+v %+v", h.Incoming, h.Labels)
			}
			if h := p.Hops[2]; h.Incoming == nil || *h.Incoming != (fabric.Interface{Name: "up7"}) {
				t.Errorf("hop 3: %+v", h.Incoming)
			}
			// No ICMPv6 implementation before RFC 4884 sent extensions.
			if h := p.Hops[3]; (len(h.Labels) == 2) == v6 {
				t.Errorf("hop 4: %+v", h.Labels)
			}
			if notes := strings.Join(p.Notes, "\n"); !strings.Contains(notes, "hop 1: MPLS labels L=16001,TC=5,S=0,TTL=254 L=3,TC=0,S=1,TTL=1") {
				t.Errorf("notes %q", p.Notes)
			}
		})
	}
}

// TestTraceOverIPv6 traces through two routers of the kernel. ECMP hashes the same fields of a trace packet as of the
// flow's own: the traffic class and flow label at the first router are the same.
func TestTraceOverIPv6(t *testing.T) {
	l := newLine(t)
	for _, a := range [][3]string{{"h1", "eth1", "fd83:1::2"}, {"r1", "dn1", "fd83:1::1"}, {"r1", "up1", "fd83:9::1"},
		{"r2", "up1", "fd83:9::2"}, {"r2", "dn1", "fd83:2::1"}, {"h2", "eth1", "fd83:2::2"}} {
		l.run("ip", "-n", l.name(a[0]), "addr", "add", a[2]+"/64", "dev", a[1], "nodad")
	}
	for n, via := range map[string]string{"h1": "fd83:1::1", "r1": "fd83:9::2", "r2": "fd83:9::1", "h2": "fd83:2::1"} {
		l.run("ip", "-n", l.name(n), "route", "add", "default", "via", via)
	}
	var seen *unix.Packet
	for _, n := range []string{"r1", "r2"} {
		if err := unix.InNetns(l.name(n), func() error {
			for k, v := range map[string]string{"conf/all/forwarding": "1", "icmp/ratelimit": "0"} {
				if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6", k), []byte(v), 0o644); err != nil {
					return err
				}
			}
			if n == "r2" {
				return nil
			}
			i, err := net.InterfaceByName("dn1")
			if err != nil {
				return err
			}
			if seen, err = unix.OpenPacket(0x86dd, i.Index, 128); err != nil {
				return err
			}
			return seen.SetReceiveBuffer(8 << 20)
		}); err != nil {
			t.Fatal(err)
		}
	}
	defer seen.Close()
	a, b := l.start("h1", "fd83:1::2", "fd83:2::2"), l.start("h2", "fd83:2::2", "fd83:1::2")
	until(t, 20*time.Second, "answers", func() bool { return a.Snapshot().NICs[0].Edges[0].Acked >= 20 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reply := traced
	reply.Reply = true
	for _, c := range []struct {
		e    *Engine
		edge fabric.Flow
		want string
	}{{a, traced, "fd83:1::1 fd83:9::2"}, {b, reply, "fd83:2::1 fd83:9::1"}} {
		paths, err := c.e.TraceFlows(ctx, []fabric.Flow{c.edge})
		if err != nil {
			t.Fatal(err)
		}
		if p := paths[0]; hops(p) != c.want || p.State != fabric.PathValid {
			t.Errorf("%s: %+v, want %s", c.edge, p, c.want)
		}
	}
	heads := map[bool]map[uint32]int{true: {}, false: {}} // by hop limited or not: version, traffic class, flow label
	for range 100 {
		if err := seen.Recv(time.Now().Add(100*time.Millisecond), func(_ int, frame []byte) {
			ip := frame[14:]
			if len(ip) >= 48 && ip[6] == 17 && binary.BigEndian.Uint16(ip[42:]) == 862 {
				heads[ip[7] <= maxHops][binary.BigEndian.Uint32(ip)]++
			}
		}); err != nil {
			t.Fatal(err)
		}
		if len(heads[true]) > 0 && len(heads[false]) > 0 {
			break
		}
	}
	if len(heads[true]) != 1 || len(heads[false]) != 1 {
		t.Fatalf("heads of trace packets %x, of probes %x; want one each", heads[true], heads[false])
	}
	for h := range heads[true] {
		if heads[false][h] == 0 {
			t.Errorf("head of trace packets %x, of probes %x", heads[true], heads[false])
		}
	}
}
