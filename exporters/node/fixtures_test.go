package node

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/nodeagent"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/window"
)

// madeUp is a Source with contents that the test chooses.
type madeUp struct {
	snap  *probe.Snapshot
	paths []probe.TracedPath
	cfg   *probe.Config
	copy  bool // copies the histograms, as an engine does
}

func (m *madeUp) TracedPaths() (uint64, []probe.TracedPath) { return 7, m.paths }
func (m *madeUp) TraceStats() (sent, answered uint64)       { return 900, 890 }
func (m *madeUp) Config() *probe.Config                     { return m.cfg }

func (m *madeUp) Snapshot() *probe.Snapshot {
	if !m.copy {
		return m.snap
	}
	s := &probe.Snapshot{NICs: slices.Clone(m.snap.NICs)}
	for i := range s.NICs {
		n := &s.NICs[i]
		n.KernelDelay, n.NICDelay = n.KernelDelay.Clone(), n.NICDelay.Clone()
		n.Edges = slices.Clone(n.Edges)
		n.Received = slices.Clone(n.Received)
		for j := range n.Edges {
			for d := range directionNames {
				o := &n.Edges[j].OWD[d]
				*o = probe.Delays{Hardware: o.Hardware.Clone(), Kernel: o.Kernel.Clone(), User: o.User.Clone()}
			}
		}
	}
	return s
}

func (m *madeUp) state() nodeagent.State {
	return nodeagent.State{Source: m, Started: time.Unix(1700000000, 0), Loaded: time.Unix(1700000100, 500e6), ReloadOK: true, Windows: m}
}

// CountConditions implements nodeagent.Conditions. The first flow of each NIC is lossy.
func (m *madeUp) CountConditions() map[string]map[window.Condition]int {
	out := map[string]map[window.Condition]int{}
	for _, n := range m.Snapshot().NICs {
		out[n.NIC] = map[window.Condition]int{window.Healthy: max(0, len(n.Edges)-1), window.Lossy: min(1, len(n.Edges)), window.Shifted: 0, window.Silent: 0, window.Unjudged: 0}
	}
	return out
}

func (m *madeUp) read(f func(nodeagent.State)) { f(m.state()) }

// sources returns the sources of a node that has nothing but its engine. No time passes while they are read.
func (m *madeUp) sources() *sources {
	return &sources{readState: m.read, now: func() time.Time { return time.Unix(1700000300, 0) }, uptime: func() time.Duration { return time.Hour }}
}

// gatherers returns the gatherers of /metrics, /metrics/nics and /metrics/edges.
func (m *madeUp) gatherers() (metrics, nics, edges prometheus.Gatherer) {
	r := newRuns()
	return newGatherer(m.sources(), metricsConstructors(), r, true), newGatherer(m.sources(), nicsConstructors(), r, false), newGatherer(m.sources(), edgesConstructors(), r, false)
}

// delays observes n delays as a loaded fabric shows them: a lognormal body, at times a queue, and rarely a stall of
// milliseconds.
func delays(rng *rand.Rand, h *probe.Histogram, n int) {
	base := 4000 + 8000*rng.Float64()
	for range n {
		v := base * math.Exp(0.12*rng.NormFloat64())
		switch p := rng.Float64(); {
		case p < 0.0005:
			v += 3e6 * rng.ExpFloat64()
		case p < 0.03:
			v += 40e3 * rng.ExpFloat64()
		}
		h.Observe(int64(v))
	}
}

