// Package pkitest has certificate files for tests, and the series that a program has to publish of
// them.
package pkitest

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/pki"
)

// Files are the files of one side of mutual TLS.
type Files struct {
	CA, Cert, Key string
	names         []string
	life          time.Duration
}

// New returns files of an authority and of a certificate that it issued, for 127.0.0.1 and names.
func New(t testing.TB, names ...string) *Files {
	t.Helper()
	dir := t.TempDir()
	f := &Files{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "own.crt"), Key: filepath.Join(dir, "own.key"),
		names: names}
	f.Renew(t)
	return f
}

// Renew replaces all files by those of another authority, with a later end.
func (f *Files) Renew(t testing.TB) {
	t.Helper()
	f.life = max(f.life, time.Hour) + time.Hour
	ca, err := pki.NewAuthority("test", 2*f.life, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p, err := pki.Issue(ca, append([]string{"127.0.0.1"}, f.names...), f.life, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{f.CA: ca.Cert, f.Cert: p.Cert, f.Key: p.Key} {
		if err := os.WriteFile(name+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
}

// Certificate returns the first certificate of a file.
func Certificate(t testing.TB, file string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s: no PEM", file)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Labels returns the labels of a file's first certificate as name=value, sorted and separated by
// commas, and its end.
func Labels(t testing.TB, file, use string) (labels string, end float64) {
	t.Helper()
	c := Certificate(t, file)
	return "file=" + file + ",serial=" + c.SerialNumber.Text(16) + ",use=" + use, float64(c.NotAfter.Unix())
}

// Line returns the line of a file's first certificate in Prometheus' text format.
func Line(t testing.TB, file, use string) string {
	t.Helper()
	c := Certificate(t, file)
	return pki.ExpirySeries + `{file="` + file + `",serial="` + c.SerialNumber.Text(16) + `",use="` + use + `"} ` +
		strconv.FormatFloat(float64(c.NotAfter.Unix()), 'g', -1, 64)
}
