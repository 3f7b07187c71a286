package routing_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

func twoTiers(t *testing.T, seed uint64) *world {
	w := newWorld(worldtest.NewClos(t, 2, 4, 2), seed)
	w.run(t, 6)
	return w
}

func (w *world) only(t *testing.T, kind routing.Kind) *routing.Finding {
	t.Helper()
	if len(w.found) != 1 || w.found[0].Kind != kind {
		t.Fatalf("want one finding %s: %s", kind, describe(w))
	}
	return &w.found[0]
}

// Rule 2: weights look like an unused next hop where flows are few. A table that has the next hop refutes that.
func TestTableRefutesMissingHop(t *testing.T) {
	for _, reported := range []bool{false, true} {
		w := twoTiers(t, 1)
		if reported {
			w.report()
		}
		for _, leaf := range []string{"leaf2", "leaf3", "leaf4"} {
			w.hops["leaf1"][leaf] = []string{"up1"}
		}
		w.run(t, 12)
		if found := len(w.found) > 0; found == reported {
			t.Errorf("with a table %v: %s", reported, describe(w))
		}
	}
}

// Rule 2: what tables say of a missing prefix is in the text, and makes it certain.
func TestTablesSayWhyAPrefixIsMissing(t *testing.T) {
	w := twoTiers(t, 2)
	w.withdraw("spine1", "leaf3")
	w.report()
	w.run(t, 12)
	if f := w.only(t, routing.MissingPrefix); !f.Claimed || f.Text != "Its table has no route to the leaf." {
		t.Errorf("%v %q", f.Claimed, f.Text)
	}
	w = twoTiers(t, 2)
	w.prepend("spine1", "leaf3")
	w.report()
	w.run(t, 12)
	if f := w.only(t, routing.MissingPrefix); !f.Claimed || !strings.Contains(f.Text, "its AS path is longer") {
		t.Errorf("%v %q", f.Claimed, f.Text)
	}
}

// Rule 4: without a word of the switches, a link that flows leave and come back to may be down in between: both are listed, and nothing
// is claimed. If the carrier changed as often, the link itself flaps.
func TestFlapIsClaimedOnlyByReports(t *testing.T) {
	link := fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}
	flap := func(w *world, each func()) {
		for range 2 {
			each()
			w.down[link.ID] = true
			w.converge()
			w.run(t, 3)
			w.down[link.ID] = false
			w.converge()
			w.run(t, 5)
		}
	}
	w := twoTiers(t, 3)
	flap(w, func() {})
	f := w.only(t, routing.SessionFlap)
	if v := classify.RoutingVerdicts(w.g, w.found)[0]; f.Claimed || f.Element != link || v.Severity != fabric.SeverityInfo || !strings.Contains(v.Summary, "Either its routing session flaps or the link itself does") {
		t.Errorf("%+v", f)
	}
	w = twoTiers(t, 3)
	w.report()
	w.run(t, 1)
	w.carriers = map[string]int{"leaf2:up1": 0}
	flap(w, func() {
		w.carriers["leaf2:up1"] += 2
		w.bumpSession(w.g.LinkAt("leaf2:up1"), "bgp")
	})
	f = w.only(t, routing.LinkFlap)
	if v := classify.RoutingVerdicts(w.g, w.found)[0]; !f.Claimed || f.Element != link || v.Scenario != fabric.Flap || strings.Contains(v.Summary, "No part is at fault") {
		t.Errorf("%+v", f)
	}
	// BFD ends sessions: that is claimed only if the carrier is known to have stayed.
	for _, known := range []bool{false, true} {
		w = twoTiers(t, 3)
		w.report()
		w.run(t, 1)
		if known {
			w.carriers = map[string]int{"leaf2:up1": 0, "spine1:dn2": 0}
		}
		flap(w, func() { w.bumpSession(w.g.LinkAt("leaf2:up1"), "bfd") })
		want := map[bool]routing.Kind{false: routing.SessionFlap, true: routing.FalseBFD}[known]
		if f := w.only(t, want); f.Claimed != known || f.Element != link {
			t.Errorf("%+v", f)
		}
		if ports := w.watch.FlappingPorts(); !slices.Equal(ports, []string{"leaf2:up1", "spine1:dn2"}) {
			t.Errorf("ports %q", ports)
		}
		if w.run(t, 70); len(w.found) > 0 {
			t.Errorf("over a minute after the last event: %s", describe(w))
		}
		w.down[link.ID] = true
		w.converge()
		w.run(t, 3)
		if slices.ContainsFunc(w.found, func(f routing.Finding) bool { return f.Kind == want }) {
			t.Errorf("flows left the link, and its sessions stayed: %s", describe(w))
		}
	}
}

