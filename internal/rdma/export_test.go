package rdma

import (
	"log/slog"
	"net/netip"
	"time"
)

// Idle is a port without goroutines, which the test maintains.
type Idle struct {
	*Port
	Time time.Duration
}

// NewIdle opens a port that the test maintains.
func NewIdle(o Options, v Verbs) (*Idle, error) {
	p, err := newPort(o, v, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	i := &Idle{Port: p}
	p.now = func() int64 { return int64(i.Time) }
	i.Step()
	return i, nil
}

// Step maintains the port once, and makes the requested handles.
func (i *Idle) Step() {
	i.maintainOnce()
	for i.makeNextHandle() {
	}
}

// CheckEvery is the interval at which a port is checked.
const CheckEvery = checkEvery

// Arrived returns what a port makes of a datagram from its only peer, 17 at ::ffff:0.0.0.1.
func Arrived(grh []byte, flags, imm, qpn, length uint32) (Arrival, bool) {
	p := &Port{peers: map[netip.Addr]Peer{}}
	gid := netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff, 15: 1})
	p.peers[gid] = Peer{GID: gid, QPN: 17, QKey: 1}
	in := In{Flags: flags, Imm: imm, SrcQPN: qpn, Len: length}
	copy(in.GRH[:], grh)
	var a Arrival
	ok := p.acceptPacket(&in, &a)
	return a, ok
}
