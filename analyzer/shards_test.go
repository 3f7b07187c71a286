package analyzer_test

import (
	"cmp"
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

// newPlanesRig returns a rig of two planes whose loop is responsible for some of them, or for all if none is named.
func newPlanesRig(t *testing.T, seed uint64, fleet bool, planes ...string) *looptest.Rig {
	r := looptest.NewRigOf(t, worldtest.NewTwoPlanes(t), seed)
	flows := 0
	for _, e := range r.World.Flows {
		if len(planes) == 0 || slices.Contains(planes, r.World.Graph.PlaneOf(e.Src)) {
			flows++
		}
	}
	r.Configure(func(o *analyzer.LoopOptions) {
		o.Expected, o.Maintenance = 0, maintenance.NewRegister(r.World.Graph)
		if fleet {
			o.Settings.Windows = r
			o.TwoSteps = selection.Options{MinFlows: 100, MaxFlows: 300, Round: 10 * time.Second}
		}
	})
	if len(planes) > 0 {
		r.Restrict(planes...)
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

// TestShardsSayWhatTheWholeSays: two analyzers that are responsible for one plane each have the same verdicts together as one
// for both, in both profiles, and none of them has one about the other's plane. make bench-evidence has all faults.
func TestShardsSayWhatTheWholeSays(t *testing.T) {
	long(t)
	g := worldtest.NewTwoPlanes(t)
	link := func(from string) fabric.Direction { return fabric.Direction{From: from, To: g.PeerOf(from)} }
	var up, down, other fabric.Direction
	for _, l := range g.Topo.Links {
		d := fabric.Direction{From: l.A, To: l.B}
		switch {
		case l.IsAccess():
		case up.From == "":
			up = d
		case !strings.HasPrefix(l.A, "b"):
			down = d.Reverse()
		default:
			other = d
		}
	}
	spine, leaf := fabric.OwnerOf(up.To), fabric.OwnerOf(down.To)
	nic := g.NICIDs()[4]
	in := link(nic).Reverse()
	for name, fault := range map[string]func(*looptest.Rig){
		"nothing":                  func(*looptest.Rig) {},
		"delay on an uplink":       func(r *looptest.Rig) { r.World.Delay[up] = 2e6 },
		"delay on a downlink":      func(r *looptest.Rig) { r.World.Delay[down] = 1e5 },
		"loss on a link":           func(r *looptest.Rig) { r.World.Loss[up] = 0.2 },
		"loss the other way":       func(r *looptest.Rig) { r.World.Loss[down] = 0.05 },
		"a dead direction":         func(r *looptest.Rig) { r.World.Loss[down] = 1 },
		"a dead link":              func(r *looptest.Rig) { r.World.Loss[up], r.World.Loss[up.Reverse()] = 1, 1 },
		"a slow spine":             func(r *looptest.Rig) { r.World.Slow[spine] = 1e6 },
		"a slow leaf":              func(r *looptest.Rig) { r.World.Slow[leaf] = 1e6 },
		"a NIC that is slow in":    func(r *looptest.Rig) { r.World.Delay[in] = 1e6 },
		"a NIC that loses out":     func(r *looptest.Rig) { r.World.Loss[in.Reverse()] = 0.1 },
		"a dead NIC":               func(r *looptest.Rig) { r.World.Loss[in], r.World.Loss[in.Reverse()] = 1, 1 },
		"a starved host":           func(r *looptest.Rig) { r.Late[fabric.OwnerOf(nic)] = true; r.World.Delay[in] = 3e6 },
		"a clock":                  func(r *looptest.Rig) { r.World.Clock[nic] = 2e6 },
		"a link of each of both":   func(r *looptest.Rig) { r.World.Delay[up], r.World.Loss[other] = 2e6, 0.3 },
		"the other plane's uplink": func(r *looptest.Rig) { r.World.Delay[other] = 2e6 },
	} {
		if *twoStepSeeds == 0 && name != "a link of each of both" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, fleet := range []bool{false, true} {
				if *twoStepSeeds == 0 && !fleet {
					continue
				}
				for seed := range uint64(max(1, *twoStepSeeds)) {
					said := map[string][]string{}
					for _, planes := range [][]string{nil, {"a"}, {"b"}} {
						r := newPlanesRig(t, seed+1, fleet, planes...)
						fault(r)
						for range 20 {
							r.Step()
						}
						s := r.Loop.Snapshot()
						said[strings.Join(planes, "")] = looptest.OpenVerdicts(s)
						for i := range s.Incidents {
							if p := cmp.Or(s.Incidents[i].Plane, "a"); len(planes) > 0 && !slices.Contains(planes, p) {
								t.Errorf("planes %q: a verdict about plane %s: %+v", planes, p, s.Incidents[i].Element)
							}
						}
					}
					whole, joined := said[""], slices.Concat(said["a"], said["b"])
					slices.Sort(whole)
					slices.Sort(joined)
					joined = slices.Compact(joined) // a host belongs to both
					if !slices.Equal(whole, joined) {
						t.Errorf("fleet %v, seed %d: the whole says %q, the planes %q", fleet, seed, whole, joined)
					}
					if want := name != "nothing" && name != "a starved host"; want != (len(whole) > 0) {
						t.Errorf("fleet %v, seed %d: %q", fleet, seed, whole)
					}
				}
			}
		})
	}
}
