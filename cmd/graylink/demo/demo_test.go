package demo

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/deploy"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/probe"
)

func demoGraph(t *testing.T) *fabric.Graph {
	t.Helper()
	topo, found := fabric.ParseTopology("demo.yaml", deploy.DemoTopology)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(topo)
}

func TestMeshOfTheDemoIsFull(t *testing.T) {
	g := demoGraph(t)
	m := PlanMesh(g, 2)
	n := len(g.NICIDs())
	if got, want := m.DirectedFlows(), 2*2*n*(n-1); got != want {
		t.Errorf("%d directed flows, want %d", got, want)
	}
}

// TestLargeMeshIsBounded: beyond the full mesh every NIC probes and is probed
// by a bounded number of others, on other leaves too.
func TestLargeMeshIsBounded(t *testing.T) {
	topo, found := fabric.LoadTopology("../../../internal/lab/testdata/odd.yaml")
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		name := "x" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		topo.Nodes = append(topo.Nodes, fabric.Node{Name: name, NICs: []fabric.NIC{{Node: name, Device: "eth1"}}})
		topo.Links = append(topo.Links, fabric.Link{A: name + "/eth1", B: topo.Switches[i%2].Name + ":x" + name})
	}
	g := fabric.NewGraph(topo)
	m := PlanMesh(g, 1)
	in := map[string]int{}
	for src, peers := range m.Peers {
		if len(peers) > fanOut {
			t.Errorf("%s probes %d others", src, len(peers))
		}
		for _, p := range peers {
			in[p]++
			if fabric.OwnerOf(p) == fabric.OwnerOf(src) {
				t.Errorf("%s probes %s on its own node", src, p)
			}
		}
	}
	for nic, n := range in {
		if n > fanOut+1 {
			t.Errorf("%s is probed by %d others", nic, n)
		}
	}
}

// TestFlowsAreChosenForCoverage: the demo's fabric needs one flow a pair, a
// fabric with few NICs or three tiers more of them.
func TestFlowsAreChosenForCoverage(t *testing.T) {
	if got := PlanMesh(demoGraph(t), 0).Flows; got != 1 {
		t.Errorf("demo: %d flows a pair", got)
	}
	for _, file := range []string{"clos3", "odd"} {
		topo, found := fabric.LoadTopology("../../../internal/lab/testdata/" + file + ".yaml")
		if err := found.Err(); err != nil {
			t.Fatal(err)
		}
		m := PlanMesh(fabric.NewGraph(topo), 0)
		if m.Flows < 2 || m.Flows > maxFlows || m.FlowCadence() != pairCadence*time.Duration(m.Flows) {
			t.Errorf("%s: %d flows a pair, each every %s", file, m.Flows, m.FlowCadence())
		}
	}
}

// TestLinkDownIsFelt: in two tiers every link's loss is felt; between a core
// and a pod that has two spines nothing is lost.
func TestLinkDownIsFelt(t *testing.T) {
	g := demoGraph(t)
	if got := len(linksLosingPackets(g, fabricLinks(g))); got != 8 {
		t.Errorf("demo: %d of 8 links", got)
	}
	topo, found := fabric.LoadTopology("../../../internal/lab/testdata/clos3.yaml")
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	g3 := fabric.NewGraph(topo)
	kept := linksLosingPackets(g3, fabricLinks(g3))
	if len(kept) == 0 {
		t.Error("three tiers: no link is felt")
	}
	for _, l := range kept {
		if g3.SwitchTier(fabric.OwnerOf(l.A)) == 3 || g3.SwitchTier(fabric.OwnerOf(l.B)) == 3 {
			t.Errorf("%s is felt, though its core has another way into the pod", l.ID())
		}
	}
}

// TestNodeConfigsAreAccepted: what the demo writes, the agent reads.
func TestNodeConfigsAreAccepted(t *testing.T) {
	g := demoGraph(t)
	m := PlanMesh(g, 1)
	for i := range g.Topo.Nodes {
		n := &g.Topo.Nodes[i]
		text, err := NodeConfig(g, m, n)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "node.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := probe.LoadConfig(file)
		if err != nil {
			t.Fatalf("%s:\n%s\n%v", n.Name, text, err)
		}
		if len(c.NICs) != 1 || len(c.Peers) != 7 {
			t.Errorf("%s: %d NICs and %d peers", n.Name, len(c.NICs), len(c.Peers))
		}
	}
}

