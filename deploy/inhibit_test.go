package deploy

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestInhibitions sends a real Alertmanager alerts that belong together, and checks which of
// them it inhibits.
func TestInhibitions(t *testing.T) {
	alertmanager := tool(t, "prometheus-alertmanager", "prometheus-alertmanager")
	hook := httptest.NewServer(http.NotFoundHandler())
	defer hook.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "alertmanager.yml")
	text := strings.ReplaceAll(read(t, "alertmanager/alertmanager.yml"), "http://127.0.0.1:9099", hook.URL)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().String()
	ln.Close()
	cmd := exec.Command(alertmanager, "--config.file", file, "--storage.path", dir, "--web.listen-address", at, "--cluster.listen-address=")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Alertmanager said:\n%s", said.String())
		}
	}()

	const link = "leaf1:up1--spine1:dn1"
	alerts := []struct {
		labels map[string]string
		held   bool
		about  string
	}{
		{map[string]string{"alertname": "FabricFault", "graylink": "verdict", "severity": "critical", "element": link, "kind": "link", "plane": "a"}, false, "a page"},
		{map[string]string{"alertname": "FabricFault", "graylink": "verdict", "severity": "warning", "element": link, "kind": "link", "plane": "a"}, true, "its ticket"},
		{map[string]string{"alertname": "FabricFault", "graylink": "verdict", "severity": "warning", "element": "spine2", "kind": "switch", "plane": "a"}, false, "another element's ticket"},
		{map[string]string{"alertname": "FabricNICLoss", "graylink": "symptom", "severity": "warning", "signal": "loss", "nic": "h1/eth1", "plane": "a"}, true, "a symptom of the plane"},
		{map[string]string{"alertname": "OwnEdgeAlert", "graylink": "symptom", "severity": "critical", "plane": "a"}, true, "somebody's own symptom of the plane"},
		{map[string]string{"alertname": "FabricNICLoss", "graylink": "symptom", "severity": "warning", "signal": "loss", "nic": "h1/eth2", "plane": "b"}, false, "a symptom of another plane"},
		{map[string]string{"alertname": "GraylinkClockFault", "graylink": "verdict", "severity": "warning", "element": "h1/eth2", "kind": "clock", "plane": "b"}, false, "a clock"},
		{map[string]string{"alertname": "FabricNICDelay", "graylink": "symptom", "severity": "warning", "signal": "delay", "nic": "h1/eth2", "plane": "b"}, true, "a delay while a clock is wrong"},
		{map[string]string{"alertname": "GraylinkAnalyzerDown", "graylink": "health", "severity": "warning"}, false, "no analyzer"},
		{map[string]string{"alertname": "GraylinkCoverageLow", "graylink": "health", "severity": "warning", "scope": "fabric"}, true, "no evidence, for want of an analyzer"},
		{map[string]string{"alertname": "GraylinkAgentDown", "graylink": "health", "severity": "warning", "instance": "h1"}, false, "an agent"},
	}
	var body []map[string]any
	for _, a := range alerts {
		body = append(body, map[string]any{"labels": a.labels})
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + at + "/api/v2/alerts"
	end := time.Now().Add(20 * time.Second)
	for {
		resp, err := http.Post(base, "application/json", bytes.NewReader(b))
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatalf("Alertmanager accepts no alerts: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	held := func() map[string]bool {
		resp, err := http.Get(base)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var got []struct {
			Labels map[string]string
			Status struct{ InhibitedBy []string }
		}
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		out := map[string]bool{}
		for _, g := range got {
			key, err := json.Marshal(g.Labels)
			if err != nil {
				t.Fatal(err)
			}
			out[string(key)] = len(g.Status.InhibitedBy) > 0
		}
		return out
	}
	// Alertmanager evaluates alerts asynchronously.
	for {
		now, wrong := held(), []string{}
		for _, a := range alerts {
			key, err := json.Marshal(a.labels)
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := now[string(key)]; !ok || got != a.held {
				wrong = append(wrong, a.about)
			}
		}
		if len(wrong) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("inhibited alerts that should not be, or the reverse: %q", wrong)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
