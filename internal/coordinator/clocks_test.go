package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/fabric"
)

// skew returns how far a host's system clock is ahead: h3 by 3 ms.
func skew(node string) int64 {
	n := int64(0)
	fmt.Sscanf(node, "h%d", &n)
	return n * 1e6
}

// clockReport returns a node's measurements of others' clocks at a true time.
func clockReport(at int64, node string, others ...string) *clocksync.Report {
	r := &clocksync.Report{Node: node, End: at + skew(node)}
	for _, o := range others {
		r.Pairs = append(r.Pairs, clocksync.PairEstimate{ID: clocksync.PairID{Src: node + "/mlx5_0", Dst: o + "/mlx5_0"},
			Estimate: clocksync.Estimate{Quality: clocksync.Fine, Ref: r.End, Offset: skew(o) - skew(node), Sigma: 20, RateSigma: 1e-9}})
	}
	return r
}

func (f *fixture) report(s *session, format uint32, samples []byte) {
	f.t.Helper()
	m := &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Clock{Clock: &agentapi.ClockReport{Format: format, Samples: samples}}}
	if err := f.handleMessage(s, m); err != nil {
		f.t.Fatal(err)
	}
}

// tick makes every agent report on all others, and runs a cycle.
func (f *fixture) tick(sessions []*session, cycles int) {
	f.t.Helper()
	for range cycles {
		f.clock.pass(time.Second)
		for _, s := range sessions {
			var others []string
			for _, o := range sessions {
				if o != s {
					others = append(others, o.agent.node)
				}
			}
			f.report(s, agentapi.ClockFormat, clockReport(int64(f.clock.MonoTime()), s.agent.node, others...).AppendTo(nil))
		}
		f.stepClocks()
	}
}

// clockUpdate returns the clock update that an agent is sent, or nil if there is none.
func (f *fixture) clockUpdate(s *session) (u *clocksync.Update) {
	f.t.Helper()
	for _, m := range f.messagesFor(s) {
		if c := m.GetClock(); c != nil {
			var err error
			if u, err = clocksync.ParseUpdate(c.GetUpdate()); err != nil || c.GetFormat() != agentapi.ClockFormat {
				f.t.Fatal(c.GetFormat(), err)
			}
		}
	}
	return u
}

func TestRule13OwnConfigurationIsNotScheduled(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	own := hello("h4", 0)
	own.OwnConfiguration = true
	s, err := f.connect(own)
	if err != nil {
		t.Fatal(err)
	}
	sessions, boxes := f.agents(3)
	if f.ring.count() != 1 {
		t.Errorf("%d runs of the schedule", f.ring.count())
	}
	for _, in := range boxes {
		for _, p := range in.assignment.GetPeers() {
			if strings.HasPrefix(p.GetNic(), "h4/") {
				t.Error("it is a peer")
			}
		}
	}
	if in := f.receive(s); in.order != "" {
		t.Errorf("it was sent %q", in.order)
	}
	// A rotation of keys does not wait for it.
	epoch := f.Stats().KeysEpoch
	if err := f.RotateKeys(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for i, s := range sessions {
			if in := f.receive(s); in.keys != nil {
				boxes[i].keys = in.keys
			}
			f.beat(s, applied(boxes[i]))
		}
		f.beat(s, nil)
		f.run(f.opts.Heartbeat)
	}
	if in := f.receive(s); in.order != "" {
		t.Errorf("it was sent %q", in.order)
	}
	st := f.Stats()
	if st.KeysEpoch == epoch || st.KeysUnconfirmed != 0 || st.OutOfDate != 0 || st.Agents[StateConnected] != 4 {
		t.Errorf("epoch %d, %d unconfirmed, %d out of date, agents %v", st.KeysEpoch, st.KeysUnconfirmed, st.OutOfDate, st.Agents)
	}
	f.run(f.opts.RegistrySettle)
	if targets, ok := f.Targets(); !ok || len(targets) != 4 {
		t.Errorf("targets %v, %v", targets, ok)
	}
	// Its clock is counted.
	f.tick(append(sessions, s), 3)
	if u := f.clockUpdate(s); u == nil || len(u.Maps) != 4 || u.Maps[3].State != clocksync.Locked {
		t.Errorf("it got %+v", u)
	}
}

// The same holds if probes are not authenticated. The first schedule is made as soon as all others are
// there.
func TestRule13NothingWaits(t *testing.T) {
	f := start(t, clos(2, 2), func(o *Options) { o.Keys = false })
	own := hello("h4", 0)
	own.OwnConfiguration = true
	for _, h := range []*agentapi.Hello{own, hello("h1", 0), hello("h2", 0), hello("h3", 0)} {
		if _, err := f.connect(h); err != nil {
			t.Fatal(err)
		}
	}
	f.run(stepEvery)
	if sum, edges, ok := f.ScheduleOf("h4"); !ok || len(edges) != 0 || sum.Edges != 6 {
		t.Errorf("%d edges, of %d; %v", len(edges), sum.Edges, ok)
	}
}

