package analyzer

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// outage stands between a loop and the rig that answers it.
type outage struct {
	evidence.Querier
	down   bool
	hidden func(fabric.Flow) bool
	slow   time.Duration
	asked  []time.Duration // for a moment how long ago, by question
}

func newOutage(r *rig) *outage {
	o := &outage{Querier: r}
	r.loop.opts.DB = o
	return o
}

func (o *outage) QueryInstant(ctx context.Context, query string, at time.Time) ([]evidence.Sample, error) {
	if o.down {
		return nil, errors.New("connection refused")
	}
	if o.slow > 0 {
		o.asked = append(o.asked, time.Since(at))
		select {
		case <-time.After(o.slow):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	all, err := o.Querier.QueryInstant(ctx, query, at)
	if o.hidden == nil {
		return all, err
	}
	var out []evidence.Sample
	for _, s := range all {
		n, _ := strconv.Atoi(s.Labels["flow"])
		if s.Labels["src"] == "" || !o.hidden(fabric.Flow{Src: s.Labels["src"], Dst: s.Labels["dst"], Number: n, Reply: s.Labels["direction"] == "reverse"}) {
			out = append(out, s)
		}
	}
	return out, err
}

// away lets seconds pass in which Prometheus does not answer.
func (r *rig) away(o *outage, seconds int) Snapshot {
	r.t.Helper()
	o.down = true
	for range seconds {
		r.now = r.now.Add(time.Second)
		if err := r.loop.RunCycle(r.t.Context(), r.now); err == nil {
			r.t.Fatal("a cycle without evidence succeeded")
		}
	}
	o.down = false
	return r.loop.Snapshot()
}

func TestRule1WithoutEvidenceNothingOpensClearsOrTeaches(t *testing.T) {
	r := newRig(t, 1)
	o := newOutage(r)
	r.learn()
	s := r.away(o, 120)
	if s.Report.State != fabric.InsufficientEvidence || s.Report.Coverage != (fabric.Coverage{}) || s.CycleError == "" {
		t.Errorf("blind: %s, coverage %+v, error %q", s.Report.State, s.Report.Coverage, s.CycleError)
	}
	if s = r.step(); s.Report.State != fabric.Innocent || s.CycleError != "" || len(s.Incidents) != 0 {
		t.Errorf("it sees again: %s, error %q, %q", s.Report.State, s.CycleError, openVerdicts(s))
	}
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.w.delay[d] = 2e6
	r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	before := r.loop.Snapshot()
	delete(r.w.delay, d)
	s = r.away(o, 120)
	if s.Report.State != fabric.Suspect || len(s.Incidents) != 1 || !s.Incidents[0].Open || s.Incidents[0].Held != noEvidenceReason {
		t.Errorf("blind with an open incident: %s, %+v", s.Report.State, s.Incidents)
	}
	if before.Incidents[0].Held != "" {
		t.Error("a snapshot that was taken before changed")
	}
	if took := r.until(20, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 }); took < clearAfter {
		t.Errorf("cleared after %d cycles that saw", took)
	}
}

func TestRule1ClocksMustBeSeenSteady(t *testing.T) {
	r := newRig(t, 1)
	o := newOutage(r)
	r.steps = map[string]float64{"h1/eth1": 1}
	r.learn()
	r.steps["h1/eth1"]++
	r.until(10, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	r.away(o, 60)
	if took := r.until(30, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 }); took < int(clockSteady/time.Second) {
		t.Errorf("cleared %d s after a minute without evidence", took)
	}
}

func TestRule2NothingIsConfirmedAcrossAGap(t *testing.T) {
	r := newRig(t, 1)
	o := newOutage(r)
	r.learn()
	r.w.delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
	for range confirmOf - 1 {
		if s := r.step(); s.Report.Edges.Degraded != 0 {
			t.Fatal("confirmed too early")
		}
	}
	r.away(o, 10)
	if s := r.step(); s.Report.Edges.Degraded != 0 || s.Pending == 0 {
		t.Errorf("%d flows degraded by one window after the gap, %d pending", s.Report.Edges.Degraded, s.Pending)
	}
}

func TestRule2CyclesThatAreAllSlowConfirm(t *testing.T) {
	r := newRig(t, 1)
	r.learn()
	r.w.delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
	r.until(8, "a verdict", func(s Snapshot) bool {
		r.now = r.now.Add(9 * time.Second)
		return len(s.Report.Verdicts) > 0
	})
}

func TestRule3HalfOfTheSeriesIsMissing(t *testing.T) {
	r := newRig(t, 1)
	r.loop.opts.Expected = 0
	o := newOutage(r)
	r.learn()
	n := 0
	half := map[fabric.Flow]bool{}
	for e := range r.w.paths {
		n++
		half[e] = n%2 == 0
	}
	o.hidden = func(e fabric.Flow) bool { return half[e] }
	for range 30 {
		s := r.step()
		if s.Report.State != fabric.InsufficientEvidence || len(s.Incidents) != 0 {
			t.Fatalf("half of the series are missing: %s, %q", s.Report.State, openVerdicts(s))
		}
		if s.Expected != len(r.w.edges) || s.Report.Coverage.Edges > 0.6 {
			t.Fatalf("%d of %d expected, coverage %v", s.Expected, len(r.w.edges), s.Report.Coverage.Edges)
		}
	}
	o.hidden = nil
	r.until(5, "innocence", func(s Snapshot) bool { return s.Report.State == fabric.Innocent })
}

func TestRule4NotClearedByTheFlowsThatNeverShowedIt(t *testing.T) {
	r := newRig(t, 1)
	o := newOutage(r)
	r.learn()
	d := fabric.Direction{From: r.w.g.PeerOf("h1/eth1"), To: "h1/eth1"}
	r.w.delay[d] = 2e6
	r.until(12, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	for range 3 {
		r.step()
	}
	o.hidden = func(e fabric.Flow) bool {
		_, dst := e.Endpoints()
		return dst == "h1/eth1"
	}
	for range 30 {
		r.step()
	}
	s := r.loop.Snapshot()
	if len(s.Report.Verdicts) != 1 || s.Incidents[0].Held == "" {
		t.Fatalf("flows out of the NIC cleared what flows into it had shown: %+v", s.Incidents)
	}
	for e, p := range r.w.paths {
		src, dst := e.Endpoints()
		if src == "h1/eth1" && !s.Incidents[0].CrossedBy(p, src, dst) {
			t.Fatal("no flow that could have cleared it was left")
		}
	}
	delete(r.w.delay, d)
	o.hidden = nil
	r.until(20, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 })
}

func TestRule5ASlowCycleCostsItsMoments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.loop.opts.NoTraces = true
		r.loop.opts.Settings.Patience = 0
		o := newOutage(r)
		questions := len(r.loop.opts.Settings.WindowQueries())
		o.slow = 5200 * time.Millisecond / time.Duration(questions)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		r.loop.Run(ctx, time.Second)
		c := r.loop.CycleCounts()
		if c.Cycles < 8 || c.Cycles > 12 || c.Skipped < 4*c.Cycles {
			t.Errorf("%+v in a minute of cycles of 5.2 s", c)
		}
		for i := 0; i < len(o.asked); i += questions {
			if late := o.asked[i]; late > 2*time.Second {
				t.Fatalf("cycle %d asks for a moment %v ago", i/questions, late)
			}
		}
	})
}

