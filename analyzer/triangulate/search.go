package triangulate

import (
	"cmp"
	"math"
	"runtime"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// fit is what a candidate would do to the packets, and how much likelier that makes
// the evidence, its price paid.
type fit struct {
	load
	gain   float64
	paid   float64 // of the gain: its prices
	useful int     // flows that it makes likelier by more than a little
	// others is what all flows but the one that it helps most gain together.
	others float64
}

// Loss ratios that a broken element may have, and the logarithms of how likely they are
// before anything is seen. Most that break silently lose between one in a thousand and
// one in thirty. Those that lose more are obvious, and those that lose less matter little.
var lossGrid, lossPrior = func() (grid, prior []float64) {
	const least, most, perDecade = 5e-4, 0.9995, 6
	sum := 0.0
	for q := least; ; q *= math.Pow(10, 1.0/perDecade) {
		w := 1.0
		if q > 1e-3 && q < 3.5e-2 {
			w = 4
		}
		grid, prior = append(grid, min(q, most)), append(prior, w)
		sum += w
		if q >= most {
			break
		}
	}
	for i := range prior {
		prior[i] = math.Log(prior[i] / sum)
	}
	return grid, prior
}()

// little is a gain that a flow makes by chance.
const little = 0.5

// minShare is the probability of crossing below which a flow is not asked what a
// candidate does; it still says how likely that is.
const minShare = 0.02

type search struct {
	e            *Engine
	p            Parameters
	m            model
	flows        []flow
	list         *listing
	cands        []*candidate
	candidatesAt [][]int32 // candidates by place
	named        []*candidate
	evidenceAt   []evidence // at every place, beside what is named
	// bundles are the places that no flow distinguishes, by the one that stands for them; standIn has that one.
	bundles    map[component][]component
	standIn    map[component]component
	visitStamp int32
	rivals     []Unnamed // of what is named
	namedCount int       // of what is named
	// classes: there are several classes of packets.
	classes bool
	// worth is how much likelier what is named makes the evidence, its prices paid.
	worth float64
}

func newSearch(e *Engine, flows []flow, p Parameters) *search {
	p.scalePrices(e.ndirs)
	assignProfiles(flows)
	s := &search{e: e, p: p, flows: flows, bundles: mergePlaces(e, flows), standIn: map[component]component{},
		candidatesAt: make([][]int32, e.componentCount())}
	for at, group := range s.bundles {
		for _, c := range group {
			s.standIn[c] = at
		}
	}
	s.m = healthyModel(e, flows, p)
	for i := range flows {
		s.m.prepareFlow(&flows[i])
		s.m.updateCost(&flows[i])
	}
	s.evidenceAt = surveyComponents(e, flows, s.m.hop, p)
	return s
}

// healthyModel returns the model of what healthy links do, which is estimated from the flows.
func healthyModel(e *Engine, flows []flow, p Parameters) model {
	if !slices.ContainsFunc(flows, func(fl flow) bool { return fl.mixed() }) {
		return model{p: p, hop: healthyHop(e, flows, p), burst: estimateBurst(e, flows, p)}
	}
	clean, hop := healthyFlows(e, flows, p)
	use := func(i int) bool { return clean[i] }
	return model{p: p, mixtures: true, hop: hop, burst: burstOf(flows, use), dispersion: lossDispersion(surveyIf(e, flows, hop, p, use))}
}

// splitMembers sorts a candidate's members into those that are plainly healthy, which speak in
// groups, and the others. Once is enough while nothing is named that does more than lose.
func (s *search) splitMembers(c *candidate) {
	if !c.sorted {
		c.groups, c.special = c.groups[:0], c.special[:0]
		type kind struct {
			profile int32
			share   float64
		}
		at := map[kind]int{}
		lastKind, last := kind{-1, 0}, 0
		for _, m := range c.members {
			fl := &s.flows[m.flow]
			if !fl.speaksForAll() {
				c.special = append(c.special, m)
				continue
			}
			k := kind{fl.profile, m.share}
			if k != lastKind {
				i, ok := at[k]
				if !ok {
					i = len(c.groups)
					at[k] = i
					c.groups = append(c.groups, group{member: m})
				}
				lastKind, last = k, i
			}
			c.groups[last].count++
		}
		c.sorted = true
	}
	// What losses say of the others depends on little, and they are asked often: those
	// that are alike are asked once.
	type loss struct {
		sent, lost    uint64
		base, survive float64
		share         float64
		mixed         bool
	}
	c.losses = c.losses[:0]
	at := map[loss]int{}
	for i := range c.special {
		k := &c.special[i]
		k.crossings = nil
		fl := &s.flows[k.flow]
		whole := *k
		if fl.partial != nil {
			k.crossings = fl.groupPaths(c, k.share)
			if !fl.losesAlike() {
				c.losses = append(c.losses, group{*k, 1})
				continue
			}
		}
		l := loss{fl.sent, fl.lost, fl.base, fl.load.survive, k.share, fl.mixed()}
		j, ok := at[l]
		if !ok {
			j = len(c.losses)
			at[l] = j
			c.losses = append(c.losses, group{member: whole})
		}
		c.losses[j].count++
	}
}

// totalGain returns the gain of an effect over all members.
func (s *search) totalGain(c *candidate, e load) float64 {
	g := 0.0
	for i := range c.groups {
		k := &c.groups[i]
		g += k.count * s.m.profileGain(&s.flows[k.flow], k.share, e)
	}
	for i := range c.special {
		k := &c.special[i]
		g += s.m.memberGain(&s.flows[k.flow], k, e)
	}
	return g
}

// refit finds the effect of a candidate that explains the evidence best, beside what
// is named already.

func (s *search) refitCandidate(c *candidate) {
	s.listFlows(c)
	c.fresh = true
	c.fitCount++
	c.fit = fit{gain: math.Inf(-1)}
	if s.memberCost(c) < c.price {
		return
	}
	s.splitMembers(c)
	var e load
	price := c.price
	try := func(signal load, gain, occam float64) {
		if gain > occam {
			e = e.plus(signal)
			price += occam
		}
	}
	if d := quantileOf(s.delayRemainders(c), 0.5); d > 0 {
		try(load{delay: d}, s.totalGain(c, load{delay: d}), s.p.Occam)
	}
	if t := quantileOf(s.remainders(c, func(f *judge.Finding) bool { return f.Jittery }, func(fl *flow) (float64, float64) {
		return float64(fl.finding.TailShift) - fl.load.tail, float64(fl.finding.TailScale)
	}), 0.5); t > 0 {
		try(load{tail: t}, s.totalGain(c, load{tail: t}), s.p.Occam)
	}
	if q, gain, occam := s.fitLoss(c); q < 0 {
		try(load{survive: q}, gain, occam)
	}
	if m := s.fitMarks(c); m > 0 {
		try(load{clear: math.Log1p(-m)}, s.totalGain(c, load{clear: math.Log1p(-m)}), s.p.Occam)
	}
	if e == (load{}) {
		return
	}
	total, most := s.totalGain(c, e), 0.0
	c.fit = fit{load: e, gain: total - price, paid: price}
	for i := range c.special {
		k := &c.special[i]
		g := s.m.memberGain(&s.flows[k.flow], k, e)
		// A share of a flow's packets says little, and thousands of flows together much.
		if g > little || g > 0 && s.flows[k.flow].mixed() {
			c.fit.useful++
		}
		most = max(most, g)
	}
	c.fit.others = total - most
}

// isAsked reports whether a flow says anything of what a candidate does. One that may have crossed it, with little probability, does not.
func (k *member) isAsked(fl *flow) bool { return k.share >= minShare || fl.mixed() }

// remainders returns what is left to explain of the members that say selects, sorted.
func (s *search) remainders(c *candidate, says func(*judge.Finding) bool, rest func(*flow) (left, scale float64)) (all []float64) {
	for _, k := range c.special {
		fl := &s.flows[k.flow]
		if !k.isAsked(fl) || !says(fl.finding) {
			continue
		}
		if left, scale := rest(fl); left > scale/2 {
			all = append(all, left)
		}
	}
	slices.Sort(all)
	return all
}

// fitLoss finds the likeliest loss, as the logarithm of the share let through; 0: none.
// occam is what its having been free costs: the difference between the best and the mean
// likelihood over all ratios.
func (s *search) fitLoss(c *candidate) (survive, gain, occam float64) {
	lost, sent := 0.0, 0.0
	for i := range c.special {
		k := &c.special[i]
		if fl := &s.flows[k.flow]; fl.lost > 0 && k.isAsked(fl) {
			of := k.share // of what it lost
			if fl.mixed() {
				of = 1
			}
			lost += of * float64(fl.lost)
			sent += k.share * float64(fl.sent)
		}
	}
	if lost == 0 {
		return 0, 0, 0
	}
	for i := range c.groups {
		k := &c.groups[i]
		sent += k.share * k.count * float64(s.flows[k.flow].sent)
	}
	gains := make([]float64, len(lossGrid))
	for i := range gains {
		gains[i] = math.Inf(-1)
	}
	// From what the counts suggest the grid is climbed, and left on both sides where
	// nothing is to be had any more.
	const hopeless = 12
	start := min(len(lossGrid)-1, max(0, int(math.Log(lost/sent/lossGrid[0])/math.Log(lossGrid[1]/lossGrid[0]))))
	best := start
	at := func(i int) float64 {
		gains[i] = s.lossTotal(c, math.Log1p(-lossGrid[i]))
		if gains[i] > gains[best] {
			best = i
		}
		return gains[i]
	}
	at(start)
	for i := start + 1; i < len(lossGrid); i++ {
		if at(i) < gains[best]-hopeless {
			break
		}
	}
	for i := start - 1; i >= 0; i-- {
		if at(i) < gains[best]-hopeless {
			break
		}
	}
	top := peak{math.Log(-math.Log1p(-lossGrid[best])), gains[best]}
	// Where many packets were lost of each flow the likelihood is a spike that the grid may
	// miss altogether; what the typical flow lost does not.
	narrow := false
	if q := s.typicalLoss(c); q > 0 {
		x := math.Log(-math.Log1p(-min(q, lossGrid[len(lossGrid)-1])))
		if g := s.lossTotal(c, -math.Exp(x)); g > top.gain+1 {
			top, narrow = peak{x, g}, true
		}
	}
	step, width := math.Log(lossGrid[1]/lossGrid[0]), 1/math.Sqrt(lost)
	if top.gain > 0 {
		for h := step; h > width/4 && h > 1e-4; h /= 4 {
			top = s.climbPeak(c, top, h)
		}
	}
	mean := 0.0
	for i, g := range gains {
		mean += math.Exp(g - top.gain + lossPrior[i])
	}
	if narrow {
		mean += math.Exp(lossPrior[best]) * min(1, math.Sqrt(2*math.Pi)*width/step)
	}
	occam = -math.Log(mean)
	return -math.Exp(top.at), top.gain, occam
}

// peak is the likeliest loss so far: at is the logarithm of the exponent by which packets
// are let through.
type peak struct{ at, gain float64 }

// climbPeak looks a step to both sides of a peak, and where a parabola through the three is
// highest.
func (s *search) climbPeak(c *candidate, p peak, step float64) peak {
	most := math.Log(-math.Log1p(-lossGrid[len(lossGrid)-1]))
	look := func(x float64) peak {
		x = min(x, most)
		return peak{x, s.lossTotal(c, -math.Exp(x))}
	}
	l, r := look(p.at-step), look(p.at+step)
	for _, q := range []peak{l, r, look(p.at + step*parabolaVertex(l.gain, p.gain, r.gain))} {
		if q.gain > p.gain {
			p = q
		}
	}
	return p
}

// typicalLoss returns the median loss ratio of the members with significant losses, or 0 if
// there are none.
func (s *search) typicalLoss(c *candidate) float64 {
	var all []float64
	for i := range c.special {
		k := &c.special[i]
		if fl := &s.flows[k.flow]; fl.finding.Lossy && k.isAsked(fl) {
			through := 1 - float64(fl.lost)/float64(fl.sent)
			if left := 1 - through/math.Exp(fl.load.survive+fl.survive); left > 0 {
				if fl.mixed() {
					left = min(1, left/k.share)
				}
				all = append(all, left)
			}
		}
	}
	slices.Sort(all)
	return quantileOf(all, 0.5)
}

// parabolaVertex returns the position of the maximum of a parabola through three values, one step apart. It is in steps
// from the middle one, at most one to either side.
func parabolaVertex(l, m, r float64) float64 {
	curve := l - 2*m + r
	if !(curve < 0) || math.IsInf(curve, 0) {
		return 0
	}
	return math.Max(-1, math.Min(1, 0.5*(l-r)/curve))
}

// lossTotal returns the total gain for loss alone.
func (s *search) lossTotal(c *candidate, survive float64) float64 {
	g := 0.0
	for i := range c.groups {
		k := &c.groups[i]
		g += k.count * s.m.profileGain(&s.flows[k.flow], k.share, load{survive: survive})
	}
	for i := range c.losses {
		k := &c.losses[i]
		g += k.count * s.m.lossGain(&s.flows[k.flow], &k.member, survive)
	}
	return g
}

// fitMarks returns the share of marked packets among the marked flows.
func (s *search) fitMarks(c *candidate) float64 {
	marks, sent := 0.0, 0.0
	for _, k := range c.special {
		fl := &s.flows[k.flow]
		if fl.finding.Marked && k.isAsked(fl) {
			marks += float64(*fl.finding.Obs.ECN)
			of := 1.0
			if fl.mixed() {
				of = k.share
			}
			sent += of * float64(fl.sent-fl.lost)
		}
	}
	if sent == 0 {
		return 0
	}
	return math.Min(marks/sent, lossGrid[len(lossGrid)-1])
}

// slack is by how much a fit may have gained by what was named since.
const slack = 4

// refreshFits brings those fits up to date that may have a gain of at least least.
func (s *search) refreshFits(least float64) {
	var stale []*candidate
	for _, c := range s.cands {
		if !c.named && !c.fresh && c.bound >= least {
			stale = append(stale, c)
		}
	}
	s.refitAll(stale)
}

func (s *search) refitAll(stale []*candidate) {
	workers := min(runtime.GOMAXPROCS(0), 1+len(stale)/8)
	splitWork(len(stale), workers, func(_, lo, hi int) {
		for _, c := range stale[lo:hi] {
			s.refitCandidate(c)
			c.bound = c.fit.gain + slack
		}
	})
}

// bestCandidate returns the candidate with the largest gain after its price, or nil if none has one. Among those the evidence
// cannot distinguish from it, the narrowest is named.
func (s *search) bestCandidate() *candidate {
	var top *candidate
	better := func(c *candidate) {
		if !c.named && s.isWorthNaming(c) && (top == nil || c.fit.gain > top.fit.gain) {
			top = c
		}
	}
	var stale []*candidate
	for _, c := range s.cands {
		switch {
		case c.named:
		case c.fresh:
			better(c)
		case c.bound >= s.p.MinGain:
			stale = append(stale, c)
		}
	}
	// The most promising first: most of the others need not be looked at.
	slices.SortStableFunc(stale, func(a, b *candidate) int { return cmp.Compare(b.bound, a.bound) })
	const batch = 32
	for len(stale) > 0 && (top == nil || stale[0].bound > top.fit.gain) {
		n := min(batch, len(stale))
		s.refitAll(stale[:n])
		for _, c := range stale[:n] {
			better(c)
		}
		stale = stale[n:]
	}
	if top == nil {
		return nil
	}
	for _, c := range s.cands {
		if c.named || widthRank(c.Element) >= widthRank(top.Element) || c.bound < top.fit.gain-slack {
			continue
		}
		if s.listFlows(c); !sameMembers(c, top) {
			continue
		}
		if !c.fresh {
			s.refitCandidate(c)
		}
		if s.isWorthNaming(c) && c.fit.gain+c.price > top.fit.gain+top.price-s.p.SameGain {
			top = c
		}
	}
	return top
}

// isWorthNaming reports whether a candidate may be named: by more than one flow.
func (s *search) isWorthNaming(c *candidate) bool {
	return c.fit.gain >= s.requiredGain() && c.fit.useful >= s.p.MinEdges && c.fit.others >= s.p.MinOthers
}

// requiredGain returns the gain from which an element is named. Most fabrics have nothing broken: the
// first has to overcome that as well. So has each where packets are sprayed, since all flows together show what healthy links differ by.
func (s *search) requiredGain() float64 {
	least := s.p.MinGain
	if s.namedCount == 0 || s.m.mixtures {
		least = s.p.FirstGain
	}
	if s.m.burst > 1 {
		least += s.p.BurstGain
	}
	return least
}

// applyCandidate takes a candidate's effect into the loads of the flows that cross it, or out.
func (s *search) applyCandidate(c *candidate, out bool) {
	e := c.fit.load
	s.visitStamp++
	var touched []*candidate
	for _, m := range c.members {
		fl := &s.flows[m.flow]
		said, before := s.remainingEvidence(fl), fl.cost
		fl.applyLoad(c, m.share, e, out)
		s.m.updateCost(fl)
		s.worth += before - fl.cost
		says := s.remainingEvidence(fl)
		// A healthy flow on a lossy element has the same evidence about other elements as before.
		asBefore := e.lossOnly() && fl.speaksForAll()
		if asBefore && says == said {
			continue
		}
		lost, expected := says.lost-said.lost, says.expected-said.expected
		at := func(p component) {
			v := &s.evidenceAt[p]
			v.late += says.late - said.late
			if asBefore {
				return
			}
			for _, i := range s.candidatesAt[p] {
				other := s.cands[i]
				if other.touched != s.visitStamp {
					other.touched = s.visitStamp
					touched = append(touched, other)
				}
			}
		}
		for _, p := range fl.crossed {
			s.evidenceAt[p].addLosses(lost, expected)
			at(p)
		}
		if fl.paths == nil {
			continue
		}
		for i, p := range fl.paths.at {
			if v := &s.evidenceAt[p]; fl.mixed() {
				v.addMixedLosses(lost, expected)
			} else {
				v.addLosses(fl.paths.share[i]*lost, fl.paths.share[i]*expected)
			}
			at(p)
		}
	}
	for _, other := range touched {
		most := s.gainBoundOf(other)
		if !out {
			most = min(most, other.bound)
		}
		other.fresh, other.loadsChanged, other.bound = false, true, most
		if !e.lossOnly() {
			other.sorted = false // its healthy flows are not all alike any more
		}
	}
	c.named, c.loadsChanged = !out, false
	if out {
		s.worth += c.fit.paid
		s.namedCount--
	} else {
		s.worth -= c.fit.paid
		s.namedCount++
	}
}

// nameGreedily names elements until none pays.
func (s *search) nameGreedily() {
	for len(s.named) < s.p.MaxElements {
		top := s.bestCandidate()
		if top == nil {
			return
		}
		s.applyCandidate(top, false)
		s.named = append(s.named, top)
	}
}

// reviseNamed takes each named element back in turn and asks again, beside the others that
// are named: what was named first may have been named for two. Then it asks whether
// one of those that could stand in its place explains more, with what follows from it.
func (s *search) reviseNamed() {
	const rounds = 3
	for range rounds {
		before := slices.Clone(s.named)
		for i := 0; i < len(s.named); i++ {
			if !s.named[i].loadsChanged {
				continue // its elements have not changed
			}
			was, fits := s.named[i], s.candidateStates()
			gain := was.fit.gain
			s.applyCandidate(was, true)
			top := s.bestCandidate()
			if top == nil {
				s.named = slices.Delete(s.named, i, i+1)
				i--
				continue
			}
			s.named[i] = top
			s.applyCandidate(top, false)
			if top == was && math.Abs(top.fit.gain-gain) < slack {
				s.restoreCandidates(fits, false)
			}
		}
		s.nameGreedily()
		for i := 0; i < len(s.named); i++ {
			if c := s.named[i]; !c.tried || c.loadsChanged {
				s.tryReplacing(i)
				c.tried = true
			}
		}
		if slices.Equal(before, s.named) {
			return
		}
	}
}

// tryReplacing tries the strongest of those that could stand in the place of a named element, and the element itself with a
// lesser delay, each with all that then pays, and keeps what is worth most.
func (s *search) tryReplacing(i int) {
	const tries = 3
	kept := s.saveState()
	was := s.named[i]
	s.applyCandidate(was, true)
	s.refreshFits(kept.fits[i].gain / 2)
	var others []*candidate
	evidence := s.explainedBy(was)
	for _, c := range s.cands {
		// Of two that explain more than one does, the better explains half of it.
		if c != was && !c.named && s.isWorthNaming(c) && c.fit.gain >= kept.fits[i].gain/2 && !sameMembers(c, was) && s.hasStampedFlow(c, evidence) {
			others = append(others, c)
		}
	}
	slices.SortStableFunc(others, func(a, b *candidate) int { return cmp.Compare(b.fit.gain, a.fit.gain) })
	s.applyCandidate(was, false)
	s.restoreCandidates(kept.candidates, true)
	rest := slices.Delete(slices.Clone(kept.named), i, i+1)
	best := kept
	for _, c := range others[:min(tries, len(others))] {
		s.applyCandidate(was, true)
		s.refitCandidate(c)
		s.applyCandidate(c, false)
		s.named = append(slices.Clone(rest), c)
		s.nameGreedily()
		if s.worth > best.worth+s.p.MinGain {
			best = s.saveState()
		}
		s.restoreState(kept)
	}
	if was.mayHaveLesserDelay() {
		s.applyCandidate(was, true)
		lesser, ok := s.fitLesserDelay(was)
		if ok {
			was.fit = lesser
		}
		s.applyCandidate(was, false)
		if ok {
			s.nameGreedily()
		}
		// What is named besides has to change: a delay that varies has no other size for being explained a little better.
		if s.worth > best.worth+s.p.MinGain && !slices.Equal(s.named, kept.named) {
			best = s.saveState()
		}
		s.restoreState(kept)
	}
	if best.worth > kept.worth {
		s.restoreState(best)
	}
}

// mayHaveLesserDelay reports whether an element delays, and all packets alike. The ports of a switch delay by different amounts,
// so that of wider elements the median is right.
func (c *candidate) mayHaveLesserDelay() bool {
	return c.fit.delay > 0 && (c.Kind == fabric.KindLink || c.Kind == fabric.KindAccessLink || c.Kind == fabric.KindNIC)
}

// lesserShare is how much less a delay has to be to be tried in place of a fitted one.
const lesserShare = 0.75

// fitLesserDelay returns the fit of an element, which is not named at present, with the delay that three quarters of its delayed
// flows show at least. A median is the delay of two elements where most of the flows of one cross the other as well.
func (s *search) fitLesserDelay(c *candidate) (fit, bool) {
	d := quantileOf(s.delayRemainders(c), 0.25)
	if d <= 0 || d > lesserShare*c.fit.delay {
		return fit{}, false
	}
	out := c.fit
	out.delay = d
	out.gain = s.totalGain(c, out.load) - out.paid
	return out, true
}

// delayRemainders returns what is left to explain of the delays of a candidate's delayed members, sorted.
func (s *search) delayRemainders(c *candidate) []float64 {
	return s.remainders(c, func(f *judge.Finding) bool { return f.Delayed }, func(fl *flow) (float64, float64) {
		return float64(fl.finding.Shift) - fl.slowestLoad(), float64(fl.finding.Scale)
	})
}

// quantileOf returns a quantile of sorted values, and 0 if there are none.
func quantileOf(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)))]
}

