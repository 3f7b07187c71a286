package lab

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// echoPort is where the reflector of a test's flow listens.
const echoPort = 862

// flow is a UDP flow between two NICs whose way there and back is known.
type flow struct {
	src, dst string
	sport    int
	fwd, rev []fabric.Direction
}

// pickFlow finds a flow that ECMP sends the way that ok wants.
func pickFlow(t *testing.T, l *Lab, src, dst string, ok func(fwd, rev []fabric.Direction) bool) flow {
	t.Helper()
	for sport := 20000; sport < 21000; sport++ {
		f := flow{src: src, dst: dst, sport: sport}
		p, err := l.KernelPath(t.Context(), l.addr(src), l.addr(dst), syscall.IPPROTO_UDP, uint16(sport), echoPort)
		if err != nil {
			t.Fatal(err)
		}
		r, err := l.KernelPath(t.Context(), l.addr(dst), l.addr(src), syscall.IPPROTO_UDP, echoPort, uint16(sport))
		if err != nil {
			t.Fatal(err)
		}
		f.fwd, f.rev = p.LinkDirections(src, dst), r.LinkDirections(dst, src)
		if ok(f.fwd, f.rev) {
			return f
		}
	}
	t.Fatalf("no flow from %s to %s goes the way that the test needs", src, dst)
	return flow{}
}

// oneWay wants a flow that crosses d on the way there and its link not on the way back.
func oneWay(d fabric.Direction) func(fwd, rev []fabric.Direction) bool {
	return func(fwd, rev []fabric.Direction) bool {
		return slices.Contains(fwd, d) && !slices.Contains(rev, d) && !slices.Contains(rev, d.Reverse())
	}
}

func anyWay(fwd, rev []fabric.Direction) bool { return true }

// result holds what a flow's packets measured, each direction by itself. All namespaces share one clock, so one-way
// delays need no synchronisation.
type result struct {
	sent              int
	fwd, rev          []time.Duration
	reordered         int
	gotThere, gotBack int
}

func (r result) fwdLoss() float64 { return 1 - float64(r.gotThere)/float64(r.sent) }
func (r result) revLoss() float64 { return 1 - float64(r.gotBack)/float64(r.gotThere) }

// delayOf returns the delay that nine of ten packets exceed, or -1 if there are none. A busy machine delays
// many packets by more than a fault does; the others show what the fault adds.
func delayOf(ds []time.Duration) time.Duration { return quantileOf(ds, 0.1) }

func quantileOf(ds []time.Duration, q float64) time.Duration {
	if len(ds) == 0 {
		return -1
	}
	s := slices.Clone(ds)
	slices.Sort(s)
	return s[int(q*float64(len(s)))]
}

// measure sends n packets, one every gap, and has each sent back. It ends
// when all are back, or quiet after the last was sent.
func measure(t *testing.T, l *Lab, f flow, n int, gap, quiet time.Duration) result {
	t.Helper()
	a, b := socket(t, l, f.src, f.sport), socket(t, l, f.dst, echoPort)
	defer a.Close()
	defer b.Close()
	r := result{sent: n}
	var reflector, receiver sync.WaitGroup
	reflector.Go(func() {
		buf := make([]byte, 64)
		last := int64(-1)
		for {
			m, from, err := b.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			now := time.Since(testEpoch)
			seq, sent := readStamp(buf[:m])
			r.fwd = append(r.fwd, now-sent)
			r.gotThere++
			if int64(seq) < last {
				r.reordered++
			}
			last = int64(seq)
			if _, err := b.WriteToUDPAddrPort(stamp(buf, seq), from); err != nil {
				return
			}
		}
	})
	receiver.Go(func() {
		buf := make([]byte, 64)
		for r.gotBack < n {
			m, _, err := a.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, sent := readStamp(buf[:m])
			r.rev = append(r.rev, time.Since(testEpoch)-sent)
			r.gotBack++
		}
	})
	to := netip.AddrPortFrom(l.addr(f.dst), echoPort)
	buf := make([]byte, 64)
	start := time.Now()
	for seq := range n {
		time.Sleep(time.Until(start.Add(time.Duration(seq) * gap)))
		if _, err := a.WriteToUDPAddrPort(stamp(buf, uint32(seq)), to); err != nil {
			t.Fatal(err)
		}
	}
	deadline(t, a, quiet)
	receiver.Wait()
	b.Close()
	reflector.Wait()
	return r
}

