package selection

import (
	"iter"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// flowState represents a flow between the cycles that query it.
type flowState struct {
	flow         fabric.Flow
	src, dst     *nicState
	segments     []int32 // segments that its path crosses
	wasHealthy   bool    // when it was queried
	queriedCycle int
	queriedAt    time.Time
	carried      bool // in this cycle
	learnt       bool // it has a baseline
	forgotten    bool
}

// segmentTable numbers what paths consist of: directed links, and switches as directions without To.
type segmentTable struct {
	id  map[fabric.Direction]int32
	all []fabric.Direction
	// ids are those of the links of a graph, when the table had so many segments; -1 means none.
	ids   []int32
	of    *fabric.Graph
	known int
}

// idsOf returns the numbers of the directed links of a graph.
func (t *segmentTable) idsOf(g *fabric.Graph, all []fabric.Direction) []int32 {
	if t.of != g || t.known != len(t.all) {
		t.ids, t.of, t.known = make([]int32, len(all)), g, len(t.all)
		for i, d := range all {
			id, known := t.id[d]
			if !known {
				id = -1
			}
			t.ids[i] = id
		}
	}
	return t.ids
}

func (t *segmentTable) internSegment(d fabric.Direction) int32 {
	id, ok := t.id[d]
	if !ok {
		id = int32(len(t.all))
		t.id[d] = id
		t.all = append(t.all, d)
	}
	return id
}

// appendPath appends the segments that a path crosses.
func (t *segmentTable) appendPath(out []int32, p fabric.Path, e fabric.Flow) []int32 {
	src, dst := e.Endpoints()
	for _, d := range p.LinkDirections(src, dst) {
		out = append(out, t.internSegment(d))
	}
	for _, h := range p {
		out = append(out, t.internSegment(fabric.Direction{From: h.Switch}))
	}
	return out
}

// Moment is what a cycle found of the queried flows.
type Moment struct {
	Now       time.Time
	Cycle     int
	Raw       []judge.Finding // of this window alone
	Findings  []judge.Finding // as several windows confirm
	Baselines *baseline.Book
	Excluder  *maintenance.Excluder
	Graph     *fabric.Graph
	// Suspects are the verdicts of open and pending incidents.
	Suspects []*fabric.Verdict
}

// Carried represents the flows that a cycle did not query, and that are known to be healthy
// (rule 8). A nil Carried has no flows.
type Carried struct {
	flows, usable  int
	excluded       int     // not queried, and under maintenance
	flowsBySegment []int32 // number of flows by segment
	segments       *segmentTable
}

// CrossingCounts returns the number of carried flows that cross each of the directed links of a graph, in the order of
// LinkDirections.
func (c *Carried) CrossingCounts(g *fabric.Graph) []int32 {
	all := g.LinkDirections()
	out := make([]int32, len(all))
	if c == nil {
		return out
	}
	for i, id := range c.segments.idsOf(g, all) {
		if id >= 0 && int(id) < len(c.flowsBySegment) {
			out[i] = c.flowsBySegment[id]
		}
	}
	return out
}

// FlowTotals returns, of the flows of the part, the number of carried flows, of those among them with a known path, and
// of flows that were not queried because they are under maintenance.
func (c *Carried) FlowTotals() (flows, usable, excluded int) {
	if c == nil {
		return 0, 0, 0
	}
	return c.flows, c.usable, c.excluded
}

// IsCarried reports whether a flow is carried forward in this cycle, and whether its path is known.
func (p *Planner) IsCarried(f fabric.Flow) (carried, hasPath bool) {
	s := p.states[f]
	if s == nil || !s.carried {
		return false, false
	}
	return true, len(s.segments) > 0
}

// FlowView is what a Planner remembers of a flow.
type FlowView struct {
	Flow     *fabric.Flow
	Src, Dst int // numbers of its NICs, in NICNames
	// Queried means that this cycle queried it. Learnt means that it has a baseline.
	Queried, Learnt bool
	// Carried means that it is carried forward in this cycle, and HasPath that its path is known.
	Carried, HasPath bool
}

// NICNames returns the names of the NICs by their numbers. It must not be changed.
func (p *Planner) NICNames() []string { return p.nicNames }

// HasAllOf reports whether EachFlow yields every expected flow of a book that has a baseline.
func (p *Planner) HasAllOf(b *baseline.Book) bool {
	return b.CountBaselines(nil)-p.learnt <= p.unexpected
}

// EachFlow yields the flows that are known and not forgotten. A view holds until the next one.
func (p *Planner) EachFlow(cycle int) iter.Seq[*FlowView] {
	return func(yield func(*FlowView) bool) {
		var v FlowView
		for _, s := range p.flows {
			if s.forgotten {
				continue
			}
			v = FlowView{Flow: &s.flow, Src: s.src.number, Dst: s.dst.number, Queried: s.queriedCycle == cycle, Learnt: s.learnt, Carried: s.carried, HasPath: len(s.segments) > 0}
			if !yield(&v) {
				return
			}
		}
	}
}

// RecordFlows records the states of the queried flows.
func (p *Planner) RecordFlows(m *Moment) {
	if !p.IsEnabled() || p.total.peak() < p.opts.MinFlows {
		return
	}
	unlearnt := map[*nicState]bool{}
	for i := range m.Raw {
		f := &m.Raw[i]
		if f.Flow.IsTemporary() {
			continue
		}
		s := p.stateFor(f.Flow)
		if (s.src.absent || s.dst.absent) && f.Condition != judge.Degraded {
			continue // what was known of it holds until both agents answer
		}
		s.queriedCycle, s.queriedAt, s.wasHealthy = m.Cycle, m.Now, false
		if len(f.Obs.Path) > 0 {
			s.segments = p.segments.appendPath(s.segments[:0], f.Obs.Path, f.Flow)
		} else {
			s.segments = nil
		}
		if p.opts.OwnRounds && f.Condition == judge.Degraded && p.part.Concerns(f.Flow) {
			p.touched[m.Graph.PodOf(f.Flow.Src)], p.touched[m.Graph.PodOf(f.Flow.Dst)] = m.Cycle, m.Cycle
		}
		if f.Condition == judge.Degraded && (p.current == nil || !p.current.selection.Destinations[f.Flow.Dst]) {
			s.src.lastDegraded = m.Cycle
		}
		s.learnt = m.Baselines.HasBaseline(f.Flow)
		if !s.learnt && !m.Excluder.ExcludesFlow(f.Flow) {
			unlearnt[s.src] = true
		}
	}
	for i := range m.Findings {
		if f := &m.Findings[i]; f.Condition == judge.Healthy && !f.Flow.IsTemporary() {
			p.states[f.Flow].wasHealthy = true
		}
	}
	for _, s := range p.sortedNICs {
		if p.current == nil {
			s.queriedAt, s.queriedFrom = m.Now, m.Cycle
		}
		if s.queriedFrom == m.Cycle {
			s.recordLearning(unlearnt[s])
		}
	}
}

// stateFor returns the state of a flow, which may be new.
func (p *Planner) stateFor(f fabric.Flow) *flowState {
	s := p.states[f]
	if s == nil {
		s = p.newFlowState()
		s.flow, s.src, s.dst = f, p.nicFor(f.Src), p.nicFor(f.Dst)
		p.states[f] = s
		p.flows = append(p.flows, s)
	}
	return s
}

// adoptFlows adds the expected flows that were never recorded: the first cycles record none, and what history has as normal
// was not queried. So nothing has to be looked up for each flow of the book in the cycles that follow.
func (p *Planner) adoptFlows(m *Moment) {
	if p.HasAllOf(m.Baselines) {
		return
	}
	for f, learnt := range m.Baselines.ExpectedFlows(m.Cycle) {
		if p.states[f] != nil {
			continue
		}
		s := p.stateFor(f)
		s.learnt, s.queriedCycle = learnt, neverQueried
		if learnt {
			p.learnt++
		}
	}
	p.unexpected = max(0, m.Baselines.CountBaselines(nil)-p.learnt)
}

// neverQueried is before every cycle.
const neverQueried = -1

// newFlowState returns a flowState. Those that are made one after the other lie side by side, since every cycle reads all of them.
func (p *Planner) newFlowState() *flowState {
	if len(p.spare) == 0 {
		p.spare = make([]flowState, 256)
	}
	s := &p.spare[0]
	p.spare = p.spare[1:]
	return s
}

// recordLearning counts the cycles for which a queried NIC has had flows without a baseline.
func (s *nicState) recordLearning(unlearnt bool) {
	switch {
	case unlearnt && s.learnCycles < 0:
		s.learnCycles = 0
	case unlearnt:
		s.learnCycles++
	default:
		s.learnCycles = -1
	}
}

// CarryForward returns the flows that were not queried and are known to be healthy, or nil if every flow was queried.
// It selects flows that the next cycles query for comparison.
func (p *Planner) CarryForward(m *Moment) *Carried {
	if p.current == nil {
		for _, s := range p.flows {
			s.carried = false
		}
		return nil
	}
	v := &Carried{flowsBySegment: make([]int32, len(p.segments.all)), segments: &p.segments}
	excluded := make([]bool, len(p.segments.all))
	for i, d := range p.segments.all {
		excluded[i] = m.Excluder.IsActive() && d.To != "" && m.Excluder.ExcludesDirection(d)
	}
	round := p.RoundDuration()
	q := p.collectQuestions(m)
	kept := p.flows[:0]
	p.learnt = 0
	for _, s := range p.flows {
		if s.forgotten {
			continue
		}
		kept = append(kept, s)
		s.carried = false
		if s.learnt = s.learnt || m.Baselines.HasBaseline(s.flow); s.learnt {
			p.learnt++
		}
		if s.src.queriedFrom == m.Cycle || s.dst.queriedTo == m.Cycle || s.queriedCycle == m.Cycle {
			continue
		}
		own := p.part.OwnsFlow(s.flow)
		if slices.ContainsFunc(s.segments, func(i int32) bool { return excluded[i] }) {
			if own {
				v.excluded++
			}
			m.Excluder.ExcludeFlow(s.flow, p.linksOf(s))
			continue
		}
		q.offerFlow(s)
		if !s.wasHealthy || m.Now.Sub(s.queriedAt) > round || s.src.lastMoved > s.queriedCycle || s.dst.lastMoved > s.queriedCycle || s.src.absent || s.dst.absent || !s.src.judged {
			continue
		}
		s.carried = true
		if own {
			v.flows++
			if len(s.segments) > 0 {
				v.usable++
			}
		}
		for _, i := range s.segments {
			v.flowsBySegment[i]++
		}
	}
	clear(p.flows[len(kept):])
	p.flows = kept
	p.adoptFlows(m)
	q.scheduleComparisons(m.Cycle)
	p.stats.CarriedFlows = v.flows
	return v
}

// linksOf returns the directed links that a flow crosses.
func (p *Planner) linksOf(s *flowState) (out []fabric.Direction) {
	for _, i := range s.segments {
		if d := p.segments.all[i]; d.To != "" {
			out = append(out, d)
		}
	}
	return out
}
