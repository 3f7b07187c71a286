package deploy

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/config"
	_ "github.com/prometheus/prometheus/discovery/http" // known to config.Load
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nichw"
	"github.com/graylink/graylink/internal/nodeagent/health"
)

// tool returns the path of a program of a Debian package. It skips the test if the program is missing, and fails it in CI.
func tool(t *testing.T, program, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	switch {
	case err == nil:
		return path
	case os.Getenv("GRAYLINK_REQUIRE_ALL") == "1":
		t.Fatalf("%s (Debian package %s) is missing", program, pkg)
	}
	t.Skipf("%s (Debian package %s) is missing", program, pkg)
	return ""
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestNICConfig checks that the example can be read and has a rate for every product of the table.
func TestNICConfig(t *testing.T) {
	for product, want := range map[string]int64{"NVIDIA A100-SXM4-80GB": 25e9, "NVIDIA H100 80GB HBM3": 50e9, "NVIDIA H200": 50e9, "NVIDIA B200": 50e9, "NVIDIA GB200": 50e9} {
		o := health.DefaultOptions()
		if err := health.LoadOptions("node/nic.yml", &o); err != nil {
			t.Fatal(err)
		}
		o.Rules.GPU = product
		m := nichealth.New(o.Rules, "boot", nil)
		speed := want
		m.ObservePoll(&nichw.Poll{At: time.Unix(1e9, 0), Boot: "boot", Parts: nichw.ReadAll, DevicesKnown: true, InterfacesKnown: true, Devices: []nichw.Device{{Name: "mlx5_0", Function: nichw.Physical, Board: "MT_1",
			Ports: []nichw.Port{{Number: 1, State: nichw.Active, Phys: nichw.LinkUp, Rate: &speed}}}}})
		if got, ok := m.ExpectedRate(nichealth.PortEntity("mlx5_0", 1)); !ok || got != want {
			t.Errorf("%s: %d bytes a second are expected (%v), want %d", product, got, ok, want)
		}
	}
}

// installed lays the files out as the README describes.
func installed(t *testing.T) (prometheus string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "graylink"), 0o755); err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Glob("../rules/*.rules.yaml")
	if err != nil || len(rules) == 0 {
		t.Fatal(rules, err)
	}
	for from, to := range map[string]string{"prometheus/prometheus.yml": "prometheus.yml", "prometheus/switches.yml.example": "graylink/switches.yml",
		"prometheus/collectors.yml.example": "graylink/collectors.yml"} {
		if err := os.WriteFile(filepath.Join(dir, to), []byte(read(t, from)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range rules {
		if err := os.WriteFile(filepath.Join(dir, "graylink", filepath.Base(r)), []byte(read(t, r)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "prometheus.yml")
}

func TestPrometheusConfig(t *testing.T) {
	out, err := exec.Command(tool(t, "promtool", "prometheus"), "check", "config", installed(t)).CombinedOutput()
	if err != nil || strings.Count(string(out), "rules found") < 4 {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// TestPrometheusConfigOfTheNewest checks the configuration with the line for 3.8 and later, which 2.42 would refuse.
func TestPrometheusConfigOfTheNewest(t *testing.T) {
	text := read(t, "prometheus/prometheus.yml")
	with := strings.Replace(text, "# scrape_native_histograms: true", "scrape_native_histograms: true", 1)
	if with == text {
		t.Fatal("no line about native histograms")
	}
	// Discovery by files would need another module for one key.
	for _, file := range []string{"switches", "collectors"} {
		with = strings.Replace(with, "file_sd_configs:\n      - files: [graylink/"+file+".yml]", "static_configs: [{targets: [leaf1]}]", 1)
	}
	c, err := config.Load(with, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.ScrapeConfigs {
		if !*s.ScrapeNativeHistograms {
			t.Errorf("job %s takes no native histograms", s.JobName)
		}
	}
}

// TestJobsOfRules checks that the example has all jobs that rules select.
func TestJobsOfRules(t *testing.T) {
	var c struct {
		ScrapeConfigs []struct {
			JobName string `yaml:"job_name"`
		} `yaml:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "prometheus/prometheus.yml")), &c); err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Glob("../rules/*.rules.yaml")
	if err != nil || len(rules) == 0 {
		t.Fatal(rules, err)
	}
	for _, file := range rules {
		for _, m := range regexp.MustCompile(`job=~?"([^"]*)"`).FindAllStringSubmatch(read(t, file), -1) {
			re, found := regexp.MustCompile("^(?:"+m[1]+")$"), false
			for _, s := range c.ScrapeConfigs {
				found = found || re.MatchString(s.JobName)
			}
			if !found {
				t.Errorf("%s: no job %s in prometheus.yml", file, m[0])
			}
		}
	}
}

func TestAnalyzerConfig(t *testing.T) {
	dir := t.TempDir()
	for from, to := range map[string]string{"analyzer/analyzer.yml": "analyzer.yml", "lab/demo.yaml": "topology.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, to), []byte(read(t, from)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := daemon.LoadConfig(filepath.Join(dir, "analyzer.yml")); err != nil {
		t.Error(err)
	}
}

func amtool(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(tool(t, "amtool", "prometheus-alertmanager"), args...).Output()
	if err != nil {
		t.Errorf("amtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestAlertmanagerConfig(t *testing.T) {
	amtool(t, "check-config", "alertmanager/alertmanager.yml")
}

// TestMessageText renders the text of messages: with the link to the verdict where the alert has one.
func TestMessageText(t *testing.T) {
	const about = `"labels": {"alertname": "FabricFault"}, "annotations": {"summary": "link a--b: corridor", "description": "It adds 2ms.", "runbook_url": "https://r.example/FabricFault.md", `
	for link, want := range map[string]string{
		"https://graylink.example/verdicts?element=a--b&kind=link": "link a--b: corridor\nIt adds 2ms.\nVerdict: https://graylink.example/verdicts?element=a--b&kind=link\nRunbook: https://r.example/FabricFault.md",
		"": "link a--b: corridor\nIt adds 2ms.\nRunbook: https://r.example/FabricFault.md",
	} {
		data := filepath.Join(t.TempDir(), "data.json")
		if err := os.WriteFile(data, []byte(`{"status": "firing", "alerts": [{"status": "firing", `+about+`"verdict_url": "`+link+`"}}]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		render := func(name string) string {
			return amtool(t, "template", "render", "--template.glob=alertmanager/*.tmpl", "--template.data="+data, `--template.text={{ template "`+name+`" . }}`)
		}
		if got := render("graylink.text"); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if got := render("graylink.title"); got != "[firing] link a--b: corridor" {
			t.Errorf("the title is %q", got)
		}
	}
}

// TestRoutes checks that only critical alerts page, that a plane can have receivers of its own, and that every alert of
// the rules has a route that is meant for it.
func TestRoutes(t *testing.T) {
	rules, err := filepath.Glob("../rules/*.rules.yaml")
	if err != nil || len(rules) == 0 {
		t.Fatal(rules, err)
	}
	n := 0
	for _, file := range rules {
		var f struct {
			Groups []struct {
				Rules []struct {
					Alert  string
					Labels map[string]string
				}
			}
		}
		if err := yaml.Unmarshal([]byte(read(t, file)), &f); err != nil {
			t.Fatal(err)
		}
		for _, g := range f.Groups {
			for _, r := range g.Rules {
				if r.Alert == "" {
					continue
				}
				for _, plane := range []string{"a", "storage"} {
					want := "ticket"
					if r.Labels["severity"] == "critical" {
						want = "page"
					}
					if plane == "storage" && r.Labels["graylink"] != "health" && r.Labels["graylink"] != "collective" {
						want += "-storage"
					}
					args := []string{"config", "routes", "test", "--config.file=alertmanager/alertmanager.yml", "alertname=" + r.Alert, "plane=" + plane}
					for k, v := range r.Labels {
						args = append(args, k+"="+v)
					}
					if got := amtool(t, args...); got != want {
						t.Errorf("%s %v of plane %q goes to %q, want %q", r.Alert, r.Labels, plane, got, want)
					}
					n++
				}
			}
		}
	}
	t.Logf("%d routes", n)
}