func addFault(t *testing.T, l *Lab, f Fault) ActiveFault {
	t.Helper()
	id, err := l.AddFault(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	faults, err := l.ActiveFaults()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(faults, func(a ActiveFault) bool { return a.ID == id })
	if i < 0 {
		t.Fatalf("fault %s is not listed: %v", id, faults)
	}
	return faults[i]
}

func clearFaults(t *testing.T, l *Lab) {
	t.Helper()
	if err := l.ClearFault(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if f, err := l.ActiveFaults(); err != nil || len(f) != 0 {
		t.Fatalf("after clearing all there are %v, %v", f, err)
	}
}

// onBothFamilies runs a test in a lab of the demo's fabric, with addresses of each family.
func onBothFamilies(t *testing.T, suffix string, test func(t *testing.T, l *Lab)) {
	t.Helper()
	needs(t, "iptables", "ip6tables")
	for family, file := range map[string]string{FamilyIPv4: demoFile, FamilyIPv6: demoFileV6} {
		t.Run(family, func(t *testing.T) { test(t, up(t, file, suffix)) })
	}
}

const spineLink = "leaf1:up1--spine1:dn1"

var (
	upward   = fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	downward = upward.Reverse()
)

// slack returns what relays may add to a delay: each some hundred microseconds on a slow machine,
// and less than any of them delays by.
func slack(want time.Duration) time.Duration { return max(time.Millisecond, want/2) }

// wantDelays checks the delay of each way against the delay added to it: at least that, and less than slack
// more.
func wantDelays(t *testing.T, what string, r result, fwd, rev time.Duration) {
	t.Helper()
	for _, w := range []struct {
		way       string
		got, want time.Duration
	}{{"there", delayOf(r.fwd), fwd}, {"back", delayOf(r.rev), rev}} {
		if limit := w.want + slack(w.want); w.got < w.want || w.got >= limit {
			t.Errorf("%s: delay %s %s, want [%s, %s)", what, w.way, w.got, w.want, limit)
		}
	}
	if r.gotBack != r.sent {
		t.Errorf("%s: %d of %d came back", what, r.gotBack, r.sent)
	}
	if r.reordered > 0 {
		t.Errorf("%s: %d packets overtook others", what, r.reordered)
	}
	t.Logf("%s: there %s, back %s", what, delayOf(r.fwd), delayOf(r.rev))
}

func TestDelays(t *testing.T) { onBothFamilies(t, "delay", addDelays) }

func addDelays(t *testing.T, l *Lab) {
	const ms = time.Millisecond
	across := pickFlow(t, l, "h1/eth1", "h7/eth1", oneWay(upward))
	both := pickFlow(t, l, "h1/eth1", "h7/eth1", func(fwd, rev []fabric.Direction) bool {
		return slices.Contains(fwd, upward) && slices.Contains(rev, downward)
	})
	clean := pickFlow(t, l, "h1/eth1", "h7/eth1", func(fwd, rev []fabric.Direction) bool {
		return !slices.Contains(fwd, upward) && !slices.Contains(rev, downward)
	})
	local := pickFlow(t, l, "h3/eth1", "h4/eth1", anyWay)
	cases := []struct {
		name     string
		faults   []Fault
		flow     flow
		fwd, rev time.Duration
	}{
		{"none", nil, across, 0, 0},
		{"one direction", []Fault{{Kind: KindDelay, At: spineLink, Direction: upward.String()}}, both, 2 * ms, 0},
		{"the other direction", []Fault{{Kind: KindDelay, At: spineLink, Direction: downward.String()}}, both, 0, 2 * ms},
		{"not on the way", []Fault{{Kind: KindDelay, At: spineLink, Direction: upward.String()}}, clean, 0, 0},
		{"the other direction of the link", []Fault{{Kind: KindDelay, At: spineLink, Direction: downward.String()}}, across, 0, 0},
		{"two at once", []Fault{{Kind: KindDelay, At: spineLink, Direction: upward.String()},
			{Kind: KindDelay, At: spineLink, Direction: downward.String(), Delay: 3 * ms}}, both, 2 * ms, 3 * ms},
		{"NIC in", []Fault{{Kind: KindNICSlow, At: "h3/eth1", Direction: DirectionIn}}, local, 0, 2 * ms},
		{"NIC out", []Fault{{Kind: KindNICSlow, At: "h3/eth1", Direction: DirectionOut}}, local, 2 * ms, 0},
		{"NIC both", []Fault{{Kind: KindNICSlow, At: "h3/eth1"}}, local, 2 * ms, 2 * ms},
		{"switch, once per packet", []Fault{{Kind: KindSwitchSlow, At: "leaf2"}}, local, 2 * ms, 2 * ms},
		{"switch and NIC add up", []Fault{{Kind: KindSwitchSlow, At: "leaf2"}, {Kind: KindNICSlow, At: "h4/eth1", Direction: DirectionIn}}, local, 4 * ms, 2 * ms},
		{"short", []Fault{{Kind: KindDelay, At: spineLink, Delay: 500 * time.Microsecond}}, across, ms / 2, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, f := range c.faults {
				addFault(t, l, f)
			}
			// Of a machine that has other things to do the packets are late by more than a
			// fault makes them, now and then; what a fault adds is there every time.
			var r result
			for range 16 {
				r = measure(t, l, c.flow, 200, ms, time.Second)
				if r.gotBack == r.sent && delayOf(r.fwd) < c.fwd+slack(c.fwd) && delayOf(r.rev) < c.rev+slack(c.rev) {
					break
				}
			}
			clearFaults(t, l)
			wantDelays(t, c.name, r, c.fwd, c.rev)
		})
	}
}

func TestSecondDelayAtOnePlaceIsRefused(t *testing.T) {
	needs(t, "iptables")
	l := up(t, demoFile, "second")
	first := addFault(t, l, Fault{Kind: KindDelay, At: spineLink})
	_, err := l.AddFault(t.Context(), Fault{Kind: KindDelay, At: spineLink, Delay: time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), first.ID) {
		t.Errorf("a second delay: %v, want an error that names %s", err, first.ID)
	}
}

// TestTheDelayOfARelayChanges: longer and shorter, and packets stay in order.
func TestTheDelayOfARelayChanges(t *testing.T) {
	needs(t, "iptables")
	l := up(t, demoFile, "change")
	f := pickFlow(t, l, "h1/eth1", "h7/eth1", oneWay(upward))
	af := addFault(t, l, Fault{Kind: KindDelay, At: spineLink, Direction: upward.String(), Delay: time.Millisecond})
	if af.Mechanism != "relay" {
		t.Skipf("this kernel has %s: nothing is relayed", af.Mechanism)
	}
	for _, want := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 3 * time.Millisecond} {
		if err := l.ChangeDelay(t.Context(), af.ID, want); err != nil {
			t.Fatal(err)
		}
		var r result
		for range 50 { // until the relay has read it
			if r = measure(t, l, f, 50, time.Millisecond, time.Second); delayOf(r.fwd) >= want && delayOf(r.fwd) < want+slack(want) {
				break
			}
		}
		if got := delayOf(r.fwd); got < want || got >= want+slack(want) || r.reordered > 0 {
			t.Errorf("asked %v, delay %v, %d out of order", want, got, r.reordered)
		}
	}
	for id, text := range map[string]string{"none": "has no fault", af.ID: "want more than 0"} {
		if err := l.ChangeDelay(t.Context(), id, map[bool]time.Duration{true: 0, false: time.Second}[id == af.ID]); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", id, err, text)
		}
	}
	clearFaults(t, l)
}

