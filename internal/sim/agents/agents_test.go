package agents

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/bentclock"
	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/locator"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/sighting"
)

// small returns two leaves under two spines with one host each on both leaves.
func small(t *testing.T) *fabric.Topology {
	t.Helper()
	topo, found := fabric.ParseTopology("small.yaml", []byte(`
version: 1
switches:
  - {name: s1, role: spine}
  - {name: s2, role: spine}
  - {name: l1, role: leaf}
  - {name: l2, role: leaf}
nodes:
  - {name: h1, nics: [{device: e, addresses: [10.0.1.2]}]}
  - {name: h2, nics: [{device: e, addresses: [10.0.2.2]}]}
  - {name: h3, nics: [{device: e, addresses: [10.0.3.2]}]}
links:
  - {a: "h1/e", b: "l1:d1", speed_gbps: 100, a_address: 10.0.1.2/24, b_address: 10.0.1.1/24}
  - {a: "h2/e", b: "l2:d1", speed_gbps: 100, a_address: 10.0.2.2/24, b_address: 10.0.2.1/24}
  - {a: "h3/e", b: "l1:d2", speed_gbps: 100, a_address: 10.0.3.2/24, b_address: 10.0.3.1/24}
  - {a: "l1:u1", b: "s1:d1", speed_gbps: 100, a_address: 172.16.1.0/31, b_address: 172.16.1.1/31}
  - {a: "l1:u2", b: "s2:d1", speed_gbps: 100, a_address: 172.16.2.0/31, b_address: 172.16.2.1/31}
  - {a: "l2:u1", b: "s1:d2", speed_gbps: 100, a_address: 172.16.3.0/31, b_address: 172.16.3.1/31}
  - {a: "l2:u2", b: "s2:d2", speed_gbps: 100, a_address: 172.16.4.0/31, b_address: 172.16.4.1/31}
`))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return topo
}

// bench is a fabric whose hosts probe each other, in virtual time.
type bench struct {
	*testing.T
	*Fabric
	engines map[string]*probe.Engine
	bends   map[string]*bentclock.Clock
	at      time.Duration
}

const flows = 4

// newBench starts agents at the base, so that virtual time is ahead of the wall
// clock's from the first step on.
func newBench(t *testing.T, load float64, sync bool) *bench { return newBenchWith(t, load, sync, nil) }

