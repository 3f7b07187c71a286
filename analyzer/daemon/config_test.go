package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const topology = `version: 1
switches: [{name: leaf1, role: leaf}, {name: leaf2, role: leaf}, {name: spine1, role: spine}]
nodes: [{name: h1, nics: [{device: eth1}]}, {name: h2, nics: [{device: eth1}]}]
links:
  - {a: "h1/eth1", b: "leaf1:dn1"}
  - {a: "h2/eth1", b: "leaf2:dn1"}
  - {a: "leaf1:up1", b: "spine1:dn1"}
  - {a: "leaf2:up1", b: "spine1:dn2"}
`

// write puts a configuration beside a topology.
func write(t *testing.T, text string) (file string) {
	t.Helper()
	dir := t.TempDir()
	file = filepath.Join(dir, "analyzer.yaml")
	for name, content := range map[string]string{file: text, filepath.Join(dir, "topology.yaml"): topology} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

const minimal = `topology_file: topology.yaml
prometheus: {url: "http://prometheus:9090/prefix"}
agents: {url: "http://{node}:9868"}
`

func TestConfig(t *testing.T) {
	file := write(t, `topology_file: topology.yaml
prometheus:
  url: https://prometheus:9090
  basic_auth: {username: graylink, password_file: secret}
  tls_config: {ca_file: ca.crt}
  proxy_url: http://proxy:3128
  timeout: 2s
agents:
  coordinator: {url: "http://coordinator:9869"}
  tls_config: {cert_file: a.crt, key_file: a.key}
switches: {url: "http://{switch}:9871", names: [leaf1], stamp_source_port: 40000}
evidence: {scrape_interval: 5s, ports_scrape_interval: 30s, lag: 7s}
queries:
  sent: sum by ($flow, direction) (rate(fabric_probe_sent_total{cluster="a"}$delay)) * $seconds
`)
	c, err := LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(file)
	if c.Prometheus.Client.TLSConfig.CAFile != filepath.Join(dir, "ca.crt") || c.Prometheus.Client.BasicAuth.PasswordFile != filepath.Join(dir, "secret") ||
		c.Prometheus.Client.ProxyURL.Host != "proxy:3128" || !c.Prometheus.Client.FollowRedirects || !c.Agents.Client.EnableHTTP2 || c.Agents.Client.TLSConfig.KeyFile != filepath.Join(dir, "a.key") {
		t.Errorf("clients: %+v, %+v", c.Prometheus, c.Agents)
	}
	if s := c.settings; s.Scrape != 5*time.Second || s.Lag != 7*time.Second || s.Delay != 10*time.Second || s.Hard != 5*time.Second || s.Parallel != 4 || s.Stall == 0 || c.Evidence.Ports != 30*time.Second {
		t.Errorf("settings: %+v", s)
	}
	if got := c.Evidence.maxLag(); got != 15*time.Second {
		t.Errorf("a measured lag is at most %v, want three scrape intervals", got)
	}
	if c.Switches.SourcePort != 40000 || c.Switches.StampPort != 862 || len(c.Switches.Names) != 1 {
		t.Errorf("switches: %+v", c.Switches)
	}
	if q := c.AllQueries()["sent"]; !strings.Contains(q, `{cluster="a"}[15000ms])) * 10`) {
		t.Error(q)
	}
	hash := c.hash
	if err := os.WriteFile(filepath.Join(dir, "topology.yaml"), []byte(topology+"# another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err = LoadConfig(file); err != nil || c.hash == hash {
		t.Errorf("another topology has the same hash %s, %v", hash, err)
	}
	if _, err = LoadConfig(write(t, strings.Replace(minimal, "agents", "switches", 1))); err == nil {
		t.Error("a switches' URL without {switch} is accepted")
	}
	if c, err = LoadConfig(write(t, minimal+`switches: {url: "http://{switch}"}`)); err != nil || len(c.Switches.Names) != 3 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestBadConfig(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "analyzer.yaml:1: topology_file: ",
		minimal + "promtheus: {}\n":              "analyzer.yaml:4: promtheus: there is no such key",
		minimal + "evidence: {lagg: 1s}\n":       "analyzer.yaml:4: lagg: there is no such key",
		minimal + "evidence:\n  lag: 1\n":        "analyzer.yaml:5: ",
		minimal + "evidence:\n  max_lag: 10ms\n": "analyzer.yaml:5: evidence.max_lag: 10ms: 1s to 1h0m0s are expected",
		minimal + "evidence:\n  lag: 10ms\n":     "analyzer.yaml:5: evidence.lag: 10ms: 1s to 1h0m0s are expected",
		strings.Replace(minimal, "/prefix\"}", "\", backend: thanos}", 1):                                 "analyzer.yaml:2: prometheus.backend: \"thanos\"",
		minimal + "history: {span: 1s}\n":                                                                 "analyzer.yaml:4: history.span: 1s: 10s to 24h0m0s are expected",
		minimal + "history: {search: 1s}\n":                                                               "analyzer.yaml:4: history.search: ",
		minimal + "evidence: {parallel: 0}\n":                                                             "analyzer.yaml:4: evidence.parallel: 0",
		minimal + "evidence: {stall_ratio: .nan}\n":                                                       "analyzer.yaml:4: evidence.stall_ratio: ",
		minimal + "queries:\n  p50: up\n  p51: up\n":                                                      "analyzer.yaml:6: queries.p51: unknown query",
		minimal + "queries:\n  p50: rate(x\n":                                                             "analyzer.yaml:5: queries.p50: invalid PromQL",
		minimal + "switches: {url: \"http://{switch}\", names: [leaf9]}\n":                                "analyzer.yaml:4: switches.names: \"leaf9\"",
		minimal + "jobs: [{file: x, slurm: {}}]\n":                                                        "analyzer.yaml:4: jobs: entry 1: one of file, slurm and kubernetes is required",
		minimal + "jobs: [{slurm: {}, format: squeue}]\n":                                                 "analyzer.yaml:4: jobs: entry 1: format belongs to a file",
		minimal + "jobs: [{slurm: {command: \"\"}}]\n":                                                    "analyzer.yaml:4: jobs: entry 1: slurm.command: a command is required",
		minimal + "jobs: [{slurm: {every: 10ms}}]\n":                                                      "analyzer.yaml:4: jobs: entry 1: slurm.every: 10ms",
		minimal + "jobs: [{kubernetes: {url: \"x y\"}}]\n":                                                "analyzer.yaml:4: jobs[0].kubernetes.url",
		minimal + "jobs: [{format: squeue}]\n":                                                            "analyzer.yaml:4: jobs: entry 1: one of file, slurm and kubernetes is required",
		minimal + "jobs: [{file: x, format: pbs}]\n":                                                      "analyzer.yaml:4: jobs: entry 1: format \"pbs\": one of placement,",
		minimal + "asking: {ca_file: a, cert_file: b, key_file: c}\n":                                     "analyzer.yaml:4: asking.address: a value is required",
		minimal + "asking: {address: \"c:1\", ca_file: a, cert_file: b}\n":                                "analyzer.yaml:4: asking.key_file: a value is required",
		minimal + "maintenance: {coordinator: {address: \"c:1\", cert_file: b, key_file: c}}\n":           "analyzer.yaml:4: maintenance.coordinator.ca_file: a value is required",
		minimal + "asking: {address: \"c\", ca_file: a, cert_file: b, key_file: c}\n":                     "analyzer.yaml:4: asking.address: coordinator address \"c\": want host:port",
		minimal + "steering:\n  mode: on\n":                                                               "analyzer.yaml:5: steering.mode: \"on\": off, dry_run or act is expected",
		minimal + "steering:\n  mode: dry_run\n  audit_file: a\n":                                         "analyzer.yaml:5: steering.mode: dry_run needs collectives.follow: true",
		minimal + "collectives: {folow: true}\n":                                                          "analyzer.yaml:4: folow: there is no such key",
		minimal + "steering:\n  mode: act\n  audit_file: a\n":                                             "analyzer.yaml:5: steering.mode: act needs leader",
		minimal + "steering:\n  slurm: {url: \"http://s\", version: v0.0.43}\n":                           "analyzer.yaml:5: steering.slurm.url: \"http://s\": https is expected",
		minimal + "steering:\n  webhook: {url: \"https://h\", secret: x}\n":                               "analyzer.yaml:5: secret: there is no such key here",
		minimal + "page_above_nics: 0\n":                                                                  "analyzer.yaml:4: page_above_nics: 0",
		minimal + "scope: {planes: [a]}\n":                                                                "analyzer.yaml:4: scope.planes: plane \"a\" has no NIC in the topology: one of \"\" is expected",
		minimal + "scope: {planes: [a, b, a]}\n":                                                          "analyzer.yaml:4: scope.planes: \"a\": different names are expected",
		minimal + "scope: {pods: [p1, p1]}\n":                                                             "analyzer.yaml:4: scope.pods: \"p1\": different names are expected",
		minimal + "scope: {pods: [p1]}\n":                                                                 "analyzer.yaml:4: scope.pods: no switch has the pod or group \"p1\"",
		minimal + "scope: {core: true}\n":                                                                 "analyzer.yaml:4: scope.core: pods are expected beside it",
		minimal + "maintenance: {alertmanager: {}}\n":                                                     "analyzer.yaml:4: maintenance.alertmanager.url: ",
		minimal + "maintenance: {files: x}\n":                                                             "analyzer.yaml:4: files: there is no such key",
		minimal + "---\n{}\n":                                                                             "one document",
		minimal + "topology_file: x\n":                                                                    "analyzer.yaml:4: ",
		strings.Replace(minimal, "topology.yaml", "none.yaml", 1):                                         "analyzer.yaml:1: topology_file: ",
		strings.Replace(minimal, "http://prometheus", "http://a:b@prometheus", 1):                         "analyzer.yaml:2: prometheus.url: a URL without credentials",
		strings.Replace(minimal, "/prefix\"}", "\", timeout: 1ms}", 1):                                    "analyzer.yaml:2: prometheus.timeout: ",
		strings.Replace(minimal, "/prefix\"}", "\", basic_auth: {username: a, usrname_file: b}}", 1):      "analyzer.yaml:2: usrname_file: there is no such key",
		strings.Replace(minimal, "/prefix\"}", "\", max_answer_bytes: 5}", 1):                             "analyzer.yaml:2: prometheus.max_answer_bytes: ",
		strings.Replace(minimal, "/prefix\"}", "\", bearer_token: a, basic_auth: {username: a}}", 1):      "analyzer.yaml:2: prometheus: ",
		strings.Replace(minimal, "{node}", "h1", 1):                                                       "analyzer.yaml:3: agents.url: ",
		strings.Replace(minimal, "agents: {", "agents: {coordinator: {url: \"http://c\"}, ", 1):           "analyzer.yaml:3: agents.url: either",
		strings.Replace(minimal, "agents: {url: \"http://{node}:9868\"}", "agents: {coordinator: {}}", 1): "analyzer.yaml:3: agents.coordinator.url: ",
		strings.Split(minimal, "agents")[0]:                                                               "agents, switches or infiniband are required",
		"topology_file: [":                                                                                "analyzer.yaml:",
		"[]":                                                                                              "analyzer.yaml:1: ",
	} {
		_, err := LoadConfig(write(t, text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "daemon.") {
			t.Errorf("%s\n%v\nwant %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte(minimal + "switches: {url: \"http://{switch}\"}\nevidence: {lag: 3s}\nqueries: {p50: up}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Host{}.parseConfig(b, "/etc/graylink")
		if err != nil {
			if withLocation("f.yaml", b, err).Error() == "" {
				t.Error("an error without words")
			}
			return
		}
		for name, q := range c.AllQueries() {
			if q == "" {
				t.Errorf("%s: nothing is asked", name)
			}
		}
	})
}
