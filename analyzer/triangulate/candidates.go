package triangulate

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// candidate is an element that may be named, with the flows that cross it.
type candidate struct {
	Element
	price  float64
	anyOf  []component // a path crosses it that crosses one of these
	allOf  []component // or, for a stretch of a path, all of these
	at     []component // places in whose lists the flows are that cross one of anyOf
	filter func(*flow) bool

	members      []member
	groups       []group  // of members that are plainly healthy
	special      []member // the others, with their ways where these differ
	losses       []group  // the special ones by what they lost
	fingerprint  uint64   // order-free fingerprint of the members
	fit          fit
	bound        float64 // no effect gains more, as far as is known, beside what is named
	fresh        bool    // fit is of the search's present state
	listed       bool    // members are
	sorted       bool    // groups and special are
	named        bool
	loadsChanged bool               // since it was named, the loads of flows that cross it changed
	tried        bool               // others were tried in its place
	fitCount     int                // how often it was fitted
	touched      int32              // scratch of who visits candidates
	through      map[*paths][]int32 // paths of mixtures that cross it, by index
}

type member struct {
	flow      int32
	share     float64    // of its candidate paths
	crossings []crossing // nil means that all have the flow's load
	bothWays  bool       // a round trip crosses the candidate there and back
}

type group struct {
	member // one that stands for all
	count  float64
}

// crossedBy reports whether a path crosses the element.
func (c *candidate) crossedBy(path []component) bool {
	if c.allOf != nil {
		for _, p := range c.allOf {
			if !slices.Contains(path, p) {
				return false
			}
		}
		return true
	}
	for _, p := range c.anyOf {
		if slices.Contains(path, p) {
			return true
		}
	}
	return false
}

// crossingShare returns the probability that a flow crosses the element, before anything is named. shares caches the
// shares of candidate paths.
func (c *candidate) crossingShare(fl *flow, shares map[*paths]float64) float64 {
	if fl.paths == nil {
		return 1 // it is in the lists of the element's places
	}
	if c.allOf == nil && c.crossedBy(fl.crossed) {
		return 1
	}
	if c.allOf == nil {
		if share, ok := shares[fl.paths]; ok {
			return share
		}
	}
	if c.allOf == nil && fl.mixed() {
		share := fl.paths.mixtureShare(c.pathsThrough(fl.paths))
		if share >= fullShare {
			share = 1
		}
		shares[fl.paths] = share
		return share
	}
	n := 0
	for _, path := range fl.paths.each {
		if c.allOf == nil && c.crossedBy(path) || c.allOf != nil && c.crossedBy(append(slices.Clone(fl.crossed), path...)) {
			n++
		}
	}
	share := float64(n) / float64(len(fl.paths.each))
	shares[fl.paths] = share
	return share
}

// evidence is what was seen at a place.
type evidence struct {
	lost, expected float64 // packets, if all were healthy
	// mixedLost and mixedExpected are those of flows of which a share of the packets cross it.
	mixedLost, mixedExpected float64
	late                     float64 // what flows that are late, jittery or marked can say at most
	flows                    int32   // that cross it for certain
}

// addLosses adds packets that flows lost, and that they were expected to lose, which cross the place or may have.
func (v *evidence) addLosses(lost, expected float64) {
	v.lost += lost
	v.expected += expected
}

// addMixedLosses adds those of a flow of which a share of the packets cross it.
func (v *evidence) addMixedLosses(lost, expected float64) {
	v.mixedLost += lost
	v.mixedExpected += expected
}

// lossExcess returns the log-likelihood ratio of the losses at a component against those of healthy links alone. It
// is an upper bound for any share of them.
func (v *evidence) lossExcess() float64 {
	return excessOf(v.lost, v.expected) + excessOf(v.mixedLost, v.mixedExpected)
}

func excessOf(lost, expected float64) float64 {
	if lost <= expected || lost == 0 {
		return 0
	}
	return lost*math.Log(lost/math.Max(expected, 1e-9)) - (lost - expected)
}

// delayMarkCap returns the largest log-likelihood ratio that a flow's delays and marks can have, in nats.
func (p *Parameters) delayMarkCap(f *judge.Finding) (nats float64) {
	if f.Delayed {
		nats += p.Cap
	}
	if f.Jittery {
		nats += p.TailCap
	}
	if f.Marked {
		nats += p.MarkCap
	}
	return nats
}