// Rule 4: sessions of a link that loses packets are not said to end although data passes.
func TestLapsesOfALinkThatLosesPackets(t *testing.T) {
	for _, loses := range []bool{false, true} {
		w := twoTiers(t, 11)
		w.report()
		w.run(t, 2)
		w.carriers = map[string]int{"leaf2:up1": 0, "spine1:dn2": 0}
		if loses {
			w.dead[fabric.Direction{From: "leaf2:up1", To: "spine1:dn2"}] = [2]time.Time{w.now, w.now.Add(time.Minute)}
		}
		for range 3 {
			w.bumpSession(w.g.LinkAt("leaf2:up1"), "bfd")
			w.run(t, 2)
		}
		if claimed := slices.ContainsFunc(w.found, func(f routing.Finding) bool { return f.Kind == routing.FalseBFD }); claimed == loses {
			t.Errorf("loses packets %v: %s", loses, describe(w))
		}
	}
}

// Rule 4: flows that leave a link whose session flaps, for one that another verdict blames, lose packets there. The session is claimed to
// flap, also if that verdict comes later. Flows that cannot have crossed the other link are not explained by it.
func TestFlapBesideALinkThatLosesPackets(t *testing.T) {
	dead := fabric.Direction{From: "spine1:dn3", To: "leaf3:up1"}
	const flapping = "leaf2:up2--spine2:dn2"
	for _, c := range []struct {
		blamed  []string
		briefly bool // the link that flaps is blamed as well, for a cycle
		want    bool
	}{
		{nil, false, false},
		{[]string{"leaf4:up1--spine1:dn4"}, false, false},
		{[]string{dead.LinkID()}, false, true},
		{[]string{dead.LinkID()}, true, true},
		{[]string{dead.LinkID(), flapping}, false, false}, // it is at fault itself
	} {
		w := twoTiers(t, 14)
		w.report()
		w.run(t, 2)
		w.carriers = map[string]int{"leaf2:up2": 0, "spine2:dn2": 0}
		w.dead[dead] = [2]time.Time{w.now, w.now.Add(time.Hour)}
		for range 2 {
			w.bumpSession(w.g.LinkAt("leaf2:up2"), "bgp")
			w.down["leaf2:up2--spine2:dn2"] = true
			w.converge()
			w.run(t, 3)
			w.down["leaf2:up2--spine2:dn2"] = false
			w.converge()
			w.run(t, 4)
			if c.briefly {
				w.lossyLinks = append(slices.Clone(c.blamed), flapping)
				w.run(t, 1)
			}
			w.lossyLinks = c.blamed
		}
		claimed := slices.ContainsFunc(w.found, func(f routing.Finding) bool {
			return f.Kind == routing.SessionFlap && f.ID == "leaf2:up2--spine2:dn2" && f.Claimed
		})
		if claimed != c.want {
			t.Errorf("verdicts on %q: %s", c.blamed, describe(w))
		}
	}
}

// Rule 4: what a link lost while it was at fault itself, before its session flapped, says nothing of the flap.
func TestFlapAfterTheLinkLostPackets(t *testing.T) {
	w := twoTiers(t, 14)
	w.report()
	w.run(t, 2)
	const link = "leaf2:up2--spine2:dn2"
	w.carriers = map[string]int{"leaf2:up2": 0, "spine2:dn2": 0}
	w.dead[fabric.Direction{From: "leaf2:up2", To: "spine2:dn2"}] = [2]time.Time{w.now, w.now.Add(20 * time.Second)}
	w.run(t, 3)
	w.lossyLinks = []string{link}
	w.run(t, 17)
	w.lossyLinks = nil
	w.run(t, 16)
	for range 2 {
		w.bumpSession(w.g.LinkAt("leaf2:up2"), "bgp")
		w.run(t, 4)
	}
	if !slices.ContainsFunc(w.found, func(f routing.Finding) bool { return f.Kind == routing.SessionFlap && f.ID == link && f.Claimed }) {
		t.Errorf("the session flaps: %s", describe(w))
	}
}

