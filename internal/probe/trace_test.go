package probe

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

var traced = fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}

func path(state fabric.PathState, addresses ...string) TracedPath {
	p := TracedPath{Edge: traced, State: state, Reached: state == fabric.PathValid}
	for i, a := range addresses {
		h := Hop{TTL: i + 1}
		if a != "" {
			h.Address = netip.MustParseAddr(a)
		}
		p.Hops = append(p.Hops, h)
	}
	return p
}

func TestRule6AFailedTraceLeavesAStalePath(t *testing.T) {
	tr := newTracer(TraceConfig{PacketsPerSecond: 1, PacketsPerSwitch: 1, Concurrency: 1}, nil, slog.New(slog.DiscardHandler))
	version := func() uint64 { v, _ := tr.knownPaths(); return v }
	balanced := path(fabric.PathUnknown, "10.0.0.1", "10.0.0.2")
	balanced.Reached, balanced.Balanced = true, true
	for i, step := range []struct {
		found   TracedPath
		state   fabric.PathState
		hops    string
		changed bool
	}{
		{path(fabric.PathUnknown), fabric.PathUnknown, "", true},
		{path(fabric.PathValid, "10.0.0.1", "10.0.0.2"), fabric.PathValid, "10.0.0.1 10.0.0.2", true},
		{path(fabric.PathValid, "10.0.0.1", "10.0.0.2"), fabric.PathValid, "10.0.0.1 10.0.0.2", false},
		{path(fabric.PathUnknown, "10.0.0.1"), fabric.PathStale, "10.0.0.1 10.0.0.2", true},
		{path(fabric.PathUnknown), fabric.PathStale, "10.0.0.1 10.0.0.2", false},
		{path(fabric.PathValid, "10.0.0.1", "10.0.0.3"), fabric.PathValid, "10.0.0.1 10.0.0.3", true},
		{balanced, fabric.PathUnknown, "10.0.0.1 10.0.0.2", true},
		{path(fabric.PathUnknown), fabric.PathUnknown, "", true},
		{path(fabric.PathValid, "10.0.0.1", "10.0.0.3"), fabric.PathValid, "10.0.0.1 10.0.0.3", true},
	} {
		before := version()
		p := tr.storePath(step.found)
		if p.Balanced != step.found.Balanced || p.State != step.state || hops(p) != step.hops || (version() != before) != step.changed {
			t.Errorf("step %d: %s %q, version changed %v; want %+v", i, p.State, hops(p), version() != before, step)
		}
	}
}

func TestFlowsAreTracedUntilValid(t *testing.T) {
	tr := newTracer(TraceConfig{PacketsPerSecond: 1, PacketsPerSwitch: 1, Concurrency: 1}, nil, slog.New(slog.DiscardHandler))
	attempts := map[fabric.Flow]*attempt{}
	start := time.Unix(1000, 0)
	tried := func(from, to time.Duration) (at []time.Duration) {
		for d := from; d < to; d += time.Second {
			if tr.wantsTrace(attempts, traced, start.Add(d)) {
				at = append(at, d)
			}
		}
		return at
	}
	at := tried(0, 40*time.Second)
	if len(at) != 3 || at[0] != 0 || at[1] != 10*time.Second || at[2] != 30*time.Second {
		t.Errorf("tried at %v, want at once, after 10 s and 30 s", at)
	}
	valid := func(at time.Duration) {
		p := path(fabric.PathValid, "10.0.0.1")
		p.TracedAt = start.Add(at)
		tr.storePath(p)
	}
	valid(40 * time.Second)
	if at := tried(40*time.Second, 100*time.Second); len(at) != 0 {
		t.Errorf("a valid path traced at %v", at)
	}
	if at := tried(100*time.Second, 121*time.Second); len(at) == 0 {
		t.Error("a valid path is not traced again for 80 s")
	}
	valid(121 * time.Second)
	tr.setMoved([]fabric.Flow{traced})
	if at := tried(121*time.Second, 130*time.Second); len(at) != 1 || at[0] != 124*time.Second {
		t.Errorf("the path of a flow that moved is traced at %v, want 3 s after", at)
	}
	tr.setMoved(nil)
	valid(390 * time.Second)
	if at := tried(390*time.Second, 400*time.Second); len(at) != 0 {
		t.Errorf("a valid path traced at %v", at)
	}
	tr.storePath(path(fabric.PathUnknown))
	if at := tried(400*time.Second, 411*time.Second); len(at) != 1 || at[0] != 410*time.Second {
		t.Errorf("a stale path tried at %v, want 10 s after", at)
	}
}

