package fabric

import (
	"fmt"
	"slices"
	"testing"
)

// threeTiers has two pods of two leaves and two spines each, two cores, and two hosts a leaf.
func threeTiers(t *testing.T) *Graph {
	t.Helper()
	topo, problems := LoadTopology("../lab/testdata/clos3.yaml")
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return NewGraph(topo)
}

func twoTiers(t *testing.T) *Graph {
	t.Helper()
	topo, problems := LoadTopology("../../deploy/lab/demo.yaml")
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return NewGraph(topo)
}

// everyElement returns the elements of all kinds that a topology has.
func everyElement(g *Graph) (all []Element) {
	for _, l := range g.Topo.Links {
		kind := KindLink
		if l.IsAccess() {
			kind = KindAccessLink
		}
		all = append(all, Element{ID: l.ID(), Kind: kind})
		for _, end := range []string{l.A, l.B} {
			if !IsNIC(end) {
				all = append(all, Element{ID: end, Kind: KindPort}, Element{ID: end + "@3", Kind: KindQueue})
			}
		}
	}
	for _, nic := range g.NICIDs() {
		all = append(all, Element{ID: nic, Kind: KindNIC})
	}
	for _, n := range g.Topo.Nodes {
		all = append(all, Element{ID: n.Name, Kind: KindHost})
	}
	for _, a := range g.Topo.Switches {
		all = append(all, Element{ID: a.Name, Kind: KindSwitch})
		if g.SwitchTier(a.Name) == 1 {
			all = append(all, Element{ID: a.Name, Kind: KindLeafUplinks})
		}
		for _, b := range g.Topo.Switches {
			if len(g.LinksBetween(a.Name, b.Name)) == 0 {
				continue
			}
			for _, c := range g.Topo.Switches {
				if c.Name != a.Name && len(g.LinksBetween(b.Name, c.Name)) > 0 {
					all = append(all, Element{ID: a.Name + "->" + b.Name + "->" + c.Name, Kind: KindCorridor})
				}
			}
		}
	}
	return all
}

// A path crosses an element when, and only when, it takes a direction of the element's footprint. A corridor needs
// one direction from each switch to the next.
func TestCrossedByAgreesWithFootprint(t *testing.T) {
	for name, g := range map[string]*Graph{"two tiers": twoTiers(t), "three tiers": threeTiers(t)} {
		elements := everyElement(g)
		kinds, crossed := map[Kind]int{}, map[Kind]int{}
		nics := g.NICIDs()
		for _, e := range elements {
			kinds[e.Kind]++
			footprint := e.Footprint(g)
			if len(footprint) == 0 {
				t.Errorf("%s: %s %s has no footprint", name, e.Kind, e.ID)
			}
			for _, src := range nics {
				for _, dst := range nics {
					if src == dst {
						continue
					}
					for _, p := range g.ShortestPaths(src, dst, 8) {
						taken := p.LinkDirections(src, dst)
						want := slices.ContainsFunc(taken, func(d Direction) bool { return slices.Contains(footprint, d) })
						if e.Kind == KindCorridor {
							n := 0
							for _, d := range taken {
								if slices.Contains(footprint, d) {
									n++
								}
							}
							want = n >= len(e.Waypoints())-1
						}
						got := e.CrossedBy(p, src, dst)
						if got {
							crossed[e.Kind]++
						}
						if got != want {
							t.Fatalf("%s: %s %s and the path %s from %s to %s: CrossedBy %v, by the footprint %v", name, e.Kind, e.ID, p.CanonicalKey(), src, dst, got, want)
						}
					}
				}
			}
		}
		for kind := range kinds {
			if crossed[kind] == 0 {
				t.Errorf("%s: no path crosses any element of kind %s", name, kind)
			}
		}
		t.Logf("%s: %v", name, kinds)
	}
}

func TestCrossedByOfPairsAndClocks(t *testing.T) {
	g := twoTiers(t)
	src := g.NICIDs()[0]
	for _, dst := range g.NICIDs()[1:] {
		for _, p := range g.ShortestPaths(src, dst, 4) {
			from, to := p[0].Switch, p[len(p)-1].Switch
			for _, c := range []struct {
				pair string
				want bool
			}{{from + "->" + to, true}, {to + "->" + from, from == to}, {from + "->" + from, from == to}} {
				if got := (Element{ID: c.pair, Kind: KindPair}).CrossedBy(p, src, dst); got != c.want {
					t.Errorf("pair %s and %s: %v, want %v", c.pair, p.CanonicalKey(), got, c.want)
				}
			}
			if (Element{ID: src, Kind: KindClock}).CrossedBy(p, src, dst) {
				t.Errorf("a path crosses the clock of %s", src)
			}
		}
	}
	if got := (Element{ID: "leaf1->leaf2", Kind: KindPair}).Footprint(g); got != nil {
		t.Errorf("a pair has the footprint %v", got)
	}
}

// Uplinks lead to a higher tier, whatever else a switch is cabled to.
func TestUplinksLeadToAHigherTier(t *testing.T) {
	topo, problems := ParseTopology("t.yaml", []byte(`version: 1
switches:
  - {name: leaf1, role: leaf}
  - {name: leaf2, role: leaf}
  - {name: spine1, role: spine}
nodes:
  - name: h1
    nics: [{device: eth1}]
  - name: h2
    nics: [{device: eth1}]
links:
  - {a: "h1/eth1", b: "leaf1:dn1"}
  - {a: "h2/eth1", b: "leaf2:dn1"}
  - {a: "leaf1:up1", b: "spine1:dn1"}
  - {a: "leaf2:up1", b: "spine1:dn2"}
  - {a: "leaf1:peer", b: "leaf2:peer"}
`))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	g := NewGraph(topo)
	for sw, want := range map[string]string{"leaf1": "[leaf1:up1]", "leaf2": "[leaf2:up1]", "spine1": "[]"} {
		if got := fmt.Sprint(g.Uplinks(sw)); got != want {
			t.Errorf("uplinks of %s: %s, want %s", sw, got, want)
		}
	}
}

func TestPartsOfElements(t *testing.T) {
	for _, c := range []struct {
		element   Element
		port      string
		ends, way string
	}{
		{Element{ID: "leaf1:up1@3", Kind: KindQueue}, "leaf1:up1", "[leaf1:up1]", "[]"},
		{Element{ID: "leaf1:Ethernet1/2", Kind: KindPort}, "leaf1:Ethernet1/2", "[leaf1:Ethernet1/2]", "[]"},
		{Element{ID: "leaf1:up1--spine1:dn1", Kind: KindLink}, "", "[leaf1:up1 spine1:dn1]", "[]"},
		{Element{ID: "h1/eth1--leaf1:dn1", Kind: KindAccessLink}, "", "[h1/eth1 leaf1:dn1]", "[]"},
		{Element{ID: "h1/eth1", Kind: KindClock}, "", "[h1/eth1]", "[]"},
		{Element{ID: "a->b->c", Kind: KindCorridor}, "", "[]", "[a b c]"},
		{Element{ID: "a->b", Kind: KindPair}, "", "[]", "[a b]"},
		{Element{ID: "leaf1", Kind: KindSwitch}, "", "[]", "[]"},
	} {
		e := c.element
		if e.Port() != c.port || fmt.Sprint(e.Ends()) != c.ends || fmt.Sprint(e.Waypoints()) != c.way {
			t.Errorf("%s %s: port %q, ends %v, waypoints %v", e.Kind, e.ID, e.Port(), e.Ends(), e.Waypoints())
		}
	}
}
