package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/evidence/promserver"
	"github.com/graylink/graylink/deploy"
)

// runAudit runs the command and returns its exit code.
func runAudit(t *testing.T, args ...string) int {
	t.Helper()
	app, commands := kingpin.New("graylink", ""), map[string]command{}
	addAudit(app, commands)
	return run(app, commands, append([]string{"audit"}, args...))
}

// newAgent serves what a coordinator and the agents of h1 and h3 would: counters of one flow that loses nothing.
func newAgent(t *testing.T) *httptest.Server {
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	began := time.Now()
	mux.HandleFunc("GET /api/v1/targets", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `[{"targets":[%[1]q],"labels":{"__scheme__":"http","__meta_graylink_node":"h1"}},{"targets":[%[1]q],"labels":{"__scheme__":"http","__meta_graylink_node":"h3"}}]`, strings.TrimPrefix(server.URL, "http://"))
	})
	mux.HandleFunc("GET /metrics/edges", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		n := int(time.Since(began).Seconds() * 1000)
		const flow = `src="h1/eth1",dst="h3/eth1",flow="0",class="be",tier="2",plane="a"`
		for _, direction := range []string{"forward", "reverse"} {
			fmt.Fprintf(w, "fabric_probe_sent_total{%s,direction=%q} %d\nfabric_probe_lost_total{%s,direction=%q} 0\n", flow, direction, n, flow, direction)
		}
		fmt.Fprintf(w, "fabric_probe_acked_total{%s} %d\nfabric_probe_received_total{%s} %d\nfabric_probe_late_total{%s} 0\n", flow, n, flow, n, flow)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprint(w, "graylink_node_stalled_seconds_total{nic=\"h1/eth1\"} 0\ngraylink_node_stalled_seconds_total{nic=\"h3/eth1\"} 0\n")
	})
	return server
}

// The command scrapes the agents itself, and does not accept a fabric of which it has seen one flow.
func TestAuditOfOneFlowDoesNotSuffice(t *testing.T) {
	server, out := newAgent(t), filepath.Join(t.TempDir(), "out")
	args := []string{"--topology", "../../deploy/lab/demo.yaml", "--coordinator", server.URL, "--scrape-interval", "200ms", "--settle", "2s", "--duration", "2s", "--output", out}
	if code := runAudit(t, args...); code != 3 {
		t.Fatalf("exit code %d, want 3", code)
	}
	for _, name := range []string{"audit.json", "audit.md", "audit.html", "junit.xml"} {
		if text, err := os.ReadFile(filepath.Join(out, name)); err != nil || len(text) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
	}
	report := filepath.Join(out, "audit.json")
	r, err := audit.LoadReport(report)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != audit.Unknown || r.Flows != 2 || r.Windows == 0 || r.Probes == 0 || !strings.HasPrefix(r.Program, "graylink ") {
		t.Errorf("%s, %d flows, %d windows, %d probes, by %q", r.Status, r.Flows, r.Windows, r.Probes, r.Program)
	}
	// Another audit is compared with it, but for one of another scope.
	if code := runAudit(t, append(args, "--compare", report, "--scope", "node:h1")...); code != 1 {
		t.Errorf("another scope: exit code %d, want 1", code)
	}
	if code := runAudit(t, append(args, "--compare", report)...); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	var again audit.Report
	if text, err := os.ReadFile(report); err != nil || json.Unmarshal(text, &again) != nil || again.Compared == nil || len(again.Compared.Changes) > 0 {
		t.Errorf("compared: %+v", again.Compared)
	}
}

