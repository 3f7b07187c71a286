package clocksync

import (
	"math"
	"testing"
	"time"
)

// TestBound checks that the bound has room for a crystal that begins to warm while an estimate is
// fresh, and later for a rate that changed at once, from the beginning on.
func TestBound(t *testing.T) {
	for age := time.Duration(0); age < 20*time.Minute; age += 100 * time.Millisecond {
		s := age.Seconds()
		warmed := 1000 * (s - 30*(1-math.Exp(-s/30))) // ns
		if age > FreshFor {
			warmed = 1000 * s
		}
		for _, a := range []time.Duration{age, -age} {
			if b := StatisticalBound(0, 0, a); b < warmed || b > 1000*s*(3+s/600) || age <= FreshFor && b > 500 {
				t.Fatalf("after %v: bound %v, temperature may have moved it by %v", a, b, warmed)
			}
		}
	}
	// What docs/clocksync.md says of both parts, and where one becomes the other.
	for _, tt := range []struct {
		age  time.Duration
		want float64
	}{{FreshFor, 150}, {-FreshFor, 150}, {FreshFor + 1, 3015}, {10 * time.Minute, 1.2e6}, {20 * time.Minute, 3.6e6}} {
		if got := thermalOffset(tt.age); math.Abs(got-tt.want) > 0.1 {
			t.Errorf("after %v temperature may have moved it by %g ns, want %g", tt.age, got, tt.want)
		}
	}
	if b := StatisticalBound(10, 1e-9, time.Second); math.Abs(b-math.Sqrt(50*50+5*5+37.3*37.3)-16.7) > 0.1 {
		t.Errorf("bound %v", b)
	}
}
