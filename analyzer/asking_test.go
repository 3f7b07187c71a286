package analyzer

import (
	"flag"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/fabric"
)

var restriction = regexp.MustCompile(`\{(src|dst)=~("(?:[^"\\]|\\.)*")\}|, (src|dst)=~("(?:[^"\\]|\\.)*")`)

// unrestricted returns a query without its restriction to flows, and the flows that it selects.
func unrestricted(t *testing.T, query string) (string, func(fabric.Flow) bool) {
	m := restriction.FindStringSubmatch(query)
	if m == nil {
		return query, func(fabric.Flow) bool { return true }
	}
	text, err := strconv.Unquote(m[2] + m[4])
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("^(?:" + text + ")$")
	return restriction.ReplaceAllString(query, ""), func(e fabric.Flow) bool {
		if m[1]+m[3] == "dst" {
			return names.MatchString(e.Dst)
		}
		return names.MatchString(e.Src)
	}
}

// overview returns the values that the recording rules would have.
func (r *rig) overview(name string) (out []evidence.Sample) {
	switch name {
	case "flows":
		return []evidence.Sample{{Value: float64(len(r.frame))}}
	case "nicRules":
		for _, rule := range []string{"nicP50", "nicP99", "nicLost", "nicMarked", "nicAnswered"} {
			if r.rules == nil || r.rules(rule) {
				out = append(out, evidence.Sample{Labels: map[string]string{"rule": rule}, Value: float64(r.now.Unix())})
			}
		}
		return out
	case "nicP50", "nicP99", "nicLost", "nicAnswered":
	default:
		return nil
	}
	type key struct{ nic, side, tier string }
	type sum struct {
		delays     []int64
		sent, lost float64
	}
	sums := map[key]*sum{}
	for e, o := range r.frame {
		if r.w.flow[e] > 0 {
			continue // one among hundreds
		}
		k := key{e.Src, "source", strconv.Itoa(o.Tier)}
		if e.Reply {
			k.side = "destination"
		}
		s := sums[k]
		if s == nil {
			s = &sum{}
			sums[k] = s
		}
		if e.Reply && o.Lost == o.Sent {
			continue // nothing came back that would have it
		}
		s.sent += float64(o.Sent)
		if e.Reply || r.frame[fabric.Flow{Src: e.Src, Dst: e.Dst, Reply: true}].Sent > 0 {
			s.lost += float64(o.Lost)
		}
		for i := range 50 {
			if d := o.OWD; d != nil && i < 49 {
				s.delays = append(s.delays, *d.P50)
			} else if d != nil {
				s.delays = append(s.delays, *d.P99)
			}
		}
	}
	for k, s := range sums {
		slices.Sort(s.delays)
		l := map[string]string{"nic": k.nic, "side": k.side, "tier": k.tier, "plane": "a", "timestamp": "kernel"}
		quantile := map[string]int{"nicP50": 50, "nicP99": 99}[name]
		switch {
		case quantile > 0 && len(s.delays) > 0:
			out = append(out, evidence.Sample{Labels: l, Value: float64(s.delays[len(s.delays)*quantile/100]) / 1e9})
		case name == "nicLost" && s.lost > 0:
			delete(l, "timestamp")
			out = append(out, evidence.Sample{Labels: l, Value: s.lost / s.sent})
		case name == "nicAnswered" && k.side == "source":
			if back := sums[key{k.nic, "destination", k.tier}]; back != nil {
				out = append(out, evidence.Sample{Labels: map[string]string{"nic": k.nic, "plane": "a", "tier": k.tier}, Value: back.sent / s.sent})
			}
		}
	}
	return out
}

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
func newTwoStepRig(t *testing.T, seed uint64, two bool) *rig {
	r := newRigOf(t, clos(t, 4, 8, 4), seed)
	nics := r.w.g.NICIDs()
	r.w.edges = slices.DeleteFunc(r.w.edges, func(e fabric.Flow) bool {
		apart := (slices.Index(nics, e.Dst) - slices.Index(nics, e.Src) + len(nics)) % len(nics)
		skip := apart > 3 && apart%3 != 0
		if skip {
			delete(r.w.paths, e)
		}
		return skip
	})
	r.loop.opts.Expected = 0
	if two {
		r.loop.opts.TwoSteps = TwoStepOptions{MinFlows: 300, MaxFlows: 400, Round: 10 * time.Second}
	}
	for e := range r.w.paths {
		r.loop.storeTraces([]fabric.Trace{r.trace(e)})
	}
	r.until(80, "baselines and innocence", func(s Snapshot) bool {
		return s.Baselines == len(r.w.edges) && s.Report.State == fabric.Innocent
	})
	for range 12 { // one more round: all NICs are known by then
		r.step()
	}
	return r
}

