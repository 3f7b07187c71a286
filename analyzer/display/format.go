// Package display turns measurements into what people read: texts with units, axes with their marks, and charts that the server draws as
// SVG. The page and the reports use it, so that a value reads the same everywhere. A value that is not known is Absent, never zero.
package display

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Absent stands for a value that is not known.
const Absent = "–"

// Delay writes nanoseconds with two or three significant digits: 2.0 ms, 48 µs.
func Delay(ns int64) string {
	v, unit := float64(ns), "ns"
	for _, u := range []string{"µs", "ms", "s"} {
		if math.Abs(v) < 999.5 {
			break
		}
		v, unit = v/1000, u
	}
	if unit == "ns" || math.Abs(v) >= 9.95 {
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

// DelayOr writes nanoseconds that may be unknown.
func DelayOr(ns *int64) string {
	if ns == nil {
		return Absent
	}
	return Delay(*ns)
}

// Percent writes a ratio. It never rounds a part up to the whole, nor a trace down to nothing.
func Percent(r float64) string {
	p := r * 100
	switch {
	case p <= 0:
		return "0 %"
	case p < 0.1:
		return "< 0.1 %"
	case p >= 100:
		return "100 %"
	case p >= 99.9:
		return "> 99.9 %"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", p), ".0") + " %"
}

// PercentOr writes a ratio that may be unknown.
func PercentOr(r *float64) string {
	if r == nil {
		return Absent
	}
	return Percent(*r)
}

// Count writes a number with its thousands apart: 16,384.
func Count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// PluralCount writes a number with its noun.
func PluralCount(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + many
}

// Age writes a duration. A negative one is 0.
func Age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// ClockTime writes a moment to the second. The zero time is not known.
func ClockTime(t time.Time) string {
	if t.IsZero() {
		return Absent
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// ShortenMiddle shortens a long name to limit characters. It keeps the beginning and the end, since both distinguish names.
func ShortenMiddle(s string, limit int) string {
	r := []rune(s)
	if len(r) <= limit || limit < 3 {
		return s
	}
	tail := (limit - 1) / 2
	return string(r[:limit-1-tail]) + "…" + string(r[len(r)-tail:])
}

// Path writes the switches of a path with the ports by which packets come in and leave.
func Path(p fabric.Path) string {
	if len(p) == 0 {
		return Absent
	}
	parts := make([]string, len(p))
	for i, h := range p {
		parts[i] = h.Switch + "[" + h.In + "→" + h.Out + "]"
	}
	return strings.Join(parts, " ")
}

// Symptom describes the effect of an element on packets: "adds 2.0 ms and loses 10 %". It is "" if there is none.
func Symptom(s fabric.Symptom) string {
	var parts []string
	if s.AddedDelayNS > 0 {
		parts = append(parts, "adds "+Delay(s.AddedDelayNS))
	}
	if s.LossRatio > 0 {
		parts = append(parts, "loses "+Percent(s.LossRatio))
	}
	if s.ECNRatio > 0 {
		parts = append(parts, "marks "+Percent(s.ECNRatio))
	}
	return strings.Join(parts, " and ")
}
