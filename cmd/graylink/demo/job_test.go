package demo

import (
	"testing"

	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/fabric"
)

// TestUplinkOfJob: the uplink is one of those that sent the most, by the names that the topology has for ports.
func TestUplinkOfJob(t *testing.T) {
	sent, err := parsePorts("leaf1", []byte(`[{"ifname":"p1","ifalias":"up/1","stats64":{"tx":{"bytes":900}}},{"ifname":"up2","stats64":{"tx":{"bytes":100}}}]`))
	if err != nil || sent["leaf1:up/1"] != 900 || sent["leaf1:up2"] != 100 {
		t.Fatal(sent, err)
	}
	ups := []fabric.Direction{{From: "leaf1:up2", To: "spine2:dn1"}, {From: "leaf1:up/1", To: "spine1:dn1"}}
	for seed := range uint64(3) {
		if u := chooseUplink(ups, sent, seed); u != ups[1] {
			t.Errorf("seed %d: %v", seed, u)
		}
	}
	if _, err := parsePorts("leaf1", []byte("no JSON")); err == nil {
		t.Error("text that is no JSON is read")
	}
}

// TestJobOutcome: only the right element, and the right rank of an innocent network, count.
func TestJobOutcome(t *testing.T) {
	slow := workload.Diagnosis{Syndrome: workload.CommSlow, Network: workload.Network{State: workload.Guilty, Element: "leaf1:up1"}}
	if !blames(&slow, "leaf1:up1--spine1:dn1") || blames(&slow, "leaf1:up10--spine1:dn2") || blamesRank(&slow, 3) {
		t.Error("the link")
	}
	late := workload.Diagnosis{Syndrome: workload.NonCommSlow, Ranks: []int{3}, Network: workload.Network{State: workload.Innocent}}
	if !blamesRank(&late, 3) || blamesRank(&late, 2) || blames(&late, "leaf1:up1--spine1:dn1") {
		t.Error("the late rank")
	}
	right := Outcome{ElementMatch: true}
	if !right.IsCorrect() {
		t.Error("an outcome without a job")
	}
	if right.Job = (&JobOutcome{Link: &slow}); right.IsCorrect() {
		t.Error("an outcome without a diagnosis of the late rank")
	}
	if right.Job.Late = &late; !right.IsCorrect() {
		t.Error("both diagnoses are right")
	}
}
