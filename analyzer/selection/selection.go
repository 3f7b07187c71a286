// Package selection decides which flows a cycle queries, and reads their evidence: in a large fleet it queries
// aggregates of every NIC first, and then the flows that matter (docs/adr/0012-two-step-evidence.md). Rules, with their
// numbers among the rules of package analyzer:
//
//  7. Every cycle queries how many flows of every NIC its node judges as not healthy. It queries single flows of
//     the NICs whose turn it is in a round over all, that have such flows, that had flows in trouble recently, or
//     whose flows show an open or pending incident, and of some that cross the same elements for
//     comparison. If all flows of these NICs exceed the budget, nodes return those that moved, and a
//     few others, where windows come from agents.
//  8. The result of a flow that was not queried is carried forward if the flow was healthy when
//     it was last queried, less than a round ago, neither of its NICs moved since, and the agents of
//     both answer. An agent that answers again has judged its flows meanwhile, so that a pause of
//     Prometheus costs no round. Such a flow counts for coverage and for the state innocent. It is not
//     a finding, so it neither blames nor clears.
//  9. Consecutive windows that confirm a fault are windows of cycles that queried the flow.
//  10. What a node judges is a reason to query, and never evidence. A NIC whose node does not judge all of its flows
//     is not carried forward.
//  11. A cycle queries no more flows than its budget allows, and reports what it left out.
//  12. Every flow is queried if there are few flows, or if no node judges its flows.
//  13. An analyzer of some pods whose windows come from agents queries the flows from NICs of these pods in a round, as if
//     there were no others. A NIC elsewhere that moved is queried once in a while, and in every cycle while a flow that
//     concerns the analyzer's part and has an end in its pod is degraded. So what else could explain such flows is known
//     as well as an analyzer of the whole knows it, and the cost follows the pods where nothing is wrong between them.
package selection

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Options configures when and how a cycle queries selected flows instead of all.
type Options struct {
	// MinFlows is the number of directed flows from which flows are selected. 0 means never.
	MinFlows int
	// MaxFlows is roughly the number of directed flows that one cycle queries.
	MaxFlows int
	// Round is the time in which every flow is queried. 0 means the longer of one minute and
	// one millisecond per flow, so that a calm cycle of one second queries a thousand
	// flows.
	Round time.Duration
	// OwnRounds means that only flows from NICs of the part are queried in a round. The others have baselines when they are
	// queried, as windows from agents have.
	OwnRounds bool
}

// roundDuration returns the time of a round over so many flows.
func (o Options) roundDuration(flows int) time.Duration {
	if o.Round > 0 {
		return o.Round
	}
	return max(time.Minute, time.Duration(flows)*time.Millisecond)
}

// DefaultOptions returns options that suit a Prometheus server with two cores.
func DefaultOptions() Options { return Options{MinFlows: 5000, MaxFlows: 5000} }

// Stats describes which flows a cycle queried.
type Stats struct {
	// TwoSteps means that the cycle did not query every flow. Missing is the reason why a large fleet is queried whole.
	TwoSteps bool   `json:"two_steps"`
	Missing  string `json:"missing,omitempty"`
	// QueriedFlows were queried. CarriedFlows were not, and count with their last condition.
	QueriedFlows int `json:"edges"`
	CarriedFlows int `json:"vouched_edges"`
	// Moved is the number of NICs with flows that are not healthy by their node. LeftOut is the number of them, and of
	// NICs with flows in trouble, that exceed the budget.
	Moved   int `json:"moved_nics"`
	LeftOut int `json:"left_out_nics"`
	// Late means that the budget does not suffice to query every flow within a round.
	Late bool `json:"late,omitempty"`
}

// Planner selects the flows to query, and remembers what it needs for that. Its methods must not be called
// concurrently.
type Planner struct {
	opts  Options
	stats Stats
	part  *fabric.Part
	// total has the numbers of directed flows of the last cycles, and own those of the part.
	total, own flowCounts
	touched    map[string]int // by pod: the last cycle in which a flow of it that concerns the part was degraded
	nics       map[string]*nicState
	sortedNICs []*nicState
	nicNames   []string // by number
	states     map[fabric.Flow]*flowState
	spare      []flowState  // for new flows
	learnt     int          // flows with a baseline
	unexpected int          // flows of the book with a baseline that are not expected, when it was last read
	flows      []*flowState // in the order in which they appeared
	current    *queried     // of this cycle; nil means all flows
	previous   *queried     // of the cycle before
	lastQuery  time.Time
	seldom     evidence.OverviewCache
	segments   segmentTable
}

