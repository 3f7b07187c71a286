package analyzer_test

import (
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// TestVerdictsOfBeforeTheStart: what was cleared is history; what was open goes on with its
// identifier when it is named again, and else is history after a minute.
func TestVerdictsOfBeforeTheStart(t *testing.T) {
	r := looptest.NewRig(t, 1)
	r.Learn()
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	link := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
	began := r.Now.Add(-20 * time.Second).Truncate(time.Second)
	other := fabric.Element{ID: "h2/eth1", Kind: fabric.KindNIC}
	r.Loop.SeedVerdicts([]evidence.PastVerdict{
		{Element: link, FirstSeen: began.Add(-time.Hour), Cleared: began.Add(-50 * time.Minute), LastSeen: began.Add(-45 * time.Minute), Scenario: fabric.HardFailure, Direction: d, Symptom: fabric.Symptom{LossRatio: 1}},
		{Element: fabric.Element{ID: "spine2", Kind: fabric.KindSwitch}, FirstSeen: began.Add(-2 * time.Hour), LastSeen: began.Add(-time.Hour)},
		{Element: other, FirstSeen: began, LastSeen: r.Now.Add(-5 * time.Second)},
		{Element: link, FirstSeen: began, LastSeen: r.Now.Add(-5 * time.Second), Scenario: fabric.Corridor},
	}, r.Now)
	if s := r.Step(); len(s.Incidents) != 2 || !s.Incidents[0].Recalled || s.Incidents[0].Closed != "cleared" || s.Incidents[1].Closed == "" || len(s.Report.Verdicts) != 0 ||
		s.Incidents[0].Direction != d.String() || s.Incidents[0].ID != classify.VerdictID(link.Kind, link.ID, began.Add(-time.Hour)) {
		t.Fatalf("history: %+v", s.Incidents)
	}
	r.World.Delay[d] = 2e6
	r.Until(10, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	s := r.Loop.Snapshot()
	if v := s.Report.Verdicts[0]; v.ID != classify.VerdictID(link.Kind, link.ID, began) || !v.FirstSeen.Equal(began) {
		t.Errorf("it does not go on: %s since %v, want %v", v.ID, v.FirstSeen, began)
	}
	delete(r.World.Delay, d)
	r.Until(120, "the NIC is history", func(s snapshot.Snapshot) bool { return len(s.Incidents) == 4 })
	s = r.Loop.Snapshot()
	found := false
	for _, in := range s.Incidents {
		found = found || in.Element == other && !in.Open && in.Recalled && in.Cleared.Equal(in.LastSeen)
	}
	if !found {
		t.Errorf("the NIC: %+v", s.Incidents)
	}
	// A new incident of the same element, later, is a new one.
	r.World.Delay[d] = 2e6
	r.Until(10, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	s = r.Loop.Snapshot()
	if s.Report.Verdicts[0].FirstSeen.Equal(began) {
		t.Error("another incident goes on from the one before the start")
	}
}
