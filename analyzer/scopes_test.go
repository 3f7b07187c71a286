package analyzer_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/scope"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// newJobsRig returns a rig whose loop knows the placements of jobs.
func newJobsRig(t *testing.T) (r *looptest.Rig, placeJobs func(...jobs.Placement)) {
	r = looptest.NewRig(t, 1)
	reg := jobs.NewRegister(r.World.Graph)
	r.Configure(func(o *analyzer.LoopOptions) { o.Jobs = reg })
	// leaf1 has h1 and h2, leaf2 h3 and h4, and so on.
	return r, func(all ...jobs.Placement) { reg.ReplaceSource("test", all) }
}

func scopeOf(t *testing.T, s snapshot.Snapshot, name string) scope.Scope {
	t.Helper()
	for _, sc := range s.Scopes {
		if sc.Scope == name {
			return sc
		}
	}
	t.Fatalf("no scope %s in %+v", name, s.Scopes)
	return scope.Scope{}
}

// TestLoopJobs: a verdict names the affected jobs, and is critical because of them. The network is innocent for
// the other jobs.
func TestLoopJobs(t *testing.T) {
	r, placeJobs := newJobsRig(t)
	r.Learn()
	placeJobs(jobs.Placement{Job: "hurt", Nodes: []string{"h1", "h3"}}, jobs.Placement{Job: "peer", Nodes: []string{"h2", "h5"}}, jobs.Placement{Job: "far", ID: "77", Nodes: []string{"h5", "h7"}})
	s := r.Step()
	for _, name := range []string{"fabric", "plane:a", "job_name:hurt", "job_name:peer", "job_name:far"} {
		if sc := scopeOf(t, s, name); sc.State != fabric.Innocent || sc.Coverage.Links < 1 || sc.Coverage.Edges < 1 || sc.Flows == 0 || sc.Clean != sc.Flows {
			t.Errorf("before: %+v", sc)
		}
	}
	d := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	r.World.Delay[d] = 2e6
	r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	s = r.Loop.Snapshot()
	in := s.Incidents[0]
	if !slices.Equal(in.Jobs, []string{"hurt"}) || in.BlastRadius.Jobs == nil || *in.BlastRadius.Jobs != 1 || in.Severity != fabric.SeverityCritical {
		t.Errorf("jobs %q, %+v, %s", in.Jobs, in.BlastRadius, in.Severity)
	}
	for name, want := range map[string]fabric.State{"fabric": fabric.Suspect, "plane:a": fabric.Suspect, "job_name:hurt": fabric.Suspect, "job_name:peer": fabric.Innocent, "job_name:far": fabric.Innocent} {
		if sc := scopeOf(t, s, name); sc.State != want {
			t.Errorf("%+v, want %s", sc, want)
		}
	}
	v, ok := s.FindJob("hurt")
	if !ok || v.State != fabric.Suspect || len(v.Verdicts) != 1 || len(v.NICs) != 2 || !strings.Contains(v.Why, d.LinkID()) {
		t.Errorf("%+v", v)
	}
	if len(v.Peers) != 1 || v.Peers[0].Job != "peer" || v.Peers[0].State != fabric.Innocent || v.Peers[0].Shared != 4 || v.Peers[0].Accused {
		t.Errorf("peers %+v", v.Peers)
	}
	if v, ok := s.FindJob("77"); !ok || v.Job != "far" || len(v.Verdicts) != 0 {
		t.Errorf("by its identifier: %+v", v)
	}
	if _, ok := s.FindJob("unknown"); ok {
		t.Error("a job that does not run is answered for")
	}
	// It ends meanwhile: it was hurt.
	placeJobs()
	s = r.Step()
	if in := s.Incidents[0]; !slices.Equal(in.Jobs, []string{"hurt"}) {
		t.Errorf("jobs %q", in.Jobs)
	}
	delete(r.World.Delay, d)
	r.Until(12, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	placeJobs(jobs.Placement{Job: "hurt", Nodes: []string{"h1", "h3"}})
	s = r.Step()
	if v, _ := s.FindJob("hurt"); len(v.Before) != 1 || len(v.Verdicts) != 0 {
		t.Errorf("%d verdicts before, %d now", len(v.Before), len(v.Verdicts))
	}
}

// TestLoopNoJobAffected: where placements are known, a verdict that affects no job and few NICs is a warning.
// Where none is known, the symptom decides.
func TestLoopNoJobAffected(t *testing.T) {
	r := looptest.NewRig(t, 1)
	r.Learn()
	r.World.Loss[fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}] = 1
	r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	s := r.Loop.Snapshot()
	if in := s.Incidents[0]; in.Severity != fabric.SeverityCritical || in.BlastRadius.Jobs != nil || s.JobNames() != nil {
		t.Errorf("no placements: %s, %+v", in.Severity, in.BlastRadius)
	}
	r.Reload(func(o *analyzer.LoopOptions) {
		o.Jobs = jobs.NewRegister(r.World.Graph)
		o.Jobs.ReplaceSource("test", []jobs.Placement{{Job: "far", Nodes: []string{"h5", "h7"}}})
	})
	if in := r.Step().Incidents[0]; in.Severity != fabric.SeverityWarning || *in.BlastRadius.Jobs != 0 {
		t.Errorf("no job affected: %s, %d jobs", in.Severity, *in.BlastRadius.Jobs)
	}
	r.Reload(func(o *analyzer.LoopOptions) { o.PageNICs = 3 })
	if in := r.Step().Incidents[0]; in.Severity != fabric.SeverityCritical || in.BlastRadius.NICs <= 3 {
		t.Errorf("%d NICs: %s", in.BlastRadius.NICs, in.Severity)
	}
}

