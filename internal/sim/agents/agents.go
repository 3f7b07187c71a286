// Package agents runs the agents of a simulated fabric: nodes that probe, answer
// and trace by engines without sockets (probe.DriveSimulated), on the packets and the
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
//     much it stands still, and logs for how long: there are fewer probes then,
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
	"sync/atomic"
	"time"

	"github.com/graylink/graylink/internal/bentclock"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/sim/packets"
)

// How hosts take part, in nanoseconds: least times and the means of what is added
// at random. They are of the order of what kernels of real hosts take.
const (
	sendLeast, sendMean       = 4_000, 2_000 // from the program to the kernel's transmit stamp
	wireLeast, wireMean       = 400, 200     // from there to the wire
	receiveLeast, receiveMean = 900, 1_200   // from the wire to the kernel's receive stamp
	busyMean                  = 40_000       // the same, of the few that meet a busy processor
	busyPart                  = 0.002        // how many do
	turnMost                  = 2_000_000    // at most until the program's loop comes round
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

	mu          sync.Mutex
	net         *packets.Network
	signals     *probe.Signals
	graph       *fabric.Graph
	rng         *rand.Rand
	agents      map[string]*agent // by node
	flows       []*flow
	freeFlights []*flight
	faults      []*activeFault
	last        int           // fault
	stalled     time.Duration // for which time has not gone by
}

// agent is a node's.
type agent struct {
	f           *Fabric
	engine      *probe.Simulated
	clock       *clock
	asleep      bool
	asleepUntil int64 // it sleeps
	nextTurn    int64 // when its program reads what came since the turn before
	lastLeft    int64 // when its last packet did
}

// clock is a node's. It shows the time of the fabric, bent if bend is not nil.
type clock struct {
	base time.Time
	now  atomic.Int64 // nanoseconds since the base
	bend *bentclock.Clock
}

// Now returns the time of the fabric. It implements probe.Clock.
func (c *clock) Now() time.Time { return c.base.Add(time.Duration(c.now.Load())) }

// NodeTime returns the time that the node's clock shows. It implements probe.Clock.
func (c *clock) NodeTime(t int64) int64 {
	if c.bend == nil {
		return t
	}
	return c.bend.NodeTime(t)
}

// readTime returns when the program reads a packet that the kernel stamped. Packets are read in the order in which
// they came.
func (a *agent) readTime(stamped int64) int64 {
	if a.nextTurn < stamped {
		a.nextTurn = stamped + a.f.rng.Int64N(turnMost)
	}
	return a.nextTurn
}

// sendTimes returns when the kernel stamps a packet that the program sends now, and when the packet leaves. Packets
// leave in the order in which they are sent.
func (a *agent) sendTimes(now int64) (stamped, leaves int64) {
	stamped = max(now+a.f.randomTime(sendLeast, sendMean), a.lastLeft)
	a.lastLeft = stamped + a.f.randomTime(wireLeast, wireMean)
	return stamped, a.lastLeft
}

// New makes the fabric of a topology that has all addresses; its time begins at
// base. load is the cross traffic of every port, of its rate.
func New(t *fabric.Topology, base time.Time, load float64, seed uint64, log *slog.Logger) *Fabric {
	return &Fabric{base: base, topo: t, log: log, net: packets.New(t, load, seed), graph: fabric.NewGraph(t), rng: rand.New(rand.NewPCG(seed, 0x6167656e7473)), agents: map[string]*agent{}}
}

// Topology returns the fabric as it should be.
func (f *Fabric) Topology() *fabric.Topology { return f.topo }

// UseSignals makes ports update the in-band signals of packets, and the agents that are started after this send and observe them.
func (f *Fabric) UseSignals(s *probe.Signals) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.signals = s
	f.net.UseSignals(s.Profile)
}

// DropTags makes a switch drop what has a tag, or lets it forward that again.
func (f *Fabric) DropTags(sw string, on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.net.DropTags(sw, on)
}

