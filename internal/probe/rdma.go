package probe

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/unix"
)

// RDMAConfig represents the RDMA port that carries a NIC's probes.
type RDMAConfig struct {
	Device   string
	Port     int
	GID      netip.Addr // IPv4 as mapped or plain; invalid: the best one that exists
	GIDIndex *int       // nil means any index
	PKey     uint16     // looked up in the port's table
	// PKeyIndex is the entry of the port's table to use instead. Nil means that PKey is looked up.
	PKeyIndex *int
	QKey      uint32
	BusyPoll  time.Duration // time after a packet for which the receiver polls without sleeping
}

func (c *RDMAConfig) portOptions() rdma.Options {
	return rdma.Options{Device: c.Device, Port: c.Port, GIDChoice: rdma.GIDChoice{GID: c.GID, Index: c.GIDIndex}, PKey: c.PKey, PKeyIndex: c.PKeyIndex, QKey: c.QKey, Busy: c.BusyPoll}
}

// Equal reports whether two ports are opened with the same options. Either may be nil.
func (c *RDMAConfig) Equal(o *RDMAConfig) bool {
	if c == nil || o == nil {
		return c == o
	}
	a, b := *c, *o
	same := sameIndex(a.GIDIndex, b.GIDIndex) && sameIndex(a.PKeyIndex, b.PKeyIndex)
	a.GIDIndex, b.GIDIndex, a.PKeyIndex, b.PKeyIndex = nil, nil, nil, nil
	return same && a == b
}

func sameIndex(a, b *int) bool { return a == b || a != nil && b != nil && *a == *b }

// RDMAPeer represents the address of a peer's queue pair.
type RDMAPeer struct {
	GID  netip.Addr // IPv4 as mapped or plain
	QPN  uint32
	QKey uint32
	LID  uint16 // on InfiniBand; 0 means not known
	// Hardware states that the peer's device stamps what it sends and receives, so this node's device does if it can.
	Hardware bool
}

// maxQPN is the highest number of a queue pair: 24 bits (IBTA 9.2).
const maxQPN = 1<<24 - 1

// Validate returns an error that names the first field that is not valid.
func (p *RDMAPeer) Validate() error {
	switch {
	case !p.GID.IsValid() || p.GID.IsUnspecified() || p.GID.IsMulticast() || p.GID.Zone() != "":
		return fmt.Errorf("gid: %v, want a unicast GID", p.GID)
	case p.QPN < 2 || p.QPN > maxQPN:
		return fmt.Errorf("qpn: %d, want 2 to %d", p.QPN, maxQPN)
	case p.QKey == 0 || p.QKey > rdma.MaxQKey:
		return fmt.Errorf("qkey: %#x, want 1 to %#x: the highest bit has another meaning", p.QKey, rdma.MaxQKey)
	}
	return nil
}

// queuePair is the transport by RDMA, with one queue pair for all flows of a NIC. The flows' ports travel as immediate
// data, so that the payload is exactly the packet that UDP has.
type queuePair struct {
	*rdma.Port
	nextID  uint32
	grams   [unix.BatchSize]unix.Datagram
	reports [unix.BatchSize]unix.Report
	nreport int
	stamped func(id uint32, hardware int64)
}

func newQueuePair(p *rdma.Port) *queuePair {
	t := &queuePair{Port: p}
	t.stamped = func(id uint32, hardware int64) {
		if hardware == 0 {
			return
		}
		t.reports[t.nreport] = unix.Report{Kind: unix.ReportTxStamp, ID: id, Hardware: hardware}
		t.nreport++
	}
	return t
}

// Commit queues a packet. It implements Transport. A queue pair cannot set the hop limit.
func (t *queuePair) Commit(from Endpoint, n int, dst netip.AddrPort, tos, _ uint8) (id uint32) {
	id = t.nextID
	t.nextID++
	t.Port.Commit(n, dst.Addr(), from.(*lane).port, dst.Port(), tos, id)
	return id
}

// Send sends the queued packets. It implements Transport.
func (t *queuePair) Send(_ Endpoint, failed func(i int, errno syscall.Errno)) (at int64, err error) {
	at, err = t.Port.Send(failed)
	if t.HasHardwareStamps() {
		at = 0
	}
	return at, err
}

// Recv receives packets. It implements Transport.
func (t *queuePair) Recv(Endpoint) (int, error) {
	n := t.Port.Recv()
	for i := range n {
		a := t.ArrivalAt(i)
		t.grams[i] = unix.Datagram{Data: a.Data, From: netip.AddrPortFrom(a.From, a.SrcPort), TOS: a.TClass, TTL: a.Hops, Truncated: a.Truncated,
			Hardware: a.Hardware, Port: a.DstPort, User: a.Stamp}
	}
	return n, nil
}

