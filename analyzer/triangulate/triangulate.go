// Package triangulate names the narrowest elements that explain what the
// probes saw. Slow and lossy flows speak for the elements they cross, healthy
// flows clear them: an element is named only if the whole of the evidence,
// for and against, is likelier with it broken than without.
//
// Rules:
//
//  1. An element that is broken adds a delay to every packet that crosses it, moves
//     the tail further, loses a share of them, marks a share of them. A flow's window
//     with shift a and scale s costs |a - sum of the delays|/s nats (a Laplace
//     error), tails likewise; what is lost and marked is binomial. What one flow can
//     say is capped.
//  2. An element is worth by how much it makes all flows' windows likelier, less a
//     price: the logarithm of how unlikely it is to be broken. The size of a loss is
//     integrated over a prior, other sizes are fitted and cost a fixed amount. There is
//     no parameter to choose per fabric.
//  3. Elements are named greedily, as Flock does for loss (CoNEXT 2023), until none
//     pays; then each is taken back and asked again beside the others, and what could
//     stand in its place is tried with what follows from it, as is a lesser delay of a link or NIC.
//  4. No flow decides alone: two must gain, and all but the loudest something together.
//  5. A flow with candidate paths has the mean of their likelihoods. One without takes
//     one of the shortest, if these are few, and speaks for its ends in any case. One whose
//     packets take several paths in turn is a mixture of them by their shares: of what it loses, and of how late its packets
//     are, so that a path of few packets moves the tail alone. Thousands of such flows speak together.
//  6. Of elements that the same flows cross, with the same shares, the narrowest is named, the others are its
//     equivalents. They are as likely as all of them together. One fault is one suspect: both ways of a link are joined, and a link of
//     a switch that is named, which adds no more than the switch itself, is part of it.
//  7. What healthy links lose is estimated from flows that cross nothing suspicious, and so is how
//     many packets are lost one after the other: a burst is one event. What healthy links differ by says how much mixtures do.
//  8. Where nothing is named, a link or switch is that adds a delay which no single flow shows, but
//     all together beyond six standard errors. Noise of hosts and errors of clocks are taken off. Where a place that became
//     slower explains a shift as well as one that became faster, the one that leaves less to hosts and clocks is right.
//
// The package is pure: no I/O and no clock. docs/adr/0011-likelihood-of-elements.md has
// the reasons, docs/localization.md the figures.
package triangulate

