package clocksync

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// smallLab is a few nodes as they run in a lab: each closes its windows by its own start, the
// coordinator solves at times of its own, and pairs, reports, the frame and updates are the real ones.
// The true clocks are known.
type smallLab struct {
	rng     *rand.Rand
	kind    Kind
	load    float64
	cadence int64
	t       int64 // true time, ns since the beginning
	nodes   []*labNode
	frame   *Frame
	solve   int64 // time of the next cycle
	last    *Summary
	fine    float64  // share of a kernel stamp's usual noise; 0 means all of it
	stalls  float64  // number of stalls of the machine per second
	stall   [2]int64 // start and end of the present one
	solved  func()
	late    map[*labNode]int64                    // further delay, ns, of a node's packets
	slow    func(e *labEdge, direction int) int64 // further delay, ns, of an edge's packets; may be nil
	user    bool                                  // stamps are a program's: it sends later than its stamp, and receives later
}

type labNode struct {
	name     string
	ref      int64 // true time
	offset   float64
	rate     float64
	old      *labNode // its clock before ref
	turn     int64
	edges    []*labEdge
	clocks   []string
	follower *Follower
}

type labEdge struct {
	id         PairID
	to         *labNode
	next       int64
	count      int
	delay      float64
	pair       *Pair
	sent, came int64 // the reply that waits for its stamp; 0 if there is none
}

func newSmallLab(nodes, peers, flows int, kind Kind, load float64, seed uint64) *smallLab {
	r := rand.New(rand.NewPCG(seed, 11))
	l := &smallLab{rng: r, kind: kind, load: load, cadence: int64(flows) * 10e6, frame: NewFrame(FrameOptions{ID: 1, Allowance: func(PairID) time.Duration { return 500 }}), solve: r.Int64N(1e9)}
	for i := range nodes {
		l.nodes = append(l.nodes, &labNode{name: fmt.Sprintf("h%d", i+1), offset: math.Round((2*r.Float64() - 1) * 5e9), rate: (2*r.Float64() - 1) * 30e-6,
			turn: r.Int64N(1e9), follower: NewFollower()})
	}
	for i, n := range l.nodes {
		n.clocks = append(n.clocks, ClockOf(n.name+"/eth1", kind))
		for k := range peers {
			to := l.nodes[(i+1+k*(nodes-1)/peers)%nodes]
			n.clocks = append(n.clocks, ClockOf(to.name+"/eth1", kind))
			for flow := range flows {
				id := PairID{Src: n.name + "/eth1", Dst: to.name + "/eth1", Flow: flow, Kind: kind}
				n.edges = append(n.edges, &labEdge{id: id, to: to, next: r.Int64N(l.cadence), delay: 20000, pair: NewPair(kind)})
			}
		}
	}
	return l
}

func (n *labNode) read(t int64) int64 {
	if t < n.ref && n.old != nil {
		return n.old.read(t)
	}
	return epoch + t + int64(math.Round(n.offset+n.rate*float64(t-n.ref)))
}

// bend applies a step, ns, and a change of rate from now on.
func (n *labNode) bend(t int64, step, rate float64) {
	old := *n
	n.offset += n.rate*float64(t-n.ref) + step
	n.rate += rate
	n.ref, n.old = t, &old
}

func (l *smallLab) stamp(at int64) int64 {
	r := l.rng
	if l.kind == Hardware {
		if r.Float64() < 0.9 {
			return (at + int64(r.NormFloat64()*10)) / 8 * 8
		}
		return (at + int64(r.ExpFloat64()*100)) / 8 * 8
	}
	late := 1500 * math.Exp(0.8156*r.NormFloat64())
	if l.fine > 0 {
		late *= l.fine
	}
	at += int64(late)
	if r.IntN(1000) == 0 {
		at += 50000 + r.Int64N(450000)
	}
	return at
}

// sent returns the stamp of a packet that leaves at a time.
func (l *smallLab) sent(at int64) int64 {
	if s := l.stamp(at); !l.user {
		return s
	} else {
		return 2*at - s
	}
}

func (l *smallLab) wait(e *labEdge, t int64) int64 {
	w := e.delay
	for range 3 {
		if l.rng.Float64() < l.load {
			w += 5000 * l.rng.ExpFloat64()
		}
	}
	if t >= l.stall[0] && t < l.stall[1] {
		w += float64(l.stall[1]-t) * l.rng.Float64()
	}
	return int64(w)
}

func (l *smallLab) slowBy(e *labEdge, direction int) int64 {
	if l.slow == nil {
		return 0
	}
	return l.slow(e, direction)
}

