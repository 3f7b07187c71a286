package evaluate

import (
	"math"
	"slices"
	"strings"

	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Coverage that the fabric, or a part of it, needs before it can be called innocent.
const (
	MinLinkCoverage = 0.9
	MinEdgeCoverage = 0.9
)

// measureCoverage returns how much of the expected flows and of the directed links of the part is decided.
func measureCoverage(m *Moment, res triangulate.Result) (fabric.EdgeCounts, fabric.Coverage) {
	var c fabric.EdgeCounts
	for _, i := range res.Degraded {
		if m.Part.OwnsFlow(m.Findings[i].Flow) {
			c.Degraded++
		}
	}
	more, usable, unqueried := m.Carried.FlowTotals()
	expected := m.Expected - unqueried
	decided := make(map[fabric.Flow]bool, len(m.Findings))
	for i := range m.Findings {
		f := &m.Findings[i]
		if f.Flow.IsTemporary() || !m.Part.OwnsFlow(f.Flow) {
			continue
		}
		if m.Excluder.ExcludesFlow(f.Flow) {
			expected--
			continue
		}
		decided[f.Flow] = decided[f.Flow] || f.Condition != judge.Undecided && (len(f.Obs.Path) > 0 || f.Obs.Sprayed)
		if f.Obs.PathState == fabric.PathUnknown && !f.Obs.Sprayed {
			c.UnknownPath++
		}
		if f.ClockSuspect {
			c.ClockSuspect++
		}
		if f.HostSuspect {
			c.HostSuspect++
		}
		if f.Obs.Unread {
			c.Unread++
		}
	}
	c.Total = max(expected, len(decided)+more)
	var cov fabric.Coverage
	if c.Total > 0 {
		for _, yes := range decided {
			if yes {
				usable++
			}
		}
		cov.Edges = float64(usable) / float64(c.Total)
	}
	cov.Links = linkCoverage(m, res)
	return c, cov
}

// linkCoverage returns the share of the directed links of the part that decided flows cross.
func linkCoverage(m *Moment, res triangulate.Result) float64 {
	n, crossed := 0, 0
	carried := m.Carried.CrossingCounts(m.Graph)
	for i, d := range m.Graph.LinkDirections() {
		if !m.Part.OwnsDirection(d) || m.Excluder.ExcludesDirection(d) {
			continue
		}
		if n++; carried[i] > 0 || res.Crossed[d] > 0 {
			crossed++
		}
	}
	if n == 0 {
		return 0
	}
	return float64(crossed) / float64(n)
}

// pathChoice returns who chooses the paths of the flows, and which share of the directed links between switches of the part the
// flows of chosen paths cross that are decided.
func pathChoice(m *Moment) (out fabric.PathChoice) {
	known, sprayed := false, map[fabric.Flow]bool{}
	crossed := map[fabric.Direction]bool{}
	for i := range m.Findings {
		f := &m.Findings[i]
		o := f.Obs
		if o.Sprayed && !f.Flow.IsTemporary() && m.Part.OwnsFlow(f.Flow) {
			sprayed[f.Flow] = true
		}
		known = known || o.PathState == fabric.PathValid
		if !o.Chosen {
			continue
		}
		if out.Chosen++; f.Condition != judge.Undecided {
			for _, d := range o.Path.LinkDirections(o.Src, o.Dst) {
				crossed[d] = true
			}
		}
	}
	out.Sprayed = len(sprayed)
	switch {
	case out.Chosen > 0:
		out.Mode = fabric.SRv6
	case out.Sprayed > 0:
		out.Mode = fabric.Spray
	case known:
		out.Mode = fabric.ECMP
	}
	if out.Chosen == 0 {
		return out
	}
	n, met := 0, 0
	for _, d := range m.Graph.LinkDirections() {
		if fabric.IsNIC(d.From) || fabric.IsNIC(d.To) || !m.Part.OwnsDirection(d) || m.Excluder.ExcludesDirection(d) {
			continue
		}
		if n++; crossed[d] {
			met++
		}
	}
	if n > 0 {
		share := float64(met) / float64(n)
		out.Links = &share
	}
	return out
}

// linkShares returns what flows send across the directed links of the part, sorted.
func linkShares(m *Moment, res triangulate.Result) (out []fabric.LinkShare) {
	for d, s := range res.Shares {
		if !m.Part.OwnsDirection(d) {
			continue
		}
		x := fabric.LinkShare{Direction: d.String(), SprayedEdges: s.Sprayed, ProbesPerSecond: roundShare(s.Rate)}
		if s.Sprayed > 0 {
			x.Share = roundShare(s.Packets / float64(s.Sprayed))
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b fabric.LinkShare) int { return strings.Compare(a.Direction, b.Direction) })
	return out
}

// roundShare rounds to six digits, since further ones are those of the order of sums. What is nothing in a year is 0.
func roundShare(x float64) float64 {
	if x < 1e-9 {
		return 0
	}
	by := math.Pow(10, 5-math.Floor(math.Log10(x)))
	return math.Round(x*by) / by
}

// leastRate returns the least rate of a directed link between switches, or nil if there is none.
func leastRate(shares []fabric.LinkShare) (least *float64) {
	for i := range shares {
		d, err := fabric.ParseDirection(shares[i].Direction)
		if err != nil || fabric.IsNIC(d.From) || fabric.IsNIC(d.To) {
			continue
		}
		if rate := shares[i].ProbesPerSecond; least == nil || rate < *least {
			least = &rate
		}
	}
	return least
}

// seesDegraded reports whether a flow that may cross elements of the part is degraded.
func seesDegraded(m *Moment, res triangulate.Result) bool {
	return slices.ContainsFunc(res.Degraded, func(i int) bool { return m.Part.Concerns(m.Findings[i].Flow) })
}
