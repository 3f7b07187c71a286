package clocksync

import (
	"math"
	"testing"
	"time"
)

// twoClocks returns the maps of h1, the frame itself, and h2, 5 s and 30 ppm off.
func twoClocks(state State) *Update {
	return &Update{Frame: 7, Relative: true, Maps: []ClockMap{
		{Clock: "h1", Map: Map{State: state, Ref: 1e18, Sigma: 20, RateSigma: 1e-9, Allowance: 60, Component: 1}},
		{Clock: "h2", Map: Map{State: state, Ref: 1e18 + 5e9, Offset: -5e9, Rate: -30e-6, Sigma: 20, RateSigma: 1e-9, Allowance: 60, Component: 1}},
	}}
}

var edge12 = PairID{Src: "h1/eth1", Dst: "h2/eth1"}

// estimateAt returns a pair's estimate of the same clocks, with an offset 300 ns from that of the maps.
func estimateAt(ref int64, sigma float64) Estimate {
	return Estimate{Quality: Fine, Ref: ref, Offset: 5e9 + 300 + int64(30e-6*float64(ref-1e18)), Rate: 30e-6, Sigma: sigma, RateSigma: 2e-9}
}

func TestFollowerRule1FreshMapsRelate(t *testing.T) {
	f := NewFollower()
	f.ApplyUpdate(twoClocks(Locked), 0, true)
	f.AddEstimate(edge12, estimateAt(1e18, 1), 0)
	for _, after := range []int64{0, 1e9, 2e9} {
		now := int64(1e18) + after
		r, ok := f.RelationFor(edge12, now, time.Duration(after))
		// 30 ppm slow against h2: what h2 shows when h1 shows now.
		want := int64(5e9) + int64(math.Round(float64(after)*30e-6/(1-30e-6)))
		if !ok || r.OffsetAt(now)-want > 1 || want-r.OffsetAt(now) > 1 {
			t.Errorf("after %d ns: h2 is %d ns ahead (%v), want %d", after, r.OffsetAt(now), ok, want)
		}
		if math.Abs(r.Rate-30e-6/(1-30e-6)) > 1e-12 {
			t.Errorf("rate %g, want that of the maps, %g", r.Rate, 30e-6/(1-30e-6))
		}
		if r.Bound < 2*BoundSigmas*20+120 || r.Bound > 2*BoundSigmas*90+120 {
			t.Errorf("after %d ns: bound %d ns, want both clocks' and both allowances", after, r.Bound)
		}
	}
	anew := twoClocks(Converging)
	anew.Frame++
	f.ApplyUpdate(anew, 0, true)
	if r, ok := f.RelationFor(edge12, 1e18, 0); !ok || r.OffsetAt(1e18) != 5e9 {
		t.Errorf("a restarted coordinator: %+v %v, want the maps held", r, ok)
	}
}

func TestFollowerRule2AgedMapsGiveWayToThePair(t *testing.T) {
	f := NewFollower()
	f.ApplyUpdate(twoClocks(Locked), 0, true)
	now := int64(1e18) + 60e9
	f.AddEstimate(edge12, estimateAt(now, 100), time.Minute)
	r, ok := f.RelationFor(edge12, now, time.Minute)
	if want := 5e9 + 300 + 1800e3; !ok || math.Abs(float64(r.OffsetAt(now))-want) > 2 {
		t.Errorf("after a minute the edge is placed by %d (%v), want the pair's %v", r.OffsetAt(now), ok, want)
	}
	// A pair with more uncertainty than the aged maps does not decide.
	f.AddEstimate(edge12, estimateAt(now, 1e5), time.Minute)
	if r, _ = f.RelationFor(edge12, now, time.Minute); math.Abs(float64(r.OffsetAt(now))-(5e9+1800e3)) > 100 {
		t.Errorf("placed by %d, want the maps", r.OffsetAt(now))
	}
}

// A pair that only predicts becomes more and more uncertain, independent of its own sigma.
func TestFollowerRule2PredictionsAge(t *testing.T) {
	f := NewFollower()
	for s := range 20 {
		e := estimateAt(int64(1e18)+int64(s)*1e9, 10)
		if s > 0 {
			e.Quality = Held
		}
		mono := time.Duration(s) * time.Second
		f.AddEstimate(edge12, e, mono)
		r, ok := f.RelationFor(edge12, e.Ref, mono)
		if least := int64(s * 1000); !ok || mono > FreshFor && r.Bound < least || r.Bound > 1100*int64(s)+200 {
			t.Errorf("%v after it was measured: bound %d (%v), want %d for 1 ppm, and little more", mono, r.Bound, ok, least)
		}
	}
}