func hasSymptom(f *judge.Finding) bool {
	return f.Condition == judge.Degraded && (f.Delayed || f.Jittery || f.Marked || f.Lossy)
}

// surveyComponents sums up what was seen at every place.
func surveyComponents(e *Engine, flows []flow, hop float64, limits Parameters) []evidence {
	return surveyIf(e, flows, hop, limits, func(int) bool { return true })
}

// surveyIf does the same for some of the flows.
func surveyIf(e *Engine, flows []flow, hop float64, limits Parameters, use func(i int) bool) []evidence {
	return sumEvidence(e.componentCount(), len(flows), func(out []evidence, i int) {
		if !use(i) {
			return
		}
		fl := &flows[i]
		lost := float64(fl.lost)
		expected := float64(fl.sent) * hop * float64(fl.hops)
		late := limits.delayMarkCap(fl.finding)
		counted := int32(0)
		if fl.decided {
			counted = 1
		}
		for _, p := range fl.crossed {
			v := &out[p]
			v.lost += lost
			v.expected += expected
			v.late += late
			v.flows += counted
		}
		if fl.mixed() {
			for _, p := range fl.paths.at {
				v := &out[p]
				v.mixedLost += lost
				v.mixedExpected += expected
				v.late += late
				v.flows += counted
			}
			return
		}
		if fl.paths != nil {
			for j, p := range fl.paths.at {
				v, s := &out[p], fl.paths.share[j]
				v.lost += lost * s
				v.expected += expected * s
				v.late += late
			}
		}
	})
}

// healthyHop estimates the loss ratio of a healthy directed link: that of the flows
// that cross no place whose losses stand out.
func healthyHop(e *Engine, flows []flow, p Parameters) float64 {
	rate := func(use func(*flow) bool) float64 {
		lost, hops := 0.0, 0.0
		for i := range flows {
			if fl := &flows[i]; use(fl) {
				lost += float64(fl.lost)
				hops += float64(fl.sent) * float64(fl.hops)
			}
		}
		if hops == 0 {
			return 0
		}
		return lost / hops
	}
	all := rate(func(*flow) bool { return true })
	if all <= p.LeastHop {
		return p.LeastHop
	}
	seen := surveyComponents(e, flows, all, p)
	bad := make([]bool, len(seen))
	for at := range seen {
		bad[at] = seen[at].lossExcess() > p.MostExcess
	}
	standsOut := func(at component) bool { return bad[at] }
	// What a flow crosses perhaps is not asked: those with known paths are known for
	// what they lost, it may be, and would be left alone.
	clean := rate(func(fl *flow) bool { return !slices.ContainsFunc(fl.crossed, standsOut) })
	return math.Min(math.Max(clean, p.LeastHop), p.MostHop)
}

// listing holds the flows that cross the places that matter.
type listing struct {
	from  []int32 // by place
	flows []int32
}

func newListing(e *Engine, flows []flow, wanted []bool) *listing {
	l := &listing{from: make([]int32, e.componentCount()+1)}
	each := func(fn func(p component, i int32)) {
		for i := range flows {
			fl := &flows[i]
			for _, p := range fl.crossed {
				if wanted[p] {
					fn(p, int32(i))
				}
			}
			if fl.paths != nil {
				for _, p := range fl.paths.at {
					if wanted[p] {
						fn(p, int32(i))
					}
				}
			}
		}
	}
	each(func(p component, _ int32) { l.from[p+1]++ })
	for p := range wanted {
		l.from[p+1] += l.from[p]
	}
	l.flows = make([]int32, l.from[len(wanted)])
	next := slices.Clone(l.from[:len(wanted)])
	each(func(p component, i int32) { l.flows[next[p]] = i; next[p]++ })
	return l
}

func (l *listing) flowsAt(p component) []int32 {
	if p < 0 {
		return nil
	}
	return l.flows[l.from[p]:l.from[p+1]]
}

// elementOf names the element a direction belongs to: the NIC for an access
// link, since probes cannot distinguish the NIC from its only cable.
func elementOf(d fabric.Direction) (fabric.Kind, string) {
	switch {
	case fabric.IsNIC(d.From):
		return fabric.KindNIC, d.From
	case fabric.IsNIC(d.To):
		return fabric.KindNIC, d.To
	}
	return fabric.KindLink, d.LinkID()
}

