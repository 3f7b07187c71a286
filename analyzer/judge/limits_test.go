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
