package stamp

import (
	"encoding/binary"
	"errors"
)

// Port is the default UDP port of the Session-Reflector: RFC 8762 4.1.
const Port = 862

// Lengths of the base packets, in octets; TLVs follow them.
const (
	BaseLen     = 44  // unauthenticated, both directions: RFC 8762 4.2.1, 4.3.1
	AuthBaseLen = 112 // authenticated, both directions: RFC 8762 4.2.2, 4.3.2
	HMACLen     = 16  // HMAC-SHA-256 cut to 128 bits: RFC 8762 4.4
)

// Offsets of the unauthenticated packets. A Session-Sender packet ends with
// the SSID and is zero after it.
const (
	offSeq        = 0  // RFC 8762 4.2.1
	offTimestamp  = 4  // RFC 8762 4.2.1
	offError      = 12 // RFC 8762 4.2.1
	offSSID       = 14 // RFC 8972 3
	offSenderMBZ  = 16 // RFC 8972 3, 28 octets
	offReceive    = 16 // RFC 8762 4.3.1
	offSenderSeq  = 24 // RFC 8762 4.3.1
	offSenderTime = 28 // RFC 8762 4.3.1
	offSenderErr  = 36 // RFC 8762 4.3.1
	offMBZ        = 38 // RFC 8762 4.3.1, 2 octets
	offTTL        = 40 // RFC 8762 4.3.1
	offTTLMBZ     = 41 // RFC 8762 4.3.1, 3 octets
)

// Offsets of the authenticated packets; what lies between the fields is MBZ.
const (
	offAuthSeq        = 0  // RFC 8762 4.2.2
	offAuthTimestamp  = 16 // RFC 8762 4.2.2
	offAuthError      = 24 // RFC 8762 4.2.2
	offAuthSSID       = 26 // RFC 8972 3
	offAuthReceive    = 32 // RFC 8762 4.3.2
	offAuthSenderSeq  = 48 // RFC 8762 4.3.2
	offAuthSenderTime = 64 // RFC 8762 4.3.2
	offAuthSenderErr  = 72 // RFC 8762 4.3.2
	offAuthTTL        = 80 // RFC 8762 4.3.2
	offAuthHMAC       = 96 // RFC 8762 4.4, over the 96 octets before it
)

// Errors of a packet. They are values without detail, so that a flood of bad packets causes no allocation. The caller
// adds the peer.
var (
	// ErrShort means that there are fewer octets than the base packet has.
	ErrShort = errors.New("STAMP packet is too short: want at least 44 octets, or 112 if authenticated")
	// ErrMultiplier means that the packet's own Error Estimate has a multiplier of zero (RFC 4656 4.1.2).
	ErrMultiplier = errors.New("STAMP packet is corrupt: want an Error Estimate with a multiplier of 1 or more")
	// ErrHMAC means that the HMAC of the base packet does not verify. The packet must be dropped (RFC 8762 4.4).
	ErrHMAC = errors.New("STAMP packet is not authentic: want the HMAC of its first 96 octets")
)

// SenderPacket represents the base packet of a Session-Sender: RFC 8762 4.2, RFC 8972 3.
type SenderPacket struct {
	Seq           uint32
	Timestamp     Timestamp // T1
	ErrorEstimate ErrorEstimate
	SSID          uint16 // STAMP Session Identifier; zero means that it is not used
}

// Put writes the unauthenticated form into the first BaseLen octets of b. It panics if b is shorter.
func (p *SenderPacket) Put(b []byte) {
	_ = b[BaseLen-1]
	binary.BigEndian.PutUint32(b[offSeq:], p.Seq)
	binary.BigEndian.PutUint64(b[offTimestamp:], uint64(p.Timestamp))
	binary.BigEndian.PutUint16(b[offError:], uint16(p.ErrorEstimate))
	binary.BigEndian.PutUint16(b[offSSID:], p.SSID)
	clear(b[offSenderMBZ:BaseLen])
}

