package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

// until polls f every 10 ms for d at most.
func until(t testing.TB, d time.Duration, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("%s: not within %v", what, d)
}

// loopback returns an address of this process's own, so that tests of several packages can run at the same time.
func loopback(i int) netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(64 + pid>>14&63), byte(pid >> 6), byte(pid<<2 | i)})
}

func loopConfig(node string, self, peer int, peerNIC string, flows int) *Config {
	c := defaultConfig()
	c.Node = node
	c.Stamp.Port = 8862
	c.NICs = []NICConfig{{NIC: node + "/eth1", Address: loopback(self), Leaf: "leaf1"}}
	c.connectPeers([]filePeer{{PeerConfig: PeerConfig{NIC: peerNIC, Address: loopback(peer), Leaf: "leaf2", Plane: "a"}, tier: 2, flows: flows, probe: true}})
	return &c
}

// reconnect makes the edges again, of all NICs and peers.
func (c *Config) reconnect(peers ...filePeer) {
	c.Peers, c.Edges, c.Answers = nil, nil, nil
	c.connectPeers(peers)
}

// startHere starts an engine on this host.
func startHere(c *Config) (*Engine, error) { return startFor(c, HostDeps()) }

func startFor(c *Config, d Deps) (*Engine, error) {
	e, err := New(c, d, slog.New(slog.DiscardHandler))
	if err == nil {
		e.Start()
	}
	return e, err
}

func start(t *testing.T, c *Config) *Engine {
	t.Helper()
	return startWith(t, c, HostDeps())
}