var twoStepSeeds = flag.Int("asking.seeds", 0, "fabrics for each fault of TestTwoStepsSayWhatEverythingSays; 0: one, and not all faults")

// TestTwoStepsSayWhatEverythingSays: the same faults on the same fabrics, whose noise is the
// same, end in the same verdicts. make bench-evidence has all of them (ten seconds each).
func TestTwoStepsSayWhatEverythingSays(t *testing.T) {
	up, down := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}, fabric.Direction{From: "spine2:dn3", To: "leaf3:up2"}
	access := func(r *rig, nic string) fabric.Direction { return fabric.Direction{From: r.w.g.PeerOf(nic), To: nic} }
	for name, fault := range map[string]func(*rig){
		"nothing":               func(*rig) {},
		"delay on an uplink":    func(r *rig) { r.w.delay[up] = 2e6 },
		"delay on a downlink":   func(r *rig) { r.w.delay[down] = 1e5 },
		"loss on a link":        func(r *rig) { r.w.loss[up] = 0.2 },
		"loss the other way":    func(r *rig) { r.w.loss[down] = 0.05 },
		"a dead direction":      func(r *rig) { r.w.loss[down] = 1 },
		"a dead link":           func(r *rig) { r.w.loss[up], r.w.loss[up.Reverse()] = 1, 1 },
		"a slow spine":          func(r *rig) { r.w.slow["spine3"] = 1e6 },
		"a slow leaf":           func(r *rig) { r.w.slow["leaf2"] = 1e6 },
		"a NIC that is slow in": func(r *rig) { r.w.delay[access(r, "h5/eth1")] = 1e6 },
		"a NIC that loses out":  func(r *rig) { r.w.loss[access(r, "h5/eth1").Reverse()] = 0.1 },
		"a dead NIC":            func(r *rig) { d := access(r, "h5/eth1"); r.w.loss[d], r.w.loss[d.Reverse()] = 1, 1 },
		"a starved host":        func(r *rig) { r.late["h7"] = true; r.w.delay[access(r, "h7/eth1")] = 3e6 },
		"a clock":               func(r *rig) { r.w.clock["h9/eth1"] = 2e6 },
		"two links": func(r *rig) {
			r.w.delay[up] = 2e6
			r.w.loss[down] = 0.3
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
				var said [2][]string
				var first [2]int
				for i, two := range []bool{false, true} {
					r := newTwoStepRig(t, seed+1, two)
					fault(r)
					for n := range 20 {
						if s := r.step(); first[i] == 0 && len(s.Report.Verdicts) > 0 {
							first[i] = n + 1
						}
					}
					s := r.loop.Snapshot()
					if said[i] = openVerdicts(s); two != (s.Queries != nil && s.Queries.TwoSteps) {
						t.Fatalf("two steps %v: %+v", two, s.Queries)
					}
					slices.Sort(said[i])
					if two && s.Queries.QueriedFlows > 450 {
						t.Errorf("seed %d: %d flows are asked about, where there is room for 400", seed, s.Queries.QueriedFlows)
					}
					if name == "nothing" && (s.Report.State != fabric.Innocent || s.Report.Coverage != fabric.Coverage{Links: 1, Edges: 1} || two && s.Queries.QueriedFlows > 150) {
						t.Errorf("seed %d: %s with coverage %+v; %+v", seed, s.Report.State, s.Report.Coverage, s.Queries)
					}
				}
				if !slices.Equal(said[0], said[1]) {
					t.Errorf("seed %d: everything says %q, two steps say %q", seed, said[0], said[1])
				}
				if first[1] > first[0]+2 {
					t.Errorf("seed %d: everything said it after %d cycles, two steps after %d", seed, first[0], first[1])
				}
			}
		})
	}
}

