package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

const icmpLen = 8 // octets of an error's header: RFC 792, RFC 4443 section 2.1

// Quote represents an ICMP error about a RoCE v2 packet.
type Quote struct {
	Type, Code uint8
	Src, Dst   netip.Addr // of the packet
	ID         uint16     // of IPv4
	SrcPort    uint16
	UDPLen     uint16 // octets
	// BTH reports whether the quote reaches to the end of the BTH. RFC 792 requires the UDP header only.
	BTH     bool
	Opcode  uint8
	DestQPN uint32
	PSN     uint32
	// Extension is the extension structure behind the quote (RFC 4884), at the place that the length attribute states.
	// It is unverified, and nil if there is none.
	Extension []byte
}

// ParseQuote parses an ICMP or ICMPv6 error, from its type on. The kernel verifies the checksum of ICMPv6.
func ParseQuote(b []byte, v6 bool) (q Quote, err error) {
	if len(b) < icmpLen {
		return q, fmt.Errorf("ICMP error: %d octets, want %d at least", len(b), icmpLen)
	}
	if !v6 && onesSum(b) != 0xffff {
		return q, errors.New("ICMP checksum: wrong")
	}
	q.Type, q.Code = b[0], b[1]
	// RFC 4884 sections 4.1 and 4.4: the unit is 4 octets, or 8.
	quoted, n := b[icmpLen:], int(b[5])*4
	if v6 {
		n = int(b[4]) * 8
	}
	if n > 0 && n < len(quoted) {
		quoted, q.Extension = quoted[:n], quoted[n:]
	}
	h, rest, err := parseIP(quoted)
	if err != nil {
		return q, fmt.Errorf("quote: %w", err)
	}
	if v6 != h.src.Is6() {
		return q, fmt.Errorf("quote: of %v, want the address family of the error", h.src)
	}
	if len(rest) < udpLen {
		return q, fmt.Errorf("quote: %d octets of UDP, want %d at least", len(rest), udpLen)
	}
	be := binary.BigEndian
	if port := be.Uint16(rest[2:]); port != Port {
		return q, fmt.Errorf("quote: UDP destination port %d, want %d", port, Port)
	}
	q.Src, q.Dst, q.ID, q.SrcPort, q.UDPLen = h.src, h.dst, h.id, be.Uint16(rest), be.Uint16(rest[4:])
	// Missing octets of a quote before an extension are filled with zeros (RFC 4884 section 4.5), and no opcode used
	// here is 0.
	if bth := rest[udpLen:]; len(bth) >= bthLen && bth[0] != 0 {
		q.BTH, q.Opcode = true, bth[0]
		q.DestQPN, q.PSN = be.Uint32(bth[4:])&maxQPN, be.Uint32(bth[8:])&maxQPN
	}
	return q, nil
}
