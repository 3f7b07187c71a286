package stamp

import "encoding/binary"

// VerifiedTLVs represents what is known of a request's TLVs after their verification.
type VerifiedTLVs struct {
	authentic bool
	lives     []byte // the value of its TLV of type TypeLives; nil if it has none
	packet    []byte
}

// VerifyTLVs applies RFC 8972 4.8 to the TLV area behind the base octets of packet, before any of it may be used. A
// non-nil a means that the session's TLVs are protected. In authenticated mode they always are.
func VerifyTLVs(packet []byte, base int, a *Authenticator) (c VerifiedTLVs) {
	c.packet = packet
	c.authentic = c.verifyArea(packet, base, a)
	return c
}

// IsAuthentic reports whether the TLVs may be used.
func (c *VerifiedTLVs) IsAuthentic() bool { return c.authentic }

// SenderLife returns the life number of the sender that who stands for. It returns false if the packet, which must be
// in authenticated form, has no life number that may be used.
func (c *VerifiedTLVs) SenderLife(who uint64) (life uint64, ok bool) {
	if !c.authentic || c.lives == nil {
		return 0, false
	}
	var v Lives
	if v.parseValue(c.lives); v.Sender == 0 || !v.BelongTo(c.packet, who) {
		return 0, false
	}
	return v.Sender, true
}

func (c *VerifiedTLVs) verifyArea(packet []byte, base int, a *Authenticator) bool {
	area := packet[base:]
	count, padding, hmacAt := 0, 0, -1
	for rest := area; len(rest) > 0; count++ {
		at := len(area) - len(rest)
		tlv, next, err := NextTLV(rest)
		if hmacAt >= 0 && tlv.Type != TypeExtraPadding {
			return false // also for a second HMAC TLV, and for octets that are not a TLV
		}
		if err != nil {
			break
		}
		switch tlv.Type {
		case TypeExtraPadding:
			padding++
		case TypeLives:
			if tlv.Type.validLength(len(tlv.Value)) {
				c.lives = tlv.Value
			}
		case TypeHMAC:
			if !tlv.Type.validLength(len(tlv.Value)) {
				return false
			}
			hmacAt = at
		}
		rest = next
	}
	if hmacAt >= 0 {
		return a != nil && a.checkTLVs(packet, area, hmacAt)
	}
	required := a != nil || base == AuthBaseLen
	return !required || len(area) == 0 || count == 1 && padding == 1
}

// ReflectorValues holds what a reflector writes into the TLVs of one reply.
type ReflectorValues struct {
	TimestampInfo TimestampInfo
	ReceivedDSCP  uint8  // of the probe's IP header
	ReceivedECN   uint8  // of the probe's IP header
	PermittedDSCP uint64 // bit d is set if a sender may request replies with DSCP d
	RxCount       uint32 // packets received in the session, this one included
	TxCount       uint32 // replies sent in the session, this one included
	FollowUp      FollowUp
	Life          uint64 // of the reflector; 0 if it is not known
	Who           uint64 // stands for the reflector's name, together with its life
	Signal        Signal // of the request, if SeesSignals is set
	SeesSignals   bool   // the reflector can read in-band signals; otherwise it answers TypeSignal like an unknown type
	// Unsupported holds types that the reflector has no values for at present. They are answered like unknown ones.
	// TypeHMAC in it has no effect.
	Unsupported TypeSet
}

// Reflection holds the result of reflecting a packet's TLVs.
type Reflection struct {
	Len       int     // octets of the whole reply, always those of the request
	Answered  TypeSet // types that were understood and filled in
	DSCP      uint8   // DSCP to send the reply with: DSCP1 if requested and permitted, else as received
	SenderTx  uint32  // S_TxC, if Answered has TypeDirectMeasurement
	Malformed bool    // a TLV was malformed; it and those behind it were not processed
	Integrity bool    // the TLVs failed verification; none was processed
}

// Reflect fills in the TLV area of reply from that of request and from v. Both are whole packets whose base has base
// octets (BaseLen or AuthBaseLen). Parse or ParseAuth must have checked request. reply must not overlap it, must have
// room for as many octets, and its base packet must already be written, because the HMAC TLV covers the reply's
// sequence number. A non-nil a means that the session's TLVs are protected: a request with TLVs but no HMAC TLV then
// fails like one whose HMAC is wrong.
func (v *ReflectorValues) Reflect(reply, request []byte, base int, a *Authenticator) Reflection {
	return v.ReflectVerified(reply, request, base, a, VerifyTLVs(request, base, a))
}

// ReflectVerified does the same as Reflect for a request whose TLVs were verified by VerifyTLVs with the same base and
// a.
func (v *ReflectorValues) ReflectVerified(reply, request []byte, base int, a *Authenticator, c VerifiedTLVs) Reflection {
	area, out := request[base:], reply[base:len(request)]
	copy(out, area)
	r := Reflection{Len: len(request), DSCP: v.ReceivedDSCP}
	if !c.authentic {
		r.Integrity = true
		r.Malformed = refuseTLVs(out)
		return r
	}
	for at := 0; at < len(out); {
		tlv, _, err := NextTLV(out[at:])
		if err != nil || !tlv.Type.validLength(len(tlv.Value)) {
			markMalformed(out[at:], Malformed)
			r.Malformed = true
			return r
		}
		if tlv.Type == TypeLives {
			(&Lives{Reflector: v.Life, tag: livesTag(reply, base, v.Who)}).putReflector(tlv.Value)
		}
		if v.answerTLV(tlv, &r) {
			out[at] = 0
			r.Answered.addType(tlv.Type)
		} else {
			out[at] = byte(Unrecognized)
		}
		if tlv.Type == TypeHMAC {
			copy(tlv.Value, a.truncatedHMAC(reply[:seqLen], out[:at]))
		}
		at += tlvHeaderLen + len(tlv.Value)
	}
	return r
}

