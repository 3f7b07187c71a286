// Package scale answers as the agents of a large fabric do, for thousands of nodes from one process: scrapes, windows
// of flows and traces. What it answers follows from a topology, the schedule that the coordinator would make of it, the
// way of each flow, and the faults that a test sets, which are the truth.
//
// Time may be stretched: Options.Second is how long a second of the fleet takes, so that two cores carry what needs more
// of them. Probes, windows, scrapes and cycles are stretched by the same factor.
package scale

import (
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/sizing"
	"github.com/graylink/graylink/internal/window"
)

// Options configures a Fleet.
type Options struct {
	Topology *fabric.Topology
	// Flows are probed. Nil means those that the coordinator would schedule.
	Flows []fabric.Flow
	// Path returns the path of a packet from one NIC to another, or nil if there is none. Nil means one of the shortest, by a hash
	// of the flow.
	Path func(src, dst string) fabric.Path
	// Second is how long a second of the fleet takes.
	Second time.Duration
}

// probesPerSecond is the number of probes of a flow in a second of the fleet. spanSeconds is the length of a window.
const (
	probesPerSecond = 100
	spanSeconds     = 2
)

// Fault is what elements do to the packets that cross them. Several may be set at once.
type Fault struct {
	// Links are directions of links, Switches whole switches, and Flows single flows.
	Links    []fabric.Direction
	Switches []string
	Flows    []fabric.Flow
	// DelayNS is added to each packet. Loss is the share of packets that are dropped.
	DelayNS int64
	Loss    float64
}

// effect is what all faults together do to one direction of a flow.
type effect struct {
	delay   int64
	survive float64
}

// flow is a scheduled flow with the ways of its probes and of its replies.
type flow struct {
	id    fabric.Flow // of the probes
	class string
	tier  int
	plane string
	path  [window.Directions]fabric.Path
	links [window.Directions][]fabric.Direction
}

// Fleet is the agents of a fabric. Its methods may be called concurrently.
type Fleet struct {
	second time.Duration
	graph  *fabric.Graph
	shape  sizing.Shape // as graylink size counts it; zero for flows that a test chose
	router *router
	flows  []flow
	nodes  map[string]*node
	began  time.Time
	ahead  time.Duration // of the machine's clock, where a test advances time itself

	mu     sync.Mutex
	since  time.Time // of the faults
	effect map[int][window.Directions]effect
	before map[int][window.Directions]effect
	counts map[string]*[conditions]int // flows that are not healthy by the faults, by NIC
	served struct{ scrapes, samples, octets, windows, windowOctets uint64 }
}

// node is one agent.
type node struct {
	name     string
	nics     []string
	sent     []int            // flows that it probes
	received map[string][]int // flows that each of its NICs reflects
}

const conditions = 5

