package selection

import (
	"cmp"
	"maps"
	"slices"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// question represents an element in doubt, with the flows that could decide: those that cross it, or, for equivalent
// elements, those that cross some of them and not all.
type question struct {
	segments   []int32
	alike      bool
	need       int
	candidates []*flowState
}

type questions struct {
	all       []*question
	bySegment map[int32][]int // indexes of questions by segment
	crossings []int           // scratch: segments of a question that a flow crosses
}

// collectQuestions returns questions about the elements that most degraded flows cross, and about those that verdicts
// name and cannot distinguish from others.
func (p *Planner) collectQuestions(m *Moment) *questions {
	q := &questions{bySegment: map[int32][]int{}}
	bad, good := map[int32]int{}, map[int32]int{}
	degraded := 0
	for i := range m.Findings {
		f := &m.Findings[i]
		s := p.states[f.Flow]
		if s == nil || f.Condition == judge.Undecided {
			continue
		}
		count := good
		if f.Condition == judge.Degraded {
			count = bad
			degraded++
		}
		for _, i := range s.segments {
			count[i]++
		}
	}
	suspects := slices.SortedFunc(maps.Keys(bad), func(a, b int32) int { return cmp.Or(bad[b]-bad[a], int(a-b)) })
	for _, id := range suspects[:min(len(suspects), maxSuspectSegments)] {
		if bad[id] >= 2 && bad[id]*comparisonShare >= degraded && good[id] < incident.EnoughFlows {
			q.addQuestion(&question{segments: []int32{id}, need: incident.EnoughFlows - good[id]})
		}
	}
	either := func(v *fabric.Verdict) {
		if len(v.SameFlowEquivalents) == 0 {
			return
		}
		x := &question{alike: true, need: incident.EnoughFlows}
		named := fabric.DirectedElement{Element: v.Element}
		named.Direction, _ = fabric.ParseDirection(v.Direction)
		for _, el := range append([]fabric.DirectedElement{named}, v.SameFlowEquivalents...) {
			x.segments = append(x.segments, p.segments.segmentsOf(m.Graph, el)...)
		}
		if len(x.segments) > 1 {
			q.addQuestion(x)
		}
	}
	for _, v := range m.Suspects {
		either(v)
	}
	return q
}

// segmentsOf returns the segments of an element. It returns nil for a kind that has none.
func (t *segmentTable) segmentsOf(g *fabric.Graph, p fabric.DirectedElement) []int32 {
	el, kind := p.ID, p.Kind
	switch {
	case p.Direction != (fabric.Direction{}):
		return []int32{t.internSegment(p.Direction)}
	case kind == fabric.KindSwitch:
		return []int32{t.internSegment(fabric.Direction{From: el})}
	case kind == fabric.KindNIC && g.PeerOf(el) != "":
		return []int32{t.internSegment(fabric.Direction{From: el, To: g.PeerOf(el)}), t.internSegment(fabric.Direction{From: g.PeerOf(el), To: el})}
	}
	if x, y, ok := fabric.SplitLink(el); ok {
		return []int32{t.internSegment(fabric.Direction{From: x, To: y}), t.internSegment(fabric.Direction{From: y, To: x})}
	}
	return nil
}

func (q *questions) addQuestion(x *question) {
	for _, p := range x.segments {
		q.bySegment[p] = append(q.bySegment[p], len(q.all))
	}
	q.all, q.crossings = append(q.all, x), append(q.crossings, 0)
}

// offerFlow adds a flow that could be queried to the candidates of the questions that it could decide.
func (q *questions) offerFlow(s *flowState) {
	if len(q.all) == 0 {
		return
	}
	clear(q.crossings)
	for _, p := range s.segments {
		for _, i := range q.bySegment[p] {
			q.crossings[i]++
		}
	}
	const choice = 4 // times what is needed
	for i, x := range q.all {
		if q.crossings[i] > 0 && (!x.alike || q.crossings[i] < len(x.segments)) && len(x.candidates) < choice*x.need {
			x.candidates = append(x.candidates, s)
		}
	}
}

// scheduleComparisons schedules the NICs with the most candidates of each question for comparison.
func (q *questions) scheduleComparisons(cycle int) {
	for _, x := range q.all {
		brings := map[*nicState]int{}
		need := x.need
		for _, s := range x.candidates {
			if s.src.compareUntil > cycle {
				need-- // it is queried in any case
			}
			brings[s.src]++
		}
		sources := slices.SortedFunc(maps.Keys(brings), func(a, b *nicState) int {
			return cmp.Or(brings[b]-brings[a], cmp.Compare(a.name, b.name))
		})
		for _, s := range sources {
			if need <= 0 {
				break
			}
			if s.compareUntil <= cycle {
				need -= brings[s]
				s.compareUntil = cycle + troubleCycles
			}
		}
	}
}
