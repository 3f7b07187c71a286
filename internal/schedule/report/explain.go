package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// explainedEdges is how many edges of a link's direction are listed by default.
const explainedEdges = 12

// Explain explains one edge, one link or one direction of a link. With all it lists every edge that may cross a link,
// without it the first ones.
func Explain(g *fabric.Graph, s *schedule.Schedule, name string, all bool) (value any, text string, err error) {
	if a, b, ok := fabric.SplitLink(name); ok {
		return explainLink(g, s, all, []fabric.Direction{{From: a, To: b}, {From: b, To: a}})
	}
	if strings.Contains(name, "->") {
		d, err := fabric.ParseDirection(name)
		if err != nil {
			return nil, "", err
		}
		return explainLink(g, s, all, []fabric.Direction{d})
	}
	e, err := fabric.ParseFlow(name)
	if err != nil {
		return nil, "", err
	}
	return explainEdge(g, s, e.ProbeFlow())
}

type oddsReport struct {
	Link string  `json:"direction"`
	Odds float64 `json:"odds"`
}

type edgeExplained struct {
	edgeReport
	Why     string       `json:"why"`
	Flows   int          `json:"flows_of_pair"`
	FanOut  int          `json:"src_fan_out"`
	FanIn   int          `json:"dst_fan_in"`
	Probes  []oddsReport `json:"probes_cross"`
	Replies []oddsReport `json:"replies_cross"`
}

func explainEdge(g *fabric.Graph, s *schedule.Schedule, want fabric.Flow) (any, string, error) {
	if n := g.NIC(want.Src); n != nil {
		want.Src = n.ID()
	}
	if n := g.NIC(want.Dst); n != nil {
		want.Dst = n.ID()
	}
	rep := edgeExplained{}
	var peers []string
	found := false
	for i, e := range s.Edges {
		first := i == 0 || s.Edges[i-1].Src != e.Src || s.Edges[i-1].Dst != e.Dst
		id := s.FlowID(e)
		if first && id.Src == want.Src {
			peers = append(peers, id.Dst)
		}
		if first && id.Dst == want.Dst {
			rep.FanIn++
		}
		if id.Src == want.Src && id.Dst == want.Dst {
			rep.Flows++
		}
		if id == want {
			found = true
			rep.edgeReport = edgeReport{id.String(), int(e.Tier), s.Classes[e.Class], int64(e.Cadence)}
		}
	}
	rep.FanOut = len(peers)
	if !found {
		switch {
		case g.NIC(want.Src) == nil:
			return nil, "", fmt.Errorf("the topology has no NIC %q", want.Src)
		case len(peers) == 0:
			return nil, "", fmt.Errorf("not in the schedule: %s probes no NIC", want.Src)
		}
		return nil, "", fmt.Errorf("not in the schedule: %s probes %s", want.Src, strings.Join(peers, ", "))
	}
	rep.Why = whyEdge(g, want, rep.Tier)
	for _, way := range []struct {
		from, to string
		into     *[]oddsReport
	}{{want.Src, want.Dst, &rep.Probes}, {want.Dst, want.Src, &rep.Replies}} {
		links, err := schedule.CrossedLinks(g, way.from, way.to)
		if err != nil {
			return nil, "", err
		}
		for _, l := range links {
			*way.into = append(*way.into, oddsReport{l.String(), l.Odds})
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", rep.Edge)
	fmt.Fprintf(&b, "  why      %s\n", rep.Why)
	fmt.Fprintf(&b, "  tier     %d, every %v", rep.Tier, time.Duration(rep.CadenceNS))
	if rep.Class != "" {
		fmt.Fprintf(&b, ", class %s", rep.Class)
	}
	fmt.Fprintf(&b, "\n  pair     %d flows; %s probes %d peers, %s is probed by %d\n", rep.Flows, want.Src, rep.FanOut, want.Dst, rep.FanIn)
	for _, way := range []struct {
		what string
		odds []oddsReport
	}{{"probes cross, with these odds", rep.Probes}, {"replies cross", rep.Replies}} {
		fmt.Fprintf(&b, "  %s\n", way.what)
		for _, o := range way.odds {
			fmt.Fprintf(&b, "    %.4f  %s\n", o.Odds, o.Link)
		}
	}
	return rep, b.String(), nil
}

func whyEdge(g *fabric.Graph, e fabric.Flow, tier int) string {
	a, _ := g.LeafOf(e.Src)
	b, _ := g.LeafOf(e.Dst)
	rail := ""
	if x, y := g.NIC(e.Src), g.NIC(e.Dst); x.Rail != nil && y.Rail != nil && *x.Rail == *y.Rail {
		rail = fmt.Sprintf(", both of rail %d", *x.Rail)
	}
	switch {
	case a == b:
		return fmt.Sprintf("both NICs are under %s%s: nothing is crossed but their access links", a, rail)
	case tier <= 2:
		return fmt.Sprintf("%s and %s are joined by switches of tier %d%s: it crosses links between leaves and spines", a, b, tier, rail)
	}
	if x, y := g.Switch(a), g.Switch(b); x.Group != y.Group {
		return fmt.Sprintf("%s is in group %s and %s in group %s%s: it crosses a global link", a, x.Group, b, y.Group, rail)
	}
	return fmt.Sprintf("%s and %s are in different pods%s: it crosses links up to tier %d", a, b, rail, tier)
}

type crossedBy struct {
	Edge string  `json:"edge"`
	Odds float64 `json:"odds"`
}

type directionExplained struct {
	Direction string      `json:"direction"`
	Flows     float64     `json:"flows"`
	Count     int         `json:"edge_count"`
	Edges     []crossedBy `json:"edges"`
}

func explainLink(g *fabric.Graph, s *schedule.Schedule, all bool, ways []fabric.Direction) (any, string, error) {
	out := []directionExplained{}
	var b strings.Builder
	for _, d := range ways {
		edges, err := s.CrossingFlows(g, d)
		if err != nil {
			return nil, "", err
		}
		rep := directionExplained{Direction: d.String(), Count: len(edges), Edges: []crossedBy{}}
		for i, e := range edges {
			rep.Flows += e.Odds
			if all || i < explainedEdges {
				rep.Edges = append(rep.Edges, crossedBy{e.Edge.String(), e.Odds})
			}
		}
		out = append(out, rep)
		fmt.Fprintf(&b, "%s: %.2f flows are expected, of %d edges that may cross it\n", rep.Direction, rep.Flows, rep.Count)
		for _, e := range rep.Edges {
			fmt.Fprintf(&b, "    %.4f  %s\n", e.Odds, e.Edge)
		}
		if more := rep.Count - len(rep.Edges); more > 0 {
			fmt.Fprintf(&b, "    and %d more; --edges lists all\n", more)
		}
	}
	return out, b.String(), nil
}
