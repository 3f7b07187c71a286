package stamp

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"slices"
	"testing"
)

const (
	testProbeSeq = 0x0a0b0c0d
	testReplySeq = 0x01020304
)

// probeWith returns a probe of the base length with the TLVs of area, which is
// written in hex.
func probeWith(t testing.TB, area string) []byte {
	t.Helper()
	b := make([]byte, BaseLen)
	p := SenderPacket{Seq: testProbeSeq, ErrorEstimate: 1}
	p.Put(b)
	return append(b, unhex(t, area)...)
}

// replyFor returns room for the reply to probe, with the base packet written.
func replyFor(probe []byte) []byte {
	b := bytes.Repeat([]byte{0xee}, len(probe))
	p := ReflectorPacket{Seq: testReplySeq, ErrorEstimate: 1}
	p.Put(b)
	return b
}

var testValues = ReflectorValues{
	TimestampInfo: TimestampInfo{SyncPTP, MethodHardware, SyncLocal, MethodSoftware},
	ReceivedDSCP:  0x2e, ReceivedECN: 3, PermittedDSCP: 1<<26 | 1<<63,
	RxCount: 0x21222324, TxCount: 0x31323334,
	FollowUp: FollowUp{Seq: 0x41424344, Timestamp: 0x5152535455565758, Method: MethodHardware},
}

