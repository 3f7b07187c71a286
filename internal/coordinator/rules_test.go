package coordinator

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

func parseAddr(s string) []byte { return netip.MustParseAddr(s).AsSlice() }

func TestRule1IdentityIsTheCertificate(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	for name, c := range map[string]struct {
		node  string
		names []string
		code  codes.Code
		text  string
	}{
		"its name":         {"h1", []string{"other", "h1"}, codes.OK, ""},
		"another's":        {"h2", []string{"h1"}, codes.PermissionDenied, `not for node "h2"`},
		"no name at all":   {"h2", nil, codes.PermissionDenied, "not for node"},
		"not topology":     {"h9", []string{"h9"}, codes.NotFound, `"h9" is not in the topology`},
		"not a node name":  {"h/9", []string{"h/9"}, codes.InvalidArgument, "hello.node"},
		"no wildcard":      {"h2", []string{"*"}, codes.PermissionDenied, "not for node"},
		"case is the name": {"H1", []string{"h1"}, codes.PermissionDenied, "not for node"},
	} {
		_, err := f.registerAgent(hello(c.node, 0), identity{names: c.names})
		if c.code == codes.OK {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		wantCode(t, err, c.code, c.text)
	}
	s := f.Stats().Sessions
	if s[resultAccepted] != 1 || s[resultIdentity] != 4 || s[resultTopology] != 1 || s[resultMalformed] != 1 {
		t.Errorf("counted %v", s)
	}
}

func TestRule3TwoAgentsWithOneName(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	first := f.mustConnect(hello("h1", 0))
	other := hello("h1", 1)
	other.BootId = "another host"
	_, err := f.connect(other)
	wantCode(t, err, codes.AlreadyExists, "on another host")
	if f.agents1("h1").session != first || len(first.ended) != 0 {
		t.Fatal("the incumbent was disturbed")
	}
	// The same process may connect any number of times.
	s := first
	for range 10 {
		s = f.mustConnect(hello("h1", 0))
	}
	if len(first.ended) != 1 {
		t.Error("the first stream was not ended")
	}
	// A restarted process takes over, three times a minute.
	for i := range 3 {
		s = f.mustConnect(hello("h1", byte(2+i)))
	}
	_, err = f.connect(hello("h1", 9))
	wantCode(t, err, codes.AlreadyExists, "two agents may use its name")
	f.clock.pass(time.Minute)
	f.beat(s, nil)
	s = f.mustConnect(hello("h1", 9))
	// Any agent replaces an incumbent that was silent for three heartbeats.
	f.clock.pass(3*f.opts.Heartbeat - 1)
	if _, err = f.connect(other); err == nil {
		t.Error("replaced too early")
	}
	f.clock.pass(1)
	f.mustConnect(other)
	if len(s.ended) != 1 {
		t.Error("the silent agent's stream was not ended")
	}
	// The end of the old stream does not end the new session.
	f.endSession(s)
	if f.agents1("h1").session == nil {
		t.Error("the old stream's end ended the new session")
	}
	c := f.Stats().Sessions
	if c[resultDuplicate] != 2 || c[resultTakeovers] != 1 || c[resultTakeover] != 4 {
		t.Errorf("counted %v", c)
	}
}

func (f *fixture) agents1(node string) *agent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.registry.agents[node]
}

