package srv6

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

func TestLocatorsAreOfSwitches(t *testing.T) {
	if l := LocatorOf(fabric.Locator{}); l.IsValid() {
		t.Errorf("no locator became %v", l)
	}
	for _, text := range []string{"fcbb:bb00:1::/48", "5f00:0:dfff::/48"} {
		l, err := fabric.ParseLocator(text)
		if got := LocatorOf(l); err != nil || got.String() != text || !got.IsValid() || got.Block.Prefix() != l.Block() {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	inFile, _ := fabric.ParseLocator("fcbb:bb00:7::/48")
	l := LocatorOf(inFile)
	for _, test := range []struct{ got, want string }{
		{l.DecapsulationPrefix().String(), "fcbb:bb00:7:e000::/64"},
		{l.Block.String(), "fcbb:bb00::/32"},
		{l.Block.AdjacencyPrefix(0xf003).String(), "fcbb:bb00:f003::/48"},
	} {
		if test.got != test.want {
			t.Errorf("got %s, want %s", test.got, test.want)
		}
	}
}

// The first two are of others: a test of ROSE's srv6_utils (segments_to_micro_segment), and a switch's function in a lab of VPP.
var vectors = []struct {
	address string
	block   string
	sids    []SID
}{
	{"fcbb:bb00:0001:0002:0003::", "fcbb:bb00::/32", []SID{1, 2, 3}},
	{"fcbb:bb00:0001:f0ef::", "fcbb:bb00::/32", []SID{1, 0xf0ef}},
	{"fcbb:bb00:11:22:13:e000::", "fcbb:bb00::/32", []SID{0x11, 0x22, 0x13, Decapsulate}},
	{"5f00:1:1:2:3:4:5:6", "5f00:1::/32", []SID{1, 2, 3, 4, 5, 6}},
}

func TestCarriersAreThoseOfOthers(t *testing.T) {
	for _, v := range vectors {
		want := netip.MustParseAddr(v.address)
		got, err := EncodeCarrier(BlockOf(want), v.sids...)
		if err != nil || got != want {
			t.Errorf("encoded %v: got %v, %v, want %v", v.sids, got, err, want)
		}
		block, sids, err := DecodeCarrier(want)
		if err != nil || block.String() != v.block || !slices.Equal(sids, v.sids) {
			t.Errorf("decoded %v: got %v %v, %v", want, block, sids, err)
		}
		if FirstSID(want) != v.sids[0] || !block.Contains(want) || block.Contains(netip.MustParseAddr("fd00::1")) {
			t.Errorf("%v: first %v, in block %v", want, FirstSID(want), block.Contains(want))
		}
	}
}

// The steps of a carrier as in RFC 9800, section 4.1: after each End the next identifier comes first.
func TestCarriersShift(t *testing.T) {
	a := netip.MustParseAddr("fcbb:bb00:11:22:13:e000::")
	for _, want := range []string{"fcbb:bb00:22:13:e000::", "fcbb:bb00:13:e000::", "fcbb:bb00:e000::"} {
		var ok bool
		if a, ok = Shift(a); !ok || a != netip.MustParseAddr(want) {
			t.Fatalf("got %v, %v, want %s", a, ok, want)
		}
	}
	if last, ok := Shift(a); ok || last != a {
		t.Errorf("the last identifier was shifted to %v", last)
	}
}

func TestCarriersAreRefused(t *testing.T) {
	block := Block{0xfc, 0xbb, 0xbb, 0}
	if _, err := EncodeCarrier(block, 1, 2, 3, 4, 5, 6, 7); !errors.Is(err, ErrTooLong) {
		t.Errorf("seven identifiers: %v", err)
	}
	for _, sids := range [][]SID{nil, {1, 0, 2}} {
		if a, err := EncodeCarrier(block, sids...); err == nil {
			t.Errorf("%v became %v", sids, a)
		}
	}
	for _, s := range []string{"fcbb:bb00::", "fcbb:bb00:0:1::", "10.0.0.1", "::ffff:10.0.0.1", "fcbb:bb00:1::%eth0"} {
		if _, sids, err := DecodeCarrier(netip.MustParseAddr(s)); err == nil {
			t.Errorf("%s became %v", s, sids)
		}
	}
	if FirstSID(netip.Addr{}) != 0 || FirstSID(netip.MustParseAddr("10.0.0.1")) != 0 {
		t.Error("an address of no carrier has an identifier")
	}
}

func TestAdjacencies(t *testing.T) {
	for _, test := range []struct {
		number int
		want   SID
	}{{0, 0xf000}, {1, 0xf001}, {4095, 0xffff}} {
		if got, err := Adjacency(test.number); err != nil || got != test.want || !got.IsAdjacency() || got.IsNode() {
			t.Errorf("link %d: got %v, %v", test.number, got, err)
		}
	}
	for _, n := range []int{-1, 4096} {
		if got, err := Adjacency(n); err == nil {
			t.Errorf("link %d: got %v", n, got)
		}
	}
}

func FuzzCarrier(f *testing.F) {
	for _, v := range vectors {
		a := netip.MustParseAddr(v.address).As16()
		f.Add(a[:])
	}
	f.Fuzz(func(t *testing.T, octets []byte) {
		a, ok := netip.AddrFromSlice(octets)
		if !ok {
			return
		}
		block, sids, err := DecodeCarrier(a)
		if err != nil {
			return
		}
		if back, err := EncodeCarrier(block, sids...); err != nil || back != a {
			t.Fatalf("%v became %v, %v", a, back, err)
		}
		// The kernel moves the argument over the function and clears what it leaves (seg6_next_csid_advance_arg).
		for i := range sids {
			if FirstSID(a) != sids[i] || !block.Contains(a) {
				t.Fatalf("step %d of %v is %v", i, sids, a)
			}
			next, shifted := Shift(a)
			if shifted != (i+1 < len(sids)) {
				t.Fatalf("step %d of %v was shifted: %v", i, sids, shifted)
			}
			a = next
		}
	})
}
