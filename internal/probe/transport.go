package probe

import (
	"net/netip"
	"syscall"

	"github.com/graylink/graylink/internal/unix"
)

// Transport carries the STAMP packets of a NIC's flows: UDP sockets, or the
// queue pair of an RDMA port. What is sent and received goes in batches, in
// memory that the transport has; none of it is allocated per packet. One
// goroutine at a time uses it.
type Transport interface {
	// OutBuffer is the memory for the next packet; nil: the batch is full.
	OutBuffer() []byte
	// PendingCount is how many packets wait for Send.
	PendingCount() int
	// Commit queues the first n octets of OutBuffer. tos has the DSCP and the ECN
	// field; ttl 0 leaves the system's. The number comes back with the packet's
	// transmit stamp. All packets of a batch leave from one endpoint.
	Commit(from Endpoint, n int, dst netip.AddrPort, tos, ttl uint8) (id uint32)
	// Send sends what was committed. failed is called for each packet that could
	// not be. at is when the rest left the program, Unix nanoseconds, where no
	// better transmit stamp will come; else 0.
	Send(from Endpoint, failed func(i int, errno syscall.Errno)) (at int64, err error)
	// Recv takes what came, unix.BatchSize packets at most, without waiting.
	Recv(at Endpoint) (int, error)
	DatagramAt(i int) *unix.Datagram
	// RecvErrors takes transmit stamps, and what the network says of packets.
	RecvErrors(at Endpoint) (int, error)
	ReportAt(i int) *unix.Report
}

// Endpoint is where packets of a flow leave and come: a UDP socket, or a port on
// a queue pair.
type Endpoint interface {
	LocalAddr() netip.AddrPort
	// FD is readable when something came; negative: another endpoint's is.
	FD() int
	// Drops is how many packets were dropped for want of memory.
	Drops() uint64
	Close() error
}

// reports is a socket's error queue; unix.Batch is the real one.
type reports interface {
	RecvErrors(*unix.UDP) (int, error)
	ReportAt(i int) *unix.Report
}

// datagrams is what a socket receives; unix.Batch is the real one.
type datagrams interface {
	Recv(*unix.UDP) (int, error)
	DatagramAt(i int) *unix.Datagram
}

// sockets is the transport of UDP.
type sockets struct {
	in   datagrams
	out  *unix.Batch
	errs reports
}

func newSockets() sockets {
	return sockets{in: unix.NewBatch(unix.BatchSize), out: unix.NewBatch(unix.BatchSize), errs: unix.NewBatch(unix.BatchSize)}
}

// OutBuffer implements Transport.
func (t *sockets) OutBuffer() []byte { return t.out.OutBuffer() }

// PendingCount implements Transport.
func (t *sockets) PendingCount() int { return t.out.PendingCount() }

// Commit implements Transport.
func (t *sockets) Commit(from Endpoint, n int, dst netip.AddrPort, tos, ttl uint8) (id uint32) {
	return t.out.Commit(from.(*unix.UDP), n, dst, tos, ttl)
}

// Send implements Transport.
func (t *sockets) Send(from Endpoint, failed func(i int, errno syscall.Errno)) (at int64, err error) {
	return 0, t.out.Send(from.(*unix.UDP), failed)
}

// Recv implements Transport.
func (t *sockets) Recv(at Endpoint) (int, error) { return t.in.Recv(at.(*unix.UDP)) }

// DatagramAt implements Transport.
func (t *sockets) DatagramAt(i int) *unix.Datagram { return t.in.DatagramAt(i) }

// RecvErrors implements Transport.
func (t *sockets) RecvErrors(at Endpoint) (int, error) { return t.errs.RecvErrors(at.(*unix.UDP)) }

// ReportAt implements Transport.
func (t *sockets) ReportAt(i int) *unix.Report { return t.errs.ReportAt(i) }