// newBenchWith does the same. With signals, all flows carry them.
func newBenchWith(t *testing.T, load float64, sync bool, signals *probe.Signals) *bench {
	topo := small(t)
	base := time.Now()
	b := &bench{T: t, Fabric: New(topo, base, load, 1, slog.New(slog.DiscardHandler)), engines: map[string]*probe.Engine{}, bends: map[string]*bentclock.Clock{}}
	class := ""
	if signals != nil {
		b.UseSignals(signals)
		class = fabric.ClassCSIG
	}
	for _, n := range topo.Nodes {
		cfg := &probe.Config{Node: n.Name, Cadence: 10 * time.Millisecond, ReplyTimeout: time.Second, ClockSync: sync, Stamp: probe.StampConfig{Port: 862, SourcePort: 49152, Classes: []probe.ClassConfig{{Name: class}}},
			Trace: probe.TraceConfig{PacketsPerSecond: 100, PacketsPerSwitch: 10, Concurrency: 4}}
		own := n.Name + "/e"
		cfg.NICs = []probe.NICConfig{{NIC: own, Address: n.NICs[0].Addresses[0]}}
		for _, o := range topo.Nodes {
			if o.Name == n.Name {
				continue
			}
			peer := o.Name + "/e"
			cfg.Peers = append(cfg.Peers, probe.PeerConfig{NIC: peer, Address: o.NICs[0].Addresses[0]})
			for flow := range flows {
				cfg.Edges = append(cfg.Edges, probe.EdgeConfig{Src: own, Dst: peer, Flow: flow, Tier: 2, Cadence: cfg.Cadence})
				cfg.Answers = append(cfg.Answers, probe.EdgeConfig{Src: peer, Dst: own, Flow: flow, Tier: 2, Cadence: cfg.Cadence})
			}
		}
		bend, err := bentclock.New(base, 0, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		e, err := b.Start(cfg, bend, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		b.engines[n.Name], b.bends[n.Name] = e, bend
	}
	return b
}

func (b *bench) pass(d time.Duration) {
	b.at += d
	b.AdvanceTo(b.at)
}

// fault breaks something; the function it returns heals it.
func (b *bench) fault(f Fault) (heal func()) {
	b.Helper()
	id, err := b.AddFault(f)
	if err != nil {
		b.Fatal(err)
	}
	return func() {
		if err := b.ClearFault(id); err != nil {
			b.Fatal(err)
		}
	}
}

// edge returns the present statistics of an edge.
func (b *bench) edge(src, dst string, flow int) probe.EdgeStats {
	b.Helper()
	for _, n := range b.engines[src].Snapshot().NICs {
		for _, e := range n.Edges {
			if e.Edge.Dst == dst+"/e" && e.Edge.Number == flow {
				return e
			}
		}
	}
	b.Fatalf("no edge from %s to %s", src, dst)
	return probe.EdgeStats{}
}

// all sums up the flows between two hosts since an earlier sum.
type sum struct {
	sent, acked, received uint64
	lost, ecn             [2]uint64
	delay                 [2]float64
	measured              [2]uint64
}

func (b *bench) sum(src, dst string) (s sum) {
	for flow := range flows {
		e := b.edge(src, dst, flow)
		s.sent += e.Sent
		s.acked += e.Acked
		for d := range 2 {
			s.lost[d] += e.Lost[d]
			s.ecn[d] += e.ECN[d]
			s.delay[d] += e.OWD[d].Kernel.SumNS
			s.measured[d] += e.OWD[d].Kernel.Count
		}
	}
	for _, n := range b.engines[dst].Snapshot().NICs {
		for _, r := range n.Received {
			if r.Edge.Src == src+"/e" {
				s.received += r.Received
			}
		}
	}
	return s
}

// over returns what a stretch of time adds.
func (b *bench) over(d time.Duration, src, dst string) sum {
	was := b.sum(src, dst)
	b.pass(d)
	s := b.sum(src, dst)
	s.sent -= was.sent
	s.acked -= was.acked
	s.received -= was.received
	for i := range 2 {
		s.lost[i] -= was.lost[i]
		s.ecn[i] -= was.ecn[i]
		s.delay[i] -= was.delay[i]
		s.measured[i] -= was.measured[i]
	}
	return s
}

func (s sum) mean(d int) time.Duration {
	if s.measured[d] == 0 {
		return -1
	}
	return time.Duration(s.delay[d] / float64(s.measured[d]))
}

func ratio(a, b uint64) float64 { return float64(a) / float64(b) }

// TestHealthyFabric checks rule 1: every probe is answered and measured in both directions, and delays are those of
// wires, queues and stamps.
func TestHealthyFabric(t *testing.T) {
	b := newBench(t, 0.2, false)
	b.pass(time.Second)
	s := b.over(4*time.Second, "h1", "h2")
	if s.sent != 4*100*flows || s.lost != [2]uint64{} || ratio(s.acked, s.sent) < 0.99 || ratio(s.received, s.sent) < 0.99 {
		t.Errorf("%+v", s)
	}
	for d := range 2 {
		if m := s.mean(d); m < 2*time.Microsecond || m > 20*time.Microsecond || ratio(s.measured[d], s.sent) < 0.99 {
			t.Errorf("direction %d: %d delays of %s on the mean", d, s.measured[d], m)
		}
	}
}

// TestHostsKeepTheOrder checks rule 1: probes and their twins are sent, answered and read in order, also behind a
// queue, so that nothing looks like a restart.
func TestHostsKeepTheOrder(t *testing.T) {
	b := newBench(t, 0.2, true)
	b.fault(Fault{Kind: "congest", At: "l1:d1"})
	b.pass(5 * time.Second)
	for node, e := range b.engines {
		for _, n := range e.Snapshot().NICs {
			if n.Restarts["reflector"]+n.Restarts["sender"]+n.Dropped["rate_limited"] > 0 {
				t.Errorf("%s: restarts %v, dropped %v", node, n.Restarts, n.Dropped)
			}
			for _, e := range n.Edges {
				if e.Sent < 590 || e.Reordered+e.Duplicate+e.Late > 0 {
					t.Errorf("%v: sent %d, reordered %d, duplicate %d, late %d", e.Edge, e.Sent, e.Reordered, e.Duplicate, e.Late)
				}
			}
		}
	}
}

// TestFaults checks rule 1: the effect of each fault on the flows between two hosts, and that it ends when the fault
// is cleared.
func TestFaults(t *testing.T) {
	const ms = time.Millisecond
	near := func(got, want, within time.Duration) bool { return got > want-within && got < want+within }
	half := func(r float64) bool { return r > 0.15 && r < 0.85 } // of the flows, by ECMP
	tests := []struct {
		fault Fault
		wait  time.Duration
		right func(s sum) bool
	}{
		{Fault{Kind: "delay", At: "h1/e->l1:d1", Delay: 2 * ms}, 0, func(s sum) bool { return near(s.mean(0), 2*ms, ms/10) && s.mean(1) < ms/10 }},
		{Fault{Kind: "delay", At: "l1:u1--s1:d1", Direction: "s1:d1->l1:u1", Delay: 2 * ms}, 0, func(s sum) bool { return s.mean(0) < ms/10 && s.mean(1) > ms/10 }},
		{Fault{Kind: "loss", At: "l1:d1->h1/e", Loss: 0.2}, 0, func(s sum) bool { r := ratio(s.lost[1], s.sent); return s.lost[0] == 0 && r > 0.15 && r < 0.25 }},
		{Fault{Kind: "loss", At: "l2:d1->h2/e", Loss: 0.2}, 0, func(s sum) bool { r := ratio(s.lost[0], s.sent); return s.lost[1] == 0 && r > 0.15 && r < 0.25 }},
		{Fault{Kind: "incast", At: "h2/e", Delay: 2 * ms}, time.Second, func(s sum) bool { return s.mean(0) > ms/4 && s.ecn[0] > 0 && s.lost[1] == 0 }},
		{Fault{Kind: "blackhole", At: "l2:d1->h2/e"}, 0, func(s sum) bool { return s.acked == 0 && s.received == 0 && s.sent > 0 }},
		{Fault{Kind: "ecn", At: "h1/e->l1:d1"}, 0, func(s sum) bool { return ratio(s.ecn[0], s.sent) > 0.95 && s.ecn[1] == 0 }},
		{Fault{Kind: "nic-slow", At: "h2/e", Direction: "in", Delay: ms}, 0, func(s sum) bool { return near(s.mean(0), ms, ms/10) && s.mean(1) < ms/10 }},
		{Fault{Kind: "nic-slow", At: "h2/e", Direction: "out", Delay: ms}, 0, func(s sum) bool { return near(s.mean(1), ms, ms/10) && s.mean(0) < ms/10 }},
		{Fault{Kind: "nic-slow", At: "h2/e", Delay: ms}, 0, func(s sum) bool { return near(s.mean(1), ms, ms/10) && near(s.mean(0), ms, ms/10) }},
		{Fault{Kind: "switch-slow", At: "l2", Delay: ms}, 0, func(s sum) bool { return near(s.mean(1), ms, ms/10) && near(s.mean(0), ms, ms/10) }},
		{Fault{Kind: "incast", At: "h1/e", Delay: 2 * ms}, time.Second, func(s sum) bool { return s.mean(1) > ms/4 && s.mean(0) < ms/10 && s.ecn[1] > 0 && s.ecn[0] == 0 }},
		{Fault{Kind: "congest", At: "l1:d1", Delay: 2 * ms}, time.Second, func(s sum) bool { return s.mean(1) > 7*ms/10 && s.mean(0) < ms/10 && s.ecn[1] > 0 }},
		{Fault{Kind: "link-down", At: "l2:u1--s1:d2"}, 0, func(s sum) bool { return half(1 - ratio(s.received, s.sent)) }},
		{Fault{Kind: "link-down", At: "l2:u1--s1:d2"}, 4 * time.Second, func(s sum) bool { return ratio(s.acked, s.sent) > 0.98 }},
		{Fault{Kind: "flap", At: "l2:u1--s1:d2"}, 0, func(s sum) bool { r := 1 - ratio(s.received, s.sent); return r > 0.02 && r < 0.2 }},
		{Fault{Kind: "miscable", At: "l1:u1--s1:d1,l2:u1--s1:d2"}, 0, func(s sum) bool { return ratio(s.acked, s.sent) > 0.98 }},
		{Fault{Kind: "mute", At: "s1"}, 0, func(s sum) bool { return ratio(s.acked, s.sent) > 0.98 && s.mean(0) < ms/10 }},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.fault.Kind, " ", tt.fault.At, " ", tt.fault.Direction), func(t *testing.T) {
			b := newBench(t, 0, false)
			b.T = t
			b.pass(time.Second)
			heal := b.fault(tt.fault)
			b.pass(tt.wait + 20*ms)
			if s := b.over(2*time.Second, "h1", "h2"); !tt.right(s) {
				t.Errorf("%+v, mean %s and %s", s, s.mean(0), s.mean(1))
			}
			heal()
			b.pass(time.Second)
			if s := b.over(2*time.Second, "h1", "h2"); ratio(s.acked, s.sent) < 0.98 || s.lost != [2]uint64{} || s.ecn != [2]uint64{} || s.mean(0) > ms/10 || s.mean(1) > ms/10 {
				t.Errorf("healed: %+v, mean %s and %s", s, s.mean(0), s.mean(1))
			}
		})
	}
}

