package localize

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

func localizeWorld(t testing.TB, w *worldtest.World) fabric.Report {
	t.Helper()
	rep, err := FindFaults(w.Graph, w.Observe(0), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// TestLocalizeSingleFaults: with every single fault, over many random routings,
// exactly one verdict names it, with its direction and scenario.
func TestLocalizeSingleFaults(t *testing.T) {
	type want struct {
		element   string
		kind      fabric.Kind
		direction string
		scenario  fabric.Scenario
	}
	kinds := map[string]func(w *worldtest.World) want{
		"link delay": func(w *worldtest.World) want {
			d := pick(w.Random, w.FabricDirections())
			w.Delay[d] = 2e6
			return want{d.LinkID(), fabric.KindLink, d.String(), fabric.Corridor}
		},
		"small link delay": func(w *worldtest.World) want {
			d := pick(w.Random, w.FabricDirections())
			w.Delay[d] = 48000
			return want{d.LinkID(), fabric.KindLink, d.String(), fabric.Corridor}
		},
		"link loss": func(w *worldtest.World) want {
			d := pick(w.Random, w.FabricDirections())
			w.Loss[d] = 0.1
			return want{d.LinkID(), fabric.KindLink, d.String(), fabric.Corridor}
		},
		"blackhole": func(w *worldtest.World) want {
			d := pick(w.Random, w.FabricDirections())
			w.Loss[d] = 1
			return want{d.LinkID(), fabric.KindLink, d.String(), fabric.HardFailure}
		},
		"link both ways": func(w *worldtest.World) want {
			d := pick(w.Random, w.FabricDirections())
			w.Delay[d], w.Delay[d.Reverse()] = 1e6, 1e6
			return want{d.LinkID(), fabric.KindLink, "", fabric.Corridor}
		},
		"NIC in": func(w *worldtest.World) want {
			nic := pick(w.Random, w.Graph.NICIDs())
			d := fabric.Direction{From: w.Graph.PeerOf(nic), To: nic}
			w.Delay[d] = 2e6
			return want{nic, fabric.KindNIC, d.String(), fabric.BadNIC}
		},
		"NIC both": func(w *worldtest.World) want {
			nic := pick(w.Random, w.Graph.NICIDs())
			d := fabric.Direction{From: w.Graph.PeerOf(nic), To: nic}
			w.Delay[d], w.Delay[d.Reverse()] = 2e6, 2e6
			return want{nic, fabric.KindNIC, "", fabric.BadNIC}
		},
		"spine": func(w *worldtest.World) want {
			w.Slow["spine2"] = 2e6
			return want{"spine2", fabric.KindSwitch, "", fabric.HotSpine}
		},
		"leaf": func(w *worldtest.World) want {
			w.Slow["leaf3"] = 2e6
			return want{"leaf3", fabric.KindSwitch, "", fabric.SlowLeaf}
		},
	}
	g := worldtest.NewClos(t, 2, 4, 2)
	const seeds = 40
	for name, inject := range kinds {
		right := 0
		for seed := uint64(1); seed <= seeds; seed++ {
			w := worldtest.NewWorld(g, seed)
			want := inject(w)
			rep := localizeWorld(t, w)
			if len(rep.Verdicts) == 1 {
				v := rep.Verdicts[0]
				if v.Element.ID == want.element && v.Kind == want.kind && v.Direction == want.direction && v.Scenario == want.scenario && rep.State == fabric.Suspect {
					right++
					continue
				}
			}
			var names []string
			for _, v := range rep.Verdicts {
				names = append(names, fmt.Sprintf("%s %s %s", v.Element.ID, v.Direction, v.Scenario))
			}
			t.Logf("%s, seed %d: want %+v, got %q", name, seed, want, names)
		}
		t.Logf("%s: %d of %d", name, right, seeds)
		if right < seeds {
			t.Errorf("%s: %d of %d right", name, right, seeds)
		}
	}
}

func pick[T any](rng *rand.Rand, s []T) T { return s[rng.IntN(len(s))] }

func TestLocalizeHealthyIsInnocent(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		rep := localizeWorld(t, worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), seed))
		if rep.State != fabric.Innocent || len(rep.Verdicts) != 0 {
			t.Errorf("seed %d: state %s, %d verdicts, coverage %+v, %d degraded", seed, rep.State, len(rep.Verdicts), rep.Coverage, rep.Edges.Degraded)
		}
	}
}

