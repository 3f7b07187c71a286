package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// pair has two coordinators of one fleet, in virtual time. Messages between them are those that the network would carry.
type pair struct {
	a, b  *fixture
	clock *fakeClock
	diff  stateDiff
	build stateBuilder
	cut   bool // they do not reach each other
}

// fakeLease is a lease without an API server.
type fakeLease struct { // of the rules that internal/lease has
	state LeaseState
	err   error
}

func (l *fakeLease) claim(name string) Lease { return &namedLease{l, name} }

type namedLease struct {
	*fakeLease
	name string
}

func (l *namedLease) Hold(_ context.Context, q LeaseRequest) (LeaseState, error) {
	if l.err != nil {
		return LeaseState{}, l.err
	}
	free := l.state.Holder == "" || l.state.Holder == l.name
	if q.Force || q.Take && free && q.Epoch >= l.state.Epoch {
		if l.state.Holder != l.name || q.Force {
			l.state.Holder, l.state.Epoch = l.name, max(l.state.Epoch+1, q.Epoch+1, q.AtLeast)
		}
	}
	out := l.state
	out.Held = out.Holder == l.name
	return out, nil
}

func (l *namedLease) Release(context.Context) error {
	l.state.Holder = ""
	return nil
}

// newPair starts two coordinators with a topology, of which a is the initial leader.
func newPair(t *testing.T, change func(*Options)) *pair {
	t.Helper()
	o, clock, r := options(t, clos(2, 2))
	o.HA = HAOptions{Mode: ModeManual, Peers: []string{"coordinator"}, PeerServerName: "coordinator", InitialLeader: "a"}
	if change != nil {
		change(&o)
	}
	p := &pair{clock: clock}
	for name, f := range map[string]**fixture{"a": &p.a, "b": &p.b} {
		own := o
		own.HA.Identity, own.HA.PeerAddress = name, map[string]string{"a": "b:9870", "b": "a:9870"}[name]
		own.StateFile = filepath.Join(t.TempDir(), "state.json")
		*f = &fixture{t: t, clock: clock, ring: r, opts: own}
		(*f).restart()
	}
	return p
}

// exchange does what the calls between the two do once a second.
func (p *pair) exchange() {
	for _, c := range []struct{ caller, called *fixture }{{p.a, p.b}, {p.b, p.a}} {
		if p.cut {
			c.caller.mu.Lock()
			c.caller.leadership.peer.tried = true
			c.caller.mu.Unlock()
			continue
		}
		c.called.meetPeer(c.caller.peerState())
		c.caller.meetPeer(c.called.peerState())
		if c.caller.mayFollow() {
			p.replicate(c.called, c.caller)
		}
	}
}

func (p *pair) replicate(from, to *fixture) {
	s, sequence := from.replication.latest()
	if s == nil {
		return
	}
	if !to.leadership.followed { // the stream is a new one
		p.diff, p.build = stateDiff{}, stateBuilder{}
	}
	parts, err := p.diff.changeTo(s, nil, sequence)
	for _, m := range parts {
		var got *state
		if err == nil {
			got, err = p.build.take(m)
		}
		switch {
		case err != nil:
		case got != nil:
			err = to.takeReplica(got)
		case m.GetComplete():
			to.confirmReplica()
		}
	}
	if err != nil {
		to.t.Fatal(err)
	}
}

// run passes time for both, with a call a second.
func (p *pair) run(d time.Duration) {
	for ; d > 0; d -= time.Second {
		p.exchange()
		for range time.Second / stepEvery {
			p.clock.pass(stepEvery)
			p.a.Step()
			p.b.Step()
		}
	}
}

func (p *pair) wantLeaders(t *testing.T, a, b bool) {
	t.Helper()
	if p.a.Leads() != a || p.b.Leads() != b {
		t.Fatalf("a leads: %t, b leads: %t; want %t, %t\na:\n%s\nb:\n%s", p.a.Leads(), p.b.Leads(), a, b, p.a.logs, p.b.logs)
	}
}

// join connects the agent of a node again, with the assignment and the epoch that it has.
func (f *fixture) join(node string, have inbox, epoch uint64, proof []byte) (*session, error) {
	f.t.Helper()
	h := hello(node, 0)
	h.Applied = applied(have)
	h.Epoch, h.EpochProof = epoch, proof
	return f.connect(h)
}