// addCandidates adds the elements that may have caused the observed evidence.
func (s *search) addCandidates() {
	e, seen := s.e, s.evidenceAt
	wanted := make([]bool, len(seen))
	var places []component
	may := func(price float64, at ...component) bool {
		return s.gainBound(at...) >= price+s.p.MinGain
	}
	for p := range seen {
		if at, merged := s.standIn[component(p)]; merged && at != component(p) {
			continue
		}
		if !may(s.p.PriceDirection-s.bundleDiscount(component(p)), component(p)) {
			continue
		}
		places = append(places, component(p))
		wanted[p] = true
		if !e.isSwitch(component(p)) {
			if r := e.reverseOf(component(p)); r >= 0 {
				wanted[r] = true
			}
		}
	}
	for i := range s.flows {
		if s.flows[i].finding.Obs.Class != s.flows[0].finding.Obs.Class {
			s.classes = true
			break
		}
	}
	widen := s.prepareWide(places, wanted)
	s.list = newListing(e, s.flows, wanted)
	for _, p := range places {
		if e.isSwitch(p) {
			if price := s.p.PriceSwitch - s.bundleDiscount(p); may(price, p) {
				s.addCandidate(&candidate{Element: e.elementAt(p), price: price, anyOf: []component{p}})
			}
			continue
		}
		d := e.directionOf(p)
		kind, name := elementOf(d)
		discount := s.bundleDiscount(p)
		s.addCandidate(&candidate{Element: e.elementAt(p), price: s.p.PriceDirection - discount, anyOf: []component{p}})
		// Both ways at once are named where both show something.
		r := e.reverseOf(p)
		if r >= 0 && d.From < d.To && seen[r].showsFault(s.p) && seen[p].showsFault(s.p) && may(s.p.PriceBoth-discount, p, r) {
			s.addCandidate(&candidate{Element: Element{Kind: kind, Name: name}, price: s.p.PriceBoth - discount, anyOf: []component{p, r}})
		}
		s.addQueues(p, d)
	}
	widen()
	s.addStretches()
}

// cleanClass is by how much symptoms have to be rarer among the other classes at a port than in a class before a queue
// of that class is a candidate.
const cleanClass = 4

// addQueues adds the queues of a port, if packets of several classes cross it and those of the other classes are clean
// where a fault of the port would have shown: each class has its own delays and losses by chance, and two queues would
// always fit a fault of the port a little better than the port itself.
func (s *search) addQueues(p component, d fabric.Direction) {
	if !s.classes || fabric.IsNIC(d.From) {
		return
	}
	type tally struct{ flows, bad int }
	of, all := map[string]*tally{}, tally{}
	for _, i := range s.list.flowsAt(p) {
		f := s.flows[i].finding
		t := of[f.Obs.Class]
		if t == nil {
			t = &tally{}
			of[f.Obs.Class] = t
		}
		t.flows, all.flows = t.flows+1, all.flows+1
		if hasSymptom(f) {
			t.bad, all.bad = t.bad+1, all.bad+1
		}
	}
	for _, class := range slices.Sorted(maps.Keys(of)) {
		in := of[class]
		others := tally{all.flows - in.flows, all.bad - in.bad}
		if in.bad == 0 || others.flows == 0 || cleanClass*others.bad*in.flows > in.bad*others.flows {
			continue
		}
		s.addCandidate(&candidate{Element: Element{Kind: fabric.KindQueue, Name: d.From + "@" + class, Direction: d, Class: class}, price: s.p.PriceQueue,
			anyOf: []component{p}, filter: func(fl *flow) bool { return fl.finding.Obs.Class == class }})
	}
}

