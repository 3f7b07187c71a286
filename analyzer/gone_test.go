package analyzer

import (
	"testing"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// TestGoneLinks has two cables that are swapped: links of the topology stay elements while they are, and those of the swap are some for as
// long as the fabric has them. Other kinds of elements are never gone.
func TestGoneLinks(t *testing.T) {
	g := worldtest.NewClos(t, 2, 4, 2)
	swapped := *g.Topo
	swapped.Links = append([]fabric.Link(nil), g.Topo.Links...)
	var up []int
	for i := range swapped.Links {
		if l := &swapped.Links[i]; !fabric.IsNIC(l.A) && !fabric.IsNIC(l.B) {
			up = append(up, i)
		}
	}
	a, b := &swapped.Links[up[0]], &swapped.Links[up[3]]
	before, other := a.ID(), b.ID()
	a.B, b.B = b.B, a.B
	now := fabric.NewGraph(&swapped)
	if before == a.ID() || g.HasElement(fabric.Element{ID: a.ID(), Kind: fabric.KindLink}) {
		t.Fatalf("%s is no other link", a.ID())
	}
	for _, tt := range []struct {
		id     string
		kind   fabric.Kind
		graphs []*fabric.Graph
		gone   bool
	}{
		{before, fabric.KindLink, []*fabric.Graph{g, now}, false},
		{a.ID(), fabric.KindLink, []*fabric.Graph{g, now}, false},
		{a.ID(), fabric.KindLink, []*fabric.Graph{g, g}, true},
		{b.ID(), fabric.KindLink, []*fabric.Graph{g, g}, true},
		{other, fabric.KindLink, []*fabric.Graph{g, g}, false},
		{"leaf1", fabric.KindSwitch, []*fabric.Graph{g, g}, false},
		{"leaf9->spine9->leaf8", fabric.KindCorridor, []*fabric.Graph{g, g}, false},
	} {
		if got := isGone(fabric.Element{ID: tt.id, Kind: tt.kind}, tt.graphs...); got != tt.gone {
			t.Errorf("%s: gone is %v", tt.id, got)
		}
	}
}
