package unix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	sys "golang.org/x/sys/unix"
)

// Errors of the sockets that callers check with errors.Is.
const (
	EADDRINUSE    = syscall.EADDRINUSE
	EADDRNOTAVAIL = syscall.EADDRNOTAVAIL
	EACCES        = syscall.EACCES
	EPERM         = syscall.EPERM
	ENETUNREACH   = syscall.ENETUNREACH
	ENETDOWN      = syscall.ENETDOWN
	EAGAIN        = syscall.EAGAIN
)

// timestamping requests software stamps of both directions. OPT_TSONLY keeps copies of packets out of the error queue,
// whose memory counts against the receive buffer (Documentation/networking/timestamping.rst, 1.3.4).
const timestamping = sys.SOF_TIMESTAMPING_TX_SOFTWARE | sys.SOF_TIMESTAMPING_RX_SOFTWARE |
	sys.SOF_TIMESTAMPING_SOFTWARE | sys.SOF_TIMESTAMPING_OPT_ID |
	sys.SOF_TIMESTAMPING_OPT_TSONLY | sys.SOF_TIMESTAMPING_OPT_CMSG

// hardwareStamping requests the NIC's stamps in addition to the kernel's. OPT_TX_SWHW makes them two reports of one
// packet (timestamping.rst, 1.3.4).
const hardwareStamping = sys.SOF_TIMESTAMPING_TX_HARDWARE | sys.SOF_TIMESTAMPING_RX_HARDWARE |
	sys.SOF_TIMESTAMPING_RAW_HARDWARE | sys.SOF_TIMESTAMPING_OPT_TX_SWHW

// UDPOptions holds the options of ListenUDP.
type UDPOptions struct {
	// ReceiveBuffer is in octets. 0 leaves the system's default.
	ReceiveBuffer int
	// CountedIDs numbers transmit stamps by the kernel's own counter, as on kernels without SCM_TS_OPT_ID (before
	// 6.13).
	CountedIDs bool
	// Hardware requests the NIC's stamps as well. StampDevice.SetFilter must have enabled them.
	Hardware bool
}

// UDP is an unconnected datagram socket, IPv4 or IPv6, with time stamps. It is never connected, because a connected
// socket has a flow hash of its own, and ECMP would not send its packets by the path of their 5-tuple.
type UDP struct {
	fd    int
	local netip.AddrPort
	v6    bool
	flags int // of SO_TIMESTAMPING

	counted  bool   // stamps are numbered by the kernel's counter
	nextID   uint32 // number of the next packet
	idBase   uint32 // if counted: number of the packet that the kernel calls 0
	lastOvfl uint32
	drops    atomic.Uint64
}

// ListenUDP opens a socket bound to local. errors.Is holds for EADDRINUSE,
// EADDRNOTAVAIL, EACCES and EPERM.
func ListenUDP(local netip.AddrPort, o UDPOptions) (*UDP, error) {
	if !local.Addr().IsValid() || local.Addr().Is4In6() {
		return nil, fmt.Errorf("udp socket on %v: an IPv4 or IPv6 address is expected", local)
	}
	family := sys.AF_INET
	if local.Addr().Is6() {
		family = sys.AF_INET6
	}
	fd, err := sys.Socket(family, sys.SOCK_DGRAM|sys.SOCK_NONBLOCK|sys.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("udp socket: %w", err)
	}
	s := &UDP{fd: fd, v6: local.Addr().Is6(), flags: timestamping}
	if o.Hardware {
		s.flags |= hardwareStamping
	}
	if err := s.configureSocket(local, o); err != nil {
		return nil, errors.Join(err, sys.Close(fd))
	}
	return s, nil
}

