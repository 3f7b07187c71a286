package classify

import (
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
)

// What routing explains is not blamed on a part. What it does not explain keeps its verdict.
func TestRoutingExplains(t *testing.T) {
	link := fabric.Element{ID: "leaf1:up1--spine1:dn1", Kind: fabric.KindLink}
	other := fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}
	leaf := fabric.Element{ID: "leaf1", Kind: fabric.KindSwitch}
	flows := []fabric.Flow{{Src: "h1/eth1", Dst: "h3/eth1"}, {Src: "h1/eth1", Dst: "h4/eth1"}, {Src: "h2/eth1", Dst: "h3/eth1"}}
	of := func(kind routing.Kind, e fabric.Element, claimed bool) *routing.Finding {
		return &routing.Finding{Kind: kind, Element: e, Claimed: claimed, Explained: flows}
	}
	verdict := func(e fabric.Element, s fabric.Scenario, loss float64, delay int64, causes ...string) *fabric.Verdict {
		v := &fabric.Verdict{Element: e, Scenario: s, Symptom: fabric.Symptom{LossRatio: loss, AddedDelayNS: delay}, Causes: causes}
		for _, f := range flows {
			v.Edges = append(v.Edges, f.String())
		}
		return v
	}
	for _, c := range []struct {
		name string
		f    *routing.Finding
		v    *fabric.Verdict
		want bool
	}{
		{"a flap of a link whose session flaps", of(routing.SessionFlap, link, true), verdict(link, fabric.Flap, 0.1, 0), true},
		{"a flap, and nothing is claimed", of(routing.SessionFlap, link, false), verdict(link, fabric.Flap, 0.1, 0), false},
		{"a slow link whose session flaps", of(routing.SessionFlap, link, true), verdict(link, fabric.Corridor, 0, 1e6), false},
		{"a flap of another link", of(routing.FalseBFD, link, true), verdict(other, fabric.Flap, 0.1, 0), false},
		{"grey loss elsewhere that ended with a failover", of(routing.Converged, link, true), verdict(other, fabric.Corridor, 0.05, 0), true},
		{"the link that failed", of(routing.Converged, link, true), verdict(link, fabric.HardFailure, 1, 0), false},
		{"a link that the FIB does not use", of(routing.FIBMismatch, leaf, true), verdict(link, fabric.HardFailure, 1, 0), true},
		{"uplinks of a switch with few next hops", of(routing.FewHops, leaf, true), verdict(fabric.Element{ID: "leaf1", Kind: fabric.KindLeafUplinks}, fabric.LeafUplinks, 0, 1e6), true},
		{"a crowded link", of(routing.Polarized, leaf, true), verdict(link, fabric.Corridor, 0.01, 1e6, fabric.CauseCongestion), true},
		{"a slow cable on a crowded way", of(routing.Polarized, leaf, true), verdict(link, fabric.Corridor, 0, 1e6), false},
		{"a bad NIC", of(routing.FIBMismatch, leaf, true), verdict(fabric.Element{ID: "h3/eth1", Kind: fabric.KindNIC}, fabric.BadNIC, 1, 0), false},
	} {
		if got := RoutingExplains(c.f, c.v); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	far := verdict(other, fabric.HardFailure, 1, 0)
	far.Edges = []string{"h5/eth1>h7/eth1#0", "h5/eth1>h8/eth1#0"}
	if RoutingExplains(of(routing.FIBMismatch, leaf, true), far) {
		t.Error("other flows are explained")
	}
}

// Findings of one element and scenario are one verdict, about all of their prefixes and of the highest severity.
func TestRoutingVerdictsAreJoined(t *testing.T) {
	g := fabric.NewGraph(&fabric.Topology{})
	since := time.Unix(1000, 0)
	spine := fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}
	got := RoutingVerdicts(g, []routing.Finding{
		{Element: spine, Kind: routing.MissingPrefix, Prefix: "leaf1", Since: since.Add(time.Second), Confidence: 0.99, Explained: []fabric.Flow{{Src: "h1/eth1", Dst: "h2/eth1"}}},
		{Element: spine, Kind: routing.PrefixLost, Prefix: "leaf2", Since: since, Confidence: 0.9, Lost: []fabric.Flow{{Src: "h1/eth1", Dst: "h3/eth1"}}, Explained: []fabric.Flow{{Src: "h1/eth1", Dst: "h3/eth1"}}},
		{Element: spine, Kind: routing.FIBMismatch, Prefix: "leaf2", Since: since, Confidence: 0.999},
	})
	if len(got) != 2 || got[0].Prefix != "leaf1, leaf2" || got[0].Severity != fabric.SeverityCritical || !got[0].FirstSeen.Equal(since) || got[0].BlastRadius.Edges != 2 || got[0].ID == got[1].ID {
		t.Errorf("%+v", got)
	}
	for _, v := range got {
		if !strings.Contains(v.Summary, "No part is at fault for this.") || v.Action == "" || !v.Evidence.Reported {
			t.Errorf("%+v", v)
		}
	}
}

// A fabric whose mode is another than the file says is information, and blames and explains nothing.
func TestModesAreInformation(t *testing.T) {
	g := fabric.NewGraph(&fabric.Topology{})
	since := time.Unix(1000, 0)
	leaf, spine := fabric.Element{ID: "leaf1", Kind: fabric.KindSwitch}, fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}
	for _, c := range []struct {
		f    routing.Finding
		want []string
	}{
		{routing.Finding{Element: leaf, Kind: routing.Sprays, Since: since, Text: "Evidence: of 24 flows that switches see, 23 take several ways at the same time."},
			[]string{"leaf1 chooses a next hop anew for each packet since 00:16:40 UTC", "bound to all their shortest paths", "of 24 flows", "No part is at fault"}},
		{routing.Finding{Element: spine, Kind: routing.Sprays, Since: since, Others: []fabric.Element{leaf}},
			[]string{"spine1 chooses a next hop anew for each packet of flows from leaf1", "their paths are unknown"}},
		{routing.Finding{Element: leaf, Kind: routing.HashesFlows, Since: since}, []string{"forwarding: spray", "leave switch leaf1", "since 00:16:40 UTC"}},
	} {
		got := RoutingVerdicts(g, []routing.Finding{c.f})
		if len(got) != 1 || got[0].Element != c.f.Element || got[0].Severity != fabric.SeverityInfo || got[0].Scenario != fabric.RoutingFault || len(got[0].Equivalent) > 0 ||
			!got[0].FirstSeen.Equal(since) || !got[0].Evidence.Reported || got[0].Action == "" {
			t.Fatalf("%+v", got)
		}
		for _, text := range c.want {
			if !strings.Contains(got[0].Summary, text) {
				t.Errorf("%q lacks %q", got[0].Summary, text)
			}
		}
		if RoutingExplains(&c.f, &fabric.Verdict{Element: leaf, Scenario: fabric.LeafUplinks, Causes: []string{fabric.CauseCongestion}}) {
			t.Errorf("%s explains a fault", c.f.Kind)
		}
	}
}
