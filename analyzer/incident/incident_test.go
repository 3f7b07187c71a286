package incident

import (
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

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

// TestRunbooksExist: every kind's is a page of the tree.
func TestRunbooksExist(t *testing.T) {
	for _, kind := range []fabric.Kind{fabric.KindLink, fabric.KindNIC, fabric.KindSwitch, fabric.KindHost, fabric.KindClock, fabric.KindLeafUplinks} {
		if _, err := os.Stat("../../" + runbookFor(&fabric.Verdict{Element: fabric.Element{Kind: kind}})); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// newTestTracker returns a tracker on a small fabric, with an open incident on a link.
func newTestTracker(t *testing.T) (*Tracker, *Incident) {
	t.Helper()
	g := worldtest.NewClos(t, 2, 4, 2)
	tr := NewTracker(Options{Graph: g, Settings: evidence.DefaultSettings(), Log: slog.New(slog.DiscardHandler)})
	v := fabric.Verdict{Element: fabric.Element{ID: "leaf1:up1--spine1:dn1", Kind: fabric.KindLink}, Edges: []string{"h1/eth1>h3/eth1", "h1/eth1>h4/eth1"}}
	tr.openIncident(&pendingSuspect{verdict: v}, &Moment{Now: time.Unix(1000, 0), Flows: &fakeFlows{}})
	return tr, tr.open[0]
}

// fakeFlows are flows that are all expected and have baselines.
type fakeFlows struct{ queried map[fabric.Flow]bool }

func (f *fakeFlows) FlowsCrossing(fabric.Element) []fabric.Flow { return nil }
func (f *fakeFlows) HasBaseline(fabric.Flow) bool               { return true }
func (f *fakeFlows) IsExpected(fabric.Flow) bool                { return true }
func (f *fakeFlows) QueriesAll() bool                           { return f.queried == nil }
func (f *fakeFlows) IsQueried(e fabric.Flow) bool               { return f.queried == nil || f.queried[e] }
func (f *fakeFlows) CurrentPath(fabric.Flow) (fabric.Path, time.Time, bool) {
	return nil, time.Time{}, false
}

// TestRule4FlowsThatAreNotQueried checks that an incident is not observed while none of its flows is queried, and is
// when all are decided.
func TestRule4FlowsThatAreNotQueried(t *testing.T) {
	_, in := newTestTracker(t)
	if in.mostlyObserved(&Moment{Flows: &fakeFlows{queried: map[fabric.Flow]bool{}}}) {
		t.Error("observed, although no flow was queried")
	}
	m := &Moment{Flows: &fakeFlows{queried: map[fabric.Flow]bool{}}}
	for _, name := range in.Edges {
		e, err := fabric.ParseFlow(name)
		if err != nil {
			t.Fatal(err)
		}
		m.Findings = append(m.Findings, judge.Finding{Flow: e, Condition: judge.Healthy})
	}
	if !in.mostlyObserved(m) {
		t.Error("not observed, although all flows that showed it are decided")
	}
	m.Findings = m.Findings[:1]
	if m.Flows = (&fakeFlows{}); !in.mostlyObserved(m) {
		t.Error("not observed, although half of the flows are decided")
	}
	if m.Findings = nil; in.mostlyObserved(m) {
		t.Error("observed, although no flow has evidence")
	}
}

// TestInheritedIncidents checks that incidents on elements that a new topology lacks are closed, and others stay open.
func TestInheritedIncidents(t *testing.T) {
	old, in := newTestTracker(t)
	same := NewTracker(old.opts)
	same.InheritFrom(old, in.OpenedAt)
	if len(same.open) != 1 || len(same.past) != 0 {
		t.Errorf("in the same topology: open %+v, past %+v", same.open, same.past)
	}
	o := old.opts
	o.Graph = fabric.NewGraph(&fabric.Topology{})
	small := NewTracker(o)
	small.InheritFrom(old, in.OpenedAt)
	if len(small.open) != 0 || len(small.past) != 1 || small.past[0].Closed == "" {
		t.Errorf("open %+v, past %+v", small.open, small.past)
	}
}

// TestCausesOfClosedIncidents checks that requests for the causes of closed incidents are forgotten.
func TestCausesOfClosedIncidents(t *testing.T) {
	tr, in := newTestTracker(t)
	tr.causes.requestedIn[in.ID] = 3
	if tr.ApplyCauses(); len(tr.causes.requestedIn) != 1 {
		t.Error("an open incident is forgotten")
	}
	tr.CloseCovered(func(*fabric.Verdict) (string, bool) { return "maintenance", true }, in.OpenedAt)
	if tr.ApplyCauses(); len(tr.causes.requestedIn) != 0 {
		t.Errorf("closed incidents are remembered: %v", tr.causes.requestedIn)
	}
}

// TestCausesAfterAnEarlierIncident checks that an incident on the same link, or on one of its equivalents, that ended shortly before is part
// of the request for causes, and no other one.
func TestCausesAfterAnEarlierIncident(t *testing.T) {
	link, rival, other := fabric.Element{ID: "leaf1:up1--spine1:dn1", Kind: fabric.KindLink}, fabric.Element{ID: "leaf1:up2--spine2:dn1", Kind: fabric.KindLink}, fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}
	for _, tt := range []struct {
		name string
		old  fabric.Verdict
		ago  time.Duration // since it was cleared
		want bool
	}{
		{"the same link", fabric.Verdict{Element: link}, 10 * time.Second, true},
		{"an equivalent", fabric.Verdict{Element: rival, Equivalent: []fabric.Element{link}}, 10 * time.Second, true},
		{"another link", fabric.Verdict{Element: other}, 10 * time.Second, false},
		{"long ago", fabric.Verdict{Element: link}, time.Hour, false},
	} {
		tr, in := newTestTracker(t)
		now := time.Unix(2000, 0)
		cleared := now.Add(-tt.ago)
		seen := cleared.Add(-5 * time.Second)
		tr.past = []*Incident{{Verdict: tt.old, LastSeen: seen, Cleared: &cleared}}
		got := tr.lastNamedBefore(in, now)
		if got.Equal(seen) != tt.want || got.IsZero() == tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// TestRule8OnlyThePartIsPublished: an incident of another pod is open and not published, until it is narrowed to an element of
// the part. One of the part stays published where it is narrowed to an element of another.
func TestRule8OnlyThePartIsPublished(t *testing.T) {
	g := worldtest.NewPods(t, 2, 1)
	part, err := fabric.NewPart(g, []string{"p1"}, false)
	if err != nil {
		t.Fatal(err)
	}
	own, other := fabric.Element{ID: "p1l1:up1--p1s1:dn1", Kind: fabric.KindLink}, fabric.Element{ID: "p2l1:up1--p2s1:dn1", Kind: fabric.KindLink}
	for _, from := range []fabric.Element{own, other} {
		tr := NewTracker(Options{Graph: g, Part: part, Settings: evidence.DefaultSettings(), Log: slog.New(slog.DiscardHandler)})
		m := &Moment{Now: time.Unix(1000, 0), Flows: &fakeFlows{}, Findings: []judge.Finding{{Obs: &fabric.Observation{Edge: "h111/eth1>h211/eth1"}}}}
		to := own
		if from == own {
			to = other
		}
		tr.openIncident(&pendingSuspect{verdict: fabric.Verdict{Element: from, Equivalent: []fabric.Element{to}, SameFlowEquivalents: []fabric.DirectedElement{{Element: to}}}}, m)
		in := tr.open[0]
		if got := len(tr.ListIncidents()); got != len(tr.OwnedIncidents()) || (got == 1) != (from == own) || (in.Observations() != nil) != (from == own) || !tr.HasOpen() {
			t.Errorf("%s: %d incidents are published", from.ID, got)
		}
		m.Report.Verdicts = []fabric.Verdict{{Element: to}}
		tr.TrackVerdicts(m)
		if all := tr.ListIncidents(); len(all) != 1 || all[0].Element != to || in.Observations() == nil {
			t.Errorf("%s: after it was narrowed: %+v", from.ID, all)
		}
		tr.CloseCovered(func(*fabric.Verdict) (string, bool) { return "maintenance", true }, m.Now)
		if all := tr.ListIncidents(); len(all) != 1 || all[0].Open {
			t.Errorf("%s: after it was closed: %+v", from.ID, all)
		}
	}
	tr := NewTracker(Options{Graph: g, Part: part, Settings: evidence.DefaultSettings(), Log: slog.New(slog.DiscardHandler)})
	tr.openIncident(&pendingSuspect{verdict: fabric.Verdict{Element: other}}, &Moment{Now: time.Unix(1000, 0), Flows: &fakeFlows{}})
	tr.CloseCovered(func(*fabric.Verdict) (string, bool) { return "maintenance", true }, time.Unix(1001, 0))
	if all := tr.ListIncidents(); len(all) != 0 {
		t.Errorf("an incident of another pod is history: %+v", all)
	}
}

// TestWhatIsLeftOfAFaultOpensNoVerdict ends a fault whose flows are healthy again but for those that one node receives: no incident is opened
// on its NIC while the fault's incident ends. If the flows of the fault are as degraded as before, the narrower element is named at once,
// and so it is once the incident has had its cycles to end.
func TestWhatIsLeftOfAFaultOpensNoVerdict(t *testing.T) {
	flows := []string{"h1/eth1>h3/eth1", "h1/eth1>h4/eth1", "h2/eth1>h3/eth1", "h2/eth1>h4/eth1", "h3/eth1>h1/eth1", "h4/eth1>h1/eth1"}
	for _, tc := range []struct {
		name     string
		rest     judge.Condition // of the other flows of the fault, in the cycles after it
		degraded []string
		explains []string
		opened   int // the first of these cycles that has an incident on the NIC
	}{
		{"the rest is healthy", judge.Healthy, []string{flows[0], flows[2]}, []string{flows[0], flows[2]}, clearAfter + 1},
		{"the rest is undecided", judge.Undecided, []string{flows[0], flows[2]}, []string{flows[0], flows[2]}, clearAfter + 1},
		{"the fault was narrower", judge.Healthy, flows[:4], []string{flows[0], flows[2]}, openAfter},
		{"another flow", judge.Healthy, []string{flows[0], "h2/eth1>h1/eth1"}, []string{flows[0], "h2/eth1>h1/eth1"}, openAfter},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := worldtest.NewClos(t, 2, 4, 2)
			tr := NewTracker(Options{Graph: g, Settings: evidence.DefaultSettings(), Log: slog.New(slog.DiscardHandler)})
			spine := fabric.Verdict{Element: fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}, Edges: flows}
			tr.openIncident(&pendingSuspect{verdict: spine}, &Moment{Now: time.Unix(1000, 0), Flows: &fakeFlows{}})
			nic := fabric.Verdict{Element: fabric.Element{ID: "h3/eth1", Kind: fabric.KindNIC}, Edges: tc.explains, Evidence: fabric.EvidenceCount{DegradedEdges: len(tc.explains)}}
			opened := 0
			for cycle := 1; cycle <= clearAfter+2 && opened == 0; cycle++ {
				m := &Moment{Now: time.Unix(1000+int64(cycle), 0), Cycle: cycle, Flows: &fakeFlows{}, Degraded: len(tc.degraded), Report: fabric.Report{Verdicts: []fabric.Verdict{nic}}}
				for _, name := range flows {
					e, err := fabric.ParseFlow(name)
					if err != nil {
						t.Fatal(err)
					}
					f := judge.Finding{Flow: e, Condition: tc.rest, Obs: &fabric.Observation{}}
					if slices.Contains(tc.degraded, name) {
						f.Condition = judge.Degraded
					}
					m.Findings = append(m.Findings, f)
				}
				tr.TrackVerdicts(m)
				if slices.ContainsFunc(tr.open, func(in *Incident) bool { return in.Element == nic.Element }) {
					opened = cycle
				}
			}
			if opened != tc.opened {
				t.Errorf("opened in cycle %d, and not in cycle %d", opened, tc.opened)
			}
		})
	}
}
