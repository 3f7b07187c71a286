package probe

import (
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

// Session identifiers (RFC 8972 section 3). Those of probes have both bits clear. A packet of a path trace has
// traceSSID, and also traceReplySSID if it imitates a reply, so that neither ever enters the accounts.
const (
	traceSSID      = 0x8000
	traceReplySSID = 0x4000
	ssidMask       = 0x3fff
)

// ect0 marks probes and replies as ECN-capable: RFC 3168 section 5.
const ect0 = 2

// ReceiveBuffer is the receive buffer of a socket that probes are received at, in octets.
const ReceiveBuffer = 4 << 20

const (
	rateHeadroom = 4   // replies to a session, in units of the expected rate
	traceReplies = 500 // trace packets answered per peer and second
)

// nic probes from one NIC and reflects what its peers send to it. Each of its parts has the state of one task, and they
// refer to each other in one direction: sender and reflector to outbox, and that to ports. mu guards all of it, because
// the engine's loop, the tracer's sends, the scrapes and changes of the configuration use it.
type nic struct {
	log  *slog.Logger
	wire *wiring

	mu sync.Mutex
	identity
	ports     ports
	out       outbox
	sender    sender
	reflector reflector
	filter    packetFilter
	traces    traceAnswers
	signals   *nicSignals
	refusals  refusals
	peers     map[netip.Addr]*peer // by address, or by GID as 16 octets
	stalled   int64                // nanoseconds
	closed    bool
}

// openNIC opens a NIC without peers. applyConfig adds them.
func openNIC(cfg NICConfig, node *Config, w *wiring, log *slog.Logger) (*nic, error) {
	n := &nic{log: log.With("nic", cfg.NIC), wire: w, filter: newPacketFilter(w.monoTime()),
		identity: identity{cfg: cfg, node: node, bound: stamp.UnknownBound, life: &w.lives.own}}
	self, clock := &n.identity, &w.timeline
	n.traces = traceAnswers{self: self, clock: clock, awaited: map[uint32]*traceProbe{}, icmpErrors: map[[2]uint8]uint64{}}
	n.ports = ports{self: self, log: n.log, wire: w, reader: n, udp: udpPort{link: w.deps.Network.NewTransport()}}
	n.out = outbox{clock: clock, ports: &n.ports, traces: &n.traces, sendErrors: map[syscall.Errno]uint64{}}
	n.out.failed, n.out.refused = n.out.sendFailed, n.handleRefusal
	n.signals = newNICSignals(w.deps.Signals, self)
	n.sender = sender{self: self, clock: clock, log: n.log, ports: &n.ports, out: &n.out, filter: &n.filter, traces: &n.traces, signal: n.signals, refusals: &n.refusals,
		sockets: map[socketKey]*socket{}}
	n.reflector = reflector{self: self, clock: clock, ports: &n.ports, out: &n.out, filter: &n.filter, signal: n.signals, sessions: map[sessionKey]*session{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.openSockets(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// close closes the NIC's sockets. The caller holds mu.
func (n *nic) close() error {
	n.closed = true
	return n.closeSockets()
}

// closeSockets closes the sockets and the clock, at the end or before the NIC gets another address.
func (n *nic) closeSockets() error {
	return errors.Join(n.sender.closeSockets(), n.ports.closeAll(), n.signals.closePort())
}

// openSockets opens the reflectors, and what tags and reads packets.
func (n *nic) openSockets() error {
	if err := n.ports.openReflectors(); err != nil {
		return err
	}
	return n.signals.openPort()
}

// applyConfig changes the NIC to match the configuration. What stays keeps its counts, sequence numbers and phase. The
// caller holds mu.
func (n *nic) applyConfig(cfg NICConfig, node *Config, phase func() float64) error {
	moved := cfg.Address != n.cfg.Address || cfg.Device != n.cfg.Device || cfg.Timestamps != n.cfg.Timestamps || !cfg.RDMA.Equal(n.cfg.RDMA) || node.Stamp.Port != n.node.Stamp.Port
	n.cfg, n.node = cfg, node
	n.setEstimate()
	switch {
	case cfg.SSID != 0:
		n.ssid = cfg.SSID
	case n.ssid == 0:
		n.ssid = n.wire.ssids.drawSSID()
	}
	if moved {
		if err := n.closeSockets(); err != nil {
			n.log.Warn("cannot close the sockets of the old address", "err", err)
		}
		if err := n.openSockets(); err != nil {
			return err
		}
	}
	if err := n.signals.applyConfig(); err != nil {
		return err
	}
	n.peers = peersOf(&n.identity, n.peers, n.ports.rdma.pair != nil, &n.wire.lives, n.wire.monoTime())
	n.ports.configureRDMA(n.peers)
	n.ports.applyCarriers()
	if err := n.sender.applyEdges(n.peers, phase); err != nil {
		return err
	}
	n.reflector.applyPeers(n.peers)
	return nil
}

// runTurn sends the due probes and settles the accounts.
func (n *nic) runTurn(now, horizon int64) error {
	if err := n.readClocks(); err != nil {
		return err
	}
	if err := n.sender.sendDue(now, horizon); err != nil {
		return err
	}
	n.sender.settleIfDue(now)
	return nil
}

// readClocks reads the clocks that stamp packets, and the completions of packets by RDMA.
func (n *nic) readClocks() error {
	if c := n.ports.udp.clock; c != nil {
		if err := c.readIfDue(n.wire.Now().UnixNano()); err != nil {
			n.log.Warn("cannot use the NIC's clock for hardware samples", "err", err)
		}
	}
	if n.ports.rdma.pair == nil {
		return nil
	}
	if n.ports.trackRDMAClock() {
		n.sender.limitStamps()
	}
	if n.ports.trackLID() {
		n.sender.interruptLosses()
	}
	if c := n.ports.rdma.clock; c != nil {
		if err := c.readIfDue(n.wire.Now().UnixNano()); err != nil {
			n.log.Warn("cannot use the RDMA device's clock for hardware samples", "err", err)
		}
	}
	return n.out.drainErrors(n.ports.rdma.queue)
}

// readSocket reads what arrived at a socket, until the given time, and before that its error queue if queued is true.
// The caller holds mu.
func (n *nic) readSocket(s *socket, queued bool, until int64) error {
	if s.closed {
		return nil
	}
	if queued {
		if err := n.out.drainErrors(s); err != nil {
			return err
		}
	}
	// An error without an entry in the queue is cleared only by a receive. Otherwise it would wake the loop for ever.
	return n.receivePackets(s, until)
}

// receivePackets receives packets from a socket until the given time. It reads at least one batch, and leaves the rest
// for the next turn.
func (n *nic) receivePackets(s *socket, until int64) error {
	for {
		k, err := s.link.Recv(s.Endpoint)
		if err != nil {
			return err
		}
		wall := n.wire.Now()
		if err := n.signals.readTags(); err != nil {
			return err
		}
		for i := range k {
			g := s.link.DatagramAt(i)
			g.Stamp = n.wire.NodeTime(g.Stamp)
			if g.Truncated {
				n.filter.countDropped(dropOversized)
				continue
			}
			if err := n.dispatchPacket(s, g, wall); err != nil {
				return err
			}
		}
		if err := n.out.flushBatch(); err != nil {
			return err
		}
		if k < unix.BatchSize || n.wire.monoAt(wall) >= until {
			return nil
		}
	}
}

// arrivedPacket represents a packet of a peer that the program has read.
type arrivedPacket struct {
	*unix.Datagram
	peer   *peer
	mono   int64 // time at which it was read, monotonic nanoseconds
	readAt int64 // the same by the node's clock, Unix nanoseconds
}

// dispatchPacket passes a packet that was read from s at the time wall to the sender or the reflector.
func (n *nic) dispatchPacket(s *socket, g *unix.Datagram, wall time.Time) error {
	to := n.socketOf(s, g)
	if to == nil {
		n.filter.countDropped(dropUnsolicited)
		return nil
	}
	pr := n.peers[g.From.Addr()]
	p := arrivedPacket{Datagram: g, peer: pr, mono: n.wire.monoAt(wall), readAt: n.ports.readTime(g, wall)}
	isProbe := to == n.ports.udp.reflector || to == n.ports.rdma.reflector
	if pr == nil || pr.rdma != to.rdma || !isProbe && g.From.Port() != n.node.Stamp.Port {
		n.filter.countDropped(dropUnregistered)
		n.signals.dropStranger(&p, to.port)
		return nil
	}
	if isProbe {
		return n.reflector.reflectProbe(to, p)
	}
	n.sender.handleReply(to, p)
	return nil
}

// socketOf returns the socket that a datagram received at s is for, or nil if there is none.
func (n *nic) socketOf(s *socket, g *unix.Datagram) *socket {
	switch g.Port {
	case 0:
		if s.rdma {
			return nil // no flow has this port
		}
		return s
	case n.node.Stamp.Port:
		return n.ports.rdma.reflector
	}
	return n.sender.sockets[socketKey{g.Port, true}]
}

// nicName returns the NIC's name, which never changes.
func (n *nic) nicName() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cfg.NIC
}
