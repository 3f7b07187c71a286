package localize

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// TestAShiftRecordedInAFabric names a link whose direction was held up by 200 us in a fabric of network namespaces, with a
// relay in it that makes the slowest percent of its packets 30 ms late (TestSmallShiftsInAFabric recorded the window). Of
// the two ways out of the leaf, the other one may not be taken for one that became faster. The same is asked of the window
// with a part of the delay taken off.
func TestAShiftRecordedInAFabric(t *testing.T) {
	for _, less := range []int64{0, 80_000, 125_000} {
		nameRecordedShift(t, less)
	}
}

// TestFiveFaultsRecordedInAFabric names five faults of one window in a fabric of network namespaces, as TestFiveFaultsInAFabric
// brought them about. Most of the flows that cross the slow uplink are those of the slow NIC beside it, so that the median of
// what they show is the sum of both delays.
func TestFiveFaultsRecordedInAFabric(t *testing.T) {
	topo, obs := readRecorded(t, "testdata/lab-five")
	rep, _, err := Localizer{Graph: fabric.NewGraph(topo), Window: 10 * time.Second}.Run(obs)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"h1/eth1": 2_000_000, "h4/eth1": 3_000_000, "h7/eth1": 0, "leaf1:up1--spine1:dn1": 2_000_000, "leaf3:up2--spine2:dn3": 0}
	for _, v := range rep.Verdicts {
		added, ok := want[v.Element.ID]
		if off := v.Symptom.AddedDelayNS - added; !ok || off < 0 || off > 250_000 { // the relays add some of their own
			t.Errorf("%s %s: %d ns, want %v", v.Kind, v.Element.ID, v.Symptom.AddedDelayNS, want)
		}
	}
	if len(rep.Verdicts) != len(want) {
		t.Errorf("%d verdicts, want %d", len(rep.Verdicts), len(want))
	}
}

// readRecorded reads the topology and the observations of a directory.
func readRecorded(t *testing.T, dir string) (*fabric.Topology, []*fabric.Observation) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "topology.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	topo, found := fabric.ParseTopology("topology.yaml", text)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "observations.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var obs []*fabric.Observation
	err = fabric.ReadObservations(f, func(_ int, o *fabric.Observation) error { obs = append(obs, o); return nil }, func(e fabric.LineError) { t.Error(e) })
	if err != nil {
		t.Fatal(err)
	}
	return topo, obs
}

// nameRecordedShift takes so many nanoseconds off the flows through the link, of which the window has 176,155 in the median.
func nameRecordedShift(t *testing.T, less int64) {
	t.Helper()
	topo, obs := readRecorded(t, "testdata/lab-shift")
	held := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	for _, o := range obs {
		if o.OWD != nil && o.OWD.P50 != nil && slices.Contains(o.Path.LinkDirections(o.Src, o.Dst), held) {
			*o.OWD.P50 -= less
		}
	}
	rep, _, err := Localizer{Graph: fabric.NewGraph(topo), Window: 10 * time.Second}.Run(obs)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Verdicts) != 1 {
		t.Fatalf("%d ns less: %s, %d verdicts, want one: %+v", less, rep.State, len(rep.Verdicts), rep.Verdicts)
	}
	v := rep.Verdicts[0]
	if off := v.Symptom.AddedDelayNS - (176_155 - less); v.Element.ID != held.LinkID() || v.Direction != held.String() || v.Severity != fabric.SeverityInfo || max(off, -off) > 1000 {
		t.Errorf("%d ns less: %s %s, %s, %d ns", less, v.Element.ID, v.Direction, v.Severity, v.Symptom.AddedDelayNS)
	}
}
