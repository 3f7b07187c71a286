// Package srv6 has the addresses of source routing by compressed segment identifiers: locators of switches, and carriers,
// which list the switches of a path in one IPv6 destination. It is pure.
//
// The rules, for the flavor NEXT-C-SID of RFC 9800 with a block of 32 bits and identifiers (uSIDs) of 16 bits:
//
//  1. All switches of a fabric share one block. Each has a locator BLOCK:NODE::/48, and processes what arrives for it as End
//     (a "uN"): it shifts the destination by one identifier and forwards by the new destination.
//  2. A switch knows how to reach the locators of its neighbours only, so that a carrier lists each switch of the path.
//  3. Where several links join two switches, BLOCK:ADJACENCY::/48 at a switch is End.X (a "uA"): it shifts as well, and sends
//     over one link whatever the next destination is. Adjacencies are local: their numbers mean something else at each switch.
//     So one takes the place of the next switch's own identifier.
//  4. BLOCK:NODE:e000::/64 is End.DT6 at the last switch: it takes the outer header off and forwards the packet inside.
//  5. Zero ends a carrier. Identifiers below e000 name switches, e000 and above mean something at one switch only.
package srv6

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/graylink/graylink/internal/fabric"
)

// Lengths in bits of the parts of an address, as a kernel's route has them (lblen, nflen).
const (
	BlockBits = 32
	SIDBits   = 16
)

// MaxSIDs is how many identifiers a carrier can hold.
const MaxSIDs = (128 - BlockBits) / SIDBits

// SID is one identifier in a carrier.
type SID uint16

// Decapsulate is the function at the last switch of a path that takes the outer header off.
const Decapsulate SID = 0xe000

const firstAdjacency SID = 0xf000

// MaxAdjacencies is how many links of one switch can have an identifier.
const MaxAdjacencies = 0x1000

// Adjacency returns the identifier of a switch's link by its number, which starts at 0.
func Adjacency(number int) (SID, error) {
	if number < 0 || number >= MaxAdjacencies {
		return 0, fmt.Errorf("link %d of a switch has no identifier: want 0 to %d", number, MaxAdjacencies-1)
	}
	return firstAdjacency + SID(number), nil
}

// IsNode reports whether the identifier names a switch.
func (s SID) IsNode() bool { return s > 0 && s < Decapsulate }

// IsAdjacency reports whether the identifier names a link of the switch that processes it.
func (s SID) IsAdjacency() bool { return s >= firstAdjacency }

func (s SID) String() string { return fmt.Sprintf("%04x", uint16(s)) }

// Block is the prefix that all identifiers of a fabric share.
type Block [BlockBits / 8]byte

// BlockOf returns the block of an IPv6 address.
func BlockOf(a netip.Addr) Block {
	octets := a.As16()
	return Block(octets[:len(Block{})])
}

// Prefix returns the block as a prefix of routes.
func (b Block) Prefix() netip.Prefix { return netip.PrefixFrom(b.address(), BlockBits) }

func (b Block) String() string { return b.Prefix().String() }

// Contains reports whether the address is in the block.
func (b Block) Contains(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && BlockOf(a) == b }

// AdjacencyPrefix returns the prefix at which a switch processes one of its adjacencies.
func (b Block) AdjacencyPrefix(adjacency SID) netip.Prefix {
	return netip.PrefixFrom(b.address(adjacency), BlockBits+SIDBits)
}

func (b Block) address(sids ...SID) netip.Addr {
	var octets [16]byte
	copy(octets[:], b[:])
	for i, s := range sids {
		binary.BigEndian.PutUint16(octets[len(b)+2*i:], uint16(s))
	}
	return netip.AddrFrom16(octets)
}

// Locator is the prefix of one switch. The zero value is none.
type Locator struct {
	Block Block
	Node  SID
}

// LocatorOf returns the locator that the topology has of a switch, which its parser has checked.
func LocatorOf(l fabric.Locator) Locator { return locatorAt(l.Addr()) }

