package matrix

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// begin returns the time of the first cycle.
func begin() time.Time { return time.Unix(1_790_000_000, 0) }

// measure returns what a cycle reads of all flows of a world.
func measure(w *worldtest.World, at time.Time) *snapshot.Snapshot {
	findings := judge.FindingsOf(w.Observe(0), judge.DefaultParameters())
	return &snapshot.Snapshot{At: at, FreshFor: 5 * time.Second, Hosts: map[string]string{}, Edges: snapshot.ViewEdges(findings, maintenance.NewExcluder())}
}

// gridOf returns the grid of a selection after one cycle.
func gridOf(t *testing.T, w *worldtest.World, snap *snapshot.Snapshot, sel Selection) *Grid {
	t.Helper()
	s := NewStore()
	s.Record(w.Graph, snap)
	g, err := s.Grid(sel, snap.At)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// picture writes the steps of a grid: a dot for an empty cell, a question mark for an unknown one, else the step.
func picture(g *Grid, q Quantity) string {
	var out strings.Builder
	for row := range g.Groups {
		for column := range g.Groups {
			mark := "."
			if c := g.Cell(row, column); c != nil {
				mark = "?"
				if v, known := c.Value(q); known {
					mark = fmt.Sprint(q.Step(v))
				}
			}
			out.WriteString(mark)
		}
		out.WriteString("\n")
	}
	return out.String()
}

// TestPictures: a fault has its place in the matrix of four leaves with two NICs each, and of the NICs.
func TestPictures(t *testing.T) {
	const slow = 2_000_000
	nics := Selection{NICs: true}
	for _, tt := range []struct {
		name  string
		fault func(*worldtest.World, *snapshot.Snapshot)
		world func(*worldtest.World)
		sel   Selection
		of    Quantity
		want  string
	}{
		{name: "healthy", of: DegradedShare, want: "0000\n0000\n0000\n0000\n"},
		{name: "healthy NICs", of: DegradedShare, sel: nics, want: ".0000000\n0.000000\n00.00000\n000.0000\n0000.000\n00000.00\n000000.0\n0000000.\n"},
		{name: "a slow leaf", of: AddedDelay, world: func(w *worldtest.World) { w.Slow["leaf2"] = slow }, want: "0500\n5555\n0500\n0500\n"},
		{name: "a slow NIC", of: AddedDelay, sel: nics, world: func(w *worldtest.World) {
			d := fabric.Direction{From: "h3/eth1", To: "leaf2:dn1"}
			w.Delay[d] = slow
		}, want: ".0000000\n0.000000\n55.55555\n000.0000\n0000.000\n00000.00\n000000.0\n0000000.\n"},
		{name: "an incast", of: LossRatio, world: func(w *worldtest.World) {
			w.Loss[fabric.Direction{From: "leaf3:dn1", To: "h5/eth1"}] = 0.2
			w.Loss[fabric.Direction{From: "leaf3:dn2", To: "h6/eth1"}] = 0.2
		}, want: "0070\n0070\n0070\n0070\n"},
		{name: "a pair of leaves", of: AddedDelay, world: func(w *worldtest.World) {
			for e := range w.Paths {
				if from, to := e.Endpoints(); (from == "h1/eth1" || from == "h2/eth1") && (to == "h7/eth1" || to == "h8/eth1") {
					w.FlowDelay[e] = slow
				}
			}
		}, want: "0005\n0000\n0000\n0000\n"},
		{name: "a clock that is not trusted", of: AddedDelay, fault: func(_ *worldtest.World, s *snapshot.Snapshot) {
			for i := range s.Edges {
				if o := &s.Edges[i].Obs; strings.HasPrefix(o.Src, "h1/") || strings.HasPrefix(o.Dst, "h1/") {
					s.Edges[i].Condition = snapshot.ClockSuspect
				}
			}
		}, sel: nics, want: ".???????\n?.000000\n?0.00000\n?00.0000\n?000.000\n?0000.00\n?00000.0\n?000000.\n"},
		{name: "what such a clock does not change", of: LossRatio, fault: func(_ *worldtest.World, s *snapshot.Snapshot) {
			for i := range s.Edges {
				s.Edges[i].Condition = snapshot.ClockSuspect
			}
		}, want: "0000\n0000\n0000\n0000\n"},
		{name: "an agent that does not answer", of: DegradedShare, fault: func(_ *worldtest.World, s *snapshot.Snapshot) {
			s.Hosts["h1"], s.Hosts["h2"] = "its agent does not answer", "its agent does not answer"
		}, want: "????\n?000\n?000\n?000\n"},
		{name: "a starved host", of: LossRatio, fault: func(_ *worldtest.World, s *snapshot.Snapshot) {
			for i := range s.Edges {
				if o := &s.Edges[i].Obs; strings.HasPrefix(o.Src, "h1/") || strings.HasPrefix(o.Src, "h2/") {
					s.Edges[i].Condition = snapshot.HostSuspect
				}
			}
		}, want: "????\n0000\n0000\n0000\n"},
		{name: "without baselines", of: DegradedShare, fault: func(_ *worldtest.World, s *snapshot.Snapshot) {
			for i := range s.Edges {
				s.Edges[i].Condition, s.Edges[i].Obs.Baseline = snapshot.Undecided, nil
			}
		}, want: "????\n????\n????\n????\n"},
		{name: "replies alone", of: AddedDelay, sel: Selection{Direction: Replies}, world: func(w *worldtest.World) {
			for e := range w.Paths {
				if from, _ := e.Endpoints(); e.Reply && (from == "h1/eth1" || from == "h2/eth1") {
					w.FlowDelay[e] = slow
				}
			}
		}, want: "5555\n0000\n0000\n0000\n"},
		{name: "probes alone", of: AddedDelay, sel: Selection{Direction: Probes}, world: func(w *worldtest.World) {
			for e := range w.Paths {
				if e.Reply {
					w.FlowDelay[e] = slow
				}
			}
		}, want: "0000\n0000\n0000\n0000\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 3)
			if tt.world != nil {
				tt.world(w)
			}
			snap := measure(w, begin())
			if tt.fault != nil {
				tt.fault(w, snap)
			}
			if got := picture(gridOf(t, w, snap, tt.sel), tt.of); got != tt.want {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
		})
	}
}

// TestSprinkle: a slow spine shows in every cell between leaves by the share of the flows that cross it, and in none within a leaf.
func TestSprinkle(t *testing.T) {
	w := worldtest.NewScheduledWorld(t, worldtest.NewClos(t, 8, 16, 8), 1)
	w.Slow["spine3"] = 2_000_000
	g := gridOf(t, w, measure(w, begin()), Selection{})
	hit, all := 0, 0
	for row := range g.Groups {
		cells := g.Row(row)
		for i := range cells {
			v, known := cells[i].Value(DegradedShare)
			switch {
			case !known:
				t.Fatalf("cell %d, %d is unknown", row, cells[i].Column)
			case row == int(cells[i].Column) && v > 0:
				t.Errorf("%g of the flows within %s are degraded", v, g.Groups[row].Name)
			case row != int(cells[i].Column):
				if all++; v > 0 {
					hit++
				}
			}
		}
	}
	if share := float64(hit) / float64(all); share < 0.1 || share > 0.95 {
		t.Errorf("%d of %d cells have degraded flows: this is no sprinkle", hit, all)
	}
}

// TestValuesOfCells compares a cell with what its flows measured.
func TestValuesOfCells(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 5)
	w.Loss[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 0.1
	snap := measure(w, begin())
	g := gridOf(t, w, snap, Selection{})
	var sent, lost uint64
	var largest int64
	flows := uint32(0)
	for i := range snap.Edges {
		o := &snap.Edges[i].Obs
		if (o.Src == "h1/eth1" || o.Src == "h2/eth1") && (o.Dst == "h3/eth1" || o.Dst == "h4/eth1") {
			flows++
			sent, lost = sent+o.Sent, lost+o.Lost
			if o.OWD != nil {
				largest = max(largest, *o.OWD.P99)
			}
		}
	}
	c := g.Cell(0, 1)
	if c.Flows != flows || c.Known != flows || c.Loss != float32(float64(lost)/float64(sent)) || c.P99 != float32(largest) {
		t.Errorf("got %+v, want %d flows that lost %d of %d, and a p99 of %d", *c, flows, lost, sent, largest)
	}
	if g.Flows != len(snap.Edges) || g.Known != len(snap.Edges) {
		t.Errorf("%d of %d flows are known, want all %d", g.Known, g.Flows, len(snap.Edges))
	}
}

// TestAge: what was read of a flow counts for a round, is unknown then, and is forgotten after an hour.
func TestAge(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 2, 1), 5)
	s := NewStore()
	s.Record(w.Graph, measure(w, begin()))
	for _, tt := range []struct {
		after time.Duration
		want  string
	}{{5 * time.Second, ".0\n0.\n"}, {6 * time.Second, ".?\n?.\n"}, {59 * time.Minute, ".?\n?.\n"}, {2 * time.Hour, "..\n..\n"}} {
		now := begin().Add(tt.after)
		s.Record(w.Graph, &snapshot.Snapshot{At: now, FreshFor: 5 * time.Second})
		g, err := s.Grid(Selection{}, now)
		if err != nil {
			t.Fatal(err)
		}
		if got := picture(g, LossRatio); got != tt.want {
			t.Errorf("after %s: got\n%swant\n%s", tt.after, got, tt.want)
		}
	}
}

