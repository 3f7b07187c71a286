package srv6

import (
	"encoding/binary"
	"net/netip"
)

// InnerHeaders is the length in octets of the headers that PutInner writes: IPv6 and UDP.
const InnerHeaders = ipv6Header + udpHeader

const (
	ipv6Header  = 40
	udpHeader   = 8
	protocolUDP = 17
	innerHops   = 64 // hop limit: only the switch that takes the outer header off decrements it
)

// PutInner writes the headers of the packet that an outer header carries into the first InnerHeaders octets of packet, whose
// other octets are the UDP payload. The checksum is right (RFC 8200, section 8.1), so that a host accepts the packet.
func PutInner(packet []byte, src, dst netip.AddrPort, trafficClass uint8) {
	length := len(packet) - ipv6Header
	binary.BigEndian.PutUint32(packet, 6<<28|uint32(trafficClass)<<20)
	binary.BigEndian.PutUint16(packet[4:], uint16(length))
	packet[6], packet[7] = protocolUDP, innerHops
	from, to := src.Addr().As16(), dst.Addr().As16()
	copy(packet[8:], from[:])
	copy(packet[24:], to[:])
	udp := packet[ipv6Header:]
	binary.BigEndian.PutUint16(udp, src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(length))
	udp[6], udp[7] = 0, 0
	sum := ^onesSum(onesSum(uint64(length)+protocolUDP, packet[8:ipv6Header]), udp)
	if uint16(sum) == 0 { // 0 would mean that there is none
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], uint16(sum))
}

// LimitInner sets the hop limit of a packet whose headers PutInner has written, which its checksum does not cover.
func LimitInner(packet []byte, hops uint8) { packet[7] = hops }

// onesSum adds 16-bit words in ones' complement (RFC 1071).
func onesSum(sum uint64, b []byte) uint64 {
	for ; len(b) >= 8; b = b[8:] {
		x := binary.BigEndian.Uint64(b)
		sum += x>>32 + x&0xffffffff
	}
	for ; len(b) >= 2; b = b[2:] {
		sum += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum
}

// QuotedInner returns the ends of the UDP flow whose packet begins with these octets, as an ICMP error quotes it. ok is false
// if they are no packet of IPv6 and UDP.
func QuotedInner(packet []byte) (src, dst netip.AddrPort, ok bool) {
	if len(packet) < ipv6Header+4 || packet[0]>>4 != 6 || packet[6] != protocolUDP {
		return src, dst, false
	}
	ends := packet[ipv6Header:]
	src = netip.AddrPortFrom(netip.AddrFrom16([16]byte(packet[8:24])), binary.BigEndian.Uint16(ends))
	dst = netip.AddrPortFrom(netip.AddrFrom16([16]byte(packet[24:40])), binary.BigEndian.Uint16(ends[2:]))
	return src, dst, true
}
