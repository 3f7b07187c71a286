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
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

// line is h1 - r1 - r2 - h2 in network namespaces of their own.
type line struct {
	t    testing.TB
	name func(string) string
}

func newLine(t *testing.T) *line {
	t.Helper()
	testneeds.Root(t, "network namespaces")
	for _, tool := range []string{"ip", "iptables"} {
		if _, err := exec.LookPath(tool); err != nil {
			testneeds.Missing(t, tool+" (Debian packages iproute2 and iptables)")
		}
	}
	l := &line{t: t, name: func(n string) string { return fmt.Sprintf("glprobetest-%d-%s", os.Getpid(), n) }}
	for _, n := range []string{"h1", "r1", "r2", "h2"} {
		if err := unix.CreateNetns(l.name(n)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.RemoveNetns(l.name(n)); err != nil {
				t.Errorf("remove namespace: %v", err)
			}
		})
		l.run("ip", "-n", l.name(n), "link", "set", "lo", "up")
		for k, v := range map[string]string{"ip_forward": "1", "icmp_ratelimit": "0", "icmp_errors_use_inbound_ifaddr": "1", "conf/all/rp_filter": "0"} {
			if err := unix.InNetns(l.name(n), func() error {
				return os.WriteFile(filepath.Join("/proc/sys/net/ipv4", k), []byte(v), 0o644)
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, k := range [][6]string{
		{"h1", "eth1", "10.83.1.2/24", "r1", "dn1", "10.83.1.1/24"},
		{"r1", "up1", "10.83.9.1/24", "r2", "up1", "10.83.9.2/24"},
		{"h2", "eth1", "10.83.2.2/24", "r2", "dn1", "10.83.2.1/24"},
	} {
		l.run("ip", "link", "add", k[1], "netns", l.name(k[0]), "type", "veth", "peer", "name", k[4], "netns", l.name(k[3]))
		for i := 0; i < 6; i += 3 {
			l.run("ip", "-n", l.name(k[i]), "addr", "add", k[i+2], "dev", k[i+1])
			l.run("ip", "-n", l.name(k[i]), "link", "set", k[i+1], "up")
		}
	}
	for n, via := range map[string]string{"h1": "10.83.1.1", "r1": "10.83.9.2", "r2": "10.83.9.1", "h2": "10.83.2.1"} {
		l.run("ip", "-n", l.name(n), "route", "add", "default", "via", via)
	}
	return l
}

func (l *line) run(argv ...string) {
	l.t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
}

func (l *line) iptables(ns string, args ...string) {
	l.t.Helper()
	l.run(append([]string{"ip", "netns", "exec", l.name(ns), "iptables", "-w"}, args...)...)
}

func (l *line) start(node, self, peer string) *Engine {
	l.t.Helper()
	return l.startWith(node, self, peer, filePeer{flows: 1, probe: true}, func(*Config) {})
}

// startWith starts a node with a peer at an address, whose flows are those of p, after a change of its configuration.
func (l *line) startWith(node, self, peer string, p filePeer, change func(*Config)) *Engine {
	l.t.Helper()
	c := defaultConfig()
	c.Node = node
	c.NICs = []NICConfig{{NIC: node + "/eth1", Address: netip.MustParseAddr(self)}}
	other := map[string]string{"h1": "h2/eth1", "h2": "h1/eth1"}[node]
	p.PeerConfig, p.tier = PeerConfig{NIC: other, Address: netip.MustParseAddr(peer)}, 2
	c.connectPeers([]filePeer{p})
	change(&c)
	var e *Engine
	if err := unix.InNetns(l.name(node), func() (err error) {
		e, err = startHere(&c)
		return err
	}); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := e.Close(); err != nil {
			l.t.Errorf("close: %v", err)
		}
	})
	return e
}

func hops(p TracedPath) string {
	s := make([]string, len(p.Hops))
	for i, h := range p.Hops {
		s[i] = "*"
		if h.Address.IsValid() {
			s[i] = h.Address.String()
		}
	}
	return strings.Join(s, " ")
}

// forgetAll resets a tracer to one that has traced nothing yet.
func (t *tracer) forgetAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.budgets.mu.Lock()
	defer t.budgets.mu.Unlock()
	clear(t.budgets.known)
	clear(t.budgets.positions)
	clear(t.budgets.lastBefore)
	clear(t.first)
	clear(t.lengths)
	clear(t.paths)
}

// measuredLine is a line whose ends probe each other.
type measuredLine struct {
	l     *line
	a, b  *Engine
	early uint64 // probes of a that left before b was up, which stay unresolved
}

func (m *measuredLine) edge() EdgeStats { return m.a.Snapshot().NICs[0].Edges[0] }

