package analyzer_test

import (
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
)

// podShard is what an analyzer of a test is responsible for. Without pods it is everything.
type podShard struct {
	pods []string
	core bool
}

// Profiles of a test: every cycle queries all flows, or selected ones from the server, or these from the agents.
const (
	allFlows = "all flows"
	selected = "selected flows"
	ofAgents = "windows of agents"
)

// newPodsRig returns a rig of three pods whose loop is responsible for some of them, or for all if none is named.
func newPodsRig(t *testing.T, seed uint64, profile string, of podShard) *looptest.Rig {
	r := looptest.NewRigOf(t, worldtest.NewPods(t, 3, 2), seed)
	r.Configure(func(o *analyzer.LoopOptions) {
		o.Expected, o.Maintenance = 0, maintenance.NewRegister(r.World.Graph)
		if profile == ofAgents {
			o.Settings.Windows = r
		}
		if profile != allFlows {
			o.TwoSteps = selection.Options{MinFlows: 100, MaxFlows: 200, Round: 10 * time.Second}
		}
	})
	flows := len(r.World.Flows)
	if len(of.pods) > 0 {
		r.RestrictToPods(of.core, of.pods...)
		flows = flows * len(of.pods) / 3
	}
	r.TraceAll()
	r.Until(80, "baselines and innocence", func(s snapshot.Snapshot) bool {
		return s.Baselines == flows && s.Expected == flows && s.Report.State == fabric.Innocent
	})
	for range 12 {
		r.Step()
	}
	return r
}

