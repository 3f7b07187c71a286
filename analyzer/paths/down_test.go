package paths

import (
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibmad/madsim"
)

// TestWhatIsDown checks that a link is down after readings have had both ports down for a while, and no longer when one has
// them up; that a switch is down when nothing leads to it; that a NIC's link, a switch that does not answer and an old
// reading are nothing.
func TestWhatIsDown(t *testing.T) {
	sim := madsim.FatTree(4, 2, 2, madsim.Options{})
	sim.RunSubnetManager()
	client := ibmad.NewClient(sim.AttachTransport("h0"), ibmad.Config{Timeout: 20 * time.Millisecond, Retries: 1})
	t.Cleanup(func() { _ = client.Close() })
	read := func() *ibfabric.Fabric {
		f, _, err := ibfabric.Discover(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	whole := read()
	topo, _ := whole.BuildTopology()
	tables := NewTables(NewStore(fabric.NewGraph(topo)), 0)
	start := time.Unix(1_800_000_000, 0)
	tables.ApplyReading(ibfabric.Reading{Fabric: whole, Begun: start, Ended: start})
	at := start
	downAfter := func(f *ibfabric.Fabric, wait time.Duration) (out []string) {
		t.Helper()
		for range 2 {
			at = at.Add(wait / 2)
			tables.ApplyReading(ibfabric.Reading{Fabric: f, Begun: at, Ended: at})
		}
		for _, d := range tables.DownElements(at) {
			text := string(d.Kind) + " " + d.ID
			if d.Outages > 0 {
				text += " flaps"
			}
			out = append(out, text)
		}
		return out
	}
	expect := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: down is %q, not %q", what, got, want)
		}
	}
	expect("whole", downAfter(whole, 10*time.Second))

	peer, _, _ := sim.PeerOf("leaf1", 3)
	if peer != "spine0" {
		t.Fatalf("leaf1's port 3 leads to %s", peer)
	}
	sim.SetLinkDown("leaf1", 3)
	cut := read()
	expect("at first", downAfter(cut, time.Second))
	expect("settled", downAfter(cut, 8*time.Second), "link leaf1:3--spine0:2")
	if out := tables.DownElements(at.Add(downForgets + time.Second)); len(out) != 0 {
		t.Errorf("an old reading has %v down", out)
	}
	sim.SetLinkUp("leaf1", 3)
	expect("up again", downAfter(read(), time.Second))
	expect("down again", downAfter(cut, time.Second), "link leaf1:3--spine0:2 flaps")
	expect("down for longer", downAfter(cut, 20*time.Second), "link leaf1:3--spine0:2 flaps")
	expect("up for a moment", downAfter(whole, time.Second), "link leaf1:3--spine0:2 flaps")
	expect("up for longer", downAfter(whole, 20*time.Second))
	expect("down again after more than a minute", downAfter(whole, 2*flapSpan))
	expect("down as at first", downAfter(cut, time.Second))
	expect("up", downAfter(whole, 2*flapSpan))

	sim.SetLinkDown("h3", 1)
	expect("a NIC's link", downAfter(read(), 10*time.Second))
	sim.SetLinkUp("h3", 1)
	sim.SetSilent("spine1", true)
	expect("a switch that does not answer", downAfter(read(), 10*time.Second))
	sim.SetSilent("spine1", false)
	for leaf := range uint8(4) {
		sim.SetLinkDown("spine1", leaf+1)
	}
	expect("a switch to which nothing leads", downAfter(read(), 10*time.Second), "switch spine1")
}
