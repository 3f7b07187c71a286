package sim

import (
	"context"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
)

type idle struct{}

func (idle) AddSample(int, bool, int64, int64)    {}
func (idle) CloseWindow(Window) error             { return nil }
func (idle) MapOf(int) (m clocksync.Map, ok bool) { return }

func quiet(time.Duration) {}

func options(clocks int, edges []Edge) Options {
	return Options{Noise: Hardware, Load: 0.4, Clocks: clocks, Edges: edges, Seed: 1, Scenario: "none", Duration: 22 * time.Second, WarmUp: 20 * time.Second,
		Cadence: 10 * time.Millisecond, PairEvery: 5, PairGap: 5 * time.Microsecond}
}

// ring joins every clock with the next.
func ring(n int) []Edge {
	var edges []Edge
	for i := range n {
		edges = append(edges, Edge{i, (i + 1) % n, 1 + i%5})
	}
	return edges
}

type stamps struct{ sent, received int64 }

// recorder keeps what it is handed in.
type recorder struct {
	idle
	edge    int
	samples [2][]stamps
	windows []Window
}

func (r *recorder) AddSample(edge int, reverse bool, sent, received int64) {
	way := 0
	if reverse {
		way = 1
	}
	if edge == r.edge {
		r.samples[way] = append(r.samples[way], stamps{sent, received})
	}
}

func (r *recorder) CloseWindow(w Window) error {
	w.Silent = append([]bool{}, w.Silent...)
	r.windows = append(r.windows, w)
	return nil
}

// TestCadence: rule 1, and that both packets of a pair go and come back together.
func TestCadence(t *testing.T) {
	o := options(2, []Edge{{0, 1, 1}})
	o.Load = 0
	r := &recorder{}
	if _, err := Run(t.Context(), o, r, quiet); err != nil {
		t.Fatal(err)
	}
	if n := len(r.samples[0]); n < 2628 || n > 2640 || n != len(r.samples[1]) {
		t.Errorf("%d samples forward and %d back in 22 s, want 120 a second", n, len(r.samples[1]))
	}
	twins := [2]int{}
	for way, all := range r.samples {
		for i := 1; i < len(all); i++ {
			gap := all[i].sent - all[i-1].sent
			if gap < 100_000 {
				twins[way]++
				// Two stamps of each end: N(0, 10 ns) mostly, and 5 us at 30 ppm are nothing.
				if d := gap - 5000; d > 1500 || d < -1500 {
					t.Errorf("way %d: a pair with a gap of %d ns", way, gap)
				}
			} else if way == 0 && (gap < 9_990_000 || gap > 10_010_000) {
				t.Errorf("%d ns between two probes", gap)
			}
		}
	}
	if twins[0] < 438 || twins[0] > 440 || twins[1] != twins[0] {
		t.Errorf("%v pairs, want 20 a second", twins)
	}
}

// TestDeterministic: the seed decides everything, and anything else nothing.
func TestDeterministic(t *testing.T) {
	var first *recorder
	for i, seed := range []uint64{1, 1, 2} {
		o := options(6, ring(6))
		o.Seed = seed
		r := &recorder{edge: 3}
		if _, err := Run(t.Context(), o, r, quiet); err != nil {
			t.Fatal(err)
		}
		switch same := i == 0 || reflect.DeepEqual(first, r); {
		case i == 0:
			first = r
		case same != (seed == 1):
			t.Errorf("seed %d: the same stamps as with seed 1: %v", seed, same)
		}
	}
	o := options(2, []Edge{{0, 1, 1}})
	a := newRun(o, idle{})
	o.Seed = 2
	if b := newRun(o, idle{}); a.paths[0].delay == b.paths[0].delay || a.paths[0].next == b.paths[0].next {
		t.Error("the seed does not reach the paths")
	}
}

// knowing is an estimator that knows the truth and has configured errors.
type knowing struct {
	idle
	s     *run
	err   []float64
	state []clocksync.State
	sigma float64
	rate  float64
	maps  []clocksync.Map
}

func (k *knowing) CloseWindow(w Window) error {
	if w.Dead {
		return nil
	}
	k.maps = nil
	for c, now := range w.Now {
		m := clocksync.Map{State: k.state[c], Ref: now, Offset: epoch + int64(w.At) - now + int64(k.err[c]) + 12345, Sigma: k.sigma, Allowance: 50}
		seg := k.s.clocks.segmentAt(c, int64(w.At))
		m.Rate = -seg.rate/(1+seg.rate) + k.rate*float64(c%2)
		k.maps = append(k.maps, m)
	}
	return nil
}