// TestReflect checks the rules of RFC 8972 4 one by one, unauthenticated and without integrity protection.
func TestReflect(t *testing.T) {
	tests := []struct {
		name        string
		request     string
		reply       string
		want        Reflection // Len is checked for every case
		values      func(*ReflectorValues)
		senderError error // of the reply
	}{
		{name: "no TLVs", want: Reflection{DSCP: 0x2e}},
		{
			name: "extra padding goes back with its content", request: "80010003 a1b2c3", reply: "00010003 a1b2c3",
			want: Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeExtraPadding)},
		},
		{
			name: "timestamp information", request: "80030004 00000000", reply: "00030004 02010502",
			want: Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeTimestampInfo)},
		},
		{
			// DSCP1 26 = 011010, DSCP2 46 = 101110, ECN 11, RP 00.
			name: "class of service permitted", request: "80040004 68000000", reply: "00040004 6aec0000",
			want: Reflection{DSCP: 26, Answered: NewTypeSet(TypeClassOfService)},
		},
		{
			// DSCP1 27 = 011011, DSCP2 46 = 101110, ECN 11, RP 01.
			name: "class of service refused", request: "80040004 6c000000", reply: "00040004 6eed0000",
			want: Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeClassOfService)},
		},
		{
			name: "class of service: all but DSCP1 is ignored on receipt", request: "80040004 ffffffff", reply: "00040004 feec0000",
			want: Reflection{DSCP: 63, Answered: NewTypeSet(TypeClassOfService)},
		},
		{
			name: "direct measurement", request: "8005000c 11121314 ffffffff ffffffff", reply: "0005000c 11121314 21222324 31323334",
			want: Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeDirectMeasurement), SenderTx: 0x11121314},
		},
		{
			name: "follow-up telemetry", request: "80070010 ffffffff ffffffffffffffff ff ffffff",
			reply: "00070010 41424344 5152535455565758 01 000000",
			want:  Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeFollowUp)},
		},
		{
			name: "follow-up telemetry of the first reply", request: "80070010 00000000 0000000000000000 00 000000",
			reply: "00070010 00000000 0000000000000000 00 000000", want: Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeFollowUp)},
			values: func(v *ReflectorValues) { v.FollowUp = FollowUp{} },
		},
		{
			name: "U, M, I and reserved flags are ignored on receipt", request: "7f030004 00000000", reply: "00030004 02010502",
			want: Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeTimestampInfo)},
		},
		{
			name: "unknown types go back with U, the rest is answered", request: "80020004 01020304 00c80000 80030004 00000000 80ff0001 77",
			reply: "80020004 01020304 80c80000 00030004 02010502 80ff0001 77",
			want:  Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeTimestampInfo)},
		},
		{
			name: "a type without values goes back with U", request: "80040004 68000000 80030004 00000000",
			reply: "80040004 68000000 00030004 02010502", want: Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeTimestampInfo)},
			values: func(v *ReflectorValues) { v.Unsupported = NewTypeSet(TypeClassOfService) },
		},
		{
			name:    "length that does not suit the type: M, and the rest as it came",
			request: "80030004 00000000 80040005 6800000000 80030004 00000000",
			reply:   "00030004 02010502 40040005 6800000000 80030004 00000000",
			want:    Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeTimestampInfo), Malformed: true}, senderError: ErrMalformed,
		},
		{
			name: "length that runs past the packet", request: "80030004 00000000 80c80005 01020304",
			reply: "00030004 02010502 40c80005 01020304",
			want:  Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeTimestampInfo), Malformed: true}, senderError: ErrMalformed,
		},
		{
			name: "three octets are no header", request: "80030004 00000000 ffffff", reply: "00030004 02010502 40ffff",
			want: Reflection{DSCP: 0x2e, Answered: NewTypeSet(TypeTimestampInfo), Malformed: true}, senderError: ErrMalformed,
		},
		{
			name: "one octet is no header", request: "ff", reply: "40",
			want: Reflection{DSCP: 0x2e, Malformed: true}, senderError: ErrMalformed,
		},
		{
			name: "follow-up telemetry too long: its information is zeroed", request: "80070012 ffffffff ffffffffffffffff ffffffff ffff",
			reply: "40070012 00000000 0000000000000000 ffffffff ffff",
			want:  Reflection{DSCP: 0x2e, Malformed: true}, senderError: ErrMalformed,
		},
		{
			name: "follow-up telemetry too short: not zeroed beyond itself", request: "80070002 ffff 80030004 00000000",
			reply: "40070002 0000 80030004 00000000", want: Reflection{DSCP: 0x2e, Malformed: true}, senderError: ErrMalformed,
		},
		{
			name: "an HMAC TLV that cannot be verified: I everywhere", request: "80030004 00000000 80c80001 01 80080010 00000000000000000000000000000000",
			reply: "20030004 00000000 a0c80001 01 20080010 00000000000000000000000000000000",
			want:  Reflection{DSCP: 0x2e, Integrity: true}, senderError: ErrIntegrity,
		},
		{
			name:    "what is malformed in a refused request has M as well",
			request: "80040005 6800000000 80030004 00000000 80080010 00000000000000000000000000000000",
			reply:   "60040005 6800000000 20030004 00000000 20080010 00000000000000000000000000000000",
			want:    Reflection{DSCP: 0x2e, Integrity: true, Malformed: true}, senderError: ErrIntegrity,
		},
		{
			name: "what runs past the packet in a refused request has M as well", request: "80080010 00000000000000000000000000000000 80010005 01",
			reply: "20080010 00000000000000000000000000000000 60010005 01",
			want:  Reflection{DSCP: 0x2e, Integrity: true, Malformed: true}, senderError: ErrIntegrity,
		},
		{
			name: "follow-up telemetry of the right length, cut short: as it came", request: "80070010 ffffffff", reply: "40070010 ffffffff",
			want: Reflection{DSCP: 0x2e, Malformed: true}, senderError: ErrMalformed,
		},
		{
			name: "values too large for their fields stay in them", request: "80040004 68000000", reply: "00040004 6aec0000",
			want:   Reflection{DSCP: 26, Answered: NewTypeSet(TypeClassOfService)},
			values: func(v *ReflectorValues) { v.ReceivedDSCP |= 0xc0; v.ReceivedECN = 0xff },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			values := testValues
			if tt.values != nil {
				tt.values(&values)
			}
			request := probeWith(t, tt.request)
			before := bytes.Clone(request)
			reply := append(replyFor(request), 0xee)
			base := bytes.Clone(reply[:BaseLen])
			got := values.Reflect(reply, request, BaseLen, nil)
			tt.want.Len = len(request)
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if area := reply[BaseLen:got.Len]; !bytes.Equal(area, unhex(t, tt.reply)) {
				t.Errorf("TLVs\n%x, want\n%x", area, unhex(t, tt.reply))
			}
			if !bytes.Equal(request, before) || !bytes.Equal(reply[:BaseLen], base) || reply[got.Len] != 0xee {
				t.Error("wrote outside the reply's TLVs")
			}
			var an Answers
			if err := an.Parse(reply[:got.Len], BaseLen, nil); !errors.Is(err, tt.senderError) {
				t.Errorf("the sender reads the reply: %v, want %v", err, tt.senderError)
			}
			if an.Has != got.Answered {
				t.Errorf("the sender got answers %b, want %b", an.Has, got.Answered)
			}
		})
	}
}

// allRequests returns a probe with one TLV of every type that a sender requests.
func allRequests(base int, a *Authenticator) []byte {
	b := make([]byte, base, 256)
	p := SenderPacket{Seq: testProbeSeq, ErrorEstimate: 1}
	if base == AuthBaseLen {
		p.PutAuth(b, a)
	} else {
		p.Put(b)
	}
	b = AppendClassOfService(b, 26)
	b = AppendTimestampInfo(b)
	b = AppendDirectMeasurement(b, 0x11121314)
	b = AppendFollowUp(b)
	if a != nil {
		b = AppendHMAC(b, base, a)
	}
	return AppendExtraPadding(b, 5)
}

