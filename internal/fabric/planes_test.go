package fabric

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// twoPlanes is the text of a fabric of two planes. One NIC has the plane of its leaf.
const twoPlanes = `
version: 1
switches:
  - {name: a1, role: leaf, plane: a}
  - {name: a2, role: leaf, plane: a}
  - {name: as, role: spine, plane: a}
  - {name: b1, role: leaf, plane: b}
  - {name: b2, role: leaf, plane: b}
  - {name: bs, role: spine, plane: b}
nodes:
  - {name: h1, nics: [{device: eth1, plane: a}, {device: eth2}], bonds: [{name: bond0, members: [eth1, eth2]}]}
  - {name: h2, nics: [{device: eth1, plane: a}, {device: eth2, plane: b}], bonds: [{name: bond0, members: [eth2]}]}
links:
  - {a: h1/eth1, b: "a1:dn1"}
  - {a: h2/eth1, b: "a2:dn1"}
  - {a: "a1:up1", b: "as:dn1"}
  - {a: "a2:up1", b: "as:dn2"}
  - {a: h1/eth2, b: "b1:dn1"}
  - {a: h2/eth2, b: "b2:dn1"}
  - {a: "b1:up1", b: "bs:dn1"}
  - {a: "b2:up1", b: "bs:dn2"}
`

// TestOnlyPlanes checks which part of a topology a plane is, and what is refused.
func TestOnlyPlanes(t *testing.T) {
	whole, found := ParseTopology("t.yaml", []byte(twoPlanes))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		planes []string
		want   string
	}{
		{[]string{"a"}, "[a1 a2 as] [h1/eth1 h2/eth1] 4 links, bonds [bond0(eth1)]"},
		{[]string{"b"}, "[b1 b2 bs] [h1/eth2 h2/eth2] 4 links, bonds [bond0(eth2) bond0(eth2)]"},
		{[]string{"b", "a"}, "[a1 a2 as b1 b2 bs] [h1/eth1 h1/eth2 h2/eth1 h2/eth2] 8 links, bonds [bond0(eth1 eth2) bond0(eth2)]"},
	} {
		part, err := whole.OnlyPlanes(c.planes)
		if err != nil {
			t.Fatal(err)
		}
		var switches, bonds []string
		for i := range part.Switches {
			switches = append(switches, part.Switches[i].Name)
		}
		for i := range part.Nodes {
			for _, b := range part.Nodes[i].Bonds {
				bonds = append(bonds, b.Name+"("+strings.Join(b.Members, " ")+")")
			}
		}
		if got := fmt.Sprintf("%v %v %d links, bonds %v", switches, NewGraph(part).NICIDs(), len(part.Links), bonds); got != c.want || len(part.Nodes) != 2 {
			t.Errorf("planes %q: %s, want %s", c.planes, got, c.want)
		}
	}
	if g := NewGraph(whole); len(g.NICIDs()) != 4 || g.PlaneOf("h1/eth2") != "b" || g.PlaneOf("h9/eth1") != "" {
		t.Errorf("the whole topology changed: %v, plane %q", g.NICIDs(), g.PlaneOf("h1/eth2"))
	}
	if _, err := whole.OnlyPlanes([]string{"a", "c"}); err == nil || !strings.Contains(err.Error(), `plane "c" has no NIC in the topology: one of "a", "b" is expected`) {
		t.Errorf("an unknown plane: %v", err)
	}
	joined := *whole
	joined.Links = append(slices.Clone(whole.Links), Link{A: "as:x", B: "bs:x"})
	if _, err := joined.OnlyPlanes([]string{"a"}); err == nil || !strings.Contains(err.Error(), "the cable as:x--bs:x leaves the planes a") {
		t.Errorf("a cable between planes: %v", err)
	}
	unnamed := *whole
	unnamed.Switches = slices.Clone(whole.Switches)
	unnamed.Switches[2].Plane = ""
	if part, err := unnamed.OnlyPlanes([]string{"a"}); err != nil || len(part.Switches) != 3 || len(part.Links) != 4 {
		t.Errorf("a spine without a plane: %+v, %v", part, err)
	}
	unnamed.Links = append(slices.Clone(whole.Links), Link{A: "as:x", B: "bs:x"})
	if _, err := unnamed.OnlyPlanes([]string{"a"}); err == nil || !strings.Contains(err.Error(), "the cable as:x--bs:x leaves the planes a") {
		t.Errorf("a spine without a plane that is joined to another: %v", err)
	}
	if part, err := joined.OnlyPlanes([]string{"a", "b"}); err != nil || len(part.Links) != 9 {
		t.Errorf("both planes: %v", err)
	}
}
