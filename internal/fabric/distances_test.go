package fabric

import (
	"fmt"
	"maps"
	"testing"
)

// TestSwitchDistances compares distances with a search over the ends of links, in three tiers with cables of several links.
func TestSwitchDistances(t *testing.T) {
	var topology Topology
	add := func(a, b string) {
		for i := range 2 { // two links each
			topology.Links = append(topology.Links, Link{A: fmt.Sprintf("%s:to-%s-%d", a, b, i), B: fmt.Sprintf("%s:to-%s-%d", b, a, i)})
		}
	}
	for leaf := range 6 {
		for spine := range 2 {
			add(fmt.Sprintf("leaf%d", leaf), fmt.Sprintf("spine%d", leaf/2*2+spine))
		}
	}
	for spine := range 6 {
		add(fmt.Sprintf("spine%d", spine), fmt.Sprintf("core%d", spine%2))
	}
	add("island1", "island2")
	topology.Links = append(topology.Links, Link{A: "leaf0:dn1", B: "h1/eth1"})
	g := NewGraph(&topology)
	for _, goal := range []string{"leaf0", "spine3", "core1", "island2", "nowhere"} {
		want := map[string]int{goal: 0}
		for queue := []string{goal}; len(queue) > 0; queue = queue[1:] {
			for _, end := range g.EndsOf(queue[0]) {
				if next, _, ok := SplitPort(g.PeerOf(end)); ok {
					if _, seen := want[next]; !seen {
						want[next] = want[queue[0]] + 1
						queue = append(queue, next)
					}
				}
			}
		}
		if got := g.SwitchDistances(goal); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", goal, got, want)
		}
	}
}
