package localize

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
)

// merger merges the reports of several windows into one, with one verdict per fault.
//
// Verdicts of different windows belong to one fault if they name the same element or
// equivalent elements, or if half of the flows of the smaller one belong to the other as
// well: with less evidence a fault looks narrower, wider, or like its neighbour. The element
// with the most evidence over all windows is named. Verdicts of other windows on single links
// of a faulty switch belong to the fault of the switch.
type merger struct {
	faults     []*fault
	delays     map[string][]fabric.LinkDelay // by direction
	directions []string
	candidates []fabric.Candidate // with the sums of their probabilities
	out        fabric.Report
	windows    int
}

// fault represents one fault, as the windows so far show it.
type fault struct {
	names []*naming
	edges map[string]bool
	first fabric.Verdict // the earliest
}

// naming represents an element that verdicts on a fault name, with the best verdict.
type naming struct {
	best    fabric.Verdict
	weight  float64
	windows map[int]bool // the windows that name it
}

func newMerger() *merger { return &merger{delays: map[string][]fabric.LinkDelay{}} }

// addWindow adds the report of the next window.
func (m *merger) addWindow(rep fabric.Report) {
	before := m.faults
	taken := map[*fault]bool{}
	for _, v := range rep.Verdicts {
		f := matchFault(before, taken, v)
		if f == nil {
			f = &fault{edges: map[string]bool{}, first: v}
			m.faults = append(m.faults, f)
		}
		taken[f] = true
		f.addVerdict(v, m.windows)
	}
	for _, d := range rep.LinkDelays {
		if m.delays[d.Direction] == nil {
			m.directions = append(m.directions, d.Direction)
		}
		m.delays[d.Direction] = append(m.delays[d.Direction], d)
	}
	m.addCandidates(rep.Candidates)
	if m.windows++; m.windows == 1 {
		m.out = rep
		return
	}
	if rep.State != fabric.Innocent {
		m.out.State = rep.State
	}
	m.out.Coverage.Links = min(m.out.Coverage.Links, rep.Coverage.Links)
	m.out.Coverage.Edges = min(m.out.Coverage.Edges, rep.Coverage.Edges)
	m.out.Edges.Degraded = max(m.out.Edges.Degraded, rep.Edges.Degraded)
	m.out.Edges.UnknownPath = max(m.out.Edges.UnknownPath, rep.Edges.UnknownPath)
	m.out.Edges.ClockSuspect = max(m.out.Edges.ClockSuspect, rep.Edges.ClockSuspect)
	m.out.Edges.HostSuspect = max(m.out.Edges.HostSuspect, rep.Edges.HostSuspect)
	m.out.Edges.Unread = max(m.out.Edges.Unread, rep.Edges.Unread)
	m.addShares(rep)
}

// addShares adds the traffic mode of a window. It is spray if that of one window is, and of each link the least rate counts.
func (m *merger) addShares(rep fabric.Report) {
	p := &m.out.Paths
	if p.Mode == "" || rep.Paths.Mode == fabric.Spray {
		p.Mode = rep.Paths.Mode
	}
	p.Sprayed = max(p.Sprayed, rep.Paths.Sprayed)
	if least := rep.Paths.LeastProbesPerSecond; least != nil && (p.LeastProbesPerSecond == nil || *least < *p.LeastProbesPerSecond) {
		p.LeastProbesPerSecond = least
	}
	for _, x := range rep.LinkShares {
		i, known := slices.BinarySearchFunc(m.out.LinkShares, x.Direction, func(s fabric.LinkShare, d string) int { return cmp.Compare(s.Direction, d) })
		switch {
		case !known:
			m.out.LinkShares = slices.Insert(m.out.LinkShares, i, x)
		case x.ProbesPerSecond < m.out.LinkShares[i].ProbesPerSecond:
			m.out.LinkShares[i] = x
		}
	}
}

