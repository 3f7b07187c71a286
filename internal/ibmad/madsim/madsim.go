// Package madsim simulates an InfiniBand fabric in memory, for tests: nodes that answer
// management datagrams octet by octet, switches that route them by their
// forwarding tables, and the faults that ibsim does not have.
//
//  1. A datagram goes where the tables and the links lead it, both ways. A datagram
//     without a way, or for a silent node, is never answered: only the client's
//     own time-out ends the wait.
//  2. Links carry directed routes when they are physically up, and LIDs once
//     they are active. SetLinkUp brings a link up; RunSubnetManager makes it active and
//     writes all tables.
//  3. Counters have their true widths and stand still at their maximum. The same
//     event counts in every attribute that has a counter of that name.
//  4. The capabilities of a node are its Vendor's: a request for an attribute that it lacks
//     is refused or dropped; a counter that it lacks reads 0.
//  5. A key that protects against reading makes a node drop requests with
//     another one.
package madsim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/ibmad"
)

// Vendor describes the behaviour of a kind of device.
type Vendor struct {
	ID       uint32
	DeviceID uint16
	// Capabilities of the performance agent, as in ClassPortInfo.
	Capabilities  uint16
	Capabilities2 uint32
	// Attributes lists the attributes of performance management that it supports, beside ClassPortInfo and
	// PortCounters. PortCountersExtended also needs its capability.
	Attributes []ibmad.Attribute
	// DropsUnknown leaves requests for other attributes unanswered.
	DropsUnknown bool
	// Speed and SpeedExt are the active speeds of its ports, as in PortInfo.
	Speed, SpeedExt uint8
	// FDR10 is a speed at which PortInfo says QDR. XDR is one above SpeedExt.
	FDR10, XDR bool
	FEC        ibmad.FECMode
}

// Kinds of devices; the names stand for generations, not for products.
var (
	// HDR has every attribute, and Reed-Solomon error correction.
	HDR = Vendor{
		ID: 0x2c9, DeviceID: 0xd2f0, Speed: 4, SpeedExt: 4, FEC: ibmad.FECReedSolomon2, Attributes: ibmad.CounterAttributes(),
		Capabilities:  ibmad.PMAllPortSelect | ibmad.PMExtendedWidth | ibmad.PMPortCountersXmitWait | ibmad.PMReedSolomonCounters,
		Capabilities2: ibmad.PM2AdditionalExtendedEr,
	}
	// FDR has lanes with fire-code error correction, and error counters of the narrow widths only.
	FDR = Vendor{
		ID: 0x2c9, DeviceID: 0xc738, Speed: 4, SpeedExt: 1, FEC: ibmad.FECFire, Attributes: ibmad.CounterAttributes(),
		Capabilities: ibmad.PMAllPortSelect | ibmad.PMExtendedWidth | ibmad.PMPortCountersXmitWait,
	}
	// QDR has wide data counters without unicast and multicast, and no details.
	QDR = Vendor{
		ID: 0x1175, DeviceID: 0x7322, Speed: 4, Attributes: []ibmad.Attribute{ibmad.AttrPortCountersExtended},
		Capabilities: ibmad.PMExtendedWidthNoIETF | ibmad.PMPortCountersXmitWait,
	}
	// DDR has the narrow counters only, and does not answer requests for unknown attributes.
	DDR = Vendor{ID: 0x5ad, DeviceID: 0xa87c, Speed: 2, DropsUnknown: true}
)

// Options of a fabric.
type Options struct {
	// LMC gives each HCA port 2^LMC LIDs.
	LMC uint8
	// Latency is the delay that each link and each agent adds to a request and to its answer.
	Latency time.Duration
	// MaxInFlight is the limit that transports report; 64 by default.
	MaxInFlight int
	// Seed is the seed of random losses.
	Seed uint64
}

// Fabric is a simulated fabric. Its methods may be called at any time, by any goroutine. Those that name a node
// or a port that does not exist panic, because that is a mistake in the test.
type Fabric struct {
	options Options

	mu            sync.Mutex
	nodes         []*node
	byName        map[string]*node
	topLID        ibmad.LID
	key           ibmad.MKey
	keyProtection uint8
	random        *rand.Rand
}

