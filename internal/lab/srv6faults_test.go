package lab

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// carrierFlow is a stream of packets whose path is chosen.
type carrierFlow struct {
	sender  *carrierSender
	carrier netip.Addr
	probe   probePacket
	dst     string
}

// fault tests send by these two carriers: one crosses the place of the fault, the other does not.
func carrierFlows(t *testing.T, l *Lab) (hit, spared carrierFlow) {
	t.Helper()
	sender := newCarrierSender(t, l, "h1/eth1")
	probe := probePacket{src: l.addr("h1/eth1"), dst: l.addr("h5/eth1"), sport: 20000, dport: echoPort}
	return carrierFlow{sender, l.carrier(t, "leaf1", "spine2", "leaf3", "e000"), probe, "h5/eth1"},
		carrierFlow{sender, l.carrier(t, "leaf1", "spine3", "leaf3", "e000"), probe, "h5/eth1"}
}

// measure sends n packets and returns what arrives.
func (f carrierFlow) measure(t *testing.T, n int) arrivals {
	t.Helper()
	receiver := socket(t, f.sender.l, f.dst, echoPort)
	defer receiver.Close()
	done := make(chan arrivals)
	go func() { done <- receive(t, receiver, n, time.Second) }()
	f.sender.send(t, f.carrier, f.probe, n, 200*time.Microsecond)
	return <-done
}

// TestFaultsOnCarriers checks that each fault of packets acts on those inside of others, at one place and not at another.
func TestFaultsOnCarriers(t *testing.T) {
	l := upSourceRouted(t, srv6File, "faults", "ip6tables")
	const n = 400
	hit, spared := carrierFlows(t, l)
	const at = "leaf1:up2->spine2:dn1"
	before := routing(t, l)
	for _, c := range []struct {
		fault     Fault
		low, high int           // of the packets that arrive
		delay     time.Duration // of nine of ten of them
		both      bool          // the fault is where all packets pass
	}{
		{fault: Fault{Kind: KindDelay, At: at, Delay: 20 * time.Millisecond}, low: n, high: n, delay: 20 * time.Millisecond},
		{fault: Fault{Kind: KindDelay, At: "spine2:dn3->leaf3:up2", Delay: 20 * time.Millisecond}, low: n, high: n, delay: 20 * time.Millisecond},
		// Of 400 packets, 200 are within 50 but once in two million times.
		{fault: Fault{Kind: KindLoss, At: at, Loss: 0.5}, low: n/2 - 50, high: n/2 + 50},
		{fault: Fault{Kind: KindBlackhole, At: at}},
		{fault: Fault{Kind: KindBlackhole, At: "spine2:dn3->leaf3:up2"}},
		{fault: Fault{Kind: KindSwitchSlow, At: "spine2", Delay: 20 * time.Millisecond}, low: n, high: n, delay: 20 * time.Millisecond},
		{fault: Fault{Kind: KindNICSlow, At: "h1/eth1", Direction: DirectionOut, Delay: 20 * time.Millisecond}, low: n, high: n, delay: 20 * time.Millisecond, both: true},
		{fault: Fault{Kind: KindNICSlow, At: "h5/eth1", Direction: DirectionIn, Delay: 20 * time.Millisecond}, low: n, high: n, delay: 20 * time.Millisecond, both: true},
		{fault: Fault{Kind: KindSwitchSlow, At: "leaf1", Delay: 20 * time.Millisecond}, low: n, high: n, delay: 20 * time.Millisecond, both: true},
		{fault: Fault{Kind: KindSwitchSlow, At: "leaf3", Delay: 20 * time.Millisecond}, low: n, high: n, delay: 20 * time.Millisecond, both: true},
		{fault: Fault{Kind: KindLinkDown, At: "leaf1:up2--spine2:dn1"}},
		{fault: Fault{Kind: KindLinkDown, At: "spine2:dn3--leaf3:up2"}},
		// Directions that no packet takes.
		{fault: Fault{Kind: KindBlackhole, At: "spine2:dn1->leaf1:up2"}, low: n, high: n},
		{fault: Fault{Kind: KindBlackhole, At: "leaf1:up1->spine1:dn1"}, low: n, high: n},
	} {
		t.Run(c.fault.Kind+" "+strings.ReplaceAll(c.fault.At, "/", "_"), func(t *testing.T) {
			addFault(t, l, c.fault)
			sent := sentByAll(t, l)
			a := hit.measure(t, n)
			if a.n < c.low || a.n > c.high {
				t.Errorf("%d of %d packets arrived, want %d to %d", a.n, n, c.low, c.high)
			}
			// What the kernel sends by the last port is what arrives.
			if got := sentByAll(t, l)["leaf3:dn1"] - sent["leaf3:dn1"]; got < a.n || got > a.n+12 {
				t.Errorf("leaf3:dn1 sent %d packets, and %d arrived", got, a.n)
			}
			if d := delayOf(a.delays); c.delay > 0 && (d < c.delay || d > c.delay+slack(c.delay)) {
				t.Errorf("the delay is %v, want %v", d, c.delay)
			}
			o := spared.measure(t, n)
			if d := delayOf(o.delays); o.n != n || !c.both && d > 10*time.Millisecond {
				t.Errorf("elsewhere %d of %d packets arrived, after %v", o.n, n, d)
			}
			clearFaults(t, l)
			if a := hit.measure(t, n); a.n != n || delayOf(a.delays) > 10*time.Millisecond {
				t.Errorf("after clearing %d of %d packets arrived, after %v", a.n, n, delayOf(a.delays))
			}
		})
	}
	if after := routing(t, l); after != before {
		t.Errorf("the routes are not what they were:\n%s", diff(before, after))
	}
}

