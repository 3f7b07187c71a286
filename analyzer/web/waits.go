package web

import (
	"cmp"
	"github.com/graylink/graylink/internal/fabric"
	"slices"
	"strings"

	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/workload"
)

// waitRow says what a job waits for. Class is the state, as the page's styles and tests use it.
type waitRow struct{ Job, Class, State, Waits, Network string }

// waitRows returns a row for each open diagnosis and for each job without one. Jobs that wait come first. The total counts also
// those beyond maxRows.
func waitRows(s *collectives.State) (rows []waitRow, total int) {
	waits := map[string]bool{}
	for i := range s.Report.Diagnoses {
		d := &s.Report.Diagnoses[i]
		if !d.Open {
			continue
		}
		waits[d.Job] = true
		state := "slow"
		if d.Syndrome == workload.CommHang || d.Syndrome == workload.NonCommHang {
			state = "hangs"
		}
		rows = append(rows, waitRow{cmp.Or(d.Job, "unknown job"), "suspect", state, d.EffectText() + ". " + d.Summary, d.NetworkText()})
	}
	quiet := len(rows)
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if waits[j.Job] {
			continue
		}
		row := waitRow{Job: j.Job, Class: "innocent", State: "normal", Waits: "It waits for no rank and no connection."}
		if j.State == workload.InsufficientState {
			row.Class, row.State, row.Waits = "insufficient", "unknown", "Too few of its operations are known to compare them."
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows[:quiet], func(a, b waitRow) int { return fabric.CompareNatural(a.Job, b.Job) })
	slices.SortStableFunc(rows[quiet:], func(a, b waitRow) int {
		return cmp.Or(-strings.Compare(a.State, b.State), fabric.CompareNatural(a.Job, b.Job))
	})
	return rows[:min(len(rows), maxRows)], len(rows)
}
