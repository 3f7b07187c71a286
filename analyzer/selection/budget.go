package selection

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

const (
	// troubleCycles is the number of cycles for which a NIC is queried after the last sign of trouble, so
	// that the evidence that clears an incident is seen, also of a fault that comes and goes.
	troubleCycles = incident.SpanningClearAfter + baseline.ConfirmWindows
	// maxComparedNICs bounds the NICs that are queried for comparison only, maxSuspectSegments the
	// elements in question, and maxDestinationNICs the moved NICs for which the flows to them are
	// queried, too.
	maxComparedNICs, maxSuspectSegments, maxDestinationNICs = 64, 24, 8
	// comparisonShare is the divisor of the budget that is kept for comparison.
	comparisonShare = 5 // a fifth
	// learnTries is the number of cycles for which a NIC is queried until its flows have baselines.
	learnTries = 3 * (baseline.LearnWindows + baseline.WarmUp)
)

// budget represents a selection that is being made, and what the cycle may still query.
type budget struct {
	selection    evidence.Selection
	flows        int // directed flows that may still be selected
	averageFlows int // of a NIC
	leftOut      int // NICs that exceed the budget
}

// addSource selects the flows from a NIC if the budget allows it without the kept part, and reports whether they are selected.
func (b *budget) addSource(s *nicState, kept int) bool {
	if b.selection.Sources[s.name] {
		return true
	}
	cost := s.sourceFlows
	if s.queriedFrom == 0 {
		cost = b.averageFlows
	}
	if b.flows-cost < kept {
		return false
	}
	b.flows -= cost
	b.selection.Sources[s.name] = true
	return true
}

// addMoved selects the flows from a NIC that moved, and a few others, if the budget allows it.
func (b *budget) addMoved(s *nicState, kept int) bool {
	cost := window.Directions * (s.moved + evidence.ContrastFlows)
	if b.selection.Sources[s.name] || b.flows-cost < kept {
		return b.selection.Sources[s.name]
	}
	b.flows -= cost
	b.selection.Moved[s.name] = true
	return true
}

// addDestination selects the flows to a NIC if the budget allows it. Their number is roughly that of the flows from it.
func (b *budget) addDestination(s *nicState, kept int) {
	if cost := max(s.sourceFlows, b.averageFlows); !b.selection.Destinations[s.name] && b.flows-cost >= kept {
		b.flows -= cost
		b.selection.Destinations[s.name] = true
	}
}

// selectFlows returns the flows to query (rule 7). Flows that must not be left out come first.
func (p *Planner) selectFlows(r *Request) (evidence.Selection, Stats) {
	o, cycle := p.opts, r.Cycle
	b := &budget{selection: evidence.Selection{Sources: map[string]bool{}, Destinations: map[string]bool{}, Moved: map[string]bool{}}, flows: o.MaxFlows, averageFlows: 1}
	if len(p.sortedNICs) > 0 {
		b.averageFlows = max(1, p.total.peak()/len(p.sortedNICs))
	}
	state := Stats{Late: p.addRoundRobin(b, o.MaxFlows/2, p.RoundDuration(), r.Now)}
	for _, nic := range r.Asked {
		b.addSource(p.nicFor(nic), 0)
	}
	kept := b.flows / comparisonShare
	sources, destinations := p.troubledNICs(r)
	short := -b.flows + kept // if all of their flows are selected
	for _, s := range sources {
		short += s.sourceFlows
	}
	for _, s := range sources {
		if s.lastMoved == cycle {
			state.Moved++
		}
		add := b.addSource
		if short > 0 && r.Settings.Windows != nil && s.moved > 0 && s.movedExtent == extentPartial && !slices.Contains(destinations, s) {
			add = b.addMoved
		}
		if !add(s, kept) {
			b.leftOut++
		}
		if slices.Contains(destinations, s) {
			b.addDestination(s, kept)
		}
	}
	compared := 0
	for _, s := range p.sortedNICs {
		if s.compareUntil >= cycle && compared < maxComparedNICs && !b.selection.Sources[s.name] && b.addSource(s, 0) {
			compared++
		}
	}
	for _, s := range p.sortedNICs {
		if p.isInRound(s) && (s.queriedFrom == 0 || s.learnCycles >= 0 && s.learnCycles < learnTries) {
			b.addSource(s, 0)
		}
	}
	state.LeftOut = b.leftOut
	return b.selection, state
}

