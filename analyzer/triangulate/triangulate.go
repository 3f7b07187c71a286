// Package triangulate names the narrowest elements that explain what the
// probes saw. Slow and lossy flows vote for the elements they cross, healthy
// flows clear them: an element is named only if the whole of the evidence,
// for and against, is likelier with it broken than without.
//
// Model. Every directed link, NIC direction, link, NIC and switch may add a
// delay d and a loss ratio q to each packet that crosses it. A flow's window
// with shift a and scale s costs |a - sum(d)|/s nats (a Laplace error), and k
// lost of n are binomial with the product of the survival ratios; both are
// capped per flow, so that no single flow decides. Elements are added greedily
// by the gain in likelihood less a price per element, after Flock (SIGCOMM
// 2023 did this for loss); d and q are fitted, not given, so that there is no
// parameter to choose per fabric.
//
// The package is pure: no I/O and no clock.
package triangulate

import (
	"math"
	"sort"

	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

// Parameters are the one fixed set used on every fabric, in nats but for the counts.
type Parameters struct {
	// Cap bounds what one flow can say for or against an element.
	Cap float64
	// PriceDirection, PriceBoth and PriceSwitch are the prices of naming one
	// direction of a link, both, and a switch.
	PriceDirection, PriceBoth, PriceSwitch float64
	// MinGain is the gain from which an element is named.
	MinGain float64
	// MinEdges is the least number of degraded flows behind a verdict.
	MinEdges int
	// SameGain is the difference in gain below which two elements are equivalent.
	SameGain float64
	// MaxElements bounds how many simultaneous faults are named.
	MaxElements int
	// BaseLoss is the loss ratio of a healthy element.
	BaseLoss float64
}

// Defaults returns the published parameter set.
func Defaults() Parameters {
	return Parameters{Cap: 8, PriceDirection: 6, PriceBoth: 8, PriceSwitch: 9, MinGain: 4, MinEdges: 2, SameGain: 1, MaxElements: 16, BaseLoss: 1e-3}
}

// Element is a candidate: one or both directions of a link, or a switch.
type Element struct {
	Kind fabric.Kind
	// Name is the element's identifier: link, NIC or switch.
	Name string
	// Direction is set when one direction of a link or access link is meant.
	Direction fabric.Direction
}

// OneWay reports whether only one direction of a link is meant.
func (e Element) OneWay() bool { return e.Direction.From != "" }

// Suspect is an element that the evidence names.
type Suspect struct {
	Element
	// Gain is the log-likelihood ratio (nats), price paid.
	Gain float64
	// Confidence is the share of the posterior that this element and its
	// equivalents hold against every other single explanation.
	Confidence float64
	// AddedDelayNS and LossRatio are what was fitted.
	AddedDelayNS int64
	LossRatio    float64
	// Explained are the degraded flows it explains, Contrary the healthy ones
	// that cross it all the same.
	Explained, Contrary []int
	// Equivalent are elements that the evidence cannot tell from this one.
	Equivalent []Element
}

// Result is what was found, strongest first, and which degraded flows stay unexplained.
type Result struct {
	Suspects    []Suspect
	Degraded    []int
	Unexplained []int
	// Crossed holds, for every directed link with usable evidence, the number of flows.
	Crossed map[fabric.Direction]int
	// Links estimates what every crossed direction adds, those named first.
	Links []LinkDelay
}

// LinkDelay is the delay one direction of a link adds, in nanoseconds.
type LinkDelay struct {
	Direction    fabric.Direction
	AddedDelayNS int64
	// Identifiable is false when other links are crossed by exactly the same flows.
	Identifiable bool
}

// flow is a judged finding with the likelihood state of the search.
type flow struct {
	finding *judge.Finding
	index   int
	weight  map[fabric.Direction]float64 // probability that the flow crosses
	visits  map[string]float64           // switches
	delay   float64                      // ns explained so far
	survive float64                      // survival ratio explained so far
	cost    float64                      // current negative log-likelihood
}

// Run searches the elements that explain the findings. Findings that are
// undecided take no part, but for what was lost where only a clock is in doubt;
// those without path or candidates speak only for their access links.
func Run(g *fabric.Graph, findings []judge.Finding, p Parameters) Result {
	res := Result{Crossed: map[fabric.Direction]int{}}
	flows := make([]*flow, 0, len(findings))
	for i := range findings {
		f := &findings[i]
		lossOnly := f.ClockSuspect && !f.HostSuspect && !f.Lossy && f.Obs.Sent > 0
		if f.Condition == judge.Undecided && !lossOnly {
			continue
		}
		fl := bind(g, f, i)
		if f.Condition == judge.Degraded {
			res.Degraded = append(res.Degraded, i)
		}
		if len(fl.weight) == 0 {
			continue
		}
		for d, w := range fl.weight {
			if w == 1 && f.Condition != judge.Undecided {
				res.Crossed[d]++
			}
		}
		fl.cost = cost(fl, 0, 1, p)
		flows = append(flows, fl)
	}
	s := newSearch(g, flows, p)
	explained := map[int]bool{}
	for len(res.Suspects) < p.MaxElements {
		sus, ok := s.best(explained)
		if !ok {
			break
		}
		for _, i := range sus.Explained {
			explained[i] = true
		}
		res.Suspects = append(res.Suspects, sus)
	}
	res.Links = linkDelays(flows, res.Suspects)
	res.Suspects = mergeDirections(res.Suspects)
	sort.SliceStable(res.Suspects, func(i, j int) bool { return res.Suspects[i].Gain > res.Suspects[j].Gain })
	for _, i := range res.Degraded {
		if !explained[i] {
			res.Unexplained = append(res.Unexplained, i)
		}
	}
	return res
}

// bind turns a finding's path, or its candidates, into crossing probabilities.
func bind(g *fabric.Graph, f *judge.Finding, index int) *flow {
	fl := &flow{finding: f, index: index, weight: map[fabric.Direction]float64{}, visits: map[string]float64{}, survive: 1}
	add := func(p fabric.Path, src, dst string, w float64) {
		for _, d := range p.Directions(src, dst) {
			fl.weight[d] += w
		}
		for _, h := range p {
			fl.visits[h.Switch] += w
		}
	}
	src, dst := f.Edge.Ends()
	paths := f.Obs.Paths
	if len(f.Obs.Path) > 0 {
		paths = []fabric.Path{f.Obs.Path}
	}
	w := 1 / float64(max(1, len(paths)))
	for _, p := range paths {
		add(p, src, dst, w)
		if f.RoundTrip {
			// The trouble may be on the way back, whose path is at best the
			// reverse of this one.
			add(reverse(p), dst, src, w)
		}
	}
	if len(paths) == 0 {
		ends := []string{src, dst}
		for i, nic := range ends {
			peer := g.Peer(nic)
			if peer == "" {
				continue
			}
			d := fabric.Direction{From: nic, To: peer}
			if i == 1 {
				d = d.Reverse()
			}
			fl.weight[d] = 1
			if f.RoundTrip {
				fl.weight[d.Reverse()] = 1
			}
			fl.visits[fabric.OwnerOf(peer)] = 1
		}
	}
	for d, w := range fl.weight {
		fl.weight[d] = min(w, 1)
	}
	for s, w := range fl.visits {
		fl.visits[s] = min(w, 1)
	}
	return fl
}

func reverse(p fabric.Path) fabric.Path {
	out := make(fabric.Path, len(p))
	for i, h := range p {
		out[len(p)-1-i] = fabric.Hop{Switch: h.Switch, In: h.Out, Out: h.In}
	}
	return out
}

// cost is the capped negative log-likelihood of a flow whose packets suffer
// added delay d (ns) and survive with ratio s.
func cost(f *flow, d, s float64, p Parameters) float64 {
	c := 0.0
	if f.finding.HasShift && !f.finding.ClockSuspect {
		a := float64(f.finding.Shift)
		if f.finding.Condition != judge.Degraded || !f.finding.Delayed {
			// A healthy flow's own small wander is no evidence of anything.
			if math.Abs(a) <= float64(f.finding.Scale) {
				a = 0
			}
		}
		// The scale of the error grows with the delay itself: a queue is not a constant.
		scale := math.Max(float64(f.finding.Scale)/2, 0.1*math.Max(d, a))
		c += math.Min(math.Abs(a-d)/math.Max(scale, 1), p.Cap)
	}
	if sent := f.finding.Obs.Sent; sent > 0 {
		lost := f.finding.Obs.Lost
		own := float64(min(lost, sent)) / float64(sent)
		q := 1 - s*(1-p.BaseLoss)
		best := judge.BinomialLL(lost, sent, math.Max(own, p.BaseLoss))
		c += math.Min(math.Max(0, best-judge.BinomialLL(lost, sent, q)), p.Cap)
	}
	return c
}

type candidate struct {
	Element
	dirs   []fabric.Direction
	flows  []*flow
	weight []float64
	price  float64
}

type search struct {
	p     Parameters
	cands []*candidate
	used  map[string]bool
}

func newSearch(g *fabric.Graph, flows []*flow, p Parameters) *search {
	byDir := map[fabric.Direction][]*flow{}
	bySwitch := map[string][]*flow{}
	touched := map[fabric.Direction]bool{}
	touchedSwitch := map[string]bool{}
	for _, f := range flows {
		bad := f.finding.Condition == judge.Degraded
		for d := range f.weight {
			byDir[d] = append(byDir[d], f)
			touched[d] = touched[d] || bad
		}
		for sw := range f.visits {
			bySwitch[sw] = append(bySwitch[sw], f)
			touchedSwitch[sw] = touchedSwitch[sw] || bad
		}
	}
	s := &search{p: p, used: map[string]bool{}}
	dirs := make([]fabric.Direction, 0, len(touched))
	for d, bad := range touched {
		if bad {
			dirs = append(dirs, d)
		}
	}
	sort.Slice(dirs, func(i, j int) bool { return dirs[i].String() < dirs[j].String() })
	for _, d := range dirs {
		kind, name := elementOf(d)
		c := &candidate{Element: Element{Kind: kind, Name: name, Direction: d}, dirs: []fabric.Direction{d}, price: p.PriceDirection}
		for _, f := range byDir[d] {
			c.flows = append(c.flows, f)
			c.weight = append(c.weight, f.weight[d])
		}
		s.cands = append(s.cands, c)
		if r := d.Reverse(); d.From < d.To && touched[r] {
			both := &candidate{Element: Element{Kind: kind, Name: name}, dirs: []fabric.Direction{d, r}, price: p.PriceBoth}
			seen := map[*flow]bool{}
			for _, dd := range both.dirs {
				for _, f := range byDir[dd] {
					if !seen[f] {
						seen[f] = true
						both.flows = append(both.flows, f)
						both.weight = append(both.weight, math.Max(f.weight[d], f.weight[r]))
					}
				}
			}
			s.cands = append(s.cands, both)
		}
	}
	var switches []string
	for sw, bad := range touchedSwitch {
		if bad {
			switches = append(switches, sw)
		}
	}
	sort.Strings(switches)
	for _, sw := range switches {
		c := &candidate{Element: Element{Kind: fabric.KindSwitch, Name: sw}, price: p.PriceSwitch}
		for _, f := range bySwitch[sw] {
			c.flows = append(c.flows, f)
			c.weight = append(c.weight, f.visits[sw])
		}
		s.cands = append(s.cands, c)
	}
	return s
}

// elementOf names the element a direction belongs to: the NIC for an access
// link, since the NIC and its only cable cannot be told apart by probes.
func elementOf(d fabric.Direction) (fabric.Kind, string) {
	switch {
	case fabric.IsNIC(d.From):
		return fabric.KindNIC, d.From
	case fabric.IsNIC(d.To):
		return fabric.KindNIC, d.To
	}
	return fabric.KindLink, d.Link()
}

type fit struct {
	c     *candidate
	gain  float64
	delay float64
	loss  float64
	hits  int
}

// fitTo chooses the delay and loss that explain the candidate's degraded flows
// best, and returns the gain in likelihood over all its flows.
func (s *search) fitTo(c *candidate) fit {
	var shifts []float64
	var sent, lost float64
	hits := 0
	for i, f := range c.flows {
		if f.finding.Condition != judge.Degraded || c.weight[i] < minWeight {
			continue
		}
		useful := false
		if f.finding.Delayed {
			if rest := float64(f.finding.Shift) - f.delay; rest > float64(f.finding.Scale)/2 {
				shifts = append(shifts, rest)
				useful = true
			}
		}
		if f.finding.Lossy {
			own := float64(f.finding.Obs.Lost) / float64(f.finding.Obs.Sent)
			if own > (1-f.survive)*1.5 {
				sent += float64(f.finding.Obs.Sent)
				lost += float64(f.finding.Obs.Lost)
				useful = true
			}
		}
		if useful {
			hits++
		}
	}
	best := fit{c: c, gain: math.Inf(-1), hits: hits}
	if hits == 0 {
		return best
	}
	var d, q float64
	if len(shifts) > 0 {
		sort.Float64s(shifts)
		d = shifts[len(shifts)/2]
	}
	if sent > 0 {
		q = lost / sent
	}
	options := [][2]float64{{d, q}}
	if d > 0 && q > 0 {
		options = append(options, [2]float64{d, 0}, [2]float64{0, q})
	}
	for _, o := range options {
		gain := -c.price
		for i, f := range c.flows {
			gain += c.weight[i] * (f.cost - cost(f, f.delay+o[0], f.survive*(1-o[1]), s.p))
		}
		if gain > best.gain {
			best.gain, best.delay, best.loss = gain, o[0], o[1]
		}
	}
	return best
}

// best names the next element, applies it to the flows and returns it. An
// element that explains too few flows not explained before is passed over.
func (s *search) best(explained map[int]bool) (Suspect, bool) {
	for {
		var fits []fit
		for _, c := range s.cands {
			if s.used[key(c.Element)] {
				continue
			}
			if f := s.fitTo(c); f.hits > 0 && f.gain >= s.p.MinGain-s.p.PriceSwitch {
				fits = append(fits, f)
			}
		}
		sort.SliceStable(fits, func(i, j int) bool { return fits[i].gain > fits[j].gain })
		if len(fits) == 0 || fits[0].gain < s.p.MinGain {
			return Suspect{}, false
		}
		top := fits[0]
		// Among those the evidence cannot tell from the best, the narrowest is named.
		for _, f := range fits[1:] {
			if rank(f.c.Element) < rank(top.c.Element) && f.gain+f.c.price > top.gain+top.c.price-s.p.SameGain && sameEvidence(f.c, top.c) {
				top = f
			}
		}
		s.used[key(top.c.Element)] = true
		sus := s.suspect(top, fits)
		fresh := 0
		for _, i := range sus.Explained {
			if !explained[i] {
				fresh++
			}
		}
		if fresh < s.p.MinEdges {
			continue
		}
		for i, f := range top.c.flows {
			w := top.c.weight[i]
			f.delay += w * top.delay
			f.survive *= 1 - w*top.loss
			f.cost = cost(f, f.delay, f.survive, s.p)
		}
		return sus, true
	}
}

// suspect describes the chosen fit among its rivals, before it is applied.
func (s *search) suspect(top fit, fits []fit) Suspect {
	sus := Suspect{Element: top.c.Element, Gain: top.gain, AddedDelayNS: int64(top.delay), LossRatio: top.loss}
	rival := 0.0
	for _, f := range fits {
		switch {
		case f.c == top.c || f.c.Name == top.c.Name && f.c.Kind == top.c.Kind:
		case sameEvidence(f.c, top.c):
			sus.Equivalent = append(sus.Equivalent, f.c.Element)
		case shareDegraded(f.c, top.c):
			rival += math.Exp(math.Min(0, f.gain-top.gain))
		}
	}
	sus.Confidence = (1 - math.Exp(-math.Max(top.gain, 0))) / (1 + rival)
	for i, f := range top.c.flows {
		if top.c.weight[i] < minWeight {
			continue
		}
		after := cost(f, f.delay+top.delay, f.survive*(1-top.loss), s.p)
		switch {
		case f.finding.Condition == judge.Degraded && after < f.cost:
			sus.Explained = append(sus.Explained, f.index)
		case f.finding.Condition == judge.Healthy:
			sus.Contrary = append(sus.Contrary, f.index)
		}
	}
	return sus
}

// minWeight is the crossing probability below which a flow with several
// candidate paths does not take part in fitting an element.
const minWeight = 0.3

func key(e Element) string { return string(e.Kind) + " " + e.Name + " " + e.Direction.String() }

// rank orders elements from narrow to wide: a NIC concerns one host, a link all
// that is routed over it, a switch all its links; one direction before both.
func rank(e Element) int {
	n := map[fabric.Kind]int{fabric.KindNIC: 0, fabric.KindLink: 2, fabric.KindSwitch: 4}[e.Kind]
	if !e.OneWay() {
		n++
	}
	return n
}

// sameEvidence reports whether two candidates cross the same usable flows.
func sameEvidence(a, b *candidate) bool {
	if len(a.flows) != len(b.flows) {
		return false
	}
	in := make(map[*flow]float64, len(a.flows))
	for i, f := range a.flows {
		in[f] = a.weight[i]
	}
	for i, f := range b.flows {
		if w, ok := in[f]; !ok || w != b.weight[i] {
			return false
		}
	}
	return true
}

func shareDegraded(a, b *candidate) bool {
	in := make(map[*flow]bool, len(a.flows))
	for _, f := range a.flows {
		if f.finding.Condition == judge.Degraded {
			in[f] = true
		}
	}
	for _, f := range b.flows {
		if in[f] {
			return true
		}
	}
	return false
}

// mergeDirections joins the two directions of one link, named one after the
// other, into one suspect: one fault gives one verdict.
func mergeDirections(in []Suspect) []Suspect {
	var out []Suspect
	at := map[string]int{}
	for _, s := range in {
		k := string(s.Kind) + " " + s.Name
		i, seen := at[k]
		if !seen {
			at[k] = len(out)
			out = append(out, s)
			continue
		}
		o := &out[i]
		o.Direction = fabric.Direction{}
		o.Gain += s.Gain
		o.Confidence = math.Max(o.Confidence, s.Confidence)
		o.AddedDelayNS = max(o.AddedDelayNS, s.AddedDelayNS)
		o.LossRatio = math.Max(o.LossRatio, s.LossRatio)
		o.Explained = union(o.Explained, s.Explained)
		o.Contrary = union(o.Contrary, s.Contrary)
	}
	return out
}

func union(a, b []int) []int {
	seen := map[int]bool{}
	var out []int
	for _, l := range [][]int{a, b} {
		for _, i := range l {
			if !seen[i] {
				seen[i] = true
				out = append(out, i)
			}
		}
	}
	sort.Ints(out)
	return out
}

// linkDelays bounds what each direction adds by the least delayed flow that
// crosses it, after the named elements have been taken off; a named direction
// has its fitted delay. Delays within the noise of that flow are zero.
func linkDelays(flows []*flow, suspects []Suspect) []LinkDelay {
	type bound struct {
		ns   float64
		sum  uint64 // order-free fingerprint of the flows that cross
		seen bool
	}
	bounds := map[fabric.Direction]*bound{}
	for _, f := range flows {
		for d, w := range f.weight {
			if w < 1 {
				continue
			}
			b := bounds[d]
			if b == nil {
				b = &bound{}
				bounds[d] = b
			}
			b.sum += mix(uint64(f.index) + 1)
			if !f.finding.HasShift || f.finding.RoundTrip || f.finding.ClockSuspect {
				continue
			}
			rest := float64(f.finding.Shift) - f.delay
			if rest <= float64(f.finding.Scale) {
				rest = 0
			}
			if !b.seen || rest < b.ns {
				b.ns, b.seen = rest, true
			}
		}
	}
	named := map[fabric.Direction]int64{}
	for _, s := range suspects {
		if s.Kind == fabric.KindSwitch {
			continue
		}
		if s.OneWay() {
			named[s.Direction] = s.AddedDelayNS
			continue
		}
		for d := range bounds {
			if _, name := elementOf(d); name == s.Name {
				named[d] = s.AddedDelayNS
			}
		}
	}
	sums := map[uint64]int{}
	for _, b := range bounds {
		sums[b.sum]++
	}
	var out []LinkDelay
	for d, b := range bounds {
		l := LinkDelay{Direction: d, AddedDelayNS: int64(b.ns), Identifiable: b.seen && sums[b.sum] == 1}
		if ns, ok := named[d]; ok {
			l.AddedDelayNS = ns
		} else if !b.seen {
			continue
		}
		out = append(out, l)
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].AddedDelayNS != out[j].AddedDelayNS {
			return out[i].AddedDelayNS > out[j].AddedDelayNS
		}
		return out[i].Direction.String() < out[j].Direction.String()
	})
	return out
}

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
