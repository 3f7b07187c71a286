package deploy

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
)

// engine is what the configurations of a Prometheus beside a distributed engine differ by.
type engine struct {
	first  string // line of the file
	labels string // external labels
	drop   string // those of them that Alertmanager must not see
	write  string // where it writes to
	jobs   string // further jobs
}

// settings returns what a Prometheus beside the engine has in place of the rules of a Prometheus alone.
func (e engine) settings() string {
	return e.first + `
# It is made of ../prometheus.yml. Rules are evaluated by the ruler. Job names matter: rules and dashboards use them.
global:
  scrape_interval: 15s
  evaluation_interval: 15s
  # Delays are native histograms, which are not scraped by default.
  scrape_native_histograms: true
  # The other replica has another value. Series that differ by this label alone count as one.
  external_labels:
` + e.labels + `
remote_write:
  - url: ` + e.write + `
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

# What is refused may be missing where the ruler reads, so these rules are evaluated here as well.
rule_files:
  - graylink/engine.rules.yaml

alerting:
  # Alertmanager would take alerts that differ by these labels for two.
  alert_relabel_configs:
    - regex: ` + e.drop + `
      action: labeldrop
  alertmanagers:
    - static_configs:
        - targets: ["127.0.0.1:9093"]
`
}

// prometheus returns the configuration of a Prometheus that writes to the engine, which is that of a Prometheus alone with
// other settings.
func (e engine) prometheus(t *testing.T) string {
	t.Helper()
	text := read(t, "prometheus/prometheus.yml")
	jobs := strings.Index(text, "\nscrape_configs:\n")
	if jobs < 0 {
		t.Fatal("prometheus.yml has no scrape_configs")
	}
	return e.settings() + text[jobs:] + e.jobs
}

// engines are the engines that there are files for, by the directory.
var engines = map[string]engine{
	"thanos": {
		first:  "# An example for Prometheus 3.8 and later, of two replicas that write to Thanos receivers (docs/distributed.md).",
		labels: "    replica: prometheus-1\n",
		drop:   "replica",
		write:  "http://127.0.0.1:10939/api/v1/receive",
	},
	"mimir": {
		first:  "# An example for Prometheus 3.8 and later, of two replicas that write to Mimir (docs/distributed.md).",
		labels: "    cluster: graylink\n    __replica__: prometheus-1\n",
		drop:   "cluster|__replica__",
		write: `http://127.0.0.1:8080/api/v1/push
    # The tenant. The analyzer sends it as well, by http_headers under the key prometheus.
    headers:
      X-Scope-OrgID: graylink`,
		jobs: `
  # What Mimir refuses of this tenant. Its other series are for its own monitoring.
  - job_name: mimir
    static_configs:
      - targets: ["127.0.0.1:8080"]
    metric_relabel_configs:
      - source_labels: [__name__, user]
        regex: cortex_discarded_samples_total;graylink
        action: keep
`,
	},
}

// TestEngineFiles checks that the configurations of a Prometheus beside a distributed engine are made of prometheus.yml.
// -update writes them.
func TestEngineFiles(t *testing.T) {
	for name, e := range engines {
		file, want := "prometheus/"+name+"/prometheus.yml", e.prometheus(t)
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

// TestEngineConfigsOfTheNewest checks that the newest Prometheus accepts the configurations, and sends native histograms.
func TestEngineConfigsOfTheNewest(t *testing.T) {
	for name := range engines {
		file := "prometheus/" + name + "/prometheus.yml"
		text := read(t, file)
		// Discovery by files would need another module for one key.
		for _, targets := range []string{"switches", "collectors"} {
			text = strings.Replace(text, "file_sd_configs:\n      - files: [graylink/"+targets+".yml]", "static_configs: [{targets: [leaf1]}]", 1)
		}
		c, err := config.Load(text, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, s := range c.ScrapeConfigs {
			if !*s.ScrapeNativeHistograms {
				t.Errorf("%s: job %s takes no native histograms", file, s.JobName)
			}
		}
		if len(c.RemoteWriteConfigs) != 1 || !c.RemoteWriteConfigs[0].SendNativeHistograms || c.RemoteWriteConfigs[0].QueueConfig.BatchSendDeadline > model.Duration(time.Second) {
			t.Errorf("%s: remote write %+v", file, c.RemoteWriteConfigs)
		}
		if c.GlobalConfig.ExternalLabels.IsEmpty() {
			t.Errorf("%s has no external labels, by which replicas differ", file)
		}
	}
}
