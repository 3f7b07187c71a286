package webaccess

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func webConfig(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "web.yml")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRule1Hosts checks that the answered hosts are addresses and the program's own names.
func TestRule1Hosts(t *testing.T) {
	external, err := ParseExternalURL("https://Graylink.example:8443/fabric")
	if err != nil {
		t.Fatal(err)
	}
	p := &Policy{ExternalURL: external, AllowedHosts: []string{"h1", "*.pods.example"}}
	for host, want := range map[string]bool{
		"127.0.0.1:9868": true, "10.0.0.7": true, "[::1]:9868": true, "[fe80::1%eth0]:1": true, "localhost:8990": true, "LOCALHOST.": true, "a.localhost:1": true, "ip6-localhost": true, "": true,
		"graylink.example": true, "graylink.example:443": true, "H1:9868": true, "a.pods.example": true,
		"evil.example": false, "localhost.evil.example:80": false, "127.0.0.1.evil.example": false, "h2:9868": false, "evilpods.example": false, "pods.example": false, "graylink.example.evil": false, "0x7f.1": false, "2130706433": false,
	} {
		if got := p.HostAllowed(host); got != want {
			t.Errorf("%q: %t", host, got)
		}
	}
	for _, bad := range []string{"", "*", "*.", "a:80", "http://a", "a/b", "a.*.b"} {
		if CheckHost(bad) == nil {
			t.Errorf("%q is taken for a host", bad)
		}
	}
	for _, bad := range []string{"graylink", "ftp://a", "//a", "http://"} {
		if _, err := ParseExternalURL(bad); err == nil {
			t.Errorf("%q is taken for an external URL", bad)
		}
	}
}

// TestRule2OtherOrigins checks that requests of browsers for other pages change nothing.
func TestRule2OtherOrigins(t *testing.T) {
	served := 0
	external, _ := ParseExternalURL("https://graylink.example")
	h := (&Policy{ExternalURL: external}).Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	for _, tc := range []struct {
		name, method, host, body string
		header                   map[string]string
		want                     int
	}{
		{"a scrape", "GET", "10.0.0.7:9868", "", nil, 200},
		{"curl", "POST", "127.0.0.1:9868", "", nil, 200},
		{"curl with JSON", "POST", "127.0.0.1:9868", "{}", map[string]string{"Content-Type": "application/json; charset=utf-8"}, 200},
		{"another origin", "POST", "127.0.0.1:9868", "", map[string]string{"Origin": "https://evil.example"}, 403},
		{"another port", "POST", "127.0.0.1:9868", "", map[string]string{"Origin": "http://127.0.0.1:80"}, 403},
		{"another origin deletes", "DELETE", "127.0.0.1:9868", "", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"no origin", "POST", "127.0.0.1:9868", "", map[string]string{"Origin": "null"}, 403},
		{"a form", "POST", "127.0.0.1:9868", "a=b", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415},
		{"text", "POST", "127.0.0.1:9868", "{}", map[string]string{"Content-Type": "text/plain"}, 415},
		{"no type", "POST", "127.0.0.1:9868", "{}", nil, 415},
		{"rebinding reads", "GET", "evil.example:9868", "", nil, 421},
		{"rebinding changes", "POST", "evil.example:9868", "", map[string]string{"Origin": "http://evil.example:9868"}, 421},
		{"the own page", "POST", "localhost:8990", "", map[string]string{"Origin": "http://localhost:8990", "Sec-Fetch-Site": "same-origin"}, 200},
		{"the own page behind a proxy", "POST", "127.0.0.1:9872", "", map[string]string{"Origin": "https://graylink.example"}, 200},
	} {
		r := httptest.NewRequest(tc.method, "/x", strings.NewReader(tc.body))
		r.Host = tc.host
		for k, v := range tc.header {
			r.Header.Set(k, v)
		}
		w, before := httptest.NewRecorder(), served
		h.ServeHTTP(w, r)
		if w.Code != tc.want || (served > before) != (tc.want == 200) {
			t.Errorf("%s: %d %s", tc.name, w.Code, w.Body)
		}
	}
}

