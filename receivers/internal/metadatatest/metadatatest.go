// Package metadatatest checks that a receiver's metadata.yaml describes its code.
package metadatatest

import (
	"bytes"
	"maps"
	"os"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/receiver"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/receivers/internal/metricfamily"
)

// Family is a family of series by its Prometheus name, with all its labels.
type Family struct {
	Name, Help string
	Counter    bool
	Labels     []string
}

// metadata is metadata.yaml in the form of the Collector's own generator of code (mdatagen 0.161).
type metadata struct {
	Type   string `yaml:"type"`
	Status struct {
		Class     string              `yaml:"class"`
		Stability map[string][]string `yaml:"stability"`
	} `yaml:"status"`
	Attributes map[string]attribute `yaml:"attributes"`
	Metrics    map[string]metric    `yaml:"metrics"`
}

type attribute struct {
	Description string `yaml:"description"`
	Type        string `yaml:"type"`
}

type metric struct {
	Enabled     bool     `yaml:"enabled"`
	Stability   string   `yaml:"stability"`
	Description string   `yaml:"description"`
	Unit        string   `yaml:"unit"`
	Gauge       *number  `yaml:"gauge,omitempty"`
	Sum         *sum     `yaml:"sum,omitempty"`
	Attributes  []string `yaml:"attributes,flow"`
}

type number struct {
	ValueType string `yaml:"value_type"`
}

type sum struct {
	ValueType   string `yaml:"value_type"`
	Monotonic   bool   `yaml:"monotonic"`
	Temporality string `yaml:"aggregation_temporality"`
}

// CertificateFamilies returns the families of certificates in use, which every receiver has that uses some.
func CertificateFamilies() (out []Family) {
	for _, g := range pki.ExpiryGauges {
		out = append(out, Family{Name: g.Name, Help: g.Help, Labels: pki.ExpiryLabels()})
	}
	return out
}

// expiryLabels describes its labels.
var expiryLabels = map[string]string{"file": "File of the certificate, as it is configured.", "use": "certificate (the receiver's own, or one that leads from it to an authority) or authority.",
	"serial": "Serial number of the certificate, hexadecimal."}

// CheckMetadata compares metadata.yaml of the working directory with a receiver's factory, its families and the
// meanings of their labels, or writes it. It also checks the keys of the configuration.
func CheckMetadata(t *testing.T, f receiver.Factory, families []Family, labels map[string]string, update bool) {
	t.Helper()
	if err := componenttest.CheckConfigStruct(f.CreateDefaultConfig()); err != nil {
		t.Errorf("configuration: %v", err)
	}
	want := metadata{Type: f.Type().String(), Attributes: map[string]attribute{}, Metrics: map[string]metric{}}
	want.Status.Class, want.Status.Stability = "receiver", map[string][]string{}
	for _, s := range []struct {
		signal string
		level  component.StabilityLevel
	}{{"metrics", f.MetricsStability()}, {"logs", f.LogsStability()}} {
		if s.level != component.StabilityLevelUndefined {
			level := strings.ToLower(s.level.String())
			want.Status.Stability[level] = append(want.Status.Stability[level], s.signal)
		}
	}
	labels = maps.Clone(labels)
	for l, what := range expiryLabels {
		if labels[l] != "" {
			t.Errorf("label %s has two meanings", l)
		}
		labels[l] = what
	}
	for _, x := range families {
		name, unit := metricfamily.OTLPName(x.Name, x.Counter)
		m := metric{Enabled: true, Stability: strings.ToLower(f.MetricsStability().String()), Description: x.Help, Unit: unit, Attributes: x.Labels}
		if x.Counter {
			m.Sum = &sum{"double", true, "cumulative"}
		} else {
			m.Gauge = &number{"double"}
		}
		if _, twice := want.Metrics[name]; twice {
			t.Errorf("%s is another family's name as well", name)
		}
		if x.Help == "" {
			t.Errorf("%s has no help text", x.Name)
		}
		want.Metrics[name] = m
		for _, l := range x.Labels {
			if want.Attributes[l] = (attribute{labels[l], "string"}); labels[l] == "" {
				t.Errorf("label %s has no description", l)
			}
		}
	}
	var b bytes.Buffer
	b.WriteString("# Written by go test -run TestMetadata -update.\n")
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(want); err != nil {
		t.Fatal(err)
	}
	if update {
		if err := os.WriteFile("metadata.yaml", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("metadata.yaml")
	if err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("metadata.yaml does not describe the code (%v); write it with -update", err)
	}
}
