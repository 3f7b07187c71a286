// Package packets simulates a fabric packet by packet: switches that hash flows
// over equal ways, a queue at every port, cables, cross traffic, and what can be
// broken of it. It knows no agents and no clock but its own. Its rules, which the
// tests are named after:
//
//  1. A packet that was sent is delivered once, or lost once for one reason, or on
//     its way.
//  2. A direction of a link delivers in the order in which it was given the packets.
//  3. A port sends at its rate what waits at it, in order. What does not fit its
//     queue is lost; an ECN-capable packet that finds more waiting than the
//     threshold is marked (RFC 3168).
//  4. The packets of a flow leave a switch by the same one of the shortest ways, as
//     long as the routes stay.
//  5. A link that is down carries nothing. Its own ends send around it at once; the
//     others once it is withdrawn.
//  6. Cables that are swapped carry packets to where they are plugged, and routes
//     follow them at once.
//  7. The same seed and the same calls give the same packets at the same times.
//  8. A port that sends for a switch updates the tags of packets (package csig) by
//     what it has sent, cross traffic included, and by how long the packet waited.
package packets

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
)

// Measures of the fabric that the topology does not give.
const (
	defaultGbps = 100
	// queueTime and markTime are how long a full queue, and one that marks, take
	// to be sent at the port's rate, nanoseconds: 1.25 MB and 125 kB at 100 Gbit/s.
	queueTime, markTime = 100_000, 10_000
	// switchTime is from the last bit received to the queue of the port that sends,
	// nanoseconds.
	switchTime = 600
	// A cable takes 5 ns a metre: of a few metres to a NIC, of up to 100 m between
	// switches.
	accessTime, leastCable, mostCable = 15, 25, 500
	// DefaultLoad is the cross traffic of every port, of its rate; it comes in
	// bursts of burstOctets.
	DefaultLoad = 0.2
	burstOctets = 16 << 10
)

// maxHops bounds how many switches a packet comes to.
const maxHops = 64

// Actor is something that happens at a time. It may give the network more to do.
type Actor interface {
	ActAt(now int64)
}

// Receiver takes what becomes of a packet.
type Receiver interface {
	// PacketArrived is called when the last bit is at the destination's NIC.
	PacketArrived(p *Packet)
	// PacketLost is called when the packet is.
	PacketLost(p *Packet, why Loss)
}

// Packet is one packet. Its sender sets the fields; the packet may be used again
// once its Receiver was called.
type Packet struct {
	From, To   int32  // NICs, as NIC numbers them
	Flow       uint64 // what switches hash: equal for the packets of a flow
	Octets     int32
	ECNCapable bool // of ECN
	Marked     bool // congestion experienced
	Receiver   Receiver
	Trail      *Trail // where the flow's packets enter switches; nil if not wanted
	// Tag is the in-band signal, whose octets are among Octets. The zero value is no tag.
	Tag csig.Tag

	net  *Network
	on   int32 // the direction it crosses
	hops int32 // switches that it has come to
}

// Trail is where the packets of a flow entered switches.
type Trail []PortEntry

// PortEntry is a port that a flow's packets entered a switch by: when first and last,
// and how many since. Times are the network's.
type PortEntry struct {
	Port        int32 // as Port numbers the ends
	Switch      int32
	First, Last int64
	Count       uint64
}

// away is for how long a flow must have stayed away from a port to be a new one.
const away = int64(3e9)

func (t *Trail) recordEntry(port, sw int32, now int64) {
	for i := range *t {
		m := &(*t)[i]
		if m.Port != port {
			continue
		}
		if now-m.Last > away {
			m.First, m.Count = now, 0
		}
		m.Last = now
		m.Count++
		return
	}
	*t = append(*t, PortEntry{Port: port, Switch: sw, First: now, Last: now, Count: 1})
}

// Loss is why a packet was lost.
type Loss uint8

// Why packets are lost.
const (
	Overflow Loss = iota // its queue was full
	Broken               // a fault of the direction took it
	Down                 // the link was down
	NoRoute              // the switch knew no way
	losses
)

// Counts are of packets since the start.
type Counts struct {
	Sent, Delivered uint64
	Lost            [losses]uint64
}

// TotalLost returns how many packets were lost.
func (c Counts) TotalLost() (n uint64) {
	for _, l := range c.Lost {
		n += l
	}
	return n
}