func TestRelayKeepsUpAndFailsOpen(t *testing.T) {
	needs(t, "iptables")
	l := up(t, demoFile, "relay")
	f := pickFlow(t, l, "h1/eth1", "h7/eth1", oneWay(upward))
	af := addFault(t, l, Fault{Kind: KindDelay, At: spineLink, Direction: upward.String()})
	if af.Mechanism != "relay" {
		t.Skipf("this kernel has %s: nothing is relayed", af.Mechanism)
	}
	var r result
	var took, cpu time.Duration
	for range 4 { // a machine that stands still for 200 ms fills the relay's queue
		before := cpuTime(t, af.Helper.PID)
		start := time.Now()
		r = measure(t, l, f, 10_000, 200*time.Microsecond, time.Second)
		took, cpu = time.Since(start), cpuTime(t, af.Helper.PID)-before
		if r.gotThere == r.sent {
			break
		}
	}
	if r.gotThere != r.sent || r.reordered > 0 {
		t.Errorf("%d of %d packets came, %d out of order", r.gotThere, r.sent, r.reordered)
	}
	t.Logf("%.0f packets/s: delay %s, relay %.0f %% of a core", float64(r.sent)/took.Seconds(), delayOf(r.fwd), 100*cpu.Seconds()/took.Seconds())

	if err := af.Helper.sendSignal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !waitGone(af.Helper, 10*time.Second) {
		t.Fatal("the relay is not gone")
	}
	r = measure(t, l, f, 100, time.Millisecond, time.Second)
	if r.gotBack != r.sent || delayOf(r.fwd) >= 2*time.Millisecond {
		t.Errorf("with the relay dead %d of %d came back, delay %s: want all, undelayed", r.gotBack, r.sent, delayOf(r.fwd))
	}
	clearFaults(t, l)
}

