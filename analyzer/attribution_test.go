package analyzer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/attribute"
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
	r := newRig(t, 1)
	from := &answers{give: found(fabric.CausePhysical)}
	r.loop.opts.Causes = from
	r.learn()
	if len(from.asked) != 0 {
		t.Fatalf("asked without an incident: %+v", from.asked)
	}
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	begun := r.now
	r.w.delay[d] = 2e6
	r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	if len(from.asked) != 1 {
		t.Fatalf("asked %d times when it opened", len(from.asked))
	}
	if q := from.asked[0]; q.Verdict.Element.ID != d.LinkID() || q.Since.After(begun) || begun.Sub(q.Since) > 15*time.Second || !q.Now.After(begun) || q.Flows == 0 {
		t.Errorf("asked %+v; it began at %s", q, begun)
	}
	s := r.step()
	v := s.Report.Verdicts[0]
	if !slices.Equal(v.Causes, []string{fabric.CausePhysical}) || v.Attribution == nil || !strings.Contains(v.Action, "optics and cable at leaf1:up1") {
		t.Errorf("causes %q, attribution %+v, %s", v.Causes, v.Attribution, v.Action)
	}
	for range 2 * causesEvery {
		s = r.step()
	}
	if n := len(from.asked); n != 3 {
		t.Errorf("asked %d times in %d cycles", n, 2*causesEvery+1)
	}
	from.give = fabric.Attribution{State: fabric.NoCauseFound, Causes: []fabric.Cause{}}
	for range causesEvery + 1 {
		s = r.step()
	}
	if v := s.Report.Verdicts[0]; !slices.Equal(v.Causes, []string{fabric.CausePhysical}) {
		t.Errorf("what was found is lost: %q", v.Causes)
	}
	delete(r.w.delay, d)
	r.until(12, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	n := len(from.asked)
	for range 2 * causesEvery {
		s = r.step()
	}
	if in := s.Incidents[0]; len(from.asked) != n || in.Open || in.Attribution == nil || !slices.Equal(in.Causes, []string{fabric.CausePhysical}) {
		t.Errorf("asked %d times more after the all-clear; %+v", len(from.asked)-n, in.Attribution)
	}
	if len(r.loop.causeRequestCycle) != 0 {
		t.Errorf("healed incidents are remembered: %v", r.loop.causeRequestCycle)
	}
}

// TestLoopWithoutCauses checks that failing queries of causes do no harm.
func TestLoopWithoutCauses(t *testing.T) {
	r := newRig(t, 1)
	r.loop.opts.Causes = &answers{err: errors.New("Prometheus is down")}
	r.learn()
	r.w.delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
	r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	r.step()
	if v := r.loop.Snapshot().Report.Verdicts[0]; v.Attribution != nil {
		t.Errorf("%+v", v.Attribution)
	}
}

// TestBlockingIsConfirmed checks that the switch's own series confirm a suspicion.
func TestBlockingIsConfirmed(t *testing.T) {
	in := &Incident{telemetryCause: &fabric.Attribution{State: fabric.CauseFound, Causes: []fabric.Cause{
		{Cause: fabric.CauseCongestion, Element: "s1:p1", Weight: 0.9, Text: "9 MB waited"}, {Cause: fabric.CauseDrops, Element: "s1:p2", Weight: 0.5, Text: "discards"}}}}
	v := fabric.Verdict{Element: fabric.Element{ID: "s1", Kind: fabric.KindSwitch}, Scenario: fabric.HOLCross, Summary: "Suspected head-of-line blocking: unrelated flows."}
	in.adoptVerdict(v)
	if want := "Head-of-line blocking, confirmed by the switch's counters: at s1:p1, 9 MB waited; at s1:p2, discards: unrelated flows."; in.Summary != want {
		t.Errorf("%q, want %q", in.Summary, want)
	}
	in.telemetryCause.Causes = in.telemetryCause.Causes[:1]
	if in.adoptVerdict(v); in.Summary != v.Summary {
		t.Errorf("by a queue alone: %q", in.Summary)
	}
}
