package coordinator

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
)

// subnet returns the topology of clos without addresses, with the GUIDs of NICs as aliases, as one of a subnet has them.
func subnet(leaves, hosts int) string {
	h := 0
	return regexp.MustCompile(`addresses: \[[^]]*\], aliases: \[eth1\]`).ReplaceAllStringFunc(clos(leaves, hosts), func(string) string {
		h++
		return fmt.Sprintf("aliases: [\"guid:%#016x\", \"lid:%d\"]", portGUID(h), h)
	})
}

func portGUID(host int) uint64 { return 0x0002c90300000000 + uint64(host) }

// ibPort returns the registration of a port without an interface. Without a queue pair its agent will have one.
func ibPort(name string, host, lid int, qpn uint32) *agentapi.Interface {
	gid := netip.MustParseAddr(fmt.Sprintf("fe80::2:c903:0:%x", host))
	out := &agentapi.Interface{Name: name, Up: true, Rdma: &agentapi.RDMA{Device: "mlx5_0", Port: 1},
		Ib: &agentapi.InfiniBandPort{Device: "mlx5_0", Port: 1, NodeGuid: proto.Uint64(7), PortGuid: proto.Uint64(portGUID(host)), SubnetPrefix: proto.Uint64(0xfe80 << 48), Lid: proto.Uint32(uint32(lid))}}
	if qpn != 0 {
		out.Rdma = &agentapi.RDMA{Device: "mlx5_0", Port: 1, Gid: gid.AsSlice(), Qpn: qpn, QKey: 7, Lid: uint32(lid)}
	}
	return out
}

// An InfiniBand port without addresses is assigned before it has a queue pair, and probed once it has one, by its GID and
// LID. A new LID is passed on to its peers with the same edges. It survives a restart.
func TestIBPortsAreProbedWithoutAddresses(t *testing.T) {
	f := start(t, subnet(2, 2), nil)
	var sessions []*session
	for i := 1; i <= 4; i++ {
		h := hello(fmt.Sprintf("h%d", i), 0)
		h.Interfaces = []*agentapi.Interface{ibPort("mlx5_0", i, 10+i, 0)}
		sessions = append(sessions, f.mustConnect(h))
	}
	f.run(f.opts.Settle + 2*stepEvery)
	for i, s := range sessions {
		in := f.receive(s)
		a := in.assignment
		if len(a.GetNics()) != 1 || a.Nics[0].Device != "mlx5_0" || len(a.Nics[0].Address) != 0 || a.Nics[0].Plane != "a" || len(a.Peers)+len(a.Edges)+len(a.Answers) != 0 {
			t.Fatalf("h%d before there are queue pairs: %v", i+1, a)
		}
		f.beat(s, applied(in))
	}
	latest := func(i int) *agentapi.Assignment {
		t.Helper()
		in := f.receive(sessions[i])
		if in.assignment == nil {
			t.Fatalf("h%d hears nothing", i+1)
		}
		f.beat(sessions[i], applied(in))
		return in.assignment
	}
	for i, s := range sessions {
		f.reportInterfaces(s, ibPort("mlx5_0", i+1, 11+i, uint32(100+i)))
	}
	before := latest(1)
	if len(before.Edges) == 0 || len(before.Answers) == 0 {
		t.Fatalf("%v, want edges by queue pairs", before)
	}
	find := func(a *agentapi.Assignment) *agentapi.Peer {
		t.Helper()
		k := slices.IndexFunc(a.Peers, func(p *agentapi.Peer) bool { return p.Nic == "h1/mlx5_0" })
		if k < 0 {
			t.Fatalf("%v", a)
		}
		return a.Peers[k]
	}
	if p := find(before); len(p.Address) != 0 || p.Rdma.GetLid() != 11 || p.Rdma.GetQpn() != 100 {
		t.Errorf("%v, want the queue pair and LID of h1", p)
	}
	latest(0)
	f.reportInterfaces(sessions[0], ibPort("mlx5_0", 1, 40, 100))
	after := latest(1)
	if p := find(after); p.Rdma.GetLid() != 40 || !slices.EqualFunc(before.Edges, after.Edges, func(x, y *agentapi.Edge) bool { return proto.Equal(x, y) }) {
		t.Errorf("%v, and edges %v; want LID 40 and edges %v", p, after.Edges, before.Edges)
	}
	// A port without a LID keeps the one that it had.
	f.reportInterfaces(sessions[0], ibPort("mlx5_0", 1, 40, 0))
	if in := f.receive(sessions[1]); in.assignment != nil {
		t.Errorf("%v", in.assignment)
	}
	if err := f.saveState(); err != nil {
		t.Fatal(err)
	}
	f.restart()
	if e := f.planning.plan.endpoints[f.planning.plan.index["h1/mlx5_0"]]; e.rdma.GetLid() != 40 || !e.bare {
		t.Errorf("after a restart: %+v", e)
	}
}

