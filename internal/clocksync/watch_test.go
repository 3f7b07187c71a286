package clocksync

import (
	"math/rand/v2"
	"testing"
)

// watched is an edge of 20 us in each direction, with a watch of its exchanges.
type watched struct {
	rng   *rand.Rand
	kind  Kind
	watch Watch
	extra [2]int64 // further delay of probes and of replies, beyond the usual
	noise float64  // ns, mean of the exponential noise in each direction
	far   int64    // ns by which the far clock is ahead of the relation
}

const watchedBound = 700

func newWatched(k Kind) *watched {
	return &watched{rng: rand.New(rand.NewPCG(3, 1)), kind: k, noise: 500}
}

// until passes exchanges and returns the number after which a move was seen, or 0 if it was not.
func (w *watched) until(n int) int {
	for i := range n {
		w.watch.AddProbe(20_000 + w.extra[0] + int64(w.noise*w.rng.ExpFloat64()) + w.far)
		w.watch.AddReply(w.kind, 20_000+w.extra[1]+int64(w.noise*w.rng.ExpFloat64())-w.far, watchedBound)
		if _, moved, ok := w.watch.MovedBy(); moved && ok {
			return i + 1
		}
	}
	return 0
}

func (w *watched) never(t *testing.T, what string, n int) {
	t.Helper()
	if at := w.until(n); at != 0 {
		t.Errorf("%s: taken for a clock that moved after %d exchanges", what, at)
	}
}

func TestWatchRule1And2AClockThatMovesIsSeen(t *testing.T) {
	for _, by := range []int64{15_000, -100_000, 1e6, -5e9} {
		w := newWatched(Kernel)
		w.never(t, "quiet", 1000)
		w.far = by
		if n := w.until(50); n < 8 || n > 10 {
			t.Errorf("a step of %d ns was seen after %d exchanges", by, n)
		}
		if got, _, _ := w.watch.MovedBy(); got < float64(by)-3000 || got > float64(by)+3000 {
			t.Errorf("a step of %d ns was taken for %.0f", by, got)
		}
	}
	// An occasional late stamp does not hide the move.
	w := newWatched(Kernel)
	w.never(t, "quiet", 1000)
	w.far = 1e5
	w.until(5)
	w.extra[1] = 400_000
	w.until(1)
	w.extra[1] = 0
	if n := w.until(50); n == 0 || n > 5 {
		t.Errorf("a step among late stamps was seen after %d exchanges", n)
	}
}

func TestWatchRule2InARowAndAlike(t *testing.T) {
	for name, by := range map[string]func(i int) int64{
		"now and then": func(i int) int64 { return int64(min(i%8, 1)) * 100_000 },
		"to and fro":   func(i int) int64 { return int64(i%2*2-1) * 100_000 },
		"by turns":     func(i int) int64 { return 30_000 << (i % 3) },
	} {
		w := newWatched(Kernel)
		w.never(t, "quiet", 1000)
		for i := range 1000 {
			w.far = by(i)
			w.never(t, name, 1)
		}
	}
}

func TestWatchRule1PathsAreNoClocks(t *testing.T) {
	for _, extra := range [][2]int64{{2e6, 0}, {0, 2e6}, {50_000, 50_000}, {2e6, 1e6}, {-15_000, 0}} {
		w := newWatched(Kernel)
		w.never(t, "quiet", 300)
		w.extra = extra
		w.never(t, "a path that changed", 2000)
		w.extra = [2]int64{}
		w.never(t, "a path that changed back", 2000)
	}
	w := newWatched(Kernel)
	for _, noise := range []float64{500, 100_000, 500, 2e6, 10_000} {
		w.noise = noise
		w.never(t, "a busy host", 20_000)
	}
}