// state is what is named, and how, with what is known of the others beside that.
type state struct {
	named      []*candidate
	fits       []fit
	worth      float64
	candidates []candidateState
}

// candidateState is what is known of a candidate.
type candidateState struct {
	fit            fit
	bound          float64
	fresh, stirred bool
	fits           int
}

func (s *search) saveState() state {
	out := state{named: slices.Clone(s.named), worth: s.worth, candidates: s.candidateStates()}
	for _, c := range s.named {
		out.fits = append(out.fits, c.fit)
	}
	return out
}

func (s *search) candidateStates() []candidateState {
	out := make([]candidateState, len(s.cands))
	for i, c := range s.cands {
		out[i] = candidateState{c.fit, c.bound, c.fresh, c.loadsChanged, c.fitCount}
	}
	return out
}

// restoreCandidates takes back what was known of the candidates that are not named, when the
// same is named again: by exactly as much, or else by so little more or less that bounds
// hold.
func (s *search) restoreCandidates(of []candidateState, exactly bool) {
	for i, c := range s.cands {
		if c.named {
			continue
		}
		k := &of[i]
		c.bound = k.bound
		if exactly {
			c.loadsChanged = k.stirred
			// What was fitted since was sorted by other loads.
			if c.fresh = k.fresh && c.fitCount == k.fits; c.fresh {
				c.fit = k.fit
			}
		}
	}
}

