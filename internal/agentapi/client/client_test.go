package client

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
)

// assignment returns an assignment of h1 with one NIC: edges to, and answers from, the peers named
// "node:flow". The address of node n is 10.0.0.n unless the text has "node:flow@n".
func assignment(version uint64, edges, answers string) *agentapi.Assignment {
	a := &agentapi.Assignment{Version: version, Hash: []byte{byte(version)}, Node: "h1", Authenticated: true, ChangeoverNs: uint64(time.Hour),
		Stamp: &agentapi.Stamp{Port: 862, SourcePort: 49152, Classes: []*agentapi.Class{{}}},
		Nics:  []*agentapi.NIC{{Nic: "h1/eth1", Address: address(1), Ssid: 1}}}
	at := map[string]uint32{}
	read := func(text string) (out []*agentapi.Edge) {
		for _, f := range strings.Fields(text) {
			var node, flow, host int
			f, suffix, moved := strings.Cut(f, "@")
			fmt.Sscanf(f, "%d:%d", &node, &flow)
			host = node
			if moved {
				fmt.Sscanf(suffix, "%d", &host)
			}
			nic := fmt.Sprintf("h%d/eth1", node)
			if _, ok := at[nic]; !ok {
				at[nic] = uint32(len(a.Peers))
				a.Peers = append(a.Peers, &agentapi.Peer{Nic: nic, Address: address(host), Ssid: uint32(node)})
			}
			out = append(out, &agentapi.Edge{Peer: at[nic], Flow: uint32(flow), Tier: 2, CadenceNs: 1e7})
		}
		return out
	}
	a.Edges = read(edges)
	a.Answers = read(answers)
	return a
}

func address(n int) []byte { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}).AsSlice() }

func keys(ids []uint32, nodes ...string) *agentapi.Keys {
	k := &agentapi.Keys{Ids: ids}
	for _, n := range nodes {
		p := &agentapi.PeerKeys{Node: n}
		for _, id := range ids {
			p.Keys = append(p.Keys, &agentapi.Key{Id: id, Secret: bytes.Repeat([]byte(n[1:]), 32)[:32]})
		}
		k.Peers = append(k.Peers, p)
	}
	return k
}