// TestMarksOnCarriers: a mark of congestion on the outer header reaches the receiver, as with ordinary packets.
func TestMarksOnCarriers(t *testing.T) {
	l := upSourceRouted(t, srv6File, "marks", "ip6tables")
	const n = 50
	hit, spared := carrierFlows(t, l)
	raw, err := hit.sender.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	setOuter := func(class int) {
		t.Helper()
		if cerr := raw.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_TCLASS, class)
		}); cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
	}
	for _, at := range []string{"h1/eth1->leaf1:dn1", "leaf1:up2->spine2:dn1", "spine2:dn3->leaf3:up2", "leaf3:dn1->h5/eth1"} {
		addFault(t, l, Fault{Kind: KindECN, At: at})
		for _, c := range []struct{ outer, inner, want int }{{2, 2, n}, {1, 1, n}, {2, 0, 0}, {0, 2, 0}, {0, 0, 0}} {
			if strings.HasPrefix(at, "leaf3:dn1") {
				c.want = min(c.inner, 1) * n // there only the inner header is left
			}
			setOuter(c.outer)
			hit.probe.class = byte(c.inner)
			if a := hit.measure(t, n); a.n != n || a.marked != c.want {
				t.Errorf("ECN at %s, outer %d, inner %d: %d of %d packets arrived, %d of them marked, want %d", at, c.outer, c.inner, a.n, n, a.marked, c.want)
			}
		}
		setOuter(2)
		spared.probe.class = 2
		want := 0
		if strings.Contains(at, "h1/eth1") || strings.Contains(at, "h5/eth1") {
			want = n // both pass
		}
		if a := spared.measure(t, n); a.n != n || a.marked != want {
			t.Errorf("ECN at %s, and elsewhere %d of %d packets arrived, %d of them marked, want %d", at, a.n, n, a.marked, want)
		}
		clearFaults(t, l)
	}
}

// TestLinksThatAreDownAnswerNothing: a carrier over a link that is down is lost, because the switch knows the neighbour.
func TestLinksThatAreDownAnswerNothing(t *testing.T) {
	for _, file := range []string{srv6File, oddFileV6} {
		t.Run(strings.TrimSuffix(file[strings.LastIndexByte(file, '/')+1:], ".yaml"), func(t *testing.T) {
			l := upSourceRouted(t, file, "silent")
			src := l.x.graph.NICIDs()[0]
			p := loopsOf(l.x, src)[0]
			leaf, spine := p[0].Switch, p[1].Switch
			icmp, err := l.ListenPacket(t.Context(), fabric.OwnerOf(src), "ip6:ipv6-icmp", l.addr(src).String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { icmp.Close() })
			before := routing(t, l)
			for _, i := range l.x.byElement[leaf].Interfaces {
				if fabric.OwnerOf(i.Peer) == spine {
					addFault(t, l, Fault{Kind: KindLinkDown, At: fabric.LinkID(i.End, i.Peer)})
				}
			}
			sender, receiver := newCarrierSender(t, l, src), socket(t, l, src, echoPort)
			for form := range carrierForms {
				carrier := carrierOf(t, l, p, form)
				got, err := l.CarrierPath(t.Context(), carrier, l.addr(src), l.addr(src), syscall.IPPROTO_UDP, 20000, echoPort)
				if err == nil || errors.Is(err, syscall.EHOSTUNREACH) || len(got) > 0 {
					t.Errorf("%s: the kernels say %s, %v", carrier, got.CanonicalKey(), err)
				}
				sender.send(t, carrier, probePacket{src: l.addr(src), dst: l.addr(src), sport: 20000, dport: echoPort}, 10, 0)
				if u, ok := readUnreachable(t, l, icmp, 100*time.Millisecond); ok {
					t.Errorf("%s: %s answers", carrier, u.sw)
				}
				if a := receive(t, receiver, 1, 10*time.Millisecond); a.n > 0 {
					t.Errorf("%s: a packet arrived", carrier)
				}
			}
			clearFaults(t, l)
			if after := routing(t, l); after != before {
				t.Errorf("the routes are not what they were:\n%s", diff(before, after))
			}
		})
	}
}

