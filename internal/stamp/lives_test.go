package stamp

import (
	"encoding/binary"
	"errors"
	"testing"
)

// sentBy and answeredBy stand for the two ends.
const sentBy, answeredBy = 0x1111, 0x2222

// requestWithLife returns an authenticated probe with a life number.
func requestWithLife(life uint64, a *Authenticator) []byte {
	b := make([]byte, AuthBaseLen, 256)
	senderVector.PutAuth(b, a)
	b = AppendFollowUp(AppendLives(b, life, sentBy))
	return AppendHMAC(b, AuthBaseLen, a)
}

// TestLives checks that the reflector knows the sender's life once the TLVs are verified, and that the sender finds its
// own life and the reflector's in the reply.
func TestLives(t *testing.T) {
	auth := NewAuthenticator([]byte("key"))
	request := requestWithLife(1<<40+7, auth)
	c := VerifyTLVs(request, AuthBaseLen, auth)
	if life, ok := c.SenderLife(sentBy); !ok || life != 1<<40+7 {
		t.Errorf("life %d, %v", life, ok)
	}
	reply := make([]byte, len(request))
	reflectorVector.PutAuth(reply, auth)
	v := testValues
	v.Life, v.Who = 99, answeredBy
	r := v.ReflectVerified(reply, request, AuthBaseLen, auth, c)
	if r.Len != len(request) || r.Integrity || r.Malformed {
		t.Errorf("reflection %+v", r)
	}
	var an Answers
	if err := an.Parse(reply, AuthBaseLen, auth); err != nil || an.Lives.Sender != 1<<40+7 || an.Lives.Reflector != 99 || !an.Lives.BelongTo(reply, answeredBy) {
		t.Errorf("%v: %+v", err, an.Lives)
	}
	if an.Lives.BelongTo(reply, sentBy) || an.Lives.BelongTo(request, answeredBy) {
		t.Error("the lives of a reply are taken for another packet's, or another sender's")
	}

	// These are lives of another base packet with the same sequence number, or of a packet that the other end sent.
	other := make([]byte, AuthBaseLen, len(request))
	late := senderVector
	late.Timestamp++
	late.PutAuth(other, auth)
	other = append(other, request[AuthBaseLen:]...)
	if c := VerifyTLVs(other, AuthBaseLen, auth); !c.IsAuthentic() {
		t.Error("a joined packet is not authentic: this test tests nothing")
	} else if life, ok := c.SenderLife(sentBy); ok {
		t.Errorf("life %d of another base packet is believed", life)
	}
	if life, ok := c.SenderLife(answeredBy); ok {
		t.Errorf("life %d is taken for the other end's", life)
	}

	// A reflector that does not know the type returns it unchanged, with U=1.
	at := AuthBaseLen
	old := append([]byte{}, request...)
	reflectorVector.PutAuth(old, auth)
	old[at] = byte(Unrecognized)
	old = AppendHMAC(old[:len(old)-tlvHeaderLen-HMACLen], AuthBaseLen, auth)
	old[len(old)-tlvHeaderLen-HMACLen] = 0
	if err := an.Parse(old, AuthBaseLen, auth); err != nil || an.Lives != (Lives{}) {
		t.Errorf("from an older reflector: %v: %+v", err, an.Lives)
	}

	none := AppendHMAC(AppendFollowUp(request[:AuthBaseLen:AuthBaseLen]), AuthBaseLen, auth)
	if c := VerifyTLVs(none, AuthBaseLen, auth); !c.IsAuthentic() {
		t.Error("a probe without a life is not authentic")
	} else if life, ok := c.SenderLife(sentBy); ok {
		t.Errorf("a probe without a life has %d", life)
	}
	zero := requestWithLife(0, auth)
	if c := VerifyTLVs(zero, AuthBaseLen, auth); !c.IsAuthentic() {
		t.Error("a probe whose life is not known is not authentic")
	} else if _, ok := c.SenderLife(sentBy); ok {
		t.Error("0 is taken for a life")
	}
	short := append(requestWithLife(5, auth)[:AuthBaseLen:AuthBaseLen], byte(Unrecognized), byte(TypeLives), 0, 8, 0, 0, 0, 0, 0, 0, 0, 5)
	short = AppendHMAC(short, AuthBaseLen, auth)
	if c := VerifyTLVs(short, AuthBaseLen, auth); !c.IsAuthentic() {
		t.Error("a TLV of wrong length is authentic all the same")
	} else if _, ok := c.SenderLife(sentBy); ok {
		t.Error("a TLV of wrong length has a life")
	}
	if r := v.ReflectVerified(make([]byte, len(short)), short, AuthBaseLen, auth, VerifyTLVs(short, AuthBaseLen, auth)); !r.Malformed {
		t.Errorf("a TLV of wrong length: %+v", r)
	}
}

// FuzzLives checks that a life number is found as it was sent, and in no packet that differs from it in the TLVs or the
// sequence number.
func FuzzLives(f *testing.F) {
	f.Add(uint64(1), uint16(0), uint8(1))
	f.Add(uint64(1<<63), uint16(116), uint8(0x80))
	f.Add(^uint64(0), uint16(4), uint8(0xff))
	auth := NewAuthenticator([]byte("key"))
	f.Fuzz(func(t *testing.T, life uint64, at uint16, by uint8) {
		b := requestWithLife(life, auth)
		c := VerifyTLVs(b, AuthBaseLen, auth)
		if got, ok := c.SenderLife(sentBy); got != life || ok != (life != 0) {
			t.Fatalf("life %d came back as %d, %v", life, got, ok)
		}
		// The octets that the HMAC TLV covers: the sequence number, and the TLVs before it.
		place := int(at) % (seqLen + len(b) - AuthBaseLen - tlvHeaderLen - HMACLen)
		if place >= seqLen {
			place += AuthBaseLen - seqLen
		}
		b[place] ^= by
		c = VerifyTLVs(b, AuthBaseLen, auth)
		if got, ok := c.SenderLife(sentBy); by != 0 && ok {
			t.Errorf("octet %d changed by %#x: life %d is believed", place, by, got)
		}
		reply := make([]byte, len(b))
		if r := testValues.ReflectVerified(reply, b, AuthBaseLen, auth, c); r.Len != len(b) {
			t.Errorf("a reply of %d octets to %d", r.Len, len(b))
		}
		var an Answers
		if err := an.Parse(b, AuthBaseLen, auth); by != 0 && !errors.Is(err, ErrIntegrity) {
			t.Errorf("octet %d changed by %#x: %v", place, by, err)
		}
		if n := binary.BigEndian.Uint16(requestWithLife(life, auth)[AuthBaseLen+offTLVLength:]); n != livesLen {
			t.Errorf("a TLV of %d octets", n)
		}
	})
}