// answerMore waits for n more answers.
func (m *measuredLine) answerMore(n uint64) {
	m.l.t.Helper()
	from := m.edge().Acked
	until(m.l.t, 30*time.Second, fmt.Sprintf("%d more answers", n), func() bool { return m.edge().Acked >= from+n })
}

// tracedReply is the path of the replies of traced.
var tracedReply = fabric.Flow{Src: traced.Src, Dst: traced.Dst, Number: traced.Number, Reply: true}

func TestBetweenNamespaces(t *testing.T) {
	l := newLine(t)
	m := &measuredLine{l: l, a: l.start("h1", "10.83.1.2", "10.83.2.2"), b: l.start("h2", "10.83.2.2", "10.83.1.2")}
	m.answerMore(50)
	m.early = m.edge().Unresolved
	t.Cleanup(func() { l.t = t }) // before what newLine registered
	for _, sub := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"every flow is traced as soon as it has answers", m.tracesEveryFlow},
		{"tracing leaves the accounts alone", m.keepsAccounts},
		{"a switch that answered before is limited, not silent", m.limitsKnownSwitch},
		{"a silent hop keeps its place", m.keepsSilentHop},
		{"per-packet balancing is reported", m.reportsBalancing},
		{"loss forward and a stale path", m.losesForward},
		{"loss in reverse", m.losesReverse},
		{"CE marks", m.countsMarks},
		{"interface down", m.survivesInterfaceDown},
	} {
		t.Run(sub.name, func(t *testing.T) {
			l.t = t
			sub.run(t)
		})
	}
}

// tracesEveryFlow checks that every flow is traced as soon as it has answers.
func (m *measuredLine) tracesEveryFlow(t *testing.T) {
	until(t, 20*time.Second, "two paths each", func() bool {
		_, pa := m.a.TracedPaths()
		_, pb := m.b.TracedPaths()
		return len(pa) == 2 && len(pb) == 2
	})
	_, paths := m.a.TracedPaths()
	for i, want := range []struct {
		edge, hops string
		reached    bool
	}{
		{"h1/eth1>h2/eth1#0", "10.83.1.1 10.83.9.2", true},
		{"h2/eth1>h1/eth1#0/r", "10.83.1.1 10.83.9.2", false},
	} {
		p := paths[i]
		if p.Edge.String() != want.edge || hops(p) != want.hops || p.Reached != want.reached || p.State != fabric.PathValid {
			t.Errorf("path %+v, want %+v valid", p, want)
		}
	}
	_, paths = m.b.TracedPaths()
	if p := paths[0]; p.Edge != tracedReply || hops(p) != "10.83.2.1 10.83.9.1" {
		t.Errorf("replies' path %+v", p)
	}
}