func TestLocalizeTwoFaults(t *testing.T) {
	g := worldtest.NewClos(t, 4, 6, 3)
	for seed := uint64(1); seed <= 10; seed++ {
		w := worldtest.NewWorld(g, seed)
		a := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
		w.Delay[a] = 2e6
		nic := "h12/eth1"
		b := fabric.Direction{From: nic, To: g.PeerOf(nic)}
		w.Loss[b] = 0.2
		rep := localizeWorld(t, w)
		got := map[string]string{}
		for _, v := range rep.Verdicts {
			got[v.Element.ID] = v.Direction
		}
		if len(got) != 2 || got[a.LinkID()] != a.String() || got[nic] != b.String() {
			t.Errorf("seed %d: %v", seed, got)
		}
	}
}

// TestLocalizeClockStepIsNoDelay: a clock that jumps moves every flow of its
// NIC, one way up and the other down; it is named and nothing else is.
func TestLocalizeClockStepIsNoDelay(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 3)
	w.Clock["h5/eth1"] = 3e6
	rep := localizeWorld(t, w)
	if len(rep.Verdicts) != 1 || rep.Verdicts[0].Element != (fabric.Element{ID: "h5/eth1", Kind: fabric.KindClock}) || rep.Verdicts[0].Scenario != fabric.ClockTrouble ||
		rep.Edges.ClockSuspect != 28 || rep.Edges.Degraded != 0 || len(rep.LinkDelays) != 0 {
		t.Errorf("state %s, verdicts %v, %d clock suspects", rep.State, rep.Verdicts, rep.Edges.ClockSuspect)
	}
}

func TestLocalizeSilenceIsNotInnocence(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 1)
	obs := w.Observe(0)
	rep, err := FindFaults(w.Graph, obs[:10], 10*time.Second)
	if err != nil || rep.State != fabric.InsufficientEvidence {
		t.Errorf("ten flows: %s, %v", rep.State, err)
	}
	if rep, err = FindFaults(w.Graph, nil, time.Second); err != nil || rep.State != fabric.InsufficientEvidence {
		t.Errorf("no flow: %s, %v", rep.State, err)
	}
	for _, o := range obs {
		o.HostSuspect = true
	}
	if rep, err = FindFaults(w.Graph, obs, 10*time.Second); err != nil || rep.State != fabric.InsufficientEvidence || rep.Edges.HostSuspect != len(obs) {
		t.Errorf("starved hosts: %s, %v", rep.State, err)
	}
}

// TestLocalizeWithoutBaselines: comparable flows, or a flow's own other
// windows, stand in for a baseline.
func TestLocalizeWithoutBaselines(t *testing.T) {
	d := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 5)
	w.WithBaselines = false
	w.Delay[d] = 500000
	if rep := localizeWorld(t, w); len(rep.Verdicts) != 1 || rep.Verdicts[0].Direction != d.String() {
		t.Errorf("comparable flows: %+v", rep.Verdicts)
	}
	var obs []*fabric.Observation
	w.Delay[d] = 0
	for n := range 6 {
		if n == 5 {
			w.Delay[d] = 500000
		}
		obs = append(obs, w.Observe(n)...)
	}
	rep, err := FindFaults(w.Graph, obs, 10*time.Second)
	if err != nil || len(rep.Verdicts) != 1 || rep.Verdicts[0].Direction != d.String() {
		t.Fatalf("own windows: %+v, %v", rep.Verdicts, err)
	}
	if want := time.Unix(1050, 0).UTC(); !rep.Verdicts[0].FirstSeen.Equal(want) {
		t.Errorf("first seen %s, want %s", rep.Verdicts[0].FirstSeen, want)
	}
}