func (k *knowing) MapOf(c int) (clocksync.Map, bool) { return k.maps[c], true }

func judge(t *testing.T, o Options, k *knowing) *Result {
	t.Helper()
	s := newRun(o, k)
	k.s = s
	if err := s.arrangeScenario(); err != nil {
		t.Fatal(err)
	}
	tl := newTally(s)
	w := Window{Now: make([]int64, o.Clocks)}
	for end := window; end <= int64(s.o.Duration); end += window {
		s.clocks.advanceTo(end)
		for c := range w.Now {
			w.Now[c] = epoch + int64(s.clocks.readingAt(c, end))
		}
		w.At, w.Dead = time.Duration(end), s.dead.contains(end)
		tl.judgeUsed(&w)
		k.CloseWindow(w)
		tl.judgeSolved(&w)
	}
	return tl.toResult()
}

// TestErrors: errors are against the mean of the locked clocks, at the end of a
// window and one later; the warm-up counts for coverage only.
func TestErrors(t *testing.T) {
	o := options(4, ring(4))
	o.Duration = 30 * time.Second
	k := &knowing{err: []float64{30, -10, -20, 100}, state: []clocksync.State{clocksync.Locked, clocksync.Locked, clocksync.Locked, clocksync.Holdover}, sigma: 2}
	r := judge(t, o, k)
	within := func(got, want float64) bool { return math.Abs(got-want) < 2 }
	if r.Windows != 10 || !within(r.Error.P50, 20) || !within(r.Error.Max, 30) || r.Bound.P50 != 10 || r.SecondsToLock != nil {
		t.Errorf("result %+v", r)
	}
	// 3 of 4 lie within 5 x 2 + 50 ns.
	if r.Coverage != 0.75 || r.Held == nil || !within(r.Held.Error.P50, 100) || r.Held.Claims != 30 || r.States["holdover"] != 10 || r.FinalStates["locked"] != 3 {
		t.Errorf("result %+v, held %+v", r, r.Held)
	}
	// One window later the rate counts: 400 ns/s too much for two clocks of four.
	k.err, k.rate = []float64{0, 0, 0, 0}, 400e-9
	k.state[3] = clocksync.Locked
	r = judge(t, o, k)
	if r.Error.Max > 2 || r.Coverage != 1 || r.InUse.Error.P50 < 190 || r.InUse.Error.P50 > 215 || r.InUse.Coverage > 0.05 || r.InUse.Claims != 4*29 || *r.SecondsToLock != 1 {
		t.Errorf("result %+v", r)
	}
}

// TestMiddle checks that a clock that is far off changes no other clock's error.
func TestMiddle(t *testing.T) {
	if got := robustMean([]float64{5, -3, 1, 2.5e9, 2, 0}); got != 1 {
		t.Errorf("middle %g, want the mean of the others, 1", got)
	}
	if got := robustMean([]float64{30, -10, -20}); got != 0 {
		t.Errorf("middle %g, want the mean, 0", got)
	}
	if got := robustMean([]float64{7}); got != 7 {
		t.Errorf("middle %g of one", got)
	}
}

// TestDeadCoordinator: the last maps are judged as they age.
func TestDeadCoordinator(t *testing.T) {
	o := options(4, ring(4))
	o.Scenario = "coordinator-dead"
	k := &knowing{err: make([]float64, 4), state: []clocksync.State{1, 1, 1, 1}, sigma: 6}
	r := judge(t, o, k)
	// A step of temperature is worth 1 ppm: 600 us after ten minutes.
	if r.Held == nil || r.Held.Claims != 4*599 || r.Held.Bound.P99 < 500_000 || r.Held.Error.Max < 1000 || r.Held.Coverage < 0.9 {
		t.Errorf("held %+v", r.Held)
	}
}

