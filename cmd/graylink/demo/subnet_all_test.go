//go:build all

package demo

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

var (
	subnetSeeds = flag.Int("subnet.seeds", 1, "seeds of each kind of fault of TestSubnetVerdicts")
	subnetKinds = flag.String("subnet.kinds", "link-down,flap,symbol-errors", "kinds of faults of TestSubnetVerdicts")
)

// TestSubnetVerdicts breaks a subnet that OpenSM routes, and compares verdicts, directions and causes with what was broken.
// The kinds that have no cause in counters or states are delay, nic-slow, switch-slow and miscable.
func TestSubnetVerdicts(t *testing.T) {
	ibtest.RequireTools(t)
	kinds, err := ParseKinds(InfiniBand, "", "", *subnetKinds)
	if err != nil {
		t.Fatal(err)
	}
	progress := &strings.Builder{}
	d, err := Start(t.Context(), Options{Name: "subnet", Fabric: InfiniBand, Listen: "127.0.0.1:0", BendClocks: true, Seed: 1, Progress: progress, Log: silent})
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(progress)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, kind := range kinds {
		var named, directed, caused, others int
		for seed := range uint64(*subnetSeeds) {
			p, err := PlanFault(d.Graph(), kind, seed, Params{Delay: 2 * time.Millisecond, Loss: 0.1})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.AwaitSteadyState(t.Context()); err != nil {
				t.Fatal(err)
			}
			out, err := d.RunFault(t.Context(), p, seed, 30*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			count := func(n *int, ok bool, what string) {
				if ok {
					*n++
					return
				}
				t.Errorf("%s at %s %s, seed %d: %s is not right: %+v", kind, p.Element, p.Direction, seed, what, out.Verdict)
			}
			count(&named, out.ElementMatch, "the element")
			count(&directed, p.DirectionRight(out.Verdict), "the direction")
			count(&caused, out.CauseMatch == nil || *out.CauseMatch, "the cause")
			others += len(out.FalseVerdicts)
			for _, v := range out.FalseVerdicts {
				t.Errorf("%s at %s, seed %d: a verdict besides: %s", kind, p.Element, seed, v.Summary)
			}
		}
		lines = append(lines, fmt.Sprintf("%-14s runs %2d  element %2d  direction %2d  cause %2d  others %d", kind, *subnetSeeds, named, directed, caused, others))
	}
	t.Log("\n" + strings.Join(lines, "\n"))
}
