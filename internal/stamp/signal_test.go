package stamp

import (
	"bytes"
	"testing"
)

// TestSignal reflects the in-band signal of a request, plain and authenticated. A reflector that sees no signals returns the TLV
// unchanged with U=1, which is no signal.
func TestSignal(t *testing.T) {
	auth := NewAuthenticator([]byte("key"))
	wide := Signal{Format: 8, EtherType: 0x88b6, Value: [6]byte{0xbe, 0xef, 0x21, 0x23, 0x45, 0}, Seen: 65535}
	for _, tc := range []struct {
		name string
		sent Signal
		wire string // the value
	}{
		{"wide", wide, "\x08\x00\x88\xb6\xbe\xef\x21\x23\x45\x00\xff\xff"},
		{"compact", Signal{Format: 4, EtherType: 0x9900, Value: [6]byte{0x2b, 0x85}, Seen: 1}, "\x04\x00\x99\x00\x2b\x85\x00\x00\x00\x00\x00\x01"},
		{"no tag", Signal{Seen: 7}, "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07"},
		{"malformed", Signal{Malformed: true, EtherType: 0x88b5}, "\x00\x80\x88\xb5\x00\x00\x00\x00\x00\x00\x00\x00"},
	} {
		for _, a := range []*Authenticator{nil, auth} {
			base := BaseLen
			if a != nil {
				base = AuthBaseLen
			}
			request := AppendSignal(make([]byte, base, 256))
			reply := make([]byte, 256)
			if a == nil {
				senderVector.Put(request)
				reflectorVector.Put(reply)
			} else {
				senderVector.PutAuth(request, a)
				reflectorVector.PutAuth(reply, a)
				request = AppendHMAC(request, base, a)
			}
			v := testValues
			v.Signal, v.SeesSignals = tc.sent, true
			r := v.Reflect(reply, request, base, a)
			var an Answers
			if err := an.Parse(reply[:r.Len], base, a); err != nil || !an.HasSignal || an.Signal != tc.sent {
				t.Errorf("%s: %v: %v %+v", tc.name, err, an.HasSignal, an.Signal)
			}
			if got := reply[base+tlvHeaderLen : base+tlvHeaderLen+signalLen]; string(got) != tc.wire {
				t.Errorf("%s: % x", tc.name, got)
			}
			v.SeesSignals = false
			r = v.Reflect(reply, request, base, a)
			if err := an.Parse(reply[:r.Len], base, a); err != nil || an.HasSignal || an.Signal != (Signal{}) {
				t.Errorf("%s, from a reflector that sees none: %v: %+v", tc.name, err, an)
			}
			if !bytes.Equal(reply[base+1:base+tlvHeaderLen+signalLen], request[base+1:base+tlvHeaderLen+signalLen]) || reply[base] != byte(Unrecognized) {
				t.Errorf("%s: % x for % x", tc.name, reply[base:r.Len], request[base:])
			}
		}
	}
}

// TestSignalOfNoReflector has values that no reflector writes, and one of another length.
func TestSignalOfNoReflector(t *testing.T) {
	for _, value := range []string{
		"\x05\x00\x88\xb6\xbe\xef\x21\x23\x45\x00\x00\x01", // a format that there is not
		"\x04\x00\x88\xb5\x2b\x85\x01\x00\x00\x00\x00\x01", // a compact tag of three octets
		"\x00\x00\x00\x00\x2b\x85\x00\x00\x00\x00\x00\x01", // a value without a tag
		"\x08\x80\x88\xb6\xbe\xef\x21\x23\x45\x00\x00\x01", // a malformed tag with a value
	} {
		reply := make([]byte, BaseLen, 100)
		reflectorVector.Put(reply)
		reply = AppendTLV(reply, TLV{Type: TypeSignal, Value: []byte(value)})
		var an Answers
		if err := an.Parse(reply, BaseLen, nil); err != nil || an.HasSignal || an.Signal != (Signal{}) {
			t.Errorf("% x: %v: %+v", value, err, an.Signal)
		}
	}
	reply := make([]byte, BaseLen, 100)
	reflectorVector.Put(reply)
	var an Answers
	if err := an.Parse(AppendTLV(reply, TLV{Type: TypeSignal, Value: make([]byte, 11)}), BaseLen, nil); err != ErrMalformed {
		t.Errorf("a TLV of 11 octets: %v", err)
	}
}