// TestClocksAreWrongByTheSeed: further apart than any delay, the same again for
// the same lab and seed, and no two alike.
func TestClocksAreWrongByTheSeed(t *testing.T) {
	nodes := demoGraph(t).Topo.Nodes
	seen := map[bend]bool{}
	for _, of := range []struct {
		name string
		seed uint64
	}{{"demo", 1}, {"demo", 2}, {"other", 1}} {
		bends, again := bendClocks(nodes, of.name, of.seed), bendClocks(nodes, of.name, of.seed)
		least, most := time.Duration(0), time.Duration(0)
		for i := range nodes {
			b := bends[nodes[i].Name]
			if b != again[nodes[i].Name] {
				t.Errorf("%v: %s once, %s the next time", of, b, again[nodes[i].Name])
			}
			if b.offset < -bendMost || b.offset > bendMost || b.ppm < -bendMostPPM || b.ppm > bendMostPPM {
				t.Errorf("%v: %s", of, b)
			}
			least, most = min(least, b.offset), max(most, b.offset)
			seen[b] = true
		}
		if most-least < time.Second {
			t.Errorf("%v: all clocks within %s", of, most-least)
		}
	}
	if len(seen) != 3*len(nodes) {
		t.Errorf("%d different bends, want %d", len(seen), 3*len(nodes))
	}
	nodes = append(nodes, nodes[0])
	if text := describeBends(nodes, bendClocks(nodes, "demo", 1)); strings.Count(text, " ppm, ") != 8 || !strings.HasSuffix(text, "and 1 more") {
		t.Errorf("said %q", text)
	}
}

func TestSeedsChooseEveryElement(t *testing.T) {
	g := demoGraph(t)
	p := Params{Delay: 2 * time.Millisecond, Loss: 0.1}
	for _, kind := range lab.FaultKinds() {
		seen := map[string]bool{}
		for seed := range uint64(300) {
			a, err := PlanFault(g, kind, seed, p)
			if err != nil {
				t.Fatal(err)
			}
			b, err := PlanFault(g, kind, seed, p)
			if err != nil || a.Fault != b.Fault {
				t.Fatalf("%s: seed %d plans %+v and %+v", kind, seed, a.Fault, b.Fault)
			}
			seen[a.Fault.At+a.Direction+a.Fault.Direction] = true
		}
		want := map[string]int{lab.KindDelay: 16, lab.KindLoss: 16, lab.KindBlackhole: 16, lab.KindECN: 16, lab.KindLinkDown: 8, lab.KindNICSlow: 24, lab.KindSwitchSlow: 6, lab.KindHostStall: 8,
			lab.KindClockStep: 8, lab.KindClockDrift: 8, lab.KindCongest: 16, lab.KindIncast: 8, lab.KindFlap: 8, lab.KindMute: 6, lab.KindMiscable: 28}[kind]
		if len(seen) != want {
			t.Errorf("%s: 300 seeds reach %d places, want %d", kind, len(seen), want)
		}
	}
	if _, err := PlanFault(g, "gremlins", 1, p); err == nil {
		t.Error("an unknown fault is planned")
	}
}

