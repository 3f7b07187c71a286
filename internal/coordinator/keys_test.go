package coordinator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
)

func keysOf(in inbox, node string) []*agentapi.Key {
	for _, p := range in.keys.GetPeers() {
		if p.Node == node {
			return p.Keys
		}
	}
	return nil
}

func TestRule7OnlyThePairSharesItsKeys(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	_, boxes := f.agents(4)
	seen := map[string]string{}
	for i := 1; i <= 4; i++ {
		for j := i + 1; j <= 4; j++ {
			a, b := keysOf(boxes[i-1], fmt.Sprintf("h%d", j)), keysOf(boxes[j-1], fmt.Sprintf("h%d", i))
			if len(a) != 1 || len(b) != 1 || a[0].Id != b[0].Id || !bytes.Equal(a[0].Secret, b[0].Secret) || len(a[0].Secret) != agentapi.SecretSize {
				t.Fatalf("h%d and h%d hold different keys", i, j)
			}
			if other, twice := seen[string(a[0].Secret)]; twice {
				t.Fatalf("h%d and h%d have the key of %s", i, j, other)
			}
			seen[string(a[0].Secret)] = fmt.Sprintf("h%d and h%d", i, j)
		}
	}
	// No text that is shown holds a secret, and no master secret is sent.
	f.run(3 * time.Second)
	master := f.keys.epochs[0].Secret
	if _, given := seen[string(master)]; given {
		t.Error("the master secret was handed out")
	}
	stats, _ := json.Marshal(f.Stats())
	agents, _ := json.Marshal(f.Agents())
	for secret := range seen {
		for _, text := range []string{f.logs.String(), string(stats), string(agents)} {
			if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
				t.Error("a secret is shown")
			}
		}
	}
	f.restart()
	if !bytes.Equal(f.keys.epochs[0].Secret, master) {
		t.Error("a restart changed the master secret")
	}
}

func TestRule7WithoutKeys(t *testing.T) {
	f := start(t, clos(2, 2), func(o *Options) { o.Keys = false })
	s := f.mustConnect(hello("h1", 0))
	f.run(40 * time.Second)
	in := f.receive(s)
	if in.keys != nil || in.assignment == nil || in.assignment.Authenticated {
		t.Errorf("got %q, authenticated %v", in.order, in.assignment.GetAuthenticated())
	}
	if err := f.RotateKeys(); err == nil {
		t.Error("keys that are not there were rotated")
	}
}

// fleet simulates agents that take their time to apply keys, fall silent, restart and return, and
// checks after every step that none sends with a key that its peer lacks.
type fleet struct {
	*fixture
	nodes []*fakeNode
}

type fakeNode struct {
	name    string
	session *session
	holds   []uint32 // applied keys; the first sends
	next    []uint32 // received, not yet applied
}

func (fl *fleet) check(what string) {
	fl.t.Helper()
	for _, a := range fl.nodes {
		for _, b := range fl.nodes {
			if !fl.probed(a) || !fl.probed(b) {
				continue
			}
			if len(a.holds) > 0 && len(b.holds) > 0 && !slices.Contains(b.holds, a.holds[0]) {
				fl.t.Fatalf("%s: %s sends with %d, %s accepts %v", what, a.name, a.holds[0], b.name, b.holds)
			}
		}
	}
}

// probed reports whether the others know the node as one of the mesh.
func (fl *fleet) probed(n *fakeNode) bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.planning.plan == nil {
		return false
	}
	_, planned := fl.planning.plan.hash[n.name]
	return planned
}

