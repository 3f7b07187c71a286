package rdma

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func entry(index int, kind GIDType, addr string) GID {
	return GID{Index: index, Type: kind, Addr: CanonicalGID(netip.MustParseAddr(addr))}
}

func at(i int) *int { return &i }

func TestSelect(t *testing.T) {
	v1, v2, local := entry(0, GIDRoCEv1, "10.0.0.1"), entry(3, GIDRoCEv2, "10.0.0.1"), entry(1, GIDRoCEv2, "fe80::1")
	global := entry(5, GIDRoCEv2, "fd00::1")
	moved := entry(7, GIDRoCEv2, "10.0.0.1")
	for _, tc := range []struct {
		name  string
		table []GID
		ib    bool
		wish  GIDChoice
		had   *GID
		want  GID
		fault error
		text  string
	}{
		{name: "IPv4-mapped before global before link-local", table: []GID{local, global, v1, v2}, want: v2},
		{name: "global before link-local", table: []GID{local, global}, want: global},
		{name: "RoCE v2 before v1", table: []GID{v1, v2}, want: v2},
		{name: "by name, link-local", table: []GID{local, v2}, wish: GIDChoice{GID: netip.MustParseAddr("fe80::1")}, want: local},
		{name: "by name, in plain IPv4", table: []GID{global, v2}, wish: GIDChoice{GID: netip.MustParseAddr("10.0.0.1")}, want: v2},
		{name: "by index", table: []GID{local, global, v2}, wish: GIDChoice{Index: at(5)}, want: global},
		{name: "the one in use stays", table: []GID{v2, global}, had: &global, want: global},
		{name: "the one in use, at another index", table: []GID{global, moved}, had: &v2, want: moved},
		{name: "the one in use is gone", table: []GID{global}, had: &v2, want: global},
		{name: "InfiniBand's default", table: []GID{entry(0, GIDInfiniBand, "fe80::2:c903:0:1")}, ib: true, want: entry(0, GIDInfiniBand, "fe80::2:c903:0:1")},
		{name: "empty", fault: ErrNoGIDs, text: "RDMA device mlx5_0 port 2: GID table: the table is empty: want an address on its network interface"},
		{name: "only link-local", table: []GID{local}, fault: ErrOnlyLinkLocal, text: "RDMA device mlx5_0 port 2: GID table: the table has only link-local GIDs"},
		{name: "IPv4 link-local", table: []GID{entry(0, GIDRoCEv2, "169.254.1.1")}, fault: ErrOnlyLinkLocal},
		{name: "RoCE v1 only", table: []GID{v1}, fault: ErrNoRoCEv2},
		{name: "no such GID", table: []GID{v2}, wish: GIDChoice{GID: netip.MustParseAddr("10.0.0.2")}, fault: ErrGIDAbsent, text: "want ::ffff:10.0.0.2"},
		{name: "no such index", table: []GID{v2}, wish: GIDChoice{Index: at(9)}, fault: ErrGIDAbsent, text: "GID index 9: "},
		{name: "an index that no address handle can name", table: []GID{entry(256, GIDRoCEv2, "10.0.0.1"), global}, want: global},
		{name: "only such an index", table: []GID{local, entry(256, GIDRoCEv2, "10.0.0.1")}, fault: ErrIndexBeyond, text: "GID index 256: the index is beyond 255, and an address handle has 8 bits for it: it is ::ffff:10.0.0.1"},
		{name: "such an index by name", table: []GID{v2, entry(300, GIDRoCEv2, "10.0.0.2")}, wish: GIDChoice{GID: netip.MustParseAddr("10.0.0.2")}, fault: ErrIndexBeyond, text: "GID index 300: "},
		{name: "such an index", table: []GID{v2, entry(300, GIDRoCEv2, "10.0.0.2")}, wish: GIDChoice{Index: at(300)}, fault: ErrIndexBeyond, text: "GID index 300: "},
		{name: "the one in use moved to such an index", table: []GID{global, entry(300, GIDRoCEv2, "10.0.0.1")}, had: &v2, want: global},
		{name: "index of RoCE v1", table: []GID{v1}, wish: GIDChoice{Index: at(0)}, fault: ErrNoRoCEv2, text: "GID index 0: "},
		{name: "index has another than wanted", table: []GID{v2}, wish: GIDChoice{Index: at(3), GID: netip.MustParseAddr("10.0.0.9")}, fault: ErrIndexChanged},
		{name: "index changed", table: []GID{entry(3, GIDRoCEv2, "10.0.0.9")}, wish: GIDChoice{Index: at(3)}, had: &v2, fault: ErrIndexChanged,
			text: "RDMA device mlx5_0 port 2: GID index 3: the index has another GID than before: it is ::ffff:10.0.0.9 (RoCE v2), was ::ffff:10.0.0.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := SelectGID("mlx5_0", 2, tc.table, tc.ib, tc.wish, tc.had)
			if got != tc.want || !errors.Is(err, tc.fault) {
				t.Errorf("%+v, %v; want %+v, %v", got, err, tc.want, tc.fault)
			}
			if tc.text != "" && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%v; want it to say %q", err, tc.text)
			}
		})
	}
}

