// Package receivers holds what all receivers have in common: the vocabulary of their series.
package receivers

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/otlptranslator"
	"gopkg.in/yaml.v3"

	fabricswitch "github.com/graylink/graylink/exporters/switch"
	"github.com/graylink/graylink/internal/pki"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

// family is a family of one source, under its name in Prometheus.
type family struct {
	kind   dto.MetricType
	help   string
	labels []string
}

// source is a program or receiver that publishes families.
type source struct {
	name     string
	families map[string]family
	// helps means that the source's help texts are the vocabulary's, because several such sources may meet in
	// one Collector.
	helps bool
}

// metadata is the part of a receiver's metadata.yaml that is read.
type metadata struct {
	Metrics map[string]struct {
		Description, Unit, Stability string
		Sum                          *struct {
			Monotonic bool
			Temporal  string `yaml:"aggregation_temporality"`
		}
		Gauge      *struct{}
		Attributes []string
	}
}

// receiver returns the families of a receiver's metadata.yaml, under the names that Prometheus' own translator
// gives them.
func receiver(t *testing.T, name, dir string) source {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "metadata.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var m metadata
	if err := yaml.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	out := source{name, map[string]family{}, true}
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	for otel, f := range m.Metrics {
		x := family{dto.MetricType_GAUGE, f.Description, f.Attributes}
		typ := otlptranslator.MetricType(otlptranslator.MetricTypeGauge)
		if f.Stability == "" {
			t.Errorf("%s: %s has no stability", name, otel)
		}
		switch {
		case f.Gauge != nil && f.Sum == nil:
		case f.Gauge == nil && f.Sum != nil && f.Sum.Monotonic && f.Sum.Temporal == "cumulative":
			x.kind, typ = dto.MetricType_COUNTER, otlptranslator.MetricTypeMonotonicCounter
		default:
			t.Errorf("%s: %s is neither a gauge nor a cumulative counter", name, otel)
		}
		series, err := namer.Build(otlptranslator.Metric{Name: otel, Unit: f.Unit, Type: typ})
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := out.families[series]; twice {
			t.Errorf("%s: two metrics become %s", name, series)
		}
		out.families[series] = x
	}
	return out
}

// described matches the form in which client_golang prints a family.
var described = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "([^"]*)", unit: "[^"]*", constLabels: \{\}, variableLabels: \{([^}]*)\}\}$`)

// switches returns the families of graylink-switch.
func switches(t *testing.T) source {
	t.Helper()
	out := source{"graylink-switch", map[string]family{}, true}
	for _, d := range fabricswitch.SeriesDescs() {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("no family: %s", d)
		}
		kind := dto.MetricType_GAUGE
		if strings.HasSuffix(m[1], "_total") {
			kind = dto.MetricType_COUNTER
		}
		out.families[m[1]] = family{kind, m[2], strings.Split(m[3], ",")}
	}
	return out
}

// nodes returns the families of graylink-node in its golden files.
func nodes(t *testing.T) source {
	t.Helper()
	out := source{"graylink-node", map[string]family{}, false}
	for _, file := range []string{"metrics.txt", "metrics-nics.txt", "metrics-edges.txt", "nics-h100.metrics", "rdma.metrics", "collectives.metrics", "../../csig/testdata/working.metrics"} {
		b, err := os.ReadFile(filepath.Join("../exporters/node/testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for name, f := range families {
			if !strings.HasPrefix(name, "fabric_") && !strings.HasPrefix(name, "graylink_") {
				continue
			}
			x := out.families[name]
			x.kind, x.help = f.GetType(), f.GetHelp()
			for _, m := range f.Metric {
				for _, l := range m.Label {
					if !slices.Contains(x.labels, l.GetName()) {
						x.labels = append(x.labels, l.GetName())
					}
				}
			}
			out.families[name] = x
		}
	}
	// The node of the golden files uses no certificates.
	for _, g := range pki.ExpiryGauges {
		out.families[g.Name] = family{dto.MetricType_GAUGE, g.Help, pki.ExpiryLabels()}
	}
	return out
}

// optional lists labels that a source leaves out where it does not distinguish their values (contract: "where
// they apply"): graylink-switch has one queue for each port.
var optional = map[string][]string{
	"fabric_switch_port_queue_bytes":          {"tc"},
	"fabric_switch_port_queue_discards_total": {"tc", "reason"},
}

// units lists the last words of names, the longer ones first.
var units = []struct{ suffix, unit string }{
	{"_bytes_per_second", "By/s"}, {"_timestamp_seconds", "s since 1970"}, {"_seconds", "s"}, {"_bytes", "By"}, {"_ratio", "1"}, {"_watts", "W"}, {"_amperes", "A"}, {"_volts", "V"}, {"_celsius", "Cel"},
}

func unit(name string) string {
	name = strings.TrimSuffix(name, "_total")
	for _, u := range units {
		if strings.HasSuffix(name, u.suffix) {
			return u.unit
		}
	}
	return ""
}

// TestVocabulary checks that all sources of a series use one name, type, unit and set of labels for it, and one
// help text, that each has a type, and that promtool accepts the names. It checks docs/metrics.md; -update
// writes it.
func TestVocabulary(t *testing.T) {
	sources := []source{receiver(t, "gNMI", "gnmireceiver"), receiver(t, "UFM", "ufmreceiver"), receiver(t, "InfiniBand", "ibfabricreceiver"), receiver(t, "NCCL", "ncclreceiver"), receiver(t, "CSIG", "csigreceiver"), switches(t), nodes(t)}
	all := map[string]bool{}
	for _, s := range sources {
		for name, f := range s.families {
			all[name] = true
			if f.kind == dto.MetricType_UNTYPED {
				t.Errorf("%s: %s has no type", s.name, name)
			}
			if f.help == "" {
				t.Errorf("%s: %s says nothing", s.name, name)
			}
			help, kind := f.help, f.kind
			of := &dto.MetricFamily{Name: &name, Help: &help, Type: &kind}
			if kind != dto.MetricType_HISTOGRAM {
				problems, err := promlint.NewWithMetricFamilies([]*dto.MetricFamily{of}).Lint()
				if err != nil || len(problems) != 0 {
					t.Errorf("%s: %s: %v %v", s.name, name, problems, err)
				}
			}
		}
	}
	for name := range all {
		var first *source
		for i := range sources {
			s := &sources[i]
			f, ok := s.families[name]
			if !ok {
				continue
			}
			if first == nil {
				first = s
				continue
			}
			was := first.families[name]
			if was.kind != f.kind {
				t.Errorf("%s is a %v by %s, a %v by %s", name, was.kind, first.name, f.kind, s.name)
			}
			if a, b := required(name, was.labels), required(name, f.labels); !slices.Equal(a, b) {
				t.Errorf("%s has the labels %v by %s, %v by %s", name, a, first.name, b, s.name)
			}
			if first.helps && s.helps && was.help != f.help {
				t.Errorf("%s: %q by %s, %q by %s", name, was.help, first.name, f.help, s.name)
			}
		}
	}
	for name := range optional {
		if !all[name] {
			t.Errorf("%s has optional labels, and no source has it", name)
		}
	}
	text := page(sources, all)
	const file = "../docs/metrics.md"
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != text {
		t.Errorf("%s differs from the sources (%v); write it with -update", file, err)
	}
}

func required(name string, labels []string) []string {
	out := slices.DeleteFunc(slices.Clone(labels), func(l string) bool { return slices.Contains(optional[name], l) })
	slices.Sort(out)
	return out
}

// page returns the text of docs/metrics.md.
func page(sources []source, all map[string]bool) string {
	var b strings.Builder
	b.WriteString(`# Metrics of switches and NICs