func TestRule20AStandbyTakesOverWithTheSameScheduleAndKeys(t *testing.T) {
	p := newPair(t, nil)
	p.run(2 * time.Second)
	p.wantLeaders(t, true, false)
	_, boxes := p.a.agents(4)
	p.run(5 * time.Second)
	epoch, proof := p.a.epochProof()
	before, _, _ := p.a.ScheduleOf("")
	keys := p.a.keys.epochIDs()
	if targets, whole := p.b.Targets(); !whole || len(targets) != 4 {
		t.Errorf("the standby has the targets %v (whole: %t), want those of the leader", targets, whole)
	}
	_, err := p.b.connect(hello("h1", 0))
	wantCode(t, err, codes.Unavailable, "a:9870")
	if err := p.b.Ready(); err != nil {
		t.Errorf("a standby that follows is not ready: %v", err)
	}

	p.cut = true // a is gone
	if err := p.b.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, _, ok := p.b.ScheduleOf("")
	if !ok || after.Hash != before.Hash || !slices.Equal(p.b.keys.epochIDs(), keys) {
		t.Errorf("schedule %s, keys %v; want %s, %v", after.Hash, p.b.keys.epochIDs(), before.Hash, keys)
	}
	next, _ := p.b.epochProof()
	if next <= epoch {
		t.Errorf("epoch %d after %d", next, epoch)
	}
	for i, box := range boxes {
		s, err := p.b.join(fmt.Sprintf("h%d", i+1), box, epoch, proof)
		if err != nil {
			t.Fatal(err)
		}
		if in := p.b.receive(s); in.assignment != nil || in.keys != nil {
			t.Errorf("h%d got %q, want neither assignment nor keys", i+1, in.order)
		}
	}

	// a comes back to life, and hears of the greater epoch.
	p.cut = false
	p.run(2 * time.Second)
	p.wantLeaders(t, false, true)
	if s := p.a.leadership.replica; s == nil || s.Epoch != next {
		t.Errorf("the former leader does not follow epoch %d: %+v", next, s)
	}
}

// After a restart the state says who leads. A leader whose place was taken meanwhile does not come back as one.
func TestRule20WhoLeadsAfterARestart(t *testing.T) {
	p := newPair(t, nil)
	p.run(2 * time.Second)
	p.a.agents(4)
	p.run(5 * time.Second)
	p.a.restart()
	p.b.restart()
	p.run(2 * time.Second)
	p.wantLeaders(t, true, false)

	p.cut = true
	if err := p.b.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.run(3 * time.Second)
	p.wantLeaders(t, true, true)
	p.cut = false
	p.a.restart()
	p.diff, p.build = stateDiff{}, stateBuilder{}
	p.run(2 * time.Second)
	p.wantLeaders(t, false, true)
	if strings.Contains(p.a.logs.String(), "this coordinator leads") {
		t.Errorf("for a moment it led beside the other one:\n%s", p.a.logs)
	}

	// Alone, the old state leads again: there is no better one.
	p.cut = true
	p.b.restart()
	p.run(2 * time.Second)
	if !p.b.Leads() {
		t.Error("the leader does not lead after a restart without the other one")
	}
}

// Two leaders that cannot reach each other, each with half of the agents, change nothing for a minute.
func TestRule22TwoLeadersForAMinuteChangeNothing(t *testing.T) {
	p := newPair(t, func(o *Options) { o.RotateEvery = 30*time.Minute + 20*time.Second })
	p.run(2 * time.Second)
	sessions, boxes := p.a.agents(4)
	p.run(5 * time.Second)
	for range 30 * 60 { // the rotation of keys becomes due while there are two leaders
		p.clock.pass(time.Second)
		for i, s := range sessions {
			p.a.beat(s, applied(boxes[i]))
		}
	}
	p.run(time.Second)
	epoch, proof := p.a.epochProof()
	before, _, _ := p.a.ScheduleOf("")
	keys := p.a.keys.epochIDs()
	p.cut = true
	if err := p.b.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	leaders := []*fixture{p.a, p.a, p.b, p.b}
	for i := 2; i < 4; i++ {
		p.a.endSession(sessions[i])
		s, err := p.b.join(fmt.Sprintf("h%d", i+1), boxes[i], epoch, proof)
		if err != nil {
			t.Fatal(err)
		}
		sessions[i] = s
	}
	for range 60 {
		p.run(time.Second)
		for i, s := range sessions {
			if in := leaders[i].receive(s); in.assignment != nil || in.keys != nil {
				t.Fatalf("h%d got %q from one of two leaders", i+1, in.order)
			}
			leaders[i].beat(s, applied(boxes[i]))
		}
	}
	p.wantLeaders(t, true, true)
	for _, f := range []*fixture{p.a, p.b} {
		if s, _, _ := f.ScheduleOf(""); s.Hash != before.Hash || !slices.Equal(f.keys.epochIDs(), keys) {
			t.Errorf("schedule %s, keys %v; want %s, %v", s.Hash, f.keys.epochIDs(), before.Hash, keys)
		}
	}
	// An agent goes from b to a: what it has seen ends the leadership of a.
	epoch, proof = p.b.epochProof()
	p.b.endSession(sessions[2])
	_, err := p.a.join("h3", boxes[2], epoch, proof)
	wantCode(t, err, codes.Unavailable, "standby")
	p.run(time.Second)
	p.wantLeaders(t, false, true)
	if len(sessions[0].ended) != 1 {
		t.Error("the agents of the former leader have no reason to go to the other one")
	}
}

