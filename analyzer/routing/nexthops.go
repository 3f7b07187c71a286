package routing

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// unlikely is the probability below which a switch that explains what others show is not left out by chance itself.
const unlikely = 1e-3

// choice is what a switch does with the flows to one leaf.
type choice struct {
	sw, leaf string
	flows    int
	expected []fabric.Direction
	used     int
	unused   []fabric.Direction
}

// notByChance is the logarithm of a probability for what tables show: it is below every bound.
const notByChance = -100

// chanceOf returns the logarithm of the probability that chance leaves one of the next hops without flows. It is not by chance if the
// switch's table lacks that next hop.
func (c *choice) chanceOf(m *Moment, hop fabric.Direction) float64 {
	if m.lacksHop(c.sw, c.leaf, hop) {
		return notByChance
	}
	return float64(c.flows) * math.Log1p(-1/float64(len(c.expected)))
}

// chanceOfFew returns a bound of the logarithm of the probability that chance takes at most some number of the next hops. It is not by
// chance if the switch's table lacks those that are not used.
func (c *choice) chanceOfFew(m *Moment, most int) float64 {
	if len(c.unused) > 0 && !slices.ContainsFunc(c.unused, func(d fabric.Direction) bool { return !m.lacksHop(c.sw, c.leaf, d) }) {
		return notByChance
	}
	k := len(c.expected)
	if most >= k {
		return 0
	}
	ways, _ := math.Lgamma(float64(k + 1))
	a, _ := math.Lgamma(float64(most + 1))
	b, _ := math.Lgamma(float64(k - most + 1))
	return math.Min(0, ways-a-b+float64(c.flows)*math.Log(float64(most)/float64(k)))
}

// Bounds of what a cycle reviews again. A fabric of few leaves is reviewed in every cycle, and a large one in thirty-two.
const (
	leastLeaves  = 16
	reviewCycles = 32
	mostChoices  = 50_000 // of all switches, up to which too few next hops are looked for in every cycle
)

// leafReview is what was found about the flows to a leaf when they were reviewed last.
type leafReview struct {
	choices   []*choice
	questions int
	missing   []Finding
	cycle     int
}

// choicesToward returns the choices of all switches toward a leaf, by switch.
func (w *Watcher) choicesToward(m *Moment, leaf string) *leafReview {
	to := w.usage.leaves[leaf]
	out := &leafReview{cycle: w.cycles}
	r := reach{w: w, m: m, dist: w.distances.of(m.Graph, leaf), known: map[string]bool{}}
	for _, sw := range sortedKeys(to.bySwitch) {
		c := &choice{sw: sw, leaf: leaf, flows: to.bySwitch[sw], expected: r.expectedHops(sw)}
		if len(c.expected) < 2 {
			continue
		}
		out.questions += len(c.expected)
		for _, d := range c.expected {
			if n, ok := w.usage.numbers[d]; ok && to.byPort[n] > 0 {
				c.used++
			} else {
				c.unused = append(c.unused, d)
			}
		}
		out.choices = append(out.choices, c)
	}
	return out
}

// leavesToReview returns the leaves whose flows are reviewed in a cycle: those that were not for longest.
func (w *Watcher) leavesToReview() []string {
	all := sortedKeys(w.usage.leaves)
	n := max(leastLeaves, (len(all)+reviewCycles-1)/reviewCycles)
	if len(all) <= n {
		return all
	}
	reviewed := func(leaf string) int {
		if r := w.reviews[leaf]; r != nil {
			return r.cycle
		}
		return -1
	}
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(reviewed(a), reviewed(b)) })
	return all[:n]
}