// TestWithdrawnAfterThreeSeconds: probes are lost until then and no longer.
func TestWithdrawnAfterThreeSeconds(t *testing.T) {
	b := newBench(t, 0, false)
	b.pass(time.Second)
	b.fault(Fault{Kind: "link-down", At: "l2:u1--s1:d2"})
	if s := b.over(WithdrawAfter-20*time.Millisecond, "h1", "h2"); ratio(s.received, s.sent) > 0.85 {
		t.Errorf("before: %+v", s)
	}
	b.pass(40 * time.Millisecond)
	if s := b.over(time.Second, "h1", "h2"); ratio(s.received, s.sent) < 0.98 {
		t.Errorf("after: %+v", s)
	}
}

// TestStarvedHost checks rule 2: a starved host sends a fifth of its probes, its stamps show no delay, nothing is
// lost, and its loop reports that it ran late. The others' loops do not.
func TestStarvedHost(t *testing.T) {
	b := newBench(t, 0, false)
	b.pass(time.Second)
	heal := b.fault(Fault{Kind: "host-stall", At: "h1"})
	s := b.over(5*time.Second, "h1", "h2")
	if part := float64(s.sent) / (5 * 100 * flows); part < 0.1 || part > 0.3 {
		t.Errorf("sent %.2f of its probes", part)
	}
	if s.lost != [2]uint64{} || s.mean(0) > 20*time.Microsecond || s.mean(1) > 20*time.Microsecond {
		t.Errorf("%+v, mean %s and %s", s, s.mean(0), s.mean(1))
	}
	if stalled := b.engines["h1"].Snapshot().NICs[0].Stalled; stalled < 3*time.Second || stalled > 5*time.Second {
		t.Errorf("stalled for %s", stalled)
	}
	if stalled := b.engines["h2"].Snapshot().NICs[0].Stalled; stalled != 0 {
		t.Errorf("the other host stalled for %s", stalled)
	}
	other := b.over(time.Second, "h3", "h1")
	if ratio(other.received, other.sent) < 0.7 || other.mean(0) > 20*time.Microsecond {
		t.Errorf("towards it: %+v, mean %s", other, other.mean(0))
	}
	heal()
	b.pass(time.Second)
	if s := b.over(time.Second, "h1", "h2"); s.sent != 100*flows || ratio(s.acked, s.sent) < 0.95 {
		t.Errorf("healed: %+v", s)
	}
}

