package stamp

import (
	"encoding/binary"
	"errors"
)

// Layout of a TLV: RFC 8972 4. Flags, type, then the length of the value.
const (
	tlvHeaderLen  = 4
	offTLVFlags   = 0
	offTLVType    = 1
	offTLVLength  = 2
	seqLen        = 4 // the Sequence Number that the HMAC TLV covers: RFC 8972 4.8
	maxTLVValue   = 1<<16 - 1
	timeInfoLen   = 4  // RFC 8972 4.3
	cosLen        = 4  // RFC 8972 4.4
	directLen     = 12 // RFC 8972 4.5
	followUpLen   = 16 // RFC 8972 4.7
	offRRxC       = 4  // RFC 8972 4.5
	offRTxC       = 8  // RFC 8972 4.5
	offFollowTime = 4  // RFC 8972 4.7
	offFollowMode = 12 // RFC 8972 4.7
	livesLen      = 24 // of TypeLives
	signalLen     = 12 // of TypeSignal
	offOtherLife  = 8  // of TypeLives
	offLivesTag   = 16 // of TypeLives
	offSignalType = 2  // of TypeSignal
	offSignalTag  = 4  // of TypeSignal
	offSignalSeen = 10 // of TypeSignal
)

// Flags are the STAMP TLV Flags: RFC 8972 4, registry in 5.2.
type Flags uint8

const (
	Unrecognized Flags = 1 << 7 // U: the reflector did not understand the TLV
	Malformed    Flags = 1 << 6 // M: the length is wrong for the type or runs past the packet
	Integrity    Flags = 1 << 5 // I: the HMAC TLV failed verification
)

// Type is a STAMP TLV Type: RFC 8972 5.1.
type Type uint8

const (
	TypeExtraPadding      Type = 1 // RFC 8972 4.1
	TypeTimestampInfo     Type = 3 // RFC 8972 4.3
	TypeClassOfService    Type = 4 // RFC 8972 4.4
	TypeDirectMeasurement Type = 5 // RFC 8972 4.5
	TypeFollowUp          Type = 7 // RFC 8972 4.7
	TypeHMAC              Type = 8 // RFC 8972 4.8

	// TypeLives has the life numbers of both ends (Lives). Graylink defines it: 252 to 254 are for private use (RFC
	// 8972 5.1). A reflector that does not know it returns it unchanged, with U=1.
	TypeLives Type = 252

	// TypeSignal has the in-band signal that a reflector took off the request (Signal), for private use as well.
	TypeSignal Type = 253
)

// knownTypes holds the types that this package can process. Location (2) and Access Report (6) are not among them,
// because Graylink uses neither.
const knownTypes TypeSet = 1<<TypeExtraPadding | 1<<TypeTimestampInfo | 1<<TypeClassOfService |
	1<<TypeDirectMeasurement | 1<<TypeFollowUp | 1<<TypeHMAC

// isUnderstood reports whether this package can process a type.
func (t Type) isUnderstood() bool { return knownTypes.Has(t) || t == TypeLives || t == TypeSignal }

// TypeSet is a set of the types below 16.
type TypeSet uint16

// NewTypeSet returns the set of ts.
func NewTypeSet(ts ...Type) TypeSet {
	var s TypeSet
	for _, t := range ts {
		s.addType(t)
	}
	return s
}

// Has reports whether t is in s.
func (s TypeSet) Has(t Type) bool { return t < 16 && s>>t&1 != 0 }

func (s *TypeSet) addType(t Type) {
	if t < 16 {
		*s |= 1 << t
	}
}

// validLength reports whether a value of n octets is valid for the type: RFC 8972 4.1 to 4.8. Any length is valid for
// Extra Padding and for a type that is not known.
func (t Type) validLength(n int) bool {
	switch t {
	case TypeTimestampInfo:
		return n == timeInfoLen
	case TypeClassOfService:
		return n == cosLen
	case TypeDirectMeasurement:
		return n == directLen
	case TypeFollowUp:
		return n == followUpLen
	case TypeHMAC:
		return n == HMACLen
	case TypeLives:
		return n == livesLen
	case TypeSignal:
		return n == signalLen
	}
	return true
}

