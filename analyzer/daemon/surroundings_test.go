package daemon

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/webaccess"
)

// TestSurroundings: maintenance and jobs come from where the configuration says, and a reload
// keeps the requests to the API.
func TestSurroundings(t *testing.T) {
	am := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`[{"id":"s","status":{"state":"active"},"matchers":[{"name":"element","value":"leaf.","isRegex":true}],"startsAt":"2026-01-01T00:00:00Z","endsAt":"2100-01-01T00:00:00Z"}]`))
	}))
	defer am.Close()
	prom := httptest.NewServer(http.NotFoundHandler())
	defer prom.Close()
	file := write(t, strings.Replace(minimal, "http://prometheus:9090/prefix", prom.URL, 1)+`maintenance: {file: m.yaml, alertmanager: {url: "`+am.URL+`"}}
jobs: [{file: jobs.yaml}, {file: squeue.txt, format: squeue}]
`)
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("m.yaml", "maintenance: [{element: spine1, until: 2100-01-01T00:00:00Z}]")
	put("jobs.yaml", "jobs: [{job: a, nodes: [h1]}]")
	put("squeue.txt", "JOBID|NAME|STATE|NODELIST\n7|b|R|h2\n")
	d, err := New(file, &webaccess.Policy{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	elements := func() (out []string) {
		for _, w := range d.CurrentLoop().MaintenanceRegister().CurrentWindows(time.Now()) {
			out = append(out, w.Element)
		}
		return out
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: not yet; %q", what, elements())
			}
		}
	}
	until("file and silences", func() bool { return slices.Equal(elements(), []string{"leaf1", "leaf2", "spine1"}) })
	if _, err := d.CurrentLoop().MaintenanceRegister().AddWindow(maintenance.Window{Element: "h1", From: time.Now(), Until: time.Now().Add(time.Hour), By: "ann"}); err != nil {
		t.Fatal(err)
	}
	put("m.yaml", "maintenance: []")
	if err := d.ReloadConfig(); err != nil {
		t.Fatal(err)
	}
	until("after a reload", func() bool { return slices.Equal(elements(), []string{"h1", "leaf1", "leaf2"}) })
	rec := httptest.NewRecorder()
	d.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/api/v1/maintenance", nil))
	if rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), `"by":"ann"`) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	put("m.yaml", "maintenance: [{element: nothing}]")
	if err := d.ReloadConfig(); err == nil || !strings.Contains(err.Error(), `m.yaml:1: maintenance[0].element: "nothing" is not in the topology`) {
		t.Errorf("%v", err)
	}
	put("m.yaml", "")
	put("squeue.txt", "no header\n")
	if err := d.ReloadConfig(); err == nil || !strings.Contains(err.Error(), "squeue.txt:1: no column JOBID") {
		t.Errorf("%v", err)
	}
}