// Parse parses the unauthenticated form at the beginning of b. The octets after the first BaseLen are TLVs. If it
// returns ErrMultiplier, p is filled in all the same, for callers that must work with a peer that sends such packets.
func (p *SenderPacket) Parse(b []byte) error {
	if len(b) < BaseLen {
		return ErrShort
	}
	p.Seq = binary.BigEndian.Uint32(b[offSeq:])
	p.Timestamp = Timestamp(binary.BigEndian.Uint64(b[offTimestamp:]))
	p.ErrorEstimate = ErrorEstimate(binary.BigEndian.Uint16(b[offError:]))
	p.SSID = binary.BigEndian.Uint16(b[offSSID:])
	return p.ErrorEstimate.checkMultiplier()
}

// PutAuth writes the authenticated form into the first AuthBaseLen octets of b. It panics if b is shorter.
func (p *SenderPacket) PutAuth(b []byte, a *Authenticator) {
	clear(b[:AuthBaseLen])
	binary.BigEndian.PutUint32(b[offAuthSeq:], p.Seq)
	binary.BigEndian.PutUint64(b[offAuthTimestamp:], uint64(p.Timestamp))
	binary.BigEndian.PutUint16(b[offAuthError:], uint16(p.ErrorEstimate))
	binary.BigEndian.PutUint16(b[offAuthSSID:], p.SSID)
	copy(b[offAuthHMAC:AuthBaseLen], a.truncatedHMAC(b[:offAuthHMAC], nil))
}

// ParseAuth verifies and parses the authenticated form. If it returns ErrShort or ErrHMAC, p is unchanged.
func (p *SenderPacket) ParseAuth(b []byte, a *Authenticator) error {
	if err := a.checkBase(b); err != nil {
		return err
	}
	p.Seq = binary.BigEndian.Uint32(b[offAuthSeq:])
	p.Timestamp = Timestamp(binary.BigEndian.Uint64(b[offAuthTimestamp:]))
	p.ErrorEstimate = ErrorEstimate(binary.BigEndian.Uint16(b[offAuthError:]))
	p.SSID = binary.BigEndian.Uint16(b[offAuthSSID:])
	return p.ErrorEstimate.checkMultiplier()
}

// ReflectorPacket represents the base packet of a Session-Reflector: RFC 8762 4.3, RFC 8972 3. The four Sender fields
// and the SSID are copies from the packet that it answers. Its ErrorEstimate applies to both Timestamp and Receive.
type ReflectorPacket struct {
	Seq                 uint32
	Timestamp           Timestamp // T3, when the reply was sent
	ErrorEstimate       ErrorEstimate
	SSID                uint16
	Receive             Timestamp // T2, when the probe was received
	SenderSeq           uint32
	SenderTimestamp     Timestamp // T1
	SenderErrorEstimate ErrorEstimate
	SenderTTL           uint8 // TTL or Hop Limit of the probe as received
}

// EchoProbe copies into p the fields that a reply repeats from the probe that it answers.
func (p *ReflectorPacket) EchoProbe(probe *SenderPacket) {
	p.SSID = probe.SSID
	p.SenderSeq = probe.Seq
	p.SenderTimestamp = probe.Timestamp
	p.SenderErrorEstimate = probe.ErrorEstimate
}

// Put writes the unauthenticated form into the first BaseLen octets of b. It panics if b is shorter.
func (p *ReflectorPacket) Put(b []byte) {
	_ = b[BaseLen-1]
	binary.BigEndian.PutUint32(b[offSeq:], p.Seq)
	binary.BigEndian.PutUint64(b[offTimestamp:], uint64(p.Timestamp))
	binary.BigEndian.PutUint16(b[offError:], uint16(p.ErrorEstimate))
	binary.BigEndian.PutUint16(b[offSSID:], p.SSID)
	binary.BigEndian.PutUint64(b[offReceive:], uint64(p.Receive))
	binary.BigEndian.PutUint32(b[offSenderSeq:], p.SenderSeq)
	binary.BigEndian.PutUint64(b[offSenderTime:], uint64(p.SenderTimestamp))
	binary.BigEndian.PutUint16(b[offSenderErr:], uint16(p.SenderErrorEstimate))
	clear(b[offMBZ:offTTL])
	b[offTTL] = p.SenderTTL
	clear(b[offTTLMBZ:BaseLen])
}

