package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/localize"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/sim/incident"
)

const verdictsHead = `# What does a verdict look like?

This page shows what ` + "`graylink localize`" + ` prints for one incident of each scenario. The incidents are generated
(` + "`internal/sim/incident`" + `, on two planes of four leaves and three spines, with 12 nodes of two NICs). A test
compares this page with the current output, and ` + "`go test ./cmd/graylink -run TestVerdictsPage -update`" + ` rewrites it.

The first line of a verdict has the element at fault, its kind, the scenario and the severity. ` + "`what`" + ` describes the
effect on packets, the reason for this scenario, the numbers of flows for and against it, and the confidence. ` + "`or`" + `
lists the elements that probes cannot distinguish from it. ` + "`do`" + ` is the recommended action. The rules of the scenarios
are in the package comment of ` + "`analyzer/classify`" + `. ` + "`routing`, `polarization`, `convergence`" + `
and ` + "`fib_mismatch`" + ` have no incident here: [another page](analyzer.md#what-does-it-say-of-routing) describes them.
`

// page lists the incidents of docs/verdicts.md, in its order.
var page = []struct {
	title    string
	scenario incident.Scenario
}{
	{"A slow spine", incident.Scenario{ID: fabric.HotSpine, Variant: "delay"}},
	{"A slow leaf", incident.Scenario{ID: fabric.SlowLeaf, Variant: "delay"}},
	{"A leaf that lost uplinks", incident.Scenario{ID: fabric.LeafUplinks}},
	{"A slow link", incident.Scenario{ID: fabric.Corridor, Variant: "link-delay"}},
	{"A link that drops a little", incident.Scenario{ID: fabric.Corridor, Variant: "link-loss"}},
	{"A link that marks", incident.Scenario{ID: fabric.Corridor, Variant: "link-ecn"}},
	{"One path through a spine", incident.Scenario{ID: fabric.Corridor, Variant: "path-loss"}},
	{"A bad NIC, receiving", incident.Scenario{ID: fabric.BadNIC, Variant: "in-loss"}},
	{"A bad NIC, both ways", incident.Scenario{ID: fabric.BadNIC, Variant: "both-delay"}},
	{"A NIC with jitter", incident.Scenario{ID: fabric.BadNIC, Variant: "out-jitter"}},
	{"Incast", incident.Scenario{ID: fabric.Incast}},
	{"A pair of leaves", incident.Scenario{ID: fabric.PairOnly, Variant: "loss"}},
	{"A link that flaps", incident.Scenario{ID: fabric.Flap}},
	{"A dead cable", incident.Scenario{ID: fabric.HardFailure, Variant: "link"}},
	{"A dead NIC", incident.Scenario{ID: fabric.HardFailure, Variant: "nic"}},
	{"A dead spine", incident.Scenario{ID: fabric.HardFailure, Variant: "spine"}},
	{"A starved host", incident.Scenario{ID: fabric.Host}},
	{"One class at one egress", incident.Scenario{ID: fabric.HOLSame}},
	{"Blocking across ports", incident.Scenario{ID: fabric.HOLCross}},
	{"Swapped cables", incident.Scenario{ID: fabric.Miscabled}},
	{"A clock that jumped", incident.Scenario{ID: fabric.ClockTrouble, Variant: "step"}},
	{"Nothing at all", incident.Scenario{}},
}

// TestVerdictsPage checks that docs/verdicts.md shows what the program prints, and that each incident has the one
// verdict that is right.
func TestVerdictsPage(t *testing.T) {
	const file = "../../docs/verdicts.md"
	topo := clos.NewTopology(clos.Options{Planes: 2, LeavesPerPod: 4, SpinesPerPod: 3, NICsPerLeaf: 6, NICsPerNode: 2})
	var out strings.Builder
	out.WriteString(verdictsHead)
	f := incident.NewFabric(topo)
	for i, p := range page {
		c := p.scenario.MakeCase(f, uint64(i+1))
		rep, err := localize.FindFaults(f.Graph, c.Observations, incident.Window)
		if err != nil {
			t.Fatal(err)
		}
		if id := p.scenario.ID; id != "" && (len(rep.Verdicts) != 1 || rep.Verdicts[0].Scenario != id) {
			t.Errorf("%s: %d verdicts, one of %s is expected: %+v", p.title, len(rep.Verdicts), id, rep.Verdicts)
		}
		name := string(p.scenario.ID)
		if name == "" {
			name = "none"
		}
		fmt.Fprintf(&out, "\n## %s (`%s`)\n\n```\n", p.title, name)
		if err := printReport(&out, rep); err != nil {
			t.Fatal(err)
		}
		out.WriteString("```\n")
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != string(want) {
		for i, line := range strings.Split(got, "\n") {
			if old := strings.Split(string(want), "\n"); i >= len(old) || old[i] != line {
				t.Fatalf("%s, line %d, is not what is printed now:\n%s", file, i+1, line)
			}
		}
		t.Fatalf("%s is longer than what is printed now", file)
	}
}
