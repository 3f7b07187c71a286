package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Authority signs the certificates of daemons.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// OpenAuthority reads an authority from the PEM files of its certificate, which is the first one of its file, and of its
// key. It returns an error that names the file.
func OpenAuthority(certFile, keyFile string) (*Authority, error) {
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	a, err := ParseAuthority(Pair{Cert: cert, Key: key})
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", certFile, keyFile, err)
	}
	return a, nil
}

// ParseAuthority returns the authority of a certificate and its key.
func ParseAuthority(p Pair) (*Authority, error) {
	ca, err := parseCertificate(p.Cert)
	if err != nil {
		return nil, fmt.Errorf("the authority's certificate: %w", err)
	}
	if !ca.IsCA {
		return nil, fmt.Errorf("the certificate of %q is not that of an authority", ca.Subject.CommonName)
	}
	key, err := parseSigner(p.Key)
	if err != nil {
		return nil, fmt.Errorf("the authority's key: %w", err)
	}
	if public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(ca.PublicKey) {
		return nil, errors.New("the authority's key is not that of its certificate")
	}
	return &Authority{ca, key}, nil
}

// Certificate returns the authority's own certificate.
func (a *Authority) Certificate() *x509.Certificate { return a.certificate }

// Sign returns the certificate (DER) of a public key for one daemon, for use as server and as client. The first name is
// the common name, too. Names are host names or addresses. The certificate does not outlive the authority's.
func (a *Authority) Sign(key any, names []string, life time.Duration, now time.Time) ([]byte, error) {
	if len(names) == 0 || names[0] == "" {
		return nil, errors.New("a certificate needs at least one name")
	}
	t, err := newTemplate(names[0], life, now)
	if err != nil {
		return nil, err
	}
	if t.NotAfter.After(a.certificate.NotAfter) {
		t.NotAfter = a.certificate.NotAfter
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
	der, err := x509.CreateCertificate(rand.Reader, t, a.certificate, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %q: %w", names[0], err)
	}
	return der, nil
}

// NewKey returns a private key for a daemon, and its PEM text.
func NewKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate the key: %w", err)
	}
	text, err := encodeKey(key)
	return key, text, err
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), nil
}

// EncodeCertificate returns the PEM text of a certificate (DER).
func EncodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// ParseCertificates returns the certificates among the PEM blocks of a text. Blocks of other types, and certificates that
// cannot be parsed, are skipped.
func ParseCertificates(text []byte) []*x509.Certificate { return parseCertificates(text) }

// ParseKey returns the first private key among the PEM blocks of a text, which has to be ECDSA.
func ParseKey(text []byte) (*ecdsa.PrivateKey, error) {
	key, err := parseSigner(text)
	if err != nil {
		return nil, err
	}
	own, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a key of type %T, want ECDSA", key)
	}
	return own, nil
}

// parseSigner returns the first private key among the PEM blocks of a text: PKCS #8, SEC 1 or PKCS #1.
func parseSigner(text []byte) (crypto.Signer, error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil, errors.New("want a PEM block of a PRIVATE KEY")
		}
		switch block.Type {
		case "PRIVATE KEY":
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, err
			}
			signer, ok := key.(crypto.Signer)
			if !ok {
				return nil, fmt.Errorf("a key of type %T, which cannot sign", key)
			}
			return signer, nil
		case "EC PRIVATE KEY":
			return x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			return x509.ParsePKCS1PrivateKey(block.Bytes)
		}
	}
}

// NewSigningRequest returns a request (PKCS #10, DER) to sign a certificate for a key. It has no names: who signs knows
// them from elsewhere.
func NewSigningRequest(key *ecdsa.PrivateKey) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
}

// KeyOfRequest returns the public key of a signing request whose signature proves that the sender has the private key.
// It accepts ECDSA of 256 bits or more, and Ed25519.
func KeyOfRequest(der []byte) (any, error) {
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	switch k := r.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if bits := k.Curve.Params().BitSize; bits < 256 {
			return nil, fmt.Errorf("a key of %d bits, want at least 256", bits)
		}
	case ed25519.PublicKey:
	default:
		return nil, fmt.Errorf("a key of type %T, want ECDSA or Ed25519", k)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the request is not signed with its key: %w", err)
	}
	return r.PublicKey, nil
}
