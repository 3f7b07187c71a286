// Package receivers holds what all receivers have in common: the names of what they tell.
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

// told is a family as one source tells it, under its name in Prometheus.
type told struct {
	kind   dto.MetricType
	help   string
	labels []string
}

// source is who tells families.
type source struct {
	name     string
	families map[string]told
	// helps says that the source's texts are the vocabulary's: those of different ones would
	// meet in one Collector.
	helps bool
}

// metadata is what is read of a receiver's metadata.yaml.
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

// receiver reads what a receiver's metadata say, under the names that Prometheus' own translator
// makes of them.
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
	out := source{name, map[string]told{}, true}
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	for otel, f := range m.Metrics {
		x := told{dto.MetricType_GAUGE, f.Description, f.Attributes}
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

// described matches how client_golang writes a family.
var described = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "([^"]*)", unit: "[^"]*", constLabels: \{\}, variableLabels: \{([^}]*)\}\}$`)

// switches are what graylink-switch tells.
func switches(t *testing.T) source {
	t.Helper()
	out := source{"graylink-switch", map[string]told{}, true}
	for _, d := range fabricswitch.SeriesDescs() {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("no family: %s", d)
		}
		kind := dto.MetricType_GAUGE
		if strings.HasSuffix(m[1], "_total") {
			kind = dto.MetricType_COUNTER
		}
		out.families[m[1]] = told{kind, m[2], strings.Split(m[3], ",")}
	}
	return out
}

// nodes are what graylink-node told in its golden files.
func nodes(t *testing.T) source {
	t.Helper()
	out := source{"graylink-node", map[string]told{}, false}
	for _, file := range []string{"metrics.txt", "metrics-edges.txt", "nics-h100.metrics", "rdma.metrics"} {
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
	// The golden files' node uses no certificates.
	out.families[pki.ExpirySeries] = told{dto.MetricType_GAUGE, pki.ExpiryHelp, pki.ExpiryLabels()}
	return out
}

// optional are labels that a source leaves out where it does not tell them apart (contract: "where they
// apply"): graylink-switch knows one queue for each port.
var optional = map[string][]string{
	"fabric_switch_port_queue_bytes":          {"tc"},
	"fabric_switch_port_queue_discards_total": {"tc", "reason"},
}

// units are the last words of names, the longer ones first.
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

// TestVocabulary: whoever tells of a thing uses one name, type, unit and set of labels for it, and one text; none is
// without a type; names are as promtool would have them. docs/metrics.md says so, and -update writes it.
func TestVocabulary(t *testing.T) {
	sources := []source{receiver(t, "gNMI", "gnmireceiver"), receiver(t, "UFM", "ufmreceiver"), receiver(t, "InfiniBand", "ibfabricreceiver"), switches(t), nodes(t)}
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
			t.Errorf("%s has optional labels, and nobody tells it", name)
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
		t.Errorf("%s is not what is told (%v); write it with -update", file, err)
	}
}

func required(name string, labels []string) []string {
	out := slices.DeleteFunc(slices.Clone(labels), func(l string) bool { return slices.Contains(optional[name], l) })
	slices.Sort(out)
	return out
}

// page is docs/metrics.md.
func page(sources []source, all map[string]bool) string {
	var b strings.Builder
	b.WriteString(`# Metrics of switches and NICs

Written by ` + "`go test ./receivers -run TestVocabulary -update`" + ` from the receivers' metadata.yaml, what graylink-switch declares, and what graylink-node tells in its golden files. The test fails
where two sources use one name for things of different type, unit or labels, where a family has no type, and where promtool would find fault with a name.

Names are those in Prometheus; by OTLP the same metrics have OpenTelemetry's (receivers' metadata.yaml, [OTLP](../exporters/otlp/README.md)). Labels in brackets are left out by sources that do not tell
them apart. A source tells of a thing only where the device does: absent is not 0. How fast series grow is said in each receiver's README. Series of the analyzer and the coordinator are in
[analyzer](analyzer.md) and [coordinator](coordinator.md).
`)
	left := maps.Clone(all)
	for _, section := range []struct{ title, prefix string }{
		{"Ports of switches", "fabric_switch_port_"}, {"Switches", "fabric_switch_"},
		{"Ports of NICs", "fabric_nic_port_"}, {"Modules in NICs", "fabric_nic_module_"}, {"NICs", "fabric_nic_"}, {"Probes and clocks", "fabric_probe_"}, {"", "fabric_clock_"},
		{"The rest of the fabric", "fabric_"},
		{"How the gNMI receiver does", "graylink_gnmi_"}, {"How the UFM receiver does", "graylink_ufm_"}, {"How the InfiniBand sampler does", "graylink_ib_"}, {"How graylink-switch does", "graylink_switch_"},
		{"Certificates in use", "graylink_certificate_"},
		{"How graylink-node does", "graylink_"},
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
			fmt.Fprintf(&b, "\n## %s\n\n| series | type, unit | labels | told by | is |\n| --- | --- | --- | --- | --- |\n", section.title)
		}
		for _, n := range names {
			var who, labels []string
			var f told
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