// addRoundRobin selects the NICs that were last queried longest ago. It selects as many as a round in time needs, up
// to half of the budget, and reports whether that is too few. NICs whose agent does not answer are left out, since their turn
// comes when it does.
func (p *Planner) addRoundRobin(b *budget, kept int, round time.Duration, now time.Time) (late bool) {
	const ahead = 0.9 // of the round, so that a late cycle leaves no NIC out
	oldest := slices.DeleteFunc(slices.Clone(p.sortedNICs), func(s *nicState) bool { return s.absent || !p.isInRound(s) })
	n := len(oldest)
	if !p.lastQuery.IsZero() {
		n = int(math.Ceil(float64(n) * now.Sub(p.lastQuery).Seconds() / (ahead * round.Seconds())))
	}
	slices.SortStableFunc(oldest, func(a, b *nicState) int { return a.queriedAt.Compare(b.queriedAt) })
	for _, s := range oldest[:min(n, len(oldest))] {
		if !b.addSource(s, kept) {
			return s.queriedFrom > 0 && now.Sub(s.queriedAt) >= round
		}
	}
	return false
}

// troubledNICs returns the NICs that moved or had flows in trouble recently, and those whose flows show an open or
// pending incident. For the destinations, the flows to the NIC are queried too. NICs with most flows affected come
// first, then NICs whose flows are only looked at once in a while, and those of which nothing is known last. Among
// equals, NICs with flows in trouble come first, and every leaf has one before any has two, so that the budget covers
// the whole fabric.
func (p *Planner) troubledNICs(r *Request) (sources, destinations []*nicState) {
	shows, to := p.suspectNICs(r.Suspects)
	type placed struct {
		*nicState
		named, shows, glance bool
		how                  extent
		turn                 int
	}
	var all []placed
	turns := map[string]int{}
	for _, s := range p.sortedNICs {
		x := placed{nicState: s, named: to[s], shows: shows[s] || s.lastDegraded > 0 && r.Cycle-s.lastDegraded <= troubleCycles}
		if s.lastMoved > 0 && r.Cycle-s.lastMoved <= troubleCycles {
			x.how = s.movedExtent
		}
		if x.shows {
			x.how = max(x.how, extentPartial)
		} else if !s.counted || s.absent {
			x.how = max(x.how, extentUnjudged)
		}
		if x.how == extentNone {
			continue
		}
		if x.glance = !p.isInRound(s) && !shows[s] && !p.isTouched(r.Graph.PodOf(s.name), r.Cycle); x.glance && !s.isDueForGlance(r.Cycle) {
			continue
		}
		like := fmt.Sprint(fabric.OwnerOf(r.Graph.PeerOf(s.name)), x.how, x.shows)
		x.turn = turns[like]
		turns[like]++
		all = append(all, x)
		if s.lastMoved > 0 && x.how == extentMost {
			destinations = append(destinations, s)
		}
	}
	slices.SortStableFunc(all, func(a, b placed) int {
		return cmp.Or(trueFirst(a.named, b.named), trueFirst(b.glance, a.glance), cmp.Compare(b.how, a.how), trueFirst(a.shows, b.shows), cmp.Compare(a.turn, b.turn))
	})
	for _, x := range all {
		sources = append(sources, x.nicState)
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

// isTouched reports whether a flow that concerns the part and has an end in a pod was degraded lately.
func (p *Planner) isTouched(pod string, cycle int) bool {
	last, ever := p.touched[pod]
	return ever && cycle-last <= troubleCycles
}

// isDueForGlance reports whether a NIC moved now, and was not queried lately.
func (s *nicState) isDueForGlance(cycle int) bool {
	return s.lastMoved == cycle && (s.queriedFrom == 0 || cycle-s.queriedFrom > troubleCycles)
}

// suspectNICs returns the NICs whose flows show a suspect, and the NICs among them that are suspects themselves.
func (p *Planner) suspectNICs(suspects []*fabric.Verdict) (shows, named map[*nicState]bool) {
	shows, named = map[*nicState]bool{}, map[*nicState]bool{}
	for _, v := range suspects {
		if s := p.nics[v.Element.ID]; s != nil {
			shows[s], named[s] = true, true
			continue // every flow that shows it is from or to this NIC
		}
		for _, name := range v.Edges {
			if e, err := fabric.ParseFlow(name); err == nil && p.nics[e.Src] != nil {
				shows[p.nics[e.Src]] = true
			}
		}
	}
	return shows, named
}

// trueFirst compares two flags, so that set ones come first.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