func (s *UDP) configureSocket(local netip.AddrPort, o UDPOptions) error {
	if o.ReceiveBuffer > 0 {
		// FORCE needs CAP_NET_ADMIN. Without it, net.core.rmem_max is the limit.
		if sys.SetsockoptInt(s.fd, sys.SOL_SOCKET, sys.SO_RCVBUFFORCE, o.ReceiveBuffer) != nil {
			if err := sys.SetsockoptInt(s.fd, sys.SOL_SOCKET, sys.SO_RCVBUF, o.ReceiveBuffer); err != nil {
				return fmt.Errorf("set SO_RCVBUF: %w", err)
			}
		}
	}
	type option struct {
		name              string
		level, opt, value int
	}
	options := []option{
		{"SO_RXQ_OVFL", sys.SOL_SOCKET, sys.SO_RXQ_OVFL, 1},
		{"IP_RECVTOS", sys.IPPROTO_IP, sys.IP_RECVTOS, 1},
		{"IP_RECVTTL", sys.IPPROTO_IP, sys.IP_RECVTTL, 1},
		{"IP_RECVERR", sys.IPPROTO_IP, sys.IP_RECVERR, 1},
		{"IP_MTU_DISCOVER", sys.IPPROTO_IP, sys.IP_MTU_DISCOVER, sys.IP_PMTUDISC_PROBE},
	}
	if s.v6 {
		options = []option{
			{"IPV6_V6ONLY", sys.IPPROTO_IPV6, sys.IPV6_V6ONLY, 1},
			{"SO_RXQ_OVFL", sys.SOL_SOCKET, sys.SO_RXQ_OVFL, 1},
			{"IPV6_RECVTCLASS", sys.IPPROTO_IPV6, sys.IPV6_RECVTCLASS, 1},
			{"IPV6_RECVHOPLIMIT", sys.IPPROTO_IPV6, sys.IPV6_RECVHOPLIMIT, 1},
			{"IPV6_RECVERR", sys.IPPROTO_IPV6, sys.IPV6_RECVERR, 1},
			{"IPV6_MTU_DISCOVER", sys.IPPROTO_IPV6, sys.IPV6_MTU_DISCOVER, sys.IPV6_PMTUDISC_PROBE},
		}
	}
	extensions := option{"IP_RECVERR_RFC4884", sys.IPPROTO_IP, sys.IP_RECVERR_RFC4884, 1}
	if s.v6 {
		extensions = option{"IPV6_RECVERR_RFC4884", sys.IPPROTO_IPV6, sys.IPV6_RECVERR_RFC4884, 1}
	}
	// Linux has this option since 5.9. Without it, errors arrive without extensions.
	if err := sys.SetsockoptInt(s.fd, extensions.level, extensions.opt, extensions.value); err != nil && !errors.Is(err, sys.ENOPROTOOPT) {
		return fmt.Errorf("set %s: %w", extensions.name, err)
	}
	for _, opt := range append(options, option{"SO_TIMESTAMPING", sys.SOL_SOCKET, sys.SO_TIMESTAMPING_NEW, s.flags}) {
		if err := sys.SetsockoptInt(s.fd, opt.level, opt.opt, opt.value); err != nil {
			return fmt.Errorf("set %s: %w", opt.name, err)
		}
	}
	var at sys.Sockaddr = &sys.SockaddrInet6{Addr: local.Addr().As16(), Port: int(local.Port())}
	if !s.v6 {
		at = &sys.SockaddrInet4{Addr: local.Addr().As4(), Port: int(local.Port())}
	}
	if err := sys.Bind(s.fd, at); err != nil {
		return fmt.Errorf("bind %v: %w", local, err)
	}
	sa, err := sys.Getsockname(s.fd)
	if err != nil {
		return fmt.Errorf("getsockname: %w", err)
	}
	switch in := sa.(type) {
	case *sys.SockaddrInet4:
		s.local = netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port))
	case *sys.SockaddrInet6:
		s.local = netip.AddrPortFrom(netip.AddrFrom16(in.Addr), uint16(in.Port))
	default:
		return fmt.Errorf("getsockname: %T, want an IP address", sa)
	}
	s.counted = o.CountedIDs || !supportsStampIDs()
	return nil
}