func TestSeedsChooseFaultsOfRouting(t *testing.T) {
	g := demoGraph(t)
	for kind, want := range map[string]struct {
		places int
		kind   fabric.Kind
	}{
		lab.KindBGPFlap: {8, fabric.KindLink}, lab.KindBFDFalse: {8, fabric.KindLink}, lab.KindWithdrawn: {8, fabric.KindSwitch}, lab.KindWrongASPath: {8, fabric.KindSwitch},
		lab.KindBlackholeFIB: {20, fabric.KindSwitch}, lab.KindECMPShrunk: {4, fabric.KindSwitch}, lab.KindSlowConvergence: {6, fabric.KindLink},
	} {
		seen := map[string]bool{}
		for seed := range uint64(300) {
			p, err := PlanFault(g, kind, seed, Params{})
			if err != nil {
				t.Fatal(err)
			}
			if p.Kind != want.kind || len(p.Scenarios) == 0 || p.Element == "" || (p.Then.Kind != "") != (kind == lab.KindSlowConvergence) {
				t.Fatalf("%s: seed %d plans %+v", kind, seed, p)
			}
			seen[p.Fault.At] = true
		}
		if len(seen) != want.places {
			t.Errorf("%s: 300 seeds reach %d places, want %d", kind, len(seen), want.places)
		}
	}
	if _, err := PlanFault(g, lab.KindPolarized, 1, Params{}); err == nil || !strings.Contains(err.Error(), "no place") {
		t.Errorf("polarized with two tiers: %v", err)
	}
}

// TestSeedsChooseFaultsOfChosenPaths checks the faults of a fabric of four spines and four leaves whose hosts choose paths.
func TestSeedsChooseFaultsOfChosenPaths(t *testing.T) {
	topo, found := fabric.ParseTopology("srv6.yaml", deploy.SRv6Topology)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	g := fabric.NewGraph(topo)
	for kind, want := range map[string]struct {
		places int
		kind   fabric.Kind
	}{lab.KindSIDUnknown: {32, fabric.KindSwitch}, lab.KindLinkDown: {16, fabric.KindLink}} {
		seen := map[string]bool{}
		for seed := range uint64(400) {
			p, err := PlanFault(g, kind, seed, Params{})
			if err != nil {
				t.Fatal(err)
			}
			if first, second, _ := strings.Cut(p.Fault.At, "->"); kind == lab.KindSIDUnknown && (p.Element != first || p.Params["neighbour"] != second || !p.ScenarioRight(&fabric.Verdict{Scenario: fabric.RoutingFault})) {
				t.Fatalf("seed %d plans %+v", seed, p)
			}
			if p.Kind != want.kind {
				t.Fatalf("%s: seed %d plans %+v", kind, seed, p)
			}
			seen[p.Fault.At] = true
		}
		if len(seen) != want.places {
			t.Errorf("%s: 400 seeds reach %d places, want %d", kind, len(seen), want.places)
		}
	}
	p, err := PlanFault(g, lab.KindSIDUnknown, 1, Params{})
	if said := describeFault(p); err != nil || !strings.HasPrefix(said, "sid-unknown at "+p.Element+" for the identifiers of ") {
		t.Errorf("the fault is described as %q, %v", said, err)
	}
	if _, err := PlanFault(demoGraph(t), lab.KindSIDUnknown, 1, Params{}); err == nil || !strings.Contains(err.Error(), "forwarding: srv6") {
		t.Errorf("sid-unknown where switches choose: %v", err)
	}
}

