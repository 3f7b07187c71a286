//go:build alone

// Five machines and a server take four fifths of two cores: where agents are starved the analyzer rightly takes them
// for no evidence. make test has nothing beside it, and so has make test-rdma.

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/test/vm/guest"
)

const fourTopology = `version: 1
switches:
  - {name: leaf1, role: leaf, pod: p1, plane: a}
nodes:
  - {name: h1, address: h1, nics: [{device: eth0, plane: a, addresses: [10.1.1.2], aliases: [rxe0]}]}
  - {name: h2, address: h2, nics: [{device: eth0, plane: a, addresses: [10.1.2.2], aliases: [rxe0]}]}
  - {name: h3, address: h3, nics: [{device: eth0, plane: a, addresses: [10.1.3.2], aliases: [rxe0]}]}
  - {name: h4, address: h4, nics: [{device: eth0, plane: a, addresses: [10.1.4.2], aliases: [rxe0]}]}
links:
  - {a: "h1/eth0", b: "leaf1:dn1", a_address: 10.1.1.2/24, b_address: 10.1.1.1/24}
  - {a: "h2/eth0", b: "leaf1:dn2", a_address: 10.1.2.2/24, b_address: 10.1.2.1/24}
  - {a: "h3/eth0", b: "leaf1:dn3", a_address: 10.1.3.2/24, b_address: 10.1.3.1/24}
  - {a: "h4/eth0", b: "leaf1:dn4", a_address: 10.1.4.2/24, b_address: 10.1.4.1/24}
`

// into serves what servers in machines answer: a proxy, which is asked for machine:port, or a server that stands for one of them.
func into(t *testing.T, machines map[string]*Machine, to string) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.URL.Host // of a request to a proxy
		if host == "" {
			host = to
		}
		name, port, _ := net.SplitHostPort(host)
		m := machines[name]
		if m == nil {
			http.Error(w, "no machine "+name, http.StatusBadGateway)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out, err := m.DoRequest(r.Context(), guest.Request{URL: "http://127.0.0.1:" + port + r.URL.RequestURI()[strings.Index(r.URL.RequestURI(), r.URL.Path):], Method: r.Method, Header: r.Header, Body: body, Limit: 10 * time.Second})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		for k, v := range out.Header {
			w.Header()[k] = v
		}
		w.Header().Del("Content-Length")
		w.WriteHeader(out.Status)
		_, _ = w.Write(out.Body)
	}))
	t.Cleanup(s.Close)
	return s
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// background runs a program of the host until the test ends.
func background(t *testing.T, name string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(name), said.String()[max(0, said.Len()-4000):])
		}
	})
}

// precedence puts this process, and what it starts, before the tests beside it until the test ends: agents that
// are starved are no evidence, and the analyzer says so instead of naming what the test broke. It takes CAP_SYS_NICE.
func precedence(t *testing.T) {
	t.Helper()
	if err := SetPriority(-10); err != nil {
		t.Logf("no precedence over what else runs here: %v", err)
		return
	}
	t.Cleanup(func() {
		if err := SetPriority(0); err != nil {
			t.Error(err)
		}
	})
}

