// Package incident turns the reports of the cycles into incidents: verdicts over time, which open, are held and
// clear under one identifier. It also keeps their causes and the jobs that they affect.
//
// Rules:
//
//  1. An element must be named in several consecutive cycles before a verdict on it opens. A hard failure opens
//     at once, and so does what all flows with chosen paths that cross an element show to last.
//  2. A verdict waits a while if flows without evidence could distinguish its element from its equivalents.
//  3. A verdict that names an equivalent of an open one, and distinguishes the two, continues its incident under the same
//     identifier: the incident is narrowed.
//  4. An incident clears after several consecutive cycles that do not name it, with healthy flows that cross it
//     by a path traced since it opened, unless most of the flows that showed it have no evidence.
//  5. An incident on a clock clears when the clock has been steady for a while.
//  6. The severity follows from the affected jobs and NICs where placements are known.
//  7. A verdict that was open shortly before the analyzer started, and is named again, continues with its
//     identifier and its start, also if it had been narrowed.
//  8. Only incidents of the tracker's part of the fabric are published. Those of other parts explain flows as all do. An
//     incident that is narrowed to an element of another part stays published, since the other analyzer may not know
//     by which questions it was narrowed.
package incident

import (
	"slices"
	"strings"
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

	foreign       bool // it is not published (rule 8)
	unnamedCycles int
	observations  []byte               // of the cycle in which it opened or was narrowed last; nil if they are not kept
	crossingFlows map[fabric.Flow]bool // the flows that crossed it when it opened
	// suggestedCauses are the causes that the probes alone suggest. telemetryCause is the attribution from
	// the element's series.
	suggestedCauses []string
	telemetryCause  *fabric.Attribution
	// excluded are the elements that flows which were asked for have distinguished from the incident's.
	excluded []fabric.Element
	// symptomSeverity is the severity by the symptom alone. affectedJobs are the affected jobs since it opened.
	symptomSeverity string
	affectedJobs    map[string]bool
	// load is the end of the summary that says what carries the load of the element now.
	load string
}

// DescribeLoad ends the summary with what carries the load of the element now, or "".
func (in *Incident) DescribeLoad(text string) {
	in.Summary, in.load = strings.TrimSuffix(in.Summary, in.load), ""
	if text != "" {
		in.load = " " + text
		in.Summary += in.load
	}
}

// supersededBy reports whether a verdict names an equivalent of an incident's element, distinguishes the two, and has
// no less evidence. The fault is at the equivalent then (rule 3).
func (in *Incident) supersededBy(v fabric.Verdict) bool {
	alike := slices.ContainsFunc(in.SameFlowEquivalents, func(p fabric.DirectedElement) bool { return p.Element == v.Element })
	return alike && !slices.Contains(v.Equivalent, in.Element) && v.Evidence.ExplainedEdges >= in.Evidence.ExplainedEdges
}

// IsExcluded reports whether flows that were asked for have distinguished an element from the incident's.
func (in *Incident) IsExcluded(e fabric.Element) bool { return slices.Contains(in.excluded, e) }

func (in *Incident) exclude(e fabric.Element) {
	if !in.IsExcluded(e) {
		in.excluded = append(in.excluded, e)
	}
}

// applyExclusions applies what flows that were asked for have shown of an incident to a verdict on its element. Elements
// that were equivalent to it remain so until such flows have evidence by which they are neither equivalent nor
// candidates. From then on they are excluded.
func (in *Incident) applyExclusions(v *fabric.Verdict, m *Moment) {
	if v.Element != in.Element || m.Asked == nil || len(m.Asked.Records(in.ID)) == 0 {
		return
	}
	evident := m.Asked.HasEvidence(in.ID, m.Findings)
	for _, p := range in.SameFlowEquivalents {
		switch {
		case slices.ContainsFunc(v.SameFlowEquivalents, func(o fabric.DirectedElement) bool { return o.Element == p.Element }):
		case in.IsExcluded(p.Element):
		case evident && !m.isRival(p.Element, in.Element):
			in.exclude(p.Element)
		default:
			v.SameFlowEquivalents = append(slices.Clone(v.SameFlowEquivalents), p)
			if !slices.Contains(v.Equivalent, p.Element) {
				v.Equivalent = append(slices.Clone(v.Equivalent), p.Element)
			}
		}
	}
	in.dropExcluded(v)
}

// dropExcluded takes the excluded elements from the equivalents of a verdict.
func (in *Incident) dropExcluded(v *fabric.Verdict) {
	v.Equivalent = slices.DeleteFunc(slices.Clone(v.Equivalent), in.IsExcluded)
	v.SameFlowEquivalents = slices.DeleteFunc(slices.Clone(v.SameFlowEquivalents), func(p fabric.DirectedElement) bool { return in.IsExcluded(p.Element) })
}

// isRival reports whether an element is a candidate that may be at fault instead of another one.
func (m *Moment) isRival(e, of fabric.Element) bool {
	return slices.ContainsFunc(m.Report.Candidates, func(c fabric.Candidate) bool { return c.Element == e && slices.Contains(c.Rivals, of) })
}

// recordAsked takes over what was asked about the incident. The last question for flows gets what is excluded, but for what
// hop-limited probes exclude.
func (in *Incident) recordAsked(asked []fabric.Asked) {
	byHops := func(e fabric.Element) bool {
		return slices.ContainsFunc(asked, func(a fabric.Asked) bool { return a.Asked == fabric.AskedHop && slices.Contains(a.Excluded, e) })
	}
	for i := range slices.Backward(asked) {
		if asked[i].Asked == fabric.AskedFlow {
			if len(in.excluded) > 0 {
				asked[i].Excluded = slices.DeleteFunc(slices.Clone(in.excluded), byHops)
			}
			break
		}
	}
	in.Evidence.Asked = asked
}

// narrowTo continues an incident with a verdict on one of its equivalents. What was read of the earlier element is
// dropped.
func (in *Incident) narrowTo(v fabric.Verdict, m *Moment) {
	in.exclude(in.Element)
	in.dropExcluded(&v)
	v.ID, v.FirstSeen = in.ID, in.FirstSeen
	in.unnamedCycles, in.Held, in.LastSeen, in.telemetryCause = 0, "", m.Now, nil
	in.adoptVerdict(v)
	in.takeCrossingFlows(m)
}

// takeCrossingFlows takes the flows that cross the incident's element now.
func (in *Incident) takeCrossingFlows(m *Moment) {
	in.crossingFlows = map[fabric.Flow]bool{}
	for _, e := range m.Flows.FlowsCrossing(in.Element) {
		in.crossingFlows[e] = true
	}
	for _, s := range in.Edges {
		// The paths of flows are no evidence about a clock.
		if e, err := fabric.ParseFlow(s); err == nil && in.Kind != fabric.KindClock {
			in.crossingFlows[e] = true
		}
	}
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
	if v.Evidence.Reported && !in.Evidence.Reported {
		return // probes say more of the same element
	}
	if v.Element != in.Element || softer || v.Scenario == in.Scenario && v.Evidence.ExplainedEdges*2 < in.Evidence.ExplainedEdges {
		return
	}
	v.ID, v.FirstSeen = in.ID, in.FirstSeen
	in.adoptVerdict(v)
}