func TestFollowerRule3SilenceIsHoldoverThenLost(t *testing.T) {
	f := NewFollower()
	if s := f.StatusOf("h1", 1e18, 0); s.State != Converging || s.Known {
		t.Errorf("before the first word: %+v", s)
	}
	f.ApplyUpdate(twoClocks(Locked), 0, true)
	var before int64
	for _, c := range []struct {
		after time.Duration
		want  State
	}{{0, Locked}, {2 * time.Second, Locked}, {4 * time.Second, Holdover}, {10 * time.Minute, Holdover}, {2 * time.Hour, Lost}} {
		s := f.StatusOf("h1", 1e18+int64(c.after), c.after)
		if s.State != c.want || s.Bound < before {
			t.Errorf("after %v: %v, bound %d (before: %d), want %v and a bound that grows", c.after, s.State, s.Bound, before, c.want)
		}
		before = s.Bound
	}
	if s := f.StatusOf("h2", 1e18+5e9, 0); s.Offset != 5e9 || math.Abs(s.Drift-30e-6/(1-30e-6)) > 1e-12 {
		t.Errorf("h2 against the frame: %+v, want 5 s ahead and 30 ppm fast", s)
	}
}

// Rule 3, for pairs without a coordinator.
func TestFollowerRule3PairsRelateUntilLostBound(t *testing.T) {
	sigmas := []struct {
		sigma float64
		want  bool
	}{{0.4e6, false}, {0.1e6, true}, {0.4e6, true}, {3e6, false}, {0.4e6, false}, {0.1e6, true}}
	f := NewFollower()
	for i, c := range sigmas {
		mono := time.Duration(i) * time.Second
		e := estimateAt(int64(1e18)+int64(mono), 10)
		e.Sigma = c.sigma
		f.AddEstimate(edge12, e, mono)
		r, ok := f.RelationFor(edge12, e.Ref, mono)
		if ok != c.want || math.Abs(float64(r.Bound)-BoundSigmas*c.sigma) > 1e5 {
			t.Errorf("%d: deviation %v: bound %d, related: %v, want %v", i, c.sigma, r.Bound, ok, c.want)
		}
	}
}

func TestFollowerRule4AnotherFrameSharesNothing(t *testing.T) {
	f := NewFollower()
	f.ApplyUpdate(twoClocks(Locked), 0, true)
	u := twoClocks(Locked)
	u.Frame, u.Maps = 8, u.Maps[:1]
	f.ApplyUpdate(u, FreshFor, true)
	if _, ok := f.RelationFor(edge12, 1e18, FreshFor); ok {
		t.Error("a clock of an old frame is related to one of the new")
	}
	u = twoClocks(Locked)
	u.Frame, u.Maps[1].Component = 8, 2
	f.ApplyUpdate(u, FreshFor, true)
	if _, ok := f.RelationFor(edge12, 1e18, FreshFor); ok {
		t.Error("clocks of two components are related")
	}
}

func TestFollowerRule5NothingKnownIsNoRelation(t *testing.T) {
	f := NewFollower()
	if _, ok := f.RelationFor(edge12, 1e18, 0); ok {
		t.Error("related by nothing")
	}
	f.AddEstimate(edge12, estimateAt(1e18, 100), 0)
	if _, ok := f.RelationFor(edge12, 1e18, 0); !ok {
		t.Error("a pair alone must do")
	}
	if _, ok := f.RelationFor(edge12, 1e18+31e9, 31*time.Second); ok {
		t.Error("a pair without an estimate for half a minute still places samples")
	}
	f.AddEstimate(edge12, Estimate{}, 0)
	if _, ok := f.RelationFor(edge12, 1e18, 0); ok {
		t.Error("a pair that knows nothing any more still places samples")
	}
	f.ApplyUpdate(twoClocks(Lost), 0, true)
	if _, ok := f.RelationFor(edge12, 1e18, 0); ok {
		t.Error("lost clocks are related")
	}
}

// witnessesOf returns the witnesses of an agent's edges to h2, h3, ...: how far each far clock moved; 0
// means that it did not.
func witnessesOf(by ...float64) (out []Witness) {
	for i, b := range by {
		out = append(out, Witness{ID: PairID{Src: "h1/eth1", Dst: "h" + string(rune('2'+i)) + "/eth1"}, By: b, Moved: b != 0})
	}
	return out
}

