// Package pki keeps the certificates of mutual TLS as files that may be replaced while they are in use,
// and makes certificates for labs and for first steps. It is no public-key infrastructure: it revokes
// only the certificates of a local list, keeps no record of issued certificates, and its authority's
// key is in a file.
package pki

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// clockSkew is the time before the present at which the life of a certificate begins, for hosts whose
// clocks are behind.
const clockSkew = 5 * time.Minute

// Pair is a certificate and its private key, both PEM.
type Pair struct{ Cert, Key []byte }

// NewAuthority returns a certificate authority that signs itself.
func NewAuthority(name string, life time.Duration, now time.Time) (Pair, error) {
	key, text, err := NewKey()
	if err != nil {
		return Pair{}, err
	}
	t, err := newTemplate(name, life, now)
	if err != nil {
		return Pair{}, err
	}
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the certificate of %q: %w", name, err)
	}
	return Pair{Cert: EncodeCertificate(der), Key: text}, nil
}

// Issue returns a certificate for one daemon, for use as server and as client. The first name is the
// common name, too. Names are host names or addresses.
func Issue(authority Pair, names []string, life time.Duration, now time.Time) (Pair, error) {
	a, err := ParseAuthority(authority)
	if err != nil {
		return Pair{}, err
	}
	key, text, err := NewKey()
	if err != nil {
		return Pair{}, err
	}
	der, err := a.Sign(&key.PublicKey, names, life, now)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: EncodeCertificate(der), Key: text}, nil
}

func newTemplate(name string, life time.Duration, now time.Time) (*x509.Certificate, error) {
	if life <= 0 {
		return nil, fmt.Errorf("a life of %v: want a positive duration", life)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generate a serial number: %w", err)
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(life)}, nil
}

func parseCertificate(b []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("want PEM that begins with a CERTIFICATE")
	}
	return x509.ParseCertificate(block.Bytes)
}
