package fabric

import "slices"

// cabledSwitches are the switches by numbers, with those that links join to each, once each.
type cabledSwitches struct {
	names  []string
	number map[string]int32
	next   [][]int32
}

// numberSwitches returns the switches of the links.
func (g *Graph) numberSwitches() *cabledSwitches {
	c := &cabledSwitches{number: map[string]int32{}}
	numberOf := func(name string) int32 {
		n, known := c.number[name]
		if !known {
			n = int32(len(c.names))
			c.number[name], c.names, c.next = n, append(c.names, name), append(c.next, nil)
		}
		return n
	}
	for i := range g.Topo.Links {
		a, _, isSwitch := SplitPort(g.Topo.Links[i].A)
		b, _, bothAre := SplitPort(g.Topo.Links[i].B)
		if isSwitch && bothAre {
			x, y := numberOf(a), numberOf(b)
			c.next[x], c.next[y] = append(c.next[x], y), append(c.next[y], x)
		}
	}
	for i, next := range c.next {
		slices.Sort(next)
		c.next[i] = slices.Clip(slices.Compact(next))
	}
	return c
}

// SwitchDistances returns the number of links from every switch to goal, through switches only.
func (g *Graph) SwitchDistances(goal string) map[string]int {
	c := g.cabled()
	first, known := c.number[goal]
	if !known {
		return map[string]int{goal: 0}
	}
	links := make([]int, len(c.names)) // to goal, and 1 more; 0 is not reached yet
	links[first] = 1
	queue := make([]int32, 1, len(c.names))
	queue[0] = first
	for at := 0; at < len(queue); at++ {
		for _, next := range c.next[queue[at]] {
			if links[next] == 0 {
				links[next] = links[queue[at]] + 1
				queue = append(queue, next)
			}
		}
	}
	dist := make(map[string]int, len(queue))
	for _, n := range queue {
		dist[c.names[n]] = links[n] - 1
	}
	return dist
}