// Errors of a TLV area.
var (
	// ErrMalformed means that a TLV runs past the packet, has a length that its type does not allow, or came back with
	// M=1.
	ErrMalformed = errors.New("STAMP TLV is malformed: want a length that fits its type and the packet")
	// ErrIntegrity means that the HMAC TLV is absent though required, not in its place or wrong, or that a TLV came
	// back with I=1.
	ErrIntegrity = errors.New("STAMP TLVs are not authentic: want a valid HMAC TLV after all TLVs but Extra Padding")
)

// TLV represents one TLV of a packet. Value lies in the packet's own memory.
type TLV struct {
	Flags Flags
	Type  Type
	Value []byte
}

// NextTLV cuts the first TLV off area, which must not be empty. It returns
// ErrMalformed, and no rest, when the TLV runs past the end.
//
//	for rest := packet[stamp.BaseLen:]; len(rest) > 0; {
//		tlv, rest, err = stamp.NextTLV(rest)
func NextTLV(area []byte) (tlv TLV, rest []byte, err error) {
	if len(area) < tlvHeaderLen {
		return TLV{}, nil, ErrMalformed
	}
	end := tlvHeaderLen + int(binary.BigEndian.Uint16(area[offTLVLength:]))
	tlv = TLV{Flags: Flags(area[offTLVFlags]), Type: Type(area[offTLVType])}
	if len(area) < end {
		return tlv, nil, ErrMalformed
	}
	tlv.Value = area[tlvHeaderLen:end:end]
	return tlv, area[end:], nil
}

// AppendTLV appends a TLV to a packet. It panics if the value has more than 65535 octets. A Session-Sender sets
// Unrecognized in each TLV: RFC 8972 4.
func AppendTLV(packet []byte, tlv TLV) []byte {
	packet = appendHeader(packet, tlv.Flags, tlv.Type, len(tlv.Value))
	return append(packet, tlv.Value...)
}

func appendHeader(packet []byte, f Flags, t Type, n int) []byte {
	if n > maxTLVValue {
		panic("stamp: TLV value of more than 65535 octets")
	}
	return append(packet, byte(f), byte(t), byte(n>>8), byte(n))
}

func appendZeroed(packet []byte, t Type, n int) []byte {
	packet = appendHeader(packet, Unrecognized, t, n)
	for range n {
		packet = append(packet, 0)
	}
	return packet
}

// AppendExtraPadding appends an Extra Padding TLV of n zero octets besides its
// header of four: RFC 8972 4.1.
func AppendExtraPadding(packet []byte, n int) []byte {
	return appendZeroed(packet, TypeExtraPadding, n)
}

// AppendTimestampInfo appends the request for a Timestamp Information TLV.
func AppendTimestampInfo(packet []byte) []byte {
	return appendZeroed(packet, TypeTimestampInfo, timeInfoLen)
}

// AppendClassOfService appends a Class of Service TLV that asks for replies
// with the DSCP dscp1: RFC 8972 4.4.
func AppendClassOfService(packet []byte, dscp1 uint8) []byte {
	packet = appendHeader(packet, Unrecognized, TypeClassOfService, cosLen)
	return append(packet, dscp1<<2, 0, 0, 0)
}

// AppendDirectMeasurement appends a Direct Measurement TLV with the number of
// packets the sender has sent in the session: RFC 8972 4.5.
func AppendDirectMeasurement(packet []byte, senderTx uint32) []byte {
	packet = appendZeroed(packet, TypeDirectMeasurement, directLen)
	binary.BigEndian.PutUint32(packet[len(packet)-directLen:], senderTx)
	return packet
}

// AppendFollowUp appends the request for a Follow-Up Telemetry TLV.
func AppendFollowUp(packet []byte) []byte {
	return appendZeroed(packet, TypeFollowUp, followUpLen)
}

// AppendLives appends a TLV with the sender's life number and room for the reflector's to an authenticated packet whose
// base is written. who stands for the sender's name.
func AppendLives(packet []byte, life, who uint64) []byte {
	tag := livesTag(packet, AuthBaseLen, who)
	packet = appendZeroed(packet, TypeLives, livesLen)
	value := packet[len(packet)-livesLen:]
	binary.BigEndian.PutUint64(value, life)
	binary.BigEndian.PutUint64(value[offLivesTag:], tag)
	return packet
}

