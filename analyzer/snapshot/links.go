package snapshot

import (
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// ViewEdges returns a view of every finding.
func ViewEdges(findings []judge.Finding, x *maintenance.Excluder) (out []EdgeView) {
	for i := range findings {
		out = append(out, EdgeView{Obs: *findings[i].Obs, Condition: conditionLabel(&findings[i], x)})
	}
	return out
}

func conditionLabel(f *judge.Finding, x *maintenance.Excluder) string {
	switch {
	case x.ExcludesFlow(f.Flow):
		return "maintenance"
	case f.Obs.Unread:
		return "unread"
	case f.HostSuspect:
		return "host_suspect"
	case f.ClockSuspect:
		return "clock_suspect"
	case f.Condition == judge.Degraded:
		return "degraded"
	case f.Condition == judge.Healthy:
		return "healthy"
	}
	return "undecided"
}

// ViewLinks returns a view of every directed link of the topology.
func ViewLinks(g *fabric.Graph, rep fabric.Report, findings []judge.Finding, c *selection.Carried) []LinkView {
	at := map[fabric.Direction]*LinkView{}
	var order []fabric.Direction
	for _, link := range g.Topo.Links {
		for _, d := range []fabric.Direction{{From: link.A, To: link.B}, {From: link.B, To: link.A}} {
			at[d] = &LinkView{Link: link.ID(), From: d.From, To: d.To, Edges: c.CrossingCount(d)}
			order = append(order, d)
		}
	}
	clean := map[fabric.Direction]bool{}
	for i := range findings {
		f := &findings[i]
		if f.Condition == judge.Undecided {
			continue
		}
		src, dst := f.Flow.Endpoints()
		for _, d := range f.Obs.Path.LinkDirections(src, dst) {
			v := at[d]
			if v == nil {
				continue
			}
			v.Edges++
			if f.Condition == judge.Degraded {
				v.Degraded++
			}
			if f.HasShift {
				clean[d] = true
			}
		}
	}
	for d, view := range at {
		clean[d] = clean[d] || view.Edges > 0 && c.CrossingCount(d) > 0
	}
	for d, yes := range clean {
		if !yes {
			continue
		}
		var zero int64
		at[d].AddedDelayNS = &zero
	}
	for _, x := range rep.LinkDelays {
		if d, err := fabric.ParseDirection(x.Direction); err == nil && at[d] != nil {
			ns := x.AddedDelayNS
			at[d].AddedDelayNS = &ns
		}
	}
	for _, v := range rep.Verdicts {
		if v.Symptom.LossRatio == 0 {
			continue
		}
		for d, view := range at {
			if v.Direction == d.String() || v.Direction == "" && v.Kind == fabric.KindLink && v.Element.ID == view.Link {
				view.LossRatio = v.Symptom.LossRatio
			}
		}
	}
	out := make([]LinkView, 0, len(order))
	for _, d := range order {
		out = append(out, *at[d])
	}
	return out
}
