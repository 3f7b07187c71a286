package node

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"

	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/rdma"
)

// TestRDMASeries compares the series of queue pairs with testdata/rdma.metrics: those of one that works, those of one
// without a device, and none of a NIC without RDMA.
func TestRDMASeries(t *testing.T) {
	violations := uint32(3)
	gid := rdma.CanonicalGID(netip.MustParseAddr("10.0.0.1"))
	nics := []probe.NICStats{
		{NICConfig: probe.NICConfig{NIC: "h1/mlx5_0"}, Port: &rdma.Status{Device: "mlx5_0", Port: 1, Queue: true, QPN: 17, State: "rts", GID: gid, GIDIndex: 3, GIDType: rdma.GIDRoCEv2,
			PortState: "active", RecvErrors: map[string]uint64{"flushed": 512}, SendErrors: map[string]uint64{"local_qp_operation": 1, "flushed": 2},
			Counts: map[string]uint64{rdma.CountQueueOpened: 1, rdma.CountPortUp: 2}, Handles: 12, HandleErrors: 4, Strangers: 5, WrongQPN: 6, Headless: 7, QKeyViolations: &violations}},
		{NICConfig: probe.NICConfig{NIC: "h1/mlx5_2"}, ServiceLevels: []probe.ClassConfig{{Name: "bulk", DSCP: 10}, {Name: "roce", DSCP: 26, SL: 3}},
			Port: &rdma.Status{Device: "mlx5_2", Port: 1, State: "rts", InfiniBand: true, LID: 12, GIDIndex: -1}},
		{NICConfig: probe.NICConfig{NIC: "h1/mlx5_3"}, Port: &rdma.Status{Device: "mlx5_3", Port: 1, State: "rts", InfiniBand: true, GIDIndex: -1}},
		{NICConfig: probe.NICConfig{NIC: "h1/mlx5_1"}, Port: &rdma.Status{Device: "mlx5_1", Port: 1, State: "absent", GIDIndex: -1, Why: "no such device"}},
		{NICConfig: probe.NICConfig{NIC: "h1/eth0"}},
	}
	gathered := func(nics []probe.NICStats) string {
		m := &madeUp{snap: &probe.Snapshot{NICs: nics}}
		g := newGatherer(m.sources(), []constructor{{"rdma", newRDMACollector}}, newRuns(), false)
		return string(encode(t, g, expfmt.NewFormat(expfmt.TypeTextPlain)))
	}
	got := gathered(nics)
	const file = "testdata/rdma.metrics"
	if *updateHealth {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := gathered(nics[4:]); strings.Contains(got, "fabric_") {
		t.Errorf("series of a node without RDMA:\n%s", got)
	}
}
