package main

import (
	"encoding/json"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
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
		{[]string{"--distributors", "0"}, 1, "", "--distributors 0: want 1 or more"},
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
	one, _, _ := runGraylink(t, "", "size", "--topology", topology, "--format", "mimir-overrides")
	two, _, _ := runGraylink(t, "", "size", "--topology", topology, "--format", "mimir-overrides", "--distributors", "2")
	if a, b := limitsOf(t, one), limitsOf(t, two); b.Rate != 2*a.Rate || b.Series != a.Series || b.Burst != a.Burst || a.Rate <= 0 {
		t.Errorf("limits %+v for one distributor, and %+v for two", a, b)
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

// overrides are the limits of a tenant, as Mimir reads them.
type overrides struct {
	Series float64 `yaml:"max_global_series_per_user"`
	Rate   float64 `yaml:"ingestion_rate"`
	Burst  float64 `yaml:"ingestion_burst_size"`
}

// limitsOf reads the limits of the tenant anonymous.
func limitsOf(t *testing.T, text string) overrides {
	t.Helper()
	var v struct{ Overrides map[string]overrides }
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v.Overrides["anonymous"]
}