// port is an end of a link as it sends: a direction of the link.
type port struct {
	end     string
	sw      int32   // of the switch that sends; -1: a NIC
	toSW    int32   // of the switch that receives; -1: a NIC
	toNIC   int32   // that receives; -1: a switch
	toEnd   string  // that receives
	toPort  int32   // the same as a number
	link    string  // that the cable makes
	nsOctet float64 // to send one
	cable   int64   // nanoseconds
	cross   crossTraffic

	depth, mark float64 // of the queue, nanoseconds
	free        float64 // when all that waits will have been sent
	last        int64   // when the last packet arrives at the other end

	unshaped struct{ nsOctet, depth, mark float64 } // without a shaper

	signal *csig.Port // nil without in-band signals, and at NICs

	// Faults.
	down    bool
	slow    int64
	loss    float64
	markAll bool
	tags    csig.Action
}

// crossTraffic is the traffic of others through a port: bursts of one size, at random.
type crossTraffic struct {
	next   float64 // when the next burst comes
	every  float64 // mean time between two, nanoseconds; 0: there is none
	burst  float64 // time to send one
	forget float64 // what came longer ago has left
}

// node is a switch.
type node struct {
	name string
	salt uint64
	slow int64
	mute bool
	// dropsTags states that the switch drops what has a tag.
	dropsTags bool
	// ports lead to other switches.
	ports []int32
}

type nic struct {
	name string
	out  int32 // its port; -1: it has no link
	leaf int32
	in   int32 // the leaf's port that faces it
}

// Network is a fabric. It is not safe for concurrent use.
type Network struct {
	Counts
	g         *fabric.Graph
	now       int64
	rng       *rand.Rand
	events    queue
	ports     []port
	byEnd     map[string]int32
	switches  []node
	bySwitch  map[string]int32
	nics      []nic
	byNIC     map[string]int32
	down      map[string]bool // links
	withdrawn map[string]bool // links that are down and withdrawn
	swapped   [][2]string     // ends whose cables are exchanged
	// nextHops are the ports by which a switch sends to a leaf: next[leaf][switch].
	nextHops map[int32][][]int32
	// subnet is what is installed in an InfiniBand subnet. It is nil on Ethernet. tables has the ports of subnet.Next by
	// switch and NIC.
	subnet *Subnet
	tables [][][]int32
	// spray chooses the next hop of each packet. It is nil if a hash of the flow does.
	spray *rand.Rand
	// signals is the profile of in-band signals, and nil without them.
	signals *csig.Profile
}

// New makes the fabric of a topology. load is the cross traffic of every port, of
// its rate, below 0.9; the seed chooses what is random.
func New(t *fabric.Topology, load float64, seed uint64) *Network {
	n := &Network{g: fabric.NewGraph(t), rng: rand.New(rand.NewPCG(seed, 0x6661627269630a)), byEnd: map[string]int32{}, bySwitch: map[string]int32{}, byNIC: map[string]int32{},
		down: map[string]bool{}, withdrawn: map[string]bool{}}
	if t.Sprays() {
		n.spray = rand.New(rand.NewPCG(seed, 0x7370726179))
	}
	for i := range t.Switches {
		name := t.Switches[i].Name
		n.bySwitch[name] = int32(i)
		n.switches = append(n.switches, node{name: name, salt: HashText(name)})
	}
	for _, id := range n.g.NICIDs() {
		n.byNIC[id] = int32(len(n.nics))
		n.nics = append(n.nics, nic{name: id, out: -1, leaf: -1, in: -1})
	}
	for i := range t.Links {
		l := &t.Links[i]
		rate := l.SpeedGbps
		if rate <= 0 {
			rate = defaultGbps
		}
		cable := int64(accessTime)
		if !l.IsAccess() {
			cable = leastCable + int64(HashText(l.ID())%uint64(mostCable-leastCable))
		}
		for _, ends := range [][2]string{{l.A, l.B}, {l.B, l.A}} {
			n.addPort(ends[0], 8/rate, cable, load)
		}
	}
	n.connectPorts()
	return n
}

// PortNumber returns the number of an end of a link.
func (n *Network) PortNumber(end string) (int32, bool) {
	i, ok := n.byEnd[end]
	return i, ok
}

