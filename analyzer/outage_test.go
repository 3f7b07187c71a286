package analyzer_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

func TestRule1WithoutEvidenceNothingOpensClearsOrTeaches(t *testing.T) {
	r := looptest.NewRig(t, 1)
	r.Learn()
	s := r.StepWithoutEvidence(120)
	if s.Report.State != fabric.InsufficientEvidence || s.Report.Coverage != (fabric.Coverage{}) || s.CycleError == "" {
		t.Errorf("blind: %s, coverage %+v, error %q", s.Report.State, s.Report.Coverage, s.CycleError)
	}
	if s = r.Step(); s.Report.State != fabric.Innocent || s.CycleError != "" || len(s.Incidents) != 0 {
		t.Errorf("it sees again: %s, error %q, %q", s.Report.State, s.CycleError, looptest.OpenVerdicts(s))
	}
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.World.Delay[d] = 2e6
	r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	before := r.Loop.Snapshot()
	delete(r.World.Delay, d)
	s = r.StepWithoutEvidence(120)
	if s.Report.State != fabric.Suspect || len(s.Incidents) != 1 || !s.Incidents[0].Open || s.Incidents[0].Held != incident.NoEvidence {
		t.Errorf("blind with an open incident: %s, %+v", s.Report.State, s.Incidents)
	}
	if before.Incidents[0].Held != "" {
		t.Error("a snapshot that was taken before changed")
	}
	if took := r.Until(20, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 }); took < clearAfter {
		t.Errorf("cleared after %d cycles that saw", took)
	}
}

func TestRule3HalfOfTheSeriesIsMissing(t *testing.T) {
	r := looptest.NewRig(t, 1)
	r.Configure(func(o *analyzer.LoopOptions) { o.Expected = 0 })
	r.Learn()
	n := 0
	half := map[fabric.Flow]bool{}
	for e := range r.World.Paths {
		n++
		half[e] = n%2 == 0
	}
	r.Prometheus.Hidden = func(e fabric.Flow) bool { return half[e] }
	for range 30 {
		s := r.Step()
		if s.Report.State != fabric.InsufficientEvidence || len(s.Incidents) != 0 {
			t.Fatalf("half of the series are missing: %s, %q", s.Report.State, looptest.OpenVerdicts(s))
		}
		if s.Expected != len(r.World.Flows) || s.Report.Coverage.Edges > 0.6 {
			t.Fatalf("%d of %d expected, coverage %v", s.Expected, len(r.World.Flows), s.Report.Coverage.Edges)
		}
	}
	r.Prometheus.Hidden = nil
	r.Until(5, "innocence", func(s snapshot.Snapshot) bool { return s.Report.State == fabric.Innocent })
}

func TestRule4NotClearedByTheFlowsThatNeverShowedIt(t *testing.T) {
	r := looptest.NewRig(t, 1)
	r.Learn()
	d := fabric.Direction{From: r.World.Graph.PeerOf("h1/eth1"), To: "h1/eth1"}
	r.World.Delay[d] = 2e6
	r.Until(12, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	for range 3 {
		r.Step()
	}
	r.Prometheus.Hidden = func(e fabric.Flow) bool {
		_, dst := e.Endpoints()
		return dst == "h1/eth1"
	}
	for range 30 {
		r.Step()
	}
	s := r.Loop.Snapshot()
	if len(s.Report.Verdicts) != 1 || s.Incidents[0].Held == "" {
		t.Fatalf("flows out of the NIC cleared what flows into it had shown: %+v", s.Incidents)
	}
	for e, p := range r.World.Paths {
		src, dst := e.Endpoints()
		if src == "h1/eth1" && !s.Incidents[0].CrossedBy(p, src, dst) {
			t.Fatal("no flow that could have cleared it was left")
		}
	}
	delete(r.World.Delay, d)
	r.Prometheus.Hidden = nil
	r.Until(20, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
}

func TestRule5ASlowCycleCostsItsMoments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := looptest.NewRig(t, 1)
		r.Configure(func(o *analyzer.LoopOptions) { o.Agents, o.Settings.Patience = nil, 0 })
		settings := evidence.DefaultSettings()
		questions := len(settings.WindowQueries())
		r.Prometheus.Latency = 5200 * time.Millisecond / time.Duration(questions)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		r.Loop.Run(ctx, time.Second)
		c := r.Loop.CycleCounts()
		if c.Cycles < 8 || c.Cycles > 12 || c.Skipped < 4*c.Cycles {
			t.Errorf("%+v in a minute of cycles of 5.2 s", c)
		}
		for i := 0; i < len(r.Prometheus.Ages); i += questions {
			if late := r.Prometheus.Ages[i]; late > 2*time.Second {
				t.Fatalf("cycle %d asks for a moment %v ago", i/questions, late)
			}
		}
	})
}

