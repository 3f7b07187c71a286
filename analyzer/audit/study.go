package audit

import (
	"slices"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// study is the evidence with what several checks need of it.
type study struct {
	e     *Evidence
	c     Criteria
	scope Scope
	// directions are all directions of the plan, and after them those that only paths have. numbers are their places.
	directions []fabric.Direction
	planned    int
	numbers    map[fabric.Direction]int32
	kinds      map[string]string // of links
	// crosses are the directions that each flow record crosses. It is nil for a record without a known path.
	crosses [][]int32
	choices *choices
	// miswired are the links that check A2 found to be swapped or missing.
	miswired map[string]bool
}

func newStudy(e *Evidence, c Criteria, s Scope) *study {
	st := &study{e: e, c: c, scope: s, numbers: map[fabric.Direction]int32{}, kinds: map[string]string{}, miswired: map[string]bool{}}
	for _, d := range e.Graph.LinkDirections() {
		st.numberOf(d)
	}
	st.planned = len(st.directions)
	st.crosses = make([][]int32, len(e.Flows))
	for i := range e.Flows {
		f := &e.Flows[i]
		if len(f.Path) == 0 {
			continue
		}
		for _, d := range f.Path.LinkDirections(f.Src, f.Dst) {
			st.crosses[i] = append(st.crosses[i], st.numberOf(d))
		}
	}
	st.choices = st.countChoices(e.Graph)
	return st
}

func (st *study) numberOf(d fabric.Direction) int32 {
	n, known := st.numbers[d]
	if !known {
		n = int32(len(st.directions))
		st.numbers[d] = n
		st.directions = append(st.directions, d)
	}
	return n
}

// kindOf returns the kind of the link of a direction.
func (st *study) kindOf(d int32) string {
	id := st.directions[d].LinkID()
	kind := st.kinds[id]
	if kind == "" {
		kind = kindOf(st.e.Graph, id)
		st.kinds[id] = kind
	}
	return kind
}

// inScope reports whether the link of a direction is judged.
func (st *study) inScope(d int32) bool { return st.scope.hasLink(st.directions[d].LinkID()) }

// newItem returns an item about one direction of a link.
func (st *study) newItem(d int32, s Status) Item {
	x := st.directions[d]
	return Item{Element: x.LinkID(), Kind: st.kindOf(d), Status: s, Direction: x.String()}
}

// classes returns the classes that flows have, sorted.
func (st *study) classes() (out []string) {
	for i := range st.e.Flows {
		if c := st.e.Flows[i].Class; !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}

// subject is a flow that was found good or bad, and the directions that it crosses.
type subject struct {
	crosses []int32
	bad     bool
}

// culprit is a direction that explains bad subjects.
type culprit struct {
	direction int32
	// bad and all are the subjects that cross it. Those that a culprit before it explains are left out.
	bad, all int
	// equivalent are directions that the same subjects cross.
	equivalent []int32
}

// Limits of what a direction must have to explain bad flows.
const (
	minBad      = 2   // flows
	minBadShare = 0.7 // of its flows
)

// explain returns the directions that explain the bad subjects, and for every subject whether one of them does. The direction
// with most bad subjects comes first.
func explain(subjects []subject, directions int) (culprits []culprit, explained []bool) {
	explained = make([]bool, len(subjects))
	bad, all := make([]int, directions), make([]int, directions)
	count := func(s *subject, by int) {
		for _, d := range s.crosses {
			all[d] += by
			if s.bad {
				bad[d] += by
			}
		}
	}
	for i := range subjects {
		count(&subjects[i], 1)
	}
	for {
		best := -1
		for d := range directions {
			if bad[d] < minBad || float64(bad[d]) < minBadShare*float64(all[d]) {
				continue
			}
			if best < 0 || bad[d] > bad[best] || bad[d] == bad[best] && all[d] < all[best] {
				best = d
			}
		}
		if best < 0 {
			return culprits, explained
		}
		c := culprit{direction: int32(best), bad: bad[best], all: all[best]}
		for d := range directions {
			if d != best && bad[d] == bad[best] && all[d] == all[best] && sameSubjects(subjects, explained, int32(best), int32(d)) {
				c.equivalent = append(c.equivalent, int32(d))
			}
		}
		for i := range subjects {
			if !explained[i] && slices.Contains(subjects[i].crosses, int32(best)) {
				explained[i] = true
				count(&subjects[i], -1)
			}
		}
		culprits = append(culprits, c)
	}
}

// sameSubjects reports whether the subjects that are not explained cross both directions or none.
func sameSubjects(subjects []subject, explained []bool, a, b int32) bool {
	for i := range subjects {
		if !explained[i] && slices.Contains(subjects[i].crosses, a) != slices.Contains(subjects[i].crosses, b) {
			return false
		}
	}
	return true
}

// linkIDs returns the links of directions.
func (st *study) linkIDs(directions []int32) (out []string) {
	for _, d := range directions {
		if id := st.directions[d].LinkID(); !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// choices counts how flows were spread where a switch could choose between several links.
type choices struct {
	groups map[string]*choice // by the links
	// avoided is the logarithm of the probability that all flows avoid a direction by chance, and offered the number of flows.
	avoided []float64
	offered []int
	used    []int // flows that cross it, and get probes through
}

// choice is a switch with links between which it chooses.
type choice struct {
	sw         string
	directions []int32
	counts     map[int32]int
}

// hopsFrom returns the directions by which packets to a leaf leave a switch on a shortest path.
func (st *study) hopsFrom(g *fabric.Graph, sw string, distances map[string]int) (out []int32) {
	at, known := distances[sw]
	if !known {
		return nil
	}
	for _, end := range g.EndsOf(sw) {
		far := g.PeerOf(end)
		if fabric.IsNIC(far) {
			continue
		}
		if next, known := distances[fabric.OwnerOf(far)]; known && next == at-1 {
			if n, known := st.numbers[fabric.Direction{From: end, To: far}]; known {
				out = append(out, n)
			}
		}
	}
	return out
}

// countChoices counts the choices that all flows with known paths have in a graph. Each flow counts once at each switch.
func (st *study) countChoices(g *fabric.Graph) *choices {
	c := &choices{groups: map[string]*choice{}, avoided: make([]float64, len(st.directions)), offered: make([]int, len(st.directions)), used: make([]int, len(st.directions))}
	distances := map[string]map[string]int{}
	hops := map[[2]string][]int32{}
	for i := range st.e.Flows {
		f := &st.e.Flows[i]
		// A path that a flow had for a while only, as before a link went down, does not show that the link is there. Neither does one of a
		// flow that ended, or one that nothing confirms any more. The last is still what a switch chose, unless it knew better.
		if len(f.Path) == 0 || f.Windows*2 < st.e.Windows {
			continue
		}
		sure := f.Confirmed*2 >= st.e.Windows
		if sure && f.Lost < f.Sent {
			for _, d := range st.crosses[i] {
				c.used[d]++
			}
		}
		leaf := f.Path[len(f.Path)-1].Switch
		if distances[leaf] == nil {
			distances[leaf] = g.SwitchDistances(leaf)
		}
		for _, h := range f.Path[:len(f.Path)-1] {
			key := [2]string{h.Switch, leaf}
			options, known := hops[key]
			if !known {
				options = st.hopsFrom(g, h.Switch, distances[leaf])
				hops[key] = options
			}
			c.add(h.Switch, options, st.crosses[i], sure)
		}
	}
	return c
}

// add counts the choice of a flow at a switch. It shows that the others were avoided only if it is sure.
func (c *choices) add(sw string, options, crosses []int32, sure bool) {
	if len(options) < 2 {
		return
	}
	taken := slices.IndexFunc(options, func(d int32) bool { return slices.Contains(crosses, d) })
	if taken < 0 {
		return // it went by a way that is not a shortest one
	}
	var key strings.Builder
	for _, d := range options {
		key.WriteString(strconv.Itoa(int(d)) + " ")
	}
	g := c.groups[key.String()]
	if g == nil {
		g = &choice{sw: sw, directions: options, counts: map[int32]int{}}
		c.groups[key.String()] = g
	}
	g.counts[options[taken]]++
	if !sure {
		return
	}
	for _, d := range options {
		c.offered[d]++
		c.avoided[d] += logShare(len(options))
	}
}