// SwitchNumber returns the number of a switch.
func (n *Network) SwitchNumber(name string) (int32, bool) {
	i, ok := n.bySwitch[name]
	return i, ok
}

// FarEnd returns the other end of the cable that is plugged into an end now. ok is false if the cable is dead.
func (n *Network) FarEnd(end string) (far string, ok bool) {
	p, err := n.portAt(end)
	if err != nil {
		return "", false
	}
	return p.toEnd, !p.down
}

func (n *Network) addPort(end string, nsOctet float64, cable int64, load float64) {
	p := port{end: end, sw: -1, nsOctet: nsOctet, cable: cable, depth: queueTime, mark: markTime}
	p.unshaped.nsOctet, p.unshaped.depth, p.unshaped.mark = p.nsOctet, p.depth, p.mark
	if load > 0 {
		burst := burstOctets * nsOctet
		every := burst / load
		// The queue of an M/D/1 port forgets within a few times (1-sqrt(load))^-2
		// services how full it was (Cohen, The Single Server Queue, III.7.3).
		p.cross = crossTraffic{every: every, burst: burst, forget: 12*burst/math.Pow(1-math.Sqrt(load), 2) + 4*every}
	}
	i := int32(len(n.ports))
	n.byEnd[end] = i
	if s, ok := n.bySwitch[fabric.OwnerOf(end)]; ok && !fabric.IsNIC(end) {
		p.sw = s
	}
	n.ports = append(n.ports, p)
}

// connectPorts connects every port to the end that its cable leads to, and finds the
// routes anew.
func (n *Network) connectPorts() {
	for i := range n.switches {
		n.switches[i].ports = nil
	}
	for i := range n.ports {
		p := &n.ports[i]
		p.toEnd, p.toSW, p.toNIC = n.cabledEnd(p.end), -1, -1
		p.link, p.toPort = fabric.LinkID(p.end, p.toEnd), n.byEnd[p.toEnd]
		if k, ok := n.byNIC[p.toEnd]; ok {
			p.toNIC = k
			n.nics[k].leaf, n.nics[k].in = p.sw, int32(i)
			continue
		}
		p.toSW = n.bySwitch[fabric.OwnerOf(p.toEnd)]
		if p.sw < 0 {
			n.nics[n.byNIC[p.end]].out = int32(i)
		} else {
			n.switches[p.sw].ports = append(n.switches[p.sw].ports, int32(i))
		}
	}
	for i := range n.switches {
		slices.SortFunc(n.switches[i].ports, func(a, b int32) int {
			if n.ports[a].end < n.ports[b].end {
				return -1
			}
			return 1
		})
	}
	n.computeRoutes()
}

// cabledEnd returns the end at the other end of a cable.
func (n *Network) cabledEnd(end string) string {
	if n.subnet != nil {
		far, _ := n.activeFarEnd(end)
		return far
	}
	other := func(e string) string {
		for _, s := range n.swapped {
			switch e {
			case s[0]:
				e = s[1]
			case s[1]:
				e = s[0]
			}
		}
		return e
	}
	// The upper ends are exchanged: seen from there, whose cable is plugged in
	// differs; seen from below, where the cable leads.
	if o := other(end); o != end {
		return n.g.PeerOf(o)
	}
	return other(n.g.PeerOf(end))
}

// computeRoutes finds the ways to every leaf.
func (n *Network) computeRoutes() {
	for i := range n.ports {
		n.ports[i].down = n.down[n.ports[i].link]
		if n.subnet != nil {
			_, active := n.activeFarEnd(n.ports[i].end)
			n.ports[i].down = n.ports[i].down || !active
		}
	}
	if n.subnet != nil {
		return
	}
	n.nextHops = map[int32][][]int32{}
	for i := range n.nics {
		if leaf := n.nics[i].leaf; leaf >= 0 && n.nextHops[leaf] == nil {
			n.nextHops[leaf] = n.nextHopsTo(leaf)
		}
	}
}

