package deploy

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

var update = flag.Bool("update", false, "write the files that are made from others")

// chart is the directory of the chart.
const chart = "helm/graylink"

// TestChartHasTheRules checks that the copies in the chart are equal to the originals, and that there are no others.
func TestChartHasTheRules(t *testing.T) {
	want := map[string]string{"own-series.yaml": ownSeries(t)}
	for pattern, dir := range map[string]string{"../rules/*.rules.yaml": "rules", "../dashboards/json/*.json": "dashboards"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %d files", pattern, err, len(files))
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			want[dir+"/"+filepath.Base(f)] = string(text)
		}
	}
	want["aggregates-fleet.rules.yaml"] = read(t, "prometheus/aggregates-fleet.rules.yaml")
	root := filepath.Join(chart, "files")
	if *update {
		for name, text := range want {
			file := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := map[string]string{}
	for _, pattern := range []string{"*.yaml", "*/*"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got[strings.TrimPrefix(f, root+"/")] = string(text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s/%s differs from its original: go test ./deploy -run TestChartHasTheRules -update", root, name)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("%s/%s has no original", root, name)
	}
}

// ownSeries returns the relabelling by which an agent's series are those of its own node, with the keys of the Prometheus
// operator.
func ownSeries(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("prometheus/prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Jobs []struct {
			Name   string           `yaml:"job_name"`
			Series []map[string]any `yaml:"metric_relabel_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{"source_labels": "sourceLabels", "target_label": "targetLabel", "regex": "regex", "action": "action"}
	for _, j := range c.Jobs {
		if j.Name != "graylink-node-edges" {
			continue
		}
		var out []map[string]any
		for _, rule := range j.Series {
			r := map[string]any{}
			for k, v := range rule {
				if keys[k] == "" {
					t.Fatalf("%s: the key %q has no name here", j.Name, k)
				}
				r[keys[k]] = v
			}
			out = append(out, r)
		}
		b, err := yaml.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	t.Fatal("prometheus.yml has no job graylink-node-edges")
	return ""
}
