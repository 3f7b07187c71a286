package daemon

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/webaccess"
)

// TestReportsHaveNoCredentials has a secret in every setting of the configuration that may have one, and wants none of them in the page of
// a verdict or in its report, whether Prometheus answers, refuses the queries with what it was sent, or is away.
func TestReportsHaveNoCredentials(t *testing.T) {
	const secret = "s3cr3t"
	repeats := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) })
	for name, server := range map[string]http.Handler{"answers": emptyPrometheus(t).Config.Handler, "refuses": repeats, "is away": nil} {
		url := "http://127.0.0.1:1"
		if server != nil {
			s := httptest.NewServer(server)
			t.Cleanup(s.Close)
			url = s.URL
		}
		file := write(t, `topology_file: topology.yaml
prometheus:
  url: "`+url+`"
  external_url: https://prometheus.example/ui
  basic_auth: {username: user-`+secret+`, password: `+secret+`}
  http_headers: {X-Token: {secrets: [header-`+secret+`]}}
  proxy_url: ""
agents:
  url: "http://127.0.0.1:1/{node}"
  authorization: {credentials: bearer-`+secret+`}
switches:
  url: "http://127.0.0.1:1/{switch}"
  oauth2: {client_id: id-`+secret+`, client_secret: `+secret+`, token_url: "http://127.0.0.1:1/token-`+secret+`", endpoint_params: {key: `+secret+`}}
maintenance:
  alertmanager: {url: "http://127.0.0.1:1", basic_auth: {username: u, password_file: password}}
evidence: {scrape_interval: 100ms}
queries: {sent: 'sum by (src, dst, flow, class, tier, plane, direction) (rate(fabric_probe_sent_total{token!="`+secret+`"}[1m]))'}
`)
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), "password"), []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := New(file, &webaccess.Policy{Lifecycle: true}, slog.New(slog.NewTextHandler(io.Discard, nil)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		l := d.CurrentLoop()
		ends := l.PathStore().Graph().Topo.Links[0]
		now := time.Now()
		l.SeedVerdicts([]evidence.PastVerdict{{Element: fabric.Element{ID: ends.ID(), Kind: fabric.KindLink}, FirstSeen: now.Add(-time.Hour), Cleared: now.Add(-50 * time.Minute), LastSeen: now.Add(-50 * time.Minute), Symptom: fabric.Symptom{LossRatio: 0.125}}}, now)
		id := ""
		for end := time.Now().Add(20 * time.Second); id == "" && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			for _, in := range l.Snapshot().Incidents {
				id = in.ID
			}
		}
		for _, path := range []string{"/verdicts/" + id, "/api/v1/verdicts/" + id + "/report?format=html", "/api/v1/verdicts/" + id + "/report?format=markdown", "/api/v1/verdicts/" + id + "/report"} {
			code, body := get(t, d, "GET", path, there)
			if code != http.StatusOK || !strings.Contains(body, "0.125") || strings.Contains(body, secret) {
				t.Errorf("Prometheus %s: %s: status %d, with the secret: %t: %.200s", name, path, code, strings.Contains(body, secret), body)
			}
		}
	}
}