// conditionOf returns the condition of a flow in a snapshot.
func conditionOf(s Snapshot, e fabric.Flow) string {
	for i := range s.Edges {
		if s.Edges[i].Obs.Edge == e.String() {
			return s.Edges[i].Condition
		}
	}
	return ""
}

// TestRule7OneFlowIsFoundWithinARound, though no aggregate shows it.
func TestRule7OneFlowIsFoundWithinARound(t *testing.T) {
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	e := fabric.Flow{Src: "h4/eth1", Dst: "h7/eth1"}
	r.w.flow = map[fabric.Flow]int64{e: 5e6}
	r.until(10+confirmOf, "the flow is degraded", func(s Snapshot) bool {
		if s.Queries.Moved > 0 {
			t.Fatalf("%d NICs moved: the test shows nothing", s.Queries.Moved)
		}
		return conditionOf(s, e) == "degraded"
	})
	for range 20 {
		if s := r.step(); conditionOf(s, e) != "degraded" {
			t.Fatalf("%q: a flow in trouble is queried", conditionOf(s, e))
		}
	}
}

// TestRule8WhichFlowsAreCarried: not those whose NIC moved, that were queried too long ago, that were
// not healthy then, or that were queried now.
func TestRule8WhichFlowsAreCarried(t *testing.T) {
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	l := r.loop
	carried := func() map[fabric.Flow]bool {
		out := map[fabric.Flow]bool{}
		for _, s := range l.planner.flows {
			if s.carried {
				out[s.edge] = true
			}
		}
		return out
	}
	before := carried()
	if s := l.Snapshot(); len(before) != s.Queries.CarriedFlows || len(before)+s.Queries.QueriedFlows != len(r.w.edges) || s.Scopes[0].Clean != len(r.w.edges) {
		t.Errorf("%d flows are carried; %+v, %+v", len(before), *s.Queries, s.Scopes[0])
	}
	for _, v := range l.Snapshot().Edges {
		if e, _ := v.Obs.ParseFlow(); before[e] {
			t.Fatalf("%s was queried and is carried", e)
		}
	}
	count := func(edit func(*flowState)) int {
		t.Helper()
		for _, s := range l.planner.flows {
			edit(s)
		}
		return l.carryForward(nil, r.now).flows
	}
	if n := count(func(*flowState) {}); n != len(before) {
		t.Errorf("%d by another count", n)
	}
	some := fabric.Flow{}
	for e := range before {
		some = e
	}
	if n := count(func(s *flowState) { s.wasHealthy = s.wasHealthy && s.edge != some }); n != len(before)-1 {
		t.Errorf("%d with one that was not healthy", n)
	}
	if n := count(func(s *flowState) { s.wasHealthy, s.queriedCycle, s.src.lastMoved = true, l.cycle-1, l.cycle-1 }); n != len(before) {
		t.Errorf("%d: that a NIC had moved when it was found healthy does not count", n)
	}
	touching := 0
	for e := range before {
		if e.Src == some.Src || e.Dst == some.Src {
			touching++
		}
	}
	l.planner.nics[some.Src].lastMoved = l.cycle
	if n := count(func(*flowState) {}); n != len(before)-touching {
		t.Errorf("%d, though %d of %d have a NIC that moved since", n, touching, len(before))
	}
	if n := count(func(s *flowState) { s.queriedAt = r.now.Add(-l.opts.TwoSteps.Round - time.Second) }); n != 0 {
		t.Errorf("%d of more than a round ago", n)
	}
}

