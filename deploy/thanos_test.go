package deploy

import (
	"os"
	"strings"
	"testing"
)

// remoteWrite is what a Prometheus beside a distributed engine has in place of rules and Alertmanagers. url is where it
// writes to.
func remoteWrite(url string) string {
	return `# An example for Prometheus 3.8 and later, of two replicas that write to %s (docs/distributed.md). It
# is made of ../prometheus.yml. Rules are evaluated by the ruler. Job names matter: rules and dashboards use them.
global:
  scrape_interval: 15s
  # Delays are native histograms, which are not scraped by default.
  scrape_native_histograms: true
  # The other replica has another value. Series that differ by this label alone count as one.
  external_labels:
    replica: prometheus-1

remote_write:
  - url: ` + url + `
    # By default native histograms are not sent, and no delay is measured.
    send_native_histograms: true
    # An endpoint that hangs holds its shard up for so long. The default is 30 s.
    remote_timeout: 5s
    queue_config:
      # Samples wait so long for a batch to be full. The default is 5 s, by which every verdict would come later.
      batch_send_deadline: 200ms
      # The longest wait after a failed attempt. The default is 5 s.
      max_backoff: 1s
    # Types and HELP texts, which Graylink does not read, are not sent.
    metadata_config:
      send: false
`
}

// thanosPrometheus returns the configuration of a Prometheus that writes to an engine, which is that of a Prometheus
// alone with other settings.
func enginePrometheus(t *testing.T, engine, url string) string {
	t.Helper()
	text := read(t, "prometheus/prometheus.yml")
	jobs := strings.Index(text, "\nscrape_configs:\n")
	if jobs < 0 {
		t.Fatal("prometheus.yml has no scrape_configs")
	}
	return strings.Replace(remoteWrite(url), "%s", engine, 1) + text[jobs:]
}

// TestEngineFiles checks that the configurations of a Prometheus beside a distributed engine are made of prometheus.yml.
// -update writes them.
func TestEngineFiles(t *testing.T) {
	for file, want := range map[string]string{
		"prometheus/thanos/prometheus.yml": enginePrometheus(t, "Thanos receivers", "http://127.0.0.1:10939/api/v1/receive"),
	} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if read(t, file) != want {
			t.Errorf("%s differs from what it is made of: go test ./deploy -run TestEngineFiles -update", file)
		}
	}
}