// nextHops finds next hops that switches do not take (rule 2). crowded are switches that are polarized.
func (w *Watcher) nextHops(m *Moment, crowded map[string]bool) []Finding {
	now := w.leavesToReview()
	for _, leaf := range now {
		w.reviews[leaf] = w.choicesToward(m, leaf)
	}
	questions, choices := 0, 0
	for _, r := range w.reviews {
		questions, choices = questions+r.questions, choices+len(r.choices)
	}
	if questions == 0 {
		return nil
	}
	bound := math.Log(chance / float64(questions))
	if choices <= mostChoices || w.cycles%reviewCycles == 0 {
		w.few = w.fewHops(m, bound, crowded)
	}
	isFew := map[string]bool{}
	out := slices.Clone(w.few)
	for i := range out {
		isFew[out[i].ID] = true
	}
	for _, leaf := range now {
		r := w.reviews[leaf]
		r.missing = w.missingAt(m, leaf, slices.DeleteFunc(slices.Clone(r.choices), func(c *choice) bool {
			return isFew[c.sw] || crowded[c.sw] || len(c.unused) == 0
		}), bound)
	}
	for _, leaf := range sortedKeys(w.reviews) {
		out = append(out, w.reviews[leaf].missing...)
	}
	return out
}

// fewHops finds switches that take too few next hops toward every leaf.
func (w *Watcher) fewHops(m *Moment, bound float64, crowded map[string]bool) (out []Finding) {
	var all []*choice
	for _, r := range w.reviews {
		all = append(all, r.choices...)
	}
	slices.SortFunc(all, func(a, b *choice) int { return cmp.Or(cmp.Compare(a.sw, b.sw), cmp.Compare(a.leaf, b.leaf)) })
	for at := 0; at < len(all); {
		end := at
		for end < len(all) && all[end].sw == all[at].sw {
			end++
		}
		own := all[at:end]
		at = end
		sw, most, flows, expected := own[0].sw, 0, 0, 0
		partial := len(own) > 1 && !crowded[sw]
		for _, c := range own {
			most, expected, flows = max(most, c.used), max(expected, len(c.expected)), flows+c.flows
			partial = partial && c.used > 0 && c.used < len(c.expected)
		}
		if !partial {
			continue
		}
		// Tables show it toward some leaves, and chance has to be excluded toward the others.
		p, known := 0.0, 0
		unused := map[fabric.Direction]bool{}
		refuted := false
		for _, c := range own {
			if x := c.chanceOfFew(m, most); x == notByChance {
				known++
			} else {
				p += x
			}
			for _, d := range c.unused {
				unused[d] = true
			}
			refuted = refuted || !slices.ContainsFunc(c.unused, func(d fabric.Direction) bool { return m.hasHop(sw, c.leaf, d) != yes })
		}
		if known == len(own) {
			p = notByChance
		}
		if p > bound || refuted {
			continue
		}
		f := Finding{Element: fabric.Element{ID: sw, Kind: fabric.KindSwitch}, Kind: FewHops, Confidence: confidenceOf(p - bound), Used: most, Expected: expected, Flows: flows}
		for d := range unused {
			f.Others = append(f.Others, fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink})
		}
		f.Others = sortedElements(f.Others)
		f.Explained = w.usage.flowsWhere(func(r *record) bool { return r.valid && crosses(r.path, sw) })
		f.explainHops(m, sw, own)
		out = append(out, f)
	}
	return out
}

// explainHops adds what the switch's own tables say of the next hops that it does not take.
func (f *Finding) explainHops(m *Moment, sw string, own []*choice) {
	lacks, selects, known := 0, 0, 0
	for _, c := range own {
		for _, d := range c.unused {
			switch m.hasHop(sw, c.leaf, d) {
			case no:
				known++
				if m.hasPath(sw, c.leaf, d) == yes {
					selects++
				} else if m.hasPath(sw, c.leaf, d) == no {
					lacks++
				}
			case yes, unknown:
			}
		}
	}
	switch {
	case known == 0:
		return
	case selects > 0:
		f.Text = "Its table lacks them, although its daemon has valid paths there: it selects fewer, by maximum-paths or by longer AS paths."
	case lacks > 0:
		f.Text = "Its table lacks them, since its daemon has no path there: the neighbour does not announce the prefix, or a filter drops it."
	default:
		f.Text = "Its table of routes lacks them."
	}
	f.Claimed, f.Reported, f.Confidence = true, true, 0.999
}