// Start makes the agent of a node, which probes from now on. bend is its clock. Nil means that the clock is right and
// cannot be made wrong.
func (f *Fabric) Start(cfg *probe.Config, bend *bentclock.Clock, log *slog.Logger) (*probe.Engine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.agents[cfg.Node] != nil {
		return nil, fmt.Errorf("node %s has an agent already", cfg.Node)
	}
	a := &agent{f: f, clock: &clock{base: f.base, bend: bend}}
	deps := probe.SimulatedDeps(a.clock, f.traceEdge)
	deps.Signals = f.signals
	engine, err := probe.New(cfg, deps, log)
	if err != nil {
		return nil, err
	}
	a.engine = probe.DriveSimulated(engine)
	flows, err := a.engine.ListFlows()
	if err != nil {
		return nil, err
	}
	for _, s := range flows {
		fl := &flow{SimFlow: s, agent: a}
		var ok [2]bool
		fl.src, ok[0] = f.net.NICNumber(s.Edge.Src)
		fl.dst, ok[1] = f.net.NICNumber(s.Edge.Dst)
		if !ok[0] || !ok[1] {
			return nil, fmt.Errorf("edge %v: the fabric has no such NICs", s.Edge)
		}
		fl.forwardHash = hashOf(s.Edge.Src, s.Edge.Dst, s.SrcPort, s.DstPort)
		fl.reverseHash = hashOf(s.Edge.Dst, s.Edge.Src, s.DstPort, s.SrcPort)
		fl.next = f.net.Now() + int64(s.Phase)
		f.net.ScheduleAt(fl.next, fl)
		from := netip.AddrPortFrom(f.graph.ProbeAddress(s.Edge.Src), s.SrcPort)
		to := netip.AddrPortFrom(f.graph.ProbeAddress(s.Edge.Dst), s.DstPort)
		fl.keys = [2]sighting.Key{sighting.KeyOf(sighting.Flow{Src: from, Dst: to}), sighting.KeyOf(sighting.Flow{Src: to, Dst: from})}
		f.flows = append(f.flows, fl)
	}
	f.agents[cfg.Node] = a
	return engine, nil
}

// hashOf returns the hash of the fields that switches hash of a flow's packets.
func hashOf(src, dst string, sport, dport uint16) uint64 {
	return packets.HashText(src + ">" + dst + "#" + strconv.Itoa(int(sport)) + ">" + strconv.Itoa(int(dport)))
}

// Run lets time go by as the wall clock's, until ctx ends.
func (f *Fabric) Run(ctx context.Context) {
	tick := time.NewTicker(turnEvery)
	defer tick.Stop()
	announced := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.CatchUp()
			if stood := f.StalledTime(); stood > 2*announced && stood > time.Second {
				announced = stood
				f.log.Warn("this machine is too busy to simulate the fabric all the time", "stalled", stood.Round(100*time.Millisecond), "of", time.Since(f.base).Round(time.Second))
			}
		}
	}
}

// patience is how much of the wall clock's time is made up for.
const patience = 300 * time.Millisecond

// CatchUp simulates up to now: what is read next is of this moment.
func (f *Fabric) CatchUp() {
	f.mu.Lock()
	now, to := time.Duration(f.net.Now()), time.Since(f.base)-f.stalled
	if late := to - now - patience; late > 0 {
		f.stalled += late
		to -= late
	}
	f.mu.Unlock()
	f.AdvanceTo(to)
}

// SetSubnet replaces what is installed in an InfiniBand subnet. From the first one on, packets follow it alone.
func (f *Fabric) SetSubnet(s packets.Subnet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.net.SetSubnet(s)
}

// StalledTime returns how long the fabric has stood still because the machine was too busy.
func (f *Fabric) StalledTime() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stalled
}

// wallTime returns the time of the wall clock at a time of the fabric.
func (f *Fabric) wallTime(at int64) time.Time { return f.base.Add(f.stalled + time.Duration(at)) }

// slice is for how long the fabric is simulated in one go: scrapes wait no longer.
const slice = 20 * time.Millisecond

// AdvanceTo simulates up to a time since the base.
func (f *Fabric) AdvanceTo(to time.Duration) {
	for f.stepTowards(to) {
	}
}

// stepTowards advances a little towards a time, and reports whether there is more to go.
func (f *Fabric) stepTowards(to time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.net.Run(min(int64(to), f.net.Now()+int64(slice)))
	now := f.net.Now()
	for _, a := range f.agents {
		a.clock.now.Store(now)
		a.engine.AdvanceTo(now)
	}
	return now < int64(to)
}

// PacketCounts returns the counts of the packets so far.
func (f *Fabric) PacketCounts() packets.Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.net.Counts
}

// traceEdge traces an edge: what hop-limited packets of it would learn now, or those of them with a tag.
func (f *Fabric) traceEdge(e fabric.Flow, tagged bool) (hops []probe.Hop, reached bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, to := e.Endpoints()
	src, ok1 := f.net.NICNumber(from)
	dst, ok2 := f.net.NICNumber(to)
	a := f.agents[fabric.OwnerOf(e.Src)]
	if !ok1 || !ok2 || a == nil {
		return nil, false
	}
	stamps := a.engine.Config().Stamp
	sport, dport := stamps.SourcePort+uint16(e.Number), stamps.Port
	if e.Reply {
		sport, dport = dport, sport
	}
	hash := hashOf(from, to, sport, dport)
	met, reached := f.net.TraceFlow(src, dst, hash)
	if tagged {
		met, reached = f.net.TraceTagged(src, dst, hash)
	}
	reached = reached && !e.Reply // the arrival of a reply is not reported
	known := 0
	for i, m := range met {
		h := probe.Hop{TTL: i + 1}
		if m.Answers {
			h.Address, h.RTT = f.addressOf(m.In), time.Duration(m.RTT)
			known = i + 1
		}
		hops = append(hops, h)
	}
	if !reached {
		hops = hops[:known]
	}
	return hops, reached
}

