package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// crossed returns the directions of links that a flow's last window was seen to cross.
func crossed(o *fabric.Observation) []fabric.Direction {
	e, err := o.ParseFlow()
	if err != nil || len(o.Path) == 0 {
		return nil
	}
	src, dst := e.Endpoints()
	return o.Path.LinkDirections(src, dst)
}

// late returns by how much the tail of a flow's last window exceeds the baseline: not every packet meets a queue that
// fills and drains.
func late(o *fabric.Observation) time.Duration {
	if o.OWD == nil || o.OWD.P99 == nil || o.Baseline == nil || o.Baseline.P99 == nil {
		return 0
	}
	return time.Duration(*o.OWD.P99 - *o.Baseline.P99)
}

// maintenance checks that a drained spine and a silenced link may have any fault: nothing pages, no verdict opens,
// and baselines stay as they were. With the work done and the fault gone the network is innocent. (The test of
// faults, which begins with the same two faults, checks that they page without an announcement.)
func (c *chain) maintenance() {
	t := c.t
	began := time.Now()
	dead, full := c.planned(lab.KindBlackhole, 1), c.planned(lab.KindCongest, 1)
	spine := ""
	for _, s := range c.l.Topology().Switches {
		if a, b, ok := fabric.SplitLink(dead.Element); ok && s.Role == "spine" && (fabric.OwnerOf(a) == s.Name || fabric.OwnerOf(b) == s.Name) {
			spine = s.Name
		}
	}
	if a, b, _ := fabric.SplitLink(full.Element); spine == "" || fabric.OwnerOf(a) == spine || fabric.OwnerOf(b) == spine {
		t.Fatalf("the silenced link %s is one of the drained spine %q: other seeds are needed", full.Element, spine)
	}
	covered := func(o *fabric.Observation) bool {
		return slices.ContainsFunc(crossed(o), func(d fabric.Direction) bool {
			return fabric.OwnerOf(d.From) == spine || fabric.OwnerOf(d.To) == spine || d.LinkID() == full.Element
		})
	}

	// Each analyzer has a register of its own.
	windows := map[*replica][]string{}
	for _, r := range c.analyzers {
		for _, element := range []string{spine, full.Element} {
			var w struct{ ID string }
			b := c.send(http.MethodPost, r, "/api/v1/maintenance", fmt.Sprintf(`{"element":%q,"by":"test","duration":"30m","reason":"show"}`, element), http.StatusCreated)
			if err := json.Unmarshal(b, &w); err != nil || w.ID == "" {
				t.Fatalf("maintenance of %s: %v: %s", element, err, b)
			}
			windows[r] = append(windows[r], w.ID)
		}
	}
	c.pass(2, nil)
	before := map[*replica]map[string]fabric.Observation{}
	for _, r := range c.analyzers {
		before[r] = c.observations(r)
	}
	faults := []string{c.fault(dead.Fault), c.fault(full.Fault)}
	defer func() {
		for _, id := range faults {
			c.heal(id)
		}
	}()
	felt := func() (lost, waits bool) {
		for _, o := range c.observations(c.analyzers[0]) {
			for _, d := range crossed(&o) {
				lost = lost || d.String() == dead.Direction && o.Sent > 0 && o.Lost*2 > o.Sent
				waits = waits || d.String() == full.Direction && late(&o) > time.Millisecond
			}
		}
		return lost, waits
	}
	c.wait(30*time.Second, "flows that cross "+dead.Direction+" are lost, and those that cross "+full.Direction+" late", func() bool {
		lost, waits := felt()
		return lost && waits
	})

	// A verdict needs four windows and two cycles at most, an alert a second more.
	quiet := func() {
		for _, r := range c.analyzers {
			if state, incidents := c.verdicts(r); state == fabric.Suspect || len(incidents) > 0 && incidents[0].OpenedAt.After(began) {
				t.Fatalf("%s: %s under maintenance: %+v", r.name, state, incidents[0].Verdict)
			}
		}
	}
	c.pass(12, quiet)
	if lost, waits := felt(); !lost || !waits {
		t.Errorf("the faults were not felt until the end (lost %t, late %t): the test shows nothing", lost, waits)
	}
	frozen := 0
	for _, r := range c.analyzers {
		now := c.observations(r)
		for edge, was := range before[r] {
			is, known := now[edge] // where probes are lost there are no replies
			if !known || !covered(&was) || was.Baseline == nil || was.Baseline.P50 == nil {
				continue
			}
			frozen++
			if is.Baseline == nil || is.Baseline.P50 == nil || *is.Baseline.P50 != *was.Baseline.P50 {
				t.Errorf("%s: what is normal of %s moved from %d ns", r.name, edge, *was.Baseline.P50)
			}
		}
	}
	if frozen == 0 {
		t.Error("no flow that crosses what is worked on has a baseline")
	}
	for _, id := range faults {
		c.heal(id)
	}
	faults = nil
	c.wait(30*time.Second, "flows are as before", func() bool {
		lost, waits := felt()
		return !lost && !waits
	})
	for r, ids := range windows {
		for _, id := range ids {
			c.send(http.MethodDelete, r, "/api/v1/maintenance/"+id, "", http.StatusNoContent)
		}
	}
	c.pass(6, quiet)
	c.wait(60*time.Second, "the network is innocent", c.innocent)
	quiet()
	for _, r := range c.analyzers {
		now := c.observations(r)
		for edge, was := range before[r] {
			is, ok := now[edge]
			if !ok || is.Baseline == nil || was.Baseline == nil || is.Baseline.P50 == nil || was.Baseline.P50 == nil {
				continue
			}
			if moved := time.Duration(*is.Baseline.P50 - *was.Baseline.P50); moved.Abs() > 500*time.Microsecond {
				t.Errorf("%s: what is normal of %s moved by %v over the maintenance", r.name, edge, moved)
			}
		}
	}
	if a := c.alerting(); len(a) > 0 {
		t.Errorf("Alertmanager has alerts about the fabric: %q", a)
	}
	for _, m := range c.messages(began) {
		if m.ofFabric() {
			t.Errorf("at the webhook under maintenance: %s", m)
		}
	}
	t.Logf("%s drained with %s dead, %s silenced and full: no verdict, no alert, %d baselines of %d analyzers as they were", spine, dead.Direction, full.Direction, frozen, len(c.analyzers))
}
