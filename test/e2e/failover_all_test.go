//go:build all

package e2e

import (
	"context"
	"flag"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

var (
	failoverTimes = flag.Int("failover.times", 5, "repetitions of TestFailoverTimes for each kind of timers")
	failoverBound = flag.Duration("failover.bound", 20*time.Millisecond, "how far a stated duration may be from the truth")
)

// routedDemo is a demo whose fabric FRR routes, with the truth about its packets.
type routedDemo struct {
	t *testing.T
	*demo.Demo
	truth *crossings
}

// startRouted starts a demo that FRR routes.
func startRouted(t *testing.T, name, file string, o demo.Options) *routedDemo {
	t.Helper()
	need(t)
	program(t, "vtysh")
	topo := loadTopology(t, file)
	o.Name, o.Topology, o.Routing = name, topo, lab.RoutingFRR
	d := startDemo(t, o)
	return &routedDemo{t, d, watchCrossings(t, d.Lab(), 8)}
}

// vtysh runs commands in the shell of a switch's daemons.
func (d *routedDemo) vtysh(sw string, commands ...string) string {
	d.t.Helper()
	args := []string{"--histfile", "/dev/null", "--vty_socket", d.Lab().VTYSockets(sw)}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	ctx, cancel := context.WithTimeout(d.t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "vtysh", args...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("vtysh of %s, %q: %v: %s", sw, commands, err, out)
	}
	return string(out)
}

// awaitRoutes waits until the kernel of each switch uses all shortest paths again, and the analyzer knows the path of each flow.
func (d *routedDemo) awaitRoutes() {
	d.t.Helper()
	said := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		s, err := d.Lab().Status(d.t.Context())
		if err != nil {
			d.t.Fatal(err)
		}
		said = ""
		for _, ns := range s.Namespaces {
			if ns.Routes != ns.RoutesWant {
				said += fmt.Sprintf(" %s has %d of %d routes;", ns.Element, ns.Routes, ns.RoutesWant)
			}
		}
		snap := d.Loop().Snapshot()
		if bound := snap.Paths[fabric.PathValid]; bound < snap.Expected {
			said += fmt.Sprintf(" %d of %d paths are bound", bound, snap.Expected)
		}
		if said == "" {
			return
		}
	}
	d.t.Fatalf("the fabric is not whole after a minute:%s", said)
}