func TestRule4OneRunForManyAgentsAndAMessageForTheChangedOnly(t *testing.T) {
	f := start(t, clos(4, 4), nil)
	var sessions []*session
	for i := 1; i <= 12; i++ {
		sessions = append(sessions, f.mustConnect(hello(fmt.Sprintf("h%d", i), 0)))
		f.run(400 * time.Millisecond)
	}
	if n := f.ring.count(); n != 0 {
		t.Fatalf("%d runs while agents were coming", n)
	}
	f.run(2 * time.Second)
	if n := f.ring.count(); n != 1 {
		t.Fatalf("%d runs, want one", n)
	}
	for _, s := range sessions {
		if in := f.receive(s); in.assignment == nil || in.order != "kap" {
			t.Fatalf("%s got %q, want keys, the assignment and the wish for paths, in this order", s.agent.node, in.order)
		}
	}
	// One more agent connects: only its neighbours in the ring get a new assignment.
	f.mustConnect(hello("h13", 0))
	f.run(3 * time.Second)
	notified := 0
	for _, s := range sessions {
		if in := f.receive(s); in.assignment != nil {
			notified++
			if in.assignment.Version != 2 {
				t.Errorf("version %d, want 2", in.assignment.Version)
			}
		}
	}
	if notified == 0 || notified > 6 {
		t.Errorf("%d of 12 got an assignment, want the up to six neighbours", notified)
	}
	if n := f.ring.count(); n != 2 {
		t.Errorf("%d runs, want two", n)
	}
	// Changes without an end delay the schedule only for a limited time.
	for range 12 {
		f.mustConnect(hello("h14", 0))
		f.mu.Lock()
		f.registry.agents["h14"].present = false
		f.mu.Unlock()
		f.run(time.Second)
	}
	if n := f.ring.count(); n != 3 {
		t.Errorf("%d runs, want the third after ten seconds", n)
	}
}

func TestRule4SilenceIsEvidenceUntilItIsAbsence(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	sessions, _ := f.agents(4)
	f.endSession(sessions[3])
	runs := f.ring.count()
	for range 29 {
		f.run(10 * time.Second)
		for _, s := range sessions[:3] {
			f.beat(s, nil)
		}
	}
	if f.ring.count() != runs || f.Agents()[3].State != StateSilent {
		t.Fatalf("after 290 s: %d runs more, state %s", f.ring.count()-runs, f.Agents()[3].State)
	}
	f.run(15 * time.Second)
	if f.ring.count() != runs+1 || f.Agents()[3].State != StateAbsent {
		t.Fatalf("after 305 s: %d runs more, state %s", f.ring.count()-runs, f.Agents()[3].State)
	}
	for _, e := range f.planning.plan.sched.Edges {
		if strings.HasPrefix(f.planning.plan.sched.NICs[e.Src], "h4/") || strings.HasPrefix(f.planning.plan.sched.NICs[e.Dst], "h4/") {
			t.Fatal("the absent node is still scheduled")
		}
	}
	f.mustConnect(hello("h4", 0))
	f.run(3 * time.Second)
	if f.ring.count() != runs+2 || f.Agents()[3].State != StateConnected {
		t.Error("the node that came back is not scheduled")
	}
}