func TestFollowerRule6WhoseClockMoved(t *testing.T) {
	for _, c := range []struct {
		saw           []Witness
		own, h2, some bool
	}{
		{witnessesOf(0, 0, 0), false, false, false},
		{witnessesOf(1e6, 0, 0), false, true, true},
		{witnessesOf(0, 1e6, 0), false, false, true},
		{witnessesOf(1e6, 1e6, 0), true, true, true},
		{witnessesOf(1e6, -1e6, 0), false, true, true},   // not the same
		{witnessesOf(0, -1e6, -1e6), true, true, true},   // the node's own: h2's edge agrees with it
		{witnessesOf(1e6), false, true, true},            // with one peer it is unknown which moved
		{witnessesOf(1e6, 1e6, 0, 0), false, true, true}, // half is not most
		{append(witnessesOf(1e6), Witness{ID: PairID{Src: "h1/eth1", Dst: "h2/eth1", Flow: 1}, By: 1e6, Moved: true}), false, true, true},
	} {
		f := NewFollower()
		f.ApplyUpdate(twoClocks(Locked), 0, true)
		f.AddEstimate(edge12, estimateAt(1e18, 20), 0)
		if got := f.ApplyWitnesses(c.saw, 1); got != c.some {
			t.Errorf("%+v: changed %v", c.saw, got)
		}
		s := f.StatusOf("h1", 1e18, 1)
		if own := s.State == Converging && !s.Known; own != c.own {
			t.Errorf("%+v: h1 is %+v, want moved %v", c.saw, s, c.own)
		}
		if s := f.StatusOf("h2", 1e18+5e9, 1); s.State != Locked {
			t.Errorf("%+v: h2 is %v: what others are is not known here", c.saw, s.State)
		}
		_, placed := f.RelationFor(edge12, 1e18, 1)
		_, _, hinted := f.MapHint(edge12, 1e18, 1)
		if placed == c.h2 || hinted == c.h2 {
			t.Errorf("%+v: placed %v, hinted %v", c.saw, placed, hinted)
		}
		if f.ApplyWitnesses(c.saw, 2) {
			t.Errorf("%+v: twice the same changes something", c.saw)
		}
	}
}

func TestFollowerRule6UntilLaterWindows(t *testing.T) {
	second := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	at := func(s float64) int64 { return 1e18 + int64(s*1e9) }
	f := NewFollower()
	f.ApplyUpdate(twoClocks(Locked), 0, true)
	f.AddEstimate(edge12, estimateAt(1e18, 20), 0)
	f.ApplyWitnesses(witnessesOf(1e6, 1e6), second(0.5))
	f.AddEstimate(edge12, estimateAt(at(1), 20), second(1))
	if _, ok := f.RelationFor(edge12, at(1), second(1)); ok || !f.WindowSpoilt(edge12, second(1)) {
		t.Error("placed by a window in which the clock moved")
	}
	f.ApplyUpdate(twoClocks(Locked), second(2.6), true)
	if s := f.StatusOf("h1", at(2.6), second(2.6)); s.State != Converging {
		t.Errorf("%v by an update that may be of an earlier window", s.State)
	}
	// The pair has an estimate earlier, which is used without a coordinator as well.
	f.AddEstimate(edge12, estimateAt(at(2), 20), second(2))
	if r, ok := f.RelationFor(edge12, at(2), second(2)); !ok || r.OffsetAt(at(2)) != estimateAt(at(2), 20).Offset || f.WindowSpoilt(edge12, second(2)) {
		t.Errorf("%+v %v, want the pair's own estimate", r, ok)
	}
	// It moved again.
	if !f.ApplyWitnesses(witnessesOf(1e6, 0), second(2.3)) {
		t.Error("a second move is not heard")
	}
	if _, ok := f.RelationFor(edge12, at(2.3), second(2.3)); ok {
		t.Error("placed after a second move")
	}
	f.ApplyUpdate(twoClocks(Locked), second(2.8), true)
	if s := f.StatusOf("h1", at(2.8), second(2.8)); s.State != Locked || !s.Known {
		t.Errorf("%+v by an update of later windows", s)
	}
	if _, ok := f.RelationFor(edge12, at(2.8), second(2.8)); ok {
		t.Error("placed by an update from before the second move")
	}
	f.ApplyUpdate(twoClocks(Locked), second(4.6), true)
	if _, ok := f.RelationFor(edge12, at(4.6), second(4.6)); !ok {
		t.Error("not placed by an update of later windows")
	}
	f.ApplyWitnesses(witnessesOf(1e6), second(5))
	f.ForgetPairs(func(PairID) bool { return false })
	if len(f.movedPairs) != 0 {
		t.Error("pairs that are probed no more are remembered")
	}
}