// TestPodShardsSayWhatTheWholeSays: analyzers that are responsible for pods, one of them also for the core, have the same
// verdicts together as one for all, wherever these read their evidence from. None has one that closes on the way. make
// bench-evidence has all faults.
func TestPodShardsSayWhatTheWholeSays(t *testing.T) {
	long(t)
	g := worldtest.NewPods(t, 3, 2)
	way := func(from string) fabric.Direction { return fabric.Direction{From: from, To: g.PeerOf(from)} }
	up, down := way("p2l1:up1"), way("p2s2:dn1")        // inside a pod
	toCore, fromCore := way("p2s1:up1"), way("c21:dn2") // above it
	nic := "h221/eth1"
	in := way(nic).Reverse()
	for name, fault := range map[string]func(*looptest.Rig){
		"nothing":                    func(*looptest.Rig) {},
		"delay on an uplink":         func(r *looptest.Rig) { r.World.Delay[up] = 2e6 },
		"delay on a downlink":        func(r *looptest.Rig) { r.World.Delay[down] = 1e5 },
		"loss on a link":             func(r *looptest.Rig) { r.World.Loss[up] = 0.2 },
		"loss the other way":         func(r *looptest.Rig) { r.World.Loss[down] = 0.05 },
		"a dead direction":           func(r *looptest.Rig) { r.World.Loss[down] = 1 },
		"a dead link":                func(r *looptest.Rig) { r.World.Loss[up], r.World.Loss[up.Reverse()] = 1, 1 },
		"a slow spine":               func(r *looptest.Rig) { r.World.Slow["p2s1"] = 1e6 },
		"a slow leaf":                func(r *looptest.Rig) { r.World.Slow["p2l2"] = 1e6 },
		"a slow core switch":         func(r *looptest.Rig) { r.World.Slow["c12"] = 1e6 },
		"delay to the core":          func(r *looptest.Rig) { r.World.Delay[toCore] = 2e6 },
		"delay from the core":        func(r *looptest.Rig) { r.World.Delay[fromCore] = 1e5 },
		"loss to the core":           func(r *looptest.Rig) { r.World.Loss[toCore] = 0.2 },
		"loss from the core":         func(r *looptest.Rig) { r.World.Loss[fromCore] = 0.05 },
		"a dead link to the core":    func(r *looptest.Rig) { r.World.Loss[toCore], r.World.Loss[toCore.Reverse()] = 1, 1 },
		"a NIC that is slow in":      func(r *looptest.Rig) { r.World.Delay[in] = 1e6 },
		"a NIC that loses out":       func(r *looptest.Rig) { r.World.Loss[in.Reverse()] = 0.1 },
		"a dead NIC":                 func(r *looptest.Rig) { r.World.Loss[in], r.World.Loss[in.Reverse()] = 1, 1 },
		"a starved host":             func(r *looptest.Rig) { r.Late[fabric.OwnerOf(nic)] = true; r.World.Delay[in] = 3e6 },
		"a clock":                    func(r *looptest.Rig) { r.World.Clock[nic] = 2e6 },
		"a link of each of two pods": func(r *looptest.Rig) { r.World.Delay[up], r.World.Loss[way("p3l1:up2")] = 2e6, 0.3 },
		"a link of a pod and a core": func(r *looptest.Rig) { r.World.Delay[up], r.World.Slow["c22"] = 2e6, 1e6 },
	} {
		if *twoStepSeeds == 0 && name != "a link of a pod and a core" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, profile := range []string{allFlows, selected, ofAgents} {
				if *twoStepSeeds == 0 && profile != ofAgents {
					continue
				}
				for seed := range uint64(max(1, *twoStepSeeds)) {
					var said, joined []string
					for _, of := range []podShard{{}, {pods: []string{"p1"}, core: true}, {pods: []string{"p2"}}, {pods: []string{"p3"}}} {
						r := newPodsRig(t, seed+1, profile, of)
						fault(r)
						for range 20 {
							r.Step()
						}
						s := r.Loop.Snapshot()
						verdicts := looptest.OpenVerdicts(s)
						for i := range s.Incidents {
							in := &s.Incidents[i]
							t.Logf("%s, seed %d, %v: %s %s %s, confidence %.3f", profile, seed, of, in.Element.ID, in.Direction, in.Scenario, in.Confidence)
							if !in.Open {
								t.Errorf("%s, seed %d, %v: closed %s (%s)", profile, seed, of, in.Element.ID, in.Closed)
							}
						}
						if of.pods == nil {
							said = verdicts
						} else {
							joined = append(joined, verdicts...)
						}
					}
					slices.Sort(said)
					slices.Sort(joined)
					if !slices.Equal(said, joined) {
						t.Errorf("%s, seed %d: the whole says %q, the pods %q", profile, seed, said, joined)
					}
					if want := name != "nothing" && name != "a starved host"; want != (len(said) > 0) {
						t.Errorf("%s, seed %d: %q", profile, seed, said)
					}
				}
			}
		})
	}
}

// podReading is what an analyzer reads in a cycle, as the mean of some.
type podReading struct{ flows, requests, queries float64 }

// readingOf runs cycles of a rig and returns what they read.
func readingOf(r *looptest.Rig, cycles int) (out podReading) {
	requests := r.WindowRequests
	r.Asked = func(string, func(fabric.Flow) bool) { out.queries++ }
	for range cycles {
		out.flows += float64(r.Step().Queries.QueriedFlows)
	}
	r.Asked = nil
	n := float64(cycles)
	return podReading{out.flows / n, float64(r.WindowRequests-requests) / n, out.queries / n}
}