// Rule 2: a switch whose table lacks a next hop toward one leaf has not too few toward every leaf, although few flows to the other leaf happen
// to take the same one.
func TestFewHopsTowardOneLeaf(t *testing.T) {
	w := newWorld(worldtest.NewPods(t, 2, 2), 16)
	sw := "p1s1"
	w.hops[sw]["p2l1"] = w.full[sw]["p2l1"][:1]
	kept := map[string]int{}
	w.flows = slices.DeleteFunc(w.flows, func(f fabric.Flow) bool {
		p, _ := w.pathOf(f)
		i := slices.IndexFunc(p, func(h fabric.Hop) bool { return h.Switch == sw })
		leaf := p[len(p)-1].Switch
		if i < 0 || len(w.full[sw][leaf]) < 2 {
			return false
		}
		kept[leaf]++
		return p[i].Out != w.full[sw][leaf][0] || kept[leaf] > 12
	})
	w.report()
	w.run(t, 10)
	for _, f := range w.found {
		if f.Kind == routing.FewHops {
			t.Errorf("%s", describe(w))
		}
	}
}

// Rule 3: flows that crowd because a prefix has one next hop at the second tier are not polarized.
func TestCrowdOfOnePrefix(t *testing.T) {
	for _, seed := range []uint64{30, 36, 39, 46} {
		w := newWorld(worldtest.NewPods(t, 2, 2), seed)
		w.run(t, 6)
		for _, sw := range []string{"p1s1", "p1s2"} {
			w.hops[sw]["p2l1"] = w.full[sw]["p2l1"][:1]
		}
		w.run(t, 10)
		for _, f := range w.found {
			if f.Kind == routing.Polarized {
				t.Errorf("seed %d: %s", seed, describe(w))
			}
		}
	}
}

// Rule 2: what few flows show is by chance, but for a table that lacks the next hop.
func TestTableShowsWhatFewFlowsDoNot(t *testing.T) {
	for _, reported := range []bool{false, true} {
		for kind, of := range map[routing.Kind]func(*world){
			routing.MissingPrefix: func(w *world) { w.prepend("spine1", "leaf4") },
			routing.MissingHop:    func(w *world) { w.hops["leaf2"]["leaf4"] = []string{"up2"} },
			routing.FewHops: func(w *world) {
				for _, leaf := range []string{"leaf1", "leaf3", "leaf4"} {
					w.hops["leaf2"][leaf] = []string{"up2"}
				}
			},
		} {
			w := newWorld(worldtest.NewClos(t, 2, 4, 2), 15)
			w.flows = slices.DeleteFunc(w.flows, func(f fabric.Flow) bool { return f.Number > 0 || f.Reply })
			w.run(t, 2)
			of(w)
			if reported {
				w.report()
			}
			w.run(t, 8)
			if !reported {
				if len(w.found) > 0 {
					t.Errorf("%s by few flows: %s", kind, describe(w))
				}
				continue
			}
			if f := w.only(t, kind); !f.Claimed {
				t.Errorf("%s: %+v", kind, f)
			}
		}
	}
}

// Rule 2: a switch that no flow to a leaf happens to enter is preferred where a neighbour's table leads to it. What is amiss is the table
// that does not.
func TestNeighboursTableRefutesMissingPrefix(t *testing.T) {
	w := newWorld(worldtest.NewClos(t, 2, 4, 2), 15)
	w.flows = slices.DeleteFunc(w.flows, func(f fabric.Flow) bool {
		_, to := f.Endpoints()
		leaf, _ := w.g.LeafOf(to)
		p, _ := w.pathOf(f)
		return f.Reply || f.Number > 0 || leaf == "leaf4" && slices.ContainsFunc(p, func(h fabric.Hop) bool { return h.Switch == "spine1" }) && p[0].Switch != "leaf2"
	})
	w.run(t, 2)
	w.hops["leaf2"]["leaf4"] = []string{"up2"}
	w.report()
	w.run(t, 8)
	if f := w.only(t, routing.MissingHop); f.ID != "leaf2" || !f.Claimed {
		t.Errorf("%+v", f)
	}
}

