package probe

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/unix"
)

// Delays holds the one-way delays of one direction, by the kind of their stamps.
type Delays struct {
	Hardware, Kernel, User Histogram
}

// EdgeStats holds the state of one edge.
type EdgeStats struct {
	FlowCounters
	Edge           fabric.Flow
	Carried        bool // its path is chosen
	Class          string
	Tier           int
	Plane          string
	Leaf, PeerLeaf string
	OWD            [2]Delays      // forward, reverse
	Unresolved     uint64         // probes that nothing is known about
	PeerBound      *time.Duration // error bound of the peer's clock, as its replies state it; nil means not known
}

// ReceivedStats counts the probes of one flow of a peer.
type ReceivedStats struct {
	Edge     fabric.Flow
	Class    string
	Tier     int
	Plane    string
	Received uint64
}

// SocketStats holds the state of one socket.
type SocketStats struct {
	Name  string
	Drops uint64 // datagrams that the kernel dropped because the receive buffer was full
}

// ICMPErrors counts the ICMP errors of one type and code (RFC 792).
type ICMPErrors struct {
	Type, Code uint8
	Count      uint64
}

// NICStats holds the state of one NIC.
type NICStats struct {
	NICConfig
	Edges       []EdgeStats
	Received    []ReceivedStats
	Sockets     []SocketStats
	KernelDelay Histogram         // from user space to the kernel's stamp, of sent packets
	NICDelay    Histogram         // from the kernel's stamp to the NIC's, of sent packets
	Stalled     time.Duration     // time by which the loop ran late, beyond 20 ms each time
	SendErrors  map[string]uint64 // by errno
	Dropped     map[string]uint64 // by reason
	Forgers     []Forger          // sources of packets that failed verification, by address; the first one stands for all others
	Unread      map[string]uint64 // packets for the NIC that were lost here and not in the network, by reason
	ICMPErrors  []ICMPErrors      // about probes and replies
	Refusals    []RefusalCount    // of carriers, by switches that do not know an identifier
	Missing     map[string]uint64 // samples that lack a stamp, by stamp
	Unmatched   uint64            // transmit stamps of packets that are no longer known
	Skipped     uint64            // probes that were not sent because their time had passed
	Unbound     int               // peers whose authenticated packets carry no life number
	Overrun     uint64            // exchanges that were discarded before clock sync read them
	Sessions    int
	Restarts    map[string]uint64 // observed restarts of senders and of reflectors
	TxKind      string            // hardware or kernel, or user by RDMA; empty before the first stamp
	RxKind      string
	KindWhy     string       // reason why the NIC's own stamps are not used; empty if they are
	LastTurn    time.Time    // time at which the loop last planned its next turn
	Port        *rdma.Status // of the RDMA port; nil if it has none
	// ServiceLevels are the classes of probes with their service levels, on an InfiniBand port. Elsewhere there are none.
	ServiceLevels []ClassConfig
}

// Snapshot holds the state of a node at one moment.
type Snapshot struct {
	NICs []NICStats
}

// Snapshot returns a copy of the state. It blocks a NIC's loop for the time that copying that NIC's counts takes.
func (e *Engine) Snapshot() *Snapshot {
	nics := e.allNICs()
	s := &Snapshot{NICs: make([]NICStats, len(nics))}
	planned := e.turns.planned.Load()
	for i, n := range nics {
		s.NICs[i] = n.copyStats(planned)
	}
	return s
}

// copyStats returns a copy of the NIC's state. planned is the time of the loop's next turn.
func (n *nic) copyStats(planned int64) NICStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.wire.monoTime()
	s := NICStats{NICConfig: n.cfg, Stalled: time.Duration(n.stalled + stallTime(now, planned)), LastTurn: time.Now().Add(-time.Duration(max(0, now-planned))),
		SendErrors: map[string]uint64{}, Dropped: map[string]uint64{}, Unread: map[string]uint64{}, Restarts: map[string]uint64{}, Missing: map[string]uint64{}}
	for i := range 4 {
		s.Missing[stampName(i)] = 0
	}
	n.out.copyStats(&s)
	n.traces.copyStats(&s)
	n.filter.copyStats(&s)
	n.ports.copyStats(&s)
	n.sender.copyStats(&s)
	n.reflector.copyStats(&s)
	for _, p := range n.peers {
		if p.unbound && len(p.keys.auth) > 0 {
			s.Unbound++
		}
	}
	n.copyReceived(&s)
	n.copyRefusals(&s)
	return s
}

// stampName returns the name of the i-th stamp of an exchange, t1 to t4.
func stampName(i int) string { return "t" + strconv.Itoa(i+1) }

// copyStats copies the statistics of what is sent.
func (o *outbox) copyStats(s *NICStats) {
	s.KernelDelay, s.NICDelay, s.Unmatched = o.kernelDelay.Clone(), o.nicDelay.Clone(), o.unmatched
	for errno, v := range o.sendErrors {
		s.SendErrors[errnoName(errno)] = v
	}
}

