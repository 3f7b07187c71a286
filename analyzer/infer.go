// Package analyzer joins the stages that lead from what the probes measured to
// a verdict: ask, bind, judge, triangulate, classify, publish. Localize runs
// the inference on a file; Loop runs it beside Prometheus.
//
// Rules of a Loop whose evidence fails, in whole or in part (what makes it fail is
// in the package comment of evidence):
//
//  1. A cycle without evidence opens nothing, clears nothing and teaches nothing. The
//     state is insufficient_evidence, or suspect while incidents are open, which are
//     held; coverage is 0.
//  2. After a gap nothing is confirmed by windows from before it.
//  3. The number of flows that should tell does not shrink because fewer do: it is the
//     largest of the last ten minutes, or what LoopOptions say.
//  4. A flow that does not tell is undecided. An incident is not cleared while most of
//     the flows that showed it do not tell.
//  5. A cycle that takes long costs the moments it took: the next one is of the present moment.
//  6. A Loop that can recall what was normal does so before its first cycle: a start
//     during an incident neither forgets what was normal nor takes the incident for it.
//
// Rules of a Loop that asks in two steps (TwoSteps; docs/adr/0012-two-step-evidence.md):
//
//  7. Every cycle asks about every NIC. It asks about flows of NICs whose turn it is in a round
//     over all, that moved, that had flows in trouble not long ago, of which flows show what is
//     open or may become so, and for comparison of some that cross the same elements.
//  8. A flow that was not asked about is vouched for if it was healthy when it was asked about
//     last, less than a round ago, and neither of its NICs moved since. It counts for coverage
//     and innocence. It is no finding: it neither blames nor clears.
//  9. What is confirmed by windows running is confirmed by windows of cycles that asked.
//  10. What is normal of a NIC is not learnt while an incident is open, nor from what is not
//     normal, unless all flows from it are found healthy for half a minute.
//  11. A cycle asks about no more flows than it has room for, and says what it left out.
//  12. Where there are few flows, or no recording rules, every flow is asked about.
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

// InferReport explains one moment's findings, which scene holds. e is of the scene's graph and
// may be used again for the next moment. moved are the clocks that are known to have moved;
// expected is the number of directed flows that should have been seen.
func InferReport(e *triangulate.Engine, scene *classify.Scene, moved []clocks.Suspect, expected int) fabric.Report {
	return inferExcluding(e, scene, moved, expected, nil, nil)
}

// inferExcluding does the same but for what is aside, which counts neither for nor against coverage,
// and for what is vouched for, which counts for coverage only.
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
	tells := make(map[fabric.Flow]bool, len(findings))
	for i := range findings {
		f := &findings[i]
		if a.excludesFlow(f.Flow) {
			expected--
			continue
		}
		tells[f.Flow] = tells[f.Flow] || f.Condition != judge.Undecided && len(f.Obs.Path) > 0
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
	c.Total = max(expected, len(tells)+more)
	var cov fabric.Coverage
	if c.Total > 0 {
		for _, yes := range tells {
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