// TestSIDUnknown: a switch that does not know a neighbour answers carriers to it, and forwards everything else.
func TestSIDUnknown(t *testing.T) {
	l := upSourceRouted(t, srv6File, "sid")
	const n = 50
	hit, spared := carrierFlows(t, l)
	back := carrierFlow{newCarrierSender(t, l, "h5/eth1"), l.carrier(t, "leaf3", "spine2", "leaf1", "e000"),
		probePacket{src: l.addr("h5/eth1"), dst: l.addr("h1/eth1"), sport: 20000, dport: echoPort}, "h1/eth1"}
	icmp, err := l.ListenPacket(t.Context(), "h1", "ip6:ipv6-icmp", l.addr("h1/eth1").String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { icmp.Close() })
	before := routing(t, l)
	for _, c := range []struct{ at, sw, sid string }{{"leaf1->spine2", "leaf1", "spine2"}, {"spine2->leaf3", "spine2", "leaf3"}} {
		af := addFault(t, l, Fault{Kind: KindSIDUnknown, At: c.at})
		if af.Mechanism != "routes" || af.Direction != "" {
			t.Errorf("%s: %+v", c.at, af)
		}
		if _, err := l.AddFault(t.Context(), Fault{Kind: KindSIDUnknown, At: c.at}); err == nil {
			t.Errorf("%s: the fault was added twice", c.at)
		}
		for _, carrier := range []netip.Addr{hit.carrier, l.carrier(t, "leaf1", "f003", "leaf3", "e000")} {
			if carrier != hit.carrier && c.sw != "leaf1" {
				continue
			}
			f := hit
			f.carrier = carrier
			if a := f.measure(t, n); a.n > 0 {
				t.Errorf("%s: %d packets to %s arrived", c.at, a.n, carrier)
			}
			for range n {
				if u, ok := readUnreachable(t, l, icmp, 5*time.Second); !ok || u.sw != c.sw {
					t.Errorf("%s: %s answers, of a packet to %s, %t", c.at, u.sw, u.dst, ok)
					break
				}
			}
			if _, err := l.CarrierPath(t.Context(), carrier, hit.probe.src, hit.probe.dst, syscall.IPPROTO_UDP, 20000, echoPort); !errors.Is(err, syscall.EHOSTUNREACH) {
				t.Errorf("%s: the kernels say %v", c.at, err)
			}
		}
		if a := spared.measure(t, n); a.n != n {
			t.Errorf("%s: elsewhere %d of %d packets arrived", c.at, a.n, n)
		}
		if a := back.measure(t, n); a.n != n {
			t.Errorf("%s: the other way %d of %d packets arrived", c.at, a.n, n)
		}
		for sport := 20000; sport < 20008; sport++ {
			if r := measure(t, l, flow{src: "h1/eth1", dst: "h5/eth1", sport: sport}, 5, time.Millisecond, time.Second); r.gotBack != 5 {
				t.Errorf("%s: of ordinary packets from port %d, %d of 5 came back", c.at, sport, r.gotBack)
			}
		}
		clearFaults(t, l)
		if a := hit.measure(t, n); a.n != n {
			t.Errorf("%s: after clearing %d of %d packets arrived", c.at, a.n, n)
		}
		if after := routing(t, l); after != before {
			t.Errorf("%s: the routes are not what they were:\n%s", c.at, diff(before, after))
		}
	}
}