// Without its proof an epoch ends no leadership, since an agent may lie. A request goes above it nevertheless.
func TestRule21AnEpochWithoutProofChangesNothing(t *testing.T) {
	p := newPair(t, nil)
	p.run(2 * time.Second)
	own, proof := p.a.epochProof()
	for _, bad := range [][]byte{nil, proof, make([]byte, 32)} {
		h := hello("h1", 0)
		h.Epoch, h.EpochProof = own+1000, bad
		if _, err := p.a.connect(h); err != nil {
			t.Fatal(err)
		}
	}
	p.run(2 * time.Second)
	p.wantLeaders(t, true, false)
	if n := strings.Count(p.a.logs.String(), "without a proof"); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}
	if err := p.a.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now, _ := p.a.epochProof(); now <= own+1000 {
		t.Errorf("epoch %d after a request, want one above %d", now, own+1000)
	}
	h := hello("h2", 0)
	h.Epoch, h.EpochProof = agentapi.MaxEpoch, nil
	if _, err := p.a.connect(h); err != nil {
		t.Error(err)
	}
	if now := p.a.leadership.nextEpoch(p.clock.WallTime()); now >= agentapi.MaxEpoch {
		t.Errorf("an agent used up all epochs: the next is %d", now)
	}
}

// Two that were made leaders with the same epoch do not stay both.
func TestRule21OfTwoLeadersWithOneEpochOneMakesWay(t *testing.T) {
	p := newPair(t, nil)
	p.run(2 * time.Second)
	p.a.agents(4)
	p.run(5 * time.Second)
	p.cut = true
	if err := p.b.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.a.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	x, _ := p.a.epochProof()
	y, _ := p.b.epochProof()
	if x != y {
		t.Fatalf("epochs %d and %d, want the same for this test", x, y)
	}
	p.diff, p.build, p.cut = stateDiff{}, stateBuilder{}, false
	p.run(2 * time.Second)
	if p.a.Leads() == p.b.Leads() {
		t.Errorf("a leads: %t, b leads: %t", p.a.Leads(), p.b.Leads())
	}
}

// A coordinator that is alone goes on above the epochs of the fleet: after an older backup, and without its state.
func TestRule21EpochsOfACoordinatorThatIsAlone(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	first, proof := f.epochProof()
	if first < uint64(f.clock.WallTime().Unix()) {
		t.Errorf("epoch %d, want one that a fleet without state has not seen", first)
	}
	f.restart()
	if again, _ := f.epochProof(); again != first {
		t.Errorf("epoch %d after a restart, want %d", again, first)
	}
	l := leadership{fenceKey: f.leadership.fenceKey}
	h := hello("h1", 0)
	h.Epoch, h.EpochProof = first+5, l.proof(first+5)
	if _, err := f.connect(h); err != nil {
		t.Fatal(err)
	}
	if now, _ := f.epochProof(); now != first+6 || len(proof) != 32 {
		t.Errorf("epoch %d, want %d: the agent has seen the one before", now, first+6)
	}
}

