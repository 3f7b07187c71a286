package snapshot

import (
	"testing"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// TestLinksOfSprayedFlows counts a flow whose packets take two ways once at each link of both, and one with a path at that path's links.
func TestLinksOfSprayedFlows(t *testing.T) {
	g := worldtest.NewClos(t, 2, 4, 2)
	e := fabric.Flow{Src: "h1/eth1", Dst: "h8/eth1"}
	ways := g.ShortestPaths(e.Src, e.Dst, 2)
	for _, tc := range []struct {
		name  string
		obs   fabric.Observation
		links int // on the way
	}{
		{"sprayed", fabric.Observation{Sprayed: true, Paths: ways, PathState: fabric.PathUnknown}, 6},
		{"one of two", fabric.Observation{Paths: ways, PathState: fabric.PathUnknown}, 0},
		{"a path", fabric.Observation{Path: ways[0], PathState: fabric.PathValid}, 4},
	} {
		d := ways[0].LinkDirections(e.Src, e.Dst)[1]
		rep := fabric.Report{LinkShares: []fabric.LinkShare{{Direction: d.String(), Share: 0.5}}}
		views := NewLinkIndex(g, nil).ViewLinks(rep, []judge.Finding{{Flow: e, Obs: &tc.obs, Condition: judge.Degraded}}, nil)
		crossed := 0
		for _, v := range views {
			if (v.Shares != nil) != (v.From == d.From && v.To == d.To) {
				t.Errorf("%s: shares %+v of %s->%s", tc.name, v.Shares, v.From, v.To)
			}
			if crossed += v.Edges; v.Edges > 1 || v.Edges != v.Degraded {
				t.Errorf("%s: %+v", tc.name, v)
			}
		}
		if crossed != tc.links {
			t.Errorf("%s: %d links are crossed, not %d", tc.name, crossed, tc.links)
		}
	}
}