This page lists every series of switches and NICs, with its type, unit, labels and sources. It is written by
` + "`go test ./receivers -run TestVocabulary -update`" + ` from the receivers' metadata.yaml, the declarations of
graylink-switch, and the golden files of graylink-node. The test fails if two sources use one name for series of
different type, unit or labels, if a family has no type, or if promtool would reject a name.

Names are those in Prometheus. By OTLP the same metrics have OpenTelemetry's names (receivers' metadata.yaml,
[OTLP](../exporters/otlp/README.md)). A label in brackets is left out by sources that do not distinguish its values. A
source has a series only for devices that report it: absent does not mean 0. Each receiver's README states how many
series to expect. [analyzer](analyzer.md) and [coordinator](coordinator.md) list the series of those programs.
`)
	left := maps.Clone(all)
	for _, section := range []struct{ title, prefix string }{
		{"Ports of switches", "fabric_switch_port_"}, {"Switches", "fabric_switch_"},
		{"Ports of NICs", "fabric_nic_port_"}, {"Modules in NICs", "fabric_nic_module_"}, {"NICs", "fabric_nic_"}, {"Probes and clocks", "fabric_probe_"}, {"", "fabric_clock_"}, {"Collective operations", "fabric_collective_"}, {"In-band signals", "fabric_csig_"}, {"", "graylink_csig_"},
		{"The rest of the fabric", "fabric_"},
		{"The gNMI receiver itself", "graylink_gnmi_"}, {"The UFM receiver itself", "graylink_ufm_"}, {"The InfiniBand sampler itself", "graylink_ib_"}, {"graylink-switch itself", "graylink_switch_"},
		{"Certificates in use", "graylink_certificate_"},
		{"graylink-node itself", "graylink_"},
	} {
		var names []string
		for _, n := range slices.Sorted(maps.Keys(left)) {
			if strings.HasPrefix(n, section.prefix) {
				names = append(names, n)
				delete(left, n)
			}
		}
		if len(names) == 0 {
			continue
		}
		if section.title != "" {
			fmt.Fprintf(&b, "\n## %s\n\n| series | type, unit | labels | published by | meaning |\n| --- | --- | --- | --- | --- |\n", section.title)
		}
		for _, n := range names {
			var who, labels []string
			var f family
			for _, s := range sources {
				x, ok := s.families[n]
				if !ok {
					continue
				}
				if who = append(who, s.name); len(who) == 1 {
					f = x
				}
				for _, l := range x.labels {
					if !slices.Contains(labels, l) {
						labels = append(labels, l)
					}
				}
			}
			for i, l := range labels {
				if slices.Contains(optional[n], l) {
					labels[i] = "[" + l + "]"
				}
			}
			kind := strings.ToLower(f.kind.String())
			if f.kind == dto.MetricType_HISTOGRAM {
				kind = "native histogram"
			}
			if u := unit(n); u != "" {
				kind += ", " + u
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", n, kind, strings.Join(labels, ", "), strings.Join(who, ", "), strings.ReplaceAll(f.help, "|", "\\|"))
		}
	}
	return b.String()
}