// An agent that was scheduled and returns with a configuration of its own leaves the schedule at once,
// and vice versa.
func TestRule13Changes(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	f.agents(4)
	own := hello("h4", 1)
	own.OwnConfiguration = true
	if _, err := f.connect(own); err != nil {
		t.Fatal(err)
	}
	f.run(3 * time.Second)
	if sum, edges, _ := f.ScheduleOf("h4"); len(edges) != 0 || sum.Edges != 6 {
		t.Errorf("%d edges, of %d", len(edges), sum.Edges)
	}
	f.mustConnect(hello("h4", 2))
	f.run(3 * time.Second)
	if sum, edges, _ := f.ScheduleOf("h4"); len(edges) != 3 || sum.Edges != 12 {
		t.Errorf("%d edges, of %d", len(edges), sum.Edges)
	}
}

func TestRule14ForeignReportsAreIgnored(t *testing.T) {
	f := start(t, strings.ReplaceAll(clos(2, 2), "spine1:dn1", "spine1:dn/1"), nil)
	sessions, _ := f.agents(4)
	good := func() *clocksync.Report { return clockReport(int64(f.clock.MonoTime()), "h1", "h2", "h3", "h4") }
	send := func(want string, format uint32, samples []byte) {
		t.Helper()
		before := f.Stats().Clocks.Reports[want]
		f.clock.pass(reportEvery)
		f.report(sessions[0], format, samples)
		if after := f.Stats().Clocks.Reports[want]; after != before+1 {
			t.Errorf("%s: %d reports, then %d", want, before, after)
		}
	}
	send(reportFormat, 2, good().AppendTo(nil))
	send(reportFormat, 0, nil)
	send(reportMalformed, agentapi.ClockFormat, good().AppendTo(nil)[:40])
	send(reportForeign, agentapi.ClockFormat, clockReport(0, "h2", "h1").AppendTo(nil))
	if n := len(f.Clocks().Clocks); n != 0 {
		t.Errorf("%d clocks", n)
	}
	for _, nic := range []string{"h9/mlx5_0", "h2/eth1", "h2/mlx5_9", "spine1:dn/1"} { // no node; an alias; no NIC; a port
		partly := good()
		p := partly.Pairs[0]
		p.ID.Dst = nic
		partly.Pairs = append(partly.Pairs, p)
		send(reportPartly, agentapi.ClockFormat, partly.AppendTo(nil))
	}
	partly := good()
	partly.Joins = []clocksync.Join{{A: "h1", B: "h1/mlx5_7", Width: 100}}
	send(reportPartly, agentapi.ClockFormat, partly.AppendTo(nil))
	f.report(sessions[0], agentapi.ClockFormat, good().AppendTo(nil))
	if n := f.Stats().Clocks.Reports[reportEarly]; n != 1 {
		t.Errorf("%d early reports", n)
	}
	send(reportTaken, agentapi.ClockFormat, good().AppendTo(nil))
	f.clock.pass(time.Second)
	f.stepClocks()
	var names []string
	for _, c := range f.Clocks().Clocks {
		names = append(names, c.Clock)
	}
	if want := []string{"h1", "h2", "h3", "h4"}; !slices.Equal(names, want) {
		t.Errorf("clocks %v, want %v", names, want)
	}
	large := &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Clock{Clock: &agentapi.ClockReport{Samples: make([]byte, agentapi.MaxClockReport+1)}}}
	if err := f.handleMessage(sessions[0], large); err == nil || !strings.Contains(err.Error(), "clock.samples") {
		t.Errorf("%v", err)
	}
}

