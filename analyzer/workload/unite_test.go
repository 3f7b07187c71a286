package workload

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestOneLinkIsOneDiagnosis: two connections whose slowness is that of one link are one diagnosis, and others stand by themselves.
func TestOneLinkIsOneDiagnosis(t *testing.T) {
	began := time.Unix(1000, 0).UTC()
	slow := func(from, to int, element string, after time.Duration) Diagnosis {
		d := Diagnosis{ID: element, Job: "t7", Comm: "a", Syndrome: CommSlow, Pattern: Cell, Ranks: []int{from, to}, Nodes: []string{"h1"}, BeganAt: began.Add(after), DetectedAt: began.Add(after + 2*time.Second),
			Open: true, Effect: &Effect{AddedNS: int64(after)}, Connection: &Connection{from, to}, Network: Network{State: Guilty, Element: element, Verdicts: []string{"v" + element}}, Isolate: Isolate{Links: []string{element}}}
		if element == "" {
			d.Network = Network{State: Insufficient}
		}
		return d
	}
	first, second := slow(3, 4, "l1", 0), slow(7, 0, "l1", time.Second)
	second.Nodes, second.Network.Verdicts = []string{"h1", "h8"}, []string{"vl1", "v2"}
	other, unknown, later := slow(1, 2, "l2", time.Second), slow(5, 6, "", time.Second), slow(3, 4, "l1", time.Minute)
	elsewhere := slow(0, 1, "l1", time.Second)
	elsewhere.Comm, elsewhere.CommName = "b", "TP 0"

	want := first
	want.Ranks, want.Nodes, want.Network.Verdicts, want.Effect = []int{0, 3, 4, 7}, []string{"h1", "h8"}, []string{"vl1", "v2"}, &Effect{AddedNS: int64(time.Second)}
	want.Consequences = []Consequence{{"b", "TP 0", CommSlow}}
	if d := cmp.Diff([]Diagnosis{want, other, unknown}, uniteGuilty([]Diagnosis{first, second, other, unknown, elsewhere})); d != "" {
		t.Error(d)
	}
	if !slices.Equal(first.Ranks, []int{3, 4}) {
		t.Error("the diagnosis that was given has changed")
	}
	returning := unknown
	returning.Isolate = Isolate{}
	returning.ReturnVerdicts, returning.Comm, returning.BeganAt = []string{"vl2"}, "b", began.Add(-time.Second)
	want = other
	want.Consequences = []Consequence{{"b", "", CommSlow}}
	want.DetectedAt = unknown.DetectedAt
	if d := cmp.Diff([]Diagnosis{want}, uniteGuilty([]Diagnosis{returning, other})); d != "" {
		t.Error(d)
	}
	if got := uniteGuilty([]Diagnosis{first, returning}); len(got) != 2 {
		t.Errorf("acknowledgements that cross no guilty element are a part of its diagnosis: %v", got)
	}
	first.Open = false
	if got := uniteGuilty([]Diagnosis{first, later}); len(got) != 2 {
		t.Errorf("a fault that returned after a minute is a part of the first: %v", got)
	}
}