func TestRule5ARestartChangesNothing(t *testing.T) {
	f := start(t, clos(4, 4), nil)
	_, boxes := f.agents(12)
	before, _, _ := f.ScheduleOf("")
	f.run(3 * time.Second) // the state is written
	f.clock.pass(20 * time.Minute)
	f.restart()
	after, _, ok := f.ScheduleOf("")
	if !ok || before.Hash != after.Hash {
		t.Fatalf("schedule %s, then %s", before.Hash, after.Hash)
	}
	for i, in := range boxes {
		h := hello(fmt.Sprintf("h%d", i+1), 0)
		h.Applied = applied(in)
		s := f.mustConnect(h)
		if got := f.receive(s); got.assignment != nil || got.keys != nil || !got.paths {
			t.Errorf("h%d got %q after the restart, want only the wish for paths", i+1, got.order)
		}
	}
	f.run(20 * time.Second)
	if n := f.ring.count(); n != 2 {
		t.Errorf("%d runs, want one of each process", n)
	}
	if info, err := os.Stat(f.opts.StateFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("state file: %v %v", info.Mode(), err)
	}
	left, _ := filepath.Glob(f.opts.StateFile + ".*")
	if len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestRule5AnAgentWithAnotherHashGetsItsAssignment(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	_, boxes := f.agents(4)
	f.run(3 * time.Second)
	f.restart()
	h := hello("h1", 0)
	h.Applied = &agentapi.Applied{Version: 41, Hash: bytes.Repeat([]byte{1}, hashSize)}
	in := f.receive(f.mustConnect(h))
	if in.assignment == nil || in.keys == nil || in.assignment.Version < 41 || !bytes.Equal(in.assignment.Hash, boxes[0].assignment.Hash) {
		t.Errorf("got %q, version %d", in.order, in.assignment.GetVersion())
	}
}

func TestRule5ClockJumps(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	f.agents(4)
	f.run(3 * time.Second)
	// The wall clock jumps while the coordinator runs: no node becomes absent.
	f.clock.mu.Lock()
	f.clock.wall = f.clock.wall.Add(1000 * time.Hour)
	f.clock.mu.Unlock()
	f.run(3 * time.Second)
	if n := f.Stats().Agents[StateConnected]; n != 4 {
		t.Errorf("%d connected after a jump of the wall clock", n)
	}
	f.run(time.Minute + time.Second) // last-seen times are written
	// It jumps back before a restart: the last-seen times lie in the future.
	f.clock.mu.Lock()
	f.clock.wall = f.clock.wall.Add(-2000 * time.Hour)
	f.clock.mu.Unlock()
	f.restart()
	for _, a := range f.Agents() {
		if a.LastSeen.After(f.clock.WallTime()) || a.State != StateSilent {
			t.Errorf("%s: last seen %v, state %s", a.Node, a.LastSeen, a.State)
		}
	}
	f.run(f.opts.AbsentAfter - time.Second)
	if n := f.Stats().Agents[StateSilent]; n != 4 {
		t.Errorf("%d silent just before they count as absent", n)
	}
	f.run(2 * time.Second)
	if n := f.Stats().Agents[StateAbsent]; n != 4 {
		t.Errorf("%d absent", n)
	}
}

func TestRule5ABadStateIsLeftAlone(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	f.agents(2)
	good, err := os.ReadFile(f.opts.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":       {"", "octet 0"},
		"cut off":     {string(good[:len(good)/2]), "octet"},
		"not a state": {`{"a":1}`, `unknown field "a"`},
		"later":       {`{"version":4,"agents":[]}`, "version 4, want 1 to 3"},
		"too late":    {`{"version":5,"min_reader":4,"agents":[],"colour":1}`, "version 5, want 1 to 3, or a later one whose min_reader is at most 3"},
		"min reader":  {`{"version":1,"min_reader":2,"agents":[]}`, "min_reader 2, want 0 to 1"},
		"unknown key": {`{"version":1,"min_reader":1,"agents":[],"colour":1}`, "colour"},
		"trailing":    {string(good) + "x", "unexpected data after"},
		"node name":   {`{"version":1,"agents":[{"node":"a b","present":true,"last_seen":"2026-01-01T00:00:00Z"}]}`, "agents[0].node"},
		"short key":   {`{"version":1,"agents":[],"keys":[{"id":1,"secret":"AAAA"}]}`, "keys[0].secret: 3 octets"},
		"twice":       {`{"version":1,"agents":[{"node":"a","present":true,"last_seen":"2026-01-01T00:00:00Z"},{"node":"a","present":true,"last_seen":"2026-01-01T00:00:00Z"}]}`, "listed twice"},
	} {
		if err := os.WriteFile(f.opts.StateFile, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(f.opts, f.log)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), f.opts.StateFile) {
			t.Errorf("%s: %v, want %q and the file's name", name, err, c.want)
		}
		if b, _ := os.ReadFile(f.opts.StateFile); string(b) != c.text {
			t.Errorf("%s: the file was changed", name)
		}
	}
	f.opts.StateFile = filepath.Join(t.TempDir(), "none", "state.json")
	if _, err := New(f.opts, f.log); err == nil {
		t.Error("a state that cannot be written was no failure at the start")
	}
}