// TestOtherTopology: after a reload the flows of NICs that are still there are kept, with their new places.
func TestOtherTopology(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 3, 1), 5)
	w.Slow["leaf3"] = 2_000_000
	s := NewStore()
	s.Record(w.Graph, measure(w, begin()))
	topo := *w.Graph.Topo
	topo.Nodes = topo.Nodes[1:] // h1 is gone
	topo.Links = nil
	for _, l := range w.Graph.Topo.Links {
		if !strings.HasPrefix(l.A, "h1/") {
			topo.Links = append(topo.Links, l)
		}
	}
	s.Record(fabric.NewGraph(&topo), &snapshot.Snapshot{At: begin(), FreshFor: 5 * time.Second})
	g, err := s.Grid(Selection{}, begin())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := picture(g, AddedDelay), ".5\n5.\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestGridIsShared: readers share a grid until the next cycle, and a dear grid is built again only after a while.
func TestGridIsShared(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 5)
	s := NewStore()
	s.Record(w.Graph, measure(w, begin()))
	first, _ := s.Grid(Selection{}, begin())
	if again, _ := s.Grid(Selection{}, begin().Add(time.Hour)); again != first {
		t.Error("the grid was built again, although no cycle has ended")
	}
	s.built[Selection{}].next = begin().Add(10 * time.Second) // as if it had taken half a second
	s.Record(w.Graph, measure(w, begin().Add(time.Second)))
	if soon, _ := s.Grid(Selection{}, begin().Add(time.Second)); soon != first {
		t.Error("a dear grid was built again at once")
	}
	if later, _ := s.Grid(Selection{}, begin().Add(11*time.Second)); later == first {
		t.Error("the grid was never built again")
	}
	for _, nics := range []bool{false, true} {
		for _, plane := range []string{"", "a"} {
			for _, direction := range []Direction{BothDirections, Probes, Replies} {
				if _, err := s.Grid(Selection{NICs: nics, Plane: plane, Direction: direction}, begin().Add(12*time.Second)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(s.built) != maxGrids {
		t.Errorf("%d of twelve grids are kept, want %d", len(s.built), maxGrids)
	}
}

func TestWrongSelections(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 5)
	s := NewStore()
	if g, err := s.Grid(Selection{}, begin()); err != nil || len(g.Groups) != 0 {
		t.Errorf("before the first cycle: %d rows, %v", len(g.Groups), err)
	}
	s.Record(w.Graph, measure(w, begin()))
	for _, tt := range []struct {
		sel  Selection
		want string
	}{
		{Selection{NICs: true, Pod: "p9"}, `no NIC is in a pod "p9"`},
		{Selection{Class: "gold"}, `no flow is of a class "gold"`},
		{Selection{Plane: "z"}, `no NIC is in a plane "z"`},
	} {
		if _, err := s.Grid(tt.sel, begin()); err == nil || err.Error() != tt.want {
			t.Errorf("%+v: %v, want %q", tt.sel, err, tt.want)
		}
	}
}
