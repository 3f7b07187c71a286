//go:build all

package e2e

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

var (
	srv6Seeds   = flag.String("srv6.seeds", "1..1", "seeds of TestSourceRoutedFaults and TestTwoSourceRoutedFaults, A..B")
	srv6Kinds   = flag.String("srv6.kinds", "", "kinds of faults of TestSourceRoutedFaults, separated by commas; all if empty")
	srv6Silence = flag.Duration("srv6.silence", 5*time.Minute, "how long TestSourceRoutedSilence takes")
)

// srv6FaultKinds are the faults of links, switches and NICs that act on packets whose hosts choose their path, with the time in
// which each has to be named. A flap takes a few cycles, and where cables are is reported every few seconds.
var srv6FaultKinds = []struct {
	kind   string
	within time.Duration
}{
	{lab.KindDelay, 5 * time.Second},
	{lab.KindLoss, 5 * time.Second},
	{lab.KindBlackhole, 5 * time.Second},
	{lab.KindECN, 5 * time.Second},
	{lab.KindLinkDown, 5 * time.Second},
	{lab.KindNICSlow, 5 * time.Second},
	{lab.KindSwitchSlow, 5 * time.Second},
	{lab.KindSIDUnknown, 5 * time.Second},
	{lab.KindCongest, 15 * time.Second},
	{lab.KindIncast, 15 * time.Second},
	{lab.KindFlap, 30 * time.Second},
	{lab.KindMiscable, 30 * time.Second},
}

// srv6Demo starts the demo on a fabric whose hosts choose paths.
func srv6Demo(t *testing.T, name string) *demo.Demo {
	t.Helper()
	topo := loadTopology(t, "../../deploy/lab/srv6.yaml")
	return startDemo(t, demo.Options{Name: name, Topology: topo, Fabric: demo.Namespaces, Seed: 1, Progress: testLog{t}})
}

// otherEquivalents returns the equivalents that a verdict lists, without those that the same packets cross in any fabric: the ports at
// the ends of a link, and the link and the port of a NIC.
func otherEquivalents(v *fabric.Verdict, p *demo.PlannedFault) (out []string) {
	for _, e := range v.Equivalent {
		same := e.Kind == fabric.KindPort && (v.Kind == fabric.KindLink || v.Kind == fabric.KindNIC) || e.Kind == fabric.KindAccessLink && v.Kind == fabric.KindNIC ||
			e.ID == p.OtherLink // the other one of two cables that are swapped
		if !same {
			out = append(out, fmt.Sprintf("%s %s", e.Kind, e.ID))
		}
	}
	return out
}

// TestSourceRoutedFaults makes one fault of each kind on a fabric whose hosts choose paths, for each seed. Each is named, without
// equivalents and in time, and nothing else is.
func TestSourceRoutedFaults(t *testing.T) {
	need(t)
	from, to, err := demo.ParseSeeds(*srv6Seeds)
	if err != nil {
		t.Fatal(err)
	}
	d := srv6Demo(t, "e2esrv6f")
	var lines []string
	for _, k := range srv6FaultKinds {
		if *srv6Kinds != "" && !slices.Contains(strings.Split(*srv6Kinds, ","), k.kind) {
			continue
		}
		var out []demo.Outcome
		for seed := from; seed <= to; seed++ {
			if err := d.AwaitSteadyState(t.Context()); err != nil {
				t.Fatal(err)
			}
			p, err := demo.PlanFault(d.Graph(), k.kind, seed, demo.Params{Delay: 2 * time.Millisecond, Loss: 0.1})
			if err != nil {
				t.Fatal(err)
			}
			o, err := d.RunFault(t.Context(), p, seed, 30*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, o)
			where := fmt.Sprintf("%s seed %d at %s %s", k.kind, seed, p.Element, p.Direction)
			if o.Verdict == nil || !o.ElementMatch {
				continue // tallyOutcomes says so
			}
			if more := otherEquivalents(o.Verdict, &p); len(more) > 0 {
				t.Errorf("%s: equivalents %q", where, more)
			}
			if took := time.Duration(*o.SecondsToVerdict * float64(time.Second)); took > k.within {
				t.Errorf("%s: named after %s, want %s", where, took.Round(100*time.Millisecond), k.within)
			}
			if !o.DirectionMatch {
				t.Errorf("%s: direction %q", where, o.Verdict.Direction)
			}
		}
		_, of := tallyOutcomes(t, out)
		c := of[k.kind]
		lines = append(lines, fmt.Sprintf("%-12s runs %2d  element %2d  scenario %2d  others %d  cleared %2d  verdict median %.1f s, max %.1f s",
			k.kind, c.runs, c.elements, c.scenarios, c.others, c.cleared, percentile(c.seconds, 0.5), percentile(c.seconds, 1)))
		if c.elements < c.runs || c.scenarios < c.runs || c.others > 0 || c.cleared < c.runs {
			t.Errorf("%s: %+v", k.kind, *c)
		}
	}
	t.Log("\n" + strings.Join(lines, "\n"))
}