// Switches and Collectors are scraped by the addresses of files, and outputs of tests are judged.
func TestAuditScrapesSwitchesAndReadsTests(t *testing.T) {
	server, dir := newAgent(t), t.TempDir()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprint(w, "fabric_switch_port_speed_bytes_per_second{switch=\"leaf1\",port=\"up1\"} 50e9\nfabric_switch_port_speed_bytes_per_second{switch=\"leaf2\",port=\"up1\"} 1\n")
	})
	sw := httptest.NewServer(mux)
	t.Cleanup(sw.Close)
	switches := filepath.Join(dir, "switches.yml")
	if err := os.WriteFile(switches, fmt.Appendf(nil, "- targets: [%q]\n  labels: {instance: leaf1}\n", strings.TrimPrefix(sw.URL, "http://")), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	code := runAudit(t, "--topology", "../../deploy/lab/demo.yaml", "--coordinator", server.URL, "--scrape-interval", "200ms", "--settle", "2s", "--duration", "2s", "--output", out,
		"--switches", switches, "--load-from", "a job", "--bandwidth", "h1,h2=../../analyzer/audit/testdata/bandwidth/ib_write_bw.txt", "--bandwidth", "../../analyzer/audit/testdata/bandwidth/all_reduce.txt")
	if code != 2 && code != 3 {
		t.Fatalf("exit code %d", code)
	}
	r, err := audit.LoadReport(filepath.Join(out, "audit.json"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Checks {
		switch c := &r.Checks[i]; c.ID {
		case "A9": // a switch is trusted about itself alone
			if c.Population != 1 {
				t.Errorf("%d links have a speed: %s", c.Population, c.Text)
			}
		case "A14":
			if c.Population != 2 || c.Status != audit.Fail {
				t.Errorf("%s of %d runs: %s", c.Status, c.Population, c.Text)
			}
		}
	}
	if r.LoadFrom != "a job" {
		t.Errorf("load from %q", r.LoadFrom)
	}
}

// With --prometheus, the series of a site's Prometheus are read over its HTTP API.
func TestAuditReadsThePrometheusOfTheSite(t *testing.T) {
	server, out := newAgent(t), filepath.Join(t.TempDir(), "out")
	text, err := scrapeConfig(deploy.PrometheusConfig, server.URL, "", nil, 200*time.Millisecond, nil)
	if err != nil {
		t.Fatal(err)
	}
	db, err := promserver.New(promserver.Options{Config: text})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	prometheus := httptest.NewServer(db)
	defer prometheus.Close()
	if code := runAudit(t, "--topology", "../../deploy/lab/demo.yaml", "--coordinator", server.URL, "--prometheus", prometheus.URL, "--scrape-interval", "200ms", "--settle", "2s", "--duration", "2s", "--output", out); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	var r audit.Report
	if text, err := os.ReadFile(filepath.Join(out, "audit.json")); err != nil || json.Unmarshal(text, &r) != nil || r.Flows != 2 || r.Probes == 0 {
		t.Errorf("%d flows, %d probes, %v", r.Flows, r.Probes, err)
	}
}

func TestAuditIsNotRunOnBadInput(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("loss: {max_ratio: 7}"), 0o600); err != nil {
		t.Fatal(err)
	}
	short, to := []string{"--duration", "1s"}, []string{"--output", filepath.Join(dir, "out")}
	args := []string{"--topology", "../../deploy/lab/demo.yaml", "--coordinator", "http://127.0.0.1:1", "--scrape-interval", "200ms", "--settle", "500ms"}
	for name, more := range map[string][]string{
		"no agents":                nil,
		"scope":                    {"--scope", "pod:none"},
		"criteria":                 {"--criteria", bad},
		"compare":                  {"--compare", bad},
		"http config":              {"--http.config", bad},
		"Prometheus":               {"--prometheus", "http://user:secret@host"},
		"duration":                 {"--duration", "100ms"},
		"output":                   {"--output", filepath.Join(bad, "below")},
		"unknown flag":             {"--disturb"},
		"no output of a test":      {"--bandwidth", filepath.Join(dir, "none")},
		"no test in a file":        {"--bandwidth", "h1,h2=" + bad},
		"hosts are missing":        {"--bandwidth", "../../analyzer/audit/testdata/bandwidth/ib_write_bw.txt"},
		"no file of switches":      {"--switches", filepath.Join(dir, "none.yml")},
		"a file of another name":   {"--switches", bad},
		"switches with Prometheus": {"--switches", "../../deploy/prometheus/switches.yml.example", "--prometheus", "http://127.0.0.1:1"},
	} {
		if name != "duration" {
			more = append(more, short...)
		}
		if name != "output" {
			more = append(more, to...)
		}
		if code := runAudit(t, append(more, args...)...); code != 1 {
			t.Errorf("%s: exit code %d, want 1", name, code)
		}
	}
}

// The configuration is one that Prometheus reads, with the coordinator's agents and the settings of the HTTP clients.
func TestAuditScrapesTheAgents(t *testing.T) {
	text, err := scrapeConfig(deploy.PrometheusConfig, "https://coordinator:9869/base", "/etc/graylink/http.yml", []byte("basic_auth: {username: u, password_file: secret}\ntls_config: {ca_file: /ca.crt}\n"), time.Second, map[string]string{switchJob: "/etc/graylink/switches.yml"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := promserver.New(promserver.Options{Config: text})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(text, "job_name:"); n != len(auditJobs)+1 {
		t.Errorf("%d jobs, want %d:\n%s", n, len(auditJobs)+1, text)
	}
	for _, want := range []string{"https://coordinator:9869/base/api/v1/targets", "/etc/graylink/secret", "/ca.crt", "keepequal", "/etc/graylink/switches.yml"} {
		if !strings.Contains(text, want) {
			t.Errorf("the configuration lacks %q:\n%s", want, text)
		}
	}
}
