package clocksync

import (
	"math"
	"testing"
	"time"
)

// twoClocks are maps of h1, the frame itself, and h2, 5 s and 30 ppm off.
func twoClocks(state State) *Update {
	return &Update{Frame: 7, Relative: true, Maps: []ClockMap{
		{Clock: "h1", Map: Map{State: state, Ref: 1e18, Sigma: 20, RateSigma: 1e-9, Allowance: 60, Component: 1}},
		{Clock: "h2", Map: Map{State: state, Ref: 1e18 + 5e9, Offset: -5e9, Rate: -30e-6, Sigma: 20, RateSigma: 1e-9, Allowance: 60, Component: 1}},
	}}
}

var edge12 = PairID{Src: "h1/eth1", Dst: "h2/eth1"}

// said is a pair's estimate of the same clocks, 300 ns beside the maps.
func said(ref int64, sigma float64) Estimate {
	return Estimate{Quality: Fine, Ref: ref, Offset: 5e9 + 300 + int64(30e-6*float64(ref-1e18)), Rate: 30e-6, Sigma: sigma, RateSigma: 2e-9}
}

func TestFollowerRule1FreshMapsRelate(t *testing.T) {
	f := NewFollower()
	f.Updated(twoClocks(Locked), 0)
	f.Estimated(edge12, said(1e18, 1), 0)
	for _, after := range []int64{0, 1e9, 2e9} {
		now := int64(1e18) + after
		r, ok := f.Relation(edge12, now, time.Duration(after))
		// 30 ppm slow against h2: what h2 shows when h1 shows now.
		want := int64(5e9) + int64(math.Round(float64(after)*30e-6/(1-30e-6)))
		if !ok || r.At(now)-want > 1 || want-r.At(now) > 1 {
			t.Errorf("after %d ns: h2 is %d ns ahead (%v), want %d", after, r.At(now), ok, want)
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
	f.Updated(anew, 0)
	if r, ok := f.Relation(edge12, 1e18, 0); !ok || r.At(1e18) != 5e9 {
		t.Errorf("a coordinator that began anew: %+v %v, want the maps held", r, ok)
	}
}

func TestFollowerRule2AgedMapsGiveWayToThePair(t *testing.T) {
	f := NewFollower()
	f.Updated(twoClocks(Locked), 0)
	now := int64(1e18) + 60e9
	f.Estimated(edge12, said(now, 100), time.Minute)
	r, ok := f.Relation(edge12, now, time.Minute)
	if want := 5e9 + 300 + 1800e3; !ok || math.Abs(float64(r.At(now))-want) > 2 {
		t.Errorf("after a minute the edge is placed by %d (%v), want the pair's %v", r.At(now), ok, want)
	}
	// A pair that knows less than what is left of the maps does not decide.
	f.Estimated(edge12, said(now, 1e5), time.Minute)
	if r, _ = f.Relation(edge12, now, time.Minute); math.Abs(float64(r.At(now))-(5e9+1800e3)) > 100 {
		t.Errorf("placed by %d, want the maps", r.At(now))
	}
}

// A pair that only predicts knows less and less, whatever its own sigma says.
func TestFollowerRule2PredictionsAge(t *testing.T) {
	f := NewFollower()
	for s := range 20 {
		e := said(int64(1e18)+int64(s)*1e9, 10)
		if s > 0 {
			e.Quality = Held
		}
		mono := time.Duration(s) * time.Second
		f.Estimated(edge12, e, mono)
		r, ok := f.Relation(edge12, e.Ref, mono)
		if least := int64(s * 1000); !ok || mono > Fresh && r.Bound < least || r.Bound > 1100*int64(s)+200 {
			t.Errorf("%v after it was measured: bound %d (%v), want %d for 1 ppm, and little more", mono, r.Bound, ok, least)
		}
	}
}

func TestFollowerRule3SilenceIsHoldoverThenLost(t *testing.T) {
	f := NewFollower()
	if s := f.Status("h1", 1e18, 0); s.State != Converging || s.Known {
		t.Errorf("before the first word: %+v", s)
	}
	f.Updated(twoClocks(Locked), 0)
	var before int64
	for _, c := range []struct {
		after time.Duration
		want  State
	}{{0, Locked}, {2 * time.Second, Locked}, {4 * time.Second, Holdover}, {10 * time.Minute, Lost}} {
		s := f.Status("h1", 1e18+int64(c.after), c.after)
		if s.State != c.want || s.Bound < before {
			t.Errorf("after %v: %v, bound %d (before: %d), want %v and a bound that grows", c.after, s.State, s.Bound, before, c.want)
		}
		before = s.Bound
	}
	if s := f.Status("h2", 1e18+5e9, 0); s.Offset != 5e9 || math.Abs(s.Drift-30e-6/(1-30e-6)) > 1e-12 {
		t.Errorf("h2 against the frame: %+v, want 5 s ahead and 30 ppm fast", s)
	}
}

func TestFollowerRule4AnotherFrameSharesNothing(t *testing.T) {
	f := NewFollower()
	f.Updated(twoClocks(Locked), 0)
	u := twoClocks(Locked)
	u.Frame, u.Maps = 8, u.Maps[:1]
	f.Updated(u, time.Second)
	if _, ok := f.Relation(edge12, 1e18, time.Second); ok {
		t.Error("a clock of an old frame is related to one of the new")
	}
	u = twoClocks(Locked)
	u.Frame, u.Maps[1].Component = 8, 2
	f.Updated(u, time.Second)
	if _, ok := f.Relation(edge12, 1e18, time.Second); ok {
		t.Error("clocks of two components are related")
	}
}

func TestFollowerRule5NothingKnownIsNoRelation(t *testing.T) {
	f := NewFollower()
	if _, ok := f.Relation(edge12, 1e18, 0); ok {
		t.Error("related by nothing")
	}
	f.Estimated(edge12, said(1e18, 100), 0)
	if _, ok := f.Relation(edge12, 1e18, 0); !ok {
		t.Error("a pair alone must do")
	}
	if _, ok := f.Relation(edge12, 1e18+31e9, 31*time.Second); ok {
		t.Error("a pair that said nothing for half a minute still places samples")
	}
	f.Estimated(edge12, Estimate{}, 0)
	if _, ok := f.Relation(edge12, 1e18, 0); ok {
		t.Error("a pair that knows nothing any more still places samples")
	}
	f.Updated(twoClocks(Lost), 0)
	if _, ok := f.Relation(edge12, 1e18, 0); ok {
		t.Error("lost clocks are related")
	}
}
