package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// checkECMP makes check A7: whether switches spread flows over parallel links as evenly as chance does. Cables that check A2 found to be
// missing are left out.
func checkECMP(st *study) Check {
	c := Check{ID: "A7", Title: "Spread of flows over parallel links (ECMP)", Status: Pass, Unit: "probability by chance", Of: "choices between parallel links"}
	groups := slices.SortedFunc(maps.Values(st.choices.groups), func(a, b *choice) int { return strings.Compare(st.nameChoice(a), st.nameChoice(b)) })
	groups = slices.DeleteFunc(groups, func(g *choice) bool {
		g.directions = slices.DeleteFunc(slices.Clone(g.directions), func(d int32) bool { return st.miswired[st.directions[d].LinkID()] })
		return len(g.directions) < 2 || !st.scope.hasSwitch(g.sw)
	})
	limit := st.c.ECMP.Significance / float64(max(1, len(groups)))
	c.Bound = &limit
	least := 1.0
	for _, g := range groups {
		counts, total := make([]int, len(g.directions)), 0
		for i, d := range g.directions {
			counts[i] = g.counts[d]
			total += counts[i]
		}
		c.Population++
		i := Item{Element: g.sw, Kind: "switch", Population: total, Bound: &limit}
		if float64(total) < st.c.ECMP.MinFlows*float64(len(counts)) {
			i.Status = Unknown
			i.Text = fmt.Sprintf("%d flows had the choice between %d links; at least %g are expected.", total, len(counts), st.c.ECMP.MinFlows*float64(len(counts)))
			c.addItem(i)
			continue
		}
		p := uniformProbability(counts)
		least = min(least, p)
		if p >= limit {
			continue
		}
		i.Status, i.Value = Fail, &p
		i.Text = "It does not spread flows evenly: " + st.describeSpread(g, counts) + fmt.Sprintf(" (probability by chance %.1g).", p)
		c.addItem(i)
	}
	switch {
	case c.Population > 0:
		c.Value = &least
		c.Text = fmt.Sprintf("The least probability of %d choices.", c.Population)
	case !st.hasParallelUplinks():
		c.Text = "No switch of the scope has parallel uplinks."
	}
	return c
}

func (st *study) nameChoice(g *choice) string {
	name := g.sw
	for _, d := range g.directions {
		name += " " + st.directions[d].From
	}
	return name
}

// maxSpread is the number of links whose counts are described.
const maxSpread = 16

func (st *study) describeSpread(g *choice, counts []int) string {
	var parts []string
	for i, d := range g.directions[:min(len(counts), maxSpread)] {
		parts = append(parts, fmt.Sprintf("%d by %s", counts[i], st.directions[d].From))
	}
	if n := len(counts) - maxSpread; n > 0 {
		parts = append(parts, fmt.Sprintf("and %d links more", n))
	}
	return strings.Join(parts, ", ")
}

// hasParallelUplinks reports whether a switch of the scope can choose at all.
func (st *study) hasParallelUplinks() bool {
	for i := range st.e.Graph.Topo.Switches {
		if sw := st.e.Graph.Topo.Switches[i].Name; st.scope.hasSwitch(sw) && len(st.e.Graph.Uplinks(sw)) > 1 {
			return true
		}
	}
	return false
}