// An ICMP error is matched by what it quotes. If the quote ends with the UDP header, it is matched only if there is a
// single candidate.
func TestICMPQuotes(t *testing.T) {
	a, b := pair(t)
	a.mu.Lock()
	defer a.mu.Unlock()
	one := netip.AddrPortFrom(loopback(2), 862)
	other := netip.AddrPortFrom(loopback(3), 862)
	await := func(key uint32, dst netip.AddrPort) chan traceAnswer {
		c := make(chan traceAnswer, 1)
		a.traces.awaited[key] = &traceProbe{key: key, sock: a.sender.edges[0].sock, dst: dst, answer: c}
		return c
	}
	quote := func(n idle, key uint32, ssid uint16) []byte {
		buf := make([]byte, unix.MaxDatagram)
		return buf[:n.putRequest(buf, key, 1, ssid, 0, 0, false, nil)]
	}
	router := netip.MustParseAddr("192.0.2.7")
	report := func(dst netip.AddrPort, data []byte) *unix.Report {
		return &unix.Report{Kind: unix.ReportICMP, Type: icmpTimeExceeded, Dst: dst, Offender: router, Data: data, Stamp: 5000}
	}
	answered := func(c chan traceAnswer) bool {
		select {
		case got := <-c:
			return got.from == router
		default:
			return false
		}
	}
	c := await(1, one)
	a.traces.handleICMP(a.sender.edges[0].sock, report(one, quote(a, 1, a.ssid)))
	a.traces.handleICMP(a.sender.edges[0].sock, report(one, quote(b, 1, b.ssid|traceSSID)))
	a.traces.handleICMP(a.sender.edges[0].sock, report(one, quote(a, 2, a.ssid|traceSSID)))
	if answered(c) {
		t.Error("a probe's, another node's or an unknown packet's error was taken for an answer")
	}
	a.traces.handleICMP(a.sender.edges[0].sock, report(one, quote(a, 1, a.ssid|traceSSID)[:stamp.BaseLen]))
	if !answered(c) {
		t.Error("a quoted trace packet was not recognised")
	}
	c, d := await(3, one), await(4, other)
	a.traces.handleICMP(a.sender.edges[0].sock, report(one, nil))
	if !answered(c) || answered(d) {
		t.Error("a short quote was not matched by its destination")
	}
	c, d = await(5, one), await(6, one)
	a.traces.handleICMP(a.sender.edges[0].sock, report(one, nil))
	if answered(c) || answered(d) {
		t.Error("a short quote was matched although two packets were on their way")
	}
	if n := a.traces.icmpErrors[[2]uint8{icmpTimeExceeded, 0}]; n != 4 {
		t.Errorf("%d errors counted as none of the tracer's, want 4", n)
	}
}

// A NIC that reached a host at hop limit 1 has no router on the way to the others in that host's network.
func TestNeighbours(t *testing.T) {
	network := netip.MustParsePrefix("10.1.0.0/24")
	tr := newTracer(TraceConfig{}, nil, nil)
	tr.lengths[nicDestination{"h1/eth0", netip.MustParseAddr("10.1.0.2")}] = 1
	tr.lengths[nicDestination{"h1/eth1", netip.MustParseAddr("10.1.0.3")}] = 2
	for _, c := range []struct {
		nic      string
		networks []netip.Prefix
		want     bool
	}{
		{"h1/eth0", []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24"), network}, true},
		{"h1/eth0", []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}, false},
		{"h1/eth0", nil, false},
		{"h1/eth1", []netip.Prefix{network}, false},
		{"h2/eth0", []netip.Prefix{network}, false},
	} {
		if got := tr.isNeighbour(c.nic, c.networks); got != c.want {
			t.Errorf("%s, %v: %v, want %v", c.nic, c.networks, got, c.want)
		}
	}
	if len(networksWith(netip.MustParseAddr("127.0.0.9"))) == 0 || len(networksWith(netip.MustParseAddr("240.0.0.1"))) != 0 {
		t.Error("the loopback network is one of this host, and 240.0.0.0/4 is of no host (RFC 1112)")
	}
}