// An interface is that of the NIC with its GUID, whatever its name.
func TestIBPortsHaveTheirGUIDs(t *testing.T) {
	f := start(t, subnet(2, 2), nil)
	sessions, _ := f.agents(4)
	endpointOf := func(nic string) endpoint { return f.planning.plan.endpoints[f.planning.plan.index[nic]] }
	f.reportInterfaces(sessions[0], ibPort("ibp3s0", 1, 11, 100))
	if e := endpointOf("h1/mlx5_0"); e.iface != "ibp3s0" || e.rdma.GetQpn() != 100 {
		t.Errorf("by GUID: %+v", e)
	}
	unknown := ibPort("mlx5_0", 9, 12, 101)
	f.reportInterfaces(sessions[1], unknown)
	if e := endpointOf("h2/mlx5_0"); e.iface != "mlx5_0" {
		t.Errorf("by its name, as no NIC has the GUID: %+v", e)
	}
	ipoib := ibPort("ib0", 3, 13, 0)
	ipoib.Rdma, ipoib.Addresses = nil, [][]byte{parseAddr("10.0.0.77")}
	child := proto.Clone(ipoib).(*agentapi.Interface)
	child.Name, child.Addresses = "ib0.8003", [][]byte{parseAddr("10.0.1.77")}
	f.reportInterfaces(sessions[2], ipoib, child)
	if e := endpointOf("h3/mlx5_0"); e.iface != "ib0" || e.bare {
		t.Errorf("an IPoIB interface: %+v", e)
	}
	silent := ibPort("mlx5_0", 4, 14, 0)
	silent.Rdma = nil // its agent does not probe by RDMA
	f.reportInterfaces(sessions[3], silent)
	if e := endpointOf("h4/mlx5_0"); e.iface != "" || e.assignable() {
		t.Errorf("a port that cannot be probed: %+v", e)
	}
	// All of them are known by their GUIDs, each once.
	want := map[string][2]string{"h1/ibp3s0": {"0x0002c90300000001", "mlx5_0"}, "h2/mlx5_0": {"0x0002c90300000009", "mlx5_0"}, "h3/ib0": {"0x0002c90300000003", "mlx5_0"}, "h3/ib0.8003": {}, "h4/mlx5_0": {"0x0002c90300000004", "mlx5_0"}}
	for _, v := range f.Interfaces() {
		for _, nic := range v.NICs {
			if got := [2]string{nic.GUID, nic.RDMADevice}; got != want[nic.NIC] {
				t.Errorf("%s: %v, want %v", nic.NIC, got, want[nic.NIC])
			}
			delete(want, nic.NIC)
		}
	}
	if len(want) != 0 {
		t.Errorf("missing: %v", want)
	}
}

// Ports of two subnets do not probe each other, since a LID belongs to another port there.
func TestIBPortsOfTwoSubnets(t *testing.T) {
	f := start(t, subnet(1, 2), nil)
	var sessions []*session
	for i := 1; i <= 2; i++ {
		h := hello(fmt.Sprintf("h%d", i), 0)
		h.Interfaces = []*agentapi.Interface{ibPort("mlx5_0", i, 10+i, uint32(100+i))}
		sessions = append(sessions, f.mustConnect(h))
	}
	f.run(f.opts.Settle + 2*stepEvery)
	if n := f.planning.plan.unaddressed; n != 0 {
		t.Errorf("%d edges of one subnet cannot be probed", n)
	}
	far := ibPort("mlx5_0", 2, 12, 102)
	far.Rdma.Gid[1] = 0xc0
	f.reportInterfaces(sessions[1], far)
	if n := f.planning.plan.unaddressed; n != len(f.planning.plan.sched.Edges) || n == 0 {
		t.Errorf("%d of %d edges between two subnets cannot be probed, want all", n, len(f.planning.plan.sched.Edges))
	}
}

func TestIBPortsAreChecked(t *testing.T) {
	for text, change := range map[string]func(*agentapi.InfiniBandPort){
		"addresses.interfaces[0].ib.port: 256,": func(p *agentapi.InfiniBandPort) { p.Port = 256 },
		"ib.node_guid: 0,":                      func(p *agentapi.InfiniBandPort) { p.NodeGuid = proto.Uint64(0) },
		"ib.port_guid: 0,":                      func(p *agentapi.InfiniBandPort) { p.PortGuid = proto.Uint64(0) },
		"ib.lid: 0x0,":                          func(p *agentapi.InfiniBandPort) { p.Lid = proto.Uint32(0) },
		"ib.lid: 0xc000,":                       func(p *agentapi.InfiniBandPort) { p.Lid = proto.Uint32(0xc000) },
		"ib.sm_lid: 0x10000,":                   func(p *agentapi.InfiniBandPort) { p.SmLid = proto.Uint32(1 << 16) },
		"ib.device: holds a con":                func(p *agentapi.InfiniBandPort) { p.Device = "mlx5\n" },
	} {
		f := start(t, clos(1, 2), nil)
		s := f.mustConnect(hello("h1", 0))
		in := ibPort("mlx5_0", 1, 11, 0)
		change(in.Ib)
		err := f.handleMessage(s, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Addresses{Addresses: &agentapi.Addresses{Interfaces: []*agentapi.Interface{in}}}})
		wantCode(t, err, codes.InvalidArgument, text)
	}
}
