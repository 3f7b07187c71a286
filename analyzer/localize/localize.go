// Package localize finds the faults in a file of observations, window by window.
package localize

import (
	"fmt"
	"sort"
	"time"

	"github.com/graylink/graylink/analyzer/asking"
	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/evaluate"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// maxWindows bounds the windows of one file, since each one takes time.
const maxWindows = 100_000

// Localizer finds the faults in the observations of a file. It evaluates window by window, and returns one verdict
// per fault with the earliest window as its start.
type Localizer struct {
	Graph *fabric.Graph
	// Window is the length of the windows whose observations are judged together.
	Window time.Duration
	// Progress is called with the number of finished windows and of all windows. It may be nil.
	Progress func(done, of int)
	// EnterPhase is called at the beginning of each phase of the work. It may be nil.
	EnterPhase func(triangulate.Phase)
}

// BadPath represents an observation whose path crosses a link that the topology does not have, and that no
// swapped cables explain.
type BadPath struct {
	Observation int // index of the observation
	Err         error
}

// FindFaults runs a Localizer without progress reports, and returns its report.
func FindFaults(g *fabric.Graph, obs []*fabric.Observation, window time.Duration) (fabric.Report, error) {
	rep, _, err := Localizer{Graph: g, Window: window}.Run(obs)
	return rep, err
}

// Run returns the report on observations, and the observations with a bad path, which are excluded. It completes
// the observations with baselines and canonical names. It fails with an error that names the NIC or switch if
// the topology does not have one.
func (l Localizer) Run(obs []*fabric.Observation) (fabric.Report, []BadPath, error) {
	if l.Window <= 0 {
		return fabric.Report{}, nil, fmt.Errorf("window %s: want a positive duration", l.Window)
	}
	if l.EnterPhase == nil {
		l.EnterPhase = func(triangulate.Phase) {}
	}
	l.EnterPhase(triangulate.Binding)
	expected := map[string]bool{}
	for _, o := range obs {
		if err := CheckObservation(l.Graph, o); err != nil {
			return fabric.Report{}, nil, err
		}
		canonicalizeNames(l.Graph, o)
		if !o.CarriesSignals() {
			expected[o.Edge] = true
		}
	}
	if len(obs) == 0 {
		return evaluate.NewFileEvaluator(0).InferReport(&evaluate.Moment{Graph: l.Graph}), nil, nil
	}
	cabling := classify.CompareCabling(l.Graph, obs)
	obs, bad := separateBadPaths(obs, cabling.OddPaths)
	if len(obs) == 0 {
		return evaluate.NewFileEvaluator(0).InferReport(&evaluate.Moment{Graph: l.Graph}), bad, nil
	}
	baseline.FillMissing(obs)
	windows := splitWindows(obs, l.Window)
	if len(windows) > maxWindows {
		return fabric.Report{}, nil, fmt.Errorf("the observations span %d windows of %s, want at most %d: use a longer window", len(windows), l.Window, maxWindows)
	}
	step := mostCommonWindow(obs)
	if len(windows) == 1 && len(splitWindows(obs, step)) == 1 {
		step = 0
	}
	out, evaluator, faults := newMerger(), evaluate.NewFileEvaluator(step), routingFaults{}
	evaluator.EnterPhase = l.EnterPhase
	l.EnterPhase(triangulate.Inference)
	for i, w := range windows {
		if step > 0 {
			for _, moment := range splitWindows(w, step) {
				findings := judge.FindingsOf(moment, judge.DefaultParameters())
				evaluator.AddMoment(findings, evaluator.MovedClocks(earliestStart(moment), findings, nil))
			}
		}
		m := &evaluate.Moment{Graph: cabling.Graph, Findings: judge.FindingsOf(combineWindows(w), judge.DefaultParameters()), First: earliestStart(w), Expected: len(expected)}
		m.Moved = evaluator.MovedClocks(m.First, m.Findings, nil)
		evaluate.DistrustDelays(m.Findings, m.Moved)
		rep := evaluator.InferReport(m)
		rep.Verdicts = append(rep.Verdicts, evaluator.StarvedHosts(m, rep.Verdicts)...)
		faults.addWindow(m, &rep)
		out.addWindow(rep)
		if l.Progress != nil {
			l.Progress(i+1, len(windows))
		}
	}
	rep := out.mergedReport()
	for _, s := range cabling.Swaps {
		rep.Verdicts = append(rep.Verdicts, classify.SwapVerdict(l.Graph, s))
		rep.State = fabric.Suspect
	}
	if of := classify.RoutingVerdicts(cabling.Graph, faults.found); len(of) > 0 {
		rep.Verdicts, rep.State = append(rep.Verdicts, of...), fabric.Suspect
	}
	rep.Edges.Duplicates = countDuplicates(obs)
	planner := asking.NewPlanner(cabling.Graph)
	rep.Candidates, rep.Verdicts = planner.AddMeasurements(rep.Candidates), planner.AddVerdictMeasurements(rep.Verdicts)
	sort.SliceStable(rep.Verdicts, func(i, j int) bool { return rep.Verdicts[i].Confidence > rep.Verdicts[j].Confidence })
	return rep, bad, nil
}

// separateBadPaths separates the observations with a bad path from the others.
func separateBadPaths(obs []*fabric.Observation, odd []int) (good []*fabric.Observation, bad []BadPath) {
	if len(odd) == 0 {
		return obs, nil
	}
	wrong := map[int]bool{}
	for _, i := range odd {
		wrong[i] = true
		bad = append(bad, BadPath{i, fmt.Errorf("edge %q: its path %s crosses a link that the topology does not have, and no swapped cables explain it", obs[i].Edge, obs[i].Path.CanonicalKey())})
	}
	for i, o := range obs {
		if !wrong[i] {
			good = append(good, o)
		}
	}
	return good, bad
}

// CheckObservation returns an error that names the first element of an observation that the topology lacks, or nil.
func CheckObservation(g *fabric.Graph, o *fabric.Observation) error {
	for _, nic := range []string{o.Src, o.Dst} {
		if g.NIC(nic) == nil {
			return fmt.Errorf("edge %q: the topology has no NIC %q", o.Edge, nic)
		}
	}
	for _, p := range append([]fabric.Path{o.Path}, o.Paths...) {
		for _, h := range p {
			if g.Switch(h.Switch) == nil {
				return fmt.Errorf("edge %q: its path crosses switch %q, which the topology does not have", o.Edge, h.Switch)
			}
		}
	}
	return nil
}

// canonicalizeNames replaces aliases of NICs by their names.
func canonicalizeNames(g *fabric.Graph, o *fabric.Observation) {
	src, dst := g.NIC(o.Src), g.NIC(o.Dst)
	if src.Node+"/"+src.Device == o.Src && dst.Node+"/"+dst.Device == o.Dst {
		return
	}
	e, err := o.ParseFlow()
	if err != nil {
		return // it has no ends, then
	}
	o.Src, o.Dst = src.ID(), dst.ID()
	e.Src, e.Dst = g.NIC(e.Src).ID(), g.NIC(e.Dst).ID()
	o.Edge = e.String()
}
