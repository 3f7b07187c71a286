package analyzer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/looptest"
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
