package web

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// formatDelay writes nanoseconds with two or three significant digits: 2.0 ms, 48 µs.
func formatDelay(ns int64) string {
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

const absent = "–"

func delayOr(ns *int64) string {
	if ns == nil {
		return absent
	}
	return formatDelay(*ns)
}

// formatPercent never rounds a part up to the whole, nor a trace down to nothing.
func formatPercent(r float64) string {
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

// formatCount writes a number with its thousands apart: 16,384.
func formatCount(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func pluralCount(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return formatCount(n) + " " + many
}

func formatAge(d time.Duration) string {
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

func clockTime(t time.Time) string {
	if t.IsZero() {
		return absent
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// shortenMiddle shortens a long name to limit characters. It keeps the beginning and the end, since both distinguish names.
func shortenMiddle(s string, limit int) string {
	r := []rune(s)
	if len(r) <= limit || limit < 3 {
		return s
	}
	tail := (limit - 1) / 2
	return string(r[:limit-1-tail]) + "…" + string(r[len(r)-tail:])
}

func formatPath(p fabric.Path) string {
	if len(p) == 0 {
		return absent
	}
	parts := make([]string, len(p))
	for i, h := range p {
		parts[i] = h.Switch + "[" + h.In + "→" + h.Out + "]"
	}
	return strings.Join(parts, " ")
}

// formatSymptom describes the effect of an element on packets: "adds 2.0 ms and loses 10 %".
func formatSymptom(s fabric.Symptom) string {
	var parts []string
	if s.AddedDelayNS > 0 {
		parts = append(parts, "adds "+formatDelay(s.AddedDelayNS))
	}
	if s.LossRatio > 0 {
		parts = append(parts, "loses "+formatPercent(s.LossRatio))
	}
	if s.ECNRatio > 0 {
		parts = append(parts, "marks "+formatPercent(s.ECNRatio))
	}
	return strings.Join(parts, " and ")
}