// nextHopsTo returns the ports of every switch that lie on shortest paths to a leaf. Withdrawn links are in no
// routes, and a switch that is left without a path is on no path of others. A link that is down and not withdrawn is
// missing at its own ends only.
func (n *Network) nextHopsTo(leaf int32) [][]int32 {
	dist := make([]int, len(n.switches))
	for i := range dist {
		dist[i] = -1
	}
	dist[leaf] = 0
	order := []int32{leaf}
	for i := 0; i < len(order); i++ {
		for _, p := range n.switches[order[i]].ports {
			if to := n.ports[p].toSW; dist[to] < 0 {
				dist[to] = dist[order[i]] + 1
				order = append(order, to)
			}
		}
	}
	out := make([][]int32, len(n.switches))
	reaches := make([]bool, len(n.switches))
	reaches[leaf] = true
	for _, s := range order[1:] {
		for _, p := range n.switches[s].ports {
			to := n.ports[p].toSW
			if dist[to] != dist[s]-1 || !reaches[to] || n.withdrawn[n.ports[p].link] {
				continue
			}
			reaches[s] = true
			if !n.ports[p].down {
				out[s] = append(out[s], p)
			}
		}
	}
	return out
}

// Now returns the network's time, nanoseconds from its start.
func (n *Network) Now() int64 { return n.now }

// ScheduleAt lets an actor act at a time, now at the earliest.
func (n *Network) ScheduleAt(t int64, a Actor) { n.events.push(max(t, n.now), a) }

// Run lets everything happen up to a time.
func (n *Network) Run(until int64) {
	for n.events.len() > 0 && n.events.firstTime() <= until {
		at, a := n.events.pop()
		n.now = at
		a.ActAt(at)
	}
	n.now = max(n.now, until)
}

// NICNumber returns the number of a NIC.
func (n *Network) NICNumber(id string) (int32, bool) {
	k, ok := n.byNIC[id]
	return k, ok
}

// Send takes a packet from its NIC. The Receiver is called in the course of Run.
func (n *Network) Send(p *Packet) {
	p.net, p.Marked, p.hops = n, false, 0
	n.Sent++
	if out := n.nics[p.From].out; out >= 0 {
		n.transmitPacket(out, p)
	} else {
		n.losePacket(p, NoRoute)
	}
}

// ActAt handles the packet's arrival at the end of a direction.
func (p *Packet) ActAt(int64) {
	n := p.net
	d := &n.ports[p.on]
	if d.toNIC >= 0 && d.toNIC == p.To {
		n.Delivered++
		p.Receiver.PacketArrived(p)
		return
	}
	// Tables that are being replaced may send a packet in a circle, or to another NIC.
	if p.hops++; d.toNIC >= 0 || p.hops > maxHops {
		n.losePacket(p, NoRoute)
		return
	}
	if n.switches[d.toSW].dropsTags && p.Tag.Format != csig.None {
		n.losePacket(p, Broken)
		return
	}
	if p.Trail != nil {
		p.Trail.recordEntry(d.toPort, d.toSW, n.now)
	}
	if out := n.chooseNextHop(d.toSW, p.To, p.Flow); out >= 0 {
		n.transmitPacket(out, p)
	} else {
		n.losePacket(p, NoRoute)
	}
}

// chooseNextHop returns the port by which a switch sends a flow to a NIC, and -1 if it has no route.
func (n *Network) chooseNextHop(sw, to int32, flow uint64) int32 {
	if n.subnet != nil {
		return n.chooseInstalled(sw, to)
	}
	k := &n.nics[to]
	if k.leaf == sw {
		return k.in
	}
	if k.leaf < 0 {
		return -1
	}
	ways := n.nextHops[k.leaf][sw]
	if len(ways) == 0 {
		return -1
	}
	if n.spray != nil && len(ways) > 1 {
		return ways[n.spray.IntN(len(ways))]
	}
	return ways[mixBits(flow^n.switches[sw].salt)%uint64(len(ways))]
}

// transmitPacket puts a packet into a port's queue, and lets it arrive at the other end.
func (n *Network) transmitPacket(i int32, p *Packet) {
	d := &n.ports[i]
	now := float64(n.now)
	switch {
	case d.down:
		n.losePacket(p, Down)
		return
	case d.loss > 0 && n.rng.Float64() < d.loss:
		n.losePacket(p, Broken)
		return
	}
	d.admitCrossTraffic(now, n.rng)
	waits := max(0, d.free-now)
	took := float64(p.Octets) * d.nsOctet
	if waits+took > d.depth {
		n.losePacket(p, Overflow)
		return
	}
	if p.ECNCapable && (waits > d.mark || d.markAll) {
		p.Marked = true
	}
	d.free = now + waits + took
	if d.signal != nil {
		d.signalTo(p, waits+took)
	}
	at := int64(d.free) + d.cable + d.slow
	if d.toSW >= 0 {
		at += switchTime + n.switches[d.toSW].slow
	}
	// Once a fault that delays has ended, no packet overtakes those that it delayed.
	d.last = max(d.last, at)
	p.on = i
	n.ScheduleAt(d.last, p)
}

