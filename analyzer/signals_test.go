package analyzer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/attribute"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// withLostSignals is a Querier to which each flow from one NIC has another one beside it that carries in-band signals, and loses all
// of its probes.
type withLostSignals struct {
	evidence.Querier
	src string
}

// QueryInstant implements evidence.Querier.
func (q withLostSignals) QueryInstant(ctx context.Context, query string, at time.Time) ([]evidence.Sample, error) {
	out, err := q.Querier.QueryInstant(ctx, query, at)
	for _, s := range out {
		if s.Labels["src"] != q.src || s.Labels["flow"] != "0" || strings.Contains(query, "owd_seconds") {
			continue
		}
		labels := map[string]string{}
		for k, v := range s.Labels {
			labels[k] = v
		}
		labels["class"], labels["flow"] = fabric.ClassCSIG, "64"
		switch v := s.Value; {
		case strings.Contains(query, "fabric_probe_sent_total"):
			out = append(out, evidence.Sample{Labels: labels, Value: v})
		case strings.Contains(query, "fabric_probe_lost_total"):
			out = append(out, evidence.Sample{Labels: labels, Value: 200})
		default:
			out = append(out, evidence.Sample{Labels: labels})
		}
	}
	return out, err
}

// TestLoopFlowsWithSignals: flows that carry in-band signals, whose probes a switch drops for ten minutes, are neither expected nor
// observed, and open no verdict. The coverage is that of the other flows.
func TestLoopFlowsWithSignals(t *testing.T) {
	r := looptest.NewRig(t, 7)
	asked := 0
	r.Asked = func(name string, _ func(fabric.Flow) bool) {
		if name == "lost" {
			asked++
		}
	}
	r.Configure(func(o *analyzer.LoopOptions) { o.DB, o.Expected = withLostSignals{r, "h1/eth1"}, 0 })
	r.Learn()
	before := r.Loop.Snapshot()
	for range 600 {
		s := r.Step()
		if s.Report.State != fabric.Innocent || len(s.Incidents) != 0 || s.Report.Coverage != before.Report.Coverage || s.Expected != len(r.World.Flows) {
			t.Fatalf("%s, coverage %+v of %d flows, %+v", s.Report.State, s.Report.Coverage, s.Expected, s.Incidents)
		}
	}
	for _, v := range r.Loop.Snapshot().Edges {
		if v.Obs.CarriesSignals() {
			t.Errorf("%s is observed", v.Obs.Edge)
		}
	}
	if asked < 600 {
		t.Errorf("the flows were asked about %d times", asked)
	}
}

// TestLoopSignalsOfAnIncident: a request for causes lists the flows that cross the element by paths that they have had since before the
// incident.
func TestLoopSignalsOfAnIncident(t *testing.T) {
	r := looptest.NewRig(t, 1)
	from := &answers{give: found(fabric.CausePhysical)}
	r.Configure(func(o *analyzer.LoopOptions) { o.Causes = from })
	r.Learn()
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	moved := fabric.Flow{}
	want := map[fabric.Flow]bool{}
	for e, p := range r.World.Paths {
		if src, dst := e.Endpoints(); slices.ContainsFunc(p.LinkDirections(src, dst), func(x fabric.Direction) bool { return x.LinkID() == d.LinkID() }) {
			want[e] = true
		}
	}
	r.World.Delay[d] = 2e6
	r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	link := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
	crossing := from.asked[0].Crossing
	got := crossing(link)
	if len(got) != len(want) {
		t.Fatalf("%d flows cross, not %d", len(got), len(want))
	}
	for _, c := range got {
		if src, dst := c.Flow.Endpoints(); !want[c.Flow] || !link.CrossedBy(c.Path, src, dst) {
			t.Errorf("%s by %v", c.Flow, c.Path)
		}
		moved = c.Flow
	}
	// One of them takes another way, and comes back.
	src, dst := moved.Endpoints()
	here := r.World.Paths[moved]
	for _, p := range r.World.Graph.ShortestPaths(src, dst, 8) {
		if !link.CrossedBy(p, src, dst) {
			r.World.Paths[moved] = p
		}
	}
	for _, p := range []fabric.Path{r.World.Paths[moved], here} {
		r.Now = r.Now.Add(time.Second)
		r.World.Paths[moved] = p
		r.AddTrace(r.World.TraceOf(moved, r.Now))
	}
	if now := crossing(link); len(now) != len(want)-1 || slices.ContainsFunc(now, func(c attribute.CrossingFlow) bool { return c.Flow == moved }) {
		t.Errorf("%d flows cross after one took another way for a while", len(now))
	}
}

// TestLoopFindingsOfSignals: what is wrong with in-band signals is in the snapshot of the next cycle, and gone when it cannot be read.
func TestLoopFindingsOfSignals(t *testing.T) {
	r := looptest.NewRig(t, 1)
	broken := false
	r.Configure(func(o *analyzer.LoopOptions) { o.DB = withProfiles{r, &broken} })
	if r.Loop.SignalReader() != nil {
		t.Error("signals are read, though the options do not ask for it")
	}
	if err := r.Loop.CheckSignals(t.Context(), r.Now); err != nil {
		t.Fatal(err)
	}
	s := r.Step()
	if len(s.Signals) != 1 || s.Signals[0].Kind != signals.ProfilesDiffer {
		t.Errorf("%+v", s.Signals)
	}
	broken = true
	if err := r.Loop.CheckSignals(t.Context(), r.Now); err == nil {
		t.Error("a check without answers succeeded")
	}
	if s := r.Step(); len(s.Signals) != 0 {
		t.Errorf("%+v", s.Signals)
	}
}

// withProfiles is a Querier of a domain whose nodes have two profiles.
type withProfiles struct {
	evidence.Querier
	broken *bool
}

// QueryInstant implements evidence.Querier.
func (q withProfiles) QueryInstant(ctx context.Context, query string, at time.Time) ([]evidence.Sample, error) {
	switch {
	case !strings.Contains(query, "csig_"):
		return q.Querier.QueryInstant(ctx, query, at)
	case *q.broken:
		return nil, errors.New("connection refused")
	case strings.HasPrefix(query, "count by (hash)"):
		return []evidence.Sample{{Labels: map[string]string{"hash": "aa"}, Value: 7}, {Labels: map[string]string{"hash": "bb"}, Value: 1}}, nil
	case strings.HasPrefix(query, "count by (instance)"):
		return []evidence.Sample{{Labels: map[string]string{"instance": "h8"}, Value: 1}}, nil
	case strings.HasPrefix(query, "count("):
		return []evidence.Sample{{Value: 8}}, nil
	}
	return nil, nil
}