// queried represents the flows that a cycle queried.
type queried struct {
	selection evidence.Selection
	returned  map[fabric.Flow]bool // those that nodes selected
}

// newQueried returns the queried flows of a selection, of which there are observations.
func newQueried(sel evidence.Selection, all []*fabric.Observation) *queried {
	q := &queried{selection: sel}
	if len(sel.Moved) == 0 {
		return q
	}
	q.returned = map[fabric.Flow]bool{}
	for _, o := range all {
		if e, err := o.ParseFlow(); err == nil && sel.Moved[e.Src] {
			q.returned[e] = true
		}
	}
	return q
}

// contains reports whether a flow was queried.
func (q *queried) contains(e fabric.Flow) bool {
	return q.selection.Sources[e.Src] || q.selection.Destinations[e.Dst] || q.returned[e]
}

// NewPlanner returns a Planner that has not queried anything, for an analyzer of a part of the fabric. Nil means all of it.
func NewPlanner(o Options, part *fabric.Part) *Planner {
	return &Planner{opts: o, part: part, touched: map[string]int{}, nics: map[string]*nicState{}, states: map[fabric.Flow]*flowState{}, segments: segmentTable{id: map[fabric.Direction]int32{}}}
}

// InheritFrom takes over what another planner remembers, which is not used any more.
func (p *Planner) InheritFrom(old *Planner) {
	opts, part := p.opts, p.part
	*p = *old
	p.opts, p.part = opts, part
}

// IsEnabled reports whether flows are selected where there are many.
func (p *Planner) IsEnabled() bool { return p.opts.MinFlows > 0 }

// CycleStats describes which flows the cycle queried.
func (p *Planner) CycleStats() Stats { return p.stats }

// flowCounts are the numbers of directed flows of the last cycles.
type flowCounts []int

func (c *flowCounts) add(flows int) {
	if *c = append(*c, flows); len(*c) > baseline.ExpectedCycles {
		*c = (*c)[1:]
	}
}

func (c flowCounts) peak() int { return slices.Max(append(slices.Clone(c), 0)) }

// AddFlowCount adds the numbers of directed flows of a cycle, of all that there are to query and of those of the part, and
// returns the largest number of these in the last cycles. That is the expected number, which does not shrink when fewer
// flows report.
func (p *Planner) AddFlowCount(flows, own int) int {
	p.total.add(flows)
	p.own.add(own)
	if p.part == nil {
		return p.total.peak()
	}
	return p.own.peak()
}

// RoundDuration returns the time of a round over the flows that are queried in turn.
func (p *Planner) RoundDuration() time.Duration {
	if p.opts.OwnRounds {
		return p.opts.roundDuration(p.own.peak())
	}
	return p.opts.roundDuration(p.total.peak())
}

// isInRound reports whether the flows from a NIC are queried in turn. Those from other NICs are queried where they are evidence
// about the part (rule 13).
func (p *Planner) isInRound(s *nicState) bool { return !p.opts.OwnRounds || p.part.HasNIC(s.name) }

// Request is what a cycle gives a Planner.
type Request struct {
	DB       evidence.Querier
	Settings evidence.Settings
	Graph    *fabric.Graph
	Now      time.Time
	Cycle    int
	// Suspects are the verdicts of open and pending incidents.
	Suspects []*fabric.Verdict
	// Asked are the NICs from which there are temporary flows.
	Asked []string
}

