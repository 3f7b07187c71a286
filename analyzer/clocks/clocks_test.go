package clocks

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// mesh measures a flow from every NIC to every other of another node. clock is
// by how much a NIC's clock is ahead, way what a packet from one NIC to another
// takes longer; both nanoseconds.
func mesh(nics []string, clock map[string]int64, way map[[2]string]int64) []judge.Finding {
	window := func(e fabric.Flow, shift int64) *fabric.Observation {
		src, dst := e.Endpoints()
		p50, base, p99 := 50_000+shift, int64(50_000), int64(58_000)
		return &fabric.Observation{Edge: e.String(), Src: src, Dst: dst, Start: time.Unix(1000, 0), WindowNS: 2e9, Sent: 200, Timestamp: "kernel",
			OWD: &fabric.Quantiles{P50: &p50}, Baseline: &fabric.Quantiles{P50: &base, P99: &p99}}
	}
	var obs []*fabric.Observation
	for _, a := range nics {
		for _, b := range nics {
			if fabric.OwnerOf(a) == fabric.OwnerOf(b) {
				continue
			}
			e := fabric.Flow{Src: a, Dst: b}
			obs = append(obs, window(e, clock[b]-clock[a]+way[[2]string{a, b}]))
			e.Reply = true
			obs = append(obs, window(e, clock[a]-clock[b]+way[[2]string{b, a}]))
		}
	}
	return judge.FindingsOf(obs, judge.DefaultParameters())
}

func nodes(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("h%d/eth1", i+1))
	}
	return out
}