// Rule 4: what a database has of sessions serves where no switch reports them.
func TestSessionHistory(t *testing.T) {
	link := fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}
	both := func(x routing.PortSessions) map[string]routing.PortSessions {
		return map[string]routing.PortSessions{"leaf2:up1": x, "spine1:dn2": x}
	}
	calm := map[string]int{"leaf2:up1": 0, "spine1:dn2": 0}
	for what, c := range map[string]struct {
		history  map[string]routing.PortSessions
		carriers map[string]int
		want     routing.Kind // "" means no finding
		claimed  bool
	}{
		"BGP, while BFD stays":         {both(routing.PortSessions{Resets: 2, HasBGP: true, HasBFD: true, BFDUp: true}), nil, routing.SessionFlap, true},
		"BGP, while the carrier does":  {both(routing.PortSessions{Resets: 2, HasBGP: true}), calm, routing.SessionFlap, true},
		"at one end alone":             {map[string]routing.PortSessions{"spine1:dn2": {Resets: 2, HasBGP: true}}, calm, routing.SessionFlap, true},
		"BGP, and nothing of the link": {both(routing.PortSessions{Resets: 2, HasBGP: true}), nil, routing.SessionFlap, false},
		"BFD, while the carrier stays": {both(routing.PortSessions{Resets: 2, Lapses: 2, HasBGP: true, HasBFD: true}), calm, routing.FalseBFD, true},
		"BFD, and no carrier":          {both(routing.PortSessions{Resets: 2, Lapses: 2, HasBGP: true, HasBFD: true}), nil, routing.SessionFlap, false},
		"the carrier changed":          {both(routing.PortSessions{Resets: 2, HasBGP: true}), map[string]int{"leaf2:up1": 4}, routing.LinkFlap, true},
		"the carrier changed once":     {both(routing.PortSessions{Resets: 2, HasBGP: true}), map[string]int{"leaf2:up1": 1}, "", false},
		"one reset":                    {both(routing.PortSessions{Resets: 1, HasBGP: true}), calm, routing.SessionFlap, false},
		"no session":                   {nil, nil, routing.SessionFlap, false},
		"another port":                 {map[string]routing.PortSessions{"spine1:dn3": {Resets: 5, HasBGP: true}}, nil, routing.SessionFlap, false},
	} {
		w := twoTiers(t, 3)
		w.history, w.carriers = c.history, c.carriers
		for range 2 {
			w.down[link.ID] = true
			w.converge()
			w.run(t, 3)
			if ports := w.watch.LeftPorts(); !slices.Equal(ports, []string{"leaf2:up1", "spine1:dn2"}) {
				t.Errorf("%s: flows left %q", what, ports)
			}
			w.down[link.ID] = false
			w.converge()
			w.run(t, 5)
		}
		if c.want == "" {
			if len(w.found) > 0 {
				t.Errorf("%s: %s", what, describe(w))
			}
			continue
		}
		if f := w.only(t, c.want); f.Claimed != c.claimed || f.Element != link {
			t.Errorf("%s: claimed %v of %s", what, f.Claimed, f.ID)
		}
	}
	w := twoTiers(t, 4)
	w.history = both(routing.PortSessions{HasBGP: true, HasBFD: true, BFDUp: true})
	w.down[link.ID] = true
	w.converge()
	w.run(t, 8)
	if f := w.only(t, routing.SessionsDown); !f.Claimed {
		t.Errorf("%+v", f)
	}
}

// Rule 6: a link that flows cross had no failover, although flows that left it lost probes.
func TestMovedRoutesAreNoFailover(t *testing.T) {
	w := twoTiers(t, 8)
	w.run(t, 2)
	w.dead[fabric.Direction{From: "spine1:dn4", To: "leaf4:up1"}] = [2]time.Time{w.now, w.now.Add(300 * time.Millisecond)}
	w.run(t, 1)
	w.withdraw("spine1", "leaf4")
	w.run(t, 12)
	if i := slices.IndexFunc(w.found, func(f routing.Finding) bool { return f.Kind == routing.Converged }); i >= 0 {
		t.Errorf("%s", describe(w))
	}
}

// failover returns the one finding of a failover, and checks that its durations are near those of both directions of a link. A
// direction that lost nothing has none.
func (w *world) failover(t *testing.T, link string, want map[string]time.Duration) {
	t.Helper()
	f := w.only(t, routing.Converged)
	for _, x := range f.Failovers {
		if off := x.Loss - want[x.String()]; want[x.String()] == 0 || off.Abs() > 15*time.Millisecond {
			t.Errorf("%s: %s is stated, want %s", x.String(), x.Loss, want[x.String()])
		}
	}
	if f.ID != link || len(f.Failovers) != len(want) {
		t.Errorf("%+v", f)
	}
}

