package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

// pings reports whether the kernel's echo requests of a length in octets pass from h1 to h2 without being fragmented.
func (l *line) pings(octets int) bool {
	l.t.Helper()
	if _, err := exec.LookPath("ping"); err != nil {
		testneeds.Missing(l.t, "ping (Debian package iputils-ping)")
	}
	l.run("ip", "-n", l.name("h1"), "route", "flush", "cache") // what the kernel remembers of the MTU of paths
	return exec.Command("ip", "netns", "exec", l.name("h1"), "ping", "-M", "do", "-c", "3", "-i", "0.1", "-W", "1", "-s", fmt.Sprint(octets-28), "10.83.2.2").Run() == nil
}

// TestPathMTU compares what a test of a path finds with what the kernels' MTUs and ping say.
func TestPathMTU(t *testing.T) {
	l := newLine(t)
	a := l.start("h1", "10.83.1.2", "10.83.2.2")
	l.start("h2", "10.83.2.2", "10.83.1.2")
	until(t, 20*time.Second, "a path", func() bool {
		_, p := a.TracedPaths()
		return len(p) == 2 && p[0].State == fabric.PathValid
	})
	mtu := func(ns, dev, octets string) [2][]string {
		return [2][]string{{"ip", "-n", l.name(ns), "link", "set", dev, "mtu", octets}, {"ip", "-n", l.name(ns), "link", "set", dev, "mtu", "1500"}}
	}
	table := func(ns string, rule ...string) [2][]string {
		at := func(what string) []string {
			return append([]string{"ip", "netns", "exec", l.name(ns), "iptables", "-w", what}, rule...)
		}
		return [2][]string{at("-A"), at("-D")}
	}
	quiet := func(ns string) [2][]string {
		return table(ns, "OUTPUT", "-p", "icmp", "--icmp-type", "fragmentation-needed", "-j", "DROP")
	}
	for _, tc := range []struct {
		name    string
		changes [][2][]string // what is done, and what undoes it
		octets  int
		want    fabric.PathMTU
		ping    bool
	}{
		{"as it is", nil, 1088, fabric.PathMTU{State: fabric.PathMTUPasses, Sent: 1}, true},
		{"a switch reports", [][2][]string{mtu("r1", "up1", "1000")}, 1088, fabric.PathMTU{State: fabric.PathMTUDrops, Passed: 1, Dropped: 2, NextMTU: 1000}, false},
		{"a shorter length", [][2][]string{mtu("r1", "up1", "1000")}, 1000, fabric.PathMTU{State: fabric.PathMTUPasses, Sent: 1}, true},
		{"a silent switch", [][2][]string{quiet("r1"), mtu("r1", "up1", "1000")}, 1088, fabric.PathMTU{State: fabric.PathMTUDrops, Passed: 1, Dropped: 2}, false},
		{"the receiving end of a link", [][2][]string{quiet("r2"), mtu("r2", "up1", "1000")}, 1088, fabric.PathMTU{State: fabric.PathMTUDrops, Passed: 1, Dropped: 2}, false},
		{"the last link", [][2][]string{quiet("r2"), mtu("r2", "dn1", "1000")}, 1088, fabric.PathMTU{State: fabric.PathMTUDrops, Passed: 2, Dropped: 3}, false},
		{"the first link", [][2][]string{mtu("r1", "dn1", "1000")}, 1088, fabric.PathMTU{State: fabric.PathMTUDrops, Passed: 0, Dropped: 1}, false},
		{"the node's own interface", [][2][]string{mtu("h1", "eth1", "1000")}, 1088, fabric.PathMTU{State: fabric.PathMTUDrops, Passed: 0, Dropped: 1}, false},
		{"the replies", [][2][]string{table("r2", "FORWARD", "-s", "10.83.2.2", "-m", "length", "--length", "1001:", "-j", "DROP")}, 1088,
			fabric.PathMTU{State: fabric.PathMTUDrops, Passed: 2, Dropped: 3}, false},
		{"a far end that answers nothing", [][2][]string{table("h2", "INPUT", "-j", "DROP")}, 1088, fabric.PathMTU{State: fabric.PathMTUUnknown}, false},
	} {
		for _, c := range tc.changes {
			l.run(c[0]...)
		}
		ping := l.pings(tc.octets)
		found, err := a.ProbePathMTU(t.Context(), []fabric.Flow{traced}, tc.octets)
		for i := range tc.changes {
			l.run(tc.changes[len(tc.changes)-1-i][1]...)
		}
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %d results", tc.name, err, len(found))
		}
		g := found[0]
		if g.State != tc.want.State || g.Passed != tc.want.Passed || g.Dropped != tc.want.Dropped || g.NextMTU != tc.want.NextMTU || tc.want.Sent > 0 && g.Sent != tc.want.Sent {
			t.Errorf("%s: %+v, want %+v", tc.name, g, tc.want)
		}
		if g.Edge != traced.String() || len(g.Hops) != 2 || g.Octets != tc.octets || g.Sent > 1+2*mtuTries+2*mtuTries*2 {
			t.Errorf("%s: %+v", tc.name, g)
		}
		if ping != tc.ping {
			t.Errorf("%s: the kernel's ping passes: %t", tc.name, ping)
		}
	}
	for _, octets := range []int{minMTUOctets - 1, MaxMTUOctets + 1} {
		var length PathMTULengthError
		if _, err := a.ProbePathMTU(t.Context(), []fabric.Flow{traced}, octets); !errors.As(err, &length) || length.Octets != octets {
			t.Errorf("%d octets: %v", octets, err)
		}
	}
	if found, err := a.ProbePathMTU(t.Context(), []fabric.Flow{{Src: traced.Dst, Dst: traced.Src, Reply: true}}, 1088); err != nil || found[0].State != fabric.PathMTUUnknown || found[0].Sent != 0 {
		t.Errorf("a reply: %+v, %v", found, err)
	}
}

