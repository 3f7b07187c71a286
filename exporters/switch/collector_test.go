package fabricswitch

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/exporters/internal/seriestest"
	"github.com/graylink/graylink/internal/routetable"
	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/switchagent"
)

// madeUp publishes a state that the test chooses.
type madeUp struct {
	topics []topic
	status switchagent.Status
	read   switchagent.Telemetry
}

func (m *madeUp) Describe(ch chan<- *prometheus.Desc) {
	for _, t := range m.topics {
		for _, d := range t.descs() {
			ch <- d
		}
	}
}

func (m *madeUp) Collect(ch chan<- prometheus.Metric) {
	for _, t := range m.topics {
		t.collect(sink{ch, m.status.Switch}, &m.status, &m.read)
	}
}

// TestSeriesOfASwitch compares the series of two ports, of which one reports nothing but its state, with a golden file.
// -update writes it.
func TestSeriesOfASwitch(t *testing.T) {
	changes, rate := uint32(3), 12.5e9
	fibChanges, mismatches, established, downs := uint64(21), 1, uint64(22), uint64(23)
	var log bytes.Buffer
	m := &madeUp{topics: newTopics(slog.New(slog.NewTextHandler(&log, nil))),
		status: switchagent.Status{Switch: "leaf1", Kind: sighting.KindEBPF, Flows: 12, Version: 34, Dropped: 5, Rounds: 67, Took: 8 * time.Millisecond, LastEnd: time.Unix(1700000000, 0), MalformedLLDP: 9,
			Routes: &switchagent.RouteStatus{Prefixes: 24, FIBChanges: &fibChanges, Mismatches: &mismatches, Errors: map[string]uint64{"routes": 0, "frr": 25}, Failing: map[string]bool{"routes": false, "frr": true},
				Sessions: []routetable.Session{{Port: "up1", Protocol: routetable.BGP, Up: true, Established: &established}, {Port: "up2", Protocol: routetable.BGP}, {Port: "up1", Protocol: routetable.BFD, Downs: &downs},
					{Port: "up2", Protocol: routetable.BFD, Up: true, Downs: &downs}, {Port: "up2", Protocol: routetable.BFD, Downs: &downs}}}},
		read: switchagent.Telemetry{QueueErr: errors.New("no netlink"), Ports: []switchagent.Port{
			{Link: switchagent.Link{Name: "up1", MTU: 9000, Up: true, Running: true, Changes: &changes, Counters: &netlink.LinkStatistics64{RxPackets: 1, TxPackets: 2, RxBytes: 3, TxBytes: 4, RxDropped: 5, TxDropped: 6,
				RxLengthErrors: 7, RxOverErrors: 8, RxCrcErrors: 9, RxFrameErrors: 10, RxFifoErrors: 11, RxMissedErrors: 12, TxAbortedErrors: 13, TxCarrierErrors: 14, TxFifoErrors: 15, TxHeartbeatErrors: 16}},
				BytesPerSecond: &rate, Queue: &switchagent.Queue{Octets: 17, Packets: 18, Drops: 19, Overlimits: 20}},
			{Link: switchagent.Link{Name: "dn1", MTU: 1500}}}}}
	seriestest.CompareGolden(t, m, "testdata/switch.metrics")
	if n := strings.Count(log.String(), "cannot read telemetry"); n != 2 || !strings.Contains(log.String(), "queues") {
		t.Errorf("two scrapes without queues are logged %d times:\n%s", n, &log)
	}
}

// TestSeriesDescsAreUnique checks that no two topics have one family.
func TestSeriesDescsAreUnique(t *testing.T) {
	var names []string
	for _, d := range SeriesDescs() {
		names = append(names, d.String())
	}
	slices.Sort(names)
	if len(names) != len(slices.Compact(slices.Clone(names))) || len(names) < 25 {
		t.Errorf("%d families: %q", len(names), names)
	}
}
