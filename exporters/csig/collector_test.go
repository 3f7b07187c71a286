package csig

import (
	"net/netip"
	"testing"

	"github.com/graylink/graylink/exporters/internal/seriestest"
	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
)

const text = `ethertypes: {compact: 0x88b5, wide: 0x88b6}
interval: 1ms
fastest_gbps: 100
compact:
  3: {edges: [0, 1us]}
locators:
  compact: {"leaf1:up1": 1, "leaf1:Ethernet1/2": 2, "spine1:dn1": 3, "spine2:dn1": 3, "spine3:dn1": 4}
  wide: {"leaf1:up1": 1, "spine1:dn1": 3}
down:
  wide: {900: "leaf1:up1"}
`

// madeUp has statistics that the test chooses.
type madeUp struct{ observe.Stats }

func (m *madeUp) SignalStats() *observe.Stats { return &m.Stats }

// direction returns what a flow says of which these tags arrived.
func direction(t *testing.T, o *observe.Observer, tags ...csig.Tag) (d observe.DirectionStats) {
	t.Helper()
	f := o.NewFlow()
	for i := range tags {
		if why := f.Add(&tags[i], 1e9); why != observe.Used {
			t.Fatalf("%+v: %v", tags[i], why)
		}
	}
	d.Fill(f, 2e9)
	return d
}

// TestSeries compares the series of flows of a node with a golden file, and those of a node without tags with another. -update writes
// them.
func TestSeries(t *testing.T) {
	p, err := csig.ParseProfile("csig.yml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := observe.New(p, observe.Options{})
	tag := func(f csig.Format, s csig.Signal, code uint32, locator uint16) csig.Tag {
		return csig.Tag{Format: f, Signal: s, Code: code, Locator: locator}
	}
	flows := []observe.FlowStats{
		{Src: "h1/eth1", Dst: "h2/eth1", Number: 3, Supported: observe.Supported, Directions: [2]observe.DirectionStats{
			direction(t, o, tag(csig.Compact, csig.Bandwidth, 7, 1), tag(csig.Compact, csig.Share, 7, 1), tag(csig.Compact, csig.Share, 31, 2),
				tag(csig.Compact, csig.Delay, 31, 3), tag(csig.Compact, csig.Queue, 1, 3)),
			direction(t, o, tag(csig.Compact, csig.Share, 31, 0)),
		}},
		{Src: "h1/eth1", Dst: "h3/eth1", Number: 64, Supported: observe.Unsupported, DroppedAt: netip.MustParseAddr("10.255.0.3")},
		{Src: "h2/eth1", Dst: "h1/eth1", Data: true, Directions: [2]observe.DirectionStats{direction(t, o,
			tag(csig.Wide, csig.Share, 1_000, 1), tag(csig.Wide, csig.Delay, 10, 3), tag(csig.Wide, csig.Delay, 0, 900))}},
	}
	o.Drop(observe.Stranger)
	working := observe.Stats{ProfileHash: p.Hash(), Flows: flows, DownPorts: o.DownPorts(2e9),
		NICs: []observe.NICStats{{NIC: "h1/eth1", Dropped: o.Dropped, Capture: &observe.CaptureCounts{Packets: 12, Drops: 3}}, {NIC: "h1/eth2"}}}
	for name, stats := range map[string]observe.Stats{"working": working, "started": {ProfileHash: p.Hash()}} {
		seriestest.CompareGolden(t, NewCollector(&madeUp{stats}, p), "testdata/"+name+".metrics")
	}
}
