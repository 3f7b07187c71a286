package coordinator

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// fakeClock has a wall clock that may jump and a monotonic one that may not.
type fakeClock struct {
	mu   sync.Mutex
	wall time.Time
	mono time.Duration
}

func newClock() *fakeClock {
	return &fakeClock{wall: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC), mono: time.Hour}
}

func (c *fakeClock) WallTime() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

func (c *fakeClock) MonoTime() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mono
}

func (c *fakeClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.mono = c.wall.Add(d), c.mono+d
}

// clos returns the text of a topology of leaves with two spines, and hosts h1, h2, ... of one NIC.
func clos(leaves, hosts int) string {
	var b strings.Builder
	b.WriteString("version: 1\nswitches:\n  - {name: spine1, role: spine, pod: p1, plane: a}\n  - {name: spine2, role: spine, pod: p1, plane: a}\n")
	for l := 1; l <= leaves; l++ {
		fmt.Fprintf(&b, "  - {name: leaf%d, role: leaf, pod: p1, plane: a}\n", l)
	}
	b.WriteString("nodes:\n")
	for h := 1; h <= leaves*hosts; h++ {
		fmt.Fprintf(&b, "  - {name: h%d, nics: [{device: mlx5_0, plane: a, rail: 0, addresses: [%s], aliases: [eth1]}]}\n", h, addr(h))
	}
	b.WriteString("links:\n")
	for h := 1; h <= leaves*hosts; h++ {
		fmt.Fprintf(&b, "  - {a: \"h%d/mlx5_0\", b: \"leaf%d:dn%d\"}\n", h, (h-1)/hosts+1, (h-1)%hosts+1)
	}
	for l := 1; l <= leaves; l++ {
		for s := 1; s <= 2; s++ {
			fmt.Fprintf(&b, "  - {a: \"leaf%d:up%d\", b: \"spine%d:dn%d\", a_address: 172.%d.%d.%d/31, b_address: 172.%d.%d.%d/31}\n", l, s, s, l,
				15+s, l/128, l%128*2, 15+s, l/128, l%128*2+1)
		}
	}
	return b.String()
}

func addr(h int) string { return fmt.Sprintf("10.%d.%d.%d", h>>14&255, h>>7&127, h&127+1) }

// ring is a planner: every present NIC probes the next three present ones.
type ring struct {
	mu   sync.Mutex
	runs int
	err  error
}

func (r *ring) make(g *fabric.Graph, o schedule.Options) (*schedule.Schedule, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	r.runs++
	s := &schedule.Schedule{NICs: g.NICIDs(), Classes: o.Classes, Components: []schedule.Component{{}}}
	var present []int32
	for i, id := range s.NICs {
		if node, _, _ := fabric.SplitNIC(id); !o.Absent[node] {
			present = append(present, int32(i))
		}
	}
	moved := map[[2]string]int{}
	for _, m := range o.Moves {
		moved[[2]string{m.Src, m.Dst}] = m.To
	}
	for i, src := range present {
		for k := 1; k <= 3 && k < len(present); k++ {
			dst := present[(i+k)%len(present)]
			flow := moved[[2]string{s.NICs[src], s.NICs[dst]}]
			s.Edges = append(s.Edges, schedule.Edge{Src: src, Dst: dst, Flow: uint16(flow), Tier: 2, Cadence: 10 * time.Millisecond})
		}
	}
	slices.SortFunc(s.Edges, func(a, b schedule.Edge) int {
		if a.Src != b.Src {
			return int(a.Src - b.Src)
		}
		return int(a.Dst - b.Dst)
	})
	return s, nil
}

func (r *ring) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs
}

type fixture struct {
	*Coordinator
	t     *testing.T
	clock *fakeClock
	ring  *ring
	opts  Options
	logs  *strings.Builder
}

