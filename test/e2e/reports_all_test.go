//go:build all

package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/report"
	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/lab"
)

// TestReports brings about each of the fifteen kinds of faults of a lab, and fetches the report of the verdict in all formats once it has
// closed. Each has every number of the verdict and is under a megabyte. The HTML file is opened in Chromium, which sends no request.
func TestReports(t *testing.T) {
	need(t)
	d := startDemo(t, demo.Options{Name: "e2erep", Topology: loadTopology(t, "../../deploy/lab/demo.yaml"), Fabric: demo.Namespaces, Seed: 1, Progress: testLog{t}})
	kinds := lab.FaultKinds()
	if len(kinds) != 15 {
		t.Errorf("there are %d kinds of faults: %v", len(kinds), kinds)
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { reportFault(t, d, kind) })
	}
}

// reportFault brings about a fault, and checks the reports of the verdicts that opened since.
func reportFault(t *testing.T, d *demo.Demo, kind string) {
	began := time.Now()
	p, err := demo.PlanFault(d.Graph(), kind, 1, demo.Params{Delay: 2 * time.Millisecond, Loss: 0.1, Step: time.Millisecond, DriftPPM: 50})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.RunFault(t.Context(), p, 1, 45*time.Second); err != nil {
		t.Fatal(err)
	}
	reports := 0
	for _, in := range d.Loop().Snapshot().Incidents {
		if in.OpenedAt.After(began) {
			reports++
			checkReport(t, d, in.ID)
		}
	}
	if reports == 0 && p.Kind != "" { // else no verdict on the fabric is right
		t.Errorf("no verdict opened")
	}
}

// checkReport fetches the report of a verdict in all formats.
func checkReport(t *testing.T, d *demo.Demo, id string) {
	t.Helper()
	fetch := func(path string) []byte {
		resp, err := http.Get(strings.TrimSuffix(d.URL(), "/") + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s: %v: %.300s", path, resp.Status, err, body)
		}
		return body
	}
	fetch("/verdicts/" + id)
	of := "/api/v1/verdicts/" + id + "/report?format="
	files := map[string][]byte{}
	for _, format := range []string{report.JSON, report.HTML, report.Markdown} {
		if files[format] = fetch(of + format); len(files[format]) > report.MaxFile {
			t.Errorf("%s: %d bytes", format, len(files[format]))
		}
	}
	var made report.Report
	if err := json.Unmarshal(files[report.JSON], &made); err != nil {
		t.Fatal(err)
	}
	for _, q := range made.Queries {
		if q.Problem != "" {
			t.Errorf("%s: %s", q.Expr, q.Problem)
		}
	}
	if len(made.Affected) > 0 && (made.Grain != "flow" || len(made.Lines) == 0 || len(made.Delays) == 0) {
		t.Errorf("%s: by %s, %d lines, %d distributions; unknown: %q", made.Verdict.Element.ID, made.Grain, len(made.Lines), len(made.Delays), made.Unknown)
	}
	for _, n := range numbersOf(t, files[report.JSON]) {
		for _, format := range []string{report.HTML, report.Markdown} {
			if !bytes.Contains(files[format], []byte("<code>"+n+"</code>")) && !bytes.Contains(files[format], []byte("`"+n+"`")) {
				t.Errorf("%s lacks the number %s of the verdict", format, n)
			}
		}
	}
	openOffline(t, files[report.HTML], id)
}

// numbersOf returns the numbers of the verdict in a report.
func numbersOf(t *testing.T, file []byte) (all []string) {
	t.Helper()
	var made struct{ Verdict json.RawMessage }
	if err := json.Unmarshal(file, &made); err != nil {
		t.Fatal(err)
	}
	tokens := json.NewDecoder(bytes.NewReader(made.Verdict))
	tokens.UseNumber()
	for token, err := tokens.Token(); err == nil; token, err = tokens.Token() {
		if n, ok := token.(json.Number); ok {
			all = append(all, n.String())
		}
	}
	if len(all) < 8 {
		t.Errorf("the verdict has %d numbers", len(all))
	}
	return all
}

// openOffline opens a file in Chromium, whose proxy records its requests: there are none but those that it sends with an empty page as well.
func openOffline(t *testing.T, file []byte, id string) {
	t.Helper()
	_, own := openFile(t, []byte("<!DOCTYPE html><title>empty</title>"))
	out, asked := openFile(t, file)
	if !bytes.Contains(out, []byte(id)) || !bytes.Contains(out, []byte("</main>")) {
		t.Errorf("the file in a browser: %.300s", out)
	}
	for host := range asked {
		if !own[host] {
			t.Errorf("the file in a browser asks %s", host)
		}
	}
}

// openFile returns the page of a file in Chromium, and the hosts that it asks.
func openFile(t *testing.T, file []byte) (page []byte, hosts map[string]bool) {
	t.Helper()
	var mu sync.Mutex
	hosts = map[string]bool{}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		hosts[r.Host] = true
		mu.Unlock()
		http.Error(w, "there is no network", http.StatusBadGateway)
	}))
	defer proxy.Close()
	path := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	page, err := browse(t, "--proxy-server="+proxy.URL, "--proxy-bypass-list=<-loopback>", "--dump-dom", "file://"+path).Output()
	if err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return page, hosts
}
