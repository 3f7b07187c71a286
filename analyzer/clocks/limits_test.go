package clocks

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Tests on both sides of limits.

func TestASumMovesBeyondBothScales(t *testing.T) {
	for _, tt := range []struct {
		there, back int64
		want        bool
	}{{20_000, 0, false}, {20_001, 0, true}, {-20_000, 0, false}, {-20_001, 0, true}, {30_000, -10_000, false}} {
		there := judge.Finding{Flow: fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}, Obs: &fabric.Observation{}, HasShift: true, Shift: tt.there, Scale: 12_000}
		back := there
		back.Flow.Reply, back.Shift, back.Scale = true, tt.back, 8000
		if p := pairsOf([]judge.Finding{there, back}); len(p) != 1 || p[0].sumMoved != tt.want {
			t.Errorf("%d and %d ns: moved %v, want %v", tt.there, tt.back, p[0].sumMoved, tt.want)
		}
	}
}

func TestAClockMovesFromHalfANanosecondBeyondTheLimitOn(t *testing.T) {
	for _, tt := range []struct {
		offset float64
		gain   bool
	}{{10_000, false}, {10_000.5, true}, {-10_000.5, true}} {
		var pairs []*pair
		for _, peer := range []string{"h2/eth1", "h3/eth1", "h4/eth1"} {
			pairs = append(pairs, &pair{nics: [2]string{peer, "h1/eth1"}, offset: tt.offset, limit: 10_000})
		}
		if _, gain := evaluateMove("h1/eth1", pairs); (gain > 0) != tt.gain {
			t.Errorf("%v ns: gain %d", tt.offset, gain)
		}
	}
}

// TestRule7ADriftGrowsInEveryWindow: in each by half of an even share at least, of the time from the first window to the last.
func TestRule7ADriftGrowsInEveryWindow(t *testing.T) {
	for _, tt := range []struct {
		offsets [trendWindows]int64
		drifts  bool
	}{
		{[trendWindows]int64{10_000, 20_000, 30_000, 40_000}, true},
		{[trendWindows]int64{10_000, 15_300, 27_600, 40_000}, true},  // .53 of an even share
		{[trendWindows]int64{10_000, 14_700, 27_300, 40_000}, false}, // .47
		{[trendWindows]int64{40_000, 41_000, 42_000, 43_000}, false}, // less than a tenth of the offset
	} {
		w := NewWatch()
		var s Suspect
		for i := range tt.offsets {
			s = Suspect{NIC: "h1/eth1", Offset: &tt.offsets[i]}
			w.classifyTrend(time.Unix(int64(1000+i), 0), &s)
		}
		if s.Drifts != tt.drifts || s.Stepped == tt.drifts {
			t.Errorf("%v: drifts %v, stepped %v, want a drift: %v", tt.offsets, s.Drifts, s.Stepped, tt.drifts)
		}
	}
}

// TestRule1TheVoteOfAFlow: by a clock both directions keep half of the sum, by a path one keeps nothing.
func TestRule1TheVoteOfAFlow(t *testing.T) {
	for _, tt := range []struct{ offset, sum, want float64 }{
		{10_000, 0, 0.5}, {-10_000, 0, 0.5}, {19_000, 0, 1.805}, {30_000, 0, 2}, {10_000, 20_000, -1}, {5000, 20_000, -0.875}, {10_000, -20_000, -1},
		{15_000, 10_000, 0.25}, {0, 40_000, -2}, {0, 0, 0},
	} {
		p := &pair{offset: tt.offset, sum: tt.sum, limit: 10_000}
		if got := p.clockVote(); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("offset %v, sum %v: %v nats, want %v", tt.offset, tt.sum, got, tt.want)
		}
	}
}