// supportsStampIDs reports whether the kernel supports SCM_TS_OPT_ID, which Linux 6.13 introduced. It tries to send a
// broadcast, which the socket may not do. The kernel checks the control message first, and nothing is sent in either
// case.
func supportsStampIDs() bool {
	fd, err := sys.Socket(sys.AF_INET, sys.SOCK_DGRAM|sys.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer sys.Close(fd)
	if sys.SetsockoptInt(fd, sys.SOL_SOCKET, sys.SO_TIMESTAMPING_NEW, timestamping) != nil {
		return false
	}
	ctl := make([]byte, sys.CmsgSpace(4))
	putControl(ctl, 0, sys.SOL_SOCKET, sys.SCM_TS_OPT_ID, 0)
	err = sys.Sendmsg(fd, nil, ctl, &sys.SockaddrInet4{Addr: [4]byte{255, 255, 255, 255}, Port: 9}, sys.MSG_DONTWAIT)
	return !errors.Is(err, sys.EINVAL)
}

// LocalAddr returns the address that the socket is bound to.
func (s *UDP) LocalAddr() netip.AddrPort { return s.local }

// Drops returns the number of datagrams that the kernel dropped because the receive buffer was full (SO_RXQ_OVFL), as
// of the last datagram that was received.
func (s *UDP) Drops() uint64 { return s.drops.Load() }

// Close closes the socket. It must not be used afterwards.
func (s *UDP) Close() error { return sys.Close(s.fd) }

// resyncStampIDs makes the kernel's stamp counter start at 0 again, for the packet after those already sent. A failed
// send may or may not have advanced the counter.
func (s *UDP) resyncStampIDs(next uint32) error {
	if err := sys.SetsockoptInt(s.fd, sys.SOL_SOCKET, sys.SO_TIMESTAMPING_NEW, s.flags&^sys.SOF_TIMESTAMPING_OPT_ID); err != nil {
		return fmt.Errorf("switch SOF_TIMESTAMPING_OPT_ID off: %w", err)
	}
	if err := sys.SetsockoptInt(s.fd, sys.SOL_SOCKET, sys.SO_TIMESTAMPING_NEW, s.flags); err != nil {
		return fmt.Errorf("switch SOF_TIMESTAMPING_OPT_ID on: %w", err)
	}
	s.idBase = next
	return nil
}

// BatchSize is the largest number of datagrams that one system call moves.
const BatchSize = 32

// MaxDatagram is the longest datagram that a Batch holds, in octets. Longer ones are cut when they are received. A packet of RoCE v2
// with 4,096 octets has 4,132 octets of UDP payload, and tests of paths are as long.
const MaxDatagram = 4160

const (
	// recvControl has room for a stamp (64), TOS, TTL and RXQ_OVFL (24 each) and an extended error (64 for IPv6), each with
	// padding, and for recvStats before them.
	recvControl = 320 + recvStats
	// recvStats is the room for a message SCM_TIMESTAMPING_OPT_STATS. The kernel does not initialize the field that asks for
	// it in an ICMP error (Linux 6.18, ip_icmp_error), so that it adds one with a copy of the whole quote where an eBPF
	// program at an ingress has used that memory. Without room the extended error behind it is cut off.
	recvStats   = 1296
	sendControl = 96 // TOS, TTL and stamp id: 24 each
)

type mmsghdr struct {
	hdr sys.Msghdr
	n   uint32
}

// slot is the memory of one datagram. The buffer is the last field: of it, usual datagrams use the beginning alone, which shares its
// pages with the other fields.
type slot struct {
	ctl  [recvControl]byte
	name sys.RawSockaddrInet6 // or a RawSockaddrInet4, which is shorter
	iov  sys.Iovec
	buf  [MaxDatagram]byte
}

// Datagram is a received datagram. Data is valid until the Batch is used again.
type Datagram struct {
	Data      []byte
	From      netip.AddrPort
	TOS       uint8 // or the IPv6 traffic class
	TTL       uint8 // or the IPv6 hop limit
	Truncated bool  // it was longer than MaxDatagram
	Stamp     int64 // kernel receive stamp, Unix nanoseconds; 0 if there is none
	Hardware  int64 // the NIC's receive stamp, nanoseconds of its own clock; 0 if there is none
	// Fields for transports other than sockets:
	Port uint16 // the local port that it is for; 0: the socket's own
	User int64  // time at which a thread of the program read it, Unix nanoseconds; 0: only the caller reads it
}

// ReportKind is the kind of an entry of the error queue.
type ReportKind uint8

// Kinds of Report.
const (
	ReportOther   ReportKind = iota
	ReportTxStamp            // a transmit stamp: ID and one of Stamp and Hardware are set
	ReportICMP               // an ICMP error: Type, Code, Offender, Dst and Data (the quoted payload) are set
	ReportICMP6              // the same for ICMPv6
)

// Report is an entry of a socket's error queue.
type Report struct {
	Kind     ReportKind
	ID       uint32
	Stamp    int64 // Unix nanoseconds; 0 if there is none
	Hardware int64 // nanoseconds of the NIC's clock; 0 if there is none
	Errno    syscall.Errno
	Type     uint8
	Code     uint8
	MTU      uint32 // of the next link, where the error is that the packet is too big for it
	Offender netip.Addr
	Dst      netip.AddrPort
	Data     []byte
	// Extension is the extension structure behind the quote (RFC 4884), at the place that the message's length
	// attribute states. It is unverified, and nil if there is none.
	Extension []byte
}

// Batch is memory for moving datagrams in batches over any number of sockets, one socket at a time. It is not safe for
// concurrent use.
type Batch struct {
	slots   []slot
	hdrs    []mmsghdr
	ids     []uint32
	out     int
	grams   []Datagram
	reports []Report
}

// NewBatch returns a Batch of n datagrams, at most BatchSize.
func NewBatch(n int) *Batch {
	n = max(1, min(n, BatchSize))
	b := &Batch{slots: make([]slot, n), hdrs: make([]mmsghdr, n), ids: make([]uint32, n),
		grams: make([]Datagram, n), reports: make([]Report, n)}
	for i := range b.slots {
		sl := &b.slots[i]
		sl.iov.Base = &sl.buf[0]
		h := &b.hdrs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&sl.name))
		h.Iov = &sl.iov
		h.SetIovlen(1)
		h.Control = &sl.ctl[0]
	}
	return b
}

