// Package roce formats and parses RoCE v2 packets of unreliable datagrams, and the quotes of them in ICMP errors. It
// uses neither sockets nor devices.
//
// Sections are those of the InfiniBand Architecture Specification, volume 1 (IBTA), and of its annex A17 for RoCE v2.
package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// Port is the UDP port that RoCE v2 packets are sent to: IBTA A17.3.2 and the
// registry of IANA.
const Port = 4791

// Opcodes of unreliable datagrams: IBTA 9.2, table "OpCode field".
const (
	OpSend          = 0x64 // UD SEND only
	OpSendImmediate = 0x65 // UD SEND only with immediate
)

// Lengths in octets.
const (
	ipv4Len = 20 // RFC 791 section 3.1, without options
	ipv6Len = 40 // RFC 8200 section 3
	udpLen  = 8  // RFC 768
	bthLen  = 12 // IBTA 9.2
	dethLen = 8  // IBTA 9.3.2
	immLen  = 4  // IBTA 9.3.6
	icrcLen = 4  // IBTA 7.8.1
)

// MaxOverhead is the largest difference between the length of a packet and of its payload, in octets.
const MaxOverhead = ipv6Len + udpLen + bthLen + dethLen + immLen + 3 + icrcLen

const (
	protoUDP     = 17     // RFC 768
	dontFragment = 0x4000 // RFC 791 section 3.1
	padMask      = 0x30   // of the second octet of a BTH: IBTA 9.2
	versionMask  = 0x0f   // TVer: IBTA 9.2
	maxQPN       = 1<<24 - 1
	maxLabel     = 1<<20 - 1
)

// Packet represents a RoCE v2 packet of an unreliable datagram. Both addresses are of one family, with IPv4 unmapped.
type Packet struct {
	Src, Dst     netip.Addr
	TOS          uint8 // or the IPv6 traffic class
	HopLimit     uint8
	ID           uint16 // of IPv4
	DontFragment bool   // of IPv4
	FlowLabel    uint32 // of IPv6, 20 bits
	SrcPort      uint16

	Opcode  uint8
	Flags   uint8 // solicited event 0x80, migration 0x40 and the transport version, 0: IBTA 9.2
	PKey    uint16
	DestQPN uint32 // 24 bits
	AckReq  bool
	PSN     uint32 // 24 bits
	QKey    uint32
	SrcQPN  uint32 // 24 bits
	Imm     uint32 // of OpSendImmediate

	Payload []byte
}

// Validate returns an error that names the first field that is not valid.
func (p *Packet) Validate() error {
	switch {
	case !p.Src.IsValid() || p.Src.Is4In6() || p.Src.Zone() != "":
		return fmt.Errorf("source: %v, want an address without zone, IPv4 unmapped", p.Src)
	case !p.Dst.IsValid() || p.Dst.Is4In6() || p.Dst.Zone() != "":
		return fmt.Errorf("destination: %v, want an address without zone, IPv4 unmapped", p.Dst)
	case p.Src.Is4() != p.Dst.Is4():
		return fmt.Errorf("destination: %v, want the address family of the source %v", p.Dst, p.Src)
	case p.Opcode != OpSend && p.Opcode != OpSendImmediate:
		return fmt.Errorf("opcode: %#x, want %#x or %#x", p.Opcode, OpSend, OpSendImmediate)
	case p.Flags&(padMask|versionMask) != 0:
		return fmt.Errorf("flags: %#x, want none but 0x80 and 0x40", p.Flags)
	case p.DestQPN > maxQPN:
		return fmt.Errorf("destination queue pair: %d, want %d at most", p.DestQPN, maxQPN)
	case p.SrcQPN > maxQPN:
		return fmt.Errorf("source queue pair: %d, want %d at most", p.SrcQPN, maxQPN)
	case p.PSN > maxQPN:
		return fmt.Errorf("packet sequence number: %d, want %d at most", p.PSN, maxQPN)
	case p.FlowLabel > maxLabel:
		return fmt.Errorf("flow label: %#x, want %#x at most", p.FlowLabel, maxLabel)
	case len(p.Payload) > 4096:
		return fmt.Errorf("payload: %d octets, want 4096 at most, the largest MTU", len(p.Payload)) // IBTA 9.7.1
	}
	return nil
}

