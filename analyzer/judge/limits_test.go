package judge

import (
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// TestRule3WhatIsAClock: a flow's limit is 10 us, and half of it for the direction that moved the other way.
func TestRule3WhatIsAClock(t *testing.T) {
	for _, tt := range []struct {
		forward, reverse int64
		want             bool
	}{
		{10_001, -5001, true}, {10_000, -5001, false}, {10_001, -5000, false},
		{-10_001, 5001, true}, {-10_000, 5001, false}, {-10_001, 5000, false},
	} {
		f := FindingsOf([]*fabric.Observation{window(fwd, tt.forward, 200, 0), window(rev, tt.reverse, 200, 0)}, DefaultParameters())[0]
		if f.ClockSuspect != tt.want || f.Delayed {
			t.Errorf("%d ns and %d ns: a clock %v, delayed %v; want a clock %v", tt.forward, tt.reverse, f.ClockSuspect, f.Delayed, tt.want)
		}
	}
}

// TestRule4ASumThatMovedAndNoDirection: with neither direction beyond its limit it is a round trip; one nanosecond more of the
// other direction is that direction's.
func TestRule4ASumThatMovedAndNoDirection(t *testing.T) {
	for _, tt := range []struct {
		reverse            int64
		delayed, roundTrip bool
	}{{10_500, true, true}, {10_501, false, false}} {
		obs := []*fabric.Observation{window(fwd, 10_500, 200, 0), window(rev, tt.reverse, 200, 0)}
		for _, o := range obs {
			o.ClockErrorNS = ns(500)
		}
		if f := FindingsOf(obs, DefaultParameters())[0]; f.Delayed != tt.delayed || f.RoundTrip != tt.roundTrip {
			t.Errorf("%d ns back: delayed %v, round trip %v, want %v and %v", tt.reverse, f.Delayed, f.RoundTrip, tt.delayed, tt.roundTrip)
		}
	}
}

// TestWindowsAreComparedByWhatBothHave: a quantile that only one of window and baseline has is not used.
func TestWindowsAreComparedByWhatBothHave(t *testing.T) {
	for _, tt := range []struct {
		what      string
		now, base fabric.Quantiles
		shift     int64
		ok        bool
	}{
		{"a mean, the baseline's median besides", fabric.Quantiles{Mean: ns(7000)}, fabric.Quantiles{P50: ns(5000), Mean: ns(5500)}, 1500, true},
		{"a mean, the window's median besides", fabric.Quantiles{P50: ns(9000), Mean: ns(7000)}, fabric.Quantiles{Mean: ns(5500)}, 1500, true},
		{"the tail alone", fabric.Quantiles{P99: ns(9000)}, fabric.Quantiles{P99: ns(8000)}, 1000, true},
		{"nothing in common", fabric.Quantiles{P50: ns(9000)}, fabric.Quantiles{P99: ns(8000)}, 0, false},
	} {
		o := window(fwd, 0, 200, 0)
		o.OWD, o.Baseline = &tt.now, &tt.base
		if f := FindingsOf([]*fabric.Observation{o}, DefaultParameters())[0]; f.HasShift != tt.ok || f.Shift != tt.shift {
			t.Errorf("%s: shift %d, %v; want %d, %v", tt.what, f.Shift, f.HasShift, tt.shift, tt.ok)
		}
	}
}
