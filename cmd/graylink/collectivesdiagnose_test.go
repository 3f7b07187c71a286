package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/sim/collective"
)

// writeRun writes the records of a simulated job into a file, with text behind them.
func writeRun(t *testing.T, k collective.Kind, behind string) (string, collective.Truth) {
	t.Helper()
	run, err := collective.Simulate(collective.Config{Seed: 2, DP: 4, TP: 2, PP: 1, Steps: 45, Fault: k})
	if err != nil {
		t.Fatal(err)
	}
	var b []byte
	for _, r := range run.Records {
		if b, err = ccl.AppendRecord(b, r); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "records.jsonl")
	if err := os.WriteFile(file, append(b, behind...), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, run.Truth
}

// TestCollectivesDiagnose has the way from a file of records to the report, the job of a placement, and exit codes.
func TestCollectivesDiagnose(t *testing.T) {
	file, truth := writeRun(t, collective.LateRank, "")
	placement := filepath.Join(t.TempDir(), "placement.yaml")
	if err := os.WriteFile(placement, []byte("jobs:\n  - job: train\n    nodes: [h1, h2, h3, h4]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	d := &diagnoser{records: file, placement: placement, format: "json"}
	if err := d.run(&out); err != nil {
		t.Fatal(err)
	}
	var rep workload.Report
	if err := json.Unmarshal(out.Bytes(), &rep); err != nil {
		t.Fatal(err)
	}
	if len(rep.Diagnoses) != 1 || rep.Diagnoses[0].Syndrome != workload.NonCommSlow || rep.Diagnoses[0].Nodes[0] != truth.Place.Host || rep.Diagnoses[0].Job != "train" {
		t.Errorf("truth %+v: %s", truth, out.String())
	}
	file, _ = writeRun(t, collective.None, "{\"kind\":\"op\"}\n")
	out.Reset()
	err := (&diagnoser{records: file, format: "text"}).run(&out)
	var ee exitError
	if !errors.As(err, &ee) || ee.code != 3 || !strings.HasPrefix(out.String(), "No rank and no connection") {
		t.Errorf("a line that cannot be read: %v, %s", err, out.String())
	}
	for _, c := range []diagnoser{{records: file, at: "noon"}, {records: file, observations: "x"}, {records: "absent.jsonl"}} {
		if err := c.run(&out); err == nil || errors.As(err, &ee) && ee.code == 3 && c.at != "" {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
