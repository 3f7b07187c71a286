package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/webaccess"
)

// pastPrometheus answers that a verdict on an element was open an hour ago, and that it has no other series. While it refuses, it
// answers 401.
func pastPrometheus(t *testing.T, element string, refuses *atomic.Bool) *httptest.Server {
	t.Helper()
	now := time.Now().Unix()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuses.Load() {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		kind, result, query := "vector", "", r.FormValue("query")
		if strings.HasSuffix(r.URL.Path, "query_range") {
			kind = "matrix"
		}
		series := `{"metric":{"element":"` + element + `","kind":"link","scenario":"corridor"},"values":[[%d,"%s"]]}`
		switch {
		case query == "vector(time())":
			result = fmt.Sprintf(`{"metric":{},"value":[%d,"%.3f"]}`, now, float64(time.Now().UnixMilli())/1e3)
		case strings.Contains(query, "fabric_suspect_first_seen"):
			result = fmt.Sprintf(series, now-3000, fmt.Sprint(now-3600))
		case strings.Contains(query, "fabric_suspect_loss_ratio"):
			result = fmt.Sprintf(series, now-3000, "0.125")
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":%q,"result":[%s]}}`, kind, result)
	}))
	t.Cleanup(s.Close)
	return s
}

// TestReportsHaveNoCredentials has a secret in every setting of the configuration that may have one, and wants none of them in the page of
// a verdict or in its report, whether Prometheus answers or refuses.
func TestReportsHaveNoCredentials(t *testing.T) {
	const secret = "s3cr3t"
	var refuses atomic.Bool
	file := write(t, "")
	url := pastPrometheus(t, "leaf1:up1--spine1:dn1", &refuses).URL
	text := `topology_file: topology.yaml
prometheus:
  url: "` + url + `"
  external_url: https://prometheus.example/ui
  basic_auth: {username: user-` + secret + `, password: ` + secret + `}
  http_headers: {X-Token: {secrets: [header-` + secret + `]}}
agents:
  url: "http://127.0.0.1:1/{node}"
  authorization: {credentials: bearer-` + secret + `}
switches:
  url: "http://127.0.0.1:1/{switch}"
  oauth2: {client_id: id-` + secret + `, client_secret: ` + secret + `, token_url: "http://127.0.0.1:1/token-` + secret + `", endpoint_params: {key: ` + secret + `}}
maintenance:
  alertmanager: {url: "http://127.0.0.1:1", basic_auth: {username: u, password_file: password}}
evidence: {scrape_interval: 100ms}
queries: {sent: 'sum by (src, dst, flow, class, tier, plane, direction) (rate(fabric_probe_sent_total{token!="` + secret + `"}[1m]))'}
`
	for name, content := range map[string]string{file: text, filepath.Join(filepath.Dir(file), "password"): secret} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
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
	id := ""
	for end := time.Now().Add(time.Minute); id == "" && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, in := range d.CurrentLoop().Snapshot().Incidents {
			id = in.ID
		}
	}
	if id == "" {
		t.Fatal("the verdict of an hour ago is not known")
	}
	for _, refused := range []bool{true, false} { // the report of the closed verdict is kept from the second time on
		refuses.Store(refused)
		for _, path := range []string{"/verdicts/" + id, "/api/v1/verdicts/" + id + "/report?format=html", "/api/v1/verdicts/" + id + "/report?format=markdown", "/api/v1/verdicts/" + id + "/report"} {
			code, body := get(t, d, "GET", path, there)
			if code != http.StatusOK || !strings.Contains(body, "0.125") || strings.Contains(body, secret) || refused && !strings.Contains(body, "401 Unauthorized") {
				t.Errorf("refused %t: %s: status %d, with the secret: %t: %.200s", refused, path, code, strings.Contains(body, secret), body)
			}
		}
	}
}