// QueryEvidence reads the evidence of a cycle, in one step or in two. It fails if a query fails.
func (p *Planner) QueryEvidence(ctx context.Context, r *Request) (evidence.Window, error) {
	if !p.IsEnabled() {
		return evidence.ReadWindow(ctx, r.DB, r.Settings, r.Now)
	}
	ctx, cancel := r.Settings.WithPatience(ctx)
	defer cancel()
	c, err := evidence.BeginCycle(ctx, r.DB, r.Settings, r.Now)
	if err != nil {
		return evidence.Window{}, err
	}
	if p.total.peak() == 0 {
		first, err := c.CountFlows(ctx)
		if err != nil {
			return evidence.Window{}, err
		}
		if first > 0 {
			p.total.add(first)
		}
	}
	state := Stats{}
	if p.total.peak() >= p.opts.MinFlows {
		overview, err := c.ReadOverview(ctx, &p.seldom)
		if err != nil {
			return evidence.Window{}, err
		}
		if state.Missing = overview.MissingReason; state.Missing == "" {
			return p.querySelected(ctx, c, &overview, r)
		}
	}
	w, err := c.ReadAllFlows(ctx)
	if err != nil {
		return w, err
	}
	if state.Missing != "" {
		w.Warnings = append(slices.Clone(w.Warnings), "every flow is queried: "+state.Missing)
	}
	state.QueriedFlows = w.Flows
	p.stats, p.previous, p.current, p.lastQuery = state, p.current, nil, r.Now
	return w, nil
}

// querySelected queries the flows that an overview and the state of the planner select.
func (p *Planner) querySelected(ctx context.Context, c *evidence.Cycle, overview *evidence.Overview, r *Request) (evidence.Window, error) {
	p.applyOverview(overview, r.Cycle)
	sel, state := p.selectFlows(r)
	w, err := c.ReadFlows(ctx, overview, sel)
	if err != nil {
		return w, err
	}
	state.TwoSteps, state.QueriedFlows = true, w.Flows
	for nic := range sel.Sources {
		s := p.nicFor(nic)
		if w.Unanswered[fabric.OwnerOf(nic)] || s.absent {
			continue // its turn comes when it answers
		}
		s.queriedAt, s.queriedFrom = r.Now, r.Cycle
		if w.BySource[nic] > 0 {
			s.sourceFlows = w.BySource[nic]
		}
	}
	for nic := range sel.Destinations {
		p.nicFor(nic).queriedTo = r.Cycle
	}
	w.Flows, w.OwnFlows = 0, 0
	for _, s := range p.sortedNICs {
		w.Flows += s.sourceFlows
		if p.part.HasNIC(s.name) {
			w.OwnFlows += s.sourceFlows
		}
	}
	if state.LeftOut > 0 {
		w.Warnings = append(slices.Clone(w.Warnings), fmt.Sprintf("%d NICs that moved, or whose flows are in trouble, are not queried: the budget of a cycle is %d flows", state.LeftOut, p.opts.MaxFlows))
	}
	if state.Late {
		w.Warnings = append(slices.Clone(w.Warnings), fmt.Sprintf("a round over all flows takes longer than %s: half of the budget of %d flows per cycle does not suffice", p.RoundDuration(), p.opts.MaxFlows))
	}
	p.stats, p.previous, p.current, p.lastQuery = state, p.current, newQueried(sel, w.Observations), r.Now
	if p.previous == nil {
		p.previous = &queried{}
	}
	return w, nil
}

func (p *Planner) nicFor(name string) *nicState {
	s := p.nics[name]
	if s == nil {
		s = &nicState{name: name, number: len(p.nicNames)}
		p.nics[name] = s
		p.nicNames = append(p.nicNames, name)
		i, _ := slices.BinarySearchFunc(p.sortedNICs, name, func(s *nicState, name string) int { return cmp.Compare(s.name, name) })
		p.sortedNICs = slices.Insert(p.sortedNICs, i, s)
	}
	return s
}

// WasQueried reports whether the cycle before this one queried a flow.
func (p *Planner) WasQueried(e fabric.Flow) bool { return p.previous == nil || p.previous.contains(e) }

// IsQueried reports whether this cycle queries a flow.
func (p *Planner) IsQueried(e fabric.Flow) bool { return p.current == nil || p.current.contains(e) }

// QueriesAll reports whether this cycle queries every flow.
func (p *Planner) QueriesAll() bool { return p.current == nil }

// ForgetFlow drops what is remembered of a flow.
func (p *Planner) ForgetFlow(f fabric.Flow) {
	if s := p.states[f]; s != nil {
		s.forgotten = true
		delete(p.states, f)
	}
}