// fleetNode returns a node of 8 NICs with 64 edges each that holds the probes of an hour.
func fleetNode(leaves int) *madeUp {
	rng := rand.New(rand.NewPCG(11, 12))
	bound := 2 * time.Microsecond
	m := &madeUp{copy: true, snap: &probe.Snapshot{}, cfg: &probe.Config{Node: "gpu-node-0117", Hash: "0123456789abcdef", ErrorBound: &bound, ClockSync: true}}
	for i := range 8 {
		rail := i
		n := probe.NICStats{NICConfig: probe.NICConfig{NIC: fmt.Sprintf("gpu-node-0117/mlx5_%d", i), Address: netip.AddrFrom4([4]byte{10, byte(i), 1, 17}),
			Leaf: fmt.Sprintf("leaf-p1-r%d-03", i), LeafPort: "Ethernet1/17", Plane: "a", Rail: &rail, Pod: "p1", Side: "left"},
			Stalled: 1500 * time.Millisecond, LastTurn: time.Unix(1700003600, 0), Sessions: 64, TxKind: "kernel", RxKind: "kernel",
			Dropped:    map[string]uint64{"malformed": 0, "unregistered": 3, "rate_limited": 0, "session_limit": 0, "unsolicited": 1, "foreign_ssid": 0, "trace_copy": 44},
			Missing:    map[string]uint64{"t1": 1, "t2": 0, "t3": 2, "t4": 0},
			SendErrors: map[string]uint64{}, Restarts: map[string]uint64{"sender": 1, "reflector": 2},
			Sockets: []probe.SocketStats{{Name: "sender"}, {Name: "reflector", Drops: 5}}}
		delays(rng, &n.KernelDelay, 20_000)
		for j := range 64 {
			e := probe.EdgeStats{Edge: fabric.Flow{Src: n.NIC, Dst: fmt.Sprintf("gpu-node-%04d/mlx5_%d", 200+j, i), Number: j % 4}, Class: "roce", Tier: 1 + j%3, Plane: "a",
				Leaf: n.Leaf, PeerLeaf: fmt.Sprintf("leaf-p%d-r%d-%02d", 1+j%3, i, j%leaves), Unresolved: uint64(j % 2)}
			e.Sent, e.Acked, e.RepliesSent = 360_000+uint64(j), 359_990, 359_995
			e.Lost, e.ECN = [2]uint64{uint64(j % 3), 1}, [2]uint64{17, 0}
			for d := range directionNames {
				delays(rng, &e.OWD[d].Kernel, 5_000)
			}
			n.Edges = append(n.Edges, e)
			n.Received = append(n.Received, probe.ReceivedStats{Edge: fabric.Flow{Src: e.Edge.Dst, Dst: n.NIC, Number: e.Edge.Number}, Class: "roce", Tier: e.Tier, Plane: "a", Received: 359_990})
			m.paths = append(m.paths, probe.TracedPath{State: fabric.PathState("valid")})
		}
		m.snap.NICs = append(m.snap.NICs, n)
	}
	return m
}

