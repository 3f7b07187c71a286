package fabric

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// partsOf returns the parts that the pods of a fabric are, the first of them with the core if there is one.
func partsOf(t *testing.T, g *Graph) (parts []*Part) {
	t.Helper()
	for i, pod := range g.podNames() {
		p, err := NewPart(g, []string{pod}, i == 0 && g.hasCore())
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	return parts
}

// TestEveryElementHasOneOwner: of parts that have all pods together, one has each element and each flow.
func TestEveryElementHasOneOwner(t *testing.T) {
	g := threeTiers(t)
	parts := partsOf(t, g)
	all := everyElement(g)
	for _, a := range g.Topo.Switches {
		for _, b := range g.Topo.Switches {
			all = append(all, Element{ID: a.Name + "->" + b.Name, Kind: KindPair})
		}
	}
	for _, e := range all {
		owners := 0
		for _, p := range parts {
			if p.Owns(e) {
				owners++
			}
		}
		if owners != 1 {
			t.Errorf("%s %s has %d owners", e.Kind, e.ID, owners)
		}
	}
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			owners := 0
			for _, p := range parts {
				if p.OwnsFlow(Flow{Src: src, Dst: dst}) {
					owners++
				}
			}
			if owners != 1 {
				t.Errorf("the flow %s>%s has %d owners", src, dst, owners)
			}
		}
	}
}

// TestFlowsThatCrossAPod: a flow that crosses an element of a pod begins or ends there, by all shortest paths, and so concerns
// its part. That the owner of a pod reads the flows of its NICs is enough for that reason.
func TestFlowsThatCrossAPod(t *testing.T) {
	g := threeTiers(t)
	crossed := map[Element]int{}
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			for _, path := range g.ShortestPaths(src, dst, 64) {
				for _, e := range everyElement(g) {
					pod := g.ownerOf(e)
					if pod == corePart || !e.CrossedBy(path, src, dst) {
						continue
					}
					crossed[e]++
					if pod != g.PodOf(src) && pod != g.PodOf(dst) {
						t.Fatalf("%s>%s crosses %s %s of pod %s", src, dst, e.Kind, e.ID, pod)
					}
				}
			}
		}
	}
	if len(crossed) < len(g.Topo.Links) {
		t.Errorf("only %d elements are crossed", len(crossed))
	}
}

// TestOwners checks who owns what stands between pods.
func TestOwners(t *testing.T) {
	g := threeTiers(t)
	parts := partsOf(t, g)
	var core, up string
	for i := range g.Topo.Switches {
		if s := &g.Topo.Switches[i]; s.PodName() == "" && core == "" {
			core = s.Name
		}
	}
	for _, end := range g.EndsOf(core) {
		if peer := g.PeerOf(end); g.PodOf(peer) == "p2" {
			up = LinkID(end, peer)
		}
	}
	_, port, _ := SplitLink(up)
	if g.PodOf(port) == "p2" {
		port = g.PeerOf(port)
	}
	for name, c := range map[string]struct {
		of    Element
		first bool // else the second pod
	}{
		"a core switch":              {of: Element{Kind: KindSwitch, ID: core}, first: true},
		"a link to the core":         {of: Element{Kind: KindLink, ID: up}},
		"the core's port to a pod":   {of: Element{Kind: KindPort, ID: port}},
		"leaves of two pods":         {of: Element{Kind: KindPair, ID: "p2l1->p1l1"}, first: true},
		"leaves of one pod":          {of: Element{Kind: KindPair, ID: "p2l1->p2l2"}},
		"a way out of the other pod": {of: Element{Kind: KindCorridor, ID: "p2l1->p2s1->" + core}},
		"the uplinks of a leaf":      {of: Element{Kind: KindLeafUplinks, ID: "p2l1"}},
	} {
		if parts[0].Owns(c.of) != c.first || parts[1].Owns(c.of) == c.first {
			t.Errorf("%s: %t and %t", name, parts[0].Owns(c.of), parts[1].Owns(c.of))
		}
	}
	own, all := parts[0].Names()
	if !slices.Equal(own, []string{"core", "p1"}) || !slices.Equal(all, []string{"core", "p1", "p2"}) {
		t.Errorf("%q of %q", own, all)
	}
	var whole *Part
	if own, all := whole.Names(); own != nil || all != nil || !whole.Owns(Element{Kind: KindSwitch, ID: core}) || !whole.Concerns(Flow{}) {
		t.Error("nil is not the whole fabric")
	}
}

// TestBadParts checks that parts which cannot work are refused.
func TestBadParts(t *testing.T) {
	three := threeTiers(t)
	unnamed, clash, groups := *three.Topo, *three.Topo, *three.Topo
	unnamed.Switches, clash.Switches, groups.Switches = slices.Clone(unnamed.Switches), slices.Clone(clash.Switches), slices.Clone(groups.Switches)
	for i := range unnamed.Switches {
		if unnamed.Switches[i].Name == "p1l1" {
			unnamed.Switches[i].Pod = ""
		}
		if clash.Switches[i].Pod == "p1" {
			clash.Switches[i].Pod = CoreName
		}
		if groups.Switches[i].Pod == "" {
			groups.Switches[i].Pod = "p3"
		}
	}
	for want, c := range map[string]struct {
		g    *Graph
		pods []string
		core bool
	}{
		`no switch has the pod or group "p7": one of "p1", "p2" is expected`:              {three, []string{"p1", "p7"}, false},
		`a pod is expected for each leaf: "p1l1" has none`:                                {NewGraph(&unnamed), []string{"p2"}, false},
		`"core" is the name of what is above all pods: another name`:                      {NewGraph(&clash), []string{"core"}, false},
		"every switch has a pod or a group, so that nothing is above them":                {NewGraph(&groups), []string{"p1"}, true},
		"the topology has 2 tiers: pods are parts of a fabric with a tier above them, or": {twoTiersWithPods(t), []string{"x"}, false},
	} {
		if _, err := NewPart(c.g, c.pods, c.core); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		} else if c.core != errors.Is(err, ErrNoCore) {
			t.Errorf("%v: of a core: %t", err, errors.Is(err, ErrNoCore))
		}
	}
}

// twoTiersWithPods returns a fabric of two tiers whose leaves have a pod.
func twoTiersWithPods(t *testing.T) *Graph {
	t.Helper()
	topo := *twoTiers(t).Topo
	topo.Switches = slices.Clone(topo.Switches)
	for i := range topo.Switches {
		if topo.Switches[i].Role == Leaf {
			topo.Switches[i].Pod = "x"
		}
	}
	return NewGraph(&topo)
}
