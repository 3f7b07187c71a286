package capture

import (
	"encoding/binary"
	"net/netip"
)

// typeLen is the length of an EtherType.
const typeLen = 2

// EtherTypes of the packets whose senders are known: IEEE 802 numbers of IANA.
const (
	typeIPv4 = 0x0800
	typeIPv6 = 0x86dd
)

// Layout of IP and UDP headers: RFC 791 section 3.1, RFC 8200 section 3, RFC 768.
const (
	ipv4Header   = 20
	ipv6Header   = 40
	protocolUDP  = 17
	udpPorts     = 4      // octets
	fragmentMask = 0x1fff // offset of a fragment of IPv4
)

// ends are where a packet comes from and goes to.
type ends struct {
	src, dst         netip.Addr
	srcPort, dstPort uint16
	isUDP            bool // the ports are known
}

// parse reads the ends of a packet with an EtherType. It is false for what is not IP, or ends within the IP header.
func (e *ends) parse(b []byte, etherType uint16) bool {
	e.isUDP = false
	var rest []byte
	udp := false
	switch {
	case etherType == typeIPv4 && len(b) >= ipv4Header && b[0]>>4 == 4:
		n := int(b[0]&15) * 4
		if n < ipv4Header || len(b) < n {
			return false
		}
		e.src, e.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		// Only the first fragment of a packet has ports.
		udp, rest = b[9] == protocolUDP && binary.BigEndian.Uint16(b[6:])&fragmentMask == 0, b[n:]
	case etherType == typeIPv6 && len(b) >= ipv6Header && b[0]>>4 == 6:
		e.src, e.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		udp, rest = b[6] == protocolUDP, b[ipv6Header:]
	default:
		return false
	}
	if udp && len(rest) >= udpPorts {
		e.isUDP, e.srcPort, e.dstPort = true, binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	}
	return true
}