// matchFault returns the fault that a verdict belongs to, or nil. It leaves out faults that another verdict of
// its window belongs to.
func matchFault(faults []*fault, taken map[*fault]bool, v fabric.Verdict) *fault {
	for _, like := range []func(*fault, fabric.Verdict) bool{(*fault).hasName, (*fault).equivalentTo, (*fault).sharesFlows} {
		for _, f := range faults {
			if !taken[f] && like(f, v) {
				return f
			}
		}
	}
	return nil
}

func (f *fault) hasName(v fabric.Verdict) bool {
	return slices.ContainsFunc(f.names, func(n *naming) bool { return n.best.Element == v.Element })
}

func (f *fault) equivalentTo(v fabric.Verdict) bool {
	return slices.ContainsFunc(f.names, func(n *naming) bool {
		return slices.Contains(n.best.Equivalent, v.Element) || slices.Contains(v.Equivalent, n.best.Element)
	})
}

func (f *fault) sharesFlows(v fabric.Verdict) bool {
	if (f.first.Kind == fabric.KindClock) != (v.Kind == fabric.KindClock) {
		return false
	}
	common := 0
	for _, e := range v.Edges {
		if f.edges[e] {
			common++
		}
	}
	return common > 0 && common*2 >= min(len(v.Edges), len(f.edges))
}

func (f *fault) addVerdict(v fabric.Verdict, window int) {
	for _, e := range v.Edges {
		f.edges[e] = true
	}
	weight := v.Confidence * float64(max(v.Evidence.ExplainedEdges, 1))
	for _, n := range f.names {
		if n.best.Element != v.Element {
			continue
		}
		n.weight += weight
		n.windows[window] = true
		// A scenario that spans windows outweighs one that a single window shows.
		if spans := classify.SpansWindows(v.Scenario); spans != classify.SpansWindows(n.best.Scenario) {
			if spans {
				n.best = v
			}
		} else if spans || v.Evidence.ExplainedEdges > n.best.Evidence.ExplainedEdges {
			n.best = v
		}
		return
	}
	f.names = append(f.names, &naming{v, weight, map[int]bool{window: true}})
}

// strongestNaming returns the element of a fault with the most evidence.
func (f *fault) strongestNaming() *naming {
	top := f.names[0]
	for _, n := range f.names[1:] {
		if spans := classify.SpansWindows(n.best.Scenario); spans != classify.SpansWindows(top.best.Scenario) {
			if spans {
				top = n
			}
		} else if n.weight > top.weight {
			top = n
		}
	}
	return top
}

// addCandidates adds the candidates of the next window.
func (m *merger) addCandidates(of []fabric.Candidate) {
	for _, c := range of {
		i := slices.IndexFunc(m.candidates, func(have fabric.Candidate) bool { return have.Element == c.Element && have.Direction == c.Direction })
		if i < 0 {
			m.candidates = append(m.candidates, c)
			continue
		}
		have := &m.candidates[i]
		c.Probability += have.Probability
		if have.Edges > c.Edges {
			c.Edges, c.Equivalent, c.Rivals, c.Others = have.Edges, have.Equivalent, have.Rivals, have.Others
		}
		*have = c
	}
}

// mergedCandidates returns the candidates that no verdict names, with the means of their probabilities over all windows.
func (m *merger) mergedCandidates(verdicts []fabric.Verdict) []fabric.Candidate {
	out := []fabric.Candidate{}
	for _, c := range m.candidates {
		c.Probability = math.Round(c.Probability/float64(m.windows)*1000) / 1000
		named := slices.ContainsFunc(verdicts, func(v fabric.Verdict) bool { return v.Element == c.Element || slices.Contains(v.Equivalent, c.Element) })
		if !named && c.Probability >= triangulate.LeastProbability {
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b fabric.Candidate) int { return cmp.Compare(b.Probability, a.Probability) })
	return out[:min(len(out), triangulate.MaxUnnamed)]
}