// TestWhatAPodShardReads: the windows that an analyzer of one of four pods reads follow its pod while all is well or something
// is wrong inside another pod, and are those of the whole where flows of all pods are slow. make bench-evidence has more NICs,
// and all faults.
func TestWhatAPodShardReads(t *testing.T) {
	long(t)
	const calm = 40
	hosts, share := 2, 0.5 // of the NICs, of which a cycle queries whole ones
	if *twoStepSeeds > 0 {
		hosts, share = 4, 0.35
	}
	link := fabric.Direction{From: "p2l1:up1", To: "p2s1:dn1"}
	reading := map[string][]podReading{}
	for _, of := range []podShard{{}, {pods: []string{"p1"}}} {
		r := looptest.NewRigOf(t, worldtest.NewPods(t, 4, hosts), 1)
		r.Configure(func(o *analyzer.LoopOptions) {
			o.Expected, o.Settings.Windows = 0, r
			o.TwoSteps = selection.Options{MinFlows: 100, MaxFlows: 1000, Round: 10 * time.Second}
		})
		if of.pods != nil {
			r.RestrictToPods(of.core, of.pods...)
		}
		r.TraceAll()
		r.Until(80, "innocence", func(s snapshot.Snapshot) bool { return s.Report.State == fabric.Innocent })
		for range 12 {
			r.Step()
		}
		add := func(name string) { reading[name] = append(reading[name], readingOf(r, 20)) }
		add("all is well")
		for f, p := range r.World.Paths { // of flows inside the pod alone
			if from, to := f.Endpoints(); r.World.Graph.PodOf(from) == r.World.Graph.PodOf(to) && slices.Contains(p.LinkDirections(from, to), link) {
				r.World.FlowDelay[f] = 1e6
			}
		}
		add("flows inside another pod are slow")
		if *twoStepSeeds == 0 {
			continue
		}
		clear(r.World.FlowDelay)
		for range calm {
			r.Step()
		}
		r.World.Delay[link] = 1e6
		add("a link of another pod is slow")
		r.World.Delay[link] = 0
		for range calm {
			r.Step()
		}
		r.World.Slow["c11"] = 1e6
		add("a core switch is slow")
	}
	for name, most := range map[string]float64{"all is well": share, "flows inside another pod are slow": 0.7, "a link of another pod is slow": 1.05, "a core switch is slow": 1.05} {
		if len(reading[name]) < 2 {
			continue
		}
		whole, pod := reading[name][0], reading[name][1]
		t.Logf("%s: whole %.0f flows in %.1f requests and %.1f queries, pod %.0f flows in %.1f requests and %.1f queries", name, whole.flows, whole.requests, whole.queries, pod.flows, pod.requests, pod.queries)
		if pod.flows > most*whole.flows || pod.requests > most*whole.requests {
			t.Errorf("%s: the analyzer of a pod reads %+v, and that of all %+v: %.0f %% of it at most are expected", name, pod, whole, most*100)
		}
	}
}

// TestGroupShardsSayWhatTheWholeSays: the same for the groups of a Dragonfly+, with a fault on a global link and on one inside a
// group. Only make bench-evidence runs it.
func TestGroupShardsSayWhatTheWholeSays(t *testing.T) {
	if *twoStepSeeds == 0 {
		return
	}
	g := fabric.NewGraph(dragonfly.NewTopology(dragonfly.Options{Groups: 3, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 2, GlobalPerPair: 2}))
	var global, inner fabric.Direction
	for i := range g.Topo.Links {
		l := &g.Topo.Links[i]
		switch d := (fabric.Direction{From: l.A, To: l.B}); {
		case g.IsGlobal(l):
			global = d
		case !l.IsAccess():
			inner = d
		}
	}
	for name, d := range map[string]fabric.Direction{"a global link": global, "a link inside a group": inner} {
		var said, joined []string
		for _, groups := range [][]string{nil, {"g1"}, {"g2"}, {"g3"}} {
			r := looptest.NewRigOf(t, g, 1)
			r.Configure(func(o *analyzer.LoopOptions) {
				o.Expected, o.Settings.Windows = 0, r
				o.TwoSteps = selection.Options{MinFlows: 100, MaxFlows: 200, Round: 10 * time.Second}
			})
			if groups != nil {
				r.RestrictToPods(false, groups...)
			}
			r.TraceAll()
			for range 40 {
				r.Step()
			}
			r.World.Delay[d] = 2e6
			for range 20 {
				r.Step()
			}
			verdicts := looptest.OpenVerdicts(r.Loop.Snapshot())
			if groups == nil {
				said = verdicts
			} else {
				joined = append(joined, verdicts...)
			}
		}
		if len(said) == 0 || !slices.Equal(said, joined) {
			t.Errorf("%s: the whole says %q, the groups %q", name, said, joined)
		}
	}
}
