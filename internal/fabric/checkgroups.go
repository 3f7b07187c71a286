package fabric

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// groupOf identifies a group. Each plane is a Dragonfly+ of its own.
type groupOf struct{ plane, group string }

// groupPair is two groups of one plane, in the order of their names.
type groupPair struct{ a, b groupOf }

// groupCheck collects what is known of the groups of a topology.
type groupCheck struct {
	*parser
	t        *Topology
	switches map[string]*Switch
	field    map[string]string     // of the group, by switch
	groups   map[groupOf][]*Switch // in the order of the file
	global   map[groupPair]int     // number of global links
	globalOf map[string]int        // the same by spine
	below    map[[2]string]bool    // leaf and spine that have a link
}

// checkGroups finds what is not as in a Dragonfly+, if the topology has groups: switches without a group, links that no
// Dragonfly+ has, groups that are not joined, and unequal numbers of links.
func (p *parser) checkGroups(t *Topology, switches map[string]*Switch) {
	c := &groupCheck{parser: p, t: t, switches: switches, field: map[string]string{}, groups: map[groupOf][]*Switch{}, global: map[groupPair]int{}, globalOf: map[string]int{}, below: map[[2]string]bool{}}
	planes := map[string]*Switch{} // the first switch with a group
	for i := range t.Switches {
		s := &t.Switches[i]
		c.field[s.Name] = fmt.Sprintf("switches[%d].group", i)
		if s.Group != "" {
			k := groupOf{s.Plane, s.Group}
			c.groups[k] = append(c.groups[k], s)
			if planes[s.Plane] == nil {
				planes[s.Plane] = s
			}
		}
	}
	if len(planes) == 0 {
		if t.Routing == Adaptive {
			p.errorf(p.routingLine, "routing", "minimal is expected: adaptive routing is by a third group of a Dragonfly+, and no switch has a group")
		}
		return
	}
	for i := range t.Switches {
		s := &t.Switches[i]
		first, field := planes[s.Plane], c.field[s.Name]
		switch {
		case first == nil:
		case s.Role == Core:
			p.errorf(s.Line, field, "%q is a core, and %q on line %d has a group: a Dragonfly+ has leaves and spines only", s.Name, first.Name, first.Line)
		case s.Group == "":
			p.errorf(s.Line, field, "a group is expected: %q has none, and %q on line %d has one", s.Name, first.Name, first.Line)
		}
	}
	for i := range t.Links {
		c.checkLink(i)
	}
	if len(p.problems.OnlyErrors()) == 0 {
		c.checkPairs()
		c.checkBalance()
	}
}

// checkLink finds a link that no Dragonfly+ has, and counts the others.
func (c *groupCheck) checkLink(i int) {
	l := &c.t.Links[i]
	a, b := c.switches[OwnerOf(l.A)], c.switches[OwnerOf(l.B)]
	if l.IsAccess() || a == nil || b == nil || a.Group == "" || b.Group == "" {
		return
	}
	at := fmt.Sprintf("links[%d]", i)
	spineA, spineB := a.Role == Spine, b.Role == Spine
	switch {
	case !spineA && !spineB:
		c.errorf(l.Line, at, "joins the leaves %q and %q; a leaf of a Dragonfly+ is linked to spines of its group and to NICs", a.Name, b.Name)
	case spineA != spineB && a.Group != b.Group:
		c.errorf(l.Line, at, "joins %q of group %q and %q of group %q; only a link between spines leaves a group", a.Name, a.Group, b.Name, b.Group)
	case spineA != spineB:
		if spineA {
			a, b = b, a
		}
		c.below[[2]string{a.Name, b.Name}] = true
	case a.Group == b.Group:
		c.warnf(l.Line, at, "joins the spines %q and %q of group %q; spines of one group are joined by leaves", a.Name, b.Name, a.Group)
	case a.Plane == b.Plane:
		x, y := groupOf{a.Plane, a.Group}, groupOf{b.Plane, b.Group}
		if y.group < x.group {
			x, y = y, x
		}
		c.global[groupPair{x, y}]++
		c.globalOf[a.Name]++
		c.globalOf[b.Name]++
	}
}

// inOrder lists the groups by their first switches.
func (c *groupCheck) inOrder() []groupOf {
	return slices.SortedFunc(maps.Keys(c.groups), func(x, y groupOf) int {
		return cmp.Or(cmp.Compare(c.groups[x][0].Line, c.groups[y][0].Line), cmp.Compare(x.plane, y.plane), cmp.Compare(x.group, y.group))
	})
}

// checkPairs warns of pairs of groups without a global link, or with more or fewer than most.
func (c *groupCheck) checkPairs() {
	order := c.inOrder()
	count := map[int]int{} // pairs by number of global links
	for _, n := range c.global {
		count[n]++
	}
	usual := 0
	for n, pairs := range count {
		if pairs > count[usual] || pairs == count[usual] && n > usual {
			usual = n
		}
	}
	for i, x := range order {
		var apart, odd []string
		for _, y := range order[i+1:] {
			k := groupPair{x, y}
			if y.group < x.group {
				k = groupPair{y, x}
			}
			switch n := c.global[k]; {
			case x.plane != y.plane || n == usual && n > 0:
			case n == 0:
				apart = append(apart, y.group)
			default:
				odd = append(odd, fmt.Sprintf("%d to %s", n, y.group))
			}
		}
		first := c.groups[x][0]
		if len(apart) > 0 {
			c.warnf(first.Line, c.field[first.Name], "a global link is expected from group %q to %s: without one, packets between them cross a third group", x.group, firstNames(apart))
		}
		if len(odd) > 0 {
			c.warnf(first.Line, c.field[first.Name], "%d global links are expected from group %q to each other group, as between most pairs, and it has %s", usual, x.group, firstNames(odd))
		}
	}
}

// checkBalance warns of leaves that are not linked to all spines of their group, and of groups whose spines differ in
// their number of global links by more than the one that a division leaves.
func (c *groupCheck) checkBalance() {
	for _, k := range c.inOrder() {
		members := c.groups[k]
		var most, least *Switch
		for _, s := range members {
			var missing []string
			switch s.Role {
			case Spine:
				if most == nil || c.globalOf[s.Name] > c.globalOf[most.Name] {
					most = s
				}
				if least == nil || c.globalOf[s.Name] < c.globalOf[least.Name] {
					least = s
				}
			case Leaf:
				for _, other := range members {
					if other.Role == Spine && !c.below[[2]string{s.Name, other.Name}] {
						missing = append(missing, other.Name)
					}
				}
			}
			if len(missing) > 0 {
				c.warnf(s.Line, c.field[s.Name], "leaf %q is expected to have a link to every spine of its group %q, and has none to %s", s.Name, s.Group, firstNames(missing))
			}
		}
		if most != nil && c.globalOf[most.Name] > c.globalOf[least.Name]+1 {
			c.warnf(least.Line, c.field[least.Name], "as many global links are expected at all spines of group %q, and %q has %d and %q has %d", least.Group, least.Name, c.globalOf[least.Name], most.Name, c.globalOf[most.Name])
		}
	}
}

// firstNames joins the first names of a list, and says how many more there are.
func firstNames(names []string) string {
	const shown = 6
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}