// TestPathMTUOfRoCE tests the length of RoCE packets with 4,096 octets on links that take just them.
func TestPathMTUOfRoCE(t *testing.T) {
	l := newLine(t)
	const octets = MaxMTUOctets - 28
	for ns, devices := range map[string][]string{"h1": {"eth1"}, "r1": {"dn1", "up1"}, "r2": {"up1", "dn1"}, "h2": {"eth1"}} {
		for _, dev := range devices {
			l.run("ip", "-n", l.name(ns), "link", "set", dev, "mtu", fmt.Sprint(octets))
		}
	}
	a := l.start("h1", "10.83.1.2", "10.83.2.2")
	l.start("h2", "10.83.2.2", "10.83.1.2")
	until(t, 20*time.Second, "a path", func() bool {
		_, p := a.TracedPaths()
		return len(p) == 2 && p[0].State == fabric.PathValid
	})
	for length, want := range map[int]fabric.PathMTUState{octets: fabric.PathMTUPasses, octets + 1: fabric.PathMTUDrops} {
		found, err := a.ProbePathMTU(t.Context(), []fabric.Flow{traced}, length)
		if err != nil || found[0].State != want || l.pings(length) != (want == fabric.PathMTUPasses) {
			t.Errorf("%d octets: %+v, %v, want %s", length, found, err, want)
		}
	}
}

// TestPaddingFillsTheLength checks the lengths of padded packets, and that one Extra Padding TLV makes the difference.
func TestPaddingFillsTheLength(t *testing.T) {
	buf := make([]byte, unix.MaxDatagram)
	for i := range buf {
		buf[i] = 0xff
	}
	size := copy(buf, make([]byte, stamp.BaseLen))
	for _, tc := range []struct{ size, length, want int }{{size, 2000, 2000}, {size, size + 4, size + 4}, {size, size + 3, size}, {size, len(buf) + 1, size}, {size, len(buf), len(buf)}} {
		got := padRequest(buf, tc.size, tc.length)
		if got != tc.want {
			t.Errorf("padded to %d: %d octets", tc.length, got)
		}
		if tlv, rest, err := stamp.NextTLV(buf[size:got]); got > size && (err != nil || len(rest) > 0 || tlv.Type != stamp.TypeExtraPadding) {
			t.Errorf("padded to %d: TLV %+v, %v", tc.length, tlv, err)
		}
	}
}

// TestLongPacketsOfProbesAreNotAnswered checks that a reflector answers long packets of traces alone, and no more of them than its
// limit for a peer allows.
func TestLongPacketsOfProbesAreNotAnswered(t *testing.T) {
	e := newMeeting(t)
	pr := e.a.peers[loopback(2)]
	e.a.wire.lives.own.now.Store(1)
	packet := func(seq uint32, ssid uint16) []byte {
		buf := make([]byte, unix.MaxDatagram)
		size := e.a.putRequest(buf, seq, e.wall.UnixNano(), ssid, seq+1, 0, false, pr.keys.sendKey())
		return buf[:padRequest(buf, size, maxProbe+1)]
	}
	e.arrive(packet(0, e.a.ssid))
	if n := e.b.filter.dropped[dropOversized]; n != 1 || e.received() != 0 {
		t.Errorf("a long probe: %d dropped for its length, %d received", n, e.received())
	}
	const traces = 2 * traceReplies
	for i := range uint32(traces) {
		g := &unix.Datagram{Data: packet(2*i, e.a.ssid|traceSSID), From: netip.AddrPortFrom(loopback(1), e.a.node.Stamp.SourcePort), Stamp: e.wall.UnixNano()}
		if err := e.b.takeProbe(g, e.wall); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.b.filter.dropped; n[dropOversized] != 1 || n[dropRate] != traces-traceReplies {
		t.Errorf("%d long packets of traces at once: %d dropped for their length, %d for their rate", traces, n[dropOversized], n[dropRate])
	}
}