type node struct {
	Node
	vendor          *Vendor
	missingCounters map[ibmad.Attribute][]ibmad.Counter // counters that it lacks
	ports           []port                              // by number; a switch's port 0 is its own
	table           []uint8                             // by LID
	sl2vl           map[[2]uint8]ibmad.SLtoVL
	stateChanged    bool
	silent          bool
	loss            float64
}

type port struct {
	peer     *node
	peerPort uint8
	state    ibmad.PortState
	phys     ibmad.PhysState
	counters map[ibmad.Attribute]*ibmad.Data
}

// Node holds the properties of a node.
type Node struct {
	Name  string
	Type  ibmad.NodeType
	GUID  ibmad.GUID
	Ports uint8
	LID   ibmad.LID // of port 1 of an HCA, of port 0 of a switch
	LMC   uint8
}

// New returns a fabric without nodes.
func New(o Options) *Fabric {
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 64
	}
	return &Fabric{options: o, byName: make(map[string]*node), random: rand.New(rand.NewPCG(o.Seed, 0))}
}

// FatTree makes a fat tree of two tiers and brings it up. It has the switches leaf0.. and spine0.., and perLeaf
// HCAs h0.. on each leaf. Leaf ports 1..perLeaf lead to HCAs, port perLeaf+1+s to spine s, whose port 1+l leads
// to leaf l.
func FatTree(leaves, spines, perLeaf int, o Options) *Fabric {
	f := New(o)
	for s := range spines {
		f.AddSwitch(fmt.Sprintf("spine%d", s), uint8(leaves))
	}
	for l := range leaves {
		leaf := fmt.Sprintf("leaf%d", l)
		f.AddSwitch(leaf, uint8(perLeaf+spines))
		for h := range perLeaf {
			host := fmt.Sprintf("h%d", l*perLeaf+h)
			f.AddHCA(host)
			f.LinkPorts(host, 1, leaf, uint8(h+1))
		}
		for s := range spines {
			f.LinkPorts(leaf, uint8(perLeaf+1+s), fmt.Sprintf("spine%d", s), uint8(l+1))
		}
	}
	f.RunSubnetManager()
	return f
}

// AddSwitch adds a switch with so many ports beside its port 0.
func (f *Fabric) AddSwitch(name string, ports uint8) {
	f.addNode(Node{Name: name, Type: ibmad.NodeSwitch, Ports: ports})
}

// AddHCA adds a channel adapter with one port.
func (f *Fabric) AddHCA(name string) { f.addNode(Node{Name: name, Type: ibmad.NodeHCA, Ports: 1}) }

func (f *Fabric) addNode(n Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byName[n.Name] != nil {
		panic("madsim: two nodes " + n.Name)
	}
	step := ibmad.LID(1)
	if n.Type == ibmad.NodeHCA {
		n.LMC, step = f.options.LMC, 1<<f.options.LMC
	}
	n.LID = (f.topLID + step) &^ (step - 1)
	f.topLID = n.LID + step - 1
	n.GUID = ibmad.GUID(0x10000000 + len(f.nodes)*0x100)
	added := &node{Node: n, ports: make([]port, int(n.Ports)+1), sl2vl: make(map[[2]uint8]ibmad.SLtoVL)}
	for i := range added.ports {
		added.ports[i] = port{state: ibmad.PortDown, phys: ibmad.PhysPolling, counters: make(map[ibmad.Attribute]*ibmad.Data)}
	}
	if n.Type == ibmad.NodeSwitch {
		added.ports[0].state, added.ports[0].phys = ibmad.PortActive, ibmad.PhysLinkUp
	}
	added.setVendor(&HDR)
	f.nodes = append(f.nodes, added)
	f.byName[n.Name] = added
}

// LinkPorts connects two ports by a cable. The link is up, and becomes active with RunSubnetManager.
func (f *Fabric) LinkPorts(a string, aPort uint8, b string, bPort uint8) {
	f.mu.Lock()
	defer f.mu.Unlock()
	an, ap := f.mustPort(a, aPort)
	bn, bp := f.mustPort(b, bPort)
	if ap.peer != nil || bp.peer != nil {
		panic(fmt.Sprintf("madsim: %s port %d or %s port %d is cabled already", a, aPort, b, bPort))
	}
	ap.peer, ap.peerPort = bn, bPort
	bp.peer, bp.peerPort = an, aPort
	ap.bringUp(ibmad.PortInit)
	bp.bringUp(ibmad.PortInit)
}