func TestNames(t *testing.T) {
	link := PlannedFault{Element: "leaf1:up1--spine1:dn1", Kind: fabric.KindLink, Direction: "spine1:dn1->leaf1:up1", Scenarios: []fabric.Scenario{fabric.Corridor}}
	nic := PlannedFault{Element: "h1/eth1", Kind: fabric.KindNIC}
	el := func(name string, kind fabric.Kind, eq ...fabric.Element) *fabric.Verdict {
		return &fabric.Verdict{Element: fabric.Element{ID: name, Kind: kind}, Equivalent: eq, Scenario: fabric.Corridor}
	}
	tests := []struct {
		p    PlannedFault
		v    *fabric.Verdict
		want bool
	}{
		{link, el("leaf1:up1--spine1:dn1", fabric.KindLink), true},
		{link, el("leaf1:up2--spine2:dn1", fabric.KindLink), false},
		{link, el("leaf1", fabric.KindSwitch, fabric.Element{ID: "leaf1:up1--spine1:dn1", Kind: fabric.KindLink}), false},
		{link, el("leaf1:up1", fabric.KindPort, fabric.Element{ID: "leaf1:up1--spine1:dn1", Kind: fabric.KindLink}), true},
		{link, el("leaf1:up1", fabric.KindPort), false},
		{nic, el("h1/eth1--leaf1:dn1", fabric.KindAccessLink, fabric.Element{ID: "h1/eth1", Kind: fabric.KindNIC}), true},
		{nic, nil, false},
		{PlannedFault{Element: "h1/eth2", Kind: fabric.KindClock}, el("h1/eth1", fabric.KindClock, fabric.Element{ID: "h1/eth2", Kind: fabric.KindClock}), true},
		{PlannedFault{Element: "h1/eth2", Kind: fabric.KindClock}, el("h1/eth1", fabric.KindClock), false},
		{PlannedFault{}, el("h1/eth1", fabric.KindNIC), false},
	}
	for i, tt := range tests {
		if got := tt.p.NamedBy(tt.v); got != tt.want {
			t.Errorf("case %d: %v, want %v", i, got, tt.want)
		}
	}
	v := el("leaf1:up1--spine1:dn1", fabric.KindLink)
	if link.DirectionRight(v) || !link.ScenarioRight(v) || !nic.DirectionRight(v) {
		t.Error("direction or scenario judged wrongly")
	}
}

func TestArguments(t *testing.T) {
	for _, c := range []struct{ fabric, routing, kinds, want string }{
		{Namespaces, lab.RoutingStatic, "delay, loss,none", ""},
		{Namespaces, lab.RoutingStatic, "delay,sid-unknown", `"sid-unknown" is one of chosen paths: network namespaces with forwarding srv6 are expected`},
		{Simulated, "", "sid-unknown", "forwarding srv6"},
		{Namespaces, "", "delay", ""},
		{Namespaces, lab.RoutingFRR, "delay,bgp-flap,withdrawn", ""},
		{Namespaces, lab.RoutingStatic, "delay,thunder", `"thunder": one of blackhole, `},
		{Namespaces, lab.RoutingFRR, "thunder", "polarized"},
		{Namespaces, lab.RoutingStatic, "delay,bgp-flap", `"bgp-flap" is one of routing: network namespaces with --routing frr are expected`},
		{Namespaces, "", "withdrawn", "--routing frr"},
		{Simulated, lab.RoutingStatic, "polarized", "--routing frr"},
		{InfiniBand, lab.RoutingStatic, "bfd-false", "--routing frr"},
		{InfiniBand, lab.RoutingStatic, "incast", `"incast": one of `},
	} {
		k, err := ParseKinds(c.fabric, c.routing, fabric.ECMP, c.kinds)
		switch {
		case c.want == "" && (err != nil || len(k) != strings.Count(c.kinds, ",")+1):
			t.Errorf("%s of %s, %s: %v, %v", c.kinds, c.fabric, c.routing, k, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s of %s, %s: %v, want an error with %s", c.kinds, c.fabric, c.routing, err, c.want)
		}
	}
	for _, k := range lab.RoutingFaultKinds() {
		if slices.Contains(FaultKinds(Namespaces, lab.RoutingStatic, fabric.ECMP), k) || !slices.Contains(FaultKinds(Namespaces, lab.RoutingFRR, fabric.ECMP), k) {
			t.Errorf("%s is offered without FRR, or not with it", k)
		}
	}
	if k, err := ParseKinds(Namespaces, lab.RoutingStatic, fabric.SRv6, "loss,sid-unknown"); err != nil || len(k) != 2 {
		t.Errorf("with forwarding srv6: %v, %v", k, err)
	}
	if k, err := ParseKinds(Simulated, "", fabric.SRv6, "sid-unknown"); err == nil {
		t.Errorf("simulated: %v", k)
	}
	if a, b, err := ParseSeeds("3..7"); err != nil || a != 3 || b != 7 {
		t.Errorf("%d %d %v", a, b, err)
	}
	for _, bad := range []string{"", "7..3", "a..b", "1..", "0..999999999"} {
		if _, _, err := ParseSeeds(bad); err == nil {
			t.Errorf("seeds %q pass", bad)
		}
	}
}