func TestRequestsAreAsTheRFCWantsThem(t *testing.T) {
	want := unhex(t, `80040004 68000000 80030004 00000000 8005000c 11121314 00000000 00000000
		80070010 00000000 0000000000000000 00000000 80010005 0000000000`)
	if got := allRequests(BaseLen, nil)[BaseLen:]; !bytes.Equal(got, want) {
		t.Errorf("got\n%x, want\n%x", got, want)
	}
}

func TestSenderReadsWhatTheReflectorWrote(t *testing.T) {
	auth := NewAuthenticator([]byte("key"))
	for _, tt := range []struct {
		name string
		base int
		auth *Authenticator
	}{
		{"unauthenticated", BaseLen, nil}, {"unauthenticated, TLVs protected", BaseLen, auth}, {"authenticated", AuthBaseLen, auth},
	} {
		t.Run(tt.name, func(t *testing.T) {
			request := allRequests(tt.base, tt.auth)
			reply := make([]byte, len(request))
			p := ReflectorPacket{Seq: testReplySeq, ErrorEstimate: 1}
			if tt.base == AuthBaseLen {
				p.PutAuth(reply, tt.auth)
			} else {
				p.Put(reply)
			}
			r := testValues.Reflect(reply, request, tt.base, tt.auth)
			if r.Integrity || r.Malformed {
				t.Fatalf("got %+v", r)
			}
			want := Answers{
				Has:               NewTypeSet(TypeExtraPadding, TypeTimestampInfo, TypeClassOfService, TypeDirectMeasurement, TypeFollowUp),
				TimestampInfo:     testValues.TimestampInfo,
				ClassOfService:    ClassOfService{DSCP1: 26, DSCP2: 0x2e, ECN: 3},
				DirectMeasurement: DirectMeasurement{0x11121314, 0x21222324, 0x31323334},
				FollowUp:          testValues.FollowUp,
			}
			if tt.auth != nil {
				want.Has |= NewTypeSet(TypeHMAC)
			}
			var got Answers
			if err := got.Parse(reply, tt.base, tt.auth); err != nil || got != want {
				t.Errorf("%v\n%+v, want\n%+v", err, got, want)
			}
			if r.Answered != want.Has {
				t.Errorf("answered %b, want %b", r.Answered, want.Has)
			}
		})
	}
}

func TestSenderReadsFlags(t *testing.T) {
	tests := []struct {
		name, area   string
		has, unknown TypeSet
		err          error
	}{
		{"U: skipped, whatever its length", "80030007 01020304050607 00040004 00000000", NewTypeSet(TypeClassOfService), NewTypeSet(TypeTimestampInfo), nil},
		{"M: nothing from there on", "00040004 00000000 40030004 01020304 00070010 00000000000000000000000000000000", NewTypeSet(TypeClassOfService), 0, ErrMalformed},
		{"I: nothing at all", "00040004 00000000 20c80000", 0, 0, ErrIntegrity},
		{"I in octets that are no TLV", "00040004 00000000 20", 0, 0, ErrIntegrity},
		{"wrong length without M", "00040004 00000000 00030003 010203", NewTypeSet(TypeClassOfService), 0, ErrMalformed},
		{"runs past the packet", "00040004 00000000 00030004 010203", NewTypeSet(TypeClassOfService), 0, ErrMalformed},
		{"reserved flags are ignored", "1f040004 00000000", NewTypeSet(TypeClassOfService), 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			an := Answers{Has: 0xffff, Unrecognized: 0xffff}
			err := an.Parse(append(make([]byte, BaseLen), unhex(t, tt.area)...), BaseLen, nil)
			if !errors.Is(err, tt.err) || an.Has != tt.has || an.Unrecognized != tt.unknown {
				t.Errorf("%v, has %b, unknown %b; want %v, %b, %b", err, an.Has, an.Unrecognized, tt.err, tt.has, tt.unknown)
			}
		})
	}
}