// TestRule3WhoMayAct checks authenticated callers, and loopback clients with and without the flag.
func TestRule3WhoMayAct(t *testing.T) {
	onlyTLS := webConfig(t, "tls_server_config: {cert_file: a, key_file: b}\n")
	anyCA := webConfig(t, "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}\n")
	mutual := webConfig(t, "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert, client_ca_file: c}\n")
	users := webConfig(t, "basic_auth_users: {ann: $2y$10$x}\n")
	verified := func(c *x509.Certificate) func(*http.Request) {
		return func(r *http.Request) { r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{c}}} }
	}
	header := func(k, v string) func(*http.Request) { return func(r *http.Request) { r.Header.Set(k, v) } }
	const far, near = "10.0.0.9:5", "127.0.0.1:5"
	for _, tc := range []struct {
		name, remote, config string
		flag                 bool
		change               func(*http.Request)
		want, who            string
	}{
		{"loopback with the flag", near, "", true, nil, "", "loopback"},
		{"loopback, version 6", "[::1]:5", "", true, nil, "", "loopback"},
		{"loopback without it", near, "", false, nil, "--web.enable-admin-api", ""},
		{"far", far, "", true, nil, "only loopback clients", ""},
		{"a Unix socket", "@", "", true, nil, "only loopback clients", ""},
		{"TLS identifies no client", far, onlyTLS, true, nil, "only loopback clients", ""},
		{"no such file", far, "/none", true, nil, "only loopback clients", ""},
		{"an unchecked password", far, "", true, func(r *http.Request) { r.SetBasicAuth("ann", "x") }, "only loopback clients", ""},
		{"a user", far, users, false, func(r *http.Request) { r.SetBasicAuth("ann", "x") }, "", "ann"},
		{"an unknown user", far, users, false, func(r *http.Request) { r.SetBasicAuth("bob", "x") }, "only loopback clients", ""},
		{"a certificate", far, mutual, false, verified(&x509.Certificate{DNSNames: []string{"prometheus"}}), "", "prometheus"},
		{"a certificate with a common name only", far, mutual, false, verified(&x509.Certificate{Subject: pkix.Name{CommonName: "h1"}}), "no subject alternative name", ""},
		{"a certificate of any authority", far, anyCA, false, verified(&x509.Certificate{DNSNames: []string{"evil.example"}}), "only loopback clients", ""},
		{"Forwarded", near, "", true, header("Forwarded", "for=192.0.2.1"), "proxy", ""},
		{"X-Forwarded-For", near, "", true, header("X-Forwarded-For", "127.0.0.1"), "proxy", ""},
		{"X-Forwarded-Host", near, "", true, header("X-Forwarded-Host", "a"), "proxy", ""},
		{"X-Real-IP", near, "", true, header("X-Real-IP", "127.0.0.1"), "proxy", ""},
		{"Via", near, "", true, header("Via", "1.1 a"), "proxy", ""},
		{"a user through a proxy", near, users, false, func(r *http.Request) { r.SetBasicAuth("ann", "x"); r.Header.Set("X-Forwarded-For", "192.0.2.1") }, "", "ann"},
	} {
		var log bytes.Buffer
		p := &Policy{WebConfig: tc.config, AdminAPI: tc.flag, Log: slog.New(slog.NewTextHandler(&log, nil))}
		who := ""
		h := p.AdminHandler(func(_ http.ResponseWriter, r *http.Request) { who = CallerOf(r).Name })
		r := httptest.NewRequest("POST", "/act", nil)
		r.RemoteAddr = tc.remote
		if tc.change != nil {
			tc.change(r)
		}
		w := httptest.NewRecorder()
		h(w, r)
		if w.Code == 200 != (tc.want == "") || !strings.Contains(w.Body.String(), tc.want) || who != tc.who {
			t.Errorf("%s: %d %q, who %q", tc.name, w.Code, w.Body, who)
		}
		// Whether a GET request may have an effect depends on the same.
		r.Method = http.MethodGet
		for site, allowed := range map[string]bool{"": true, "same-origin": true, "none": true, "same-site": false, "cross-site": false} {
			r.Header.Set("Sec-Fetch-Site", site)
			if err := p.CheckAdmin(r); (err == nil) != (allowed && tc.want == "") || allowed && err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s, Sec-Fetch-Site %q: %v", tc.name, site, err)
			}
		}
		// Rule 4.
		if line := log.String(); !strings.Contains(line, "from="+tc.remote) && !strings.Contains(line, `from="`+tc.remote) || tc.who != "" && !strings.Contains(line, "by="+tc.who) {
			t.Errorf("%s: the log says %q", tc.name, line)
		}
	}
	// A request for packets may need one of some names.
	for who, want := range map[string]int{"analyzer": 200, "stranger": 403} {
		var log bytes.Buffer
		p := &Policy{WebConfig: mutual, AskClients: []string{"audit", "analyzer"}, Log: slog.New(slog.NewTextHandler(&log, nil))}
		r := httptest.NewRequest("POST", "/api/v1/trace", nil)
		r.RemoteAddr = far
		verified(&x509.Certificate{DNSNames: []string{who}})(r)
		w := httptest.NewRecorder()
		p.AskHandler(func(http.ResponseWriter, *http.Request) {})(w, r)
		if w.Code != want || !strings.Contains(log.String(), "by="+who) || want == 403 && !strings.Contains(w.Body.String(), "--ask.clients") {
			t.Errorf("%s asks: %d %q, the log says %q", who, w.Code, w.Body, log.String())
		}
		w = httptest.NewRecorder()
		p.AdminHandler(func(http.ResponseWriter, *http.Request) {})(w, r)
		if w.Code != 200 {
			t.Errorf("%s, another act: %d", who, w.Code)
		}
	}
	// A reload has a flag of its own.
	for _, p := range []*Policy{{AdminAPI: true}, {Lifecycle: true}} {
		r := httptest.NewRequest("POST", "/-/reload", nil)
		r.RemoteAddr = near
		w := httptest.NewRecorder()
		p.ReloadHandler(func(http.ResponseWriter, *http.Request) {})(w, r)
		if w.Code == 200 != p.Lifecycle {
			t.Errorf("reload with %+v: %d", p.Lifecycle, w.Code)
		}
	}
}

// TestRule4RepeatedActs checks that frequent acts share lines of the log, and that none is left out.
func TestRule4RepeatedActs(t *testing.T) {
	var l actLog
	now, total := time.Unix(0, 0), 0
	for range 600 {
		n, _ := l.countAct(actEntry{path: "/api/v1/trace"}, now, time.Minute)
		total += n
		now = now.Add(time.Second)
	}
	if n, due := l.countAct(actEntry{path: "/api/v1/trace"}, now.Add(time.Minute), time.Minute); !due || total+n != 601 {
		t.Errorf("%d of 601 acts are in the log", total+n)
	}
	for i := range 10 * maxActEntries {
		l.countAct(actEntry{host: string(rune(i))}, now, time.Minute)
	}
	if len(l.entries) > maxActEntries {
		t.Errorf("%d entries", len(l.entries))
	}
}
