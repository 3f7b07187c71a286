package triangulate

import (
	"math"
	"slices"

	"github.com/graylink/graylink/internal/judge"
)

// load is what broken elements do to the packets that cross them: nanoseconds added to
// the median and, beyond that, to the tail; the logarithms of the shares neither lost
// nor marked. Loads of elements on one path add up. again is what an element may add once more to a
// round trip that crosses it both ways: it may be slow in one direction only.
type load struct{ delay, tail, survive, clear, again float64 }

func (l load) plus(e load) load {
	return load{l.delay + e.delay, l.tail + e.tail, l.survive + e.survive, l.clear + e.clear, l.again + e.again}
}

func (l load) minus(e load) load {
	return load{l.delay - e.delay, l.tail - e.tail, l.survive - e.survive, l.clear - e.clear, l.again - e.again}
}

// onRoundTrip returns the load of an element on a flow that crosses it both ways.
func (l load) onRoundTrip() load {
	l.again = l.delay
	return l
}

// lossOnly reports whether a load neither delays nor marks.
func (l load) lossOnly() bool { return l.delay == 0 && l.tail == 0 && l.clear == 0 }

// affectedShare returns the affected share from the logarithm of the share let through.
func affectedShare(through float64) float64 { return 0 - math.Expm1(through) } // not -0

// model is the likelihood of a flow's window. All costs are in nats, against the
// explanation that fits the flow best, and capped: a path may be wrong, a host may
// have hiccuped.
type model struct {
	p Parameters
	// hop is the loss ratio of a healthy directed link.
	hop float64
	// burst is the mean number of packets that are lost in one event; 1 if losses are single ones.
	burst float64
	// mixtures is set if the packets of some flows take several paths in turn.
	mixtures bool
	// dispersion is the variance of what mixtures lose against that of single losses.
	dispersion float64
}

// prepareFlow works out what of a flow's likelihood does not change.
func (m *model) prepareFlow(fl *flow) {
	fl.base = -m.hop * float64(fl.hops)
	switch {
	case fl.lost == 0:
	case m.burst > 1 && fl.lost <= exactLosses:
		fl.best = m.bestBurstLL(fl.lost, fl.sent)
	default:
		fl.best = judge.BinomialLL(fl.lost, fl.sent, float64(fl.lost)/float64(fl.sent))
	}
}

// costOf returns the negative log-likelihood of a flow whose packets have the load l.
func (m *model) costOf(fl *flow, l load) float64 {
	return m.delayCost(fl, l.delay, l.again) + m.tailCost(fl, l.tail) + m.lossCost(fl, l.survive) + m.markCost(fl, l.clear)
}

// delayCost returns what a flow's shift costs under an added delay of d to d + again.
func (m *model) delayCost(fl *flow, d, again float64) float64 {
	f := fl.finding
	if !f.HasShift || f.ClockSuspect {
		return 0
	}
	a := max(float64(f.Shift), 0)
	// A healthy flow's own small wander is no evidence of anything.
	if !f.Delayed && a <= float64(f.Scale) {
		a = 0
	}
	d = min(max(a, d), d+again)
	// The scale of the error grows with the delay itself: a queue is not a constant.
	scale := max(float64(f.Scale)/2, 0.1*max(d, a), 1)
	return min(math.Abs(a-d)/scale, m.p.Cap)
}

func (m *model) tailCost(fl *flow, t float64) float64 {
	f := fl.finding
	if !f.HasTail || f.ClockSuspect {
		return 0
	}
	a := 0.0
	if f.Jittery {
		a = max(float64(f.TailShift), 0)
	}
	// Tails differ much from flow to flow.
	scale := max(float64(f.TailScale), 0.5*max(t, a), 1)
	return min(math.Abs(a-t)/scale, m.p.TailCap)
}

func (m *model) lossCost(fl *flow, survive float64) float64 {
	if fl.sent == 0 {
		return 0
	}
	through := fl.base + survive
	if fl.lost == 0 {
		return min(-float64(fl.sent)*through/m.burst, m.p.Cap)
	}
	if m.burst > 1 && fl.lost <= exactLosses {
		return min(max(0, fl.best-m.burstLL(fl.lost, float64(fl.sent)*affectedShare(through)/m.burst)), m.p.Cap)
	}
	lost := float64(fl.lost)
	now := lost*math.Log(max(affectedShare(through), 1e-12)) + (float64(fl.sent)-lost)*through
	// The variance of a sum of geometric lengths is so many times that of single losses.
	return min(max(0, fl.best-now)/(2*m.burst-1), m.p.Cap)
}