import (
	"math"
	"slices"
	"sort"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Parameters are the one fixed set used on every fabric, in nats but for the counts
// and ratios.
type Parameters struct {
	// Cap, TailCap and MarkCap bound what one flow's losses and median delay, its tail
	// and its marks can say for or against an element.
	Cap, TailCap, MarkCap float64
	// PriceDirection and the others are the logarithms of how unlikely an element is to be
	// broken, before anything is seen: one direction of a link or NIC, both, a class of
	// packets at a port, and so on. What is wider or more numerous is less likely.
	PriceDirection, PriceBoth, PriceQueue, PriceHost, PriceSwitch, PriceUplinks, PriceCorridor, PricePair float64
	// Broken is how many directed links of a large fabric are broken at one time.
	Broken float64
	// Occam is the price of an effect whose size is free. (That of a loss is worked out.)
	Occam float64
	// MinGain is the gain from which an element is named, FirstGain that from which the
	// first is.
	MinGain, FirstGain float64
	// BurstGain is by how much more an element must gain where losses come in bursts, whose length is an estimate.
	BurstGain float64
	// UnnamedDoubt is how much less likely an element beside others that are named is than its gain says.
	UnnamedDoubt float64
	// MinEdges is the least number of flows behind a verdict, MinOthers what all but the
	// one that speaks loudest must say together: no flow decides alone.
	MinEdges  int
	MinOthers float64
	// SameGain is the difference in gain below which two elements are equivalent.
	SameGain float64
	// MaxElements bounds how many simultaneous faults are named.
	MaxElements int
	// LeastHop and MostHop bound the estimate of the loss ratio of a healthy directed link.
	LeastHop, MostHop float64
	// BaseMark is the ratio of marks of a healthy path.
	BaseMark float64
	// MarkPackets is how many packets a flow's marks count for at most.
	MarkPackets float64
	// MostExcess is the log-likelihood ratio of the losses at a place from which it does
	// not count as healthy.
	MostExcess float64
}

// DefaultParameters returns the published parameter set.
func DefaultParameters() Parameters {
	return Parameters{Cap: 12, TailCap: 4, MarkCap: 6,
		PriceDirection: 5.7, PriceBoth: 8.7, PriceQueue: 7.7, PriceHost: 10, PriceSwitch: 10, PriceUplinks: 11, PriceCorridor: 10, PricePair: 11,
		Broken: 8, Occam: 3, MinGain: 2, FirstGain: 4.5, UnnamedDoubt: 1.3, BurstGain: 1, MinEdges: 2, MinOthers: 2, SameGain: 1, MaxElements: 64, LeastHop: 5e-5, MostHop: 2e-4, BaseMark: 0.02, MarkPackets: 12, MostExcess: 3}
}

// scalePrices makes elements of a large fabric less likely to be broken: how many are at one
// time depends on those who repair them, not on how many there are.
func (p *Parameters) scalePrices(directions int) {
	by := max(0, math.Log(float64(directions)/p.Broken)-p.PriceDirection)
	for _, price := range []*float64{&p.PriceDirection, &p.PriceBoth, &p.PriceQueue, &p.PriceHost, &p.PriceSwitch, &p.PriceUplinks, &p.PriceCorridor, &p.PricePair} {
		*price += by
	}
}

// Element is a candidate: one or both directions of a link or of a NIC's access
// link, a queue, a switch, a leaf's uplinks, a corridor, a pair of leaves, a host.
type Element struct {
	Kind fabric.Kind
	// Name is the element's identifier.
	Name string
	// Direction is set when one direction of a link or access link is meant.
	Direction fabric.Direction
	// Class is set when one class of packets is meant.
	Class string
}

// Named returns the element by which a verdict names it.
func (e Element) Named() fabric.Element { return fabric.Element{ID: e.Name, Kind: e.Kind} }

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
	// TailDelayNS is what it adds to the 99th percentile beyond AddedDelayNS,
	// ECNRatio the share of packets it marks.
	TailDelayNS int64
	ECNRatio    float64
	// Explained are the degraded flows it explains, Contrary the healthy ones
	// that cross it all the same.
	Explained, Contrary []int
	// Sprayed is how many of the explained flows take several paths in turn and cross the element on some of these, and LeastShare
	// and MostShare are the least and the largest share of the packets of such a flow that do.
	Sprayed               int
	LeastShare, MostShare float64
	// Small is set if no single flow shows the delay, only all flows together.
	Small bool
	// Equivalent are elements that the evidence cannot distinguish from this one.
	Equivalent []Element
}

// Result is what was found, strongest first, and which degraded flows stay unexplained.
type Result struct {
	Suspects    []Suspect
	Degraded    []int
	Unexplained []int
	// Crossed holds, for every directed link with usable evidence, the number of flows.
	Crossed map[fabric.Direction]int
	// Shares are what flows send across directed links. It is nil if no flow's packets take several paths in turn.
	Shares map[fabric.Direction]Share
	// Links estimates what every crossed direction adds, those named first.
	Links []LinkDelay
	// Unnamed are elements that may be at fault besides, the likeliest first.
	Unnamed []Unnamed
}

// LinkDelay is the delay one direction of a link adds, in nanoseconds.
type LinkDelay struct {
	Direction    fabric.Direction
	AddedDelayNS int64
	// Identifiable is false if the flows cannot distinguish what this link adds from what
	// others add.
	Identifiable bool
}

// Run searches the elements that explain the findings. Findings that are
// undecided take no part, but for what was lost where only a clock is in doubt;
// those without path or candidates speak for their ends, and for the shortest paths
// between them where these are few.
func Run(g *fabric.Graph, findings []judge.Finding, p Parameters) Result {
	return NewEngine(g).Run(findings, p)
}