func TestInheritance(t *testing.T) {
	r := looptest.NewRig(t, 1)
	r.Learn()
	r.World.Delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
	r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	was := r.Loop.Snapshot().Incidents[0]
	r.Reload(func(*analyzer.LoopOptions) {})
	if s := r.Loop.Snapshot(); len(s.Incidents) != 1 || s.At.IsZero() {
		t.Errorf("before its first cycle: %+v", s.Incidents)
	}
	for range 5 {
		r.Step()
	}
	s := r.Loop.Snapshot()
	if s.Baselines != len(r.World.Flows) || len(s.Incidents) != 1 || s.Incidents[0].ID != was.ID || !s.Incidents[0].Open {
		t.Errorf("%d baselines, incidents %+v, want that of %s", s.Baselines, s.Incidents, was.ID)
	}
}

func TestRule6AStartDuringAnIncident(t *testing.T) {
	r := looptest.NewRig(t, 1)
	r.Learn()
	h := evidence.History{Flows: map[fabric.Flow]evidence.Delays{}, Expected: len(r.World.Flows)}
	for _, v := range r.Step().Edges {
		e, err := v.Obs.ParseFlow()
		if err != nil {
			t.Fatal(err)
		}
		h.Flows[e] = evidence.Delays{P50: slices.Repeat([]int64{*v.Obs.Baseline.P50}, baseline.LearnWindows), P99: slices.Repeat([]int64{*v.Obs.Baseline.P99}, baseline.LearnWindows)}
	}
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.World.Delay[d] = 2e6
	start := func(h evidence.History) {
		r.Configure(func(o *analyzer.LoopOptions) { o.Expected = 0 })
		r.Loop.SeedBaselines(h)
		r.TraceAll()
	}
	start(h)
	if r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 }); looptest.OpenVerdicts(r.Loop.Snapshot())[0] != d.LinkID()+" "+d.String()+" corridor" {
		t.Errorf("verdicts %q", looptest.OpenVerdicts(r.Loop.Snapshot()))
	}
	if s := r.Loop.Snapshot(); s.Expected != len(r.World.Flows) || s.Baselines != len(r.World.Flows) {
		t.Errorf("%d expected, %d baselines, want %d", s.Expected, s.Baselines, len(r.World.Flows))
	}
	start(evidence.History{})
	for range 20 {
		if s := r.Step(); len(s.Report.Verdicts) != 0 {
			t.Fatalf("without history there is a verdict: the test shows nothing")
		}
	}
}

func TestRule6NothingIsLearntBeforeHistoryAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := looptest.NewRig(t, 1)
		tries := 0
		r.Configure(func(o *analyzer.LoopOptions) {
			o.Agents = nil
			o.Recall = func(context.Context) (evidence.History, error) {
				if tries++; tries < 4 {
					return evidence.History{}, errors.New("away")
				}
				return evidence.History{Expected: 3}, nil
			}
			// Earlier verdicts are not needed.
			o.RecallVerdicts = func(context.Context) ([]evidence.PastVerdict, error) { return nil, errors.New("away") }
		})
		r.Prometheus.Latency = time.Nanosecond
		ctx, stop := context.WithTimeout(t.Context(), 10500*time.Millisecond)
		defer stop()
		r.Loop.Run(ctx, time.Second)
		if c := r.Loop.CycleCounts(); tries != 4 || c.Failed != 3 || c.Cycles != 8 {
			t.Errorf("asked %d times; %+v", tries, c)
		}
	})
}
