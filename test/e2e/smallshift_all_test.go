//go:build all

package e2e

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

var (
	shiftRounds  = flag.Int("shift.rounds", 1, "rounds of TestSmallShiftsInAFabric for each size")
	shiftWait    = flag.Duration("shift.wait", 45*time.Second, "how long TestSmallShiftsInAFabric waits for a verdict")
	shiftSilence = flag.Duration("shift.silence", 0, "how long TestSmallShiftsInAFabric listens after the last round")
)

// TestSmallShiftsInAFabric makes one direction of a link slower by less than its flows differ. This kernel has no queue that
// delays exactly, and a relay adds some 150 us by itself: so the relay stands in the link while the baselines are learnt,
// and its hold grows afterwards.
func TestSmallShiftsInAFabric(t *testing.T) {
	c := newChain(t, "e2es", 1)
	r := c.analyzers[0]
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	truth := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
	// The relay's own 130 to 220 us pass during the hold: one that is longer grows by what it is changed by.
	const hold = 500 * time.Microsecond
	id := c.fault(lab.Fault{Kind: lab.KindDelay, At: d.LinkID(), Direction: d.String(), Delay: hold})
	c.wait(3*time.Minute, "the fabric is innocent with the relay in the link", c.innocent)
	c.pass(30, nil) // the baselines have the relay's noise
	sizes := []time.Duration{50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond}
	named := map[time.Duration]int{}
	for range *shiftRounds {
		for _, by := range sizes {
			began := time.Now()
			if err := c.l.ChangeDelay(t.Context(), id, hold+by); err != nil {
				t.Fatal(err)
			}
			var found []incident.Incident
			for time.Since(began) < *shiftWait && len(found) == 0 {
				time.Sleep(500 * time.Millisecond)
				_, all := c.verdicts(r)
				found = slices.DeleteFunc(all, func(in incident.Incident) bool { return !in.Open })
			}
			for _, in := range found {
				right := in.Element == truth || slices.Contains(in.Equivalent, truth)
				if right {
					named[by]++
				} else {
					t.Errorf("%v: %s %s is named", by, in.Kind, in.Element.ID)
				}
				t.Logf("%v: after %.1f s %s %s %s, %d ns, %s", by, time.Since(began).Seconds(), in.Kind, in.Element.ID, in.Direction, in.Symptom.AddedDelayNS, in.Severity)
			}
			if len(found) == 0 {
				t.Logf("%v: nothing after %.1f s", by, time.Since(began).Seconds())
			}
			if err := c.l.ChangeDelay(t.Context(), id, hold); err != nil {
				t.Fatal(err)
			}
			c.wait(2*time.Minute, "the fabric is innocent again", c.innocent)
			// A delay that is there every other moment is usual, and no longer one that began.
			c.pass(40, nil)
		}
	}
	for _, by := range sizes {
		t.Logf("%v: %d of %d named", by, named[by], *shiftRounds)
	}
	c.silent(*shiftSilence)
}

// silent fails for each incident that begins in the span, and logs how often the network was innocent.
func (c *chain) silent(span time.Duration) {
	c.t.Helper()
	began, said := time.Now(), time.Now()
	looks, innocent := 0, 0
	verdicts := map[string]bool{}
	for time.Since(began) < span {
		for _, r := range c.analyzers {
			_, incidents := c.verdicts(r)
			for _, in := range incidents {
				if in.OpenedAt.After(began) && !verdicts[in.ID] {
					verdicts[in.ID] = true
					c.t.Errorf("%.0f s of silence: %s", time.Since(began).Seconds(), in.Summary)
				}
			}
		}
		if looks++; c.innocent() {
			innocent++
		}
		if time.Since(said) >= time.Minute || time.Since(began) >= span {
			said = time.Now()
			c.t.Logf("%.0f s of silence: innocent in %d of %d looks, %d verdicts", time.Since(began).Seconds(), innocent, looks, len(verdicts))
		}
		time.Sleep(500 * time.Millisecond)
	}
}
