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
	"github.com/graylink/graylink/internal/lab"
)

var (
	spraySeeds   = flag.String("spray.seeds", "1..1", "seeds of TestFaultsOfASprayedFabric, A..B")
	spraySilence = flag.Duration("spray.silence", time.Minute, "how long TestFaultsOfASprayedFabric listens before the first fault")
)

// Bounds of TestFaultsOfASprayedFabric: the time to a verdict, and the percentage of the runs of a fault whose verdict is right.
const (
	sprayVerdictWithin = 15 * time.Second
	sprayRightPercent  = 90
)

// sprayedFault is a fault of TestFaultsOfASprayedFabric, with what its runs showed.
type sprayedFault struct {
	name, kind string
	params     demo.Params
	// named counts the runs whose verdict names the element, and listed those whose verdict has it among its equivalents.
	runs, named, listed, scenarios, directions, falseOnes, late int
	seconds, clear                                              []float64
	// equivalents are the largest number of elements that a right verdict lists.
	equivalents int
}

// TestFaultsOfASprayedFabric injects faults of one link direction or NIC in a fabric of four spines that sprays real packets, one at a
// time, at places that seeds choose. A right verdict names the element, or lists it as an equivalent; the table has both apart. Nothing
// else may be named, and nothing at all before the first fault.
func TestFaultsOfASprayedFabric(t *testing.T) {
	need(t)
	from, to, err := demo.ParseSeeds(*spraySeeds)
	if err != nil {
		t.Fatal(err)
	}
	topo := loadTopology(t, "../../deploy/lab/spray.yaml")
	d := startDemo(t, demo.Options{Name: "e2esf", Topology: topo, Fabric: demo.Namespaces, Seed: from, Progress: testLog{t}})
	flowsAreSprayed(t, d)
	listenFor(t, d, *spraySilence)
	faults := []*sprayedFault{
		{name: "loss 2 %", kind: lab.KindLoss, params: demo.Params{Loss: 0.02}},
		{name: "loss 10 %", kind: lab.KindLoss, params: demo.Params{Loss: 0.1}},
		{name: "delay 2 ms", kind: lab.KindDelay, params: demo.Params{Delay: 2 * time.Millisecond}},
		{name: "blackhole", kind: lab.KindBlackhole},
		{name: "nic-slow 2 ms", kind: lab.KindNICSlow, params: demo.Params{Delay: 2 * time.Millisecond}},
	}
	for seed := from; seed <= to; seed++ {
		for _, f := range faults {
			f.runOnce(t, d, seed)
		}
	}
	t.Log(sprayedTable(faults))
	for _, f := range faults {
		if (f.named+f.listed)*100 < sprayRightPercent*f.runs || f.falseOnes > 0 || f.late > 0 {
			t.Errorf("%s: %d of %d runs are right, want %d %%; %d false verdicts, %d verdicts later than %s", f.name, f.named+f.listed, f.runs,
				sprayRightPercent, f.falseOnes, f.late, sprayVerdictWithin)
		}
	}
}

// listenFor checks that nothing is named for a time.
func listenFor(t *testing.T, d *demo.Demo, span time.Duration) {
	t.Helper()
	start := time.Now()
	for time.Since(start) < span {
		time.Sleep(time.Second)
		if all := d.Loop().Snapshot().Incidents; len(all) > 0 {
			x := &all[0]
			t.Fatalf("after %.0f s without a fault, %s %s is named: %s: %s", time.Since(start).Seconds(), x.Kind, x.Element.ID, x.Scenario, x.Summary)
		}
	}
	t.Logf("nothing was named in %s without a fault", span)
}

// runOnce injects the fault where a seed says, and counts what is said of it.
func (f *sprayedFault) runOnce(t *testing.T, d *demo.Demo, seed uint64) {
	t.Helper()
	p, err := demo.PlanFault(d.Graph(), f.kind, seed, f.params)
	if err != nil {
		t.Fatal(err)
	}
	out, err := d.RunFault(t.Context(), p, seed, 45*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	said := "nothing"
	f.runs++
	f.falseOnes += len(out.FalseVerdicts)
	if v := out.Verdict; v != nil {
		said = fmt.Sprintf("%s %s %s, %s, %d equivalents", v.Kind, v.Element.ID, v.Direction, v.Scenario, len(v.Equivalent))
		if s := v.Shares; s != nil {
			said += fmt.Sprintf(", %.3g to %.3g of the packets of %d flows", s.Least, s.Most, s.SprayedEdges)
		}
	}
	named, listed := out.Verdict != nil && p.NamedBy(out.Verdict), p.ListedBy(out.Verdict)
	switch {
	case named:
		f.named++
	case listed:
		f.listed++
	}
	if named || listed {
		f.equivalents = max(f.equivalents, len(out.Verdict.Equivalent))
		if out.ScenarioMatch {
			f.scenarios++
		}
		if out.DirectionMatch {
			f.directions++
		}
	}
	if s := out.SecondsToVerdict; s != nil {
		if named || listed {
			f.seconds = append(f.seconds, *s)
		}
		if *s > sprayVerdictWithin.Seconds() {
			f.late++
		}
		said = fmt.Sprintf("after %.1f s: %s", *s, said)
	}
	if s := out.SecondsToClear; s != nil {
		f.clear = append(f.clear, *s)
	}
	t.Logf("%s seed %d, %s %s: %s", f.name, seed, p.Element, p.Direction, said)
	for _, v := range out.FalseVerdicts {
		t.Logf("%s seed %d: false: %s %s %s: %s", f.name, seed, v.Kind, v.Element.ID, v.Scenario, v.Summary)
	}
}

// sprayedTable returns what the runs showed, as a table.
func sprayedTable(faults []*sprayedFault) string {
	var b strings.Builder
	b.WriteString("\n| fault | runs | named | listed | not found | scenario | direction | most equivalents | false ")
	b.WriteString("| to the verdict: median, largest, later than 15 s | all-clear: median |\n")
	b.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, f := range faults {
		largest := 0.0
		if len(f.seconds) > 0 {
			largest = slices.Max(f.seconds)
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %d | %d ", f.name, f.runs, f.named, f.listed, f.runs-f.named-f.listed,
			f.scenarios, f.directions, f.equivalents, f.falseOnes)
		fmt.Fprintf(&b, "| %.1f s, %.1f s, %d | %.1f s |\n", percentile(f.seconds, 0.5), largest, f.late, percentile(f.clear, 0.5))
	}
	return b.String()
}