// OutBuffer returns the memory for the next datagram to send. It returns nil if the batch is full and must be sent
// first.
func (b *Batch) OutBuffer() []byte {
	if b.out == len(b.slots) {
		return nil
	}
	return b.slots[b.out].buf[:]
}

// PendingCount returns the number of datagrams that wait for Send.
func (b *Batch) PendingCount() int { return b.out }

// Commit queues the first n octets of OutBuffer for s. dst must have the socket's address family. tos is also used as
// the IPv6 traffic class. A ttl of 0 leaves the system's default. It returns the number that the transmit stamp will
// carry. All datagrams of a batch go over one socket.
func (b *Batch) Commit(s *UDP, n int, dst netip.AddrPort, tos, ttl uint8) (id uint32) {
	id = s.nextID
	s.nextID++
	sl, h := &b.slots[b.out], &b.hdrs[b.out].hdr
	sl.iov.SetLen(n)
	var at int
	if s.v6 {
		sl.name = sys.RawSockaddrInet6{Family: sys.AF_INET6, Addr: dst.Addr().As16()}
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&sl.name.Port))[:], dst.Port())
		h.Namelen = sys.SizeofSockaddrInet6
		at = putControl(sl.ctl[:], 0, sys.IPPROTO_IPV6, sys.IPV6_TCLASS, uint32(tos))
		if ttl > 0 {
			at = putControl(sl.ctl[:], at, sys.IPPROTO_IPV6, sys.IPV6_HOPLIMIT, uint32(ttl))
		}
	} else {
		name := (*sys.RawSockaddrInet4)(unsafe.Pointer(&sl.name))
		name.Family = sys.AF_INET
		name.Addr = dst.Addr().As4()
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&name.Port))[:], dst.Port())
		h.Namelen = sys.SizeofSockaddrInet4
		at = putControl(sl.ctl[:], 0, sys.IPPROTO_IP, sys.IP_TOS, uint32(tos))
		if ttl > 0 {
			at = putControl(sl.ctl[:], at, sys.IPPROTO_IP, sys.IP_TTL, uint32(ttl))
		}
	}
	if !s.counted {
		at = putControl(sl.ctl[:], at, sys.SOL_SOCKET, sys.SCM_TS_OPT_ID, id)
	}
	h.SetControllen(at)
	b.ids[b.out] = id
	b.out++
	return id
}

