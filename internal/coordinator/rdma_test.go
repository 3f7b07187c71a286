package coordinator

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
)

func mapped(s string) []byte {
	a := netip.MustParseAddr(s).As16()
	return a[:]
}

func queuePair(gid string, qpn uint32) *agentapi.RDMA {
	return &agentapi.RDMA{Device: "mlx5_0", Port: 1, Gid: mapped(gid), Qpn: qpn, QKey: 7, Hardware: true}
}

// Peers get the queue pair that an agent registers with the edge, and a changed one within one round of
// the coordinator. The queue pair survives restarts of both ends.
func TestRule2QueuePairsAreHandedOut(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	sessions, _ := f.agents(4)
	register := func(i int, r *agentapi.RDMA, address string) {
		t.Helper()
		in := iface("eth1", address)
		in.Rdma = r
		if err := f.handleMessage(sessions[i], &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Addresses{Addresses: &agentapi.Addresses{Interfaces: []*agentapi.Interface{in}}}}); err != nil {
			t.Fatal(err)
		}
		f.run(f.opts.Settle + stepEvery)
	}
	wantReceived := func(i int, want *agentapi.RDMA) {
		t.Helper()
		in := f.receive(sessions[i])
		if in.assignment == nil {
			t.Fatalf("%s heard nothing within a round", sessions[i].agent.node)
		}
		f.beat(sessions[i], applied(in))
		k := slices.IndexFunc(in.assignment.Peers, func(p *agentapi.Peer) bool { return p.Nic == "h1/mlx5_0" })
		if got := in.assignment.Peers[k].Rdma; !proto.Equal(got, want) {
			t.Errorf("%s gets %v, want %v", sessions[i].agent.node, got, want)
		}
	}
	register(0, queuePair("10.0.0.1", 17), addr(1))
	wantReceived(1, queuePair("10.0.0.1", 17))
	register(0, queuePair("10.0.0.1", 18), addr(1))
	wantReceived(1, queuePair("10.0.0.1", 18))

	// A device that is away keeps its queue pair: the edges do not change to UDP meanwhile.
	register(0, &agentapi.RDMA{Device: "mlx5_0", Port: 1}, addr(1))
	if in := f.receive(sessions[1]); in.assignment != nil {
		t.Errorf("a queue pair that is gone changes the assignment: %v", in.assignment.Peers)
	}
	f.Step()
	if err := f.saveState(); err != nil {
		t.Fatal(err)
	}
	f.restart()
	k := f.planning.plan.index["h1/mlx5_0"]
	if got := f.planning.plan.endpoints[k].rdma; !proto.Equal(got, queuePair("10.0.0.1", 18)) {
		t.Errorf("after a restart %v", got)
	}
	h := hello("h1", 0)
	h.Interfaces = []*agentapi.Interface{iface("eth1", addr(1))}
	f.mustConnect(h)
	f.run(f.opts.Settle + stepEvery)
	if got := f.planning.plan.endpoints[k].rdma; got != nil {
		t.Errorf("%v is probed by RDMA, though its agent no longer reports a queue pair", got)
	}
}

// Two NICs cannot have one GID: the first to claim it gets it, also after a restart.
func TestRule2OneNICPerGID(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	sessions, _ := f.agents(4)
	has := func(nic string) bool { return f.planning.plan.endpoints[f.planning.plan.index[nic]].rdma != nil }
	f.reportQueuePair(sessions[1], 2, "10.0.0.1")
	f.reportQueuePair(sessions[0], 1, "10.0.0.1")
	if has("h1/mlx5_0") || !has("h2/mlx5_0") {
		t.Error("the older claim of a GID did not stay")
	}
	f.wantConflict(conflictClaimed, "GID 10.0.0.1 of h2/mlx5_0 is also claimed by h1/mlx5_0")
	f.run(saveEvery)
	f.restart()
	if has("h1/mlx5_0") || !has("h2/mlx5_0") {
		t.Error("the older claim of a GID did not stay over a restart")
	}
}

// A GID of RoCE is an address: probes by RDMA follow it.
func TestRule2GIDsAreCheckedAsAddresses(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	sessions, _ := f.agents(4)
	for _, c := range []struct{ gid, reason string }{
		{addr(4), conflictForeign}, {"203.0.113.7", conflictPrefix}, {"2001:db8::7", conflictPrefix},
		{addr(1), ""}, {"10.77.0.1", ""}, {"fd00::1", ""}, {"fe80::1", ""},
	} {
		f.reportQueuePair(sessions[0], 1, c.gid)
		if got := f.planning.plan.endpoints[f.planning.plan.index["h1/mlx5_0"]].rdma != nil; got != (c.reason == "") {
			t.Errorf("%s: used: %v", c.gid, got)
		}
		if c.reason != "" {
			f.wantConflict(c.reason, c.gid)
		}
	}
}

func (f *fixture) reportQueuePair(s *session, host int, gid string) {
	f.t.Helper()
	in := iface("eth1", addr(host))
	in.Rdma = queuePair(gid, 17)
	f.reportInterfaces(s, in)
}

func TestQueuePairsAreChecked(t *testing.T) {
	for text, change := range map[string]func(*agentapi.RDMA){
		"addresses.interfaces[0].rdma.gid: 4 octets, want 16": func(r *agentapi.RDMA) { r.Gid = []byte{10, 0, 0, 1} },
		"rdma.gid: 16 octets":    func(r *agentapi.RDMA) { r.Gid = make([]byte, 16) },
		"rdma.qpn: 1, want 2":    func(r *agentapi.RDMA) { r.Qpn = 1 },
		"rdma.qpn: 16777216":     func(r *agentapi.RDMA) { r.Qpn = 1 << 24 },
		"rdma.q_key: 0x0,":       func(r *agentapi.RDMA) { r.QKey = 0 },
		"rdma.q_key: 0x80000000": func(r *agentapi.RDMA) { r.QKey = 1 << 31 },
		"rdma.lid: 0xc000":       func(r *agentapi.RDMA) { r.Lid = 0xc000 },
		"rdma.device: holds a c": func(r *agentapi.RDMA) { r.Device = "mlx5\n" },
	} {
		f := start(t, clos(1, 2), nil)
		s := f.mustConnect(hello("h1", 0))
		in := iface("eth1", addr(1))
		in.Rdma = queuePair("10.0.0.1", 17)
		change(in.Rdma)
		err := f.handleMessage(s, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Addresses{Addresses: &agentapi.Addresses{Interfaces: []*agentapi.Interface{in}}}})
		wantCode(t, err, codes.InvalidArgument, text)
	}
	for _, text := range []string{`{"version":1,"agents":[{"node":"h1","interfaces":[{"name":"eth1","rdma":{"device":"m","port":1,"gid":"::ffff:10.0.0.1","qpn":1,"q_key":7}}]}]}`,
		`{"version":1,"agents":[{"node":"h1","interfaces":[{"name":"eth1","rdma":{"device":"m","port":1,"gid":"10.0.0.1","qpn":17,"q_key":7}}]}]}`} {
		if _, err := parseState([]byte(text)); err == nil || !strings.Contains(err.Error(), "agents[0].interfaces[0].rdma.") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
