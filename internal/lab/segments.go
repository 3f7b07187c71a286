package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// Actions of segments (seg6_local.h of Linux).
const (
	actionEnd    = 1 // End: go on to the next identifier
	actionEndX   = 2 // End.X: go on to the next identifier, by a given neighbour
	actionEndDT6 = 7 // End.DT6: take the outer header off, and look the inner destination up in a table
)

// Attributes of segments (seg6_local.h of Linux). Package netlink lacks those of flavors.
const (
	attrAction     = 1
	attrTable      = 3
	attrNextHop    = 5
	attrFlavors    = 11
	flavorOps      = 1 // a set of bits
	flavorBlock    = 2 // bits of the block
	flavorNode     = 3 // bits that are removed behind the block
	opNextCSID     = 1 << 4
	nestedAttr     = 1 << 15 // NLA_F_NESTED of netlink(7)
	encapSegment   = 7       // LWTUNNEL_ENCAP_SEG6_LOCAL of lwtunnel.h
	attrEncapType  = 21      // RTA_ENCAP_TYPE of rtnetlink.h
	attrEncap      = 22      // RTA_ENCAP
	attrKindMask   = 1<<14 - 1
	minSegmentSize = 4
)

// segment is what a switch does with packets to one of its identifiers (RFC 8986 section 4, RFC 9800 section 4).
type segment struct {
	action int
	block  int        // End and End.X: bits of the block, behind which identifiers are removed
	shift  int        // End and End.X: how many bits are removed
	via    netip.Addr // End.X: the neighbour's address
	table  int        // End.DT6: the table of routes
}

var _ netlink.Encap = (*segment)(nil)

// Type returns the number of the kernel's kind of encapsulation.
func (s *segment) Type() int { return encapSegment }

// Encode writes the attributes of a route.
func (s *segment) Encode() ([]byte, error) {
	out := attribute(attrAction, binary.NativeEndian.AppendUint32(nil, uint32(s.action)))
	if s.via.IsValid() {
		out = append(out, attribute(attrNextHop, s.via.AsSlice())...)
	}
	if s.table != 0 {
		out = append(out, attribute(attrTable, binary.NativeEndian.AppendUint32(nil, uint32(s.table)))...)
	}
	if s.shift != 0 {
		flavors := attribute(flavorOps, binary.NativeEndian.AppendUint32(nil, opNextCSID))
		flavors = append(flavors, attribute(flavorBlock, []byte{byte(s.block)})...)
		flavors = append(flavors, attribute(flavorNode, []byte{byte(s.shift)})...)
		out = append(out, attribute(attrFlavors|nestedAttr, flavors)...)
	}
	return out, nil
}

func attribute(kind int, value []byte) []byte { return nl.NewRtAttr(kind, value).Serialize() }

// Decode reads the attributes of a route. It fails if one is too short, or if a flavor is another than NEXT-C-SID.
func (s *segment) Decode(b []byte) error {
	*s = segment{}
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return fmt.Errorf("attributes of a segment: %w", err)
	}
	for _, a := range attrs {
		switch kind := a.Attr.Type & attrKindMask; {
		case kind == attrFlavors:
			err = s.decodeFlavors(a.Value)
		case len(a.Value) < minSegmentSize || kind == attrNextHop && len(a.Value) < 16:
			err = fmt.Errorf("attribute %d of a segment has %d octets", kind, len(a.Value))
		case kind == attrAction:
			s.action = int(binary.NativeEndian.Uint32(a.Value))
		case kind == attrTable:
			s.table = int(binary.NativeEndian.Uint32(a.Value))
		case kind == attrNextHop:
			s.via = netip.AddrFrom16([16]byte(a.Value[:16]))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *segment) decodeFlavors(b []byte) error {
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return fmt.Errorf("flavors of a segment: %w", err)
	}
	for _, a := range attrs {
		switch kind := a.Attr.Type & attrKindMask; {
		case len(a.Value) == 0 || kind == flavorOps && len(a.Value) < 4:
			return fmt.Errorf("flavor attribute %d of a segment has %d octets", kind, len(a.Value))
		case kind == flavorOps:
			if ops := binary.NativeEndian.Uint32(a.Value); ops != opNextCSID {
				return fmt.Errorf("a segment has flavors %#x, want NEXT-C-SID", ops)
			}
		case kind == flavorBlock:
			s.block = int(a.Value[0])
		case kind == flavorNode:
			s.shift = int(a.Value[0])
		}
	}
	return nil
}

func (s *segment) String() string {
	switch s.action {
	case actionEnd:
		return fmt.Sprintf("End, next-csid %d+%d", s.block, s.shift)
	case actionEndX:
		return fmt.Sprintf("End.X by %s, next-csid %d+%d", s.via, s.block, s.shift)
	case actionEndDT6:
		return fmt.Sprintf("End.DT6 table %d", s.table)
	}
	return fmt.Sprintf("action %d", s.action)
}

// Equal compares it with an encapsulation as package netlink reads it, which leaves out flavors: nothing else changes those.
func (s *segment) Equal(e netlink.Encap) bool {
	switch o := e.(type) {
	case *segment:
		return *s == *o
	case *netlink.SEG6LocalEncap:
		via, _ := netip.AddrFromSlice(o.In6Addr)
		return s.action == o.Action && s.table == o.Table && s.via == via
	}
	return false
}

// errEndOfCarrier is the error of a switch that has nothing to go on with.
var errEndOfCarrier = errors.New("no identifier is left behind the switch's own, so that the switch drops the packet")

// nextCarrier returns the destination that End and End.X leave: the bits behind those that are removed move up, and zeros
// follow (next_csid_advance_arg of net/ipv6/seg6_local.c).
func (s *segment) nextCarrier(carrier netip.Addr) (netip.Addr, error) {
	if s.block%8 != 0 || s.shift%8 != 0 || s.shift == 0 || s.block+s.shift >= 128 {
		return carrier, fmt.Errorf("%s: identifiers of whole octets are expected", s)
	}
	a := carrier.As16()
	rest := a[(s.block+s.shift)/8:]
	empty := true
	for _, b := range rest {
		empty = empty && b == 0
	}
	if empty {
		return carrier, errEndOfCarrier
	}
	n := copy(a[s.block/8:], rest)
	clear(a[s.block/8+n:])
	return netip.AddrFrom16(a), nil
}

// localTable is RT_TABLE_LOCAL of rtnetlink(7).
const localTable = 255

// segmentRoute returns the route of a segment. It is one of the loopback interface, so that it stays when ports are down.
func segmentRoute(p netip.Prefix, s *segment) route {
	return route{dst: p, table: localTable, kind: syscall.RTN_LOCAL, segment: s}
}
