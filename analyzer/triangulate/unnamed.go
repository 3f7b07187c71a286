package triangulate

import (
	"cmp"
	"math"
	"slices"
)

// Bounds of the list of unnamed elements.
const (
	// LeastProbability is the probability from which an element that is not named is listed.
	LeastProbability = 0.05
	// MaxUnnamed bounds the list, and mostLikely the elements that are compared with each other for it.
	MaxUnnamed, mostLikely = 20, 128
)

// Unnamed is an element that may be at fault, by evidence that is not enough to name it.
type Unnamed struct {
	Element
	// Probability that the element is at fault, beside what is named. docs/localization.md has how often it holds.
	Probability float64
	// Explained are the flows that would be explained.
	Explained []int
	// Equivalent are elements that the same flows cross.
	Equivalent []Element
	// Rivals are other elements that would explain some of the flows and are at least as likely. A named one is the
	// first.
	Rivals []Element
}

// unnamedElements returns the likeliest elements that are not named, the likeliest first: rivals of the named ones, and
// those that explain what is left.
func (s *search) unnamedElements() []Unnamed {
	out := append(slices.Clone(s.rivals), s.likelyRemainder()...)
	slices.SortStableFunc(out, func(a, b Unnamed) int { return cmp.Compare(b.Probability, a.Probability) })
	return out[:min(len(out), MaxUnnamed)]
}

// doubt returns how much less likely an element is than its gain says, in nats. Prices are those of a fabric with as many
// faults as there may be; most have fewer, and the likeliest of those that chance suggests are listed.
func (s *search) doubt() float64 {
	if s.namedCount == 0 {
		return s.p.FirstGain - s.p.MinGain
	}
	return s.p.UnnamedDoubt
}

// likelyRemainder returns elements that explain flows beside what is named.
func (s *search) likelyRemainder() []Unnamed {
	doubt := s.doubt()
	least := doubt + math.Log(LeastProbability)
	s.refreshFits(least)
	var likely []*candidate
	for _, c := range s.cands {
		if !c.named && c.fresh && c.fit.gain >= least {
			likely = append(likely, c)
		}
	}
	slices.SortStableFunc(likely, func(a, b *candidate) int { return cmp.Compare(b.fit.gain, a.fit.gain) })
	likely = likely[:min(len(likely), mostLikely)]
	var out []Unnamed
	done := map[*candidate]bool{}
	for _, c := range likely {
		if done[c] {
			continue
		}
		class := slices.DeleteFunc(slices.Clone(likely), func(r *candidate) bool { return r != c && !sameMembers(r, c) })
		for _, r := range class {
			done[r] = true
		}
		top := s.narrowestOf(class)
		u := Unnamed{Element: top.Element, Equivalent: s.elementsOf(class, top)}
		stamp := s.explainedBy(top)
		weight, rest := math.Exp(top.fit.gain-doubt), 1.0 // 1: nothing more is broken
		for _, r := range likely {
			if slices.Contains(class, r) || !s.hasStampedFlow(r, stamp) {
				continue
			}
			rest += math.Exp(r.fit.gain - doubt)
			if r.fit.gain >= top.fit.gain-s.p.SameGain {
				u.Rivals = append(u.Rivals, r.Element)
			}
		}
		u.Probability, u.Explained = weight/(weight+rest), s.stampedFlows(top, stamp)
		if u.Probability >= LeastProbability && len(u.Explained) > 0 {
			out = append(out, u)
		}
	}
	return out
}

// narrowestOf returns the narrowest of the likeliest of elements that the same flows cross.
func (s *search) narrowestOf(class []*candidate) *candidate {
	most := slices.MaxFunc(class, func(a, b *candidate) int { return cmp.Compare(a.fit.gain, b.fit.gain) }).fit.gain
	top := (*candidate)(nil)
	for _, c := range class {
		if c.fit.gain >= most-s.p.SameGain && (top == nil || widthRank(c.Element) < widthRank(top.Element)) {
			top = c
		}
	}
	return top
}

// elementsOf returns the elements of candidates but one, and those that all of them stand for.
func (s *search) elementsOf(class []*candidate, but *candidate) (out []Element) {
	for _, c := range class {
		if c != but {
			out = append(out, c.Element)
		}
		out = append(out, s.bundled(c)...)
	}
	return out
}

// stampedFlows returns the indices of an element's flows that have a stamp.
func (s *search) stampedFlows(c *candidate, stamp int32) (out []int) {
	for i := range c.special {
		if fl := &s.flows[c.special[i].flow]; fl.stamp == stamp {
			out = append(out, int(fl.index))
		}
	}
	slices.Sort(out)
	return out
}

// addRivals lists the elements that may be at fault instead of a named one, whose explained flows are stamped. against
// is the sum of the weights of all explanations, in which the named one's is 1.
func (s *search) addRivals(named *candidate, rivals []*candidate, against float64) {
	for i, r := range rivals {
		probability := math.Exp(min(r.fit.gain-named.fit.gain, 10)) / against
		if probability < LeastProbability || slices.ContainsFunc(rivals[:i], func(o *candidate) bool { return sameMembers(o, r) }) {
			continue
		}
		class := slices.DeleteFunc(slices.Clone(rivals), func(o *candidate) bool { return o != r && !sameMembers(o, r) })
		top := s.narrowestOf(class)
		s.rivals = append(s.rivals, Unnamed{Element: top.Element, Probability: probability, Explained: s.stampedFlows(top, s.visitStamp), Equivalent: s.elementsOf(class, top), Rivals: []Element{named.Element}})
	}
}
