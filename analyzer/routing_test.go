package analyzer_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// moveFlows gives the flows for which it is wanted another shortest path that does not cross an element.
func moveFlows(r *looptest.Rig, off fabric.Element, wanted func(f fabric.Flow, p fabric.Path) bool) {
	for f, p := range r.World.Paths {
		src, dst := f.Endpoints()
		if !off.CrossedBy(p, src, dst) || !wanted(f, p) {
			continue
		}
		all := slices.DeleteFunc(r.World.Graph.ShortestPaths(src, dst, 16), func(x fabric.Path) bool { return off.CrossedBy(x, src, dst) })
		if len(all) > 0 {
			r.World.Paths[f] = all[r.World.Random.IntN(len(all))]
		}
	}
	r.TraceAll()
}

func verdictsOn(s snapshot.Snapshot, scenario fabric.Scenario) (out []fabric.Verdict) {
	for _, v := range s.Report.Verdicts {
		if v.Scenario == scenario {
			out = append(out, v)
		}
	}
	return out
}

// A prefix that is missing at a spine is a ticket about routing, and no part is blamed. It ends when flows come back.
func TestMissingPrefixBlamesNoPart(t *testing.T) {
	r := looptest.NewRig(t, 4)
	r.Learn()
	spine := fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}
	before := maps.Clone(r.World.Paths)
	moveFlows(r, spine, func(_ fabric.Flow, p fabric.Path) bool { return p[len(p)-1].Switch == "leaf3" })
	r.Until(12, "a verdict on routing", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	for range 10 {
		s := r.Step()
		if len(s.Report.Verdicts) != 1 {
			t.Fatalf("open: %q", looptest.OpenVerdicts(s))
		}
		v := s.Report.Verdicts[0]
		if v.Element != spine || v.Scenario != fabric.RoutingFault || v.Prefix != "leaf3" || v.Severity != fabric.SeverityWarning {
			t.Errorf("%+v", v)
		}
	}
	r.World.Paths = before
	r.TraceAll()
	r.Until(12, "no verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
}

// A link that fails is named as before. The failover is information beside it, and what carries the load is said with the link.
func TestFailoverIsBesideTheLink(t *testing.T) {
	r := looptest.NewRig(t, 5)
	r.Learn()
	link := fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}
	d := fabric.Direction{From: "leaf2:up1", To: "spine1:dn2"}
	failed := r.Now
	r.World.Loss[d], r.World.Loss[d.Reverse()] = 1, 1
	r.Until(8, "the link", func(s snapshot.Snapshot) bool { return len(verdictsOn(s, fabric.HardFailure)) == 1 })
	lost := r.Now.Sub(failed)
	moveFlows(r, link, func(fabric.Flow, fabric.Path) bool { return true })
	r.Until(12, "the failover", func(s snapshot.Snapshot) bool { return len(verdictsOn(s, fabric.Convergence)) == 1 })
	r.Until(12, "the load", func(s snapshot.Snapshot) bool {
		hard := verdictsOn(s, fabric.HardFailure)
		return len(hard) == 1 && strings.Contains(hard[0].Summary, "Its load is carried by ")
	})
	s := r.Loop.Snapshot()
	// A confirmed hard loss is remembered for some cycles, and counts once.
	if got := verdictsOn(s, fabric.Convergence)[0].Failovers; len(got) == 0 || (time.Duration(got[0].LossNS)-lost).Abs() > 20*time.Millisecond {
		t.Errorf("stated %+v, want %s", got, lost)
	}
	for _, v := range s.Report.Verdicts {
		if v.Element != link {
			t.Errorf("%s %s", v.Element.ID, v.Scenario)
		}
	}
	if a, b := verdictsOn(s, fabric.HardFailure)[0], verdictsOn(s, fabric.Convergence)[0]; a.ID == b.ID {
		t.Error("both verdicts have the same identifier")
	}
	for range 40 {
		s = r.Step()
	}
	if len(s.Report.Verdicts) != 1 || s.Report.Verdicts[0].Scenario != fabric.HardFailure {
		t.Errorf("after the failover: %q", looptest.OpenVerdicts(s))
	}
}