// TestWhatAPairIs: its numbers, and what is no pair.
func TestWhatAPairIs(t *testing.T) {
	bound := int64(700)
	there := judge.Finding{Flow: fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}, Obs: &fabric.Observation{Timestamp: "kernel", ClockErrorNS: &bound}, HasShift: true, Shift: 9000, Scale: 1000}
	back := judge.Finding{Flow: fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1", Reply: true}, Obs: &fabric.Observation{Timestamp: "kernel"}, HasShift: true, Shift: -4000, Scale: 2000}
	got := pairsOf([]judge.Finding{{Flow: fabric.Flow{Src: "h3/eth1", Dst: "h2/eth1"}, Obs: &fabric.Observation{}, HasShift: true}, back, there})
	want := pair{nics: [2]string{"h1/eth1", "h2/eth1"}, offset: 6500, limit: 2700, sum: 5000, sumMoved: true, systemClock: true, findings: [2]int{2, 1}}
	if len(got) != 1 || *got[0] != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
	for what, change := range map[string]func(a, b *judge.Finding){
		"a NIC's stamps there": func(a, _ *judge.Finding) { a.Obs.Timestamp = "hardware" },
		"a NIC's stamps back":  func(_, b *judge.Finding) { b.Obs.Timestamp = "hardware" },
		"no delay there":       func(a, _ *judge.Finding) { a.HasShift = false },
		"no delay back":        func(_, b *judge.Finding) { b.HasShift = false },
		"a starved host there": func(a, _ *judge.Finding) { a.HostSuspect = true },
		"a starved host back":  func(_, b *judge.Finding) { b.HostSuspect = true },
	} {
		a, b := there, back
		obsA, obsB := *there.Obs, *back.Obs
		a.Obs, b.Obs = &obsA, &obsB
		change(&a, &b)
		got := pairsOf([]judge.Finding{a, b})
		stamps := what == "a NIC's stamps there" || what == "a NIC's stamps back"
		if stamps && (len(got) != 1 || got[0].systemClock) || !stamps && len(got) != 0 {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

// TestRule2RightAndWrong: a move is named if it makes more than twice as many flows agree as it sets at odds.
func TestRule2RightAndWrong(t *testing.T) {
	for _, tt := range []struct {
		right, wrong, gain int
	}{{2, 0, 2}, {1, 0, 0}, {4, 2, 0}, {5, 2, 3}, {3, 1, 2}, {2, 1, 0}} {
		var pairs []*pair
		add := func(offset float64) {
			pairs = append(pairs, &pair{nics: [2]string{fmt.Sprintf("h%d/eth1", len(pairs)+2), "h1/eth1"}, offset: offset, limit: 10_000, findings: [2]int{len(pairs), 50 + len(pairs)}})
		}
		for range tt.right {
			add(50_000)
		}
		for range tt.wrong {
			add(0)
		}
		s, gain := evaluateMove("h1/eth1", pairs)
		if gain != tt.gain || s.Contrary != 2*tt.wrong || len(s.Explained) != 2*tt.right || s.Peers != tt.right || *s.Offset != 50_000 {
			t.Errorf("%d right, %d wrong: gain %d, %+v", tt.right, tt.wrong, gain, s)
		}
	}
	// A flow agrees again within its limit and a quarter of the move.
	for residual, want := range map[float64]int{22_500: 3, 22_501: 2} {
		pairs := []*pair{}
		for i, offset := range []float64{50_000, 50_000, 50_000 + residual} {
			pairs = append(pairs, &pair{nics: [2]string{"h1/eth1", fmt.Sprintf("h%d/eth1", i+2)}, offset: -offset, limit: 10_000})
		}
		if s, gain := evaluateMove("h1/eth1", pairs); gain != want || *s.Offset != 50_000 {
			t.Errorf("%v ns off: gain %d, want %d", residual, gain, want)
		}
	}
	// The median of an even number is the upper of the two in the middle.
	pairs := []*pair{}
	for i, offset := range []float64{50_000, 52_000} {
		pairs = append(pairs, &pair{nics: [2]string{fmt.Sprintf("h%d/eth1", i+2), "h1/eth1"}, offset: offset, limit: 10_000})
	}
	if s, _ := evaluateMove("h1/eth1", pairs); *s.Offset != 52_000 {
		t.Errorf("offset %d", *s.Offset)
	}
}

// TestRule3TheMoveIsTakenOut: of pairs whose sum did not move; what then agrees is exactly even.
func TestRule3TheMoveIsTakenOut(t *testing.T) {
	var pairs []*pair
	for i, offset := range []float64{50_000, 50_000, 50_000, 72_500, 72_501} {
		pairs = append(pairs, &pair{nics: [2]string{fmt.Sprintf("h%d/eth1", i+2), "h1/eth1"}, offset: offset, limit: 10_000})
	}
	pairs = append(pairs, &pair{nics: [2]string{"h9/eth1", "h1/eth1"}, offset: 50_000, limit: 10_000, sumMoved: true, sum: 90_000},
		&pair{nics: [2]string{"h1/eth1", "h10/eth1"}, offset: -50_000, limit: 10_000}, &pair{nics: [2]string{"h10/eth1", "h9/eth1"}, offset: 3000, limit: 10_000})
	s, ok := extractBest(pairs)
	if !ok || s.NIC != "h1/eth1" || *s.Offset != 50_000 {
		t.Fatalf("%+v", s)
	}
	for i, want := range []float64{0, 0, 0, 0, 22_501, 50_000, 0, 3000} {
		if pairs[i].offset != want {
			t.Errorf("pair %d: %v ns are left, want %v", i, pairs[i].offset, want)
		}
	}
	// Of two with the same gain, the first by name is named.
	pairs = nil
	for _, nics := range [][2]string{{"h3/eth1", "h1/eth1"}, {"h4/eth1", "h1/eth1"}, {"h3/eth1", "h2/eth1"}, {"h4/eth1", "h2/eth1"}} {
		pairs = append(pairs, &pair{nics: nics, offset: 50_000, limit: 10_000})
	}
	if s, ok := extractBest(pairs); !ok || s.NIC != "h1/eth1" {
		t.Errorf("named %q", s.NIC)
	}
}

// TestRule3AtMostSoManyClocks: sixteen are named in a window.
func TestRule3AtMostSoManyClocks(t *testing.T) {
	moved := map[string]int64{}
	for i := range 20 {
		moved[fmt.Sprintf("h%d/eth1", i+1)] = int64(i+1) * 5e6
	}
	if got := FindSuspects(mesh(nodes(60), moved, nil)); len(got) != 16 {
		t.Errorf("%d are named", len(got))
	}
}

// TestRule4ClocksOfANode: alike within a quarter of the offset of the one with the most flows.
func TestRule4ClocksOfANode(t *testing.T) {
	at := func(v int64) *int64 { return &v }
	for other, joined := range map[int64]bool{30_000: true, 29_999: false, 50_000: true, 50_001: false} {
		got := joinByNode([]Suspect{{NIC: "h1/eth2", Offset: &other, Explained: []int{7, 8}, Contrary: 3, Peers: 5}, {NIC: "h1/eth1", Offset: at(40_000), Explained: []int{1, 2, 3}, Contrary: 4, Peers: 2},
			{NIC: "h2/eth1", Offset: at(40_000)}})
		if s := got[0]; s.NIC != "h1/eth1" || joined != (len(got) == 2) || joined && (len(s.Others) != 1 || len(s.Explained) != 5 || s.Contrary != 7 || s.Peers != 5) {
			t.Errorf("%d ns: %+v", other, got)
		}
	}
}

// TestRule8MostOfTheFlows: of four flows three must be unable to show the move, and three look moved.
func TestRule8MostOfTheFlows(t *testing.T) {
	for _, tt := range []struct {
		unable, alike int
		offset        float64
		kernel, want  bool
	}{
		{3, 3, 50_000, true, true}, {2, 3, 50_000, true, false}, {3, 2, 50_000, true, false}, {4, 4, -50_000, true, false}, {4, 4, 50_000, false, false},
		{4, 4, 10_000, true, false}, {4, 4, 10_001, true, true},
	} {
		pairs := []*pair{{nics: [2]string{"h2/eth1", "h1/eth1"}, offset: 50_000, limit: 10_000, systemClock: true}}
		for i := range 4 {
			p := &pair{nics: [2]string{fmt.Sprintf("h%d/eth1", i+2), "h1/eth2"}, limit: 10_000, sumMoved: i < tt.unable, systemClock: tt.kernel}
			if i < tt.alike {
				p.offset = tt.offset
			}
			if i%2 == 1 { // h1 probes it
				p.nics[0], p.nics[1], p.offset = p.nics[1], p.nics[0], -p.offset
			}
			pairs = append(pairs, p)
		}
		offset := int64(50_000)
		s := []Suspect{{NIC: "h1/eth1", Offset: &offset}}
		if addSharedClocks(s, pairs); (len(s[0].Others) == 1) != tt.want {
			t.Errorf("%+v: %v are listed", tt, s[0].Others)
		}
		if s[0].Others = []string{"h1/eth2"}; tt.want {
			if addSharedClocks(s, pairs); len(s[0].Others) != 1 {
				t.Errorf("listed twice: %v", s[0].Others)
			}
		}
	}
}

// TestRule6WhenADelayCame: the sums of half a minute lie further apart than the largest of their limits; a single window in
// between does not count.
func TestRule6WhenADelayCame(t *testing.T) {
	for _, tt := range []struct {
		moved []int64
		want  bool
	}{
		{[]int64{0}, false}, {[]int64{0, 10_000}, false}, {[]int64{0, 10_001}, true}, {[]int64{0, 0, 50_000, 0, 0}, false}, {[]int64{0, 0, 50_000, 50_000, 0, 0}, true},
		{[]int64{50_000, 0, 0, 0}, true}, {[]int64{0, 0, 0, -50_000}, true}, {[]int64{0, -50_000, 0}, false},
	} {
		s := &sums{moved: tt.moved}
		for range tt.moved {
			s.scales = append(s.scales, 5000)
		}
		if s.scales[0] = 10_000; s.delayMoved() != tt.want {
			t.Errorf("%v: %v, want %v", tt.moved, !tt.want, tt.want)
		}
	}
}

// TestRule6SumsAreKeptForThirtyWindows: of a NIC's probes, both ends, the median.
func TestRule6SumsAreKeptForThirtyWindows(t *testing.T) {
	probe := func(src, dst string, sum int64) judge.Finding {
		return judge.Finding{Flow: fabric.Flow{Src: src, Dst: dst}, Obs: &fabric.Observation{}, HasSum: true, Sum: sum, SumScale: sum / 2}
	}
	w := NewWatch()
	starved, reply, unknown := probe("h1/eth1", "h2/eth1", 9e9), probe("h1/eth1", "h2/eth1", 9e9), probe("h1/eth1", "h2/eth1", 9e9)
	starved.HostSuspect, reply.Flow.Reply, unknown.HasSum = true, true, false
	for i := range sumWindows + 5 {
		w.windowCount++
		w.recordSums([]judge.Finding{probe("h1/eth1", "h2/eth1", int64(100+i)), probe("h1/eth1", "h3/eth1", int64(300+i)), probe("h4/eth1", "h1/eth1", 10), starved, reply, unknown})
	}
	s := w.sums["h1/eth1"]
	if len(s.moved) != 30 || len(s.scales) != 30 || s.moved[0] != 105 || s.moved[29] != 134 || s.scales[29] != 67 {
		t.Errorf("%+v", s)
	}
	if w.sums["h3/eth1"].moved[29] != 334 || w.sums["h4/eth1"].moved[0] != 10 {
		t.Error("an end lacks its sums")
	}
	for i := range sumWindows + 1 {
		if w.sums["h2/eth1"] == nil {
			t.Fatalf("forgotten after %d windows", i)
		}
		w.windowCount++
		w.recordSums(nil)
	}
	if len(w.sums) != 0 {
		t.Errorf("%d NICs after %d windows without flows", len(w.sums), sumWindows+1)
	}
}

// TestRule5AnUnexpectedOffset: what the clock gains by itself is expected.
func TestRule5AnUnexpectedOffset(t *testing.T) {
	at := time.Unix(100, 0)
	was := clockReading{Series{Offset: num(0.5), Drift: num(10e-6)}, at}
	is := clockReading{Series{Offset: num(0.50105)}, at.Add(5 * time.Second)}
	if got := was.unexpectedOffset(is); got == nil || *got < 999_999 || *got > 1_000_001 {
		t.Errorf("%v, want 1 ms", got)
	}
	was.Drift = nil
	if got := was.unexpectedOffset(is); got == nil || *got < 1_049_999 || *got > 1_050_001 {
		t.Errorf("%v, want 1.05 ms", got)
	}
	if is.Offset = nil; was.unexpectedOffset(is) != nil {
		t.Error("an offset of a clock that has none")
	}
	if was.Offset = nil; was.unexpectedOffset(clockReading{Series{Offset: num(1)}, at}) != nil {
		t.Error("an offset against none")
	}
}

// TestRule7LimitsOfADrift: its rate is that from the first to the last of four windows; the share of .5 is exact.
func TestRule7LimitsOfADrift(t *testing.T) {
	for _, tt := range []struct {
		offsets []int64
		drifts  bool
		rate    float64
	}{
		{[]int64{0, 5000, 17_500, 30_000}, false, 0}, {[]int64{0, 5001, 17_500, 30_000}, true, 10e-6}, {[]int64{0, 10_000, 20_000, 30_000, 44_000}, true, 34e-6 / 3},
		{[]int64{27_000, 28_000, 29_000, 30_000}, false, 0}, {[]int64{26_999, 28_000, 29_000, 30_000}, true, 3.001e-6 / 3}, {[]int64{-27_000, -28_000, -29_000, -30_000}, false, 0},
	} {
		w := NewWatch()
		var s Suspect
		for i := range tt.offsets {
			s = Suspect{NIC: "h1/eth1", Offset: &tt.offsets[i]}
			w.classifyTrend(time.Unix(int64(1000+i), 0), &s)
			if i < trendWindows-1 && (s.Drifts || s.Stepped) {
				t.Errorf("%v: decided after %d windows", tt.offsets, i+1)
			}
		}
		if s.Drifts != tt.drifts || s.Stepped == tt.drifts || tt.drifts && math.Abs(*s.Rate-tt.rate) > 1e-12 || !tt.drifts && s.Rate != nil {
			t.Errorf("%v: %+v", tt.offsets, s)
		}
	}
}

// TestRule5AnEventIsMerged: into the suspect of its node, which keeps what it knows.
func TestRule5AnEventIsMerged(t *testing.T) {
	known := clockReading{Series{Offset: num(0), Drift: num(10e-6)}, time.Unix(100, 0)}
	is := clockReading{Series{Offset: num(1e-3), Drift: num(30e-6)}, time.Unix(100, 0)}
	offset, rate := int64(77), 5.0
	step := &countedEvent{lastKnown: known}
	if got := step.mergeInto([]Suspect{{NIC: "h2/eth1"}, {NIC: "h1/eth2", Offset: &offset}}, "h1/eth1", is); len(got) != 2 || !got[1].Stepped || !got[1].Counted || *got[1].Offset != 77 ||
		len(got[1].Others) != 1 || got[1].Rate != nil || got[0].Counted {
		t.Errorf("%+v", got)
	}
	if got := step.mergeInto(nil, "h1/eth1", is); *got[0].Offset != 1e6 || len(got[0].Others) != 0 || got[0].Rate != nil {
		t.Errorf("%+v", got)
	}
	drift := &countedEvent{isDrift: true, lastKnown: known}
	if got := drift.mergeInto(nil, "h1/eth1", is); got[0].Offset != nil || math.Abs(*got[0].Rate-20e-6) > 1e-12 || got[0].Stepped {
		t.Errorf("%+v", got)
	}
	if got := drift.mergeInto([]Suspect{{NIC: "h1/eth1", Others: []string{"h1/eth2"}, Rate: &rate}}, "h1/eth2", is); *got[0].Rate != 5 || len(got[0].Others) != 1 {
		t.Errorf("%+v", got)
	}
	if got := drift.mergeInto(nil, "h1/eth1", clockReading{}); got[0].Rate != nil {
		t.Errorf("a rate of a clock that has none: %+v", got)
	}
}