// names returns the names of the suspects, with those of the same clock joined by "=".
func names(s []Suspect) string {
	var out []string
	for i := range s {
		out = append(out, strings.Join(append([]string{s[i].NIC}, s[i].Others...), "="))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestRules1To4WhichClocksMoved(t *testing.T) {
	two := []string{"h1/eth1", "h1/eth2", "h2/eth1", "h2/eth2", "h3/eth1", "h3/eth2", "h4/eth1", "h4/eth2"}
	for _, tc := range []struct {
		name  string
		nics  []string
		clock map[string]int64
		way   map[[2]string]int64
		want  string
	}{
		{"nothing", nodes(8), nil, nil, ""},
		{"rule 1: one ahead", nodes(8), map[string]int64{"h3/eth1": 1e6}, nil, "h3/eth1"},
		{"rule 1: one back, a little", nodes(8), map[string]int64{"h3/eth1": -20_000}, nil, "h3/eth1"},
		{"rule 1: within the noise", nodes(8), map[string]int64{"h3/eth1": 9_000}, nil, ""},
		{"rule 1: a NIC that receives late", nodes(4), nil, map[[2]string]int64{{"h1/eth1", "h3/eth1"}: 1e6, {"h2/eth1", "h3/eth1"}: 1e6, {"h4/eth1", "h3/eth1"}: 1e6}, ""},
		{"rule 1: a NIC that receives earlier", nodes(4), nil, map[[2]string]int64{{"h1/eth1", "h3/eth1"}: -40_000, {"h2/eth1", "h3/eth1"}: -40_000, {"h4/eth1", "h3/eth1"}: -40_000}, ""},
		{"rule 1: and is slow both ways", nodes(3), nil, map[[2]string]int64{{"h1/eth1", "h3/eth1"}: 1e6, {"h2/eth1", "h3/eth1"}: 1e6, {"h3/eth1", "h1/eth1"}: 1e6, {"h3/eth1", "h2/eth1"}: 1e6}, ""},
		{"rule 1: a delay elsewhere hides nothing", nodes(5), map[string]int64{"h3/eth1": 1e6}, map[[2]string]int64{{"h1/eth1", "h2/eth1"}: 2e6}, "h3/eth1"},
		{"rule 2: one of two", nodes(2), map[string]int64{"h1/eth1": 1e6}, nil, ""},
		{"rule 2: one of three", nodes(3), map[string]int64{"h2/eth1": 1e6}, nil, "h2/eth1"},
		{"rule 2: two NICs of one other node are one witness", []string{"h1/eth1", "h2/eth1", "h2/eth2"}, map[string]int64{"h2/eth1": 1e6, "h2/eth2": 1e6}, nil, ""},
		{"rule 2: half against half", nodes(4), map[string]int64{"h1/eth1": 1e6, "h2/eth1": 1e6}, nil, ""},
		{"rule 3: two alike", nodes(8), map[string]int64{"h3/eth1": 1e6, "h5/eth1": 1e6}, nil, "h3/eth1 h5/eth1"},
		{"rule 3: two contrary", nodes(5), map[string]int64{"h3/eth1": 1e6, "h5/eth1": -3e6}, nil, "h3/eth1 h5/eth1"},
		{"rule 3: three", nodes(8), map[string]int64{"h1/eth1": 40_000, "h3/eth1": 1e6, "h5/eth1": -3e6}, nil, "h1/eth1 h3/eth1 h5/eth1"},
		{"rule 4: a node's one clock", two, map[string]int64{"h3/eth1": 1e6, "h3/eth2": 1e6}, nil, "h3/eth1=h3/eth2"},
		{"rule 4: clocks of their own", two, map[string]int64{"h3/eth1": 1e6, "h3/eth2": -1e6}, nil, "h3/eth1 h3/eth2"},
		{"rule 4: one of two", two, map[string]int64{"h3/eth2": 1e6}, nil, "h3/eth2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := FindSuspects(mesh(tc.nics, tc.clock, tc.way))
			if names(got) != tc.want {
				t.Fatalf("named %q, want %q", names(got), tc.want)
			}
			for _, s := range got {
				if d := *s.Offset - tc.clock[s.NIC]; d < -1000 || d > 1000 {
					t.Errorf("%s is ahead by %d ns, want %d", s.NIC, *s.Offset, tc.clock[s.NIC])
				}
				if s.Peers < minPeers || len(s.Explained) < 2*s.Peers {
					t.Errorf("%s: %d peers, %d flows", s.NIC, s.Peers, len(s.Explained))
				}
			}
		})
	}
}

// TestRule8NICsOfANodeShareItsClock: one NIC of h3 is slow both ways, so that only the other can show the clock.
func TestRule8NICsOfANodeShareItsClock(t *testing.T) {
	two := []string{"h1/eth1", "h1/eth2", "h2/eth1", "h2/eth2", "h3/eth1", "h3/eth2", "h4/eth1", "h4/eth2"}
	slow := map[[2]string]int64{}
	for _, far := range two {
		slow[[2]string{far, "h3/eth2"}], slow[[2]string{"h3/eth2", far}] = 300_000, 300_000
	}
	for _, tc := range []struct {
		name  string
		clock map[string]int64
		stamp string
		want  string
	}{
		{"one clock", map[string]int64{"h3/eth1": 1e6, "h3/eth2": 1e6}, "kernel", "h3/eth1=h3/eth2"},
		{"clocks of the NICs", map[string]int64{"h3/eth1": 1e6, "h3/eth2": 1e6}, "hardware", "h3/eth1"},
		{"the slow NIC has not moved", map[string]int64{"h3/eth1": 1e6}, "kernel", "h3/eth1"},
		{"it moved the other way", map[string]int64{"h3/eth1": 1e6, "h3/eth2": -1e6}, "kernel", "h3/eth1"},
		{"no NIC shows it", map[string]int64{"h3/eth2": 1e6}, "kernel", ""},
	} {
		f := mesh(two, tc.clock, slow)
		for i := range f {
			f[i].Obs.Timestamp = tc.stamp
		}
		if got := FindSuspects(f); names(got) != tc.want {
			t.Errorf("%s: named %q, want %q", tc.name, names(got), tc.want)
		}
	}
}

// h9 is probed by two clocks only, and both moved.
func TestRule3WhatTheFirstExplainAccusesNoOther(t *testing.T) {
	f := slices.DeleteFunc(mesh(nodes(9), map[string]int64{"h3/eth1": 1e6, "h5/eth1": 1e6}, nil), func(f judge.Finding) bool {
		touches := func(nic string) bool { return f.Flow.Src == nic || f.Flow.Dst == nic }
		return touches("h9/eth1") && !touches("h3/eth1") && !touches("h5/eth1")
	})
	if got := FindSuspects(f); names(got) != "h3/eth1 h5/eth1" {
		t.Errorf("named %q", names(got))
	}
}

// A NIC that is off by two amounts, as by two kinds of stamps, is one suspect.
func TestRule3AClockIsNamedOnce(t *testing.T) {
	way := map[[2]string]int64{}
	for _, far := range nodes(8)[3:] {
		way[[2]string{far, "h1/eth1"}], way[[2]string{"h1/eth1", far}] = 4e6, -4e6
	}
	if got := FindSuspects(mesh(nodes(8), map[string]int64{"h1/eth1": 1e6}, way)); names(got) != "h1/eth1" {
		t.Errorf("named %q", names(got))
	}
}

// A host that is starved and a flow that was not measured both ways say nothing.
func TestRule1OnlyWhatWasMeasuredTakesPart(t *testing.T) {
	f := mesh(nodes(3), map[string]int64{"h2/eth1": 1e6}, nil)
	for i := range f {
		f[i].HostSuspect = f[i].Flow.Src == "h3/eth1" || f[i].Flow.Dst == "h3/eth1"
	}
	if got := FindSuspects(f); len(got) != 0 {
		t.Errorf("named %q by flows of a starved host", names(got))
	}
	for i := range f { // in one direction only
		f[i].HostSuspect = f[i].HostSuspect && f[i].Flow.Reply
	}
	if got := FindSuspects(f); len(got) != 0 {
		t.Errorf("named %q by flows of a host that was starved in one direction", names(got))
	}
	f = slices.DeleteFunc(mesh(nodes(8), map[string]int64{"h2/eth1": 1e6}, nil), func(f judge.Finding) bool { return f.Flow.Reply })
	if got := FindSuspects(f); len(got) != 0 {
		t.Errorf("named %q by one direction", names(got))
	}
}

func num(v float64) *float64 { return &v }

func TestRule5WhatANodeCountsIsBelieved(t *testing.T) {
	w := NewWatch()
	at := time.Unix(2000, 0)
	update := func(f []judge.Finding, s map[string]Series) []Suspect {
		at = at.Add(time.Second)
		return w.AddWindow(at, f, s)
	}
	quiet := mesh(nodes(4), nil, nil)
	series := func(steps, drifts, offset, drift float64) map[string]Series {
		return map[string]Series{"h1/eth1": {Steps: num(0), Drifts: num(0)}, "h2/eth1": {Steps: num(steps), Drifts: num(drifts), Offset: num(offset), Drift: num(drift)}}
	}
	for range 2 {
		if got := update(quiet, series(3, 1, 0.5, 10e-6)); len(got) != 0 {
			t.Fatalf("named %q by counts that do not rise", names(got))
		}
	}
	for i, want := range []string{"h2/eth1", "h2/eth1", ""} {
		got := update(quiet, series(4, 1, 0.501+10e-6*float64(i+1), 10e-6))
		if names(got) != want {
			t.Fatalf("window %d after a step: named %q, want %q", i, names(got), want)
		}
		if want == "" {
			continue
		}
		if s := got[0]; !s.Counted || !s.Stepped || s.Drifts || s.Offset == nil || *s.Offset < 0.999e6 || *s.Offset > 1.001e6 {
			t.Errorf("window %d: %+v, want a step of 1 ms beside what the clock gained as before", i, s)
		}
	}
	got := update(quiet, series(4, 2, 0.501, 60e-6))
	if names(got) != "h2/eth1" || !got[0].Drifts || got[0].Stepped || got[0].Rate == nil || *got[0].Rate < 49e-6 || *got[0].Rate > 51e-6 {
		t.Errorf("a change of rate: %+v, want 50 ppm", got)
	}
	// The window in which a rate changes may show it as a step, too.
	for _, counts := range [][][2]float64{{{5, 3}}, {{5, 2}, {5, 3}}, {{4, 3}, {5, 3}}} { // at once; one before the other
		w = NewWatch()
		update(quiet, series(4, 2, 0.5, 60e-6))
		for _, c := range counts {
			got = update(quiet, series(c[0], c[1], 0.501, 10e-6))
		}
		if names(got) != "h2/eth1" || !got[0].Drifts || got[0].Stepped || got[0].Rate == nil || *got[0].Rate > -49e-6 {
			t.Errorf("counts %v of a change of rate: %+v, want -50 ppm", counts, got)
		}
	}
	// While it is not known where the clock is, it claims no offset.
	w = NewWatch()
	update(quiet, series(4, 2, 0.5, 10e-6))
	for range 3 {
		lost := series(4, 2, 0, 0)
		lost["h2/eth1"] = Series{Steps: num(4), Drifts: num(2)}
		update(quiet, lost)
	}
	got = update(quiet, series(5, 2, 0.501, 10e-6))
	if names(got) != "h2/eth1" || !got[0].Stepped || got[0].Offset == nil || *got[0].Offset < 0.999e6-40e3 || *got[0].Offset > 1.001e6 {
		t.Errorf("a step after which nothing was known for a while: %+v, want 1 ms", got)
	}
	update(quiet, nil)
	if got := update(quiet, nil); len(got) != 0 {
		t.Errorf("named %q long after", names(got))
	}
	for _, anew := range []float64{0, 7} { // an agent that began again; counts that were never seen before
		w = NewWatch()
		if anew == 0 {
			update(quiet, series(4, 2, 0, 0))
		}
		if got := update(quiet, series(anew, anew, 0, 0)); len(got) != 0 {
			t.Errorf("named %q by counts that began anew at %v", names(got), anew)
		}
	}
	// Flows and count say one thing of one clock.
	w = NewWatch()
	update(quiet, series(4, 2, 0, 0))
	got = update(mesh(nodes(4), map[string]int64{"h2/eth1": 2e6}, nil), series(5, 2, 0.7, 0))
	if names(got) != "h2/eth1" || !got[0].Counted || !got[0].Stepped || *got[0].Offset != 2e6 || got[0].Peers != 3 {
		t.Errorf("%+v, want one suspect by both", got)
	}
}

// TestRule6ADelayDragsAClock: everything from and to h2 takes 2 ms longer one way, and its
// node, whose clock is young, takes half of that for a step; and again when that is over.
func TestRule6ADelayDragsAClock(t *testing.T) {
	nics := nodes(4)
	slow := map[[2]string]int64{}
	for _, n := range nics {
		slow[[2]string{"h2/eth1", n}] = 2e6
	}
	count := func(v float64) map[string]Series {
		return map[string]Series{"h2/eth1": {Steps: num(v)}, "h3/eth1": {Steps: num(v)}}
	}
	for _, c := range []struct {
		name          string
		before, after []judge.Finding
		dragged       bool
	}{
		{"a delay came", mesh(nics, nil, nil), mesh(nics, map[string]int64{"h2/eth1": 1e6}, slow), true},
		{"a delay went", mesh(nics, map[string]int64{"h2/eth1": 1e6}, slow), mesh(nics, nil, nil), true},
		{"a delay stays", mesh(nics, nil, slow), mesh(nics, nil, slow), false},
		{"one window was torn", mesh(nics, nil, slow), mesh(nics, nil, nil), false},
		{"nothing moved", mesh(nics, nil, nil), mesh(nics, nil, nil), false},
	} {
		w := NewWatch()
		at := time.Unix(2000, 0)
		update := func(f []judge.Finding, v float64) []Suspect {
			at = at.Add(time.Second)
			return w.AddWindow(at, f, count(v))
		}
		if c.name == "one window was torn" {
			update(c.after, 3)
			update(c.before, 3)
		} else {
			for range 3 {
				update(c.before, 3)
			}
		}
		for range 20 {
			update(c.after, 3)
		}
		got := update(c.after, 4)
		if names(got) != "h2/eth1 h3/eth1" || got[0].Dragged != c.dragged || got[1].Dragged {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// Both NICs of a node count the step of its one clock.
func TestRule5OneNodeOneSuspect(t *testing.T) {
	w := NewWatch()
	both := func(v float64) map[string]Series {
		return map[string]Series{"h1/eth1": {Steps: num(v)}, "h1/eth2": {Steps: num(v)}}
	}
	w.AddWindow(time.Unix(1, 0), nil, both(0))
	if got := w.AddWindow(time.Unix(2, 0), nil, both(1)); names(got) != "h1/eth1=h1/eth2" || got[0].Offset != nil {
		t.Errorf("named %q, offset %v", names(got), got[0].Offset)
	}
}

func TestRule7DriftsAndSteps(t *testing.T) {
	for _, tc := range []struct {
		name    string
		offsets []int64
		steps   bool
		ppm     float64
	}{
		{"a drift", []int64{50e3, 100e3, 150e3, 200e3, 250e3}, false, 50},
		{"a drift back, by windows that wander", []int64{-52e3, -98e3, -155e3, -195e3, -253e3}, false, -50},
		{"a step", []int64{1e6, 1.001e6, 0.999e6, 1.002e6}, true, 0},
		{"a step that a first window saw half of", []int64{0.5e6, 1e6, 1e6, 1e6}, true, 0},
		{"a step that wanders up", []int64{1e6, 1.001e6, 1.002e6, 1.003e6}, true, 0},
		{"too early to decide", []int64{50e3, 100e3, 150e3}, false, 0},
		{"a gap", []int64{50e3, 100e3, 0, 150e3, 200e3}, false, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := NewWatch()
			var got []Suspect
			for i, o := range tc.offsets {
				got = w.AddWindow(time.Unix(3000+int64(i), 0), mesh(nodes(4), map[string]int64{"h2/eth1": o}, nil), nil)
			}
			if len(got) != 1 {
				t.Fatalf("named %q", names(got))
			}
			s := got[0]
			if s.Stepped != tc.steps || s.Drifts != (tc.ppm != 0) {
				t.Errorf("stepped %v, drifts %v", s.Stepped, s.Drifts)
			}
			if tc.ppm != 0 && (s.Rate == nil || *s.Rate*1e6 < tc.ppm-5 || *s.Rate*1e6 > tc.ppm+5) {
				t.Errorf("rate %v, want %v ppm", s.Rate, tc.ppm)
			}
		})
	}
}
