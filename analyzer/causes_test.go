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
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// answers returns the same attribution for every element, or fails.
type answers struct {
	give  fabric.Attribution
	err   error
	asked []attribute.Request
}

func (a *answers) Attribute(_ context.Context, _ *fabric.Graph, q attribute.Request) (fabric.Attribution, error) {
	a.asked = append(a.asked, q)
	return a.give, a.err
}

// found returns an attribution of one cause.
func found(cause string) fabric.Attribution {
	return fabric.Attribution{State: fabric.CauseFound, Summary: "Cause: " + cause, Causes: []fabric.Cause{{Cause: cause, Element: "leaf1:up1", Weight: 0.9, Text: "it was read"}}}
}

// TestLoopAsksForCauses checks that causes are queried when an incident opens, every few cycles while it is
// open, and no longer when it has healed. The attribution stays with it.
func TestLoopAsksForCauses(t *testing.T) {
	r := looptest.NewRig(t, 1)
	from := &answers{give: found(fabric.CausePhysical)}
	r.Configure(func(o *analyzer.LoopOptions) { o.Causes = from })
	r.Learn()
	if len(from.asked) != 0 {
		t.Fatalf("asked without an incident: %+v", from.asked)
	}
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	begun := r.Now
	r.World.Delay[d] = 2e6
	r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	if len(from.asked) != 1 {
		t.Fatalf("asked %d times when it opened", len(from.asked))
	}
	if q := from.asked[0]; q.Verdict.Element.ID != d.LinkID() || q.Since.After(begun) || begun.Sub(q.Since) > 15*time.Second || !q.Now.After(begun) || q.Flows == 0 {
		t.Errorf("asked %+v; it began at %s", q, begun)
	}
	s := r.Step()
	v := s.Report.Verdicts[0]
	if !slices.Equal(v.Causes, []string{fabric.CausePhysical}) || v.Attribution == nil || !strings.Contains(v.Action, "optics and cable at leaf1:up1") {
		t.Errorf("causes %q, attribution %+v, %s", v.Causes, v.Attribution, v.Action)
	}
	for range 2 * causesEvery {
		s = r.Step()
	}
	if n := len(from.asked); n != 3 {
		t.Errorf("asked %d times in %d cycles", n, 2*causesEvery+1)
	}
	from.give = fabric.Attribution{State: fabric.NoCauseFound, Causes: []fabric.Cause{}}
	for range causesEvery + 1 {
		s = r.Step()
	}
	if v := s.Report.Verdicts[0]; !slices.Equal(v.Causes, []string{fabric.CausePhysical}) {
		t.Errorf("what was found is lost: %q", v.Causes)
	}
	delete(r.World.Delay, d)
	r.Until(12, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	n := len(from.asked)
	for range 2 * causesEvery {
		s = r.Step()
	}
	if in := s.Incidents[0]; len(from.asked) != n || in.Open || in.Attribution == nil || !slices.Equal(in.Causes, []string{fabric.CausePhysical}) {
		t.Errorf("asked %d times more after the all-clear; %+v", len(from.asked)-n, in.Attribution)
	}
}

// TestLoopWithoutCauses checks that failing queries of causes do no harm.
func TestLoopWithoutCauses(t *testing.T) {
	r := looptest.NewRig(t, 1)
	r.Configure(func(o *analyzer.LoopOptions) { o.Causes = &answers{err: errors.New("Prometheus is down")} })
	r.Learn()
	r.World.Delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
	r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	r.Step()
	if v := r.Loop.Snapshot().Report.Verdicts[0]; v.Attribution != nil {
		t.Errorf("%+v", v.Attribution)
	}
}