// prepareWide makes the elements of several links: hosts with several NICs, the uplinks of a
// leaf. Their places are wanted now; the candidates come when they are listed.
func (s *search) prepareWide(places []component, wanted []bool) (add func()) {
	e := s.e
	hosts, leaves := map[string]int{}, map[string]int{}
	for _, p := range places {
		if e.isSwitch(p) || !s.evidenceAt[p].showsFault(s.p) {
			continue
		}
		d := e.directionOf(p)
		kind, name := elementOf(d)
		if kind == fabric.KindNIC {
			hosts[fabric.OwnerOf(name)]++
			continue
		}
		for _, end := range []string{d.From, d.To} {
			if sw := fabric.OwnerOf(end); e.g.SwitchTier(sw) == 1 {
				leaves[sw] += max(1, len(s.bundles[p]))
			}
		}
	}
	var out []*candidate
	for _, node := range slices.Sorted(maps.Keys(hosts)) {
		var any []component
		ends := e.g.EndsOf(node)
		for _, nic := range ends {
			if d, ok := e.nics[nic]; ok {
				any = append(any, d, d^1)
			}
		}
		if len(ends) >= 2 && hosts[node] >= 2 {
			out = append(out, &candidate{Element: Element{Kind: fabric.KindHost, Name: node}, price: s.p.PriceHost, anyOf: any})
		}
	}
	for _, leaf := range slices.Sorted(maps.Keys(leaves)) {
		var any []component
		local := slices.ContainsFunc(e.g.EndsOf(leaf), func(end string) bool { return fabric.IsNIC(e.g.PeerOf(end)) })
		for _, end := range e.g.Uplinks(leaf) {
			_, port, _ := fabric.SplitPort(end)
			d := e.switches[leaf].ports[port]
			any = append(any, d, d^1)
		}
		if local && len(any) >= 4 && leaves[leaf] >= 2 {
			out = append(out, &candidate{Element: Element{Kind: fabric.KindLeafUplinks, Name: leaf}, price: s.p.PriceUplinks, anyOf: any})
		}
	}
	for _, c := range out {
		for _, p := range s.standIns(c.anyOf) {
			wanted[p] = true
		}
	}
	return func() {
		for _, c := range out {
			s.addCandidate(c)
		}
	}
}

