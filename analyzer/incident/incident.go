// Package incident turns the reports of the cycles into incidents: verdicts over time, which open, are held and
// clear under one identifier. It also keeps their causes and the jobs that they affect.
//
// Rules:
//
//  1. An element must be named in several consecutive cycles before a verdict on it opens. A hard failure opens
//     at once.
//  2. A verdict waits a while if flows without evidence could distinguish its element from its equivalents.
//  3. A verdict that names an equivalent of an open one, and distinguishes the two, replaces it.
//  4. An incident clears after several consecutive cycles that do not name it, with healthy flows that cross it
//     by a path traced since it opened, unless most of the flows that showed it have no evidence.
//  5. An incident on a clock clears when the clock has been steady for a while.
//  6. The severity follows from the affected jobs and NICs where placements are known.
//  7. A verdict that was open shortly before the analyzer started, and is named again, continues with its
//     identifier and its start.
package incident

import (
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/internal/fabric"
)

// Incident represents a verdict over time: opened, held and cleared, under one identifier.
type Incident struct {
	fabric.Verdict
	Open     bool       `json:"open"`
	OpenedAt time.Time  `json:"opened_at"`
	LastSeen time.Time  `json:"last_seen"`
	Cleared  *time.Time `json:"cleared_at,omitempty"`
	// Closed is the reason why it was closed: healed, or replaced by a better explanation.
	Closed string `json:"closed,omitempty"`
	// Held is the reason why an open incident without fresh symptoms is not cleared.
	Held string `json:"held,omitempty"`
	// Recalled means that it ended before the analyzer started. Its published series are known, but neither
	// its flows nor its causes.
	Recalled bool `json:"recalled,omitempty"`

	unnamedCycles int
	crossingFlows map[fabric.Flow]bool // the flows that crossed it when it opened
	// suggestedCauses are the causes that the probes alone suggest. telemetryCause is the attribution from
	// the element's series.
	suggestedCauses []string
	telemetryCause  *fabric.Attribution
	// symptomSeverity is the severity by the symptom alone. affectedJobs are the affected jobs since it opened.
	symptomSeverity string
	affectedJobs    map[string]bool
}

// supersededBy reports whether a verdict names an equivalent of an incident's element, distinguishes the two, and has
// no less evidence. The fault is at the equivalent then (rule 3).
func (in *Incident) supersededBy(v fabric.Verdict) bool {
	alike := slices.ContainsFunc(in.SameFlowEquivalents, func(p fabric.DirectedElement) bool { return p.Element == v.Element })
	return alike && !slices.Contains(v.Equivalent, in.Element) && v.Evidence.ExplainedEdges >= in.Evidence.ExplainedEdges
}

// addEvidence adds the evidence of a cycle to an open incident. Its scenario never becomes milder while it is open: a
// failure that routing avoids remains one, unless it turns out to be a flap. The evidence about a clock does not
// shrink either.
func (in *Incident) addEvidence(v fabric.Verdict, now time.Time) {
	in.unnamedCycles, in.Held, in.LastSeen = 0, "", now
	if in.Kind == fabric.KindClock && v.Element == in.Element && v.Evidence.ExplainedEdges == 0 {
		// The flows showed the affected NICs. The node counts the change a little later, which gives the summary.
		in.Summary = v.Summary
		return
	}
	softer := v.Scenario != in.Scenario && (in.Scenario == fabric.HardFailure && v.Scenario != fabric.Flap || classify.SpansWindows(in.Scenario))
	if v.Element != in.Element || softer || v.Scenario == in.Scenario && v.Evidence.ExplainedEdges*2 < in.Evidence.ExplainedEdges {
		return
	}
	v.ID, v.FirstSeen = in.ID, in.FirstSeen
	in.adoptVerdict(v)
}