// TestVerdictByRDMA: four machines that probe each other by RDMA alone, and a fifth that routes between them; one sends late. A real Prometheus scrapes the agents,
// and the analyzer beside it names that NIC.
func TestVerdictByRDMA(t *testing.T) {
	parts := require(t)
	precedence(t)
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal("needs prometheus (Debian package of that name)")
		}
		t.Skip("needs prometheus (Debian package of that name)")
	}
	node := withRDMA(t, "github.com/graylink/graylink/cmd/graylink-node")
	others, err := BuildPrograms(t.Context(), t.TempDir(), "github.com/graylink/graylink/cmd/graylink-coordinator", "github.com/graylink/graylink/cmd/graylink-analyzer")
	if err != nil {
		t.Fatal(err)
	}
	names, networks := []string{"h1", "h2", "h3", "h4"}, []*Network{network(t), network(t), network(t), network(t)}
	var all []Options
	for i, name := range append(names, "leaf1") {
		o := Options{Name: name, Networks: networks, Parts: parts}
		if i < len(names) {
			o.Networks, o.Modules = networks[i:i+1], append([]string{"sch_netem"}, SoftRoCE...)
			o.Programs = map[string]string{"/usr/local/bin/graylink-node": node[0]}
		} else {
			// The router has the least to do, and the coordinator none of it before a machine that measures.
			o.Programs = map[string]string{"/usr/local/bin/graylink-coordinator": others[0]}
		}
		all = append(all, o)
	}
	machines := together(t, all...)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	shell(t, machines["leaf1"], "ip link set lo up", "echo 1 > /proc/sys/net/ipv4/ip_forward", "echo 0 > /proc/sys/net/ipv4/icmp_ratelimit")
	for i, name := range names {
		m := machines[name]
		shell(t, machines["leaf1"], fmt.Sprintf("ip addr add 10.1.%d.1/24 dev eth%d", i+1, i), fmt.Sprintf("ip link set eth%d up", i))
		shell(t, m, "ip link set lo up", fmt.Sprintf("ip addr add 10.1.%d.2/24 dev eth0", i+1), "ip link set eth0 up", fmt.Sprintf("ip route add default via 10.1.%d.1", i+1), "rdma link add rxe0 type rxe netdev eth0")
	}
	nodes := maps.Clone(machines)
	delete(nodes, "leaf1")
	coordinate(ctx, t, machines["leaf1"], "10.1.1.1", fourTopology, nodes, "--schedule.cadence=100ms")
	agents := map[string]*Process{}
	for name, m := range nodes {
		agents[name] = follow(ctx, t, m, name, "10.1.1.1", "--no-nic.health", "--web.enable-admin-api", "--web.advertise-address="+name+":9868")
	}
	dir, proxy, coordinator, web, page := t.TempDir(), into(t, machines, ""), into(t, machines, "leaf1:9869"), free(t), free(t)
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	rules, err := filepath.Glob("../../rules/*.rules.yaml")
	if err != nil || len(rules) == 0 {
		t.Fatal(rules, err)
	}
	for i := range rules {
		if rules[i], err = filepath.Abs(rules[i]); err != nil {
			t.Fatal(err)
		}
	}
	write("topology.yaml", fourTopology)
	background(t, prometheus, "--config.file", write("prometheus.yml", fmt.Sprintf(`
global: {scrape_interval: 2s, scrape_timeout: 2s}
rule_files: ["%s"]
scrape_configs:
  - job_name: graylink-node-edges
    metrics_path: /metrics/edges
    proxy_url: %[2]s
    http_sd_configs: [{url: "%[3]s/api/v1/targets", refresh_interval: 1s}]
    relabel_configs: [{source_labels: [__meta_graylink_node], target_label: instance}]
  - job_name: graylink-node-nics
    metrics_path: /metrics/nics
    proxy_url: %[2]s
    http_sd_configs: [{url: "%[3]s/api/v1/targets", refresh_interval: 1s}]
    relabel_configs: [{source_labels: [__meta_graylink_node], target_label: instance}]
  - job_name: graylink-node
    proxy_url: %[2]s
    http_sd_configs: [{url: "%[3]s/api/v1/targets", refresh_interval: 1s}]
    relabel_configs: [{source_labels: [__meta_graylink_node], target_label: instance}]
  - job_name: graylink-analyzer
    static_configs: [{targets: ["%[4]s"]}]
`, strings.Join(rules, `", "`), proxy.URL, coordinator.URL, page)), "--storage.tsdb.path", filepath.Join(dir, "tsdb"), "--web.listen-address", web, "--enable-feature=native-histograms", "--log.level=warn")
	background(t, others[1], "--config.file", write("analyzer.yml", fmt.Sprintf("topology_file: topology.yaml\nevidence: {scrape_interval: 2s}\nprometheus:\n  url: http://%s\nagents:\n  proxy_url: %s\n  coordinator:\n    url: %s\n", web, proxy.URL, coordinator.URL)),
		"--web.listen-address", page)

	ask := func(path string) []byte {
		resp, err := http.Get("http://" + page + path)
		if err != nil {
			return nil
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	verdicts := func() (state fabric.State, open []incident.Incident, text string) {
		b := ask("/api/v1/verdicts")
		var v struct {
			State    fabric.State
			Verdicts []incident.Incident
		}
		if len(b) > 0 {
			if err := json.Unmarshal(b, &v); err != nil {
				t.Fatalf("%v: %s", err, b)
			}
		}
		return v.State, v.Verdicts, string(b)
	}
	said := func() (out string) {
		for _, name := range names {
			out += name + ":\n" + strings.Join(agents[name].Lines, "\n") + "\n"
		}
		return out
	}
	within(t, 3*time.Minute, "the analyzer has a window of all flows, measured by RDMA", func() (string, bool) {
		n := map[string]bool{}
		b := ask("/api/v1/observations")
		for d := json.NewDecoder(bytes.NewReader(b)); d.More(); {
			var o fabric.Observation
			if d.Decode(&o) != nil {
				break
			}
			if o.Timestamp == "user" && o.OWD != nil {
				n[o.Src+">"+o.Dst] = true
			}
		}
		return fmt.Sprintf("%d pairs\n%s\n%s", len(n), b, said()), len(n) == 12
	})
	t.Logf("all pairs measured by RDMA after %.1f s", time.Since(began).Seconds())
	within(t, 3*time.Minute, "the network is innocent", func() (string, bool) {
		state, _, text := verdicts()
		return text, state == fabric.Innocent
	})
	t.Logf("innocent after %.1f s", time.Since(began).Seconds())

	shell(t, machines["h3"], "tc qdisc add dev eth0 root netem delay 40ms")
	broken := time.Now()
	within(t, 3*time.Minute, "a verdict names the NIC of h3", func() (string, bool) {
		_, all, text := verdicts()
		for i := range all {
			v := &all[i]
			if v.OpenedAt.After(broken) && (v.Element.ID == "h3/eth0" && v.Kind == fabric.KindNIC || slices.ContainsFunc(v.Equivalent, func(e fabric.Element) bool { return e.ID == "h3/eth0" })) {
				t.Logf("after %.1f s: %s", time.Since(broken).Seconds(), v.Summary)
				// While its clock is in doubt round trips decide, and they have no direction.
				if v.Direction != "h3/eth0->leaf1:dn3" && v.Direction != "" || v.Symptom.AddedDelayNS < 30e6 || v.Symptom.AddedDelayNS > 60e6 {
					t.Errorf("%s, %v ns more: what it sends is expected to be 40 ms late", v.Direction, v.Symptom.AddedDelayNS)
				}
				return "", true
			}
		}
		return text, false
	})
	_, open, text := verdicts()
	for i := range open {
		v := &open[i]
		if v.Kind == fabric.KindClock {
			// Of a machine that stood still for a moment: it says that the network is innocent of it.
			t.Logf("besides: %s", v.Summary)
		} else if v.OpenedAt.After(broken) && !strings.Contains(v.Element.ID, "h3") {
			t.Errorf("%s %s is named besides: %s", v.Kind, v.Element.ID, text)
		}
	}
	shell(t, machines["h3"], "tc qdisc del dev eth0 root")
	within(t, 3*time.Minute, "the network is innocent again", func() (string, bool) {
		state, _, text := verdicts()
		return text, state == fabric.Innocent
	})
	t.Logf("%.1f s in the machines", time.Since(began).Seconds())
}