// keepsAccounts checks that tracing leaves the accounts alone.
func (m *measuredLine) keepsAccounts(t *testing.T) {
	for range 5 {
		if _, err := m.a.TraceFlows(t.Context(), []fabric.Flow{traced}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.b.TraceFlows(t.Context(), []fabric.Flow{tracedReply}); err != nil {
			t.Fatal(err)
		}
	}
	m.answerMore(50)
	until(t, 20*time.Second, "all probes answered", func() bool { return m.edge().Unresolved <= m.early+5 })
	if e := m.edge(); e.Lost != [2]uint64{} || e.Duplicate != 0 {
		t.Errorf("lost %v, duplicate %d", e.Lost, e.Duplicate)
	}
}

// limitsKnownSwitch checks that a switch that answered before is limited, not silent.
func (m *measuredLine) limitsKnownSwitch(t *testing.T) {
	m.l.iptables("r1", "-A", "OUTPUT", "-p", "icmp", "-j", "DROP")
	defer m.l.iptables("r1", "-F", "OUTPUT")
	paths, err := m.a.TraceFlows(t.Context(), []fabric.Flow{traced})
	if err != nil {
		t.Fatal(err)
	}
	if p := paths[0]; hops(p) != "10.83.1.1 10.83.9.2" || !p.Reached || p.State != fabric.PathValid || !strings.Contains(strings.Join(p.Notes, "\n"), "hop 1: rate limited") {
		t.Errorf("path %+v, want the old one and a note", p)
	}
}

// keepsSilentHop checks that a silent hop keeps its place.
func (m *measuredLine) keepsSilentHop(t *testing.T) {
	m.l.iptables("r1", "-A", "OUTPUT", "-p", "icmp", "-j", "DROP")
	defer m.l.iptables("r1", "-F", "OUTPUT")
	m.a.tracer.forgetAll()
	defer m.a.tracer.forgetAll()
	paths, err := m.a.TraceFlows(t.Context(), []fabric.Flow{traced})
	if err != nil {
		t.Fatal(err)
	}
	if p := paths[0]; hops(p) != "* 10.83.9.2" || !p.Reached || p.State != fabric.PathValid {
		t.Errorf("path %+v", p)
	}
}

// reportsBalancing checks that per-packet balancing is reported.
func (m *measuredLine) reportsBalancing(t *testing.T) {
	// Every other packet of hop limit 2 ends at r1 already.
	m.l.iptables("r1", "-t", "mangle", "-A", "PREROUTING", "-i", "dn1", "-m", "ttl", "--ttl-eq", "2", "-m", "statistic", "--mode", "nth", "--every", "2", "--packet", "0", "-j", "TTL", "--ttl-set", "1")
	defer m.l.iptables("r1", "-t", "mangle", "-F")
	paths, err := m.a.TraceFlows(t.Context(), []fabric.Flow{traced})
	if err != nil {
		t.Fatal(err)
	}
	if p := paths[0]; p.State == fabric.PathValid || !p.Balanced || !strings.Contains(strings.Join(p.Notes, "\n"), "per-packet balancing") {
		t.Errorf("path %+v", p)
	}
}

// losesForward checks loss in the forward direction, and that the path becomes stale.
func (m *measuredLine) losesForward(t *testing.T) {
	if _, err := m.a.TraceFlows(t.Context(), []fabric.Flow{traced}); err != nil {
		t.Fatal(err)
	}
	received := func() uint64 { return m.b.Snapshot().NICs[0].Received[0].Received }
	m.l.iptables("r2", "-A", "FORWARD", "-i", "up1", "-j", "DROP")
	paths, err := m.a.TraceFlows(t.Context(), []fabric.Flow{traced})
	if err != nil {
		t.Fatal(err)
	}
	if p := paths[0]; p.State != fabric.PathStale || hops(p) != "10.83.1.1 10.83.9.2" || len(p.Notes) == 0 {
		t.Errorf("path %+v, want the old one, stale", p)
	}
	before, sent := received(), m.edge().Sent
	until(t, 20*time.Second, "60 probes", func() bool { return m.edge().Sent >= sent+60 })
	if got := received(); got != before {
		t.Errorf("%d probes received through the drop", got-before)
	}
	m.l.iptables("r2", "-F", "FORWARD")
	m.answerMore(30)
	until(t, 20*time.Second, "the loss settled", func() bool { e := m.edge(); return e.Lost[0] >= 50 && e.Unresolved < m.early+5 })
	if e := m.edge(); e.Lost[1] != 0 {
		t.Errorf("%d lost in reverse, want none", e.Lost[1])
	}
}

// losesReverse checks loss in the reverse direction.
func (m *measuredLine) losesReverse(t *testing.T) {
	m.l.iptables("r2", "-A", "FORWARD", "-i", "dn1", "-j", "DROP")
	was := m.edge()
	// Some more than are checked below, because the last replies are still to come.
	until(t, 20*time.Second, "60 probes", func() bool { return m.edge().Sent >= was.Sent+60 })
	m.l.iptables("r2", "-F", "FORWARD")
	m.answerMore(30)
	until(t, 20*time.Second, "the loss settled", func() bool { return m.edge().Lost[1] >= was.Lost[1]+50 })
	if e := m.edge(); e.Lost[0] != was.Lost[0] {
		t.Errorf("%d lost forward, want none", e.Lost[0]-was.Lost[0])
	}
}

// countsMarks checks that CE marks are counted in their direction.
func (m *measuredLine) countsMarks(t *testing.T) {
	m.l.iptables("r2", "-t", "mangle", "-A", "FORWARD", "-i", "up1", "-p", "udp", "-j", "TOS", "--set-tos", "3/3")
	until(t, 20*time.Second, "20 marks", func() bool { return m.edge().ECN[0] >= 20 })
	m.l.iptables("r2", "-t", "mangle", "-F")
	if e := m.edge(); e.ECN[1] != 0 {
		t.Errorf("%d replies marked, want none", e.ECN[1])
	}
}

// survivesInterfaceDown checks that an interface that is down is a send error and no loss.
func (m *measuredLine) survivesInterfaceDown(t *testing.T) {
	m.l.run("ip", "-n", m.l.name("h1"), "link", "set", "eth1", "down")
	until(t, 20*time.Second, "send errors", func() bool { return len(m.a.Snapshot().NICs[0].SendErrors) > 0 })
	was := m.edge()
	m.l.run("ip", "-n", m.l.name("h1"), "link", "set", "eth1", "up")
	m.l.run("ip", "-n", m.l.name("h1"), "route", "replace", "default", "via", "10.83.1.1")
	m.answerMore(30)
	if e := m.edge(); e.Lost[0] > was.Lost[0]+30 || m.a.Err() != nil {
		t.Errorf("lost %v after %v; %v", e.Lost, was.Lost, m.a.Err())
	}
}
