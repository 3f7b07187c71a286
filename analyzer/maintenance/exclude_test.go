package maintenance

import (
	"testing"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// TestTouchedFlows checks that flows that a window touched are relearnt when it is over if their cables were changed,
// and that no window is remembered after its end.
func TestTouchedFlows(t *testing.T) {
	g := worldtest.NewClos(t, 2, 4, 2)
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	f := fabric.Flow{Src: "h1/eth1", Dst: "h3/eth1"}
	finding := func() []judge.Finding {
		return []judge.Finding{{Flow: f, Condition: judge.Healthy, Obs: &fabric.Observation{Path: g.ShortestPaths("h1/eth1", "h3/eth1", 1)[0]}}}
	}
	swapped := fabric.Verdict{Element: fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}}
	for name, tt := range map[string]struct {
		window  Window
		found   []fabric.Verdict
		relearn int
	}{
		"announced":     {Window{ID: "1", Element: d.LinkID(), Relearn: true}, nil, 1},
		"found swapped": {Window{ID: "1", Element: d.LinkID()}, []fabric.Verdict{swapped}, 1},
		"unchanged":     {Window{ID: "1", Element: d.LinkID()}, nil, 0},
	} {
		x := NewExcluder()
		for range 2 {
			if again := x.BeginCycle([]Window{tt.window}); len(again) != 0 {
				t.Fatalf("%s: relearnt while it lasts", name)
			}
			findings := finding()
			x.ExcludeFindings(g, findings)
			if findings[0].Condition != judge.Undecided || !x.ExcludesFlow(f) || !x.ExcludesDirection(d) || !x.MayTouch(g, &findings[0]) {
				t.Errorf("%s: the flow is not excluded: %+v", name, findings[0])
			}
			x.MarkRecabled(g, tt.found)
		}
		again := x.BeginCycle(nil)
		if len(again) != tt.relearn || tt.relearn > 0 && !again[0].Flows[f] || x.IsActive() || x.ExcludesFlow(f) {
			t.Errorf("%s: %d windows to relearn, want %d", name, len(again), tt.relearn)
		}
		if len(x.touched) != 0 {
			t.Errorf("%s: %d windows are remembered", name, len(x.touched))
		}
	}
}