func TestLocalizeWithUnknownPaths(t *testing.T) {
	right := 0
	for seed := uint64(1); seed <= 20; seed++ {
		w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), seed)
		w.HiddenShare = 0.2
		d := pick(w.Random, w.FabricDirections())
		w.Delay[d] = 2e6
		rep := localizeWorld(t, w)
		if len(rep.Verdicts) >= 1 && rep.Verdicts[0].Direction == d.String() {
			right++
		}
		if rep.Edges.UnknownPath == 0 {
			t.Error("no unknown path counted")
		}
	}
	if right < 19 {
		t.Errorf("%d of 20 right with a fifth of the paths unknown", right)
	}
}

func TestLocalizeNamesWhatTheTopologyLacks(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 2, 1), 1)
	obs := w.Observe(0)[:1]
	obs[0].Path = append(fabric.Path{}, obs[0].Path...)
	obs[0].Path[0].Switch = "leaf77"
	if _, err := FindFaults(w.Graph, obs, time.Second); err == nil || !strings.Contains(err.Error(), "leaf77") {
		t.Errorf("error %v", err)
	}
	if _, err := FindFaults(w.Graph, nil, 0); err == nil {
		t.Error("a window of nothing passes")
	}
}

func TestLocalizeCountsDuplicates(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 1)
	obs := w.Observe(0)
	again := *obs[0]
	rep, err := FindFaults(w.Graph, append(obs, &again), 10*time.Second)
	if err != nil || rep.Edges.Duplicates != 1 {
		t.Errorf("%d duplicates, %v", rep.Edges.Duplicates, err)
	}
}

// TestSingleHostLeaf: flows through both cannot distinguish the only host of a leaf from the leaf. The
// narrower one is named, and the other is listed.
func TestSingleHostLeaf(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 1), 2)
	w.Slow["leaf2"] = 2e6
	rep := localizeWorld(t, w)
	if len(rep.Verdicts) != 1 {
		t.Fatalf("%d verdicts", len(rep.Verdicts))
	}
	v := rep.Verdicts[0]
	listed := v.Element.ID == "leaf2"
	for _, e := range v.Equivalent {
		listed = listed || e.ID == "leaf2" && e.Kind == fabric.KindSwitch
	}
	if !listed {
		t.Errorf("%s %s with equivalents %v does not mention leaf2", v.Kind, v.Element.ID, v.Equivalent)
	}
}