// restoreState names what a state has, and nothing else.
func (s *search) restoreState(to state) {
	now := s.named
	s.named = slices.Clone(to.named)
	at := func(c *candidate) int { return slices.Index(to.named, c) }
	for _, c := range now {
		if i := at(c); i < 0 || to.fits[i] != c.fit {
			s.applyCandidate(c, true)
		}
	}
	for i, c := range s.named {
		if !c.named {
			c.fit = to.fits[i]
			s.applyCandidate(c, false)
		}
	}
	s.restoreCandidates(to.candidates, true)
}

// explainedBy stamps the flows that a candidate makes likelier beside what is named, and
// returns the stamp.
func (s *search) explainedBy(c *candidate) int32 {
	s.visitStamp++
	for i := range c.special {
		k := &c.special[i]
		if fl := &s.flows[k.flow]; s.m.memberGain(fl, k, c.fit.load) > little {
			fl.stamp = s.visitStamp
		}
	}
	return s.visitStamp
}

// hasStampedFlow reports whether one of a candidate's flows has a stamp.
func (s *search) hasStampedFlow(c *candidate, stamp int32) bool {
	return slices.ContainsFunc(c.special, func(k member) bool { return s.flows[k.flow].stamp == stamp })
}

// isHostNoise reports whether all that a NIC or host does is a delay that the noise of a busy host and the error of its
// clock may add up to: both are on all flows of a NIC, as the delay of a slow NIC is. Such an element explains its flows,
// and is not reported.
func (s *search) isHostNoise(c *candidate) bool {
	if c.Kind != fabric.KindNIC && c.Kind != fabric.KindHost || len(c.special) == 0 {
		return false
	}
	only := load{delay: c.fit.delay, again: c.fit.again}
	return c.fit.load == only && c.fit.delay < hostNoise(s.flows[c.special[0].flow].finding.Obs.Timestamp)
}

