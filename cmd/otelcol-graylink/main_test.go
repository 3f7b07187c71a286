//go:build collector

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

// asCollector makes the test's program the collector.
const asCollector = "GRAYLINK_TEST_COLLECTOR"

func TestMain(m *testing.M) {
	if os.Getenv(asCollector) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestManifest checks that the manifest for the builder lists the components of this program.
func TestManifest(t *testing.T) {
	text, err := os.ReadFile("../../deploy/otelcol/manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type module struct {
		Gomod  string `yaml:"gomod"`
		Import string `yaml:"import"`
	}
	var m struct{ Receivers, Processors, Exporters []module }
	if err := yaml.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	have, err := components()
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for kind, c := range map[string]struct {
		manifest []module
		count    int
		has      func(string) bool
	}{
		"receiver":  {m.Receivers, distinct(have.Receivers), has(have.Receivers)},
		"processor": {m.Processors, distinct(have.Processors), has(have.Processors)},
		"exporter":  {m.Exporters, distinct(have.Exporters), has(have.Exporters)},
	} {
		if len(c.manifest) != c.count {
			t.Errorf("%d %ss in the manifest, %d here", len(c.manifest), kind, c.count)
		}
		for _, x := range c.manifest {
			path, version, _ := strings.Cut(x.Gomod, " ")
			if x.Import != "" {
				path = x.Import
			} else if !strings.Contains(string(sum), "\t"+path+" "+version) {
				t.Errorf("%s is not at %s in go.mod", path, version)
			}
			// The exporter of OTLP over gRPC has another name than its module.
			if name := strings.TrimSuffix(filepath.Base(path), kind); !c.has(name) && !c.has(name+"_grpc") {
				t.Errorf("the manifest has the %s %s", kind, name)
			}
		}
	}
}

// distinct returns the number of factories, some of which have an old name as well.
func distinct[F comparable](m map[component.Type]F) int {
	seen := map[F]bool{}
	for _, f := range m {
		seen[f] = true
	}
	return len(seen)
}

func has[F any](m map[component.Type]F) func(string) bool {
	return func(name string) bool {
		for k := range m {
			if k.String() == name {
				return true
			}
		}
		return false
	}
}

func need(t *testing.T, program string) string {
	p, err := exec.LookPath(program)
	if err == nil {
		return p
	}
	if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
		t.Fatalf("needs %s", program)
	}
	t.Skipf("needs %s", program)
	return ""
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func run(t *testing.T, env string, name string, args ...string) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil && t.Failed() {
			t.Log(name, err)
		}
	})
}

func get(t *testing.T, url string) string {
	r, err := http.Get(url)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 60 s: %s", what)
		}
	}
}

// TestPrometheusScrapesTheCollector checks, on a real OpenSM's fabric with the collector as a process and a
// real Prometheus, that the series exist with the types that they have here, and that promtool reports no
// problems.
func TestPrometheusScrapesTheCollector(t *testing.T) {
	prometheus, promtool := need(t, "prometheus"), need(t, "promtool")
	f := ibtest.Start(t, ibtest.FatTree(4, 2, 2), ibtest.Options{})
	f.ChangeAndWait(`Unlink "leaf0"[2]`) // a port whose counters only the console changes
	f.RunConsole(`PerformanceSet "leaf0"[2] PortCountersExtended.PortXmitData=1099511627776`)
	f.RunConsole(`PerformanceSet "leaf0"[2] PortCounters.SymbolErrorCounter=123`)

	dir, metrics, web := t.TempDir(), freePort(t), freePort(t)
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	run(t, asCollector+"=1", os.Args[0], "--config", write("collector.yaml", fmt.Sprintf(`
receivers:
  ibfabric: {name: s, device: "ibsim:%s/h0", interval: 500ms, discovery_interval: 1s}
exporters:
  prometheus: {endpoint: "%s"}
service:
  pipelines: {metrics: {receivers: [ibfabric], exporters: [prometheus]}}
  telemetry: {metrics: {level: none}, logs: {level: warn}}
`, f.SocketName(), metrics)))
	run(t, "X=", prometheus, "--config.file", write("prometheus.yml", fmt.Sprintf(`
global: {scrape_interval: 1s}
scrape_configs: [{job_name: otelcol, static_configs: [{targets: ["%s"]}]}]
`, metrics)), "--storage.tsdb.path", filepath.Join(dir, "tsdb"), "--web.listen-address", web, "--log.level", "error")

	value := func(query string) string {
		var answer struct {
			Data struct {
				Result []struct{ Value [2]any }
			}
		}
		_ = json.Unmarshal([]byte(get(t, "http://"+web+"/api/v1/query?query="+query)), &answer)
		if len(answer.Data.Result) != 1 {
			return ""
		}
		return fmt.Sprint(answer.Data.Result[0].Value[1])
	}
	const octets = `fabric_switch_port_transmit_bytes_total%7Bswitch="leaf0",port="2"%7D`
	until(t, "Prometheus has the series", func() bool { return value(octets) != "" })
	if got := value(octets); got != "4398046511104" {
		t.Errorf("Prometheus has %s octets, want 4 times 2^40", got)
	}
	if got := value(`fabric_switch_port_symbol_errors_total%7Bswitch="leaf0",port="2"%7D`); got != "123" {
		t.Errorf("Prometheus has %s symbol errors, want 123", got)
	}

	var response struct {
		Data map[string][]struct{ Type string }
	}
	types := func() int {
		if err := json.Unmarshal([]byte(get(t, "http://"+web+"/api/v1/metadata")), &response); err != nil {
			t.Fatal(err)
		}
		return len(response.Data)
	}
	until(t, "metadata", func() bool { return types() > 40 })
	seen := 0
	for _, family := range ibagent.Families {
		got := response.Data[family.Name]
		if len(got) == 0 {
			continue // ibsim does not have everything
		}
		seen++
		want := "gauge"
		if family.Counter {
			want = "counter"
		}
		if got[0].Type != want {
			t.Errorf("%s is a %s to Prometheus, want a %s", family.Name, got[0].Type, want)
		}
		delete(response.Data, family.Name)
	}
	for name := range response.Data {
		if strings.HasPrefix(name, "fabric_") || strings.HasPrefix(name, "graylink_") {
			t.Errorf("%s is no family of ours", name)
		}
	}

	exposition := get(t, "http://"+metrics+"/metrics")
	check := exec.Command(promtool, "check", "metrics", "--extended")
	check.Stdin = strings.NewReader(exposition)
	out, err := check.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "target_info") {
		t.Errorf("promtool: %v: %s", err, out)
	}
	var list []string
	for line := range strings.Lines(exposition) {
		if kind, ok := strings.CutPrefix(line, "# TYPE "); ok {
			list = append(list, strings.TrimSpace(kind))
		}
	}
	slices.Sort(list)
	t.Logf("%d families of %d:\n%s\n%s", seen, len(ibagent.Families), strings.Join(list, "\n"), out)
}