func startWith(t *testing.T, c *Config, d Deps) *Engine {
	t.Helper()
	e, err := startFor(c, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Err(); err != nil {
			t.Errorf("probe loop: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := e.Err(); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
	})
	return e
}

func TestEnginesMeasureEachOther(t *testing.T) {
	a := start(t, loopConfig("h1", 1, 2, "h2/eth1", 2))
	b := start(t, loopConfig("h2", 2, 1, "h1/eth1", 1))
	until(t, 20*time.Second, "100 answered probes a flow", func() bool {
		for _, e := range a.Snapshot().NICs[0].Edges {
			if e.Acked < 100 {
				return false
			}
		}
		return b.Snapshot().NICs[0].Edges[0].Acked >= 100
	})
	s, r := a.Snapshot().NICs[0], b.Snapshot().NICs[0]
	if len(s.Edges) != 2 || s.Edges[1].Edge.String() != "h1/eth1>h2/eth1#1" {
		t.Fatalf("edges %+v", s.Edges)
	}
	for i, e := range s.Edges {
		// The first packets may arrive before the kernel has begun to stamp.
		if k := e.OWD[0].Kernel.Count; k+10 < e.Acked {
			t.Errorf("edge %d: %d forward delays by kernel stamps of %d answers", i, k, e.Acked)
		}
		if k := e.OWD[1].Kernel.Count; k+10 < e.Acked {
			t.Errorf("edge %d: %d reverse delays by kernel stamps of %d answers", i, k, e.Acked)
		}
		if p50, ok := e.OWD[0].Kernel.Quantile(0.5); !ok || p50 <= 0 || p50 > 1e6 {
			t.Errorf("edge %d: median %v ns, want more than none and less than a millisecond on loopback", i, p50)
		}
		if e.Lost != [2]uint64{} || e.Duplicate > 0 {
			t.Errorf("edge %d: lost %v, duplicate %d", i, e.Lost, e.Duplicate)
		}
	}
	// h2 knows only flow 0 of its peer: flow 1 is answered, but not counted.
	if len(r.Received) != 1 || r.Received[0].Received < 100 || r.Received[0].Edge.String() != "h1/eth1>h2/eth1#0" {
		t.Errorf("received %+v", r.Received)
	}
	if s.TxKind != "kernel" || s.RxKind != "kernel" || s.KernelDelay.Count == 0 {
		t.Errorf("stamps %q %q, %d kernel delays", s.TxKind, s.RxKind, s.KernelDelay.Count)
	}
}

func TestSeveralNICs(t *testing.T) {
	c := loopConfig("h1", 1, 2, "h2/eth1", 1)
	c.NICs = append(c.NICs, NICConfig{NIC: "h1/eth2", Address: loopback(3), Leaf: "leaf3"})
	c.reconnect(filePeer{PeerConfig: c.Peers[0], flows: 1, probe: true, from: []string{"h1/eth2"}})
	d := loopConfig("h2", 2, 1, "h1/eth1", 1)
	d.reconnect(filePeer{PeerConfig: d.Peers[0], flows: 1, probe: true},
		filePeer{PeerConfig: PeerConfig{NIC: "h1/eth2", Address: loopback(3)}, flows: 1})
	a, b := start(t, c), start(t, d)
	until(t, 20*time.Second, "answers over the second NIC", func() bool {
		e := a.Snapshot().NICs[1].Edges
		return len(e) == 1 && e[0].Acked >= 20 && b.Snapshot().NICs[0].Edges[0].Acked >= 20
	})
	if e := a.Snapshot().NICs[0].Edges; len(e) != 0 {
		t.Errorf("h1/eth1 probes %v, though the peer is probed from h1/eth2 only", e)
	}
	got := map[string]bool{}
	for _, r := range b.Snapshot().NICs[0].Received {
		got[r.Edge.String()] = r.Received > 0
	}
	if got["h1/eth1>h2/eth1#0"] || !got["h1/eth2>h2/eth1#0"] {
		t.Errorf("received %v, want probes of h1/eth2 only", got)
	}
	if e := b.Snapshot().NICs[0].Edges; len(e) != 1 {
		t.Errorf("%d edges of h2, want one: it does not probe h1/eth2", len(e))
	}
}

func TestReflectorRestartIsNotLoss(t *testing.T) {
	a := start(t, loopConfig("h1", 1, 2, "h2/eth1", 1))
	b, err := startHere(loopConfig("h2", 2, 1, "h1/eth1", 1))
	if err != nil {
		t.Fatal(err)
	}
	acked := func() uint64 { return a.Snapshot().NICs[0].Edges[0].Acked }
	until(t, 20*time.Second, "50 answers", func() bool { return acked() >= 50 })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// The closed port answers with ICMP: sends fail once each and are tried again.
	sent := a.Snapshot().NICs[0].Edges[0].Sent
	until(t, 20*time.Second, "20 more probes", func() bool { return a.Snapshot().NICs[0].Edges[0].Sent >= sent+20 })
	start(t, loopConfig("h2", 2, 1, "h1/eth1", 1))
	before := acked()
	until(t, 20*time.Second, "50 answers of the new reflector", func() bool { return acked() >= before+50 })
	e := a.Snapshot().NICs[0].Edges[0]
	if e.Lost != [2]uint64{} || e.Restarts != 1 {
		t.Errorf("lost %v, %d restarts; want none and one", e.Lost, e.Restarts)
	}
	if n := a.Snapshot().NICs[0].SendErrors; len(n) != 0 {
		t.Errorf("send errors %v", n)
	}
}

// client returns a plain socket at an address of its own.
func client(t *testing.T, i int, port int) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: loopback(i).AsSlice(), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

func request(seq uint32, pad int) []byte {
	b := make([]byte, stamp.BaseLen, 512)
	p := stamp.SenderPacket{Seq: seq, Timestamp: stamp.TimestampPTP(time.Now().UnixNano()), ErrorEstimate: stamp.NewErrorEstimate(1000, false, true), SSID: 7}
	p.Put(b)
	b = stamp.AppendClassOfService(b, 0)
	b = stamp.AppendDirectMeasurement(b, seq+1)
	return stamp.AppendExtraPadding(b, pad)
}

func TestReflectorAnswersPeersOnly(t *testing.T) {
	cfg := loopConfig("h2", 2, 1, "h1/eth1", 1)
	cfg.Edges = nil
	e := start(t, cfg)
	to := &net.UDPAddr{IP: loopback(2).AsSlice(), Port: 8862}
	peer, stranger := client(t, 1, 0), client(t, 3, 0)
	drops := func(reason string) uint64 { return e.Snapshot().NICs[0].Dropped[reason] }
	send := func(c *net.UDPConn, b []byte) {
		if _, err := c.WriteToUDP(b, to); err != nil {
			t.Fatal(err)
		}
	}
	send(stranger, request(0, 20))
	until(t, 5*time.Second, "a stranger's probe dropped", func() bool { return drops("unregistered") == 1 })
	send(peer, []byte("short"))
	until(t, 5*time.Second, "a malformed packet dropped", func() bool { return drops("malformed") == 1 })

	buf := make([]byte, 2048)
	for _, pad := range []int{0, 1, 100} {
		req := request(uint32(pad), pad)
		send(peer, req)
		if err := peer.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, from, err := peer.ReadFromUDP(buf)
		if err != nil || from.Port != 8862 {
			t.Fatalf("reply: %v from %v", err, from)
		}
		if n != len(req) {
			t.Errorf("a reply of %d octets to a request of %d", n, len(req))
		}
	}
	// At most 4 times the expected rate, and a second's packets at once, are answered.
	for i := range 1000 {
		send(peer, request(uint32(1000+i), 0))
	}
	until(t, 5*time.Second, "the rate limit", func() bool { return drops("rate_limited") > 0 })
	// New sessions are limited as well.
	for i := range 100 {
		c := client(t, 1, 0)
		send(c, request(uint32(i), 0))
	}
	until(t, 5*time.Second, "the session limit", func() bool { return drops("session_limit") > 0 })
}

func TestStartErrors(t *testing.T) {
	taken := client(t, 1, 8862)
	_, err := startHere(loopConfig("h1", 1, 2, "h2/eth1", 1))
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), fmt.Sprintf("UDP %v:8862 is in use", loopback(1))) {
		t.Errorf("port in use: %v", err)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	c := loopConfig("h1", 1, 2, "h2/eth1", 1)
	c.NICs[0].Address = netip.MustParseAddr("192.0.2.1")
	if _, err = startHere(c); !errors.Is(err, unix.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "192.0.2.1 is not an address of this host") {
		t.Errorf("no such address: %v", err)
	}
}

