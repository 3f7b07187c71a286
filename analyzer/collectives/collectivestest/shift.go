package collectivestest

import (
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// Shift moves the times of records by a duration, in place.
func Shift(records []ccl.Record, by time.Duration) {
	move := func(times ...*ccl.Nanos) {
		for _, t := range times {
			if t.Known {
				t.NS += int64(by)
			}
		}
	}
	for _, rec := range records {
		switch r := rec.(type) {
		case *ccl.Op:
			move(&r.StartNS, &r.EndNS)
		case *ccl.Edge:
			move(&r.StartNS, &r.EndNS, &r.Since)
		case *ccl.Beat:
			move(&r.AtNS)
		}
	}
}
