package analyzer_test

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/localize"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/publish"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// long leaves a test out with -short, as make test's race detector runs them: two others of this file have the same loop
// under it.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a hundred cycles take minutes under the race detector")
	}
}

// newTwoStepRig returns a rig of 32 NICs with 12 peers each, 768 directed flows, that queries in two
// steps or all flows.
func newTwoStepRig(t *testing.T, seed uint64, two bool) *looptest.Rig {
	return newProfileRig(t, seed, two, false)
}

// newProfileRig returns the same rig, whose windows of flows come from the nodes with fleet.
func newProfileRig(t *testing.T, seed uint64, two, fleet bool) *looptest.Rig {
	r := looptest.NewRigOf(t, worldtest.NewClos(t, 4, 8, 4), seed)
	nics := r.World.Graph.NICIDs()
	r.World.Flows = slices.DeleteFunc(r.World.Flows, func(e fabric.Flow) bool {
		apart := (slices.Index(nics, e.Dst) - slices.Index(nics, e.Src) + len(nics)) % len(nics)
		skip := apart > 3 && apart%3 != 0
		if skip {
			delete(r.World.Paths, e)
		}
		return skip
	})
	r.Configure(func(o *analyzer.LoopOptions) {
		o.Expected, o.Maintenance = 0, maintenance.NewRegister(r.World.Graph)
		if fleet {
			o.Settings.Windows = r
		}
		if two {
			o.TwoSteps = selection.Options{MinFlows: 300, MaxFlows: 400, Round: 10 * time.Second}
		}
	})
	r.TraceAll()
	r.Until(80, "baselines and innocence", func(s snapshot.Snapshot) bool {
		return s.Baselines == len(r.World.Flows) && s.Report.State == fabric.Innocent
	})
	for range 12 { // one more round: all NICs are known by then
		r.Step()
	}
	return r
}

var twoStepSeeds = flag.Int("asking.seeds", 0, "fabrics for each fault of TestTwoStepsSayWhatEverythingSays; 0: one, and not all faults")

