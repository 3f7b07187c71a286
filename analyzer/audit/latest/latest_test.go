package latest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/audit"
)

var ended = time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)

// write writes a file with a modification time of its own.
func write(t *testing.T, name, text string, at int64) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(name, time.Unix(at, 0), time.Unix(at, 0)); err != nil {
		t.Fatal(err)
	}
}

func reportText(t *testing.T, s audit.Status) string {
	t.Helper()
	var b bytes.Buffer
	r := audit.Report{Version: audit.FormatVersion, Scope: "fabric", Start: ended.Add(-time.Minute), End: ended, Status: s, Checks: []audit.Check{}}
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestLatestReportIsShownOrItsProblem follows a file that does not exist, is good, broken, replaced and gone.
func TestLatestReportIsShownOrItsProblem(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, reportName)
	f := Open(dir)
	for i, tc := range []struct {
		change  func()
		problem string
		status  audit.Status // "" for no report
	}{
		{func() {}, "no such file", ""},
		{func() { write(t, name, "{", 1) }, "invalid report", ""},
		{func() { write(t, name, reportText(t, audit.Pass), 2) }, "", audit.Pass},
		{func() {}, "", audit.Pass},
		{func() { write(t, name, reportText(t, audit.Fail), 3) }, "", audit.Fail},
		{func() { write(t, name, reportText(t, "good"), 4) }, "status", audit.Fail},
		{func() { write(t, name, `{"version":1}`, 5) }, "end and status", audit.Fail},
		{func() { write(t, name, `{"version":7}`, 6) }, "version 1 is expected", audit.Fail},
		{func() { os.Remove(name) }, "no such file", audit.Fail},
		{func() { write(t, name, reportText(t, audit.Warn), 2) }, "", audit.Warn},
	} {
		tc.change()
		v := f.Read(ended)
		got := audit.Status("")
		if v.Report != nil {
			got = v.Report.Status
		}
		if !strings.Contains(v.Problem, tc.problem) || (v.Problem == "") != (tc.problem == "") || got != tc.status || v.Old {
			t.Errorf("%d: problem %q, status %q, old %t; want %q, %q", i, v.Problem, got, v.Old, tc.problem, tc.status)
		}
	}
	for after, old := range map[time.Duration]bool{OldAfter: false, OldAfter + time.Second: true} {
		if v := Open(name).Read(ended.Add(after)); v.Old != old || v.File != name {
			t.Errorf("after %s: old %t, file %s", after, v.Old, v.File)
		}
	}
}
