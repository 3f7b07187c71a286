// Package analyzer joins the stages that lead from the measurements of the probes to a verdict:
// query, bind, judge, triangulate, classify, publish. LocalizeFaults runs the inference on a
// file. Loop runs it beside Prometheus.
//
// A baseline is what is normal for a flow: the median and the spread of its delay while nothing
// is suspected.
//
// Rules of a Loop whose evidence fails, in whole or in part (the package comment of evidence
// lists the failures):
//
//  1. A cycle without evidence opens and clears no incident, and learns no baseline. The state
//     is insufficient_evidence, or suspect while incidents are open. These are held. The
//     coverage is 0.
//  2. After a gap, windows from before the gap confirm nothing.
//  3. The number of expected flows does not shrink when fewer flows report. It is the largest
//     number of the last ten minutes, or the number in LoopOptions.
//  4. A flow without evidence is undecided. An incident is not cleared while most of the flows
//     that showed it are undecided.
//  5. The cycle after a slow one evaluates the present moment. The moments in between are
//     skipped.
//  6. A Loop that can recall baselines does so before its first cycle. A start during an
//     incident thus neither forgets the baselines nor learns them from the incident.
//
// Rules of a Loop that queries in two steps (TwoSteps; docs/adr/0012-two-step-evidence.md):
//
//  7. Every cycle queries aggregates of every NIC. It queries single flows of the NICs whose turn
//     it is in a round over all, that moved, that had flows in trouble recently, or whose flows
//     show an open or pending incident, and of some that cross the same elements for
//     comparison.
//  8. The result of a flow that was not queried is carried forward if the flow was healthy when
//     it was last queried, less than a round ago, and neither of its NICs moved since. Such a
//     flow counts for coverage and for the state innocent. It is not a finding, so it neither
//     blames nor clears.
//  9. Consecutive windows that confirm a fault are windows of cycles that queried the flow.
//  10. The normal values of a NIC are not learnt while an incident is open, nor from values that
//     are not normal, unless all flows from it are healthy for half a minute.
//  11. A cycle queries no more flows than its budget allows, and reports what it left out.
//  12. Every flow is queried if there are few flows, or no recording rules.
package analyzer

import (
	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
)

// Coverage that a scope needs before it can be called innocent.
const (
	minLinkCoverage = 0.9
	minEdgeCoverage = 0.9
)

// InferReport returns the report on the findings of one moment, which scene holds. e belongs to the scene's
// graph, and may be used again for the next moment. moved lists the clocks that moved, and expected is the
// expected number of directed flows.
func InferReport(e *triangulate.Engine, scene *classify.Scene, moved []clocks.Suspect, expected int) fabric.Report {
	return inferExcluding(e, scene, moved, expected, nil, nil)
}

// inferExcluding returns the report as InferReport does. Excluded flows and links count neither for nor against
// coverage, and carried flows count for coverage only.
func inferExcluding(e *triangulate.Engine, scene *classify.Scene, moved []clocks.Suspect, expected int, a *exclusions, v *carriedFlows) fabric.Report {
	g, findings := scene.Graph, scene.Findings
	res := e.Run(findings, triangulate.DefaultParameters())
	rep := fabric.Report{Verdicts: scene.VerdictsFor(res.Suspects), LinkDelays: []fabric.LinkDelay{}}
	for _, s := range moved {
		if s.Dragged {
			continue
		}
		rep.Verdicts = append(rep.Verdicts, classify.ClockVerdict(g, s, findings, scene.First))
	}
	for _, l := range res.Links {
		if l.AddedDelayNS > 0 || !l.Identifiable {
			rep.LinkDelays = append(rep.LinkDelays, fabric.LinkDelay{Link: l.Direction.LinkID(), Direction: l.Direction.String(),
				AddedDelayNS: l.AddedDelayNS, Identifiable: l.Identifiable})
		}
	}
	rep.Edges, rep.Coverage = measureCoverage(g, findings, res, expected, a, v)
	switch {
	case len(rep.Verdicts) > 0:
		rep.State = fabric.Suspect
	case len(res.Degraded) == 0 && rep.Coverage.Links >= minLinkCoverage && rep.Coverage.Edges >= minEdgeCoverage:
		rep.State = fabric.Innocent
	default:
		rep.State = fabric.InsufficientEvidence
	}
	return rep
}

func measureCoverage(g *fabric.Graph, findings []judge.Finding, res triangulate.Result, expected int, a *exclusions, v *carriedFlows) (fabric.EdgeCounts, fabric.Coverage) {
	c := fabric.EdgeCounts{Degraded: len(res.Degraded)}
	more, usable, unasked := v.flowTotals()
	expected -= unasked
	decided := make(map[fabric.Flow]bool, len(findings))
	for i := range findings {
		f := &findings[i]
		if a.excludesFlow(f.Flow) {
			expected--
			continue
		}
		decided[f.Flow] = decided[f.Flow] || f.Condition != judge.Undecided && len(f.Obs.Path) > 0
		if f.Obs.PathState == fabric.PathUnknown {
			c.UnknownPath++
		}
		if f.ClockSuspect {
			c.ClockSuspect++
		}
		if f.HostSuspect {
			c.HostSuspect++
		}
		if f.Obs.Unread {
			c.Unread++
		}
	}
	c.Total = max(expected, len(decided)+more)
	var cov fabric.Coverage
	if c.Total > 0 {
		for _, yes := range decided {
			if yes {
				usable++
			}
		}
		cov.Edges = float64(usable) / float64(c.Total)
	}
	n, crossed := 0, 0
	for i := range g.Topo.Links {
		l := &g.Topo.Links[i]
		for _, d := range []fabric.Direction{{From: l.A, To: l.B}, {From: l.B, To: l.A}} {
			if a.excludesDirection(d) {
				continue
			}
			if n++; res.Crossed[d] > 0 || v.crossingCount(d) > 0 {
				crossed++
			}
		}
	}
	if n > 0 {
		cov.Links = float64(crossed) / float64(n)
	}
	return c, cov
}