// missingAt finds the switches without a preferred route to a leaf, and the next hops that one switch alone does not take.
func (w *Watcher) missingAt(m *Moment, leaf string, own []*choice, bound float64) (out []Finding) {
	dist, to := w.distances.of(m.Graph, leaf), w.usage.leaves[leaf]
	type avoided struct {
		by     []*choice
		chance float64
		links  []fabric.Direction
	}
	at := map[string]*avoided{} // switches that flows should enter
	entered := map[string]int{}
	for n, flows := range to.byPort {
		entered[fabric.OwnerOf(w.usage.ports[n].To)] += flows
	}
	selected := map[string]bool{} // switches that a neighbour's table leads to: the route by them is preferred
	for _, c := range own {
		for _, d := range c.unused {
			if m.hasHop(c.sw, leaf, d) == yes {
				selected[fabric.OwnerOf(d.To)] = true
			}
		}
	}
	for _, c := range own {
		for _, d := range c.unused {
			next := fabric.OwnerOf(d.To)
			if next == leaf || entered[next] > 0 || selected[next] {
				if p := c.chanceOf(m, d); p <= bound && m.hasHop(c.sw, leaf, d) != yes {
					f := Finding{Element: fabric.Element{ID: c.sw, Kind: fabric.KindSwitch}, Kind: MissingHop, Prefix: leaf, Confidence: confidenceOf(p - bound),
						Used: c.used, Expected: len(c.expected), Flows: c.flows, Others: []fabric.Element{{ID: d.LinkID(), Kind: fabric.KindLink}, {ID: next, Kind: fabric.KindSwitch}}}
					f.explainHops(m, c.sw, []*choice{{sw: c.sw, leaf: leaf, unused: []fabric.Direction{d}}})
					f.Explained = w.usage.flowsWhere(func(r *record) bool { return r.valid && r.leaf == leaf && crosses(r.path, c.sw) })
					out = append(out, f)
				}
				continue
			}
			a := at[next]
			if a == nil {
				a = &avoided{}
				at[next] = a
			}
			a.by, a.chance, a.links = append(a.by, c), a.chance+c.chanceOf(m, d), append(a.links, d)
		}
	}
	// explains reports whether flows can reach the leaf by a switch only across another one.
	explains := func(sw, other string) bool {
		r := reach{w: w, m: m, dist: dist, avoid: sw, known: map[string]bool{}}
		return sw != other && !r.reaches(other)
	}
	total := map[string]float64{}
	for sw, a := range at {
		total[sw] = a.chance
		for other, b := range at {
			if explains(sw, other) {
				total[sw] += b.chance
			}
		}
	}
	for _, sw := range sortedKeys(at) {
		a := at[sw]
		if total[sw] > bound || a.chance > math.Log(unlikely) {
			continue
		}
		if slices.ContainsFunc(sortedKeys(at), func(x string) bool { return explains(x, sw) && total[x] <= bound && at[x].chance <= math.Log(unlikely) }) {
			continue // that one explains this one
		}
		f := Finding{Element: fabric.Element{ID: sw, Kind: fabric.KindSwitch}, Kind: MissingPrefix, Prefix: leaf, Confidence: confidenceOf(total[sw] - bound)}
		for _, c := range a.by {
			f.Flows, f.Used, f.Expected = f.Flows+c.flows, max(f.Used, c.used), max(f.Expected, len(c.expected))
		}
		if len(a.by) == 1 { // the one switch that should use it may as well be why
			f.Others = append(f.Others, fabric.Element{ID: a.by[0].sw, Kind: fabric.KindSwitch})
		}
		for _, x := range sortedKeys(dist) { // what no flow enters either, and too few or none should, is not excluded
			if x != leaf && dist[x] < dist[sw] && entered[x] == 0 && explains(x, sw) {
				f.Others = append(f.Others, fabric.Element{ID: x, Kind: fabric.KindSwitch})
			}
		}
		f.explainPrefix(m, sw, leaf, a.by)
		f.Explained = w.usage.flowsWhere(func(r *record) bool { return r.valid && r.leaf == leaf && len(r.path) > 1 })
		out = append(out, f)
	}
	return out
}

