// Package agents runs the agents of a simulated fabric: nodes that probe, answer
// and trace by engines without sockets (probe.Simulated), on the packets and the
// faults of internal/sim/packets. The rules, which the tests are named after:
//
//  1. From the sample on everything is as on a real fabric: accounts, histograms,
//     clocks and traces are probe's own. Only packets, stamps and what is broken
//     are made up.
//  2. A kernel stamps a packet when it comes, also while the node's program gets no
//     processor; the program answers, sends and reads when it runs again. What it
//     missed to send stays unsent.
//  3. A clock is the node's own: a fault of it changes what is stamped and nothing
//     else.
//  4. Time goes by as the wall clock's. Where the machine is too busy to simulate that
//     much it stands still, and it is told for how long: there are fewer probes then,
//     and none of them takes longer.
package agents

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/sim/packets"
)

// How hosts take part, in nanoseconds: least times and the means of what is added
// at random. They are of the order of what kernels of real hosts take.
const (
	sendLeast, sendMean = 4_000, 2_000 // from the program to the kernel's transmit stamp
	wireLeast, wireMean = 400, 200     // from there to the wire
	takeLeast, takeMean = 900, 1_200   // from the wire to the kernel's receive stamp
	busyMean            = 40_000       // the same, of the few that meet a busy processor
	busyPart            = 0.002        // how many do
	turnMost            = 2_000_000    // at most until the program's loop comes round
)

// probeOctets is a probe on the wire: STAMP with its TLVs, UDP, IPv4, Ethernet.
const probeOctets = 158

// turnEvery is the step in which time goes by.
const turnEvery = 5 * time.Millisecond

// Fabric is a simulated fabric with agents on it.
type Fabric struct {
	base time.Time
	topo *fabric.Topology
	log  *slog.Logger

	mu     sync.Mutex
	net    *packets.Network
	graph  *fabric.Graph
	rng    *rand.Rand
	agents map[string]*agent // by node
	flows  []*flow
	free   []*flight
	faults []*active
	last   int           // fault
	stood  time.Duration // for which time has not gone by
}

// agent is a node's.
type agent struct {
	f      *Fabric
	engine *probe.Simulated
	bend   *probe.Bend
	asleep bool
	until  int64 // it sleeps
	turn   int64 // when its program reads what came since the turn before
	left   int64 // when its last packet did
}

// reads is when the program reads a packet that the kernel stamped: in the order
// in which they came.
func (a *agent) reads(stamped int64) int64 {
	if a.turn < stamped {
		a.turn = stamped + a.f.rng.Int64N(turnMost)
	}
	return a.turn
}

// sends is when the kernel stamps a packet that the program sends now, and when it
// leaves: in the order in which they are sent.
func (a *agent) sends(now int64) (stamped, leaves int64) {
	stamped = max(now+a.f.random(sendLeast, sendMean), a.left)
	a.left = stamped + a.f.random(wireLeast, wireMean)
	return stamped, a.left
}

// New makes the fabric of a topology that has all addresses; its time begins at
// base. load is the cross traffic of every port, of its rate.
func New(t *fabric.Topology, base time.Time, load float64, seed uint64, log *slog.Logger) *Fabric {
	return &Fabric{base: base, topo: t, log: log, net: packets.New(t, load, seed), graph: fabric.NewGraph(t), rng: rand.New(rand.NewPCG(seed, 0x6167656e7473)), agents: map[string]*agent{}}
}

// Topology is the fabric as it should be.
func (f *Fabric) Topology() *fabric.Topology { return f.topo }

