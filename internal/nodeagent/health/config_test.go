package health

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fakesys"
	"github.com/graylink/graylink/internal/klog"
	"github.com/graylink/graylink/internal/nichealth"
)

func TestHealthFiles(t *testing.T) {
	o := DefaultOptions()
	err := parseOptions("nics.yml", []byte("management: ['^eno']\nmisses: 5\ncounters_every: 10s\ngpu: NVIDIA H100 80GB HBM3\nproducts: [{match: h100, ports: 8, rate_bits_per_second: 400000000000}]\n"+
		"thresholds: [{counter: symbol_error, sort: rate, above: 20, window: 10s}, {counter: np_cnp_sent, sort: rate, above: 1000, window: 1m}]\nwithout: [roce_slow_restart]\n"), &o)
	if err != nil {
		t.Fatal(err)
	}
	if o.Rules.Misses != 5 || o.Counters != 10*time.Second || len(o.Rules.Management) != 1 || o.Rules.GPU == "" || o.Rules.Products[0].Ports != 8 {
		t.Errorf("%+v", o)
	}
	codes := map[string]float64{}
	for _, x := range o.Rules.Thresholds {
		codes[x.Code] = x.Above
	}
	if codes["symbol_error"] != 20 || codes["np_cnp_sent"] != 1000 || codes["symbol_error_hourly"] == 0 || len(codes) != len(nichealth.DefaultThresholds()) {
		t.Errorf("%v", codes)
	}
	if _, ok := codes["roce_slow_restart"]; ok {
		t.Error("a rule that was left out is there")
	}
	for in, want := range map[string]string{
		"managment: [x]":            "nics.yml: yaml: unmarshal errors:\n  line 1: field managment not found",
		"management: ['(']":         "nics.yml: management[0]: a regular expression is expected",
		"every: 1ms":                "nics.yml: every: 10ms or more is expected, not 1ms",
		"misses: 0":                 "nics.yml: misses: 1 or more is expected",
		"products: [{match: h100}]": "nics.yml: products[0]: match, ports and rate_bits_per_second",
		"without: [nothing]":        `nics.yml: without[0]: the code of a rule is expected, not "nothing"`,
		"every: soon":               "line 1: cannot unmarshal",
	} {
		o := DefaultOptions()
		if err := parseOptions("nics.yml", []byte(in), &o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
}

func TestGPUProduct(t *testing.T) {
	root := t.TempDir()
	if got := GPUProduct(root); got != "" {
		t.Errorf("no driver: %q", got)
	}
	dir := filepath.Join(root, "driver/nvidia/gpus/0000:18:00.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "information"), []byte("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := GPUProduct(root); got != "NVIDIA H100 80GB HBM3" {
		t.Errorf("%q", got)
	}
}

// TestAnotherNetworksInterfaces checks a /sys that shows the interfaces of another network namespace.
func TestAnotherNetworksInterfaces(t *testing.T) {
	node, err := fakesys.FindProfile("h100")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := fakesys.BuildTree(root, node); err != nil {
		t.Fatal(err)
	}
	if sameNetwork(filepath.Join(root, "sys")) {
		t.Error("a tree of other interfaces is taken for ours")
	}
	if sameNetwork(t.TempDir()) {
		t.Error("nothing is taken for ours")
	}
}

// DefaultFile has the values of a file without them.
func TestDefaultFileChangesNothing(t *testing.T) {
	text, err := yaml.Marshal(DefaultFile())
	if err != nil {
		t.Fatal(err)
	}
	got, want := DefaultOptions(), DefaultOptions()
	if err := parseOptions("nics.yml", text, &got); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, o := range []*Options{&got, &want} {
		o.Patterns, o.Rules.Products = klog.MatchConfig{}, nil
	}
	if g, w := describe(&got), describe(&want); g != w {
		t.Errorf("%s\nwant %s", g, w)
	}
}

// describe returns all options as text, with the regular expressions.
func describe(o *Options) string {
	patterns := fmt.Sprint(o.Rules.Excluded, o.Rules.Management, o.Rules.ExpectedDown)
	o.Rules.Excluded, o.Rules.Management, o.Rules.ExpectedDown = nil, nil, nil
	return fmt.Sprintf("%s %+v", patterns, *o)
}
