package schema

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/audit"
)

// exampleReport returns a report with a value for every key.
func exampleReport() *audit.Report {
	start := time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	number := func(v float64) *float64 { return &v }
	return &audit.Report{Version: audit.FormatVersion, Program: "graylink 1.4.0", Scope: "fabric", Start: start, End: start.Add(10 * time.Minute), Windows: 60, Missed: 1, Flows: 448, Probes: 26_880_000,
		Status: audit.Fail, Criteria: audit.DefaultCriteria(), Refused: map[string]string{"h3": `agent of "h3": 403 Forbidden`},
		Checks: []audit.Check{{ID: "A3", Title: "Loss", Status: audit.Fail, Required: true, Value: number(0.0021), Bound: number(0.0001), Unit: "share of probes", Population: 64, Of: "link directions", Text: "One direction loses packets.", Omitted: 1,
			Items: []audit.Item{{Element: "leaf1:up1--spine1:dn1", Kind: "fabric link of tier 1, 400 Gbit/s", Status: audit.Fail, Direction: "leaf1:up1->spine1:dn1", Class: "roce", Value: number(0.0021), Bound: number(0.0001), Population: 840_000,
				Text: "It loses at least 0.2 % of the packets.", Equivalent: []string{"leaf1:up2--spine1:dn2"}}}},
			{ID: "A9-mtu", Title: "MTU of paths", Status: audit.Unknown, Of: "link directions", Text: "Not measured: there is no evidence of any link directions.", Items: []audit.Item{}}},
		Compared: &audit.Comparison{Before: audit.Pass, After: audit.Fail, Changes: []audit.Change{{Check: "A3", Element: "leaf1:up1--spine1:dn1", Before: audit.Pass, After: audit.Fail}}, Incomplete: true}}
}

// TestAuditReportIsValid writes the example of audit.json, and validates it and an unusual one by the schema. A report with another key, or
// without one, is refused.
func TestAuditReportIsValid(t *testing.T) {
	const file = "testdata/audit-report.json"
	var b bytes.Buffer
	if err := exampleReport().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	checkGenerated(t, file, b.Bytes())
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := audit.ReadReport(bytes.NewReader(text)); err != nil {
		t.Error(err)
	}
	schema := compileSchema(t, "audit-report", unchanged)
	check := func(text string) error {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v)
	}
	if err := check(string(text)); err != nil {
		t.Errorf("%s: %v", file, err)
	}
	b.Reset()
	least := audit.Report{Version: audit.FormatVersion, Status: audit.Pass, Criteria: audit.DefaultCriteria(), Checks: []audit.Check{}}
	if err := least.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	if err := check(b.String()); err != nil {
		t.Errorf("a report with the required keys alone: %v", err)
	}
	for what, wrong := range map[string]string{
		"another key":    strings.Replace(string(text), `"scope":`, `"extent": 1, "scope":`, 1),
		"no scope":       strings.Replace(string(text), `"scope": "fabric",`, "", 1),
		"another status": strings.Replace(string(text), `"status": "fail"`, `"status": "broken"`, 1),
		"a text":         strings.Replace(string(text), `"windows": 60`, `"windows": "60"`, 1),
	} {
		if wrong == string(text) {
			t.Errorf("%s: the example has no such key", what)
		}
		if check(wrong) == nil {
			t.Errorf("%s: the schema takes it", what)
		}
	}
}
