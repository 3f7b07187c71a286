package probe

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/graylink/graylink/internal/unix"
)

// udpPort holds what a NIC has for UDP.
type udpPort struct {
	link      Transport
	reflector *socket   // nil if the NIC has no UDP
	clock     *nicClock // nil if the kernel's stamps are used
	kindWhy   string    // the reason for that
	copies    *copier   // sends the copies of tuples; nil if the NIC has no UDP, or if the fabric is simulated
	outer     *socket   // sends packets whose path is chosen; nil if there are none, or if it cannot
}

// rdmaPort holds what a NIC has for RDMA.
type rdmaPort struct {
	pair      *queuePair // nil if the NIC has no RDMA
	queue     *socket    // of pair
	reflector *socket    // the reflector on pair
	clock     *nicClock  // clock of the RDMA device; nil if the program's times are used
	copies    *copier    // sends copies of packets, for traces

	lidChanges uint64 // changes of the port's LID that the accounts of edges have heard of
}

// ports opens the sockets of a NIC, and has the clocks that stamp the packets on them.
type ports struct {
	self   *identity
	log    *slog.Logger
	wire   *wiring
	reader *nic // reads the sockets

	udp       udpPort
	rdma      rdmaPort
	overflown uint64              // packets that did not fit into the buffers of sockets that are closed now
	stamped   [2][stampKinds]bool // kinds of stamps that were seen by UDP: tx, rx
}

// openReflectors selects the kind of stamps and opens the reflectors.
func (p *ports) openReflectors() error {
	if p.self.cfg.RDMA != nil {
		if err := p.openRDMA(); err != nil {
			return err
		}
	}
	return p.openUDP()
}

// openUDP selects the kind of stamps for UDP and opens its reflector.
func (p *ports) openUDP() (err error) {
	if !p.self.cfg.Address.IsValid() {
		p.udp.kindWhy = "the NIC has no UDP"
		return nil
	}
	p.udp.kindWhy = "the configuration selects them"
	if p.self.cfg.Timestamps == TimestampsAuto {
		name := p.self.cfg.Device
		if name == "" {
			name, err = p.wire.deps.Device.InterfaceName(p.self.cfg.Address)
		}
		if err == nil {
			p.udp.clock, err = hardwareOf(p.wire.deps.Device, name)
		}
		if err != nil {
			p.udp.kindWhy = err.Error()
		}
	}
	if p.udp.clock == nil {
		p.log.Info("using the kernel's time stamps", "reason", p.udp.kindWhy)
	} else {
		p.udp.kindWhy = ""
		p.log.Info("using the NIC's time stamps")
	}
	if p.wire.deps.KnownPath == nil {
		p.udp.copies = newCopier(sysHost{"/sys"})
	}
	p.udp.reflector, err = p.openSocket("reflector", p.self.node.Stamp.Port)
	return err
}

