package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

// edgeOf returns the state of an edge, or a zero value if the engine does not have the edge.
func edgeOf(e *Engine, id string) (out EdgeStats) {
	for _, n := range e.Snapshot().NICs {
		for _, s := range n.Edges {
			if s.Edge.String() == id {
				out = s
			}
		}
	}
	return out
}

func apply(t *testing.T, e *Engine, c *Config) {
	t.Helper()
	if err := e.Apply(c); err != nil {
		t.Fatal(err)
	}
}

// answered waits for n more answers on an edge.
func answered(t *testing.T, e *Engine, id string, n uint64) {
	t.Helper()
	was := edgeOf(e, id).Acked
	until(t, 20*time.Second, fmt.Sprintf("%d more answers on %s", n, id), func() bool { return edgeOf(e, id).Acked >= was+n })
}

// An edge that both configurations have keeps its counts and loses no probe,
// whatever else changes.
func TestApplyDisturbsNothingThatStays(t *testing.T) {
	const kept, added = "h1/eth1>h2/eth1#0", "h1/eth1>h3/eth1#0"
	a := start(t, loopConfig("h1", 1, 2, "h2/eth1", 1))
	b := start(t, loopConfig("h2", 2, 1, "h1/eth1", 1))
	answered(t, a, kept, 50)
	lost := edgeOf(a, kept).Unresolved // sent before h2 was there
	more := loopConfig("h1", 1, 2, "h2/eth1", 1)
	more.reconnect(filePeer{PeerConfig: more.Peers[0], flows: 3, tier: 2, probe: true},
		filePeer{PeerConfig: PeerConfig{NIC: "h3/eth1", Address: loopback(3)}, flows: 1, probe: true})
	c := start(t, loopConfig("h3", 3, 1, "h1/eth1", 1))
	was := edgeOf(a, kept)
	for range 5 {
		apply(t, a, more)
		answered(t, a, added, 20)
		answered(t, a, "h1/eth1>h2/eth1#2", 20)
		apply(t, a, loopConfig("h1", 1, 2, "h2/eth1", 1))
		answered(t, a, kept, 20)
		if got := edgeOf(a, added); got.Sent != 0 {
			t.Fatalf("%s is still probed", added)
		}
	}
	until(t, 20*time.Second, "all but the last probes answered", func() bool { return edgeOf(a, kept).Unresolved <= lost+5 })
	e := edgeOf(a, kept)
	if e.Sent < was.Sent+100 || e.Lost != [2]uint64{} || e.Duplicate != 0 || e.Restarts != 0 {
		t.Errorf("sent %d after %d, lost %v, %d duplicates, %d restarts, %d unresolved after %d", e.Sent, was.Sent, e.Lost, e.Duplicate, e.Restarts, e.Unresolved, lost)
	}
	// A slow machine may skip one now and then; beginning anew would skip many.
	if n := a.Snapshot().NICs[0]; n.Skipped > e.Sent/10 || len(n.Sockets) != 2 {
		t.Errorf("%d probes skipped of %d, sockets %v; want none, and one sender and the reflector", n.Skipped, e.Sent, n.Sockets)
	}
	// h3 was removed, so it is a stranger to h1 now.
	until(t, 20*time.Second, "h3 refused", func() bool { return a.Snapshot().NICs[0].Dropped["unregistered"] > 0 })
	_, _ = b, c
}

func TestApplyChangesCadenceAndNICs(t *testing.T) {
	const id = "h1/eth1>h2/eth1#0"
	a := start(t, loopConfig("h1", 1, 2, "h2/eth1", 1))
	start(t, loopConfig("h2", 2, 1, "h1/eth1", 1))
	answered(t, a, id, 30)
	slow := loopConfig("h1", 1, 2, "h2/eth1", 1)
	slow.Edges[0].Cadence = 50 * time.Millisecond
	apply(t, a, slow)
	answered(t, a, id, 5)
	two := loopConfig("h1", 1, 2, "h2/eth1", 1)
	two.NICs = append(two.NICs, NICConfig{NIC: "h1/eth2", Address: loopback(3)})
	two.reconnect(filePeer{PeerConfig: two.Peers[0], flows: 1, probe: true})
	apply(t, a, two)
	answered(t, a, id, 30)
	if got := a.Snapshot().NICs; len(got) != 2 {
		t.Errorf("%d NICs, want 2", len(got))
	}
	if e := edgeOf(a, id); e.Lost != [2]uint64{} {
		t.Errorf("lost %v", e.Lost)
	}
	// A NIC whose address this host does not have is reported, and the others continue.
	bad := loopConfig("h1", 1, 2, "h2/eth1", 1)
	bad.NICs = append(bad.NICs, NICConfig{NIC: "h1/eth3", Address: netip.MustParseAddr("192.0.2.1")})
	if err := a.Apply(bad); !errors.Is(err, unix.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "h1/eth3") {
		t.Errorf("error %v, want that 192.0.2.1 is not here", err)
	}
	answered(t, a, id, 30)
	bad.Edges[0].Flow = 64
	if err := a.Apply(bad); err == nil || !strings.Contains(err.Error(), "want a flow number from 0 to 63") {
		t.Errorf("a flow of a class there is not: %v", err)
	}
}

