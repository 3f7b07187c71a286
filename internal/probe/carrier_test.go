package probe

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/srv6"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

// diamond is h1 - l1 - (s1 or s2) - l2 - h2 in network namespaces, by IPv6, whose switches have the locators 1 to 4. A carrier
// lists l1 = 1, s1 = 3 or s2 = 4, and l2 = 2.
func newDiamond(t testing.TB) *line {
	t.Helper()
	testneeds.Root(t, "network namespaces")
	if _, err := exec.LookPath("ip"); err != nil {
		testneeds.Missing(t, "ip (Debian package iproute2)")
	}
	l := &line{t: t, name: func(n string) string { return fmt.Sprintf("glprobetest6-%d-%s", os.Getpid(), n) }}
	for _, n := range []string{"h1", "l1", "s1", "s2", "l2", "h2"} {
		if err := unix.CreateNetns(l.name(n)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.RemoveNetns(l.name(n)); err != nil {
				t.Errorf("remove namespace: %v", err)
			}
		})
		l.run("ip", "-n", l.name(n), "link", "set", "lo", "up")
		// Linux answers to one address once a second at most, which is one trace of three switches in some seconds.
		for file, value := range map[string]string{"conf/all/forwarding": "1", "icmp/ratelimit": "0"} {
			if err := unix.InNetns(l.name(n), func() error {
				return os.WriteFile(filepath.Join("/proc/sys/net/ipv6", file), []byte(value), 0o644)
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, k := range [][2]string{{"h1", "l1"}, {"h2", "l2"}, {"l1", "s1"}, {"l1", "s2"}, {"l2", "s1"}, {"l2", "s2"}} {
		l.run("ip", "link", "add", k[1], "netns", l.name(k[0]), "type", "veth", "peer", "name", k[0], "netns", l.name(k[1]))
		for j := range k {
			l.run("ip", "-n", l.name(k[j]), "addr", "add", fmt.Sprintf("fd83:%d::%d/64", i+1, j+1), "dev", k[1-j], "nodad")
			l.run("ip", "-n", l.name(k[j]), "link", "set", k[1-j], "up")
		}
	}
	for ns, routes := range map[string][]string{
		"h1": {"default via fd83:1::2"}, "h2": {"default via fd83:2::2"},
		"s1": {"fd83:1::/64 via fd83:3::1", "fd83:2::/64 via fd83:5::1", "fcbb:bb00:1::/48 via fd83:3::1", "fcbb:bb00:2::/48 via fd83:5::1"},
		"s2": {"fd83:1::/64 via fd83:4::1", "fd83:2::/64 via fd83:6::1", "fcbb:bb00:1::/48 via fd83:4::1", "fcbb:bb00:2::/48 via fd83:6::1"},
		"l1": {"fd83:2::/64 via fd83:3::2", "fcbb:bb00:3::/48 via fd83:3::2", "fcbb:bb00:4::/48 via fd83:4::2"},
		"l2": {"fd83:1::/64 via fd83:5::2", "fcbb:bb00:3::/48 via fd83:5::2", "fcbb:bb00:4::/48 via fd83:6::2"},
	} {
		for _, r := range routes {
			l.run(append([]string{"ip", "-n", l.name(ns), "-6", "route", "add"}, strings.Fields(r)...)...)
		}
	}
	for ns, own := range map[string]string{"l1": "1", "l2": "2", "s1": "3", "s2": "4"} {
		add := []string{"ip", "-n", l.name(ns), "-6", "route", "add"}
		l.run(append(add, "unreachable", "fcbb:bb00::/32")...)
		device := "l1"
		if strings.HasPrefix(ns, "l") {
			device = "h" + ns[1:]
			l.run(append(add, strings.Fields("fcbb:bb00:"+own+":e000::/64 encap seg6local action End.DT6 table 254 dev "+device)...)...)
		}
		segment := append(add, strings.Fields("fcbb:bb00:"+own+"::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 dev "+device)...)
		if out, err := exec.Command(segment[0], segment[1:]...).CombinedOutput(); err != nil {
			testneeds.Missing(t, fmt.Sprintf("segments with NEXT-C-SID (iproute2 6.1, Linux 6.1): %v: %s", err, out))
		}
	}
	return l
}

// startChosen starts a node that sends its flow n by carriers[n], and replies in the same way.
func (l *line) startChosen(node, self, peer string, carriers ...string) *Engine {
	l.t.Helper()
	return l.startWith(node, self, peer, filePeer{flows: len(carriers), probe: node == "h1"}, func(c *Config) {
		for i := range c.Edges {
			c.Edges[i].Carrier = netip.MustParseAddr(carriers[c.Edges[i].Flow])
		}
		for i := range c.Answers {
			c.Answers[i].Carrier = netip.MustParseAddr(carriers[c.Answers[i].Flow])
		}
	})
}

// forwarded returns the number of UDP datagrams and tunnelled packets that a switch has forwarded, by the kernel's counters.
func (l *line) forwarded(ns string) (packets int) {
	l.t.Helper()
	if err := unix.InNetns(l.name(ns), func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp6")
		for _, line := range strings.Split(string(text), "\n") {
			if f := strings.Fields(line); len(f) == 2 && f[0] == "Ip6OutForwDatagrams" {
				_, err = fmt.Sscan(f[1], &packets)
			}
		}
		return err
	}); err != nil {
		l.t.Fatal(err)
	}
	return packets
}

func TestChosenPaths(t *testing.T) {
	l := newDiamond(t)
	const bySpine1, bySpine2 = "fcbb:bb00:1:3:2:e000::", "fcbb:bb00:1:4:2:e000::"
	const back1, back2 = "fcbb:bb00:2:3:1:e000::", "fcbb:bb00:2:4:1:e000::"
	// All probes and replies of flow 0 take s1, those of flow 1 take s2.
	b := l.startChosen("h2", "fd83:2::1", "fd83:1::1", back1, back2)
	a := l.startChosen("h1", "fd83:1::1", "fd83:2::1", bySpine1, bySpine2)
	edge := func(flow int) EdgeStats {
		for _, e := range a.Snapshot().NICs[0].Edges {
			if e.Edge.Number == flow {
				return e
			}
		}
		t.Fatalf("no flow %d", flow)
		return EdgeStats{}
	}
	answered := func(flow int, more uint64) {
		from := edge(flow).Acked
		until(t, 30*time.Second, fmt.Sprintf("%d more answers of flow %d", more, flow), func() bool { return edge(flow).Acked >= from+more })
	}
	answered(0, 50)
	answered(1, 50)
	for flow := range 2 {
		e := edge(flow)
		if delays := e.OWD[0].Kernel.Count; delays < 40 {
			t.Errorf("flow %d: %d delays by the kernel's stamps of %d answers; missing %v", flow, delays, e.Acked, e.Missing)
		}
	}
	flowOf := func(n int, reply bool) fabric.Flow {
		return fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1", Number: n, Reply: reply}
	}
	chosen := func(n int) TracedPath {
		_, paths := a.TracedPaths()
		for _, p := range paths {
			if p.Edge == flowOf(n, false) {
				return p
			}
		}
		return TracedPath{}
	}
	for n, want := range []string{bySpine1, bySpine2} {
		until(t, 10*time.Second, "the chosen paths", func() bool { return chosen(n).Carrier == netip.MustParseAddr(want) })
		if p := chosen(n); p.State != fabric.PathValid || p.Refused != nil {
			t.Errorf("flow %d: %+v", n, p)
		}
	}
	// Traces take the chosen path, to the switch that takes the outer header off.
	isTraced := func(e *Engine, f fabric.Flow, want string) {
		t.Helper()
		var last TracedPath
		until(t, 20*time.Second, fmt.Sprintf("%s over %s", f, want), func() bool {
			paths, err := e.TraceFlows(t.Context(), []fabric.Flow{f})
			if err != nil || len(paths) != 1 {
				t.Fatalf("%s: %v, %v", f, paths, err)
			}
			if last = paths[0]; hops(last) != want {
				t.Logf("%s: %s, %+v", f, hops(last), last)
			}
			return hops(last) == want
		})
		if last.State != fabric.PathValid || !last.Carrier.IsValid() || last.Balanced {
			t.Errorf("%s: %+v", f, last)
		}
	}
	untraced := edge(0)
	isTraced(a, flowOf(0, false), "fd83:1::2 fd83:3::2 fd83:5::1")
	isTraced(a, flowOf(1, false), "fd83:1::2 fd83:4::2 fd83:6::1")
	isTraced(b, flowOf(0, true), "fd83:2::2 fd83:5::2 fd83:3::1")
	isTraced(b, flowOf(1, true), "fd83:2::2 fd83:6::2 fd83:4::1")
	if e := edge(0); e.Duplicate != untraced.Duplicate || e.Lost != untraced.Lost {
		t.Errorf("traces changed the counts of probes: %d duplicates and lost %v, and %d and %v before", e.Duplicate, e.Lost, untraced.Duplicate, untraced.Lost)
	}
	// A switch that sends packets elsewhere than the identifier says shows in a trace.
	l.run("ip", "-n", l.name("s2"), "-6", "route", "add", "fcbb:bb00:3::/48", "encap", "seg6local", "action", "End", "flavors", "next-csid", "lblen", "32", "nflen", "16", "dev", "l1")
	l.run("ip", "-n", l.name("l1"), "-6", "route", "replace", "fcbb:bb00:3::/48", "via", "fd83:4::2")
	isTraced(a, flowOf(0, false), "fd83:1::2 fd83:4::2 fd83:6::1")
	l.run("ip", "-n", l.name("l1"), "-6", "route", "replace", "fcbb:bb00:3::/48", "via", "fd83:3::2")
	isTraced(a, flowOf(0, false), "fd83:1::2 fd83:3::2 fd83:5::1")
	l.run("ip", "-n", l.name("s2"), "-6", "route", "del", "fcbb:bb00:3::/48")
	answered(0, 20)
	// A test of the path's MTU takes it as well: the outer header counts.
	for octets, want := range map[int]fabric.PathMTUState{1460: fabric.PathMTUPasses, 1461: fabric.PathMTUDrops} {
		found, err := a.ProbePathMTU(t.Context(), []fabric.Flow{flowOf(0, false)}, octets)
		if err != nil || len(found) != 1 || found[0].State != want {
			t.Errorf("packets of %d octets: %+v, %v", octets, found, err)
		}
	}
	// Where s2 is unreachable, flow 0 goes on, and nothing of it passes s2.
	l.run("ip", "-n", l.name("l1"), "-6", "route", "replace", "blackhole", "fcbb:bb00:4::/48")
	answered(0, 30)
	before, of1 := l.forwarded("s2"), edge(1).Acked
	answered(0, 50)
	if now := l.forwarded("s2"); now != before || edge(1).Acked > of1+5 {
		t.Errorf("s2 forwarded %d packets that cannot reach it, and flow 1 had %d answers", now-before, edge(1).Acked-of1)
	}
	// There is a route all the while, so that nothing is refused.
	l.run("ip", "-n", l.name("l1"), "-6", "route", "replace", "fcbb:bb00:4::/48", "via", "fd83:4::2")
	answered(1, 30)

	// s1 does not know l2 any more.
	was := edge(0)
	l.run("ip", "-n", l.name("s1"), "-6", "route", "del", "fcbb:bb00:2::/48")
	until(t, 20*time.Second, "the refusal", func() bool { return chosen(0).Refused != nil })
	unheard := edge(0).Sent - was.Sent // what was sent before the first answer was heard may be lost
	until(t, 20*time.Second, "refused probes", func() bool { return edge(0).Refused >= was.Refused+50 })
	if r := chosen(0).Refused; r.SID != 2 || r.From != netip.MustParseAddr("fd83:3::2") {
		t.Errorf("refused %+v, want identifier 2 by s1", r)
	}
	if r := chosen(1).Refused; r != nil {
		t.Errorf("flow 1 is refused as well: %+v", r)
	}
	if counts := a.Snapshot().NICs[0].Refusals; len(counts) != 1 || counts[0].SID != 2 || counts[0].Answers == 0 {
		t.Errorf("refusals %+v", counts)
	}
	l.run("ip", "-n", l.name("s1"), "-6", "route", "add", "fcbb:bb00:2::/48", "via", "fd83:5::1")
	until(t, 20*time.Second, "the end of the refusal", func() bool { return chosen(0).Refused == nil })
	answered(0, 50)
	if e := edge(0); e.Lost[0] > was.Lost[0]+unheard {
		t.Errorf("%d refused probes count as lost, of which %d were sent before the first answer, and %d as refused", e.Lost[0]-was.Lost[0], unheard, e.Refused-was.Refused)
	}
}

// idlePair returns two NICs at the ends of a diamond, of which the first probes the other, and that only the test drives. Their
// packets take s1, by carriers if carried is true.
func (l *line) idlePair(carried bool, keys ...Key) (a, b idle) {
	l.t.Helper()
	ca, cb := loopConfig("h1", 1, 2, "h2/eth1", 1), loopConfig("h2", 2, 1, "h1/eth1", 1)
	cb.Edges = nil
	h1, h2 := netip.MustParseAddr("fd83:1::1"), netip.MustParseAddr("fd83:2::1")
	ca.NICs[0].Address, ca.Peers[0].Address, cb.NICs[0].Address, cb.Peers[0].Address = h1, h2, h2, h1
	if carried {
		ca.Edges[0].Carrier = netip.MustParseAddr("fcbb:bb00:1:3:2:e000::")
		cb.Answers[0].Carrier = netip.MustParseAddr("fcbb:bb00:2:3:1:e000::")
	}
	authenticate(ca, keys...)
	authenticate(cb, keys...)
	for ns, start := range map[string]func(){
		"h1": func() { a = newIdle(l.t, ca, HostDeps()) },
		"h2": func() { b = newIdle(l.t, cb, HostDeps()) },
	} {
		if err := unix.InNetns(l.name(ns), func() error { start(); return nil }); err != nil {
			l.t.Fatal(err)
		}
	}
	return a, b
}

// The turns of two NICs whose packets take chosen paths allocate nothing, as those of TestTurnAllocatesNothing.
func TestCarriedTurnAllocatesNothing(t *testing.T) {
	l := newDiamond(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			l.t = t
			a, b := l.idlePair(true, mode.keys...)
			step := func() {
				for _, n := range []idle{a, b, a, b} {
					n.step(t)
				}
			}
			until(t, 10*time.Second, "100 answers", func() bool { a.dueNow(); step(); return a.sender.edges[0].Acked >= 100 })
			before, forwarded := a.sender.edges[0].Acked, l.forwarded("s1")
			if n := testing.AllocsPerRun(100, func() {
				a.dueNow()
				step()
			}); n != 0 {
				t.Errorf("%v allocations per probe, reply and stamps, want 0", n)
			}
			if got := a.sender.edges[0].Acked - before; got < 90 {
				t.Errorf("%d answers in 101 rounds", got)
			}
			if got := l.forwarded("s1") - forwarded; got < 180 || a.ports.udp.outer == nil || b.ports.udp.outer == nil {
				t.Errorf("%d packets by the chosen switch in 101 rounds", got)
			}
		})
	}
}