func putControl(b []byte, at, level, typ int, v uint32) int {
	c := (*sys.Cmsghdr)(unsafe.Pointer(&b[at]))
	c.Level, c.Type = int32(level), int32(typ)
	c.SetLen(sys.CmsgLen(4))
	binary.NativeEndian.PutUint32(b[at+sys.CmsgLen(0):], v)
	return at + sys.CmsgSpace(4)
}

// sendAttempts limits the attempts to send one datagram. An ICMP error that arrived before makes one send fail without
// sending anything (sk_err with IP_RECVERR), so the first failure need not be caused by this datagram.
const sendAttempts = 4

// Send sends the queued datagrams in order. It calls failed for each datagram that could not be sent, with its place in
// the batch.
func (b *Batch) Send(s *UDP, failed func(i int, err syscall.Errno)) error {
	total := b.out
	b.out = 0
	var desync error
	for i, attempt := 0, 0; i < total; {
		n := total - i
		if s.counted {
			n = 1 // each id must be known before the next packet takes one
		}
		r, _, errno := sys.Syscall6(sys.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&b.hdrs[i])), uintptr(n), sys.MSG_DONTWAIT, 0, 0)
		if errno == 0 && r > 0 {
			i += int(r)
			attempt = 0
			continue
		}
		if errno == syscall.EINTR {
			continue
		}
		if attempt++; attempt == sendAttempts || errno == syscall.EAGAIN || errno == syscall.ENOBUFS {
			failed(i, errno)
			i++
			attempt = 0
		}
		if s.counted {
			next := s.nextID
			if i < total {
				next = b.ids[i]
			}
			if err := s.resyncStampIDs(next); err != nil {
				desync = err
			}
		}
	}
	return desync
}

// Recv receives datagrams without blocking and returns their number, which is 0 if there are none.
func (b *Batch) Recv(s *UDP) (int, error) {
	n, err := b.recvmmsg(s, sys.MSG_DONTWAIT)
	for i := range n {
		b.parseSlot(s, i)
	}
	return n, err
}

// DatagramAt returns the i-th datagram of the last Recv.
func (b *Batch) DatagramAt(i int) *Datagram { return &b.grams[i] }

// RecvErrors reads the socket's error queue without blocking and returns the number of entries, which is 0 if it is
// empty.
func (b *Batch) RecvErrors(s *UDP) (int, error) {
	n, err := b.recvmmsg(s, sys.MSG_DONTWAIT|sys.MSG_ERRQUEUE)
	for i := range n {
		b.parseSlot(s, i)
	}
	return n, err
}

// ReportAt returns the i-th entry of the last RecvErrors.
func (b *Batch) ReportAt(i int) *Report { return &b.reports[i] }

func (b *Batch) recvmmsg(s *UDP, flags int) (int, error) {
	for i := range b.hdrs {
		h := &b.hdrs[i].hdr
		h.Namelen = sys.SizeofSockaddrInet6
		h.SetControllen(recvControl)
		h.Flags = 0
		b.slots[i].iov.SetLen(MaxDatagram)
	}
	// A pending sk_err makes one receive fail, and is cleared by that.
	for range sendAttempts {
		r, _, errno := sys.Syscall6(sys.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&b.hdrs[0])), uintptr(len(b.hdrs)), uintptr(flags), 0, 0)
		switch errno {
		case 0:
			return int(r), nil
		case syscall.EAGAIN:
			return 0, nil
		case syscall.EBADF, syscall.ENOTSOCK, syscall.EFAULT, syscall.EINVAL:
			return 0, fmt.Errorf("recvmmsg on %v: %w", s.local, errno)
		}
	}
	return 0, nil
}