// TestKeysRollWithoutAGap checks that a new key is accepted before it is sent, and an old one for as long as a node
// sends it. No probe is missed and none refused.
func TestKeysRollWithoutAGap(t *testing.T) {
	conf := func(node string, self, peer int, other string, keys ...Key) *Config {
		c := loopConfig(node, self, peer, other, 1)
		authenticate(c, keys...)
		return c
	}
	one := func(keys ...Key) *Config { return conf("h1", 1, 2, "h2/eth1", keys...) }
	two := func(keys ...Key) *Config { return conf("h2", 2, 1, "h1/eth1", keys...) }
	b := start(t, two(key(1)))
	a := start(t, one(key(1)))
	const ab, ba = "h1/eth1>h2/eth1#0", "h2/eth1>h1/eth1#0"
	both := func(n uint64) {
		t.Helper()
		answered(t, a, ab, n)
		answered(t, b, ba, n)
	}
	both(30)
	early := edgeOf(b, ba).Unresolved // sent before h1 was there
	for range 3 {
		for _, step := range []struct{ a, b *Config }{
			{one(key(1), key(2)), two(key(1), key(2))}, // handed out
			{one(key(2), key(1)), two(key(2), key(1))}, // sent
			{one(key(2)), two(key(2))},                 // the old one is gone
			{one(key(2), key(1)), two(key(2), key(1))},
			{one(key(1), key(2)), two(key(1), key(2))},
			{one(key(1)), two(key(1))},
		} {
			apply(t, a, step.a)
			both(5) // the two do not change at once
			apply(t, b, step.b)
			both(5)
		}
	}
	for _, e := range []struct {
		e     *Engine
		id    string
		early uint64
	}{{a, ab, 0}, {b, ba, early}} {
		until(t, 20*time.Second, "all but the last probes answered", func() bool { return edgeOf(e.e, e.id).Unresolved <= e.early+2 })
		s, n := edgeOf(e.e, e.id), e.e.Snapshot().NICs[0]
		if s.Lost != [2]uint64{} || n.Skipped > s.Sent/10 || n.Dropped["bad_hmac"] != 0 || n.Dropped["replay"] != 0 {
			t.Errorf("%s: lost %v, %d skipped, %d unresolved, dropped %v", e.id, s.Lost, n.Skipped, s.Unresolved, n.Dropped)
		}
		if k := s.OWD[0].Kernel.Count; k+10 < s.Acked {
			t.Errorf("%s: %d forward delays of %d answers", e.id, k, s.Acked)
		}
	}
	// A key that the other end does not have is refused and counted, not answered.
	apply(t, a, one(key(3)))
	until(t, 20*time.Second, "refused packets at both ends", func() bool {
		return b.Snapshot().NICs[0].Dropped["bad_hmac"] > 0 && a.Snapshot().NICs[0].Dropped["bad_hmac"] > 0
	})
	apply(t, a, one())
	until(t, 20*time.Second, "plain packets refused by h2", func() bool { return b.Snapshot().NICs[0].Dropped["malformed"] > 0 })
}