// TestClockFaults checks rule 3: forward and reverse move by opposite amounts, and their sum does not change.
func TestClockFaults(t *testing.T) {
	for _, tt := range []struct {
		fault Fault
		want  time.Duration // after a second, on the mean of the next
	}{{Fault{Kind: "clock-step", At: "h2/e", Step: 3 * time.Millisecond}, 3 * time.Millisecond},
		{Fault{Kind: "clock-step", At: "h2/e"}, time.Millisecond},
		{Fault{Kind: "clock-drift", At: "h2/e", DriftPPM: 1000}, 1500 * time.Microsecond}} {
		b := newBench(t, 0, false)
		b.pass(time.Second)
		before := b.over(time.Second, "h1", "h2")
		b.fault(tt.fault)
		b.pass(time.Second)
		s := b.over(time.Second, "h1", "h2")
		if moved := s.mean(0) - before.mean(0); math.Abs(float64(moved-tt.want)) > float64(tt.want)/20 {
			t.Errorf("%s: forward moved by %s, want %s", tt.fault.Kind, moved, tt.want)
		}
		if both := s.mean(0) + s.mean(1) - before.mean(0) - before.mean(1); both.Abs() > 20*time.Microsecond {
			t.Errorf("%s: the sum moved by %s", tt.fault.Kind, both)
		}
	}
}

