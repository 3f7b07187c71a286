package triangulate

import (
	"math"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// TestSharesOfLinks compares what flows send across each link with the sums over all flows and paths.
func TestSharesOfLinks(t *testing.T) {
	topo := &fabric.Topology{Version: 1}
	for _, sw := range []string{"leaf1", "leaf2", "spine1", "spine2"} {
		topo.Switches = append(topo.Switches, fabric.Switch{Name: sw})
	}
	for _, n := range []string{"h1", "h2", "h3"} {
		topo.Nodes = append(topo.Nodes, fabric.Node{Name: n, NICs: []fabric.NIC{{Node: n, Device: "eth1"}}})
	}
	topo.Links = []fabric.Link{{A: "h1/eth1", B: "leaf1:dn1"}, {A: "h2/eth1", B: "leaf2:dn1"}, {A: "h3/eth1", B: "leaf1:dn2"}}
	by := map[int]fabric.Path{}
	for n, spine := range map[int]string{1: "spine1", 2: "spine2"} {
		up := "up" + spine[5:]
		topo.Links = append(topo.Links, fabric.Link{A: "leaf1:" + up, B: spine + ":dn1"}, fabric.Link{A: "leaf2:" + up, B: spine + ":dn2"})
		by[n] = fabric.Path{{Switch: "leaf1", In: "dn1", Out: up}, {Switch: spine, In: "dn1", Out: "dn2"}, {Switch: "leaf2", In: up, Out: "dn1"}}
	}
	g := fabric.NewGraph(topo)
	from := func(src string, o fabric.Observation) judge.Finding {
		o.Src, o.Dst, o.WindowNS = src, "h2/eth1", int64(2*time.Second)
		f := fabric.Flow{Src: src, Dst: o.Dst}
		o.Edge = f.String()
		if o.Sent == 0 {
			o.Sent = 200
		}
		return judge.Finding{Flow: f, Obs: &o, Condition: judge.Healthy}
	}
	both := []fabric.Path{by[1], by[2]}
	findings := []judge.Finding{
		from("h1/eth1", fabric.Observation{Sprayed: true, Paths: both}),                                           // 50 a second each way
		from("h1/eth1", fabric.Observation{Sprayed: true, Paths: both, Weights: []float64{3, 1}, Sent: 400}),      // 150 and 50
		from("h1/eth1", fabric.Observation{Path: by[1], PathState: fabric.PathValid, Sent: 20}),                   // 10
		from("h1/eth1", fabric.Observation{Paths: both, PathState: fabric.PathUnknown}),                           // one of both
		{Flow: fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}, Obs: &fabric.Observation{Sprayed: true, Paths: both}}, // undecided
	}
	res := Run(g, findings, DefaultParameters())
	want := map[string]Share{
		"leaf1:up1->spine1:dn1": {2, 1.25, 50 + 150 + 10}, "spine1:dn2->leaf2:up1": {2, 1.25, 50 + 150 + 10},
		"leaf1:up2->spine2:dn1": {2, 0.75, 50 + 50}, "spine2:dn2->leaf2:up2": {2, 0.75, 50 + 50},
		"h1/eth1->leaf1:dn1": {2, 2, 100 + 200 + 10}, "leaf2:dn1->h2/eth1": {2, 2, 100 + 200 + 10},
	}
	for d, got := range res.Shares {
		w, ok := want[d.String()]
		if !ok || got.Sprayed != w.Sprayed || math.Abs(got.Packets-w.Packets) > 1e-9 || math.Abs(got.Rate-w.Rate) > 1e-9 {
			t.Errorf("%s: %+v, want %+v", d, got, w)
		}
		delete(want, d.String())
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	if res := Run(g, findings[2:4], DefaultParameters()); res.Shares != nil {
		t.Errorf("nothing is sprayed: %v", res.Shares)
	}
}