func TestClassesHaveTheirOwnFlows(t *testing.T) {
	classes := []ClassConfig{{}, {Name: "roce", DSCP: 26}}
	conf := func(node string, self, peer int, other string) *Config {
		c := loopConfig(node, self, peer, other, 1)
		c.Stamp.Classes = classes
		c.reconnect(filePeer{PeerConfig: c.Peers[0], flows: 1, probe: true})
		return c
	}
	a, b := start(t, conf("h1", 1, 2, "h2/eth1")), start(t, conf("h2", 2, 1, "h1/eth1"))
	answered(t, a, "h1/eth1>h2/eth1#0", 20)
	answered(t, a, "h1/eth1>h2/eth1#64", 20)
	for _, e := range a.Snapshot().NICs[0].Edges {
		if want := classes[e.Edge.Number/FlowsPerClass].Name; e.Class != want {
			t.Errorf("%v: class %q, want %q", e.Edge, e.Class, want)
		}
	}
	for _, r := range b.Snapshot().NICs[0].Received {
		if want := classes[r.Edge.Number/FlowsPerClass].Name; r.Class != want || r.Received < 20 {
			t.Errorf("received %+v, want class %q", r, want)
		}
	}
}

// TestSSIDsOfPeers checks that if a peer's SSID is known, no other one is answered.
func TestSSIDsOfPeers(t *testing.T) {
	cfg := loopConfig("h2", 2, 1, "h1/eth1", 1)
	cfg.Edges, cfg.Peers[0].SSID = nil, 7
	e := start(t, cfg)
	c := client(t, 1, 0)
	send := func(ssid uint16) {
		b := request(0, 0)
		p := stamp.SenderPacket{Timestamp: stamp.TimestampPTP(time.Now().UnixNano()), ErrorEstimate: stamp.NewErrorEstimate(1000, false, true), SSID: ssid}
		p.Put(b)
		if _, err := c.WriteToUDPAddrPort(b, netip.AddrPortFrom(loopback(2), 8862)); err != nil {
			t.Fatal(err)
		}
	}
	send(8)
	until(t, 5*time.Second, "a foreign SSID refused", func() bool { return e.Snapshot().NICs[0].Dropped["foreign_ssid"] == 1 })
	send(7)
	if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1500)
	n, _, err := c.ReadFromUDPAddrPort(buf)
	var p stamp.ReflectorPacket
	if err != nil || p.Parse(buf[:n]) != nil || p.SSID != 7 {
		t.Errorf("reply %+v, %v; want one of session 7", p, err)
	}
}

// inNetns makes a namespace with addresses on its loopback interface, and runs
// engines in it.
func inNetns(t *testing.T, addresses ...string) (ns string) {
	t.Helper()
	ns = fmt.Sprintf("gl-probe-%d-%s", time.Now().UnixNano()%1e9, strings.ToLower(t.Name()[len(t.Name())-3:]))
	if err := unix.CreateNetns(ns); err != nil {
		testneeds.Missing(t, fmt.Sprintf("network namespaces: %v", err))
	}
	t.Cleanup(func() {
		if err := unix.RemoveNetns(ns); err != nil {
			t.Errorf("remove namespace: %v", err)
		}
	})
	ip(t, ns, "link", "set", "lo", "up")
	for _, a := range addresses {
		args := []string{"addr", "add", a, "dev", "lo"}
		if strings.Contains(a, ":") {
			args = append(args, "nodad") // otherwise it cannot be used until the kernel's worker has run
		}
		ip(t, ns, args...)
	}
	return ns
}

