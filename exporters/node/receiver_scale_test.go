//go:build scale

package node

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// receiverNodes is how many nodes a Prometheus scrapes in TestReceiverOfProfiles, and receiverSpan for how long it is measured:
// twice the longest interval of a job.
const (
	receiverNodes = 50
	receiverSpan  = 2 * time.Minute
)

// TestReceiverOfProfiles measures the processor time of a real Prometheus that scrapes nodes of 8 NICs with 15 flows each, by the
// jobs of the two files of deploy/prometheus, without rules. Profile fleet has a fifth of it at most.
func TestReceiverOfProfiles(t *testing.T) {
	m := fleetNode(16)
	for i := range m.snap.NICs {
		m.snap.NICs[i].Edges, m.snap.NICs[i].Received = m.snap.NICs[i].Edges[:15], m.snap.NICs[i].Received[:15]
	}
	scraped := scrapesOf(t, m)
	full := receiverSeconds(t, agentJobs(t, "prometheus.yml"), scraped)
	fleet := receiverSeconds(t, agentJobs(t, "prometheus-fleet.yml"), scraped)
	t.Logf("%d nodes: %.3f processor seconds a second with profile full, %.3f with fleet: %.1f times less", receiverNodes, full, fleet, full/fleet)
	if fleet > full/5 {
		t.Error("profile fleet has more than a fifth")
	}
}

// receiverSeconds returns the processor seconds that Prometheus uses in a second.
func receiverSeconds(t *testing.T, jobs []scrapeJob, scraped func(scrapeJob, string) []byte) float64 {
	t.Helper()
	pages := map[string][]byte{} // by job, gzipped
	var served atomic.Uint64
	nodes := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited")
		w.Header().Set("Content-Encoding", "gzip")
		_, job, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		_, _ = w.Write(pages[job]) // the server may be gone
		served.Add(1)
	}))
	defer nodes.Close()
	var config strings.Builder
	config.WriteString("global: {}\nscrape_configs:\n")
	perSecond := 0.0
	for _, j := range jobs {
		pages[j.Name] = scraped(j, "gzip")
		perSecond += receiverNodes / j.Every.Seconds()
		fmt.Fprintf(&config, "- job_name: %s\n  scrape_interval: %v\n  scrape_timeout: %v\n  relabel_configs: [{source_labels: [node], target_label: instance}, {source_labels: [node], target_label: __metrics_path__, replacement: /$1/%s}]\n  static_configs:\n", j.Name, j.Every, j.Every, j.Name)
		for n := range receiverNodes {
			fmt.Fprintf(&config, "  - {targets: [%q], labels: {node: gpu-node-%d}}\n", strings.TrimPrefix(nodes.URL, "http://"), n)
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("prometheus", "--config.file", file, "--storage.tsdb.path", filepath.Join(dir, "tsdb"), "--web.listen-address", "127.0.0.1:0", "--enable-feature=native-histograms", "--log.level=warn")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	time.Sleep(time.Minute) // every job was scraped
	before, from, began := processorTime(t, cmd.Process.Pid), served.Load(), time.Now()
	time.Sleep(receiverSpan)
	span := time.Since(began).Seconds()
	if got := float64(served.Load()-from) / span; got < 0.95*perSecond {
		t.Errorf("%.1f scrapes a second, and %.1f are configured: the machine is too busy", got, perSecond)
	}
	used := (processorTime(t, cmd.Process.Pid) - before) / span
	t.Logf("%d jobs, %.1f scrapes a second, %s", len(jobs), perSecond, octetsOf(jobs, scraped))
	return used
}

// octetsOf says how many octets each job has.
func octetsOf(jobs []scrapeJob, scraped func(scrapeJob, string) []byte) string {
	var out []string
	for _, j := range jobs {
		out = append(out, fmt.Sprintf("%s every %v: %d octets", j.Path+"?"+url.Values(j.Params).Encode(), j.Every, len(scraped(j, "identity"))))
	}
	return strings.Join(out, ", ")
}

// processorTime returns the processor seconds of a process, from /proc/PID/stat (proc(5): fields 14 and 15, in hundredths).
func processorTime(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return float64(user+system) / 100
}
