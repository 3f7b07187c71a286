package localize

import (
	"slices"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/evaluate"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
)

// routingFaults collects the faults of routing that the paths of each window show. Each is there once, as of its first window. Those
// that need history or the reports of switches are not in a file.
type routingFaults struct{ found []routing.Finding }

// addWindow adds the faults of a window, and removes the verdicts that they explain from its report.
func (r *routingFaults) addWindow(w *evaluate.Moment, rep *fabric.Report) {
	dead := map[fabric.Element]bool{}
	for i := range rep.Verdicts {
		if v := &rep.Verdicts[i]; v.Scenario == fabric.HardFailure {
			dead[v.Element] = true
		}
	}
	m := &routing.Moment{Now: w.First, Graph: w.Graph, Down: func(e fabric.Element) bool { return dead[e] }}
	for i := range w.Findings {
		m.Flows = append(m.Flows, classify.RoutingFlow(&w.Findings[i]))
	}
	found := routing.ReviewOnce(m)
	for i := range found {
		f := &found[i]
		rep.Verdicts = slices.DeleteFunc(rep.Verdicts, func(v fabric.Verdict) bool { return classify.RoutingExplains(f, &v) })
		if !slices.ContainsFunc(r.found, f.IsSame) {
			r.found = append(r.found, *f)
		}
	}
}