// Start makes the agent of a node, which probes from now on. bend is its clock;
// nil: it is right, and cannot be made wrong.
func (f *Fabric) Start(cfg *probe.Config, bend *probe.Bend, log *slog.Logger) (*probe.Engine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.agents[cfg.Node] != nil {
		return nil, fmt.Errorf("node %s has an agent already", cfg.Node)
	}
	engine, err := probe.StartSimulated(cfg, bend, f.base, f.walk, log)
	if err != nil {
		return nil, err
	}
	a := &agent{f: f, engine: engine, bend: bend}
	flows, err := engine.Flows()
	if err != nil {
		return nil, err
	}
	for _, s := range flows {
		fl := &flow{SimFlow: s, agent: a}
		var ok [2]bool
		fl.src, ok[0] = f.net.NIC(s.Edge.Src)
		fl.dst, ok[1] = f.net.NIC(s.Edge.Dst)
		if !ok[0] || !ok[1] {
			return nil, fmt.Errorf("edge %v: the fabric has no such NICs", s.Edge)
		}
		fl.there = hashOf(s.Edge.Src, s.Edge.Dst, s.SrcPort, s.DstPort)
		fl.back = hashOf(s.Edge.Dst, s.Edge.Src, s.DstPort, s.SrcPort)
		fl.next = f.net.Now() + int64(s.Phase)
		f.net.At(fl.next, fl)
		from := netip.AddrPortFrom(f.graph.Address(s.Edge.Src), s.SrcPort)
		to := netip.AddrPortFrom(f.graph.Address(s.Edge.Dst), s.DstPort)
		fl.keys = [2]sighting.Key{sighting.KeyOf(sighting.Flow{Src: from, Dst: to}), sighting.KeyOf(sighting.Flow{Src: to, Dst: from})}
		f.flows = append(f.flows, fl)
	}
	f.agents[cfg.Node] = a
	return engine.Engine, nil
}

// hashOf is what switches hash of a flow's packets.
func hashOf(src, dst string, sport, dport uint16) uint64 {
	return packets.Hash(src + ">" + dst + "#" + strconv.Itoa(int(sport)) + ">" + strconv.Itoa(int(dport)))
}

// Run lets time go by as the wall clock's, until ctx ends.
func (f *Fabric) Run(ctx context.Context) {
	tick := time.NewTicker(turnEvery)
	defer tick.Stop()
	told := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.Catch()
			if stood := f.Stood(); stood > 2*told && stood > time.Second {
				told = stood
				f.log.Warn("this machine is too busy to simulate the fabric all the time", "it stood still for", stood.Round(100*time.Millisecond), "of", time.Since(f.base).Round(time.Second))
			}
		}
	}
}

// patience is how much of the wall clock's time is made up for.
const patience = 300 * time.Millisecond

// Catch simulates up to now: what is read next is of this moment.
func (f *Fabric) Catch() {
	f.mu.Lock()
	now, to := time.Duration(f.net.Now()), time.Since(f.base)-f.stood
	if late := to - now - patience; late > 0 {
		f.stood += late
		to -= late
	}
	f.mu.Unlock()
	f.Advance(to)
}

// Stood is for how long the fabric has stood still, the machine being too busy.
func (f *Fabric) Stood() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stood
}

// wall is what the wall clock showed at a time of the fabric.
func (f *Fabric) wall(at int64) time.Time { return f.base.Add(f.stood + time.Duration(at)) }

// slice is for how long the fabric is simulated in one go: scrapes wait no longer.
const slice = 20 * time.Millisecond

// Advance simulates up to a time since the base.
func (f *Fabric) Advance(to time.Duration) {
	for f.step(to) {
	}
}

// step goes on a little towards a time, and says whether there is more to go.
func (f *Fabric) step(to time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.net.Run(min(int64(to), f.net.Now()+int64(slice)))
	now := f.net.Now()
	for _, a := range f.agents {
		a.engine.Turn(now)
	}
	return now < int64(to)
}

// Counts are of the packets so far.
func (f *Fabric) Counts() packets.Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.net.Counts
}

// walk traces an edge: what hop-limited packets of it would learn now.
func (f *Fabric) walk(e fabric.Edge) (hops []probe.Hop, reached bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, to := e.Ends()
	src, ok1 := f.net.NIC(from)
	dst, ok2 := f.net.NIC(to)
	a := f.agents[fabric.OwnerOf(e.Src)]
	if !ok1 || !ok2 || a == nil {
		return nil, false
	}
	stamps := a.engine.Config().Stamp
	sport, dport := stamps.SourcePort+uint16(e.Flow), stamps.Port
	if e.Reply {
		sport, dport = dport, sport
	}
	met, reached := f.net.Trace(src, dst, hashOf(from, to, sport, dport))
	reached = reached && !e.Reply // nothing tells of a reply that it came
	known := 0
	for i, m := range met {
		h := probe.Hop{TTL: i + 1}
		if m.Answers {
			h.Address, h.RTT = f.address(m.In), time.Duration(m.RTT)
			known = i + 1
		}
		hops = append(hops, h)
	}
	if !reached {
		hops = hops[:known]
	}
	return hops, reached
}