// TestClocks: rates start within 30 ppm, walk by 0.1 ppm in a minute and go 1 ppm
// away every ten, with a time constant of 30 s.
func TestClocks(t *testing.T) {
	const n, minutes = 400, 5
	c := newClocks(n, 3)
	sum, changes, offsets := 0.0, 0, 0.0
	for i := range n {
		s := c.segmentAt(i, 0)
		if math.Abs(s.rate) > 30e-6 || math.Abs(s.offset) > 5e9 {
			t.Fatalf("clock %d starts with %+v", i, s)
		}
		offsets += math.Abs(s.offset) / n
	}
	if offsets < 2e9 || offsets > 3e9 {
		t.Errorf("offsets are %.3g ns on average", offsets)
	}
	type warming struct {
		at       int64 // true time of its last change of temperature
		from, to float64
	}
	walked, warm := make([]float64, n), make([]warming, n)
	followed := 0
	for at := tick; at <= int64(minutes*time.Minute); at += tick {
		c.advanceTo(at)
		for i := range n {
			s, before := c.segmentAt(i, at), c.segmentAt(i, at-tick)
			if reads := c.readingAt(i, at-1); math.Abs(reads+1+before.rate-c.readingAt(i, at)) > 1e-2 {
				t.Fatalf("clock %d jumps from %f to %f", i, reads, c.readingAt(i, at))
			}
			walked[i] += s.rateWalk
			if d := math.Abs(s.rate + s.pendingRate - before.rate - before.pendingRate - s.rateWalk); d > 1e-12 {
				changes++
				if math.Abs(d-1e-6) > 1e-12 {
					t.Fatalf("temperature changed a rate by %g", d)
				}
				warm[i] = warming{at, s.rate - walked[i], s.rate + s.pendingRate - walked[i]}
			}
			if w := &warm[i]; w.at > 0 && at-w.at == int64(30*time.Second) {
				followed++
				if left := (w.to - (s.rate - walked[i])) / (w.to - w.from); math.Abs(left-1/math.E) > 1e-6 {
					t.Fatalf("clock %d: %.3f of a change is left after 30 s, want 1/e", i, left)
				}
			}
		}
	}
	if followed < n/4 {
		t.Errorf("only %d changes were followed for 30 s", followed)
	}
	for _, w := range walked {
		sum += w * w
	}
	if got := math.Sqrt(sum / n / minutes); math.Abs(got/0.1e-6-1) > 0.2 {
		t.Errorf("rates walk by %.3g in a minute", got)
	}
	if want := n * minutes / 10.; math.Abs(float64(changes)-want) > 5*math.Sqrt(want) {
		t.Errorf("%d changes of temperature, want about %.0f", changes, want)
	}
}

// TestScenarios checks the effect of each scenario, and the clocks that it affects.
func TestScenarios(t *testing.T) {
	link := []EdgeDirection{{1, false}, {2, true}}
	arranged := func(name string) *run {
		o := options(8, ring(8))
		o.Scenario, o.Link, o.Duration = name, link, 40*time.Second
		s := newRun(o, idle{})
		if err := s.arrangeScenario(); err != nil {
			t.Fatal(err)
		}
		return s
	}
	half := int64(20*time.Second) + 2*tick
	moreOf := func(s *run) map[int][2]int64 {
		out := map[int][2]int64{}
		for i := range s.paths {
			if s.paths[i].addedDelay != [2]int64{} {
				out[i] = s.paths[i].addedDelay
			}
		}
		return out
	}
	for name, tt := range map[string]struct {
		more  map[int][2]int64
		event int64
	}{
		"none":                 {map[int][2]int64{}, half},
		"asymmetry":            {map[int][2]int64{1: {500, 0}, 2: {0, 500}}, 0},
		"asymmetry-later":      {map[int][2]int64{1: {500, 0}, 2: {0, 500}}, half},
		"route-change":         {map[int][2]int64{1: {3000, 3000}, 2: {3000, 3000}}, half},
		"route-change-one-way": {map[int][2]int64{1: {3000, 0}, 2: {0, 3000}}, half},
	} {
		if s := arranged(name); s.event != tt.event || !reflect.DeepEqual(moreOf(s), tt.more) {
			t.Errorf("%s: event at %d, more %v", name, s.event, moreOf(s))
		}
	}
	for name, by := range map[string]int64{"delay": 2_000_000, "asymmetry-access": 500} {
		s := arranged(name)
		v := s.victimClock()
		if more := moreOf(s); len(more) != 2 || more[v] != [2]int64{by, 0} || more[(v+7)%8] != [2]int64{0, by} {
			t.Errorf("%s at clock %d: %v", name, v, more)
		}
	}
	at := func(s *run, after time.Duration) float64 {
		v := s.victimClock()
		s.clocks.advanceTo(s.event - tick)
		before := *s.clocks.segmentAt(v, s.event-tick)
		s.clocks.advanceTo(s.event + int64(after))
		x := s.clocks.readingAt(v, s.event+int64(after))
		return x - float64(s.event+int64(after)) - before.offset - before.rate*float64(tick+int64(after))
	}
	for name, want := range map[string]float64{"step": 1e6, "drift": 20e-6 * 1e9, "frozen": -1e9} {
		if got := at(arranged(name), time.Second); math.Abs(got-want) > 50e3*math.Abs(want)/1e9+100 {
			t.Errorf("%s: %.0f ns a second later, want %.0f", name, got, want)
		}
	}
	if s := arranged("temperature"); len(s.clocks.changes) != 8 {
		t.Errorf("temperature: %d changes", len(s.clocks.changes))
	} else {
		for _, c := range s.clocks.changes {
			if math.Abs(c.rate) != 1e-6 || c.at < half || c.at >= half+int64(10*time.Second) || c.at%tick != 0 {
				t.Errorf("temperature: %+v", c)
			}
		}
	}
	if s := arranged("lost-agents"); len(s.silent) != 4 || s.paths[s.silent[0]].down != (span{half, math.MaxInt64}) {
		t.Errorf("lost agents: %v", s.silent)
	}
	if s := arranged("partition"); s.paths[3].down != (span{half, half + 20e9}) || s.paths[7].down != (span{half, half + 20e9}) || s.paths[0].down != (span{}) {
		t.Error("partition: not between the halves")
	}
	if s := arranged("coordinator-dead"); s.dead != (span{half, half + 600e9}) || s.o.Duration != 640*time.Second {
		t.Errorf("dead %v", s.dead)
	}
	if s := arranged("queue-asymmetry"); s.load != [2]float64{0.4, 0} {
		t.Errorf("load %v", s.load)
	}
	if s := arranged("loss"); s.loss != 0.2 {
		t.Errorf("loss %v", s.loss)
	}
}

