package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

const sprayFile = "../../deploy/lab/spray.yaml"

// sprayCase is a way to spray, and a family of addresses.
type sprayCase struct{ spray, family string }

func sprayCases() []sprayCase {
	return []sprayCase{{SprayRandom, FamilyIPv4}, {SprayRoundRobin, FamilyIPv4}, {SprayRandom, FamilyIPv6}, {SprayRoundRobin, FamilyIPv6}}
}

func (c sprayCase) build(t *testing.T) *Lab {
	t.Helper()
	needs(t)
	return upWith(t, load(t, sprayFile), Options{Name: testName("spray"), Spray: c.spray, Family: c.family})
}

// sentBy returns how many packets the kernel has sent by each uplink of a leaf.
func sentBy(t *testing.T, l *Lab, leaf string) map[string]int {
	t.Helper()
	out := map[string]int{}
	ns := l.x.byElement[leaf]
	err := unix.InNetns(ns.Netns, func() error {
		return withHandle(func(h *netlink.Handle) error {
			for _, i := range ns.Interfaces {
				if fabric.IsNIC(i.Peer) {
					continue
				}
				link, err := h.LinkByName(i.Name)
				if err != nil {
					return err
				}
				out[i.End] = int(link.Attrs().Statistics.TxPackets)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sentSince returns the counts of the ports that grew by more than other packets than the test's explain.
func sentSince(before, now map[string]int) map[string]int {
	const others = 20 // neighbour discovery of IPv6
	out := map[string]int{}
	for end, n := range now {
		if n-before[end] > others {
			out[end] = n - before[end]
		}
	}
	return out
}

// checkShares checks the counts of packets by the ports that they could have taken.
func checkShares(t *testing.T, c sprayCase, sent int, shares map[string]int, ports int) {
	t.Helper()
	if len(shares) != ports {
		t.Errorf("%d packets of one flow left by %v, want %d ports", sent, shares, ports)
		return
	}
	slack := 1 // a flow's own packets are in turn
	if ports&(ports-1) != 0 {
		slack = 12
	}
	if c.family == FamilyIPv6 {
		slack += 10
	}
	square := 0.0
	each := float64(sent) / float64(ports)
	for end, n := range shares {
		d := float64(n) - each
		square += d * d / each
		if c.spray == SprayRoundRobin && (d > float64(slack) || d < -float64(slack)) {
			t.Errorf("%d of %d packets left by %s, want %g, within %d", n, sent, end, each, slack)
		}
	}
	// Beyond 35 once in a million times, with three degrees of freedom.
	if square > 35 {
		t.Errorf("chi-square of %v is %.1f", shares, square)
	}
	t.Logf("%s, %s: %v, chi-square %.2f", c.spray, c.family, shares, square)
}

// TestPacketsOfOneFlowTakeAllPorts compares the kernel's counters with what a flow of one 5-tuple sent.
func TestPacketsOfOneFlowTakeAllPorts(t *testing.T) {
	for _, c := range sprayCases() {
		t.Run(c.spray+" "+c.family, func(t *testing.T) {
			l := c.build(t)
			const n = 4000
			there, back := sentBy(t, l, "leaf1"), sentBy(t, l, "leaf2")
			r := measure(t, l, flow{src: "h1/eth1", dst: "h3/eth1", sport: 20001}, n, 100*time.Microsecond, time.Second)
			if r.gotThere != n || r.gotBack != n {
				t.Errorf("%d of %d packets arrived, and %d came back", r.gotThere, n, r.gotBack)
			}
			checkShares(t, c, n, sentSince(there, sentBy(t, l, "leaf1")), 4)
			checkShares(t, c, n, sentSince(back, sentBy(t, l, "leaf2")), 4)
			if s, err := l.Status(t.Context()); err != nil || s.Forwarding != "spray" || s.Spray != c.spray {
				t.Errorf("status has forwarding %q, spray %q, %v", s.Forwarding, s.Spray, err)
			}
			if _, err := l.KernelPath(t.Context(), l.addr("h1/eth1"), l.addr("h3/eth1"), syscall.IPPROTO_UDP, 20001, echoPort); err == nil {
				t.Error("a sprayed flow has a path")
			}
			// Packets that expire are answered by all spines, and by one leaf.
			g := fabric.NewGraph(l.Topology())
			tr := newTracer(t, l, "h1/eth1", 20002)
			answered := map[string]bool{}
			for range 64 {
				answered[fabric.OwnerOf(g.EndOf(tr.hop(t, netip.AddrPortFrom(l.addr("h3/eth1"), 862), 2)))] = true
			}
			if len(answered) != 4 {
				t.Errorf("packets with a hop limit of 2 were answered by %v, want four spines", answered)
			}
			if got := fabric.OwnerOf(g.EndOf(tr.hop(t, netip.AddrPortFrom(l.addr("h3/eth1"), 862), 3))); got != "leaf2" {
				t.Errorf("a packet with a hop limit of 3 was answered by %s", got)
			}
		})
	}
}

// TestRoutedFabricSprays sprays over the groups of next hops that FRR installs.
func TestRoutedFabricSprays(t *testing.T) {
	l := upFRR(t, sprayFile, "spray")
	const n = 2000
	// Sessions of BGP and BFD send as well: ten packets a second by each port.
	start, before := time.Now(), sentBy(t, l, "leaf1")
	r := measure(t, l, flow{src: "h1/eth1", dst: "h3/eth1", sport: 20001}, n, 100*time.Microsecond, time.Second)
	after := sentBy(t, l, "leaf1")
	others := 30*int(time.Since(start).Seconds()+1) + 30
	if r.gotBack != n {
		t.Errorf("%d of %d packets came back", r.gotBack, n)
	}
	for end, sent := range after {
		// Of 2000 packets, a quarter is within 100 but once in a million times.
		if got := sent - before[end]; got < n/4-100 || got > n/4+100+others {
			t.Errorf("%s sent %d packets, want about %d, and up to %d others", end, got, n/4, others)
		}
	}
}

// TestFaultsOfSprayedFabrics breaks one of four ways of each packet.
func TestFaultsOfSprayedFabrics(t *testing.T) {
	for _, c := range sprayCases()[:3] {
		t.Run(c.spray+" "+c.family, func(t *testing.T) {
			l := c.build(t)
			f := flow{src: "h1/eth1", dst: "h3/eth1", sport: 20001}
			const n = 1000
			add := func(fault Fault) string {
				t.Helper()
				id, err := l.AddFault(t.Context(), fault)
				if err != nil {
					t.Fatal(err)
				}
				return id
			}
			clear := func(id string) {
				t.Helper()
				if err := l.ClearFault(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
			if r := measure(t, l, f, n, 200*time.Microsecond, time.Second); r.gotBack != n {
				t.Errorf("%d of %d packets came back without a fault", r.gotBack, n)
			}
			id := add(Fault{Kind: KindBlackhole, At: "leaf1:up2->spine2:dn1"})
			// Beyond these once in a million times.
			if r := measure(t, l, f, n, 200*time.Microsecond, time.Second); r.fwdLoss() < 0.18 || r.fwdLoss() > 0.32 || r.gotBack != r.gotThere {
				t.Errorf("one of four ways loses all: %.3f of the packets were lost there, %.3f back", r.fwdLoss(), r.revLoss())
			}
			clear(id)
			id = add(Fault{Kind: KindDelay, At: "leaf1:up2->spine2:dn1", Delay: 20 * time.Millisecond})
			r := measure(t, l, f, n, 200*time.Microsecond, time.Second)
			if r.gotBack != n || r.reordered < n/10 {
				t.Errorf("one of four ways delays by 20 ms: %d of %d packets came back, %d arrived before an earlier one", r.gotBack, n, r.reordered)
			}
			if low, high := quantileOf(r.fwd, 0.5), quantileOf(r.fwd, 0.9); low > 10*time.Millisecond || high < 20*time.Millisecond {
				t.Errorf("one of four ways delays by 20 ms: the median is %s, and the ninth decile %s", low, high)
			}
			t.Logf("%d of %d packets arrived before an earlier one", r.reordered, n)
			clear(id)
			id = add(Fault{Kind: KindLinkDown, At: "leaf1:up2--spine2:dn1"})
			time.Sleep(WithdrawAfter + 500*time.Millisecond)
			before := sentBy(t, l, "leaf1")
			if r := measure(t, l, f, n, 200*time.Microsecond, time.Second); r.gotBack != n {
				t.Errorf("%d of %d packets came back over the three ways that are left", r.gotBack, n)
			}
			checkShares(t, c, n, sentSince(before, sentBy(t, l, "leaf1")), 3)
			clear(id)
			before = sentBy(t, l, "leaf1")
			if r := measure(t, l, f, n, 200*time.Microsecond, time.Second); r.gotBack != n {
				t.Errorf("%d of %d packets came back after all faults", r.gotBack, n)
			}
			checkShares(t, c, n, sentSince(before, sentBy(t, l, "leaf1")), 4)
		})
	}
}

// TestForwardingOfLayouts checks what is chosen, and what is refused, before anything is built.
func TestForwardingOfLayouts(t *testing.T) {
	for _, c := range []struct {
		file, forwarding, spray string
		want, way, err          string
	}{
		{file: demoFile},
		{file: demoFile, forwarding: "ecmp", want: "ecmp"},
		{file: demoFile, forwarding: "spray", want: "spray", way: SprayRandom},
		{file: demoFile, forwarding: "spray", spray: SprayRoundRobin, want: "spray", way: SprayRoundRobin},
		{file: sprayFile, want: "spray", way: SprayRandom},
		{file: sprayFile, spray: SprayRoundRobin, want: "spray", way: SprayRoundRobin},
		{file: sprayFile, forwarding: "ecmp", want: "ecmp"},
		{file: demoFile, spray: SprayRandom, err: "goes with forwarding spray"},
		{file: sprayFile, forwarding: "ecmp", spray: SprayRandom, err: "goes with forwarding spray"},
		{file: demoFile, forwarding: "mpls", err: "want one of ecmp, spray, srv6"},
		{file: sprayFile, spray: "evenly", err: "want one of random, round-robin"},
	} {
		original := load(t, c.file)
		before := original.Forwarding
		x, err := planLab(original, Options{Name: "layout", Forwarding: c.forwarding, Spray: c.spray})
		name := fmt.Sprintf("%s with %q, %q", c.file, c.forwarding, c.spray)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want %q", name, err, c.err)
			}
			continue
		case err != nil || string(x.Topology.Forwarding) != c.want || x.Spray != c.way:
			t.Errorf("%s: forwarding %q, spray %q, error %v; want %q, %q", name, x.Topology.Forwarding, x.Spray, err, c.want, c.way)
		case original.Forwarding != before:
			t.Errorf("%s: the topology that was given changed", name)
		}
		policies := map[bool]string{false: "3", true: "1"}
		settings := kernelSettings(&x.Namespaces[0], x.Routing, x.Spray, ipv4Family)
		if !slices.ContainsFunc(settings, func(s setting) bool {
			return s.path == "ipv4/fib_multipath_hash_policy" && s.value == policies[x.Spray != ""]
		}) {
			t.Errorf("%s: settings %v", name, settings)
		}
	}
}

// TestCongestionOfSprayedPorts checks that a port which takes only a share of each flow is not filled.
func TestCongestionOfSprayedPorts(t *testing.T) {
	x, err := planLab(load(t, sprayFile), Options{Name: "layout"})
	if err != nil {
		t.Fatal(err)
	}
	none := func() bool { return false }
	for at, refused := range map[string]bool{"leaf1:up1": true, "spine1:dn1": true, "leaf1:dn1": false} {
		_, err := x.resolveFault(Fault{Kind: KindCongest, At: at}, none)
		if got := err != nil && strings.Contains(err.Error(), "spray"); got != refused {
			t.Errorf("congestion at %s: %v", at, err)
		}
	}
}

// TestPacketsAreInTurn runs the program that sprays in turn without a fabric, and checks which of several equal next hops the
// kernel would take: fib_select_multipath divides the upper 31 bits of the hash into equal parts.
func TestPacketsAreInTurn(t *testing.T) {
	testneeds.Root(t, "it runs a program of the kernel")
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: sprayKeySize, ValueSize: 8, MaxEntries: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer counts.Close()
	all := sprayInTurn(counts.FD())
	const end = 4 // setting the hash and returning
	program, err := loadClassifier("in_turn", append(all[:len(all)-end:len(all)-end], asm.Mov.Reg32(asm.R0, asm.R2), asm.Return()))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	// Ethernet, IPv4 and UDP; the last octet of the source's port is the flow.
	packet := []byte{1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 7, 8, 0, 0x45, 0, 0, 66, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 0, 3, 4, 0, 46, 0, 0}
	packet = append(packet, make([]byte, 38)...)
	answer := slices.Clone(packet)
	copy(answer[26:], []byte{10, 0, 0, 2, 10, 0, 0, 1, 3, 4, 1, 0})
	for flow := range byte(3) {
		packet[35], answer[37] = flow, flow
		var hashes []uint32
		for i := range 1000 {
			for range i % 3 { // answers that cross the switch as well do not count
				if _, err := program.Run(&ebpf.RunOptions{Data: answer}); err != nil {
					t.Fatal(err)
				}
			}
			hash, err := program.Run(&ebpf.RunOptions{Data: packet})
			if err != nil {
				t.Fatal(err)
			}
			hashes = append(hashes, hash>>1)
		}
		for ports, slack := range map[int]float64{2: 1, 3: 8, 4: 1, 5: 8, 8: 1, 64: 1} {
			taken := make([]int, ports)
			for i, hash := range hashes {
				taken[int(uint64(hash)*uint64(ports)>>31)]++
				for port, n := range taken {
					if d := float64(n) - float64(i+1)/float64(ports); d > slack || d < -slack {
						t.Fatalf("flow %d: port %d of %d has %d of the first %d packets", flow, port, ports, n, i+1)
					}
				}
			}
		}
	}
}