func (p *port) bringUp(s ibmad.PortState) { p.state, p.phys = s, ibmad.PhysLinkUp }
func (p *port) bringDown()                { p.state, p.phys = ibmad.PortDown, ibmad.PhysPolling }

func (f *Fabric) mustNode(name string) *node {
	n := f.byName[name]
	if n == nil {
		panic("madsim: no node " + name)
	}
	return n
}

func (f *Fabric) mustPort(name string, number uint8) (*node, *port) {
	n := f.mustNode(name)
	if int(number) >= len(n.ports) {
		panic(fmt.Sprintf("madsim: %s has no port %d", name, number))
	}
	return n, &n.ports[number]
}

// ListNodes returns the nodes in the order in which they were added.
func (f *Fabric) ListNodes() []Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]Node, len(f.nodes))
	for i, n := range f.nodes {
		list[i] = n.Node
	}
	return list
}

// NodeByName returns the node of a name.
func (f *Fabric) NodeByName(name string) Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mustNode(name).Node
}

// PeerOf returns the other end of a port's cable, whether the link is up or not.
func (f *Fabric) PeerOf(name string, number uint8) (peer string, peerPort uint8, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, p := f.mustPort(name, number)
	if p.peer == nil {
		return "", 0, false
	}
	return p.peer.Name, p.peerPort, true
}

// SetLinkDown takes both ends of a link down and counts that. The tables stay as they are.
func (f *Fabric) SetLinkDown(name string, number uint8) {
	f.changeLink(name, number, func(n *node, p *port) {
		if p.phys == ibmad.PhysLinkUp {
			n.addEvents(p, "LinkDownedCounter", 0, 1)
		}
		p.bringDown()
	})
}

// SetLinkUp brings a link up again; it becomes active with RunSubnetManager.
func (f *Fabric) SetLinkUp(name string, number uint8) {
	f.changeLink(name, number, func(_ *node, p *port) { p.bringUp(ibmad.PortInit) })
}

func (f *Fabric) changeLink(name string, number uint8, change func(*node, *port)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, p := f.mustPort(name, number)
	if p.peer == nil {
		panic(fmt.Sprintf("madsim: %s port %d has no cable", name, number))
	}
	change(n, p)
	change(p.peer, &p.peer.ports[p.peerPort])
	n.stateChanged, p.peer.stateChanged = true, true
}

// RunSubnetManager does the subnet manager's work: links that are up become active, and every switch gets the
// table of shortest paths, spread over equal ones by LID.
func (f *Fabric) RunSubnetManager() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		n.stateChanged = false
		for i := range n.ports {
			if p := &n.ports[i]; p.phys == ibmad.PhysLinkUp {
				p.state = ibmad.PortActive
			}
		}
		if n.Type == ibmad.NodeSwitch {
			n.table = slices.Repeat([]uint8{ibmad.NoRoute}, int(f.topLID)+1)
		}
	}
	for _, to := range f.nodes {
		f.routeTo(to)
	}
}

// routeTo writes the routes to one node, breadth first from it.
func (f *Fabric) routeTo(to *node) {
	far := map[*node]int{to: 0}
	for queue := []*node{to}; len(queue) > 0; queue = queue[1:] {
		n := queue[0]
		var ways []uint8
		for i := range n.ports {
			p := &n.ports[i]
			if p.peer == nil || p.state != ibmad.PortActive {
				continue
			}
			if d, seen := far[p.peer]; !seen && (n == to || n.Type == ibmad.NodeSwitch) {
				far[p.peer] = far[n] + 1
				queue = append(queue, p.peer)
			} else if seen && d < far[n] {
				ways = append(ways, uint8(i))
			}
		}
		if n.Type != ibmad.NodeSwitch {
			continue
		}
		for i := range 1 << to.LMC {
			lid := to.LID + ibmad.LID(i)
			switch {
			case n == to:
				n.table[lid] = 0
			case len(ways) > 0:
				n.table[lid] = ways[int(lid)%len(ways)]
			}
		}
	}
}