// addStretches adds the corridors and leaf pairs of degraded flows, which are crossed by a part of the flows on
// each of their links.
func (s *search) addStretches() {
	e := s.e
	corridors := map[[2]component]int{}
	pairs := map[[2]string]int{}
	for i := range s.flows {
		fl := &s.flows[i]
		f := fl.finding
		if !hasSymptom(f) || fl.paths != nil && !fl.mixed() || f.RoundTrip {
			continue
		}
		last := component(-1)
		for _, p := range fl.crossed {
			if e.isSwitch(p) {
				continue
			}
			if kind, _ := elementOf(e.directionOf(p)); kind == fabric.KindNIC {
				last = -1
				continue
			}
			if last >= 0 {
				corridors[[2]component{last, p}]++
			}
			last = p
		}
		src, dst := f.Flow.Endpoints()
		a, _ := e.g.LeafOf(src)
		b, _ := e.g.LeafOf(dst)
		if a != "" && b != "" && a != b {
			pairs[[2]string{a, b}]++
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(corridors), func(a, b [2]component) int { return slices.Compare(a[:], b[:]) }) {
		if corridors[k] < s.p.MinEdges {
			continue
		}
		in, out := e.directionOf(k[0]), e.directionOf(k[1])
		name := strings.Join([]string{fabric.OwnerOf(in.From), fabric.OwnerOf(in.To), fabric.OwnerOf(out.To)}, "->")
		s.addCandidate(&candidate{Element: Element{Kind: fabric.KindCorridor, Name: name}, price: s.p.PriceCorridor, allOf: []component{k[0], k[1]}})
	}
	for _, k := range slices.SortedFunc(maps.Keys(pairs), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		a, b := e.switches[k[0]], e.switches[k[1]]
		if pairs[k] < s.p.MinEdges || a == nil || b == nil {
			continue
		}
		s.addCandidate(&candidate{Element: Element{Kind: fabric.KindPair, Name: k[0] + "->" + k[1]}, price: s.p.PricePair, allOf: []component{a.at, b.at},
			filter: func(fl *flow) bool {
				src, dst := fl.finding.Flow.Endpoints()
				from, _ := e.g.LeafOf(src)
				to, _ := e.g.LeafOf(dst)
				return from == k[0] && to == k[1]
			}})
	}
}

// showsFault reports whether a place has evidence of its own that something is wrong.
func (v *evidence) showsFault(p Parameters) bool { return v.late > 0 || v.lossExcess() >= p.MostExcess }

// gainBound returns an upper bound for the gain of any effect at components. It counts their losses in one sum, as if
// all flows were alike, and each late or marked flow with its cap.
func (s *search) gainBound(places ...component) float64 {
	const rough = 1.1
	var v evidence
	late := 0.0
	for _, p := range s.standIns(places) {
		late += s.evidenceAt[p].late
		v.mixedLost += s.evidenceAt[p].mixedLost
		v.mixedExpected += s.evidenceAt[p].mixedExpected
		v.lost += s.evidenceAt[p].lost
		v.expected += s.evidenceAt[p].expected
	}
	return 1 + late + rough*v.lossExcess()
}

// gainBoundOf returns an upper bound for the gain of a candidate beside the named elements, after its
// price.
func (s *search) gainBoundOf(c *candidate) float64 {
	if c.allOf != nil || c.filter != nil {
		// A part of what crosses a place may show more than the whole.
		if !c.listed {
			return math.Inf(1)
		}
		return s.memberCost(c) - c.price
	}
	most := s.gainBound(c.anyOf...)
	if len(c.anyOf) > 1 {
		for i := range c.anyOf {
			most = max(most, s.gainBound(c.anyOf[i]))
		}
	}
	return most - c.price
}

// memberCost returns the gain if a candidate explained all its members perfectly.
func (s *search) memberCost(c *candidate) (nats float64) {
	for _, m := range c.members {
		nats += s.flows[m.flow].cost
	}
	return nats
}

// flowEvidence is what a flow says to the sums of its places.
type flowEvidence struct{ lost, expected, late float64 }

// remainingEvidence returns the evidence of a flow that is left for elements that are not named.
func (s *search) remainingEvidence(fl *flow) flowEvidence {
	out := flowEvidence{float64(fl.lost), float64(fl.sent) * s.m.hop * float64(fl.hops), s.p.delayMarkCap(fl.finding)}
	l := fl.load
	if fl.mixed() {
		l.survive = fl.survive
	}
	if l.survive != 0 {
		// It lost by what is named, more or less; what is left is its own.
		out.lost, out.expected = 0, 0
		if float64(fl.lost) > float64(fl.sent)*affectedShare(fl.base+l.survive) {
			out.late += s.m.lossCost(fl, l.survive)
		}
	}
	if out.late > 0 && !l.lossOnly() && fl.partial == nil {
		out.late = min(out.late, s.m.costOf(fl, l))
	}
	return out
}

// addCandidate takes a candidate into the search.
func (s *search) addCandidate(c *candidate) {
	c.at = s.standIns(c.anyOf)
	c.bound = s.gainBoundOf(c)
	at := int32(len(s.cands))
	s.cands = append(s.cands, c)
	for _, p := range slices.Concat(c.at, c.allOf) {
		s.candidatesAt[p] = append(s.candidatesAt[p], at)
	}
}

// list takes down the flows that cross a candidate, when it is first looked at.
func (s *search) listFlows(c *candidate) {
	if c.listed {
		return
	}
	c.listed = true
	shares := map[*paths]float64{}
	take := func(i int32, share float64) {
		c.members = append(c.members, member{flow: i, share: share, bothWays: s.flows[i].roundTrip.crossesBothWays(c)})
		c.fingerprint += mixBits(uint64(i)<<20 ^ uint64(share*(1<<19)))
	}
	if c.allOf != nil {
		shortest := s.list.flowsAt(c.allOf[0])
		if other := s.list.flowsAt(c.allOf[1]); len(other) < len(shortest) {
			shortest = other
		}
		for _, i := range shortest {
			fl := &s.flows[i]
			if (fl.paths == nil || fl.mixed()) && !c.crossedBy(fl.crossed) || c.filter != nil && !c.filter(fl) {
				continue
			}
			if share := c.crossingShare(fl, shares); share > 0 {
				take(i, share)
			}
		}
		for _, p := range c.allOf {
			if !s.e.isSwitch(p) && len(c.members) == len(s.list.flowsAt(p)) {
				c.members = nil // it is that link
			}
		}
		return
	}
	for at, p := range c.at {
		for _, i := range s.list.flowsAt(p) {
			fl := &s.flows[i]
			if at > 0 && fl.mayCross(c.at[:at]) || c.filter != nil && !c.filter(fl) {
				continue
			}
			share := 1.0
			if fl.paths != nil {
				share = c.crossingShare(fl, shares)
			}
			take(i, share)
		}
	}
}

// mayCross reports whether one of a flow's paths goes through one of the places.
func (fl *flow) mayCross(places []component) bool {
	in := func(p component) bool { return slices.Contains(places, p) }
	return slices.ContainsFunc(fl.crossed, in) || fl.paths != nil && slices.ContainsFunc(fl.paths.at, in)
}

// mixBits returns the bits of x mixed by the finaliser of SplitMix64.
func mixBits(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
