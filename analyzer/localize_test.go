package analyzer

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// world represents a fabric with the faults of a test. Its noise has an exponential tail, which is not the
// inference's error model.
type world struct {
	g     *fabric.Graph
	rng   *rand.Rand
	paths map[fabric.Flow]fabric.Path
	edges []fabric.Flow
	delay map[fabric.Direction]int64
	loss  map[fabric.Direction]float64
	// slow and lossy are whole switches.
	slow  map[string]int64
	clock map[string]int64 // NIC's clock ahead by this
	flow  map[fabric.Flow]int64
	hide  float64 // share of flows whose path is unknown
	base  bool    // observations carry a baseline
}

func clos(t testing.TB, spines, leaves, hosts int) *fabric.Graph {
	t.Helper()
	var b strings.Builder
	b.WriteString("version: 1\nswitches:\n")
	for s := 1; s <= spines; s++ {
		fmt.Fprintf(&b, "  - {name: spine%d, role: spine, plane: a}\n", s)
	}
	for l := 1; l <= leaves; l++ {
		fmt.Fprintf(&b, "  - {name: leaf%d, role: leaf, plane: a}\n", l)
	}
	b.WriteString("nodes:\n")
	for h := 1; h <= leaves*hosts; h++ {
		fmt.Fprintf(&b, "  - {name: h%d, nics: [{device: eth1, plane: a}]}\n", h)
	}
	b.WriteString("links:\n")
	for l := 1; l <= leaves; l++ {
		for h := 1; h <= hosts; h++ {
			n := (l-1)*hosts + h
			fmt.Fprintf(&b, "  - {a: \"h%d/eth1\", b: \"leaf%d:dn%d\", a_address: 10.%d.%d.2/24, b_address: 10.%d.%d.1/24}\n", n, l, h, n/256, n%256, n/256, n%256)
		}
		for s := 1; s <= spines; s++ {
			fmt.Fprintf(&b, "  - {a: \"leaf%d:up%d\", b: \"spine%d:dn%d\", a_address: 172.16.%d.%d/31, b_address: 172.16.%d.%d/31}\n", l, s, s, l, l, 2*s, l, 2*s+1)
		}
	}
	topo, found := fabric.ParseTopology("t.yaml", []byte(b.String()))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(topo)
}

func newWorld(g *fabric.Graph, seed uint64) *world {
	w := &world{g: g, rng: rand.New(rand.NewPCG(seed, 7)), paths: map[fabric.Flow]fabric.Path{}, delay: map[fabric.Direction]int64{},
		loss: map[fabric.Direction]float64{}, slow: map[string]int64{}, clock: map[string]int64{}, base: true}
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			if src == dst {
				continue
			}
			for _, reply := range []bool{false, true} {
				e := fabric.Flow{Src: src, Dst: dst, Reply: reply}
				from, to := e.Endpoints()
				all := g.ShortestPaths(from, to, 16)
				w.paths[e] = all[w.rng.IntN(len(all))]
				w.edges = append(w.edges, e)
			}
		}
	}
	return w
}

// observe measures every flow once, in a window that starts n windows after the epoch.
func (w *world) observe(n int) []*fabric.Observation {
	var out []*fabric.Observation
	alive := map[fabric.Flow]uint64{} // probes that arrived
	for _, e := range w.edges {
		from, to := e.Endpoints()
		p := w.paths[e]
		added, survive := w.clock[to]-w.clock[from]+w.flow[e], 1.0
		for _, d := range p.LinkDirections(from, to) {
			added += w.delay[d]
			survive *= 1 - w.loss[d]
		}
		for _, h := range p {
			added += w.slow[h.Switch]
		}
		base := int64(1500 + 1000*len(p))
		p50 := base + added + int64(w.rng.ExpFloat64()*300)
		p99 := p50 + 4000 + int64(w.rng.ExpFloat64()*4000)
		sent := uint64(200)
		if e.Reply {
			sent = alive[e.ProbeFlow()]
		}
		var lost uint64
		for range sent {
			if w.rng.Float64() > survive {
				lost++
			}
		}
		if !e.Reply {
			alive[e] = sent - lost
		}
		o := &fabric.Observation{Edge: e.String(), Src: from, Dst: to, Tier: w.g.PathTier(from, to), Plane: "a", Start: time.Unix(int64(1000+10*n), 0).UTC(),
			WindowNS: 2e9, Sent: sent, Lost: lost, Timestamp: "kernel", Path: p, PathState: fabric.PathValid}
		if sent > lost {
			o.OWD = &fabric.Quantiles{P50: &p50, P99: &p99}
		}
		if w.base {
			b50, b99 := base+300, base+8300
			o.Baseline = &fabric.Quantiles{P50: &b50, P99: &b99}
		}
		if w.rng.Float64() < w.hide {
			o.Path, o.PathState = nil, fabric.PathUnknown
		}
		out = append(out, o)
	}
	return out
}

