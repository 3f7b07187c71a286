package routing_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
)

// flowsPerEdge is the number of flows of two NICs, each way. Probes are sent every 10 ms.
const flowsPerEdge, interval = 4, 10 * time.Millisecond

// world is a fabric that routes itself: every switch has next hops for each leaf, and chooses by a hash of the flow and a seed.
type world struct {
	g     *fabric.Graph
	rng   *rand.Rand
	now   time.Time
	flows []fabric.Flow
	// hops are ports of switches by leaf, and full those of the topology.
	hops, full map[string]map[string][]string
	seeds      map[string]uint32
	// down are links without routes, and dead directions that lose all packets, from a moment to another.
	down map[string]bool
	dead map[fabric.Direction][2]time.Time
	// nowhere has the switches that drop the packets to a leaf.
	nowhere map[[2]string]bool
	// reports are what switches report; nil if they do not.
	reports map[string]*routing.Switch
	// carriers are changes of carriers, by port.
	carriers map[string]int
	// ports are those that carry packets or do not, as far as that is known.
	ports map[string]bool
	// lossyLinks are those that other verdicts blame.
	lossyLinks []string
	lossCounts []routing.LossCount
	// history is what a database has of sessions, by port.
	history map[string]routing.PortSessions
	// hidden is the share of flows whose path is unknown in a cycle.
	hidden float64
	watch  *routing.Watcher
	found  []routing.Finding
}

func newWorld(g *fabric.Graph, seed uint64) *world {
	w := &world{g: g, rng: rand.New(rand.NewPCG(seed, 31)), now: time.Unix(100000, 0).UTC(), hops: map[string]map[string][]string{}, full: map[string]map[string][]string{},
		seeds: map[string]uint32{}, down: map[string]bool{}, dead: map[fabric.Direction][2]time.Time{}, nowhere: map[[2]string]bool{}, watch: routing.NewWatcher()}
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			for n := range flowsPerEdge {
				if src != dst {
					w.flows = append(w.flows, fabric.Flow{Src: src, Dst: dst, Number: n}, fabric.Flow{Src: src, Dst: dst, Number: n, Reply: true})
				}
			}
		}
	}
	for _, sw := range g.Topo.Switches {
		w.seeds[sw.Name] = w.rng.Uint32()
		w.hops[sw.Name], w.full[sw.Name] = map[string][]string{}, map[string][]string{}
	}
	w.converge()
	for sw, to := range w.hops {
		for leaf, ports := range to {
			w.full[sw][leaf] = slices.Clone(ports)
		}
	}
	return w
}

func (w *world) leaves() (out []string) {
	for _, sw := range w.g.Topo.Switches {
		if w.g.SwitchTier(sw.Name) == 1 {
			out = append(out, sw.Name)
		}
	}
	return out
}

// converge computes all routes anew, without links that are down.
func (w *world) converge() {
	for _, leaf := range w.leaves() {
		dist := map[string]int{leaf: 0}
		for queue := []string{leaf}; len(queue) > 0; queue = queue[1:] {
			for _, end := range w.g.EndsOf(queue[0]) {
				peer := w.g.PeerOf(end)
				next := fabric.OwnerOf(peer)
				if _, seen := dist[next]; seen || peer == "" || fabric.IsNIC(peer) || w.down[fabric.LinkID(end, peer)] {
					continue
				}
				dist[next] = dist[queue[0]] + 1
				queue = append(queue, next)
			}
		}
		for _, sw := range w.g.Topo.Switches {
			var ports []string
			for _, end := range w.g.EndsOf(sw.Name) {
				peer := w.g.PeerOf(end)
				if peer == "" || fabric.IsNIC(peer) || w.down[fabric.LinkID(end, peer)] {
					continue
				}
				if d, ok := dist[fabric.OwnerOf(peer)]; ok && d == dist[sw.Name]-1 {
					_, port, _ := fabric.SplitPort(end)
					ports = append(ports, port)
				}
			}
			slices.Sort(ports)
			w.hops[sw.Name][leaf] = ports
		}
	}
}