// dropped returns how many packets a rule of a fault has dropped, by the kernel's counter.
func (d *routedDemo) dropped(f *lab.ActiveFault) (n uint64) {
	d.t.Helper()
	sw, _, _ := strings.Cut(f.Direction, ":")
	out, err := d.Lab().Command(d.t.Context(), sw, "iptables", "-t", "mangle", "-L", "POSTROUTING", "-n", "-v", "-x").CombinedOutput()
	if err != nil {
		d.t.Fatalf("counters of %s: %v: %s", sw, err, out)
	}
	line := regexp.MustCompile(`(?m)^\s*(\d+)\s.*graylink ` + f.ID + `\b`).FindSubmatch(out)
	if line == nil {
		d.t.Fatalf("no rule of %s at %s:\n%s", f.ID, sw, out)
	}
	n, err = strconv.ParseUint(string(line[1]), 10, 64)
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

// TestFailoverTimes: links lose everything in silence, in one direction and in both, and the verdict states how long routing
// took, for BFD of 3 times 100 ms and for a hold time of BGP of 3 s. The truth is by the kernel's counters and packet sockets.
func TestFailoverTimes(t *testing.T) {
	d := startRouted(t, "e2efo", "../../deploy/lab/demo.yaml", demo.Options{})
	// A verdict stays open for 30 s, so that a link fails again only after others did.
	t.Run("BFD", func(t *testing.T) {
		d.failovers(t, []string{"leaf2:up1->spine1:dn2", "spine1:dn3->leaf3:up1", "leaf4:up1->spine1:dn4", "leaf3:up2->spine2:dn3", "spine2:dn1->leaf1:up2"})
	})
	t.Run("hold time 3s", func(t *testing.T) {
		if _, err := d.Lab().AddFault(t.Context(), lab.Fault{Kind: lab.KindSlowConvergence, At: "spine1", Hold: 3 * time.Second}); err != nil {
			t.Fatal(err)
		}
		d.awaitNoFailover() // the sessions are reset
		d.failovers(t, []string{"spine1:dn1->leaf1:up1", "leaf2:up1->spine1:dn2", "spine1:dn3->leaf3:up1", "leaf4:up1->spine1:dn4", "leaf1:up1->spine1:dn1"})
	})
}

// awaitNoFailover waits until no failover was reported for five seconds.
func (d *routedDemo) awaitNoFailover() {
	d.t.Helper()
	quiet := time.Now()
	for deadline := quiet.Add(2 * time.Minute); time.Since(quiet) < 5*time.Second; time.Sleep(100 * time.Millisecond) {
		if slices.ContainsFunc(d.Loop().Snapshot().Incidents, func(in incident.Incident) bool { return in.Scenario == fabric.Convergence && in.Open }) {
			quiet = time.Now()
		}
		if time.Now().After(deadline) {
			d.t.Fatal("a failover is still reported after two minutes")
		}
	}
}

// failovers makes links lose everything in turn: every third one in both directions.
func (d *routedDemo) failovers(t *testing.T, links []string) {
	for i := range *failoverTimes {
		d.awaitRoutes()
		time.Sleep(3 * time.Second) // paths before the fault are known then, and the last failover's loss is over
		dir, err := fabric.ParseDirection(links[i%len(links)])
		if err != nil {
			t.Fatal(err)
		}
		dirs := []fabric.Direction{dir}
		if i%3 == 1 {
			dirs = append(dirs, dir.Reverse())
		}
		d.failover(t, dirs)
	}
}

// failover makes directions of a link lose everything, waits for the verdict, and compares what it states with the truth.
func (d *routedDemo) failover(t *testing.T, dirs []fabric.Direction) {
	t.Helper()
	d.truth.keep()
	time.Sleep(time.Second)
	before := time.Now()
	for _, x := range dirs {
		if _, err := d.Lab().AddFault(t.Context(), lab.Fault{Kind: lab.KindBlackhole, At: x.LinkID(), Direction: x.String(), Sessions: true}); err != nil {
			t.Fatal(err)
		}
	}
	var said *fabric.Verdict
	for deadline := time.Now().Add(30 * time.Second); said == nil && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if v := d.convergence(dirs[0].LinkID(), before); v != nil {
			time.Sleep(4 * time.Second) // flows whose new paths are learnt later are added
			said = d.convergence(dirs[0].LinkID(), before)
		}
	}
	counts := map[fabric.Direction]uint64{}
	faults, err := d.Lab().ActiveFaults()
	if err != nil {
		t.Fatal(err)
	}
	for i := range faults {
		f := &faults[i]
		if f.Kind != lab.KindBlackhole {
			continue
		}
		x, err := fabric.ParseDirection(f.Direction)
		if err != nil {
			t.Fatal(err)
		}
		counts[x] = d.dropped(f)
		if err := d.Lab().ClearFault(t.Context(), f.ID); err != nil {
			t.Fatal(err)
		}
	}
	kept := d.truth.taken(time.Now())
	d.compareFailover(t, said, dirs, counts, kept, before)
}

// convergence returns the verdict on a failover of a link that was opened after a moment.
func (d *routedDemo) convergence(link string, after time.Time) *fabric.Verdict {
	all := d.Loop().Snapshot().Incidents
	i := slices.IndexFunc(all, func(in incident.Incident) bool {
		return in.Scenario == fabric.Convergence && in.Element.ID == link && in.OpenedAt.After(after)
	})
	if i < 0 {
		return nil
	}
	return &all[i].Verdict
}