// TestTraces: the paths that an agent traces are those that packets take, at that
// moment.
func TestTraces(t *testing.T) {
	b := newBench(t, 0, false)
	b.pass(time.Second)
	trace := func(edge string) probe.TracedPath {
		t.Helper()
		e, err := fabric.ParseFlow(edge)
		if err != nil {
			t.Fatal(err)
		}
		node := e.Src
		if e.Reply {
			node = e.Dst
		}
		p, err := b.engines[fabric.OwnerOf(node)].TraceFlows(context.Background(), []fabric.Flow{e})
		if err != nil {
			t.Fatal(err)
		}
		return p[0]
	}
	for _, edge := range []string{"h1/e>h2/e#0", "h1/e>h2/e#1/r"} {
		p := trace(edge)
		if p.State != fabric.PathValid || len(p.Hops) != 3 || p.Reached == p.Edge.Reply {
			t.Errorf("%s: %+v", edge, p)
		}
		first := "10.0.1.1"
		if p.Edge.Reply {
			first = "10.0.2.1"
		}
		if p.Hops[0].Address != netip.MustParseAddr(first) {
			t.Errorf("%s: the first switch is entered by %s", edge, p.Hops[0].Address)
		}
	}
	spine := trace("h1/e>h2/e#0").Hops[1].Address
	link := map[bool]string{true: "l2:u1--s1:d2", false: "l2:u2--s2:d2"}[spine == netip.MustParseAddr("172.16.1.1")]
	b.fault(Fault{Kind: "link-down", At: link})
	if p := trace("h1/e>h2/e#0"); p.State == fabric.PathValid {
		t.Errorf("over a link that is down: %+v", p)
	}
	b.pass(WithdrawAfter + time.Second)
	if p := trace("h1/e>h2/e#0"); p.State != fabric.PathValid || p.Hops[1].Address == spine {
		t.Errorf("withdrawn: %+v", p)
	}
}

// TestSightings: a switch sees the flows that cross it, by the ports they enter,
// and what is plugged in.
func TestSightings(t *testing.T) {
	b := newBench(t, 0, false)
	eyes, err := b.SightingSource("s1")
	if err != nil {
		t.Fatal(err)
	}
	b.pass(time.Second)
	sweep := func() map[string]int {
		seen := map[string]int{}
		if err := eyes.SweepFlows(context.Background(), func(k *sighting.Key, s sighting.Sample) {
			f := k.Flow()
			if (f.Src.Port() == 862) == (f.Dst.Port() == 862) || s.First > s.Last || s.Count == 0 {
				t.Errorf("%v: %+v", f, s)
			}
			seen[eyes.PortNames()[s.Port-1]+" "+f.String()]++
		}); err != nil {
			t.Fatal(err)
		}
		return seen
	}
	seen := sweep()
	if len(seen) < 4 || len(seen) > 28 {
		t.Errorf("%d of 32 directed flows between leaves: %v", len(seen), seen)
	}
	if again := sweep(); len(again) != 0 {
		t.Errorf("nothing happened since, but it reports %v", again)
	}
	b.fault(Fault{Kind: "miscable", At: "l1:u1--s1:d1,l2:u1--s1:d2"})
	b.pass(time.Second)
	for key := range sweep() {
		if seen[key] != 0 {
			t.Errorf("after the swap still seen at %s", key)
		}
	}
	far := map[string]string{}
	for _, n := range eyes.Neighbours() {
		far[n.Port] = n.System + ":" + n.SystemPort
	}
	if far["d1"] != "l2:u1" || far["d2"] != "l1:u1" {
		t.Errorf("neighbours %v", far)
	}
}

