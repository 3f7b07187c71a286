package audit

import (
	"fmt"
	"math"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// logShare returns the logarithm of the probability that a choice between some ways avoids one of them.
func logShare(options int) float64 { return math.Log1p(-1 / float64(options)) }

// checkWiring makes check A2: whether cables are where the plan has them. A link is confirmed by LLDP at one of its ends, or by a flow
// whose trace crosses it.
func checkWiring(st *study) Check {
	c := Check{ID: "A2", Title: "Wiring as planned", Status: Pass, Unit: "wrong or missing cables", Of: "links"}
	none := 0.0
	c.Bound = &none
	st.addSwaps(&c)
	confirmed := st.addNeighbours(&c)
	missing := st.missingCables()
	seen := 0
	for i := range st.e.Graph.Topo.Links {
		id := st.e.Graph.Topo.Links[i].ID()
		if !st.scope.hasLink(id) {
			continue
		}
		c.Population++
		a, b, _ := fabric.SplitLink(id)
		to, from := st.numbers[fabric.Direction{From: a, To: b}], st.numbers[fabric.Direction{From: b, To: a}]
		switch text := missing[id]; {
		case st.miswired[id]:
		case text != "":
			c.addItem(Item{Element: id, Kind: st.kindOf(to), Status: Fail, Population: st.choices.offered[to] + st.choices.offered[from], Text: text})
			st.miswired[id] = true
		case confirmed[id] || st.choices.used[to]+st.choices.used[from] > 0:
			seen++
		default:
			c.addItem(Item{Element: id, Kind: st.kindOf(to), Status: Unknown, Text: "Neither LLDP nor a trace shows the cable."})
		}
	}
	if len(st.miswired) > 0 {
		st.choices = st.countChoices(st.graphAsFound())
	}
	c.noteValue(float64(len(st.miswired)))
	c.Text = fmt.Sprintf("%d of %d links were seen where they are planned, %d of them by LLDP; %d are wrong or missing.", seen, c.Population, len(confirmed), len(st.miswired))
	return c
}

// addSwaps adds the cables that are plugged into each other's ports.
func (st *study) addSwaps(c *Check) {
	for _, s := range st.e.Swaps {
		by := fmt.Sprintf("%d flows show it", s.Flows)
		if s.LLDP {
			by += ", and LLDP does"
		}
		for i, id := range s.Planned {
			if !st.scope.hasLink(id) || st.miswired[id] {
				continue
			}
			st.miswired[id] = true
			c.addItem(Item{Element: id, Kind: kindOf(st.e.Graph, id), Status: Fail, Population: s.Flows,
				Text: fmt.Sprintf("The cables of %s and %s are swapped: the fabric has %s and %s (%s).", id, s.Planned[1-i], s.Found[0], s.Found[1], by)})
		}
	}
}

// addNeighbours compares LLDP with the plan, and returns the links that it confirms. A neighbour whose name the plan does not
// have says nothing.
func (st *study) addNeighbours(c *Check) (confirmed map[string]bool) {
	confirmed = map[string]bool{}
	g := st.e.Graph
	for _, n := range st.e.Neighbours {
		planned := g.PeerOf(n.Port)
		if planned == "" || g.CheckElement(n.Far) != nil {
			continue
		}
		id := fabric.LinkID(n.Port, planned)
		switch {
		case n.Far == planned:
			confirmed[id] = true
		case st.scope.hasLink(id) && !st.miswired[id]:
			st.miswired[id] = true
			c.addItem(Item{Element: id, Kind: kindOf(g, id), Status: Fail, Population: 1, Text: fmt.Sprintf("LLDP at %s reports %s, and %s is planned.", n.Port, n.Far, planned)})
		}
	}
	return confirmed
}

// missingCables returns the links that seem to be missing or down, with the reason: flows had the choice, and none took it in
// either direction; or a NIC whose agent works gets and gives no probe.
func (st *study) missingCables() map[string]string {
	out := map[string]string{}
	for i := range st.e.Graph.Topo.Links {
		l := &st.e.Graph.Topo.Links[i]
		to, from := st.numbers[fabric.Direction{From: l.A, To: l.B}], st.numbers[fabric.Direction{From: l.B, To: l.A}]
		if st.choices.used[to]+st.choices.used[from] > 0 {
			continue
		}
		offered := st.choices.offered[to] + st.choices.offered[from]
		if p := math.Exp(st.choices.avoided[to] + st.choices.avoided[from]); offered > 0 && p < st.c.Wiring.Chance {
			out[l.ID()] = fmt.Sprintf("The cable is missing or down: none of %d flows that could cross it does (probability by chance %.1g).", offered, p)
		}
	}
	for nic, sent := range st.e.Unanswered {
		if port := st.e.Graph.PeerOf(nic); port != "" && st.hasAnsweringPeer(nic) {
			out[fabric.LinkID(nic, port)] = fmt.Sprintf("The cable or the NIC is down: all %d probes to and from %s were lost, and its agent works.", sent, nic)
		}
	}
	return out
}

// hasAnsweringPeer reports whether another NIC of a NIC's flows gets any probe through.
func (st *study) hasAnsweringPeer(nic string) bool {
	return slices.ContainsFunc(st.e.Flows, func(f FlowRecord) bool {
		peer := f.Dst
		if f.Dst == nic {
			peer = f.Src
		} else if f.Src != nic {
			return false
		}
		return st.e.Unanswered[peer] == 0
	})
}

// graphAsFound returns the planned fabric without the cables that are missing or elsewhere, since switches do not route over them.
func (st *study) graphAsFound() *fabric.Graph {
	t := *st.e.Graph.Topo
	t.Links = slices.DeleteFunc(slices.Clone(t.Links), func(l fabric.Link) bool { return st.miswired[l.ID()] })
	return fabric.NewGraph(&t)
}
