package dashboards

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/test/drift"
)

var update = flag.Bool("update", false, "rewrite the JSON")

func encode(t *testing.T, d Dashboard) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(d); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestJSON checks rule 5.
func TestJSON(t *testing.T) {
	all := All()
	for name, d := range all {
		file := filepath.Join("json", name+".json")
		got := encode(t, d)
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the code makes (%v): go test ./dashboards -update", file, err)
		}
	}
	files, err := filepath.Glob("json/*.json")
	if err != nil || len(files) != len(all) {
		t.Errorf("%d files for %d dashboards, %v", len(files), len(all), err)
	}
}

// TestPanels checks rule 2, and what Grafana requires of a dashboard.
func TestPanels(t *testing.T) {
	uids := map[string]bool{}
	for name, d := range All() {
		if uids[d.UID] || !strings.HasSuffix(d.Description, ".") && !strings.HasSuffix(d.Description, "?") {
			t.Errorf("%s: uid %s, description %q", name, d.UID, d.Description)
		}
		uids[d.UID] = true
		for _, p := range d.Panels {
			if p.Title == "" || !strings.HasSuffix(p.Description, ".") || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
				t.Errorf("%s: panel %q: text %q, unit %q, %d queries", name, p.Title, p.Description, p.FieldConfig.Defaults.Unit, len(p.Targets))
			}
			if p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s: panel %q is beyond the grid", name, p.Title)
			}
			for _, target := range p.Targets {
				if target.Instant == target.Range {
					t.Errorf("%s: panel %q queries both an instant and a range", name, p.Title)
				}
			}
		}
	}
}

// recorded returns the names of the recording rules.
func recorded(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("../rules/*.rules.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	out := map[string]bool{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var f struct {
			Groups []struct{ Rules []struct{ Record string } }
		}
		if err := yaml.Unmarshal(b, &f); err != nil {
			t.Fatal(err)
		}
		for _, g := range f.Groups {
			for _, r := range g.Rules {
				out[r.Record] = true
			}
		}
	}
	return out
}

// TestPanelsOfHardware evaluates the panels about NICs over the series that the agent publishes on a node that has
// NICs. Counters grow by one with each scrape.
func TestPanelsOfHardware(t *testing.T) {
	f, err := os.Open("../exporters/node/testdata/nics-h100.metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(f)
	if err != nil {
		t.Fatal(err)
	}
	var load strings.Builder
	load.WriteString("load 5s\n")
	add := func(name, labels string, value float64, counts bool) {
		if counts {
			fmt.Fprintf(&load, "  %s{%s} %g+1x60\n", name, labels, value)
		} else {
			fmt.Fprintf(&load, "  %s{%s} %gx60\n", name, labels, value)
		}
	}
	for name, family := range families {
		for _, m := range family.Metric {
			labels := []string{`instance="h1"`, `job="graylink-node"`}
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			add(name, strings.Join(labels, ","), m.GetGauge().GetValue()+m.GetCounter().GetValue(), m.Counter != nil)
		}
	}
	// Series of faults that the node does not have.
	add("fabric_nic_finding", `nic="h1/mlx5_0",code="state_down",severity="fatal",instance="h1"`, 1, false)
	add("fabric_nic_driver_events_total", `nic="h1/mlx5_0",code="high_temperature",severity="warning",instance="h1"`, 0, true)
	add("fabric_nic_port_hardware_total", `nic="h1/mlx5_0",counter="np_cnp_sent",instance="h1"`, 0, true)
	for name, labels := range map[string]string{"fabric_nic_pause_frames_total": `direction="receive"`, "fabric_nic_driver_statistic_total": `counter="rx_prio3_pause"`, "fabric_nic_port_fec_corrected_blocks_total": "",
		"fabric_nic_port_fec_uncorrectable_blocks_total": "", "fabric_nic_module_receive_power_watts": `lane="1"`, "fabric_nic_module_temperature_celsius": "", "fabric_nic_module_flag": `flag="receive_loss_of_signal",lane="1"`} {
		add(name, strings.TrimSuffix(`nic="h1/mlx5_0",instance="h1",`+labels, ","), 1, strings.HasSuffix(name, "_total"))
	}
	db := evidencetest.NewQuerier(t, load.String())
	d := All()["nicstate"]
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			rows, err := db.QueryInstant(t.Context(), FillVariables(target.Expr), time.Unix(290, 0))
			if err != nil || len(rows) == 0 {
				t.Errorf("panel %q shows nothing (%v): %s", p.Title, err, FillVariables(target.Expr))
			}
		}
	}
}

var used = regexp.MustCompile(`\$([a-z]+)`)

// TestQueries checks rule 3, and that no variable of a dashboard is missing or unused.
func TestQueries(t *testing.T) {
	known, err := drift.ExposedSeries("..")
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(known, recorded(t))
	for name, d := range All() {
		variables, wanted := map[string]bool{}, map[string]bool{}
		check := func(where, expr string) {
			asked, err := drift.QueriedSeries(FillVariables(expr))
			if err != nil {
				t.Errorf("%s: %s: %v", name, where, err)
			}
			for _, s := range asked {
				if !known[s] {
					t.Errorf("%s: %s queries %s, which nothing exposes", name, where, s)
				}
			}
			for _, m := range used.FindAllStringSubmatch(expr, -1) {
				wanted[m[1]] = true
			}
		}
		for _, v := range d.Templating.List {
			if v.Type == "query" {
				variables[v.Name] = true
				check("variable "+v.Name, SeriesExpr(v))
			}
		}
		for _, n := range d.Annotations.List {
			check("annotation "+n.Name, n.Expr)
		}
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				check("panel "+p.Title, target.Expr)
			}
		}
		if !maps.Equal(variables, wanted) {
			t.Errorf("%s: variables %v, used %v", name, slices.Sorted(maps.Keys(variables)), slices.Sorted(maps.Keys(wanted)))
		}
	}
}