// TestTwoStepsSayWhatEverythingSays: the same faults on the same fabrics, whose noise is the
// same, end in the same verdicts, from the server and from windows of the nodes. make bench-evidence has all of them (ten
// seconds each).
func TestTwoStepsSayWhatEverythingSays(t *testing.T) {
	up, down := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}, fabric.Direction{From: "spine2:dn3", To: "leaf3:up2"}
	access := func(r *looptest.Rig, nic string) fabric.Direction {
		return fabric.Direction{From: r.World.Graph.PeerOf(nic), To: nic}
	}
	for name, fault := range map[string]func(*looptest.Rig){
		"nothing":               func(*looptest.Rig) {},
		"delay on an uplink":    func(r *looptest.Rig) { r.World.Delay[up] = 2e6 },
		"delay on a downlink":   func(r *looptest.Rig) { r.World.Delay[down] = 1e5 },
		"loss on a link":        func(r *looptest.Rig) { r.World.Loss[up] = 0.2 },
		"loss the other way":    func(r *looptest.Rig) { r.World.Loss[down] = 0.05 },
		"a dead direction":      func(r *looptest.Rig) { r.World.Loss[down] = 1 },
		"a dead link":           func(r *looptest.Rig) { r.World.Loss[up], r.World.Loss[up.Reverse()] = 1, 1 },
		"a slow spine":          func(r *looptest.Rig) { r.World.Slow["spine3"] = 1e6 },
		"a slow leaf":           func(r *looptest.Rig) { r.World.Slow["leaf2"] = 1e6 },
		"a NIC that is slow in": func(r *looptest.Rig) { r.World.Delay[access(r, "h5/eth1")] = 1e6 },
		"a NIC that loses out":  func(r *looptest.Rig) { r.World.Loss[access(r, "h5/eth1").Reverse()] = 0.1 },
		"a dead NIC":            func(r *looptest.Rig) { d := access(r, "h5/eth1"); r.World.Loss[d], r.World.Loss[d.Reverse()] = 1, 1 },
		"a starved host":        func(r *looptest.Rig) { r.Late["h7"] = true; r.World.Delay[access(r, "h7/eth1")] = 3e6 },
		"a clock":               func(r *looptest.Rig) { r.World.Clock["h9/eth1"] = 2e6 },
		"two links": func(r *looptest.Rig) {
			r.World.Delay[up] = 2e6
			r.World.Loss[down] = 0.3
		},
	} {
		if testing.Short() && name != "delay on an uplink" {
			continue
		}
		if *twoStepSeeds == 0 && !slices.Contains([]string{"nothing", "delay on an uplink", "a slow leaf", "a clock"}, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(max(1, *twoStepSeeds)) {
				var said [3][]string
				var first [3]int
				for i, two := range []bool{false, true, true} {
					fleet := i == 2
					r := newProfileRig(t, seed+1, two, fleet)
					if fleet {
						r.Asked = func(name string, _ func(fabric.Flow) bool) {
							if name == "sent" || name == "p50" || name == "hardGot" {
								t.Errorf("%s is queried from the server", name)
							}
						}
					}
					fault(r)
					for n := range 20 {
						if s := r.Step(); first[i] == 0 && len(s.Report.Verdicts) > 0 {
							first[i] = n + 1
						}
					}
					s := r.Loop.Snapshot()
					if said[i] = looptest.OpenVerdicts(s); two != (s.Queries != nil && s.Queries.TwoSteps) {
						t.Fatalf("two steps %v: %+v", two, s.Queries)
					}
					slices.Sort(said[i])
					if fleet {
						observationsGiveVerdictsAgain(t, r, s)
					}
					room := 450
					if fleet {
						room = 600 // a fault that has just begun moved more flows than the overview had
					}
					if two && s.Queries.QueriedFlows > room {
						t.Errorf("seed %d: %d flows are asked about, where there is room for %d", seed, s.Queries.QueriedFlows, room)
					}
					if name == "nothing" && (s.Report.State != fabric.Innocent || s.Report.Coverage != fabric.Coverage{Links: 1, Edges: 1} || two && s.Queries.QueriedFlows > 150) {
						t.Errorf("seed %d: %s with coverage %+v; %+v", seed, s.Report.State, s.Report.Coverage, s.Queries)
					}
				}
				t.Logf("seed %d: first said after %d cycles", seed, first)
				if !slices.Equal(said[0], said[1]) || !slices.Equal(said[0], said[2]) {
					t.Errorf("seed %d: everything says %q, two steps say %q, with windows of the nodes %q", seed, said[0], said[1], said[2])
				}
				// A node takes two windows to say that a flow moved, so that noise is not queried.
				if max(first[1], first[2]) > first[0]+3 {
					t.Errorf("seed %d: everything said it after %d cycles, two steps after %d, with windows of the nodes after %d", seed, first[0], first[1], first[2])
				}
			}
		})
	}
}

// observationsGiveVerdictsAgain checks that a file of what was observed when a verdict opened has the same element by
// graylink localize.
func observationsGiveVerdictsAgain(t *testing.T, r *looptest.Rig, s snapshot.Snapshot) {
	t.Helper()
	mux := http.NewServeMux()
	(&publish.API{Snapshot: func() snapshot.Snapshot { return s }, Store: r.Loop.PathStore()}).RegisterHandlers(mux)
	for i := range s.Incidents {
		in := &s.Incidents[i]
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/api/v1/verdicts/"+in.ID+"/observations", nil))
		if answer.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", in.Element.ID, answer.Code, answer.Body)
		}
		var obs []*fabric.Observation
		err := fabric.ReadObservations(answer.Body, func(_ int, o *fabric.Observation) error { obs = append(obs, o); return nil }, func(e fabric.LineError) { t.Error(e) })
		if err != nil {
			t.Fatal(err)
		}
		rep, err := localize.FindFaults(r.World.Graph, obs, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(rep.Verdicts, func(v fabric.Verdict) bool { return v.Element == in.Element && v.Direction == in.Direction }) {
			t.Errorf("%s %s: its %d observations give %+v", in.Kind, in.Element.ID, len(obs), rep.Verdicts)
		}
	}
}