// pair returns two NICs that probe each other and that only the test drives.
func pair(t testing.TB) (a, b idle) {
	t.Helper()
	return newIdle(t, loopConfig("h1", 1, 2, "h2/eth1", 1), HostDeps()), newIdle(t, loopConfig("h2", 2, 1, "h1/eth1", 1), HostDeps())
}

// authenticate gives the peers of a configuration a key.
func authenticate(c *Config, keys ...Key) {
	for i := range c.Peers {
		c.Peers[i].Keys = keys
	}
}

func key(id uint32) Key {
	return Key{ID: id, Secret: []byte(fmt.Sprintf("the secret of key number %d", id))}
}

// modes are a plain and an authenticated mesh.
var modes = []struct {
	name string
	keys []Key
}{{"plain", nil}, {"authenticated", []Key{key(1), key(2)}}}

// TestTurnAllocatesNothing drives two NICs by hand through probe, reflection, reply and all stamps.
func TestTurnAllocatesNothing(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			ca, cb := loopConfig("h1", 1, 2, "h2/eth1", 1), loopConfig("h2", 2, 1, "h1/eth1", 1)
			ca.ClockSync = true
			authenticate(ca, mode.keys...)
			authenticate(cb, mode.keys...)
			a, b := newIdle(t, ca, HostDeps()), newIdle(t, cb, HostDeps())
			step := func() {
				for _, n := range []idle{a, b, a, b} {
					n.step(t)
				}
			}
			until(t, 10*time.Second, "100 answers", func() bool { step(); return a.sender.edges[0].Acked >= 100 })
			before := a.sender.edges[0].Acked
			if n := testing.AllocsPerRun(100, func() {
				a.dueNow()
				step()
			}); n != 0 {
				t.Errorf("%v allocations per probe, reply and stamps, want 0", n)
			}
			if got := a.sender.edges[0].Acked - before; got < 90 {
				t.Errorf("%d answers in 101 rounds", got)
			}
		})
	}
}