// cpuTime returns the user and system time of a process, fields 14 and 15 of proc_pid_stat(5), in ticks of 10 ms.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	var u, s int
	if _, err := fmt.Sscan(f[11]+" "+f[12], &u, &s); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u+s) * 10 * time.Millisecond
}

func TestClearingADelayLosesNothing(t *testing.T) {
	needs(t, "iptables")
	l := up(t, demoFile, "clear")
	f := pickFlow(t, l, "h1/eth1", "h7/eth1", oneWay(upward))
	addFault(t, l, Fault{Kind: KindDelay, At: spineLink, Direction: upward.String(), Delay: 50 * time.Millisecond})
	done := make(chan result)
	go func() { done <- measure(t, l, f, 1000, time.Millisecond, 2*time.Second) }()
	time.Sleep(300 * time.Millisecond)
	clearFaults(t, l)
	if r := <-done; r.gotBack != r.sent {
		t.Errorf("%d of %d came back", r.gotBack, r.sent)
	}
}

func TestLoss(t *testing.T) {
	needs(t, "iptables")
	l := up(t, demoFile, "loss")
	f := pickFlow(t, l, "h1/eth1", "h7/eth1", func(fwd, rev []fabric.Direction) bool {
		return slices.Contains(fwd, upward) && slices.Contains(rev, downward)
	})
	addFault(t, l, Fault{Kind: KindLoss, At: spineLink, Direction: upward.String()})
	r := measure(t, l, f, 3000, 500*time.Microsecond, time.Second)
	// Five standard deviations: the odds against a miss are 1 in 1.7 million.
	if dev := 5 * math.Sqrt(0.1*0.9/3000); math.Abs(r.fwdLoss()-0.1) > dev || r.revLoss() != 0 {
		t.Errorf("loss there %.3f, back %.3f; want 0.1 +- %.3f and 0", r.fwdLoss(), r.revLoss(), dev)
	}
	t.Logf("loss there %.4f, back %.4f", r.fwdLoss(), r.revLoss())
	clearFaults(t, l)

	// A delay on the same direction must not shield packets from the loss.
	addFault(t, l, Fault{Kind: KindDelay, At: spineLink, Direction: upward.String()})
	addFault(t, l, Fault{Kind: KindLoss, At: spineLink, Direction: upward.String(), Loss: 0.5})
	r = measure(t, l, f, 1000, 500*time.Microsecond, time.Second)
	if math.Abs(r.fwdLoss()-0.5) > 5*math.Sqrt(0.25/1000) || delayOf(r.fwd) < 2*time.Millisecond {
		t.Errorf("loss 0.5 and delay 2ms together: loss %.3f, delay %s", r.fwdLoss(), delayOf(r.fwd))
	}
	clearFaults(t, l)
}

