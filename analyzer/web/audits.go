package web

import (
	"time"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/audit/latest"
)

// auditView is the latest audit as the page shows it.
type auditView struct {
	// Class is the state whose colour the result has, Result a sentence, and Ended the time with its age.
	Class, Result, Scope, Ended string
	Old, Problem, Refused       string
	Rows                        []auditRow
	More                        int // further elements
}

// auditRow is an element that did not pass a check.
type auditRow struct{ Check, Status, Element, Text string }

// maxAuditRows is the number of elements that are listed.
const maxAuditRows = 20

// newAuditView returns how the page shows an audit. A report that is old, and a file that cannot be used, are said.
func newAuditView(v latest.View, now time.Time) *auditView {
	out := &auditView{Class: "insufficient", Result: "No audit is known.", Problem: v.Problem}
	r := v.Report
	if r == nil {
		return out
	}
	switch r.Status {
	case audit.Fail:
		out.Class = "suspect"
	case audit.Pass, audit.Warn:
		out.Class = "innocent"
	}
	out.Result, out.Scope, out.Refused = r.Result(), r.Scope, r.RefusalText()
	out.Ended = clockTime(r.End) + ", " + formatAge(now.Sub(r.End)) + " ago"
	if v.Problem != "" {
		out.Class, out.Result = "insufficient", "The result before: "+out.Result
	}
	if v.Old {
		out.Class, out.Old = "insufficient", "The audit ended "+formatAge(now.Sub(r.End))+" ago. It says little of the fabric as it is."
	}
	for i := range r.Checks {
		c := &r.Checks[i]
		for j := range c.Items {
			x := &c.Items[j]
			if x.Status == audit.Unknown && !c.Required {
				continue
			}
			if len(out.Rows) == maxAuditRows {
				out.More++
				continue
			}
			at := x.Element
			if x.Direction != "" {
				at = x.Direction
			}
			out.Rows = append(out.Rows, auditRow{c.ID + " " + c.Title, string(x.Status), at, x.FullText()})
		}
		out.More += c.Omitted
	}
	return out
}
