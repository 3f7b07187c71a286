package lab

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/srv6"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

// needsSegments skips a test on a machine that cannot have a lab whose hosts choose paths.
func needsSegments(t *testing.T, tools ...string) {
	t.Helper()
	needs(t, tools...)
	if err := checkSegments(); err != nil {
		testneeds.Missing(t, err.Error())
	}
}

func segmentsOfLabs() []segment {
	via := netip.MustParseAddr("fd00:f::1")
	return []segment{
		{action: actionEnd, block: 32, shift: 16},
		{action: actionEndX, via: via, block: 32, shift: 16},
		{action: actionEndX, via: via, block: 32, shift: 32},
		{action: actionEndDT6, table: mainTable},
	}
}

// TestSegmentsInTheKernel reads back from the kernel what was added.
func TestSegmentsInTheKernel(t *testing.T) {
	needsSegments(t)
	for n, s := range segmentsOfLabs() {
		err := unix.InNewNetns(func() error {
			return withHandle(func(h *netlink.Handle) error {
				lo, err := raiseLoopback(h)
				if err != nil {
					return err
				}
				p := netip.MustParsePrefix("fcbb:bb00:1::/48")
				r := segmentRoute(p, &s)
				nr := r.netlinkRoute(nil, map[string]int{"lo": lo.Attrs().Index})
				if err := h.RouteReplace(nr); err != nil {
					return err
				}
				got, err := routeQuery{src: netip.IPv6Loopback(), dst: p.Addr(), proto: syscall.IPPROTO_IPV6}.requestRoute(lo.Attrs().Index)
				if err != nil {
					return err
				}
				if *got.segment != s {
					t.Errorf("%s became %s", &s, got.segment)
				}
				have, err := staticRoutes(h, ipv6Family)
				if err != nil {
					return err
				}
				for i, o := range segmentsOfLabs() {
					r.segment = &o
					// Package netlink does not read what is removed, which nothing but the lab changes.
					if same, want := sameRoute(have[routeKey{localTable, p, 0}], r.netlinkRoute(nil, map[string]int{"lo": lo.Attrs().Index})), i == n || i+n == 3 && i*n == 2; same != want {
						t.Errorf("the kernel's route of %s is that of %s: %t", &s, &o, same)
					}
				}
				return nil
			})
		})
		if err != nil {
			t.Errorf("%s: %v", &s, err)
		}
	}
}

func TestBadSegments(t *testing.T) {
	for _, s := range segmentsOfLabs() {
		b, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		var got segment
		if err := got.Decode(b); err != nil || got != s || !got.Equal(&s) {
			t.Errorf("%s became %s, %v", &s, &got, err)
		}
	}
	other := []byte{12, 0, attrFlavors, 0, 8, 0, flavorOps, 0, 1 << 1, 0, 0, 0} // PSP
	short := []byte{6, 0, attrAction, 0, 1, 0, 0, 0}
	for name, b := range map[string][]byte{"another flavor": other, "a short action": short, "a short attribute": {200, 0, 1, 0}, "an empty flavor": {8, 0, attrFlavors, 0, 4, 0, flavorNode, 0}} {
		var s segment
		if err := s.Decode(b); err == nil {
			t.Errorf("%s is read as %s", name, &s)
		}
	}
	err := explainSegments(syscall.EOPNOTSUPP)
	if !errors.Is(err, syscall.EOPNOTSUPP) || !strings.Contains(err.Error(), "CONFIG_IPV6_SEG6_LWTUNNEL") || explainSegments(nil) != nil {
		t.Errorf("a kernel without segments: %v", err)
	}
}

func FuzzDecodeSegment(f *testing.F) {
	for _, s := range segmentsOfLabs() {
		b, _ := s.Encode()
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s, again segment
		if s.Decode(b) != nil {
			return
		}
		out, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Decode(out); err != nil || s.shift != 0 && again != s || again.action != s.action || again.table != s.table || again.via != s.via {
			t.Errorf("%+v became %+v, %v", s, again, err)
		}
	})
}

// TestNextCarrier compares what the kernel's attributes say with package srv6, which has its vectors from RFC 9800.
func TestNextCarrier(t *testing.T) {
	end, both := segmentsOfLabs()[0], segmentsOfLabs()[2]
	for _, a := range []string{"fcbb:bb00:1:2:3:e000::", "fcbb:bb00:1::", "fcbb:bb00:1:2:3:4:5:6", "fcbb:bb00:1:2::", "fcbb:bb00:1::2"} {
		carrier := netip.MustParseAddr(a)
		want, ok := srv6.Shift(carrier)
		got, err := end.nextCarrier(carrier)
		if got != want || (err == nil) != ok || err != nil && !errors.Is(err, errEndOfCarrier) {
			t.Errorf("behind %s comes %s, %v, want %s, %t", carrier, got, err, want, ok)
		}
		twice, ok := srv6.Shift(want)
		if got, err := both.nextCarrier(carrier); ok && (got != twice || err != nil) || !ok && err == nil {
			t.Errorf("two behind %s comes %s, %v, want %s, %t", carrier, got, err, twice, ok)
		}
	}
	for _, s := range []segment{{block: 32}, {block: 33, shift: 16}, {block: 32, shift: 15}, {block: 64, shift: 64}} {
		if got, err := s.nextCarrier(netip.MustParseAddr("fcbb:bb00:1:2::")); err == nil {
			t.Errorf("%d bits behind %d are removed: %s", s.shift, s.block, got)
		}
	}
	if !slices.Contains(AllFaultKinds(), KindSIDUnknown) {
		t.Error("the fault is not listed")
	}
}