// admitCrossTraffic lets the bursts of cross traffic come that were due.
func (d *port) admitCrossTraffic(now float64, rng *rand.Rand) {
	c := &d.cross
	if c.every == 0 {
		return
	}
	if from := now - c.forget; c.next < from && d.free < from {
		c.next = from + rng.ExpFloat64()*c.every
	}
	for c.next <= now {
		if waits := max(0, d.free-c.next); waits+c.burst <= d.depth {
			d.free = c.next + waits + c.burst
			if d.signal != nil {
				d.signal.CountOctets(int(c.burst/d.nsOctet+0.5), int64(d.free))
			}
		}
		c.next += rng.ExpFloat64() * c.every
	}
}

func (n *Network) losePacket(p *Packet, why Loss) {
	n.Lost[why]++
	p.Receiver.PacketLost(p, why)
}

// Hop is a switch that a trace met.
type Hop struct {
	Switch string
	In     string // the end it was entered by
	// Answers is set if the switch reports expired packets and its report comes back.
	Answers bool
	// RTT is how long that takes without queues, nanoseconds.
	RTT int64
}

// TraceFlow follows a flow by the routes of this moment. A switch behind a direction
// that loses everything is not met. Where packets are sprayed, each hop is met by another packet.
func (n *Network) TraceFlow(from, to int32, flow uint64) (hops []Hop, reached bool) {
	if n.spray == nil {
		return n.traceOnce(from, to, flow)
	}
	for {
		met, arrived := n.traceOnce(from, to, flow)
		if len(met) <= len(hops) {
			return hops, arrived
		}
		hops = append(hops, met[len(hops)])
	}
}

// traceOnce returns what one packet meets.
func (n *Network) traceOnce(from, to int32, flow uint64) (hops []Hop, reached bool) {
	rtt := int64(0)
	for out := n.nics[from].out; out >= 0 && n.isPassable(out); {
		d := &n.ports[out]
		rtt += 2 * (d.cable + d.slow)
		if d.toNIC >= 0 {
			return hops, d.toNIC == to
		}
		s := &n.switches[d.toSW]
		rtt += 2 * (switchTime + s.slow)
		hops = append(hops, Hop{Switch: s.name, In: d.toEnd, RTT: rtt, Answers: !s.mute && n.comesBack(d.toSW, from)})
		if len(hops) > len(n.switches) {
			return hops, false
		}
		out = n.chooseNextHop(d.toSW, to, flow)
	}
	return hops, false
}

// isPassable reports whether a direction lets anything through.
func (n *Network) isPassable(i int32) bool {
	d := &n.ports[i]
	return d.loss < 1 && !d.down
}

// comesBack reports whether what a switch sends to a NIC gets there.
func (n *Network) comesBack(sw, to int32) bool {
	flow := n.switches[sw].salt ^ uint64(to)
	for range n.switches {
		out := n.chooseNextHop(sw, to, flow)
		if out < 0 || !n.isPassable(out) {
			return false
		}
		if n.ports[out].toNIC >= 0 {
			return true
		}
		sw = n.ports[out].toSW
	}
	return false
}

// HashText makes a number of a text, for flows.
func HashText(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return mixBits(h.Sum64())
}

// mixBits applies the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
func mixBits(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// switchAt returns the number of a switch.
func (n *Network) switchAt(name string) (int32, error) {
	i, ok := n.bySwitch[name]
	if !ok {
		return 0, fmt.Errorf("the fabric has no switch %q", name)
	}
	return i, nil
}

// portAt finds the direction that leaves an end.
func (n *Network) portAt(end string) (*port, error) {
	i, ok := n.byEnd[end]
	if !ok {
		return nil, fmt.Errorf("the fabric has no linked end %q", end)
	}
	return &n.ports[i], nil
}
