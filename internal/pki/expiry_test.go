package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// wantExpiries compares expiries, in any order, with the certificates of pairs.
func wantExpiries(t *testing.T, what string, got []Expiry, file, use string, pairs ...Pair) {
	t.Helper()
	var want []Expiry
	for _, p := range pairs {
		c := chainOf(t, p)[0]
		want = append(want, Expiry{file, use, c.SerialNumber.Text(16), c.NotAfter, c.NotAfter.Sub(c.NotBefore)})
	}
	bySerial := func(a, b Expiry) int { return strings.Compare(a.Serial, b.Serial) }
	slices.SortFunc(want, bySerial)
	slices.SortFunc(got, bySerial)
	if !slices.EqualFunc(got, want, func(a, b Expiry) bool {
		return a.File == b.File && a.Use == b.Use && a.Serial == b.Serial && a.At.Equal(b.At)
	}) {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

func TestWatchFollowsTheFile(t *testing.T) {
	ca, next := authority(t, "first"), authority(t, "second")
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.crt")
	w := NewWatch(FilesOf(file, "")...)
	wantExpiries(t, "no file", w.Expiries(), file, UseAuthority)
	write(t, dir, map[string][]byte{"ca.crt": ca.Cert})
	wantExpiries(t, "a file that came", w.Expiries(), file, UseAuthority, ca)
	write(t, dir, map[string][]byte{"ca.crt": append(slices.Clone(ca.Cert), next.Cert...)})
	wantExpiries(t, "two authorities", w.Expiries(), file, UseAuthority, ca, next)
	write(t, dir, map[string][]byte{"ca.crt": next.Cert})
	wantExpiries(t, "a replaced file", w.Expiries(), file, UseAuthority, next)
	write(t, dir, map[string][]byte{"ca.crt": []byte("no certificate")})
	wantExpiries(t, "no certificate", w.Expiries(), file, UseAuthority)
	write(t, dir, map[string][]byte{"ca.crt": ca.Cert})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	wantExpiries(t, "a removed file", w.Expiries(), file, UseAuthority)
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	wantExpiries(t, "a directory", w.Expiries(), file, UseAuthority)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	wantExpiries(t, "a pipe without a writer", w.Expiries(), file, UseAuthority)
}

// TestExpiryIsThatOfOpenSSL compares expiries with another implementation of X.509.
func TestExpiryIsThatOfOpenSSL(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("needs openssl")
	}
	ca := authority(t, "lab")
	dir := t.TempDir()
	file := filepath.Join(dir, "h1.crt")
	write(t, dir, map[string][]byte{"h1.crt": issue(t, ca, "h1").Cert})
	got := NewWatch(FilesOf("", file)...).Expiries()
	out, err := exec.Command(openssl, "x509", "-in", file, "-noout", "-enddate", "-serial").CombinedOutput()
	if err != nil || len(got) != 1 {
		t.Fatalf("%v %s; %v", err, out, got)
	}
	end, serial, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	at, err := time.Parse("Jan _2 15:04:05 2006 MST", strings.TrimPrefix(end, "notAfter="))
	if err != nil {
		t.Fatal(err)
	}
	serial = strings.TrimLeft(strings.ToLower(strings.TrimPrefix(serial, "serial=")), "0")
	if !got[0].At.Equal(at) || got[0].Serial != serial || got[0].File != file || got[0].Use != UseCertificate {
		t.Errorf("%+v, want the output of openssl: %s", got[0], out)
	}
}

func TestWatchReadsAFileOnlyWhenItChanged(t *testing.T) {
	ca := authority(t, "lab")
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.crt")
	write(t, dir, map[string][]byte{"ca.crt": ca.Cert})
	w := NewWatch(FilesOf(file, "")...)
	wantExpiries(t, "before", w.Expiries(), file, UseAuthority, ca)
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	// The same file, size and time with other content: only a second reading would notice.
	if err := os.WriteFile(file, bytes.Repeat([]byte("x"), len(ca.Cert)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, time.Time{}, info.ModTime()); err != nil {
		t.Fatal(err)
	}
	wantExpiries(t, "the file was read again", w.Expiries(), file, UseAuthority, ca)
	if err := os.Chtimes(file, time.Time{}, info.ModTime().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	wantExpiries(t, "another time of modification", w.Expiries(), file, UseAuthority)
}

func TestKeysAreNotParsed(t *testing.T) {
	p := issue(t, authority(t, "lab"), "h1")
	dir := t.TempDir()
	file := filepath.Join(dir, "both.pem")
	junk := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("no key")})
	write(t, dir, map[string][]byte{"both.pem": append(append(junk, p.Key...), p.Cert...)})
	wantExpiries(t, "certificate and keys in one file", NewWatch(FilesOf("", file)...).Expiries(), file, UseCertificate, p)
}

func TestEachCertificateIsListedOnce(t *testing.T) {
	ca := authority(t, "lab")
	k, dir, _ := open(t, ca.Cert, issue(t, ca, "h1"))
	files := FilesOf(filepath.Join(dir, "ca"), filepath.Join(dir, "crt"))
	if got := Expiries(k, nil, NewWatch(append(files, files...)...), NewWatch(files...)); len(got) != 2 {
		t.Errorf("%d expiries, want 2: %v", len(got), got)
	}
	// One file may have both uses.
	if got := NewWatch(FilesOf(files[0].Name, files[0].Name)...).Expiries(); len(got) != 2 || got[0].Use == got[1].Use {
		t.Errorf("%v, want both uses", got)
	}
}

func TestCertificatesInAConfiguration(t *testing.T) {
	ca := authority(t, "lab")
	w := NewWatch(CertificateFile{Name: "/no/such/web.yaml", Use: UseAuthority, Text: string(ca.Cert)})
	wantExpiries(t, "inline", w.Expiries(), "/no/such/web.yaml", UseAuthority, ca)
}

func TestWatchIsBounded(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	now := time.Now().Truncate(time.Second).UTC()
	for i := range maxFileCertificates + 50 {
		c := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 1)), NotBefore: now, NotAfter: now.Add(time.Duration(1000-i) * time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	dir := t.TempDir()
	write(t, dir, map[string][]byte{"bundle": text})
	w := NewWatch(FilesOf(filepath.Join(dir, "bundle"), "")...)
	got := w.Expiries()
	if len(got) != maxFileCertificates || !got[0].At.Equal(now.Add(time.Duration(1000-maxFileCertificates-49)*time.Hour)) {
		t.Errorf("%d expiries from %v on, want the %d that end first", len(got), got[0].At, maxFileCertificates)
	}
	write(t, dir, map[string][]byte{"bundle": append(bytes.Repeat([]byte("\n"), maxFileBytes), text...)})
	if got := w.Expiries(); len(got) != 0 {
		t.Errorf("%d expiries beyond the bound", len(got))
	}
	// A file that is no longer listed is forgotten.
	files := FilesOf(filepath.Join(dir, "bundle"), "")
	w = NewWatchOf(func() []CertificateFile { return files })
	w.Expiries()
	files = nil
	if got := w.Expiries(); len(got) != 0 || len(w.read) != 0 {
		t.Errorf("%d expiries and %d files kept", len(got), len(w.read))
	}
}

func TestWatchIsSafeForConcurrentUse(t *testing.T) {
	ca := authority(t, "lab")
	dir := t.TempDir()
	write(t, dir, map[string][]byte{"ca": ca.Cert})
	w := NewWatch(FilesOf(filepath.Join(dir, "ca"), "")...)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 50 {
				if got := w.Expiries(); len(got) != 1 {
					t.Errorf("%v", got)
					return
				}
				if i == 0 {
					write(t, dir, map[string][]byte{"ca": ca.Cert})
				}
			}
		})
	}
	wg.Wait()
}