func TestBlackholeIsOneDirection(t *testing.T) { onBothFamilies(t, "hole", dropOneDirection) }

func dropOneDirection(t *testing.T, l *Lab) {
	f := pickFlow(t, l, "h1/eth1", "h7/eth1", func(fwd, rev []fabric.Direction) bool {
		return slices.Contains(fwd, upward) && slices.Contains(rev, downward)
	})
	for _, c := range []struct {
		direction fabric.Direction
		there     int
	}{{upward, 0}, {downward, 100}} {
		addFault(t, l, Fault{Kind: KindBlackhole, At: spineLink, Direction: c.direction.String()})
		r := measure(t, l, f, 100, time.Millisecond, 200*time.Millisecond)
		if r.gotThere != c.there || r.gotBack != 0 {
			t.Errorf("%s: %d got there and %d back, want %d and 0", c.direction, r.gotThere, r.gotBack, c.there)
		}
		clearFaults(t, l)
		if r := measure(t, l, f, 100, time.Millisecond, time.Second); r.gotBack != 100 {
			t.Errorf("%s cleared: %d of 100 came back", c.direction, r.gotBack)
		}
	}
}

func TestECNMarksOnlyCapablePackets(t *testing.T) { onBothFamilies(t, "ecn", markPackets) }

func markPackets(t *testing.T, l *Lab) {
	f := pickFlow(t, l, "h1/eth1", "h7/eth1", oneWay(upward))
	addFault(t, l, Fault{Kind: KindECN, At: spineLink, Direction: upward.String()})
	for tos, want := range map[int]byte{0: 0, 1: 3, 2: 3, 3: 3, 0xb8 | 2: 0xb8 | 3} {
		a, b := socket(t, l, f.src, f.sport), socket(t, l, f.dst, echoPort)
		setIP(t, a, syscall.IP_TOS, tos)
		setIP(t, b, syscall.IP_RECVTOS, 1)
		if _, err := a.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(l.addr(f.dst), echoPort)); err != nil {
			t.Fatal(err)
		}
		deadline(t, b, 10*time.Second)
		oob := make([]byte, 64)
		_, n, _, _, err := b.ReadMsgUDPAddrPort(make([]byte, 8), oob)
		if err != nil {
			t.Fatal(err)
		}
		msgs, err := syscall.ParseSocketControlMessage(oob[:n])
		if err != nil || len(msgs) != 1 || msgs[0].Data[0] != want {
			t.Errorf("TOS %#02x arrives as %v (%v), want %#02x", tos, msgs, err, want)
		}
		a.Close()
		b.Close()
	}
}

// setIP sets an option of IPv4, or the one that is the same of IPv6.
func setIP(t *testing.T, c *net.UDPConn, option, value int) {
	t.Helper()
	rc, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	level := syscall.IPPROTO_IP
	if c.LocalAddr().(*net.UDPAddr).IP.To4() == nil {
		level = syscall.IPPROTO_IPV6
		option = map[int]int{syscall.IP_TOS: syscall.IPV6_TCLASS, syscall.IP_RECVTOS: syscall.IPV6_RECVTCLASS, syscall.IP_TTL: syscall.IPV6_UNICAST_HOPS}[option]
	}
	if cerr := rc.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), level, option, value) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
}

