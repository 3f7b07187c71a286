package analyzer

import (
	"maps"
	"slices"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/internal/fabric"
)

// DefaultPageNICs is the blast radius above which a verdict is critical that hurts no job.
const DefaultPageNICs = 32

// updateImpact takes into an incident whom it hurts, and how urgent that makes it: where placements
// are known, a person is called for jobs, or for more than pageNICs NICs, and else nobody is
// woken. A job that was hurt stays on the list when it has ended.
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
	case in.symptomSeverity == fabric.SeverityInfo, !blamesNetwork(&in.Verdict), in.Scenario == fabric.Miscabled:
	case n > 0, in.BlastRadius.NICs > pageNICs:
		in.Severity = fabric.SeverityCritical
	default:
		in.Severity = fabric.SeverityWarning
	}
}

// blamesNetwork reports whether a verdict says that the network is at fault.
func blamesNetwork(v *fabric.Verdict) bool {
	return v.Kind != fabric.KindHost && v.Kind != fabric.KindClock
}

// runbookFor is where it says what to do about a verdict, step by step.
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
