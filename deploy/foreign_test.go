package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// freeAddress returns an address of the loopback interface on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// TestForeignSeriesAreDropped checks that a real Prometheus with the shipped configuration stores the series of an agent
// about its own node, and none about other nodes.
func TestForeignSeriesAreDropped(t *testing.T) {
	program := tool(t, "prometheus", "prometheus")
	own := []string{
		`fabric_probe_sent_total{src="h1/eth1",dst="h2/eth1",flow="0",direction="forward"} 7`,
		`fabric_probe_received_total{src="h2/eth1",dst="h1/eth1",flow="0"} 7`,
		`fabric_nic_info{nic="h1/eth1",node="h1"} 1`,
		`fabric_clock_error_bound_seconds{clock="h1/eth1"} 0.000001`,
		`graylink_node_stalled_seconds_total{nic="h1/eth1"} 0`,
		`go_goroutines 7`,
	}
	foreign := []string{
		`fabric_probe_sent_total{src="h8/eth1",dst="h2/eth1",flow="0",direction="forward"} 1000`,
		`fabric_probe_lost_total{src="h8/eth1",dst="h2/eth1",flow="0",direction="forward"} 900`,
		// A series about another node's flow that has labels of the agent's own node as well.
		`fabric_probe_lost_total{src="h8/eth1",dst="h2/eth1",flow="1",direction="forward",nic="h1/eth1",__tmp_node="h1"} 900`,
		`fabric_probe_received_total{src="h1/eth1",dst="h8/eth1",flow="0"} 7`,
		`fabric_nic_kernel_delay_seconds_count{nic="h8/eth1",src="h1/eth1"} 7`,
		`fabric_clock_error_bound_seconds{clock="h8/eth1"} 1000`,
		`graylink_node_stalled_seconds_total{nic="h8/eth1"} 99`,
		`fabric_probe_sent_total{src="h8/eth1",dst="h2/eth1",flow="2",instance="h8"} 7`,
		`fabric_suspect_score{element="leaf1",kind="switch"} 1`,
		`fabric_switch_port_receive_errors_total{switch="leaf1",port="up1"} 1000`,
		`graylink_analyzer_cycles_total{result="answered"} 7`,
		`up 1`,
	}
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprintln(w, strings.Join(append(own, foreign...), "\n"))
	}))
	defer agent.Close()
	coordinator := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `[{"targets":[%q],"labels":{"__meta_graylink_node":"h1","__scheme__":"http"}}]`, strings.TrimPrefix(agent.URL, "http://"))
	}))
	defer coordinator.Close()

	file, address := installed(t), freeAddress(t)
	text := strings.ReplaceAll(read(t, file), "http://127.0.0.1:9869", coordinator.URL)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--config.file", file, "--storage.tsdb.path", t.TempDir(), "--web.listen-address", address, "--enable-feature=native-histograms")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()

	series := func(query string) (out []map[string]string) {
		resp, err := http.Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(query))
		if err != nil {
			return nil // it is starting
		}
		defer resp.Body.Close()
		var body struct {
			Data struct {
				Result []struct{ Metric map[string]string }
			}
		}
		if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&body) != nil {
			return nil
		}
		for _, r := range body.Data.Result {
			out = append(out, r.Metric)
		}
		return out
	}
	for _, job := range []string{"graylink-node-edges", "graylink-node-nics", "graylink-node"} {
		var stored []string
		for ctx.Err() == nil && len(stored) == 0 {
			if len(series(`up{job="`+job+`",instance="h1"}`)) == 0 {
				time.Sleep(50 * time.Millisecond)
				continue
			}
			for _, m := range series(`{job="` + job + `",instance="h1",__name__!~"up|scrape_.*"}`) {
				if _, left := m["__tmp_node"]; left {
					t.Errorf("%s: the temporary label of the comparison is stored: %v", job, m)
				}
				stored = append(stored, m["__name__"])
			}
		}
		want := make([]string, len(own))
		for i, s := range own {
			want[i], _, _ = strings.Cut(s, " ")
			want[i], _, _ = strings.Cut(want[i], "{")
		}
		slices.Sort(stored)
		slices.Sort(want)
		if !slices.Equal(stored, want) {
			t.Errorf("%s stores %q, want %q", job, stored, want)
		}
		dropped := series(fmt.Sprintf(`(scrape_samples_scraped{job=%[1]q} - scrape_samples_post_metric_relabeling{job=%[1]q}) == %[2]d`, job, len(foreign)))
		if len(dropped) != 1 {
			t.Errorf("%s: %d foreign series are not counted as dropped", job, len(foreign))
		}
	}
}
