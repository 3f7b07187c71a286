package probe

import (
	"net/netip"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/unix"
)

// Deps holds what an engine needs of the system that it runs on. HostDeps returns those of this host.
type Deps struct {
	Clock   Clock
	Network Network
	Device  StampDevice
	Verbs   rdma.Verbs // nil if the program was built without RDMA
	// KnownPath returns the path of a flow at once, or of its packets with in-band signals, if the fabric is known. If it is nil, flows
	// are traced by packets.
	KnownPath func(f fabric.Flow, tagged bool) (hops []Hop, reached bool)
	// Signals says how in-band signals are handled. Nil means that there are none.
	Signals *Signals
	// Frozen is the error of Engine.Apply if the configuration cannot change, and nil if it can.
	Frozen error
}

// HostDeps returns the dependencies of an engine that measures the network of this host by the kernel's clock.
func HostDeps() Deps {
	return Deps{Clock: KernelClock{}, Network: hostNetwork{}, Device: kernelDevice{}, Verbs: rdma.Library()}
}

// Clock is the clock of a node.
type Clock interface {
	// Now returns the true time. The engine's intervals are differences of it.
	Now() time.Time
	// NodeTime returns the time that the node's clock shows at the true time t, in Unix nanoseconds. A t of 0 means
	// that there is no time, and stays 0.
	NodeTime(t int64) int64
}

// KernelClock is the host's clock. What it shows is the true time.
type KernelClock struct{}

// Now returns the time of the host's clock. It implements Clock.
func (KernelClock) Now() time.Time { return time.Now() }

// NodeTime returns t. It implements Clock.
func (KernelClock) NodeTime(t int64) int64 { return t }

// Network opens the sockets of an engine.
type Network interface {
	OpenPoller() (Poller, error)
	// OpenUDP opens a socket. Its packets are sent and received by a transport of NewTransport.
	OpenUDP(at netip.AddrPort, o unix.UDPOptions) (Endpoint, error)
	// OpenOuter opens a socket that sends packets within packets (unix.OpenOuterIPv6).
	OpenOuter(from netip.Addr, o unix.UDPOptions) (Endpoint, error)
	NewTransport() Transport
}

// Poller waits for sockets, which it reports by their tokens. unix.Poller implements it.
type Poller interface {
	Add(fd int, token int32) error
	Wait(d time.Duration) (events int, err error)
	// EventAt returns the i-th event of the last Wait. queued means that the socket's error queue has entries.
	EventAt(i int) (token int32, readable, queued bool)
	// Wake ends a Wait of another goroutine.
	Wake() error
	Close() error
}

// hostNetwork is the network of this host.
type hostNetwork struct{}

// OpenPoller opens a poller of the kernel. It implements Network.
func (hostNetwork) OpenPoller() (Poller, error) {
	p, err := unix.NewPoller()
	if err != nil {
		return nil, err
	}
	return p, nil
}

// OpenUDP opens a UDP socket. It implements Network.
func (hostNetwork) OpenUDP(at netip.AddrPort, o unix.UDPOptions) (Endpoint, error) {
	u, err := unix.ListenUDP(at, o)
	if err != nil {
		return nil, err
	}
	return u, nil
}

// OpenOuter opens a socket that sends packets within packets. It implements Network.
func (hostNetwork) OpenOuter(from netip.Addr, o unix.UDPOptions) (Endpoint, error) {
	u, err := unix.OpenOuterIPv6(from, o)
	if err != nil {
		return nil, err
	}
	return u, nil
}

// NewTransport returns the memory for batches of UDP packets. It implements Network.
func (hostNetwork) NewTransport() Transport {
	return &sockets{in: unix.NewBatch(unix.BatchSize), out: unix.NewBatch(unix.BatchSize), errs: unix.NewBatch(unix.BatchSize)}
}

// timeline has the times of an engine: those of its clock, and monotonic nanoseconds since its base.
type timeline struct {
	Clock
	base time.Time
}

// monoTime returns the monotonic time.
func (t *timeline) monoTime() int64 { return t.monoAt(t.Now()) }

// monoAt returns the monotonic time of a time that Now returned.
func (t *timeline) monoAt(at time.Time) int64 { return int64(at.Sub(t.base)) }

// nodeNow returns the time that the node's clock shows now, in Unix nanoseconds.
func (t *timeline) nodeNow() int64 { return t.NodeTime(t.Now().UnixNano()) }