// BenchmarkExchange measures a probe, its reflection, the reply and all four stamps over loopback. Under clock sync it
// includes the share of twins and exchanges.
func BenchmarkExchange(b *testing.B) {
	for _, mode := range modes {
		for _, synced := range []bool{false, true} {
			name := mode.name
			if synced {
				name += ", clock sync"
			}
			b.Run(name, func(b *testing.B) {
				cx, cy := loopConfig("h1", 1, 2, "h2/eth1", 1), loopConfig("h2", 2, 1, "h1/eth1", 1)
				cy.Edges = nil
				cx.ClockSync = synced
				authenticate(cx, mode.keys...)
				authenticate(cy, mode.keys...)
				x, y := newIdle(b, cx, HostDeps()), newIdle(b, cy, HostDeps())
				measureExchange(b, x, y)
			})
		}
	}
}

// measureExchange lets x probe y, once it has had answers. It reports the time of the processor as well, which other load of the
// machine changes less.
func measureExchange(b *testing.B, x, y idle) {
	b.Helper()
	exchange := func() {
		x.dueNow()
		for _, s := range y.reflector.sessions {
			s.bucket.tokens = s.bucket.burst // at any rate
		}
		x.step(b)
		y.step(b)
		x.step(b)
	}
	e := x.sender.edges[0]
	until(b, 10*time.Second, "10 answers", func() bool { exchange(); return e.Acked >= 10 })
	sent, acked := e.Sent, e.Acked
	b.ReportAllocs()
	used := processorTime(b)
	for b.Loop() {
		exchange()
	}
	b.ReportMetric(float64(processorTime(b)-used)/float64(b.N), "cpu-ns/op")
	if sent, acked = e.Sent-sent, e.Acked-acked; acked+10 < sent {
		b.Errorf("%d of %d answered", acked, sent)
	}
}