// openSocket opens a UDP socket.
func (p *ports) openSocket(name string, port uint16) (*socket, error) {
	at := netip.AddrPortFrom(p.self.cfg.Address, port)
	u, err := p.wire.deps.Network.OpenUDP(at, unix.UDPOptions{ReceiveBuffer: ReceiveBuffer, Hardware: p.udp.clock != nil})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("NIC %s: UDP %v is in use, want a free port: %w", p.self.cfg.NIC, at, err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, fmt.Errorf("NIC %s: %v is not an address of this host, want one of its own: %w", p.self.cfg.NIC, p.self.cfg.Address, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("NIC %s: no permission for UDP port %d, want root, CAP_NET_BIND_SERVICE or a port above 1023: %w", p.self.cfg.NIC, port, err)
	case err != nil:
		return nil, fmt.Errorf("NIC %s: %w", p.self.cfg.NIC, err)
	}
	s := &socket{Endpoint: u, link: p.udp.link, name: name, port: port}
	s.refsOwner = s
	if s.FD() >= 0 { // otherwise there are no stamps to wait for
		s.refs = make([]sentRef, smallestRefs)
	}
	if err := p.wire.poll.addSocket(s, p.reader); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return s, nil
}

// closeSocket closes a socket that openSocket or newLane returned.
func (p *ports) closeSocket(s *socket) error {
	s.closed = true
	p.wire.poll.removeSocket(s)
	p.overflown += s.Drops()
	return s.Close()
}

// closeAll closes the reflectors, the queue pair and the clock.
func (p *ports) closeAll() error {
	var errs []error
	if p.udp.reflector != nil {
		errs = append(errs, p.closeSocket(p.udp.reflector))
		p.udp.reflector = nil
	}
	if p.udp.outer != nil {
		errs = append(errs, p.closeSocket(p.udp.outer))
		p.udp.outer = nil
	}
	if p.udp.copies != nil {
		errs = append(errs, p.udp.copies.Close())
		p.udp.copies = nil
	}
	if p.rdma.queue != nil {
		errs = append(errs, p.closeSocket(p.rdma.reflector), p.closeSocket(p.rdma.queue), p.rdma.copies.Close())
		p.rdma = rdmaPort{}
	}
	if p.udp.clock != nil {
		errs = append(errs, p.udp.clock.clock.Close())
		p.udp.clock = nil
	}
	return errors.Join(errs...)
}

// reserveRefs reserves room for the transmit stamps of so many replies per second.
func (p *ports) reserveRefs(replies int) {
	for _, s := range []*socket{p.udp.reflector, p.rdma.queue} {
		if s != nil {
			s.reserveRefs(replies)
		}
	}
}

// reflectorFor returns the socket that answers the probes of a peer.
func (p *ports) reflectorFor(pr *peer) *socket {
	if pr.rdma {
		return p.rdma.reflector
	}
	return p.udp.reflector
}

// txStampKinds returns the kinds of transmit stamps that come back for each packet over s, as bits.
func (p *ports) txStampKinds(s *socket) uint8 {
	if s.rdma {
		if p.rdma.clock != nil {
			return 1 << hardwareStamps
		}
		return 0
	}
	if p.udp.clock != nil {
		return 1<<kernelStamps | 1<<hardwareStamps
	}
	return 1 << kernelStamps
}

// kindFor returns the kind of stamps that replies to a peer carry, which is the best kind that both ends have.
func (p *ports) kindFor(pr *peer) stampKind {
	switch {
	case pr.rdma && p.rdma.clock != nil && pr.cfg.RDMA.Hardware:
		return hardwareStamps
	case !pr.rdma && p.udp.clock != nil && pr.cfg.Hardware:
		return hardwareStamps
	case pr.rdma:
		return userStamps
	}
	return kernelStamps
}

// clockFor returns the clock that stamps packets by RDMA, or by UDP, or nil if there is none.
func (p *ports) clockFor(rdma bool) *nicClock {
	if rdma {
		return p.rdma.clock
	}
	return p.udp.clock
}

// hardwareTime translates a stamp of a clock to the node's time. It returns false if that is not possible.
func (p *ports) hardwareTime(c *nicClock, raw int64) (at int64, ok bool) {
	at, ok = c.systemTime(raw)
	return p.wire.NodeTime(at), ok
}

// receivedAt returns the time at which a datagram arrived, by every kind of stamp that it has.
func (p *ports) receivedAt(g *unix.Datagram, user int64) (t stampedTime) {
	t[userStamps], t[kernelStamps] = user, g.Stamp
	if at, ok := p.hardwareTime(p.clockFor(g.Port != 0), g.Hardware); ok {
		t[hardwareStamps] = at
	}
	for k := kernelStamps; k < stampKinds; k++ {
		if t[k] != 0 && g.Port == 0 {
			p.stamped[1][k] = true
		}
	}
	return t
}

// readTime returns the time at which the program read a datagram, which was at wall by its clock.
func (p *ports) readTime(g *unix.Datagram, wall time.Time) int64 {
	if g.User != 0 {
		return p.wire.NodeTime(g.User)
	}
	return p.wire.NodeTime(wall.UnixNano())
}