// withdraw takes a leaf's prefix from a switch, as if it were filtered there: those that send to it by the switch have other ways.
func (w *world) withdraw(at, leaf string) {
	w.hops[at][leaf] = nil
	for changed := true; changed; {
		changed = false
		for sw, to := range w.hops {
			if sw == leaf {
				continue
			}
			left := slices.DeleteFunc(slices.Clone(to[leaf]), func(port string) bool {
				next := fabric.OwnerOf(w.g.PeerOf(sw + ":" + port))
				return next != leaf && len(w.hops[next][leaf]) == 0
			})
			if len(left) != len(to[leaf]) {
				to[leaf], changed = left, true
			}
		}
	}
}

// prepend lengthens the AS paths to a leaf that a switch announces by two, and takes the routes of all switches from that.
func (w *world) prepend(at, leaf string) {
	cost := map[string]int{leaf: 1}
	via := func(next string) int {
		if cost[next] == 0 {
			return 1 << 20
		}
		if next == at {
			return cost[next] + 3
		}
		return cost[next] + 1
	}
	for changed := true; changed; {
		changed = false
		for _, sw := range w.g.Topo.Switches {
			var ports []string
			best := 1 << 20
			for _, end := range w.g.EndsOf(sw.Name) {
				peer := w.g.PeerOf(end)
				if sw.Name == leaf || peer == "" || fabric.IsNIC(peer) {
					continue
				}
				_, port, _ := fabric.SplitPort(end)
				switch c := via(fabric.OwnerOf(peer)); {
				case c < best:
					best, ports = c, []string{port}
				case c == best:
					ports = append(ports, port)
				}
			}
			if len(ports) > 0 && best < 1<<20 && (cost[sw.Name] != best || !slices.Equal(w.hops[sw.Name][leaf], ports)) {
				cost[sw.Name], w.hops[sw.Name][leaf], changed = best, ports, true
			}
		}
	}
}

// pathOf returns the way of a flow, nil if it has none, and whether it is dropped on the way.
func (w *world) pathOf(f fabric.Flow) (p fabric.Path, dropped bool) {
	from, to := f.Endpoints()
	leaf, last := w.g.LeafOf(to)
	sw, in := w.g.LeafOf(from)
	for sw != leaf {
		ports := w.hops[sw][leaf]
		if len(ports) == 0 || len(p) > 6 {
			return nil, true
		}
		dropped = dropped || w.nowhere[[2]string{sw, leaf}]
		h := fnv.New32a()
		fmt.Fprintf(h, "%s %d", f, w.seeds[sw])
		x := h.Sum32()
		x ^= x >> 15
		x *= 0x2c1b3c6d
		x ^= x >> 12
		out := ports[int(uint64(x)*uint64(len(ports))>>32)]
		p = append(p, fabric.Hop{Switch: sw, In: in, Out: out})
		peer := w.g.PeerOf(sw + ":" + out)
		sw = fabric.OwnerOf(peer)
		_, in, _ = fabric.SplitPort(peer)
	}
	return append(p, fabric.Hop{Switch: leaf, In: in, Out: last}), dropped
}

// lostBetween returns how many probes of a way were lost among those sent in a second before a moment.
func (w *world) lostBetween(p fabric.Path, f fabric.Flow, from time.Time, phase time.Duration) map[int]bool {
	lost := map[int]bool{}
	src, dst := f.Endpoints()
	for _, d := range p.LinkDirections(src, dst) {
		span, bad := w.dead[d]
		for i := 0; bad && i < 100; i++ {
			at := from.Add(time.Duration(i)*interval + phase)
			if !at.Before(span[0]) && at.Before(span[1]) {
				lost[i] = true
			}
		}
	}
	return lost
}

// step lets a second pass.
func (w *world) step(t testing.TB) {
	t.Helper()
	w.found = w.watch.Review(w.moment(func(fabric.Flow) bool { return true }))
}