// Append appends the packet, from the IP header to the ICRC, to b. The UDP checksum is 0, as devices send it.
func (p *Packet) Append(b []byte) ([]byte, error) {
	if err := p.Validate(); err != nil {
		return b, err
	}
	be := binary.BigEndian
	pad := -len(p.Payload) & 3
	extra := dethLen
	if p.Opcode == OpSendImmediate {
		extra += immLen
	}
	udp := udpLen + bthLen + extra + len(p.Payload) + pad + icrcLen
	start := len(b)
	if p.Src.Is4() {
		flags := uint16(0)
		if p.DontFragment {
			flags = dontFragment
		}
		b = append(b, 0x45, p.TOS)
		b = be.AppendUint16(b, uint16(ipv4Len+udp))
		b = be.AppendUint16(b, p.ID)
		b = be.AppendUint16(b, flags)
		b = append(b, p.HopLimit, protoUDP, 0, 0)
		b = append(b, p.Src.AsSlice()...)
		b = append(b, p.Dst.AsSlice()...)
		be.PutUint16(b[start+10:], ^onesSum(b[start:]))
	} else {
		b = be.AppendUint32(b, 6<<28|uint32(p.TOS)<<20|p.FlowLabel)
		b = be.AppendUint16(b, uint16(udp))
		b = append(b, protoUDP, p.HopLimit)
		b = append(b, p.Src.AsSlice()...)
		b = append(b, p.Dst.AsSlice()...)
	}
	b = be.AppendUint16(b, p.SrcPort)
	b = be.AppendUint16(b, Port)
	b = be.AppendUint16(b, uint16(udp))
	b = be.AppendUint16(b, 0)
	ack := uint32(0)
	if p.AckReq {
		ack = 1 << 31
	}
	b = append(b, p.Opcode, p.Flags|uint8(pad)<<4)
	b = be.AppendUint16(b, p.PKey)
	b = be.AppendUint32(b, p.DestQPN)
	b = be.AppendUint32(b, ack|p.PSN)
	b = be.AppendUint32(b, p.QKey)
	b = be.AppendUint32(b, p.SrcQPN)
	if p.Opcode == OpSendImmediate {
		b = be.AppendUint32(b, p.Imm)
	}
	b = append(b, p.Payload...)
	b = append(b, make([]byte, pad)...)
	// The CRC of Ethernet is sent with the least significant octet first: IBTA 7.8.1.
	return binary.LittleEndian.AppendUint32(b, invariantCRC(b[start:])), nil
}

// invariantCRC returns the invariant CRC of a packet without it. It is Ethernet's CRC-32 over 8 octets of ones in place
// of a local route header, and over the packet with ones in the fields that switches may change (IBTA A17.3.3): DSCP
// and ECN, time to live and header checksum of IPv4; traffic class, flow label and hop limit of IPv6; UDP checksum; the
// octet before the destination queue pair of the BTH.
func invariantCRC(b []byte) uint32 {
	var h [8 + ipv6Len + udpLen + bthLen]byte
	for i := range 8 {
		h[i] = 0xff
	}
	ip, n := h[8:], ipv4Len
	if b[0]>>4 == 6 {
		n = ipv6Len
	}
	n += udpLen + bthLen
	copy(ip, b[:n])
	if b[0]>>4 == 6 {
		ip[0] |= 0x0f
		ip[1], ip[2], ip[3], ip[7] = 0xff, 0xff, 0xff, 0xff
	} else {
		ip[1], ip[8], ip[10], ip[11] = 0xff, 0xff, 0xff, 0xff
	}
	bth := ip[n-bthLen:]
	bth[4] = 0xff
	ip[n-bthLen-2], ip[n-bthLen-1] = 0xff, 0xff
	return crc32.Update(crc32.ChecksumIEEE(h[:8+n]), crc32.IEEETable, b[n:])
}

// ErrICRC is the error of a packet whose invariant CRC is wrong.
var ErrICRC = errors.New("ICRC: wrong")

