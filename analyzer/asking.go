package analyzer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

// TwoStepOptions configures when and how a cycle queries selected flows instead of all (rules 7 to
// 12).
type TwoStepOptions struct {
	// MinFlows is the number of directed flows from which flows are selected. 0 means never.
	MinFlows int
	// MaxFlows is roughly the number of directed flows that one cycle queries.
	MaxFlows int
	// Round is the time in which every flow is queried. 0 means the longer of one minute and
	// one millisecond per flow, so that a calm cycle of one second queries a thousand
	// flows.
	Round time.Duration
}

// roundDuration returns the time of a round over so many flows.
func (o TwoStepOptions) roundDuration(flows int) time.Duration {
	if o.Round > 0 {
		return o.Round
	}
	return max(time.Minute, time.Duration(flows)*time.Millisecond)
}

// peakFlowCount returns the number of directed flows that there are to query.
func (l *Loop) peakFlowCount() int { return slices.Max(append(l.flowCounts, 0)) }

// DefaultTwoStepOptions returns options that suit a Prometheus server with two cores.
func DefaultTwoStepOptions() TwoStepOptions { return TwoStepOptions{MinFlows: 5000, MaxFlows: 5000} }

// QueryStats describes which flows a cycle queried.
type QueryStats struct {
	// TwoSteps means that the cycle did not query every flow. Missing is the reason why a large fleet is queried whole.
	TwoSteps bool   `json:"two_steps"`
	Missing  string `json:"missing,omitempty"`
	// QueriedFlows were queried. CarriedFlows were not, and count with their last condition.
	QueriedFlows int `json:"edges"`
	CarriedFlows int `json:"vouched_edges"`
	// Moved is the number of NICs whose aggregates are not normal. LeftOut is the number of them, and of
	// NICs with flows in trouble, that exceed the budget.
	Moved   int `json:"moved_nics"`
	LeftOut int `json:"left_out_nics"`
	// Late means that the budget does not suffice to query every flow within a round.
	Late bool `json:"late,omitempty"`
}

const (
	// troubleCycles is the number of cycles for which a NIC is queried after the last sign of trouble, so
	// that the evidence that clears an incident is seen, also of a fault that comes and goes.
	troubleCycles = spanningClearAfter + confirmIn
	// enoughFlows is the number of supposedly clean flows that are queried for an element in question,
	// and the number that must be decided to clear an incident when not all that showed it are queried.
	enoughFlows = 16
	// maxComparedNICs bounds the NICs that are queried for comparison only, maxSuspectSegments the
	// elements in question, and maxDestinationNICs the moved NICs for which the flows to them are
	// queried, too.
	maxComparedNICs, maxSuspectSegments, maxDestinationNICs = 64, 24, 8
	// comparisonShare is the divisor of the budget that is kept for comparison.
	comparisonShare = 5 // a fifth
	// settledAfter is the number of cycles after which new aggregates of a NIC are normal, if all flows from
	// it were healthy.
	settledAfter = 30
	// learnTries is the number of cycles for which a NIC is queried until its flows have baselines.
	learnTries = 3 * (learnWindows + warmUp)
	// groupWindows is the number of values that a group keeps, one in every groupEvery
	// cycles.
	groupWindows, groupEvery = 60, 5
)

// nicState represents a NIC as a whole. Cycles count from 1, and 0 means never.
type nicState struct {
	name                   string
	groups                 []*group
	queriedAt              time.Time // when the flows from it were last queried
	queriedFrom, queriedTo int       // the cycles in which the flows from it, and to it, were last queried
	sourceFlows            int       // number of directed flows from it at that time
	lastMoved              int       // when its aggregates were last not normal
	movedExtent            extent    // in that cycle
	lastDegraded           int       // when a flow from it was last degraded
	compareUntil           int       // until when it is queried for comparison
	calmCycles             int       // consecutive cycles in which it moved and all flows from it were healthy
	learnCycles            int       // cycles in which flows from it had no baseline; -1 if all have one
}

// extent represents how much of a NIC's traffic moved.
type extent int

const (
	extentNone    extent = iota
	extentTail           // only the 99th percentile
	extentPartial        // some of its flows are affected
	extentMost           // most of them are
)