// TestSwappedCablesOfSourceRoutedLabs: switches know the neighbours that are plugged in, so that a carrier to the switch of the
// topology is answered.
func TestSwappedCablesOfSourceRoutedLabs(t *testing.T) {
	l := upSourceRouted(t, srv6File, "swap")
	hit, spared := carrierFlows(t, l)
	before := routing(t, l)
	// leaf1:up2 goes to spine1 now, and leaf2:up1 to spine2.
	addFault(t, l, Fault{Kind: KindMiscable, At: "leaf1:up2--spine2:dn1,leaf2:up1--spine1:dn2"})
	if _, err := l.CarrierPath(t.Context(), hit.carrier, hit.probe.src, hit.probe.dst, syscall.IPPROTO_UDP, 20000, echoPort); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("the kernels say %v", err)
	}
	if a := hit.measure(t, 20); a.n > 0 {
		t.Errorf("%d packets arrived", a.n)
	}
	if a := spared.measure(t, 20); a.n != 20 {
		t.Errorf("elsewhere %d packets arrived", a.n)
	}
	// By the port, packets get to the other spine, which knows the last leaf.
	byPort := hit
	byPort.carrier = l.carrier(t, "leaf1", "f003", "leaf3", "e000")
	if a := byPort.measure(t, 20); a.n != 20 {
		t.Errorf("by the port %d packets arrived", a.n)
	}
	clearFaults(t, l)
	if a := hit.measure(t, 20); a.n != 20 {
		t.Errorf("after clearing %d packets arrived", a.n)
	}
	if after := routing(t, l); after != before {
		t.Errorf("the routes are not what they were:\n%s", diff(before, after))
	}
}

// TestPlacesOfSIDUnknown checks where the fault is possible.
func TestPlacesOfSIDUnknown(t *testing.T) {
	sourceRouted, err := planLab(load(t, srv6File), Options{Name: "layout"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := planLab(load(t, demoFileV6), Options{Name: "layout"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		x       *index
		at, err string
		fault   Fault
	}{
		{x: sourceRouted, at: "leaf1->spine2"},
		{x: sourceRouted, at: "spine4->leaf1"},
		{x: sourceRouted, at: "leaf1->leaf2", err: "no link joins the two switches"},
		{x: sourceRouted, at: "leaf1->leaf1", err: "no link joins the two switches"},
		{x: sourceRouted, at: "leaf1->h1", err: "want SWITCH->SWITCH"},
		{x: sourceRouted, at: "leaf1", err: "want SWITCH->SWITCH"},
		{x: sourceRouted, at: "leaf1:up2->spine2:dn1", err: "want SWITCH->SWITCH"},
		{x: sourceRouted, at: "leaf1->spine2", fault: Fault{Direction: "in"}, err: "sid-unknown has none"},
		{x: other, at: "leaf1->spine2", err: "takes a lab with forwarding srv6"},
	} {
		c.fault.Kind, c.fault.At = KindSIDUnknown, c.at
		_, err := c.x.resolveFault(c.fault, func() bool { return false })
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("at %s: error %v, want %q", c.at, err, c.err)
		}
	}
}

// TestShortLinksOfCarriers: a link that takes only short packets answers longer ones, and the outer header counts.
func TestShortLinksOfCarriers(t *testing.T) {
	l := upSourceRouted(t, srv6File, "mtu")
	hit, spared := carrierFlows(t, l)
	addFault(t, l, Fault{Kind: KindMTU, At: "leaf1:up2--spine2:dn1"})
	for _, c := range []struct {
		payload int
		arrives bool
	}{{1280 - 40 - 40 - 8, true}, {1280 - 40 - 40 - 7, false}} {
		for _, f := range []carrierFlow{hit, spared} {
			receiver := socket(t, l, f.dst, echoPort)
			f.probe.payload = stamp(make([]byte, c.payload), 0)[:c.payload:c.payload]
			if _, err := f.sender.conn.WriteTo(f.probe.octets(), &net.IPAddr{IP: f.carrier.AsSlice()}); err != nil && !errors.Is(err, syscall.EMSGSIZE) {
				t.Fatal(err)
			}
			if a := receive(t, receiver, 1, 300*time.Millisecond); (a.n == 1) != (c.arrives || f.carrier == spared.carrier) {
				t.Errorf("%d octets to %s: %d packets arrived", c.payload, f.carrier, a.n)
			}
			receiver.Close()
		}
	}
	clearFaults(t, l)
}
