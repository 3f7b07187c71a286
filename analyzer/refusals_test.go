package analyzer

import (
	"net/netip"
	"testing"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/deploy"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/srv6"
)

// TestMutualRefusals: two neighbours that refuse each other's packets say nothing of their tables, and what such flows lose is a part's.
func TestMutualRefusals(t *testing.T) {
	topo, found := fabric.ParseTopology("srv6.yaml", deploy.SRv6Topology)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	at := map[string]netip.Addr{}
	for i := range topo.Switches {
		s := &topo.Switches[i]
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		s.Addresses, at[s.Name] = []netip.Addr{a}, a
	}
	g := fabric.NewGraph(topo)
	says := func(sw string, sid srv6.SID) evidence.Refusal {
		return evidence.Refusal{NIC: "h1/eth1", From: at[sw], SID: sid}
	}
	const spine3, leaf1, leaf2 = 0x0003, 0x0011, 0x0012
	path := g.ShortestPaths("h1/eth1", "h3/eth1", 4)[2]
	for _, c := range []struct {
		what            string
		all             []evidence.Refusal
		mutual, refused bool
	}{
		{"one end", []evidence.Refusal{says("leaf1", spine3)}, false, true},
		{"both ends", []evidence.Refusal{says("leaf1", spine3), says("spine3", leaf1)}, true, false},
		{"an end and another switch", []evidence.Refusal{says("leaf1", spine3), says("spine3", leaf2)}, false, true},
		{"its own identifier", []evidence.Refusal{says("spine3", spine3)}, false, true},
	} {
		refusals := resolveRefusals(g, c.all)
		o := &fabric.Observation{Chosen: true, Path: path}
		markRefused([]*fabric.Observation{o}, refusals)
		mutual := true
		for _, r := range refusals {
			mutual = mutual && r.Mutual
		}
		if len(refusals) != len(c.all) || mutual != c.mutual || o.Refused != c.refused {
			t.Errorf("%s: %+v, refused %v", c.what, refusals, o.Refused)
		}
	}
}

// TestRefusalsOfANamedLink: a verdict on the link between two switches that refuse each other's packets explains it.
func TestRefusalsOfANamedLink(t *testing.T) {
	link := fabric.Element{ID: "leaf1:up3--spine3:dn1", Kind: fabric.KindLink}
	f := &routing.Finding{Element: fabric.Element{ID: "leaf1", Kind: fabric.KindSwitch}, Kind: routing.UnknownSID, Others: []fabric.Element{link}}
	for want, v := range map[bool]fabric.Verdict{true: {Element: link, Scenario: fabric.Miscabled}, false: {Element: link, Scenario: fabric.RoutingFault}} {
		if got := namesLink(&v, f.Others); got != want {
			t.Errorf("%s: %v", v.Scenario, got)
		}
	}
	flow := fabric.Flow{Src: "h1/eth1", Dst: "h3/eth1"}
	f.Explained = []fabric.Flow{flow}
	for want, e := range map[bool]fabric.Element{false: link, true: {ID: "leaf1->spine3->leaf2", Kind: fabric.KindCorridor}} {
		if got := classify.RoutingExplains(f, &fabric.Verdict{Element: e, Edges: []string{flow.String()}, Symptom: fabric.Symptom{LossRatio: 1}}); got != want {
			t.Errorf("%s: %v", e.ID, got)
		}
	}
}
