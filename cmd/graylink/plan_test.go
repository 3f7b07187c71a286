package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"
)

// planCommand runs graylink plan with its output in a file, and returns the output and the exit code.
func planCommand(t *testing.T, args ...string) (string, int) {
	t.Helper()
	app := kingpin.New("graylink", "")
	commands := map[string]command{}
	addPlan(app, commands)
	name, err := app.Parse(append([]string{"plan"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdout
	os.Stdout = f
	err = commands[name](context.Background())
	os.Stdout = before
	f.Close()
	text, readErr := os.ReadFile(file)
	if readErr != nil {
		t.Fatal(readErr)
	}
	exit := exitError{}
	switch {
	case err == nil:
		return string(text), 0
	case errors.As(err, &exit):
		return string(text) + err.Error(), exit.code
	}
	return string(text) + err.Error(), 1
}

// TestPlanCommands makes, checks and simulates plans of C4's test bed, and compares the exit codes.
func TestPlanCommands(t *testing.T) {
	const topo, jobs = "../../deploy/plan/c4.yaml", "../../deploy/plan/e1.yaml"
	dir := t.TempDir()
	at := func(n string) string { return filepath.Join(dir, n) }
	write := func(name, text string) {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	catalogue, code := planCommand(t, "catalogue", "--topology", topo, "--jobs", jobs, "--synthetic", "3")
	if code != 0 {
		t.Fatal(catalogue)
	}
	write("paths.jsonl", catalogue)
	write("bad.jsonl", catalogue+"{\n")
	const link = "leaf1-left:up1--spine1:dn1"
	verdicts := fmt.Sprintf(`{"verdicts":[{"id":"v12","element":%q,"kind":"link","open":true},{"id":"v11","element":"spine1","kind":"switch","open":false},
		{"id":"v11-prefix","element":"spine1","kind":"switch","scenario":"routing","prefix":"leaf1-left","severity":"warning","open":true},
		{"id":"v11-crowd","element":"spine1","kind":"switch","scenario":"polarization","severity":"warning","open":true}]}`, link)
	lossy := fmt.Sprintf(`{"verdicts":[{"id":"v12","element":%q,"kind":"link","scenario":"convergence","severity":"info"},{"id":"v13","element":"spine1","kind":"switch","scenario":"fib_mismatch","prefix":"leaf1-left","severity":"critical"}]}`, link)
	write("lossy.json", lossy)
	write("verdicts.json", verdicts)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/verdicts" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, verdicts)
	}))
	defer srv.Close()
	plan := func(more ...string) (string, int) {
		return planCommand(t, append([]string{"make", "--topology", topo, "--jobs", jobs, "--qps", "8", "--format", "json", "--budget", "100ms"}, more...)...)
	}
	whole, code := plan("--catalogue", at("paths.jsonl"))
	if code != 0 || !strings.Contains(whole, `leaf1-left:up1->spine1:dn1`) {
		t.Fatalf("exit code %d, or the plan does not use the link that is excluded below", code)
	}
	write("plan.json", whole)
	for _, c := range []struct {
		name, reason string
		args         []string
	}{
		{"--exclude", "--exclude", []string{"--exclude", link}},
		{"a file of verdicts", "verdict v12", []string{"--verdicts", at("verdicts.json")}},
		{"an analyzer", "verdict v12", []string{"--verdicts", srv.URL}},
	} {
		text, code := plan(append(c.args, "--catalogue", at("paths.jsonl"))...)
		if code != 0 || !strings.Contains(text, fmt.Sprintf(`{"element":%q,"reason":%q}`, link, c.reason)) || strings.Contains(text, `leaf1-left:up1->spine1:dn1`) || strings.Contains(text, "v11") {
			t.Errorf("%s: exit code %d, the plan uses the link, does not list it, or has a closed verdict: %.300s", c.name, code, text)
		}
	}
	if text, code := plan("--verdicts", at("lossy.json"), "--catalogue", at("paths.jsonl")); code != 0 || !strings.Contains(text, `{"element":"spine1","reason":"verdict v13"}`) || strings.Contains(text, "->spine1:") {
		t.Errorf("exit code %d, the plan uses a switch that loses packets: %.300s", code, text)
	}
	for _, c := range []struct {
		name, want string
		code       int
		args       []string
	}{
		{"bad lines", "1 lines could not be read", 3, []string{"make", "--topology", topo, "--jobs", jobs, "--catalogue", at("bad.jsonl"), "--qps", "4"}},
		{"no ports", "no_valid_path", 2, []string{"make", "--topology", topo, "--jobs", jobs, "--catalogue", at("paths.jsonl"), "--exclude", "h1"}},
		{"an unknown element", "flag --exclude", 1, []string{"make", "--topology", topo, "--jobs", jobs, "--catalogue", at("paths.jsonl"), "--exclude", "h99"}},
		{"a number of queue pairs", "flag --qps", 1, []string{"make", "--topology", topo, "--jobs", jobs, "--catalogue", at("paths.jsonl"), "--qps", "0"}},
		{"no analyzer", "cannot get the open verdicts", 1, []string{"make", "--topology", topo, "--jobs", jobs, "--catalogue", at("paths.jsonl"), "--verdicts", srv.URL + "/other"}},
		{"a plan that fits", "queue pairs fit", 0, []string{"check", "--topology", topo, "--catalogue", at("paths.jsonl"), at("plan.json")}},
		{"a plan over a lost link", "is excluded", 2, []string{"check", "--topology", topo, "--exclude", link, at("plan.json")}},
		{"a drawing", "<svg", 0, []string{"make", "--topology", topo, "--jobs", jobs, "--catalogue", at("paths.jsonl"), "--qps", "8", "--format", "svg"}},
		{"a simulation", `"policy":"ecmp","seed":2`, 0, []string{"simulate", "--topology", topo, "--jobs", jobs, "--policy", "ecmp", "--seeds", "2"}},
		{"a range of seeds", "flag --seeds", 1, []string{"simulate", "--topology", topo, "--jobs", jobs, "--seeds", "2..1"}},
	} {
		if text, code := planCommand(t, c.args...); code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s: exit code %d, want %d, and %q in %.300s", c.name, code, c.code, c.want, text)
		}
	}
}
