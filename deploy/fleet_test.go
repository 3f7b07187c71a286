package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fleetFiles returns the texts of the files for profile fleet, which are those of profile full with other intervals.
func fleetFiles(t *testing.T) map[string]string {
	replace := func(text string, pairs ...[2]string) string {
		for _, p := range pairs {
			if !strings.Contains(text, p[0]) {
				t.Fatalf("the file for profile full has no %q", p[0])
			}
			text = strings.ReplaceAll(text, p[0], p[1])
		}
		return text
	}
	rules := read(t, "../rules/aggregates.rules.yaml")
	return map[string]string{
		"prometheus/prometheus-fleet.yml": replace(read(t, "prometheus/prometheus.yml"), [2]string{`# An example for Prometheus 2.42 and later, beside Graylink. Job names matter: rules and
# dashboards use them.`, `# An example for large fleets, for Prometheus 2.42 and later beside Graylink, where the analyzer
# reads the windows of flows from the agents (evidence.profile: fleet), and with
# aggregates-fleet.rules.yaml. It is made of prometheus.yml. Job names matter: rules and
# dashboards use them.`}, [2]string{`  # Series per flow, from which verdicts are made. The jobs of the agents are scraped every
  # second, since an analyzer judges windows of two seconds.
  - job_name: graylink-node-edges
    scrape_interval: 1s
    scrape_timeout: 1s
`, `  # Series per flow, for history alone. The job may be left out.
  - job_name: graylink-node-edges
    scrape_interval: 60s
    scrape_timeout: 5s
`}, [2]string{`  # Clocks, the health of the NICs, and all others of an agent.
  - job_name: graylink-node
    scrape_interval: 1s
    scrape_timeout: 1s
`, `  # Sums over the flows of each NIC and of each pair of leaves, for dashboards and symptoms.
  - job_name: graylink-node-sums
    scrape_interval: 30s
    scrape_timeout: 5s
    params:
      collect[]: [nic_sums, leaves]
    http_sd_configs:
      - url: http://127.0.0.1:9869/api/v1/targets
        refresh_interval: 15s
    relabel_configs:
      - source_labels: [__meta_graylink_node]
        target_label: instance
    metric_relabel_configs: *own_series

  # Clocks, the health of the NICs, and all others of an agent.
  - job_name: graylink-node
    scrape_interval: 15s
    scrape_timeout: 5s
    params:
      exclude[]: [leaves]
`}, [2]string{`  # Sums per NIC, and how many of its flows are in which condition.
`, `  # How many flows of a NIC are in which condition, what its host lost, and sums over the node. An
  # analyzer reads them every second.
`}, [2]string{`    metrics_path: /metrics/nics
`, `    metrics_path: /metrics/nics
    params:
      collect[]: [node_summary, nic_flows, host_losses]
`}, [2]string{`They are
  # scraped as often as flows, since the cause of a fault is determined from the counters of
  # the last three intervals.
  - job_name: graylink-switch
    scrape_interval: 1s
    scrape_timeout: 1s
`, `Their
  # ports have most of all series. The cause of a fault is determined from the counters of the last
  # three intervals (evidence.ports_scrape_interval of the analyzer).
  - job_name: graylink-switch
    scrape_interval: 5s
    scrape_timeout: 5s
`}, [2]string{`  - job_name: otelcol-graylink
    scrape_interval: 1s
    scrape_timeout: 1s
`, `  - job_name: otelcol-graylink
    scrape_interval: 5s
    scrape_timeout: 5s
`}),
		"prometheus/aggregates-fleet.rules.yaml": "# In place of aggregates.rules.yaml where agents are scraped as in prometheus-fleet.yml: in spite of their names, all\n" +
			"# series are means over at least 60 s. The file is made of the other one, whose comment follows.\n#\n" +
			replace(rules, [2]string{"interval: 1s", "interval: 30s"}, [2]string{"[3s]", "[90s]"},
				[2]string{"graylink-leaf-pairs\n    interval: 30s", "graylink-leaf-pairs\n    interval: 1m"}, [2]string{"graylink-tiers\n    interval: 30s", "graylink-tiers\n    interval: 1m"}),
	}
}

// TestFleetFiles checks that the files for profile fleet differ from the others by their intervals alone, and that promtool
// accepts them. -update writes them.
func TestFleetFiles(t *testing.T) {
	for file, want := range fleetFiles(t) {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if read(t, file) != want {
			t.Errorf("%s differs from what it is made of: go test ./deploy -run TestFleetFiles -update", file)
		}
	}
	full := installed(t)
	for from, to := range map[string]string{"prometheus-fleet.yml": full, "aggregates-fleet.rules.yaml": filepath.Join(filepath.Dir(full), "graylink", "aggregates.rules.yaml")} {
		if err := os.WriteFile(to, []byte(read(t, filepath.Join("prometheus", from))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(tool(t, "promtool", "prometheus"), "check", "config", full).CombinedOutput(); err != nil || strings.Count(string(out), "rules found") < 4 {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