// routing returns the routes of all kernels of the lab as text.
func routing(t *testing.T, l *Lab) string {
	t.Helper()
	var out strings.Builder
	for _, ns := range l.x.Namespaces {
		for _, args := range [][]string{{"-4", "route", "show", "table", "all"}, {"rule"}, {"neigh"}, {"-6", "-o", "route", "show", "table", "all"}, {"-6", "rule"}, {"-6", "-o", "addr"}} {
			b, err := l.Command(t.Context(), ns.Element, append([]string{"ip"}, args...)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: ip %v: %v: %s", ns.Element, args, err, b)
			}
			lines := strings.Split(string(b), "\n")
			if args[0] == "-6" {
				// The kernel gives a link-local address and a route of multicasts a moment after the interface is up. A new
				// interface has another number.
				lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, "fe80:") || strings.Contains(line, "ff00::/8") })
				for i, line := range lines {
					if _, rest, ok := strings.Cut(line, ": "); ok && args[len(args)-1] == "addr" {
						lines[i] = rest
					}
				}
			}
			if args[0] == "neigh" || args[0] == "-6" {
				slices.Sort(lines) // the kernel lists neighbours by hash, and IPv6 in the order in which interfaces came up
			}
			fmt.Fprintf(&out, "%s %v\n%s\n", ns.Element, args, strings.Join(lines, "\n"))
		}
	}
	return out.String()
}

func TestLinkDown(t *testing.T) { onBothFamilies(t, "down", takeLinkDown) }

func takeLinkDown(t *testing.T, l *Lab) {
	before := routing(t, l)
	// The far leaf may choose the spine that lost its downlink. Such flows are lost until the far leaf learns of it.
	doomed := pickFlow(t, l, "h7/eth1", "h1/eth1", oneWay(downward))
	spared := pickFlow(t, l, "h7/eth1", "h1/eth1", func(fwd, rev []fabric.Direction) bool {
		return !slices.Contains(fwd, downward) && !slices.Contains(rev, upward)
	})
	start := time.Now()
	af := addFault(t, l, Fault{Kind: KindLinkDown, At: "spine1:dn1--leaf1:up1"})
	if r := measure(t, l, doomed, 50, time.Millisecond, 100*time.Millisecond); r.gotThere != 0 {
		t.Errorf("before the withdrawal %d of 50 came by the dead link", r.gotThere)
	}
	if r := measure(t, l, spared, 50, time.Millisecond, time.Second); r.gotBack != 50 {
		t.Errorf("%d of 50 came back over the other spine", r.gotBack)
	}
	if early := time.Since(start); early < WithdrawAfter {
		if f, err := l.ActiveFaults(); err != nil || f[0].Withdrawn && time.Since(start) < WithdrawAfter {
			t.Errorf("withdrawn %s after the fault, want %s: %v", time.Since(start), WithdrawAfter, err)
		}
	}
	if !waitGone(af.Helper, WithdrawAfter+10*time.Second) {
		t.Fatal("the withdrawal does not end")
	}
	if took := time.Since(start); took < WithdrawAfter {
		t.Errorf("withdrawn after %s, want at least %s", took, WithdrawAfter)
	}
	if r := measure(t, l, doomed, 200, time.Millisecond, time.Second); r.gotBack != 200 {
		t.Errorf("after the withdrawal %d of 200 came back", r.gotBack)
	}
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Namespaces {
		if want := map[string]int{"leaf1": 1, "spine1": 1}[n.Element]; n.LinksDown != want {
			t.Errorf("%s: %d links down, want %d", n.Element, n.LinksDown, want)
		}
	}
	clearFaults(t, l)
	if after := routing(t, l); after != before {
		t.Errorf("the routes are not what they were:\n%s", diff(before, after))
	}
	if r := measure(t, l, doomed, 50, time.Millisecond, time.Second); r.gotBack != 50 {
		t.Errorf("after clearing %d of 50 came back", r.gotBack)
	}

	// The fault is cleared before routing reacts.
	addFault(t, l, Fault{Kind: KindLinkDown, At: spineLink})
	clearFaults(t, l)
	if after := routing(t, l); after != before {
		t.Errorf("cleared at once, the routes are not what they were:\n%s", diff(before, after))
	}

	// Two at once, the first cleared first.
	one := addFault(t, l, Fault{Kind: KindLinkDown, At: spineLink})
	two := addFault(t, l, Fault{Kind: KindLinkDown, At: "leaf3:up2--spine2:dn3"})
	for _, f := range []ActiveFault{one, two} {
		if !waitGone(f.Helper, WithdrawAfter+10*time.Second) {
			t.Fatal("the withdrawal does not end")
		}
	}
	if err := l.ClearFault(t.Context(), one.ID); err != nil {
		t.Fatal(err)
	}
	if r := measure(t, l, doomed, 50, time.Millisecond, time.Second); r.gotBack != 50 {
		t.Errorf("with one of two links back %d of 50 came back", r.gotBack)
	}
	clearFaults(t, l)
	if after := routing(t, l); after != before {
		t.Errorf("after two faults the routes are not what they were:\n%s", diff(before, after))
	}
}

