package unix

import (
	"errors"
	"fmt"
	"net/netip"

	sys "golang.org/x/sys/unix"
)

// OpenOuterIPv6 opens a socket that sends IPv6 packets within IPv6 packets (RFC 2473): what is committed is the inner packet with
// its header, and the destination is the outer one's, with port 0. It stamps what it sends as other sockets do, and receives
// nothing but stamps and ICMP errors, whose quotes begin with the inner packet. Their Dst is the outer destination as the switch
// saw it. It needs CAP_NET_RAW. errors.Is holds for EPERM without it, and for EADDRNOTAVAIL.
func OpenOuterIPv6(src netip.Addr, o UDPOptions) (*UDP, error) {
	if !src.Is6() || src.Is4In6() || src.Zone() != "" {
		return nil, fmt.Errorf("outer packets from %v: an IPv6 address is expected", src)
	}
	fd, err := sys.Socket(sys.AF_INET6, sys.SOCK_RAW|sys.SOCK_NONBLOCK|sys.SOCK_CLOEXEC, sys.IPPROTO_IPV6)
	if err != nil {
		return nil, fmt.Errorf("raw socket: %w", err)
	}
	s := &UDP{fd: fd, v6: true, flags: timestamping}
	if o.Hardware {
		s.flags |= hardwareStamping
	}
	if err := s.configureOuter(src, o); err != nil {
		return nil, errors.Join(err, sys.Close(fd))
	}
	return s, nil
}

func (s *UDP) configureOuter(src netip.Addr, o UDPOptions) error {
	// The filter drops what arrives: packets for others' tunnels.
	drop := sys.SockFilter{Code: sys.BPF_RET | sys.BPF_K}
	if err := sys.SetsockoptSockFprog(s.fd, sys.SOL_SOCKET, sys.SO_ATTACH_FILTER, &sys.SockFprog{Len: 1, Filter: &drop}); err != nil {
		return fmt.Errorf("set SO_ATTACH_FILTER: %w", err)
	}
	for _, opt := range []struct {
		name              string
		level, opt, value int
	}{
		{"IPV6_RECVERR", sys.IPPROTO_IPV6, sys.IPV6_RECVERR, 1},
		{"IPV6_MTU_DISCOVER", sys.IPPROTO_IPV6, sys.IPV6_MTU_DISCOVER, sys.IPV6_PMTUDISC_PROBE},
		// The flow label is 0, as in packets of a UDP socket that is not connected.
		{"IPV6_AUTOFLOWLABEL", sys.IPPROTO_IPV6, sys.IPV6_AUTOFLOWLABEL, 0},
		{"SO_TIMESTAMPING", sys.SOL_SOCKET, sys.SO_TIMESTAMPING_NEW, s.flags},
	} {
		if err := sys.SetsockoptInt(s.fd, opt.level, opt.opt, opt.value); err != nil {
			return fmt.Errorf("set %s: %w", opt.name, err)
		}
	}
	if err := sys.Bind(s.fd, &sys.SockaddrInet6{Addr: src.As16()}); err != nil {
		return fmt.Errorf("bind %v: %w", src, err)
	}
	s.local = netip.AddrPortFrom(src, 0)
	s.counted = o.CountedIDs || !supportsStampIDs()
	return nil
}