// header4 returns what rxe writes before the payload of a datagram over IPv4.
func header4() (b [grhLen]byte) {
	copy(b[20:], []byte{0x45, 0x6a, 0, 100, 0, 1, 0, 0, 61, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1})
	return b
}

func TestParseHeader(t *testing.T) {
	h, ok := parseHeader(new(header4()))
	if want := (header{netip.MustParseAddr("::ffff:10.0.0.2"), netip.MustParseAddr("::ffff:10.0.0.1"), 0x6a, 61}); !ok || h != want {
		t.Errorf("IPv4: %+v, %v; want %+v", h, ok, want)
	}
	var six [grhLen]byte
	copy(six[:], []byte{0x66, 0xa1, 0x23, 0x45, 0, 100, 17, 60})
	src, dst := netip.MustParseAddr("fd00::2").As16(), netip.MustParseAddr("fd00::1").As16()
	copy(six[8:], src[:])
	copy(six[24:], dst[:])
	h, ok = parseHeader(&six)
	if want := (header{netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::1"), 0x6a, 60}); !ok || h != want {
		t.Errorf("IPv6: %+v, %v; want %+v", h, ok, want)
	}
	if _, ok := parseHeader(new([grhLen]byte)); ok {
		t.Error("40 octets of nothing are taken for a header")
	}
}

// FuzzParseHeader parses what a device may write.
func FuzzParseHeader(f *testing.F) {
	b := header4()
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, raw []byte) {
		var b [grhLen]byte
		copy(b[:], raw)
		h, ok := parseHeader(&b)
		if ok && (!h.source.Is6() || !h.dest.Is6()) {
			t.Fatalf("%+v: GIDs of 16 octets are expected", h)
		}
		if ok && b[0]>>4 != 6 && !h.source.Is4In6() {
			t.Fatalf("%+v: a mapped address is expected", h)
		}
	})
}

// The UDP source port that Linux derives from a flow label is the flow's own.
func TestFlowLabelIsThePort(t *testing.T) {
	seen := map[uint32]bool{}
	for port := uint16(49152); port < 49152+256; port++ {
		label := FlowLabel(port, 862)
		low, high := label&0x3fff, label&0xfc000>>14
		if sport := low ^ high | 0xc000; sport != uint32(port) {
			t.Fatalf("port %d gives label %#x, of which Linux makes %d", port, label, sport)
		}
		if label == 0 || label > 1<<20-1 || seen[label] || label != FlowLabel(862, port) {
			t.Fatalf("port %d gives label %#x: it is to be of 20 bits, its own, and that of its replies", port, label)
		}
		seen[label] = true
	}
}
