package triangulate

import (
	"cmp"
	"math"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// The packets of a sprayed flow take several paths in turn, and each path has its share of them. What such a flow loses and how
// late its packets are is a mixture of what the paths do. The likelihood is that of all flows: an ordinary flow is a mixture of one.

const (
	// fullShare is the share of the packets from which all of them cross a place.
	fullShare = 1 - 1e-9
	// hopEvents is how many lost packets the least loss ratio of a healthy link counts for, where packets are sprayed. What an element
	// adds to a mixture may be less than that ratio, so that it has to be known better where there are packets enough.
	hopEvents = 50
	// peelRounds bounds the number of places whose flows are left out, one after the other, until the rest counts as healthy.
	peelRounds = 16
	// dispersionPlaces is the number of places that an estimate of the dispersion needs, and dispersionPackets the number of lost
	// packets that each of them must be expected to have.
	dispersionPlaces, dispersionPackets = 16, 5
	// dispersionKept is the percentage of the places, from below, that the estimate is of, so that places at fault are not among them, and
	// dispersionBias is the variance of as many of the least of standard normal variables.
	dispersionKept, dispersionBias = 90, 0.71
	// medianDoubt is how likely a median is to have moved, or not to have moved, against what the share of slow packets says: a fault
	// may begin or end within a window.
	medianDoubt = 0.2
	// fewWays is the number of paths with a load of their own up to which these are looked up one by one.
	fewWays = 12
	// exactPackets is the number of packets up to which the distribution of slow packets is summed up. Beyond it the normal
	// approximation holds.
	exactPackets = 64
)

// mixture states whether the packets of a flow take all of the paths in turn, and not one of them.
func (ps *paths) mixture() bool { return ps != nil && ps.weight != nil }

// mixed reports whether the flow's packets take several paths in turn.
func (fl *flow) mixed() bool { return fl.paths.mixture() }

// reuseMixture does what bindMixture does, from what it did in the run before where the paths are the same.
func (b *binder) reuseMixture(w *walk, f *judge.Finding) ([]component, *paths) {
	o := f.Obs
	src, dst := f.Flow.Endpoints()
	if f.RoundTrip {
		at, ps, _ := b.bindMixture(o, src, dst, true)
		return at, ps
	}
	*w = walk{edge: f.Flow, ways: &o.Paths[0], n: len(o.Paths)}
	if o.Weights != nil {
		w.weights = &o.Weights[0]
	}
	b.reuseWalk(w)
	if w.components == nil {
		w.components, w.set, w.key = b.bindMixture(o, src, dst, false)
	} else if w.set != nil {
		w.set = b.shareMixture(w.key, func() boundPaths { return boundPaths{paths: w.set} }).paths
	}
	return w.components, w.set
}

// losesAlike reports whether what is named on some of the paths of a mixture loses nothing.
func (fl *flow) losesAlike() bool {
	return fl.mixed() && !slices.ContainsFunc(fl.partial, func(s partialLoad) bool { return s.load.survive != 0 })
}

// bindMixture binds a flow whose packets take several paths in turn. Flows whose paths differ in their access links alone share a
// set of paths.
func (b *binder) bindMixture(o *fabric.Observation, src, dst string, roundTrip bool) (at []component, ps *paths, key uint64) {
	all := o.Paths[:min(len(o.Paths), maxCandidatePaths)]
	b.each, b.inner = b.each[:0], b.inner[:0]
	sum := uint64(len(all)) ^ 0x6d69_7874
	for i, p := range all {
		if o.Weights != nil && o.Weights[i] == 0 {
			continue
		}
		b.one = b.appendComponents(b.one[:0], p, src, dst)
		if roundTrip {
			b.one = b.appendComponents(b.one, reversePath(p), dst, src)
		}
		start, first := len(b.inner), len(b.each) == 0
		for _, c := range b.one {
			switch {
			case b.onAccessLink(c):
				if first {
					at = append(at, c)
				}
			case !slices.Contains(b.inner[start:], c):
				b.inner = append(b.inner, c)
				sum = mixBits(sum*31 + uint64(c) + 1)
			}
		}
		b.each = append(b.each, [2]int{start, len(b.inner)})
		weight := 1.0
		if o.Weights != nil {
			weight = o.Weights[i]
		}
		b.weight = append(b.weight[:len(b.each)-1], weight)
		sum = mixBits(sum + math.Float64bits(weight))
	}
	known := b.shareMixture(sum, b.newMixture)
	return append(at, known.common...), known.paths, sum
}

// sprayedBetween returns what packets between two leaves cross that take all of the shortest paths in turn, without the access
// links and the leaves. It is none if the paths are too many.
func (b *binder) sprayedBetween(src, dst string, leaves [2]string) boundPaths {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, ok := b.sprayed[leaves]
	if ok {
		return known
	}
	b.each, b.inner, b.weight = b.each[:0], b.inner[:0], b.weight[:0]
	if shortest := b.g.ShortestPaths(src, dst, maxCandidatePaths+1); len(shortest) <= maxCandidatePaths {
		for _, p := range shortest {
			start := len(b.inner)
			b.inner = b.appendInner(b.inner, p)
			b.each, b.weight = append(b.each, [2]int{start, len(b.inner)}), append(b.weight, 1)
		}
	}
	if len(b.each) > 0 {
		known = b.newMixture()
	}
	b.sprayed[leaves] = known
	return known
}

// shareMixture returns the set of paths that has a key in this run. The first binder that needs it makes it.
func (b *binder) shareMixture(key uint64, makeSet func() boundPaths) boundPaths {
	if known, ok := b.sets[key]; ok {
		return known
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	known, ok := b.mixtures[key]
	if !ok {
		known = makeSet()
		b.mixtures[key] = known
	}
	if b.sets == nil {
		b.sets = map[uint64]boundPaths{}
	}
	b.sets[key] = known
	return known
}

// newMixture makes a set of the paths that a binder has collected.
func (b *binder) newMixture() boundPaths {
	ps := &paths{weight: slices.Clone(b.weight[:len(b.each)])}
	total := 0.0
	for _, w := range ps.weight {
		total += w
	}
	shares := map[component]float64{}
	var order []component
	for i, span := range b.each {
		ps.weight[i] /= total
		for _, c := range b.inner[span[0]:span[1]] {
			if _, seen := shares[c]; !seen {
				order = append(order, c)
			}
			shares[c] += ps.weight[i]
		}
	}
	var out boundPaths
	for _, c := range order {
		if shares[c] >= fullShare {
			out.common = append(out.common, c)
			continue
		}
		ps.all, ps.allShare = append(ps.all, c), append(ps.allShare, shares[c])
	}
	if len(ps.all) == 0 {
		return out
	}
	for _, span := range b.each {
		var own []component
		for _, c := range b.inner[span[0]:span[1]] {
			if shares[c] < fullShare {
				own = append(own, c)
			}
		}
		ps.each = append(ps.each, own)
	}
	ps.at, ps.share = ps.all, ps.allShare
	out.paths = ps
	return out
}

// mergePlaces finds the places that no flow distinguishes: the same mixtures cross them with the same shares, and no other flow
// does. One of them, a link if there is one, stands for all in the sets of paths, so that what is done for each place is done once. It
// returns the places that each of these stands for, itself among them.
func mergePlaces(e *Engine, flows []flow) map[component][]component {
	var sets []*paths
	seen := map[*paths]bool{}
	for i := range flows {
		if ps := flows[i].paths; ps.mixture() && !seen[ps] {
			seen[ps] = true
			sets = append(sets, ps)
		}
	}
	if len(sets) == 0 {
		return nil
	}
	certain := make([]bool, e.componentCount())
	for i := range flows {
		fl := &flows[i]
		for _, c := range fl.crossed {
			certain[c] = true
		}
		if fl.paths != nil && !fl.mixed() {
			for _, c := range fl.paths.at {
				certain[c] = true
			}
		}
	}
	signature := make([]uint64, len(certain))
	for i, ps := range sets {
		for j, c := range ps.all {
			// Shares are sums in any order, so that their last bits differ.
			signature[c] += mixBits(uint64(i)<<32 ^ uint64(math.Round(ps.allShare[j]*(1<<31))))
		}
	}
	alike := map[uint64][]component{}
	for c := range signature {
		if signature[c] != 0 && !certain[c] {
			alike[signature[c]] = append(alike[signature[c]], component(c))
		}
	}
	bundles := map[component][]component{}
	for _, group := range alike {
		if len(group) > 1 {
			bundles[group[0]] = group
			for _, c := range group[1:] {
				bundles[c] = nil
			}
		}
	}
	for _, ps := range sets {
		ps.at, ps.share = nil, nil
		for j, c := range ps.all {
			if group, merged := bundles[c]; !merged || group != nil {
				ps.at, ps.share = append(ps.at, c), append(ps.share, ps.allShare[j])
			}
		}
	}
	for c, group := range bundles {
		if group == nil {
			delete(bundles, c)
		}
	}
	return bundles
}

// standIns returns the places that stand for those of a candidate in the lists of flows.
func (s *search) standIns(places []component) []component {
	if len(s.bundles) == 0 {
		return places
	}
	var out []component
	for _, p := range places {
		if r, ok := s.standIn[p]; ok {
			p = r
		}
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// bundleDiscount returns by how much an element is likelier to be at fault, in nats, because its place stands for several.
func (s *search) bundleDiscount(p component) float64 {
	return math.Log(float64(max(1, len(s.bundles[p]))))
}

// bundled returns the elements that a candidate stands for beside itself.
func (s *search) bundled(c *candidate) (out []Element) {
	if len(s.bundles) == 0 || c.allOf != nil || len(c.anyOf) == 0 || c.Kind == fabric.KindHost || c.Kind == fabric.KindLeafUplinks {
		return nil
	}
	own := c.anyOf[0]
	for _, p := range s.bundles[own] {
		if p == own {
			continue
		}
		x := s.e.elementAt(p)
		switch {
		case len(c.anyOf) == 2:
			if s.e.isSwitch(p) || !slices.Contains(s.bundles[c.anyOf[1]], s.e.reverseOf(p)) {
				continue
			}
			x.Direction = fabric.Direction{}
		case c.Kind == fabric.KindQueue && !s.e.isSwitch(p):
			x = Element{Kind: fabric.KindQueue, Name: x.Direction.From + "@" + c.Class, Direction: x.Direction, Class: c.Class}
		}
		out = append(out, x)
	}
	return out
}

// elementAt returns the narrowest element at a place.
func (e *Engine) elementAt(p component) Element {
	if e.isSwitch(p) {
		return Element{Kind: fabric.KindSwitch, Name: e.names[int(p)-e.ndirs]}
	}
	d := e.directionOf(p)
	kind, name := elementOf(d)
	return Element{Kind: kind, Name: name, Direction: d}
}

// healthyFlows returns which flows cross nothing whose losses stand out, and the loss ratio of a healthy directed link by these. Where
// packets are sprayed, one fault is on many flows, so that the flows of the place that stands out most are left out first, and the
// rest is compared again.
func healthyFlows(e *Engine, flows []flow, p Parameters) (clean []bool, hop float64) {
	clean = make([]bool, len(flows))
	for i := range clean {
		clean[i] = true
	}
	lost, hops := 0.0, 0.0
	for round := 0; ; round++ {
		lost, hops = 0, 0
		for i := range flows {
			if fl := &flows[i]; clean[i] {
				lost += float64(fl.lost)
				hops += float64(fl.sent) * float64(fl.hops)
			}
		}
		if hops == 0 || round == peelRounds {
			break
		}
		seen := surveyIf(e, flows, max(lost/hops, p.LeastHop/hopEvents), p, func(i int) bool { return clean[i] })
		// Of many places some stand out by chance.
		crossed := 0
		for at := range seen {
			if seen[at].expected+seen[at].mixedExpected > 0 {
				crossed++
			}
		}
		worst, most := component(-1), p.MostExcess+math.Log(float64(max(1, crossed)))
		for at := range seen {
			if x := seen[at].lossExcess(); x > most {
				worst, most = component(at), x
			}
		}
		if worst < 0 {
			break
		}
		for i := range flows {
			clean[i] = clean[i] && !flows[i].mayCross([]component{worst})
		}
	}
	return clean, min((lost+hopEvents)/(hops+hopEvents/p.LeastHop), p.MostHop)
}

// lossDispersion returns the variance of the losses at the places that mixtures cross against that of single losses, at least 1.
// Healthy links lose different shares, and no more than that can be distinguished from a fault that is a small share of a mixture.
func lossDispersion(seen []evidence) float64 {
	var z []float64
	for i := range seen {
		if v := &seen[i]; v.mixedExpected >= dispersionPackets {
			z = append(z, (v.mixedLost-v.mixedExpected)/math.Sqrt(v.mixedExpected))
		}
	}
	if len(z) < dispersionPlaces {
		return 1
	}
	slices.Sort(z)
	z = z[:len(z)*dispersionKept/100]
	mean, square := 0.0, 0.0
	for _, v := range z {
		mean += v / float64(len(z))
	}
	for _, v := range z {
		square += (v - mean) * (v - mean) / float64(len(z)-1)
	}
	return max(1, square/dispersionBias)
}

// part is what a share of a flow's packets meets.
type part struct {
	load  load
	share float64
}

// partsOf appends what the packets of a flow meet, with the effect of a candidate on those that cross it.
func partsOf(out []part, fl *flow, k *member, e load) []part {
	if k.crossings == nil {
		out = append(out, part{fl.load.plus(e), k.share})
		if k.share < 1 {
			out = append(out, part{fl.load, 1 - k.share})
		}
		return out
	}
	for _, w := range k.crossings {
		if w.through > 0 {
			out = append(out, part{w.load.plus(e), w.through})
		}
		if w.past > 0 {
			out = append(out, part{w.load, w.past})
		}
	}
	return out
}

// mixedCost returns the cost of a flow whose packets take several paths in turn, with the effect of a candidate.
func (m *model) mixedCost(fl *flow, k *member, e load) float64 {
	var few [8]part
	return m.costOfParts(fl, partsOf(few[:0], fl, k, e))
}

// costOfParts returns the cost of a flow whose packets have several loads in turn.
func (m *model) costOfParts(fl *flow, parts []part) float64 {
	tail := 0.0
	for _, x := range parts {
		tail = max(tail, x.load.tail)
	}
	losses := m.mixedLossCost(fl, throughMixture(parts, survival))
	return m.slowestCost(fl, parts) + m.tailCost(fl, tail) + losses + m.markCost(fl, throughMixture(parts, clearness))
}

func survival(l load) float64  { return l.survive }
func clearness(l load) float64 { return l.clear }

// throughMixture returns the logarithm of the share of a mixture that is let through.
func throughMixture(parts []part, of func(load) float64) float64 {
	lost, any := 0.0, false
	for _, x := range parts {
		if v := of(x.load); v != 0 {
			any = true
			lost -= x.share * math.Expm1(v)
		}
	}
	if !any {
		return 0
	}
	return math.Log1p(-min(lost, fullShare))
}

// mixedLossCost returns what the losses of a flow cost whose packets take several paths, by the logarithm of the share that
// these let through.
func (m *model) mixedLossCost(fl *flow, survive float64) float64 {
	return m.lossCost(fl, survive) / max(1, m.dispersion)
}

// slowestCost returns what a flow's shift costs, which is that of the 99th percentile where it moved further than the median. The
// percentile moves by the delay of the slowest part that has more than one packet in 100 of this window, and the median by that
// which has half of them.
func (m *model) slowestCost(fl *flow, parts []part) float64 {
	f := fl.finding
	if !f.HasShift || f.ClockSuspect {
		return 0
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(b.load.delay, a.load.delay) })
	arrived := fl.sent - fl.lost
	likelihood, share, reached := 0.0, 0.0, 0.0
	for i, x := range parts {
		share += x.share
		if i+1 < len(parts) && parts[i+1].load.delay == x.load.delay {
			continue
		}
		up := 1.0
		if share < fullShare {
			up = exceedProbability(arrived, share, 0.01)
		}
		if up <= reached {
			continue
		}
		here := up - reached
		if f.Delayed && x.load.delay > 0 {
			moved := 1.0
			if share < fullShare {
				moved = exceedProbability(arrived, share, 0.5) / up
			}
			moved = min(max(moved, medianDoubt), 1-medianDoubt)
			if !fl.medianMoved {
				moved = 1 - moved
			}
			here *= moved
		}
		likelihood += here * math.Exp(-m.delayCost(fl, x.load.delay, x.load.again))
		reached = up
	}
	return min(-math.Log(max(likelihood, 1e-300)), m.p.Cap)
}

// exceedProbability returns how likely more than a portion of n packets are slow, if each is with a probability.
func exceedProbability(n uint64, slow, portion float64) float64 {
	if n == 0 {
		return 0
	}
	most := math.Floor(portion * float64(n)) // of n packets, while the quantile stays
	mean := slow * float64(n)
	if most > exactPackets || mean > 8*exactPackets {
		z := (most + 0.5 - mean) / math.Sqrt(max(mean*(1-slow), 1e-9))
		return 0.5 * math.Erfc(z/math.Sqrt2)
	}
	term := math.Exp(float64(n) * math.Log1p(-slow))
	sum, odds := term, slow/(1-slow)
	for k := 1.0; k <= most; k++ {
		term *= (float64(n) - k + 1) / k * odds
		sum += term
	}
	return max(0, 1-sum)
}

// pathsThrough returns the indices of the paths of a set that cross a candidate.
func (c *candidate) pathsThrough(ps *paths) []int32 {
	if have, ok := c.through[ps]; ok {
		return have
	}
	var out []int32
	for i, p := range ps.each {
		if c.crossedBy(p) {
			out = append(out, int32(i))
		}
	}
	if c.through == nil {
		c.through = map[*paths][]int32{}
	}
	c.through[ps] = out
	return out
}

// mixtureShare returns the share of the packets on the paths with the given indices.
func (ps *paths) mixtureShare(indices []int32) (share float64) {
	for _, i := range indices {
		share += ps.weight[i]
	}
	return min(share, 1)
}

// mixtureWays sorts the paths that a flow's packets take by their loads, and by whether they cross a candidate, which has a share
// of the packets.
func (fl *flow) mixtureWays(c *candidate, share float64) []crossing {
	type way struct {
		index   int32
		load    load
		crosses bool
	}
	var ways []way
	var at map[int32]int // where the paths are many
	find := func(i int32) *way {
		if at == nil {
			if j := slices.IndexFunc(ways, func(w way) bool { return w.index == i }); j >= 0 {
				return &ways[j]
			}
		} else if j, ok := at[i]; ok {
			return &ways[j]
		}
		ways = append(ways, way{index: i, load: fl.load, crosses: share >= 1})
		if at == nil && len(ways) > fewWays {
			at = make(map[int32]int, len(fl.paths.each))
			for j := range ways {
				at[ways[j].index] = j
			}
		} else if at != nil {
			at[i] = len(ways) - 1
		}
		return &ways[len(ways)-1]
	}
	for _, s := range fl.partial {
		for _, i := range s.paths {
			w := find(i)
			w.load = w.load.plus(s.load)
		}
	}
	if share > 0 && share < 1 {
		for _, i := range c.pathsThrough(fl.paths) {
			find(i).crosses = true
		}
	}
	var out []crossing
	add := func(l load, crosses bool, weight float64) {
		j := slices.IndexFunc(out, func(x crossing) bool { return x.load == l })
		if j < 0 {
			j, out = len(out), append(out, crossing{load: l})
		}
		if crosses {
			out[j].through += weight
		} else {
			out[j].past += weight
		}
	}
	rest := 1.0
	for _, w := range ways {
		add(w.load, w.crosses, fl.paths.weight[w.index])
		rest -= fl.paths.weight[w.index]
	}
	if rest > 1-fullShare {
		add(fl.load, share >= 1, rest)
	}
	return out
}
