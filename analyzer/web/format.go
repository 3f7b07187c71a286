package web

import (
	"time"

	"github.com/graylink/graylink/analyzer/display"
	"github.com/graylink/graylink/internal/fabric"
)

// absent stands for a value that is not known.
const absent = display.Absent

func formatDelay(ns int64) string { return display.Delay(ns) }

func delayOr(ns *int64) string { return display.DelayOr(ns) }

func formatPercent(r float64) string { return display.Percent(r) }

func formatCount(n int) string { return display.Count(n) }

func pluralCount(n int, one, many string) string { return display.PluralCount(n, one, many) }

func formatAge(d time.Duration) string { return display.Age(d) }

func clockTime(t time.Time) string { return display.ClockTime(t) }

func shortenMiddle(s string, limit int) string { return display.ShortenMiddle(s, limit) }

func formatPath(p fabric.Path) string { return display.Path(p) }

func formatSymptom(s fabric.Symptom) string { return display.Symptom(s) }