// group represents a recorded series of a NIC and its normal values.
type group struct {
	key             evidence.NICSeries
	nic             *nicState
	values          []float32
	med, mad        float64
	hasNormal       bool // med and mad are known
	value           float64
	lastReported    int // the latest cycle that had a value
	deviatingCycles int // consecutive cycles in which it was not normal
}

// flowState represents a flow between the cycles that query it.
type flowState struct {
	edge         fabric.Flow
	record       *flowRecord
	src, dst     *nicState
	segments     []int32 // segments that its path crosses
	wasHealthy   bool    // when it was queried
	queriedCycle int
	queriedAt    time.Time
	carried      bool // in this cycle
}

// planner selects the flows to query.
type planner struct {
	firstCount int // directed flows at the first count; 0 before it
	stats      QueryStats
	nics       map[string]*nicState
	sortedNICs []*nicState
	groups     map[evidence.NICSeries]*group
	flows      []*flowState
	current    *evidence.Selection // of this cycle; nil means all flows
	previous   *evidence.Selection // of the cycle before
	lastQuery  time.Time
	seldom     evidence.OverviewCache

	segmentID map[fabric.Direction]int32 // a switch is a direction without To
	segments  []fabric.Direction
}

func newPlanner() *planner {
	return &planner{nics: map[string]*nicState{}, groups: map[evidence.NICSeries]*group{}, segmentID: map[fabric.Direction]int32{}}
}

// carriedFlows represents the flows that a cycle did not query, and that are known to be healthy
// (rule 8).
type carriedFlows struct {
	flows, usable  int
	excluded       int     // not queried, and under maintenance
	flowsBySegment []int32 // number of flows by segment
	planner        *planner
}

// crossingCount returns the number of carried flows that cross a directed link.
func (v *carriedFlows) crossingCount(d fabric.Direction) int {
	if v == nil {
		return 0
	}
	if id, ok := v.planner.segmentID[d]; ok && int(id) < len(v.flowsBySegment) {
		return int(v.flowsBySegment[id])
	}
	return 0
}

func (v *carriedFlows) flowTotals() (flows, usable, excluded int) {
	if v == nil {
		return 0, 0, 0
	}
	return v.flows, v.usable, v.excluded
}

