package lab

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

func TestNextSubnet(t *testing.T) {
	for _, c := range []struct {
		from string
		bits int
		want string
	}{
		{"10.0.0.0", 24, "10.0.1.0"},
		{"10.0.255.0", 24, "10.1.0.0"},
		{"172.16.1.254", 31, "172.16.2.0"},
		{"10.0.0.255", 32, "10.0.1.0"},
		{"255.255.255.0", 24, "invalid IP"},
		{"fd00:a::", 64, "fd00:a:0:1::"},
		{"fd00:a:0:ffff::", 64, "fd00:a:1::"},
		{"fd00:f:0:1::fffe", 127, "fd00:f:0:1::1:0"},
		{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 128, "invalid IP"},
	} {
		if got := nextSubnet(netip.MustParseAddr(c.from), c.bits).String(); got != c.want {
			t.Errorf("after %s/%d: %s, want %s", c.from, c.bits, got, c.want)
		}
	}
}

func TestAbsentAddressesOfIPv6(t *testing.T) {
	topo, family, err := completeAddresses(load(t, clos3File), FamilyIPv6)
	if err != nil || family != ipv6Family {
		t.Fatal(family, err)
	}
	for i, l := range topo.Links {
		pool, bits := ipv6Family.fabricPool, 127
		if l.IsAccess() {
			pool, bits = ipv6Family.accessPool, 64
		}
		for _, p := range []netip.Prefix{l.AAddress, l.BAddress} {
			if !pool.Contains(p.Addr()) || p.Bits() != bits || bits == 64 && p.Masked().Addr() == p.Addr() {
				t.Errorf("%s has %s, want a /%d of %s", l.ID(), p, bits, pool)
			}
		}
		if l.AAddress.Masked() != l.BAddress.Masked() {
			t.Errorf("%s has subnets %s and %s", l.ID(), l.AAddress, l.BAddress)
		}
		for _, o := range topo.Links[i+1:] {
			if o.AAddress.Overlaps(l.AAddress) {
				t.Errorf("%s and %s share %s", l.ID(), o.ID(), o.AAddress)
			}
		}
	}
	x, err := planLayout("x", topo)
	if err != nil || x.family() != ipv6Family {
		t.Errorf("the layout of completed addresses: %v, %v", x, err)
	}
	for family, want := range map[string]string{FamilyIPv4: "this one's is IPv4 (was asked for)", "ipx": `family "ipx": want one of ipv4, ipv6`} {
		if _, _, err := completeAddresses(topo, family); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", family, err, want)
		}
	}
}

// TestRulesOfIPv6: rules match what is forwarded, and not what neighbours exchange.
func TestRulesOfIPv6(t *testing.T) {
	x, err := planLayout("x", load(t, demoFileV6))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		fault Fault
		want  string
	}{
		{Fault{Kind: KindBlackhole, At: spineLink}, "leaf1 POSTROUTING -o up1 ! -s fe80::/10 -j DROP"},
		{Fault{Kind: KindDelay, At: "h1/eth1->leaf1:dn1"}, "leaf1 PREROUTING -i dn1 ! -s fe80::/10"},
		{Fault{Kind: KindMute, At: "spine1"}, "spine1 OUTPUT -p icmpv6 --icmpv6-type time-exceeded -j DROP"},
		{Fault{Kind: KindSwitchSlow, At: "spine1"}, "spine1 FORWARD"},
	} {
		af, err := x.resolveFault(c.fault, func() bool { return false })
		if err != nil || len(af.Rules) != 1 {
			t.Errorf("%+v: %+v, %v", c.fault, af.Rules, err)
			continue
		}
		r := af.Rules[0]
		if got := strings.TrimSpace(r.Element + " " + r.Chain + " " + strings.Join(r.Args, " ")); got != c.want {
			t.Errorf("%+v: rule %q, want %q", c.fault, got, c.want)
		}
	}
}

// TestSwappedCablesKeepTheFamily: routes of a lab with swapped cables are those of its family.
func TestSwappedCablesKeepTheFamily(t *testing.T) {
	x, err := planLayout("x", load(t, demoFileV6))
	if err != nil {
		t.Fatal(err)
	}
	if got := x.withSwappedCables(spineLink, fabric.LinkID("leaf3:up2", "spine2:dn3")).family(); got != ipv6Family {
		t.Errorf("family %s", got.name)
	}
}
