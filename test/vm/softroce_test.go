package vm

import (
	"errors"
	"os"
	"testing"
)

// bed is the machines that the subtests of TestSoftRoCE share.
//
//	h1 eth0 - middle - eth0 h2
//	h1 eth1 - left - eth0 routers eth1 - right - eth1 h2
type bed struct {
	h1, h2, routers *Machine
	middle, left    *Network
	withoutRDMA     error // why h1 and h2 have no programs with RDMA; nil means they have them
}

// TestSoftRoCE boots three machines once. Each subtest begins with fresh, so that it can be run alone.
func TestSoftRoCE(t *testing.T) {
	parts := require(t)
	plain, err := BuildPrograms(t.Context(), t.TempDir(), "github.com/graylink/graylink/cmd/graylink-node", "github.com/graylink/graylink/cmd/graylink-coordinator")
	if err != nil {
		t.Fatal(err)
	}
	h1 := map[string]string{"/usr/local/bin/graylink-node-plain": plain[0], "/usr/local/bin/graylink-coordinator": plain[1]}
	h2 := map[string]string{}
	b := &bed{middle: network(t), left: network(t)}
	rdma, err := BuildRDMA(t.Context(), t.TempDir(), "github.com/graylink/graylink/cmd/graylink-node", "github.com/graylink/graylink/test/vm/peers")
	switch {
	case errors.Is(err, ErrMissing) && os.Getenv("GRAYLINK_REQUIRE_ALL") != "1":
		b.withoutRDMA = err
	case err != nil:
		t.Fatal(err)
	default:
		device, err := BuildRDMATest(t.Context(), t.TempDir(), "rdmafault", "github.com/graylink/graylink/internal/rdma")
		if err != nil {
			t.Fatal(err)
		}
		h1["/usr/local/bin/graylink-node"] = rdma[0]
		h2["/usr/local/bin/graylink-node"], h2["/usr/local/bin/peers"], h2["/usr/local/bin/rdma.test"] = rdma[0], rdma[1], device
	}
	right := network(t)
	modules := append([]string{"sch_netem", "ib_umad"}, SoftRoCE...)
	machines := together(t,
		Options{Name: "h1", Networks: []*Network{b.middle, b.left}, Modules: modules, Programs: h1, Parts: parts},
		Options{Name: "h2", Networks: []*Network{b.middle, right}, Modules: modules, Programs: h2, Parts: parts},
		Options{Name: "routers", Networks: []*Network{b.left, right}, Modules: []string{"dummy numdummies=0", "veth", "sch-netem"}, Parts: parts})
	b.h1, b.h2, b.routers = machines["h1"], machines["h2"], machines["routers"]

	for _, test := range []struct {
		name string
		rdma bool // it needs programs with RDMA
		run  func(*testing.T, *bed)
	}{
		{"NICHealth", false, nicHealth},
		{"TwoMachines", false, twoMachines},
		{"Modules", false, modulesLoad},
		{"Mapping", true, deviceMapping},
		{"Probes", true, probesOverRDMA},
		{"Paths", true, pathsOfRDMA},
		{"QueuePairs", true, queuePairs},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.rdma && b.withoutRDMA != nil {
				t.Skip(b.withoutRDMA)
			}
			fresh(t, b.h1)
			fresh(t, b.h2)
			test.run(t, b)
		})
	}
}

// fresh brings a machine to where it was when it had booted: no program runs, and there is no RDMA device, no address
// and no interface that is up.
func fresh(t *testing.T, m *Machine) {
	t.Helper()
	shell(t, m, `killall -9 graylink-node graylink-node-plain graylink-coordinator peers rdma.test ibv_ud_pingpong ibv_rc_pingpong 2>/dev/null
rdma link delete rxe0 2>/dev/null
rdma link delete rxe1 2>/dev/null
for i in eth0 eth1; do
  tc qdisc del dev $i root 2>/dev/null
  ip addr flush dev $i
  ip link set $i down
done
rm -rf /run/* /etc/graylink /etc/fleet`)
}
