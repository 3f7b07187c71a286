package incident

import (
	"slices"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// findingOf returns the finding of a flow by its name, or nil.
func (m *Moment) findingOf(edge string) *judge.Finding {
	if m.byEdge == nil {
		m.byEdge = make(map[string]*judge.Finding, len(m.Findings))
		for i := range m.Findings {
			m.byEdge[m.Findings[i].Obs.Edge] = &m.Findings[i]
		}
	}
	return m.byEdge[edge]
}

// showsLasting reports whether a verdict explains flows whose paths were chosen, no flow that crosses its element is healthy, and two
// thirds of the flows show by this window alone that what they have lasts (judge.Finding.Lasting).
func (m *Moment) showsLasting(v *fabric.Verdict) bool {
	if len(v.Edges) == 0 || v.Evidence.ContraryEdges > 0 {
		return false
	}
	lasting := 0
	for _, s := range v.Edges {
		f := m.findingOf(s)
		if f == nil || !f.Obs.Chosen {
			return false
		}
		if f.Lasting {
			lasting++
		}
	}
	return 3*lasting >= 2*len(v.Edges)
}

// pendingBeside returns the number of flows that wait for confirmation and could change a verdict. Flows that cross a direction of a link by
// their choice do not change that all flows which cross it show it to be at fault, and that for longer than a moment.
func (m *Moment) pendingBeside(v *fabric.Verdict) int {
	d, err := fabric.ParseDirection(v.Direction)
	if m.Pending*4 <= m.Degraded || v.Kind != fabric.KindLink || err != nil || !m.showsLasting(v) {
		return m.Pending
	}
	with := 0
	for i := range m.Findings {
		f := &m.Findings[i]
		waits := f.Condition == judge.Undecided && (f.Delayed || f.Lossy || f.Jittery || f.Marked)
		if waits && f.Obs.Chosen && slices.Contains(f.Obs.Path.LinkDirections(f.Obs.Src, f.Obs.Dst), d) {
			with++
		}
	}
	return max(0, m.Pending-with)
}