func BenchmarkLocalize(b *testing.B) {
	for _, size := range []struct{ spines, leaves, hosts int }{{2, 4, 2}, {8, 16, 4}} {
		g := worldtest.NewClos(b, size.spines, size.leaves, size.hosts)
		w := worldtest.NewWorld(g, 1)
		w.Delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
		obs := w.Observe(0)
		b.Run(fmt.Sprintf("%d flows", len(obs)), func(b *testing.B) {
			for b.Loop() {
				if _, err := FindFaults(g, obs, 10*time.Second); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestLocalizeOneFaultOneVerdict: over windows in which a fault is there or not, looks
// narrower or wider, it is named once, since its first window.
func TestLocalizeOneFaultOneVerdict(t *testing.T) {
	spine := func(w *worldtest.World, on bool) {
		for _, d := range w.FabricDirections() {
			if delete(w.Loss, d); on && fabric.OwnerOf(d.From) == "spine2" {
				w.Loss[d] = 1
			}
		}
	}
	link := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	one := func(loss float64, delay int64) func(*worldtest.World, bool) {
		return func(w *worldtest.World, on bool) {
			if w.Loss[link], w.Delay[link] = 0, 0; on {
				w.Loss[link], w.Delay[link] = loss, delay
			}
		}
	}
	for _, tt := range []struct {
		name     string
		set      func(w *worldtest.World, on bool)
		on       string // by window
		element  string
		scenario fabric.Scenario
	}{
		{"late all the time", one(0, 1e6), "011111", link.LinkID(), fabric.Corridor},
		{"late, then no more", one(0, 1e6), "011000", link.LinkID(), fabric.Corridor},
		{"dead", one(1, 0), "001111", link.LinkID(), fabric.HardFailure},
		{"flapping", one(1, 0), "010110", link.LinkID(), fabric.Flap},
		{"a dead spine", spine, "001111", "spine2", fabric.HardFailure},
	} {
		for seed := uint64(1); seed <= 4; seed++ {
			w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 3), seed)
			var obs []*fabric.Observation
			for n, c := range tt.on {
				tt.set(w, c == '1')
				obs = append(obs, w.Observe(n)...)
			}
			rep, err := FindFaults(w.Graph, obs, 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if len(rep.Verdicts) != 1 || rep.Verdicts[0].Element.ID != tt.element || rep.Verdicts[0].Scenario != tt.scenario {
				t.Errorf("%s, seed %d: %d verdicts: %+v", tt.name, seed, len(rep.Verdicts), rep.Verdicts)
				continue
			}
			if want := time.Unix(int64(1000+10*strings.Index(tt.on, "1")), 0); !rep.Verdicts[0].FirstSeen.Equal(want) {
				t.Errorf("%s, seed %d: first seen %s, want %s", tt.name, seed, rep.Verdicts[0].FirstSeen, want)
			}
		}
	}
}

// TestTwoNICsUnderALeaf: one of a leaf's two NICs is bad, and some flows are missing at random. The verdict
// names the NIC or nothing, and never the switch.
func TestTwoNICsUnderALeaf(t *testing.T) {
	named, silent := 0, 0
	for seed := uint64(1); seed <= 150; seed++ {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := worldtest.NewWorld(worldtest.NewClos(t, 1+rng.IntN(2), 2+rng.IntN(3), 2), seed)
		nic := pick(rng, w.Graph.NICIDs())
		in := fabric.Direction{From: w.Graph.PeerOf(nic), To: nic}
		for _, d := range [][]fabric.Direction{{in}, {in.Reverse()}, {in, in.Reverse()}}[rng.IntN(3)] {
			if rng.IntN(2) == 0 {
				w.Loss[d] = 0.05 + 0.9*rng.Float64()
			} else {
				w.Delay[d] = 200_000 + rng.Int64N(2e6)
			}
		}
		keep := 0.1 + 0.9*rng.Float64()
		var obs []*fabric.Observation
		for _, o := range w.Observe(0) {
			if rng.Float64() < keep {
				obs = append(obs, o)
			}
		}
		rep, err := FindFaults(w.Graph, obs, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if len(rep.Verdicts) == 0 {
			silent++
			if rep.State == fabric.Innocent {
				t.Errorf("seed %d: %s is bad, and no element is suspected", seed, nic)
			}
		}
		for _, v := range rep.Verdicts {
			if v.Kind == fabric.KindSwitch || v.Kind == fabric.KindLeafUplinks {
				t.Errorf("seed %d: %s is bad, and %s %s is named (%s)", seed, nic, v.Kind, v.Element.ID, v.Summary)
			}
			if v.Element.ID == nic {
				named++
			}
		}
	}
	t.Logf("%d named, %d times nothing was said", named, silent)
	if named < 110 {
		t.Errorf("%d of 150 named", named)
	}
}

// TestLocalizeFlowsWithSignals: flows that carry in-band signals and lose everything change nothing in a report, whether the
// others are healthy or not.
func TestLocalizeFlowsWithSignals(t *testing.T) {
	for _, faulty := range []bool{false, true} {
		w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 3)
		if faulty {
			w.Delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
		}
		obs := w.Observe(0)
		var all []*fabric.Observation
		for _, o := range obs {
			tagged := *o
			e, err := o.ParseFlow()
			if err != nil {
				t.Fatal(err)
			}
			e.Number += fabric.FlowsPerClass
			tagged.Edge, tagged.Class, tagged.Lost, tagged.OWD = e.String(), fabric.ClassCSIG, tagged.Sent, nil
			plain := *o
			all = append(all, &plain, &tagged)
		}
		want, err := FindFaults(w.Graph, obs, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		got, err := FindFaults(w.Graph, all, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got.State != want.State || got.Coverage != want.Coverage || got.Edges != want.Edges || len(got.Verdicts) != len(want.Verdicts) {
			t.Errorf("faulty %v: %+v, want %+v", faulty, got, want)
		}
		for i := range min(len(got.Verdicts), len(want.Verdicts)) {
			if a, b := got.Verdicts[i], want.Verdicts[i]; a.Element != b.Element || a.Evidence.DegradedEdges != b.Evidence.DegradedEdges || a.Confidence != b.Confidence {
				t.Errorf("faulty %v: %+v, want %+v", faulty, a, b)
			}
		}
	}
}
