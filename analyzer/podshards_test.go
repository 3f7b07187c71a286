package analyzer_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// podShard is what an analyzer of a test is responsible for. Without pods it is everything.
type podShard struct {
	pods []string
	core bool
}

// newPodsRig returns a rig of three pods whose loop is responsible for some of them, or for all if none is named.
func newPodsRig(t *testing.T, seed uint64, fleet bool, of podShard) *looptest.Rig {
	r := looptest.NewRigOf(t, worldtest.NewPods(t, 3, 2), seed)
	r.Configure(func(o *analyzer.LoopOptions) {
		o.Expected, o.Maintenance = 0, maintenance.NewRegister(r.World.Graph)
		if fleet {
			o.Settings.Windows = r
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
// verdicts together as one for all, in both profiles. make bench-evidence has all faults.
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
			for _, fleet := range []bool{false, true} {
				if *twoStepSeeds == 0 && !fleet {
					continue
				}
				for seed := range uint64(max(1, *twoStepSeeds)) {
					var joined []string
					var said []string
					for _, of := range []podShard{{}, {pods: []string{"p1"}, core: true}, {pods: []string{"p2"}}, {pods: []string{"p3"}}} {
						r := newPodsRig(t, seed+1, fleet, of)
						fault(r)
						for range 20 {
							r.Step()
						}
						s := r.Loop.Snapshot()
						verdicts := looptest.OpenVerdicts(s)
						for i := range s.Incidents {
							if in := &s.Incidents[i]; !in.Open {
								t.Logf("fleet %v, seed %d, %v: closed %s (%s)", fleet, seed, of, in.Element.ID, in.Closed)
							}
						}
						if of.pods == nil {
							said = verdicts
						} else {
							joined = append(joined, verdicts...)
						}
						t.Logf("fleet %v, seed %d, %v: %s", fleet, seed, of, strings.Join(verdicts, "; "))
					}
					slices.Sort(said)
					slices.Sort(joined)
					if !slices.Equal(said, joined) {
						t.Errorf("fleet %v, seed %d: the whole says %q, the pods %q", fleet, seed, said, joined)
					}
					if want := name != "nothing" && name != "a starved host"; want != (len(said) > 0) {
						t.Errorf("fleet %v, seed %d: %q", fleet, seed, said)
					}
				}
			}
		})
	}
}