// Run does the same on a fabric whose places are numbered already.
func (e *Engine) Run(findings []judge.Finding, p Parameters) Result {
	res := Result{Crossed: map[fabric.Direction]int{}}
	for i := range findings {
		if findings[i].Condition == judge.Degraded {
			res.Degraded = append(res.Degraded, i)
		}
	}
	e.enterPhase(Binding)
	spread := takeSeveralWays(findings)
	flows := e.bindFindings(findings, spread)
	if spread {
		res.Shares = e.linkShares(flows)
	}
	e.enterPhase(Inference)
	s := newSearch(e, flows, p)
	for at := range s.evidenceAt {
		if s.evidenceAt[at].flows > 0 && !e.isSwitch(component(at)) {
			res.Crossed[e.directionOf(component(at))] = int(s.evidenceAt[at].flows)
		}
		for _, c := range s.bundles[component(at)] {
			if !e.isSwitch(c) {
				res.Crossed[e.directionOf(c)] = int(s.evidenceAt[at].flows)
			}
		}
	}
	s.addCandidates()
	s.nameGreedily()
	s.reviseNamed()
	res.Suspects = absorbSwitchLinks(mergeDirections(s.namedSuspects()))
	sort.SliceStable(res.Suspects, func(i, j int) bool { return res.Suspects[i].Gain > res.Suspects[j].Gain })
	if len(s.named) == 0 {
		res.Suspects = mergeDirections(s.smallShifts())
	}
	explained := map[int]bool{}
	for _, sus := range res.Suspects {
		for _, i := range sus.Explained {
			explained[i] = true
		}
	}
	for _, i := range res.Degraded {
		if !explained[i] {
			res.Unexplained = append(res.Unexplained, i)
		}
	}
	res.Links = e.linkDelays(s.flows, s.named)
	res.Unnamed = s.unnamedElements()
	return res
}

// takeSeveralWays reports whether the packets of some flows take several paths in turn.
func takeSeveralWays(findings []judge.Finding) bool {
	for i := range findings {
		if findings[i].Obs.Sprayed {
			return true
		}
	}
	return false
}

// assignProfiles gives the flows that are plainly healthy their profiles.
func assignProfiles(flows []flow) {
	known := map[profile]int32{}
	for i := range flows {
		flows[i].profile = -1
		if p, ok := flows[i].healthyProfile(); ok {
			n, have := known[p]
			if !have {
				n = int32(len(known))
				known[p] = n
			}
			flows[i].profile = n
		}
	}
}

// mergeDirections joins the two directions of one link, named one after the
// other, into one suspect: one fault gives one verdict.
func mergeDirections(in []Suspect) []Suspect {
	var out []Suspect
	at := map[string]int{}
	for _, s := range in {
		k := string(s.Kind) + " " + s.Name + " " + s.Class
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
		o.TailDelayNS = max(o.TailDelayNS, s.TailDelayNS)
		o.LossRatio = math.Max(o.LossRatio, s.LossRatio)
		o.ECNRatio = math.Max(o.ECNRatio, s.ECNRatio)
		if o.Sprayed == 0 || s.Sprayed > 0 && s.LeastShare < o.LeastShare {
			o.LeastShare = s.LeastShare
		}
		o.Sprayed, o.MostShare = o.Sprayed+s.Sprayed, math.Max(o.MostShare, s.MostShare)
		o.Explained = unionSorted(o.Explained, s.Explained)
		o.Contrary = unionSorted(o.Contrary, s.Contrary)
	}
	return out
}

// absorbSwitchLinks takes the links of a switch that is named into it, where they add to what the
// switch does no more than it does itself: its ports are not all as full.
func absorbSwitchLinks(in []Suspect) []Suspect {
	parents := map[string]int{}
	for i := range in {
		if in[i].Kind == fabric.KindSwitch {
			parents[in[i].Name] = i
		}
	}
	var out []Suspect
	gone := make([]bool, len(in))
	for i := range in {
		c := &in[i]
		if c.Kind != fabric.KindLink {
			continue
		}
		a, b, _ := fabric.SplitLink(c.Name)
		for _, end := range []string{a, b} {
			j, ok := parents[fabric.OwnerOf(end)]
			if !ok || gone[i] {
				continue
			}
			p := &in[j]
			if c.AddedDelayNS <= p.AddedDelayNS && c.LossRatio <= p.LossRatio && c.TailDelayNS <= max(p.TailDelayNS, p.AddedDelayNS) {
				p.Explained, p.Contrary = unionSorted(p.Explained, c.Explained), differenceSorted(p.Contrary, c.Explained)
				gone[i] = true
			}
		}
	}
	for i := range in {
		if !gone[i] {
			out = append(out, in[i])
		}
	}
	return out
}

func differenceSorted(a, b []int) []int {
	return slices.DeleteFunc(slices.Clone(a), func(i int) bool { _, in := slices.BinarySearch(b, i); return in })
}

func unionSorted(a, b []int) []int {
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
