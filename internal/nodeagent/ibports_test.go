package nodeagent

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/probe"
)

// writeIBFiles writes a root of sysfs with files of class/infiniband.
func writeIBFiles(t *testing.T, files map[string]string) (sys string) {
	t.Helper()
	sys = t.TempDir()
	for file, text := range files {
		path := filepath.Join(sys, "class/infiniband", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return sys
}

// wholePort has all files of a port.
func wholePort() map[string]string {
	return map[string]string{"mlx5_0/node_guid": "b859:9f03:00fd:0b20", "mlx5_0/ports/1/link_layer": "InfiniBand", "mlx5_0/ports/1/lid": "0x2a", "mlx5_0/ports/1/sm_lid": "0x1",
		"mlx5_0/ports/1/gids/0": "fe80:0000:0000:0000:b859:9f03:00fd:0b22", "mlx5_0/ports/1/state": "4: ACTIVE", "mlx5_0/ports/1/rate": "2.5 Gb/sec (1X SDR)"}
}

// A port is registered with what sysfs has of it. What is absent or wrong there is not known, and never 0.
func TestIBPortsOfSysfs(t *testing.T) {
	const whole = `name: "mlx5_0" speed_bps: 2500000000 up: true ib: {device: "mlx5_0" port: 1 node_guid: 0xb8599f0300fd0b20 port_guid: 0xb8599f0300fd0b22 subnet_prefix: 0xfe80000000000000 lid: 42 sm_lid: 1}`
	without := func(fields string) string {
		return `name: "mlx5_0" ` + fields
	}
	for _, tt := range []struct{ file, text, want string }{
		{"", "", whole},
		{"mlx5_0/node_guid", "0000:0000:0000:0000", without(`speed_bps: 2500000000 up: true ib: {device: "mlx5_0" port: 1 port_guid: 0xb8599f0300fd0b22 subnet_prefix: 0xfe80000000000000 lid: 42 sm_lid: 1}`)},
		{"mlx5_0/node_guid", "b859:9f03:00fd", without(`speed_bps: 2500000000 up: true ib: {device: "mlx5_0" port: 1 port_guid: 0xb8599f0300fd0b22 subnet_prefix: 0xfe80000000000000 lid: 42 sm_lid: 1}`)},
		{"mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0000", without(`speed_bps: 2500000000 up: true ib: {device: "mlx5_0" port: 1 node_guid: 0xb8599f0300fd0b20 lid: 42 sm_lid: 1}`)},
		{"mlx5_0/ports/1/gids/0", "10.0.0.1", without(`speed_bps: 2500000000 up: true ib: {device: "mlx5_0" port: 1 node_guid: 0xb8599f0300fd0b20 lid: 42 sm_lid: 1}`)},
		{"mlx5_0/ports/1/lid", "0x0", without(`speed_bps: 2500000000 up: true ib: {device: "mlx5_0" port: 1 node_guid: 0xb8599f0300fd0b20 port_guid: 0xb8599f0300fd0b22 subnet_prefix: 0xfe80000000000000 sm_lid: 1}`)},
		{"mlx5_0/ports/1/lid", "0xffff", without(`speed_bps: 2500000000 up: true ib: {device: "mlx5_0" port: 1 node_guid: 0xb8599f0300fd0b20 port_guid: 0xb8599f0300fd0b22 subnet_prefix: 0xfe80000000000000 sm_lid: 1}`)},
		{"mlx5_0/ports/1/sm_lid", "none", without(`speed_bps: 2500000000 up: true ib: {device: "mlx5_0" port: 1 node_guid: 0xb8599f0300fd0b20 port_guid: 0xb8599f0300fd0b22 subnet_prefix: 0xfe80000000000000 lid: 42}`)},
		{"mlx5_0/ports/1/state", "2: INIT", without(`speed_bps: 2500000000 ib: {device: "mlx5_0" port: 1 node_guid: 0xb8599f0300fd0b20 port_guid: 0xb8599f0300fd0b22 subnet_prefix: 0xfe80000000000000 lid: 42 sm_lid: 1}`)},
		{"mlx5_0/ports/1/rate", "-1 Gb/sec", without(`up: true ib: {device: "mlx5_0" port: 1 node_guid: 0xb8599f0300fd0b20 port_guid: 0xb8599f0300fd0b22 subnet_prefix: 0xfe80000000000000 lid: 42 sm_lid: 1}`)},
		{"mlx5_0/ports/1/rate", "NaN Gb/sec", without(`up: true ib: {device: "mlx5_0" port: 1 node_guid: 0xb8599f0300fd0b20 port_guid: 0xb8599f0300fd0b22 subnet_prefix: 0xfe80000000000000 lid: 42 sm_lid: 1}`)},
		{"mlx5_0/ports/1/link_layer", "Ethernet", ""},
		{"mlx5_0/ports/1/link_layer", "", ""},
	} {
		files := wholePort()
		if tt.file != "" {
			files[tt.file] = tt.text
		}
		got := bareIBPorts(listIBPorts(writeIBFiles(t, files)), nil, nil, false)
		if tt.want == "" {
			if len(got) != 0 {
				t.Errorf("%s %q: %v, want none", tt.file, tt.text, got)
			}
			continue
		}
		want := &agentapi.Interface{}
		if err := prototext.Unmarshal([]byte(tt.want), want); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || !proto.Equal(got[0], want) {
			t.Errorf("%s %q: %v, want %v", tt.file, tt.text, got, want)
		}
	}
	// Files that are absent are not known either.
	bare := bareIBPorts(listIBPorts(writeIBFiles(t, map[string]string{"mlx5_0/ports/2/link_layer": "InfiniBand", "mlx5_0/ports/x/link_layer": "InfiniBand", "mlx5_0/ports/0/link_layer": "InfiniBand"})), nil, nil, false)
	if want := (&agentapi.Interface{Name: "mlx5_0.2", Ib: &agentapi.InfiniBandPort{Device: "mlx5_0", Port: 2}}); len(bare) != 1 || !proto.Equal(bare[0], want) {
		t.Errorf("%v, want %v", bare, want)
	}
}

// A port that an interface with addresses has is not registered by itself. One that can be probed states so until it has
// a queue pair.
func TestBareIBPorts(t *testing.T) {
	ports := listIBPorts(writeIBFiles(t, wholePort()))
	ipoib := &agentapi.Interface{Name: "ib0", Ib: ports[0].message()}
	if got := bareIBPorts(ports, []*agentapi.Interface{ipoib}, nil, true); len(got) != 0 {
		t.Errorf("%v beside its interface", got)
	}
	child := &agentapi.Interface{Name: "ib1", Ib: &agentapi.InfiniBandPort{Device: "mlx5_1", Port: 1}}
	got := bareIBPorts(ports, []*agentapi.Interface{child}, nil, true)
	if want := (&agentapi.RDMA{Device: "mlx5_0", Port: 1}); len(got) != 1 || !proto.Equal(got[0].Rdma, want) {
		t.Errorf("%v, want a queue pair to come of %v", got, want)
	}
	pair := &agentapi.RDMA{Device: "mlx5_0", Port: 1, Qpn: 17, Lid: 42}
	if got := bareIBPorts(ports, nil, map[string]*agentapi.RDMA{"mlx5_0": pair}, true); len(got) != 1 || !proto.Equal(got[0].Rdma, pair) {
		t.Errorf("%v, want %v", got, pair)
	}
	if got := bareIBPorts(ports, make([]*agentapi.Interface, maxInterfaces), nil, true); len(got) != 0 {
		t.Errorf("%d interfaces beyond the limit", len(got))
	}
}

// A NIC that is assigned without an address has none, whatever its device's name, and gets the port's queue pair.
func TestAssignedIBPort(t *testing.T) {
	a := exampleAssignment()
	a.Authenticated = false
	a.Nics[1] = &agentapi.NIC{Nic: "h1/mlx5_0", Device: "mlx5_0"}
	a.Peers[1] = &agentapi.Peer{Nic: "h3/mlx5_0", Rdma: &agentapi.RDMA{Gid: netip.MustParseAddr("fe80::1").AsSlice(), Qpn: 99, QKey: 5, Lid: 3}}
	c := fleetConfig(a, nil, &FleetOptions{})
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	port := &probe.RDMAConfig{Device: "mlx5_0", Port: 1, PKey: 0xffff, QKey: 9}
	r := resolver{lookup: func(device string) ([]netip.Addr, error) {
		if device != "eth1" {
			t.Errorf("the addresses of %s are looked up", device)
		}
		return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
	}, rdmaOf: func(device string) *probe.RDMAConfig {
		if device == "mlx5_0" {
			return port
		}
		return nil
	}, assigned: map[string]netip.Addr{}}
	for i := range c.NICs {
		if n := &c.NICs[i]; n.Device != "" {
			r.assigned[n.NIC], n.Address = n.Address, netip.Addr{}
		}
	}
	for range 2 { // the second time without the device
		got, err := r.resolveAddresses(c, c)
		if err != nil {
			t.Fatal(err)
		}
		if n := got.NICs[1]; n.Address.IsValid() || !n.RDMA.Equal(port) || got.NICs[0].Address != netip.MustParseAddr("10.0.0.1") {
			t.Errorf("%+v", got.NICs)
		}
		r.rdmaOf = func(string) *probe.RDMAConfig { return nil }
		c = got
		c.NICs[0].Address = netip.Addr{}
	}
}
