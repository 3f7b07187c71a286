package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestIncident writes the reports of an open verdict as the command does, against an analyzer that wants TLS and a password.
func TestIncident(t *testing.T) {
	mux := newSuspectAnalyzer(t)
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "secret" {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	defer web.Close()
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/api/v1/verdicts", nil))
	id := regexp.MustCompile(`"id":"([0-9a-f]+)"`).FindStringSubmatch(rec.Body.String())
	if id == nil {
		t.Fatal(rec.Body)
	}
	dir := t.TempDir()
	for name, password := range map[string]string{"right.yaml": "secret", "wrong.yaml": "guess"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("basic_auth: {username: u, password: "+password+"}\ntls_config: {insecure_skip_verify: true}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(file string, args ...string) (string, error) {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), self, append([]string{"incident", "--analyzer", web.URL, "--http.config", filepath.Join(dir, file)}, args...)...)
		cmd.Env = append(os.Environ(), "GRAYLINK_TEST_MAIN=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for format, want := range map[string]string{"markdown": "# link leaf1", "html": "<!DOCTYPE html>", "json": `{"report_format":1,`} {
		if out, err := run("right.yaml", id[1], "--format", format); err != nil || !strings.HasPrefix(out, want) || !strings.Contains(out, id[1]) {
			t.Errorf("%s: %v: %.200s", format, err, out)
		}
	}
	file := filepath.Join(dir, "report.html")
	if out, err := run("right.yaml", id[1], "--format", "html", "--output", file); err != nil || out != "" {
		t.Errorf("into a file: %v: %.200s", err, out)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(text), "<!DOCTYPE html>") || !strings.Contains(string(text), "<style>") || !strings.Contains(string(text), ".chart") {
		t.Errorf("%v: %.200s", err, text)
	}
	for _, x := range [][]string{{"wrong.yaml", id[1], "401"}, {"right.yaml", "none", "no verdict has this identifier"}, {"missing.yaml", id[1], "--http.config"}} {
		if out, err := run(x[0], x[1]); err == nil || !strings.Contains(out, x[2]) || strings.Contains(out, "guess") {
			t.Errorf("%v: %v: %.300s", x, err, out)
		}
	}
}