// parseSlot reads the control messages of slot i into its Datagram and Report.
func (b *Batch) parseSlot(s *UDP, i int) {
	sl, m := &b.slots[i], &b.hdrs[i]
	g, r := &b.grams[i], &b.reports[i]
	from := netip.AddrPort{}
	switch {
	case m.hdr.Namelen >= sys.SizeofSockaddrInet6 && sl.name.Family == sys.AF_INET6:
		port := (*[2]byte)(unsafe.Pointer(&sl.name.Port))
		from = netip.AddrPortFrom(netip.AddrFrom16(sl.name.Addr), binary.BigEndian.Uint16(port[:]))
	case m.hdr.Namelen >= sys.SizeofSockaddrInet4 && sl.name.Family == sys.AF_INET:
		name := (*sys.RawSockaddrInet4)(unsafe.Pointer(&sl.name))
		port := (*[2]byte)(unsafe.Pointer(&name.Port))
		from = netip.AddrPortFrom(netip.AddrFrom4(name.Addr), binary.BigEndian.Uint16(port[:]))
	}
	*g = Datagram{Data: sl.buf[:m.n], From: from, Truncated: m.hdr.Flags&sys.MSG_TRUNC != 0}
	*r = Report{Dst: from, Data: sl.buf[:m.n]}
	ctl := sl.ctl[:min(int(m.hdr.Controllen), recvControl)]
	for {
		level, typ, data, rest, ok := nextControl(ctl)
		if !ok {
			break
		}
		ctl = rest
		switch {
		case level == sys.SOL_SOCKET && typ == sys.SO_TIMESTAMPING_NEW && len(data) >= 16:
			// struct scm_timestamping64 holds the software stamp, one that is no longer used, and the NIC's.
			g.Stamp = timespecNanos(data)
			if len(data) >= 48 {
				g.Hardware = timespecNanos(data[32:])
			}
			r.Stamp, r.Hardware = g.Stamp, g.Hardware
		case level == sys.SOL_SOCKET && typ == sys.SO_RXQ_OVFL && len(data) >= 4:
			v := binary.NativeEndian.Uint32(data)
			s.drops.Add(uint64(v - s.lastOvfl))
			s.lastOvfl = v
		case level == sys.IPPROTO_IP && typ == sys.IP_TOS && len(data) >= 1:
			g.TOS = data[0]
		case level == sys.IPPROTO_IP && typ == sys.IP_TTL && len(data) >= 4:
			g.TTL = uint8(binary.NativeEndian.Uint32(data))
		case level == sys.IPPROTO_IPV6 && typ == sys.IPV6_TCLASS && len(data) >= 4:
			g.TOS = uint8(binary.NativeEndian.Uint32(data))
		case level == sys.IPPROTO_IPV6 && typ == sys.IPV6_HOPLIMIT && len(data) >= 4:
			g.TTL = uint8(binary.NativeEndian.Uint32(data))
		case (level == sys.IPPROTO_IP && typ == sys.IP_RECVERR || level == sys.IPPROTO_IPV6 && typ == sys.IPV6_RECVERR) && len(data) >= 16:
			s.extendedError(r, data)
		}
	}
}

func timespecNanos(b []byte) int64 {
	return int64(binary.NativeEndian.Uint64(b))*1e9 + int64(binary.NativeEndian.Uint64(b[8:]))
}

// extendedError reads struct sock_extended_err and the address behind it.
func (s *UDP) extendedError(r *Report, data []byte) {
	r.Errno = syscall.Errno(binary.NativeEndian.Uint32(data))
	origin := data[4]
	r.Type, r.Code = data[5], data[6]
	info := binary.NativeEndian.Uint32(data[8:])
	switch origin {
	case sys.SO_EE_ORIGIN_TIMESTAMPING:
		r.Kind = ReportTxStamp
		r.ID = binary.NativeEndian.Uint32(data[12:])
		if s.counted {
			r.ID += s.idBase
		}
	case sys.SO_EE_ORIGIN_ICMP:
		r.Kind, r.MTU = ReportICMP, info
		if len(data) >= 24 && binary.NativeEndian.Uint16(data[16:]) == sys.AF_INET {
			r.Offender = netip.AddrFrom4([4]byte(data[20:24]))
		}
		r.cutExtension(data)
	case sys.SO_EE_ORIGIN_ICMP6:
		r.Kind, r.MTU = ReportICMP6, info
		if len(data) >= 40 && binary.NativeEndian.Uint16(data[16:]) == sys.AF_INET6 {
			r.Offender = netip.AddrFrom16([16]byte(data[24:40]))
		}
		r.cutExtension(data)
	}
}

// cutExtension separates the quote from the extension behind it, if struct sock_ee_data_rfc4884 announces one.
func (r *Report) cutExtension(data []byte) {
	if at := int(binary.NativeEndian.Uint16(data[12:])); at > 0 && at <= len(r.Data) {
		r.Data, r.Extension = r.Data[:at], r.Data[at:]
	}
}