// TestBadFaults: what cannot be broken is refused, and leaves nothing behind.
func TestBadFaults(t *testing.T) {
	b := newBench(t, 0, false)
	for _, f := range []Fault{{Kind: "gremlins", At: "s1"}, {Kind: "delay", At: "l1:u1--s2:d1"}, {Kind: "delay", At: "s1"}, {Kind: "delay", At: "l1:u1--s1:d1", Delay: -1},
		{Kind: "delay", At: "l1:u1--s1:d1", Direction: "l1:u2->s2:d1"}, {Kind: "loss", At: "l1:u1--s1:d1", Loss: 1.5}, {Kind: "loss", At: "l1:u1--s1:d1", Loss: math.NaN()},
		{Kind: "nic-slow", At: "s1:d1"}, {Kind: "nic-slow", At: "h1/e", Direction: "up"}, {Kind: "switch-slow", At: "h1"}, {Kind: "mute", At: "h1"}, {Kind: "incast", At: "h9/e"},
		{Kind: "congest", At: "l9:u1"}, {Kind: "link-down", At: "h1"}, {Kind: "miscable", At: "l1:u1--s1:d1"}, {Kind: "miscable", At: "l1:u1--s1:d1,l1:u1--s1:d1"},
		{Kind: "miscable", At: "l1:u1--s1:d1,h1/e--l1:d1"}, {Kind: "host-stall", At: "s1"}, {Kind: "clock-step", At: "h9/e"}} {
		if id, err := b.AddFault(f); err == nil {
			t.Errorf("%+v is fault %s", f, id)
		}
	}
	if err := b.ClearFault("f1"); err == nil {
		t.Error("a fault that is none is cleared")
	}
	b.pass(time.Second)
	if s := b.over(time.Second, "h1", "h2"); ratio(s.acked, s.sent) < 0.98 || s.lost != [2]uint64{} {
		t.Errorf("%+v", s)
	}
}

