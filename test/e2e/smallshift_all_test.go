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

var shiftRounds = flag.Int("shift.rounds", 1, "rounds of TestSmallShiftsInAFabric for each size")

// TestSmallShiftsInAFabric makes one direction of a link slower by less than its flows differ. This kernel has no queue that
// delays exactly, and a relay adds some 150 us by itself: so the relay stands in the link while the baselines are learnt,
// and its hold grows afterwards.
func TestSmallShiftsInAFabric(t *testing.T) {
	c := newChain(t, "e2es", 1)
	r := c.analyzers[0]
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	truth := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
	const hold = time.Microsecond
	id := c.fault(lab.Fault{Kind: lab.KindDelay, At: d.LinkID(), Direction: d.String(), Delay: hold})
	c.wait(3*time.Minute, "the fabric is innocent with the relay in the link", c.innocent)
	c.pass(30, nil) // the baselines have the relay's noise
	for _, by := range []time.Duration{200 * time.Microsecond, 100 * time.Microsecond, 50 * time.Microsecond} {
		named := 0
		for range *shiftRounds {
			began := time.Now()
			if err := c.l.ChangeDelay(t.Context(), id, hold+by); err != nil {
				t.Fatal(err)
			}
			var found []incident.Incident
			for time.Since(began) < 45*time.Second && len(found) == 0 {
				time.Sleep(500 * time.Millisecond)
				_, all := c.verdicts(r)
				found = slices.DeleteFunc(all, func(in incident.Incident) bool { return !in.Open })
			}
			for _, in := range found {
				right := in.Element == truth || slices.Contains(in.Equivalent, truth)
				if right {
					named++
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
			c.pass(5, nil)
		}
		t.Logf("%v: %d of %d named", by, named, *shiftRounds)
	}
}