func options(t *testing.T, topology string) (Options, *fakeClock, *ring) {
	t.Helper()
	dir := t.TempDir()
	o, clock, r := DefaultOptions(), newClock(), &ring{}
	o.TopologyFile, o.StateFile = filepath.Join(dir, "topology.yaml"), filepath.Join(dir, "state.json")
	if err := os.WriteFile(o.TopologyFile, []byte(topology), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Clock, o.Planner, o.Version = clock, Planner{Make: r.make}, "test"
	return o, clock, r
}

func start(t *testing.T, topology string, change func(*Options)) *fixture {
	t.Helper()
	o, clock, r := options(t, topology)
	if change != nil {
		change(&o)
	}
	f := &fixture{t: t, clock: clock, ring: r, opts: o}
	f.restart()
	return f
}

// restart starts a new coordinator on the same files.
func (f *fixture) restart() {
	f.t.Helper()
	f.logs = &strings.Builder{}
	c, err := New(f.opts, slog.New(slog.NewTextHandler(f.logs, nil)))
	if err != nil {
		f.t.Fatal(err)
	}
	f.Coordinator = c
}

// run passes time in steps of the loop.
func (f *fixture) run(d time.Duration) {
	for ; d > 0; d -= stepEvery {
		f.clock.pass(stepEvery)
		f.Step()
	}
}

func hello(node string, process byte) *agentapi.Hello {
	return &agentapi.Hello{Node: node, Instance: []byte(strings.Repeat(string(rune('a'+process)), agentapi.InstanceSize)), BootId: "boot-" + node,
		Version: "1", Web: &agentapi.WebEndpoint{Address: node + ":9868"}}
}

func (f *fixture) connect(h *agentapi.Hello) (*session, error) {
	return f.registerAgent(h, identity{names: []string{h.GetNode()}, from: "192.0.2.1"})
}

// mustConnect begins a session whose agent confirms the keys that it is sent.
func (f *fixture) mustConnect(h *agentapi.Hello) *session {
	f.t.Helper()
	s, err := f.connect(h)
	if err != nil {
		f.t.Fatal(err)
	}
	if h.GetApplied() == nil {
		f.beat(s, &agentapi.Applied{KeyIds: f.receive(s).keys.GetIds()})
	}
	return s
}

func (f *fixture) beat(s *session, a *agentapi.Applied) {
	f.t.Helper()
	m := &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Heartbeat{Heartbeat: &agentapi.Heartbeat{Applied: a}}}
	if err := f.handleMessage(s, m); err != nil {
		f.t.Fatal(err)
	}
}

// appliedBy returns what the agent of a node reports when it has applied all that it was sent.
func (f *fixture) appliedBy(node string) *agentapi.Applied {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.registry.agents[node].assigned
	return &agentapi.Applied{Version: a.version, Hash: slices.Clone(a.hash[:]), KeyIds: f.keys.epochIDs()}
}

// inbox has the last messages to an agent.
type inbox struct {
	assignment *agentapi.Assignment
	keys       *agentapi.Keys
	paths      bool
	order      string
}

func (f *fixture) receive(s *session) (in inbox) {
	for _, m := range f.messagesFor(s) {
		switch b := m.GetBody().(type) {
		case *agentapi.CoordinatorMessage_Assignment:
			in.assignment = b.Assignment
			in.order += "a"
		case *agentapi.CoordinatorMessage_Keys:
			in.keys = b.Keys
			in.order += "k"
		case *agentapi.CoordinatorMessage_PathsWanted:
			in.paths = true
			in.order += "p"
		}
	}
	return in
}

// agents connects h1..hn and runs until all have an assignment and have confirmed it.
func (f *fixture) agents(n int) (sessions []*session, boxes []inbox) {
	f.t.Helper()
	for i := 1; i <= n; i++ {
		sessions = append(sessions, f.mustConnect(hello(fmt.Sprintf("h%d", i), 0)))
	}
	f.run(3 * time.Second)
	for _, s := range sessions {
		in := f.receive(s)
		if in.assignment == nil {
			f.t.Fatalf("no assignment for %s", s.agent.node)
		}
		f.beat(s, applied(in))
		boxes = append(boxes, in)
	}
	return sessions, boxes
}

func applied(in inbox) *agentapi.Applied {
	return &agentapi.Applied{Version: in.assignment.GetVersion(), Hash: in.assignment.GetHash(), KeyIds: in.keys.GetIds()}
}

func wantCode(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("%v, want %v with %q", err, code, text)
	}
}

func iface(name string, addresses ...string) *agentapi.Interface {
	out := &agentapi.Interface{Name: name, Up: true}
	for _, a := range addresses {
		out.Addresses = append(out.Addresses, parseAddr(a))
	}
	return out
}