func TestInheritance(t *testing.T) {
	r := newRig(t, 1)
	r.learn()
	r.w.delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
	r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	old := r.loop
	was := old.Snapshot().Incidents[0]
	r.loop = NewLoop(old.opts)
	r.loop.InheritFrom(old)
	if s := r.loop.Snapshot(); len(s.Incidents) != 1 || s.At.IsZero() {
		t.Errorf("before its first cycle: %+v", s.Incidents)
	}
	for e := range r.w.paths {
		r.loop.storeTraces([]fabric.Trace{r.trace(e)})
	}
	for range 5 {
		r.step()
	}
	s := r.loop.Snapshot()
	if s.Baselines != len(r.w.edges) || len(s.Incidents) != 1 || s.Incidents[0].ID != was.ID || !s.Incidents[0].Open {
		t.Errorf("%d baselines, incidents %+v, want that of %s", s.Baselines, s.Incidents, was.ID)
	}
	// A topology without the spine.
	small := NewLoop(LoopOptions{Graph: fabric.NewGraph(&fabric.Topology{})})
	small.InheritFrom(r.loop)
	if len(small.openIncidents) != 0 || len(small.pastIncidents) != 1 || small.pastIncidents[0].Closed == "" {
		t.Errorf("open %+v, past %+v", small.openIncidents, small.pastIncidents)
	}
}

func TestRule6AStartDuringAnIncident(t *testing.T) {
	r := newRig(t, 1)
	r.learn()
	h := evidence.History{Flows: map[fabric.Flow]evidence.Delays{}, Expected: len(r.w.edges)}
	for e, m := range r.loop.flowRecords {
		h.Flows[e] = evidence.Delays{P50: m.p50, P99: m.p99}
	}
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.w.delay[d] = 2e6
	start := func(h evidence.History) {
		r.loop = NewLoop(r.loop.opts)
		r.loop.opts.Expected = 0
		r.loop.seedBaselines(h)
		for e := range r.w.paths {
			r.loop.storeTraces([]fabric.Trace{r.trace(e)})
		}
	}
	start(h)
	if m := r.loop.flowRecords[fabric.Flow{Src: "h1/eth1", Dst: "h3/eth1"}]; m == nil || m.baseline == nil {
		t.Errorf("before its first cycle it does not know what is normal: %+v", m)
	}
	if r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 }); openVerdicts(r.loop.Snapshot())[0] != d.LinkID()+" "+d.String()+" corridor" {
		t.Errorf("verdicts %q", openVerdicts(r.loop.Snapshot()))
	}
	if s := r.loop.Snapshot(); s.Expected != len(r.w.edges) || s.Baselines != len(r.w.edges) {
		t.Errorf("%d expected, %d baselines, want %d", s.Expected, s.Baselines, len(r.w.edges))
	}
	start(evidence.History{})
	for range 20 {
		if s := r.step(); len(s.Report.Verdicts) != 0 {
			t.Fatalf("without history there is a verdict: the test shows nothing")
		}
	}
}

func TestRule6NothingIsLearntBeforeHistoryAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.loop.opts.NoTraces = true
		tries := 0
		r.loop.opts.Recall = func(context.Context) (evidence.History, error) {
			if tries++; tries < 4 {
				return evidence.History{}, errors.New("away")
			}
			return evidence.History{Expected: 3}, nil
		}
		o := newOutage(r)
		o.slow = time.Nanosecond
		ctx, stop := context.WithTimeout(t.Context(), 10500*time.Millisecond)
		defer stop()
		r.loop.Run(ctx, time.Second)
		if c := r.loop.CycleCounts(); tries != 4 || c.Failed != 3 || c.Cycles != 8 {
			t.Errorf("asked %d times; %+v", tries, c)
		}
	})
}