// moment lets a second pass, and returns what is known of some flows then.
func (w *world) moment(of func(fabric.Flow) bool) *routing.Moment {
	from := w.now
	w.now = w.now.Add(time.Second)
	m := &routing.Moment{Now: w.now, Step: time.Second, Graph: w.g, Switches: w.reports, CarrierChanges: w.carriers, PortUp: w.ports, SessionHistory: w.history, LossyLinks: w.lossyLinks, LossCounts: w.lossCounts}
	lost := map[fabric.Flow]map[int]bool{}
	type way struct {
		path    fabric.Path
		dropped bool
	}
	ways := map[fabric.Flow]way{}
	for _, f := range w.flows {
		if !of(f) {
			continue
		}
		p, dropped := w.pathOf(f)
		ways[f] = way{p, dropped || p == nil}
		probe := f.ProbeFlow()
		if lost[probe] == nil {
			lost[probe] = map[int]bool{}
		}
		h := fnv.New32a()
		h.Write([]byte(probe.String()))
		for i := range w.lostBetween(p, f, from, time.Duration(h.Sum32()%uint32(interval))) {
			lost[probe][i] = true
		}
	}
	for _, f := range w.flows {
		x, measured := ways[f]
		if !measured {
			continue
		}
		probe := f.ProbeFlow()
		back := probe
		back.Reply = true
		o := routing.Flow{Flow: f, Path: x.path, Valid: x.path != nil && w.rng.Float64() >= w.hidden, Sent: 100, Unanswered: uint64(len(lost[probe])), Counted: true}
		if ways[probe].dropped || ways[back].dropped {
			o.Unanswered = 100
		}
		o.Lossy = x.dropped || o.Unanswered == 100 && len(w.lostBetween(x.path, f, from, 0)) == 100
		o.Healthy = !o.Lossy
		m.Flows = append(m.Flows, o)
	}
	return m
}

func (w *world) run(t testing.TB, seconds int) {
	for range seconds {
		w.step(t)
	}
}

// report makes every switch report its tables and sessions.
func (w *world) report() {
	if w.reports == nil {
		w.reports = map[string]*routing.Switch{}
	}
	for _, sw := range w.g.Topo.Switches {
		r := w.reports[sw.Name]
		if r == nil {
			r = &routing.Switch{Name: sw.Name}
			for _, end := range w.g.EndsOf(sw.Name) {
				if _, port, _ := fabric.SplitPort(end); !fabric.IsNIC(w.g.PeerOf(end)) {
					r.Sessions = append(r.Sessions, routing.Session{Port: port, Protocol: "bgp", Up: true, Established: 1, Detection: 9 * time.Second},
						routing.Session{Port: port, Protocol: "bfd", Up: true, Detection: 300 * time.Millisecond})
				}
			}
			w.reports[sw.Name] = r
		}
		r.At = w.now
		r.TableVersion++
		r.FIB, r.RIB, r.Paths = map[netip.Prefix][]string{}, map[netip.Prefix][]string{}, map[netip.Prefix][]string{}
		for _, nic := range w.g.NICIDs() {
			leaf, _ := w.g.LeafOf(nic)
			a := w.g.ProbeAddress(nic)
			prefix := netip.PrefixFrom(a, a.BitLen())
			if leaf != sw.Name {
				r.FIB[prefix], r.RIB[prefix], r.Paths[prefix] = w.hops[sw.Name][leaf], w.hops[sw.Name][leaf], w.full[sw.Name][leaf]
				if w.nowhere[[2]string{sw.Name, leaf}] {
					r.FIB[prefix] = []string{}
				}
			}
		}
	}
}

// changeTables says that the tables of a switch are others.
func (w *world) changeTables(sw string) { w.reports[sw].TableVersion += 1 << 32 }

// bumpSession counts events of the sessions at both ends of a link.
func (w *world) bumpSession(l *fabric.Link, protocol string) {
	for _, end := range [2]string{l.A, l.B} {
		sw, port, _ := fabric.SplitPort(end)
		for i := range w.reports[sw].Sessions {
			if s := &w.reports[sw].Sessions[i]; s.Port == port && s.Protocol == protocol {
				s.Established++
				s.Downs++
			}
		}
	}
}
