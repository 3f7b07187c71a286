package csig

import (
	"math"
	"math/bits"
	"time"
)

// RateWindow measures the rate of a port: the octets of the last window that has ended, by its length. Windows follow each
// other without gaps from the time at which the measurement began. Times are nanoseconds of any clock that does not go back.
type RateWindow struct {
	interval int64
	start    int64  // of the current window
	current  uint64 // octets of the current window
	last     uint64 // octets of the last window that has ended, 0 if none has
}

// NewRateWindow begins to measure. The interval must be positive.
func NewRateWindow(interval time.Duration, now int64) RateWindow {
	return RateWindow{interval: int64(interval), start: now}
}

// Advance ends windows that are over, and reports whether one has ended since. A time before the current window changes
// nothing.
func (w *RateWindow) Advance(now int64) bool {
	past := now - w.start
	if past < w.interval {
		return false
	}
	windows := past / w.interval
	w.last = 0
	if windows == 1 {
		w.last = w.current
	}
	w.current = 0
	w.start += windows * w.interval
	return true
}

// Add counts octets in the current window.
func (w *RateWindow) Add(octets uint64) { w.current += octets }

// Rate returns the rate in bit/s of the last window that has ended, and 0 before the first one has.
func (w *RateWindow) Rate() uint64 { return scale(w.last, 8*uint64(time.Second), uint64(w.interval)) }

// scale returns x*by/of, or the largest number if that is larger.
func scale(x, by, of uint64) uint64 {
	high, low := bits.Mul64(x, by)
	if high >= of {
		return math.MaxUint64
	}
	q, _ := bits.Div64(high, low, of)
	return q
}

// Million is the whole of a share.
const Million = 1_000_000

// available returns what a port's rate leaves of its speed: in bit/s, and in millionths of the speed. A rate above the speed
// leaves nothing.
func available(speed, rate uint64) (bandwidth, share uint64) {
	if rate >= speed {
		return 0, 0
	}
	return speed - rate, scale(speed-rate, Million, speed)
}
