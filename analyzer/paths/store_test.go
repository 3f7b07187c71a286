package paths

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
)

var probe = fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}

func sec(n float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(n * 1e9)) }

// by returns one of the two paths between h1 and h2.
func by(spine int) fabric.Path {
	up := fmt.Sprintf("up%d", spine)
	return fabric.Path{{Switch: "leaf1", In: "dn1", Out: up}, {Switch: fmt.Sprintf("spine%d", spine), In: "dn1", Out: "dn2"}, {Switch: "leaf2", In: up, Out: "dn1"}}
}

func resolved(p fabric.Path) fabric.Resolved {
	return fabric.Resolved{Path: p, State: fabric.PathValid}
}

func lost(cands ...fabric.Path) fabric.Resolved {
	return fabric.Resolved{State: fabric.PathUnknown, Candidates: cands, Notes: []string{"lost"}}
}

func applyReport(t testing.TB, s *Store, e fabric.Flow, w pathReport) {
	t.Helper()
	k, ok := s.keyOf(e)
	if !ok {
		t.Fatalf("edge %s is not of the fabric", e)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyReport(k, w)
}

func traced(at float64, r fabric.Resolved) pathReport {
	return pathReport{source: ByTrace, at: sec(at), Resolved: r}
}

// sighted returns a report of a path of which the switches leaf1 and leaf2 and the spine saw the flow.
func sighted(at, since float64, p fabric.Path) pathReport {
	return pathReport{source: BySightings, at: sec(at), Resolved: resolved(p), since: sec(since), sightedHops: 1<<len(p) - 1}
}

func confirmAll(s *Store, until, heard float64, switches ...string) {
	for _, sw := range switches {
		s.recordSwitchAnswer(sw, sec(until), sec(heard))
	}
}

type asked struct {
	from, to float64
	state    fabric.PathState
	path     fabric.Path
	cands    int
}

func ask(t *testing.T, s *Store, e fabric.Flow, all ...asked) {
	t.Helper()
	for _, a := range all {
		b, ok := s.BindingAt(e, sec(a.from), sec(a.to))
		if !ok || b.State != a.state || b.Path.CanonicalKey() != a.path.CanonicalKey() || len(b.Candidates) != a.cands {
			t.Errorf("window %g to %g: %s %q and %d candidates; want %s %q and %d", a.from, a.to, b.State, b.Path.CanonicalKey(), len(b.Candidates), a.state, a.path.CanonicalKey(), a.cands)
		}
	}
}

func TestRule1AndRule2(t *testing.T) {
	s := NewStore(graph(t))
	applyReport(t, s, probe, traced(10, resolved(by(1))))
	applyReport(t, s, probe, traced(20, resolved(by(1))))
	applyReport(t, s, probe, traced(40, resolved(by(2))))
	applyReport(t, s, probe, traced(50, resolved(by(2))))
	applyReport(t, s, probe, traced(60, resolved(by(1))))
	ask(t, s, probe,
		asked{5, 8, fabric.PathUnknown, nil, 1}, // before anything was known: what came later may have been
		asked{8, 12, fabric.PathUnknown, nil, 1},
		asked{10, 20, fabric.PathValid, by(1), 0},
		asked{18, 22, fabric.PathUnknown, nil, 2},
		asked{25, 30, fabric.PathUnknown, nil, 2},
		asked{40, 50, fabric.PathValid, by(2), 0},
		asked{45, 51, fabric.PathUnknown, nil, 2},
		asked{15, 65, fabric.PathUnknown, nil, 2}, // both, each once
		asked{60, 70, fabric.PathValid, by(1), 0})
	if b, _ := s.CurrentBinding(probe); b.Version != 3 || !b.Since.Equal(sec(60)) || s.Version() != 3 {
		t.Errorf("bound %+v, map version %d", b, s.Version())
	}
	// A path that is seen again without another in between held all the time.
	applyReport(t, s, probe, traced(70, lost()))
	ask(t, s, probe, asked{61, 65, fabric.PathStale, by(1), 0})
	applyReport(t, s, probe, traced(80, resolved(by(1))))
	ask(t, s, probe, asked{61, 75, fabric.PathValid, by(1), 0})
}

func TestRule3UnresolvedLeavesTheOldPathStale(t *testing.T) {
	s := NewStore(graph(t))
	applyReport(t, s, probe, traced(10, lost(by(1), by(2))))
	ask(t, s, probe, asked{11, 12, fabric.PathUnknown, nil, 2})
	applyReport(t, s, probe, traced(20, resolved(by(1))))
	applyReport(t, s, probe, traced(30, lost(by(1), by(2))))
	ask(t, s, probe, asked{31, 32, fabric.PathStale, by(1), 0}, asked{19.5, 20, fabric.PathUnknown, nil, 1})
	// The old one ended when it was last confirmed, not when it was last looked for.
	applyReport(t, s, probe, traced(40, resolved(by(2))))
	ask(t, s, probe, asked{25, 28, fabric.PathUnknown, nil, 2})
	// Packets that are balanced one by one have no path, and had one before.
	split := traced(50, lost(by(1), by(2)))
	split.split = true
	applyReport(t, s, probe, split)
	ask(t, s, probe, asked{40, 40, fabric.PathValid, by(2), 0}, asked{51, 52, fabric.PathUnknown, nil, 2})
	applyReport(t, s, probe, traced(60, resolved(by(1))))
	ask(t, s, probe, asked{50, 50, fabric.PathUnknown, nil, 0}, asked{60, 61, fabric.PathValid, by(1), 0})
}

func TestRule4TheNewerWordHolds(t *testing.T) {
	all := []string{"leaf1", "spine1", "spine2", "leaf2"}
	s := NewStore(graph(t))
	applyReport(t, s, probe, sighted(10, 5, by(1)))
	confirmAll(s, 20, 23, all...)
	source := func(want Source, state fabric.PathState) {
		t.Helper()
		if b, _ := s.CurrentBinding(probe); b.Source != want || b.State != state {
			t.Errorf("%s by %s; want %s by %s", b.State, b.Source, state, want)
		}
	}
	// A trace from before what the switches vouch for.
	applyReport(t, s, probe, traced(15, resolved(by(2))))
	source(BySightings, fabric.PathValid)
	// A trace that got lost says nothing against them, nor does one that repeats itself.
	applyReport(t, s, probe, traced(25, lost()))
	again := traced(25.5, resolved(by(2)))
	again.repeated = true
	applyReport(t, s, probe, again)
	source(BySightings, fabric.PathValid)
	// One that agrees changes nothing.
	applyReport(t, s, probe, traced(26, resolved(by(1))))
	source(BySightings, fabric.PathValid)
	// A newer one that does not.
	applyReport(t, s, probe, traced(27, resolved(by(2))))
	source(ByTrace, fabric.PathValid)
	if !s.contested[mustKey(t, s, probe)] {
		t.Error("the switches are not asked what they say to it")
	}
	ask(t, s, probe, asked{5, 26, fabric.PathValid, by(1), 0}, asked{26.5, 27, fabric.PathUnknown, nil, 2}, asked{27, 28, fabric.PathValid, by(2), 0})
	// Switches that see the flow but cannot show its path do not contradict what fits.
	unsure := pathReport{source: BySightings, at: sec(30), Resolved: lost(), contradicts: func(p fabric.Path) bool { return p[1].Switch != "spine2" }}
	applyReport(t, s, probe, unsure)
	source(ByTrace, fabric.PathValid)
	unsure.at, unsure.contradicts = sec(31), func(p fabric.Path) bool { return p[1].Switch != "spine1" }
	applyReport(t, s, probe, unsure)
	source(ByTrace, fabric.PathStale)
}

func mustKey(t testing.TB, s *Store, e fabric.Flow) flowKey {
	t.Helper()
	k, ok := s.keyOf(e)
	if !ok {
		t.Fatal(e)
	}
	return k
}

func TestRule5AnswersConfirmUnsaid(t *testing.T) {
	s := NewStore(graph(t))
	applyReport(t, s, probe, sighted(10, 4, by(1)))
	ask(t, s, probe, asked{3, 5, fabric.PathUnknown, nil, 1})
	confirmAll(s, 100, 103, "leaf1", "spine1", "leaf2")
	s.setReportedUntil(sec(105))
	ask(t, s, probe, asked{4, 105, fabric.PathValid, by(1), 0}, asked{100, 106, fabric.PathStale, by(1), 0})
	s.setReportedUntil(sec(1e6))
	ask(t, s, probe, asked{4, 100, fabric.PathValid, by(1), 0}, asked{100, 113, fabric.PathValid, by(1), 0}, asked{112, 114, fabric.PathStale, by(1), 0})
	// Every switch that sees it has to answer; one that does not see it need not.
	confirmAll(s, 200, 203, "leaf1", "spine2", "leaf2")
	ask(t, s, probe, asked{112, 114, fabric.PathStale, by(1), 0})
	if b, _ := s.CurrentBinding(probe); !b.Confirmed.Equal(sec(100)) {
		t.Errorf("confirmed at %s", b.Confirmed)
	}
	// The last sighting of the old path is known better than by the answers.
	next := sighted(210, 206, by(2))
	next.previousUntil = sec(205)
	applyReport(t, s, probe, next)
	ask(t, s, probe, asked{4, 205, fabric.PathValid, by(1), 0}, asked{204, 206, fabric.PathUnknown, nil, 2}, asked{206, 207, fabric.PathValid, by(2), 0})
	// Switches do not confirm what they no longer report.
	confirmAll(s, 250, 253, "spine2")
	applyReport(t, s, probe, pathReport{source: BySightings, at: sec(254), Resolved: lost()})
	confirmAll(s, 300, 303, "leaf1", "spine2", "leaf2")
	ask(t, s, probe, asked{260, 270, fabric.PathStale, by(2), 0})
}

func TestRule7StaleAndForgotten(t *testing.T) {
	s := NewStore(graph(t))
	reply := probe
	reply.Reply = true
	applyReport(t, s, probe, traced(0, resolved(by(2))))
	applyReport(t, s, probe, traced(10, resolved(by(1))))
	applyReport(t, s, reply, sighted(10, 10, by(1)))
	states := func(valid, stale, unknown int) {
		t.Helper()
		n := s.StateCounts()
		if n[fabric.PathValid] != valid || n[fabric.PathStale] != stale || n[fabric.PathUnknown] != unknown {
			t.Errorf("states %v, want %d %d %d", n, valid, stale, unknown)
		}
	}
	s.ExpireFlows(sec(20))
	states(2, 0, 0)
	s.ExpireFlows(sec(20.1))
	states(1, 1, 0)
	s.ExpireFlows(sec(10).Add(traceHolds + 1))
	states(0, 2, 0)
	ask(t, s, probe, asked{0, 0, fabric.PathValid, by(2), 0})
	s.ExpireFlows(sec(0).Add(keepVersions + 1))
	ask(t, s, probe, asked{0, 0, fabric.PathUnknown, nil, 1})
	s.ExpireFlows(sec(10).Add(keepFlows + 1))
	states(0, 0, 0)
	empty(t, s)
}

// anyTime is after all times of the tests.
var anyTime = time.Unix(0, math.MaxInt64)

// empty: nothing is left of flows that were forgotten.
func empty(t *testing.T, s *Store) {
	t.Helper()
	if len(s.flows) != 0 || len(s.routes.byEnds) != 0 || len(s.FlowsBetween("", "")) != 0 || len(s.EveryNth(0, 1, anyTime)) != 0 {
		t.Errorf("left: %d flows, %d routes", len(s.flows), len(s.routes.byEnds))
	}
	for place, list := range s.routes.routesByElement {
		if len(list) != 0 {
			t.Errorf("place %d still lists %d routes", place, len(list))
		}
	}
	for nic, list := range s.recordsByNIC {
		if len(list) != 0 {
			t.Errorf("NIC %d still lists %d flows", nic, len(list))
		}
	}
}

// TestMemoryIsBounded: versions, candidates and notes of one flow.
func TestMemoryIsBounded(t *testing.T) {
	s := NewStore(graph(t))
	for i := range 100 {
		applyReport(t, s, probe, traced(float64(i), resolved(by(1+i%2))))
	}
	b := s.recordOf(probe)
	if len(b.past) != maxVersions || s.Version() != 100 {
		t.Errorf("%d versions are kept of %d", len(b.past), s.Version())
	}
	ask(t, s, probe, asked{92, 92, fabric.PathValid, by(1), 0}, asked{90, 90, fabric.PathUnknown, nil, 1})
	var many []fabric.Path
	for i := range maxCandidates + 1 {
		p := by(1)
		p[0].Out = fmt.Sprint("x", i)
		many = append(many, p)
	}
	long := lost(many...)
	for range 20 {
		long.Notes = append(long.Notes, string(make([]byte, 1000)))
	}
	reply := probe
	reply.Reply = true
	applyReport(t, s, reply, traced(1, long))
	got, _ := s.CurrentBinding(reply)
	if len(got.Candidates) != 0 || len(got.Notes) != maxNotes || len(got.Notes[1]) != maxNoteBytes || got.Notes[maxNotes-1] != "33 candidates are not listed" {
		t.Errorf("%d candidates, %d notes", len(got.Candidates), len(got.Notes))
	}
	long.Candidates = many[:maxCandidates]
	applyReport(t, s, reply, traced(2, long))
	if got, _ := s.CurrentBinding(reply); len(got.Candidates) != maxCandidates {
		t.Errorf("%d candidates", len(got.Candidates))
	}
	// Where too many routes are known there is no past and there are no candidates.
	s.maxRoutes = 0
	applyReport(t, s, probe, traced(101, resolved(by(1))))
	long.Candidates = many[:2]
	applyReport(t, s, reply, traced(102, long))
	if got, _ := s.CurrentBinding(reply); len(got.Candidates) != 0 || len(b.past) != 0 {
		t.Errorf("%d candidates, %d versions", len(got.Candidates), len(b.past))
	}
	s.ExpireFlows(sec(102).Add(keepFlows + 1))
	empty(t, s)
}

// TestAccessPortsOtherThanTheTopologys checks that access ports are kept as reported, also where
// another flow shares the rest of the path.
func TestAccessPortsOtherThanTheTopologys(t *testing.T) {
	s := NewStore(graph(t))
	odd := by(1)
	odd[0].In, odd[2].Out = "dn9", "dn8"
	reply := fabric.Flow{Src: probe.Dst, Dst: probe.Src, Reply: true} // the same way as probe
	applyReport(t, s, probe, traced(1, resolved(odd)))
	applyReport(t, s, reply, traced(1, resolved(by(1))))
	for e, want := range map[fabric.Flow]fabric.Path{probe: odd, reply: by(1)} {
		if b, _ := s.CurrentBinding(e); b.Path.CanonicalKey() != want.CanonicalKey() {
			t.Errorf("%s goes %q, want %q", e, b.Path.CanonicalKey(), want.CanonicalKey())
		}
	}
}

// TestCrossing compares with a search over all flows, while paths change, fail and
// are forgotten.
func TestCrossing(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 3}))
	s := NewStore(g)
	rng := rand.New(rand.NewPCG(1, 1))
	var elements []fabric.Element
	for _, sw := range g.Topo.Switches {
		elements = append(elements, fabric.Element{ID: sw.Name, Kind: fabric.KindSwitch})
	}
	for i := range g.Topo.Links {
		elements = append(elements, fabric.Element{ID: g.Topo.Links[i].ID(), Kind: fabric.KindLink})
	}
	for _, nic := range g.NICIDs() {
		elements = append(elements, fabric.Element{ID: nic, Kind: fabric.KindNIC})
	}
	nics := g.NICIDs()
	way := g.ShortestPaths(nics[0], nics[len(nics)-1], 1)[0]
	between := way[0].Switch + "->" + way[len(way)-1].Switch
	elements = append(elements, fabric.Element{ID: fabric.OwnerOf(nics[0]), Kind: fabric.KindHost}, fabric.Element{ID: way[0].Switch, Kind: fabric.KindLeafUplinks},
		fabric.Element{ID: way[0].Switch + ":" + way[0].Out, Kind: fabric.KindPort}, fabric.Element{ID: way[0].Switch + ":" + way[0].Out + "@tc3", Kind: fabric.KindQueue},
		fabric.Element{ID: between, Kind: fabric.KindPair}, fabric.Element{ID: way[0].Switch + "->" + way[1].Switch + "->" + way[2].Switch, Kind: fabric.KindCorridor})
	for step := range 3000 {
		e := fabric.Flow{Src: nics[rng.IntN(len(nics))], Dst: nics[rng.IntN(len(nics))], Number: rng.IntN(2), Reply: rng.IntN(2) == 0}
		if e.Src == e.Dst {
			continue
		}
		from, to := e.Endpoints()
		ways := g.ShortestPaths(from, to, 10)
		w := traced(float64(step), resolved(ways[rng.IntN(len(ways))]))
		switch rng.IntN(10) {
		case 0:
			w.Resolved = lost(ways...)
		case 1:
			w.Resolved, w.split = lost(ways...), true
		}
		applyReport(t, s, e, w)
		if step%100 != 0 {
			continue
		}
		for _, el := range elements {
			var want []fabric.Flow
			for _, e := range s.FlowsBetween("", "") {
				b, _ := s.CurrentBinding(e)
				from, to := e.Endpoints()
				if el.CrossedBy(b.Path, from, to) {
					want = append(want, e)
				}
			}
			got := s.FlowsCrossing(el)
			slices.SortFunc(got, compareFlows)
			if !slices.Equal(got, want) {
				t.Fatalf("step %d, %s: %d flows, want %d", step, el.ID, len(got), len(want))
			}
		}
	}
	for _, el := range elements[len(elements)-6:] {
		if n := len(s.FlowsCrossing(el)); n == 0 || n == len(s.FlowsBetween("", "")) {
			t.Errorf("%s %s: %d flows", el.Kind, el.ID, n)
		}
	}
	n := 0
	for turn := range 7 {
		n += len(s.EveryNth(turn, 7, anyTime))
	}
	if all := s.FlowsBetween("", ""); n != len(all) || n == 0 {
		t.Errorf("seven turns met %d flows of %d", n, len(all))
	}
	for _, e := range s.FlowsBetween(nics[0], nics[1]) {
		if e.Src != nics[0] || e.Dst != nics[1] {
			t.Errorf("asked for the flows of one pair, got %s", e)
		}
	}
	if len(s.FlowsBetween("", nics[1])) == 0 || len(s.FlowsBetween("x/y", "")) != 0 {
		t.Error("flows by destination, or of an unknown NIC")
	}
	s.ExpireFlows(sec(3000).Add(keepFlows + 1))
	empty(t, s)
}
