package analyzer

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
)

// Observations of flows between InfiniBand NICs get the path of the forwarding tables
// that two readings around their window confirm.
func TestLoopBindsByForwardingTables(t *testing.T) {
	open := func(name string) *os.File {
		f, err := os.Open("../internal/ibfabric/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	f, _, err := ibfabric.ReadNetDiscover("tree", open("tree.ibnetdiscover"))
	if err != nil {
		t.Fatal(err)
	}
	if f, _, err = f.ReadLFTs("lfts", open("tree.lfts")); err != nil {
		t.Fatal(err)
	}
	topo, _ := f.BuildTopology()
	now := time.Unix(1_800_000_000, 0)
	var failed error
	l := NewLoop(LoopOptions{Graph: fabric.NewGraph(topo), NoTraces: true, Tables: func(context.Context) (ibfabric.Reading, error) {
		now = now.Add(time.Second)
		return ibfabric.Reading{Fabric: f, Begun: now, Ended: now.Add(10 * time.Millisecond)}, failed
	}})
	bound := func(start time.Time) *fabric.Observation {
		o := &fabric.Observation{Edge: "h0/hca>h3/hca#0/r", Src: "h3/hca", Dst: "h0/hca", Start: start, WindowNS: int64(time.Second)}
		l.bindPath(o)
		return o
	}
	l.readTables(t.Context())
	start := now.Add(20 * time.Millisecond)
	if o := bound(start); o.PathState != fabric.PathStale {
		t.Errorf("after one reading: %s %v", o.PathState, o.Path)
	}
	l.readTables(t.Context())
	l.readTables(t.Context())
	if o := bound(start); o.PathState != fabric.PathValid || o.Path.CanonicalKey() != "leaf1[2>3] spine0[2>1] leaf0[3>1]" {
		t.Errorf("between readings: %s %v", o.PathState, o.Path)
	}
	failed = errors.New("no answer")
	l.readTables(t.Context())
	if o := bound(now); o.PathState != fabric.PathStale {
		t.Errorf("after a reading that failed: %s %v", o.PathState, o.Path)
	}
}