func locatorAt(a netip.Addr) Locator {
	octets := a.As16()
	return Locator{Block: BlockOf(a), Node: SID(binary.BigEndian.Uint16(octets[len(Block{}):]))}
}

// IsValid reports whether the locator is one of a switch.
func (l Locator) IsValid() bool { return l.Node.IsNode() && l.Block != Block{} }

// Prefix returns the prefix at which the switch processes its own identifier.
func (l Locator) Prefix() netip.Prefix {
	return netip.PrefixFrom(l.Block.address(l.Node), BlockBits+SIDBits)
}

func (l Locator) String() string { return l.Prefix().String() }

// DecapsulationPrefix returns the prefix at which the switch takes the outer header off.
func (l Locator) DecapsulationPrefix() netip.Prefix {
	return netip.PrefixFrom(l.Block.address(l.Node, Decapsulate), BlockBits+2*SIDBits)
}

// ErrTooLong is the error of a path with more identifiers than a carrier can hold.
var ErrTooLong = errors.New("a carrier holds no more than 6 identifiers")

// EncodeCarrier returns the destination that lists the identifiers. It fails if there are none or too many, which
// errors.Is shows as ErrTooLong, or if one is zero.
func EncodeCarrier(b Block, sids ...SID) (netip.Addr, error) {
	switch {
	case len(sids) == 0:
		return netip.Addr{}, errors.New("a carrier has at least one identifier")
	case len(sids) > MaxSIDs:
		return netip.Addr{}, fmt.Errorf("%d identifiers: %w", len(sids), ErrTooLong)
	}
	for i, s := range sids {
		if s == 0 {
			return netip.Addr{}, fmt.Errorf("identifier %d of a carrier is zero, which ends one", i+1)
		}
	}
	return b.address(sids...), nil
}

// DecodeCarrier returns the identifiers that a destination lists. It fails if the address is none of IPv6, lists nothing, or
// has something after the zero that ends it.
func DecodeCarrier(a netip.Addr) (Block, []SID, error) {
	if !a.Is6() || a.Is4In6() || a.Zone() != "" {
		return Block{}, nil, fmt.Errorf("%s: a carrier is an IPv6 address without a zone", a)
	}
	octets := a.As16()
	sids := make([]SID, 0, MaxSIDs)
	ended := false
	for i := len(Block{}); i < len(octets); i += SIDBits / 8 {
		switch s := SID(binary.BigEndian.Uint16(octets[i:])); {
		case s == 0:
			ended = true
		case ended:
			return Block{}, nil, fmt.Errorf("%s: identifier %s stands after the end of the carrier", a, s)
		default:
			sids = append(sids, s)
		}
	}
	if len(sids) == 0 {
		return Block{}, nil, fmt.Errorf("%s: a carrier has at least one identifier", a)
	}
	return BlockOf(a), sids, nil
}

// FirstSID returns the identifier that the switch processes which a packet to the address has reached, and 0 if there is none.
func FirstSID(a netip.Addr) SID {
	if !a.Is6() {
		return 0
	}
	return locatorAt(a).Node
}

// Shift returns the destination after a switch has processed the first identifier (RFC 9800, section 4.1.1: the argument
// replaces the locator node and function, and zeros follow). A destination whose argument is zero stays as it is, since
// there is nothing to go on with; ok is false then.
func Shift(a netip.Addr) (shifted netip.Addr, ok bool) {
	octets := a.As16()
	argument := octets[len(Block{})+SIDBits/8:]
	if [len(octets) - (BlockBits+SIDBits)/8]byte(argument) == [len(octets) - (BlockBits+SIDBits)/8]byte{} {
		return a, false
	}
	copy(octets[len(Block{}):], argument)
	clear(octets[len(octets)-SIDBits/8:])
	return netip.AddrFrom16(octets), true
}