func (m *merger) mergedReport() fabric.Report {
	m.out.Verdicts = []fabric.Verdict{}
	verdicts := make([]fabric.Verdict, len(m.faults))
	for i, f := range m.faults {
		verdicts[i] = withFirstSeen(f.strongestNaming().best, f.first.FirstSeen)
	}
	absorbed := make([]bool, len(m.faults))
	for i, f := range m.faults {
		for j, v := range verdicts {
			// Two faults that looked different at first have turned out to be one.
			if i > j && v.Element == verdicts[i].Element && v.Class == verdicts[i].Class && v.Direction == verdicts[i].Direction {
				absorbed[i] = true
				if verdicts[i].Evidence.ExplainedEdges > v.Evidence.ExplainedEdges {
					verdicts[j] = withFirstSeen(verdicts[i], v.FirstSeen)
				}
				break
			}
			if partOf(verdicts[i], v) && f.absorbedBy(m.faults[j], v.Scenario == fabric.HOLCross) {
				absorbed[i] = true
				if first := verdicts[i].FirstSeen; first.Before(v.FirstSeen) {
					verdicts[j] = withFirstSeen(v, first)
				}
				break
			}
		}
	}
	for i, v := range verdicts {
		if !absorbed[i] && (m.windows < minFleetingWindows || !m.faults[i].isFleeting()) {
			m.out.Verdicts = append(m.out.Verdicts, v)
		}
	}
	switch {
	case len(m.out.Verdicts) > 0:
		m.out.State = fabric.Suspect
	case m.out.State == fabric.Suspect:
		m.out.State = fabric.InsufficientEvidence // flows were degraded, but no element is named
	}
	m.out.Candidates = m.mergedCandidates(m.out.Verdicts)
	m.out.LinkDelays = []fabric.LinkDelay{}
	for _, d := range m.directions {
		all := m.delays[d]
		slices.SortFunc(all, func(a, b fabric.LinkDelay) int { return cmp.Compare(a.AddedDelayNS, b.AddedDelayNS) })
		m.out.LinkDelays = append(m.out.LinkDelays, all[len(all)/2])
	}
	return m.out
}

// partOf reports whether the element of a verdict is at the switch of another one.
func partOf(v, of fabric.Verdict) bool {
	switch of.Kind {
	case fabric.KindSwitch, fabric.KindLeafUplinks:
	default:
		return false
	}
	at := func(end string) bool { return fabric.OwnerOf(end) == of.Element.ID }
	switch v.Kind {
	case fabric.KindLink:
		return slices.ContainsFunc(v.Ends(), at)
	case fabric.KindPort, fabric.KindQueue:
		d, _ := fabric.ParseDirection(v.Direction)
		return at(v.Element.ID) || at(d.To)
	case fabric.KindNIC:
		return slices.ContainsFunc(v.Equivalent, func(e fabric.Element) bool {
			a, b, ok := fabric.SplitLink(e.ID)
			return ok && (at(a) || at(b))
		})
	}
	return false
}

// absorbedBy reports whether a fault was never named in the same window as another one, and most of its flows belong
// to the other as well. The flows need not match for blocking across ports, which affects random flows.
func (f *fault) absorbedBy(of *fault, blocking bool) bool {
	for _, n := range f.names {
		for w := range n.windows {
			if of.strongestNaming().windows[w] {
				return false
			}
		}
	}
	common := 0
	for e := range f.edges {
		if of.edges[e] {
			common++
		}
	}
	return blocking || common*2 >= len(f.edges)
}

// minFleetingWindows is the number of windows from which a fault can be called fleeting.
const minFleetingWindows = 3

// isFleeting reports whether a fault was a tail delay or ECN marks in a single window, which any busy host or queue
// can cause.
func (f *fault) isFleeting() bool {
	windows := 0
	for _, n := range f.names {
		if s := n.best.Symptom; s.AddedDelayNS > 0 || s.LossRatio > 0 || n.best.Kind == fabric.KindClock {
			return false
		}
		windows += len(n.windows)
	}
	return windows < 2
}

// withFirstSeen returns a verdict with another start, and the identifier that follows from it.
func withFirstSeen(v fabric.Verdict, first time.Time) fabric.Verdict {
	v.FirstSeen = first
	v.ID = classify.VerdictID(v.Kind, v.Element.ID, first)
	return v
}