func TestLinkDownInThreeTiers(t *testing.T) {
	l := up(t, clos3File, "down3")
	before := routing(t, l)
	// p1s1 loses its way to p1l1: the cores must stop offering it, and so must the far pod's spines.
	d := fabric.Direction{From: "p1s1:dn1", To: "p1l1:up1"}
	doomed := pickFlow(t, l, "h8/eth1", "h1/eth1", oneWay(d))
	af := addFault(t, l, Fault{Kind: KindLinkDown, At: d.LinkID()})
	if !waitGone(af.Helper, WithdrawAfter+10*time.Second) {
		t.Fatal("the withdrawal does not end")
	}
	if r := measure(t, l, doomed, 100, time.Millisecond, time.Second); r.gotBack != 100 {
		t.Errorf("after the withdrawal %d of 100 came back", r.gotBack)
	}
	clearFaults(t, l)
	if after := routing(t, l); after != before {
		t.Errorf("the routes are not what they were:\n%s", diff(before, after))
	}
}

// diff lists the lines that one text has and the other has not.
func diff(a, b string) string {
	var out strings.Builder
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for _, l := range as {
		if !slices.Contains(bs, l) {
			fmt.Fprintln(&out, "-", l)
		}
	}
	for _, l := range bs {
		if !slices.Contains(as, l) {
			fmt.Fprintln(&out, "+", l)
		}
	}
	return out.String()
}

func TestHostStallStopsAndAlwaysContinues(t *testing.T) {
	l := up(t, demoFile, "stall")
	node := l.Command(t.Context(), "h2", "sh", "-c", "echo on; while :; do :; done")
	out, err := node.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	defer node.Wait()
	defer node.Process.Kill()
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		t.Fatal(err)
	}
	running := func() bool {
		st, err := procStat(node.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return st.state != "T"
	}
	until := func(want bool, what string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); running() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the process is not %s", what)
			}
		}
	}
	for _, how := range []string{"cleared", "helper terminated", "helper killed, then cleared"} {
		af := addFault(t, l, Fault{Kind: KindHostStall, At: "h2"})
		for range 2 {
			until(false, "stopped")
			until(true, "continued")
		}
		until(false, "stopped")
		switch how {
		case "helper terminated":
			if err := stopHelper(af.Helper, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			if !running() {
				t.Errorf("%s: the process stays stopped", how)
			}
		case "helper killed, then cleared":
			if err := af.Helper.sendSignal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			waitGone(af.Helper, 10*time.Second)
		}
		clearFaults(t, l)
		if !running() {
			t.Errorf("%s: the process stays stopped", how)
		}
	}
	addFault(t, l, Fault{Kind: KindHostStall, At: "h2"})
	until(false, "stopped")
	if err := Down(t.Context(), l.name); err != nil {
		t.Fatal(err)
	}
}

