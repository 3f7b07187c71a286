package stamp

import (
	"bytes"
	"errors"
	"testing"
)

func seedPackets(f *testing.F) {
	auth := NewAuthenticator([]byte("key"))
	for _, s := range []string{senderWire, reflectorWire, senderAuthWire, reflectorAuthWire} {
		f.Add(unhex(f, s))
	}
	for _, p := range reflectorSamples() {
		b := make([]byte, BaseLen)
		p.Put(b)
		f.Add(b)
	}
	f.Add(allRequests(BaseLen, nil))
	f.Add(allRequests(BaseLen, auth))
	f.Add(allRequests(AuthBaseLen, auth))
	b := make([]byte, AuthBaseLen)
	reflectorVector.PutAuth(b, auth)
	f.Add(b)
}

// FuzzSender checks that a packet that can be parsed is written back as the same octets, except for the MBZ field.
func FuzzSender(f *testing.F) {
	seedPackets(f)
	auth := NewAuthenticator([]byte("key"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p SenderPacket
		if err := p.Parse(b); !errors.Is(err, ErrShort) {
			want := bytes.Clone(b[:BaseLen])
			clear(want[16:])
			got := ones(BaseLen)
			p.Put(got)
			if !bytes.Equal(got, want) {
				t.Errorf("wrote\n%x of\n%x", got, want)
			}
			if (err != nil) != (b[13] == 0) {
				t.Errorf("multiplier %d: %v", b[13], err)
			}
		}
		if err := p.ParseAuth(b, auth); err == nil {
			got := ones(AuthBaseLen)
			p.PutAuth(got, auth)
			var again SenderPacket
			if err := again.ParseAuth(got, auth); err != nil || again != p {
				t.Errorf("%v: %+v came back as %+v", err, p, again)
			}
		}
	})
}

// FuzzReflector does the same as FuzzSender for replies.
func FuzzReflector(f *testing.F) {
	seedPackets(f)
	auth := NewAuthenticator([]byte("key"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p ReflectorPacket
		if err := p.Parse(b); !errors.Is(err, ErrShort) {
			want := bytes.Clone(b[:BaseLen])
			clear(want[38:40])
			clear(want[41:])
			got := ones(BaseLen)
			p.Put(got)
			if !bytes.Equal(got, want) {
				t.Errorf("wrote\n%x of\n%x", got, want)
			}
			if (err != nil) != (b[13] == 0) {
				t.Errorf("multiplier %d: %v", b[13], err)
			}
		}
		if err := p.ParseAuth(b, auth); err == nil {
			got := ones(AuthBaseLen)
			p.PutAuth(got, auth)
			var again ReflectorPacket
			if err := again.ParseAuth(got, auth); err != nil || again != p {
				t.Errorf("%v: %+v came back as %+v", err, p, again)
			}
		}
	})
}

// FuzzTLVs checks that well-formed TLVs are written back as the same octets. Any packet is reflected at its own length
// with the types and lengths that it had, with and without authentication, and the sender finds in the reply what the
// reflector answered.
func FuzzTLVs(f *testing.F) {
	seedPackets(f)
	for _, s := range []string{
		"80030004 00000000 80040005 6800000000 80030004 00000000", "80c80005 01020304", "ff",
		"80070012 ffffffffffffffffffffffffffffffffffff", "80080010 00000000000000000000000000000000 80030004 00000000",
	} {
		f.Add(probeWith(f, s))
	}
	auth := NewAuthenticator([]byte("key"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < BaseLen || len(b) > 1<<16-1 {
			return
		}
		var err error
		written := []byte{}
		for rest := b[BaseLen:]; len(rest) > 0 && err == nil; {
			var tlv TLV
			if tlv, rest, err = NextTLV(rest); err == nil {
				written = AppendTLV(written, tlv)
			}
		}
		if !bytes.HasPrefix(b[BaseLen:], written) || err == nil && len(written) != len(b)-BaseLen {
			t.Errorf("wrote\n%x of\n%x", written, b[BaseLen:])
		}

		reflect := func(request []byte, a *Authenticator) {
			before := bytes.Clone(request)
			reply := replyFor(request)
			r := testValues.Reflect(reply, request, BaseLen, a)
			if r.Len != len(request) || !bytes.Equal(request, before) {
				t.Fatalf("request changed, or reply of %d octets to one of %d", r.Len, len(request))
			}
			var an Answers
			errAn := an.Parse(reply, BaseLen, a)
			switch {
			case r.Integrity:
				if !errors.Is(errAn, ErrIntegrity) || an != (Answers{}) || r.Answered != 0 {
					t.Errorf("%+v, sender %v %+v", r, errAn, an)
				}
			case r.Malformed:
				if errAn == nil {
					t.Errorf("%+v, sender has no error", r)
				}
			default:
				if errAn != nil || an.Has != r.Answered {
					t.Errorf("%+v, sender %v %+v", r, errAn, an)
				}
			}
			for was, is := request[BaseLen:], reply[BaseLen:]; len(is) > 0; {
				if !bytes.Equal(is[1:min(4, len(is))], was[1:min(4, len(is))]) {
					t.Fatalf("header changed: %x, was %x", is, was)
				}
				var errWas, errIs error
				_, was, errWas = NextTLV(was)
				_, is, errIs = NextTLV(is)
				if errWas != errIs {
					t.Fatalf("%v, was %v", errIs, errWas)
				}
			}
		}
		reflect(b, nil)
		reflect(b, auth)
		reflect(AppendHMAC(bytes.Clone(b), BaseLen, auth), auth)
	})
}