// SetForwarding writes one entry of a switch's table, as if a subnet manager were not done yet.
func (f *Fabric) SetForwarding(name string, lid ibmad.LID, out uint8) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mustNode(name).table[lid] = out
}

// ForwardingPort returns the egress port of a switch for a LID.
func (f *Fabric) ForwardingPort(name string, lid ibmad.LID) uint8 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mustNode(name).table[lid]
}

// SetSLtoVL sets the virtual lanes of packets that cross a switch from in to out. By default, each service
// level has the lane of its number, modulo 8.
func (f *Fabric) SetSLtoVL(name string, in, out uint8, table ibmad.SLtoVL) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mustNode(name).sl2vl[[2]uint8{in, out}] = table
}

// SetSilent makes a node's agents stop or resume answering. The node continues to forward.
func (f *Fabric) SetSilent(name string, silent bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mustNode(name).silent = silent
}

// SetLoss makes a node's agents lose a share of the requests. Lost subnet management requests count as
// VL15Dropped at the port by which they arrived.
func (f *Fabric) SetLoss(name string, ratio float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mustNode(name).loss = ratio
}

// SetVendor makes a node another kind of device. Its counters stay.
func (f *Fabric) SetVendor(name string, v Vendor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mustNode(name).setVendor(&v)
}

func (n *node) setVendor(v *Vendor) {
	n.vendor = v
	n.missingCounters = make(map[ibmad.Attribute][]ibmad.Counter)
	info := v.classPortInfo()
	for _, a := range ibmad.CounterAttributes() {
		for _, c := range n.counterLayout(a) {
			if !c.SupportedBy(&info) {
				n.missingCounters[a] = append(n.missingCounters[a], c)
			}
		}
	}
}

func (v *Vendor) classPortInfo() ibmad.ClassPortInfo {
	return ibmad.ClassPortInfo{BaseVersion: 1, ClassVersion: 1, Capabilities: v.Capabilities, Capabilities2: v.Capabilities2, ResponseTime: 12}
}

// hasAttribute reports whether the device supports the performance attribute.
func (v *Vendor) hasAttribute(a ibmad.Attribute) bool {
	info := v.classPortInfo()
	switch a {
	case ibmad.AttrClassPortInfo, ibmad.AttrPortCounters:
		return true
	case ibmad.AttrPortCountersExtended:
		return info.HasExtendedCounters() && slices.Contains(v.Attributes, a)
	}
	return slices.Contains(v.Attributes, a)
}

// counterLayout returns the node's counters of an attribute.
func (n *node) counterLayout(a ibmad.Attribute) []ibmad.Counter {
	if a == ibmad.AttrPortExtendedSpeeds && n.vendor.FEC.ReedSolomon() {
		return ibmad.ReedSolomonCounters()
	}
	return ibmad.CountersOf(a)
}

// SetMKey sets the subnet's key and its protection (IBA volume 1, 14.2.4.1): below 2, everybody may read, and 1
// hides the key; from 2 on, requests with another key get no answer.
func (f *Fabric) SetMKey(key ibmad.MKey, protection uint8) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.key, f.keyProtection = key, protection
}

// AddEvents adds events to the counters of a name, in every attribute that has one, as traffic does. n is the
// lane, virtual lane or service level, or 0.
func (f *Fabric) AddEvents(name string, number uint8, counter string, n uint8, events uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, p := f.mustPort(name, number)
	if !at.addEvents(p, counter, n, events) {
		panic("madsim: no counter " + counter)
	}
}

func (n *node) addEvents(p *port, counter string, index uint8, events uint64) (found bool) {
	for _, a := range ibmad.CounterAttributes() {
		for _, c := range n.counterLayout(a) {
			if c.Name != counter || c.Number != index {
				continue
			}
			d := p.counterData(a)
			sum := c.DecodeValue(d) + events
			if sum < events {
				sum = c.MaxValue()
			}
			c.EncodeValue(d, sum)
			found = true
		}
	}
	return found
}