// TestFaultsShowInStamps: what a scenario does reaches the estimator's samples.
func TestFaultsShowInStamps(t *testing.T) {
	two := func(scenario string) *recorder {
		o := options(2, []Edge{{0, 1, 1}})
		o.Load, o.Scenario, o.Link = 0, scenario, []EdgeDirection{{0, false}}
		r := &recorder{}
		if _, err := Run(t.Context(), o, r, quiet); err != nil {
			t.Fatal(err)
		}
		return r
	}
	none, delay := two("none"), two("route-change-one-way")
	for i := range none.samples[0] {
		a, b := none.samples[0][i], delay.samples[0][i]
		want := int64(0)
		if i > len(none.samples[0])/2+200 {
			want = 3000
		}
		if d := b.received - a.received - want; (i < len(none.samples[0])/2-200 || want > 0) && (d > 100 || d < -100) {
			t.Fatalf("sample %d comes %d ns later, want %d", i, b.received-a.received, want)
		}
	}
	if n, l := len(none.samples[0]), len(two("loss").samples[0]); math.Abs(float64(l)/float64(n)-0.8) > 0.04 {
		t.Errorf("%d of %d samples are left by a loss of 20 %%", l, n)
	}
	lost := two("lost-agents")
	if l := lost.windows[len(lost.windows)-1]; l.Silent[0] == l.Silent[1] || lost.windows[0].Silent[0] || lost.windows[0].Silent[1] {
		t.Error("not one of two agents is gone")
	}
}

// TestOptions: what cannot be simulated is refused by name.
func TestOptions(t *testing.T) {
	for want, set := range map[string]func(*Options){
		"clocks 1":              func(o *Options) { o.Clocks = 1 },
		"load 1":                func(o *Options) { o.Load = 1 },
		"load NaN":              func(o *Options) { o.Load = math.NaN() },
		"duration 20s":          func(o *Options) { o.Duration = 20 * time.Second },
		"duration 30.5s":        func(o *Options) { o.Duration = 30500 * time.Millisecond },
		"cadence 0s":            func(o *Options) { o.Cadence = 0 },
		"one in 0 probes":       func(o *Options) { o.PairEvery = 0 },
		"pair gap 6ms":          func(o *Options) { o.PairGap = 6 * time.Millisecond },
		"edge 1 joins clocks 3": func(o *Options) { o.Edges[1] = Edge{3, 3, 1} },
		"edge 2 has 6 hops":     func(o *Options) { o.Edges[2].Hops = 6 },
		"edge 9 over the link":  func(o *Options) { o.Link = []EdgeDirection{{9, false}} },
		`scenario "flood"`:      func(o *Options) { o.Scenario = "flood" },
		"no way crosses":        func(o *Options) { o.Scenario = "asymmetry" },
	} {
		o := options(4, ring(4))
		set(&o)
		if _, err := Run(t.Context(), o, idle{}, quiet); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, options(4, ring(4)), idle{}, quiet); err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
}
