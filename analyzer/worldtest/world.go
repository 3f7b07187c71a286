// Package worldtest is a fabric with faults, for tests: it measures flows, and traces them.
package worldtest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/sourceroute"
)

// World represents a fabric with the faults of a test. Its noise has an exponential tail, which is not the
// inference's error model.
type World struct {
	Graph *fabric.Graph
	Paths map[fabric.Flow]fabric.Path
	Flows []fabric.Flow
	// Carriers are the lists of the switches that packets take, where hosts choose their paths.
	Carriers map[fabric.Flow]netip.Addr
	// Delay and Loss are what directed links add, in nanoseconds, and lose. Slow is what whole switches add.
	Delay map[fabric.Direction]int64
	Loss  map[fabric.Direction]float64
	Slow  map[string]int64
	// Clock is by how much a NIC's clock is ahead, in nanoseconds.
	Clock map[string]int64
	// FlowDelay is what single flows suffer, in nanoseconds.
	FlowDelay map[fabric.Flow]int64
	// HiddenShare is the share of flows whose path is unknown.
	HiddenShare float64
	// WithBaselines means that observations carry a baseline.
	WithBaselines bool

	// Random is the source of the noise.
	Random *rand.Rand
}

// NewClos returns a fabric of spines and leaves, with hosts of one NIC at each leaf.
func NewClos(t testing.TB, spines, leaves, hosts int) *fabric.Graph {
	t.Helper()
	return newPlanes(t, spines, leaves, hosts, "a")
}

// NewTwoPlanes returns two fabrics of two spines and four leaves, planes a and b, that share the hosts: each has a NIC in
// both. Names in plane b begin with b.
func NewTwoPlanes(t testing.TB) *fabric.Graph {
	t.Helper()
	return newPlanes(t, 2, 4, 3, "a", "b")
}

// newPlanes returns a fabric of planes of spines and leaves. The switches of all planes but the first have its name before
// theirs.
func newPlanes(t testing.TB, spines, leaves, hosts int, planes ...string) *fabric.Graph {
	t.Helper()
	var switches, nodes, links strings.Builder
	for i, plane := range planes {
		prefix := ""
		if i > 0 {
			prefix = plane
		}
		for s := 1; s <= spines; s++ {
			fmt.Fprintf(&switches, "  - {name: %sspine%d, role: spine, plane: %s}\n", prefix, s, plane)
		}
		for l := 1; l <= leaves; l++ {
			fmt.Fprintf(&switches, "  - {name: %sleaf%d, role: leaf, plane: %s}\n", prefix, l, plane)
			for h := 1; h <= hosts; h++ {
				n := (l-1)*hosts + h
				fmt.Fprintf(&links, "  - {a: \"h%d/eth%d\", b: \"%sleaf%d:dn%d\", a_address: 1%d.%d.%d.2/24, b_address: 1%d.%d.%d.1/24}\n", n, i+1, prefix, l, h, i, n/256, n%256, i, n/256, n%256)
			}
			for s := 1; s <= spines; s++ {
				fmt.Fprintf(&links, "  - {a: \"%sleaf%d:up%d\", b: \"%sspine%d:dn%d\", a_address: 172.%d.%d.%d/31, b_address: 172.%d.%d.%d/31}\n", prefix, l, s, prefix, s, l, 16+i, l, 2*s, 16+i, l, 2*s+1)
			}
		}
	}
	for h := 1; h <= leaves*hosts; h++ {
		var nics []string
		for i, plane := range planes {
			nics = append(nics, fmt.Sprintf("{device: eth%d, plane: %s}", i+1, plane))
		}
		fmt.Fprintf(&nodes, "  - {name: h%d, nics: [%s]}\n", h, strings.Join(nics, ", "))
	}
	topo, found := fabric.ParseTopology("t.yaml", []byte("version: 1\nswitches:\n"+switches.String()+"nodes:\n"+nodes.String()+"links:\n"+links.String()))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(topo)
}

// NewTwoPods returns two pods of two leaves and two spines with two hosts at each leaf. A core switch has one link to each pod, so that the same flows
// cross both of its links.
func NewTwoPods(t testing.TB) *fabric.Graph {
	t.Helper()
	switches, nodes, links := "", "", ""
	cable := 0
	link := func(a, b string) {
		cable++
		links += fmt.Sprintf("  - {a: %q, b: %q, a_address: 172.16.%d.0/31, b_address: 172.16.%d.1/31}\n", a, b, cable, cable)
	}
	for pod := 1; pod <= 2; pod++ {
		for i := 1; i <= 2; i++ {
			switches += fmt.Sprintf("  - {name: p%dl%d, role: leaf, pod: p%d, plane: a}\n  - {name: p%ds%d, role: spine, pod: p%d, plane: a}\n", pod, i, pod, pod, i, pod)
			link(fmt.Sprintf("p%ds%d:up1", pod, i), fmt.Sprintf("c%d:dn%d", i, pod))
			for k := 1; k <= 2; k++ {
				link(fmt.Sprintf("p%dl%d:up%d", pod, i, k), fmt.Sprintf("p%ds%d:dn%d", pod, k, i))
				host := fmt.Sprintf("h%d%d%d", pod, i, k)
				nodes += fmt.Sprintf("  - {name: %s, nics: [{device: eth1, plane: a}]}\n", host)
				link(host+"/eth1", fmt.Sprintf("p%dl%d:dn%d", pod, i, k))
			}
		}
	}
	topo, found := fabric.ParseTopology("t.yaml", []byte("version: 1\nswitches:\n"+switches+"  - {name: c1, role: core, plane: a}\n  - {name: c2, role: core, plane: a}\nnodes:\n"+nodes+"links:\n"+links))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(topo)
}