// TestAgentWithARightClock starts an agent without a bend: its clock shows the time of the fabric, and no fault can
// change that.
func TestAgentWithARightClock(t *testing.T) {
	topo := small(t)
	base := time.Now()
	f := New(topo, base, 0, 1, slog.New(slog.DiscardHandler))
	n := &topo.Nodes[0]
	cfg := &probe.Config{Node: n.Name, Cadence: time.Second, ReplyTimeout: time.Second, Stamp: probe.StampConfig{Port: 862, SourcePort: 49152, Classes: []probe.ClassConfig{{}}},
		NICs: []probe.NICConfig{{NIC: n.Name + "/e", Address: n.NICs[0].Addresses[0]}}, Trace: probe.TraceConfig{PacketsPerSecond: 100, PacketsPerSwitch: 10, Concurrency: 4}}
	e, err := f.Start(cfg, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	f.AdvanceTo(time.Second)
	now := base.Add(time.Second)
	if !e.Now().Equal(now) || e.NodeTime(now.UnixNano()) != now.UnixNano() {
		t.Errorf("the clock shows %v at %v, want the time of the fabric, %v", e.NodeTime(now.UnixNano()), e.Now(), now)
	}
	if _, err := f.AddFault(Fault{Kind: "clock-step", At: n.Name + "/e"}); err == nil {
		t.Error("a clock that cannot be made wrong was stepped")
	}
	if _, err := f.Start(cfg, nil, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a second agent of the node was started")
	}
}

// signalBench returns agents on the small fabric whose flows carry in-band signals, and the profile.
func signalBench(t *testing.T, format csig.Format) *bench {
	t.Helper()
	topo := small(t)
	a := locator.AssignLocators(fabric.NewGraph(topo))
	text, err := yaml.Marshal(map[string]any{"ethertypes": map[string]int{"compact": 0x88b5, "wide": 0x88b6}, "interval": "10ms", "fastest_gbps": 100,
		"locators": map[string]any{"compact": a.LocatorsOf(csig.Compact), "wide": a.LocatorsOf(csig.Wide)}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := csig.ParseProfile("csig.yml", text)
	if err != nil {
		t.Fatal(err)
	}
	return newBenchWith(t, 0.2, false, &probe.Signals{Profile: p, Format: format, Kinds: []csig.Signal{csig.Share, csig.Delay}, Flows: 1000})
}

// TestSignals congests a port: the tags of the flows that cross it name it in the direction of the congestion, with a small share and a
// delay, and those of other flows do not.
func TestSignals(t *testing.T) {
	for _, format := range csig.Formats {
		t.Run(format.String(), func(t *testing.T) {
			b := signalBench(t, format)
			b.pass(2 * time.Second)
			if _, err := b.AddFault(Fault{Kind: "congest", At: "l1:u1", Delay: 2 * time.Millisecond}); err != nil {
				t.Fatal(err)
			}
			b.pass(2 * time.Second)
			before := map[string]uint64{}
			named := func(name string, d observe.DirectionStats) (own, all uint64) {
				for _, c := range d.Packets {
					key := fmt.Sprintf("%s %v %v %d", name, c.Signal, c.Format, c.Locator)
					n := c.Packets - before[key]
					before[key] = c.Packets
					if all += n; slices.Contains(b.signals.Profile.PortsOf(c.Format, c.Locator), "l1:u1") {
						own += n
					}
				}
				return own, all
			}
			crossing, others := 0, 0
			for turn := range 2 {
				for node, e := range b.engines {
					for _, f := range e.SignalStats().Flows {
						for d := range f.Directions {
							edge := fabric.Flow{Src: f.Src, Dst: f.Dst, Number: f.Number, Reply: d == 1}
							hops, _ := b.traceEdge(edge, false)
							crosses := false
							for _, h := range hops {
								// The port s1:d1 is the other end of l1:u1.
								crosses = crosses || h.Address == netip.MustParseAddr("172.16.1.1")
							}
							own, all := named(node+edge.String(), f.Directions[d])
							if turn == 0 {
								continue
							}
							share, delay := f.Directions[d].Last[csig.Share], f.Directions[d].Last[csig.Delay]
							switch {
							case crosses:
								crossing++
								if own*100 < all*99 || all < 50 || !share.Known || share.Upper > csig.Million/10 || !delay.Known || delay.Lower < 500_000 {
									t.Errorf("%v: %d of %d tags name the port; share %+v, delay %+v", edge, own, all, share, delay)
								}
							default:
								others++
								if !share.Known || share.Lower < csig.Million/4 || delay.Known && delay.Lower > 500_000 {
									t.Errorf("%v does not cross the port: share %+v, delay %+v", edge, share, delay)
								}
							}
						}
					}
				}
				b.pass(2 * time.Second)
			}
			if crossing < 4 || others < 20 {
				t.Errorf("%d flows cross the port, %d do not", crossing, others)
			}
		})
	}
}

// TestSwitchThatDropsTags has a spine that drops tagged packets: the paths over it are not supported, and the switch is named by its
// address. The others are supported.
func TestSwitchThatDropsTags(t *testing.T) {
	b := signalBench(t, csig.Compact)
	if err := b.DropTags("s2", true); err != nil {
		t.Fatal(err)
	}
	over := func(f observe.FlowStats, reply bool) netip.Addr {
		hops, _ := b.traceEdge(fabric.Flow{Src: f.Src, Dst: f.Dst, Number: f.Number, Reply: reply}, false)
		for _, h := range hops {
			if h.Address == netip.MustParseAddr("172.16.2.1") || h.Address == netip.MustParseAddr("172.16.4.1") {
				return h.Address
			}
		}
		return netip.Addr{}
	}
	b.pass(2 * time.Second)
	deadline := time.Now().Add(30 * time.Second)
	for missing := -1; missing != 0; time.Sleep(50 * time.Millisecond) {
		b.pass(20 * time.Millisecond) // paths are traced while there are answers
		missing = 0
		for _, e := range b.engines {
			for _, f := range e.SignalStats().Flows {
				forward, reply := over(f, false), over(f, true)
				want := observe.Supported
				if forward.IsValid() || reply.IsValid() {
					want = observe.Unsupported
				}
				if f.Supported != want {
					t.Fatalf("%s>%s#%d over s2 %v, its replies %v: %v", f.Src, f.Dst, f.Number, forward.IsValid(), reply.IsValid(), f.Supported)
				}
				if f.DroppedAt != forward {
					missing++
				}
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the switch is not found for %d flows", missing)
		}
	}
}
