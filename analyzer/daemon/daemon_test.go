package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/pki/pkitest"
	"github.com/graylink/graylink/internal/webaccess"
)

// emptyPrometheus answers that it has no series, but knows what time it is.
func emptyPrometheus(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result := ""
		if r.FormValue("query") == "vector(time())" {
			now := float64(time.Now().UnixMilli()) / 1e3
			result = fmt.Sprintf(`{"metric":{},"value":[%.3f,"%.3f"]}`, now, now)
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, result)
	}))
	t.Cleanup(s.Close)
	return s
}

func get(t *testing.T, d *Daemon, method, path, from string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = from
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	b, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(b)
}

const here, there = "127.0.0.1:5", "10.0.0.9:5"

func TestDaemon(t *testing.T) {
	text := `topology_file: topology.yaml
prometheus: {url: "` + emptyPrometheus(t).URL + `"}
agents: {url: "http://127.0.0.1:1/{node}"}
evidence: {scrape_interval: 100ms}
`
	file := write(t, text)
	d, err := New(file, &webaccess.Policy{Lifecycle: true}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if code, body := get(t, d, "GET", "/-/ready", there); code != http.StatusServiceUnavailable && code != http.StatusOK {
		t.Errorf("ready: %d %s", code, body)
	}
	ready := func() {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			code, body := get(t, d, "GET", "/-/ready", there)
			if code == http.StatusOK {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("never ready: %d %s", code, body)
			}
		}
	}
	ready()
	hash := func() string {
		t.Helper()
		_, body := get(t, d, "GET", "/metrics", there)
		_, s, ok := strings.Cut(body, `graylink_config_hash_info{hash="`)
		if !ok {
			t.Fatalf("no hash in %s", body)
		}
		return s[:16]
	}
	_, body := get(t, d, "GET", "/metrics", there)
	for _, want := range []string{"graylink_analyzer_build_info{", `graylink_analyzer_cycles_total{result="answered"}`, "graylink_analyzer_cycle_duration_seconds ", "graylink_analyzer_lag_seconds 0.4",
		"graylink_analyzer_last_cycle_timestamp_seconds ", `graylink_analyzer_queries_total{query="p50",result="failed"} 0`, "graylink_analyzer_query_answer_bytes_total ",
		"graylink_config_last_reload_successful 1", "go_goroutines ", `fabric_verdict_state{scope="fabric",state="insufficient_evidence"} 1`} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if strings.Contains(body, "graylink_analyzer_sample_age_seconds ") {
		t.Error("an age of samples is published though there is no sample")
	}
	for _, path := range []string{"/-/healthy", "/api/v1/verdicts", "/api/v1/links", "/"} {
		if code, body := get(t, d, "GET", path, there); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	first := hash()
	if code, _ := get(t, d, "POST", "/-/reload", there); code != http.StatusForbidden {
		t.Errorf("a reload from anywhere: %d", code)
	}
	rewrite := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(text + "evidense: {}\n")
	code, body := get(t, d, "POST", "/-/reload", here)
	if _, metrics := get(t, d, "GET", "/metrics", there); code != http.StatusInternalServerError || !strings.Contains(body, "evidense") || hash() != first ||
		!strings.Contains(metrics, "graylink_config_last_reload_successful 0") {
		t.Errorf("rule 1: a bad configuration: %d %s", code, body)
	}
	if strings.Contains(body, "graylink_analyzer_steering") {
		t.Error("steering has series although it is off")
	}
	rewrite(text + "queries: {p99: up}\ncollectives: {follow: true}\nsteering: {mode: dry_run, audit_file: steering.jsonl}\n")
	if code, body := get(t, d, "POST", "/-/reload", here); code != http.StatusOK || hash() == first {
		t.Errorf("a good configuration: %d %s", code, body)
	}
	if _, metrics := get(t, d, "GET", "/metrics", there); !strings.Contains(metrics, `graylink_analyzer_steering_decisions_total{result="dry_run"} 0`) ||
		!strings.Contains(metrics, `graylink_analyzer_steering_refusals_total{reason="no_second_witness"} 0`) {
		t.Error("a dry run of steering has no series")
	}
	if code, _ := get(t, d, "GET", "/-/ready", there); code != http.StatusOK {
		t.Errorf("rule 2: what was known is forgotten by the reload: %d", code)
	}
	ready()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.ReloadConfig(); err == nil {
		t.Error("reloaded after the end")
	}
}

// TestCertificates: the certificates are those of every server of the configuration that is at work.
func TestCertificates(t *testing.T) {
	all := map[string]*pkitest.Files{}
	tls := func(name string) string {
		f := pkitest.New(t)
		all[name] = f
		return fmt.Sprintf("tls_config: {ca_file: %s, cert_file: %s, key_file: %s}", f.CA, f.Cert, f.Key)
	}
	file := write(t, `topology_file: topology.yaml
prometheus: {url: "https://127.0.0.1:1", `+tls("prometheus")+`}
agents: {`+tls("agents")+`, coordinator: {url: "https://127.0.0.1:1", oauth2: {client_id: a, client_secret: b, token_url: "https://127.0.0.1:1", `+tls("oauth2")+`}, `+tls("coordinator")+`}}
switches: {url: "https://127.0.0.1:1/{switch}", `+tls("switches")+`}
maintenance:
  alertmanager: {url: "https://127.0.0.1:1", `+tls("alertmanager")+`}
  kubernetes: {url: "https://127.0.0.1:1", `+tls("kubernetes")+`}
  coordinator: {address: "127.0.0.1:1", `+strings.Trim(strings.TrimPrefix(tls("coordinator windows"), "tls_config: "), "{}")+`}
`)
	d, err := New(file, &webaccess.Policy{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	check := func(what string) {
		t.Helper()
		want := map[pki.Expiry]string{}
		for name, f := range all {
			for file, use := range map[string]string{f.CA: pki.UseAuthority, f.Cert: pki.UseCertificate} {
				c := pkitest.Certificate(t, file)
				want[pki.Expiry{File: file, Use: use, Serial: c.SerialNumber.Text(16), At: c.NotAfter, Life: c.NotAfter.Sub(c.NotBefore)}] = name + " " + use
			}
		}
		got := d.Expiries()
		for _, e := range got {
			delete(want, e)
		}
		if len(want) > 0 || len(got) != 2*len(all) {
			t.Errorf("%s: %v are missing of %v", what, want, got)
		}
	}
	check("at first")
	all["alertmanager"].Renew(t)
	check("replaced")
	clear(all)
	if err := os.WriteFile(file, []byte(minimal[:strings.Index(minimal, "prometheus")]+`prometheus: {url: "https://127.0.0.1:1", `+tls("prometheus")+`}
agents: {url: "http://127.0.0.1:1/{node}"}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.ReloadConfig(); err != nil {
		t.Fatal(err)
	}
	check("another configuration")
}

// TestRule3PrometheusIsAway: it starts and serves, and is not ready.
func TestRule3PrometheusIsAway(t *testing.T) {
	d, err := New(write(t, strings.Replace(minimal, "http://prometheus:9090/prefix", "http://127.0.0.1:1", 1)+"evidence: {scrape_interval: 100ms}\n"), &webaccess.Policy{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, body := get(t, d, "GET", "/metrics", there)
		if _, n, ok := strings.Cut(body, `graylink_analyzer_cycles_total{result="failed"} `); ok && n[0] != '0' {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no cycle failed")
		}
	}
	if code, _ := get(t, d, "GET", "/-/ready", there); code != http.StatusServiceUnavailable {
		t.Errorf("ready without Prometheus: %d", code)
	}
	if code, _ := get(t, d, "GET", "/-/healthy", there); code != http.StatusOK {
		t.Error("not healthy")
	}
}
