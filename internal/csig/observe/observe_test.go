package observe

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/csig"
)

const text = `ethertypes: {compact: 0x88b5, wide: 0x88b6}
interval: 1ms
fastest_gbps: 100
locators:
  compact: {"leaf1:up1": 1, "leaf1:up2": 2, "spine1:dn1": 3}
  wide: {"leaf1:up1": 1, "leaf1:up2": 2, "spine1:dn1": 3}
`

func profile(t testing.TB) *csig.Profile {
	t.Helper()
	p, err := csig.ParseProfile("csig.yml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// seconds returns a time of the tests.
func seconds(s float64) int64 { return int64(1e12 + s*1e9) }

func TestRule1TheWorstValueOfAWindow(t *testing.T) {
	p := profile(t)
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		f := New(p, Options{}).NewFlow()
		type arrival struct {
			at  int64
			tag csig.Tag
		}
		var all []arrival
		at := seconds(0)
		for range 2000 {
			at += rng.Int64N(8e6)
			tag := csig.Tag{Format: csig.Formats[rng.IntN(2)], Signal: csig.Signal(rng.IntN(3)), Locator: uint16(1 + rng.IntN(3))}
			tag.Code = rng.Uint32N(tag.Format.MaxCode() + 1)
			all = append(all, arrival{at, tag})
			if why := f.Add(&tag, at); why != Used {
				t.Fatalf("%+v: %v", tag, why)
			}
			for s := range csig.Signal(3) {
				window := at/1e9 - 1 // the last whole one
				var want *csig.Tag
				for i := range all {
					if o := &all[i]; o.at/1e9 == window && o.tag.Signal == s {
						r, _ := p.Decode(&o.tag)
						if want == nil {
							want = &o.tag
						} else if w, _ := p.Decode(want); s == csig.Delay && r.Lower > w.Lower || s != csig.Delay && r.Lower < w.Lower {
							want = &o.tag
						}
					}
				}
				v, ok := f.LastValue(s, at)
				if ok != (want != nil) || ok && v.Tag != *want {
					t.Fatalf("seed %d: %v: %+v %v, want %+v", seed, s, v, ok, want)
				}
			}
		}
	}
}

func TestRule2NoTagNoValue(t *testing.T) {
	f := New(profile(t), Options{}).NewFlow()
	tag := csig.Tag{Format: csig.Compact, Signal: csig.Share, Code: 3, Locator: 2}
	for _, at := range []float64{0.2, 0.7} {
		f.Add(&tag, seconds(at))
	}
	for _, tt := range []struct {
		at float64
		ok bool
	}{{0.9, false}, {1, true}, {1.9, true}, {2, false}, {3, false}} {
		if v, ok := f.LastValue(csig.Share, seconds(tt.at)); ok != tt.ok || ok && v.Lower != 30_000 {
			t.Errorf("at %v s: %+v, %v", tt.at, v, ok)
		}
		if _, ok := f.LastValue(csig.Delay, seconds(tt.at)); ok {
			t.Errorf("at %v s: a delay", tt.at)
		}
	}
	if _, ok := f.LastValue(9, seconds(4)); ok {
		t.Error("a value of a signal without a rule")
	}
}

func TestRule3NoPortReplacedIt(t *testing.T) {
	f := New(profile(t), Options{}).NewFlow()
	tag := csig.NewTag(csig.Compact, csig.Share)
	if why := f.Add(&tag, seconds(0.5)); why != Used {
		t.Error(why)
	}
	if v, ok := f.LastValue(csig.Share, seconds(1)); ok {
		t.Errorf("%+v", v)
	}
	if got := fmt.Sprint(f.Counts(csig.Share)); got != "[{compact 0 1}]" {
		t.Error(got)
	}
}

func TestRule4WhatCannotBeRead(t *testing.T) {
	o := New(profile(t), Options{})
	f := o.NewFlow()
	for _, tt := range []struct {
		tag csig.Tag
		why Reason
	}{
		{csig.Tag{Format: csig.Compact, Signal: 7, Code: 1, Locator: 1}, UnknownSignal},
		{csig.Tag{Format: csig.Wide, Signal: csig.Queue, Code: 1, Locator: 1}, UnknownSignal}, // no scale by default
		{csig.Tag{Format: csig.Compact, Signal: csig.Share, Code: 1, Locator: 99}, UnknownLocator},
	} {
		if got := f.Add(&tt.tag, seconds(0.5)); got != tt.why {
			t.Errorf("%+v: %v", tt.tag, got)
		}
	}
	o.Drop(Malformed)
	o.Drop(Stranger)
	for _, why := range Reasons() {
		want := map[Reason]uint64{UnknownSignal: 2, UnknownLocator: 1, Malformed: 1, Stranger: 1}[why]
		if o.Dropped[why] != want {
			t.Errorf("%v: %d", why, o.Dropped[why])
		}
	}
	for s := range csig.Signal(csig.Signals) {
		if _, ok := f.LastValue(s, seconds(1)); ok || len(f.Counts(s)) > 0 {
			t.Errorf("%v has a value, or packets", s)
		}
	}
}

func TestRule5Bounds(t *testing.T) {
	o := New(profile(t), Options{Flows: 3, NewLocators: 4})
	var flows []*Flow
	for range 4 {
		flows = append(flows, o.NewFlow())
	}
	if flows[2] == nil || flows[3] != nil || o.Dropped[Limit] != 1 {
		t.Fatalf("%d flows too many", o.Dropped[Limit])
	}
	tag := csig.Tag{Format: csig.Compact, Signal: csig.Share, Code: 1, Locator: 1}
	if flows[3].Add(&tag, seconds(0)) != Limit {
		t.Error("a flow too many takes tags")
	}
	flows[0].Close()
	if f := o.NewFlow(); f == nil {
		t.Error("no flow in the place of one that has ended")
	}
	add := func(f *Flow, locator uint16, at float64) Reason {
		x := tag
		x.Locator = locator
		return f.Add(&x, seconds(at))
	}
	for _, l := range []uint16{1, 2, 3} {
		if why := add(flows[1], l, 25); why != Used {
			t.Error(why)
		}
	}
	if add(flows[2], 1, 26) != Used || add(flows[2], 2, 27) != Limit || add(flows[2], 1, 28) != Used {
		t.Error("four new locators in a minute, and no fifth one")
	}
	if add(flows[2], 2, 90) != Used {
		t.Error("another minute has no room")
	}
}

// TestNothingAllocates checks that a tag of a known locator costs no memory.
func TestNothingAllocates(t *testing.T) {
	f := New(profile(t), Options{}).NewFlow()
	tag := csig.Tag{Format: csig.Wide, Signal: csig.Delay, Code: 5, Locator: 3}
	at := seconds(0)
	f.Add(&tag, at)
	if n := testing.AllocsPerRun(1000, func() { at += int64(10 * time.Millisecond); f.Add(&tag, at) }); n != 0 {
		t.Errorf("%v allocations for each tag", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	f := New(profile(b), Options{}).NewFlow()
	tag := csig.Tag{Format: csig.Wide, Signal: csig.Delay, Code: 5, Locator: 3}
	at := seconds(0)
	b.ReportAllocs()
	for b.Loop() {
		at += 1000
		f.Add(&tag, at)
	}
}
