package ufm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // independent of the machine's own time zones

	"github.com/graylink/graylink/internal/ufm"
	"github.com/graylink/graylink/internal/ufm/ufmtest"
)

func options(s *ufmtest.Server) ufm.Options {
	return ufm.Options{URL: s.URL, CAFile: s.CAFile, TokenFile: s.TokenFile, Timeout: 10 * time.Second, MaxBody: 1 << 20}
}

func client(t *testing.T, o ufm.Options) *ufm.Client {
	t.Helper()
	c, err := ufm.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestWays checks that each way of authentication has its base, that UFM refuses requests without one, and that
// no error contains the credentials.
func TestWays(t *testing.T) {
	s := ufmtest.New(t)
	s.SetJSON("/app/ufm_version", map[string]string{"ufm_release_version": "6.24.1"})
	plain := options(s)
	plain.TokenFile = ""
	basic, cert, wrong := plain, plain, plain
	basic.UsernameFile, basic.PasswordFile = s.UserFile, s.PasswordFile
	cert.CertFile, cert.KeyFile = s.CertFile, s.KeyFile
	wrong.UsernameFile, wrong.PasswordFile = s.UserFile, s.TokenFile
	for name, x := range map[string]struct {
		o    ufm.Options
		base string
		kind ufm.Kind
	}{
		"token": {options(s), "/ufmRestV3", ""}, "basic": {basic, "/ufmRest", ""}, "certificate": {cert, "/ufmRestV2", ""},
		"none": {plain, "/ufmRest", ufm.KindUnauthorized}, "wrong password": {wrong, "/ufmRest", ufm.KindUnauthorized},
	} {
		c := client(t, x.o)
		v, err := c.FetchVersion(t.Context())
		if c.BasePath() != x.base || (err == nil) != (x.kind == "") || err == nil && v != "6.24.1" {
			t.Errorf("%s: %s, %q, %v", name, c.BasePath(), v, err)
		}
		if err != nil && (ufm.KindOf(err) != x.kind || strings.Contains(err.Error(), ufmtest.Token) || strings.Contains(err.Error(), ufmtest.Password)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCertificatesAreVerified checks that certificates are verified unless the configuration turns that off.
func TestCertificatesAreVerified(t *testing.T) {
	s := ufmtest.New(t)
	s.SetJSON("/app/ufm_version", map[string]string{"ufm_release_version": "6.24.1"})
	o := options(s)
	o.CAFile = ""
	if _, err := client(t, o).FetchVersion(t.Context()); ufm.KindOf(err) != ufm.KindTLS {
		t.Errorf("an unknown authority: %v", err)
	}
	other := options(s)
	other.ServerName = "other.invalid"
	if _, err := client(t, other).FetchVersion(t.Context()); ufm.KindOf(err) != ufm.KindTLS {
		t.Errorf("another name: %v", err)
	}
	o.Insecure = true
	if _, err := client(t, o).FetchVersion(t.Context()); err != nil {
		t.Errorf("not verified: %v", err)
	}
}

// TestAuthoritiesAreRead checks that the authorities are read at every connection, whether the service is verified
// by its address or by a name.
func TestAuthoritiesAreRead(t *testing.T) {
	s := ufmtest.New(t)
	s.SetJSON("/app/ufm_version", map[string]string{"ufm_release_version": "6.24.1"})
	right, err := os.ReadFile(s.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := os.ReadFile(s.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	named := options(s)
	named.ServerName = "example.com" // of httptest's certificate
	for name, o := range map[string]ufm.Options{"address": options(s), "name": named} {
		o.CAFile = filepath.Join(t.TempDir(), "ca.pem")
		file := func(text []byte) {
			if err := os.WriteFile(o.CAFile, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file(right)
		c := client(t, o)
		ask := func(what string, kind ufm.Kind) {
			t.Helper()
			c.Close() // idle connections
			_, err := c.FetchVersion(t.Context())
			if (err == nil) != (kind == "") || err != nil && ufm.KindOf(err) != kind {
				t.Errorf("%s, %s: %v, want %q", name, what, err, kind)
			}
		}
		ask("its authority", "")
		file(wrong)
		ask("another authority", ufm.KindTLS)
		file(append(wrong, right...))
		ask("both", "")
		if err := os.Remove(o.CAFile); err != nil {
			t.Fatal(err)
		}
		ask("no file", ufm.KindCredentials)
	}
}

// TestRetries checks that requests to a busy service are repeated, later each time, and that no others are.
func TestRetries(t *testing.T) {
	for _, x := range []struct {
		fault ufmtest.Fault
		kind  ufm.Kind
		waits []time.Duration
	}{
		{ufmtest.Fault{Status: 503, Times: 2}, "", []time.Duration{375 * time.Millisecond, 750 * time.Millisecond}},
		{ufmtest.Fault{Status: 429, RetryAfter: "4", Times: 1}, "", []time.Duration{3 * time.Second}},
		{ufmtest.Fault{Status: 503, RetryAfter: "60000"}, ufm.KindStatus, []time.Duration{22500 * time.Millisecond, 22500 * time.Millisecond, 22500 * time.Millisecond}},
		{ufmtest.Fault{Status: 503, RetryAfter: "soon", Times: 1}, "", []time.Duration{375 * time.Millisecond}},
		{ufmtest.Fault{Status: 503, RetryAfter: "Tue, 15 Nov 1994 08:12:31 GMT", Times: 1}, "", []time.Duration{375 * time.Millisecond}},
		{ufmtest.Fault{Status: 500}, ufm.KindStatus, nil},
		{ufmtest.Fault{Status: 404}, ufm.KindStatus, nil},
		{ufmtest.Fault{Status: 401}, ufm.KindUnauthorized, nil},
		{ufmtest.Fault{Location: "/elsewhere"}, ufm.KindRedirect, nil},
		{ufmtest.Fault{Cut: 10}, ufm.KindTruncated, nil},
		{ufmtest.Fault{Cut: 10, Reset: true}, ufm.KindTruncated, nil},
	} {
		t.Run(fmt.Sprintf("%+v", x.fault), func(t *testing.T) {
			s := ufmtest.New(t)
			s.SetJSON("/app/alarms", []map[string]any{{"id": 1, "name": "a", "severity": "Minor"}})
			s.SetFault("/ufmRestV3/app/alarms", &x.fault)
			o := options(s)
			var waits []time.Duration
			o.Retries, o.Random = 3, func() float64 { return 0.5 }
			o.Sleep = func(_ context.Context, d time.Duration) error {
				waits = append(waits, d)
				return nil
			}
			got, err := client(t, o).FetchAlarms(t.Context(), time.UTC)
			if (err == nil) != (x.kind == "") || err != nil && ufm.KindOf(err) != x.kind || err == nil && len(got) != 1 {
				t.Errorf("%v, %v, want %q", got, err, x.kind)
			}
			if !slices.Equal(waits, x.waits) {
				t.Errorf("waited %v, want %v", waits, x.waits)
			}
			if len(s.RequestURIs()) != len(x.waits)+1 {
				t.Errorf("asked %v", s.RequestURIs())
			}
		})
	}
}

// TestBodiesAreBounded checks that a body that is too large ends with an error.
func TestBodiesAreBounded(t *testing.T) {
	s := ufmtest.New(t)
	for n, kind := range map[int]ufm.Kind{1024: "", 1025: ufm.KindTooLarge, 100_000: ufm.KindTooLarge} {
		s.SetBody("/x", strings.Repeat("x", n))
		o := options(s)
		o.MaxBody = 1024
		read := 0
		err := client(t, o).Get(t.Context(), "/x", func(r io.Reader) error {
			b, err := io.ReadAll(r)
			read = len(b)
			return err
		})
		if (err == nil) != (kind == "") || err != nil && ufm.KindOf(err) != kind || read > 1024 {
			t.Errorf("%d octets: read %d, %v", n, read, err)
		}
	}
}

// TestSilence covers a UFM that does not answer, and an address without one.
func TestSilence(t *testing.T) {
	s := ufmtest.New(t)
	s.SetFault("/x", &ufmtest.Fault{Hang: true})
	o := options(s)
	o.Timeout = 20 * time.Millisecond
	nothing := func(io.Reader) error { return nil }
	if err := client(t, o).Get(t.Context(), "/x", nothing); ufm.KindOf(err) != ufm.KindTimeout && ufm.KindOf(err) != ufm.KindConnect {
		t.Errorf("no answer: %v", err)
	}
	url := s.URL
	s.Close()
	o = options(s)
	o.URL = url
	if err := client(t, o).Get(t.Context(), "/x", nothing); ufm.KindOf(err) != ufm.KindConnect {
		t.Errorf("no service: %v", err)
	}
}

func TestCredentialFiles(t *testing.T) {
	s := ufmtest.New(t)
	dir := t.TempDir()
	empty, two := filepath.Join(dir, "empty"), filepath.Join(dir, "two")
	for f, text := range map[string]string{empty: "\n", two: "a\nb\n"} {
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{empty, two, filepath.Join(dir, "none")} {
		o := options(s)
		o.TokenFile = f
		_, err := client(t, o).FetchVersion(t.Context())
		if ufm.KindOf(err) != ufm.KindCredentials || !strings.Contains(err.Error(), "token_file") || !strings.Contains(err.Error(), f) {
			t.Errorf("%s: %v", f, err)
		}
	}
	o := options(s)
	o.TokenFile, o.CertFile, o.KeyFile = "", two, two
	if _, err := client(t, o).FetchVersion(t.Context()); ufm.KindOf(err) != ufm.KindCredentials {
		t.Errorf("a client certificate that is none: %v", err)
	}
	if len(s.RequestURIs()) > 0 {
		t.Errorf("asked: %v", s.RequestURIs())
	}
}

// TestEventShapes reads the events of 6.12 and of 6.24, and some that are neither.
func TestEventShapes(t *testing.T) {
	s := ufmtest.New(t)
	oslo, err := time.LoadLocation("Europe/Oslo")
	if err != nil {
		t.Fatal(err)
	}
	s.SetJSON("/app/events", []map[string]any{
		{"id": 227, "name": "Network Added", "type": "352", "severity": "Info", "timestamp": "2017-09-19 10:49:03.018", "counter": nil, "category": "Logical Model"},
		{"id": "97213", "name": "MCast Group Deleted", "type": "Site", "event_type": "67", "severity": "Info", "timestamp": "2024-05-28 08:03:05"},
		{"id": 3, "name": "Number", "type": 328, "severity": "Critical", "timestamp": 1709652347161},
	})
	got, err := client(t, options(s)).FetchEvents(t.Context(), oslo)
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	for i, want := range []struct {
		code string
		at   time.Time
	}{{"352", time.Date(2017, 9, 19, 8, 49, 3, 18e6, time.UTC)}, {"67", time.Date(2024, 5, 28, 6, 3, 5, 0, time.UTC)}, {"328", time.UnixMilli(1709652347161)}} {
		if got[i].Code != want.code || !got[i].At.Equal(want.at) {
			t.Errorf("event %d is %+v, want %+v", i, got[i], want)
		}
	}
	for body, kind := range map[string]ufm.Kind{`[{"id":1}]`: ufm.KindMalformed, `[{"id":{}}]`: ufm.KindMalformed, `{}`: ufm.KindMalformed, `[`: ufm.KindTruncated, ``: ufm.KindTruncated, `<html>`: ufm.KindMalformed} {
		s.SetBody("/ufmRestV3/app/events", body)
		var own *ufm.Error
		if _, err := client(t, options(s)).FetchEvents(t.Context(), oslo); !errors.As(err, &own) || own.Kind != kind {
			t.Errorf("%s: %v, want %s", body, err, kind)
		}
	}
}

func TestEventLog(t *testing.T) {
	var l ufm.EventLog
	e := func(id string) ufm.Event { return ufm.Event{ID: id, Code: "1"} }
	for i, x := range []struct {
		list []ufm.Event
		want int
	}{{[]ufm.Event{e("1"), e("2")}, 0}, {[]ufm.Event{e("1"), e("2"), e("3")}, 1}, {nil, 0}, {[]ufm.Event{e("1"), e("2"), e("3"), e("4"), e("4")}, 1}, {[]ufm.Event{{ID: "4", Code: "2"}}, 1}} {
		if got := l.ConsumeNew(x.list); len(got) != x.want {
			t.Errorf("list %d: %v are new, want %d", i, got, x.want)
		}
	}
}
