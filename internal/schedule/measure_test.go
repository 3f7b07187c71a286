package schedule_test

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// route returns the path of a flow if every switch hashes the 5-tuple in a way of its own.
func route(g *fabric.Graph, e fabric.Flow, seed uint64, dist map[string]map[string]int) fabric.Path {
	src, dst := e.Endpoints()
	sw, in := g.LeafOf(src)
	goal, last := g.LeafOf(dst)
	if dist[goal] == nil {
		dist[goal] = g.SwitchDistances(goal)
	}
	var p fabric.Path
	for sw != goal {
		var next []string
		for _, end := range g.EndsOf(sw) {
			if other, _, ok := fabric.SplitPort(g.PeerOf(end)); ok && dist[goal][other] == dist[goal][sw]-1 {
				next = append(next, end)
			}
		}
		h := fnv.New64a()
		h.Write(binary.BigEndian.AppendUint64(nil, seed))
		h.Write([]byte(sw + " " + e.String()))
		x := h.Sum64()
		end := next[(x^x>>29)*0x9e3779b97f4a7c15>>32%uint64(len(next))]
		_, out, _ := fabric.SplitPort(end)
		p = append(p, fabric.Hop{Switch: sw, In: in, Out: out})
		sw, in, _ = fabric.SplitPort(g.PeerOf(end))
	}
	return append(p, fabric.Hop{Switch: sw, In: in, Out: last})
}

func bind(g *fabric.Graph, s *schedule.Schedule, seed uint64) []schedule.TracedPath {
	dist := map[string]map[string]int{}
	var out []schedule.TracedPath
	for _, e := range s.Edges {
		id := s.FlowID(e)
		for _, reply := range []bool{false, true} {
			id.Reply = reply
			out = append(out, schedule.TracedPath{Edge: id, Path: route(g, id, seed, dist)})
		}
	}
	return out
}

// TestRebalance checks that source ports are moved, round by round, until every directed link has k
// edges, and that no link that had k ever falls below it.
func TestRebalance(t *testing.T) {
	tests := map[string]struct {
		o        clos.Options
		minFlows float64
		k        int
		most     int // maximum number of rounds
	}{
		"two tiers":         {clos.Options{LeavesPerPod: 16, SpinesPerPod: 8, NICsPerLeaf: 8}, 22, 12, 10},
		"three tiers":       {clos.Options{Tiers: 3, Pods: 4, LeavesPerPod: 8, SpinesPerPod: 4, CoresPerRow: 4, NICsPerLeaf: 8}, 22, 16, 20},
		"three tiers, thin": {clos.Options{Tiers: 3, Pods: 4, LeavesPerPod: 8, SpinesPerPod: 4, CoresPerRow: 4, NICsPerLeaf: 4}, 6, 7, 20},
		"two tiers, small":  {clos.Options{LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 2}, 22, 17, 10},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := fabric.NewGraph(clos.NewTopology(tt.o))
			for seed := range uint64(3) {
				var moves []schedule.Move
				var before schedule.Measured
				for round := 0; ; round++ {
					s, err := schedule.Make(g, schedule.Options{MinFlows: tt.minFlows, Moves: moves})
					if err != nil {
						t.Fatal(err)
					}
					bound := bind(g, s, seed)
					m := schedule.MeasureLinks(g, bound)
					poor, least := 0, math.MaxInt
					for i, l := range m.Links {
						if l.Tier == 1 {
							continue // no source port changes the flows over an access link
						}
						if l.Edges < tt.k {
							poor++
						}
						least = min(least, l.Edges)
						if round > 0 && before.Links[i].Edges >= tt.k && l.Edges < tt.k {
							t.Errorf("seed %d, round %d: %s had %d edges and has %d", seed, round, l.Direction, before.Links[i].Edges, l.Edges)
						}
					}
					t.Logf("seed %d, round %d: %d of %d directed links below %d, the least %d; %d moves so far", seed, round, poor, len(m.Links), tt.k, least, len(moves))
					if poor == 0 {
						break
					}
					if round == tt.most {
						t.Fatalf("seed %d: %d links are still below %d", seed, poor, tt.k)
					}
					before = m
					more := schedule.Rebalance(g, s, bound, moves, tt.k, 200)
					if len(more) == 0 || len(more) > 200 {
						t.Fatalf("seed %d, round %d: %d moves", seed, round, len(more))
					}
					for _, mv := range more {
						if slices.ContainsFunc(moves, func(old schedule.Move) bool {
							return old.Src == mv.Src && old.Dst == mv.Dst && (old.From == mv.To || old.To == mv.To)
						}) {
							t.Errorf("seed %d, round %d: %v was tried", seed, round, mv)
						}
					}
					moves = append(moves, more...)
				}
			}
		})
	}
}

