package pki

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
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

// write replaces the files as an operator's tool would: each by a rename.
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

// shake makes one connection and returns what either side found wrong and the
// names both found in the other's certificate.
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

	s, c, err := shake(t, server.Server(), client.Client("coordinator"))
	if err != nil || s != "coordinator" || c != "h1" {
		t.Fatalf("server %q, client %q, %v", s, c, err)
	}
	if _, _, err := shake(t, server.Server(), client.Client("127.0.0.1")); err != nil {
		t.Errorf("by address: %v", err)
	}
	if _, _, err := shake(t, server.Server(), client.Client("another")); err == nil {
		t.Error("a server of another name was believed")
	}
	if _, _, err := shake(t, server.Server(), stranger.Client("coordinator")); err == nil {
		t.Error("a client of another authority was let in")
	}
	bare := client.Client("coordinator")
	bare.Certificates = nil
	if _, _, err := shake(t, server.Server(), bare); err == nil {
		t.Error("a client without a certificate was let in")
	}
	old := client.Client("coordinator")
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, _, err := shake(t, server.Server(), old); err == nil {
		t.Error("TLS 1.2 was accepted")
	}
}

// A configuration taken before the roll serves the new certificate after it,
// and an authority that was taken from the file is refused from then on.
func TestReplacedFilesAreUsedFromTheNextHandshake(t *testing.T) {
	ca, next := authority(t, "first"), authority(t, "second")
	both := append(append([]byte{}, ca.Cert...), next.Cert...)
	server, sdir, _ := open(t, ca.Cert, issue(t, ca, "coordinator"))
	client, cdir, _ := open(t, both, issue(t, ca, "h1"))
	listening := server.Server()
	before := client.Version()

	write(t, sdir, map[string][]byte{"ca": both})
	p := issue(t, next, "coordinator")
	write(t, sdir, map[string][]byte{"crt": p.Cert, "key": p.Key})
	if _, c, err := shake(t, listening, client.Client("coordinator")); err != nil || c != "h1" {
		t.Fatalf("client %q, %v", c, err)
	}
	p = issue(t, next, "h1", "renewed")
	write(t, cdir, map[string][]byte{"crt": p.Cert, "key": p.Key})
	if client.Version() == before {
		t.Error("the version does not tell of the new certificate")
	}
	write(t, sdir, map[string][]byte{"ca": next.Cert})
	if _, _, err := shake(t, listening, client.Client("coordinator")); err != nil {
		t.Errorf("the renewed client: %v", err)
	}
	old, _, _ := open(t, both, issue(t, ca, "h1"))
	if _, _, err := shake(t, listening, old.Client("coordinator")); err == nil {
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
		if _, _, err := shake(t, server.Server(), client.Client("coordinator")); err != nil {
			t.Fatal(err)
		}
	}
	if len(*warnings) != 1 || !strings.Contains((*warnings)[0], filepath.Join(dir, "crt")) {
		t.Errorf("warnings %q, want one that names the certificate's file", *warnings)
	}
	write(t, dir, map[string][]byte{"key": p.Key})
	if _, _, err := shake(t, server.Server(), client.Client("coordinator")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "ca")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := shake(t, server.Server(), client.Client("coordinator")); err != nil {
		t.Fatal(err)
	}
	if len(*warnings) != 2 {
		t.Errorf("%d warnings, want a second for the missing file", len(*warnings))
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
		"no file":   {Files{at("none"), at("crt"), at("key")}, at("none")},
		"junk CA":   {Files{at("junk"), at("crt"), at("key")}, "holds no PEM certificate"},
		"wrong key": {Files{at("ca"), at("ca"), at("key")}, at("ca") + " with " + at("key")},
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
