package tracing

import (
	"log/slog"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
)

// TestWindowsLosePathsOfADeadSubnet has the source of a subnet end. Windows keep their path until it is as old as configured, and
// have none afterwards, so that no verdict rests on it.
func TestWindowsLosePathsOfADeadSubnet(t *testing.T) {
	f := worldtest.TreeSubnet(t)
	topo, _ := f.BuildTopology()
	store := paths.NewStore(fabric.NewGraph(topo))
	s := NewSources(Options{Store: store, Subnets: []Subnet{{StaleAfter: 20 * time.Second}}, Log: slog.New(slog.DiscardHandler)})
	nics := store.Graph().NICIDs()
	start := time.Unix(1_800_000_000, 0)
	window := func(after time.Duration) fabric.Observation {
		o := fabric.Observation{Edge: fabric.Flow{Src: nics[0], Dst: nics[len(nics)-1]}.String(), Start: start.Add(after), WindowNS: int64(time.Second), Sent: 10}
		s.BindPath(&o)
		return o
	}
	s.applyReading(0, ibfabric.Reading{Fabric: f, Begun: start, Ended: start, Broken: true}, nil)
	window(0)
	s.applyReading(0, ibfabric.Reading{Fabric: f, Begun: start.Add(10 * time.Second), Ended: start.Add(10 * time.Second)}, nil)
	for after, want := range map[time.Duration]fabric.PathState{5 * time.Second: fabric.PathValid, 9 * time.Second: fabric.PathValid, 15 * time.Second: fabric.PathStale,
		29 * time.Second: fabric.PathStale, 30 * time.Second: fabric.PathUnknown, time.Hour: fabric.PathUnknown} {
		if o := window(after); o.PathState != want || (len(o.Path) == 0) != (want == fabric.PathUnknown) || len(o.Paths) > 0 {
			t.Errorf("a window from %v on: %s, path %v, candidates %v, want %s", after, o.PathState, o.Path, o.Paths, want)
		}
	}
}