func (l *smallLab) probe(n *labNode, e *labEdge, t int64) {
	if e.sent != 0 {
		e.pair.AddReverse(e.sent, e.came)
	}
	t2 := t + l.wait(e, t) + l.late[n] + l.slowBy(e, forward)
	t3 := t2 + 50000
	t4 := t3 + l.wait(e, t3) + l.late[e.to] + l.slowBy(e, reverse)
	e.pair.AddForward(l.sent(n.read(t)), l.stamp(e.to.read(t2)))
	e.sent, e.came = l.sent(e.to.read(t3)), l.stamp(n.read(t4))
}

func (l *smallLab) close(n *labNode) {
	now, mono := n.read(l.t), time.Duration(l.t)
	r := &Report{Node: n.name, End: now}
	for _, e := range n.edges {
		if hint, sigma, ok := n.follower.MapHint(e.id, now, mono); ok {
			e.pair.SetHint(hint, sigma)
		}
		x := e.pair.CloseWindow(now)
		n.follower.AddEstimate(e.id, x, mono)
		if x.Quality != None {
			r.Pairs = append(r.Pairs, PairEstimate{ID: e.id, Estimate: x})
		}
	}
	r, err := ParseReport(r.AppendTo(nil))
	if err != nil {
		panic(err)
	}
	if len(r.Pairs) > 0 {
		l.frame.AddReport(r, mono)
	}
}

// run runs the lab for some nanoseconds.
func (l *smallLab) run(span int64) {
	const tick = int64(1e6)
	for end := l.t + span; l.t < end; l.t += tick {
		if l.rng.Float64() < l.stalls*float64(tick)/1e9 {
			l.stall = [2]int64{l.t, l.t + int64(l.rng.ExpFloat64()*10e6)}
		}
		for _, n := range l.nodes {
			for _, e := range n.edges {
				if e.next < l.t {
					l.probe(n, e, e.next)
					if e.count++; e.count%5 == 0 {
						l.probe(n, e, e.next+5000)
					}
					e.next += l.cadence
				}
			}
		}
		for _, n := range l.nodes {
			if n.turn < l.t {
				n.turn += 1e9
				l.close(n)
			}
		}
		if l.solve < l.t {
			l.solve += 1e9
			l.last = l.frame.Solve(time.Duration(l.t))
			for _, n := range l.nodes {
				u, err := ParseUpdate(l.frame.UpdateFor(n.clocks).AppendTo(nil))
				if err != nil {
					panic(err)
				}
				n.follower.ApplyUpdate(u, time.Duration(l.t), true)
			}
			if l.solved != nil {
				l.solved()
			}
		}
	}
}

func (l *smallLab) mapOf(n *labNode) Map {
	m, _ := l.frame.MapOf(n.clocks[0])
	return m
}

// moved returns the steps and drifts counted since some maps.
func (l *smallLab) moved(since []Map) map[int][2]uint32 {
	out := map[int][2]uint32{}
	for i, n := range l.nodes {
		m := l.mapOf(n)
		if by := [2]uint32{m.Steps - since[i].Steps, m.Drifts - since[i].Drifts}; by != [2]uint32{} {
			out[i] = by
		}
	}
	return out
}

func (l *smallLab) maps() (out []Map) {
	for _, n := range l.nodes {
		out = append(out, l.mapOf(n))
	}
	return out
}

// Rule 9: with unsynchronised windows, pairs of few samples that restart at different times, and
// queues, a step still belongs to one clock and to no other.
func TestRule9StepsOfAFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates fleets for minutes; nothing of it runs at once")
	}
	for _, c := range []struct {
		flows int
		seeds []uint64
	}{{2, []uint64{3, 5, 6, 13}}, {4, []uint64{2, 3, 9, 17}}} {
		for _, seed := range c.seeds {
			l := newSmallLab(8, 7, c.flows, Kernel, 0.4, seed)
			l.stalls = 2
			l.run(15e9 + l.rng.Int64N(2e9))
			before := l.maps()
			v := l.rng.IntN(8)
			step := math.Copysign(1e5*math.Exp(l.rng.Float64()*math.Log(50)), l.rng.Float64()-0.5)
			l.nodes[v].bend(l.t, step, 0)
			l.run(8e9)
			moved := l.moved(before)
			if len(moved) != 1 || moved[v][0] != 1 {
				t.Errorf("%d flows, seed %d: clock %d stepped by %.0f ns, counted were %v", c.flows, seed, v, step, moved)
			}
		}
	}
}
