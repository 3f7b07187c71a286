package analyzer

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/internal/fabric"
)

// run places jobs on a rig's fabric: leaf1 has h1 and h2, leaf2 h3 and h4, and so on.
func (r *rig) run(all ...jobs.Placement) {
	r.loop.opts.Jobs = jobs.NewRegister(r.w.g)
	r.loop.opts.Jobs.ReplaceSource("test", all)
}

func scope(t *testing.T, s Snapshot, name string) Scope {
	t.Helper()
	for _, sc := range s.Scopes {
		if sc.Scope == name {
			return sc
		}
	}
	t.Fatalf("no scope %s in %+v", name, s.Scopes)
	return Scope{}
}

// TestLoopJobs: a verdict names the affected jobs, and is critical because of them. The network is innocent for
// the other jobs.
func TestLoopJobs(t *testing.T) {
	r := newRig(t, 1)
	r.learn()
	r.run(jobs.Placement{Job: "hurt", Nodes: []string{"h1", "h3"}}, jobs.Placement{Job: "peer", Nodes: []string{"h2", "h5"}}, jobs.Placement{Job: "far", ID: "77", Nodes: []string{"h5", "h7"}})
	s := r.step()
	for _, name := range []string{"fabric", "plane:a", "job_name:hurt", "job_name:peer", "job_name:far"} {
		if sc := scope(t, s, name); sc.State != fabric.Innocent || sc.Coverage.Links < 1 || sc.Coverage.Edges < 1 || sc.Flows == 0 || sc.Clean != sc.Flows {
			t.Errorf("before: %+v", sc)
		}
	}
	d := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	r.w.delay[d] = 2e6
	r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	s = r.loop.Snapshot()
	in := s.Incidents[0]
	if !slices.Equal(in.Jobs, []string{"hurt"}) || in.BlastRadius.Jobs == nil || *in.BlastRadius.Jobs != 1 || in.Severity != fabric.SeverityCritical {
		t.Errorf("jobs %q, %+v, %s", in.Jobs, in.BlastRadius, in.Severity)
	}
	for name, want := range map[string]fabric.State{"fabric": fabric.Suspect, "plane:a": fabric.Suspect, "job_name:hurt": fabric.Suspect, "job_name:peer": fabric.Innocent, "job_name:far": fabric.Innocent} {
		if sc := scope(t, s, name); sc.State != want {
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
	r.run()
	s = r.step()
	if in := s.Incidents[0]; !slices.Equal(in.Jobs, []string{"hurt"}) {
		t.Errorf("jobs %q", in.Jobs)
	}
	delete(r.w.delay, d)
	r.until(12, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	r.run(jobs.Placement{Job: "hurt", Nodes: []string{"h1", "h3"}})
	s = r.step()
	if v, _ := s.FindJob("hurt"); len(v.Before) != 1 || len(v.Verdicts) != 0 {
		t.Errorf("%d verdicts before, %d now", len(v.Before), len(v.Verdicts))
	}
}

// TestLoopNoJobAffected: where placements are known, a verdict that affects no job and few NICs is a warning.
// Where none is known, the symptom decides.
func TestLoopNoJobAffected(t *testing.T) {
	r := newRig(t, 1)
	r.learn()
	r.w.loss[fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}] = 1
	r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	s := r.loop.Snapshot()
	if in := s.Incidents[0]; in.Severity != fabric.SeverityCritical || in.BlastRadius.Jobs != nil || s.JobNames() != nil {
		t.Errorf("no placements: %s, %+v", in.Severity, in.BlastRadius)
	}
	r.run(jobs.Placement{Job: "far", Nodes: []string{"h5", "h7"}})
	if in := r.step().Incidents[0]; in.Severity != fabric.SeverityWarning || *in.BlastRadius.Jobs != 0 {
		t.Errorf("no job affected: %s, %d jobs", in.Severity, *in.BlastRadius.Jobs)
	}
	r.loop.opts.PageNICs = 3
	if in := r.step().Incidents[0]; in.Severity != fabric.SeverityCritical || in.BlastRadius.NICs <= 3 {
		t.Errorf("%d NICs: %s", in.BlastRadius.NICs, in.Severity)
	}
}

// TestLoopAHostIsNotTheNetwork: rule 2 of scopes.
func TestLoopAHostIsNotTheNetwork(t *testing.T) {
	r := newRig(t, 1)
	r.learn()
	r.run(jobs.Placement{Job: "a", Nodes: []string{"h2", "h5"}})
	r.w.clock["h2/eth1"] = 5e6
	r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	s := r.step()
	v, _ := s.FindJob("a")
	if v.State == fabric.Suspect || len(v.Verdicts) != 1 || v.Verdicts[0].Kind != fabric.KindClock || len(v.Verdicts[0].Jobs) != 0 {
		t.Errorf("%+v", v)
	}
}

// TestLoopScopesWithoutEvidence: rule 3 of scopes.
func TestLoopScopesWithoutEvidence(t *testing.T) {
	r := newRig(t, 1)
	r.run(jobs.Placement{Job: "a", Nodes: []string{"h1", "h3"}})
	r.step()
	if sc := scope(t, r.step(), "job_name:a"); sc.State != fabric.InsufficientEvidence {
		t.Errorf("without baselines: %+v", sc)
	}
	r.learn()
	r.silent["h1"] = true
	if sc := scope(t, r.step(), "job_name:a"); sc.State != fabric.InsufficientEvidence || !strings.HasPrefix(sc.Why, "insufficient evidence:") {
		t.Errorf("a silent host: %+v", sc)
	}
	r.silent["h1"] = false
	r.until(6, "innocence", func(s Snapshot) bool { return scope(t, s, "job_name:a").State == fabric.Innocent })
	r.loop.recordNoEvidence(os.ErrDeadlineExceeded)
	for _, sc := range r.loop.Snapshot().Scopes {
		if sc.State != fabric.InsufficientEvidence || sc.Coverage.Links != 0 {
			t.Errorf("blind: %+v", sc)
		}
	}
}

// TestRunbooksExist: every kind's is a page of the tree.
func TestRunbooksExist(t *testing.T) {
	for _, kind := range []fabric.Kind{fabric.KindLink, fabric.KindNIC, fabric.KindSwitch, fabric.KindHost, fabric.KindClock, fabric.KindLeafUplinks} {
		if _, err := os.Stat("../" + runbookFor(&fabric.Verdict{Element: fabric.Element{Kind: kind}})); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// TestTwoLoopsAgree: two analyzers on one Prometheus, their cycles some hundred milliseconds
// apart, give the same verdicts the same identifiers.
func TestTwoLoopsAgree(t *testing.T) {
	for _, apart := range []time.Duration{300 * time.Millisecond, 900 * time.Millisecond} {
		r := newRig(t, 1)
		other := NewLoop(r.loop.opts)
		both := func() (a, b Snapshot) {
			a = r.step()
			traces := make([]fabric.Trace, 0, len(r.w.paths))
			for e := range r.w.paths {
				traces = append(traces, r.trace(e))
			}
			other.storeTraces(traces)
			if err := other.RunCycle(r.t.Context(), r.now.Add(apart)); err != nil {
				t.Fatal(err)
			}
			for len(other.traceRequests) > 0 {
				<-other.traceRequests
			}
			return a, other.Snapshot()
		}
		for e := range r.w.paths {
			r.loop.storeTraces([]fabric.Trace{r.trace(e)})
		}
		for range 15 {
			both()
		}
		for i, d := range []fabric.Direction{{From: "leaf1:up1", To: "spine1:dn1"}, {From: "spine2:dn3", To: "leaf3:up2"}} {
			if i == 0 {
				r.w.delay[d] = 2e6
			} else {
				r.w.loss[d] = 1
			}
			for range 8 {
				a, b := both()
				if x, y := identities(a), identities(b); x != y {
					t.Errorf("%s apart: %q and %q", apart, x, y)
				}
			}
			clear(r.w.delay)
			clear(r.w.loss)
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

// TestCyclesBeginTogether: whenever an analyzer was started, and however long its cycles take.
func TestCyclesBeginTogether(t *testing.T) {
	for _, ms := range []int64{0, 1, 49, 50, 51, 500, 999} {
		now := time.UnixMilli(1_800_000_000_000 + ms)
		wait := untilNext(now, time.Second)
		if next := now.Add(wait); wait <= 0 || wait > time.Second || next.UnixMilli()%1000 != 50 {
			t.Errorf("%d ms after the second: %s, at %s", ms, wait, next)
		}
	}
}

// identities returns the properties of the incidents that two replicas must agree on.
func identities(s Snapshot) string {
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
