package judge

import (
	"math"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

func ns(v int64) *int64 { return &v }

// window returns a flow's window with its median moved by shift from 5 us.
func window(edge string, shift int64, sent, lost uint64) *fabric.Observation {
	o := &fabric.Observation{Edge: edge, Start: time.Unix(1000, 0), WindowNS: 2e9, Sent: sent, Lost: lost, Timestamp: "kernel",
		OWD: &fabric.Quantiles{P50: ns(5000 + shift), P99: ns(9000 + shift)}, Baseline: &fabric.Quantiles{P50: ns(5000), P99: ns(9000)}}
	e, _ := fabric.ParseFlow(edge)
	o.Src, o.Dst = e.Endpoints()
	return o
}

const (
	fwd = "h1/eth1>h2/eth1#0"
	rev = "h1/eth1>h2/eth1#0/r"
)

func TestRules(t *testing.T) {
	untrusted := func(o *fabric.Observation) *fabric.Observation { o.ClockSuspect = true; return o }
	mean := func(o *fabric.Observation, shift int64) *fabric.Observation { o.OWD.Mean = ns(5000 + shift); return o }
	bound := func(o *fabric.Observation, b int64) *fabric.Observation { o.ClockErrorNS = ns(b); return o }
	tests := []struct {
		name     string
		f, r     *fabric.Observation
		wantF    Condition
		wantR    Condition
		rt, clck bool // of the forward finding
	}{
		{"nothing moved", window(fwd, 0, 200, 0), window(rev, 300, 200, 0), Healthy, Healthy, false, false},
		{"rule 1: a starved host", func() *fabric.Observation { o := window(fwd, 2e6, 200, 200); o.HostSuspect = true; return o }(), nil, Undecided, Undecided, false, false},
		{"rule 3: forward slow", window(fwd, 2e6, 200, 0), window(rev, 0, 200, 0), Degraded, Healthy, false, false},
		{"rule 3: reverse slow", window(fwd, 0, 200, 0), window(rev, 2e6, 200, 0), Healthy, Degraded, false, false},
		{"rule 3: both slow", window(fwd, 2e6, 200, 0), window(rev, 1e6, 200, 0), Degraded, Degraded, false, false},
		{"rule 3: a clock stepped", window(fwd, 2e6, 200, 0), window(rev, -2e6, 200, 0), Undecided, Undecided, false, true},
		{"rule 4: a clock stepped and the path is slow", window(fwd, 3e6, 200, 0), window(rev, -2e6, 200, 0), Degraded, Degraded, true, false},
		{"rule 4: the shift is within the clocks' bound", bound(window(fwd, 60000, 200, 0), 200000), bound(window(rev, 0, 200, 0), 200000), Degraded, Degraded, true, false},
		{"rule 5: a lossy direction", window(fwd, 0, 200, 20), window(rev, 0, 180, 0), Degraded, Healthy, false, false},
		{"rule 5: two lost are no loss", window(fwd, 0, 200, 2), nil, Healthy, Undecided, false, false},
		{"rule 5: loss of the round trip", func() *fabric.Observation {
			o := window(fwd, 0, 200, 200)
			o.LossScope = fabric.LossRoundTrip
			return o
		}(), nil, Degraded, Undecided, true, false},
		{"rule 6: nothing sent, nothing measured", &fabric.Observation{Edge: fwd, Src: "h1/eth1", Dst: "h2/eth1"}, nil, Undecided, Undecided, false, false},
		{"rule 7: a clock that is not related", untrusted(window(fwd, 2e6, 200, 0)), untrusted(window(rev, -2e6, 200, 0)), Undecided, Undecided, false, true},
		{"rule 7: but the sum moved", untrusted(window(fwd, 5e6, 200, 0)), untrusted(window(rev, -3e6, 200, 0)), Degraded, Degraded, true, false},
		{"rule 7: by less than the histograms resolve", untrusted(window(fwd, 5e9, 200, 0)), untrusted(window(rev, -4_998_000_000, 200, 0)), Undecided, Undecided, false, true},
		{"rule 7: medians torn apart", mean(untrusted(window(fwd, 2e6, 200, 0)), 1e6), mean(untrusted(window(rev, 0, 200, 0)), -1e6), Undecided, Undecided, false, true},
		{"rule 7: but lossy", untrusted(window(fwd, 2e6, 200, 20)), untrusted(window(rev, -2e6, 180, 0)), Degraded, Undecided, false, true},
		{"faster than the baseline", window(fwd, -4000, 200, 0), window(rev, 0, 200, 0), Healthy, Healthy, false, false},
	}
	for _, tt := range tests {
		in := []*fabric.Observation{tt.f}
		if tt.r != nil {
			in = append(in, tt.r)
		}
		got := FindingsOf(in, DefaultParameters())
		if got[0].Condition != tt.wantF {
			t.Errorf("%s: forward %v, want %v", tt.name, got[0].Condition, tt.wantF)
		}
		if tt.r != nil && got[1].Condition != tt.wantR {
			t.Errorf("%s: reverse %v, want %v", tt.name, got[1].Condition, tt.wantR)
		}
		if got[0].RoundTrip != tt.rt || got[0].ClockSuspect != tt.clck {
			t.Errorf("%s: round trip %v, clock %v; want %v, %v", tt.name, got[0].RoundTrip, got[0].ClockSuspect, tt.rt, tt.clck)
		}
	}
}

// TestNoiseSetsTheLimit: the same shift is a symptom on a quiet flow and noise on a loud one.
func TestNoiseSetsTheLimit(t *testing.T) {
	quiet, loud, wandering := window(fwd, 40000, 200, 0), window(fwd, 40000, 200, 0), window(fwd, 40000, 200, 0)
	loud.Baseline.P99 = ns(45000)
	wandering.BaselineMADNS = ns(6000)
	for i, want := range []Condition{Degraded, Healthy, Healthy} {
		o := []*fabric.Observation{quiet, loud, wandering}[i]
		if got := FindingsOf([]*fabric.Observation{o}, DefaultParameters())[0].Condition; got != want {
			t.Errorf("window %d: %v, want %v", i, got, want)
		}
	}
	hw := window(fwd, 3000, 200, 0)
	hw.Baseline.P99 = ns(5100)
	if got := FindingsOf([]*fabric.Observation{hw}, DefaultParameters())[0].Condition; got != Healthy {
		t.Errorf("3 us by kernel stamps: %v", got)
	}
	hw.Timestamp = "hardware"
	if got := FindingsOf([]*fabric.Observation{hw}, DefaultParameters())[0].Condition; got != Degraded {
		t.Errorf("3 us by hardware stamps: %v", got)
	}
}

func TestLossLLR(t *testing.T) {
	if got := LossLLR(0, 200, 1e-3); got != 0 {
		t.Errorf("no loss: %g", got)
	}
	if got := LossLLR(1, 10000, 1e-3); got != 0 {
		t.Errorf("loss below the base: %g", got)
	}
	want := 20*math.Log(0.1/1e-3) + 180*math.Log(0.9/(1-1e-3))
	if got := LossLLR(20, 200, 1e-3); math.Abs(got-want) > 1e-9 {
		t.Errorf("LLR %g, want %g", got, want)
	}
	if got := LossLLR(200, 200, 1e-3); math.IsNaN(got) || math.IsInf(got, 0) || got < 1000 {
		t.Errorf("all lost: %g", got)
	}
}

func TestRule7DistrustTakesTheDelayBack(t *testing.T) {
	for _, tt := range []struct {
		name string
		lost uint64
		want Condition
	}{{"slow", 0, Undecided}, {"slow and lossy", 20, Degraded}} {
		f := FindingsOf([]*fabric.Observation{window(fwd, 3e6, 200, tt.lost), window(rev, -2_900_000, 200, 0)}, DefaultParameters())[0]
		if !f.Delayed || !f.RoundTrip {
			t.Fatalf("%s: %+v", tt.name, f)
		}
		f.DistrustDelay()
		if f.Delayed || f.RoundTrip || !f.ClockSuspect || f.Condition != tt.want || f.Lossy != (tt.lost > 0) {
			t.Errorf("%s: %+v", tt.name, f)
		}
	}
}

// TestRule7MarksKeepTheirDirection: the sum of both directions would spread them over both.
func TestRule7MarksKeepTheirDirection(t *testing.T) {
	for _, marks := range []uint64{0, 80} {
		o := window(fwd, 3e6, 200, 0)
		o.ECN = &marks
		f := FindingsOf([]*fabric.Observation{o, window(rev, 0, 200, 0)}, DefaultParameters())[0]
		f.DistrustDelay()
		if sum := marks == 0; f.RoundTrip != sum || f.Delayed != sum || f.Marked == sum || f.Condition != Degraded {
			t.Errorf("%d marks: %+v", marks, f)
		}
	}
}

// TestRule8JitterIsATailThatMovedAlone: the baseline's tail lies 4 us beyond its
// median; kernel stamps ask for 20 us more.
func TestRule8JitterIsATailThatMovedAlone(t *testing.T) {
	for _, tt := range []struct {
		name          string
		p50, p90, p99 int64
		sprayed, want bool
	}{
		{"as before", 5000, 7000, 9000, false, false},
		{"one in a hundred is late", 5000, 7000, 90000, false, false},
		{"one in ten is late", 5000, 60000, 90000, false, true},
		{"all are late alike", 500000, 502000, 504000, false, false},
		{"no 90th percentile", 5000, 0, 90000, false, true},
		{"no 90th percentile, a little late", 5000, 0, 60000, false, false},
		{"sprayed, a slow path", 5000, 7000, 90000, true, true},
		{"sprayed, a path at the limit", 5000, 7000, 89000, true, false},
		{"sprayed, one in ten is a little late", 5000, 35000, 60000, true, true},
		{"sprayed, all are late alike", 500000, 502000, 504000, true, false},
	} {
		o := window(fwd, 0, 200, 0)
		o.Sprayed = tt.sprayed
		o.OWD = &fabric.Quantiles{P50: ns(tt.p50), P99: ns(tt.p99)}
		if tt.p90 > 0 {
			o.OWD.P90 = ns(tt.p90)
		}
		f := FindingsOf([]*fabric.Observation{o}, DefaultParameters())[0]
		if f.Jittery != tt.want || tt.want && f.Condition != Degraded {
			t.Errorf("%s: jittery %v, condition %v", tt.name, f.Jittery, f.Condition)
		}
	}
}

func TestRule9MarksCountAgainstAHealthyPath(t *testing.T) {
	for marks, want := range map[uint64]bool{0: false, 7: false, 12: false, 40: true} {
		o := window(fwd, 0, 200, 0)
		o.ECN = &marks
		f := FindingsOf([]*fabric.Observation{o}, DefaultParameters())[0]
		if f.Marked != want || (f.Condition == Degraded) != want {
			t.Errorf("%d marks of 200: marked %v, condition %v", marks, f.Marked, f.Condition)
		}
	}
}

// TestExceedsBaseline compares windows with a baseline other than that of the observation.
func TestExceedsBaseline(t *testing.T) {
	window := func(p50, p90, p99 int64) *fabric.Observation {
		bound := int64(1e6) // clocks are taken as exact
		return &fabric.Observation{Timestamp: "kernel", OWD: &fabric.Quantiles{P50: &p50, P90: &p90, P99: &p99}, ClockErrorNS: &bound}
	}
	p50, p99 := int64(10_000), int64(14_000)
	base := &fabric.Quantiles{P50: &p50, P99: &p99}
	for name, tt := range map[string]struct {
		o    *fabric.Observation
		mad  int64
		want bool
	}{
		"as usual":             {window(10_000, 12_000, 14_000), 0, false},
		"at the limit":         {window(20_000, 22_000, 24_000), 0, false},
		"above the limit":      {window(20_001, 22_000, 24_000), 0, true},
		"within the deviation": {window(20_001, 22_000, 24_000), 2000, false},
		"a longer tail":        {window(10_000, 40_000, 60_000), 0, true},
		"no delay":             {&fabric.Observation{}, 0, false},
	} {
		if got := ExceedsBaseline(tt.o, base, tt.mad, DefaultParameters()); got != tt.want || tt.o.Baseline != nil {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestRule10FlowsWithSignals: whatever becomes of probes that carry in-band signals, there is no finding of them.
func TestRule10FlowsWithSignals(t *testing.T) {
	lost, slow, plain := window("h1/eth1>h2/eth1#64", 0, 200, 200), window("h1/eth1>h2/eth1#64/r", 5e6, 200, 0), window(fwd, 0, 200, 0)
	lost.Class, slow.Class = fabric.ClassCSIG, fabric.ClassCSIG
	got := FindingsOf([]*fabric.Observation{lost, plain, slow}, DefaultParameters())
	if len(got) != 1 || got[0].Obs != plain || got[0].Condition != Healthy {
		t.Errorf("%+v", got)
	}
}
