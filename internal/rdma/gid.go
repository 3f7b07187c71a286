package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// CanonicalGID returns an address in the form in which GIDs are compared: 16 octets, with IPv4 in its mapped form (IBTA
// annex A17.4.5.2).
func CanonicalGID(a netip.Addr) netip.Addr {
	if !a.IsValid() {
		return a
	}
	return netip.AddrFrom16(a.As16())
}

// SubnetPrefix returns the upper half of a GID (IBTA 4.1.1), which the ports of one InfiniBand subnet share.
func SubnetPrefix(gid netip.Addr) uint64 {
	b := gid.As16()
	return binary.BigEndian.Uint64(b[:8])
}

// PortGUID returns the lower half of a port's first GID on InfiniBand.
func PortGUID(gid netip.Addr) uint64 {
	b := gid.As16()
	return binary.BigEndian.Uint64(b[8:])
}

// Faults of a GID table. errors.Is holds for them.
var (
	ErrNoGIDs        = errors.New("the table is empty")
	ErrOnlyLinkLocal = errors.New("the table has only link-local GIDs")
	ErrNoRoCEv2      = errors.New("the table has no RoCE v2 entry")
	ErrGIDAbsent     = errors.New("the GID is not in the table")
	ErrIndexChanged  = errors.New("the index has another GID than before")
	ErrIndexBeyond   = errors.New("the index is beyond 255, and an address handle has 8 bits for it")
)

// MaxGIDIndex is the last entry that an address handle can name. struct ibv_global_route has one octet for it, while
// tables may be longer (that of soft-RoCE has 1024 entries).
const MaxGIDIndex = 255

// GIDChoice states which GID is wanted. The zero GIDChoice selects the best one.
type GIDChoice struct {
	GID   netip.Addr // invalid means any
	Index *int       // nil means any
}

// GIDError is the error for a fault of a port's GID table.
type GIDError struct {
	Device string
	Port   int
	Index  int // -1 if the fault is not that of one entry
	Fault  error
	Detail string
}

func (e *GIDError) Error() string {
	s := fmt.Sprintf("RDMA device %s port %d: GID", e.Device, e.Port)
	if e.Index >= 0 {
		s += fmt.Sprintf(" index %d", e.Index)
	} else {
		s += " table"
	}
	s += ": " + e.Fault.Error()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the fault, so that errors.Is holds for it.
func (e *GIDError) Unwrap() error { return e.Fault }

// gidRank returns how suitable an entry is for probes. IPv4-mapped addresses rank before other addresses that are
// routed. An entry of rank 0 is used only if it is chosen by name.
func gidRank(g GID, infiniBand bool) int {
	switch {
	case infiniBand:
		return 3 // the default GIDs have the link-local prefix (IBTA 4.1.1)
	case g.Type != GIDRoCEv2, g.Addr.IsLinkLocalUnicast():
		return 0
	case g.Addr.Is4In6():
		if u := g.Addr.Unmap(); u.IsLinkLocalUnicast() || u.IsLoopback() {
			return 0
		}
		return 3
	}
	return 2
}

// SelectGID chooses an entry of a port's table. had is the entry in use, or nil. An entry in use is chosen again for as
// long as it is in the table. The error is a *GIDError.
func SelectGID(device string, port int, table []GID, infiniBand bool, w GIDChoice, had *GID) (GID, error) {
	fail := func(index int, fault error, format string, args ...any) (GID, error) {
		return GID{}, &GIDError{Device: device, Port: port, Index: index, Fault: fault, Detail: fmt.Sprintf(format, args...)}
	}
	if len(table) == 0 {
		return fail(-1, ErrNoGIDs, "want an address on its network interface")
	}
	if w.Index != nil {
		for _, g := range table {
			switch {
			case g.Index != *w.Index:
				continue
			case g.Index > MaxGIDIndex:
				return fail(g.Index, ErrIndexBeyond, "it is %v", g.Addr)
			case w.GID.IsValid() && g.Addr != CanonicalGID(w.GID):
				return fail(g.Index, ErrIndexChanged, "it is %v (%v), want %v", g.Addr, g.Type, w.GID)
			case had != nil && g.Addr != had.Addr:
				return fail(g.Index, ErrIndexChanged, "it is %v (%v), was %v", g.Addr, g.Type, had.Addr)
			case !infiniBand && g.Type != GIDRoCEv2:
				return fail(g.Index, ErrNoRoCEv2, "it is %v of %v, want one of RoCE v2", g.Addr, g.Type)
			}
			return g, nil
		}
		return fail(*w.Index, ErrGIDAbsent, "the index is empty")
	}
	best, at, beyond := 0, -1, -1
	linkLocal, v2 := false, infiniBand
	for i, g := range table {
		v2 = v2 || g.Type == GIDRoCEv2
		linkLocal = linkLocal || g.Type == GIDRoCEv2 && gidRank(g, infiniBand) == 0
		r := gidRank(g, infiniBand)
		if w.GID.IsValid() {
			r = 0
			if g.Addr == CanonicalGID(w.GID) && (infiniBand || g.Type == GIDRoCEv2) {
				r = 3
			}
		}
		if r > 0 && g.Index > MaxGIDIndex {
			r, beyond = 0, i
		}
		if had != nil && r > 0 && g.Addr == had.Addr && g.Type == had.Type {
			r += 4
		}
		if r > best {
			best, at = r, i
		}
	}
	switch {
	case at >= 0:
		return table[at], nil
	case beyond >= 0:
		return fail(table[beyond].Index, ErrIndexBeyond, "it is %v", table[beyond].Addr)
	case w.GID.IsValid():
		return fail(-1, ErrGIDAbsent, "want %v", CanonicalGID(w.GID))
	case !v2:
		return fail(-1, ErrNoRoCEv2, "want one; the port may be set to RoCE v1")
	case linkLocal:
		return fail(-1, ErrOnlyLinkLocal, "want an address that is routed on its network interface, or the GID by name")
	}
	return fail(-1, ErrGIDAbsent, "no entry can be used")
}

const grhLen = 40

// header represents what a device writes before the payload of a datagram. It is a global route header (IBTA 8.3),
// which is the IPv6 header in RoCE v2, or 20 unused octets and an IPv4 header (IBTA annex A17.4.5.2).
type header struct {
	source, dest netip.Addr
	tclass, hops uint8
}

// parseHeader parses a header of 40 octets. It returns false if it is neither of the two forms.
func parseHeader(b *[grhLen]byte) (h header, ok bool) {
	if b[0]>>4 == 6 {
		return header{netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[0]<<4 | b[1]>>4, b[7]}, true
	}
	ip := b[20:]
	if ip[0] != 0x45 {
		return h, false
	}
	mapped := [16]byte{10: 0xff, 11: 0xff}
	src, dst := mapped, mapped
	copy(src[12:], ip[12:16])
	copy(dst[12:], ip[16:20])
	return header{netip.AddrFrom16(src), netip.AddrFrom16(dst), ip[1], ip[8]}, true
}

// FlowLabel returns the flow label of a flow's packets. It makes devices send them from the flow's port, if the devices
// derive the UDP source port of RoCE v2 from the flow label as Linux does (rdma_flow_label_to_udp_sport: the low 14
// bits, combined with the high 6, over 0xC000). It is never 0, because 0 would leave the choice to the device.
func FlowLabel(src, dst uint16) uint32 {
	return uint32(max(src, dst))&0x3fff ^ 1 | 1<<14
}
