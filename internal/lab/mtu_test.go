package lab

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// TestMTUIsThatOfTheKernel compares a fault's MTU with what the kernel shows of both ends of the link, and of another link.
func TestMTUIsThatOfTheKernel(t *testing.T) {
	l := up(t, demoFile, "mtu")
	if err := l.SetLinkMTU(4200); err != nil {
		t.Fatal(err)
	}
	shown := func(end string) string {
		t.Helper()
		i := l.x.byEnd[end]
		out, err := exec.Command("ip", "-n", l.x.byElement[fabric.OwnerOf(end)].Netns, "link", "show", i.Name).Output()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(out), " mtu ")
		mtu, _, _ := strings.Cut(rest, " ")
		return mtu
	}
	a, b, _ := fabric.SplitLink(spineLink)
	for _, mtu := range []int{0, 1200} {
		want := fmt.Sprint(mtu)
		if mtu == 0 {
			want = fmt.Sprint(ShortMTU)
		}
		addFault(t, l, Fault{Kind: KindMTU, At: b + "--" + a, MTU: mtu})
		if x, y, other := shown(a), shown(b), shown("leaf2:up1"); x != want || y != want || other != "4200" {
			t.Errorf("MTU %d: the ends have %s and %s, and another link %s", mtu, x, y, other)
		}
		clearFaults(t, l)
		if x, y := shown(a), shown(b); x != "4200" || y != "4200" {
			t.Errorf("after MTU %d: the ends have %s and %s", mtu, x, y)
		}
	}
	for _, bad := range []Fault{{Kind: KindMTU, At: a + "->" + b}, {Kind: KindMTU, At: spineLink, MTU: 100}, {Kind: KindMTU, At: spineLink, MTU: 9000}, {Kind: KindMTU, At: "leaf1"}} {
		if _, err := l.AddFault(t.Context(), bad); err == nil {
			t.Errorf("%+v is taken for a fault", bad)
		}
	}
}

// TestMTUOfIPv6: a link of the least MTU that IPv6 has drops a packet that is longer, and lets a shorter one pass. No packet
// is fragmented on its way.
func TestMTUOfIPv6(t *testing.T) {
	l := up(t, demoFileV6, "mtu6")
	if _, err := l.AddFault(t.Context(), Fault{Kind: KindMTU, At: spineLink, MTU: ShortMTU}); err == nil || !strings.Contains(err.Error(), "want 1280 to 1500 octets, of which the first is the least that IPv6 has") {
		t.Errorf("an MTU of %d: %v", ShortMTU, err)
	}
	f := pickFlow(t, l, "h1/eth1", "h7/eth1", oneWay(upward))
	if af := addFault(t, l, Fault{Kind: KindMTU, At: spineLink}); af.MTU != ShortMTUv6 {
		t.Errorf("MTU %d, want %d", af.MTU, ShortMTUv6)
	}
	a, b := socket(t, l, f.src, f.sport), socket(t, l, f.dst, echoPort)
	rc, err := a.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// Linux ipv6(7): IPV6_PMTUDISC_PROBE keeps the sender from fragmenting as well.
	if cerr := rc.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_MTU_DISCOVER, syscall.IPV6_PMTUDISC_PROBE)
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	const header = 40 + 8
	got := func(lengths ...int) int {
		t.Helper()
		for _, n := range lengths {
			if _, err := a.WriteToUDPAddrPort(make([]byte, n-header), netip.AddrPortFrom(l.addr(f.dst), echoPort)); err != nil {
				t.Fatalf("%d octets: %v", n, err)
			}
		}
		deadline(t, b, 10*time.Second)
		n, _, err := b.ReadFromUDPAddrPort(make([]byte, DefaultMTU))
		if err != nil {
			t.Fatal(err)
		}
		return n + header
	}
	if n := got(ShortMTUv6+1, ShortMTUv6); n != ShortMTUv6 {
		t.Errorf("the first packet that passes has %d octets, want %d", n, ShortMTUv6)
	}
	clearFaults(t, l)
	if n := got(DefaultMTU); n != DefaultMTU {
		t.Errorf("after clearing, the first packet has %d octets, want %d", n, DefaultMTU)
	}
}
