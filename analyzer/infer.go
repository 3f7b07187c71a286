// Package analyzer joins the stages that lead from what the probes measured to
// a verdict: ask, bind, judge, triangulate, classify, publish. Localize runs
// the inference on a file; Loop runs it beside Prometheus.
package analyzer

import (
	"time"

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

// Infer explains one moment's findings. moved are the clocks that are known to
// have moved; expected is the number of directed
// flows that should have been seen; first dates new verdicts.
func Infer(g *fabric.Graph, findings []judge.Finding, moved []clocks.Suspect, expected int, first time.Time) fabric.Report {
	res := triangulate.Run(g, findings, triangulate.Defaults())
	rep := fabric.Report{Verdicts: []fabric.Verdict{}, LinkDelays: []fabric.LinkDelay{}}
	for _, s := range res.Suspects {
		v := classify.Verdict(g, s, findings, first)
		rep.Verdicts = append(rep.Verdicts, v)
	}
	for _, s := range moved {
		rep.Verdicts = append(rep.Verdicts, classify.Clock(g, s, findings, first))
	}
	for _, l := range res.Links {
		if l.AddedDelayNS > 0 {
			rep.LinkDelays = append(rep.LinkDelays, fabric.LinkDelay{Link: l.Direction.Link(), Direction: l.Direction.String(),
				AddedDelayNS: l.AddedDelayNS, Identifiable: l.Identifiable})
		}
	}
	rep.Edges, rep.Coverage = count(g, findings, res, expected)
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

func count(g *fabric.Graph, findings []judge.Finding, res triangulate.Result, expected int) (fabric.EdgeCounts, fabric.Coverage) {
	c := fabric.EdgeCounts{Degraded: len(res.Degraded)}
	seen := map[fabric.Edge]bool{}
	usable := map[fabric.Edge]bool{}
	for i := range findings {
		f := &findings[i]
		if seen[f.Edge] {
			c.Duplicates++
		}
		seen[f.Edge] = true
		if f.Obs.PathState == fabric.PathUnknown {
			c.UnknownPath++
		}
		if f.ClockSuspect {
			c.ClockSuspect++
		}
		if f.HostSuspect {
			c.HostSuspect++
		}
		if f.Condition != judge.Undecided && len(f.Obs.Path) > 0 {
			usable[f.Edge] = true
		}
	}
	c.Total = max(expected, len(seen))
	var cov fabric.Coverage
	if c.Total > 0 {
		cov.Edges = float64(len(usable)) / float64(c.Total)
	}
	if n := 2 * len(g.Topo.Links); n > 0 {
		crossed := 0
		for _, l := range g.Topo.Links {
			d := fabric.Direction{From: l.A, To: l.B}
			if res.Crossed[d] > 0 {
				crossed++
			}
			if res.Crossed[d.Reverse()] > 0 {
				crossed++
			}
		}
		cov.Links = float64(crossed) / float64(n)
	}
	return c, cov
}