// NewFleet returns the agents of a fabric without a fault. It sets the addresses of the topology's links.
func NewFleet(o Options) (*Fleet, error) {
	for i := range o.Topology.Links {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)})
		o.Topology.Links[i].AAddress, o.Topology.Links[i].BAddress = netip.PrefixFrom(a, 31), netip.PrefixFrom(a.Next(), 31)
	}
	g := fabric.NewGraph(o.Topology)
	f := &Fleet{second: o.Second, graph: g, nodes: map[string]*node{}, began: time.Now(), counts: map[string]*[conditions]int{}}
	for i := range o.Topology.Nodes {
		n := &node{name: o.Topology.Nodes[i].Name, received: map[string][]int{}}
		for _, nic := range o.Topology.Nodes[i].NICs {
			n.nics = append(n.nics, nic.ID())
		}
		f.nodes[n.name] = n
	}
	if o.Path == nil {
		f.router = newRouter(g)
	}
	for _, id := range o.Flows {
		if err := f.addFlow(flow{id: id}, o.Path); err != nil {
			return nil, err
		}
	}
	if o.Flows != nil {
		return f, nil
	}
	s, err := schedule.Make(g, schedule.Options{})
	if err != nil {
		return nil, err
	}
	f.shape = sizing.ShapeOf(o.Topology, g, s)
	for _, e := range s.Edges {
		if err := f.addFlow(flow{id: s.FlowID(e), class: s.Classes[e.Class], tier: int(e.Tier)}, o.Path); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// addFlow adds a flow, with the paths of both its directions, to the nodes that have a part in it.
func (f *Fleet) addFlow(x flow, path func(src, dst string) fabric.Path) error {
	x.plane = f.graph.NIC(x.id.Src).Plane
	for d, ends := range [window.Directions][2]string{{x.id.Src, x.id.Dst}, {x.id.Dst, x.id.Src}} {
		if path != nil {
			x.path[d] = path(ends[0], ends[1])
		} else {
			way := x.id
			way.Reply = d == window.Reverse
			x.path[d] = f.router.path(ends[0], ends[1], hash(way.String(), 0))
		}
		if x.path[d] == nil {
			return fmt.Errorf("no path from %s to %s", ends[0], ends[1])
		}
		x.links[d] = x.path[d].LinkDirections(ends[0], ends[1])
	}
	i := len(f.flows)
	f.flows = append(f.flows, x)
	src, dst := f.nodes[fabric.OwnerOf(x.id.Src)], f.nodes[fabric.OwnerOf(x.id.Dst)]
	src.sent = append(src.sent, i)
	dst.received[x.id.Dst] = append(dst.received[x.id.Dst], i)
	return nil
}

// now returns the time of the fleet.
func (f *Fleet) now() time.Time { return time.Now().Add(f.ahead) }

// Graph returns the fabric, with the addresses of its links.
func (f *Fleet) Graph() *fabric.Graph { return f.graph }

// DirectedFlows returns the number of directed flows.
func (f *Fleet) DirectedFlows() int { return window.Directions * len(f.flows) }

// NodeNames returns the names of the nodes, sorted.
func (f *Fleet) NodeNames() (out []string) {
	for name := range f.nodes {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// FlowsOver returns how many directed flows cross the links and switches of a fault.
func (f *Fleet) FlowsOver(x Fault) (n int) {
	for _, e := range f.effectsOf([]Fault{x}) {
		for _, d := range e {
			if d != healthy {
				n++
			}
		}
	}
	return n
}

var healthy = effect{survive: 1}

// effectsOf returns what faults do to the flows that they affect.
func (f *Fleet) effectsOf(faults []Fault) map[int][window.Directions]effect {
	links, switches, flows := map[fabric.Direction]effect{}, map[string]effect{}, map[fabric.Flow]effect{}
	add := func(to effect, known bool, x *Fault) effect {
		if !known {
			to = healthy
		}
		return effect{to.delay + x.DelayNS, to.survive * (1 - x.Loss)}
	}
	for i := range faults {
		for _, d := range faults[i].Links {
			e, known := links[d]
			links[d] = add(e, known, &faults[i])
		}
		for _, s := range faults[i].Switches {
			e, known := switches[s]
			switches[s] = add(e, known, &faults[i])
		}
		for _, id := range faults[i].Flows {
			e, known := flows[id]
			flows[id] = add(e, known, &faults[i])
		}
	}
	out := map[int][window.Directions]effect{}
	for i := range f.flows {
		x := &f.flows[i]
		both := [window.Directions]effect{healthy, healthy}
		for d := range both {
			join := func(e effect, known bool) {
				if known {
					both[d] = effect{both[d].delay + e.delay, both[d].survive * e.survive}
				}
			}
			for _, l := range x.links[d] {
				e, known := links[l]
				join(e, known)
			}
			for _, h := range x.path[d] {
				e, known := switches[h.Switch]
				join(e, known)
			}
			way := x.id
			way.Reply = d == window.Reverse
			e, known := flows[way]
			join(e, known)
		}
		if both != [window.Directions]effect{healthy, healthy} {
			out[i] = both
		}
	}
	return out
}

// SetFaults replaces the faults, from now on, and returns the moment.
func (f *Fleet) SetFaults(faults ...Fault) time.Time {
	now := f.effectsOf(faults)
	counts := map[string]*[conditions]int{}
	for i, both := range now {
		src := f.flows[i].id.Src
		if counts[src] == nil {
			counts[src] = &[conditions]int{}
		}
		counts[src][slices.Index(window.Conditions, conditionOf(both))]++
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.effect, f.counts, f.since = f.effect, now, counts, f.now()
	return f.since
}

// conditionOf returns what a node finds of a flow after some windows.
func conditionOf(both [window.Directions]effect) window.Condition {
	switch {
	case both[0].survive*both[1].survive == 0:
		return window.Silent
	case both[0].survive*both[1].survive < 0.995:
		return window.Lossy
	}
	return window.Shifted
}

// unhealthy returns how many flows of a NIC are in which condition at a moment.
func (f *Fleet) unhealthy(nic string, at time.Time) (out [conditions]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.counts[nic]
	if c == nil {
		return out
	}
	for i, condition := range window.Conditions {
		if at.Sub(f.since) >= judgedAfter(condition, f.second) {
			out[i] = c[i]
		}
	}
	return out
}

// conditionAt returns what the node of a flow finds of it at a moment, as unhealthy counts it.
func (f *Fleet) conditionAt(i int, at time.Time) window.Condition {
	f.mu.Lock()
	both, affected := f.effect[i]
	since := f.since
	f.mu.Unlock()
	if !affected {
		return window.Healthy
	}
	condition := conditionOf(both)
	if at.Sub(since) < judgedAfter(condition, f.second) {
		return window.Healthy
	}
	return condition
}

// judgedAfter returns how long a node needs to find a condition. It judges windows of two seconds, and needs two of them for a
// delay.
func judgedAfter(c window.Condition, second time.Duration) time.Duration {
	if c == window.Shifted {
		return 5 * second / 2
	}
	return second
}

// effectAt returns what happened to a flow in a span before a moment: what the faults do, and in which share of the span.
func (f *Fleet) effectAt(i int, end time.Time, span time.Duration) (both [window.Directions]effect, share float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	share = min(1, max(0, end.Sub(f.since).Seconds()/span.Seconds()))
	both, known := f.effect[i], false
	if _, known = f.effect[i]; !known {
		share = 1 - share
		if both, known = f.before[i]; !known {
			return [window.Directions]effect{healthy, healthy}, 0
		}
	}
	return both, share
}

var seed = maphash.MakeSeed()

// hash returns a number that looks random for a text.
func hash(text string, salt uint64) uint64 {
	h := maphash.String(seed, text) ^ salt*0x9e3779b97f4a7c15
	h ^= h >> 31
	h *= 0xbf58476d1ce4e5b9
	return h ^ h>>29
}

// exponential returns noise with a mean, which has a tail.
func exponential(mean float64, random uint64) int64 {
	return int64(-mean * math.Log(1-float64(random>>11)/(1<<53)))
}

// countsOf returns the window of a flow that ended at a moment.
func (f *Fleet) countsOf(i int, end time.Time) *window.Counts {
	x := &f.flows[i]
	span := time.Duration(spanSeconds) * f.second
	both, share := f.effectAt(i, end, span)
	lastBoth, lastShare := f.effectAt(i, end, f.second)
	number := func(v float64) *float64 { v = math.Round(v); return &v }
	arrive := func(b [window.Directions]effect, share float64) (forth, back float64) {
		forth = 1 - share*(1-b[window.Forward].survive)
		return forth, forth * (1 - share*(1-b[window.Reverse].survive))
	}
	const sent = probesPerSecond * spanSeconds
	forth, back := arrive(both, share)
	_, lastBack := arrive(lastBoth, lastShare)
	c := &window.Counts{Class: x.class, Plane: x.plane, Tier: x.tier, Replies: number(sent * back), LastSent: number(probesPerSecond), LastReplies: number(probesPerSecond * lastBack)}
	salt := uint64(end.UnixNano() / int64(f.second))
	for d := range both {
		started, arrived := float64(sent), forth
		if d == window.Reverse {
			started, arrived = sent*forth, back/max(forth, 1e-9)
		}
		lost := started * (1 - arrived)
		if back == 0 {
			lost = 0 // no reply came to account for it
		}
		c.Sent[d], c.Lost[d] = number(started), number(lost)
		zero := 0.0
		c.ECN[d] = &zero
		random := hash(x.id.String(), salt*2+uint64(d))
		count := math.Round(started * arrived)
		if back == 0 || count < 1 {
			continue
		}
		p50 := int64(1500+1000*len(x.path[d])) + exponential(300, random)
		p99 := p50 + 4000 + exponential(4000, hash("tail", random))
		if share > 0.5 {
			p50 += both[d].delay
		}
		if share > 0.01 {
			p99 += both[d].delay
		}
		p90 := (p50 + p99) / 2
		c.Delays[d] = map[string]window.Distribution{"kernel": {Count: count, Quantiles: fabric.Quantiles{P50: &p50, P90: &p90, P99: &p99}}}
	}
	return c
}

// baselines returns what a node has as normal for a flow.
func (f *Fleet) baselines(i int) (out [window.Directions]*window.Baseline) {
	for d := range out {
		p50 := int64(1500 + 1000*len(f.flows[i].path[d]))
		out[d] = &window.Baseline{P50: p50 + 200, P99: p50 + 8000, MAD: 200, Timestamp: "kernel"}
	}
	return out
}
