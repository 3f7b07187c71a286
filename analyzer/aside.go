package analyzer

import (
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/fabric"
)

// exclusions represents the flows and links that are excluded from a cycle because of maintenance. Package
// maintenance has the rules.
type exclusions struct {
	windows []maintenance.Window
	flows   map[fabric.Flow]bool
}

// excludesDirection reports whether a direction of a link is under maintenance.
func (a *exclusions) excludesDirection(d fabric.Direction) bool {
	return a != nil && slices.ContainsFunc(a.windows, func(w maintenance.Window) bool { return w.TouchesDirection(d) })
}

// excludesFlow reports whether a flow is excluded.
func (a *exclusions) excludesFlow(e fabric.Flow) bool { return a != nil && a.flows[e] }

// windowCovering returns the window that covers the element of a verdict, or nil.
func (a *exclusions) windowCovering(g *fabric.Graph, v *fabric.Verdict) *maintenance.Window {
	for i := range a.windows {
		if a.windows[i].CoversVerdict(g, v) {
			return &a.windows[i]
		}
	}
	return nil
}

// maxCandidatePaths bounds the shortest paths that a flow without a known path may have taken.
const maxCandidatePaths = 16

// mayCross reports whether a flow crosses the window's element by its path, or by any path that it
// may have taken.
func mayCross(g *fabric.Graph, w *maintenance.Window, o *fabric.Observation, e fabric.Flow) bool {
	src, dst := e.Endpoints()
	if w.TouchesDirection(fabric.Direction{From: src, To: g.PeerOf(src)}) || w.TouchesDirection(fabric.Direction{From: g.PeerOf(dst), To: dst}) {
		return true
	}
	ways := o.Paths
	switch {
	case len(o.Path) > 0:
		ways = []fabric.Path{o.Path}
	case len(ways) == 0:
		ways = g.ShortestPaths(src, dst, maxCandidatePaths)
	}
	return slices.ContainsFunc(ways, func(p fabric.Path) bool { return slices.ContainsFunc(p.LinkDirections(src, dst), w.TouchesDirection) })
}

// excludeMaintenance excludes the flows that may cross an element under maintenance from the findings
// and from the remembered hard losses.
func (l *Loop) excludeMaintenance(raw []judge.Finding, now time.Time) {
	l.excluded = exclusions{flows: map[fabric.Flow]bool{}}
	g, begin := l.store.Graph(), now
	for i := range raw {
		if s := raw[i].Obs.Start; s.Before(begin) {
			begin = s
		}
	}
	l.excluded.windows = l.opts.Maintenance.WindowsBetween(begin, now)
	l.forgetRecabled(now)
	if len(l.excluded.windows) == 0 {
		return
	}
	for i := range raw {
		f := &raw[i]
		for j := range l.excluded.windows {
			w := &l.excluded.windows[j]
			if !mayCross(g, w, f.Obs, f.Flow) {
				continue
			}
			f.Condition, l.excluded.flows[f.Flow] = judge.Undecided, true
			l.markTouched(w, f.Flow)
		}
	}
	for e, m := range l.flowRecords {
		if m.hard != nil && slices.ContainsFunc(l.excluded.windows, func(w maintenance.Window) bool { return mayCross(g, &w, m.hard.Obs, e) }) {
			m.hard = nil
		}
	}
}

// touchedFlows holds the flows that a maintenance window touched, and whether their baselines are to be relearned.
type touchedFlows struct {
	window  maintenance.Window
	relearn bool
	flows   map[fabric.Flow]bool
}

func (l *Loop) markTouched(w *maintenance.Window, e fabric.Flow) {
	t := l.touchedByWindow[w.ID]
	if t == nil {
		t = &touchedFlows{flows: map[fabric.Flow]bool{}}
		l.touchedByWindow[w.ID] = t
	}
	t.window, t.relearn = *w, t.relearn || w.Relearn
	t.flows[e] = true
}

// markRecabledWindows marks the windows during which cables were found swapped, so that baselines are
// relearned.
func (l *Loop) markRecabledWindows(found []fabric.Verdict) {
	for _, t := range l.touchedByWindow {
		if slices.ContainsFunc(found, func(v fabric.Verdict) bool { return t.window.CoversVerdict(l.opts.Graph, &v) }) {
			t.relearn = true
		}
	}
}

// forgetRecabled forgets the baselines of flows whose cables were changed during maintenance, when the
// maintenance is over.
func (l *Loop) forgetRecabled(now time.Time) {
	for id, t := range l.touchedByWindow {
		if slices.ContainsFunc(l.excluded.windows, func(w maintenance.Window) bool { return w.ID == id }) {
			continue
		}
		delete(l.touchedByWindow, id)
		if !t.relearn {
			continue
		}
		for e := range t.flows {
			if m := l.flowRecords[e]; m != nil {
				m.state = nil
			}
			delete(l.flowRecords, e)
		}
		l.opts.Log.Info("forgot baselines after maintenance", "element", t.window.Element, "flows", len(t.flows), "at", now)
	}
}

// applyMaintenance removes verdicts on elements under maintenance from a report, and closes their open
// incidents.
func (l *Loop) applyMaintenance(rep *fabric.Report, now time.Time) {
	g := l.opts.Graph
	rep.Verdicts = slices.DeleteFunc(rep.Verdicts, func(v fabric.Verdict) bool { return l.excluded.windowCovering(g, &v) != nil })
	l.openIncidents = slices.DeleteFunc(l.openIncidents, func(in *Incident) bool {
		w := l.excluded.windowCovering(g, &in.Verdict)
		if w == nil {
			return false
		}
		t := now
		in.Open, in.Cleared, in.Closed = false, &t, w.String()
		l.pastIncidents = append(l.pastIncidents, in)
		l.opts.Log.Info("closed verdict", "element", in.Element.ID, "why", in.Closed)
		return true
	})
}

// excludedWithoutBaseline returns the number of excluded flows without a baseline. The state does not wait for them.
func (l *Loop) excludedWithoutBaseline() (n int) {
	for e := range l.excluded.flows {
		if m := l.flowRecords[e]; m == nil || m.baseline == nil {
			n++
		}
	}
	return n
}
