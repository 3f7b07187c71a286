package source

import (
	"encoding/binary"
	"slices"

	"github.com/graylink/graylink/internal/sighting"
)

const (
	typeIPv4 = 0x0800
	typeIPv6 = 0x86dd
	typeVLAN = 0x8100
	typeQinQ = 0x88a8
	protoUDP = 17
)

// parseProbe parses the flow of a frame, which may be cut short behind its ports. It returns false for everything
// except unfragmented UDP from or to one of the STAMP ports.
func parseProbe(frame []byte, stampPorts []uint16, key *sighting.Key) (ok bool) {
	if len(frame) < ethernet {
		return false
	}
	kind, rest := binary.BigEndian.Uint16(frame[12:]), frame[ethernet:]
	for range 2 { // chips sample frames with their tags
		if (kind == typeVLAN || kind == typeQinQ) && len(rest) >= 4 {
			kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
		}
	}
	var ports []byte
	switch kind {
	case typeIPv4:
		if len(rest) < ipv4Length || rest[0]>>4 != 4 {
			return false
		}
		header := int(rest[0]&0x0f) * 4
		if header < ipv4Length || len(rest) < header+4 || rest[9] != protoUDP || binary.BigEndian.Uint16(rest[6:])&0x1fff != 0 {
			return false
		}
		*key = sighting.Key{10: 0xff, 11: 0xff, 26: 0xff, 27: 0xff}
		copy(key[12:16], rest[12:16])
		copy(key[28:32], rest[16:20])
		ports = rest[header:]
	case typeIPv6:
		if len(rest) < ipv6Length+4 || rest[0]>>4 != 6 || rest[6] != protoUDP {
			return false
		}
		copy(key[:32], rest[8:40])
		ports = rest[ipv6Length:]
	default:
		return false
	}
	copy(key[32:], ports[:4])
	return slices.Contains(stampPorts, binary.BigEndian.Uint16(ports)) || slices.Contains(stampPorts, binary.BigEndian.Uint16(ports[2:]))
}