func TestRule7NoNodeSendsWithAKeyThatAPeerLacks(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		f := start(t, clos(2, 4), func(o *Options) { o.AbsentAfter, o.KeysGrace = 20*time.Second, time.Minute })
		fl := &fleet{fixture: f}
		for i := 1; i <= 8; i++ {
			n := &fakeNode{name: fmt.Sprintf("h%d", i)}
			n.session = f.mustConnect(hello(n.name, 0))
			fl.nodes = append(fl.nodes, n)
		}
		rotations := 0
		for step := range 4000 {
			f.run(stepEvery)
			for i, n := range fl.nodes {
				switch r := rng.IntN(400); {
				case n.session == nil:
					if r < 2 || step > 3000 {
						h := hello(n.name, 0)
						h.Applied = &agentapi.Applied{KeyIds: n.holds}
						if a := f.agents1(n.name); a != nil {
							h.Applied.Hash = a.assigned.hash[:]
						}
						n.session = f.mustConnect(h)
					}
				case r == 0 && step < 3000 && i%2 == 0:
					f.endSession(n.session) // it continues with the assignment that it has
					n.session, n.next = nil, nil
				case r < 40:
					if in := f.receive(n.session); in.keys != nil {
						n.next = in.keys.Ids
					}
				case r < 80:
					if n.next != nil {
						n.holds, n.next = n.next, nil
					}
					f.beat(n.session, &agentapi.Applied{Hash: n.session.agent.assigned.hash[:], KeyIds: n.holds})
				}
			}
			fl.check(fmt.Sprintf("seed %d, step %d", seed, step))
			if step%100 == 99 {
				if err := f.RotateKeys(); err == nil {
					rotations++
				}
			}
			if step == 2000 {
				old := f.keys.epochIDs()
				f.restart()
				if !slices.Equal(f.keys.epochIDs(), old) {
					t.Fatal("a restart changed the keys")
				}
				for _, n := range fl.nodes {
					n.session, n.next = nil, nil
				}
			}
		}
		if rotations < 4 {
			t.Fatalf("seed %d: %d rotations", seed, rotations)
		}
	}
}

// TestRule7WhenARotationGoesOn checks the moments at which its two steps become possible.
func TestRule7WhenARotationGoesOn(t *testing.T) {
	const heartbeat, grace = time.Second, time.Minute
	pending := keyring{epochs: []keyState{{ID: 1}, {ID: 2, Pending: true}}, phaseStart: time.Hour}
	sending := keyring{epochs: []keyState{{ID: 2}, {ID: 1}}, phaseStart: time.Hour}
	all, silent := []keyHolder{{true, []uint32{2, 1}}}, []keyHolder{{true, []uint32{2, 1}}, {false, []uint32{1}}}
	for _, tt := range []struct {
		what    string
		k       keyring
		holders []keyHolder
		after   time.Duration
		want    bool
	}{
		{"one key", keyring{epochs: pending.epochs[:1], phaseStart: time.Hour}, all, time.Hour, false},
		{"before a heartbeat", pending, all, heartbeat - 1, false}, {"after one", pending, all, heartbeat, true},
		{"a silent agent, before the grace is over", pending, silent, grace - 1, false}, {"after it", pending, silent, grace, true},
		{"the old key, before the grace is over", sending, all, grace - 1, false}, {"the old key after it", sending, all, grace, true},
	} {
		if next := tt.k.advanceRotation(tt.holders, heartbeat, grace, 0, time.Time{}, time.Hour+tt.after); (next != nil) != tt.want {
			t.Errorf("%s: goes on: %v, want %v", tt.what, next != nil, tt.want)
		}
	}
}

func TestRule7StepsOfARotation(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	sessions, boxes := f.agents(4)
	old := boxes[0].keys.Ids[0]
	if err := f.RotateKeys(); err != nil {
		t.Fatal(err)
	}
	if err := f.RotateKeys(); err != errRotating {
		t.Errorf("a second rotation during the first: %v", err)
	}
	var ids []uint32
	confirm := func(who ...int) {
		t.Helper()
		for _, i := range who {
			in := f.receive(sessions[i])
			if in.keys != nil {
				ids = in.keys.Ids
			}
			f.beat(sessions[i], &agentapi.Applied{KeyIds: ids})
		}
	}
	confirm(0, 1, 2)
	if len(ids) != 2 || ids[0] != old || ids[1] <= old {
		t.Fatalf("the new key was handed out as %v, want it accepted and %d sending", ids, old)
	}
	next := ids[1]
	f.run(time.Hour)
	if f.keys.epochs[0].ID != old {
		t.Fatal("the new key sends though a connected agent has not confirmed it")
	}
	confirm(3)
	f.run(stepEvery)
	if f.keys.epochs[0].ID != next || len(f.keys.epochs) != 2 {
		t.Fatalf("epochs %v, want %d sending and %d accepted", f.keys.epochIDs(), next, old)
	}
	confirm(0, 1, 2)
	f.run(2 * f.opts.KeysGrace)
	if len(f.keys.epochs) != 2 {
		t.Fatal("the old key was dropped though an agent still sends with it")
	}
	confirm(3)
	f.run(stepEvery)
	if !slices.Equal(f.keys.epochIDs(), []uint32{next}) {
		t.Fatalf("epochs %v, want %d alone", f.keys.epochIDs(), next)
	}
	// A silent agent is waited for, but only for a limited time.
	confirm(0, 1, 2, 3)
	f.endSession(sessions[3])
	if err := f.RotateKeys(); err != nil {
		t.Fatal(err)
	}
	for f.keys.epochs[0].ID == next {
		confirm(0, 1, 2)
		f.run(time.Minute)
		if f.clock.MonoTime() > 24*time.Hour {
			t.Fatal("waited for ever")
		}
	}
	if f.Stats().Agents[StateAbsent] != 1 {
		t.Error("promoted while the silent agent was still probed")
	}
}

