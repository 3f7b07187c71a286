package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Files names the PEM files of one side of mutual TLS.
type Files struct {
	CA   string // certificates of the authorities that the other side's must come from
	Cert string
	Key  string
}

// Keeper holds what is in the files and reads them again, when they have
// changed, before the next handshake. Files that cannot be used leave the old
// ones at work: a certificate is replaced in two steps, and in between it does
// not match its key.
type Keeper struct {
	files Files
	warn  func(error)

	mu     sync.Mutex
	stamps [3]stamp
	warned string
	roots  *x509.CertPool
	cert   *tls.Certificate
	serial uint64
}

type stamp struct {
	modified time.Time
	size     int64
	file     os.FileInfo
}

func (s stamp) equal(o stamp) bool {
	return s.file != nil && o.file != nil && s.modified.Equal(o.modified) && s.size == o.size && os.SameFile(s.file, o.file)
}

// Open reads the files. warn is told, once each, why changed files cannot be used.
func Open(files Files, warn func(error)) (*Keeper, error) {
	k := &Keeper{files: files, warn: warn}
	stamps, err := k.stat()
	if err != nil {
		return nil, err
	}
	if err := k.load(stamps); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *Keeper) stat() (out [3]stamp, err error) {
	for i, name := range []string{k.files.CA, k.files.Cert, k.files.Key} {
		info, err := os.Stat(name)
		if err != nil {
			return out, err
		}
		out[i] = stamp{info.ModTime(), info.Size(), info}
	}
	return out, nil
}

func (k *Keeper) load(stamps [3]stamp) error {
	ca, err := os.ReadFile(k.files.CA)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return fmt.Errorf("%s: holds no PEM certificate", k.files.CA)
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
	k.roots, k.cert, k.stamps, k.warned = roots, &cert, stamps, ""
	k.serial++
	return nil
}

// Version changes when the files have changed for others that can be used.
func (k *Keeper) Version() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	return k.serial
}

func (k *Keeper) refresh() {
	stamps, err := k.stat()
	if err == nil {
		same := true
		for i := range stamps {
			same = same && stamps[i].equal(k.stamps[i])
		}
		if same {
			return
		}
		err = k.load(stamps)
	}
	if err != nil && err.Error() != k.warned {
		k.warned = err.Error()
		k.warn(fmt.Errorf("the old certificates stay in use: %w", err))
	}
}

func (k *Keeper) current() (*x509.CertPool, *tls.Certificate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refresh()
	return k.roots, k.cert
}

// Name is the common name of the certificate in use, else its first DNS name.
func (k *Keeper) Name() string {
	_, cert := k.current()
	if cn := cert.Leaf.Subject.CommonName; cn != "" || len(cert.Leaf.DNSNames) == 0 {
		return cn
	}
	return cert.Leaf.DNSNames[0]
}

// Server is a configuration that demands a certificate of the client. It is
// for servers of HTTP/2. Sessions are not resumed: a client whose authority is
// no longer accepted would come in by an old ticket.
func (k *Keeper) Server() *tls.Config {
	config := func() *tls.Config {
		roots, cert := k.current()
		return &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
			Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}, SessionTicketsDisabled: true}
	}
	c := config()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return config(), nil }
	return c
}

// Client is a configuration for one connection to a server of that name.
func (k *Keeper) Client(serverName string) *tls.Config {
	roots, cert := k.current()
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: serverName,
		Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}}
}
