//go:build all

package e2e

import (
	"flag"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

var (
	fiveRounds = flag.Int("five.rounds", 2, "rounds of TestFiveFaultsInAFabric")
	fiveFirst  = flag.Int("five.first", 0, "first round of TestFiveFaultsInAFabric")
	fiveSeed   = flag.Uint64("five.seed", 5, "seed of the faults of TestFiveFaultsInAFabric")
)

// drawFaults draws five faults of different kinds at different switches and nodes of a fabric.
func drawFaults(rng *rand.Rand, topo *fabric.Topology) (faults []lab.Fault, truths []fabric.Element) {
	used := map[string]bool{}
	unused := func(owners ...string) bool {
		return !slices.ContainsFunc(owners, func(o string) bool { return used[o] })
	}
	add := func(f lab.Fault, e fabric.Element, owners ...string) {
		for _, o := range owners {
			used[o] = true
		}
		faults, truths = append(faults, f), append(truths, e)
	}
	links := rng.Perm(len(topo.Links))
	ofSwitches := func(f lab.Fault) {
		for _, i := range links {
			l := topo.Links[i]
			d := fabric.Direction{From: l.A, To: l.B}
			if rng.IntN(2) == 0 {
				d = d.Reverse()
			}
			if from, to := fabric.OwnerOf(d.From), fabric.OwnerOf(d.To); !l.IsAccess() && unused(from, to) {
				f.At, f.Direction = d.LinkID(), d.String()
				add(f, fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}, from, to)
				return
			}
		}
	}
	ofSwitches(lab.Fault{Kind: lab.KindDelay, Delay: 2 * time.Millisecond})
	ofSwitches(lab.Fault{Kind: lab.KindLoss, Loss: 0.2})
	nodes := rng.Perm(len(topo.Nodes))
	ofNIC := func(f lab.Fault, kind fabric.Kind) {
		for _, i := range nodes {
			nic := topo.Nodes[i].Name + "/" + topo.Nodes[i].NICs[0].Device
			if unused(topo.Nodes[i].Name) {
				f.At = nic
				add(f, fabric.Element{ID: nic, Kind: kind}, topo.Nodes[i].Name)
				return
			}
		}
	}
	ofNIC(lab.Fault{Kind: lab.KindNICSlow, Direction: lab.DirectionOut, Delay: 2 * time.Millisecond}, fabric.KindNIC)
	ofNIC(lab.Fault{Kind: lab.KindNICSlow, Direction: lab.DirectionIn, Delay: 3 * time.Millisecond}, fabric.KindNIC)
	for _, i := range links { // a NIC's cable
		l := topo.Links[i]
		nic := l.A
		if !fabric.IsNIC(nic) {
			nic = l.B
		}
		if node := fabric.OwnerOf(nic); l.IsAccess() && unused(node) {
			d := fabric.Direction{From: l.A, To: l.B}
			add(lab.Fault{Kind: lab.KindLoss, At: d.LinkID(), Direction: d.String(), Loss: 0.15}, fabric.Element{ID: d.LinkID(), Kind: fabric.KindAccessLink}, node)
			break
		}
	}
	return faults, truths
}

// TestFiveFaultsInAFabric brings about five faults of different kinds at once: a link that delays, one that loses, a NIC that is
// slow one way and one that is slow the other way, and a cable of a NIC that loses. All of them are named or listed as an
// equivalent, and nothing else is. (A clock that steps in the same seconds is named when it is certain that the delays have not
// dragged it, half a minute later.)
func TestFiveFaultsInAFabric(t *testing.T) {
	c := newChain(t, "e2e5", 1)
	r := c.analyzers[0]
	c.wait(3*time.Minute, "the fabric is innocent", c.innocent)
	rng := rand.New(rand.NewPCG(*fiveSeed, 5))
	right, wrong, missed := 0, 0, 0
	for round := range *fiveRounds {
		faults, truths := drawFaults(rng, c.l.Topology())
		if round < *fiveFirst {
			continue
		}
		began := time.Now()
		var ids []string
		for _, f := range faults {
			ids = append(ids, c.fault(f))
		}
		namedBy := func(in incident.Incident, truth fabric.Element) bool {
			return in.Element == truth || slices.Contains(in.Equivalent, truth)
		}
		seen := map[string]incident.Incident{} // by the identifier: what was said at any time counts
		count := func() (named int) {
			_, all := c.verdicts(r)
			for _, in := range all {
				if in.OpenedAt.After(began) {
					seen[in.ID] = in
				}
			}
			for _, truth := range truths {
				for _, in := range seen {
					if namedBy(in, truth) {
						named++
						break
					}
				}
			}
			return named
		}
		for time.Since(began) < 40*time.Second && count() < len(truths) {
			time.Sleep(500 * time.Millisecond)
		}
		took := time.Since(began)
		c.pass(5, nil) // more may be said
		named := count()
		right, missed = right+named, missed+len(truths)-named
		for _, in := range seen {
			if !slices.ContainsFunc(truths, func(e fabric.Element) bool { return namedBy(in, e) }) {
				wrong++
				t.Logf("wrong: %s %s %s, %v: %s", in.Kind, in.Element.ID, in.Scenario, in.Equivalent, in.Summary)
				for _, edge := range in.Edges {
					if o, ok := c.observations(r)[edge]; ok && o.OWD != nil && o.OWD.P50 != nil && o.Baseline != nil {
						t.Logf("  %s by %v: %d ns, usually %d", edge, o.Path, *o.OWD.P50, *o.Baseline.P50)
					}
				}
			}
		}
		t.Logf("round %d: %d of %d named after %.1f s: %+v", round, named, len(truths), took.Seconds(), truths)
		for _, truth := range truths {
			if !slices.ContainsFunc(slices.Collect(maps.Values(seen)), func(in incident.Incident) bool { return namedBy(in, truth) }) {
				t.Logf("missed: %+v", truth)
			}
		}
		for _, id := range ids {
			c.heal(id)
		}
		c.wait(3*time.Minute, "the fabric is innocent again", c.innocent)
		c.pass(5, nil)
	}
	t.Logf("%d right, %d wrong, %d missed: precision %.3f, recall %.3f", right, wrong, missed, float64(right)/float64(right+wrong), float64(right)/float64(right+missed))
	if float64(right) < 0.98*float64(right+wrong) || float64(right) < 0.95*float64(right+missed) {
		t.Errorf("%d right, %d wrong, %d missed", right, wrong, missed)
	}
}