// TestRules19To21NodesThatDoNotAnswerOrLie checks that nodes without windows, and nodes whose answers cannot be, cost evidence
// and make no verdict wrong.
func TestRules19To21NodesThatDoNotAnswerOrLie(t *testing.T) {
	t.Parallel()
	up := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	third := func(node string) bool { n, _ := strconv.Atoi(node[1:]); return n%3 == 0 }
	for name, spoil := range map[string]func(r *looptest.Rig){
		"a third does not answer": func(r *looptest.Rig) {
			r.Mute = map[string]bool{}
			for _, nic := range r.World.Graph.NICIDs() {
				r.Mute[fabric.OwnerOf(nic)] = third(fabric.OwnerOf(nic))
			}
		},
		"a third speaks of others": func(r *looptest.Rig) {
			r.Garble = func(node string, a *window.Answer) {
				for i := range a.Flows {
					if third(node) {
						a.Flows[i].Edge = strings.Replace(a.Flows[i].Edge, node+"/", "h1/", 1)
					}
				}
			}
		},
		"a third has lost more than it sent": func(r *looptest.Rig) {
			r.Garble = func(node string, a *window.Answer) {
				for i := range a.Flows {
					if third(node) {
						*a.Flows[i].Windows[0].Lost[window.Forward] = -1
					}
				}
			}
		},
		"a third has received nothing": func(r *looptest.Rig) {
			r.Garble = func(node string, a *window.Answer) {
				for e := range a.Received {
					if third(node) {
						a.Received[e] = 0
					}
				}
			}
		},
	} {
		if testing.Short() && name != "a third does not answer" {
			continue
		}
		r := newProfileRig(t, 1, true, true)
		spoil(r)
		for range 15 {
			if s := r.Step(); len(s.Report.Verdicts) > 0 {
				t.Fatalf("%s: %q without a fault", name, looptest.OpenVerdicts(s))
			}
		}
		r.World.Loss[up] = 0.2
		r.Until(15, name+": a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
		for range 5 {
			r.Step()
		}
		s := r.Loop.Snapshot()
		if got := looptest.OpenVerdicts(s); len(got) != 1 || !strings.HasPrefix(got[0], "leaf1:up1--spine1:dn1 ") {
			t.Errorf("%s: %q", name, got)
		}
		if missing := slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.Contains(w, "the windows of ") }); missing != (name != "a third has received nothing") {
			t.Errorf("%s: warnings %q", name, s.Warnings)
		}
	}
}

// TestRule22ARestartedAnalyzerHasTheBaselinesOfTheNodes: it needs no history.
func TestRule22ARestartedAnalyzerHasTheBaselinesOfTheNodes(t *testing.T) {
	t.Parallel()
	r := newProfileRig(t, 1, true, true)
	r.Configure(func(*analyzer.LoopOptions) {})
	r.TraceAll()
	r.World.Delay[fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}] = 2e6
	took := r.Until(12, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	t.Logf("a verdict after %d cycles, with %d baselines", took, r.Loop.Snapshot().Baselines)
	if got := looptest.OpenVerdicts(r.Loop.Snapshot()); len(got) != 1 || !strings.HasPrefix(got[0], "leaf1:up1--spine1:dn1 ") {
		t.Errorf("%q", got)
	}
}

// conditionOf returns the condition of a flow in a snapshot.
func conditionOf(s snapshot.Snapshot, e fabric.Flow) string {
	for i := range s.Edges {
		if s.Edges[i].Obs.Edge == e.String() {
			return string(s.Edges[i].Condition)
		}
	}
	return ""
}

// TestRule7OneFlowIsFoundAtOnce checks that one degraded flow of hundreds is queried because its node says that it moved.
func TestRule7OneFlowIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	r.Reload(func(o *analyzer.LoopOptions) { o.TwoSteps.Round = time.Hour })
	e := fabric.Flow{Src: "h4/eth1", Dst: "h7/eth1"}
	r.World.FlowDelay[e] = 5e6
	took := r.Until(2+confirmOf, "the flow is degraded", func(s snapshot.Snapshot) bool { return conditionOf(s, e) == "degraded" })
	t.Logf("degraded after %d cycles", took)
	for range 20 {
		if s := r.Step(); conditionOf(s, e) != "degraded" {
			t.Fatalf("%q: a flow in trouble is queried", conditionOf(s, e))
		}
	}
}

