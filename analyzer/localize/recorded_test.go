package localize

import (
	"os"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// TestAShiftRecordedInAFabric names a link whose direction was held up by 200 us in a fabric of network namespaces, with a
// relay in it that makes the slowest percent of its packets 30 ms late (TestSmallShiftsInAFabric recorded the window). Of
// the two ways out of the leaf, the other one may not be taken for one that became faster.
func TestAShiftRecordedInAFabric(t *testing.T) {
	text, err := os.ReadFile("testdata/lab-shift/topology.yaml")
	if err != nil {
		t.Fatal(err)
	}
	topo, found := fabric.ParseTopology("topology.yaml", text)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("testdata/lab-shift/observations.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var obs []*fabric.Observation
	err = fabric.ReadObservations(f, func(_ int, o *fabric.Observation) error { obs = append(obs, o); return nil }, func(e fabric.LineError) { t.Error(e) })
	if err != nil {
		t.Fatal(err)
	}
	rep, _, err := Localizer{Graph: fabric.NewGraph(topo), Window: 10 * time.Second}.Run(obs)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Verdicts) != 1 {
		t.Fatalf("%s, %d verdicts, want one: %+v", rep.State, len(rep.Verdicts), rep.Verdicts)
	}
	v := rep.Verdicts[0]
	if v.Element.ID != "leaf1:up1--spine1:dn1" || v.Direction != "leaf1:up1->spine1:dn1" || v.Severity != fabric.SeverityInfo || v.Symptom.AddedDelayNS < 130_000 || v.Symptom.AddedDelayNS > 250_000 {
		t.Errorf("%s %s, %s, %d ns", v.Element.ID, v.Direction, v.Severity, v.Symptom.AddedDelayNS)
	}
}