func TestRule6TargetsAreWholeOrRefused(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	for i := 1; i <= 3; i++ {
		f.mustConnect(hello(fmt.Sprintf("h%d", i), 0))
	}
	f.run(f.opts.RegistrySettle - time.Second)
	if _, ok := f.Targets(); ok {
		t.Fatal("a short list was served")
	}
	h := hello("h4", 0)
	h.Web = &agentapi.WebEndpoint{Address: ":9868", Scheme: "https"}
	s := f.mustConnect(h)
	f.run(stepEvery)
	got, ok := f.Targets()
	if !ok || len(got) != 4 {
		t.Fatalf("all nodes are registered: %v %v", got, ok)
	}
	if got[0] != (Target{"h1", "192.0.2.1:9868", "http", "1", true}) || got[3] != (Target{"h4", "192.0.2.1:9868", "http", "1", true}) {
		t.Errorf("targets %+v", got)
	}
	f.endSession(s)
	f.run(10 * time.Minute)
	if got, _ := f.Targets(); len(got) != 4 || got[3].Connected {
		t.Errorf("after h4 left: %+v, want it among them", got)
	}
	f.restart()
	f.run(stepEvery)
	if got, ok := f.Targets(); !ok || len(got) != 4 {
		t.Errorf("after a restart: %v %v", got, ok)
	}

	late := start(t, clos(2, 2), nil)
	late.mustConnect(hello("h1", 0))
	late.run(late.opts.RegistrySettle)
	if got, ok := late.Targets(); !ok || len(got) != 1 {
		t.Errorf("after the settle period: %v %v", got, ok)
	}
}