// TestRule7WithoutItsNodeAFlowIsFoundWithinARound checks that a node that hides a degraded flow delays what is found, by a
// round at most.
func TestRule7WithoutItsNodeAFlowIsFoundWithinARound(t *testing.T) {
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	e := fabric.Flow{Src: "h4/eth1", Dst: "h7/eth1"}
	r.Lying = map[string]bool{"h4/eth1": true}
	r.World.FlowDelay[e] = 5e6
	r.Until(10+confirmOf, "the flow is degraded", func(s snapshot.Snapshot) bool { return conditionOf(s, e) == "degraded" })
}

// TestRule8WhoIsNotAskedClearsNothing checks that an incident clears by the flows that are queried because they showed
// it.
func TestRule8WhoIsNotAskedClearsNothing(t *testing.T) {
	long(t)
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.World.Delay[d] = 2e6
	r.Until(10, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	delete(r.World.Delay, d)
	r.Until(20, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	r.Until(12, "innocence", func(s snapshot.Snapshot) bool { return s.Report.State == fabric.Innocent })
}

// TestRule10WhatANodeJudgesIsNoEvidence checks that a node that calls healthy flows bad changes nothing but what is queried.
func TestRule10WhatANodeJudgesIsNoEvidence(t *testing.T) {
	long(t)
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	r.Crying = map[string]bool{"h5/eth1": true}
	for range 30 {
		if s := r.Step(); len(s.Report.Verdicts) > 0 || s.Queries.Moved == 0 {
			t.Fatalf("%d NICs moved, %q", s.Queries.Moved, looptest.OpenVerdicts(s))
		}
	}
	r.Unjudging = func(nic string) bool { return nic == "h6/eth1" }
	for range 12 { // until the numbers of flows are queried again
		r.Step()
	}
	if s := r.Step(); conditionOf(s, fabric.Flow{Src: "h6/eth1", Dst: "h7/eth1"}) != "healthy" || s.Report.State != fabric.Innocent || s.Report.Coverage.Edges != 1 {
		t.Errorf("%s, %+v", s.Report.State, s.Report.Coverage)
	}
}

// TestRule7MoreFaultsThanTheBudget checks that nodes return only the flows that moved where all flows of their NICs exceed the
// budget, and that every fault is named then, and cleared.
func TestRule7MoreFaultsThanTheBudget(t *testing.T) {
	t.Parallel()
	r := newProfileRig(t, 1, true, true)
	r.Reload(func(o *analyzer.LoopOptions) { o.TwoSteps.MaxFlows = 250 })
	var want []string
	for i := range 4 {
		from := fmt.Sprintf("leaf%d:up%d", 1+2*i, 1+i)
		link := fabric.Direction{From: from, To: r.World.Graph.PeerOf(from)}
		r.World.Delay[link] = 1e6
		want = append(want, link.LinkID())
	}
	slices.Sort(want)
	named := func(s snapshot.Snapshot) []string {
		var out []string
		for i := range s.Report.Verdicts {
			out = append(out, s.Report.Verdicts[i].Element.ID)
		}
		slices.Sort(out)
		return out
	}
	r.Until(12, "every fault is named", func(s snapshot.Snapshot) bool { return slices.Equal(named(s), want) })
	clear(r.World.Delay)
	r.Until(40, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	r.Until(40, "innocence", func(s snapshot.Snapshot) bool { return s.Report.State == fabric.Innocent })
}

// TestRule8PauseOfPrometheus checks that agents that are not scraped for a while leave no evidence, and that their flows count
// again as soon as they answer, except for those with a fault that began meanwhile.
func TestRule8PauseOfPrometheus(t *testing.T) {
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	r.Reload(func(o *analyzer.LoopOptions) { o.TwoSteps.Round = time.Minute })
	pause := func() {
		for _, nic := range r.World.Graph.NICIDs() {
			r.Silent[fabric.OwnerOf(nic)] = true
		}
		for range 8 {
			r.Step()
		}
		if s := r.Loop.Snapshot(); s.Report.State != fabric.InsufficientEvidence || s.Queries.CarriedFlows != 0 {
			t.Errorf("nothing is scraped: %s, %+v", s.Report.State, *s.Queries)
		}
		clear(r.Silent)
	}
	pause()
	r.Step()
	if s := r.Step(); s.Report.State != fabric.Innocent || s.Report.Coverage.Edges != 1 {
		t.Errorf("in the second cycle after a pause: %s, %+v, %+v", s.Report.State, s.Report.Coverage, *s.Queries)
	}
	link := fabric.Direction{From: "leaf1:up1", To: r.World.Graph.PeerOf("leaf1:up1")}
	r.World.Delay[link] = 1e6
	pause()
	if s := r.Step(); s.Report.State == fabric.Innocent {
		t.Errorf("a link is slow after a pause, and the first cycle says %s", s.Report.State)
	}
	r.Until(8, "the link is named", func(s snapshot.Snapshot) bool {
		return len(s.Report.Verdicts) == 1 && s.Report.Verdicts[0].Element.ID == link.LinkID()
	})
}

func TestRule11WhatThereIsNoRoomForIsSaid(t *testing.T) {
	long(t)
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	r.Reload(func(o *analyzer.LoopOptions) { o.TwoSteps.MaxFlows = 200 })
	r.World.Slow["spine3"] = 1e6
	s := r.Step()
	for range 6 {
		s = r.Step()
	}
	if s.Queries.LeftOut == 0 || s.Queries.QueriedFlows > 250 || !slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.Contains(w, "the budget of a cycle is 200 flows") }) {
		t.Errorf("%+v, warnings %q", *s.Queries, s.Warnings)
	}
	r.Reload(func(o *analyzer.LoopOptions) { o.TwoSteps.MaxFlows = 40 })
	r.Until(15, "a round that takes too long is said", func(s snapshot.Snapshot) bool {
		return s.Queries.Late && s.Report.State != fabric.Innocent && slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.Contains(w, "takes longer than") })
	})
}

