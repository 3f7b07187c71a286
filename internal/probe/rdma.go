package probe

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/unix"
)

// RDMAConfig is the RDMA port that a NIC's probes go by.
type RDMAConfig struct {
	Device   string
	Port     int
	GID      netip.Addr // IPv4 as mapped or plain; invalid: the best there is
	GIDIndex *int       // nil: any
	PKey     uint16
	QKey     uint32
	BusyPoll time.Duration // for how long after a packet the receiver polls without sleeping
}

func (c *RDMAConfig) portOptions() rdma.Options {
	return rdma.Options{Device: c.Device, Port: c.Port, GIDChoice: rdma.GIDChoice{GID: c.GID, Index: c.GIDIndex}, PKey: c.PKey, QKey: c.QKey, Busy: c.BusyPoll}
}

// Equal reports whether two ports are opened alike; nil is none.
func (c *RDMAConfig) Equal(o *RDMAConfig) bool {
	if c == nil || o == nil {
		return c == o
	}
	a, b := *c, *o
	index := a.GIDIndex == b.GIDIndex || a.GIDIndex != nil && b.GIDIndex != nil && *a.GIDIndex == *b.GIDIndex
	a.GIDIndex, b.GIDIndex = nil, nil
	return index && a == b
}

// RDMAPeer is where a peer's queue pair is.
type RDMAPeer struct {
	GID  netip.Addr // IPv4 as mapped or plain
	QPN  uint32
	QKey uint32
	LID  uint16 // on InfiniBand
	// Hardware: its device stamps what it sends and receives, and ours does where it can.
	Hardware bool
}

// maxQPN is the highest number of a queue pair: 24 bits (IBTA 9.2).
const maxQPN = 1<<24 - 1

// Validate names the field that is wrong.
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

// queuePair is the transport of RDMA: one queue pair for all flows of a NIC.
// Ports of the flows travel as immediate data, so that the payload is the
// packet that UDP has, and nothing else.
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

// Commit implements Transport. A hop limit is not to be had.
func (t *queuePair) Commit(from Endpoint, n int, dst netip.AddrPort, tos, _ uint8) (id uint32) {
	id = t.nextID
	t.nextID++
	t.Port.Commit(n, dst.Addr(), from.(*lane).port, dst.Port(), tos, id)
	return id
}

// Send implements Transport.
func (t *queuePair) Send(_ Endpoint, failed func(i int, errno syscall.Errno)) (at int64, err error) {
	at, err = t.Port.Send(failed)
	if t.HasHardwareStamps() {
		at = 0
	}
	return at, err
}

// Recv implements Transport.
func (t *queuePair) Recv(Endpoint) (int, error) {
	n := t.Port.Recv()
	for i := range n {
		a := t.ArrivalAt(i)
		t.grams[i] = unix.Datagram{Data: a.Data, From: netip.AddrPortFrom(a.From, a.SrcPort), TOS: a.TClass, TTL: a.Hops, Truncated: a.Truncated,
			Hardware: a.Hardware, Port: a.DstPort, User: a.Stamp}
	}
	return n, nil
}

// DatagramAt implements Transport.
func (t *queuePair) DatagramAt(i int) *unix.Datagram { return &t.grams[i] }

// RecvErrors implements Transport.
func (t *queuePair) RecvErrors(Endpoint) (int, error) {
	t.nreport = 0
	t.DrainSent(t.stamped)
	return t.nreport, nil
}

// ReportAt implements Transport.
func (t *queuePair) ReportAt(i int) *unix.Report { return &t.reports[i] }

// portClock is the device's clock. Closing the port closes it.
type portClock struct{ *rdma.Port }

// Close implements hardwareClock.
func (portClock) Close() error { return nil }

// lane is the endpoint of one port of a flow on a queue pair; port 0 is the
// queue pair's own, which is waited for.
type lane struct {
	pair *queuePair
	port uint16
}

// LocalAddr implements Endpoint.
func (l *lane) LocalAddr() netip.AddrPort {
	return netip.AddrPortFrom(l.pair.Status().GID, l.port)
}

// FD implements Endpoint.
func (l *lane) FD() int {
	if l.port != 0 {
		return -1
	}
	return l.pair.FD()
}

// Drops implements Endpoint. A datagram without a posted receive is dropped by
// the device, which counts it itself.
func (*lane) Drops() uint64 { return 0 }

// Close implements Endpoint.
func (l *lane) Close() error {
	if l.port != 0 {
		return nil
	}
	return l.pair.Close()
}

// openRDMA opens the NIC's RDMA port. The caller holds mu.
func (n *nic) openRDMA() error {
	port, err := rdma.Open(n.cfg.RDMA.portOptions(), n.wire.verbs, n.log)
	if err != nil {
		return fmt.Errorf("NIC %s: RDMA: %w", n.cfg.NIC, err)
	}
	n.rdma, n.copies = newQueuePair(port), newCopier(n.wire.roce)
	n.rdmaQueue = &socket{Endpoint: &lane{pair: n.rdma}, link: n.rdma, rdma: true, nic: n, name: "rdma"}
	n.rdmaQueue.refsOwner = n.rdmaQueue
	n.rdmaQueue.reserveRefs(0)
	if err := n.wire.addSocket(n.rdmaQueue); err != nil {
		return err
	}
	n.rdmaReflector = n.newLane("rdma_reflector", n.node.Stamp.Port)
	return nil
}

// newLane makes a port on the queue pair.
func (n *nic) newLane(name string, port uint16) *socket {
	return &socket{Endpoint: &lane{n.rdma, port}, link: n.rdma, rdma: true, nic: n, name: name, port: port, refsOwner: n.rdmaQueue}
}

// maintainRDMA takes what the device says of sent packets, and follows whether it
// stamps them.
func (n *nic) maintainRDMA() error {
	if n.rdma == nil {
		return nil
	}
	if hardware := n.rdma.HasHardwareStamps() && n.cfg.Timestamps == TimestampsAuto; hardware != (n.rdmaClock != nil) {
		n.rdmaClock = nil
		if hardware {
			n.rdmaClock = &nicClock{clock: portClock{n.rdma.Port}}
		}
		for _, e := range n.edges {
			e.userStampsOnly = e.sock.rdma && !hardware
		}
	}
	if n.rdmaClock != nil {
		if err := n.rdmaClock.readIfDue(time.Now().UnixNano()); err != nil {
			n.log.Warn("the RDMA device's clock gives no hardware samples", "err", err)
		}
	}
	return n.drainErrors(n.rdmaQueue)
}

// configureRDMA gives the port its peers and classes.
func (n *nic) configureRDMA() {
	if n.rdma == nil {
		return
	}
	var peers []rdma.Peer
	for gid, p := range n.peers {
		if p.rdma {
			peers = append(peers, rdma.Peer{GID: gid, QPN: p.cfg.RDMA.QPN, QKey: p.cfg.RDMA.QKey, LID: p.cfg.RDMA.LID})
		}
	}
	n.rdma.SetPeers(peers)
	var sl [64]uint8
	for _, c := range n.node.Stamp.Classes {
		sl[c.DSCP] = c.SL
	}
	n.rdma.SetClasses(sl)
}
