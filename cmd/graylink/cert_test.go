package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/pki"
)

func certCommand(t *testing.T, args ...string) error {
	t.Helper()
	app := kingpin.New("graylink", "")
	commands := map[string]command{}
	addCert(app, commands)
	name, err := app.Parse(append([]string{"cert"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	return commands[name](context.Background())
}

func TestCertificatesForALab(t *testing.T) {
	dir := t.TempDir()
	at := func(n string) string { return filepath.Join(dir, n) }
	if err := certCommand(t, "--dir", dir, "issue", "h1"); err == nil || !strings.Contains(err.Error(), "graylink cert ca") {
		t.Errorf("without an authority: %v", err)
	}
	for _, args := range [][]string{{"ca"}, {"issue", "h1", "h2"}, {"issue", "coordinator", "--also", "127.0.0.1"}} {
		if err := certCommand(t, append([]string{"--dir", dir}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"ca.key", "h1.key", "coordinator.key"} {
		if info, err := os.Stat(at(n)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", n, info.Mode(), err)
		}
	}
	files := pki.Files{CA: at("ca.crt"), Cert: at("h1.crt"), Key: at("h1.key")}
	k, err := pki.Open(files, func(err error) { t.Error(err) })
	if err != nil || k.CertificateName() != "h1" {
		t.Fatalf("%q %v", k.CertificateName(), err)
	}
	before, _ := os.ReadFile(files.Cert)
	for want, args := range map[string][]string{
		"file exists":      {"issue", "h1"},
		"a single NAME":    {"issue", "h3", "h4", "--also", "x"},
		"authority's own":  {"issue", "ca", "--replace"},
		`name "a/b" holds`: {"issue", "a/b"},
	} {
		if err := certCommand(t, append([]string{"--dir", dir}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	if b, _ := os.ReadFile(files.Cert); string(b) != string(before) {
		t.Error("an existing certificate was overwritten")
	}
	version := k.Version()
	if err := certCommand(t, "--dir", dir, "issue", "h1", "--replace"); err != nil {
		t.Fatal(err)
	}
	if k.Version() == version {
		t.Error("a daemon does not take the replaced certificate")
	}
}