// compareFailover compares the durations that a verdict states with the times in which the packets of each direction's flows were lost.
func (d *routedDemo) compareFailover(t *testing.T, said *fabric.Verdict, dirs []fabric.Direction, counts map[fabric.Direction]uint64, kept []portEntry, before time.Time) {
	t.Helper()
	if said == nil {
		t.Errorf("%v: no verdict on the failover; the incidents are:", dirs)
		for _, in := range d.Loop().Snapshot().Incidents {
			t.Logf("  %s, open %v: %s", in.OpenedAt.Format(time.TimeOnly), in.Open, in.Summary)
		}
	} else {
		t.Logf("%v: %s", dirs, said.Summary)
	}
	lost := slices.DeleteFunc(d.truth.lostPackets(kept, time.Now().Add(-time.Second)), func(x portEntry) bool { return x.at < before.UnixNano() })
	for i, x := range dirs {
		other := ""
		if len(dirs) == 2 {
			other = dirs[1-i].To
		}
		o := outageOf(kept, lost, x.To, other, before)
		t.Logf("  %s: %d packets of %d flows were lost, each flow for %.1f ms (mean; %.1f to %.1f), at %v, and %d later; the rule dropped %d, which are %.1f ms at %.0f packets/s",
			x, o.packets, o.flows, o.mean.Seconds()*1e3, o.least.Seconds()*1e3, o.most.Seconds()*1e3, o.at, o.later, counts[x], float64(counts[x])/o.rate*1e3, o.rate)
		if said == nil {
			continue
		}
		n := slices.IndexFunc(said.Failovers, func(f fabric.Failover) bool { return f.Direction == x.String() })
		if n < 0 {
			t.Errorf("%s: the verdict has no duration: %+v", x, said.Failovers)
			continue
		}
		stated := time.Duration(said.Failovers[n].LossNS)
		t.Logf("  %s: %.1f ms is stated, by %d flows: off by %.1f ms", x, stated.Seconds()*1e3, said.Failovers[n].Flows, (stated-o.mean).Seconds()*1e3)
		if off := stated - o.mean; off.Abs() > *failoverBound {
			t.Errorf("%s: %s is stated, and the packets of a flow were lost for %s", x, stated, o.mean)
		}
	}
}

// outage is how long the flows of a direction of a link lost packets, by the packets themselves.
type outage struct {
	packets, flows    int
	rate              float64 // packets per second in the direction before
	mean, least, most time.Duration
	at                map[string]int // packets by the switch that had them last
	later             int            // packets that were lost after a pause
}

// outagePause ends an outage: a flow has a packet each 10 ms.
const outagePause = 100 * time.Millisecond

// outageOf returns the outage of the flows whose packets entered a port before a moment, by those that were lost after it. The probes of
// a flow that crosses another port are lost there, so that its replies are none that could be lost.
func outageOf(kept, lost []portEntry, port, other string, before time.Time) (o outage) {
	o.at = map[string]int{}
	rates, both := map[*packetFlow]float64{}, map[fabric.Flow]bool{}
	span := time.Duration(before.UnixNano() - kept[0].at).Seconds()
	for i := range kept {
		switch x := &kept[i]; {
		case x.at >= before.UnixNano():
		case x.port == port:
			rates[x.packetFlow] += 1 / span
		case x.port == other:
			both[x.ProbeFlow()] = true
		}
	}
	times := map[*packetFlow][]int64{}
	for i := range lost {
		if f := lost[i].packetFlow; rates[f] > 0 {
			times[f] = append(times[f], lost[i].at)
			o.at[fabric.OwnerOf(lost[i].port)]++
		}
	}
	var sum time.Duration
	for f, rate := range rates {
		o.rate += rate
		all := times[f]
		n := 1
		for n < len(all) && all[n]-all[n-1] < int64(outagePause) {
			n++
		}
		if both[f.ProbeFlow()] || len(all) < n {
			continue
		}
		o.later += len(all) - n
		lasted := time.Duration(all[n-1]-all[0]) + time.Duration(1e9/rate)
		o.packets, o.flows, sum, o.most = o.packets+n, o.flows+1, sum+lasted, max(o.most, lasted)
		if o.least == 0 || lasted < o.least {
			o.least = lasted
		}
	}
	if o.flows > 0 {
		o.mean = sum / time.Duration(o.flows)
	}
	return o
}