// smallNode returns a node that has one of everything that is published.
func smallNode() *madeUp {
	bound, rail := 1500*time.Nanosecond, 0
	m := &madeUp{cfg: &probe.Config{Node: "h1", Hash: "00ff00ff00ff00ff", ErrorBound: &bound, ClockSync: true},
		paths: []probe.TracedPath{{State: fabric.PathState("valid")}, {State: fabric.PathState("valid")}, {State: fabric.PathState("stale")}}}
	n := probe.NICStats{NICConfig: probe.NICConfig{NIC: "h1/eth1", Leaf: "leaf1", LeafPort: "dn1", Plane: "a", Rail: &rail, Pod: "p1", Side: "left"},
		Stalled: 250 * time.Millisecond, LastTurn: time.Unix(1700000200, 0), Sessions: 2, TxKind: "kernel", RxKind: "kernel",
		Unbound: 2,
		Sockets: []probe.SocketStats{{Name: "sender0"}, {Name: "reflector", Drops: 5}},
		Unread:  map[string]uint64{"socket_full": 5, "unverified": 9}, Forgers: []probe.Forger{{From: "other", Packets: 3}, {From: "10.0.0.2", Packets: 700}},
		SendErrors: map[string]uint64{"ENETUNREACH": 4}, Dropped: map[string]uint64{"malformed": 1, "unregistered": 2},
		Missing: map[string]uint64{"t1": 1, "t4": 0}, Restarts: map[string]uint64{"sender": 0, "reflector": 1},
		ICMPErrors: []probe.ICMPErrors{{Type: 3, Code: 3, Count: 6}},
		Refusals:   []probe.RefusalCount{{From: netip.MustParseAddr("fd00::3"), SID: 2, Answers: 7, Flows: 1}, {From: netip.MustParseAddr("fd00::4"), SID: 2, Answers: 1}}}
	for i := range int64(40) {
		n.KernelDelay.Observe(2_000 + 100*i)
	}
	for j, dst := range []string{"h2/eth1", "h3/eth1", "h4/eth1"} {
		e := probe.EdgeStats{Edge: fabric.Flow{Src: "h1/eth1", Dst: dst, Number: j}, Class: "roce", Tier: 1, Plane: "a", Leaf: "leaf1", PeerLeaf: "leaf1"}
		e.Sent, e.Acked, e.Late, e.Duplicate, e.Reordered, e.RepliesSent, e.Unresolved = 100, 95, 2, 1, 3, 98, 4
		e.Lost, e.ECN = [2]uint64{2, 1}, [2]uint64{7, 8}
		e.Carried = j > 0
		switch j {
		case 1: // a clock behind: negative delays, zeros, gaps of one to four buckets
			e.PeerLeaf, e.Tier = "leaf2", 2
			for _, ns := range []int64{-9000, -8000, -8000, -1, 0, 1, 2, 3, 5, 9, 100, 110, 125, 150, 1e9, math.MaxInt64, math.MinInt64} {
				e.OWD[0].Kernel.Observe(ns)
			}
			e.OWD[1].User.Observe(51_000)
			e.OWD[1].User.Observe(52_000)
			e.Unplaced = [2]uint64{12, 11}
		case 2: // not a sample yet
			e.PeerLeaf, e.Tier = "leaf2", 2
			e.FlowCounters = probe.FlowCounters{}
		default:
			for i := range int64(90) {
				e.OWD[0].Kernel.Observe(4_000 + 50*i)
				e.OWD[1].Kernel.Observe(6_000 + 20*i)
			}
			e.OWD[0].User.Observe(50_000)
		}
		n.Edges = append(n.Edges, e)
		n.Received = append(n.Received, probe.ReceivedStats{Edge: fabric.Flow{Src: dst, Dst: "h1/eth1", Number: j}, Class: "roce", Tier: e.Tier, Plane: "a", Received: uint64(10 * j)})
	}
	hardware := probe.NICStats{NICConfig: probe.NICConfig{NIC: "h1/eth2"}, TxKind: "hardware", RxKind: "hardware", Unmatched: 3, Skipped: 9, Overrun: 13}
	for i := range int64(30) {
		hardware.NICDelay.Observe(800 + 10*i)
	}
	e := probe.EdgeStats{Edge: fabric.Flow{Src: "h1/eth2", Dst: "h2/eth2"}, Class: "roce", Tier: 1, Plane: "b"}
	for i := range int64(60) {
		e.OWD[0].Hardware.Observe(3_000 + 10*i)
		e.OWD[1].Hardware.Observe(3_100 + 10*i)
	}
	e.OWD[0].Kernel.Observe(4_321) // a stamp of the NIC that did not come
	hardware.Edges = []probe.EdgeStats{e}
	m.snap = &probe.Snapshot{NICs: []probe.NICStats{n, hardware}}
	return m
}

// filledNode returns a node whose counts all differ, also those of fields that no other node has. A series of the wrong
// field has a wrong value.
func filledNode() *madeUp {
	m := smallNode()
	next := uint64(1000)
	for i := range m.snap.NICs {
		n := &m.snap.NICs[i]
		fillCounts(reflect.ValueOf(n).Elem(), &next)
		for j := range n.Edges {
			fillCounts(reflect.ValueOf(&n.Edges[j]).Elem(), &next)
		}
	}
	return m
}

// fillCounts sets the whole numbers of a struct to numbers that grow from next on.
func fillCounts(v reflect.Value, next *uint64) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[probe.Histogram]() {
			return // its counts depend on each other
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fillCounts(v.Field(i), next)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			fillCounts(v.Index(i), next)
		}
	case reflect.Uint64:
		v.SetUint(*next)
		*next++
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*next))
		*next++
	}
}