// srv6Pairs are the kinds of faults that TestTwoSourceRoutedFaults makes at the same time, in turn.
var srv6Pairs = [][2]string{{lab.KindLoss, lab.KindDelay}, {lab.KindBlackhole, lab.KindLoss}, {lab.KindSIDUnknown, lab.KindDelay}, {lab.KindNICSlow, lab.KindBlackhole}, {lab.KindDelay, lab.KindDelay}}

// TestTwoSourceRoutedFaults makes two faults at once at different places. Both are named without equivalents, and nothing else is.
func TestTwoSourceRoutedFaults(t *testing.T) {
	need(t)
	from, to, err := demo.ParseSeeds(*srv6Seeds)
	if err != nil {
		t.Fatal(err)
	}
	d := srv6Demo(t, "e2esrv6t")
	for seed := from; seed <= to; seed++ {
		for _, kinds := range srv6Pairs {
			if err := d.AwaitSteadyState(t.Context()); err != nil {
				t.Fatal(err)
			}
			one, two := planTwo(t, d.Graph(), kinds, seed)
			where := fmt.Sprintf("seed %d: %s at %s %s and %s at %s %s", seed, kinds[0], one.Fault.At, one.Direction, kinds[1], two.Fault.At, two.Direction)
			before := time.Now()
			missed, extra := runPair(t, d, one, two)
			if missed != "" {
				t.Errorf("%s: not named: %s", where, missed)
			}
			for _, v := range extra {
				t.Errorf("%s: besides: %s %s: %s", where, v.Element.ID, v.Scenario, v.Summary)
			}
			for _, in := range d.Loop().Snapshot().Incidents {
				if !in.OpenedAt.After(before) {
					continue
				}
				t.Logf("%s: %s after %.1f s", where, in.Element.ID, in.OpenedAt.Sub(before).Seconds())
				if more := otherEquivalents(&in.Verdict, &demo.PlannedFault{}); len(more) > 0 {
					t.Errorf("%s: %s has equivalents %q", where, in.Element.ID, more)
				}
			}
		}
	}
}

// planTwo plans two faults of these kinds that share no switch and no NIC.
func planTwo(t *testing.T, g *fabric.Graph, kinds [2]string, seed uint64) (one, two demo.PlannedFault) {
	t.Helper()
	p := demo.Params{Delay: 2 * time.Millisecond, Loss: 0.1}
	plan := func(kind string, seed uint64) demo.PlannedFault {
		f, err := demo.PlanFault(g, kind, seed, p)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	// placesOf returns the switches that a fault is at.
	placesOf := func(f demo.PlannedFault) []string {
		if a, b, ok := fabric.SplitLink(f.Element); ok {
			return []string{fabric.OwnerOf(a), fabric.OwnerOf(b)}
		}
		if f.Kind == fabric.KindNIC {
			leaf, _ := g.LeafOf(f.Element)
			return []string{leaf}
		}
		first, second, _ := strings.Cut(f.Fault.At, "->")
		return []string{first, second}
	}
	one = plan(kinds[0], seed)
	for other := seed + 1; other < seed+1000; other++ {
		two = plan(kinds[1], other)
		near := placesOf(one)
		if !slices.ContainsFunc(placesOf(two), func(sw string) bool { return slices.Contains(near, sw) }) {
			return one, two
		}
	}
	t.Fatalf("no place for %s beside %s at %s", kinds[1], kinds[0], one.Element)
	return one, two
}

// TestSourceRoutedSilence lets a fabric whose hosts choose paths run without a fault. No verdict opens.
func TestSourceRoutedSilence(t *testing.T) {
	need(t)
	d := srv6Demo(t, "e2esrv6s")
	p, err := demo.PlanFault(d.Graph(), demo.KindNone, 1, demo.Params{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := d.RunFault(t.Context(), p, 1, *srv6Silence)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range out.FalseVerdicts {
		t.Errorf("%s %s: %s", v.Element.ID, v.Scenario, v.Summary)
	}
	if strays := d.Loop().PathStore().Strays(); len(strays) > 0 {
		t.Errorf("traces contradict the chosen paths of %d flows, the first is %+v", len(strays), strays[0])
	}
}
