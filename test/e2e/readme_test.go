package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
)

// readmeCommands returns the shell commands of a section of the README, one for each line that no backslash continues.
func readmeCommands(t *testing.T, heading string) (commands []string) {
	t.Helper()
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(b), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("README.md has no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
		text := strings.ReplaceAll(block[1], "\\\n", " ")
		commands = append(commands, strings.Split(strings.TrimSpace(text), "\n")...)
	}
	return commands
}

// TestReadmeFleet runs the README's commands for a fleet as they stand there: a coordinator and its certificate, a join
// token for every host, an agent on every host that gets its certificate with the token, and an analyzer beside a
// Prometheus that has deploy's configuration. What is missing is only what the README leaves to the reader: the topology,
// and that no switch runs an agent.
func TestReadmeFleet(t *testing.T) {
	need(t)
	prometheus := program(t, "prometheus")
	commands := readmeCommands(t, "How do I run it on a fleet, beside my own Prometheus?")
	if len(commands) != 5 {
		t.Fatalf("the README has %d commands for a fleet, want 5: %q", len(commands), commands)
	}
	certificates, coordinator, joinTokens, node, analyzer := commands[0], commands[1], commands[2], commands[3], commands[4]
	l := fabricOf(t, "readme", "testdata/readme-fabric.yaml")
	f := &fleet{t: t, l: l, g: fabric.NewGraph(l.Topology()), dir: t.TempDir(), logs: map[string]*bytes.Buffer{}}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		clean(t, "readme")
		for who, b := range f.logs {
			if t.Failed() {
				t.Logf("%s said:\n%s", who, tail(b.String(), 3000))
			}
		}
	})
	topo, err := yaml.Marshal(l.Topology())
	if err != nil {
		t.Fatal(err)
	}
	analyzerConfig, err := os.ReadFile("../../deploy/analyzer/analyzer.yml")
	if err != nil {
		t.Fatal(err)
	}
	analyzerConfig, _, found := bytes.Cut(analyzerConfig, []byte("# Switches that run graylink-switch."))
	if !found {
		t.Fatal("deploy/analyzer/analyzer.yml has no part about switches")
	}
	for name, text := range map[string][]byte{"my-fabric.yaml": topo, "deploy/analyzer/topology.yaml": topo, "deploy/analyzer/analyzer.yml": analyzerConfig} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(f.dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(f.dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(bin, filepath.Join(f.dir, "bin")); err != nil {
		t.Fatal(err)
	}
	start := func(where, who, command string) {
		cmd := l.Command(context.Background(), where, "sh", "-c", command)
		cmd.Dir = f.dir
		cmd.SysProcAttr.Setpgid = true
		f.start(cmd, who)
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
			_ = cmd.Wait()
		})
	}
	finish := func(command string) []byte {
		cmd := l.Command(t.Context(), "leaf1", "sh", "-c", command)
		cmd.Dir = f.dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return out
	}
	finish(certificates)
	start("leaf1", "coordinator", coordinator)
	tokens := strings.Fields(string(finish(joinTokens)))
	if len(tokens) != len(f.nodes()) {
		t.Fatalf("%s printed %q, want %d tokens", joinTokens, tokens, len(f.nodes()))
	}
	for i, name := range f.nodes() {
		// The hosts of the lab share a file system, in which each has a /var/lib of its own here.
		start(name, name, "mount -t tmpfs none /var/lib && TOKEN="+tokens[i]+"\n"+node)
	}
	beside := func(ctx context.Context, network, addr string) (net.Conn, error) {
		return l.DialContext(ctx, "leaf1", network, addr)
	}
	var groups []struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	f.wait(time.Minute, "the coordinator lists every agent", func() bool {
		body, code := f.get("http://127.0.0.1:9869/api/v1/targets", beside)
		return code == http.StatusOK && json.Unmarshal(body, &groups) == nil && len(groups) == 3
	})
	for _, g := range groups {
		node := g.Labels["__meta_graylink_node"]
		if want := f.g.ProbeAddress(node+"/eth1").String() + ":9868"; len(g.Targets) != 1 || g.Targets[0] != want {
			t.Errorf("%s is to be scraped at %q, want %s", node, g.Targets, want)
		}
	}
	config, err := filepath.Abs("../../deploy/prometheus/prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	start("leaf1", "prometheus", prometheus+" --config.file "+config+" --storage.tsdb.path tsdb --web.listen-address 127.0.0.1:9090 --enable-feature=native-histograms")
	start("leaf1", "analyzer", analyzer)
	f.wait(time.Minute, "Prometheus scrapes every agent", func() bool {
		body, code := f.get("http://127.0.0.1:9090/api/v1/query?query="+url.QueryEscape(`count(up{job=~"graylink-node.*"} == 1)`), beside)
		return code == http.StatusOK && strings.Contains(string(body), `"9"`) // three jobs
	})
	f.wait(2*time.Minute, "the fabric is innocent", func() bool {
		body, code := f.get("http://127.0.0.1:9872/metrics", beside)
		return code == http.StatusOK && strings.Contains(string(body), `fabric_verdict_state{scope="fabric",state="innocent"} 1`)
	})
}
