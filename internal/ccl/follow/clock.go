package follow

import (
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// Times of the bounds of the clock.
const (
	boundsKept  = time.Minute // records that began earlier have no bound
	boundMargin = time.Second // before the beginning of a record
)

// clockBounds remembers how well the host's clock was known in the last minute.
type clockBounds struct {
	read func() (bound time.Duration, known bool) // nil: the bound is never known
	kept []clockBound                             // by time
}

// clockBound is how far the host's clock was from the fleet's common time at most; unknown where it is not known.
type clockBound struct {
	at    time.Time
	bound ccl.Nanos
}

// UseClock sets what returns how far the host's clock is from the fleet's common time at most. Without it no record has a clock
// error. It is called before Run.
func (f *Follower) UseClock(read func() (bound time.Duration, known bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock.read = read
}

// note reads the bound, and forgets those of long ago.
func (c *clockBounds) note(now time.Time) {
	if c.read == nil {
		return
	}
	b := clockBound{at: now}
	if bound, known := c.read(); known {
		b.bound = ccl.KnownNanos(int64(bound))
	}
	old := 0
	for old < len(c.kept) && now.Sub(c.kept[old].at) > boundsKept+boundMargin {
		old++
	}
	c.kept = append(c.kept[old:], b)
}

// since returns the largest bound from a time of the host's clock on. It is unknown if the bound was unknown at any time since
// then, or if that time is too long ago or in the future.
func (c *clockBounds) since(now time.Time, ns int64) (largest ccl.Nanos) {
	age := time.Duration(now.UnixNano() - ns)
	if age < -boundMargin || age > boundsKept {
		return ccl.Nanos{}
	}
	from := now.Add(-max(age, 0) - boundMargin)
	for i := len(c.kept) - 1; i >= 0; i-- {
		k := &c.kept[i]
		if !k.bound.Known {
			return ccl.Nanos{}
		}
		largest = ccl.KnownNanos(max(largest.NS, k.bound.NS))
		if !k.at.After(from) {
			return largest
		}
	}
	return ccl.Nanos{} // the bounds begin later
}

// stamp sets the clock error of a record, in place of what its line may say.
func (c *clockBounds) stamp(now time.Time, rec ccl.Record) {
	bound := func(times ...ccl.Nanos) ccl.Nanos {
		for _, t := range times {
			if t.Known {
				return c.since(now, t.NS)
			}
		}
		return ccl.Nanos{}
	}
	switch r := rec.(type) {
	case *ccl.Op:
		begun, _ := r.Span()
		r.ClockError = bound(begun, r.StartNS, r.EndNS)
	case *ccl.Edge:
		r.ClockError = bound(r.StartNS, r.Since, r.EndNS)
	}
}