// explainPrefix adds what tables say of a switch that no flow to a leaf enters.
func (f *Finding) explainPrefix(m *Moment, sw, leaf string, by []*choice) {
	if r := m.Switches[sw]; r != nil && r.FIB != nil {
		if !slices.ContainsFunc(m.prefixesOf(r.FIB, leaf), func(p netip.Prefix) bool { return len(r.FIB[p]) > 0 }) {
			f.Text, f.Claimed, f.Reported, f.Confidence = "Its table has no route to the leaf.", true, true, 0.999
			return
		}
	}
	longer, absent := 0, 0
	for _, c := range by {
		for _, d := range c.unused {
			if fabric.OwnerOf(d.To) != sw || m.hasHop(c.sw, leaf, d) != no {
				continue
			}
			switch m.hasPath(c.sw, leaf, d) {
			case yes:
				longer++
			case no:
				absent++
			case unknown:
			}
		}
	}
	switch {
	case longer > 0:
		f.Text = "Its neighbours have its path and do not select it: its AS path is longer, or another attribute is worse."
	case absent > 0:
		f.Text = "Its neighbours have no path from it: it does not announce the prefix, or a filter drops it."
	default:
		return
	}
	f.Claimed, f.Reported, f.Confidence = true, true, 0.999
}

// reach answers whether switches have shortest paths of working links to a leaf, some switches avoided.
type reach struct {
	w     *Watcher
	m     *Moment
	dist  map[string]int // to the leaf
	avoid string
	known map[string]bool
}

// reaches reports whether a switch has a shortest path of working links.
func (r *reach) reaches(sw string) bool {
	if r.dist[sw] == 0 {
		return sw != r.avoid
	}
	yes, known := r.known[sw]
	if !known {
		yes = sw != r.avoid && len(r.expectedHops(sw)) > 0
		r.known[sw] = yes
	}
	return yes
}

// expectedHops returns the directions from a switch that are on shortest paths and work, as far as the leaf, in the order of
// ports (rule 1).
func (r *reach) expectedHops(sw string) (out []fabric.Direction) {
	own, known := r.dist[sw]
	if !known || own == 0 {
		return nil
	}
	for _, end := range r.m.Graph.EndsOf(sw) {
		peer := r.m.Graph.PeerOf(end)
		if peer == "" || fabric.IsNIC(peer) {
			continue
		}
		d, next := fabric.Direction{From: end, To: peer}, fabric.OwnerOf(peer)
		if far, ok := r.dist[next]; ok && far == own-1 && r.w.usage.works(r.m, d) && r.reaches(next) {
			out = append(out, d)
		}
	}
	return out
}

// confidenceOf returns a confidence by how far the logarithm of a probability is below what is asked for.
func confidenceOf(below float64) float64 {
	return math.Round(math.Min(0.999, 1-0.05*math.Exp(math.Min(0, below)/4))*1000) / 1000
}

func crosses(p fabric.Path, sw string) bool {
	return slices.ContainsFunc(p, func(h fabric.Hop) bool { return h.Switch == sw })
}

func sortedElements(in []fabric.Element) []fabric.Element {
	slices.SortFunc(in, func(a, b fabric.Element) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Kind, b.Kind)) })
	return slices.Compact(in)
}

func sortedKeys[V any](in map[string]V) []string {
	out := make([]string, 0, len(in))
	for k := range in {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