// Rule 6: flows whose probes crossed a link in one direction and whose replies did in the other say nothing of one of them, also while the
// present path of the reply is not known.
func TestFailoverOfBothDirectionsWithUnknownPaths(t *testing.T) {
	w := twoTiers(t, 9)
	w.run(t, 4)
	down, up := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}, fabric.Direction{From: "leaf2:up1", To: "spine1:dn2"}
	w.dead[down] = [2]time.Time{w.now, w.now.Add(2385 * time.Millisecond)}
	w.dead[up] = [2]time.Time{w.now, w.now.Add(2340 * time.Millisecond)}
	w.run(t, 3)
	w.down["leaf2:up1--spine1:dn2"] = true
	w.converge()
	w.hidden = 0.5
	w.run(t, 5)
	w.failover(t, "leaf2:up1--spine1:dn2", map[string]time.Duration{down.String(): 2385 * time.Millisecond, up.String(): 2340 * time.Millisecond})
}

// Rule 6: a direction that only flows crossed whose replies came back by the link shows by them, if the other one lost less.
func TestFailoverOfADirectionThatNoFlowCrossedAlone(t *testing.T) {
	down, up := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}, fabric.Direction{From: "leaf2:up1", To: "spine1:dn2"}
	w := newWorld(worldtest.NewClos(t, 2, 4, 2), 12)
	crosses := func(f fabric.Flow, d fabric.Direction) bool {
		p, _ := w.pathOf(f)
		src, dst := f.Endpoints()
		return slices.Contains(p.LinkDirections(src, dst), d)
	}
	w.flows = slices.DeleteFunc(w.flows, func(f fabric.Flow) bool { // those that cross it upwards alone
		back := f.ProbeFlow()
		back.Reply = true
		return (crosses(f.ProbeFlow(), up) || crosses(back, up)) && !crosses(f.ProbeFlow(), down) && !crosses(back, down)
	})
	w.run(t, 10)
	w.dead[up] = [2]time.Time{w.now, w.now.Add(2600 * time.Millisecond)}
	w.dead[down] = [2]time.Time{w.now.Add(2500 * time.Millisecond), w.now.Add(2550 * time.Millisecond)}
	w.run(t, 3)
	w.down["leaf2:up1--spine1:dn2"] = true
	w.converge()
	w.run(t, 5)
	w.failover(t, "leaf2:up1--spine1:dn2", map[string]time.Duration{up.String(): 2600 * time.Millisecond, down.String(): 50 * time.Millisecond})
}

// Rule 6: how many probes flows lost is asked for, and counts instead of what cycles added up. A loss that follows does not hide it.
func TestFailoverByCounts(t *testing.T) {
	w := twoTiers(t, 13)
	w.run(t, 4)
	down := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	start := w.now
	w.dead[down] = [2]time.Time{start, start.Add(2600 * time.Millisecond)}
	w.run(t, 3)
	w.down["leaf2:up1--spine1:dn2"] = true
	w.converge()
	for len(w.watch.LossSpans()) == 0 && w.now.Before(start.Add(time.Minute)) {
		w.step(t)
	}
	for _, s := range w.watch.LossSpans() {
		if !s.From.Before(start) || s.To.Before(start.Add(2600*time.Millisecond)) {
			t.Errorf("%+v", s)
		}
		w.lossCounts = append(w.lossCounts, routing.LossCount{LossSpan: s, Unanswered: 271, PerSecond: 100})
	}
	w.run(t, 1)
	w.lossCounts = nil
	w.run(t, 2)
	again := fabric.Direction{From: "spine2:dn2", To: "leaf2:up2"}
	w.dead[again] = [2]time.Time{w.now, w.now.Add(40 * time.Millisecond)}
	if w.run(t, 4); len(w.watch.LossSpans()) > 0 {
		t.Errorf("%d flows are asked for again", len(w.watch.LossSpans()))
	}
	w.found = slices.DeleteFunc(w.found, func(f routing.Finding) bool { return f.Kind == routing.LeftLink })
	w.failover(t, "leaf2:up1--spine1:dn2", map[string]time.Duration{down.String(): 2710 * time.Millisecond})
}

// Rule 6: flows that take a detour before their last path left the link that they crossed when the loss began.
func TestFailoverOfFlowsThatMoveTwice(t *testing.T) {
	w := twoTiers(t, 10)
	w.run(t, 4)
	down := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	w.dead[down] = [2]time.Time{w.now, w.now.Add(time.Minute)}
	w.run(t, 3)
	w.hops["spine1"]["leaf2"] = []string{"dn3"}
	w.hops["leaf3"]["leaf2"] = []string{"up2"}
	w.run(t, 1)
	w.down["leaf2:up1--spine1:dn2"] = true
	w.converge()
	w.run(t, 5)
	w.failover(t, "leaf2:up1--spine1:dn2", map[string]time.Duration{down.String(): 3 * time.Second})
}

