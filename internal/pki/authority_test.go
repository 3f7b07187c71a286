package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"
)

// TestAuthoritiesOfOtherPrograms has keys in the formats of openssl, of Helm and of older tools.
func TestAuthoritiesOfOtherPrograms(t *testing.T) {
	ec, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	old, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := x509.MarshalECPrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(ed)
	if err != nil {
		t.Fatal(err)
	}
	// openssl ecparam -genkey writes the parameters first.
	parameters := pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6, 5, 0x2b, 0x81, 4, 0, 0x22}})
	for name, tc := range map[string]struct {
		key  crypto.Signer
		text []byte
	}{
		"SEC 1":   {ec, append(parameters, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: sec1})...)},
		"PKCS #1": {old, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(old)})},
		"Ed25519": {ed, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})},
	} {
		c, err := newTemplate("site", time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		der, err := x509.CreateCertificate(rand.Reader, c, c, tc.key.Public(), tc.key)
		if err != nil {
			t.Fatal(err)
		}
		pair := Pair{EncodeCertificate(der), tc.text}
		p, err := Issue(pair, []string{"h1"}, 2*time.Hour, time.Now())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		issued, ca := ParseCertificates(p.Cert)[0], ParseCertificates(pair.Cert)[0]
		if err := issued.CheckSignatureFrom(ca); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if issued.NotAfter.After(ca.NotAfter) {
			t.Errorf("%s: the certificate ends at %v, its authority before, at %v", name, issued.NotAfter, ca.NotAfter)
		}
	}
}

func TestSigningRequests(t *testing.T) {
	key, _, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := NewSigningRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	got, err := KeyOfRequest(der)
	if err != nil || !key.PublicKey.Equal(got) {
		t.Errorf("%v %v", got, err)
	}
	forged := append([]byte{}, der...)
	forged[len(forged)-1] ^= 1
	old, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, old)
	if err != nil {
		t.Fatal(err)
	}
	for want, der := range map[string][]byte{"not signed with its key": forged, "want ECDSA or Ed25519": foreign, "asn1": {0x30}} {
		if _, err := KeyOfRequest(der); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func FuzzKeyOfRequest(f *testing.F) {
	key, _, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	der, err := NewSigningRequest(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(der)
	f.Add([]byte{0x30, 0x80})
	f.Fuzz(func(t *testing.T, der []byte) {
		if key, err := KeyOfRequest(der); (key == nil) != (err != nil) {
			t.Errorf("%v %v", key, err)
		}
	})
}
