package maintenance

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Excluder excludes the flows and links under maintenance from a cycle, and remembers what each window has touched.
// A nil Excluder excludes nothing.
type Excluder struct {
	windows []Window             // of this cycle
	flows   map[fabric.Flow]bool // excluded in this cycle
	// touched has the flows that each window has touched so far, by its identifier.
	touched map[string]*Touched
}

// NewExcluder returns an Excluder without windows.
func NewExcluder() *Excluder { return &Excluder{touched: map[string]*Touched{}} }

// Touched represents the flows that a maintenance window touched, and whether their baselines are to be relearned.
type Touched struct {
	Window  Window
	Relearn bool
	Flows   map[fabric.Flow]bool
}

// BeginCycle begins a cycle with the windows in force. It returns those that ended and whose flows have to be learnt
// again, because their cables were changed.
func (x *Excluder) BeginCycle(windows []Window) (relearn []*Touched) {
	x.windows, x.flows = windows, map[fabric.Flow]bool{}
	for id, t := range x.touched {
		if slices.ContainsFunc(x.windows, func(w Window) bool { return w.ID == id }) {
			continue
		}
		delete(x.touched, id)
		if t.Relearn {
			relearn = append(relearn, t)
		}
	}
	return relearn
}

// IsActive reports whether a window is in force.
func (x *Excluder) IsActive() bool { return x != nil && len(x.windows) > 0 }

// ExcludesDirection reports whether a direction of a link is under maintenance.
func (x *Excluder) ExcludesDirection(d fabric.Direction) bool {
	return x != nil && slices.ContainsFunc(x.windows, func(w Window) bool { return w.TouchesDirection(d) })
}

// ExcludesFlow reports whether a flow is excluded in this cycle.
func (x *Excluder) ExcludesFlow(e fabric.Flow) bool { return x != nil && x.flows[e] }

// ExcludedFlows yields the flows that are excluded in this cycle.
func (x *Excluder) ExcludedFlows() iter.Seq[fabric.Flow] { return maps.Keys(x.flows) }

// WindowCovering returns the window that covers the element of a verdict, or nil.
func (x *Excluder) WindowCovering(g *fabric.Graph, v *fabric.Verdict) *Window {
	for i := range x.windows {
		if x.windows[i].CoversVerdict(g, v) {
			return &x.windows[i]
		}
	}
	return nil
}

// ExcludeFindings excludes the flows that may cross an element under maintenance. Their findings become undecided.
func (x *Excluder) ExcludeFindings(g *fabric.Graph, findings []judge.Finding) {
	for i := range findings {
		f := &findings[i]
		for j := range x.windows {
			if w := &x.windows[j]; w.mayTouch(g, f) {
				f.Condition, x.flows[f.Flow] = judge.Undecided, true
				x.markTouched(w, f.Flow)
			}
		}
	}
}

// ExcludeFlow excludes a flow that has no finding in this cycle and crosses links under maintenance.
func (x *Excluder) ExcludeFlow(f fabric.Flow, crossed []fabric.Direction) {
	x.flows[f] = true
	for i := range x.windows {
		if w := &x.windows[i]; slices.ContainsFunc(crossed, w.TouchesDirection) {
			x.markTouched(w, f)
		}
	}
}

// MayTouch reports whether an element under maintenance may have touched the flow of a finding.
func (x *Excluder) MayTouch(g *fabric.Graph, f *judge.Finding) bool {
	return slices.ContainsFunc(x.windows, func(w Window) bool { return w.mayTouch(g, f) })
}

// MarkRecabled marks the windows during which cables were found swapped, so that baselines are relearned.
func (x *Excluder) MarkRecabled(g *fabric.Graph, found []fabric.Verdict) {
	for _, t := range x.touched {
		if slices.ContainsFunc(found, func(v fabric.Verdict) bool { return t.Window.CoversVerdict(g, &v) }) {
			t.Relearn = true
		}
	}
}

func (x *Excluder) markTouched(w *Window, e fabric.Flow) {
	t := x.touched[w.ID]
	if t == nil {
		t = &Touched{Flows: map[fabric.Flow]bool{}}
		x.touched[w.ID] = t
	}
	t.Window, t.Relearn = *w, t.Relearn || w.Relearn
	t.Flows[e] = true
}

// maxCandidatePaths bounds the paths that a flow without a known path may have taken.
const maxCandidatePaths = 16

// mayTouch reports whether a flow crosses the window's element by its path, or by any path that it may have taken.
func (w *Window) mayTouch(g *fabric.Graph, f *judge.Finding) bool {
	src, dst := f.Flow.Endpoints()
	if w.TouchesDirection(fabric.Direction{From: src, To: g.PeerOf(src)}) || w.TouchesDirection(fabric.Direction{From: g.PeerOf(dst), To: dst}) {
		return true
	}
	ways := f.Obs.Paths
	switch {
	case len(f.Obs.Path) > 0:
		ways = []fabric.Path{f.Obs.Path}
	case len(ways) == 0:
		all := false
		if ways, all = g.CandidatePaths(src, dst, maxCandidatePaths); !all {
			ways = g.ShortestPaths(src, dst, maxCandidatePaths)
		}
	}
	return slices.ContainsFunc(ways, func(p fabric.Path) bool { return slices.ContainsFunc(p.LinkDirections(src, dst), w.TouchesDirection) })
}

// EarliestStart returns the earliest start of the windows of findings, or now if there is none before.
func EarliestStart(findings []judge.Finding, now time.Time) time.Time {
	for i := range findings {
		if s := findings[i].Obs.Start; s.Before(now) {
			now = s
		}
	}
	return now
}