// Rule 5: a link that flows left says since when, and what carries its load.
func TestLeftLinkSaysWhatCarriesItsLoad(t *testing.T) {
	w := twoTiers(t, 4)
	since := w.now
	w.down["leaf2:up1--spine1:dn2"] = true
	w.converge()
	w.run(t, 8)
	f := w.only(t, routing.LeftLink)
	if f.Claimed || f.Since.Sub(since) > 2*time.Second || len(f.Carries) < 2 || f.Carries[0].Direction.LinkID() != "leaf2:up2--spine2:dn2" || f.Carries[0].Flows != 96 {
		t.Errorf("%+v", f)
	}
	w.report()
	for i := range w.reports["leaf2"].Sessions {
		if s := &w.reports["leaf2"].Sessions[i]; s.Port == "up1" && s.Protocol == "bgp" {
			s.Up = false
		}
	}
	w.run(t, 8)
	if f := w.only(t, routing.SessionsDown); !f.Claimed {
		t.Errorf("%+v", f)
	}
}

// session sets the state of a session at both ends of a link. It removes the session if it is of BFD and absent.
func (w *world) session(link, protocol string, up, absent bool) {
	a, b, _ := fabric.SplitLink(link)
	for _, end := range [2]string{a, b} {
		sw, port, _ := fabric.SplitPort(end)
		r := w.reports[sw]
		for i := range r.Sessions {
			if s := &r.Sessions[i]; s.Port == port && s.Protocol == protocol {
				s.Up = up
			}
		}
		r.Sessions = slices.DeleteFunc(r.Sessions, func(s routing.Session) bool { return absent && s.Port == port && s.Protocol == protocol })
	}
}

// Rule 5: a link that routing left is at fault if a port of it is down, or if it lost packets and has no session since. Sessions that
// are down on a link that lost nothing are a fault of routing, and so is one that BFD contradicts.
func TestLinksThatRoutingLeftForAFault(t *testing.T) {
	const link = "leaf2:up1--spine1:dn2"
	for _, c := range []struct {
		name             string
		loses            bool
		bgp, bfd, hasBFD bool
		port             map[string]bool
		want             routing.Kind
	}{
		{"a port is down", false, true, true, true, map[string]bool{"spine1:dn2": false, "leaf2:up1": true}, routing.LinkDown},
		{"BFD is down and packets were lost", true, false, false, true, map[string]bool{"spine1:dn2": true}, routing.LinkSilent},
		{"BGP is down without BFD, and packets were lost", true, false, false, false, nil, routing.LinkSilent},
		{"BGP is down, BFD stays", false, false, true, true, nil, routing.SessionsDown},
		{"BGP is down, BFD stays, and packets were lost", true, false, true, true, nil, routing.SessionsDown},
		{"BGP is down without BFD, and nothing was lost", false, false, false, false, nil, routing.LeftLink},
		{"sessions stay", false, true, true, true, map[string]bool{"spine1:dn2": true}, routing.LeftLink},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := twoTiers(t, 9)
			w.report()
			w.run(t, 2)
			if c.loses {
				w.failLink(t, w.g.LinkAt("leaf2:up1"), 700*time.Millisecond, 700*time.Millisecond)
			} else {
				w.down[link] = true
				w.converge()
			}
			w.report()
			w.session(link, "bgp", c.bgp, false)
			w.session(link, "bfd", c.bfd, !c.hasBFD)
			w.ports = c.port
			w.run(t, 12)
			i := slices.IndexFunc(w.found, func(f routing.Finding) bool { return f.Kind != routing.Converged })
			if i < 0 || w.found[i].Kind != c.want || w.found[i].ID != link || w.found[i].Claimed != (c.want != routing.LeftLink) || len(w.found[i].Carries) == 0 {
				t.Fatalf("%s", describe(w))
			}
			if !slices.Equal(w.watch.LeftPorts(), []string{"leaf2:up1", "spine1:dn2"}) {
				t.Errorf("ports of links that flows left: %q", w.watch.LeftPorts())
			}
			if c.want == routing.LeftLink {
				return
			}
			if c.want != routing.SessionsDown { // what no report contradicts remains
				reports := w.reports
				w.reports, w.ports = nil, nil
				w.run(t, 3)
				if i := slices.IndexFunc(w.found, func(f routing.Finding) bool { return f.Kind == c.want }); i < 0 {
					t.Fatalf("without reports: %s", describe(w))
				}
				w.reports = reports
			}
			// Flows take a while to return to a link that works again. It is not said to be left meanwhile.
			w.report()
			w.session(link, "bgp", true, false)
			w.session(link, "bfd", true, false)
			w.ports = map[string]bool{"spine1:dn2": true, "leaf2:up1": true}
			for range 6 {
				w.step(t)
				if slices.ContainsFunc(w.found, func(f routing.Finding) bool { return f.Kind != routing.Converged }) {
					t.Fatalf("it works again: %s", describe(w))
				}
			}
		})
	}
}

