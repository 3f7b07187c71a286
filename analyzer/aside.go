package analyzer

import (
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/fabric"
)

// exclusions is what takes no part in a cycle because somebody works on it. (Package maintenance
// has the rules.)
type exclusions struct {
	windows []maintenance.Window
	flows   map[fabric.Flow]bool
}

// excludesDirection reports whether a way through a cable is under maintenance.
func (a *exclusions) excludesDirection(d fabric.Direction) bool {
	return a != nil && slices.ContainsFunc(a.windows, func(w maintenance.Window) bool { return w.TouchesDirection(d) })
}

// excludesFlow reports whether a flow takes no part.
func (a *exclusions) excludesFlow(e fabric.Flow) bool { return a != nil && a.flows[e] }

// windowCovering returns the window that covers what a verdict is about, or nil.
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

// mayCross reports whether a flow crosses the window's element by its path or by any that it
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

// excludeMaintenance takes the flows that may cross something under maintenance out of the judgement,
// and out of what is remembered.
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

// touchedFlows are the flows that a window touched, for whose baselines it may be the end.
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

// markRecabledWindows marks the windows in which cables were found swapped: it was meant.
func (l *Loop) markRecabledWindows(found []fabric.Verdict) {
	for _, t := range l.touchedByWindow {
		if slices.ContainsFunc(found, func(v fabric.Verdict) bool { return t.window.CoversVerdict(l.opts.Graph, &v) }) {
			t.relearn = true
		}
	}
}

// forgetRecabled forgets what was normal of flows whose cables somebody changed on purpose,
// when the work is over.
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
		l.opts.Log.Info("baselines forgotten after maintenance", "element", t.window.Element, "flows", len(t.flows), "at", now)
	}
}

// applyMaintenance takes verdicts on covered elements out of a report, and closes the
// incidents that are open on them.
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
		l.opts.Log.Info("verdict closed", "element", in.Element.ID, "why", in.Closed)
		return true
	})
}

// excludedWithoutBaseline is how many flows take no part that have no baseline: nobody waits for them.
func (l *Loop) excludedWithoutBaseline() (n int) {
	for e := range l.excluded.flows {
		if m := l.flowRecords[e]; m == nil || m.baseline == nil {
			n++
		}
	}
	return n
}
