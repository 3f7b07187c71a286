package display

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAxisTicks(t *testing.T) {
	text := func(a Axis, most int) string {
		var out []string
		for _, x := range a.Ticks(most, func(v float64) string { return Delay(int64(math.Round(v))) }) {
			out = append(out, x.Text)
		}
		return strings.Join(out, " ")
	}
	for _, x := range []struct {
		axis Axis
		most int
		want string
	}{
		{NewLogAxis(900, 120_000, 0, 100), 9, "1.0 µs 2.0 µs 5.0 µs 10 µs 20 µs 50 µs 100 µs"},
		{NewLogAxis(900, 120_000, 0, 100), 5, "1.0 µs 3.0 µs 10 µs 30 µs 100 µs"},
		{NewLogAxis(900, 120_000, 0, 100), 3, "1.0 µs 10 µs 100 µs"},
		{NewLogAxis(1000, 1000, 0, 100), 9, "1.0 µs"},
		{NewAxis(0, 1e6, 0, 100), 5, "0 ns 200 µs 400 µs 600 µs 800 µs 1.0 ms"},
		{NewAxis(0, 0, 0, 100), 1, "0 ns 1 ns"},
	} {
		if got := text(x.axis, x.most); got != x.want {
			t.Errorf("%+v: %q, want %q", x.axis, got, x.want)
		}
	}
	up := NewLogAxis(10, 1000, 200, 0)
	if math.Abs(up.Place(100)-100) > 1e-9 || up.Place(0) != 200 || up.Place(1e9) != 0 || up.Place(10) != 200 {
		t.Errorf("places %g %g %g", up.Place(100), up.Place(0), up.Place(1e9))
	}
}

func TestTimeTicks(t *testing.T) {
	from := time.Date(2026, 11, 29, 11, 58, 30, 0, time.UTC)
	for span, want := range map[time.Duration]string{time.Minute: "11:58:40", 10 * time.Minute: "12:00", time.Hour: "12:00", 72 * time.Hour: "11-29 12:00"} {
		got := NewTimeAxis(from, from.Add(span), 0, 100).Ticks(9)
		if len(got) == 0 || len(got) > 9 || !strings.HasPrefix(got[0].Text, want) {
			t.Errorf("%s: %+v", span, got)
		}
	}
}

func TestPolyline(t *testing.T) {
	if got := Polyline([]float64{0, 1, 2, 3, 4}, []float64{5, math.NaN(), 6, 7, math.NaN()}); got != "M0.0 5.0h.1M2.0 6.0L3.0 7.0h.1" {
		t.Error(got)
	}
	if got := Steps(9, [][3]float64{{0, 1, 5}, {1, 2, 6}, {4, 5, 7}}); strings.Count(got, "L") != 9 {
		t.Error(got)
	}
}

// FuzzAxis: whatever the ends of an axis are, it has few marks and finite places.
func FuzzAxis(f *testing.F) {
	f.Add(0.0, 0.05, 4)
	f.Add(math.Inf(-1), 3.0, 6)
	f.Add(1e20, 1e20, 5)
	f.Add(math.NaN(), math.NaN(), 1)
	f.Add(-1e300, 1e300, 9)
	f.Add(5e-324, math.Inf(1), 9)
	f.Fuzz(func(t *testing.T, low, high float64, most int) {
		if most < 1 || most > 20 {
			return
		}
		for _, a := range []Axis{NewAxis(low, high, 0, 100), NewLogAxis(low, high, 0, 100)} {
			ticks := a.Ticks(most, func(float64) string { return "" })
			if len(ticks) > most+2 || slices.ContainsFunc(ticks, func(x Tick) bool { return !(x.At >= -1e-6 && x.At <= 100+1e-6) }) {
				t.Errorf("%g to %g: %d marks of %d: %+v", low, high, len(ticks), most, ticks)
			}
		}
		span := time.Duration(min(max(high, 0), 1e17))
		if got := NewTimeAxis(time.Unix(0, 0), time.Unix(0, int64(span)), 0, 100).Ticks(most); len(got) > most+1 {
			t.Errorf("%s: %d marks of %d", span, len(got), most)
		}
	})
}