func (m *model) markCost(fl *flow, clear float64) float64 {
	n := fl.sent - fl.lost
	if n == 0 || !fl.finding.Marked && clear == 0 || fl.finding.Obs.ECN == nil {
		return 0
	}
	marks := min(*fl.finding.Obs.ECN, n)
	own := max(float64(marks)/float64(n), m.p.BaseMark)
	now := judge.BinomialLL(marks, n, 1-(1-m.p.BaseMark)*math.Exp(clear))
	// Packets that meet one queue are marked together, and each port has its own: so many
	// marks say what a few would by chance alone.
	alike := min(1, m.p.MarkPackets/float64(n))
	return min(max(0, judge.BinomialLL(marks, n, own)-now)*alike, m.p.MarkCap)
}

// crossing is how many of a flow's candidate paths with one load go through a
// candidate, and how many past it.
type crossing struct {
	load          load
	through, past float64
}

// groupPaths sorts a flow's candidate paths by their loads and by whether they cross c. Paths of a mixture count by their shares.
func (fl *flow) groupPaths(c *candidate, share float64) []crossing {
	if fl.mixed() {
		return fl.mixtureWays(c, share)
	}
	type way struct {
		load    load
		crosses bool
	}
	ways := make([]way, len(fl.paths.each))
	for i := range ways {
		ways[i] = way{fl.load, share >= 1 || c.crossedBy(fl.paths.each[i])}
	}
	for _, s := range fl.partial {
		for _, i := range s.paths {
			ways[i].load = ways[i].load.plus(s.load)
		}
	}
	var out []crossing
next:
	for _, w := range ways {
		through, past := 0.0, 1.0
		if w.crosses {
			through, past = 1, 0
		}
		for i := range out {
			if out[i].load == w.load {
				out[i].through += through
				out[i].past += past
				continue next
			}
		}
		out = append(out, crossing{w.load, through, past})
	}
	return out
}

// updateCost works out a flow's cost under its present loads.
func (m *model) updateCost(fl *flow) {
	if fl.mixed() {
		k := member{share: 1}
		if fl.partial != nil {
			k.crossings = fl.mixtureWays(nil, 0)
		}
		parts := partsOf(nil, fl, &k, load{})
		fl.survive = throughMixture(parts, survival)
		fl.cost = m.costOfParts(fl, parts)
		return
	}
	if fl.partial == nil {
		fl.cost = m.costOf(fl, fl.load)
		return
	}
	sum := 0.0
	for _, c := range fl.groupPaths(&candidate{}, 0) {
		sum += c.past * math.Exp(-m.costOf(fl, c.load))
	}
	fl.cost = -math.Log(sum / float64(len(fl.paths.each)))
}

// memberGain returns by how many nats an effect on a candidate makes a member's window likelier. Only one of the
// candidate paths is that of the flow, so its likelihood is their mean.
func (m *model) memberGain(fl *flow, k *member, e load) float64 {
	if k.bothWays {
		e = e.onRoundTrip()
	}
	if fl.mixed() {
		return fl.cost - m.mixedCost(fl, k, e)
	}
	if k.crossings == nil {
		delta := fl.cost - m.costOf(fl, fl.load.plus(e))
		if k.share >= 1 {
			return delta
		}
		return math.Log1p(k.share * math.Expm1(delta))
	}
	return m.meanGain(fl, k, e, m.costOf)
}

func (m *model) meanGain(fl *flow, k *member, e load, cost func(*flow, load) float64) float64 {
	sum, n := 0.0, 0.0
	for _, w := range k.crossings {
		n += w.through + w.past
		if w.past > 0 {
			sum += w.past * math.Exp(-cost(fl, w.load))
		}
		if w.through > 0 {
			sum += w.through * math.Exp(-cost(fl, w.load.plus(e)))
		}
	}
	return fl.cost + math.Log(sum/n)
}