// TestLoopAHostIsNotTheNetwork: rule 2 of scopes.
func TestLoopAHostIsNotTheNetwork(t *testing.T) {
	r, placeJobs := newJobsRig(t)
	r.Learn()
	placeJobs(jobs.Placement{Job: "a", Nodes: []string{"h2", "h5"}})
	r.World.Clock["h2/eth1"] = 5e6
	r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	s := r.Step()
	v, _ := s.FindJob("a")
	if v.State == fabric.Suspect || len(v.Verdicts) != 1 || v.Verdicts[0].Kind != fabric.KindClock || len(v.Verdicts[0].Jobs) != 0 {
		t.Errorf("%+v", v)
	}
}

// TestTwoLoopsAgree: two analyzers on one Prometheus, their cycles some hundred milliseconds
// apart, give the same verdicts the same identifiers.
func TestTwoLoopsAgree(t *testing.T) {
	for _, apart := range []time.Duration{300 * time.Millisecond, 900 * time.Millisecond} {
		r := looptest.NewRig(t, 1)
		other := r.NewLoop()
		both := func() (a, b snapshot.Snapshot) {
			a = r.Step()
			for e := range r.World.Paths {
				if err := other.PathStore().AddTrace(r.World.TraceOf(e, r.Now)); err != nil {
					t.Fatal(err)
				}
			}
			if err := other.RunCycle(t.Context(), r.Now.Add(apart)); err != nil {
				t.Fatal(err)
			}
			other.AnswerQueued(t.Context())
			return a, other.Snapshot()
		}
		r.TraceAll()
		for range 15 {
			both()
		}
		for i, d := range []fabric.Direction{{From: "leaf1:up1", To: "spine1:dn1"}, {From: "spine2:dn3", To: "leaf3:up2"}} {
			if i == 0 {
				r.World.Delay[d] = 2e6
			} else {
				r.World.Loss[d] = 1
			}
			for range 8 {
				a, b := both()
				if x, y := identities(a), identities(b); x != y {
					t.Errorf("%s apart: %q and %q", apart, x, y)
				}
			}
			clear(r.World.Delay)
			clear(r.World.Loss)
			for range 15 {
				both()
			}
		}
		a, b := both()
		if x, y := identities(a), identities(b); x != y || len(a.Incidents) != 2 || strings.Contains(x, "open") {
			t.Errorf("%s apart, at the end: %q and %q", apart, x, y)
		}
	}
}

// identities returns the properties of the incidents that two replicas must agree on.
func identities(s snapshot.Snapshot) string {
	var out []string
	for _, in := range s.Incidents {
		state := "closed"
		if in.Open {
			state = "open"
		}
		out = append(out, in.ID+" "+in.Element.ID+" "+in.Direction+" "+string(in.Scenario)+" "+in.FirstSeen.Format(time.RFC3339Nano)+" "+state)
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}
