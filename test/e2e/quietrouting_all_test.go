//go:build all

package e2e

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
)

var (
	quietLasts = flag.Duration("quiet.lasts", 3*time.Minute, "for how long TestQuietRouting disturbs routing without loss")
	quietEvery = flag.Duration("quiet.every", 12*time.Second, "the time from one disturbance of TestQuietRouting to the next")
)

// TestQuietRouting disturbs routing in ways that lose no packet: sessions are refreshed, prefixes are announced anew with other
// attributes, links are taken out of the equal paths and put back by configuration, and sessions of such links are reset. No verdict
// is more than information. That nothing is lost is by the packets that enter the last switch.
func TestQuietRouting(t *testing.T) {
	d := startRouted(t, "e2eqr", "../../deploy/lab/demo.yaml", demo.Options{Cadence: 20 * time.Millisecond})
	d.awaitRoutes()
	d.preparePolicies()
	time.Sleep(5 * time.Second)
	began := time.Now()
	d.truth.keep()
	sent, lost := map[string]uint64{}, map[string]uint64{}
	changes, opened := d.quietChanges(), verdictLog{}
	for i := 0; time.Since(began) < *quietLasts; i++ {
		c := changes[i%len(changes)]
		at := time.Now()
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		opened.watch(d, at.Add(*quietEvery/2))
		if c.undo != nil {
			if err := c.undo(); err != nil {
				t.Fatal(err)
			}
		}
		opened.watch(d, at.Add(*quietEvery))
		judged := time.Now().Add(-time.Second)
		kept := d.truth.taken(judged)
		kind, _, _ := strings.Cut(c.name, " ")
		sent[kind] += uint64(len(kept))
		for sw, l := range d.truth.lossesOf(kept, judged) {
			t.Errorf("%s: lost at %s: %s", c.name, sw, l)
			lost[kind] += uint64(l.packets)
		}
	}
	opened.watch(d, time.Now().Add(10*time.Second))
	for kind, n := range sent {
		t.Logf("%-10s %d times that packets entered switches, %d packets were lost", kind, n, lost[kind])
	}
	severities := map[string]int{}
	for key, summary := range opened {
		severities[key.severity]++
		if key.severity != fabric.SeverityInfo {
			t.Errorf("a verdict of severity %s: %s", key.severity, summary)
		}
	}
	t.Logf("%s of routing without loss; verdicts by severity: %v", time.Since(began).Round(time.Second), severities)
}

// verdictLog has the summaries of all verdicts that were open.
type verdictLog map[openVerdict]string

// openVerdict is a verdict with a severity, which may change.
type openVerdict struct{ id, severity string }

// watch records the verdicts that are open until a moment.
func (l verdictLog) watch(d *routedDemo, until time.Time) {
	for time.Now().Before(until) {
		for _, v := range d.Loop().Snapshot().Report.Verdicts {
			l[openVerdict{v.ID, v.Severity}] = v.Summary
		}
		for _, in := range d.Loop().Snapshot().Incidents {
			l[openVerdict{in.ID, in.Severity}] = in.Summary
		}
		time.Sleep(min(200*time.Millisecond, max(0, time.Until(until))))
	}
}

// firstASN is the number of the autonomous system of a lab's first switch (docs/lab-routing.md), and foreignASN one that no switch has.
const firstASN, foreignASN = 4_200_000_001, 64_512

// preparePolicies gives each switch the route maps by which links are drained and prefixes are announced anew.
func (d *routedDemo) preparePolicies() {
	for i, sw := range d.Graph().Topo.Switches {
		d.vtysh(sw.Name, "configure terminal", "route-map drain-out permit 1", fmt.Sprintf("set as-path prepend %d", firstASN+i), "exit",
			"route-map drain-in permit 1", fmt.Sprintf("set as-path prepend %d", foreignASN), "exit",
			"route-map anew permit 1", fmt.Sprintf("set community %d:1", 1+i))
	}
}

// quietChanges returns disturbances that lose no packet: a pass over all links of leaves, and another one. A link is drained when its leaf
// makes the paths longer that it announces over it, and those that it accepts: others and the leaf itself have a shorter way then, and
// both ends still forward what comes. Only drained sessions are reset, and each link is drained once in a pass.
func (d *routedDemo) quietChanges() (out []routeChange) {
	run := func(sw string, commands ...string) func() error {
		return func() error { d.vtysh(sw, commands...); return nil }
	}
	bgp := func(sw string, lines ...string) func() error {
		return run(sw, append([]string{"configure terminal", "router bgp", "address-family ipv4 unicast"}, lines...)...)
	}
	for i := range 16 {
		sw, port, spine := fmt.Sprintf("leaf%d", i/2%4+1), fmt.Sprintf("up%d", i%2+1), fmt.Sprintf("spine%d", i%2+1)
		drain := bgp(sw, "neighbor "+port+" route-map drain-out out", "neighbor "+port+" route-map drain-in in")
		back := bgp(sw, "no neighbor "+port+" route-map drain-out out", "no neighbor "+port+" route-map drain-in in")
		link := routeChange{"drain " + sw + ":" + port, drain, back}
		if (i+i/8)%2 == 1 {
			link = routeChange{"reset " + sw + ":" + port, func() error {
				if err := drain(); err != nil {
					return err
				}
				time.Sleep(drainTime)
				return run(sw, "clear bgp "+port)()
			}, back}
		}
		out = append(out,
			routeChange{"refresh " + sw, run(sw, "clear bgp * soft"), nil},
			link,
			routeChange{"refresh " + spine, run(spine, "clear bgp * soft in"), run(spine, "clear bgp * soft out")},
			routeChange{"anew " + sw, bgp(sw, "neighbor fabric route-map anew out"), bgp(sw, "no neighbor fabric route-map anew out")},
			routeChange{"anew " + spine, bgp(spine, "neighbor fabric route-map anew out"), bgp(spine, "no neighbor fabric route-map anew out")},
		)
	}
	return out
}

// drainTime is more than routes take to leave a link that is drained.
const drainTime = 2 * time.Second