// answerTLV fills in the value of one well-formed TLV and reports whether its
// type was understood.
func (v *ReflectorValues) answerTLV(tlv TLV, r *Reflection) bool {
	if !tlv.Type.isUnderstood() || v.Unsupported.Has(tlv.Type) && tlv.Type != TypeHMAC || tlv.Type == TypeSignal && !v.SeesSignals {
		return false
	}
	switch tlv.Type {
	case TypeTimestampInfo:
		v.TimestampInfo.putValue(tlv.Value)
	case TypeClassOfService:
		var c ClassOfService
		c.parseValue(tlv.Value)
		c.DSCP2, c.ECN, c.RP = v.ReceivedDSCP, v.ReceivedECN, 0
		if v.PermittedDSCP>>c.DSCP1&1 != 0 {
			r.DSCP = c.DSCP1
		} else {
			c.RP = 1
		}
		c.putValue(tlv.Value)
	case TypeDirectMeasurement:
		d := DirectMeasurement{ReflectorRx: v.RxCount, ReflectorTx: v.TxCount}
		d.putReflector(tlv.Value)
		d.parseValue(tlv.Value)
		r.SenderTx = d.SenderTx
	case TypeFollowUp:
		v.FollowUp.putValue(tlv.Value)
	case TypeSignal:
		v.Signal.putValue(tlv.Value)
	}
	return true
}

// refuseTLVs sets I in every TLV of a reply whose request failed verification (RFC 8972 4.8), together with the other
// flags that apply. It reports whether a TLV was malformed.
func refuseTLVs(out []byte) (malformed bool) {
	for at := 0; at < len(out); {
		tlv, _, err := NextTLV(out[at:])
		if err != nil {
			markMalformed(out[at:], Integrity|Malformed)
			return true
		}
		flags := Integrity
		if !tlv.Type.isUnderstood() {
			flags |= Unrecognized
		}
		out[at] = byte(flags)
		if !tlv.Type.validLength(len(tlv.Value)) {
			markMalformed(out[at:], flags|Malformed)
			malformed = true
		}
		at += tlvHeaderLen + len(tlv.Value)
	}
	return malformed
}

// markMalformed sets the flags of the malformed TLV at the beginning of out, which may be too short for a header. The
// information of a Follow-Up Telemetry TLV of wrong length is returned as zeroes: RFC 8972 4.7.
func markMalformed(out []byte, f Flags) {
	out[offTLVFlags] = byte(f)
	if len(out) < tlvHeaderLen || Type(out[offTLVType]) != TypeFollowUp {
		return
	}
	if n := int(binary.BigEndian.Uint16(out[offTLVLength:])); n != followUpLen {
		value := out[tlvHeaderLen:]
		clear(value[:min(n, offFollowMode, len(value))])
	}
}

// Answers holds the TLVs of a reply that its Session-Sender may use.
type Answers struct {
	Has               TypeSet // types that came back with U=0; a field below is valid if its type is in here
	Unrecognized      TypeSet // types that came back with U=1
	TimestampInfo     TimestampInfo
	ClassOfService    ClassOfService
	DirectMeasurement DirectMeasurement
	FollowUp          FollowUp
	Lives             Lives // zero if the reply has none
	// Signal is the request's in-band signal, as the reflector saw it. HasSignal is false if the reply has none, or one that no
	// reflector writes: that is no signal, and not one without congestion.
	Signal    Signal
	HasSignal bool
}

// Parse parses the TLVs of reply, a whole packet whose base of base octets was checked by Parse or ParseAuth. If a type
// occurs twice, the last one counts. If it returns ErrIntegrity, no TLV may be used and an is empty. If it returns
// ErrMalformed, an has the TLVs before the malformed one. A non-nil a means that the session's TLVs are protected.
func (an *Answers) Parse(reply []byte, base int, a *Authenticator) error {
	*an = Answers{}
	if c := VerifyTLVs(reply, base, a); anyIntegrityFlag(reply[base:]) || !c.authentic {
		return ErrIntegrity
	}
	for rest := reply[base:]; len(rest) > 0; {
		tlv, next, err := NextTLV(rest)
		if err != nil {
			return err
		}
		switch {
		case tlv.Flags&Malformed != 0:
			return ErrMalformed
		case tlv.Flags&Unrecognized != 0:
			an.Unrecognized.addType(tlv.Type)
		case !tlv.Type.validLength(len(tlv.Value)):
			return ErrMalformed
		default:
			an.storeTLV(tlv)
		}
		rest = next
	}
	return nil
}

func (an *Answers) storeTLV(tlv TLV) {
	switch tlv.Type {
	case TypeTimestampInfo:
		an.TimestampInfo.parseValue(tlv.Value)
	case TypeClassOfService:
		an.ClassOfService.parseValue(tlv.Value)
	case TypeDirectMeasurement:
		an.DirectMeasurement.parseValue(tlv.Value)
	case TypeFollowUp:
		an.FollowUp.parseValue(tlv.Value)
	case TypeLives:
		an.Lives.parseValue(tlv.Value)
	case TypeSignal:
		if an.HasSignal = an.Signal.parseValue(tlv.Value); !an.HasSignal {
			an.Signal = Signal{}
		}
	}
	an.Has.addType(tlv.Type)
}

// anyIntegrityFlag reports whether a TLV has I=1, up to and including the first TLV that is malformed.
func anyIntegrityFlag(area []byte) bool {
	for len(area) > 0 {
		if Flags(area[offTLVFlags])&Integrity != 0 {
			return true
		}
		_, rest, err := NextTLV(area)
		if err != nil {
			return false
		}
		area = rest
	}
	return false
}