// TestHMACCoversSequenceNumberAndPrecedingTLVs computes both HMAC TLVs as RFC
// 8972 4.8 describes them, from the bytes alone.
func TestHMACCoversSequenceNumberAndPrecedingTLVs(t *testing.T) {
	auth := NewAuthenticator([]byte("key"))
	want := func(packet []byte, tlvs int) []byte {
		m := hmac.New(sha256.New, []byte("key"))
		m.Write(packet[:4])
		m.Write(packet[44 : 44+tlvs])
		return m.Sum(nil)[:16]
	}
	probe := AppendTimestampInfo(probeWith(t, ""))
	probe = AppendExtraPadding(probe, 2)
	probe = AppendHMAC(probe, BaseLen, auth)
	probe = AppendExtraPadding(probe, 3)
	if got := probe[44+14+4:][:16]; !bytes.Equal(got, want(probe, 14)) {
		t.Errorf("probe: %x, want %x", got, want(probe, 14))
	}
	reply := replyFor(probe)
	if r := testValues.Reflect(reply, probe, BaseLen, auth); r.Integrity || r.Malformed {
		t.Fatalf("got %+v", r)
	}
	if got := reply[44+14+4:][:16]; !bytes.Equal(got, want(reply, 14)) {
		t.Errorf("reply: %x, want %x", got, want(reply, 14))
	}
	if bytes.Equal(want(reply, 14), want(probe, 14)) {
		t.Error("the HMACs of probe and reply do not differ")
	}
}

// TestIntegrity checks on both sides what RFC 8972 4.8 makes a failure, and what it does not. The reflector must echo
// every TLV unchanged with I, and the sender must use none.
func TestIntegrity(t *testing.T) {
	auth, other := NewAuthenticator([]byte("key")), NewAuthenticator([]byte("another"))
	sign := func(b []byte) []byte { return AppendHMAC(b, BaseLen, auth) }
	tests := []struct {
		name string
		auth *Authenticator
		make func(b []byte) []byte
		ok   bool
	}{
		{"signed", auth, func(b []byte) []byte { return sign(AppendTimestampInfo(b)) }, true},
		{"signed and padded", auth, func(b []byte) []byte {
			return AppendExtraPadding(AppendExtraPadding(sign(AppendTimestampInfo(b)), 3), 0)
		}, true},
		{"only an HMAC TLV", auth, sign, true},
		{"no TLVs", auth, func(b []byte) []byte { return b }, true},
		{"only extra padding", auth, func(b []byte) []byte { return AppendExtraPadding(b, 8) }, true},
		{"extra padding twice, unsigned", auth, func(b []byte) []byte { return AppendExtraPadding(AppendExtraPadding(b, 8), 8) }, false},
		{"unsigned", auth, AppendTimestampInfo, false},
		{"another key", other, func(b []byte) []byte { return sign(AppendTimestampInfo(b)) }, false},
		{"no key to verify with", nil, func(b []byte) []byte { return sign(AppendTimestampInfo(b)) }, false},
		{"a TLV behind the HMAC TLV", auth, func(b []byte) []byte { return AppendTimestampInfo(sign(AppendFollowUp(b))) }, false},
		{"two HMAC TLVs", auth, func(b []byte) []byte { return sign(sign(AppendTimestampInfo(b))) }, false},
		{"octets behind the HMAC TLV", auth, func(b []byte) []byte { return append(sign(AppendTimestampInfo(b)), 0, 0) }, false},
		{"an HMAC TLV of 15 octets", auth, func(b []byte) []byte {
			return AppendTLV(AppendTimestampInfo(b), TLV{Unrecognized, TypeHMAC, make([]byte, 15)})
		}, false},
		{"an HMAC TLV cut short", auth, func(b []byte) []byte { b = sign(AppendTimestampInfo(b)); return b[:len(b)-1] }, false},
		{"sequence number changed", auth, func(b []byte) []byte { b = sign(AppendTimestampInfo(b)); b[3] ^= 1; return b }, false},
		{"TLV changed", auth, func(b []byte) []byte { b = sign(AppendTimestampInfo(b)); b[BaseLen+7] ^= 1; return b }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			packet := slices.Clip(tt.make(probeWith(t, "")))
			reply := replyFor(packet)
			r := testValues.Reflect(reply, packet, BaseLen, tt.auth)
			if r.Integrity == tt.ok {
				t.Fatalf("reflector: %+v, want integrity failure %v", r, !tt.ok)
			}
			var an Answers
			if err := an.Parse(reply, BaseLen, auth); tt.ok && err != nil || !tt.ok && !errors.Is(err, ErrIntegrity) {
				t.Errorf("sender reads the reply: %v", err)
			}
			// The same bytes as a reply, which is not flagged with I.
			err := an.Parse(packet, BaseLen, tt.auth)
			if errors.Is(err, ErrIntegrity) == tt.ok || !tt.ok && an != (Answers{}) {
				t.Errorf("sender: %v, %+v, want integrity failure %v", err, an, !tt.ok)
			}
			if tt.ok {
				return
			}
			if r.Answered != 0 {
				t.Errorf("answered %b of what failed verification", r.Answered)
			}
			for was, is := packet[BaseLen:], reply[BaseLen:]; len(is) > 0; {
				if Flags(is[0])&Integrity == 0 {
					t.Errorf("TLV without I: %x", is)
				}
				if !bytes.Equal(is[1:min(4, len(is))], was[1:min(4, len(is))]) {
					t.Errorf("header changed: %x, was %x", is, was)
				}
				a, nextWas, errWas := NextTLV(was)
				b, nextIs, errIs := NextTLV(is)
				if !bytes.Equal(a.Value, b.Value) || errWas != errIs {
					t.Errorf("value changed: %x, was %x", is, was)
				}
				was, is = nextWas, nextIs
			}
		})
	}
	t.Run("HMAC TLVs are never unsupported", func(t *testing.T) {
		v := testValues
		v.Unsupported = NewTypeSet(TypeHMAC, TypeTimestampInfo)
		probe := sign(AppendTimestampInfo(probeWith(t, "")))
		reply := replyFor(probe)
		v.Reflect(reply, probe, BaseLen, auth)
		var an Answers
		if err := an.Parse(reply, BaseLen, auth); err != nil || an.Unrecognized != NewTypeSet(TypeTimestampInfo) || an.Has != NewTypeSet(TypeHMAC) {
			t.Errorf("%v, %+v", err, an)
		}
	})
	t.Run("authenticated mode without a key for the TLVs", func(t *testing.T) {
		b := make([]byte, AuthBaseLen)
		senderVector.PutAuth(b, auth)
		b = AppendTimestampInfo(b)
		reply := make([]byte, len(b))
		if r := testValues.Reflect(reply, b, AuthBaseLen, nil); !r.Integrity {
			t.Errorf("got %+v, want an integrity failure", r)
		}
	})
}

