package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	config_util "github.com/prometheus/common/config"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/audit/latest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
)

// TestScopeOfAMaintenanceWindow reads the window of a scope from an analyzer.
func TestScopeOfAMaintenanceWindow(t *testing.T) {
	topo, found := fabric.LoadTopology("../../deploy/lab/demo.yaml")
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/maintenance" {
			http.NotFound(w, r)
			return
		}
		w.Write([]byte(`{"maintenance":[{"id":"c0ffee","element":"spine1","source":"coordinator"},{"id":"dead","element":"leaf9","source":"file"}]}`))
	}))
	defer srv.Close()
	for _, tc := range []struct{ scope, analyzer, want, err string }{
		{"maintenance:c0ffee", srv.URL, "maintenance:c0ffee", ""},
		{"pod:p1", "", "pod:p1", ""},
		{"maintenance:none", srv.URL, "", "c0ffee (spine1), dead (leaf9)"},
		{"maintenance:dead", srv.URL, "", `no element "leaf9"`},
		{"maintenance:c0ffee", "", "", "--analyzer is required"},
		{"maintenance:c0ffee", srv.URL + "/prefix", "", "404"},
		{"maintenance:c0ffee", "nowhere", "", "--analyzer"},
	} {
		f := &auditFlags{scope: tc.scope, analyzer: tc.analyzer}
		s, err := f.readScope(t.Context(), &inputs{graph: fabric.NewGraph(topo), http: config_util.DefaultHTTPClientConfig})
		switch {
		case tc.err == "" && (err != nil || s.String() != tc.want), tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("%+v: %s, %v", tc, s, err)
		}
	}
}

// TestFetchLatestAudit decodes what an analyzer answers about the latest audit.
func TestFetchLatestAudit(t *testing.T) {
	report := audit.Report{Version: audit.FormatVersion, Scope: "fabric", Status: audit.Fail, End: time.Unix(1, 0), Checks: []audit.Check{}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := plainjson.NewEncoder(w).Encode(latest.View{File: "audit.json", Report: &report}); err != nil {
			t.Error(err)
		}
	}))
	defer srv.Close()
	var v latest.View
	if _, err := fetchFromAnalyzer(t.Context(), srv.Client(), srv.URL, "/api/v1/audit", &v); err != nil || v.Report == nil || v.Report.ExitCode() != 2 {
		t.Errorf("%+v, %v", v, err)
	}
	var b bytes.Buffer
	printAudit(&b, v.Report)
	if !strings.Contains(b.String(), "The audit failed.") {
		t.Errorf("%s", b.String())
	}
}