// NewPods returns pods of two leaves and two spines with hosts of one NIC at each leaf. Each spine has a link to two core
// switches, which have one to each pod.
func NewPods(t testing.TB, pods, hosts int) *fabric.Graph {
	t.Helper()
	switches, nodes, links := "", "", ""
	cable := 0
	link := func(a, b string) {
		cable++
		links += fmt.Sprintf("  - {a: %q, b: %q, a_address: 172.16.%d.%d/31, b_address: 172.16.%d.%d/31}\n", a, b, cable/128, cable%128*2, cable/128, cable%128*2+1)
	}
	for pod := 1; pod <= pods; pod++ {
		for i := 1; i <= 2; i++ {
			switches += fmt.Sprintf("  - {name: p%dl%d, role: leaf, pod: p%d, plane: a}\n  - {name: p%ds%d, role: spine, pod: p%d, plane: a}\n", pod, i, pod, pod, i, pod)
			for k := 1; k <= 2; k++ {
				link(fmt.Sprintf("p%ds%d:up%d", pod, i, k), fmt.Sprintf("c%d%d:dn%d", i, k, pod))
				link(fmt.Sprintf("p%dl%d:up%d", pod, i, k), fmt.Sprintf("p%ds%d:dn%d", pod, k, i))
			}
			for k := 1; k <= hosts; k++ {
				host := fmt.Sprintf("h%d%d%d", pod, i, k)
				nodes += fmt.Sprintf("  - {name: %s, nics: [{device: eth1, plane: a}]}\n", host)
				link(host+"/eth1", fmt.Sprintf("p%dl%d:dn%d", pod, i, k))
			}
		}
	}
	for i := 1; i <= 2; i++ {
		switches += fmt.Sprintf("  - {name: c%d1, role: core, plane: a}\n  - {name: c%d2, role: core, plane: a}\n", i, i)
	}
	topo, found := fabric.ParseTopology("t.yaml", []byte("version: 1\nswitches:\n"+switches+"nodes:\n"+nodes+"links:\n"+links))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(topo)
}

// NewWorld returns a world without faults, in which all NICs of a plane probe each other. A seed always gives the same world.
func NewWorld(g *fabric.Graph, seed uint64) *World {
	w := newEmptyWorld(g, seed)
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			if src == dst {
				continue
			}
			for _, reply := range []bool{false, true} {
				e := fabric.Flow{Src: src, Dst: dst, Reply: reply}
				from, to := e.Endpoints()
				all := g.ShortestPaths(from, to, 16)
				if len(all) == 0 {
					continue // no cable joins their planes
				}
				w.Paths[e] = all[w.Random.IntN(len(all))]
				w.Flows = append(w.Flows, e)
			}
		}
	}
	return w
}