// TestMalformedInProtectedTLVs checks that the HMAC TLV behind a malformed TLV is copied unchanged, so that the sender
// cannot trust what the reflector did answer.
func TestMalformedInProtectedTLVs(t *testing.T) {
	auth := NewAuthenticator([]byte("key"))
	probe := AppendTLV(AppendTimestampInfo(probeWith(t, "")), TLV{Unrecognized, TypeClassOfService, nil})
	probe = AppendHMAC(probe, BaseLen, auth)
	reply := replyFor(probe)
	r := testValues.Reflect(reply, probe, BaseLen, auth)
	if want := (Reflection{Len: len(probe), DSCP: 0x2e, Answered: NewTypeSet(TypeTimestampInfo), Malformed: true}); r != want {
		t.Errorf("got %+v, want %+v", r, want)
	}
	if n := BaseLen + 12; !bytes.Equal(reply[n:], probe[n:]) {
		t.Errorf("behind the malformed TLV: %x, want %x", reply[n:], probe[n:])
	}
	var an Answers
	if err := an.Parse(reply, BaseLen, auth); !errors.Is(err, ErrIntegrity) {
		t.Errorf("sender: %v, want ErrIntegrity", err)
	}
}

func TestNextTLV(t *testing.T) {
	b := unhex(t, "80010002 aabb a0ff0000")
	tlv, rest, err := NextTLV(b)
	if err != nil || tlv.Flags != Unrecognized || tlv.Type != TypeExtraPadding || !bytes.Equal(tlv.Value, []byte{0xaa, 0xbb}) {
		t.Fatalf("first: %v, %+v", err, tlv)
	}
	if cap(tlv.Value) != 2 {
		t.Error("an append to the value would write over the next TLV")
	}
	tlv, rest, err = NextTLV(rest)
	if err != nil || tlv.Flags != Unrecognized|Integrity || tlv.Type != 255 || len(tlv.Value) != 0 || len(rest) != 0 {
		t.Errorf("second: %v, %+v, rest %x", err, tlv, rest)
	}
	for _, bad := range []string{"80", "800300", "8003000400", "8001ffff00"} {
		if _, rest, err := NextTLV(unhex(t, bad)); !errors.Is(err, ErrMalformed) || rest != nil {
			t.Errorf("%s: %v, rest %x, want ErrMalformed", bad, err, rest)
		}
	}
}

func TestAppendTLVPanicsOnWhatDoesNotFit(t *testing.T) {
	if b := AppendTLV(nil, TLV{Type: 1, Value: make([]byte, 65535)}); len(b) != 65539 || b[2] != 0xff || b[3] != 0xff {
		t.Errorf("the longest TLV: %d octets, header %x", len(b), b[:4])
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic for 65536 octets")
		}
	}()
	AppendTLV(nil, TLV{Value: make([]byte, 65536)})
}
