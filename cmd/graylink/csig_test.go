package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
)

func labGraph(t *testing.T) *fabric.Graph {
	t.Helper()
	topo, found := fabric.LoadTopology("../../deploy/lab/demo.yaml")
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(topo)
}

// What --format yaml writes is a part of a profile, with the locators of --format json.
func TestCSIGLocatorsOfTheLab(t *testing.T) {
	g := labGraph(t)
	var text, asJSON, asYAML bytes.Buffer
	for format, out := range map[string]*bytes.Buffer{"text": &text, "json": &asJSON, "yaml": &asYAML} {
		if err := writeLocators(out, g, "both", format); err != nil {
			t.Fatal(err)
		}
	}
	p, err := csig.ParseProfile("csig.yml", []byte("ethertypes: {compact: 0x88b5, wide: 0x88b6}\ninterval: 1ms\nfastest_gbps: 100\n"+asYAML.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, &asYAML)
	}
	var f locatorFile
	if err := json.Unmarshal(asJSON.Bytes(), &f); err != nil {
		t.Fatal(err)
	}
	if f.Ports == 0 || f.CodesNeeded != 3 || f.LongestPath != 3 || len(f.Locators.Compact) != f.Ports || len(f.Locators.Wide) != f.Ports {
		t.Errorf("%+v", f)
	}
	for port, l := range f.Locators.Compact {
		if g.LinkAt(port) == nil || p.CompactLocators[port] != l || p.WideLocators[port] != f.Locators.Wide[port] {
			t.Errorf("%s: %d and %d in JSON, %d and %d in YAML", port, l, f.Locators.Wide[port], p.CompactLocators[port], p.WideLocators[port])
		}
	}
	if lines := strings.Count(text.String(), "\n"); lines != f.Ports+2 || !strings.Contains(text.String(), "compact tags need 3 of 127 locators") {
		t.Errorf("%d lines:\n%s", lines, &text)
	}
}

func TestCSIGLocatorsOfOneFormat(t *testing.T) {
	for tags, want := range map[string]string{"compact": "compact", "wide": "wide"} {
		var out bytes.Buffer
		if err := writeLocators(&out, labGraph(t), tags, "yaml"); err != nil {
			t.Fatal(err)
		}
		var got struct{ Locators map[string]map[string]int }
		if err := yaml.Unmarshal(out.Bytes(), &got); err != nil || len(got.Locators) != 1 || len(got.Locators[want]) == 0 {
			t.Errorf("%s: %v, %+v", tags, err, got)
		}
	}
}

// Where a format has too few locators, the exit code is 2, the error says how many are needed, and the others are written.
func TestCSIGLocatorsThatAreTooFew(t *testing.T) {
	g := fabric.NewGraph(dragonfly.NewTopology(dragonfly.Options{Groups: 45, LeavesPerGroup: 1, SpinesPerGroup: 1, NICsPerLeaf: 1, Routing: fabric.Adaptive}))
	for _, format := range []string{"text", "json", "yaml"} {
		var out bytes.Buffer
		var exit exitError
		err := writeLocators(&out, g, "both", format)
		if !errors.As(err, &exit) || exit.code != 2 || !strings.Contains(err.Error(), "are needed so that no two ports of a path are equal, and there are 127") || strings.Contains(err.Error(), "wide") {
			t.Errorf("%s: %v", format, err)
		}
		if out.Len() < 1000 || format != "text" && (strings.Contains(out.String(), `"compact":`) || !strings.Contains(out.String(), "wide")) {
			t.Errorf("%s: %.300s", format, &out)
		}
	}
	var out bytes.Buffer
	if err := writeLocators(&out, g, "wide", "text"); err != nil {
		t.Errorf("wide tags alone: %v", err)
	}
}