func TestRule10ABadTopologyLeavesTheOldOne(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	sessions, boxes := f.agents(4)
	for name, c := range map[string]struct {
		text string
		err  error
	}{"not YAML": {"}", nil}, "not scheduled": {clos(3, 2), fmt.Errorf("no way")}} {
		if err := os.WriteFile(f.opts.TopologyFile, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		f.ring.err = c.err
		if err := f.Reload(); err == nil || !strings.Contains(err.Error(), "the old topology stays in use") {
			t.Errorf("%s: %v", name, err)
		}
		if s := f.Stats(); s.ReloadOK {
			t.Errorf("%s: counted as a success", name)
		}
		f.ring.err = nil
		f.run(20 * time.Second)
		for _, s := range sessions {
			if in := f.receive(s); in.assignment != nil || len(s.ended) != 0 {
				t.Errorf("%s: %s was disturbed", name, s.agent.node)
			}
		}
	}
	// h4 leaves, h5 and h6 join.
	text := strings.ReplaceAll(clos(3, 2), "h4", "h7")
	if err := os.WriteFile(f.opts.TopologyFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-sessions[3].ended, codes.NotFound, "not in the coordinator's topology")
	if in := f.receive(sessions[0]); in.assignment == nil || in.assignment.Version <= boxes[0].assignment.Version {
		t.Error("a peer of the node that left got no assignment")
	}
	if _, err := f.connect(hello("h4", 0)); err == nil {
		t.Error("the node that went was let in")
	}
	f.mustConnect(hello("h5", 0))
}

func TestRule11SSIDs(t *testing.T) {
	seen := map[uint16]int{}
	for i := range 20000 {
		s := ssidOf(fmt.Sprintf("h%d/mlx5_%d", i/8, i%8))
		if s < 1 || s > 16383 {
			t.Fatalf("%d, want 1 to 16383", s)
		}
		seen[s]++
	}
	for s, n := range seen {
		if n > 12 {
			t.Errorf("%d NICs share %d", n, s)
		}
	}
	// The values must never change, since agents of different versions meet.
	if a, b := ssidOf("h1/mlx5_0"), ssidOf("h3/eth1"); a != 15188 || b != 4081 {
		t.Errorf("%d, %d, want 15188, 4081", a, b)
	}
	f := start(t, clos(2, 2), nil)
	_, boxes := f.agents(4)
	own := map[string]uint32{}
	for _, in := range boxes {
		for _, n := range in.assignment.Nics {
			own[n.Nic] = n.Ssid
		}
	}
	for _, in := range boxes {
		for _, p := range in.assignment.Peers {
			if p.Ssid == 0 || p.Ssid != own[p.Nic] {
				t.Errorf("%s: a peer got %d, the NIC %d", p.Nic, p.Ssid, own[p.Nic])
			}
		}
	}
}

func hop(ttl int, address string) *agentapi.Hop {
	h := &agentapi.Hop{Ttl: uint32(ttl)}
	if address != "" {
		h.Address = parseAddr(address)
	}
	return h
}

// traced returns a trace from a host under leaf a over a spine to one under leaf b.
func traced(edge string, a, spine, b int) *agentapi.Trace {
	return &agentapi.Trace{Edge: edge, State: agentapi.PathState_PATH_STATE_VALID, Reached: true, Hops: []*agentapi.Hop{hop(1, ""),
		hop(2, fmt.Sprintf("172.%d.%d.%d", 15+spine, a/128, a%128*2+1)), hop(3, fmt.Sprintf("172.%d.%d.%d", 15+spine, b/128, b%128*2))}}
}

func TestRule12EdgesAreCountedOnLinks(t *testing.T) {
	f := start(t, clos(2, 1), nil)
	sessions, _ := f.agents(2)
	if s := f.Stats(); s.Links != nil {
		t.Fatal("links were counted before any trace: absent is not 0")
	}
	report := func(s *session, traces ...*agentapi.Trace) {
		t.Helper()
		if err := f.handleMessage(s, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Paths{Paths: &agentapi.PathReport{Traces: traces}}}); err != nil {
			t.Fatal(err)
		}
	}
	count := func(from, to string) int {
		t.Helper()
		for _, l := range f.Stats().Links {
			if l.Direction == (fabric.Direction{From: from, To: to}) {
				return l.Edges
			}
		}
		t.Fatalf("%s->%s is not counted", from, to)
		return 0
	}
	report(sessions[0], traced("h1/mlx5_0>h2/mlx5_0#0", 1, 1, 2), traced("h2/mlx5_0>h1/mlx5_0#0/r", 1, 2, 2),
		traced("h2/mlx5_0>h1/mlx5_0#0", 2, 1, 1), traced("h1/mlx5_0>h2/mlx5_0#7", 1, 1, 2), traced("h1/mlx5_0>none/x#0", 1, 1, 2))
	if s := f.Stats(); s.Traces["taken"] != 2 || s.Traces["ignored"] != 3 || s.Edges["path_known"] != 1 || s.Edges["path_unknown"] != 1 {
		t.Errorf("traces %v, edges %v; want those of the node's own edges only", s.Traces, s.Edges)
	}
	if a, b, c, d := count("leaf1:up1", "spine1:dn1"), count("leaf1:up2", "spine2:dn1"), count("h1/mlx5_0", "leaf1:dn1"), count("leaf2:up1", "spine1:dn2"); a != 1 || b != 1 || c != 2 || d != 0 {
		t.Errorf("counts %d %d %d %d, want 1 1 2 0", a, b, c, d)
	}
	// Another path replaces the first. One that is lost no longer counts; a stale one does.
	report(sessions[0], traced("h1/mlx5_0>h2/mlx5_0#0", 1, 2, 2))
	stale := traced("h2/mlx5_0>h1/mlx5_0#0/r", 1, 1, 2)
	stale.State = agentapi.PathState_PATH_STATE_STALE
	report(sessions[0], stale)
	if a, b := count("leaf1:up1", "spine1:dn1"), count("leaf1:up2", "spine2:dn1"); a != 0 || b != 2 {
		t.Errorf("counts %d %d after the move, want 0 2", a, b)
	}
	_, bound := f.paths.tracedPaths()
	if len(bound) != 2 || bound[0].Path.CanonicalKey() != "leaf1[dn1>up2] spine2[dn1>dn2] leaf2[up2>dn1]" {
		t.Errorf("bound %v", bound)
	}
	report(sessions[0], &agentapi.Trace{Edge: "h1/mlx5_0>h2/mlx5_0#0"})
	if a := count("leaf1:up2", "spine2:dn1"); a != 1 {
		t.Errorf("%d after the path was lost, want 1", a)
	}
	// The topology is read again without the second spine: paths over it are dropped.
	text := strings.ReplaceAll(strings.ReplaceAll(clos(2, 1), "  - {a: \"leaf1:up2\"", "#"), "  - {a: \"leaf2:up2\"", "#")
	text = strings.ReplaceAll(text, "  - {name: spine2", "#")
	if err := os.WriteFile(f.opts.TopologyFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	report(sessions[0], traced("h1/mlx5_0>h2/mlx5_0#0", 1, 1, 2))
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	if a, s := count("leaf1:up1", "spine1:dn1"), f.Stats(); a != 1 || len(s.Links) != 8 || s.Edges["path_known"] != 1 {
		t.Errorf("%d over the link that stayed, %d directions, %v", a, len(s.Links), s.Edges)
	}
}

func TestRule12SourcePortsAreMovedAFewAtATime(t *testing.T) {
	asked := 0
	f := start(t, clos(2, 1), func(o *Options) {
		o.Planner.Rebalance = func(g *fabric.Graph, s *schedule.Schedule, bound []schedule.TracedPath, moved []schedule.Move, k, limit int) []schedule.Move {
			asked++
			if k != 3 || limit != 20 || len(bound) != 4 {
				t.Errorf("k %d, limit %d, %d bound", k, limit, len(bound))
			}
			if len(moved) == 2 {
				return nil
			}
			return []schedule.Move{{Src: "h1/mlx5_0", Dst: "h2/mlx5_0", From: len(moved), To: len(moved) + 1}}
		}
	})
	sessions, _ := f.agents(2)
	all := func(flow int) {
		t.Helper()
		for i, s := range sessions {
			edges := []string{fmt.Sprintf("h1/mlx5_0>h2/mlx5_0#%d", flow), "h2/mlx5_0>h1/mlx5_0#0/r"}
			if i == 1 {
				edges = []string{"h2/mlx5_0>h1/mlx5_0#0", fmt.Sprintf("h1/mlx5_0>h2/mlx5_0#%d/r", flow)}
			}
			var traces []*agentapi.Trace
			for _, e := range edges {
				traces = append(traces, traced(e, i+1, 1, 2-i))
			}
			if err := f.handleMessage(s, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Paths{Paths: &agentapi.PathReport{Traces: traces}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.run(time.Minute)
	if asked != 0 {
		t.Fatal("asked before paths were known")
	}
	all(0)
	f.run(31 * time.Second)
	if asked != 1 || len(f.moves.list) != 1 {
		t.Fatalf("asked %d times, %d moves", asked, len(f.moves.list))
	}
	in := f.receive(sessions[0])
	if in.assignment == nil || in.assignment.Edges[0].Flow != 1 {
		t.Fatalf("the agent did not get the move: %v", in.assignment)
	}
	f.run(time.Minute)
	if asked != 1 {
		t.Error("a second round before the moved edge was traced")
	}
	all(1)
	f.run(31 * time.Second)
	all(2)
	f.run(2 * time.Minute)
	if asked != 3 || len(f.moves.list) != 2 || f.Stats().Moves != 2 {
		t.Errorf("asked %d times, %d moves; want three, the last without a proposal", asked, len(f.moves.list))
	}
	before, _, _ := f.ScheduleOf("")
	f.restart()
	after, _, _ := f.ScheduleOf("")
	if len(f.moves.list) != 2 || before.Hash != after.Hash {
		t.Errorf("%d moves after a restart, schedule %s then %s", len(f.moves.list), before.Hash, after.Hash)
	}
}

func TestRule12ARoundWaitsForTheTracesOfTheLast(t *testing.T) {
	asked := 0
	f := start(t, clos(16, 1), func(o *Options) {
		o.Planner.Rebalance = func(_ *fabric.Graph, _ *schedule.Schedule, _ []schedule.TracedPath, moved []schedule.Move, _, _ int) []schedule.Move {
			asked++
			if len(moved) > 0 {
				return nil
			}
			return []schedule.Move{{Src: "h1/mlx5_0", Dst: "h10/mlx5_0", From: 0, To: 1}}
		}
	})
	sessions, _ := f.agents(16)
	// trace reports an edge's probes, its replies, or both, over a spine.
	trace := func(edge string, spine int, probes, replies bool) {
		t.Helper()
		e, err := fabric.ParseFlow(edge)
		if err != nil {
			t.Fatal(err)
		}
		var src, dst int
		fmt.Sscanf(e.Src, "h%d/", &src)
		fmt.Sscanf(e.Dst, "h%d/", &dst)
		for _, r := range []struct {
			wanted bool
			s      *session
			t      *agentapi.Trace
		}{{probes, sessions[src-1], traced(edge, src, spine, dst)}, {replies, sessions[dst-1], traced(edge+"/r", dst, spine, src)}} {
			if !r.wanted {
				continue
			}
			m := &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Paths{Paths: &agentapi.PathReport{Traces: []*agentapi.Trace{r.t}}}}
			if err := f.handleMessage(r.s, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := func() (edges []string) {
		for i := range sessions {
			_, of, _ := f.ScheduleOf(fmt.Sprintf("h%d", i+1))
			for _, e := range of {
				edges = append(edges, e.Edge)
			}
		}
		return edges
	}
	for _, e := range all() {
		trace(e, 1, true, true)
	}
	alive := func(d time.Duration) {
		for ; d > 0; d -= 10 * time.Second {
			f.run(10 * time.Second)
			for _, s := range sessions {
				f.beat(s, nil)
			}
		}
	}
	alive(40 * time.Second)
	if asked != 1 || f.Stats().Edges["path_unknown"] != 1 {
		t.Fatalf("asked %d times, %d edges without a path; want the moved one", asked, f.Stats().Edges["path_unknown"])
	}
	other := all()[20]
	trace(other, 2, true, true) // paths changed, and nearly all are known
	trace("h1/mlx5_0>h10/mlx5_0#1", 2, true, false)
	alive(40 * time.Second)
	if asked != 1 {
		t.Fatal("the next round came before the moved edge was traced both ways")
	}
	trace("h1/mlx5_0>h10/mlx5_0#1", 2, false, true)
	alive(40 * time.Second)
	if asked != 2 {
		t.Errorf("asked %d times after all was traced, want 2", asked)
	}
}

// Where no source port helps, trials become rare: the history of moves is bounded.
func TestRule12FruitlessRoundsBecomeRare(t *testing.T) {
	asked := 0
	f := start(t, clos(2, 1), func(o *Options) {
		o.Planner.Rebalance = func(_ *fabric.Graph, _ *schedule.Schedule, _ []schedule.TracedPath, moved []schedule.Move, _, _ int) []schedule.Move {
			asked++
			return []schedule.Move{{Src: "h1/mlx5_0", Dst: "h2/mlx5_0", From: len(moved) % 64, To: (len(moved) + 1) % 64}}
		}
	})
	sessions, _ := f.agents(2)
	for range 24 * 60 {
		for i, s := range sessions {
			_, edges, _ := f.ScheduleOf(fmt.Sprintf("h%d", i+1))
			_, back, _ := f.ScheduleOf(fmt.Sprintf("h%d", 2-i))
			p := &agentapi.PathReport{Traces: []*agentapi.Trace{traced(edges[0].Edge, i+1, 1, 2-i), traced(back[0].Edge+"/r", i+1, 1, 2-i)}}
			if err := f.handleMessage(s, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Paths{Paths: p}}); err != nil {
				t.Fatal(err)
			}
		}
		for range 60 {
			f.clock.pass(time.Second)
			f.Step()
		}
	}
	if asked < 10 || asked > 50 {
		t.Errorf("%d rounds in a day without effect", asked)
	}
}