// AppendSignal appends the request for the in-band signal that the packet arrives with.
func AppendSignal(packet []byte) []byte {
	return appendZeroed(packet, TypeSignal, signalLen)
}

// livesTag returns the tag that binds the life numbers of a packet to its base packet and to its sender. It is needed
// because the HMAC TLV covers only the sequence number of the base packet, and because both ends have the same key.
// Plain packets have no tag.
func livesTag(packet []byte, base int, who uint64) uint64 {
	if base != AuthBaseLen {
		return 0
	}
	return binary.BigEndian.Uint64(packet[offAuthHMAC:]) ^ who
}

// AppendHMAC appends the HMAC TLV of a packet whose base has base octets. It covers the sequence number and every TLV
// so far (RFC 8972 4.8). Only Extra Padding may follow it.
func AppendHMAC(packet []byte, base int, a *Authenticator) []byte {
	mac := a.truncatedHMAC(packet[:seqLen], packet[base:])
	packet = appendHeader(packet, Unrecognized, TypeHMAC, HMACLen)
	return append(packet, mac...)
}

// SyncSource is the source of a clock's time: RFC 8972 5.4.
type SyncSource uint8

const (
	SyncNTP     SyncSource = 1
	SyncPTP     SyncSource = 2
	SyncSSUBITS SyncSource = 3
	SyncGNSS    SyncSource = 4 // GPS, GLONASS, LORAN-C, BDS, Galileo
	SyncLocal   SyncSource = 5 // free-running
)

// Method is the way in which a timestamp was taken: RFC 8972 5.5.
type Method uint8

const (
	MethodHardware Method = 1 // HW Assist
	MethodSoftware Method = 2 // SW Local
	MethodControl  Method = 3 // Control Plane
)

// TimestampInfo represents the value of the Timestamp Information TLV: RFC 8972 4.3. In describes T2, and Out T3.
type TimestampInfo struct {
	SyncIn    SyncSource
	MethodIn  Method
	SyncOut   SyncSource
	MethodOut Method
}

func (v *TimestampInfo) putValue(b []byte) {
	b[0], b[1], b[2], b[3] = byte(v.SyncIn), byte(v.MethodIn), byte(v.SyncOut), byte(v.MethodOut)
}

func (v *TimestampInfo) parseValue(b []byte) {
	*v = TimestampInfo{SyncSource(b[0]), Method(b[1]), SyncSource(b[2]), Method(b[3])}
}

// ClassOfService represents the value of the Class of Service TLV: RFC 8972 4.4 with erratum 8199.
type ClassOfService struct {
	DSCP1 uint8 // requested for the replies
	DSCP2 uint8 // of the probe, as the reflector received it
	ECN   uint8 // of the probe, as the reflector received it
	RP    uint8 // 1 if the reflector's policy refused DSCP1 and DSCP2 was used
}

func (v *ClassOfService) putValue(b []byte) {
	b[0] = v.DSCP1<<2 | v.DSCP2>>4&0x3
	b[1] = v.DSCP2<<4 | v.ECN&0x3<<2 | v.RP&0x3
	b[2], b[3] = 0, 0
}

func (v *ClassOfService) parseValue(b []byte) {
	*v = ClassOfService{DSCP1: b[0] >> 2, DSCP2: b[0]&0x3<<4 | b[1]>>4, ECN: b[1] >> 2 & 0x3, RP: b[1] & 0x3}
}

// DirectMeasurement represents the value of the Direct Measurement TLV, counts of the session's packets modulo 2^32:
// RFC 8972 4.5.
type DirectMeasurement struct {
	SenderTx    uint32 // S_TxC
	ReflectorRx uint32 // R_RxC
	ReflectorTx uint32 // R_TxC
}

// putReflector does not change S_TxC, which is the sender's and is returned unchanged.
func (v *DirectMeasurement) putReflector(b []byte) {
	binary.BigEndian.PutUint32(b[offRRxC:], v.ReflectorRx)
	binary.BigEndian.PutUint32(b[offRTxC:], v.ReflectorTx)
}