func ip(t *testing.T, ns string, args ...string) {
	t.Helper()
	args = append([]string{"-n", ns}, args...)
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func startIn(t *testing.T, ns string, c *Config) *Engine {
	t.Helper()
	var e *Engine
	if err := unix.InNetns(ns, func() (err error) {
		e, err = startHere(c)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

func v6Config(node, self, other, peer string) *Config {
	c := loopConfig(node, 1, 2, other, 1)
	c.NICs[0].Address = netip.MustParseAddr(self)
	c.Peers[0].Address = netip.MustParseAddr(peer)
	return c
}

func TestIPv6(t *testing.T) {
	ns := inNetns(t, "fd00::1/128", "fd00::2/128")
	a := startIn(t, ns, v6Config("h1", "fd00::1", "h2/eth1", "fd00::2"))
	b := startIn(t, ns, v6Config("h2", "fd00::2", "h1/eth1", "fd00::1"))
	const ab = "h1/eth1>h2/eth1#0"
	answered(t, a, ab, 100)
	e := edgeOf(a, ab)
	for d := range e.OWD {
		if k := e.OWD[d].Kernel.Count; k+10 < e.Acked {
			t.Errorf("direction %d: %d delays by kernel stamps of %d answers", d, k, e.Acked)
		}
	}
	if e.Lost != [2]uint64{} || b.Snapshot().NICs[0].Received[0].Received < 100 {
		t.Errorf("lost %v, received %+v", e.Lost, b.Snapshot().NICs[0].Received)
	}
	paths, err := a.TraceFlows(t.Context(), []fabric.Flow{{Src: "h1/eth1", Dst: "h2/eth1"}})
	if err != nil || !paths[0].Reached || len(paths[0].Hops) != 0 {
		t.Errorf("path %+v, %v; want the far end and no switch between", paths, err)
	}
	// Families do not mix.
	c := v6Config("h1", "fd00::1", "h2/eth1", "10.0.0.2")
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "of one address family") {
		t.Errorf("an IPv6 NIC with an IPv4 peer: %v", err)
	}
}

// TestAddressesComeAndGo checks a peer that moves, an own address that moves, and one that is removed for a while.
func TestAddressesComeAndGo(t *testing.T) {
	for _, family := range []struct{ name, a, b, b2 string }{
		{"IPv4", "10.9.0.1", "10.9.0.2", "10.9.0.3"}, {"IPv6", "fd00::1", "fd00::2", "fd00::3"},
	} {
		t.Run(family.name, func(t *testing.T) {
			ns := inNetns(t)
			bits := map[string]string{"IPv4": "/32", "IPv6": "/128"}[family.name]
			for _, x := range []string{family.a, family.b, family.b2} {
				ip(t, ns, "addr", "add", x+bits, "dev", "lo")
			}
			a := startIn(t, ns, v6Config("h1", family.a, "h2/eth1", family.b))
			b := startIn(t, ns, v6Config("h2", family.b, "h1/eth1", family.a))
			const ab, ba = "h1/eth1>h2/eth1#0", "h2/eth1>h1/eth1#0"
			answered(t, a, ab, 30)
			// h2 moves; its sockets are opened in the namespace it lives in.
			if err := unix.InNetns(ns, func() error { return b.Apply(v6Config("h2", family.b2, "h1/eth1", family.a)) }); err != nil {
				t.Fatal(err)
			}
			apply(t, a, v6Config("h1", family.a, "h2/eth1", family.b2))
			answered(t, a, ab, 30)
			answered(t, b, ba, 30)
			// The address goes and comes back, without a new configuration.
			ip(t, ns, "addr", "del", family.a+bits, "dev", "lo")
			until(t, 20*time.Second, "probes that cannot be sent or answered", func() bool {
				return len(a.Snapshot().NICs[0].SendErrors) > 0 || edgeOf(a, ab).Unresolved > 10
			})
			ip(t, ns, "addr", "add", family.a+bits, "dev", "lo")
			answered(t, a, ab, 30)
			answered(t, b, ba, 30)
			if a.Err() != nil || b.Err() != nil {
				t.Errorf("loops ended: %v, %v", a.Err(), b.Err())
			}
		})
	}
}

// TestMTU checks that a probe that does not fit is counted as a send error and not as loss, and that probing continues
// when it fits again.
func TestMTU(t *testing.T) {
	ns := inNetns(t, "10.9.0.1/32", "10.9.0.2/32")
	big := func(node, self, other, peer string) *Config {
		c := v6Config(node, self, other, peer)
		c.Stamp.Padding = 700
		return c
	}
	a := startIn(t, ns, big("h1", "10.9.0.1", "h2/eth1", "10.9.0.2"))
	startIn(t, ns, big("h2", "10.9.0.2", "h1/eth1", "10.9.0.1"))
	const ab = "h1/eth1>h2/eth1#0"
	answered(t, a, ab, 30)
	was := edgeOf(a, ab)
	ip(t, ns, "link", "set", "lo", "mtu", "600")
	until(t, 20*time.Second, "EMSGSIZE", func() bool { return a.Snapshot().NICs[0].SendErrors["EMSGSIZE"] > 10 })
	ip(t, ns, "link", "set", "lo", "mtu", "1500")
	answered(t, a, ab, 30)
	if e := edgeOf(a, ab); e.Lost != was.Lost {
		t.Errorf("lost %v, before %v: what never left is not lost", e.Lost, was.Lost)
	}
}
