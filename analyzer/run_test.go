package analyzer

import (
	"testing"
	"time"
)

// TestCyclesBeginTogether: whenever an analyzer was started, and however long its cycles take.
func TestCyclesBeginTogether(t *testing.T) {
	for _, ms := range []int64{0, 1, 49, 50, 51, 500, 999} {
		now := time.UnixMilli(1_800_000_000_000 + ms)
		wait := untilNext(now, time.Second)
		if next := now.Add(wait); wait <= 0 || wait > time.Second || next.UnixMilli()%1000 != 50 {
			t.Errorf("%d ms after the second: %s, at %s", ms, wait, next)
		}
	}
}