// TestFollowerRule4AStandbysFrame: two coordinators send updates of a frame each. When the one that leads is silent, the frame
// of the other one is used before any clock is in holdover. The frame of the leader is used again after it was there for some
// time. No change of the frame counts as a change of a clock, and a step that happens while frames change counts once.
func TestFollowerRule4AStandbysFrame(t *testing.T) {
	f := NewFollower()
	update := func(frame uint64, state State, at time.Duration, steps uint32) *Update {
		u := twoClocks(state)
		u.Frame = frame
		for i := range u.Maps {
			m := &u.Maps[i]
			m.Ref, m.Steps = m.Ref+int64(at), steps
		}
		u.Maps[1].Offset -= int64(30e-6 * float64(at))
		return u
	}
	const tenth = 100 * time.Millisecond
	type phase struct {
		until  time.Duration // since the start
		leader uint64        // frame of the coordinator that leads; 0: there is none
		second uint64        // frame of the other one, half a second later
		steps  map[uint64]uint32
		want   map[uint64]bool // frames in use
		counts uint32
	}
	at := time.Duration(0)
	for i, p := range []phase{
		{10 * time.Second, 7, 8, map[uint64]uint32{7: 3, 8: 1}, map[uint64]bool{7: true}, 3},
		{10500 * time.Millisecond, 0, 8, map[uint64]uint32{8: 1}, map[uint64]bool{7: true}, 3},
		{15 * time.Second, 0, 8, map[uint64]uint32{8: 2}, map[uint64]bool{8: true}, 4},                // a clock stepped meanwhile
		{24 * time.Second, 9, 8, map[uint64]uint32{8: 2, 9: 0}, map[uint64]bool{8: true}, 4},          // it comes back with another frame
		{30 * time.Second, 9, 8, map[uint64]uint32{8: 2, 9: 0}, map[uint64]bool{8: true, 9: true}, 4}, // and leads for ten seconds
		{40 * time.Second, 9, 8, map[uint64]uint32{8: 3, 9: 1}, map[uint64]bool{9: true}, 5},
	} {
		for ; at < p.until; at += tenth {
			switch at % time.Second {
			case 0:
				if p.leader != 0 {
					f.ApplyUpdate(update(p.leader, Locked, at, p.steps[p.leader]), at, true)
				}
			case 500 * time.Millisecond:
				f.ApplyUpdate(update(p.second, Locked, at, p.steps[p.second]), at, false)
			}
			f.FallBack(at)
			s := f.StatusOf("h2", 1e18+5e9+int64(at), at)
			if at > 0 && (s.State != Locked || !s.Known || s.Bound > 200 || !p.want[f.Frame()]) {
				t.Fatalf("phase %d, at %v: %v, bound %d, frame %d; want it locked in one of %v", i, at, s.State, s.Bound, f.Frame(), p.want)
			}
		}
		if s := f.StatusOf("h2", 1e18+5e9+int64(at), at); s.Steps != p.counts {
			t.Errorf("phase %d: %d steps, want %d", i, s.Steps, p.counts)
		}
	}
	// A standby whose frame is not complete is of no use while the maps are fresh, and is used when they are not.
	last := at
	cold := func() { f.ApplyUpdate(update(10, Converging, at, 0), at, false); f.FallBack(at) }
	for ; at < last+1900*time.Millisecond; at += tenth {
		cold()
		if s := f.StatusOf("h2", 1e18+5e9+int64(at), at); s.State != Locked || f.Frame() != 9 {
			t.Fatalf("at %v: %v in frame %d, want what is known", at, s.State, f.Frame())
		}
	}
	at += time.Second
	cold()
	if s := f.StatusOf("h2", 1e18+5e9+int64(at), at); s.State != Holdover {
		t.Errorf("without a frame: %v, want holdover", s.State)
	}
	u := update(10, Converging, at, 0)
	u.Maps[1].State = Locked
	f.ApplyUpdate(u, at, false)
	if f.Frame() != 10 {
		t.Error("the frame in which a clock is locked is not used, though the present one has no updates")
	}
}