// TestRebalanceForgetsTheOldest checks that when a pair has tried all its numbers, the one tried
// longest ago is next.
func TestRebalanceForgetsTheOldest(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 2, SpinesPerPod: 2, NICsPerLeaf: 1}))
	var history []schedule.Move
	s, err := schedule.Make(g, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// All flows cross one spine: the other has none, whatever is tried.
	var bound []schedule.TracedPath
	for _, b := range bind(g, s, 1) {
		b.Path = route(g, fabric.Flow{Src: b.Edge.Src, Dst: b.Edge.Dst, Reply: b.Edge.Reply}, 1, map[string]map[string]int{})
		bound = append(bound, b)
	}
	src, dst := s.NICs[0], s.NICs[1]
	used := map[int]bool{}
	for _, e := range s.Edges {
		if e.Src == 0 {
			used[int(e.Flow)] = true
		}
	}
	for n := range fabric.ScheduledFlows {
		if !used[n] {
			history = append(history, schedule.Move{Src: src, Dst: dst, From: n, To: n})
		}
	}
	slices.Reverse(history)
	more := schedule.Rebalance(g, s, bound, history, 3, 1000)
	i := slices.IndexFunc(more, func(m schedule.Move) bool { return m.Src == src })
	if i < 0 || more[i].To != history[0].To {
		t.Errorf("moves %v, want one to %d", more, history[0].To)
	}
}

func TestMeasure(t *testing.T) {
	topo := clos.NewTopology(clos.Options{LeavesPerPod: 2, SpinesPerPod: 2, NICsPerLeaf: 1})
	g := fabric.NewGraph(topo)
	src, dst := topo.Nodes[0].NICs[0].ID(), topo.Nodes[1].NICs[0].ID()
	path := g.ShortestPaths(src, dst, 1)[0]
	hole := slices.Clone(path)
	hole[1].In = ""
	m := schedule.MeasureLinks(g, []schedule.TracedPath{
		{Edge: fabric.Flow{Src: src, Dst: dst}, Path: path},
		{Edge: fabric.Flow{Src: src, Dst: dst, Number: 1}, Path: hole},
		{Edge: fabric.Flow{Src: dst, Dst: src, Reply: true}, Path: path},
		{Edge: fabric.Flow{Src: src, Dst: dst, Number: 2}, Path: fabric.Path{{Switch: "nowhere", In: "a", Out: "b"}}},
	})
	if len(m.Links) != 2*len(topo.Links) {
		t.Errorf("%d directed links, want %d", len(m.Links), 2*len(topo.Links))
	}
	want := map[fabric.Direction]int{}
	for i, d := range path.LinkDirections(src, dst) {
		want[d] = 3
		if i == 1 {
			want[d] = 2
		}
	}
	for _, l := range m.Links {
		if l.Edges != want[l.Direction] {
			t.Errorf("%s has %d edges, want %d", l.Direction, l.Edges, want[l.Direction])
		}
		if n, ok := m.CountOver(l.Direction); n != l.Edges || !ok {
			t.Errorf("%s: %d, %v", l.Direction, n, ok)
		}
	}
	if _, ok := m.CountOver(fabric.Direction{From: "a:b", To: "c:d"}); ok {
		t.Error("a link that is not has edges")
	}
}

// TestCrossing checks that the links of an edge and the edges of a link agree with each other and with
// the sums.
func TestCrossing(t *testing.T) {
	for seed := range uint64(12) {
		topo, o := randomFabric(seed)
		g := fabric.NewGraph(topo)
		s, err := schedule.Make(g, o)
		if err != nil {
			t.Fatal(err)
		}
		cov := s.ExpectedFlows(g)
		for i := 0; i < len(cov.Links); i += 1 + len(cov.Links)/17 {
			l := cov.Links[i]
			edges, err := s.CrossingFlows(g, l.Direction)
			if err != nil {
				t.Fatal(err)
			}
			sum := 0.0
			for j, e := range edges {
				sum += e.Odds
				if j > 2 {
					continue
				}
				from, to := e.Edge.Endpoints()
				links, err := schedule.CrossedLinks(g, from, to)
				if err != nil {
					t.Fatal(err)
				}
				at := slices.IndexFunc(links, func(x schedule.LinkOdds) bool { return x.Direction == l.Direction })
				if at < 0 || math.Abs(links[at].Odds-e.Odds) > 1e-9 {
					t.Errorf("seed %d: %s crosses %s with odds %g; of the edge's links it is %d", seed, e.Edge, l.Direction, e.Odds, at)
				}
			}
			if math.Abs(sum-l.Flows) > 1e-6*(1+sum) {
				t.Errorf("seed %d: the odds over %s sum up to %g, %g flows are expected", seed, l.Direction, sum, l.Flows)
			}
		}
	}
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 2, NICsPerLeaf: 2}))
	if _, err := schedule.CrossedLinks(g, "x/y", g.NICIDs()[0]); err == nil {
		t.Error("a NIC that is not crosses links")
	}
	s, _ := schedule.Make(g, schedule.Options{})
	if _, err := s.CrossingFlows(g, fabric.Direction{From: "a:b", To: "c:d"}); err == nil {
		t.Error("a link that is not is crossed")
	}
}