// Parse parses a packet, from the IP header to the ICRC. Payload is part of b. errors.Is holds for ErrICRC.
func Parse(b []byte) (p Packet, err error) {
	h, rest, err := parseIP(b)
	if err != nil {
		return p, err
	}
	if len(b) != h.total {
		return p, fmt.Errorf("IP length: %d, want the %d octets that are there", h.total, len(b))
	}
	be := binary.BigEndian
	p = Packet{Src: h.src, Dst: h.dst, TOS: h.tos, HopLimit: h.hops, ID: h.id, DontFragment: h.df, FlowLabel: h.label}
	if len(rest) < udpLen+bthLen+dethLen+icrcLen {
		return p, fmt.Errorf("packet: %d octets after the IP header, want %d at least", len(rest), udpLen+bthLen+dethLen+icrcLen)
	}
	p.SrcPort = be.Uint16(rest)
	if port := be.Uint16(rest[2:]); port != Port {
		return p, fmt.Errorf("UDP destination port: %d, want %d", port, Port)
	}
	if n := int(be.Uint16(rest[4:])); n != len(rest) {
		return p, fmt.Errorf("UDP length: %d, want %d", n, len(rest))
	}
	if s := be.Uint16(rest[6:]); s != 0 {
		return p, fmt.Errorf("UDP checksum: %#x, want 0", s)
	}
	bth := rest[udpLen:]
	p.Opcode, p.Flags, p.PKey = bth[0], bth[1]&^padMask, be.Uint16(bth[2:])
	p.DestQPN, p.PSN, p.AckReq = be.Uint32(bth[4:])&maxQPN, be.Uint32(bth[8:])&maxQPN, bth[8]&0x80 != 0
	p.QKey, p.SrcQPN = be.Uint32(bth[bthLen:]), be.Uint32(bth[bthLen+4:])&maxQPN
	body := bth[bthLen+dethLen : len(bth)-icrcLen]
	if p.Opcode == OpSendImmediate {
		if len(body) < immLen {
			return p, fmt.Errorf("immediate: %d octets, want %d", len(body), immLen)
		}
		p.Imm, body = be.Uint32(body), body[immLen:]
	}
	pad := int(bth[1] & padMask >> 4)
	if pad > len(body) || (len(body)&3) != 0 {
		return p, fmt.Errorf("payload: %d octets with %d of padding, want a multiple of 4", len(body), pad)
	}
	p.Payload = body[:len(body)-pad]
	if err := p.Validate(); err != nil {
		return p, err
	}
	if binary.LittleEndian.Uint32(bth[len(bth)-icrcLen:]) != invariantCRC(b[:len(b)-icrcLen]) {
		return p, ErrICRC
	}
	return p, nil
}

// ipHeader holds the fields of either IP header that are used.
type ipHeader struct {
	src, dst  netip.Addr
	tos, hops uint8
	id        uint16
	df        bool
	label     uint32
	total     int // octets of the packet, as the header states
}

// parseIP parses the header of a UDP packet that is not a fragment. rest is what follows it, up to the end of the
// packet or of b.
func parseIP(b []byte) (h ipHeader, rest []byte, err error) {
	be := binary.BigEndian
	if len(b) == 0 {
		return h, nil, errors.New("IP header: missing")
	}
	switch b[0] >> 4 {
	case 4:
		n := int(b[0]&15) * 4
		if n < ipv4Len || len(b) < n {
			return h, nil, fmt.Errorf("IPv4 header: %d of %d octets, want %d at least", len(b), n, ipv4Len)
		}
		h = ipHeader{src: netip.AddrFrom4([4]byte(b[12:16])), dst: netip.AddrFrom4([4]byte(b[16:20])), tos: b[1], hops: b[8], id: be.Uint16(b[4:]),
			df: be.Uint16(b[6:])&dontFragment != 0, total: int(be.Uint16(b[2:]))}
		if f := be.Uint16(b[6:]) &^ dontFragment; f != 0 {
			return h, nil, fmt.Errorf("IPv4 fragment field: %#x, want a whole packet", f)
		}
		if b[9] != protoUDP {
			return h, nil, fmt.Errorf("IP protocol: %d, want %d (UDP)", b[9], protoUDP)
		}
		if h.total < n {
			return h, nil, fmt.Errorf("IP length: %d, want %d at least", h.total, n)
		}
		return h, b[n:min(h.total, len(b))], nil
	case 6:
		if len(b) < ipv6Len {
			return h, nil, fmt.Errorf("IPv6 header: %d octets, want %d", len(b), ipv6Len)
		}
		h = ipHeader{src: netip.AddrFrom16([16]byte(b[8:24])), dst: netip.AddrFrom16([16]byte(b[24:40])), tos: b[0]<<4 | b[1]>>4, hops: b[7],
			label: be.Uint32(b) & maxLabel, total: ipv6Len + int(be.Uint16(b[4:]))}
		if b[6] != protoUDP {
			return h, nil, fmt.Errorf("IPv6 next header: %d, want %d (UDP)", b[6], protoUDP)
		}
		return h, b[ipv6Len:min(h.total, len(b))], nil
	}
	return h, nil, fmt.Errorf("IP version: %d, want 4 or 6", b[0]>>4)
}

// onesSum returns the sum of RFC 1071 section 1.
func onesSum(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)&1 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
