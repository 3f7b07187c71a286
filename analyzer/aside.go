package analyzer

import (
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/fabric"
)

// aside is what takes no part in a cycle because somebody works on it. (Package maintenance
// has the rules.)
type aside struct {
	windows []maintenance.Window
	flows   map[fabric.Edge]bool
}

// direction reports whether a way through a cable is under maintenance.
func (a *aside) direction(d fabric.Direction) bool {
	return a != nil && slices.ContainsFunc(a.windows, func(w maintenance.Window) bool { return w.Touches(d) })
}

// flow reports whether a flow takes no part.
func (a *aside) flow(e fabric.Edge) bool { return a != nil && a.flows[e] }

// covers returns the window that covers what a verdict is about, or nil.
func (a *aside) covers(g *fabric.Graph, v *fabric.Verdict) *maintenance.Window {
	for i := range a.windows {
		if a.windows[i].Covers(g, v) {
			return &a.windows[i]
		}
	}
	return nil
}

// mostWays bounds the shortest paths that a flow without a known path may have taken.
const mostWays = 16

// mayCross reports whether a flow crosses the window's element by its path or by any that it
// may have taken.
func mayCross(g *fabric.Graph, w *maintenance.Window, o *fabric.Observation, e fabric.Edge) bool {
	src, dst := e.Ends()
	if w.Touches(fabric.Direction{From: src, To: g.Peer(src)}) || w.Touches(fabric.Direction{From: g.Peer(dst), To: dst}) {
		return true
	}
	ways := o.Paths
	switch {
	case len(o.Path) > 0:
		ways = []fabric.Path{o.Path}
	case len(ways) == 0:
		ways = g.ShortestPaths(src, dst, mostWays)
	}
	return slices.ContainsFunc(ways, func(p fabric.Path) bool { return slices.ContainsFunc(p.Directions(src, dst), w.Touches) })
}

// setAside takes the flows that may cross something under maintenance out of the judgement,
// and out of what is remembered.
func (l *Loop) setAside(raw []judge.Finding, now time.Time) {
	l.aside = aside{flows: map[fabric.Edge]bool{}}
	g, begin := l.store.Graph(), now
	for i := range raw {
		if s := raw[i].Obs.Start; s.Before(begin) {
			begin = s
		}
	}
	l.aside.windows = l.o.Maintenance.Between(begin, now)
	l.forgetRecabled(now)
	if len(l.aside.windows) == 0 {
		return
	}
	for i := range raw {
		f := &raw[i]
		for j := range l.aside.windows {
			w := &l.aside.windows[j]
			if !mayCross(g, w, f.Obs, f.Edge) {
				continue
			}
			f.Condition, l.aside.flows[f.Edge] = judge.Undecided, true
			l.touch(w, f.Edge)
		}
	}
	for e, m := range l.edges {
		if m.hard != nil && slices.ContainsFunc(l.aside.windows, func(w maintenance.Window) bool { return mayCross(g, &w, m.hard.Obs, e) }) {
			m.hard = nil
		}
	}
}

// touched are the flows that a window touched, for whose baselines it may be the end.
type touched struct {
	window  maintenance.Window
	relearn bool
	flows   map[fabric.Edge]bool
}

func (l *Loop) touch(w *maintenance.Window, e fabric.Edge) {
	t := l.touched[w.ID]
	if t == nil {
		t = &touched{flows: map[fabric.Edge]bool{}}
		l.touched[w.ID] = t
	}
	t.window, t.relearn = *w, t.relearn || w.Relearn
	t.flows[e] = true
}

// recabled marks the windows in which cables were found swapped: it was meant.
func (l *Loop) recabled(found []fabric.Verdict) {
	for _, t := range l.touched {
		if slices.ContainsFunc(found, func(v fabric.Verdict) bool { return t.window.Covers(l.o.Graph, &v) }) {
			t.relearn = true
		}
	}
}

// forgetRecabled forgets what was normal of flows whose cables somebody changed on purpose,
// when the work is over.
func (l *Loop) forgetRecabled(now time.Time) {
	for id, t := range l.touched {
		if slices.ContainsFunc(l.aside.windows, func(w maintenance.Window) bool { return w.ID == id }) {
			continue
		}
		delete(l.touched, id)
		if !t.relearn {
			continue
		}
		for e := range t.flows {
			if m := l.edges[e]; m != nil {
				m.flow = nil
			}
			delete(l.edges, e)
		}
		l.o.Log.Info("baselines forgotten after maintenance", "element", t.window.Element, "flows", len(t.flows), "at", now)
	}
}

// underMaintenance takes verdicts on covered elements out of a report, and closes the
// incidents that are open on them.
func (l *Loop) underMaintenance(rep *fabric.Report, now time.Time) {
	g := l.o.Graph
	rep.Verdicts = slices.DeleteFunc(rep.Verdicts, func(v fabric.Verdict) bool { return l.aside.covers(g, &v) != nil })
	l.open = slices.DeleteFunc(l.open, func(in *Incident) bool {
		w := l.aside.covers(g, &in.Verdict)
		if w == nil {
			return false
		}
		t := now
		in.Open, in.Cleared, in.Closed = false, &t, w.String()
		l.past = append(l.past, in)
		l.o.Log.Info("verdict closed", "element", in.Element.Element, "why", in.Closed)
		return true
	})
}

// unbornAside is how many flows take no part that have no baseline: nobody waits for them.
func (l *Loop) unbornAside() (n int) {
	for e := range l.aside.flows {
		if m := l.edges[e]; m == nil || m.base == nil {
			n++
		}
	}
	return n
}