// TestKeeperListsWhatItUses checks that neither a certificate without its key nor a missing one counts
// as used.
func TestKeeperListsWhatItUses(t *testing.T) {
	ca := authority(t, "lab")
	own, next := issue(t, ca, "h1"), issue(t, ca, "h1")
	k, dir, _ := open(t, ca.Cert, own)
	certificates := func() (out []Expiry) {
		return slices.DeleteFunc(k.Expiries(), func(e Expiry) bool { return e.Use != UseCertificate })
	}
	file := filepath.Join(dir, "crt")
	wantExpiries(t, "at first", certificates(), file, UseCertificate, own)
	write(t, dir, map[string][]byte{"crt": next.Cert})
	wantExpiries(t, "without its key", certificates(), file, UseCertificate, own)
	write(t, dir, map[string][]byte{"key": next.Key})
	wantExpiries(t, "with its key", certificates(), file, UseCertificate, next)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	wantExpiries(t, "the file is gone", certificates(), file, UseCertificate, next)
}

func BenchmarkWatch(b *testing.B) {
	dir := b.TempDir()
	var files []CertificateFile
	for i := range 8 {
		p, err := NewAuthority("lab", time.Hour, time.Now())
		if err != nil {
			b.Fatal(err)
		}
		name := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(name, p.Cert, 0o600); err != nil {
			b.Fatal(err)
		}
		files = append(files, FilesOf(name, "")...)
	}
	w := NewWatch(files...)
	for b.Loop() {
		if len(w.Expiries()) != len(files) {
			b.Fatal("expiries are missing")
		}
	}
}