// The FIB of a spine drops what goes to a leaf. Without reports the link is named, since both look alike. With them the switch is,
// and the link's incident closes.
func TestFIBMismatchReplacesTheLink(t *testing.T) {
	r := looptest.NewRig(t, 6)
	reports := map[string]*routing.Switch{}
	r.Configure(func(o *analyzer.LoopOptions) { o.SwitchRoutes = func() map[string]*routing.Switch { return reports } })
	r.Learn()
	d := fabric.Direction{From: "spine1:dn3", To: "leaf3:up1"}
	r.World.Loss[d] = 1
	r.Until(8, "the link", func(s snapshot.Snapshot) bool { return len(verdictsOn(s, fabric.HardFailure)) == 1 })
	own := &routing.Switch{Name: "spine1", At: r.Now, FIB: map[netip.Prefix][]string{}, RIB: map[netip.Prefix][]string{}}
	for _, nic := range r.World.Graph.NICIDs() {
		a := r.World.Graph.ProbeAddress(nic)
		prefix := netip.PrefixFrom(a, a.BitLen())
		leaf, _ := r.World.Graph.LeafOf(nic)
		own.RIB[prefix] = []string{"dn" + strings.TrimPrefix(leaf, "leaf")}
		own.FIB[prefix] = own.RIB[prefix]
		if leaf == "leaf3" {
			own.FIB[prefix] = nil
		}
	}
	reports["spine1"] = own
	r.Until(6, "the switch", func(s snapshot.Snapshot) bool {
		v := s.Report.Verdicts
		return len(v) == 1 && v[0].Scenario == fabric.FIBMismatch && v[0].Element.ID == "spine1" && v[0].Prefix == "leaf3" && v[0].Severity == fabric.SeverityCritical
	})
}

// Routing leaves a link that is down before any flow shows a symptom of it. The report of its ports makes that a verdict on the link,
// which stays while no report says otherwise, and ends with the report.
func TestLinkThatIsDownIsNamedByItsPorts(t *testing.T) {
	r := looptest.NewRig(t, 7)
	r.Learn()
	link := fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}
	before := maps.Clone(r.World.Paths)
	r.PortUp = map[string]int{"leaf2:up1": 1, "spine1:dn2": 0}
	moveFlows(r, link, func(fabric.Flow, fabric.Path) bool { return true })
	r.Until(6, "the link", func(s snapshot.Snapshot) bool { return len(verdictsOn(s, fabric.HardFailure)) == 1 })
	v := verdictsOn(r.Loop.Snapshot(), fabric.HardFailure)[0]
	if v.Element != link || !strings.Contains(v.Summary, "is down by the report of its ports") || strings.Contains(v.Summary, "No part is at fault") {
		t.Errorf("%+v", v)
	}
	r.Until(12, "what carries the load", func(s snapshot.Snapshot) bool {
		hard := verdictsOn(s, fabric.HardFailure)
		return len(hard) == 1 && hard[0].ID == v.ID && strings.Contains(hard[0].Summary, "Its load is carried by ") && hard[0].BlastRadius.NICs > 0
	})
	r.PortUp = nil // the switch is not scraped for a while
	for range 20 {
		s := r.Step()
		if len(s.Report.Verdicts) != 1 || s.Report.Verdicts[0].ID != v.ID {
			t.Fatalf("open: %q", looptest.OpenVerdicts(s))
		}
	}
	r.PortUp = map[string]int{"leaf2:up1": 1, "spine1:dn2": 1}
	r.World.Paths = before
	r.TraceAll()
	r.Until(3, "no verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	for range 20 {
		if s := r.Step(); len(s.Report.Verdicts) > 0 {
			t.Fatalf("open: %q", looptest.OpenVerdicts(s))
		}
	}
}

// A fabric begins to spray packets, and ends. Both are seen by traces: meanwhile flows have all their paths and none of them, and a verdict
// of information on each leaf says so.
func TestSprayingIsInformation(t *testing.T) {
	r := looptest.NewRig(t, 8)
	r.Learn()
	for range 4 {
		for f := range r.World.Paths {
			tr := fabric.Trace{Edge: f.String(), State: fabric.PathUnknown, TracedAt: r.Now, Reached: true, Balanced: true}
			if err := r.Loop.PathStore().AddTrace(tr); err != nil {
				t.Fatal(err)
			}
		}
		r.Step()
	}
	s := r.Loop.Snapshot()
	got := verdictsOn(s, fabric.RoutingFault)
	if len(got) != 4 || len(s.Report.Verdicts) != 4 || s.Report.State == fabric.Suspect {
		t.Fatalf("%s: %q", s.Report.State, looptest.OpenVerdicts(s))
	}
	for _, v := range got {
		if v.Kind != fabric.KindSwitch || !strings.HasPrefix(v.Element.ID, "leaf") || v.Severity != fabric.SeverityInfo || !strings.Contains(v.Summary, "recent traces") {
			t.Errorf("%+v", v)
		}
	}
	for f, p := range r.World.Paths {
		if b, _ := r.Loop.PathStore().CurrentBinding(f); b.Sprayed != (len(p) > 1) || b.Sprayed && (len(b.Path) > 0 || len(b.Candidates) != 2) {
			t.Errorf("%s: sprayed %t, path %q, %d candidates", f, b.Sprayed, b.Path.CanonicalKey(), len(b.Candidates))
		}
	}
	r.Until(60, "no verdict", func(s snapshot.Snapshot) bool {
		r.TraceAll()
		return len(s.Report.Verdicts) == 0
	})
	r.TraceAll()
	for f := range r.World.Paths {
		if b, _ := r.Loop.PathStore().CurrentBinding(f); b.Sprayed || b.State != fabric.PathValid {
			t.Errorf("%s: %s, sprayed %t after the spraying", f, b.State, b.Sprayed)
		}
	}
}
