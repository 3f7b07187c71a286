//go:build all

package e2e

import (
	"flag"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

var slowSpan = flag.Duration("slow.span", time.Minute, "time for which TestSlowNICInAFabric keeps a NIC slow")

// TestSlowNICInAFabric makes a NIC slow one way for minutes. From the verdict to the healing its identifier, direction and size
// stay as they are, and the bounds of all clocks hold, against the kernel's clock. Clock sync must not take the delay for an
// offset as the time before the fault is forgotten.
func TestSlowNICInAFabric(t *testing.T) {
	const delay, relay = 2 * time.Millisecond, 250 * time.Microsecond // the relay adds some of its own
	c := newChain(t, "e2esn", 1)
	r := c.analyzers[0]
	c.wait(3*time.Minute, "the fabric is innocent", c.innocent)
	bends := map[string]bend{}
	for _, n := range c.nodes() {
		bends[n] = c.bend(n)
	}
	truth := fabric.Element{ID: "h3/eth1", Kind: fabric.KindNIC}
	id := c.fault(lab.Fault{Kind: lab.KindNICSlow, At: truth.ID, Direction: lab.DirectionOut, Delay: delay})
	began := time.Now()
	var first incident.Incident
	c.wait(40*time.Second, "a verdict", func() (ok bool) {
		first, ok = c.openIncident(r)
		return ok
	})
	t.Logf("after %.1f s: %s %s %s, %d ns", time.Since(began).Seconds(), first.Kind, first.Element.ID, first.Direction, first.Symptom.AddedDelayNS)
	if first.Element != truth || first.Direction == "" {
		t.Fatalf("the verdict is on %+v, direction %q, want %+v one way", first.Element, first.Direction, truth)
	}
	least, most := first.Symptom.AddedDelayNS, first.Symptom.AddedDelayNS
	looked := 0
	w := c.watchClocks(bends, *slowSpan, func() {
		in, ok := c.openIncident(r)
		looked++
		switch {
		case !ok:
			t.Errorf("after %.0f s there is not one open verdict", time.Since(began).Seconds())
		case in.ID != first.ID || in.Element != truth || in.Direction != first.Direction:
			t.Errorf("after %.0f s: %s on %s %s, was %s on %s %s", time.Since(began).Seconds(), in.ID, in.Element.ID, in.Direction, first.ID, first.Element.ID, first.Direction)
		}
		if ok {
			least, most = min(least, in.Symptom.AddedDelayNS), max(most, in.Symptom.AddedDelayNS)
		}
	})
	c.truthful("a NIC is slow one way", w)
	t.Logf("%v: looked %d times; size between %d and %d ns", *slowSpan, looked, least, most)
	if low, high := int64(delay)*85/100, int64(delay+relay)*115/100; least < low || most > high {
		t.Errorf("size between %d and %d ns, want %d to %d", least, most, low, high)
	}
	c.heal(id)
	c.wait(3*time.Minute, "the fabric is innocent again", c.innocent)
}