func TestRule7KeysAreWrittenBeforeTheyAreHandedOut(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	sessions, _ := f.agents(4)
	file := f.opts.StateFile
	f.file.path = file + "/not a directory"
	if err := f.RotateKeys(); err == nil {
		t.Fatal("a rotation that could not be written began")
	}
	if in := f.receive(sessions[0]); in.keys != nil || len(f.keys.epochs) != 1 {
		t.Error("a key was handed out that a restart would forget")
	}
	f.file.path = file
	if err := f.RotateKeys(); err != nil {
		t.Fatal(err)
	}
	s, err := readState(file)
	if err != nil || len(s.Keys) != 2 || !s.Keys[1].Pending {
		t.Errorf("%v, %d keys in the state", err, len(s.Keys))
	}
}

func TestRule7RotatesByItself(t *testing.T) {
	f := start(t, clos(2, 2), func(o *Options) { o.RotateEvery = time.Hour })
	f.run(59 * time.Minute)
	if len(f.keys.epochs) != 1 {
		t.Fatal("too early")
	}
	f.restart()
	f.run(2 * time.Minute)
	if len(f.keys.epochs) != 2 && f.keys.rotated.Before(f.clock.WallTime().Add(-10*time.Minute)) {
		t.Fatal("the age of the key was lost by a restart")
	}
}

func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"version":1,"agents":[{"node":"h1","present":true,"last_seen":"2026-01-01T00:00:00Z","interfaces":[{"name":"a","addresses":["10.0.0.1"]}],"assigned":3,"hash":"AAAAAAAAAAAAAAAAAAAAAA=="}],"moves":[{"src":"h1/a","dst":"h2/a","from":0,"to":3}],"keys":[{"id":7,"secret":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}],"written":"2026-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"version":1,"agents":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseState(b)
		if err != nil {
			return
		}
		out, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseState(out); err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
	})
}

func FuzzMessage(f *testing.F) {
	for _, m := range []*agentapi.AgentMessage{
		{Body: &agentapi.AgentMessage_Hello{Hello: hello("h1", 0)}},
		{Body: &agentapi.AgentMessage_Clock{Clock: &agentapi.ClockReport{Format: agentapi.ClockFormat, Samples: clockReport(0, "h1", "h2").AppendTo(nil)}}},
		{Body: &agentapi.AgentMessage_Heartbeat{Heartbeat: &agentapi.Heartbeat{SilentEdges: []string{"h1/a>h2/a#0"}, SilentEdgesTotal: 1}}},
		{Body: &agentapi.AgentMessage_Addresses{Addresses: &agentapi.Addresses{Interfaces: []*agentapi.Interface{iface("eth1", "10.0.0.1")}}}},
		{Body: &agentapi.AgentMessage_Addresses{Addresses: &agentapi.Addresses{Interfaces: []*agentapi.Interface{{Name: "eth1", Lldp: []*agentapi.LLDPNeighbour{{System: "leaf1", Port: "p", Chassis: "c"}}}}}}},
		{Body: &agentapi.AgentMessage_Paths{Paths: &agentapi.PathReport{Traces: []*agentapi.Trace{traced("h1/mlx5_0>h2/mlx5_0#0", 1, 1, 2)}}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	c := startFuzz(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &agentapi.AgentMessage{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		s, err := c.registerAgent(hello("h1", 0), identity{names: []string{"h1"}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.endSession(s)
		if h := m.GetHello(); h != nil {
			if s, err := c.registerAgent(h, identity{names: []string{h.GetNode()}}); err == nil {
				c.messagesFor(s)
				c.endSession(s)
			}
			return
		}
		if c.handleMessage(s, m) == nil {
			c.stepClocks()
			c.Stats()
			c.Agents()
			c.Clocks()
		}
	})
}

func startFuzz(f *testing.F) *Coordinator {
	o := DefaultOptions()
	dir := f.TempDir()
	o.TopologyFile, o.StateFile, o.Clock, o.Planner = dir+"/t.yaml", dir+"/s.json", newClock(), Planner{Make: (&ring{}).make}
	if err := os.WriteFile(o.TopologyFile, []byte(clos(2, 1)), 0o600); err != nil {
		f.Fatal(err)
	}
	c, err := New(o, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	return c
}