// nextControl cuts one control message off b.
func nextControl(b []byte) (level, typ int, data, rest []byte, ok bool) {
	if len(b) < sys.SizeofCmsghdr {
		return 0, 0, nil, nil, false
	}
	c := (*sys.Cmsghdr)(unsafe.Pointer(&b[0]))
	n := int(c.Len)
	if n < sys.CmsgLen(0) || n > len(b) {
		return 0, 0, nil, nil, false
	}
	end := min(sys.CmsgSpace(n-sys.CmsgLen(0)), len(b))
	return int(c.Level), int(c.Type), b[sys.CmsgLen(0):n], b[end:], true
}

// Poller waits for sockets. Only one goroutine may call Wait. All may call Wake.
type Poller struct {
	fd     int
	wake   int
	events [64]sys.EpollEvent
	coarse bool // no epoll_pwait2 (before Linux 5.11): whole milliseconds
}

const wakeToken = -1

// NewPoller returns an empty Poller.
func NewPoller() (*Poller, error) {
	fd, err := sys.EpollCreate1(sys.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	wake, err := sys.Eventfd(0, sys.EFD_CLOEXEC|sys.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), sys.Close(fd))
	}
	p := &Poller{fd: fd, wake: wake}
	if err := sys.EpollCtl(fd, sys.EPOLL_CTL_ADD, wake, &sys.EpollEvent{Events: sys.EPOLLIN, Fd: wakeToken}); err != nil {
		return nil, errors.Join(fmt.Errorf("epoll_ctl: %w", err), p.Close())
	}
	return p, nil
}

// FD returns the socket's descriptor, for a Poller.
func (s *UDP) FD() int { return s.fd }

// Add watches a descriptor. Its events carry token, which must not be negative.
func (p *Poller) Add(fd int, token int32) error {
	if err := sys.EpollCtl(p.fd, sys.EPOLL_CTL_ADD, fd, &sys.EpollEvent{Events: sys.EPOLLIN, Fd: token}); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// Wake makes Wait return.
func (p *Poller) Wake() error {
	if _, err := sys.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil && !errors.Is(err, EAGAIN) {
		return fmt.Errorf("wake: %w", err)
	}
	return nil
}

// Wait waits for events for at most d, and returns their number.
func (p *Poller) Wait(d time.Duration) (int, error) {
	d = max(d, 0)
	var n int
	var errno syscall.Errno
	if !p.coarse {
		ts := struct{ sec, nsec int64 }{int64(d / time.Second), int64(d % time.Second)}
		r, _, e := sys.Syscall6(sys.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), uintptr(unsafe.Pointer(&ts)), 0, 0)
		if e == syscall.ENOSYS {
			p.coarse = true
		}
		n, errno = int(r), e
	}
	if p.coarse {
		ms := (d + time.Millisecond - 1) / time.Millisecond
		r, _, e := sys.Syscall6(sys.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), uintptr(ms), 0, 0)
		n, errno = int(r), e
	}
	if errno == syscall.EINTR {
		return 0, nil
	}
	if errno != 0 {
		return 0, fmt.Errorf("epoll_wait: %w", errno)
	}
	return n, nil
}

// EventAt returns the i-th event of the last Wait. The token is negative for a Wake. queued reports that the error
// queue is not empty.
func (p *Poller) EventAt(i int) (token int32, readable, queued bool) {
	e := &p.events[i]
	if e.Fd == wakeToken {
		var b [8]byte
		_, _ = sys.Read(p.wake, b[:]) // this resets the counter; it is no problem if there is nothing to read
	}
	return e.Fd, e.Events&sys.EPOLLIN != 0, e.Events&sys.EPOLLERR != 0
}

// Close closes the Poller. The sockets stay open.
func (p *Poller) Close() error { return errors.Join(sys.Close(p.wake), sys.Close(p.fd)) }

// ErrnoName returns the symbolic name of an error, such as ENETUNREACH, or "" if it has none.
func ErrnoName(e syscall.Errno) string { return sys.ErrnoName(e) }
