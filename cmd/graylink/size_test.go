package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSize(t *testing.T) {
	const topology = "../../deploy/lab/demo.yaml"
	for _, tc := range []struct {
		args   []string
		code   int
		stdout string // is contained
		stderr string
	}{
		{[]string{}, 0, "8 nodes, 8 NICs, 6 switches, 16 links; 101 flows", ""},
		{[]string{"--profile", "fleet"}, 0, "profile fleet", ""},
		{[]string{"--format", "mimir-overrides", "--tenant", "gpu"}, 0, "overrides:\n  \"gpu\":\n    max_global_series_per_user: ", ""},
		{[]string{"--format", "values", "--profile", "fleet"}, 0, "prometheus:\n  profile: fleet\n", ""},
		{[]string{"--budget-samples", "7000"}, 3, "together", "beyond the budget of 7000"},
		{[]string{"--budget-samples", "8000"}, 0, "together", ""},
		{[]string{"--scrape", "0s"}, 1, "", "--scrape 0s: want a positive time"},
		{[]string{"--scrape-edges=-1s"}, 1, "", "--scrape-edges -1s: want a positive time"},
		{[]string{"--budget-samples=-1"}, 1, "", "--budget-samples -1: want a positive number"},
	} {
		stdout, stderr, code := runGraylink(t, "", append([]string{"size", "--topology", topology}, tc.args...)...)
		if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
			t.Errorf("%q: code %d, want %d\n%s\n%s", tc.args, code, tc.code, stdout, stderr)
		}
	}
	stdout, stderr, code := runGraylink(t, "", "size", "--topology", topology, "--format", "json")
	var p struct {
		Jobs      []struct{ Job string }
		Constants []struct{ Name, Kind, Source string }
	}
	if err := json.Unmarshal([]byte(stdout), &p); code != 0 || err != nil || len(p.Jobs) != 6 || len(p.Constants) == 0 {
		t.Fatalf("code %d, %v, %s\n%s", code, err, stderr, stdout)
	}
	for _, c := range p.Constants {
		if c.Name == "" || c.Source == "" || c.Kind != "measured" && c.Kind != "reckoned" {
			t.Errorf("a constant without a source: %+v", c)
		}
	}
}