// TestRule8WhoIsNotAskedClearsNothing checks that an incident stays while the flows that showed it are
// not queried.
func TestRule8WhoIsNotAskedClearsNothing(t *testing.T) {
	long(t)
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.w.delay[d] = 2e6
	r.until(10, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	delete(r.w.delay, d)
	in := r.loop.openIncidents[0]
	decided := map[fabric.Flow]bool{}
	if r.loop.planner.current = (&evidence.Selection{}); r.loop.mostlyObserved(in, decided) {
		t.Error("observed, although no flow was queried")
	}
	for i, name := range in.Edges {
		e, err := fabric.ParseFlow(name)
		if err != nil {
			t.Fatal(err)
		}
		decided[e] = i < enoughFlows
	}
	if !r.loop.mostlyObserved(in, decided) && len(in.Edges) <= enoughFlows {
		t.Error("not observed, although all flows that showed it are decided")
	}
	r.until(20, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	r.until(12, "innocence", func(s Snapshot) bool { return s.Report.State == fabric.Innocent })
}

// TestRule9WindowsOfCyclesThatAsked checks that two bad windows and one a round later are not three.
func TestRule9WindowsOfCyclesThatAsked(t *testing.T) {
	l := NewLoop(LoopOptions{})
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	bad := judge.Finding{Flow: e, Obs: &fabric.Observation{}, Condition: judge.Degraded}
	for i, asked := range []bool{true, true, false, true, true, true} {
		l.cycle++
		l.planner.previous, l.planner.current = l.planner.current, &evidence.Selection{Sources: map[string]bool{e.Src: asked}}
		if !asked {
			continue
		}
		out, _ := l.confirmFindings([]judge.Finding{bad})
		if want := map[bool]judge.Condition{true: judge.Degraded, false: judge.Undecided}[i == 5]; out[0].Condition != want {
			t.Errorf("cycle %d: condition %v", i, out[0].Condition)
		}
	}
}

// TestRule7ARoundsLength: a minute, or as long as keeps a calm cycle's work the same.
func TestRule7ARoundsLength(t *testing.T) {
	for _, tt := range []struct {
		set   time.Duration
		flows int
		want  time.Duration
	}{{0, 0, time.Minute}, {0, 60000, time.Minute}, {0, 100000, 100 * time.Second}, {30 * time.Second, 100000, 30 * time.Second}, {5 * time.Minute, 10, 5 * time.Minute}} {
		if got := (TwoStepOptions{Round: tt.set}).roundDuration(tt.flows); got != tt.want {
			t.Errorf("%s set, %d flows: %s, want %s", tt.set, tt.flows, got, tt.want)
		}
	}
}

// TestRule10 checks that an incident does not become normal, and that values of healthy flows do.
func TestRule10WhatIsNormalOfANIC(t *testing.T) {
	long(t)
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	d := fabric.Direction{From: r.w.g.PeerOf("h5/eth1"), To: "h5/eth1"}
	r.w.delay[d] = 1e6
	for range 100 {
		r.step()
	}
	if s := r.loop.Snapshot(); s.Queries.Moved == 0 || len(s.Report.Verdicts) != 1 {
		t.Errorf("after 100 cycles %d NICs are off, %q", s.Queries.Moved, openVerdicts(s))
	}
	delete(r.w.delay, d)
	r.until(30, "the all-clear", func(s Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	// The schedule changes: the NIC's flows are others, and all healthy.
	for _, g := range r.loop.planner.nics["h9/eth1"].groups {
		if g.key.Metric == evidence.MedianDelay {
			g.med += 1e-3
		}
	}
	r.until(2, "the NIC is off", func(s Snapshot) bool { return s.Queries.Moved == 1 })
	if took := r.until(settledAfter+2, "it is as it is", func(s Snapshot) bool { return s.Queries.Moved == 0 }); took < settledAfter-2 {
		t.Errorf("after %d cycles", took)
	}
}

func TestRule11WhatThereIsNoRoomForIsSaid(t *testing.T) {
	long(t)
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	r.loop.opts.TwoSteps.MaxFlows = 200
	r.w.slow["spine3"] = 1e6
	s := r.step()
	for range 6 {
		s = r.step()
	}
	if s.Queries.LeftOut == 0 || s.Queries.QueriedFlows > 250 || !slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.Contains(w, "the budget of a cycle is 200 flows") }) {
		t.Errorf("%+v, warnings %q", *s.Queries, s.Warnings)
	}
	r.loop.opts.TwoSteps.MaxFlows = 40
	r.until(15, "a round that takes too long is said", func(s Snapshot) bool {
		return s.Queries.Late && s.Report.State != fabric.Innocent && slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.Contains(w, "takes longer than") })
	})
}