// BenchmarkCarriedExchange measures the exchange of BenchmarkExchange over two leaves and a spine in network namespaces: by the path
// that switches choose, and by a carrier for the same path.
func BenchmarkCarriedExchange(b *testing.B) {
	l := newDiamond(b)
	for _, mode := range modes {
		for _, carried := range []bool{false, true} {
			name := mode.name + ", switches choose"
			if carried {
				name = mode.name + ", by carriers"
			}
			b.Run(name, func(b *testing.B) {
				l.t = b
				x, y := l.idlePair(carried, mode.keys...)
				measureExchange(b, x, y)
			})
		}
	}
	l.t = b
}

// The account of losses of a refused flow goes on with the first reply after the refusal began, however long replies take to be read: what was
// refused is never compared.
func TestRefusedProbesAreNotCompared(t *testing.T) {
	carrier := netip.MustParseAddr("fcbb:bb00:1:3:2:e000::")
	e := &edge{cfg: EdgeConfig{Carrier: carrier}}
	sd := &sender{edges: []*edge{e}, refusals: &refusals{}}
	sd.refusals.hear(carrier, netip.MustParseAddr("fcbb:bb00:2:e000::"), netip.MustParseAddr("fd00::3"), 0)
	for at := range int64(10) {
		e.seq = 100 + uint32(at)*10
		sd.settleRefusals(at * int64(settleEvery))
	}
	if l := &e.losses; !l.interrupted || l.resumesAt != 100 {
		t.Errorf("interrupted %v, and goes on with %d, want 100", l.interrupted, l.resumesAt)
	}
	e.losses.interrupted = false // a reply came
	if e.seq = 250; sd.anyRefused {
		sd.settleRefusals(int64(time.Second))
	}
	if l := &e.losses; !l.interrupted || l.resumesAt != 250 {
		t.Errorf("after a reply: interrupted %v, and goes on with %d, want 250", l.interrupted, l.resumesAt)
	}
}