// namedSuspects describes what is named, each beside the others.
func (s *search) namedSuspects() []Suspect {
	var out []Suspect
	for _, c := range s.named {
		if s.isHostNoise(c) {
			continue
		}
		f := c.fit
		s.applyCandidate(c, true)
		s.refitCandidate(c)
		const unlikely = 8
		s.refreshFits(c.fit.gain - unlikely)
		sus := Suspect{Element: c.Element, Gain: c.fit.gain, AddedDelayNS: int64(f.delay), TailDelayNS: int64(f.tail), LossRatio: affectedShare(f.survive), ECNRatio: affectedShare(f.clear)}
		if sus.LossRatio >= lossGrid[len(lossGrid)-1]-1e-9 {
			sus.LossRatio = 1
		}
		c.fit = f
		explained := map[int32]bool{}
		directed := false
		medians, tails := 0, 0 // of flows all of whose packets cross it
		var shares []float64
		s.visitStamp++
		for i := range c.special {
			k := &c.special[i]
			fl := &s.flows[k.flow]
			gain := s.m.memberGain(fl, k, f.load)
			degraded := fl.finding.Condition == judge.Degraded
			if degraded && gain > 0 || !degraded && fl.lost > 0 && (gain > little || gain > 0 && fl.mixed()) {
				explained[k.flow] = true
				sus.Explained = append(sus.Explained, int(fl.index))
				directed = directed || !fl.finding.RoundTrip
				if fl.mixed() && k.share < 1 {
					shares = append(shares, k.share)
				}
				switch {
				case !fl.finding.Delayed || k.share < 1:
				case fl.medianMoved:
					medians++
				default:
					tails++
				}
				fl.stamp = s.visitStamp
			}
		}
		for _, m := range c.members {
			if fl := &s.flows[m.flow]; m.share >= 0.5 && fl.finding.Condition == judge.Healthy && !explained[m.flow] {
				sus.Contrary = append(sus.Contrary, int(fl.index))
			}
		}
		if !directed && c.Kind != fabric.KindQueue {
			sus.Direction = fabric.Direction{} // the direction is unknown
		}
		if sus.Sprayed = len(shares); sus.Sprayed > 0 {
			sus.LeastShare, sus.MostShare = slices.Min(shares), slices.Max(shares)
		}
		if tails > medians { // the delay is that of its slowest packets
			sus.TailDelayNS, sus.AddedDelayNS = sus.TailDelayNS+sus.AddedDelayNS, 0
		}
		sus.Equivalent = s.bundled(c)
		s.findRivals(c, &sus)
		slices.Sort(sus.Explained)
		slices.Sort(sus.Contrary)
		s.applyCandidate(c, false)
		out = append(out, sus)
	}
	return out
}