// show writes an assignment in the form that assignment reads.
func show(a *agentapi.Assignment) string {
	list := func(edges []*agentapi.Edge) string {
		var out []string
		for _, e := range edges {
			p := a.Peers[e.Peer]
			s := fmt.Sprintf("%s:%d", strings.TrimSuffix(p.Nic[1:], "/eth1"), e.Flow)
			if host := fmt.Sprint(p.Address[3]); host != strings.TrimSuffix(p.Nic[1:], "/eth1") {
				s += "@" + host
			}
			out = append(out, s)
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	return list(a.Edges) + " | " + list(a.Answers)
}

func TestBetweenTwoAssignments(t *testing.T) {
	for name, c := range map[string]struct{ oldEdges, oldAnswers, newEdges, newAnswers, want string }{
		"the first":          {"", "", "2:0 3:0", "2:0", " | 2:0"},
		"nothing changes":    {"2:0", "3:0", "2:0", "3:0", ""},
		"an edge is new":     {"2:0", "", "2:0 3:0", "", "2:0 | "},
		"an edge goes":       {"2:0 3:0", "", "2:0", "", ""},
		"an answer is new":   {"2:0", "", "2:0", "3:0", ""},
		"an answer goes":     {"2:0", "3:0 4:1", "2:0", "4:1", "2:0 | 3:0 4:1"},
		"a source port":      {"2:0", "3:0", "2:5", "3:7", " | 3:0 3:7"},
		"an address":         {"2:0", "2:0", "2:0@9", "2:0@9", ""},
		"an address, more":   {"2:0", "2:0 3:0", "2:0@9 4:0", "2:0@9", "2:0@9 | 2:0@9 3:0"},
		"address taken over": {"2:0", "3:0", "2:0@3", "", ""},
	} {
		old := assignment(1, c.oldEdges, c.oldAnswers)
		if name == "the first" {
			old = nil
		}
		to := assignment(2, c.newEdges, c.newAnswers)
		got := ""
		if step := changeoverStep(old, to); step != nil {
			got = show(step)
			if err := checkAssignment(step, "h1"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// On two nodes that get changes at different times, but within the changeover, no edge is ever probed
// that the far node does not answer.
func TestNoEdgeIsProbedThatIsNotAnswered(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	set := func() string {
		var out []string
		for f := range 6 {
			if rng.IntN(2) == 0 {
				out = append(out, fmt.Sprintf("2:%d", f))
			}
		}
		return strings.Join(out, " ")
	}
	for range 500 {
		before, after := set(), set()
		steps := func(old, to *agentapi.Assignment) []*agentapi.Assignment {
			if s := changeoverStep(old, to); s != nil {
				return []*agentapi.Assignment{old, s, to}
			}
			return []*agentapi.Assignment{old, to, to}
		}
		sender := steps(assignment(1, before, ""), assignment(2, after, ""))
		answerer := steps(assignment(1, "", before), assignment(2, "", after))
		// Old, then the first step of either in any order, then the last of
		// either in any order: the changeover is longer than what lies between.
		for _, at := range [][2]int{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 1}, {1, 2}, {2, 2}} {
			answered := edgesByFlow(answerer[at[1]], answerer[at[1]].Answers)
			for f := range edgesByFlow(sender[at[0]], sender[at[0]].Edges) {
				if answered[f] == nil {
					t.Fatalf("from %q to %q: at steps %v flow %d is probed, not answered", before, after, at, f.flow)
				}
			}
		}
	}
}

type recorder struct {
	applied []string
	keys    []*agentapi.Keys
	err     error
	life    uint64
	peers   map[string]uint64
}

func (r *recorder) Life() uint64 { return r.life }

func (r *recorder) TakeLives(own uint64, peers map[string]uint64) {
	r.life = max(r.life, own)
	if peers != nil {
		r.peers = peers
	}
}

func (r *recorder) Apply(a *agentapi.Assignment, k *agentapi.Keys) error {
	if r.err != nil {
		return r.err
	}
	r.applied = append(r.applied, show(a))
	r.keys = append(r.keys, k)
	return nil
}
func (*recorder) Interfaces() ([]*agentapi.Interface, error)      { return nil, nil }
func (*recorder) Heartbeat(*agentapi.Heartbeat)                   {}
func (*recorder) Clock(*agentapi.ClockUpdate, bool)               {}
func (*recorder) Traces() (version uint64, traces []fabric.Trace) { return 0, nil }

func client(t *testing.T, r *recorder, state string) *Client {
	t.Helper()
	c, err := New(Config{Addresses: []string{"127.0.0.1:1"}, Node: "h1", StateFile: state, Log: slog.New(slog.DiscardHandler)}, r)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAssignmentsAndKeysAreAppliedInSteps(t *testing.T) {
	r := &recorder{}
	file := filepath.Join(t.TempDir(), "state.json")
	c := client(t, r, file)
	c.takeKeys(keys([]uint32{7}, "h2", "h3"))
	if len(r.applied) != 0 || !slices.Equal(c.assignment.applied.KeyIds, []uint32{7}) {
		t.Fatalf("keys alone: applied %q, confirms %v", r.applied, c.assignment.applied)
	}
	c.takeAssignment(assignment(1, "2:0 3:0", "2:0 3:0"))
	c.assignment.end()
	c.takeKeys(keys([]uint32{7, 8}, "h2", "h4"))
	if !slices.Equal(c.assignment.applied.KeyIds, []uint32{7, 8}) || len(r.keys[2].Peers) != 3 {
		t.Errorf("confirms %v; %d peers have keys, want three: h3 is still probed", c.assignment.applied.KeyIds, len(r.keys[2].Peers))
	}
	c.takeAssignment(assignment(2, "2:0 4:0", "2:0 4:0"))
	if c.assignment.applied.Version != 2 || !bytes.Equal(c.assignment.applied.Hash, []byte{2}) {
		t.Errorf("confirms %v", c.assignment.applied)
	}
	if len(r.keys[3].Peers) != 3 {
		t.Errorf("%d peers have keys, want three: h3 is still answered", len(r.keys[3].Peers))
	}
	c.assignment.end()
	want := []string{" | 2:0 3:0", "2:0 3:0 | 2:0 3:0", "2:0 3:0 | 2:0 3:0", "2:0 | 2:0 3:0 4:0", "2:0 4:0 | 2:0 4:0"}
	if !slices.Equal(r.applied, want) {
		t.Errorf("applied %q, want %q", r.applied, want)
	}
	if len(r.keys[4].Peers) != 2 {
		t.Error("the keys of a node that went were kept")
	}
	// A restarted process continues where the first one was, at once.
	again := &recorder{}
	c = client(t, again, file)
	if !slices.Equal(again.applied, want[4:]) || c.assignment.applied.Version != 2 || !slices.Equal(c.assignment.applied.KeyIds, []uint32{7, 8}) {
		t.Errorf("after a restart: %q, %v", again.applied, c.assignment.applied)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

func TestWhatCannotBeAppliedIsTriedAgainAndNotConfirmed(t *testing.T) {
	r := &recorder{}
	c := client(t, r, "")
	c.takeKeys(keys([]uint32{7}, "h2"))
	c.takeAssignment(assignment(1, "2:0", "2:0"))
	r.err = errors.New("no such address")
	c.takeAssignment(assignment(2, "2:1", "2:0"))
	if c.assignment.applied.Version != 1 || c.assignment.failure == "" {
		t.Errorf("confirms %v, failed %q", c.assignment.applied, c.assignment.failure)
	}
	r.err = nil
	c.assignment.begin()
	if c.assignment.applied.Version != 2 || c.assignment.failure != "" {
		t.Errorf("confirms %v, failed %q", c.assignment.applied, c.assignment.failure)
	}
	bad := assignment(3, "2:0", "")
	bad.Edges[0].Peer = 9
	c.takeAssignment(bad)
	if c.assignment.applied.Version != 2 || !strings.Contains(c.assignment.failure, "assignment.edges[0].peer: 9 of 1") {
		t.Errorf("confirms %v, failed %q", c.assignment.applied, c.assignment.failure)
	}
}

func TestClockReportsAreDroppedWithoutAReceiver(t *testing.T) {
	c := client(t, &recorder{}, "")
	c.ReportClock([]byte{1})
	if sent, dropped := c.ClockReports(); sent != 0 || dropped != 1 {
		t.Errorf("without a session: %d sent, %d dropped", sent, dropped)
	}
	c.clock.connected.Store(true)
	samples := []byte{2}
	c.ReportClock(samples)
	samples[0] = 3
	c.ReportClock(samples)
	c.ReportClock(make([]byte, agentapi.MaxClockReport+1))
	if _, dropped := c.ClockReports(); dropped != 3 {
		t.Errorf("%d dropped, want three: the session is busy with the first, and the last is too large", dropped)
	}
	if r := <-c.clock.reports; r.GetFormat() != agentapi.ClockFormat || !bytes.Equal(r.GetSamples(), []byte{2}) {
		t.Errorf("%v", r)
	}
}

func TestAnUnusableStateFileIsNoFailure(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	for _, text := range []string{"", "{", `{"version":1,"node":"h2","assignment":{}}`, `{"version":9,"node":"h1"}`, `{"version":1,"node":"h1","assignment":{"node":"h1"}}`} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := &recorder{}
		if client(t, r, file); len(r.applied) != 0 {
			t.Errorf("%q was applied", text)
		}
	}
}

// TestLivesAreKept checks that the lives of peers are known before the first probe after a restart, and
// that a life that no coordinator gives is not used.
func TestLivesAreKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	r := &recorder{}
	c := client(t, r, file)
	c.takeAssignment(assignment(1, "2:0", "2:0"))
	c.takeLives(&agentapi.Lives{Nodes: []*agentapi.NodeLife{{Node: "h2", Life: 6}, {Node: "h3", Life: agentapi.MaxLife + 1}}})
	c.saveState()
	if len(r.peers) != 1 || r.peers["h2"] != 6 {
		t.Errorf("lives %v, want that of h2", r.peers)
	}
	anew := &recorder{}
	client(t, anew, file)
	if len(anew.applied) != 1 || len(anew.peers) != 1 || anew.peers["h2"] != 6 {
		t.Errorf("after a restart: lives %v, %d assignments", anew.peers, len(anew.applied))
	}
}

func FuzzAssignment(f *testing.F) {
	for _, a := range []*agentapi.Assignment{assignment(1, "2:0 3:4", "3:0"), assignment(2, "", "")} {
		b, err := proto.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	old := assignment(1, "2:0 3:0", "2:0 3:0")
	f.Fuzz(func(t *testing.T, b []byte) {
		a := &agentapi.Assignment{}
		if proto.Unmarshal(b, a) != nil || checkAssignment(a, "h1") != nil {
			return
		}
		if step := changeoverStep(old, a); step != nil {
			if err := checkAssignment(step, "h1"); err != nil {
				t.Fatalf("the first step is no assignment: %v", err)
			}
		}
		changeoverStep(a, old)
	})
}

func FuzzState(f *testing.F) {
	file := filepath.Join(f.TempDir(), "s")
	if err := writeState(file, "h1", keptState{assignment(1, "2:0", "2:0"), keys([]uint32{7}, "h2"), &agentapi.Lives{Nodes: []*agentapi.NodeLife{{Node: "h2", Life: 6}}}, epochBook{9, []byte("proof")}}); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := parseState(b, "h1")
		if err == nil && (checkAssignment(k.assignment, "h1") != nil || k.epochs.greatest > agentapi.MaxEpoch) {
			t.Fatal("an assignment or an epoch that cannot be used was read")
		}
	})
}

// A coordinator with a smaller epoch than the greatest that was seen is not followed, neither at once nor after a restart.
func TestASmallerEpochIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	r := &recorder{}
	s := &session{Client: client(t, r, file), beat: time.NewTimer(time.Hour)}
	give := func(epoch, version uint64, edges string) {
		a := assignment(version, edges, "")
		a.Epoch, a.ChangeoverNs = epoch, 0
		s.takeAssignment(a)
	}
	s.begin(&agentapi.Welcome{Epoch: 7, EpochProof: []byte("seven"), HeartbeatNs: 1e9})
	s.takeKeys(keys([]uint32{7}, "h2", "h3"))
	give(7, 1, "2:0")
	if !s.accepted || s.stale != nil || len(r.applied) != 1 {
		t.Fatalf("accepted %t (%v), applied %q", s.accepted, s.stale, r.applied)
	}
	give(6, 2, "3:0")
	if len(r.applied) != 1 {
		t.Errorf("an assignment of epoch 6 was applied: %q", r.applied)
	}
	give(0, 2, "2:0 3:0") // a coordinator of an earlier version
	if len(r.applied) != 2 {
		t.Errorf("an assignment without an epoch was not applied: %q", r.applied)
	}
	again := &session{Client: client(t, &recorder{}, file), beat: time.NewTimer(time.Hour)}
	if again.epochs.greatest != 7 || string(again.epochs.proof) != "seven" {
		t.Fatalf("after a restart: %+v", again.epochs)
	}
	again.begin(&agentapi.Welcome{Epoch: 6, HeartbeatNs: 1e9})
	if again.stale == nil || again.accepted {
		t.Error("after a restart, a coordinator of epoch 6 was accepted")
	}
	again.stale = nil
	again.begin(&agentapi.Welcome{Epoch: 8, EpochProof: []byte("eight"), HeartbeatNs: 1e9})
	if again.stale != nil || again.epochs.greatest != 8 {
		t.Errorf("epoch 8: %v, %+v", again.stale, again.epochs)
	}
}

func TestReporterSendsAgainWhatABrokenSessionMayHaveLost(t *testing.T) {
	now := time.Now()
	r := pathReporter{reported: map[string]reportedTrace{"old": {at: now.Add(-2 * resendWithin)}, "new": {at: now.Add(-time.Second)}}}
	r.beginSession(now)
	if _, kept := r.reported["old"]; !kept || len(r.reported) != 1 || !r.resend {
		t.Errorf("%v, resend %t; want the old report alone, and another look at all traces", r.reported, r.resend)
	}
	r.resend = false
	r.forgetTraces()
	if len(r.reported) != 0 || !r.resend {
		t.Errorf("%v, resend %t after all traces were requested", r.reported, r.resend)
	}
}

func TestClockReportOfAnEndedSessionIsDropped(t *testing.T) {
	c := client(t, &recorder{}, "")
	c.clock.connected.Store(true)
	c.ReportClock([]byte{1})
	c.clock.endSession()
	if _, dropped := c.ClockReports(); dropped != 1 || c.clock.connected.Load() || len(c.clock.reports) != 0 {
		t.Errorf("%d dropped, %d wait", dropped, len(c.clock.reports))
	}
}
