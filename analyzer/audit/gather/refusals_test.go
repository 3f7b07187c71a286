package gather

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/webaccess"
)

// startMutualTLS starts an agent's web listener that wants a client certificate of an authority and serves the requests of some
// names. It returns its address.
func startMutualTLS(t *testing.T, ca pki.Pair, log *slog.Logger, names ...string) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "web.yml")
	if err := os.WriteFile(config, []byte("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert, client_ca_file: c}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &webaccess.Policy{WebConfig: config, AskClients: names, Log: log}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/trace", p.AskHandler(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"paths":[{"edge":"h1/eth1>h2/eth1#0"}]}`))
	}))
	s := httptest.NewUnstartedServer(p.Guard(mux))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{issue(t, ca, "127.0.0.1")}, ClientCAs: poolOf(t, ca), ClientAuth: tls.RequireAndVerifyClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

// issue returns a certificate for a name.
func issue(t *testing.T, ca pki.Pair, name string) tls.Certificate {
	t.Helper()
	p, err := pki.Issue(ca, []string{name}, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func poolOf(t *testing.T, ca pki.Pair) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca.Cert) {
		t.Fatal("no certificate of the authority")
	}
	return pool
}

// TestOnlyNamesThatMayAskAreServed has two audits with real certificates request traces of an agent that serves one of their names.
func TestOnlyNamesThatMayAskAreServed(t *testing.T) {
	ca, err := pki.NewAuthority("test", 2*time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	at := startMutualTLS(t, ca, slog.New(slog.NewTextHandler(&said, nil)), "analyzer", "audit")
	for _, tc := range []struct {
		name    string
		refused bool
	}{{"audit", false}, {"stranger", true}} {
		said.Reset()
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: poolOf(t, ca), Certificates: []tls.Certificate{issue(t, ca, tc.name)}}}}
		t.Cleanup(client.CloseIdleConnections)
		r := &refusals{nodes: map[string]string{}}
		agents := watchedAgents{tracing.HTTPAgents{Client: client, URL: func(string) string { return at }}, r}
		traces, err := agents.TraceFlows(context.Background(), "h1", []string{"h1/eth1>h2/eth1#0"})
		if tracing.IsRefused(err) != tc.refused || tc.refused == (len(traces) == 1) {
			t.Errorf("%s: %v, %d traces", tc.name, err, len(traces))
		}
		report := audit.Report{Refused: r.list()}
		text := report.RefusalText()
		if tc.refused != strings.Contains(text, "Agents that refused the audit's requests: h1.") || tc.refused != strings.Contains(text, `"stranger"`) || !tc.refused && text != "" {
			t.Errorf("%s: the report says %q", tc.name, text)
		}
		want := "msg=act"
		if tc.refused {
			want = `msg="request refused"`
		}
		if line := said.String(); !strings.Contains(line, want) || !strings.Contains(line, "by="+tc.name) {
			t.Errorf("%s: the agent logs %q, want %s", tc.name, line, want)
		}
	}
	if tracing.IsRefused(context.Canceled) {
		t.Error("a request that was given up counts as refused")
	}
}
