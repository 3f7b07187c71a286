// Package pki keeps the certificates of mutual TLS as files that may be replaced while they are in use,
// and makes certificates for labs and for first steps. It is no public-key infrastructure: it revokes
// only the certificates of a local list, keeps no record of issued certificates, and its authority's
// key is in a file.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// clockSkew is the time before the present at which the life of a certificate begins, for hosts whose
// clocks are behind.
const clockSkew = 5 * time.Minute

// Pair is a certificate and its private key, both PEM.
type Pair struct{ Cert, Key []byte }

// NewAuthority returns a certificate authority that signs itself.
func NewAuthority(name string, life time.Duration, now time.Time) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate the key of the authority: %w", err)
	}
	t, err := newTemplate(name, life, now)
	if err != nil {
		return Pair{}, err
	}
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	return signCertificate(t, t, key, key)
}

// Issue returns a certificate for one daemon, for use as server and as client. The first name is the
// common name, too. Names are host names or addresses.
func Issue(authority Pair, names []string, life time.Duration, now time.Time) (Pair, error) {
	if len(names) == 0 || names[0] == "" {
		return Pair{}, errors.New("a certificate needs at least one name")
	}
	ca, err := parseCertificate(authority.Cert)
	if err != nil {
		return Pair{}, fmt.Errorf("the authority's certificate: %w", err)
	}
	if !ca.IsCA {
		return Pair{}, fmt.Errorf("the certificate of %q is not that of an authority", ca.Subject.CommonName)
	}
	caKey, err := parseKey(authority.Key)
	if err != nil {
		return Pair{}, fmt.Errorf("the authority's key: %w", err)
	}
	if !caKey.PublicKey.Equal(ca.PublicKey) {
		return Pair{}, errors.New("the authority's key is not that of its certificate")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate the key: %w", err)
	}
	t, err := newTemplate(names[0], life, now)
	if err != nil {
		return Pair{}, err
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	return signCertificate(t, ca, key, caKey)
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

func signCertificate(t, parent *x509.Certificate, key, by *ecdsa.PrivateKey) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, by)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the certificate of %q: %w", t.Subject.CommonName, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode the key of %q: %w", t.Subject.CommonName, err)
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})}, nil
}

func parseCertificate(b []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("want PEM that begins with a CERTIFICATE")
	}
	return x509.ParseCertificate(block.Bytes)
}

func parseKey(b []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("want PEM that begins with a PRIVATE KEY (PKCS #8)")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	ec, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a key of type %T, want ECDSA", k)
	}
	return ec, nil
}
