package unix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	sys "golang.org/x/sys/unix"
)

// packetBatch is the number of packets that Packet.Recv reads at a time.
const packetBatch = 64

// RawInstruction represents an instruction of a classic BPF filter. golang.org/x/net/bpf has the same type and an
// assembler.
type RawInstruction struct {
	Op     uint16
	Jt, Jf uint8
	K      uint32
}

// Packet is a packet socket, which reads the packets that interfaces receive, from the link layer's header on. It is
// not safe for concurrent use, except for Close.
type Packet struct {
	f    *os.File
	raw  syscall.RawConn
	bufs [][]byte
	from []sys.RawSockaddrLinklayer
	iovs []sys.Iovec
	hdrs []mmsghdr
}

// OpenPacket opens a packet socket for frames of one Ethernet type (0x0003 for all types) on one interface (0 for all).
// It keeps at most the given number of octets of every frame, and reads no frames that the interfaces send.
func OpenPacket(etherType uint16, ifindex, snap int) (*Packet, error) {
	fd, err := sys.Socket(sys.AF_PACKET, sys.SOCK_RAW|sys.SOCK_CLOEXEC|sys.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	if err := sys.SetsockoptInt(fd, sys.SOL_PACKET, sys.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return nil, errors.Join(fmt.Errorf("set PACKET_IGNORE_OUTGOING: %w", err), sys.Close(fd))
	}
	// The socket is bound last, because it receives nothing before it has a protocol.
	if err := sys.Bind(fd, &sys.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, etherType)), Ifindex: ifindex}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind packet socket to interface %d: %w", ifindex, err), sys.Close(fd))
	}
	p := &Packet{f: os.NewFile(uintptr(fd), "packet"), bufs: make([][]byte, packetBatch), from: make([]sys.RawSockaddrLinklayer, packetBatch),
		iovs: make([]sys.Iovec, packetBatch), hdrs: make([]mmsghdr, packetBatch)}
	for i := range p.hdrs {
		p.bufs[i] = make([]byte, snap)
		p.iovs[i].Base = &p.bufs[i][0]
		p.iovs[i].SetLen(snap)
		h := &p.hdrs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&p.from[i]))
		h.Iov = &p.iovs[i]
		h.SetIovlen(1)
	}
	if p.raw, err = p.f.SyscallConn(); err != nil {
		return nil, errors.Join(err, p.f.Close())
	}
	return p, nil
}

// AttachFilter makes the kernel pass on only what a classic BPF program accepts.
func (p *Packet) AttachFilter(program []RawInstruction) error {
	filter := make([]sys.SockFilter, len(program))
	for i, in := range program {
		filter[i] = sys.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	var err error
	if cerr := p.raw.Control(func(fd uintptr) {
		err = sys.SetsockoptSockFprog(int(fd), sys.SOL_SOCKET, sys.SO_ATTACH_FILTER, &sys.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	}); cerr != nil {
		return cerr
	}
	if err != nil {
		return fmt.Errorf("set SO_ATTACH_FILTER: %w", err)
	}
	return nil
}

// SetReceiveBuffer requests a receive buffer of so many octets.
func (p *Packet) SetReceiveBuffer(octets int) error {
	var err error
	if cerr := p.raw.Control(func(fd uintptr) {
		if err = sys.SetsockoptInt(int(fd), sys.SOL_SOCKET, sys.SO_RCVBUFFORCE, octets); err != nil {
			err = sys.SetsockoptInt(int(fd), sys.SOL_SOCKET, sys.SO_RCVBUF, octets)
		}
	}); cerr != nil {
		return cerr
	}
	return err
}

// JoinMulticast makes an interface receive frames to a multicast address.
func (p *Packet) JoinMulticast(ifindex int, mac [6]byte) error {
	var err error
	if cerr := p.raw.Control(func(fd uintptr) {
		m := sys.PacketMreq{Ifindex: int32(ifindex), Type: sys.PACKET_MR_MULTICAST, Alen: 6}
		copy(m.Address[:], mac[:])
		err = sys.SetsockoptPacketMreq(int(fd), sys.SOL_PACKET, sys.PACKET_ADD_MEMBERSHIP, &m)
	}); cerr != nil {
		return cerr
	}
	return err
}

// Recv waits for packets until the deadline, and passes each one to the callback with the number of the interface that
// received it. The octets belong to Packet and are valid during the call only. errors.Is holds for
// os.ErrDeadlineExceeded and os.ErrClosed.
func (p *Packet) Recv(deadline time.Time, take func(ifindex int, frame []byte)) error {
	if err := p.f.SetReadDeadline(deadline); err != nil {
		return err
	}
	var n int
	var errno syscall.Errno
	err := p.raw.Read(func(fd uintptr) bool {
		for i := range p.hdrs {
			p.hdrs[i].hdr.Namelen = sys.SizeofSockaddrLinklayer
		}
		r, _, e := sys.Syscall6(sys.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&p.hdrs[0])), packetBatch, sys.MSG_DONTWAIT, 0, 0)
		n, errno = int(r), e
		return errno != syscall.EAGAIN
	})
	switch {
	case err != nil:
		return err
	case errno == syscall.ENETDOWN || errno == syscall.EINTR:
		return nil // an interface went down; the others continue
	case errno != 0:
		return fmt.Errorf("receive packets: %w", errno)
	}
	for i := range n {
		take(int(p.from[i].Ifindex), p.bufs[i][:min(int(p.hdrs[i].n), len(p.bufs[i]))])
	}
	return nil
}

// Send sends a frame by an interface.
func (p *Packet) Send(ifindex int, frame []byte) error {
	var err error
	if cerr := p.raw.Control(func(fd uintptr) {
		err = sys.Sendto(int(fd), frame, 0, &sys.SockaddrLinklayer{Ifindex: ifindex})
	}); cerr != nil {
		return cerr
	}
	return err
}

// DropsSinceLast returns the number of packets since its last call that did not fit into the buffer.
func (p *Packet) DropsSinceLast() (uint64, error) {
	var n uint64
	var err error
	if cerr := p.raw.Control(func(fd uintptr) {
		var s *sys.TpacketStats
		if s, err = sys.GetsockoptTpacketStats(int(fd), sys.SOL_PACKET, sys.PACKET_STATISTICS); err == nil {
			n = uint64(s.Drops)
		}
	}); cerr != nil {
		return 0, cerr
	}
	return n, err
}

// Close closes the socket and ends a Recv that waits.
func (p *Packet) Close() error { return p.f.Close() }