func (p *port) counterData(a ibmad.Attribute) *ibmad.Data {
	d := p.counters[a]
	if d == nil {
		d = new(ibmad.Data)
		p.counters[a] = d
	}
	return d
}

// SetCounter sets one counter of one attribute, saturated at its width.
func (f *Fabric) SetCounter(name string, number uint8, a ibmad.Attribute, counter string, n uint8, value uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, p := f.mustPort(name, number)
	for _, c := range at.counterLayout(a) {
		if c.Name == counter && c.Number == n {
			c.EncodeValue(p.counterData(a), value)
			return
		}
	}
	panic(fmt.Sprintf("madsim: no counter %s %d in %v", counter, n, a))
}

// CounterValue returns the value of one counter.
func (f *Fabric) CounterValue(name string, number uint8, a ibmad.Attribute, counter string, n uint8) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, p := f.mustPort(name, number)
	for _, c := range at.counterLayout(a) {
		if c.Name == counter && c.Number == n {
			return c.DecodeValue(p.counterData(a))
		}
	}
	panic(fmt.Sprintf("madsim: no counter %s %d in %v", counter, n, a))
}

// ResetCounters sets all counters of a port to 0, as perfquery -R does.
func (f *Fabric) ResetCounters(name string, number uint8) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, p := f.mustPort(name, number)
	clear(p.counters)
}

// RebootNode sets all counters of a node to 0. The other ends of its links count that they were down.
func (f *Fabric) RebootNode(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.mustNode(name)
	for i := range n.ports {
		p := &n.ports[i]
		clear(p.counters)
		if p.peer != nil && p.phys == ibmad.PhysLinkUp {
			p.peer.addEvents(&p.peer.ports[p.peerPort], "LinkDownedCounter", 0, 1)
		}
	}
}

// AttachTransport returns a new transport for a node's port: 1 of an HCA, 0 of a switch. Any number may be
// attached.
func (f *Fabric) AttachTransport(name string) *Transport {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &Transport{fabric: f, node: f.mustNode(name)}
	t.more.L = &t.mu
	return t
}

// Transport is a client's side of the fabric.
type Transport struct {
	fabric *Fabric
	node   *node

	mu     sync.Mutex
	more   sync.Cond
	queue  []ibmad.MAD
	closed bool
}

var errClosed = errors.New("madsim: transport is closed")

// MaxInFlight implements ibmad.Transport.
func (t *Transport) MaxInFlight() int { return t.fabric.options.MaxInFlight }

// Send implements ibmad.Transport.
func (t *Transport) Send(m *ibmad.MAD, to ibmad.Address, _ time.Duration) error {
	answer := *m
	delay, ok := t.fabric.answerRequest(t.node, &answer, to.LID)
	if !ok {
		return nil
	}
	if delay > 0 {
		time.AfterFunc(delay, func() { t.deliverDatagram(&answer) })
		return nil
	}
	t.deliverDatagram(&answer)
	return nil
}

func (t *Transport) deliverDatagram(m *ibmad.MAD) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.queue = append(t.queue, *m)
		t.more.Signal()
	}
}

// InjectDatagram passes a datagram to the transport that is not the answer to any request.
func (t *Transport) InjectDatagram(m ibmad.MAD) { t.deliverDatagram(&m) }

// Receive implements ibmad.Transport.
func (t *Transport) Receive(m *ibmad.MAD) (lost bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.queue) == 0 && !t.closed {
		t.more.Wait()
	}
	if t.closed {
		return false, errClosed
	}
	*m = t.queue[0]
	t.queue = t.queue[1:]
	return false, nil
}

// Close implements ibmad.Transport.
func (t *Transport) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.more.Broadcast()
	return nil
}

