package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func authority(t *testing.T, name string) Pair {
	t.Helper()
	p, err := NewAuthority(name, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func issue(t *testing.T, ca Pair, names ...string) Pair {
	t.Helper()
	p, err := Issue(ca, names, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// write replaces the files in the way of an operator's tool: each by a rename.
func write(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, b := range files {
		tmp := filepath.Join(dir, name+".new")
		if err := os.WriteFile(tmp, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func open(t *testing.T, ca []byte, p Pair) (k *Keeper, dir string, warnings *[]string) {
	t.Helper()
	dir = t.TempDir()
	write(t, dir, map[string][]byte{"ca": ca, "crt": p.Cert, "key": p.Key})
	warnings = &[]string{}
	k, err := Open(Files{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key")},
		func(err error) { *warnings = append(*warnings, err.Error()) })
	if err != nil {
		t.Fatal(err)
	}
	return k, dir, warnings
}

// shake makes one connection and returns the first error of either side, and the names that each found
// in the other's certificate.
func shake(t *testing.T, server, client *tls.Config) (serverName, clientName string, err error) {
	t.Helper()
	a, b := net.Pipe()
	s, c := tls.Server(a, server), tls.Client(b, client)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		if err != nil {
			a.Close()
		}
		done <- err
	}()
	cerr := c.Handshake()
	if cerr == nil {
		_, cerr = io.ReadFull(c, make([]byte, 1))
	}
	if cerr != nil {
		b.Close()
	}
	serr := <-done
	defer a.Close()
	defer b.Close()
	if serr != nil || cerr != nil {
		return "", "", errors.Join(serr, cerr)
	}
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName, s.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

func TestBothSidesProveWhoTheyAre(t *testing.T) {
	ca, other := authority(t, "lab"), authority(t, "stranger")
	server, _, _ := open(t, ca.Cert, issue(t, ca, "coordinator", "127.0.0.1"))
	client, _, _ := open(t, ca.Cert, issue(t, ca, "h1"))
	stranger, _, _ := open(t, ca.Cert, issue(t, other, "h1"))

	s, c, err := shake(t, server.ServerConfig(), client.ClientConfig("coordinator"))
	if err != nil || s != "coordinator" || c != "h1" {
		t.Fatalf("server %q, client %q, %v", s, c, err)
	}
	if _, _, err := shake(t, server.ServerConfig(), client.ClientConfig("127.0.0.1")); err != nil {
		t.Errorf("by address: %v", err)
	}
	if _, _, err := shake(t, server.ServerConfig(), client.ClientConfig("another")); err == nil {
		t.Error("a server of another name was believed")
	}
	if _, _, err := shake(t, server.ServerConfig(), stranger.ClientConfig("coordinator")); err == nil {
		t.Error("a client of another authority was let in")
	}
	bare := client.ClientConfig("coordinator")
	bare.Certificates = nil
	if _, _, err := shake(t, server.ServerConfig(), bare); err == nil {
		t.Error("a client without a certificate was let in")
	}
	old := client.ClientConfig("coordinator")
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, _, err := shake(t, server.ServerConfig(), old); err == nil {
		t.Error("TLS 1.2 was accepted")
	}
}

// A configuration from before the change serves the new certificate after it, and an authority that was
// removed from the file is refused from then on.
func TestReplacedFilesAreUsedFromTheNextHandshake(t *testing.T) {
	ca, next := authority(t, "first"), authority(t, "second")
	both := append(append([]byte{}, ca.Cert...), next.Cert...)
	server, sdir, _ := open(t, ca.Cert, issue(t, ca, "coordinator"))
	client, cdir, _ := open(t, both, issue(t, ca, "h1"))
	listening := server.ServerConfig()
	before := client.Version()

	write(t, sdir, map[string][]byte{"ca": both})
	p := issue(t, next, "coordinator")
	write(t, sdir, map[string][]byte{"crt": p.Cert, "key": p.Key})
	if _, c, err := shake(t, listening, client.ClientConfig("coordinator")); err != nil || c != "h1" {
		t.Fatalf("client %q, %v", c, err)
	}
	p = issue(t, next, "h1", "renewed")
	write(t, cdir, map[string][]byte{"crt": p.Cert, "key": p.Key})
	if client.Version() == before {
		t.Error("the version does not change with the new certificate")
	}
	write(t, sdir, map[string][]byte{"ca": next.Cert})
	if _, _, err := shake(t, listening, client.ClientConfig("coordinator")); err != nil {
		t.Errorf("the renewed client: %v", err)
	}
	old, _, _ := open(t, both, issue(t, ca, "h1"))
	if _, _, err := shake(t, listening, old.ClientConfig("coordinator")); err == nil {
		t.Error("the authority that was taken from the file is still accepted")
	}
}

func TestUnusableFilesLeaveTheOldOnes(t *testing.T) {
	ca := authority(t, "lab")
	server, dir, warnings := open(t, ca.Cert, issue(t, ca, "coordinator"))
	client, _, _ := open(t, ca.Cert, issue(t, ca, "h1"))
	p := issue(t, ca, "coordinator")
	write(t, dir, map[string][]byte{"crt": p.Cert})
	for range 3 {
		if _, _, err := shake(t, server.ServerConfig(), client.ClientConfig("coordinator")); err != nil {
			t.Fatal(err)
		}
	}
	if len(*warnings) != 1 || !strings.Contains((*warnings)[0], filepath.Join(dir, "crt")) {
		t.Errorf("warnings %q, want one that names the certificate's file", *warnings)
	}
	write(t, dir, map[string][]byte{"key": p.Key})
	if _, _, err := shake(t, server.ServerConfig(), client.ClientConfig("coordinator")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "ca")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := shake(t, server.ServerConfig(), client.ClientConfig("coordinator")); err != nil {
		t.Fatal(err)
	}
	if len(*warnings) != 2 {
		t.Errorf("%d warnings, want a second for the missing file", len(*warnings))
	}
}

// chainOf parses a certificate in the form in which a server gets it.
func chainOf(t *testing.T, p Pair) []*x509.Certificate {
	t.Helper()
	c, err := parseCertificate(p.Cert)
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{c}
}

func TestRevokedCertificatesAreRefused(t *testing.T) {
	ca := authority(t, "lab")
	first, second := issue(t, ca, "h1"), issue(t, ca, "h1")
	dir := t.TempDir()
	own := issue(t, ca, "coordinator")
	write(t, dir, map[string][]byte{"ca": ca.Cert, "crt": own.Cert, "key": own.Key, "revoked": []byte("# none yet\n")})
	at := func(n string) string { return filepath.Join(dir, n) }
	var warnings []string
	server, err := Open(Files{CA: at("ca"), Cert: at("crt"), Key: at("key"), Revoked: at("revoked")}, func(err error) { warnings = append(warnings, err.Error()) })
	if err != nil {
		t.Fatal(err)
	}
	config, before := server.ServerConfig(), server.Version()
	accepted := func(p Pair) bool {
		t.Helper()
		client, _, _ := open(t, ca.Cert, p)
		_, _, err := shake(t, config, client.ClientConfig("coordinator"))
		if verified := server.Verify(chainOf(t, p)) == nil; verified != (err == nil) {
			t.Errorf("Verify accepts: %v, a handshake: %v", verified, err)
		}
		return err == nil
	}
	if !accepted(first) || !accepted(second) {
		t.Fatal("a certificate that is not revoked is refused")
	}
	// The form of openssl x509 -serial, and the form of its text output, with colons.
	serial := strings.ToUpper(chainOf(t, first)[0].SerialNumber.Text(16))
	if len(serial)%2 == 1 {
		serial = "0" + serial
	}
	var pairs []string
	for i := 0; i < len(serial); i += 2 {
		pairs = append(pairs, strings.ToLower(serial[i:i+2]))
	}
	for _, line := range []string{"serial=" + serial, strings.Join(pairs, ":") + " # h1, lost", serial} {
		write(t, dir, map[string][]byte{"revoked": []byte("\n" + line + "\n")})
		if accepted(first) {
			t.Errorf("%q: the revoked certificate is accepted", line)
		}
		if !accepted(second) {
			t.Errorf("%q: another certificate of the node is refused", line)
		}
	}
	if server.Version() == before {
		t.Error("the version does not change with the list")
	}
	if err := server.Verify(chainOf(t, first)); !errors.Is(err, ErrRevoked) {
		t.Errorf("%v, want ErrRevoked", err)
	}
	// A list that cannot be read leaves the old one in use.
	write(t, dir, map[string][]byte{"revoked": []byte("h1\n")})
	if accepted(first) || !accepted(second) {
		t.Error("a list that cannot be read changed what is accepted")
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], `revoked:1: "h1": want a serial number`) {
		t.Errorf("warnings %q", warnings)
	}
	write(t, dir, map[string][]byte{"revoked": nil})
	if !accepted(first) {
		t.Error("a certificate that was taken from the list is refused")
	}
	if _, err := Open(Files{CA: at("ca"), Cert: at("crt"), Key: at("key"), Revoked: at("none")}, nil); err == nil {
		t.Error("a missing list is no error at the start")
	}
}

func TestExpiriesAreThoseOfTheFiles(t *testing.T) {
	ca, next := authority(t, "first"), authority(t, "second")
	own := issue(t, ca, "coordinator")
	k, dir, _ := open(t, append(slices.Clone(ca.Cert), append(ca.Cert, next.Cert...)...), own)
	want := map[string]time.Time{}
	for use, pairs := range map[string][]Pair{UseAuthority: {ca, next}, UseCertificate: {own}} {
		for _, p := range pairs {
			c := chainOf(t, p)[0]
			want[use+" "+c.SerialNumber.Text(16)] = c.NotAfter
		}
	}
	got := k.Expiries()
	if len(got) != len(want) {
		t.Errorf("%d expiries, want %d: %v", len(got), len(want), got)
	}
	for _, e := range got {
		file := map[string]string{UseAuthority: "ca", UseCertificate: "crt"}[e.Use]
		if !want[e.Use+" "+e.Serial].Equal(e.At) || e.File != filepath.Join(dir, file) {
			t.Errorf("%+v, want one of %v", e, want)
		}
	}
}

// The common name proves nothing: only DNS names and addresses identify a node.
func TestNamesAreNeverTheCommonName(t *testing.T) {
	ca := authority(t, "lab")
	own := issue(t, ca, "10.0.0.9")
	k, _, _ := open(t, ca.Cert, own)
	if got := k.CertificateName(); got != "10.0.0.9" {
		t.Errorf("%q, want the address", got)
	}
	if got := NamesOf(&x509.Certificate{Subject: pkix.Name{CommonName: "h1"}, DNSNames: []string{"h2"}}); !slices.Equal(got, []string{"h2"}) {
		t.Errorf("%q, want h2 alone", got)
	}
	if got := NamesOf(&x509.Certificate{Subject: pkix.Name{CommonName: "h1"}}); len(got) != 0 {
		t.Errorf("%q of a certificate with a common name only", got)
	}
}

func TestOpenAndIssueSayWhatIsWrong(t *testing.T) {
	ca, other := authority(t, "lab"), authority(t, "other")
	p := issue(t, ca, "h1")
	dir := t.TempDir()
	write(t, dir, map[string][]byte{"ca": ca.Cert, "crt": p.Cert, "key": p.Key, "junk": []byte("x")})
	at := func(n string) string { return filepath.Join(dir, n) }
	for name, c := range map[string]struct {
		files Files
		want  string
	}{
		"no file":   {Files{CA: at("none"), Cert: at("crt"), Key: at("key")}, at("none")},
		"junk CA":   {Files{CA: at("junk"), Cert: at("crt"), Key: at("key")}, "holds no PEM certificate"},
		"wrong key": {Files{CA: at("ca"), Cert: at("ca"), Key: at("key")}, at("ca") + " with " + at("key")},
	} {
		if _, err := Open(c.files, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		ca    Pair
		names []string
		life  time.Duration
		want  string
	}{
		"no name":      {ca, nil, time.Hour, "at least one name"},
		"no life":      {ca, []string{"h1"}, 0, "positive duration"},
		"not a CA":     {p, []string{"h1"}, time.Hour, "not that of an authority"},
		"another key":  {Pair{ca.Cert, other.Key}, []string{"h1"}, time.Hour, "not that of its certificate"},
		"junk as cert": {Pair{[]byte("x"), ca.Key}, []string{"h1"}, time.Hour, "CERTIFICATE"},
		"junk as key":  {Pair{ca.Cert, []byte("x")}, []string{"h1"}, time.Hour, "PRIVATE KEY"},
	} {
		if _, err := Issue(c.ca, c.names, c.life, time.Now()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
