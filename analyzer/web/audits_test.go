package web

import (
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/audit/latest"
)

// auditReport returns a report with an element that failed, one that is a warning, and two that are unknown.
func auditReport(name string) *audit.Report {
	item := func(s audit.Status, element, text string) audit.Item {
		return audit.Item{Element: element, Kind: "link", Status: s, Population: 4, Text: text}
	}
	failed := item(audit.Fail, name, "lost 0.4 % to 0.6 % of 60,000 probes")
	failed.Direction = "leaf2->spine1"
	return &audit.Report{Version: audit.FormatVersion, Scope: "fabric", Start: noon().Add(-time.Hour), End: noon().Add(-50 * time.Minute), Status: audit.Fail, Checks: []audit.Check{
		{ID: "A3", Title: "Loss", Status: audit.Fail, Required: true, Population: 32, Of: "directions", Items: []audit.Item{failed}},
		{ID: "A6", Title: "Idle fabric", Status: audit.Warn, Population: 32, Of: "directions", Items: []audit.Item{item(audit.Warn, "leaf3:up1", "7 pauses a second")}},
		{ID: "A8", Title: "Optics", Status: audit.Unknown, Items: []audit.Item{item(audit.Unknown, "h1/eth1", "no thresholds")}},
		{ID: "A11", Title: "Clocks", Status: audit.Unknown, Required: true, Items: []audit.Item{item(audit.Unknown, "h4/eth1", "not locked")}, Omitted: 3},
	}}
}

// TestLatestAuditOnThePage: the page shows the result, what did not pass, and how old it is. An old report and a file that
// cannot be used are never shown as good.
func TestLatestAuditOnThePage(t *testing.T) {
	g, s := demoFault(t)
	h := handler(g, s)
	if _, all := page(t, h, "/"); strings.TrimSpace(one(t, all, "id", "audit").text) != "" {
		t.Error("an audit is shown where no report of audits is known")
	}
	v := latest.View{Report: auditReport("leaf2:up1--spine1:dn2")}
	h.Audit = func(time.Time) latest.View { return v }
	_, all := page(t, h, "/")
	contains(t, one(t, all, "data-audit", "suspect").text, "failed", "Scope fabric", "50 min 0 s ago")
	contains(t, one(t, all, "data-audited", "fail").text, "A3 Loss", "leaf2->spine1", "lost 0.4 % to 0.6 %")
	contains(t, one(t, all, "data-audited", "warn").text, "A6", "7 pauses a second")
	contains(t, one(t, all, "data-audited", "unknown").text, "A11", "h4/eth1") // that of A8 is not required
	contains(t, one(t, all, "id", "audit").text, "And 3 more")
	shoot(t, h, "audit", "/", false)

	v.Report = &audit.Report{Scope: "fabric", Status: audit.Pass, Start: noon().AddDate(0, -3, 0), End: noon().AddDate(0, -3, 0)}
	v.Old = true
	_, all = page(t, h, "/")
	contains(t, one(t, all, "data-audit", "insufficient").text, "passed")
	contains(t, one(t, all, "id", "audit").text, "It says little of the fabric as it is.")

	v = latest.View{Report: auditReport("x"), Problem: "audit.json: no such file"}
	_, all = page(t, h, "/")
	contains(t, one(t, all, "id", "audit").text, "The report cannot be used: audit.json: no such file", "The result before")

	v = latest.View{Report: auditReport(`<script>alert(1)</script>"'`), Problem: `<img src=x onerror=alert(1)>`}
	_, all = page(t, h, "/")
	noForeignScript(t, all)
}