func TestRule12WithoutRulesEverythingIsAsked(t *testing.T) {
	long(t)
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	for _, rule := range []string{"nicP50", "nicP99", "nicLost", "nicMarked", "nicAnswered"} {
		r.rules = func(name string) bool { return name != rule }
		r.until(3, "it is seen that "+rule+" is missing", func(s Snapshot) bool { return !s.Queries.TwoSteps })
		s := r.loop.Snapshot()
		if s.Queries.TwoSteps || s.Queries.CarriedFlows != 0 || s.Queries.QueriedFlows != len(r.w.edges) || len(s.Edges) != len(r.w.edges) || s.Report.State != fabric.Innocent {
			t.Errorf("without %s: %+v, %s", rule, *s.Queries, s.Report.State)
		}
		if !strings.Contains(s.Queries.Missing, "nothing records fabric:nic_") || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], s.Queries.Missing) {
			t.Errorf("without %s: %+v, warnings %q", rule, *s.Queries, s.Warnings)
		}
		r.rules = nil
		if s := r.step(); !s.Queries.TwoSteps || s.Report.State != fabric.Innocent || s.Report.Coverage.Edges != 1 {
			t.Errorf("with %s again: %+v, %s", rule, *s.Queries, s.Report.State)
		}
	}
	few := newRig(t, 1)
	few.loop.opts.Expected, few.loop.opts.TwoSteps = 0, DefaultTwoStepOptions()
	few.asked = func(name string, _ func(fabric.Flow) bool) {
		if strings.HasPrefix(name, "nic") {
			t.Errorf("%s is asked about %d flows", name, len(few.w.edges))
		}
	}
	few.learn()
	if s := few.step(); s.Queries.TwoSteps || s.Queries.Missing != "" || len(s.Warnings) > 0 {
		t.Errorf("few flows: %+v, %q", *s.Queries, s.Warnings)
	}
}

// TestMaintenanceOfFlowsThatAreNotAsked checks that they are excluded, too.
func TestMaintenanceOfFlowsThatAreNotAsked(t *testing.T) {
	long(t)
	t.Parallel()
	r := newTwoStepRig(t, 1, true)
	reg := maintenance.NewRegister(r.w.g)
	r.loop.opts.Maintenance = reg
	if _, err := reg.AddWindow(maintenance.Window{Element: "spine3", From: r.now.Add(-time.Second), Until: r.now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	s := r.step()
	crossing := len(r.loop.store.FlowsCrossing(fabric.Element{ID: "spine3", Kind: fabric.KindSwitch}))
	if len(r.loop.excluded.flows) != crossing || s.Report.Edges.Total != len(r.w.edges)-crossing || s.Report.State != fabric.Innocent {
		t.Errorf("%d of %d flows are aside, %+v, %s", len(r.loop.excluded.flows), crossing, s.Report.Edges, s.Report.State)
	}
}