// profileGain returns the gain of a flow that represents all of its profile.
func (m *model) profileGain(fl *flow, share float64, e load) float64 {
	if fl.mixed() {
		healthy := [1]part{{share: 1}}
		met := [2]part{{e, share}, {share: 1 - share}}
		n := 2
		if share >= 1 {
			n = 1
		}
		return m.costOfParts(fl, healthy[:]) - m.costOfParts(fl, met[:n])
	}
	delta := m.costOf(fl, load{}) - m.costOf(fl, e)
	if share >= 1 {
		return delta
	}
	return math.Log1p(share * math.Expm1(delta))
}

// lossGain returns the gain of an effect that only loses.
func (m *model) lossGain(fl *flow, k *member, survive float64) float64 {
	if fl.mixed() {
		var few [8]part
		return m.mixedLossCost(fl, fl.survive) - m.mixedLossCost(fl, throughMixture(partsOf(few[:0], fl, k, load{survive: survive}), survival))
	}
	if k.crossings != nil {
		return m.memberGain(fl, k, load{survive: survive})
	}
	delta := m.lossCost(fl, fl.load.survive) - m.lossCost(fl, fl.load.survive+survive)
	if k.share >= 1 {
		return delta
	}
	return math.Log1p(k.share * math.Expm1(delta))
}

// slowestLoad returns the delay of the slowest of a flow's packets by what is named.
func (fl *flow) slowestLoad() float64 {
	most := 0.0
	if fl.mixed() {
		for _, s := range fl.partial {
			most = max(most, s.load.delay)
		}
	}
	return fl.load.delay + most
}

// applyLoad takes an element that is named into a flow's loads, or out of them again.
func (fl *flow) applyLoad(c *candidate, share float64, e load, out bool) {
	if fl.roundTrip.crossesBothWays(c) {
		e = e.onRoundTrip()
	}
	switch {
	case share >= 1 && out:
		fl.load = fl.load.minus(e)
		if math.Abs(fl.load.survive) < 1e-12 {
			fl.load.survive = 0 // what rounding left
		}
	case share >= 1:
		fl.load = fl.load.plus(e)
	case out:
		fl.partial = slices.DeleteFunc(fl.partial, func(s partialLoad) bool { return s.candidate == c })
		if len(fl.partial) == 0 {
			fl.partial = nil
		}
	default:
		s := partialLoad{candidate: c, load: e}
		if fl.mixed() {
			s.paths = c.pathsThrough(fl.paths)
			fl.partial = append(fl.partial, s)
			return
		}
		for i, p := range fl.paths.each {
			if c.crossedBy(p) {
				s.paths = append(s.paths, int32(i))
			}
		}
		fl.partial = append(fl.partial, s)
	}
}

// profile sorts flows that are plainly healthy by what matters of them: all of a kind
// speak for or against an element alike.
type profile struct {
	sent, scale, tail int16 // eighths of a power of two; -1: not measured
	marks, mixed      bool
}

func (fl *flow) healthyProfile() (profile, bool) {
	f := fl.finding
	if f.Condition == judge.Degraded || fl.lost > 0 || f.HasShift && !f.ClockSuspect && f.Shift > f.Scale {
		return profile{}, false
	}
	p := profile{sent: -1, scale: -1, tail: -1, marks: f.Obs.ECN != nil, mixed: fl.mixed()}
	if fl.sent > 0 {
		p.sent = log2Eighths(float64(fl.sent))
	}
	if f.HasShift && !f.ClockSuspect {
		p.scale = log2Eighths(float64(f.Scale))
	}
	if f.HasTail && !f.ClockSuspect {
		p.tail = log2Eighths(float64(f.TailScale))
	}
	return p, true
}

// speaksForAll reports whether a flow is as any other of its profile: plainly healthy,
// and what is named on its paths does no more than lose. (What is lost there does not
// change what a flow without losses says of others, except where it distinguishes its paths;
// that little is left out.)
func (fl *flow) speaksForAll() bool {
	return fl.profile >= 0 && fl.load.lossOnly() && !slices.ContainsFunc(fl.partial, func(s partialLoad) bool { return !s.load.lossOnly() })
}

func log2Eighths(v float64) int16 { return int16(8 * math.Log2(max(v, 1))) }
