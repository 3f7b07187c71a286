//go:build all

package e2e

import (
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

var (
	routingSeeds = flag.String("routing.seeds", "1..1", "seeds of TestRoutingFaults and TestFaultsOnFRR, A..B")
	routingKinds = flag.String("routing.kinds", "", "kinds of faults of TestRoutingFaults or TestFaultsOnFRR, separated by commas; all if empty")
	routedTiers  = flag.String("routing.fabrics", "two,three", "fabrics of TestRoutingFaults and TestFaultsOnFRR: two tiers, three tiers")
)

// routedFabrics are topologies that FRR routes, by how many tiers they have.
var routedFabrics = map[string]string{"two": "../../deploy/lab/demo.yaml", "three": "../../internal/lab/testdata/clos3.yaml"}

// runRouted runs a demo for every seed on a fabric that FRR routes, with every kind of fault, and returns the outcomes.
func runRouted(t *testing.T, tiers string, kinds []string) (out []demo.Outcome) {
	t.Helper()
	from, to, err := demo.ParseSeeds(*routingSeeds)
	if err != nil {
		t.Fatal(err)
	}
	topology, err := filepath.Abs(routedFabrics[tiers])
	if err != nil {
		t.Fatal(err)
	}
	if *routingKinds != "" {
		kinds = strings.Split(*routingKinds, ",")
	}
	name := "e2ero" + tiers
	for seed := from; seed <= to; seed++ {
		stdout, stderr, code := graylink(t, "demo", "--name", name, "--web.listen-address", "127.0.0.1:0", "--format", "json", "--routing", "frr", "--topology", topology,
			"--seed", fmt.Sprint(seed), "--fault", strings.Join(kinds, ","))
		clean(t, name)
		if code != 0 && code != 2 {
			t.Fatalf("seed %d: exit code %d:\n%s", seed, code, stderr)
		}
		t.Logf("seed %d:\n%s", seed, stderr)
		out = append(out, outcomes(t, stdout)...)
	}
	return out
}

// tally counts what is right of the outcomes of a kind of fault.
type tally struct {
	runs, elements, scenarios, others, cleared int
	seconds                                    []float64
}

// tallyOutcomes counts by kind, and logs what is not right.
func tallyOutcomes(t *testing.T, out []demo.Outcome) (kinds []string, of map[string]*tally) {
	t.Helper()
	of = map[string]*tally{}
	for _, o := range out {
		where := fmt.Sprintf("%s seed %d at %s %s", o.Fault.Kind, o.Seed, o.Fault.Element, o.Fault.Direction)
		c := of[o.Fault.Kind]
		if c == nil {
			c = &tally{}
			of[o.Fault.Kind] = c
			kinds = append(kinds, o.Fault.Kind)
		}
		c.runs++
		said := "no verdict"
		if o.Verdict != nil {
			said = fmt.Sprintf("%s %s: %s", o.Verdict.Element.ID, o.Verdict.Scenario, o.Verdict.Summary)
		}
		if o.ElementMatch {
			c.elements++
		} else {
			t.Logf("missed: %s: %s", where, said)
		}
		if o.ScenarioMatch {
			c.scenarios++
		} else {
			t.Logf("scenario: %s: %s", where, said)
		}
		for _, v := range o.FalseVerdicts {
			if v.Scenario.IsRouting() && v.Severity == fabric.SeverityInfo {
				continue
			}
			c.others++
			t.Logf("besides: %s: %s %s: %s", where, v.Element.ID, v.Scenario, v.Summary)
		}
		if o.SecondsToVerdict != nil {
			c.seconds = append(c.seconds, *o.SecondsToVerdict)
		}
		if o.SecondsToClear != nil || o.Fault.Kind == lab.KindMute || o.Fault.Kind == lab.KindHostStall {
			c.cleared++
		} else {
			t.Logf("no all-clear: %s", where)
		}
	}
	return kinds, of
}

// judgeRouted fails a test in which less than a share of the elements or scenarios are right, or another part is blamed.
func judgeRouted(t *testing.T, out []demo.Outcome, share float64) {
	t.Helper()
	kinds, of := tallyOutcomes(t, out)
	var lines []string
	runs, elements, scenarios := 0, 0, 0
	for _, kind := range kinds {
		c := of[kind]
		runs, elements, scenarios = runs+c.runs, elements+c.elements, scenarios+c.scenarios
		lines = append(lines, fmt.Sprintf("%-16s runs %2d  element %2d  scenario %2d  others %d  cleared %2d  verdict median %.1f s, max %.1f s",
			kind, c.runs, c.elements, c.scenarios, c.others, c.cleared, percentile(c.seconds, 0.5), percentile(c.seconds, 1)))
		if c.others > 0 {
			t.Errorf("%s: %d verdicts besides", kind, c.others)
		}
		if c.cleared < c.runs {
			t.Errorf("%s: %d of %d ended", kind, c.cleared, c.runs)
		}
	}
	t.Log("\n" + strings.Join(lines, "\n"))
	if float64(elements) < share*float64(runs) || float64(scenarios) < share*float64(runs) {
		t.Errorf("of %d faults, %d elements and %d scenarios are right, want %g of each", runs, elements, scenarios, share)
	}
}

// TestRoutingFaults lets FRR route two fabrics, and makes the faults that only routing makes: each is named, and no part is blamed for
// what routing did.
func TestRoutingFaults(t *testing.T) {
	need(t)
	for _, tiers := range strings.Split(*routedTiers, ",") {
		t.Run(tiers, func(t *testing.T) {
			kinds := lab.RoutingFaultKinds()
			if tiers == "two" { // on each path one switch chooses
				kinds = slices.DeleteFunc(kinds, func(kind string) bool { return kind == lab.KindPolarized })
			}
			judgeRouted(t, runRouted(t, tiers, kinds), 0.95)
		})
	}
}

// TestFaultsOnFRR makes the faults of parts, hosts and clocks on fabrics that FRR routes. They are named as on static routes.
func TestFaultsOnFRR(t *testing.T) {
	need(t)
	for _, tiers := range strings.Split(*routedTiers, ",") {
		t.Run(tiers, func(t *testing.T) {
			judgeRouted(t, runRouted(t, tiers, lab.FaultKinds()), 0.95)
		})
	}
}

// besideKinds are the faults of routing beside which TestFaultBesideRouting makes a fault of a link, in turn.
var besideKinds = []string{lab.KindWithdrawn, lab.KindBGPFlap, lab.KindBlackholeFIB, lab.KindECMPShrunk, lab.KindWrongASPath, lab.KindBFDFalse}

// TestFaultBesideRouting makes a fault of routing and a fault of a link at the same time, at another switch. Both are named in nine of
// ten cases, and nothing else is.
func TestFaultBesideRouting(t *testing.T) {
	need(t)
	from, to, err := demo.ParseSeeds(*routingSeeds)
	if err != nil {
		t.Fatal(err)
	}
	for _, tiers := range strings.Split(*routedTiers, ",") {
		t.Run(tiers, func(t *testing.T) { faultsBesideRouting(t, tiers, from, to) })
	}
}

func faultsBesideRouting(t *testing.T, tiers string, from, to uint64) {
	topo := loadTopology(t, routedFabrics[tiers])
	name := "e2erb" + tiers
	d := startDemo(t, demo.Options{Name: name, Topology: topo, Fabric: demo.Namespaces, Routing: lab.RoutingFRR})
	runs, both, others := 0, 0, 0
	last := ""
	flapped := map[string]time.Time{} // links whose sessions flapped, which may be said again for five minutes
	for seed := from; seed <= to; seed++ {
		for i, kind := range besideKinds {
			if (int(seed)+i)%2 == 0 { //nolint:gosec // a small number
				continue // half of the kinds with each seed
			}
			routed, link := planPair(t, d.Graph(), kind, []string{lab.KindDelay, lab.KindLoss, lab.KindBlackhole}[(int(seed)+i/2)%3], seed, last)
			last = link.Element
			runs++
			missed, extra := runPair(t, d, routed, link)
			if missed == "" {
				both++
			} else {
				t.Logf("seed %d: %s at %s and %s at %s: not named: %s", seed, kind, routed.Fault.At, link.Fault.Kind, link.Direction, missed)
			}
			for _, v := range extra {
				if at, did := flapped[v.Element.ID]; did && v.Scenario == fabric.RoutingFault && time.Since(at) < 5*time.Minute {
					t.Logf("seed %d: %s is named again: %s", seed, v.Element.ID, v.Summary)
					continue
				}
				others++
				t.Logf("seed %d: %s at %s and %s at %s: besides: %s %s: %s", seed, kind, routed.Fault.At, link.Fault.Kind, link.Direction, v.Element.ID, v.Scenario, v.Summary)
			}
			if kind == lab.KindBGPFlap || kind == lab.KindBFDFalse {
				flapped[routed.Element] = time.Now()
			}
			if err := d.AwaitSteadyState(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("both named in %d of %d, %d others", both, runs, others)
	if both*10 < runs*9 || others*10 > runs {
		t.Errorf("of %d pairs of faults, both were named in %d, and there were %d others", runs, both, others)
	}
}

// planPair plans a fault of routing, and one of a link at other switches, which flows go on crossing. The link is another than the last
// one: what fails again within a minute flaps.
func planPair(t *testing.T, g *fabric.Graph, kind, linkKind string, seed uint64, last string) (routed, link demo.PlannedFault) {
	t.Helper()
	p := demo.Params{Delay: 2 * time.Millisecond, Loss: 0.1}
	routed, err := demo.PlanFault(g, kind, seed, p)
	if err != nil {
		t.Fatal(err)
	}
	near := map[string]bool{routed.Element: true}
	if a, b, ok := fabric.SplitLink(routed.Element); ok {
		near[fabric.OwnerOf(a)], near[fabric.OwnerOf(b)] = true, true
	}
	for other := seed; ; other++ {
		if link, err = demo.PlanFault(g, linkKind, other, p); err != nil {
			t.Fatal(err)
		}
		if a, b, ok := fabric.SplitLink(link.Element); ok && link.Element != last && !near[fabric.OwnerOf(a)] && !near[fabric.OwnerOf(b)] {
			return routed, link
		}
	}
}

// logState logs what the analyzer thinks at this moment.
func logState(t *testing.T, d *demo.Demo) {
	t.Helper()
	s := d.Loop().Snapshot()
	t.Logf("state %s; flows %+v; %d of %d baselines; %d pending; paths %v; hosts %v; error %q", s.Report.State, s.Report.Edges, s.Baselines, s.Expected, s.Pending, s.Paths, s.Hosts, s.CycleError)
	for i := range s.Incidents {
		if in := &s.Incidents[i]; in.Open {
			t.Logf("  open since %s: %s %s %s, %s", in.OpenedAt.Format(time.TimeOnly), in.Element.ID, in.Direction, in.Scenario, in.Summary)
		}
	}
	for i := range s.Report.Candidates {
		c := &s.Report.Candidates[i]
		t.Logf("  candidate %s %s, probability %.2f, %d flows, equivalents %v, rivals %v", c.ID, c.Direction, c.Probability, c.Edges, c.Equivalent, c.Rivals)
	}
}

// runPair makes both faults, waits for both verdicts and then for their end, and returns what was not named and what was besides.
func runPair(t *testing.T, d *demo.Demo, routed, link demo.PlannedFault) (missed string, extra []fabric.Verdict) {
	t.Helper()
	before := time.Now()
	for _, p := range []demo.PlannedFault{routed, link} {
		if _, err := d.Lab().AddFault(t.Context(), p.Fault); err != nil {
			t.Fatal(err)
		}
	}
	opened := func() (routedNamed, linkNamed bool) {
		extra = nil
		for _, in := range d.Loop().Snapshot().Incidents {
			if !in.OpenedAt.After(before) {
				continue
			}
			v := &in.Verdict
			isRouted, isLink := routed.NamedBy(v) && routed.ScenarioRight(v), link.NamedBy(v) && link.ScenarioRight(v)
			routedNamed, linkNamed = routedNamed || isRouted, linkNamed || isLink
			if !routed.NamedBy(v) && !link.NamedBy(v) && !(v.Scenario.IsRouting() && v.Severity == fabric.SeverityInfo) {
				extra = append(extra, in.Verdict)
			}
		}
		return routedNamed, linkNamed
	}
	routedNamed, linkNamed := opened()
	for time.Since(before) < 45*time.Second && !(routedNamed && linkNamed) {
		time.Sleep(200 * time.Millisecond)
		routedNamed, linkNamed = opened()
	}
	if !routedNamed || !linkNamed {
		logState(t, d)
	}
	if err := d.Lab().ClearFault(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	healed := time.Now()
	for s := d.Loop().Snapshot(); s.At.Before(healed.Add(4*time.Second)) || len(s.Report.Verdicts) > 0; s = d.Loop().Snapshot() {
		if time.Since(healed) > 90*time.Second {
			t.Errorf("no all-clear after %s at %s and %s at %s", routed.Fault.Kind, routed.Fault.At, link.Fault.Kind, link.Direction)
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	opened()
	if !routedNamed {
		missed = routed.Element
	}
	if !linkNamed {
		missed = strings.TrimSpace(missed + " " + link.Element)
	}
	return missed, extra
}
