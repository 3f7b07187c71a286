package coordinator

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/exporters/internal/seriestest"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/fabric"
)

// madeUp publishes statistics that the test chooses.
type madeUp struct {
	collector
	stats coordinator.Stats
}

func (m *madeUp) Collect(ch chan<- prometheus.Metric) { m.send(ch, &m.stats) }

// TestSeriesOfACoordinator compares the series of a coordinator at work, of its standby, and of one that has just started, with golden
// files. -update writes them.
func TestSeriesOfACoordinator(t *testing.T) {
	standbys, lag := 1, 0.5
	working := coordinator.Stats{Leadership: coordinator.Leadership{Leads: true, Epoch: 7, Mode: coordinator.ModeManual, Standbys: &standbys}, Agents: map[string]int{"connected": 3, "never": 1}, AgentVersions: map[string]int{"0.1.0": 1, "0.2.0": 2}, Sessions: map[string]uint64{"accepted": 4}, Whole: true, HasPlan: true, Conflicts: map[string]int{"address": 1},
		Edges: map[string]int{"all": 20, "path": 18}, Runs: map[string]uint64{"done": 2, "failed": 1}, RunSeconds: 0.25, RunAt: time.Unix(1700000000, 0), Assignments: 5, KeysSent: 6, OutOfDate: 7,
		KeysEpoch: 8, KeysHeld: 2, KeysUnconfirmed: 1, Traces: map[string]uint64{"taken": 9, "ignored": 0}, Refused: map[string]int{"loopback": 1},
		Handshakes:   coordinator.Handshakes{Silent: 1, Running: 2, Waiting: 3, Dropped: map[string]uint64{"silent": 4}},
		Clocks:       coordinator.ClockStats{States: map[string]int{"locked": 4}, Edges: map[string]int{"used": 12, "dropped": 1}, Seconds: 0.005, Reports: map[string]uint64{"taken": 99}},
		ClockUpdates: 10, Moves: 11, Saves: map[string]uint64{"done": 12, "failed": 0}, StepAt: time.Unix(1700000001, 0), TopologyHash: "0123456789abcdef", ReloadOK: true, ReloadedAt: time.Unix(1699999999, 0),
		LinkEdges: 4, Links: []coordinator.LinkEdges{{Direction: fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}, Edges: 5}, {Direction: fabric.Direction{From: "spine1:dn1", To: "leaf1:up1"}, Edges: 3}}}
	for name, stats := range map[string]coordinator.Stats{
		"working": working,
		"standby": {Leadership: coordinator.Leadership{Epoch: 7, Mode: coordinator.ModeManual, LagSeconds: &lag}, TopologyHash: "0123456789abcdef", ReloadedAt: time.Unix(1699999999, 0)},
		"started": {Leadership: coordinator.Leadership{Leads: true}, TopologyHash: "0123456789abcdef", ReloadedAt: time.Unix(1699999999, 0)},
	} {
		seriestest.CompareGolden(t, &madeUp{*newCollector(nil), stats}, "testdata/"+name+".metrics")
	}
}