// findRivals finds who else could be named in a candidate's stead: equivalents, and others
// that explain some of its flows, which take from its confidence. The candidate's
// explained flows are stamped.
func (s *search) findRivals(c *candidate, sus *Suspect) {
	rest := math.Exp(-c.fit.gain) // nothing is broken
	var rivals []*candidate
	for _, r := range s.cands {
		if r == c || r.named || r.Name == c.Name && r.Kind == c.Kind && r.Class == c.Class {
			continue
		}
		if sameMembers(r, c) {
			sus.Equivalent = append(append(sus.Equivalent, r.Element), s.bundled(r)...)
			continue
		}
		if !r.fresh || math.IsInf(r.fit.gain, -1) {
			continue
		}
		for _, k := range r.special {
			if s.flows[k.flow].stamp == s.visitStamp {
				rest += math.Exp(math.Min(r.fit.gain-c.fit.gain, 10))
				rivals = append(rivals, r)
				break
			}
		}
	}
	sus.Confidence = 1 / (1 + rest)
	s.addRivals(c, rivals, 1+rest)
}

// sameMembers reports whether two candidates, listed, are crossed by the same flows.
func sameMembers(a, b *candidate) bool {
	return a.listed && b.listed && a.fingerprint == b.fingerprint && len(a.members) == len(b.members)
}

// widthRank orders elements from narrow to wide: a NIC concerns one host, a link all that
// is routed over it, a switch all its links; one direction before both, a class before
// all, a link before what goes on from it.
func widthRank(e Element) int {
	n := map[fabric.Kind]int{fabric.KindNIC: 0, fabric.KindLink: 4, fabric.KindQueue: 3, fabric.KindCorridor: 6, fabric.KindHost: 2,
		fabric.KindPair: 7, fabric.KindLeafUplinks: 9, fabric.KindSwitch: 8}[e.Kind]
	if !e.OneWay() {
		n++
	}
	return n
}