// TestPanelsOfSwitches evaluates the panels about pauses, marks, queues and optics over series that switches of several
// vendors reported in incidents. At least one switch answers each panel.
func TestPanelsOfSwitches(t *testing.T) {
	files, err := filepath.Glob("../analyzer/attribute/testdata/incidents/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	answered := map[string]bool{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		db := evidencetest.NewQuerier(t, string(b))
		for _, p := range All()["ports"].Panels {
			for _, target := range p.Targets {
				rows, err := db.QueryInstant(t.Context(), FillVariables(target.Expr), time.Unix(125, 0))
				if err != nil {
					t.Fatalf("%s: %v", target.Expr, err)
				}
				answered[p.Title] = answered[p.Title] || len(rows) > 0
			}
		}
	}
	for _, title := range []string{"Paused by the far end", "Time paused", "Waiting for credits", "Marked with congestion", "Largest queue depth", "Bit error rate", "Blocks that could not be corrected", "Light received"} {
		if !answered[title] {
			t.Errorf("panel %q shows nothing", title)
		}
	}
}

// TestPanelsOfSignals evaluates the panels about in-band signals over the series of flows with them. Counters grow by one with each scrape.
func TestPanelsOfSignals(t *testing.T) {
	f, err := os.Open("../exporters/csig/testdata/working.metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(f)
	if err != nil {
		t.Fatal(err)
	}
	load := "load 5s\n"
	for name, family := range families {
		for _, m := range family.Metric {
			labels := []string{`instance="h1"`}
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			growth := "x60"
			if m.Counter != nil {
				growth = "+1x60"
			}
			load += fmt.Sprintf("  %s{%s} %g%s\n", name, strings.Join(labels, ","), m.GetGauge().GetValue()+m.GetCounter().GetValue(), growth)
		}
	}
	db := evidencetest.NewQuerier(t, load)
	for _, p := range All()["signals"].Panels {
		for _, target := range p.Targets {
			rows, err := db.QueryInstant(t.Context(), FillVariables(target.Expr), time.Unix(290, 0))
			if err != nil || len(rows) == 0 {
				t.Errorf("panel %q shows nothing (%v): %s", p.Title, err, FillVariables(target.Expr))
			}
			// Two flows have little left: packets with compact locators 1 and 2 of one, and with wide locator 1 of the other.
			if p.Title == "Bottleneck ports" {
				got := map[string]float64{}
				for _, r := range rows {
					got[r.Labels["format"]+" "+r.Labels["switch"]+":"+r.Labels["port"]] = r.Value
				}
				if want := map[string]float64{"compact leaf1:up1": 0.2, "compact leaf1:Ethernet1/2": 0.2, "wide leaf1:up1": 0.2}; !maps.Equal(got, want) {
					t.Errorf("bottlenecks %v, want %v", got, want)
				}
			}
		}
	}
}

// TestPanelsOfCollectives evaluates the panels about collectives over the series of an analyzer that follows a slow job.
func TestPanelsOfCollectives(t *testing.T) {
	const of = `job_name="train",comm_name="DP 0",instance="a1",job="graylink-analyzer"`
	db := evidencetest.NewQuerier(t, `load 5s
  fabric_collective_diagnosis{`+of+`,syndrome="comm_slow"} 1x60
  fabric_collective_network_state{`+of+`,state="guilty"} 1x60
  fabric_collective_network_state{`+of+`,state="innocent"} 0x60
  fabric_collective_rank_late_total{`+of+`,rank="3"} 7x60
  fabric_collective_transfer_seconds{`+of+`,op="AllReduce"} {{schema:4 count:0 sum:0 offset:-16 buckets:[0]}}+{{schema:4 count:10 sum:5 offset:-16 buckets:[10]}}x60
  fabric_collective_wait_seconds{`+of+`,op="AllReduce"} {{schema:4 count:0 sum:0 offset:-16 buckets:[0]}}+{{schema:4 count:10 sum:5 offset:-16 buckets:[10]}}x60
  graylink_analyzer_collective_nodes{instance="a1"} 8x60
  graylink_analyzer_collective_nodes_unread{instance="a1"} 0x60
  graylink_analyzer_collective_records_total{instance="a1"} 0+100x60
  graylink_analyzer_collective_dropped_total{instance="a1",reason="queue_full"} 0x60
`)
	for _, p := range All()["collectives"].Panels {
		for _, target := range p.Targets {
			rows, err := db.QueryInstant(t.Context(), FillVariables(target.Expr), time.Unix(290, 0))
			if err != nil || len(rows) != 1 {
				t.Errorf("panel %q shows %v (%v): %s", p.Title, rows, err, FillVariables(target.Expr))
				continue
			}
			if strings.HasSuffix(p.Title, ": mean") && rows[0].Value != 0.5 {
				t.Errorf("panel %q shows %v", p.Title, rows[0])
			}
		}
	}
}
