package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"sync"
)

// Files has the names of the PEM files of one side of mutual TLS.
type Files struct {
	CA   string // certificates of the authorities that must have signed the other side's certificate
	Cert string
	Key  string
	// Revoked lists the serial numbers of certificates of the other side that are not accepted. If it
	// is empty, there is no list.
	Revoked string
}

// Keeper holds the content of the files and reads changed files again before the next handshake. If
// files cannot be used, the old ones stay in use: a certificate is replaced in two steps, and in
// between it does not match its key.
type Keeper struct {
	files Files
	warn  func(error)

	mu      sync.Mutex
	stamps  []fileStamp
	warned  string
	roots   *x509.CertPool
	cert    *tls.Certificate
	revoked map[string]bool // by serial number, hexadecimal
	// expiries are those of roots and cert.
	expiries []Expiry
	version  uint64
}

// Open reads the files and returns a keeper. It calls warn with the reason, once for each, when changed
// files cannot be used.
func Open(files Files, warn func(error)) (*Keeper, error) {
	k := &Keeper{files: files, warn: warn}
	stamps, err := k.statFiles()
	if err != nil {
		return nil, err
	}
	if err := k.loadFiles(stamps); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *Keeper) statFiles() (out []fileStamp, err error) {
	names := []string{k.files.CA, k.files.Cert, k.files.Key}
	if k.files.Revoked != "" {
		names = append(names, k.files.Revoked)
	}
	for _, name := range names {
		s, err := statFile(name)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (k *Keeper) loadFiles(stamps []fileStamp) error {
	ca, err := os.ReadFile(k.files.CA)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	issuers := parseCertificates(ca)
	if len(issuers) == 0 {
		return fmt.Errorf("%s: holds no PEM certificate", k.files.CA)
	}
	for _, c := range issuers {
		roots.AddCert(c)
	}
	cert, err := tls.LoadX509KeyPair(k.files.Cert, k.files.Key)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			return err
		}
		return fmt.Errorf("%s with %s: %w", k.files.Cert, k.files.Key, err)
	}
	if cert.Leaf == nil {
		if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return fmt.Errorf("%s: %w", k.files.Cert, err)
		}
	}
	var revoked map[string]bool
	if k.files.Revoked != "" {
		text, err := os.ReadFile(k.files.Revoked)
		if err != nil {
			return err
		}
		if revoked, err = parseRevoked(text); err != nil {
			return fmt.Errorf("%s:%w", k.files.Revoked, err)
		}
	}
	var chain []*x509.Certificate
	for _, der := range cert.Certificate {
		if c, err := x509.ParseCertificate(der); err == nil {
			chain = append(chain, c)
		}
	}
	k.expiries = append(expiries(k.files.CA, UseAuthority, issuers), expiries(k.files.Cert, UseCertificate, chain)...)
	k.roots, k.cert, k.revoked, k.stamps, k.warned = roots, &cert, revoked, stamps, ""
	k.version++
	return nil
}

// Version returns a number that changes when the files have changed and the new ones can be used.
func (k *Keeper) Version() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reloadIfChanged()
	return k.version
}

func (k *Keeper) reloadIfChanged() {
	stamps, err := k.statFiles()
	if err == nil {
		if slices.EqualFunc(stamps, k.stamps, fileStamp.equal) {
			return
		}
		err = k.loadFiles(stamps)
	}
	if err != nil && err.Error() != k.warned {
		k.warned = err.Error()
		k.warn(fmt.Errorf("the old certificates stay in use: %w", err))
	}
}

func (k *Keeper) currentCertificates() (*x509.CertPool, *tls.Certificate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reloadIfChanged()
	return k.roots, k.cert
}

// CertificateName returns the first DNS name of the certificate in use, or else its first address. It
// never returns the common name, which servers ignore.
func (k *Keeper) CertificateName() string {
	_, cert := k.currentCertificates()
	if names := NamesOf(cert.Leaf); len(names) > 0 {
		return names[0]
	}
	return ""
}

// CheckOwn returns an error if the certificate in use is not a server's of one of the authorities.
func (k *Keeper) CheckOwn(roots *x509.CertPool) error {
	_, cert := k.currentCertificates()
	between := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}

// Trusts reports whether certificates of the other side are accepted if that authority signed them.
func (k *Keeper) Trusts(authority *x509.Certificate) bool {
	roots, _ := k.currentCertificates()
	_, err := authority.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

// NamesOf returns the names that a certificate proves: its DNS names, then its addresses.
func NamesOf(c *x509.Certificate) []string {
	out := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		out = append(out, ip.String())
	}
	return out
}

// ErrRevoked is returned for a certificate whose serial number is in the list of revoked ones.
var ErrRevoked = errors.New("the certificate is revoked")

// Verify returns an error if a client with these certificates, its own first, would not be accepted
// now. errors.Is finds ErrRevoked.
func (k *Keeper) Verify(chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return errors.New("the client has no certificate")
	}
	k.mu.Lock()
	k.reloadIfChanged()
	roots := k.roots
	k.mu.Unlock()
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return err
	}
	return k.checkRevoked(chain)
}

func (k *Keeper) checkRevoked(chain []*x509.Certificate) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range chain {
		if serial := serialText(c.SerialNumber); k.revoked[serial] {
			return fmt.Errorf("%w: serial number %s", ErrRevoked, serial)
		}
	}
	return nil
}

// serialText returns a serial number in the form of openssl x509 -serial, in lower case and without
// leading zeros.
func serialText(n *big.Int) string { return n.Text(16) }

// parseRevoked parses a list of serial numbers, one a line, hexadecimal as openssl x509 -serial prints
// them, with or without colons and its "serial=". It skips empty lines and text after a #. An error
// begins with the line's number.
func parseRevoked(text []byte) (map[string]bool, error) {
	out := map[string]bool{}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		digits := strings.ReplaceAll(strings.TrimPrefix(line, "serial="), ":", "")
		n, ok := new(big.Int).SetString(digits, 16)
		if !ok || n.Sign() <= 0 || len(digits) > 40 {
			return nil, fmt.Errorf("%d: %q: want a serial number of up to 40 hexadecimal digits", number, line)
		}
		out[serialText(n)] = true
	}
	return out, nil
}

// Expiries implements Source: it returns the certificates that the next handshake uses. While the files
// cannot be used, those are the earlier ones.
func (k *Keeper) Expiries() []Expiry {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reloadIfChanged()
	return slices.Clone(k.expiries)
}

// ServerConfig returns a configuration that requires a certificate of the client. It is for servers of
// HTTP/2. Sessions are not resumed, since a client whose authority is no longer accepted could connect
// with an old ticket.
func (k *Keeper) ServerConfig() *tls.Config {
	config := func() *tls.Config {
		roots, cert := k.currentCertificates()
		return &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
			Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}, SessionTicketsDisabled: true,
			VerifyConnection: func(s tls.ConnectionState) error { return k.checkRevoked(s.PeerCertificates) }}
	}
	c := config()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return config(), nil }
	return c
}

// ClientConfig returns a configuration for one connection to a server of that name.
func (k *Keeper) ClientConfig(serverName string) *tls.Config {
	roots, cert := k.currentCertificates()
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: serverName,
		Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}}
}