func TestRule23TheLeaseDecides(t *testing.T) {
	lease := &fakeLease{}
	p := newPair(t, func(o *Options) { o.HA.Mode, o.HA.Lease = ModeLease, lease.claim("unused") })
	p.a.opts.HA.Lease, p.b.opts.HA.Lease = lease.claim("a"), lease.claim("b")
	p.a.restart()
	p.b.restart()
	step := func(who ...*fixture) {
		t.Helper()
		p.run(time.Second)
		for _, f := range who {
			f.stepLease(t.Context())
		}
	}
	// Without a state only the initial leader takes the lease.
	step(p.b)
	p.wantLeaders(t, false, false)
	step(p.a, p.b)
	p.wantLeaders(t, true, false)
	p.a.agents(4)
	p.run(5 * time.Second)
	before, _, _ := p.a.ScheduleOf("")
	keys := p.a.keys.epochIDs()

	// The API server is away: the leader goes on.
	lease.err = fmt.Errorf("no route")
	step(p.a, p.b)
	p.wantLeaders(t, true, false)
	lease.err = nil

	// The leader is gone, and its lease has ended.
	p.cut = true
	p.clock.pass(6 * time.Second)
	lease.state.Holder = ""
	p.b.stepLease(t.Context())
	p.wantLeaders(t, true, true)
	if s, _, _ := p.b.ScheduleOf(""); s.Hash != before.Hash || !slices.Equal(p.b.keys.epochIDs(), keys) {
		t.Errorf("schedule %s, keys %v; want %s, %v", s.Hash, p.b.keys.epochIDs(), before.Hash, keys)
	}
	// The former leader comes back, and finds that the lease is another's.
	p.a.stepLease(t.Context())
	p.wantLeaders(t, false, true)
	p.cut, p.diff, p.build = false, stateDiff{}, stateBuilder{}
	step(p.a, p.b)
	if s := p.a.leadership.replica; s == nil || s.Epoch != lease.state.Epoch {
		t.Errorf("%+v, want the state of epoch %d", s, lease.state.Epoch)
	}
	// A request takes the lease.
	if err := p.a.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	step(p.b)
	p.wantLeaders(t, true, false)
}

// A coordinator whose state is older than the last leader's does not take a free lease.
func TestRule23AnOldStateTakesNoLease(t *testing.T) {
	lease := &fakeLease{state: LeaseState{Epoch: 1 << 40}}
	p := newPair(t, func(o *Options) { o.HA.Mode, o.HA.Lease = ModeLease, lease.claim("a") })
	p.cut = true
	p.run(time.Second)
	p.a.stepLease(t.Context())
	if p.a.Leads() {
		t.Error("it leads")
	}
}

// A node that is missing may be connected to another leader, where its peers do not get the moves of this one.
func TestRule22NoSourcePortMovesWhileANodeIsMissing(t *testing.T) {
	asked := 0
	f := start(t, clos(2, 1), func(o *Options) {
		o.HA = HAOptions{Mode: ModeManual, PeerAddress: "b:1", PeerServerName: "b", Peers: []string{"b"}, Identity: "a", InitialLeader: "a"}
		o.Planner.Rebalance = func(*fabric.Graph, *schedule.Schedule, []schedule.TracedPath, []schedule.Move, int, int) []schedule.Move {
			asked++
			return nil
		}
	})
	f.mu.Lock()
	f.leadership.peer.tried = true
	f.mu.Unlock()
	f.Step()
	sessions, boxes := f.agents(2)
	for i, edges := range [][]string{{"h1/mlx5_0>h2/mlx5_0#0", "h2/mlx5_0>h1/mlx5_0#0/r"}, {"h2/mlx5_0>h1/mlx5_0#0", "h1/mlx5_0>h2/mlx5_0#0/r"}} {
		var traces []*agentapi.Trace
		for _, e := range edges {
			traces = append(traces, traced(e, i+1, 1, 2-i))
		}
		if err := f.handleMessage(sessions[i], &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Paths{Paths: &agentapi.PathReport{Traces: traces}}}); err != nil {
			t.Fatal(err)
		}
	}
	f.endSession(sessions[1])
	f.run(2 * time.Minute)
	if asked != 0 {
		t.Error("source ports were to be moved while a node was missing")
	}
	if _, err := f.join("h2", boxes[1], 0, nil); err != nil {
		t.Fatal(err)
	}
	f.run(2 * time.Minute)
	if asked == 0 {
		t.Error("source ports were not to be moved when all nodes were there again")
	}
}

func FuzzStateChange(f *testing.F) {
	var d stateDiff
	parts, err := d.changeTo(&state{Version: stateVersion, Agents: []agentState{{Node: "h1"}}, Epoch: 3}, nil, 1)
	if err != nil {
		f.Fatal(err)
	}
	for _, p := range parts {
		f.Add(p.GetHead(), p.GetAgents()[0], "h1", true, true)
	}
	f.Add([]byte(`{"version":2}`), []byte(`{"node":"a b"}`), "", false, true)
	f.Fuzz(func(t *testing.T, head, agent []byte, removed string, whole, complete bool) {
		b := stateBuilder{agents: map[string]agentState{"h9": {Node: "h9"}}}
		s, err := b.take(&agentapi.StateChange{Whole: whole, Head: head, Agents: [][]byte{agent}, RemovedAgents: []string{removed}, Complete: complete})
		if err == nil && s != nil && s.validate() != nil {
			t.Fatal("a state that cannot be used was taken")
		}
	})
}

