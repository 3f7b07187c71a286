package baseline

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// always says that the cycle before queried the flow.
func always(fabric.Flow) bool { return true }

// TestHardLossIsTakenBack: hard loss is remembered when the loss has gone, and
// forgotten when the host turns out to be starved.
func TestHardLossIsTakenBack(t *testing.T) {
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	lossy := judge.Finding{Flow: e, Obs: &fabric.Observation{Sent: 100, Lost: 100}, Condition: judge.Degraded, Lossy: true, Hard: true}
	clean := judge.Finding{Flow: e, Obs: &fabric.Observation{Sent: 100}, Condition: judge.Healthy}
	starved := judge.Finding{Flow: e, Obs: &fabric.Observation{Sent: 100, HostSuspect: true}, HostSuspect: true}
	for name, tt := range map[string]struct {
		last judge.Finding
		want judge.Condition
	}{"routed around": {clean, judge.Degraded}, "starved": {starved, judge.Undecided}} {
		b, cycle := NewBook(), 0
		var out []judge.Finding
		for _, f := range []judge.Finding{lossy, lossy, tt.last} {
			cycle++
			out, _ = b.ConfirmFindings([]judge.Finding{f}, cycle, always)
		}
		if len(out) != 1 || out[0].Condition != tt.want {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

// TestLastingWindowsOfChosenPaths: two windows confirm each other on a chosen path, if the last one shows that the condition lasts.
func TestLastingWindowsOfChosenPaths(t *testing.T) {
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	for name, tt := range map[string]struct {
		chosen bool
		lasts  []bool
		want   judge.Condition
	}{
		"the last one lasts":      {true, []bool{false, true}, judge.Degraded},
		"the first one lasted":    {true, []bool{true, false}, judge.Undecided},
		"one":                     {true, []bool{true}, judge.Undecided},
		"switches choose":         {false, []bool{true, true}, judge.Undecided},
		"switches choose, longer": {false, []bool{false, false, false}, judge.Degraded},
	} {
		b := NewBook()
		var out []judge.Finding
		for i, lasts := range tt.lasts {
			f := judge.Finding{Flow: e, Obs: &fabric.Observation{Chosen: tt.chosen}, Condition: judge.Degraded, Delayed: true, Lasting: lasts}
			out, _ = b.ConfirmFindings([]judge.Finding{f}, i+1, always)
		}
		if out[0].Condition != tt.want {
			t.Errorf("%s: condition %v, want %v", name, out[0].Condition, tt.want)
		}
	}
}

// TestHardLossThatBeganInASecond: the second in whose course the answers ended is the first of
// two; what is missing in it is no loss yet, but no health either.
func TestHardLossThatBeganInASecond(t *testing.T) {
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	window := func(lost, lately uint64) judge.Finding {
		f := judge.Finding{Flow: e, Obs: &fabric.Observation{Sent: 200, Lost: lost, LastSecond: &fabric.Count{Sent: 100, Lost: lately}}, Condition: judge.Healthy}
		if lost > 0 {
			f.Condition, f.Lossy = judge.Degraded, true
		}
		return f
	}
	healthy, undecided, degraded := judge.Healthy, judge.Undecided, judge.Degraded
	for name, tt := range map[string]struct {
		windows []judge.Finding
		want    []judge.Condition
	}{
		"at once":            {[]judge.Finding{window(0, 0), window(0, 40), window(200, 100)}, []judge.Condition{healthy, undecided, degraded}},
		"hardly any missing": {[]judge.Finding{window(0, 0), window(0, 4), window(200, 100)}, []judge.Condition{healthy, healthy, undecided}},
		"they came back":     {[]judge.Finding{window(0, 0), window(0, 40), window(0, 0)}, []judge.Condition{healthy, undecided, healthy}},
		"a burst":            {[]judge.Finding{window(0, 0), window(0, 10), window(20, 0)}, []judge.Condition{healthy, undecided, undecided}},
	} {
		b, cycle := NewBook(), 0
		for i, f := range tt.windows {
			cycle++
			if out, _ := b.ConfirmFindings([]judge.Finding{f}, cycle, always); out[0].Condition != tt.want[i] {
				t.Errorf("%s, window %d: condition %v, want %v", name, i, out[0].Condition, tt.want[i])
			}
		}
	}
}

// TestHardLossKeepsItsPath: a flow that goes on losing everything while its path
// is being traced anew stands for the path it had.
func TestHardLossKeepsItsPath(t *testing.T) {
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	was := fabric.Path{{Switch: "leaf1", In: "dn1", Out: "up1"}}
	with := func(p fabric.Path) judge.Finding {
		return judge.Finding{Flow: e, Obs: &fabric.Observation{Sent: 100, Lost: 100, Path: p}, Condition: judge.Degraded, Lossy: true, Hard: true}
	}
	b, cycle := NewBook(), 0
	for i, p := range []fabric.Path{was, was, nil, nil} {
		cycle++
		out, _ := b.ConfirmFindings([]judge.Finding{with(p)}, cycle, always)
		if i > 0 && (len(out) != 1 || out[0].Condition != judge.Degraded || out[0].Obs.Path.CanonicalKey() != was.CanonicalKey()) {
			t.Errorf("window %d: %+v", i, out)
		}
	}
}

// TestVagueClocksTeachNothing checks that a delay measured with inexact clocks does not become normal.
func TestVagueClocksTeachNothing(t *testing.T) {
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	for bound, want := range map[int64]int{maxLearnBound / 2: 1, maxLearnBound + 1: 0} {
		b := NewBook()
		windows := slices.Repeat([]int64{4000}, LearnWindows)
		b.SeedFlow(e, windows, windows)
		p50 := int64(5000)
		f := judge.Finding{Flow: e, Obs: &fabric.Observation{Edge: e.String(), OWD: &fabric.Quantiles{P50: &p50}, ClockErrorNS: &bound}, Condition: judge.Healthy}
		b.LearnWindows([]judge.Finding{f}, Learning{Cycle: 1})
		if got := len(b.records[e].p50) - LearnWindows; got != want {
			t.Errorf("with a bound of %d ns %d windows were learnt from, want %d", bound, got, want)
		}
	}
}

// TestRule9WindowsOfCyclesThatAsked checks that two bad windows and one a round later are not three.
func TestRule9WindowsOfCyclesThatAsked(t *testing.T) {
	b, cycle := NewBook(), 0
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	bad := judge.Finding{Flow: e, Obs: &fabric.Observation{}, Condition: judge.Degraded}
	before := true
	for i, asked := range []bool{true, true, false, true, true, true} {
		cycle++
		was := before
		if before = asked; !asked {
			continue
		}
		out, _ := b.ConfirmFindings([]judge.Finding{bad}, cycle, func(fabric.Flow) bool { return was })
		if want := map[bool]judge.Condition{true: judge.Degraded, false: judge.Undecided}[i == 5]; out[0].Condition != want {
			t.Errorf("cycle %d: condition %v", i, out[0].Condition)
		}
	}
}

// TestCountBaselines checks that the number of flows with a baseline is that of the records that have one, whatever becomes of
// them.
func TestCountBaselines(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	b := NewBook()
	flow := func() fabric.Flow { return fabric.Flow{Src: "h1/eth1", Dst: fmt.Sprintf("h%d/eth1", 2+rng.IntN(12))} }
	changed := map[string]int{}
	for cycle := 1; cycle < 3000; cycle++ {
		e, before := flow(), b.CountBaselines(nil)
		var did string
		switch rng.IntN(8) {
		case 0:
			did = "seeded"
			b.SeedFlow(e, make([]int64, rng.IntN(2*LearnWindows)), nil)
		case 1:
			did = "adopted"
			v := int64(4000)
			b.AdoptBaseline(e, &fabric.Quantiles{P50: &v}, 100)
		case 2:
			did = "forgotten"
			b.ForgetFlow(e)
		case 3:
			did = "unseen"
			if rng.IntN(20) == 0 {
				b.ForgetUnseen(cycle + forgetAfter)
			}
		case 4, 5:
			did = "rerouted"
			p := fabric.Path{{Switch: "leaf1", In: "dn1", Out: fmt.Sprintf("up%d", rng.IntN(4))}, {Switch: fmt.Sprintf("spine%d", rng.IntN(4)), In: "dn1", Out: "dn2"}, {Switch: "leaf2", In: "up1", Out: "dn1"}}
			b.FollowRoute(e, p[:1+2*rng.IntN(2)])
		default:
			did = "learnt"
			v := int64(4000 + rng.IntN(100))
			o := &fabric.Observation{Sent: 200, OWD: &fabric.Quantiles{P50: &v, P99: &v}}
			for range LearnWindows {
				b.LearnWindows([]judge.Finding{{Flow: e, Obs: o, Condition: judge.Healthy}}, Learning{Cycle: cycle})
			}
		}
		want := 0
		for _, r := range b.records {
			if r.baseline != nil {
				want++
			}
		}
		if got := b.CountBaselines(nil); got != want {
			t.Fatalf("%d: %s: %d flows have a baseline, want %d", cycle, did, got, want)
		}
		if before != want {
			changed[did]++
		}
	}
	if len(changed) < 6 {
		t.Errorf("only these changed the number: %v", changed)
	}
}
