package observe

import (
	"reflect"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/csig"
)

func TestFillTakesCopies(t *testing.T) {
	o := New(profile(t), Options{})
	f := o.NewFlow()
	for _, tag := range []csig.Tag{
		{Format: csig.Wide, Signal: csig.Share, Code: 200_000, Locator: 1},
		{Format: csig.Compact, Signal: csig.Share, Code: 3, Locator: 2},
		{Format: csig.Compact, Signal: csig.Share, Code: 2, Locator: 1},
		{Format: csig.Compact, Signal: csig.Share, Code: 31},
		{Format: csig.Compact, Signal: csig.Delay, Code: 31, Locator: 3},
		{Format: csig.Compact, Signal: csig.Share, Code: 2, Locator: 1},
	} {
		if why := f.Add(&tag, seconds(0.5)); why != Used {
			t.Fatal(why)
		}
	}
	var d DirectionStats
	d.Fill(f, seconds(1.5))
	want := DirectionStats{
		Packets: []SignalPackets{
			{csig.Share, LocatorCount{csig.Compact, 0, 1}}, {csig.Share, LocatorCount{csig.Compact, 1, 2}},
			{csig.Share, LocatorCount{csig.Compact, 2, 1}}, {csig.Share, LocatorCount{csig.Wide, 1, 1}},
			{csig.Delay, LocatorCount{csig.Compact, 3, 1}},
		},
		Last: [csig.Signals]LastValue{
			csig.Share: {Value{csig.Tag{Format: csig.Compact, Signal: csig.Share, Code: 2, Locator: 1},
				csig.Range{Lower: 20_000, Upper: 30_000, HasUpper: true}}, true},
			csig.Delay: {Value{csig.Tag{Format: csig.Compact, Signal: csig.Delay, Code: 31, Locator: 3},
				csig.Range{Lower: 8_192_000}}, true},
		},
	}
	if !reflect.DeepEqual(d, want) {
		t.Errorf("%+v\nwant %+v", d, want)
	}
	kept := slices.Clone(d.Packets)
	tag := csig.Tag{Format: csig.Compact, Signal: csig.Share, Code: 1, Locator: 2}
	f.Add(&tag, seconds(1.6))
	if !slices.Equal(d.Packets, kept) {
		t.Error("the flow has changed what was taken of it")
	}
	if n := testing.AllocsPerRun(100, func() { d.Fill(f, seconds(3)) }); n != 0 || d.Last != ([csig.Signals]LastValue{}) {
		t.Errorf("%v allocations; a window without tags has %+v", n, d.Last)
	}
	if d.Fill(nil, seconds(3)); len(d.Packets) != 0 {
		t.Error("a flow too many has packets")
	}
}

func TestRule6PortsThatAreDown(t *testing.T) {
	const down = "down:\n  compact: {127: \"leaf1:up1\"}\n  wide: {900: \"leaf1:up1\", 901: \"leaf2:up1\"}\n"
	p, err := csig.ParseProfile("csig.yml", []byte(text+down))
	if err != nil {
		t.Fatal(err)
	}
	o := New(p, Options{})
	f := o.NewFlow()
	if got := o.DownPorts(seconds(0)); len(got) != 0 {
		t.Errorf("%v before the first tag", got)
	}
	for _, tag := range []csig.Tag{
		{Format: csig.Compact, Signal: csig.Share, Locator: 127}, {Format: csig.Wide, Signal: csig.Share, Locator: 900},
		{Format: csig.Wide, Signal: 9, Locator: 901},
	} {
		want := Used
		if !tag.Signal.IsKnown() {
			want = UnknownSignal
		}
		if why := f.Add(&tag, seconds(0.5)); why != want {
			t.Errorf("%+v: %v", tag, why)
		}
	}
	for _, tt := range []struct {
		at   float64
		want []string
	}{{0.6, []string{"leaf1:up1", "leaf2:up1"}}, {1.9, []string{"leaf1:up1", "leaf2:up1"}}, {2, nil}} {
		if got := o.DownPorts(seconds(tt.at)); !slices.Equal(got, tt.want) {
			t.Errorf("at %v s: %v, want %v", tt.at, got, tt.want)
		}
	}
	if v, ok := f.LastValue(csig.Share, seconds(1)); ok {
		t.Errorf("a report that a port is down has the value %+v", v)
	}
	if n := len(f.Counts(csig.Share)); n != 2 {
		t.Errorf("%d locators are counted", n)
	}
}

// TestSeriesOfCaptures checks that counts of captures are series of their NIC, and that a NIC without captures has none.
func TestSeriesOfCaptures(t *testing.T) {
	s := &Stats{NICs: []NICStats{{NIC: "h1/eth1", Capture: &CaptureCounts{Packets: 7, Drops: 2}}, {NIC: "h1/eth2"}}}
	got := map[string]float64{}
	for _, p := range s.AppendPoints(nil, profile(t)) {
		if p.Family == capturedPackets || p.Family == captureDrops {
			got[p.Name+" "+p.Values[0]] = p.Value
		}
	}
	want := map[string]float64{"graylink_csig_captured_packets_total h1/eth1": 7, "graylink_csig_capture_drops_total h1/eth1": 2}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