func TestRule15AgentsGetTheirClocks(t *testing.T) {
	f := start(t, clos(2, 3), nil)
	sessions, _ := f.agents(5)
	silent := f.mustConnect(hello("h6", 0))
	f.tick(sessions, 3)
	// h1 reports on h2 only from now on.
	f.clock.pass(time.Second)
	f.report(sessions[0], agentapi.ClockFormat, clockReport(int64(f.clock.MonoTime()), "h1", "h2").AppendTo(nil))
	f.stepClocks()
	u := f.clockUpdate(sessions[0])
	if u == nil || !u.Relative || len(u.Maps) != 2 || u.Maps[0].Clock != "h1" || u.Maps[1].Clock != "h2" {
		t.Fatalf("got %+v", u)
	}
	// One without estimates, since its clock has moved, still gets updates of its peers' clocks.
	f.clock.pass(200 * time.Millisecond)
	f.report(sessions[0], agentapi.ClockFormat, (&clocksync.Report{Node: "h1"}).AppendTo(nil))
	if got, err := clocksync.ParseUpdate(f.clocks.encodedUpdate("h1")); err != nil || len(got.Maps) != 2 {
		t.Errorf("after an empty report %+v, %v", got, err)
	}
	at := int64(f.clock.MonoTime())
	a, b := u.Maps[0].Map, u.Maps[1].Map
	if a.State != clocksync.Locked || b.State != clocksync.Locked || a.FrameTime(at+skew("h1")) != b.FrameTime(at+skew("h2")) {
		t.Errorf("got %+v", u)
	}
	if u := f.clockUpdate(sessions[1]); u == nil || len(u.Maps) != 5 {
		t.Errorf("got %+v", u)
	}
	if u := f.clockUpdate(sessions[1]); u != nil {
		t.Error("another update without a cycle")
	}
	if u := f.clockUpdate(silent); u != nil {
		t.Errorf("one that does not report got %+v", u)
	}
	f.stepClocks() // not due
	if u := f.clockUpdate(sessions[1]); u != nil {
		t.Error("another update without a cycle")
	}
	s := f.Stats()
	if s.ClockUpdates != 2 || s.Clocks.States["locked"] != 5 || s.Clocks.States["lost"] != 0 || s.Clocks.Edges["used"] == 0 || s.Clocks.Reports[reportTaken] != 17 {
		t.Errorf("%d updates, %+v", s.ClockUpdates, s.Clocks)
	}
	// A session that has ended gets no update; a new one gets it.
	f.clockUpdate(sessions[2])
	f.endSession(sessions[2])
	f.tick([]*session{sessions[1], sessions[3]}, 1)
	if u := f.clockUpdate(sessions[2]); u != nil {
		t.Errorf("got %+v", u)
	}
	again := f.mustConnect(hello("h3", 0))
	f.tick([]*session{sessions[1], sessions[3]}, 1)
	if u := f.clockUpdate(again); u == nil || len(u.Maps) != 5 {
		t.Errorf("got %+v", u)
	}

	frame := f.Clocks().Frame
	f.clock.pass(time.Second)
	f.restart()
	if c := f.Clocks(); len(c.Clocks) != 0 {
		t.Errorf("after a restart: %+v", c)
	}
	for i, s := range sessions {
		sessions[i] = f.mustConnect(hello(s.agent.node, 0))
	}
	f.tick(sessions, 1)
	if c := f.Clocks(); c.Frame == frame || len(c.Clocks) != 5 {
		t.Errorf("after a restart: %+v", c)
	}
}

// Clocks are listed with their present state.
func TestClocksAreListed(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	sessions, _ := f.agents(4)
	f.tick(sessions, 4)
	list := f.Clocks()
	if len(list.Clocks) != 4 || !list.Relative || list.EdgesUsed != 12 || list.EdgesDropped != 0 || list.Dropped == nil {
		t.Fatalf("%+v", list)
	}
	c := list.Clocks[2]
	if c.Clock != "h3" || c.State != "locked" || c.Peers != 3 || c.AgeSeconds != 0 || c.BoundNS == nil || *c.BoundNS <= 0 || *c.BoundNS > 200 || c.Component != 1 {
		t.Errorf("%+v", c)
	}
	// h1 and h2 share a leaf. h3 and h4 are a tier farther. Each clock has half.
	for _, c := range list.Clocks {
		if c.AllowanceNS != 313 {
			t.Errorf("%+v", c)
		}
	}
	f.clock.pass(20 * time.Second)
	f.stepClocks()
	c = f.Clocks().Clocks[2]
	if c.State != "holdover" || c.AgeSeconds != 20 || c.BoundNS == nil || *c.BoundNS < 17_000 {
		t.Errorf("%+v, bound %v", c, c.BoundNS)
	}
	f.clock.pass(30 * time.Minute)
	f.stepClocks()
	if c = f.Clocks().Clocks[2]; c.State != "lost" || c.BoundNS != nil {
		t.Errorf("%+v", c)
	}
}

// With a reference the frame is its system clock.
func TestClockReference(t *testing.T) {
	f := start(t, clos(2, 2), func(o *Options) { o.ClockReference = "h2" })
	sessions, _ := f.agents(4)
	if !f.Clocks().Relative {
		t.Error("absolute without a reference's clock")
	}
	f.tick(sessions, 3)
	u := f.clockUpdate(sessions[3])
	if u == nil || u.Relative || len(u.Maps) != 4 || u.Maps[1].Offset != 0 || u.Maps[3].Offset != skew("h2")-skew("h4") {
		t.Errorf("%+v", u)
	}
	if c := f.Clocks(); c.Relative || c.Reference != "h2" {
		t.Errorf("%+v", c)
	}
	o, _, _ := options(t, clos(1, 2))
	o.ClockReference = "h7"
	if _, err := New(o, nil); err == nil || !strings.Contains(err.Error(), `clock.reference: node "h7"`) {
		t.Errorf("%v", err)
	}
}

