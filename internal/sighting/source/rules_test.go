package source

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

func TestRules(t *testing.T) {
	r := Rule{Ports: []string{"swp1", "swp2s0"}, StampPorts: []uint16{862, 8862}, Group: 862, From: netip.MustParseAddr("10.255.0.1"), To: netip.MustParseAddr("10.255.9.9")}
	for _, kind := range RuleKinds() {
		got, err := RulesText(kind, r)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "rules."+kind)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s:\n%s\nwant:\n%s", kind, got, want)
		}
	}
	for _, bad := range []struct {
		kind, says string
		rule       Rule
	}{
		{"ios", "tc, sonic", r},
		{"tc", "ports", Rule{StampPorts: []uint16{862}}},
		{"tc", "STAMP", Rule{Ports: []string{"swp1"}}},
		{"sonic", "ERSPAN", Rule{Ports: []string{"Ethernet0"}, StampPorts: []uint16{862}}},
	} {
		if _, err := RulesText(bad.kind, bad.rule); err == nil || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("%s %+v: %v, want an error about %s", bad.kind, bad.rule, err, bad.says)
		}
	}
}
