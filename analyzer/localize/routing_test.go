package localize

import (
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// keepOff gives the flows to a leaf, or all flows if it is empty, shortest paths that do not cross an element.
func keepOff(w *worldtest.World, off fabric.Element, leaf string) {
	for f, p := range w.Paths {
		src, dst := f.Endpoints()
		if !off.CrossedBy(p, src, dst) || leaf != "" && p[len(p)-1].Switch != leaf {
			continue
		}
		var ways []fabric.Path
		for _, x := range w.Graph.ShortestPaths(src, dst, 16) {
			if !off.CrossedBy(x, src, dst) {
				ways = append(ways, x)
			}
		}
		if len(ways) > 0 {
			w.Paths[f] = ways[w.Random.IntN(len(ways))]
		}
	}
}

// TestRoutingOfOneMoment checks which faults of routing the paths of a file show, and that no others are there.
func TestRoutingOfOneMoment(t *testing.T) {
	spine, leaf := fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}, fabric.Element{ID: "leaf1", Kind: fabric.KindSwitch}
	for what, c := range map[string]struct {
		change   func(w *worldtest.World)
		element  fabric.Element
		scenario fabric.Scenario
		prefix   string
		text     string
	}{
		"a prefix that a spine lacks": {func(w *worldtest.World) { keepOff(w, spine, "leaf3") }, spine, fabric.RoutingFault, "leaf3", "No flow to leaf leaf3 enters switch spine1"},
		"too few next hops": {func(w *worldtest.World) {
			for f, p := range w.Paths {
				src, dst := f.Endpoints()
				for _, x := range w.Graph.ShortestPaths(src, dst, 16) {
					if p[0].Switch == "leaf1" && len(p) > 1 && x[1].Switch == "spine2" {
						w.Paths[f] = x
					}
				}
			}
		}, leaf, fabric.RoutingFault, "", "Switch leaf1 sends to every leaf by 1 of 2 equal next hops"},
		"a link that is dead": {func(w *worldtest.World) {
			d := fabric.Direction{From: "leaf2:up1", To: "spine1:dn2"}
			w.Loss[d], w.Loss[d.Reverse()] = 1, 1
		}, fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}, fabric.HardFailure, "", ""},
		"nothing": {func(*worldtest.World) {}, fabric.Element{}, "", "", ""},
	} {
		w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 4), 3)
		c.change(w)
		var obs []*fabric.Observation
		for n := range 3 {
			obs = append(obs, w.Observe(n)...)
		}
		rep, err := FindFaults(w.Graph, obs, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if c.scenario == "" {
			if len(rep.Verdicts) > 0 {
				t.Errorf("%s: %+v", what, rep.Verdicts)
			}
			continue
		}
		if len(rep.Verdicts) != 1 || rep.State != fabric.Suspect {
			t.Errorf("%s: %s, %+v", what, rep.State, rep.Verdicts)
			continue
		}
		if v := rep.Verdicts[0]; v.Element != c.element || v.Scenario != c.scenario || v.Prefix != c.prefix || !strings.Contains(v.Summary, c.text) || v.FirstSeen.IsZero() {
			t.Errorf("%s: %+v", what, v)
		}
	}
}

// TestRoutingOfManyLeaves checks that a fabric whose leaves are not all reviewed at once has the same verdict, and no other.
func TestRoutingOfManyLeaves(t *testing.T) {
	for _, off := range []string{"", "leaf17"} {
		w := worldtest.NewWorld(worldtest.NewClos(t, 2, 20, 2), 3)
		if off != "" {
			keepOff(w, fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}, off)
		}
		rep, err := FindFaults(w.Graph, w.Observe(0), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if off == "" && len(rep.Verdicts) > 0 || off != "" && (len(rep.Verdicts) != 1 || rep.Verdicts[0].Prefix != off || rep.Verdicts[0].Element.ID != "spine1") {
			t.Errorf("%q: %+v", off, rep.Verdicts)
		}
	}
}