func TestRefusals(t *testing.T) {
	at := netip.MustParseAddr
	full, from := at("fcbb:bb00:1:3:2:e000::"), at("fd00::3")
	second := int64(time.Second)
	var r refusals
	for _, rest := range []string{"fcbb:bb00:9:e000::", "fcbb:bb00:1:3:2:e000:1::", "fcbb:bb01:2:e000::", "fcbb:bb00::", "10.0.0.1"} {
		if r.hear(full, at(rest), from, 0) || r.of(full, 0) != nil {
			t.Errorf("%s is no part of %v, and was heard", rest, full)
		}
	}
	if r.hear(netip.Addr{}, at("fcbb:bb00:2:e000::"), from, 0) {
		t.Error("a refusal of a flow without a carrier was heard")
	}
	if !r.hear(full, at("fcbb:bb00:2:e000::"), from, second) || !r.hear(full, at("fcbb:bb00:2:e000::"), from, 2*second) {
		t.Fatal("a refusal was not heard")
	}
	for _, test := range []struct {
		carrier string
		at      int64
		want    bool
	}{
		{"fcbb:bb00:1:3:2:e000::", 2 * second, true},
		{"fcbb:bb00:1:3:2:4:2:e000", 4 * second, true}, // it goes on elsewhere, but would have to pass there as well
		{"fcbb:bb00:1:4:2:e000::", 2 * second, false},  // it reaches the same switch from another
		{"fcbb:bb00:1:3:1:e000::", 2 * second, false},
		{"fcbb:bb00:1:3:2:e000::", 6 * second, false}, // long ago
	} {
		if got := r.of(at(test.carrier), test.at); (got != nil) != test.want {
			t.Errorf("%s at %ds: %+v, want %v", test.carrier, test.at/second, got, test.want)
		}
	}
	if len(r.counts) != 1 || r.counts[0] != (RefusalCount{From: from, SID: 2, Answers: 2}) {
		t.Errorf("counts %+v", r.counts)
	}
	for i := range 3 * maxRefusals {
		c, err := srv6.EncodeCarrier(srv6.BlockOf(full), 1, srv6.SID(100+i), srv6.Decapsulate)
		if err != nil {
			t.Fatal(err)
		}
		rest, _ := srv6.Shift(c)
		r.hear(c, rest, from, 3*second)
	}
	if len(r.now) > maxRefusals || len(r.counts) > maxRefusals {
		t.Errorf("%d refusals and %d counts are kept", len(r.now), len(r.counts))
	}
}
