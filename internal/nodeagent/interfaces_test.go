package nodeagent

import (
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
	for _, lost := range []func(*rdma.Status){func(p *rdma.Status) { p.Queue = false }, func(p *rdma.Status) { p.GID = netip.Addr{} }} {
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
	of := rdmaPorts(sys, 9)
	for netdev, want := range map[string]*probe.RDMAConfig{"eth1": {Device: "mlx5_0", Port: 1, PKey: 0xffff, QKey: 9}, "eth2": {Device: "mlx5_0", Port: 2, PKey: 0xffff, QKey: 9},
		"eth3": {Device: "mlx5_1", Port: 1, PKey: 0xffff, QKey: 9}, "eth4": nil, "eth": nil} {
		if got := of(netdev); !got.Equal(want) {
			t.Errorf("%s: %+v, want %+v", netdev, got, want)
		}
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