func (f *Fabric) addressOf(end string) netip.Addr {
	l := f.graph.LinkAt(end)
	if l.A == end {
		return l.AAddress.Addr()
	}
	return l.BAddress.Addr()
}

// randomTime returns a random time: at least the given minimum, and on average so much more.
func (f *Fabric) randomTime(least, mean int64) int64 {
	return least + int64(f.rng.ExpFloat64()*float64(mean))
}

// flow is an edge that is probed.
type flow struct {
	*probe.SimFlow
	agent                    *agent
	farAgent                 *agent
	src, dst                 int32
	forwardHash, reverseHash uint64
	trails                   [2]packets.Trail // of probes, of replies
	keys                     [2]sighting.Key
	next                     int64
}

// ActAt sends what is due.
func (fl *flow) ActAt(now int64) {
	f, cadence := fl.agent.f, int64(fl.Cadence)
	if fl.agent.asleep {
		missed := (fl.agent.asleepUntil - fl.next) / cadence
		fl.SkipProbes(int(missed))
		fl.next += (missed + 1) * cadence
		f.net.ScheduleAt(fl.next, fl)
		return
	}
	for range fl.DuePackets() {
		p := f.newFlight(fl)
		stamped, leaves := fl.agent.sendTimes(now)
		p.Tag = fl.SendProbe(&p.SimPacket, now, stamped)
		p.stage = probing
		p.From, p.To, p.Flow, p.Trail = fl.src, fl.dst, fl.forwardHash, &fl.trails[0]
		f.net.ScheduleAt(leaves, p)
	}
	fl.next += cadence
	f.net.ScheduleAt(fl.next, fl)
}

// stage names the next step of a flight.
type stage uint8

const (
	probing    stage = iota // leaves its NIC
	reflecting              // is read by the program that answers
	replying                // leaves the NIC of the reflector
	reading                 // is read by the program that sent the probe
)

// flight is a probe from its making to the reading of its reply.
type flight struct {
	packets.Packet
	probe.SimPacket
	flow    *flow
	stage   stage
	stamped int64 // by the kernel of the node it came to
}

func (f *Fabric) newFlight(fl *flow) *flight {
	var p *flight
	if n := len(f.freeFlights); n > 0 {
		p, f.freeFlights = f.freeFlights[n-1], f.freeFlights[:n-1]
	} else {
		p = &flight{}
	}
	p.flow, p.Octets, p.ECNCapable, p.Receiver = fl, probeOctets, true, p
	return p
}

// ActAt handles the next stage of a packet that is at a host.
func (p *flight) ActAt(now int64) {
	f := p.flow.agent.f
	switch p.stage {
	case probing, replying:
		f.net.Send(&p.Packet)
	case reflecting:
		if p.flow.farAgent.deferPacket(p) {
			return
		}
		stamped, leaves := p.flow.farAgent.sendTimes(now)
		if !p.flow.farAgent.engine.ReflectProbe(&p.SimPacket, p.stamped, now, stamped, p.Marked, &p.Tag) {
			f.releaseFlight(p)
			return
		}
		p.stage = replying
		p.From, p.To, p.Flow, p.Trail = p.flow.dst, p.flow.src, p.flow.reverseHash, &p.flow.trails[1]
		f.net.ScheduleAt(leaves, p)
	case reading:
		if p.flow.agent.deferPacket(p) {
			return
		}
		p.flow.agent.engine.AcceptReply(&p.SimPacket, p.stamped, now, p.Marked, p.Tag)
		f.releaseFlight(p)
	}
}

// deferPacket lets what a sleeping program would do wait until it wakes.
func (a *agent) deferPacket(p *flight) bool {
	if a.asleep {
		a.f.net.ScheduleAt(a.asleepUntil, p)
	}
	return a.asleep
}

// PacketArrived implements packets.Receiver.
func (p *flight) PacketArrived(*packets.Packet) {
	f := p.flow.agent.f
	now := f.net.Now()
	p.stamped = now + f.randomTime(receiveLeast, receiveMean)
	if f.rng.Float64() < busyPart {
		p.stamped += f.randomTime(0, busyMean)
	}
	reader := p.flow.agent
	if p.stage == replying {
		p.stage = reading
	} else {
		fl := p.flow
		if fl.farAgent == nil {
			far := f.agents[fabric.OwnerOf(fl.Edge.Dst)]
			if far == nil || !fl.SetReflector(far.engine) {
				f.releaseFlight(p)
				return
			}
			fl.farAgent = far
		}
		p.stage, reader = reflecting, fl.farAgent
	}
	f.net.ScheduleAt(reader.readTime(p.stamped), p)
}

// PacketLost implements packets.Receiver.
func (p *flight) PacketLost(*packets.Packet, packets.Loss) { p.flow.agent.f.releaseFlight(p) }

func (f *Fabric) releaseFlight(p *flight) { f.freeFlights = append(f.freeFlights, p) }