func TestClockFaultsBendOneNode(t *testing.T) {
	l := up(t, demoFile, "clock")
	want := func(node, text string) {
		t.Helper()
		b, err := os.ReadFile(l.BendFile(node))
		if text == "" && !errors.Is(err, os.ErrNotExist) || string(b) != text {
			t.Errorf("%s is bent by %q (%v), want %q", node, b, err, text)
		}
	}
	step := addFault(t, l, Fault{Kind: KindClockStep, At: "h2/eth1"})
	if step.Mechanism != "bend" || step.Step != DefaultStep || step.DriftPPM != 0 {
		t.Errorf("recorded as %+v", step)
	}
	want("h2", `{"step_ns":1000000,"drift_ppm":0}`)
	want("h1", "")
	drift := addFault(t, l, Fault{Kind: KindClockDrift, At: "h2/eth1", DriftPPM: -20})
	want("h2", `{"step_ns":1000000,"drift_ppm":-20}`)
	if _, err := l.AddFault(t.Context(), Fault{Kind: KindClockStep, At: "h2/eth1", Step: time.Second}); err == nil || !strings.Contains(err.Error(), step.ID) {
		t.Errorf("a second step of one clock: %v", err)
	}
	want("h2", `{"step_ns":1000000,"drift_ppm":-20}`)
	addFault(t, l, Fault{Kind: KindClockStep, At: "h1/eth1", Step: -time.Millisecond})
	want("h1", `{"step_ns":-1000000,"drift_ppm":0}`)
	if err := l.ClearFault(t.Context(), step.ID); err != nil {
		t.Fatal(err)
	}
	want("h2", `{"step_ns":0,"drift_ppm":-20}`)
	if err := l.ClearFault(t.Context(), drift.ID); err != nil {
		t.Fatal(err)
	}
	want("h2", "")
	clearFaults(t, l)
	want("h1", "")
}

func TestFaultsLeaveTheLoopbackAlone(t *testing.T) { onBothFamilies(t, "loop", useLoopback) }

func useLoopback(t *testing.T, l *Lab) {
	addFault(t, l, Fault{Kind: KindSwitchSlow, At: "leaf1", Delay: time.Second})
	addFault(t, l, Fault{Kind: KindBlackhole, At: "h1/eth1->leaf1:dn1"})
	addFault(t, l, Fault{Kind: KindNICSlow, At: "h2/eth1", Delay: time.Second})
	for _, element := range []string{"leaf1", "h1", "h2"} {
		pc, err := l.ListenPacket(t.Context(), element, "udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := pc.WriteTo([]byte("x"), pc.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		deadline(t, pc, 10*time.Second)
		if _, _, err := pc.ReadFrom(make([]byte, 8)); err != nil || time.Since(start) >= time.Second {
			t.Errorf("%s: the loopback took %s, %v", element, time.Since(start), err)
		}
		pc.Close()
	}
}

func TestIptablesErrorsAreNotSwallowed(t *testing.T) {
	needs(t, "iptables")
	l := up(t, demoFile, "ipt")
	r := rule{Element: "leaf1", Chain: "NOSUCH", Args: []string{"-j", "DROP"}}
	var exit *exec.ExitError
	if err := l.x.changeRule(t.Context(), r, true); !errors.As(err, &exit) || !strings.Contains(err.Error(), "leaf1") {
		t.Errorf("a rule in a chain that is not there: %v", err)
	}
	if err := l.x.changeRule(t.Context(), r, false); err != nil {
		t.Errorf("removing a rule that is not there: %v", err)
	}
}
