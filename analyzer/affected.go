package analyzer

import (
	"maps"
	"slices"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/internal/fabric"
)

// DefaultPageNICs is the blast radius above which a verdict is critical that hurts no job.
const DefaultPageNICs = 32

// affect takes into an incident whom it hurts, and how urgent that makes it: where placements
// are known, a person is called for jobs, or for more than pageNICs NICs, and else nobody is
// woken. A job that was hurt stays on the list when it has ended.
func (in *Incident) affect(m *jobs.Map, pageNICs int) {
	in.Severity = in.severity
	if m == nil {
		return
	}
	for _, name := range m.Crossing(&in.Verdict) {
		if in.hurt == nil {
			in.hurt = map[string]bool{}
		}
		in.hurt[name] = true
	}
	in.Jobs = append([]string{}, slices.Sorted(maps.Keys(in.hurt))...)
	n := len(in.Jobs)
	in.BlastRadius.Jobs = &n
	switch {
	case in.severity == fabric.SeverityInfo, !blames(&in.Verdict), in.Scenario == fabric.Miscabled:
	case n > 0, in.BlastRadius.NICs > pageNICs:
		in.Severity = fabric.SeverityCritical
	default:
		in.Severity = fabric.SeverityWarning
	}
}

// blames reports whether a verdict says that the network is at fault.
func blames(v *fabric.Verdict) bool { return v.Kind != fabric.KindHost && v.Kind != fabric.KindClock }

// runbook is where it says what to do about a verdict, step by step.
func runbook(v *fabric.Verdict) string {
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