// NewScheduledWorld returns a world without faults with the flows that the coordinator would schedule. A seed always gives the same world.
func NewScheduledWorld(t testing.TB, g *fabric.Graph, seed uint64) *World {
	t.Helper()
	s, err := schedule.Make(g, schedule.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	w := newEmptyWorld(g, seed)
	between := map[[2]string][]fabric.Path{} // by leaves, from the first switch to the last one
	for i := range s.Edges {
		e := s.FlowID(s.Edges[i])
		for _, e.Reply = range []bool{false, true} {
			w.addFlow(e, between)
		}
	}
	return w
}

// addFlow adds a flow on a random one of its shortest paths, which are kept by the leaves of its ends.
func (w *World) addFlow(e fabric.Flow, between map[[2]string][]fabric.Path) {
	const limit = 256
	from, to := e.Endpoints()
	first, in := w.Graph.LeafOf(from)
	last, out := w.Graph.LeafOf(to)
	all, known := between[[2]string{first, last}]
	if !known {
		all, _ = w.Graph.CandidatePaths(from, to, limit)
		between[[2]string{first, last}] = all
	}
	if len(all) == 0 {
		return // no cable joins their planes
	}
	p := slices.Clone(all[w.Random.IntN(len(all))])
	p[0].In, p[len(p)-1].Out = in, out
	w.Paths[e] = p
	w.Flows = append(w.Flows, e)
}

// newEmptyWorld returns a world without flows and faults.
func newEmptyWorld(g *fabric.Graph, seed uint64) *World {
	return &World{Graph: g, Random: rand.New(rand.NewPCG(seed, 7)), Paths: map[fabric.Flow]fabric.Path{}, Delay: map[fabric.Direction]int64{},
		Loss: map[fabric.Direction]float64{}, Slow: map[string]int64{}, Clock: map[string]int64{}, FlowDelay: map[fabric.Flow]int64{}, WithBaselines: true}
}

// ChoosePaths makes the hosts choose the paths of so many flows between each two NICs of different nodes, by the locators of the topology.
func (w *World) ChoosePaths(t testing.TB, flows int) {
	t.Helper()
	table, err := sourceroute.NewTable(w.Graph)
	if err != nil {
		t.Fatal(err)
	}
	var probes []fabric.Flow
	for _, src := range w.Graph.NICIDs() {
		for _, dst := range w.Graph.NICIDs() {
			for n := range flows {
				if fabric.OwnerOf(src) != fabric.OwnerOf(dst) {
					probes = append(probes, fabric.Flow{Src: src, Dst: dst, Number: n})
				}
			}
		}
	}
	w.Flows, w.Paths, w.Carriers = nil, map[fabric.Flow]fabric.Path{}, map[fabric.Flow]netip.Addr{}
	for _, c := range table.Choose(probes).Choices {
		reply := c.Flow
		reply.Reply = true
		w.Flows = append(w.Flows, c.Flow, reply)
		w.Paths[c.Flow], w.Paths[reply] = c.Probe, c.Reply
		w.Carriers[c.Flow], w.Carriers[reply] = c.ProbeCarrier, c.ReplyCarrier
	}
}

// Observe measures every flow once, in a window that starts n windows after the epoch.
func (w *World) Observe(n int) []*fabric.Observation {
	var out []*fabric.Observation
	alive := map[fabric.Flow]uint64{} // probes that arrived
	for _, e := range w.Flows {
		from, to := e.Endpoints()
		p := w.Paths[e]
		added, survive := w.Clock[to]-w.Clock[from]+w.FlowDelay[e], 1.0
		for _, d := range p.LinkDirections(from, to) {
			added += w.Delay[d]
			survive *= 1 - w.Loss[d]
		}
		for _, h := range p {
			added += w.Slow[h.Switch]
		}
		base := int64(1500 + 1000*len(p))
		p50 := base + added + int64(w.Random.ExpFloat64()*300)
		p99 := p50 + 4000 + int64(w.Random.ExpFloat64()*4000)
		sent := uint64(200)
		if e.IsTemporary() {
			sent = 16
		}
		if e.Reply {
			sent = alive[e.ProbeFlow()]
		}
		var lost uint64
		for range sent {
			if w.Random.Float64() > survive {
				lost++
			}
		}
		if !e.Reply {
			alive[e] = sent - lost
		}
		o := &fabric.Observation{Edge: e.String(), Src: from, Dst: to, Tier: w.Graph.PathTier(from, to), Plane: w.Graph.PlaneOf(from), Start: time.Unix(int64(1000+10*n), 0).UTC(),
			WindowNS: 2e9, Sent: sent, Lost: lost, Timestamp: "kernel", Path: p, PathState: fabric.PathValid}
		if sent > lost {
			o.OWD = &fabric.Quantiles{P50: &p50, P99: &p99}
		}
		if w.WithBaselines {
			b50, b99 := base+300, base+8300
			o.Baseline = &fabric.Quantiles{P50: &b50, P99: &b99}
		}
		if w.Random.Float64() < w.HiddenShare {
			o.Path, o.PathState = nil, fabric.PathUnknown
		}
		out = append(out, o)
	}
	return out
}

// FabricDirections returns the directed links between switches.
func (w *World) FabricDirections() []fabric.Direction {
	var out []fabric.Direction
	for _, l := range w.Graph.Topo.Links {
		if !l.IsAccess() {
			d := fabric.Direction{From: l.A, To: l.B}
			out = append(out, d, d.Reverse())
		}
	}
	return out
}

// TraceOf returns what a node traces of a flow. The switches answer, hop by hop, until the flow's packets are lost.
func (w *World) TraceOf(e fabric.Flow, at time.Time) fabric.Trace {
	from, to := e.Endpoints()
	if carrier, ok := w.Carriers[e]; ok {
		return fabric.Trace{Edge: e.String(), State: fabric.PathValid, TracedAt: at, Reached: true, Carrier: carrier}
	}
	t := fabric.Trace{Edge: e.String(), State: fabric.PathValid, TracedAt: at, Reached: !e.Reply}
	p := w.Paths[e]
	dirs := p.LinkDirections(from, to)
	for i := range p {
		hop := fabric.RawHop{TTL: i + 1}
		for _, d := range dirs[:i+1] {
			if w.Loss[d] >= 1 {
				t.Reached, t.State = false, fabric.PathUnknown
			}
		}
		if t.State == fabric.PathValid {
			hop.Address = w.addressOf(dirs[i].To)
		}
		t.Hops = append(t.Hops, hop)
	}
	return t
}

func (w *World) addressOf(end string) netip.Addr {
	l := w.Graph.LinkAt(end)
	if l.A == end {
		return l.AAddress.Addr()
	}
	return l.BAddress.Addr()
}
