package unix

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	sys "golang.org/x/sys/unix"
)

// icmpFilter is set on raw sockets by struct icmp_filter, whose bits are the types that are not wanted: raw(7) and
// linux/icmp.h.
const (
	solRaw     = 255
	icmpFilter = 1
	// icmp6Filter is the option of RFC 3542 section 3.2: 256 bits, which Linux sets for the types that are not wanted
	// (linux/icmpv6.h).
	icmp6Filter = 1
)

// RawIP sends IP packets whose headers the program writes, by one interface. It receives the ICMP errors that arrive
// there: destination unreachable and time exceeded. Several goroutines may call its methods, but only one may call
// Recv.
type RawIP struct {
	out int
	v6  bool
	in  *os.File
	raw syscall.RawConn
}

// OpenRawIP opens raw sockets for packets from an address of an interface. It needs CAP_NET_RAW. errors.Is holds for
// EPERM without it.
func OpenRawIP(device string, src netip.Addr) (*RawIP, error) {
	r := &RawIP{v6: src.Is6()}
	family, icmp := sys.AF_INET, sys.IPPROTO_ICMP
	if r.v6 {
		family, icmp = sys.AF_INET6, sys.IPPROTO_ICMPV6
	}
	open := func(proto int) (int, error) {
		fd, err := sys.Socket(family, sys.SOCK_RAW|sys.SOCK_CLOEXEC|sys.SOCK_NONBLOCK, proto)
		if err != nil {
			return -1, fmt.Errorf("raw socket: %w", err)
		}
		if err := sys.BindToDevice(fd, device); err != nil {
			return -1, errors.Join(fmt.Errorf("bind raw socket to interface %s: %w", device, err), sys.Close(fd))
		}
		return fd, nil
	}
	var err error
	if r.out, err = open(sys.IPPROTO_RAW); err != nil { // this protocol implies IP_HDRINCL, also for IPv6: raw(7)
		return nil, err
	}
	// Routes that depend on the source apply to its packets.
	if err := sys.Bind(r.out, toSockaddr(src)); err != nil {
		return nil, errors.Join(fmt.Errorf("bind raw socket to %v: %w", src, err), sys.Close(r.out))
	}
	in, err := open(icmp)
	if err != nil {
		return nil, errors.Join(err, sys.Close(r.out))
	}
	r.in = os.NewFile(uintptr(in), "icmp")
	if r.raw, err = r.in.SyscallConn(); err == nil {
		err = r.setICMPFilter(in)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *RawIP) setICMPFilter(fd int) error {
	if !r.v6 {
		f := ^uint32(1<<3 | 1<<11) // RFC 792: destination unreachable, time exceeded
		if err := sys.SetsockoptInt(fd, solRaw, icmpFilter, int(int32(f))); err != nil {
			return fmt.Errorf("set ICMP_FILTER: %w", err)
		}
		return nil
	}
	var f sys.ICMPv6Filter
	for i := range f.Data {
		f.Data[i] = ^uint32(0)
	}
	f.Data[0] = ^uint32(1<<1 | 1<<3) // RFC 4443: destination unreachable, time exceeded
	if err := sys.SetsockoptICMPv6Filter(fd, sys.IPPROTO_ICMPV6, icmp6Filter, &f); err != nil {
		return fmt.Errorf("set ICMPV6_FILTER: %w", err)
	}
	return nil
}

func toSockaddr(a netip.Addr) sys.Sockaddr {
	if a.Is6() {
		return &sys.SockaddrInet6{Addr: a.As16()}
	}
	return &sys.SockaddrInet4{Addr: a.As4()}
}

// Send sends a packet that begins with its IP header.
func (r *RawIP) Send(packet []byte, dst netip.Addr) error {
	for {
		err := sys.Sendto(r.out, packet, sys.MSG_DONTWAIT, toSockaddr(dst))
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("send to %v: %w", dst, err)
		}
		return nil
	}
}

// Recv waits for an ICMP error and returns it from its type on, with its sender. errors.Is holds for os.ErrClosed after
// Close.
func (r *RawIP) Recv(buf []byte) (message []byte, from netip.Addr, err error) {
	for {
		var n int
		var sa sys.Sockaddr
		if cerr := r.raw.Read(func(fd uintptr) bool {
			n, sa, err = sys.Recvfrom(int(fd), buf, 0)
			return !errors.Is(err, syscall.EAGAIN)
		}); cerr != nil {
			return nil, from, fmt.Errorf("receive ICMP: %w: %w", os.ErrClosed, cerr) // there is no deadline that could end it
		}
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return nil, from, fmt.Errorf("receive ICMP: %w", err)
		}
		switch sa := sa.(type) {
		case *sys.SockaddrInet6:
			return buf[:n], netip.AddrFrom16(sa.Addr), nil
		case *sys.SockaddrInet4:
			// The IP header is present, and the kernel has checked it: raw(7).
			if at := int(buf[0]&15) * 4; n > at {
				return buf[at:n], netip.AddrFrom4(sa.Addr), nil
			}
		}
	}
}

// Close closes the sockets and ends a Recv that waits.
func (r *RawIP) Close() error { return errors.Join(sys.Close(r.out), r.in.Close()) }
