package schedule

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// LinkOdds is a directed link with the odds that a flow crosses it.
type LinkOdds struct {
	fabric.Direction
	Odds float64
}

// CrossedLinks returns the directed links that packets from NIC src to NIC dst may cross, with the
// odds: access links first, then the others by falling odds. It returns an error if a NIC is unknown or
// no path joins the two.
func CrossedLinks(g *fabric.Graph, src, dst string) ([]LinkOdds, error) {
	n := newNetwork(g, nil)
	from, err := n.pluggedNIC(src)
	if err != nil {
		return nil, err
	}
	to, err := n.pluggedNIC(dst)
	if err != nil {
		return nil, err
	}
	w := n.newWalk()
	w.searchToward(n.nics[to].leaf)
	start := n.nics[from].leaf
	if w.dist[start] < 0 {
		return nil, fmt.Errorf("no path joins %s and %s", src, dst)
	}
	odds := make([]float64, len(n.to))
	w.load[start] = 1
	w.spreadLoad(odds)
	var out []LinkOdds
	for i := range n.cables {
		c := &n.cables[i]
		l := &g.Topo.Links[c.link]
		if p := odds[c.arc] * c.share; p > 0 {
			out = append(out, LinkOdds{fabric.Direction{From: l.A, To: l.B}, p})
		}
		if p := odds[n.rev[c.arc]] * c.share; p > 0 {
			out = append(out, LinkOdds{fabric.Direction{From: l.B, To: l.A}, p})
		}
	}
	slices.SortFunc(out, func(a, b LinkOdds) int {
		return cmp.Or(cmp.Compare(b.Odds, a.Odds), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return append([]LinkOdds{{fabric.Direction{From: src, To: g.PeerOf(src)}, 1}, {fabric.Direction{From: g.PeerOf(dst), To: dst}, 1}}, out...), nil
}

func (n *network) pluggedNIC(id string) (int32, error) {
	x, ok := n.nicByID[id]
	switch {
	case !ok:
		return 0, fmt.Errorf("the topology has no NIC %q", id)
	case n.nics[x].leaf < 0:
		return 0, fmt.Errorf("NIC %q has no link", id)
	}
	return x, nil
}

// EdgeOdds is an edge, of probes or of replies, with the odds that it crosses a link.
type EdgeOdds struct {
	Edge fabric.Flow
	Odds float64
}

// CrossingFlows returns the edges that may cross a directed link, with the odds, by falling odds. It
// returns an error if the topology has no such link.
func (s *Schedule) CrossingFlows(g *fabric.Graph, d fabric.Direction) ([]EdgeOdds, error) {
	l := g.LinkAt(d.From)
	if l == nil || g.PeerOf(d.From) != d.To {
		return nil, fmt.Errorf("the topology has no link %s", d.LinkID())
	}
	n := newNetwork(g, nil)
	odds, err := n.oddsOf(g, l, d)
	if err != nil {
		return nil, err
	}
	var out []EdgeOdds
	for _, e := range s.Edges {
		id := s.FlowID(e)
		for _, reply := range []bool{false, true} {
			id.Reply = reply
			from, to := id.Endpoints()
			if p := odds(from, to); p > 0 {
				out = append(out, EdgeOdds{id, p})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b EdgeOdds) int { return cmp.Compare(b.Odds, a.Odds) })
	return out, nil
}

// oddsOf returns a function for the odds that packets between two NICs cross one way of a link.
func (n *network) oddsOf(g *fabric.Graph, l *fabric.Link, d fabric.Direction) (func(from, to string) float64, error) {
	if l.IsAccess() {
		return func(from, to string) float64 {
			if from == d.From || to == d.To {
				return 1
			}
			return 0
		}, nil
	}
	at := slices.IndexFunc(n.cables, func(c cable) bool { return &g.Topo.Links[c.link] == l })
	if at < 0 {
		return nil, fmt.Errorf("link %s joins no switches", d.LinkID())
	}
	arc, share := n.cables[at].arc, n.cables[at].share
	if d.From != l.A {
		arc = n.rev[arc]
	}
	w := n.newWalk()
	byGoal := map[int32][]float64{}
	return func(from, to string) float64 {
		x, okX := n.nicByID[from]
		y, okY := n.nicByID[to]
		if !okX || !okY || n.nics[x].leaf < 0 || n.nics[y].leaf < 0 {
			return 0
		}
		goal := n.nics[y].leaf
		odds, ok := byGoal[goal]
		if !ok {
			w.searchToward(goal)
			odds = w.crossingOdds(arc)
			byGoal[goal] = odds
		}
		if odds == nil {
			return 0
		}
		return odds[n.nics[x].leaf] * share
	}, nil
}

// crossingOdds returns every vertex's odds that a flow from it to the goal crosses an arc. It returns
// nil if no flow to the goal can.
func (w *walk) crossingOdds(arc int32) []float64 {
	n := w.n
	odds := make([]float64, n.vertices)
	some := false
	for _, u := range w.order[1:] {
		d, total, sum := w.dist[u]-1, 0.0, 0.0
		for a := n.first[u]; a < n.first[u+1]; a++ {
			if v := n.to[a]; w.dist[v] == d {
				total += n.weight[a]
				sum += n.weight[a] * odds[v]
				if a == arc {
					sum += n.weight[a]
				}
			}
		}
		odds[u] = sum / total
		some = some || sum > 0
	}
	if !some {
		return nil
	}
	return odds
}