func TestRule12WhereNoNodeJudgesEverythingIsAsked(t *testing.T) {
	long(t)
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	r.Unjudging = func(string) bool { return true }
	r.Until(12, "it is seen that no node judges", func(s snapshot.Snapshot) bool { return !s.Queries.TwoSteps })
	s := r.Loop.Snapshot()
	if s.Queries.CarriedFlows != 0 || s.Queries.QueriedFlows != len(r.World.Flows) || len(s.Edges) != len(r.World.Flows) || s.Report.State != fabric.Innocent {
		t.Errorf("%+v, %s", *s.Queries, s.Report.State)
	}
	if !strings.Contains(s.Queries.Missing, "no agent publishes fabric_nic_flows") || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], s.Queries.Missing) {
		t.Errorf("%+v, warnings %q", *s.Queries, s.Warnings)
	}
	r.Unjudging = nil
	if s := r.Step(); !s.Queries.TwoSteps || s.Report.State != fabric.Innocent || s.Report.Coverage.Edges != 1 {
		t.Errorf("again: %+v, %s", *s.Queries, s.Report.State)
	}
	few := looptest.NewRig(t, 1)
	few.Configure(func(o *analyzer.LoopOptions) { o.Expected, o.TwoSteps = 0, selection.DefaultOptions() })
	few.Asked = func(name string, _ func(fabric.Flow) bool) {
		if strings.HasPrefix(name, "nic") {
			t.Errorf("%s is asked about %d flows", name, len(few.World.Flows))
		}
	}
	few.Learn()
	if s := few.Step(); s.Queries.TwoSteps || s.Queries.Missing != "" || len(s.Warnings) > 0 {
		t.Errorf("few flows: %+v, %q", *s.Queries, s.Warnings)
	}
}

// TestMaintenanceOfFlowsThatAreNotAsked checks that they are excluded, too.
func TestMaintenanceOfFlowsThatAreNotAsked(t *testing.T) {
	long(t)
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	if _, err := r.Loop.MaintenanceRegister().AddWindow(maintenance.Window{Element: "spine3", From: r.Now.Add(-time.Second), Until: r.Now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	s := r.Step()
	crossing := len(r.Loop.PathStore().FlowsCrossing(fabric.Element{ID: "spine3", Kind: fabric.KindSwitch}))
	if s.Report.Edges.Total != len(r.World.Flows)-crossing || s.Report.State != fabric.Innocent {
		t.Errorf("%d flows are to be excluded, %+v, %s", crossing, s.Report.Edges, s.Report.State)
	}
}