// Whatever changes, the standby has the leader's state after each change.
func TestRule20ReplicationOfChanges(t *testing.T) {
	var d stateDiff
	var b stateBuilder
	agents := func(nodes string) (out []agentState) {
		for i, n := range strings.Fields(nodes) {
			out = append(out, agentState{Node: n, Assigned: uint64(i), Software: strings.Repeat("x", 4000)})
		}
		return out
	}
	many := ""
	for i := range 1000 { // more than one part
		many += fmt.Sprintf("n%04d ", i)
	}
	for i, s := range []*state{
		{Epoch: 3, Agents: agents("h1 h2")}, {Epoch: 3, Agents: agents("h1 h3"), Lives: 7}, {Epoch: 3}, {Epoch: 4, Agents: agents(many)}, {Epoch: 4, Agents: agents(many + "z")},
	} {
		parts, err := d.changeTo(s, nil, uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		var got *state
		for _, m := range parts {
			if got, err = b.take(m); err != nil {
				t.Fatal(err)
			}
		}
		want, _ := (&state{Epoch: s.Epoch, Lives: s.Lives, Agents: s.Agents, Standby: true}).encode()
		if text, _ := got.encode(); string(text) != string(want) {
			t.Errorf("change %d: the standby has another state", i)
		}
		if i == 3 && len(parts) < 3 {
			t.Errorf("%d parts for 4 MB, want several", len(parts))
		}
		if i == 4 && len(parts) != 1 {
			t.Errorf("%d parts for one more agent", len(parts))
		}
	}
	if _, err := (&stateBuilder{}).take(&agentapi.StateChange{Complete: true}); err == nil {
		t.Error("a change without a beginning was taken")
	}
}

// signer is an enrollment service that signs whatever it gets.
type signer struct {
	agentapi.UnimplementedEnrollmentServer
}

func (signer) Enroll(context.Context, *agentapi.EnrollRequest) (*agentapi.EnrollAnswer, error) {
	return &agentapi.EnrollAnswer{}, nil
}

// The record of used join tokens is that of the leader.
func TestRule20AStandbySignsNoCertificate(t *testing.T) {
	p := newPair(t, nil)
	p.run(2 * time.Second)
	if _, err := (leaderEnrollment{signer{}, p.a.Coordinator}).Enroll(t.Context(), nil); err != nil {
		t.Errorf("the leader: %v", err)
	}
	_, err := (leaderEnrollment{signer{}, p.b.Coordinator}).Enroll(t.Context(), nil)
	wantCode(t, err, codes.Unavailable, "a:9870")
}

// Who replicates has the fleet's secrets, so that no node may enroll under such a name.
func TestRule20NoNodeHasTheNameOfACoordinator(t *testing.T) {
	p := newPair(t, func(o *Options) { o.AnyNode, o.HA.Peers = true, []string{"coordinator", "h1"} })
	if p.a.HasNode("coordinator") || p.a.HasNode("h1") || !p.a.HasNode("h2") {
		t.Error("a node may have the name of the other coordinator, or another node may not connect")
	}
}

func TestHAFlagsThatDoNotFit(t *testing.T) {
	o, _, _ := options(t, clos(2, 2))
	good := HAOptions{Mode: ModeManual, PeerAddress: "b:1", PeerServerName: "b", Peers: []string{"b"}}
	for want, change := range map[string]func(*HAOptions){
		"":                    func(*HAOptions) {},
		"ha.peers":            func(h *HAOptions) { h.Peers = nil },
		"ha.peer-address":     func(h *HAOptions) { h.PeerAddress = "" },
		"ha.peer-server-name": func(h *HAOptions) { h.PeerServerName = "" },
		"ha.mode":             func(h *HAOptions) { h.Mode = "both" },
		"ha.identity":         func(h *HAOptions) { h.Mode = ModeLease },
	} {
		o.HA = good
		change(&o.HA)
		if err := o.Validate(); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want+":") {
			t.Errorf("%q: %v", want, err)
		}
	}
	o.HA = HAOptions{}
	if _, err := New(o, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
}
