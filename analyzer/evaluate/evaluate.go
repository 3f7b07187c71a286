// Package evaluate leads from the findings of one moment to a report, in the same way for the loop and for files:
// clocks that moved, history, elements, scenarios, coverage.
package evaluate

import (
	"math"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Evaluator evaluates one moment after the other. It remembers the conditions of the flows in the last moments and the
// clocks that moved. Its methods must not be called concurrently.
type Evaluator struct {
	// EnterPhase is called at the beginning of each phase of an inference. It may be nil.
	EnterPhase func(triangulate.Phase)

	interval time.Duration
	engine   *triangulate.Engine // of the last moment's graph
	history  *classify.History   // nil if moments do not follow each other
	clocks   *clocks.Watch       // nil if moments have no series of clocks
}

// NewEvaluator returns an Evaluator for moments that follow each other at an interval. The series of the clocks come with
// every moment.
func NewEvaluator(interval time.Duration) *Evaluator {
	return &Evaluator{interval: interval, history: classify.NewHistory(interval), clocks: clocks.NewWatch()}
}

// NewFileEvaluator returns an Evaluator for the windows of a file. step is the time between two moments, and 0 if the
// file has one only.
func NewFileEvaluator(step time.Duration) *Evaluator {
	e := &Evaluator{interval: step}
	if step > 0 {
		e.history = classify.NewHistory(step)
	}
	return e
}

// InheritFrom takes over what another Evaluator remembers, which is not used any more.
func (e *Evaluator) InheritFrom(old *Evaluator) {
	e.history, e.clocks = old.history, old.clocks
}

// ResetAfterGap forgets the conditions of the flows.
func (e *Evaluator) ResetAfterGap() { e.history = classify.NewHistory(e.interval) }

// MovedClocks returns the clocks that moved by the findings of a moment, and by the series of clocks if there are some.
func (e *Evaluator) MovedClocks(at time.Time, findings []judge.Finding, series map[string]clocks.Series) []clocks.Suspect {
	if e.clocks == nil {
		return clocks.FindSuspects(findings)
	}
	return e.clocks.AddWindow(at, findings, series)
}

// AddMoment adds the findings of the next moment to the history. Delays that were measured with the clocks of suspects
// are discarded.
func (e *Evaluator) AddMoment(findings []judge.Finding, suspects []clocks.Suspect) {
	DistrustDelays(findings, suspects)
	if e.history != nil {
		e.history.AddMoment(findings)
	}
}

// DistrustDelays discards the delays that were measured with a clock that moved.
func DistrustDelays(findings []judge.Finding, moved []clocks.Suspect) {
	if len(moved) == 0 {
		return
	}
	by := map[string]bool{}
	for _, s := range moved {
		by[s.NIC] = true
		for _, nic := range s.Others {
			by[nic] = true
		}
	}
	for i := range findings {
		if f := &findings[i]; by[f.Flow.Src] || by[f.Flow.Dst] {
			f.DistrustDelay()
		}
	}
}

// Moment is what is known of one moment.
type Moment struct {
	Graph *fabric.Graph
	// Part is the part of the fabric whose coverage and state are reported. Nil means all of it.
	Part     *fabric.Part
	Findings []judge.Finding
	// Moved are the clocks that moved.
	Moved []clocks.Suspect
	// First is the start of new verdicts.
	First time.Time
	// Expected is the expected number of directed flows of the part.
	Expected int
	// Excluder has the flows and links that count neither for nor against coverage, and Carried the flows that count
	// for coverage only. Both may be nil.
	Excluder *maintenance.Excluder
	Carried  *selection.Carried
	// ExcludedAmong returns which of some elements flows or probes that were asked for have excluded from the open incidents
	// on one of them. It may be nil.
	ExcludedAmong func([]fabric.Element) []fabric.Element
}

// withoutExcluded returns suspects without the excluded elements: an equivalent takes the place of a suspect. A suspect
// without other equivalents stays, since something has to explain what the flows show.
func (m *Moment) withoutExcluded(suspects []triangulate.Suspect) []triangulate.Suspect {
	if m.ExcludedAmong == nil {
		return suspects
	}
	for i := range suspects {
		s := &suspects[i]
		if len(s.Equivalent) == 0 {
			continue
		}
		out := m.ExcludedAmong(append(elementsOf(s.Equivalent), s.Named()))
		excluded := func(e triangulate.Element) bool { return slices.Contains(out, e.Named()) }
		left := slices.DeleteFunc(slices.Clone(s.Equivalent), excluded)
		if excluded(s.Element) && len(left) > 0 {
			s.Element, left = left[0], left[1:]
		}
		s.Equivalent = left
	}
	return suspects
}

func (e *Evaluator) sceneOf(m *Moment) *classify.Scene {
	return &classify.Scene{Graph: m.Graph, Findings: m.Findings, History: e.history, First: m.First}
}

// InferReport returns the report on a moment.
func (e *Evaluator) InferReport(m *Moment) fabric.Report {
	if e.engine == nil || e.engine.Graph() != m.Graph {
		e.engine = triangulate.NewEngine(m.Graph)
		e.engine.EnterPhase = e.EnterPhase
	}
	res := e.engine.Run(m.Findings, triangulate.DefaultParameters())
	rep := fabric.Report{Verdicts: e.sceneOf(m).VerdictsFor(m.withoutExcluded(res.Suspects)), LinkDelays: []fabric.LinkDelay{}}
	rep.Candidates = candidatesOf(res.Unnamed, rep.Verdicts)
	for _, s := range m.Moved {
		if s.Dragged {
			continue
		}
		rep.Verdicts = append(rep.Verdicts, classify.ClockVerdict(m.Graph, s, m.Findings, m.First))
	}
	for _, l := range res.Links {
		if l.AddedDelayNS > 0 || !l.Identifiable {
			rep.LinkDelays = append(rep.LinkDelays, fabric.LinkDelay{Link: l.Direction.LinkID(), Direction: l.Direction.String(),
				AddedDelayNS: l.AddedDelayNS, Identifiable: l.Identifiable})
		}
	}
	rep.Edges, rep.Coverage = measureCoverage(m, res)
	rep.Paths, rep.LinkShares = pathChoice(m), linkShares(m, res)
	rep.Paths.LeastProbesPerSecond = leastRate(rep.LinkShares)
	switch {
	case slices.ContainsFunc(rep.Verdicts, func(v fabric.Verdict) bool { return m.Part.Owns(v.Element) }):
		rep.State = fabric.Suspect
	case !seesDegraded(m, res) && rep.Coverage.Links >= MinLinkCoverage && rep.Coverage.Edges >= MinEdgeCoverage:
		rep.State = fabric.Innocent
	default:
		rep.State = fabric.InsufficientEvidence
	}
	return rep
}

// candidatesOf returns the candidates among the unnamed elements. What a verdict names, or lists as an equivalent, is
// none: scenarios may name another element than the inference did.
func candidatesOf(unnamed []triangulate.Unnamed, verdicts []fabric.Verdict) []fabric.Candidate {
	out := []fabric.Candidate{}
	for _, u := range unnamed {
		c := fabric.Candidate{Element: u.Named(), Probability: math.Round(u.Probability*1000) / 1000, Edges: len(u.Explained),
			Equivalent: elementsOf(u.Equivalent), Rivals: elementsOf(u.Rivals), WouldSplit: []fabric.Measurement{}}
		if u.OneWay() {
			c.Direction = u.Direction.String()
		}
		for _, e := range append(slices.Clone(u.Rivals), u.Equivalent...) {
			c.Others = append(c.Others, fabric.DirectedElement{Element: e.Named(), Direction: e.Direction})
		}
		if !slices.ContainsFunc(verdicts, func(v fabric.Verdict) bool { return v.Element == c.Element || slices.Contains(v.Equivalent, c.Element) }) {
			out = append(out, c)
		}
	}
	return out
}

func elementsOf(in []triangulate.Element) []fabric.Element {
	out := []fabric.Element{}
	for _, e := range in {
		if el := e.Named(); !slices.Contains(out, el) {
			out = append(out, el)
		}
	}
	return out
}

// StarvedHosts returns verdicts on the starved hosts of a moment that the known verdicts do not name.
func (e *Evaluator) StarvedHosts(m *Moment, known []fabric.Verdict) []fabric.Verdict {
	return e.sceneOf(m).StarvedHostVerdicts(known)
}