func (f *Fabric) address(end string) netip.Addr {
	l := f.graph.LinkAt(end)
	if l.A == end {
		return l.AAddress.Addr()
	}
	return l.BAddress.Addr()
}

// random is a time of least and, on the mean, so much more.
func (f *Fabric) random(least, mean int64) int64 {
	return least + int64(f.rng.ExpFloat64()*float64(mean))
}

// flow is an edge that is probed.
type flow struct {
	*probe.SimFlow
	agent       *agent
	far         *agent
	src, dst    int32
	there, back uint64
	trails      [2]packets.Trail // of probes, of replies
	keys        [2]sighting.Key
	next        int64
}

// Act sends what is due.
func (fl *flow) Act(now int64) {
	f, cadence := fl.agent.f, int64(fl.Cadence)
	if fl.agent.asleep {
		missed := (fl.agent.until - fl.next) / cadence
		fl.Skip(int(missed))
		fl.next += (missed + 1) * cadence
		f.net.At(fl.next, fl)
		return
	}
	for range fl.Packets() {
		p := f.flight(fl)
		stamped, leaves := fl.agent.sends(now)
		fl.Probe(&p.SimPacket, now, stamped)
		p.stage = probing
		p.From, p.To, p.Flow, p.Trail = fl.src, fl.dst, fl.there, &fl.trails[0]
		f.net.At(leaves, p)
	}
	fl.next += cadence
	f.net.At(fl.next, fl)
}

// stage is what a flight does next when it acts.
type stage uint8

const (
	probing    stage = iota // leaves its NIC
	reflecting              // is read by the program that answers
	replying                // leaves the NIC of the reflector
	reading                 // is read by the program that asked
)

// flight is a probe from its making to the reading of its reply.
type flight struct {
	packets.Packet
	probe.SimPacket
	flow    *flow
	stage   stage
	stamped int64 // by the kernel of the node it came to
}

func (f *Fabric) flight(fl *flow) *flight {
	var p *flight
	if n := len(f.free); n > 0 {
		p, f.free = f.free[n-1], f.free[:n-1]
	} else {
		p = &flight{}
	}
	p.flow, p.Octets, p.Capable, p.Receiver = fl, probeOctets, true, p
	return p
}

// Act goes on with a packet that is at a host.
func (p *flight) Act(now int64) {
	f := p.flow.agent.f
	switch p.stage {
	case probing, replying:
		f.net.Send(&p.Packet)
	case reflecting:
		if p.flow.far.defers(p) {
			return
		}
		stamped, leaves := p.flow.far.sends(now)
		if !p.flow.far.engine.Reflect(&p.SimPacket, p.stamped, now, stamped, p.Marked) {
			f.release(p)
			return
		}
		p.stage = replying
		p.From, p.To, p.Flow, p.Trail = p.flow.dst, p.flow.src, p.flow.back, &p.flow.trails[1]
		f.net.At(leaves, p)
	case reading:
		if p.flow.agent.defers(p) {
			return
		}
		p.flow.agent.engine.Replied(&p.SimPacket, p.stamped, now, p.Marked)
		f.release(p)
	}
}

// defers lets what a sleeping program would do wait until it wakes.
func (a *agent) defers(p *flight) bool {
	if a.asleep {
		a.f.net.At(a.until, p)
	}
	return a.asleep
}

// Arrived implements packets.Receiver.
func (p *flight) Arrived(*packets.Packet) {
	f := p.flow.agent.f
	now := f.net.Now()
	p.stamped = now + f.random(takeLeast, takeMean)
	if f.rng.Float64() < busyPart {
		p.stamped += f.random(0, busyMean)
	}
	reader := p.flow.agent
	if p.stage == replying {
		p.stage = reading
	} else {
		fl := p.flow
		if fl.far == nil {
			far := f.agents[fabric.OwnerOf(fl.Edge.Dst)]
			if far == nil || !fl.Answer(far.engine) {
				f.release(p)
				return
			}
			fl.far = far
		}
		p.stage, reader = reflecting, fl.far
	}
	f.net.At(reader.reads(p.stamped), p)
}

// Lost implements packets.Receiver.
func (p *flight) Lost(*packets.Packet, packets.Loss) { p.flow.agent.f.release(p) }

func (f *Fabric) release(p *flight) { f.free = append(f.free, p) }