func TestWatchRule3WhatTheBoundExplains(t *testing.T) {
	for _, k := range []Kind{Kernel, Hardware} {
		w := newWatched(k)
		w.noise = 20
		w.never(t, "quiet", 300)
		w.far = int64(k.minJump()) + watchedBound - 200
		w.never(t, "less than the bound and what counts", 1000)
	}
	w := newWatched(Hardware)
	w.noise = 20
	w.never(t, "quiet", 300)
	w.far = int64(Hardware.minJump()) + watchedBound + 200
	if w.until(20) == 0 {
		t.Error("more than the bound and what counts was not seen")
	}
}

// A delay in one direction comes and goes, for long enough to become usual.
func TestWatchRule4DelaysBecomeUsual(t *testing.T) {
	w := newWatched(Kernel)
	w.never(t, "quiet", 300)
	for range 20 {
		w.extra[forward] = 2e6 - w.extra[forward]
		w.never(t, "a delay that comes and goes", 1+w.rng.IntN(1500))
	}
	w.never(t, "quiet", 3000)
	w.far = 50_000
	if w.until(20) == 0 {
		t.Error("a step thereafter was not seen")
	}
}

func TestWatchRule5ARelationThatContradictsIsTakenAtItsWord(t *testing.T) {
	w := newWatched(Kernel)
	w.far = 40_000 // as large as the relation's error at the beginning
	w.never(t, "at first", watchLearn+100)
	w.far = 0
	w.watch.ChangeRelation(Kernel, 40_000, watchedBound)
	if _, _, ok := w.watch.MovedBy(); ok {
		t.Error("reports a move at once")
	}
	w.never(t, "a better relation", 2000)
	// A relation like the one before changes nothing.
	w.watch.ChangeRelation(Kernel, 300, watchedBound)
	w.far = 40_000
	if n := w.until(20); n == 0 || n > watchRun+1 {
		t.Errorf("a step after a relation was renewed was seen after %d exchanges", n)
	}
	w.watch.ChangeRelation(Kernel, 0, watchedBound)
	if _, moved, _ := w.watch.MovedBy(); moved {
		t.Error("a new relation is doubted for what was seen of the old one")
	}
}

// TestWatchLimits adds exchanges on both sides of the limits of rules 1 and 2.
func TestWatchLimits(t *testing.T) {
	learnt := func() *Watch {
		w := &Watch{}
		for range watchLearn {
			w.AddProbe(20_000)
			w.AddReply(Kernel, 20_000, watchedBound)
		}
		return w
	}
	add := func(w *Watch, there, back int64) int {
		w.AddProbe(20_000 + there)
		w.AddReply(Kernel, 20_000+back, watchedBound)
		return w.run
	}
	if run := add(learnt(), 50_000, -30_000); run != 1 {
		t.Errorf("a sum of half of what the directions are apart: %d exchanges are unusual, want 1", run)
	}
	if run := add(learnt(), 50_000, -29_990); run != 0 {
		t.Errorf("a larger sum: %d exchanges are unusual, want none", run)
	}
	limit := int64(Kernel.minJump()) + watchedBound
	if run := add(learnt(), limit, -limit); run != 0 {
		t.Errorf("directions apart by the limit: %d exchanges are unusual, want none", run)
	}
	if run := add(learnt(), limit+1, -limit-1); run != 1 {
		t.Errorf("directions apart by more: %d exchanges are unusual, want 1", run)
	}
	for _, tt := range []struct {
		second int64
		want   int
	}{{80_000, 2}, {80_002, 1}, {27_000, 2}, {26_000, 1}} { // less than half as much again, or two thirds
		w := learnt()
		if add(w, 40_000, -40_000); add(w, tt.second, -tt.second) != tt.want {
			t.Errorf("apart by 40 us and then by %d ns: a run of %d, want %d", tt.second, w.run, tt.want)
		}
	}
}

func TestWatchAllocatesNothing(t *testing.T) {
	w := newWatched(Kernel)
	if n := testing.AllocsPerRun(100, func() { w.until(10) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
