package webserver

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/pki/pkitest"
	"github.com/graylink/graylink/internal/webaccess"
)

func TestCertificatesOfTheListener(t *testing.T) {
	own, callers := pkitest.New(t), pkitest.New(t)
	dir := filepath.Dir(own.Cert)
	config := filepath.Join(dir, "web.yaml")
	app := kingpin.New("test", "")
	flags := AddFlags(app, "127.0.0.1:0")
	if _, err := app.Parse([]string{"--web.config.file=" + config}); err != nil {
		t.Fatal(err)
	}
	w := flags.Certificates()
	inline := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return "|\n    " + strings.ReplaceAll(string(b), "\n", "\n    ")
	}
	for _, tc := range []struct{ what, text, cert, ca string }{
		{"no file", "", "", ""},
		{"no TLS", "basic_auth_users: {ann: x}\n", "", ""},
		{"files beside it", "tls_server_config:\n  {cert_file: own.crt, key_file: own.key, client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert,\n   min_version: TLS13, cipher_suites: [TLS_AES_128_GCM_SHA256], curve_preferences: [X25519]}\n", own.Cert, own.CA},
		{"others", "tls_server_config: {cert_file: " + own.Cert + ", key_file: " + own.Key + ", client_ca_file: " + callers.CA + "}\n", own.Cert, callers.CA},
		{"inline", "tls_server_config:\n  cert: " + inline(own.Cert) + "\n  key: " + inline(own.Key) + "\n  client_ca: " + inline(callers.CA) + "\n", own.Cert, callers.CA},
		{"no YAML", "tls_server_config: [", "", ""},
	} {
		if tc.text != "" {
			if err := os.WriteFile(config, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want := map[string]float64{}
		for file, use := range map[string]string{tc.cert: pki.UseCertificate, tc.ca: pki.UseAuthority} {
			if file == "" {
				continue
			}
			labels, end := pkitest.Labels(t, file, use)
			if tc.what == "inline" {
				labels = strings.Replace(labels, file, config, 1)
			}
			want[labels] = end
		}
		got := w.Expiries()
		for _, e := range got {
			labels := "file=" + e.File + ",serial=" + e.Serial + ",use=" + e.Use
			if end, ok := want[labels]; !ok || end != float64(e.At.Unix()) {
				t.Errorf("%s: %s %v, want %v", tc.what, labels, e.At, want)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", tc.what, got, want)
		}
	}
}

// lockedLog is a log that is read while it is written.
type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// TestAListenerWithoutItsCertificateSaysSo checks that the error is logged once although every
// connection fails, and not for clients that break off handshakes.
func TestAListenerWithoutItsCertificateSaysSo(t *testing.T) {
	own := pkitest.New(t)
	config := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(config, []byte("tls_server_config: {cert_file: "+own.Cert+", key_file: "+own.Key+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log lockedLog
	e := &errorLog{log: slog.New(slog.NewTextHandler(&log, nil)), webConfig: config}
	failed := []byte("http: TLS handshake error from 192.0.2.1:7: EOF\n")
	const complaint = "the web listener refuses all connections"
	step := func(d time.Duration) {
		e.mu.Lock()
		e.checked, e.warned = e.checked.Add(-d), e.warned.Add(-d)
		e.mu.Unlock()
		if _, err := e.Write(failed); err != nil {
			t.Fatal(err)
		}
	}
	step(checkEvery)
	if n := log.count(complaint); n != 0 {
		t.Errorf("a client that goes is the listener's fault: %d", n)
	}
	if err := os.Remove(own.Cert); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Write(failed); err != nil || log.count(complaint) != 0 {
		t.Errorf("checked again at once, %v", err)
	}
	for range 3 {
		step(checkEvery)
	}
	if n := log.count(complaint); n != 1 || log.count(own.Cert) == 0 {
		t.Errorf("logged %d times, want once with the file", n)
	}
	step(warningEvery)
	if n := log.count(complaint); n != 2 {
		t.Errorf("logged %d times after an hour, want twice", n)
	}
	own.Renew(t)
	step(checkEvery)
	if err := os.Remove(own.Key); err != nil {
		t.Fatal(err)
	}
	step(checkEvery)
	if n := log.count(complaint); n != 3 || log.count(own.Key) == 0 {
		t.Errorf("logged %d times, want three times, at last with the other file", n)
	}
}

// TestHandshakesFailAloud checks the same over real connections.
func TestHandshakesFailAloud(t *testing.T) {
	own := pkitest.New(t)
	config := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(config, []byte("tls_server_config: {cert_file: "+own.Cert+", key_file: "+own.Key+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:0"
	if l, err := listenAt(address); err != nil {
		t.Fatal(err)
	} else {
		address = l.Addr().String()
		l.Close()
	}
	var text lockedLog
	log := slog.New(slog.NewTextHandler(&text, nil))
	app := kingpin.New("test", "")
	flags := AddFlags(app, address)
	if _, err := app.Parse([]string{"--web.config.file=" + config}); err != nil {
		t.Fatal(err)
	}
	s := flags.NewServer(http.NotFoundHandler(), &webaccess.Policy{}, log)
	served := make(chan error, 1)
	go func() { served <- s.ListenAndServe(flags.Toolkit, log) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	until := func(what string, ok func(error) bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			resp, err := client.Get("https://" + address)
			if err == nil {
				resp.Body.Close()
			}
			if ok(err) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: not within 20 s: %v", what, err)
			}
		}
	}
	until("it serves", func(err error) bool { return err == nil })
	if err := os.Remove(own.Key); err != nil {
		t.Fatal(err)
	}
	until("it complains", func(err error) bool { return err != nil && text.count(own.Key) > 0 })
	own.Renew(t)
	until("it serves again", func(err error) bool { return err == nil })
	if n := text.count("the web listener refuses all connections"); n != 1 || text.count("PRIVATE") != 0 {
		t.Errorf("logged %d times, want once and without a key", n)
	}
}
