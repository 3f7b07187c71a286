package evidence

import (
	"fmt"
	"time"
)

// mostShownText bounds how much of a wrong text an error repeats.
const mostShownText = 60

// ParseMoment reads a moment, which is a time or how long ago it is. The result is in UTC, to the second where it is counted from now.
func ParseMoment(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return now.Add(-ago).Truncate(time.Second).UTC(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, momentError(text, "a time (RFC 3339)", now)
	}
	return at.UTC(), nil
}

// ParsePastMoment reads a moment as ParseMoment does, and fails if it is not past.
func ParsePastMoment(text string, now time.Time) (time.Time, error) {
	at, err := ParseMoment(text, now)
	if err != nil || at.After(now) {
		return time.Time{}, momentError(text, "a past time (RFC 3339)", now)
	}
	return at, nil
}

func momentError(text, wanted string, now time.Time) error {
	if runes := []rune(text); len(runes) > mostShownText {
		text = string(runes[:mostShownText]) + "…"
	}
	return fmt.Errorf("%q; expected %s like %s, or how long ago it is, like 10m", text, wanted, now.UTC().Format(time.RFC3339))
}
