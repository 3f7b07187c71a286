package fabric

import (
	"strings"
	"testing"
)

// sourceRouted is a fabric with locators, of which only one of the two switches of a tier joins its neighbours by two links.
const sourceRouted = `version: 1
forwarding: srv6
switches:
  - {name: leaf1, role: leaf, locator: "fcbb:bb00:1::/48"}
  - {name: leaf2, role: leaf, locator: "fcbb:bb00:dfff::/48"}
  - {name: spine1, role: spine, locator: "fcbb:bb00:101::/48"}
nodes:
  - {name: h1, nics: [{device: eth1}]}
  - {name: h2, nics: [{device: eth1}]}
links:
  - {a: h1/eth1, b: "leaf1:dn1"}
  - {a: h2/eth1, b: "leaf2:dn1"}
  - {a: "leaf1:up1", b: "spine1:dn1"}
  - {a: "leaf1:up2", b: "spine1:dn2"}
  - {a: "leaf2:up1", b: "spine1:dn3"}
`

func TestLocators(t *testing.T) {
	g := parse(t, sourceRouted)
	if !g.Topo.IsSourceRouted() || g.Topo.Sprays() || parse(t, small).Topo.IsSourceRouted() {
		t.Error("the kinds of forwarding are mixed up")
	}
	l := g.Switch("leaf2").Locator
	if l.String() != "fcbb:bb00:dfff::/48" || l.Block().String() != "fcbb:bb00::/32" || l.IsZero() || !(Locator{}).IsZero() {
		t.Errorf("locator %s in block %s", l, l.Block())
	}
	for n, want := range map[int]string{1: "fcbb:bb00:1::/48", 0x1ff: "fcbb:bb00:1ff::/48", 0xdfff: "fcbb:bb00:dfff::/48", 0: "", 0xe000: ""} {
		got, err := l.NumberedLocator(n)
		if (err != nil) != (want == "") || err == nil && got.String() != want {
			t.Errorf("locator %d is %s, %v, want %q", n, got, err, want)
		}
		if again, err := ParseLocator(want); want != "" && (err != nil || again != got) {
			t.Errorf("locator %s is read as %s, %v", want, again, err)
		}
	}
	for _, bad := range []string{"fcbb:bb00:1::/64", "fcbb:bb00:1:2::/48", "fcbb:bb00::/48", "fcbb:bb00:e000::/48", "fcbb:bb00:f001::/48", "0:0:1::/48", "::/48", "::ffff:1:0/48", "10.0.0.0/8",
		"10.0.0.0/24", "ff02:0:1::/48", "ff05:0:1::/48", "fe80:0:1::/48", "fcbb:bb00:1::1/48", "fcbb:bb00:1::", "", "7"} {
		if l, err := ParseLocator(bad); err == nil || !l.IsZero() {
			t.Errorf("%q is read as locator %s, %v", bad, l, err)
		}
	}
	for _, good := range []string{"fcbb:bb00:1::/48", "2001:db8:1::/48", "5f00:0:dfff::/48"} {
		if l, err := ParseLocator(good); err != nil || l.String() != good {
			t.Errorf("%q is read as locator %s, %v", good, l, err)
		}
	}
	for end, want := range map[string]int{"leaf1:dn1": 0, "leaf1:up1": 1, "leaf1:up2": 2, "spine1:dn3": 2, "leaf1:up3": -1, "h1/eth1": -1, "leaf9:up1": -1} {
		if got := g.PortNumber(end); got != want {
			t.Errorf("port %s has number %d, want %d", end, got, want)
		}
	}
	if _, found := ParseTopology("t.yaml", []byte(strings.Replace(sourceRouted, `locator: "fcbb:bb00:101::/48"`, "discovered: true", 1))); found.Err() != nil {
		t.Errorf("a switch that was discovered needs a locator: %v", found.Err())
	}
}
