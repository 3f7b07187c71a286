package probe

import (
	"net/netip"
	"syscall"

	"github.com/graylink/graylink/internal/unix"
)

// Transport carries the STAMP packets of a NIC's flows by UDP sockets, or by the queue pair of an RDMA port. It sends
// and receives in batches, in memory of its own, and allocates nothing per packet. Only one goroutine at a time may use
// it.
type Transport interface {
	// OutBuffer returns the memory for the next packet, or nil if the batch is full.
	OutBuffer() []byte
	// PendingCount returns the number of packets that wait for Send.
	PendingCount() int
	// Commit queues the first n octets of OutBuffer. tos has the DSCP and the ECN field. A ttl of 0 leaves the
	// system's. The returned number comes back with the packet's transmit stamp. All packets of a batch leave from one
	// endpoint.
	Commit(from Endpoint, n int, dst netip.AddrPort, tos, ttl uint8) (id uint32)
	// Send sends the queued packets, and calls failed for each one that could not be sent. It returns the time at which
	// the others left the program in Unix nanoseconds, or 0 if better transmit stamps will come.
	Send(from Endpoint, failed func(i int, errno syscall.Errno)) (at int64, err error)
	// Recv receives packets without waiting, at most unix.BatchSize of them.
	Recv(at Endpoint) (int, error)
	DatagramAt(i int) *unix.Datagram
	// RecvErrors reads transmit stamps, and errors that the network reports about packets.
	RecvErrors(at Endpoint) (int, error)
	ReportAt(i int) *unix.Report
}

// Endpoint is the end at which packets of a flow leave and arrive: a UDP socket, or a port on a queue pair.
type Endpoint interface {
	LocalAddr() netip.AddrPort
	// FD returns the descriptor that is readable when a packet has arrived. It is negative if another endpoint has it.
	FD() int
	// Drops returns the number of packets that were dropped for lack of memory.
	Drops() uint64
	Close() error
}

// reports is the interface of a socket's error queue, which unix.Batch implements.
type reports interface {
	RecvErrors(*unix.UDP) (int, error)
	ReportAt(i int) *unix.Report
}

// datagrams is the interface of a socket's received datagrams, which unix.Batch implements.
type datagrams interface {
	Recv(*unix.UDP) (int, error)
	DatagramAt(i int) *unix.Datagram
}

// sockets is the transport by UDP.
type sockets struct {
	in   datagrams
	out  *unix.Batch
	errs reports
}

// OutBuffer returns the memory for the next packet. It implements Transport.
func (t *sockets) OutBuffer() []byte { return t.out.OutBuffer() }

// PendingCount returns the number of packets that wait for Send. It implements Transport.
func (t *sockets) PendingCount() int { return t.out.PendingCount() }

// Commit queues a packet. It implements Transport.
func (t *sockets) Commit(from Endpoint, n int, dst netip.AddrPort, tos, ttl uint8) (id uint32) {
	return t.out.Commit(from.(*unix.UDP), n, dst, tos, ttl)
}

// Send sends the queued packets. It implements Transport.
func (t *sockets) Send(from Endpoint, failed func(i int, errno syscall.Errno)) (at int64, err error) {
	return 0, t.out.Send(from.(*unix.UDP), failed)
}

// Recv receives packets. It implements Transport.
func (t *sockets) Recv(at Endpoint) (int, error) { return t.in.Recv(at.(*unix.UDP)) }

// DatagramAt returns the i-th packet of the last Recv. It implements Transport.
func (t *sockets) DatagramAt(i int) *unix.Datagram { return t.in.DatagramAt(i) }

// RecvErrors reads the error queue. It implements Transport.
func (t *sockets) RecvErrors(at Endpoint) (int, error) { return t.errs.RecvErrors(at.(*unix.UDP)) }

// ReportAt returns the i-th entry of the last RecvErrors. It implements Transport.
func (t *sockets) ReportAt(i int) *unix.Report { return t.errs.ReportAt(i) }
