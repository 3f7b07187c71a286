package fabric

import "testing"

func TestFormatOfBounds(t *testing.T) {
	v := func(x float64) *float64 { return &x }
	for _, tt := range []struct {
		b            Bounds
		share, delay string
	}{
		{Bounds{v(0), v(0.01)}, "0 % to 1 %", "0 ns to 10 ms"},
		{Bounds{v(0.95), nil}, "95 % or more", "950 ms or more"},
		{Bounds{v(0.000128), v(0.000129)}, "0.0128 % to 0.0129 %", "128 µs to 129 µs"},
		{Bounds{nil, v(0.5)}, "less than 50 %", "less than 500 ms"},
		{Bounds{}, "an unknown amount", "an unknown amount"},
	} {
		if share, delay := tt.b.FormatShare(), tt.b.FormatDelay(); share != tt.share || delay != tt.delay {
			t.Errorf("%+v: %q and %q, want %q and %q", tt.b, share, delay, tt.share, tt.delay)
		}
	}
}
