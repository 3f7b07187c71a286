package clocks

import (
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

// Tests on both sides of limits.

func TestASumMovesBeyondBothScales(t *testing.T) {
	for _, tt := range []struct {
		there, back int64
		want        bool
	}{{20_000, 0, false}, {20_001, 0, true}, {-20_000, 0, false}, {-20_001, 0, true}, {30_000, -10_000, false}} {
		there := judge.Finding{Flow: fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}, Obs: &fabric.Observation{}, HasShift: true, Shift: tt.there, Scale: 12_000}
		back := there
		back.Flow.Reply, back.Shift, back.Scale = true, tt.back, 8000
		if p := pairsOf([]judge.Finding{there, back}); len(p) != 1 || p[0].sumMoved != tt.want {
			t.Errorf("%d and %d ns: moved %v, want %v", tt.there, tt.back, p[0].sumMoved, tt.want)
		}
	}
}

func TestAClockMovesFromHalfANanosecondBeyondTheLimitOn(t *testing.T) {
	for _, tt := range []struct {
		offset float64
		gain   bool
	}{{10_000, false}, {10_000.5, true}, {-10_000.5, true}} {
		var pairs []*pair
		for _, peer := range []string{"h2/eth1", "h3/eth1", "h4/eth1"} {
			pairs = append(pairs, &pair{nics: [2]string{peer, "h1/eth1"}, offset: tt.offset, limit: 10_000})
		}
		if _, gain := evaluateMove("h1/eth1", pairs); (gain > 0) != tt.gain {
			t.Errorf("%v ns: gain %d", tt.offset, gain)
		}
	}
}

// TestRule7ADriftGrowsInEveryWindow: in each by half of an even share at least, of the time from the first window to the last.
func TestRule7ADriftGrowsInEveryWindow(t *testing.T) {
	for _, tt := range []struct {
		offsets [trendWindows]int64
		drifts  bool
	}{
		{[trendWindows]int64{10_000, 20_000, 30_000, 40_000}, true},
		{[trendWindows]int64{10_000, 15_300, 27_600, 40_000}, true},  // .53 of an even share
		{[trendWindows]int64{10_000, 14_700, 27_300, 40_000}, false}, // .47
		{[trendWindows]int64{40_000, 41_000, 42_000, 43_000}, false}, // less than a tenth of the offset
	} {
		w := NewWatch()
		var s Suspect
		for i := range tt.offsets {
			s = Suspect{NIC: "h1/eth1", Offset: &tt.offsets[i]}
			w.classifyTrend(time.Unix(int64(1000+i), 0), &s)
		}
		if s.Drifts != tt.drifts || s.Stepped == tt.drifts {
			t.Errorf("%v: drifts %v, stepped %v, want a drift: %v", tt.offsets, s.Drifts, s.Stepped, tt.drifts)
		}
	}
}