// processorTime returns the time of the processor that this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// FuzzPackets feeds random octets to the reflector, the sender and the parser of ICMP quotes. A reply is never longer
// than the packet that it answers.
func FuzzPackets(f *testing.F) {
	a, _ := pair(f)
	peer := netip.AddrPortFrom(loopback(2), a.node.Stamp.Port)
	a.sender.edges[0].nextProbe(a.monoTime(), time.Now().UnixNano())
	f.Add(request(0, 10), uint8(0))
	f.Add(request(0, 10)[:20], uint8(0))
	buf := make([]byte, unix.MaxDatagram)
	n := a.putRequest(buf, 0, 1, a.ssid, 1, 0, false, nil)
	f.Add(buf[:n], uint8(0))
	n = a.putRequest(buf, 1, 1, a.ssid|traceSSID, 1, 0, false, nil)
	f.Add(buf[:n], uint8(11))
	f.Fuzz(func(t *testing.T, b []byte, icmp uint8) {
		if len(b) > unix.MaxDatagram {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		now := time.Now()
		if err := a.takeProbe(&unix.Datagram{Data: b, From: peer, Stamp: now.UnixNano()}, now); err != nil {
			t.Fatal(err)
		}
		a.takeReply(a.sender.edges[0].sock, &unix.Datagram{Data: b, From: peer, Stamp: now.UnixNano()}, now)
		a.traces.handleICMP(a.sender.edges[0].sock, &unix.Report{Kind: unix.ReportICMP, Type: icmp, Dst: peer, Offender: peer.Addr(), Data: b})
		if err := a.out.flushBatch(); err != nil {
			t.Fatal(err)
		}
		e := a.sender.edges[0]
		if e.Acked+e.Late > e.Sent {
			t.Fatalf("%d answered of %d sent", e.Acked+e.Late, e.Sent)
		}
	})
}

func TestSendErrorsAreCountedAndNoLoss(t *testing.T) {
	a, _ := pair(t)
	a.mu.Lock()
	defer a.mu.Unlock()
	// Port 0 cannot be sent to: EINVAL, whatever is tried.
	a.sender.edges[0].target = netip.AddrPortFrom(loopback(2), 0)
	for range 5 {
		if err := a.sender.queueProbe(a.sender.edges[0]); err != nil {
			t.Fatal(err)
		}
		if err := a.out.flushBatch(); err != nil {
			t.Fatal(err)
		}
	}
	if e := a.sender.edges[0]; e.Sent != 0 || a.out.sendErrors[syscall.EINVAL] != 5 {
		t.Errorf("%d sent, errors %v; want none sent and five EINVAL", e.Sent, a.out.sendErrors)
	}
}

func TestStallsAreSummed(t *testing.T) {
	a, _ := pair(t)
	const second = int64(time.Second)
	stalled := func() time.Duration { return a.e.Snapshot().NICs[0].Stalled }
	a.wire.base = a.wire.base.Add(-time.Minute) // room for it
	a.e.turns.planned.Store(a.monoTime())
	if got := stalled(); got != 0 {
		t.Errorf("%v stalled on time", got)
	}
	late := a.monoTime() - second
	a.e.turns.planned.Store(late)
	ongoing := stalled()
	if ongoing < time.Second-stallAfter || ongoing > 2*time.Second {
		t.Errorf("%v stalled one second late, before the loop has run", ongoing)
	}
	if _, _, err := a.e.runTurn(a.monoTime(), late, 0); err != nil {
		t.Fatal(err)
	}
	if got := stalled(); got < ongoing || got > ongoing+time.Second {
		t.Errorf("%v stalled after the loop has run, %v before: it counts once and never goes back", got, ongoing)
	}
}

// After a stall the missed probes are not sent later.
func TestNoBurstAfterAStall(t *testing.T) {
	a, _ := pair(t)
	a.sender.edges[0].next = a.monoTime() - int64(5*time.Second)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.sender.sendDue(a.monoTime(), a.monoTime()); err != nil {
		t.Fatal(err)
	}
	if got := a.sender.edges[0].Sent; got > 2 || a.sender.skipped < 498 {
		t.Errorf("%d probes at once after five seconds and %d skipped, want two at most and the rest", got, a.sender.skipped)
	}
}

// A request for flows of which the node has some is answered for these. Schedules change between a request and its answer.
func TestTraceUnknownEdge(t *testing.T) {
	a := start(t, loopConfig("h1", 1, 2, "h2/eth1", 1))
	gone, own := fabric.Flow{Src: "h1/eth1", Dst: "h9/eth1"}, fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	_, err := a.TraceFlows(context.Background(), []fabric.Flow{gone})
	var unknown UnknownEdgeError
	if !errors.As(err, &unknown) || unknown.Edge != "h1/eth1>h9/eth1#0" {
		t.Errorf("error %v", err)
	}
	paths, err := a.TraceFlows(context.Background(), []fabric.Flow{gone, own})
	if err != nil || len(paths) != 1 || paths[0].Edge != own {
		t.Errorf("with a flow of the node: %+v, %v", paths, err)
	}
	if _, err = a.ProbePathMTU(context.Background(), []fabric.Flow{gone}, 576); !errors.As(err, &unknown) {
		t.Errorf("MTU of no flow of the node: error %v", err)
	}
	found, err := a.ProbePathMTU(context.Background(), []fabric.Flow{gone, own}, 576)
	if err != nil || len(found) != 2 || found[0].State != fabric.PathMTUUnknown || found[0].Edge != gone.String() || found[0].Reason == "" || found[1].Edge != own.String() {
		t.Errorf("MTU with a flow of the node: %+v, %v", found, err)
	}
}