// copyStats copies the counts of ICMP errors.
func (t *traceAnswers) copyStats(s *NICStats) {
	for k, v := range t.icmpErrors {
		s.ICMPErrors = append(s.ICMPErrors, ICMPErrors{Type: k[0], Code: k[1], Count: v})
	}
}

// copyStats copies the counts of packets that were not used.
func (f *packetFilter) copyStats(s *NICStats) {
	for i, v := range f.dropped {
		s.Dropped[dropNames[i]] = v
	}
	s.Forgers = slices.Clone(f.forgers)
	s.Unread["unverified"], s.Unread["no_life"] = f.dropped[dropUnverified], f.unproven
}

// copyStats copies the kinds of stamps, and the state of the RDMA port.
func (p *ports) copyStats(s *NICStats) {
	s.KindWhy = p.udp.kindWhy
	for k := kernelStamps; k < stampKinds; k++ {
		if p.stamped[0][k] {
			s.TxKind = kindNames[k]
		}
		if p.stamped[1][k] {
			s.RxKind = kindNames[k]
		}
	}
	s.Unread["socket_full"] += p.overflown
	if p.rdma.pair == nil {
		return
	}
	st := p.rdma.pair.Status()
	s.Port = &st
	if st.InfiniBand {
		s.ServiceLevels = slices.Clone(p.self.node.Stamp.Classes)
	}
	if p.udp.reflector == nil && st.Queue {
		s.TxKind = kindNames[userStamps]
		if p.rdma.clock != nil {
			s.TxKind = kindNames[hardwareStamps]
		}
		s.RxKind = s.TxKind
	}
}

// copyStats copies the accounts of the edges, and the state of the sockets that send probes.
func (sd *sender) copyStats(s *NICStats) {
	s.Skipped = sd.skipped
	for _, e := range sd.edges {
		for i, v := range e.Missing {
			s.Missing[stampName(i)] += v
		}
		s.Restarts["reflector"] += e.Restarts
		if e.clocks != nil {
			s.Overrun += e.clocks.rings[forward].overrun + e.clocks.rings[reverse].overrun
		}
		es := EdgeStats{FlowCounters: e.FlowCounters, Edge: e.id, Carried: sd.ports.choosesPath(e.cfg.Carrier).IsValid(), Class: sd.self.node.Stamp.ClassOf(e.cfg.Flow).Name, Tier: e.cfg.Tier, Plane: e.peer.cfg.Plane,
			Leaf: sd.self.cfg.Leaf, PeerLeaf: e.peer.cfg.Leaf, Unresolved: e.unresolvedProbes(), PeerBound: e.peer.clockBound()}
		for d := range directions {
			es.OWD[d] = Delays{Hardware: e.owd[d][hardwareStamps].Clone(), Kernel: e.owd[d][kernelStamps].Clone(), User: e.owd[d][userStamps].Clone()}
		}
		s.Edges = append(s.Edges, es)
	}
	sockets := slices.SortedFunc(maps.Values(sd.sockets), func(a, b *socket) int { return int(a.port) - int(b.port) })
	for _, sock := range sockets {
		s.addSocket(sock)
	}
}

// copyStats copies the state of the sessions and of the reflector's socket.
func (f *reflector) copyStats(s *NICStats) {
	s.Sessions = len(f.sessions)
	s.Restarts["sender"] = f.restarts
	s.Missing[stampName(1)] += f.withoutT2
	if sock := f.ports.udp.reflector; sock != nil {
		s.addSocket(sock)
	}
}

// addSocket adds the state of a socket, if it has a descriptor and so a buffer of its own.
func (s *NICStats) addSocket(sock *socket) {
	if sock.FD() < 0 {
		return
	}
	drops := sock.Drops()
	s.Sockets = append(s.Sockets, SocketStats{Name: sock.name, Drops: drops})
	s.Unread["socket_full"] += drops
}

// copyReceived copies the counts of the probes of each flow that the NIC answers.
func (n *nic) copyReceived(s *NICStats) {
	byNIC := peersByNIC(n.peers)
	for i := range n.node.Answers {
		c := &n.node.Answers[i]
		if p := byNIC[c.Src]; p != nil && c.Dst == n.cfg.NIC {
			s.Received = append(s.Received, ReceivedStats{Edge: c.ID(), Class: n.node.Stamp.ClassOf(c.Flow).Name,
				Tier: c.Tier, Plane: p.cfg.Plane, Received: p.answers[c.Flow].received})
		}
	}
}

// errnoName returns the name of a system error.
func errnoName(e syscall.Errno) string {
	if name := unix.ErrnoName(e); name != "" {
		return name
	}
	return fmt.Sprintf("errno%d", int(e))
}