func (w *world) localize(t testing.TB) fabric.Report {
	t.Helper()
	rep, err := LocalizeFaults(w.g, w.observe(0), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func (w *world) fabricDirections() []fabric.Direction {
	var out []fabric.Direction
	for _, l := range w.g.Topo.Links {
		if !l.IsAccess() {
			d := fabric.Direction{From: l.A, To: l.B}
			out = append(out, d, d.Reverse())
		}
	}
	return out
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
	kinds := map[string]func(w *world) want{
		"link delay": func(w *world) want {
			d := pick(w.rng, w.fabricDirections())
			w.delay[d] = 2e6
			return want{d.LinkID(), fabric.KindLink, d.String(), fabric.Corridor}
		},
		"small link delay": func(w *world) want {
			d := pick(w.rng, w.fabricDirections())
			w.delay[d] = 48000
			return want{d.LinkID(), fabric.KindLink, d.String(), fabric.Corridor}
		},
		"link loss": func(w *world) want {
			d := pick(w.rng, w.fabricDirections())
			w.loss[d] = 0.1
			return want{d.LinkID(), fabric.KindLink, d.String(), fabric.Corridor}
		},
		"blackhole": func(w *world) want {
			d := pick(w.rng, w.fabricDirections())
			w.loss[d] = 1
			return want{d.LinkID(), fabric.KindLink, d.String(), fabric.HardFailure}
		},
		"link both ways": func(w *world) want {
			d := pick(w.rng, w.fabricDirections())
			w.delay[d], w.delay[d.Reverse()] = 1e6, 1e6
			return want{d.LinkID(), fabric.KindLink, "", fabric.Corridor}
		},
		"NIC in": func(w *world) want {
			nic := pick(w.rng, w.g.NICIDs())
			d := fabric.Direction{From: w.g.PeerOf(nic), To: nic}
			w.delay[d] = 2e6
			return want{nic, fabric.KindNIC, d.String(), fabric.BadNIC}
		},
		"NIC both": func(w *world) want {
			nic := pick(w.rng, w.g.NICIDs())
			d := fabric.Direction{From: w.g.PeerOf(nic), To: nic}
			w.delay[d], w.delay[d.Reverse()] = 2e6, 2e6
			return want{nic, fabric.KindNIC, "", fabric.BadNIC}
		},
		"spine": func(w *world) want {
			w.slow["spine2"] = 2e6
			return want{"spine2", fabric.KindSwitch, "", fabric.HotSpine}
		},
		"leaf": func(w *world) want {
			w.slow["leaf3"] = 2e6
			return want{"leaf3", fabric.KindSwitch, "", fabric.SlowLeaf}
		},
	}
	g := clos(t, 2, 4, 2)
	const seeds = 40
	for name, inject := range kinds {
		right := 0
		for seed := uint64(1); seed <= seeds; seed++ {
			w := newWorld(g, seed)
			want := inject(w)
			rep := w.localize(t)
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
		rep := newWorld(clos(t, 2, 4, 2), seed).localize(t)
		if rep.State != fabric.Innocent || len(rep.Verdicts) != 0 {
			t.Errorf("seed %d: state %s, %d verdicts, coverage %+v, %d degraded", seed, rep.State, len(rep.Verdicts), rep.Coverage, rep.Edges.Degraded)
		}
	}
}

func TestLocalizeTwoFaults(t *testing.T) {
	g := clos(t, 4, 6, 3)
	for seed := uint64(1); seed <= 10; seed++ {
		w := newWorld(g, seed)
		a := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
		w.delay[a] = 2e6
		nic := "h12/eth1"
		b := fabric.Direction{From: nic, To: g.PeerOf(nic)}
		w.loss[b] = 0.2
		rep := w.localize(t)
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
	w := newWorld(clos(t, 2, 4, 2), 3)
	w.clock["h5/eth1"] = 3e6
	rep := w.localize(t)
	if len(rep.Verdicts) != 1 || rep.Verdicts[0].Element != (fabric.Element{ID: "h5/eth1", Kind: fabric.KindClock}) || rep.Verdicts[0].Scenario != fabric.ClockTrouble ||
		rep.Edges.ClockSuspect != 28 || rep.Edges.Degraded != 0 || len(rep.LinkDelays) != 0 {
		t.Errorf("state %s, verdicts %v, %d clock suspects", rep.State, rep.Verdicts, rep.Edges.ClockSuspect)
	}
}

func TestLocalizeSilenceIsNotInnocence(t *testing.T) {
	w := newWorld(clos(t, 2, 4, 2), 1)
	obs := w.observe(0)
	rep, err := LocalizeFaults(w.g, obs[:10], 10*time.Second)
	if err != nil || rep.State != fabric.InsufficientEvidence {
		t.Errorf("ten flows: %s, %v", rep.State, err)
	}
	if rep, err = LocalizeFaults(w.g, nil, time.Second); err != nil || rep.State != fabric.InsufficientEvidence {
		t.Errorf("no flow: %s, %v", rep.State, err)
	}
	for _, o := range obs {
		o.HostSuspect = true
	}
	if rep, err = LocalizeFaults(w.g, obs, 10*time.Second); err != nil || rep.State != fabric.InsufficientEvidence || rep.Edges.HostSuspect != len(obs) {
		t.Errorf("starved hosts: %s, %v", rep.State, err)
	}
}

// TestLocalizeWithoutBaselines: comparable flows, or a flow's own other
// windows, stand in for a baseline.
func TestLocalizeWithoutBaselines(t *testing.T) {
	d := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	w := newWorld(clos(t, 2, 4, 2), 5)
	w.base = false
	w.delay[d] = 500000
	if rep := w.localize(t); len(rep.Verdicts) != 1 || rep.Verdicts[0].Direction != d.String() {
		t.Errorf("comparable flows: %+v", rep.Verdicts)
	}
	var obs []*fabric.Observation
	w.delay[d] = 0
	for n := range 6 {
		if n == 5 {
			w.delay[d] = 500000
		}
		obs = append(obs, w.observe(n)...)
	}
	rep, err := LocalizeFaults(w.g, obs, 10*time.Second)
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
		w := newWorld(clos(t, 2, 4, 2), seed)
		w.hide = 0.2
		d := pick(w.rng, w.fabricDirections())
		w.delay[d] = 2e6
		rep := w.localize(t)
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
	w := newWorld(clos(t, 2, 2, 1), 1)
	obs := w.observe(0)[:1]
	obs[0].Path = append(fabric.Path{}, obs[0].Path...)
	obs[0].Path[0].Switch = "leaf77"
	if _, err := LocalizeFaults(w.g, obs, time.Second); err == nil || !strings.Contains(err.Error(), "leaf77") {
		t.Errorf("error %v", err)
	}
	if _, err := LocalizeFaults(w.g, nil, 0); err == nil {
		t.Error("a window of nothing passes")
	}
}

func TestLocalizeCountsDuplicates(t *testing.T) {
	w := newWorld(clos(t, 2, 4, 2), 1)
	obs := w.observe(0)
	again := *obs[0]
	rep, err := LocalizeFaults(w.g, append(obs, &again), 10*time.Second)
	if err != nil || rep.Edges.Duplicates != 1 {
		t.Errorf("%d duplicates, %v", rep.Edges.Duplicates, err)
	}
}

// TestSingleHostLeaf: flows through both cannot distinguish the only host of a leaf from the leaf. The
// narrower one is named, and the other is listed.
func TestSingleHostLeaf(t *testing.T) {
	w := newWorld(clos(t, 2, 4, 1), 2)
	w.slow["leaf2"] = 2e6
	rep := w.localize(t)
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
		g := clos(b, size.spines, size.leaves, size.hosts)
		w := newWorld(g, 1)
		w.delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
		obs := w.observe(0)
		b.Run(fmt.Sprintf("%d flows", len(obs)), func(b *testing.B) {
			for b.Loop() {
				if _, err := LocalizeFaults(g, obs, 10*time.Second); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestLocalizeOneFaultOneVerdict: over windows in which a fault is there or not, looks
// narrower or wider, it is named once, since its first window.
func TestLocalizeOneFaultOneVerdict(t *testing.T) {
	spine := func(w *world, on bool) {
		for _, d := range w.fabricDirections() {
			if delete(w.loss, d); on && fabric.OwnerOf(d.From) == "spine2" {
				w.loss[d] = 1
			}
		}
	}
	link := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	one := func(loss float64, delay int64) func(*world, bool) {
		return func(w *world, on bool) {
			if w.loss[link], w.delay[link] = 0, 0; on {
				w.loss[link], w.delay[link] = loss, delay
			}
		}
	}
	for _, tt := range []struct {
		name     string
		set      func(w *world, on bool)
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
			w := newWorld(clos(t, 2, 4, 3), seed)
			var obs []*fabric.Observation
			for n, c := range tt.on {
				tt.set(w, c == '1')
				obs = append(obs, w.observe(n)...)
			}
			rep, err := LocalizeFaults(w.g, obs, 10*time.Second)
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
		w := newWorld(clos(t, 1+rng.IntN(2), 2+rng.IntN(3), 2), seed)
		nic := pick(rng, w.g.NICIDs())
		in := fabric.Direction{From: w.g.PeerOf(nic), To: nic}
		for _, d := range [][]fabric.Direction{{in}, {in.Reverse()}, {in, in.Reverse()}}[rng.IntN(3)] {
			if rng.IntN(2) == 0 {
				w.loss[d] = 0.05 + 0.9*rng.Float64()
			} else {
				w.delay[d] = 200_000 + rng.Int64N(2e6)
			}
		}
		keep := 0.1 + 0.9*rng.Float64()
		var obs []*fabric.Observation
		for _, o := range w.observe(0) {
			if rng.Float64() < keep {
				obs = append(obs, o)
			}
		}
		rep, err := LocalizeFaults(w.g, obs, 10*time.Second)
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
