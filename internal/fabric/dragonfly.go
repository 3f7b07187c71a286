package fabric

import (
	"slices"
	"strconv"
)

// A Dragonfly+ (Shpiner et al., HiPINEB 2017) consists of groups. Each is a fat tree of two tiers, in which every leaf is
// linked to every spine. Global links join spines of different groups, and nothing else leaves a group.

// Routing is which paths the switches of a Dragonfly+ use between groups.
type Routing string

// Routings of the topology file. Minimal is the default.
const (
	Minimal  Routing = "minimal"  // at most one global link
	Adaptive Routing = "adaptive" // also by a third group, over two global links
)

// PodName returns the label of the part of the fabric that a switch belongs to: its pod or, if it has none, its group.
func (s *Switch) PodName() string {
	if s.Pod != "" {
		return s.Pod
	}
	return s.Group
}

// joinGroups reports whether a link between two switches is a global link: one between two groups.
func joinGroups(a, b *Switch) bool {
	return a != nil && b != nil && a.Group != "" && b.Group != "" && a.Group != b.Group
}

// IsGlobal reports whether a link joins two groups of a Dragonfly+.
func (g *Graph) IsGlobal(l *Link) bool {
	return joinGroups(g.switches[OwnerOf(l.A)], g.switches[OwnerOf(l.B)])
}

// LinkTier returns the tier of a link: 1 for the link of a NIC, otherwise the higher tier of its two switches. A global
// link is one tier above its switches, as a link to a core is.
func (g *Graph) LinkTier(l *Link) int {
	if l.IsAccess() {
		return 1
	}
	tier := max(g.SwitchTier(OwnerOf(l.A)), g.SwitchTier(OwnerOf(l.B)))
	if g.IsGlobal(l) {
		tier++
	}
	return tier
}

// HighestTier returns the highest tier of any switch or link.
func (g *Graph) HighestTier() int { return g.tiers }

// FindGroups assigns groups to the switches of a topology that has none, if the links between its spines show a
// Dragonfly+: parts of leaves and spines that only links between spines join. Groups are named g1, g2 and so on, in the
// order of their first switch. It returns the number of groups, or 0 if it changed nothing.
func (t *Topology) FindGroups() int {
	byName := map[string]int{}
	for i := range t.Switches {
		if s := &t.Switches[i]; s.Group != "" || s.Role == Core {
			return 0
		}
		byName[t.Switches[i].Name] = i
	}
	within := make([][]int, len(t.Switches))
	var between [][2]int
	for _, l := range t.Links {
		a, isA := byName[OwnerOf(l.A)]
		b, isB := byName[OwnerOf(l.B)]
		switch {
		case l.IsAccess() || !isA || !isB:
		case t.Switches[a].Plane != t.Switches[b].Plane:
		case t.Switches[a].Role == Spine && t.Switches[b].Role == Spine:
			between = append(between, [2]int{a, b})
		default:
			within[a], within[b] = append(within[a], b), append(within[b], a)
		}
	}
	part := make([]int, len(t.Switches))
	parts := 0
	for i := range part {
		if part[i] > 0 {
			continue
		}
		parts++
		part[i] = parts
		for queue := []int{i}; len(queue) > 0; queue = queue[1:] {
			for _, next := range within[queue[0]] {
				if part[next] == 0 {
					part[next] = parts
					queue = append(queue, next)
				}
			}
		}
	}
	if !slices.ContainsFunc(between, func(e [2]int) bool { return part[e[0]] != part[e[1]] }) {
		return 0
	}
	for i := range t.Switches {
		t.Switches[i].Group = "g" + strconv.Itoa(part[i])
	}
	return parts
}
