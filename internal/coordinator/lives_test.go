package coordinator

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
)

// alive returns a hello of a process with a life number.
func alive(node string, process byte, life uint64, assigned bool) *agentapi.Hello {
	h := hello(node, process)
	h.Life, h.LifeAssigned = proto.Uint64(life), assigned
	return h
}

// TestLivesOnlyGrow checks that life numbers grow over processes of an agent, restarts of the
// coordinator and a clock that is set back. A process keeps its number over sessions.
func TestLivesOnlyGrow(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	last := uint64(0)
	connect := func(what string, h *agentapi.Hello) uint64 {
		t.Helper()
		s, err := f.connect(h)
		if err != nil {
			t.Fatal(err)
		}
		if s.life <= last {
			t.Errorf("%s: life %d after %d", what, s.life, last)
		}
		f.endSession(s)
		last = s.life
		return s.life
	}
	connect("first process", alive("h1", 0, 0, false))
	given := connect("second process", alive("h1", 1, 0, false))
	s, err := f.connect(alive("h1", 1, given, true))
	if err != nil || s.life != given {
		t.Errorf("the same process came back: life %d, want %d: %v", s.life, given, err)
	}
	f.endSession(s)
	connect("one with a higher number of its own", alive("h1", 2, given+1e6, false))
	if other, err := f.connect(alive("h2", 0, 0, false)); err != nil || other.life >= given+1e6 {
		t.Errorf("the report of h1 about itself moved the number of h2 to %d: %v", other.life, err)
	}
	last = given
	f.clock.mu.Lock()
	f.clock.wall = f.clock.wall.Add(-30 * 24 * time.Hour)
	f.clock.mu.Unlock()
	f.restart()
	connect("coordinator restarted with its clock set back", alive("h1", 3, 0, false))
	for range lifeBlock {
		f.registry.lives.assignLife(&agentapi.Hello{}, 0)
	}
	last = f.registry.lives.lastGiven
	if f.registry.lives.reserved <= last {
		t.Errorf("number %d was given, reserved are %d", last, f.registry.lives.reserved)
	}
	if _, err := f.connect(alive("h1", 4, agentapi.MaxLife+1, false)); err == nil {
		t.Error("a life beyond the limit was taken")
	}
}

// TestPeersGetLives checks that a new session gets the lives of its peers when they are at work. An
// older version has none, and its old number is no longer given.
func TestPeersGetLives(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	sessions := map[string]*session{}
	for _, n := range []string{"h1", "h2", "h3"} {
		sessions[n] = f.mustConnect(alive(n, 0, 0, false))
	}
	// atWork lets agents report that they have applied their assignment.
	atWork := func(nodes ...string) {
		for _, n := range nodes {
			f.beat(sessions[n], f.appliedBy(n))
		}
	}
	sessions["h4"] = f.mustConnect(hello("h4", 0)) // an older version
	f.run(time.Minute)
	if got := f.livesOf(f.planning.plan, "h1"); len(got.Nodes) != 0 {
		t.Errorf("no agent has applied its assignment, and h1 gets %v", got)
	}
	atWork("h1", "h2", "h3")
	f.run(time.Minute)
	receivedLives := func(process byte) map[string]uint64 {
		t.Helper()
		f.endSession(sessions["h1"])
		s := f.mustConnect(alive("h1", process, 0, false))
		sessions["h1"] = s
		out := map[string]uint64{}
		f.mu.Lock()
		s.want.lives = true
		f.mu.Unlock()
		for _, m := range f.messagesFor(s) {
			for _, n := range m.GetLives().GetNodes() {
				out[n.GetNode()] = n.GetLife()
			}
		}
		return out
	}
	got := receivedLives(1)
	if len(got) != 2 || got["h2"] != sessions["h2"].life || got["h3"] != sessions["h3"].life {
		t.Errorf("h1 gets %v, want h2's %d and h3's %d", got, sessions["h2"].life, sessions["h3"].life)
	}
	h2 := sessions["h2"].life
	f.restart()
	f.run(time.Second)
	sessions["h1"] = f.mustConnect(alive("h1", 2, 0, false))
	if got := f.livesOf(f.planning.plan, "h1"); len(got.Nodes) != 2 || got.Nodes[0].Life != h2 {
		t.Errorf("after a restart of the coordinator h1 gets %v", got)
	}
	f.mustConnect(hello("h2", 1))
	if got := f.livesOf(f.planning.plan, "h1"); len(got.Nodes) != 1 {
		t.Errorf("h2 has an older version now, and h1 gets %v", got)
	}
}

// TestDuplicatesEndNoLife: another process that uses a node's name, which has none of the node's NICs, does not make packets of the
// node's agent replays. The agent gets a higher number where a process that did probe had one.
func TestDuplicatesEndNoLife(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	agent := f.mustConnect(alive("h1", 0, 0, false))
	f.mustConnect(alive("h2", 0, 0, false))
	f.run(time.Minute)
	f.beat(agent, f.appliedBy("h1"))
	toPeers := func() uint64 {
		t.Helper()
		for _, n := range f.livesOf(f.planning.plan, "h2").Nodes {
			if n.Node == "h1" {
				return n.Life
			}
		}
		return 0
	}
	if toPeers() != agent.life || agent.life == 0 {
		t.Fatalf("the peers get %d, want %d", toPeers(), agent.life)
	}
	duplicate := f.mustConnect(alive("h1", 1, 0, false))
	f.beat(duplicate, &agentapi.Applied{KeyIds: f.appliedBy("h1").KeyIds})
	if duplicate.life <= agent.life || toPeers() != agent.life {
		t.Errorf("the peers get %d from a process that probes nothing, want %d", toPeers(), agent.life)
	}
	f.endSession(duplicate)
	again := f.mustConnect(alive("h1", 0, agent.life, true))
	if again.life != agent.life {
		t.Errorf("the agent comes back with %d, want %d", again.life, agent.life)
	}
	f.endSession(again)
	duplicate = f.mustConnect(alive("h1", 2, 0, false))
	f.beat(duplicate, f.appliedBy("h1"))
	if toPeers() != duplicate.life {
		t.Errorf("the peers get %d from a process that probes, want %d", toPeers(), duplicate.life)
	}
	f.endSession(duplicate)
	again = f.mustConnect(alive("h1", 0, agent.life, true))
	if again.life <= duplicate.life {
		t.Errorf("the agent comes back with %d, want more than %d", again.life, duplicate.life)
	}
	f.beat(again, f.appliedBy("h1"))
	if toPeers() != again.life {
		t.Errorf("the peers get %d, want %d", toPeers(), again.life)
	}
}