// Rule 5: a link whose port is down is named before the new paths of its flows are known. Others, whose flows have no known path
// either, are not.
func TestLinkIsDownBeforePathsAreKnown(t *testing.T) {
	w := twoTiers(t, 12)
	w.ports = map[string]bool{"leaf2:up1": true, "spine1:dn2": false, "leaf3:up1": true, "spine1:dn3": true}
	w.hidden = 1
	w.run(t, 4)
	if f := w.only(t, routing.LinkDown); f.ID != "leaf2:up1--spine1:dn2" || f.Flows == 0 {
		t.Errorf("%+v", f)
	}
}

// Rule 5: a link that routing left for good, and whose carrier comes and goes, flaps. It went down once if the carrier changed less often.
func TestLeftLinkThatFlaps(t *testing.T) {
	for changes, want := range map[int]routing.Kind{1: routing.LinkDown, 3: routing.LinkDown, 5: routing.LinkFlap} {
		w := twoTiers(t, 12)
		w.ports, w.carriers = map[string]bool{"spine1:dn2": false}, map[string]int{"spine1:dn2": changes}
		w.down["leaf2:up1--spine1:dn2"] = true
		w.converge()
		w.run(t, 8)
		f := w.only(t, want)
		v := classify.RoutingVerdicts(w.g, w.found)[0]
		if f.ID != "leaf2:up1--spine1:dn2" || want == routing.LinkFlap && (v.Scenario != fabric.Flap || !strings.Contains(v.Summary, "its carrier went down 2 times in the last 5 min. ")) {
			t.Errorf("%d changes: %s", changes, describe(w))
		}
	}
}

// A switch all of whose links are down is one finding.
func TestAllLinksOfASwitchDown(t *testing.T) {
	w := twoTiers(t, 10)
	w.ports = map[string]bool{}
	for _, end := range w.g.EndsOf("spine2") {
		w.down[w.g.LinkAt(end).ID()] = true
		w.ports[w.g.PeerOf(end)] = false
	}
	w.converge()
	w.run(t, 5)
	f := w.only(t, routing.LinkDown)
	if v := classify.RoutingVerdicts(w.g, w.found)[0]; f.Element != switchElement("spine2") || v.Scenario != fabric.HardFailure || !strings.Contains(v.Summary, "All links of switch spine2 are down") {
		t.Errorf("%+v: %s", f, v.Summary)
	}
}

// Without reports, loss of one prefix at a leaf is found by the other flows of the same links: both possibilities are listed.
func TestLostPrefixWithoutTables(t *testing.T) {
	w := twoTiers(t, 5)
	w.nowhere[[2]string{"leaf1", "leaf3"}] = true
	w.run(t, 8)
	f := w.only(t, routing.PrefixLost)
	v := classify.RoutingVerdicts(w.g, w.found)[0]
	if f.ID != "leaf1" || f.Prefix != "leaf3" || v.Severity != fabric.SeverityCritical || !strings.Contains(v.Summary, "sends this prefix nowhere, or a filter drops it") {
		t.Errorf("%+v: %s", f, v.Summary)
	}
	// At a spine, the link to the leaf carries nothing else: it may be at fault, and is left to the other scenarios.
	w = twoTiers(t, 5)
	w.nowhere[[2]string{"spine1", "leaf3"}] = true
	w.run(t, 8)
	if len(w.found) > 0 {
		t.Errorf("%s", describe(w))
	}
}

