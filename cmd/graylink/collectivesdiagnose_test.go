package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// TestConnectionsOfTheFabric: the delay that the analyzer recorded in testdata/delay.jsonl, from spine1:dn2 to leaf2:up1, is on the
// ways to the nodes of leaf2, and on no way from them or between others.
func TestConnectionsOfTheFabric(t *testing.T) {
	_, g, err := loadGraph(demoTopology)
	if err != nil {
		t.Fatal(err)
	}
	d := diagnoser{observations: "testdata/delay.jsonl"}
	f, err := d.probed(g)
	if err != nil || len(f.Verdicts) != 1 {
		t.Fatalf("%v, %+v", err, f)
	}
	at := f.Verdicts[0].FirstSeen
	ask := func(from, to string) workload.Evidence {
		return f.Connection(workload.Place{Host: from}, workload.Place{Host: to}, at.Add(-10*time.Second), at.Add(10*time.Second))
	}
	for _, c := range []struct {
		from, to string
		guilty   bool
	}{{"h1", "h3", true}, {"h7", "h4", true}, {"h3", "h1", false}, {"h1", "h8", false}, {"h3", "h4", false}} {
		e := ask(c.from, c.to)
		if guilty := len(e.Verdicts) == 1 && e.Verdicts[0].Element == "leaf2:up1--spine1:dn2" && e.Verdicts[0].Link; guilty != c.guilty || !e.CoverageKnown || c.guilty == (e.Coverage == 1) {
			t.Errorf("%s to %s: %+v", c.from, c.to, e)
		}
	}
	if e := ask("h1", "elsewhere"); e.CoverageKnown || e.Reason == "" {
		t.Errorf("to a node that the topology lacks: %+v", e)
	}
	f.Verdicts[0].FirstSeen = at.Add(time.Minute)
	if e := ask("h1", "h3"); len(e.Verdicts) > 0 {
		t.Errorf("a verdict of another time: %+v", e)
	}
}