// queryEvidence reads the evidence of a cycle, in one step or in two. It fails if a query fails.
func (l *Loop) queryEvidence(ctx context.Context, now time.Time) (evidence.Window, error) {
	o, a := l.opts.TwoSteps, l.planner
	if o.MinFlows == 0 {
		return evidence.ReadWindow(ctx, l.opts.DB, l.opts.Settings, now)
	}
	ctx, cancel := l.opts.Settings.WithPatience(ctx)
	defer cancel()
	c, err := evidence.BeginCycle(ctx, l.opts.DB, l.opts.Settings, now)
	if err != nil {
		return evidence.Window{}, err
	}
	if a.firstCount == 0 && len(l.flowCounts) == 0 {
		if a.firstCount, err = c.CountFlows(ctx); err != nil {
			return evidence.Window{}, err
		}
		l.flowCounts = append(l.flowCounts, a.firstCount)
	}
	state := QueryStats{}
	if l.peakFlowCount() >= o.MinFlows {
		overview, err := c.ReadOverview(ctx, &a.seldom)
		if err != nil {
			return evidence.Window{}, err
		}
		if state.Missing = overview.MissingReason; state.Missing == "" {
			return l.querySelected(ctx, c, &overview, now)
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
	a.stats, a.previous, a.current, a.lastQuery = state, a.current, nil, now
	return w, nil
}

// querySelected queries the flows that an overview and the state of the planner select.
func (l *Loop) querySelected(ctx context.Context, c *evidence.Cycle, overview *evidence.Overview, now time.Time) (evidence.Window, error) {
	a, cycle := l.planner, l.cycle+1
	a.applyOverview(overview, cycle, len(l.openIncidents) > 0)
	sel, state := a.selectFlows(l, cycle, now)
	w, err := c.ReadFlows(ctx, overview, sel)
	if err != nil {
		return w, err
	}
	state.TwoSteps, state.QueriedFlows = true, w.Flows
	for nic := range sel.Sources {
		s := a.nicFor(nic)
		s.queriedAt, s.queriedFrom, s.sourceFlows = now, cycle, w.BySource[nic]
	}
	for nic := range sel.Destinations {
		a.nicFor(nic).queriedTo = cycle
	}
	w.Flows = 0
	for _, s := range a.sortedNICs {
		w.Flows += s.sourceFlows
	}
	if state.LeftOut > 0 {
		w.Warnings = append(slices.Clone(w.Warnings), fmt.Sprintf("%d NICs that moved, or whose flows are in trouble, are not queried: the budget of a cycle is %d flows", state.LeftOut, l.opts.TwoSteps.MaxFlows))
	}
	if state.Late {
		w.Warnings = append(slices.Clone(w.Warnings), fmt.Sprintf("a round over all flows takes longer than %s: half of the budget of %d flows per cycle does not suffice", l.opts.TwoSteps.roundDuration(l.peakFlowCount()), l.opts.TwoSteps.MaxFlows))
	}
	a.stats, a.previous, a.current, a.lastQuery = state, a.current, &sel, now
	if a.previous == nil {
		a.previous = &evidence.Selection{}
	}
	return w, nil
}

func (a *planner) nicFor(name string) *nicState {
	s := a.nics[name]
	if s == nil {
		s = &nicState{name: name}
		a.nics[name] = s
		i, _ := slices.BinarySearchFunc(a.sortedNICs, name, func(s *nicState, name string) int { return cmp.Compare(s.name, name) })
		a.sortedNICs = slices.Insert(a.sortedNICs, i, s)
	}
	return s
}

// applyOverview notes which NICs moved according to an overview. It learns no normal values while frozen.
func (a *planner) applyOverview(o *evidence.Overview, cycle int, frozen bool) {
	for key, v := range o.Values {
		g := a.groups[key]
		if g == nil {
			g = &group{key: key, nic: a.nicFor(key.NIC), hasNormal: key.Metric == evidence.Lost || key.Metric == evidence.Marked}
			a.groups[key] = g
			g.nic.groups = append(g.nic.groups, g)
		}
		g.value, g.lastReported = v, cycle
	}
	for i, s := range a.sortedNICs {
		how := extentNone
		s.groups = slices.DeleteFunc(s.groups, func(g *group) bool {
			if cycle-g.lastReported > expectFor {
				delete(a.groups, g.key)
				return true
			}
			off, known := g.updateDeviation(cycle)
			if off {
				how = max(how, g.deviationExtent(cycle))
			}
			if known && (!g.hasNormal || !off && !frozen) {
				g.learnValue(cycle + i)
			}
			return false
		})
		if o.StarvedHosts()[fabric.OwnerOf(s.name)] != "" || o.DropsUnread(s.name) || !o.AgentAnswers(s.name) || !o.ClockUsable(s.name) {
			how = max(how, extentTail)
		}
		if how != extentNone {
			s.lastMoved, s.movedExtent = cycle, how
		}
	}
}

// updateDeviation reports whether a group is not normal, and notes for how long. A group without a value in this
// cycle is not. The second result reports whether the value is known.
func (g *group) updateDeviation(cycle int) (off, known bool) {
	known = g.lastReported == cycle
	if !known && (g.key.Metric == evidence.Lost || g.key.Metric == evidence.Marked) {
		g.value, known = 0, true
	}
	off = g.hasNormal && (!known || g.deviatesFromNormal())
	if off {
		g.deviatingCycles++
	} else {
		g.deviatingCycles = 0
	}
	return off, known
}

// The smallest differences of ratios that count.
const (
	leastLost, leastMarked, leastAnswered = 5e-4, 5e-3, 0.01
	// groupMADs is the number of median absolute deviations by which a normal value may differ.
	groupMADs = 8
	// bucketWidth is the width of a bucket of a native histogram of schema 4.
	bucketWidth = 0.045
)

func (g *group) deviatesFromNormal() bool {
	by, noise := g.value-g.med, groupMADs*g.mad
	floor := judge.DefaultParameters().FloorKernel.Seconds()
	switch g.key.Timestamp {
	case "hardware":
		floor = judge.DefaultParameters().FloorHardware.Seconds()
	case "user":
		floor = judge.DefaultParameters().FloorUser.Seconds()
	}
	switch g.key.Metric {
	case evidence.MedianDelay:
		return math.Abs(by) > max(floor, noise, bucketWidth*math.Abs(g.med))
	case evidence.TailDelay:
		return by > max(2*floor, noise, 2*bucketWidth*math.Abs(g.med))
	case evidence.Lost:
		return by > max(leastLost, noise)
	case evidence.Marked:
		return by > max(leastMarked, noise)
	}
	return -by > max(leastAnswered, noise)
}

// deviationExtent returns the extent that a deviating group shows. A tail may move in a single window by chance.
func (g *group) deviationExtent(cycle int) extent {
	const most = 0.4 // of the packets
	switch g.key.Metric {
	case evidence.TailDelay:
		if g.deviatingCycles < 2 {
			return extentNone
		}
		return extentTail
	case evidence.MedianDelay:
		return extentMost
	}
	if g.lastReported != cycle && g.key.Metric == evidence.Answered || math.Abs(g.value-g.med) > most {
		return extentMost
	}
	return extentPartial
}

// learnValue adds the value to the normal ones. The cycles that count differ from NIC to NIC, so that the work is
// spread over cycles.
func (g *group) learnValue(turn int) {
	if len(g.values) >= learnWindows && turn%groupEvery != 0 {
		return
	}
	if g.values = append(g.values, float32(g.value)); len(g.values) > groupWindows {
		g.values = g.values[1:]
	}
	if len(g.values) < learnWindows && g.key.Metric != evidence.Lost && g.key.Metric != evidence.Marked {
		return
	}
	ring := slices.Clone(g.values)
	slices.Sort(ring)
	med := ring[len(ring)/2]
	for i, v := range ring {
		ring[i] = max(v-med, med-v)
	}
	slices.Sort(ring)
	g.med, g.mad, g.hasNormal = float64(med), float64(ring[len(ring)/2]), true
}

// canDetectMove reports whether normal values of all aggregates of a NIC are known, so that a move shows.
func (s *nicState) canDetectMove() bool {
	for _, g := range s.groups {
		if !g.hasNormal {
			return false
		}
	}
	return true
}

// plan represents a selection that is being made.
type plan struct {
	selection    evidence.Selection
	flowBudget   int // directed flows
	averageFlows int
	leftOut      int // NICs that exceed the budget
}

// addSource selects the flows from a NIC if the budget allows it without the kept part, and reports whether they are selected.
func (p *plan) addSource(s *nicState, kept int) bool {
	if p.selection.Sources[s.name] {
		return true
	}
	cost := s.sourceFlows
	if s.queriedFrom == 0 {
		cost = p.averageFlows
	}
	if p.flowBudget-cost < kept {
		return false
	}
	p.flowBudget -= cost
	p.selection.Sources[s.name] = true
	return true
}

// addDestination selects the flows to a NIC if the budget allows it. Their number is roughly that of the flows from it.
func (p *plan) addDestination(s *nicState, kept int) {
	if cost := max(s.sourceFlows, p.averageFlows); !p.selection.Destinations[s.name] && p.flowBudget-cost >= kept {
		p.flowBudget -= cost
		p.selection.Destinations[s.name] = true
	}
}

// selectFlows returns the flows to query (rule 7). Flows that must not be left out come first.
func (a *planner) selectFlows(l *Loop, cycle int, now time.Time) (evidence.Selection, QueryStats) {
	o := l.opts.TwoSteps
	p := &plan{selection: evidence.Selection{Sources: map[string]bool{}, Destinations: map[string]bool{}}, flowBudget: o.MaxFlows, averageFlows: 1}
	if len(a.sortedNICs) > 0 {
		p.averageFlows = max(1, l.peakFlowCount()/len(a.sortedNICs))
	}
	state := QueryStats{Late: a.addRoundRobin(p, o.MaxFlows/2, o.roundDuration(l.peakFlowCount()), now)}
	kept := p.flowBudget / comparisonShare
	sources, destinations := a.troubledNICs(l, cycle)
	for _, s := range sources {
		if s.lastMoved == cycle {
			state.Moved++
		}
		if !p.addSource(s, kept) {
			p.leftOut++
		}
		if slices.Contains(destinations, s) {
			p.addDestination(s, kept)
		}
	}
	compared := 0
	for _, s := range a.sortedNICs {
		if s.compareUntil >= cycle && compared < maxComparedNICs && !p.selection.Sources[s.name] && p.addSource(s, 0) {
			compared++
		}
	}
	for _, s := range a.sortedNICs {
		if s.queriedFrom == 0 || s.learnCycles >= 0 && s.learnCycles < learnTries {
			p.addSource(s, 0)
		}
	}
	state.LeftOut = p.leftOut
	return p.selection, state
}

// addRoundRobin selects the NICs that were last queried longest ago. It selects as many as a round in time needs, up
// to half of the budget, and reports whether that is too few.
func (a *planner) addRoundRobin(p *plan, kept int, round time.Duration, now time.Time) (late bool) {
	const ahead = 0.9 // of the round, so that a late cycle leaves no NIC out
	n := len(a.sortedNICs)
	if !a.lastQuery.IsZero() {
		n = int(math.Ceil(float64(n) * now.Sub(a.lastQuery).Seconds() / (ahead * round.Seconds())))
	}
	oldest := slices.Clone(a.sortedNICs)
	slices.SortStableFunc(oldest, func(a, b *nicState) int { return a.queriedAt.Compare(b.queriedAt) })
	for _, s := range oldest[:min(n, len(oldest))] {
		if !p.addSource(s, kept) {
			return s.queriedFrom > 0 && now.Sub(s.queriedAt) >= round
		}
	}
	return false
}

// troubledNICs returns the NICs that moved or had flows in trouble recently, and those whose flows show an open or
// pending incident. For the destinations, the flows to the NIC are queried too. NICs with most flows affected come
// first, and those with only a moved tail last. Among equals, NICs with flows in trouble come first, and every leaf
// has one before any has two, so that the budget covers the whole fabric.
func (a *planner) troubledNICs(l *Loop, cycle int) (sources, destinations []*nicState) {
	shows, to := map[*nicState]bool{}, map[*nicState]bool{}
	take := func(v *fabric.Verdict) {
		if s := a.nics[v.Element.ID]; s != nil {
			shows[s], to[s] = true, true
			return // every flow that shows it is from or to this NIC
		}
		for _, name := range v.Edges {
			if e, err := fabric.ParseFlow(name); err == nil && a.nics[e.Src] != nil {
				shows[a.nics[e.Src]] = true
			}
		}
	}
	for _, in := range l.openIncidents {
		take(&in.Verdict)
	}
	for _, c := range l.pendingSuspects {
		take(&c.verdict)
	}
	type placed struct {
		*nicState
		named, shows bool
		how          extent
		turn         int
	}
	var all []placed
	turns := map[string]int{}
	for _, s := range a.sortedNICs {
		p := placed{nicState: s, named: to[s], shows: shows[s] || s.lastDegraded > 0 && cycle-s.lastDegraded <= troubleCycles}
		if s.lastMoved > 0 && cycle-s.lastMoved <= troubleCycles {
			p.how = s.movedExtent
		}
		if p.shows {
			p.how = max(p.how, extentPartial)
		}
		if p.how == extentNone {
			continue
		}
		like := fmt.Sprint(fabric.OwnerOf(l.opts.Graph.PeerOf(s.name)), p.how, p.shows)
		p.turn = turns[like]
		turns[like]++
		all = append(all, p)
		if s.lastMoved > 0 && p.how == extentMost {
			destinations = append(destinations, s)
		}
	}
	first := func(a, b bool) int {
		switch {
		case a == b:
			return 0
		case a:
			return -1
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b placed) int {
		return cmp.Or(first(a.named, b.named), cmp.Compare(b.how, a.how), first(a.shows, b.shows), cmp.Compare(a.turn, b.turn))
	})
	for _, p := range all {
		sources = append(sources, p.nicState)
	}
	if len(destinations) > maxDestinationNICs {
		destinations = nil
	}
	for _, s := range slices.SortedFunc(maps.Keys(to), func(a, b *nicState) int { return cmp.Compare(a.name, b.name) }) {
		if !slices.Contains(destinations, s) {
			destinations = append(destinations, s)
		}
	}
	return sources, destinations
}

// wasQueried reports whether the cycle before this one queried a flow.
func (a *planner) wasQueried(e fabric.Flow) bool { return a.previous == nil || a.previous.Contains(e) }

// isQueried reports whether this cycle queries a flow.
func (a *planner) isQueried(e fabric.Flow) bool { return a.current == nil || a.current.Contains(e) }

// recordFlowStates records the states of the queried flows.
func (l *Loop) recordFlowStates(raw, findings []judge.Finding, at time.Time) {
	a := l.planner
	if l.opts.TwoSteps.MinFlows == 0 || l.peakFlowCount() < l.opts.TwoSteps.MinFlows {
		return
	}
	sick, unlearnt := map[*nicState]bool{}, map[*nicState]bool{}
	for i := range raw {
		f := &raw[i]
		m := l.recordFor(f.Flow)
		if m.state == nil {
			m.state = &flowState{edge: f.Flow, record: m, src: a.nicFor(f.Flow.Src), dst: a.nicFor(f.Flow.Dst)}
			a.flows = append(a.flows, m.state)
		}
		s := m.state
		s.queriedCycle, s.queriedAt, s.wasHealthy = l.cycle, at, false
		if len(f.Obs.Path) > 0 {
			s.segments = a.appendSegments(s.segments[:0], f.Obs.Path, f.Flow)
		} else {
			s.segments = nil
		}
		if f.Condition == judge.Degraded && (a.current == nil || !a.current.Destinations[f.Flow.Dst]) {
			s.src.lastDegraded = l.cycle
		}
		if f.Condition != judge.Healthy {
			sick[s.src] = true
		}
		if m.baseline == nil && !l.excluded.excludesFlow(f.Flow) {
			unlearnt[s.src] = true
		}
	}
	for i := range findings {
		if f := &findings[i]; f.Condition == judge.Healthy {
			l.recordFor(f.Flow).state.wasHealthy = true
		}
	}
	for _, s := range a.sortedNICs {
		if a.current == nil {
			s.queriedAt, s.queriedFrom = at, l.cycle
		}
		if s.queriedFrom != l.cycle {
			continue
		}
		switch {
		case unlearnt[s] && s.learnCycles < 0:
			s.learnCycles = 0
		case unlearnt[s]:
			s.learnCycles++
		default:
			s.learnCycles = -1
		}
		if s.lastMoved != l.cycle || sick[s] {
			s.calmCycles = 0
			continue
		}
		if s.calmCycles++; s.calmCycles >= settledAfter {
			s.calmCycles = 0
			s.groups = slices.DeleteFunc(s.groups, func(g *group) bool {
				if g.lastReported != l.cycle && g.deviatingCycles > 0 {
					delete(a.groups, g.key) // the NIC no longer reports this series
					return true
				}
				if g.deviatingCycles > 0 {
					g.values, g.med, g.mad, g.hasNormal = []float32{float32(g.value)}, g.value, 0, true
				}
				return false
			})
		}
	}
}

// appendSegments appends the segments that a path crosses.
func (a *planner) appendSegments(out []int32, p fabric.Path, e fabric.Flow) []int32 {
	src, dst := e.Endpoints()
	for _, d := range p.LinkDirections(src, dst) {
		out = append(out, a.internSegment(d))
	}
	for _, h := range p {
		out = append(out, a.internSegment(fabric.Direction{From: h.Switch}))
	}
	return out
}

func (a *planner) internSegment(d fabric.Direction) int32 {
	id, ok := a.segmentID[d]
	if !ok {
		id = int32(len(a.segments))
		a.segmentID[d] = id
		a.segments = append(a.segments, d)
	}
	return id
}

// carryForward returns the flows that were not queried and are known to be healthy. It selects flows that the next
// cycles query for comparison.
func (l *Loop) carryForward(findings []judge.Finding, now time.Time) *carriedFlows {
	a := l.planner
	if a.current == nil {
		for _, s := range a.flows {
			s.carried = false
		}
		return nil
	}
	v := &carriedFlows{flowsBySegment: make([]int32, len(a.segments)), planner: a}
	excluded := make([]bool, len(a.segments))
	for i, d := range a.segments {
		excluded[i] = len(l.excluded.windows) > 0 && d.To != "" && l.excluded.excludesDirection(d)
	}
	round := l.opts.TwoSteps.roundDuration(l.peakFlowCount())
	sure := map[*nicState]bool{}
	for _, s := range a.sortedNICs {
		sure[s] = s.canDetectMove()
	}
	q := l.collectQuestions(findings)
	kept := a.flows[:0]
	for _, s := range a.flows {
		if s.record.state != s {
			continue // forgotten
		}
		kept = append(kept, s)
		s.carried = false
		if s.src.queriedFrom == l.cycle || s.dst.queriedTo == l.cycle {
			continue
		}
		if slices.ContainsFunc(s.segments, func(p int32) bool { return excluded[p] }) {
			v.excluded++
			l.excludeFlow(s)
			continue
		}
		q.offerFlow(s)
		if !s.wasHealthy || now.Sub(s.queriedAt) > round || s.src.lastMoved > s.queriedCycle || s.dst.lastMoved > s.queriedCycle || !sure[s.src] || !sure[s.dst] {
			continue
		}
		s.carried = true
		v.flows++
		if len(s.segments) > 0 {
			v.usable++
		}
		for _, p := range s.segments {
			v.flowsBySegment[p]++
		}
	}
	clear(a.flows[len(kept):])
	a.flows = kept
	q.scheduleComparisons(l.cycle)
	a.stats.CarriedFlows = v.flows
	return v
}

// excludeFlow excludes a flow that was not queried, and marks it as touched by maintenance.
func (l *Loop) excludeFlow(s *flowState) {
	l.excluded.flows[s.edge] = true
	for i := range l.excluded.windows {
		w := &l.excluded.windows[i]
		for _, p := range s.segments {
			if d := l.planner.segments[p]; d.To != "" && w.TouchesDirection(d) {
				l.markTouched(w, s.edge)
				break
			}
		}
	}
}

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
func (l *Loop) collectQuestions(findings []judge.Finding) *questions {
	a := l.planner
	q := &questions{bySegment: map[int32][]int{}}
	bad, good := map[int32]int{}, map[int32]int{}
	degraded := 0
	for i := range findings {
		f := &findings[i]
		s := l.recordFor(f.Flow).state
		if s == nil || f.Condition == judge.Undecided {
			continue
		}
		count := good
		if f.Condition == judge.Degraded {
			count = bad
			degraded++
		}
		for _, p := range s.segments {
			count[p]++
		}
	}
	suspects := slices.SortedFunc(maps.Keys(bad), func(a, b int32) int { return cmp.Or(bad[b]-bad[a], int(a-b)) })
	for _, p := range suspects[:min(len(suspects), maxSuspectSegments)] {
		if bad[p] >= 2 && bad[p]*comparisonShare >= degraded && good[p] < enoughFlows {
			q.addQuestion(&question{segments: []int32{p}, need: enoughFlows - good[p]})
		}
	}
	either := func(v *fabric.Verdict) {
		if len(v.SameFlowEquivalents) == 0 {
			return
		}
		x := &question{alike: true, need: enoughFlows}
		named := fabric.DirectedElement{Element: v.Element}
		named.Direction, _ = fabric.ParseDirection(v.Direction)
		for _, p := range append([]fabric.DirectedElement{named}, v.SameFlowEquivalents...) {
			x.segments = append(x.segments, a.segmentsOf(l.store.Graph(), p)...)
		}
		if len(x.segments) > 1 {
			q.addQuestion(x)
		}
	}
	for _, in := range l.openIncidents {
		either(&in.Verdict)
	}
	for _, c := range l.pendingSuspects {
		either(&c.verdict)
	}
	return q
}

// segmentsOf returns the segments of an element. It returns nil for a kind that has none.
func (a *planner) segmentsOf(g *fabric.Graph, p fabric.DirectedElement) []int32 {
	el, kind := p.ID, p.Kind
	switch {
	case p.Direction != (fabric.Direction{}):
		return []int32{a.internSegment(p.Direction)}
	case kind == fabric.KindSwitch:
		return []int32{a.internSegment(fabric.Direction{From: el})}
	case kind == fabric.KindNIC && g.PeerOf(el) != "":
		return []int32{a.internSegment(fabric.Direction{From: el, To: g.PeerOf(el)}), a.internSegment(fabric.Direction{From: g.PeerOf(el), To: el})}
	}
	if x, y, ok := fabric.SplitLink(el); ok {
		return []int32{a.internSegment(fabric.Direction{From: x, To: y}), a.internSegment(fabric.Direction{From: y, To: x})}
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