func (v *DirectMeasurement) parseValue(b []byte) {
	v.SenderTx = binary.BigEndian.Uint32(b)
	v.ReflectorRx = binary.BigEndian.Uint32(b[offRRxC:])
	v.ReflectorTx = binary.BigEndian.Uint32(b[offRTxC:])
}

// FollowUp represents the value of the Follow-Up Telemetry TLV: RFC 8972 4.7. The zero value means that there is none,
// as for a session's first reply.
type FollowUp struct {
	Seq       uint32    // the reflector's sequence number of an earlier reply
	Timestamp Timestamp // time at which that reply was really sent, in the format of the base packet
	Method    Method    // method by which Timestamp was taken
}

func (v *FollowUp) putValue(b []byte) {
	binary.BigEndian.PutUint32(b, v.Seq)
	binary.BigEndian.PutUint64(b[offFollowTime:], uint64(v.Timestamp))
	b[offFollowMode] = byte(v.Method)
	clear(b[offFollowMode+1 : followUpLen])
}

func (v *FollowUp) parseValue(b []byte) {
	v.Seq = binary.BigEndian.Uint32(b)
	v.Timestamp = Timestamp(binary.BigEndian.Uint64(b[offFollowTime:]))
	v.Method = Method(b[offFollowMode])
}

// Lives represents the value of the TLV of type TypeLives. A life number grows from one start of a program to the next,
// so that a packet of an earlier life is recognised as a replay. 0 stands for a life that is not known.
type Lives struct {
	Sender    uint64
	Reflector uint64
	tag       uint64
}

// BelongTo reports whether the lives belong to the authenticated packet that they came with, and whether the sender
// that who stands for sent it.
func (v *Lives) BelongTo(packet []byte, who uint64) bool {
	return v.tag == livesTag(packet, AuthBaseLen, who)
}

// putReflector does not change the sender's life, which is returned unchanged.
func (v *Lives) putReflector(b []byte) {
	binary.BigEndian.PutUint64(b[offOtherLife:], v.Reflector)
	binary.BigEndian.PutUint64(b[offLivesTag:], v.tag)
}

func (v *Lives) parseValue(b []byte) {
	v.Sender, v.Reflector, v.tag = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[offOtherLife:]), binary.BigEndian.Uint64(b[offLivesTag:])
}

// Signal represents the value of the TLV of type TypeSignal: the CSIG tag with which the request arrived. It takes 12 octets: format,
// flags (the first bit stands for a malformed tag), EtherType, six octets of the tag, and the count. The reply's own tag is of the
// other direction, and is not in it.
type Signal struct {
	Format    uint8   // octets of the tag with its EtherType: 4, 8, or 0 if there was none
	Malformed bool    // there was one that cannot be read; Format is 0
	EtherType uint16  // of the tag; 0 if there was none
	Value     [6]byte // what stood behind the EtherType: two octets of it, or all, and zeroes
	Seen      uint16  // tagged requests of the session up to this one, modulo 2^16
}

// signalMalformed is the flag of a malformed tag.
const signalMalformed = 1 << 7

func (v *Signal) putValue(b []byte) {
	b[0], b[1] = v.Format, 0
	if v.Malformed {
		b[1] = signalMalformed
	}
	binary.BigEndian.PutUint16(b[offSignalType:], v.EtherType)
	copy(b[offSignalTag:offSignalSeen], v.Value[:])
	binary.BigEndian.PutUint16(b[offSignalSeen:], v.Seen)
}

// parseValue reports whether the value is one that a reflector writes.
func (v *Signal) parseValue(b []byte) bool {
	*v = Signal{Format: b[0], Malformed: b[1]&signalMalformed != 0, EtherType: binary.BigEndian.Uint16(b[offSignalType:]), Value: [6]byte(b[offSignalTag:offSignalSeen]), Seen: binary.BigEndian.Uint16(b[offSignalSeen:])}
	switch {
	case v.Format == 0:
		return v.Value == [6]byte{}
	case v.Malformed:
		return false
	case v.Format == 4:
		return [4]byte(v.Value[2:]) == [4]byte{}
	}
	return v.Format == 8
}