// DatagramAt returns the i-th packet of the last Recv. It implements Transport.
func (t *queuePair) DatagramAt(i int) *unix.Datagram { return &t.grams[i] }

// RecvErrors reads completions of sent packets. It implements Transport.
func (t *queuePair) RecvErrors(Endpoint) (int, error) {
	t.nreport = 0
	t.DrainSent(t.stamped)
	return t.nreport, nil
}

// ReportAt returns the i-th entry of the last RecvErrors. It implements Transport.
func (t *queuePair) ReportAt(i int) *unix.Report { return &t.reports[i] }

// portClock is the device's clock. It closes with the port.
type portClock struct{ *rdma.Port }

// Close does nothing. It implements HardwareClock.
func (portClock) Close() error { return nil }

// lane is the endpoint of one port of a flow on a queue pair. Port 0 is the queue pair's own, on which the poller
// waits.
type lane struct {
	pair *queuePair
	port uint16
}

// LocalAddr returns the port's GID and the lane's port. It implements Endpoint.
func (l *lane) LocalAddr() netip.AddrPort {
	return netip.AddrPortFrom(l.pair.Status().GID, l.port)
}

// FD returns the descriptor of the queue pair. It implements Endpoint.
func (l *lane) FD() int {
	if l.port != 0 {
		return -1
	}
	return l.pair.FD()
}

// Drops returns 0. A datagram without a posted receive is dropped and counted by the device. It implements Endpoint.
func (*lane) Drops() uint64 { return 0 }

// Close closes the lane. It implements Endpoint.
func (l *lane) Close() error {
	if l.port != 0 {
		return nil
	}
	return l.pair.Close()
}

// openRDMA opens the NIC's RDMA port.
func (p *ports) openRDMA() error {
	port, err := rdma.Open(p.self.cfg.RDMA.portOptions(), p.wire.deps.Verbs, p.log)
	if err != nil {
		return fmt.Errorf("NIC %s: RDMA: %w", p.self.cfg.NIC, err)
	}
	pair := newQueuePair(port)
	queue := &socket{Endpoint: &lane{pair: pair}, link: pair, rdma: true, name: "rdma", refs: make([]sentRef, smallestRefs)}
	queue.refsOwner = queue
	p.rdma = rdmaPort{pair: pair, queue: queue, copies: newCopier(sysHost{"/sys"})}
	p.rdma.reflector = p.newLane("rdma_reflector", p.self.node.Stamp.Port)
	return p.wire.poll.addSocket(queue, p.reader)
}

// newLane returns a socket for a port on the queue pair.
func (p *ports) newLane(name string, port uint16) *socket {
	return &socket{Endpoint: &lane{p.rdma.pair, port}, link: p.rdma.pair, rdma: true, name: name, port: port, refsOwner: p.rdma.queue}
}

// trackRDMAClock checks whether the device stamps packets, and returns true if that changed.
func (p *ports) trackRDMAClock() bool {
	hardware := p.rdma.pair.HasHardwareStamps() && p.self.cfg.Timestamps == TimestampsAuto
	if hardware == (p.rdma.clock != nil) {
		return false
	}
	p.rdma.clock = nil
	if hardware {
		p.rdma.clock = &nicClock{clock: portClock{p.rdma.pair.Port}}
	}
	return true
}

// trackLID returns true if the port of InfiniBand got another LID since the last call. What peers have sent to the former
// one did not arrive, and no peer can send to the new one before it learns it.
func (p *ports) trackLID() bool {
	changes := p.rdma.pair.LIDChanges()
	if changes == p.rdma.lidChanges {
		return false
	}
	p.rdma.lidChanges = changes
	return true
}

// configureRDMA sets the peers and classes of the port.
func (p *ports) configureRDMA(peers map[netip.Addr]*peer) {
	if p.rdma.pair == nil {
		return
	}
	var reachable []rdma.Peer
	for gid, pr := range peers {
		if pr.rdma {
			reachable = append(reachable, rdma.Peer{GID: gid, QPN: pr.cfg.RDMA.QPN, QKey: pr.cfg.RDMA.QKey, LID: pr.cfg.RDMA.LID})
		}
	}
	p.rdma.pair.SetPeers(reachable)
	var sl [64]uint8
	for _, c := range p.self.node.Stamp.Classes {
		sl[c.DSCP] = c.SL
	}
	p.rdma.pair.SetClasses(sl)
}