// Parse parses the unauthenticated form at the beginning of b. The octets after the first BaseLen are TLVs. If it
// returns ErrMultiplier, p is filled in all the same. The sender's estimate is an echo and is not checked.
func (p *ReflectorPacket) Parse(b []byte) error {
	if len(b) < BaseLen {
		return ErrShort
	}
	p.Seq = binary.BigEndian.Uint32(b[offSeq:])
	p.Timestamp = Timestamp(binary.BigEndian.Uint64(b[offTimestamp:]))
	p.ErrorEstimate = ErrorEstimate(binary.BigEndian.Uint16(b[offError:]))
	p.SSID = binary.BigEndian.Uint16(b[offSSID:])
	p.Receive = Timestamp(binary.BigEndian.Uint64(b[offReceive:]))
	p.SenderSeq = binary.BigEndian.Uint32(b[offSenderSeq:])
	p.SenderTimestamp = Timestamp(binary.BigEndian.Uint64(b[offSenderTime:]))
	p.SenderErrorEstimate = ErrorEstimate(binary.BigEndian.Uint16(b[offSenderErr:]))
	p.SenderTTL = b[offTTL]
	return p.ErrorEstimate.checkMultiplier()
}

// PutAuth writes the authenticated form into the first AuthBaseLen octets of b. It panics if b is shorter.
func (p *ReflectorPacket) PutAuth(b []byte, a *Authenticator) {
	clear(b[:AuthBaseLen])
	binary.BigEndian.PutUint32(b[offAuthSeq:], p.Seq)
	binary.BigEndian.PutUint64(b[offAuthTimestamp:], uint64(p.Timestamp))
	binary.BigEndian.PutUint16(b[offAuthError:], uint16(p.ErrorEstimate))
	binary.BigEndian.PutUint16(b[offAuthSSID:], p.SSID)
	binary.BigEndian.PutUint64(b[offAuthReceive:], uint64(p.Receive))
	binary.BigEndian.PutUint32(b[offAuthSenderSeq:], p.SenderSeq)
	binary.BigEndian.PutUint64(b[offAuthSenderTime:], uint64(p.SenderTimestamp))
	binary.BigEndian.PutUint16(b[offAuthSenderErr:], uint16(p.SenderErrorEstimate))
	b[offAuthTTL] = p.SenderTTL
	copy(b[offAuthHMAC:AuthBaseLen], a.truncatedHMAC(b[:offAuthHMAC], nil))
}

// ParseAuth verifies and parses the authenticated form. If it returns ErrShort or ErrHMAC, p is unchanged.
func (p *ReflectorPacket) ParseAuth(b []byte, a *Authenticator) error {
	if err := a.checkBase(b); err != nil {
		return err
	}
	p.Seq = binary.BigEndian.Uint32(b[offAuthSeq:])
	p.Timestamp = Timestamp(binary.BigEndian.Uint64(b[offAuthTimestamp:]))
	p.ErrorEstimate = ErrorEstimate(binary.BigEndian.Uint16(b[offAuthError:]))
	p.SSID = binary.BigEndian.Uint16(b[offAuthSSID:])
	p.Receive = Timestamp(binary.BigEndian.Uint64(b[offAuthReceive:]))
	p.SenderSeq = binary.BigEndian.Uint32(b[offAuthSenderSeq:])
	p.SenderTimestamp = Timestamp(binary.BigEndian.Uint64(b[offAuthSenderTime:]))
	p.SenderErrorEstimate = ErrorEstimate(binary.BigEndian.Uint16(b[offAuthSenderErr:]))
	p.SenderTTL = b[offAuthTTL]
	return p.ErrorEstimate.checkMultiplier()
}

// PeekSeq reads the sequence number of a packet of either form before it is checked. It panics if b has fewer than four octets.
func PeekSeq(b []byte) uint32 { return binary.BigEndian.Uint32(b) }

// PeekAuth reads fields of a packet in authenticated form before it is verified: its sequence number, the sequence
// number of the probe if it is a reply, and the SSID. It panics if b has fewer than AuthBaseLen octets. All returned
// values may be forged.
func PeekAuth(b []byte) (seq, senderSeq uint32, ssid uint16) {
	_ = b[AuthBaseLen-1]
	return binary.BigEndian.Uint32(b[offAuthSeq:]), binary.BigEndian.Uint32(b[offAuthSenderSeq:]), binary.BigEndian.Uint16(b[offAuthSSID:])
}

func (e ErrorEstimate) checkMultiplier() error {
	if !e.IsValid() {
		return ErrMultiplier
	}
	return nil
}
