package incident

import (
	"cmp"
	"maps"
	"slices"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/internal/fabric"
)

// DefaultPageNICs is the blast radius above which a verdict that affects no job is critical.
const DefaultPageNICs = 32

// UpdateImpact sets the affected jobs and the severities of the open incidents. A nil map means that no placement is
// known.
func (t *Tracker) UpdateImpact(m *jobs.Map) {
	for _, in := range t.open {
		in.updateImpact(m, cmp.Or(t.opts.PageNICs, DefaultPageNICs))
	}
}

// updateImpact sets the affected jobs of an incident, and its severity. Where placements are known, it is
// critical if it affects a job or more than pageNICs NICs, otherwise a warning. A job that has ended stays
// on the list. A nil map means that no placement is known.
func (in *Incident) updateImpact(m *jobs.Map, pageNICs int) {
	in.Severity = in.symptomSeverity
	if m == nil {
		return
	}
	for _, name := range m.JobsCrossing(&in.Verdict) {
		if in.affectedJobs == nil {
			in.affectedJobs = map[string]bool{}
		}
		in.affectedJobs[name] = true
	}
	in.Jobs = append([]string{}, slices.Sorted(maps.Keys(in.affectedJobs))...)
	n := len(in.Jobs)
	in.BlastRadius.Jobs = &n
	switch {
	case in.symptomSeverity == fabric.SeverityInfo, !BlamesNetwork(&in.Verdict), in.Evidence.Reported:
	case n > 0, in.BlastRadius.NICs > pageNICs:
		in.Severity = fabric.SeverityCritical
	default:
		in.Severity = fabric.SeverityWarning
	}
}

// BlamesNetwork reports whether a verdict names an element of the network, and not a host or a clock. What is only known of
// routing, as a link that is not used, blames nothing.
func BlamesNetwork(v *fabric.Verdict) bool {
	known := v.Scenario.IsRouting() && v.Severity == fabric.SeverityInfo
	return !known && v.Kind != fabric.KindHost && v.Kind != fabric.KindClock
}

// runbookFor returns the path of the runbook for a verdict.
func runbookFor(v *fabric.Verdict) string {
	name := "FabricFault"
	switch v.Kind {
	case fabric.KindNIC:
		name = "FabricNICFault"
	case fabric.KindHost:
		name = "FabricHostFault"
	case fabric.KindClock:
		name = "GraylinkClockFault"
	}
	return "docs/runbooks/" + name + ".md"
}