func TestClockOptions(t *testing.T) {
	o, _, _ := options(t, clos(1, 2))
	for want, change := range map[string]func(*Options){
		"clock.every":                func(o *Options) { o.ClockEvery = time.Millisecond },
		"clock.asymmetry-allowance:": func(o *Options) { o.ClockAllowance = -1 },
	} {
		bad := o
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// The allowance depends on the tier that two NICs meet at: the highest tier if their pods are unknown.
func TestClockAllowance(t *testing.T) {
	const three = `version: 1
switches:
  - {name: c1, role: core}
  - {name: s1, role: spine, pod: p1}
  - {name: s2, role: spine, pod: p2}
  - {name: l1, role: leaf, pod: p1}
  - {name: l2, role: leaf, pod: p1}
  - {name: l3, role: leaf, pod: p2}
nodes:
  - {name: h1, nics: [{device: e1}, {device: e2}]}
  - {name: h2, nics: [{device: e1}]}
  - {name: h3, nics: [{device: e1}]}
links:
  - {a: "h1/e1", b: "l1:d1"}
  - {a: "h1/e2", b: "l1:d2"}
  - {a: "h2/e1", b: "l2:d1"}
  - {a: "h3/e1", b: "l3:d1"}
  - {a: "l1:u1", b: "s1:d1"}
  - {a: "l2:u1", b: "s1:d2"}
  - {a: "l3:u1", b: "s2:d1"}
  - {a: "s1:u1", b: "c1:d1"}
  - {a: "s2:u1", b: "c1:d2"}
`
	for _, pods := range []bool{true, false} {
		text := three
		want := map[string]time.Duration{"h1/e2": 25, "h2/e1": 125, "h3/e1": 225}
		if !pods {
			text = strings.NewReplacer(", pod: p1", "", ", pod: p2", "").Replace(text)
			want["h2/e1"] = 225
		}
		topo, found := fabric.ParseTopology("t.yaml", []byte(text))
		if err := found.Err(); err != nil {
			t.Fatal(err)
		}
		w := newClockService(Options{}, fabric.NewGraph(topo), time.Time{})
		for nic, d := range want {
			if got := w.byTopology("h1/e1", nic); got != d {
				t.Errorf("pods %v: %s: %v, want %v", pods, nic, got, d)
			}
		}
	}
}

// TestAbsurdOffsetsAreRefused checks that a node that reports others to be days off, before or after
// these have reported, changes no clock but its own.
func TestAbsurdOffsetsAreRefused(t *testing.T) {
	for _, after := range []int{0, 5} {
		f := start(t, clos(2, 3), nil)
		sessions, _ := f.agents(6)
		f.tick(sessions[1:], after)
		for range 10 {
			lie := clockReport(int64(f.clock.MonoTime())+int64(time.Second), "h1", "h2", "h3", "h4", "h5", "h6")
			for i := range lie.Pairs {
				lie.Pairs[i].Offset += int64(i+1) << 50
				lie.Pairs[i].Sigma, lie.Pairs[i].RateSigma = 0, 0
			}
			f.clock.pass(time.Second)
			f.report(sessions[0], agentapi.ClockFormat, lie.AppendTo(nil))
			for _, s := range sessions[1:] {
				var others []string
				for _, o := range sessions {
					if o != s {
						others = append(others, o.agent.node)
					}
				}
				f.report(s, agentapi.ClockFormat, clockReport(int64(f.clock.MonoTime()), s.agent.node, others...).AppendTo(nil))
			}
			f.stepClocks()
		}
		u, err := clocksync.ParseUpdate(f.clocks.encodedUpdate("h2"))
		if err != nil || len(u.Maps) != 6 {
			t.Fatalf("%+v, %v", u, err)
		}
		at := int64(f.clock.MonoTime())
		first := int64(0)
		for _, m := range u.Maps {
			if m.Clock == "h1" {
				continue
			}
			shows := m.FrameTime(at + skew(m.Clock))
			if first == 0 {
				first = shows
			}
			if off := shows - first; m.State != clocksync.Locked || off > 1000 || off < -1000 || m.Steps != 0 {
				t.Errorf("%d cycles before the lies: %s is %v, %d ns off, with %d steps", after, m.Clock, m.State, off, m.Steps)
			}
		}
		if n := f.Stats().Clocks.Reports[reportImplausible]; n < 9 {
			t.Errorf("%d reports are counted as implausible", n)
		}
	}
}
