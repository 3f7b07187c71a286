package nodeagent

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/rdma"
)

// The engine gets a peer's queue pair as the coordinator reports it.
func TestFleetConfigWithRDMA(t *testing.T) {
	a := exampleAssignment()
	a.Authenticated = false
	raw := rdma.CanonicalGID(netip.MustParseAddr("10.0.0.2")).As16()
	a.Peers[0].Rdma = &agentapi.RDMA{Device: "mlx5_0", Port: 1, Gid: raw[:], Qpn: 99, QKey: 5, Lid: 3, Hardware: true}
	c := fleetConfig(a, nil, &FleetOptions{})
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	want := probe.RDMAPeer{GID: netip.AddrFrom16(raw), QPN: 99, QKey: 5, LID: 3, Hardware: true}
	if c.Peers[0].RDMA == nil || *c.Peers[0].RDMA != want || c.Peers[1].RDMA != nil {
		t.Errorf("%+v and %+v, want %+v and nil", c.Peers[0].RDMA, c.Peers[1].RDMA, want)
	}
}

// A registration states what peers need to know, and that there will be a queue pair if there is none now.
func TestRegistered(t *testing.T) {
	gid := rdma.CanonicalGID(netip.MustParseAddr("10.0.0.1"))
	raw := gid.As16()
	s := probe.NICStats{NICConfig: probe.NICConfig{RDMA: &probe.RDMAConfig{QKey: 5}}, Port: &rdma.Status{Device: "mlx5_0", Port: 2, Queue: true, QPN: 17, GID: gid, LID: 4, Hardware: true}}
	if got, want := advertisedQueuePair(&s), (&agentapi.RDMA{Device: "mlx5_0", Port: 2, Gid: raw[:], Qpn: 17, QKey: 5, Lid: 4, Hardware: true}); !proto.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, lost := range []func(*rdma.Status){func(p *rdma.Status) { p.Queue = false }, func(p *rdma.Status) { p.GID = netip.Addr{} }, func(p *rdma.Status) { p.InfiniBand, p.LID = true, 0 }} {
		p := *s.Port
		lost(&p)
		if got, want := advertisedQueuePair(&probe.NICStats{NICConfig: s.NICConfig, Port: &p}), (&agentapi.RDMA{Device: "mlx5_0", Port: 2}); !proto.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

func TestRDMAPortsOfInterfaces(t *testing.T) {
	sys := t.TempDir()
	for file, text := range map[string]string{"mlx5_0/ports/1/gid_attrs/ndevs/0": "eth1\n", "mlx5_0/ports/2/gid_attrs/ndevs/0": "eth2\n", "mlx5_1/ports/1/gid_attrs/ndevs/3": "eth3\n", "ib0/ports/x/gid_attrs/ndevs/0": "eth4\n"} {
		path := filepath.Join(sys, "class/infiniband", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	of := rdmaPorts(sys, probe.RDMAConfig{PKey: 0x8001, QKey: 9})
	for netdev, want := range map[string]*probe.RDMAConfig{"eth1": {Device: "mlx5_0", Port: 1, PKey: 0xffff, QKey: 9}, "eth2": {Device: "mlx5_0", Port: 2, PKey: 0xffff, QKey: 9},
		"eth3": {Device: "mlx5_1", Port: 1, PKey: 0xffff, QKey: 9}, "eth4": nil, "eth": nil} {
		if got := of(netdev); !got.Equal(want) {
			t.Errorf("%s: %+v, want %+v", netdev, got, want)
		}
	}
}

// TestIPoIBPorts finds the ports of IPoIB interfaces by the GID in their hardware addresses. A child has its own partition.
func TestIPoIBPorts(t *testing.T) {
	const ib = "80:00:10:4a:fe:80:00:00:00:00:00:00:b8:59:9f:03:00:fd:0b:"
	sys := t.TempDir()
	for file, text := range map[string]string{
		"infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n", "infiniband/mlx5_0/ports/1/gids/0": "fe80:0000:0000:0000:b859:9f03:00fd:0b22\n",
		"infiniband/mlx5_1/ports/1/link_layer": "InfiniBand\n", "infiniband/mlx5_1/ports/1/gids/0": "fe80:0000:0000:0000:b859:9f03:00fd:0b23\n",
		"infiniband/mlx5_1/ports/2/link_layer": "InfiniBand\n", "infiniband/mlx5_1/ports/2/gids/0": "fe80:0000:0000:0000:b859:9f03:00fd:0b24\n",
		"infiniband/mlx5_2/ports/1/link_layer": "Ethernet\n", "infiniband/mlx5_2/ports/1/gids/0": "fe80:0000:0000:0000:b859:9f03:00fd:0b25\n",
		"net/ib0/type": "32\n", "net/ib0/address": ib + "22\n", "net/ib0/pkey": "0xffff\n",
		"net/ib1/type": "32\n", "net/ib1/address": ib + "24\n",
		"net/ib1.8003/type": "32\n", "net/ib1.8003/address": ib + "24\n", "net/ib1.8003/pkey": "0x8003\n",
		"net/ib2/type": "32\n", "net/ib2/address": ib + "25\n",
		"net/ib3/type": "32\n", "net/ib3/address": "02:00\n",
		"net/ib4/type": "32\n", "net/ib4/address": ib + "22\n", "net/ib4/pkey": "all\n",
		"net/eth0/type": "1\n", "net/eth0/address": ib + "22\n",
	} {
		path := filepath.Join(sys, "class", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	two := 2
	of := rdmaPorts(sys, probe.RDMAConfig{PKeyIndex: &two, QKey: 9})
	for netdev, want := range map[string]*probe.RDMAConfig{"mlx5_0": {Device: "mlx5_0", Port: 1, PKeyIndex: &two, QKey: 9}, "mlx5_1.2": {Device: "mlx5_1", Port: 2, PKeyIndex: &two, QKey: 9},
		"mlx5_2": nil, "mlx5_1.3": nil, "ib0": {Device: "mlx5_0", Port: 1, PKey: 0xffff, QKey: 9}, "ib1": {Device: "mlx5_1", Port: 2, PKey: 0xffff, QKey: 9},
		"ib1.8003": {Device: "mlx5_1", Port: 2, PKey: 0x8003, QKey: 9}, "ib2": nil, "ib3": nil, "ib4": nil, "eth0": nil, "ib9": nil} {
		if got := of(netdev); !got.Equal(want) {
			t.Errorf("%s: %+v, want %+v", netdev, got, want)
		}
	}
	address, err := net.ParseMAC(ib + "22")
	if err != nil {
		t.Fatal(err)
	}
	if p := portOfInterface(listIBPorts(sys), address); p == nil || p.name() != "mlx5_0" || formatGUID(p.portGUID) != "0xb8599f0300fd0b22" {
		t.Errorf("%+v", p)
	}
	if p := portOfInterface(nil, address); p == nil || p.device != "" || formatGUID(p.portGUID) != "0xb8599f0300fd0b22" || p.message().GetSubnetPrefix() != 0xfe80<<48 {
		t.Errorf("without its port: %+v", p)
	}
	if gid, ok := ipoibGID(address[:6]); ok {
		t.Errorf("%v is the GID of an Ethernet interface", gid)
	}
}

// While the verbs library cannot be loaded, NICs are probed by UDP. Once it is installed they are probed by RDMA.
func TestRDMAPortNeedsTheLibrary(t *testing.T) {
	var missing error = &rdma.LibraryError{Reason: "absent"}
	of := withLibrary(func() error { return missing }, func(string) *probe.RDMAConfig { return &probe.RDMAConfig{Device: "mlx5_0"} })
	if port := of("eth1"); port != nil {
		t.Errorf("%+v without the library", port)
	}
	missing = nil
	if port := of("eth1"); port == nil || port.Device != "mlx5_0" {
		t.Errorf("%+v with the library", port)
	}
}

// A device that is temporarily absent leaves the NIC's configuration as it was.
func TestRDMAPortOfANICIsKept(t *testing.T) {
	found := &probe.RDMAConfig{Device: "mlx5_0", Port: 1, PKey: rdma.DefaultPKey, QKey: 9}
	there := found
	r := resolver{lookup: func(string) ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil }, rdmaOf: func(string) *probe.RDMAConfig { return there }}
	wanted := &probe.Config{NICs: []probe.NICConfig{{NIC: "h1/eth1", Device: "eth1"}}}
	running, err := r.resolveAddresses(wanted, nil)
	if err != nil {
		t.Fatal(err)
	}
	there = nil
	again, err := r.resolveAddresses(wanted, running)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(running.NICs, again.NICs, func(a, b probe.NICConfig) bool { return a.RDMA.Equal(b.RDMA) && a.RDMA.Equal(found) }) {
		t.Errorf("%+v, then %+v", running.NICs, again.NICs)
	}
}
