package stamp

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// reflectorSamples has NTP and PTP in both directions, zero and all-ones
// fields, and an unknown error bound.
func reflectorSamples() []ReflectorPacket {
	const ns = 1_789_000_000_123_456_789
	bound := NewErrorEstimate(200, true, true)
	return []ReflectorPacket{
		{
			Seq: 7, Timestamp: TimestampPTP(ns + 3000), ErrorEstimate: bound, SSID: 0x1234, Receive: TimestampPTP(ns + 2000),
			SenderSeq: 9, SenderTimestamp: TimestampPTP(ns), SenderErrorEstimate: bound, SenderTTL: 61,
		},
		{
			Seq: 1 << 31, Timestamp: TimestampNTP(ns + 3000), ErrorEstimate: NewErrorEstimate(UnknownBound, false, false), SSID: 1,
			Receive: TimestampNTP(ns + 2000), SenderSeq: 1, SenderTimestamp: TimestampPTP(ns), SenderErrorEstimate: bound, SenderTTL: 1,
		},
		{
			Timestamp: TimestampPTP(ns), ErrorEstimate: bound, Receive: TimestampPTP(ns), SenderTimestamp: TimestampNTP(ns),
			SenderErrorEstimate: NewErrorEstimate(0, false, false),
		},
		{ErrorEstimate: 1, SenderErrorEstimate: 1},
		{
			Seq: 1<<32 - 1, Timestamp: 1<<64 - 1, ErrorEstimate: 1<<16 - 1, SSID: 1<<16 - 1, Receive: 1<<64 - 1,
			SenderSeq: 1<<32 - 1, SenderTimestamp: 1<<64 - 1, SenderErrorEstimate: 1<<16 - 1, SenderTTL: 255,
		},
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "\t", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func ones(n int) []byte { return bytes.Repeat([]byte{0xff}, n) }

// The vectors below were written by hand from the figures of RFC 8762 4.2 and
// 4.3 with the SSID of RFC 8972 3.

var senderVector = SenderPacket{Seq: 0x01020304, Timestamp: 0x1112131415161718, ErrorEstimate: 0xc123, SSID: 0x3132}

const (
	senderWire = `01020304 1112131415161718 c123 3132
		00000000000000000000000000000000000000000000000000000000`
	senderAuthWire = `01020304 000000000000000000000000 1112131415161718 c123 3132 00000000
		00000000000000000000000000000000 00000000000000000000000000000000
		00000000000000000000000000000000 00000000000000000000000000000000`
)

var reflectorVector = ReflectorPacket{
	Seq: 0x01020304, Timestamp: 0x1112131415161718, ErrorEstimate: 0xc123, SSID: 0x3132, Receive: 0x4142434445464748,
	SenderSeq: 0x51525354, SenderTimestamp: 0x6162636465666768, SenderErrorEstimate: 0x8577, SenderTTL: 0x3f,
}

const (
	reflectorWire = `01020304 1112131415161718 c123 3132 4142434445464748
		51525354 6162636465666768 8577 0000 3f 000000`
	reflectorAuthWire = `01020304 000000000000000000000000 1112131415161718 c123 3132 00000000
		4142434445464748 0000000000000000 51525354 000000000000000000000000
		6162636465666768 8577 000000000000 3f 000000000000000000000000000000`
)

func hmac96(t *testing.T, key, b []byte) []byte {
	t.Helper()
	if len(b) != 96 {
		t.Fatalf("vector of %d octets, want 96", len(b))
	}
	m := hmac.New(sha256.New, key)
	m.Write(b)
	return append(b, m.Sum(nil)[:16]...)
}

func TestPacketLayout(t *testing.T) {
	key := []byte("a key of the test")
	auth := NewAuthenticator(key)
	var s SenderPacket
	var r ReflectorPacket
	tests := []struct {
		name  string
		wire  []byte
		put   func([]byte)
		parse func([]byte) error
		same  func() bool
	}{
		{"sender", unhex(t, senderWire), senderVector.Put, s.Parse, func() bool { return s == senderVector }},
		{"reflector", unhex(t, reflectorWire), reflectorVector.Put, r.Parse, func() bool { return r == reflectorVector }},
		{
			"sender authenticated", hmac96(t, key, unhex(t, senderAuthWire)),
			func(b []byte) { senderVector.PutAuth(b, auth) },
			func(b []byte) error { return s.ParseAuth(b, auth) }, func() bool { return s == senderVector },
		},
		{
			"reflector authenticated", hmac96(t, key, unhex(t, reflectorAuthWire)),
			func(b []byte) { reflectorVector.PutAuth(b, auth) },
			func(b []byte) error { return r.ParseAuth(b, auth) }, func() bool { return r == reflectorVector },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, r = SenderPacket{}, ReflectorPacket{}
			if want := map[bool]int{true: AuthBaseLen, false: BaseLen}[strings.Contains(tt.name, "auth")]; len(tt.wire) != want {
				t.Fatalf("vector of %d octets, want %d", len(tt.wire), want)
			}
			b := ones(len(tt.wire) + 1)
			tt.put(b)
			if !bytes.Equal(b[:len(tt.wire)], tt.wire) || b[len(tt.wire)] != 0xff {
				t.Errorf("put\n%x, want\n%xff", b, tt.wire)
			}
			if err := tt.parse(b); err != nil || !tt.same() {
				t.Errorf("parse: %v, %+v %+v", err, s, r)
			}
			if err := tt.parse(b[:len(tt.wire)-1]); !errors.Is(err, ErrShort) {
				t.Errorf("one octet less: %v, want ErrShort", err)
			}
		})
	}
}

func TestMBZIsIgnored(t *testing.T) {
	b := unhex(t, senderWire)
	copy(b[16:], ones(28))
	var s SenderPacket
	if err := s.Parse(b); err != nil || s != senderVector {
		t.Errorf("sender: %v, %+v", err, s)
	}
	b = unhex(t, reflectorWire)
	copy(b[38:40], ones(2))
	copy(b[41:44], ones(3))
	var r ReflectorPacket
	if err := r.Parse(b); err != nil || r != reflectorVector {
		t.Errorf("reflector: %v, %+v", err, r)
	}
}

func TestZeroMultiplierIsCorrupt(t *testing.T) {
	auth := NewAuthenticator([]byte("k"))
	b := make([]byte, AuthBaseLen)
	for _, auth := range []*Authenticator{nil, auth} {
		s, r := senderVector, reflectorVector
		s.ErrorEstimate, r.ErrorEstimate = 0xc100, 0xc100
		var gotS SenderPacket
		var gotR ReflectorPacket
		var errS, errR error
		if auth == nil {
			s.Put(b)
			errS = gotS.Parse(b)
			r.Put(b)
			errR = gotR.Parse(b)
		} else {
			s.PutAuth(b, auth)
			errS = gotS.ParseAuth(b, auth)
			r.PutAuth(b, auth)
			errR = gotR.ParseAuth(b, auth)
		}
		if !errors.Is(errS, ErrMultiplier) || !errors.Is(errR, ErrMultiplier) {
			t.Errorf("errors %v and %v, want ErrMultiplier", errS, errR)
		}
		if gotS != s || gotR != r {
			t.Errorf("read %+v and %+v, want %+v and %+v all the same", gotS, gotR, s, r)
		}
	}
	r := reflectorVector
	r.SenderErrorEstimate = 0
	r.Put(b)
	if err := r.Parse(b); err != nil {
		t.Errorf("an echoed estimate of zero: %v, want no error", err)
	}
}

func TestAuthenticatedPacketIsTamperProof(t *testing.T) {
	auth, other := NewAuthenticator([]byte("key")), NewAuthenticator([]byte("another"))
	s, r := make([]byte, AuthBaseLen), make([]byte, AuthBaseLen)
	senderVector.PutAuth(s, auth)
	reflectorVector.PutAuth(r, auth)
	for bit := range AuthBaseLen * 8 {
		s[bit/8] ^= 1 << (bit % 8)
		r[bit/8] ^= 1 << (bit % 8)
		var gotS SenderPacket
		var gotR ReflectorPacket
		if err := gotS.ParseAuth(s, auth); !errors.Is(err, ErrHMAC) || gotS != (SenderPacket{}) {
			t.Errorf("sender, bit %d: %v, want ErrHMAC", bit, err)
		}
		if err := gotR.ParseAuth(r, auth); !errors.Is(err, ErrHMAC) || gotR != (ReflectorPacket{}) {
			t.Errorf("reflector, bit %d: %v, want ErrHMAC", bit, err)
		}
		s[bit/8] ^= 1 << (bit % 8)
		r[bit/8] ^= 1 << (bit % 8)
	}
	var got SenderPacket
	if err := got.ParseAuth(s, other); !errors.Is(err, ErrHMAC) {
		t.Errorf("another key: %v, want ErrHMAC", err)
	}
	if err := got.ParseAuth(s, auth); err != nil {
		t.Errorf("the right key after failures: %v", err)
	}
}

func TestAnswerCopiesWhatAReplyRepeats(t *testing.T) {
	r := ReflectorPacket{Seq: 1, Timestamp: 2, ErrorEstimate: 3, Receive: 4, SenderTTL: 5}
	r.EchoProbe(&senderVector)
	want := ReflectorPacket{
		Seq: 1, Timestamp: 2, ErrorEstimate: 3, SSID: 0x3132, Receive: 4, SenderSeq: 0x01020304,
		SenderTimestamp: 0x1112131415161718, SenderErrorEstimate: 0xc123, SenderTTL: 5,
	}
	if r != want {
		t.Errorf("got %+v, want %+v", r, want)
	}
}
