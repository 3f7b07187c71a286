package stamp

import (
	"crypto/hmac"
	"crypto/sha256"
	"hash"
)

// Authenticator computes the HMACs of one key. It reuses its state from packet to packet, so only one goroutine at a
// time may use it.
type Authenticator struct {
	mac    hash.Hash
	digest [sha256.Size]byte
}

// NewAuthenticator returns an Authenticator of key, the shared secret of one or more sessions. The distribution of keys
// is outside the scope of RFC 8762 4.4.
func NewAuthenticator(key []byte) *Authenticator {
	return &Authenticator{mac: hmac.New(sha256.New, key)}
}

// truncatedHMAC returns the truncated HMAC-SHA-256 (RFC 8762 4.4) of a followed by b.
// The result is valid until the next call.
func (au *Authenticator) truncatedHMAC(a, b []byte) []byte {
	au.mac.Reset()
	au.mac.Write(a)
	au.mac.Write(b)
	return au.mac.Sum(au.digest[:0])[:HMACLen]
}

func (au *Authenticator) checkBase(b []byte) error {
	if len(b) < AuthBaseLen {
		return ErrShort
	}
	if !hmac.Equal(b[offAuthHMAC:AuthBaseLen], au.truncatedHMAC(b[:offAuthHMAC], nil)) {
		return ErrHMAC
	}
	return nil
}

// checkTLVs reports whether the HMAC TLV verifies whose header is at offset at of area, the TLV area of packet: RFC
// 8972 4.8.
func (au *Authenticator) checkTLVs(packet, area []byte, at int) bool {
	got := area[at+tlvHeaderLen:][:HMACLen]
	return hmac.Equal(got, au.truncatedHMAC(packet[:seqLen], area[:at]))
}
