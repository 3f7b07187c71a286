package main

import (
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/evaluate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/sim/incident"
)

// runCycle runs one cycle of inference: judge, find moved clocks, triangulate, classify.
func runCycle(g *fabric.Graph, obs []*fabric.Observation) answer {
	findings := judge.FindingsOf(obs, judge.DefaultParameters())
	return report(evaluate.NewFileEvaluator(0).InferReport(&evaluate.Moment{Graph: g, Findings: findings, Moved: clocks.FindSuspects(findings), First: incident.Epoch, Expected: len(obs)}))
}

// estimates are the delays that links are said to add.
type estimates []fabric.LinkDelay

func estimateDelays(g *fabric.Graph, obs []*fabric.Observation) answer {
	return estimates(runVerdicts(g, obs).(report).LinkDelays)
}

// linkErrors are the errors of estimated delays, in nanoseconds: of directed links
// that add one, of those that do not but are said to.
type linkErrors struct {
	Slow         []float64 `json:"slow_error_ns"`    // absolute; all of the delay if it is not reported
	Relative     []float64 `json:"slow_error_ratio"` // the same against the truth
	Clean        []float64 `json:"clean_error_ns"`   // of the clean links that are not 0
	CleanLinks   int       `json:"clean_links"`
	Unidentified int       `json:"unidentifiable"` // said to be, and left out of all of that
}

func (e *linkErrors) mergeWith(o *linkErrors) *linkErrors {
	if e == nil {
		e = &linkErrors{}
	}
	e.Slow, e.Relative, e.Clean = append(e.Slow, o.Slow...), append(e.Relative, o.Relative...), append(e.Clean, o.Clean...)
	e.CleanLinks, e.Unidentified = e.CleanLinks+o.CleanLinks, e.Unidentified+o.Unidentified
	return e
}

// quantileOf of v, with zeros more of 0; v is reordered.
func quantileOf(v []float64, zeros int, p float64) float64 {
	slices.Sort(v)
	if n := len(v) + zeros; n > 0 {
		if i := int(p*float64(n-1)+0.5) - zeros; i >= 0 {
			return v[i]
		}
	}
	return 0
}

func (e *linkErrors) write(w io.Writer) {
	fmt.Fprintf(w, "  %d slow links: error median %.2f us (%.1f %%), P95 %.2f us; within max(0.5 us, 10 %%): %.3f\n", len(e.Slow), quantileOf(e.Slow, 0, 0.5)/1e3,
		100*quantileOf(e.Relative, 0, 0.5), quantileOf(e.Slow, 0, 0.95)/1e3, e.shareWithin())
	fmt.Fprintf(w, "  %d others: %d said to add something, P95 %.2f us, at most %.2f us; all links: P95 %.2f us; %d said to be unidentifiable\n", e.CleanLinks, len(e.Clean),
		quantileOf(e.Clean, e.CleanLinks-len(e.Clean), 0.95)/1e3, quantileOf(e.Clean, 0, 1)/1e3, quantileOf(slices.Concat(e.Clean, e.Slow), e.CleanLinks-len(e.Clean), 0.95)/1e3, e.Unidentified)
}

// shareWithin returns the share of slow links whose error is small, absolutely or relatively.
func (e *linkErrors) shareWithin() float64 {
	n := 0
	for i := range e.Slow {
		if e.Slow[i] <= 500 || e.Relative[i] <= 0.1 {
			n++
		}
	}
	return float64(n) / float64(max(1, len(e.Slow)))
}

// gradeCase takes the directed links that faults slow down, and all others.
func (es estimates) gradeCase(cs *incident.Case) score {
	said := map[string]fabric.LinkDelay{}
	for _, e := range es {
		said[e.Direction] = e
	}
	truth := map[string]float64{}
	for _, f := range cs.Truth.Faults {
		if f.Direction != "" {
			truth[f.Direction] = float64(f.DelayNS)
		}
	}
	out := &linkErrors{}
	for _, l := range cs.Topology.Links {
		for _, d := range []fabric.Direction{{From: l.A, To: l.B}, {From: l.B, To: l.A}} {
			e, ok := said[d.String()]
			if ok && !e.Identifiable {
				out.Unidentified++
				continue
			}
			by := truth[d.String()]
			wrong := math.Abs(float64(e.AddedDelayNS) - by)
			switch {
			case by > 0:
				out.Slow, out.Relative = append(out.Slow, wrong), append(out.Relative, wrong/by)
			case wrong > 0:
				out.Clean = append(out.Clean, wrong)
				out.CleanLinks++
			default:
				out.CleanLinks++
			}
		}
	}
	return score{links: out}
}

func (es estimates) writeDetails(w io.Writer) {
	for _, e := range es {
		fmt.Fprintf(w, "  delay   %s %d ns, identifiable %v\n", e.Direction, e.AddedDelayNS, e.Identifiable)
	}
}