// answerRequest turns a request into its answer, and returns how long both took. It returns false if there is
// no answer.
func (f *Fabric) answerRequest(from *node, m *ibmad.MAD, lid ibmad.LID) (time.Duration, bool) {
	request, err := ibmad.DecodeRequest(m, lid)
	if err != nil {
		return 0, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	at, in, hops := f.routeDatagram(from, request.To)
	if at == nil || at.silent {
		return 0, false
	}
	// The answer to a directed request takes the same links back; one to a LID is routed by the tables.
	if request.To.LID != 0 {
		if back, _, _ := f.routeDatagram(at, ibmad.ToLID(from.LID)); back != from {
			return 0, false
		}
	}
	subnet := m.ManagementClass() != 0x04
	if at.loss > 0 && f.random.Float64() < at.loss {
		if subnet {
			at.addEvents(&at.ports[in], "VL15Dropped", 0, 1)
		}
		return 0, false
	}
	if subnet && f.key != 0 && f.keyProtection >= 2 && m.MKey() != f.key {
		return 0, false
	}
	var status ibmad.Status
	if subnet {
		status = f.answerSubnet(at, in, request, m)
	} else {
		status = at.answerPerformance(request, m)
	}
	if status == unsupported && at.vendor.DropsUnknown {
		return 0, false
	}
	m.MakeResponse(status)
	return 2 * time.Duration(hops+1) * f.options.Latency, true
}

// routeDatagram follows a datagram to the node it reaches, and returns that and the port by which it arrives,
// or nil if it gets lost.
func (f *Fabric) routeDatagram(from *node, to ibmad.Address) (at *node, in uint8, hops int) {
	at, in = from, from.ownPort()
	if to.LID == 0 {
		for i, out := range to.Path.EgressPorts() {
			if i > 0 && at.Type != ibmad.NodeSwitch || int(out) >= len(at.ports) {
				return nil, 0, 0
			}
			p := &at.ports[out]
			if p.peer == nil || p.phys != ibmad.PhysLinkUp {
				return nil, 0, 0
			}
			at, in = p.peer, p.peerPort
		}
		return at, in, to.Path.HopCount()
	}
	for hops = 0; hops < ibmad.MaxHops; hops++ {
		if at.ownsLID(to.LID) {
			return at, in, hops
		}
		out := uint8(1)
		if at.Type == ibmad.NodeSwitch {
			if int(to.LID) >= len(at.table) {
				return nil, 0, 0
			}
			out = at.table[to.LID]
		} else if hops > 0 {
			return nil, 0, 0
		}
		if int(out) >= len(at.ports) {
			return nil, 0, 0
		}
		p := &at.ports[out]
		if p.peer == nil || p.state != ibmad.PortActive {
			return nil, 0, 0
		}
		at, in = p.peer, p.peerPort
	}
	return nil, 0, 0
}

func (n *node) ownPort() uint8 {
	if n.Type == ibmad.NodeSwitch {
		return 0
	}
	return 1
}

func (n *node) ownsLID(lid ibmad.LID) bool { return lid >= n.LID && lid < n.LID+1<<n.LMC }

// Statuses of refusals (IBA volume 1, 13.4.7).
const (
	unsupported  ibmad.Status = 3 << 2
	invalidValue ibmad.Status = 7 << 2
)

// answerSubnet fills in the answer of the subnet management agent.
func (f *Fabric) answerSubnet(n *node, in uint8, r ibmad.Request, m *ibmad.MAD) ibmad.Status {
	isSwitch := n.Type == ibmad.NodeSwitch
	var a interface{ Encode(*ibmad.Data) }
	switch r.Attribute {
	case ibmad.AttrNodeInfo:
		info := ibmad.NodeInfo{
			BaseVersion: 1, ClassVersion: 1, Type: n.Type, Ports: n.Ports, SystemGUID: n.GUID, GUID: n.GUID, PortGUID: n.GUID,
			Partitions: 8, DeviceID: n.vendor.DeviceID, VendorID: n.vendor.ID, LocalPort: in,
		}
		if !isSwitch {
			info.PortGUID++
		}
		a = &info
	case ibmad.AttrNodeDescription:
		a = (*ibmad.NodeDescription)(&n.Name)
	case ibmad.AttrPortInfo:
		number := r.Modifier
		if number == 0 && !isSwitch {
			number = uint32(in)
		}
		if number >= uint32(len(n.ports)) {
			return invalidValue
		}
		info := f.portInfo(n, uint8(number), in)
		if m.MKey() == f.key || f.keyProtection == 0 {
			info.MKey = f.key
		}
		a = &info
	case ibmad.AttrPortInfoExtended:
		if n.vendor.SpeedExt == 0 {
			return unsupported
		}
		if r.Modifier >= uint32(len(n.ports)) {
			return invalidValue
		}
		a = &ibmad.PortInfoExtended{Capabilities: ibmad.CapExtendedFECMode, FECMode: n.vendor.FEC}
	case ibmad.AttrMellanoxPortInfo:
		switch {
		case !ibmad.HasMellanoxPortInfo(n.vendor.ID, n.vendor.DeviceID):
			return unsupported
		case r.Modifier >= uint32(len(n.ports)):
			return invalidValue
		}
		info := ibmad.MellanoxPortInfo{SpeedSupported: ibmad.MellanoxFDR10, SpeedEnabled: ibmad.MellanoxFDR10}
		if n.vendor.FDR10 {
			info.SpeedActive = ibmad.MellanoxFDR10
		}
		a = &info
	case ibmad.AttrSLtoVL:
		table, ok := n.sl2vl[[2]uint8{uint8(r.Modifier >> 8), uint8(r.Modifier)}]
		for sl := range table {
			if !ok {
				table[sl] = uint8(sl % 8)
			}
		}
		a = &table
	case ibmad.AttrSwitchInfo:
		if !isSwitch {
			return unsupported
		}
		a = &ibmad.SwitchInfo{LinearCap: 0xbfff, LinearTop: f.topLID, DefaultPort: ibmad.NoRoute, LifeTime: 18, StateChange: n.stateChanged, EnhancedPort0: true}
	case ibmad.AttrForwardingTable:
		if !isSwitch {
			return unsupported
		}
		if r.Modifier > uint32(ibmad.MaxUnicastLID)/64 {
			return invalidValue
		}
		var block ibmad.ForwardingBlock
		for i := range block {
			block[i] = ibmad.NoRoute
			if lid := int(r.Modifier)*64 + i; lid < len(n.table) {
				block[i] = n.table[lid]
			}
		}
		a = &block
	default:
		return unsupported
	}
	a.Encode(m.Data())
	return 0
}

func (f *Fabric) portInfo(n *node, number, in uint8) ibmad.PortInfo {
	p := &n.ports[number]
	info := ibmad.PortInfo{
		GIDPrefix: 0xfe80 << 48, LocalPort: in, State: p.state, PhysState: p.phys, MKeyProtection: f.keyProtection,
		WidthSupported: 3, WidthEnabled: 3, WidthActive: 2, SpeedSupported: 7, SpeedEnabled: 7, SpeedActive: n.vendor.Speed,
		SpeedExtSupport: n.vendor.SpeedExt, SpeedExtActive: n.vendor.SpeedExt, SpeedExtEnabled: n.vendor.SpeedExt,
		NeighborMTU: 5, MTUCap: 5, VLCap: 4, OperationalVLs: 4, ResponseTime: 12,
	}
	if n.vendor.SpeedExt != 0 {
		info.Capabilities |= ibmad.CapExtendedLinkSpeeds | ibmad.CapCapabilityMask2
		info.Capabilities2 |= ibmad.Cap2PortInfoExtended
	}
	if n.vendor.XDR {
		info.SpeedExt2Active = ibmad.SpeedExt2XDR
	}
	if number == n.ownPort() {
		info.LID, info.LMC, info.MasterSMLID = n.LID, n.LMC, f.nodes[0].LID
	}
	return info
}

// answerPerformance fills in the answer of the performance management agent.
func (n *node) answerPerformance(r ibmad.Request, m *ibmad.MAD) ibmad.Status {
	if !n.vendor.hasAttribute(r.Attribute) {
		return unsupported
	}
	if r.Attribute == ibmad.AttrClassPortInfo {
		info := n.vendor.classPortInfo()
		info.Encode(m.Data())
		return 0
	}
	if int(r.Port) >= len(n.ports) || n.Type != ibmad.NodeSwitch && r.Port == 0 {
		return invalidValue
	}
	d := m.Data()
	if have := n.ports[r.Port].counters[r.Attribute]; have != nil {
		*d = *have
	}
	for _, c := range n.missingCounters[r.Attribute] {
		c.EncodeValue(d, 0)
	}
	d[1] = r.Port
	return 0
}