// Rule 7: an entry that differs for a second is no mismatch.
func TestShortMismatchIsNone(t *testing.T) {
	w := twoTiers(t, 6)
	w.report()
	w.run(t, 1)
	w.nowhere[[2]string{"spine2", "leaf1"}] = true
	w.report()
	w.run(t, 1)
	clear(w.nowhere)
	w.report()
	w.run(t, 6)
	if i := slices.IndexFunc(w.found, func(f routing.Finding) bool { return f.Kind == routing.FIBMismatch && f.Phase == routing.Holds }); i >= 0 {
		t.Errorf("%s", describe(w))
	}
}

// Rule 7: a mismatch that loses packets explains them before it is certain, and for a while after it is over.
func TestMismatchExplainsBeforeAndAfterwards(t *testing.T) {
	w := twoTiers(t, 6)
	w.report()
	w.run(t, 1)
	w.nowhere[[2]string{"spine2", "leaf1"}] = true
	w.report()
	phase := func() (routing.Phase, bool) {
		i := slices.IndexFunc(w.found, func(f routing.Finding) bool { return f.Kind == routing.FIBMismatch && len(f.Explained) > 0 })
		if i < 0 {
			return 0, false
		}
		return w.found[i].Phase, true
	}
	expect := func(when string, want routing.Phase, wanted bool) {
		t.Helper()
		w.run(t, 1)
		if p, found := phase(); found != wanted || found && p != want {
			t.Errorf("%s: phase %v, found %v", when, p, found)
		}
		if n := len(classify.RoutingVerdicts(w.g, w.found)); n > 0 != (wanted && want == routing.Holds) {
			t.Errorf("%s: %d verdicts", when, n)
		}
	}
	for _, sw := range w.reports {
		sw.RIBAt = sw.At
	}
	expect("the daemon was not asked since", routing.MayHold, true)
	for _, sw := range w.reports {
		sw.RIBAt = w.now
	}
	expect("certain", routing.Holds, true)
	clear(w.nowhere)
	w.report()
	expect("over", routing.Ended, true)
	w.run(t, 9)
	expect("long over", routing.Ended, false)
}

// Rule 7: tables are compared when their version changes, when a switch reports again, and always if they have no version.
func TestTablesAreComparedWhenTheyChange(t *testing.T) {
	mismatches := func(w *world, at string) (n int) {
		w.run(t, 3)
		for _, f := range w.found {
			if f.Kind == routing.FIBMismatch && f.ID == at && f.Phase == routing.Holds {
				n++
			}
		}
		return n
	}
	for _, versions := range []bool{false, true} {
		w := twoTiers(t, 6)
		w.report()
		own := w.reports["spine1"]
		set := func() {
			if own.TableVersion++; !versions {
				own.TableVersion = 0
			}
		}
		set()
		if n := mismatches(w, "spine1"); n != 0 {
			t.Errorf("versions %v: %d findings at first", versions, n)
		}
		before := own.FIB
		own.FIB = map[netip.Prefix][]string{}
		set()
		if n := mismatches(w, "spine1"); n != 4 {
			t.Errorf("versions %v: %d findings on an empty table, want one for each leaf", versions, n)
		}
		own.FIB = before
		if n := mismatches(w, "spine1"); (n == 4) != versions {
			t.Errorf("versions %v: %d findings on a table that is repaired under the same version", versions, n)
		}
		delete(w.reports, "spine1")
		if n := mismatches(w, "spine1"); n != 0 {
			t.Errorf("versions %v: %d findings without a report", versions, n)
		}
		w.reports["spine1"] = own
		if n := mismatches(w, "spine1"); n != 0 {
			t.Errorf("versions %v: %d findings when it reports again", versions, n)
		}
	}
}

// Rule 8: temporary flows and flows without a valid path are no evidence.
func TestTemporaryFlowsAreNoEvidence(t *testing.T) {
	w := twoTiers(t, 7)
	for _, f := range w.flows {
		f.Number += fabric.ScheduledFlows
		w.flows = append(w.flows, f)
	}
	w.hops["leaf1"]["leaf2"] = []string{"up1"}
	full := w.flows
	w.flows = slices.DeleteFunc(slices.Clone(full), func(f fabric.Flow) bool {
		from, to := f.Endpoints()
		a, _ := w.g.LeafOf(from)
		b, _ := w.g.LeafOf(to)
		return !f.IsTemporary() && a == "leaf1" && b == "leaf2"
	})
	w.watch = routing.NewWatcher()
	w.run(t, 12)
	if len(w.found) > 0 {
		t.Errorf("%s", describe(w))
	}
}
