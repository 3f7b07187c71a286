package nicethtool

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"

	"github.com/graylink/graylink/internal/nicethtool/module"
	"github.com/graylink/graylink/internal/nichw"
)

// Commands (enum ETHTOOL_MSG_*, user to kernel).
const (
	getLinkModes = 4
	getLinkState = 6
	getPause     = 21
	getFEC       = 29
	getEEPROM    = 31
)

// The header is attribute 1 of every message (ETHTOOL_A_HEADER_*).
const (
	headerAttribute = 1
	headerName      = 2
	headerFlags     = 3

	flagCompactBitsets = 1 << 0
	flagStatistics     = 1 << 2
)

// encodeRequest returns the attributes of a request about an interface. more adds to them.
func encodeRequest(name string, flags uint32, more func(*netlink.AttributeEncoder)) ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	e.Nested(headerAttribute, func(h *netlink.AttributeEncoder) error {
		h.String(headerName, name)
		h.Uint32(headerFlags, flags)
		return nil
	})
	if more != nil {
		more(e)
	}
	return e.Encode()
}

// requestReply sends a request and returns the one reply to it.
func requestReply(k Kernel, name string, command uint8, flags uint32, more func(*netlink.AttributeEncoder)) ([]byte, error) {
	b, err := encodeRequest(name, flags, more)
	if err != nil {
		return nil, err
	}
	replies, err := k.SendRequest(command, b)
	if err != nil {
		return nil, err
	}
	if len(replies) != 1 {
		return nil, malformedError("one reply is expected, not %d", len(replies))
	}
	return replies[0], nil
}

func malformedError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{nichw.ErrMalformed}, args...)...)
}

// decodeAttributes calls take for every attribute. An attribute that take knows has to have its type's
// length; the others are newer than we are.
func decodeAttributes(b []byte, take func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return malformedError("attributes: %v", err)
	}
	for ad.Next() {
		take(ad)
	}
	if err := ad.Err(); err != nil {
		return malformedError("attributes: %v", err)
	}
	return nil
}

func boolAttribute(ad *netlink.AttributeDecoder) *bool {
	v := ad.Uint8() != 0
	return &v
}

func pointerTo[T any](v T) *T { return &v }

// FEC is the forward error correction of a port (ETHTOOL_MSG_FEC_GET).
type FEC struct {
	// Configured are the modes that may be used, by name. It is nil if the kernel does not report them.
	Configured []string
	Auto       *bool
	// Active is the mode in use, "" where there is none, as without a link.
	Active string
	// Blocks corrected and not correctable, and bits corrected. They are nil if they are not counted.
	Corrected, Uncorrectable, CorrectedBits *Lanes
}

// Lanes is a count of a port, and of each of its lanes where the device counts by lane.
type Lanes struct {
	Total uint64
	Lanes []uint64
}

// fecModes are the bits of enum ethtool_link_mode_bit_indices that are modes of FEC.
var fecModes = map[uint32]string{49: "off", 50: "rs", 51: "baser", 74: "llrs"}

// FECModes are the names of modes that there can be, in order.
var FECModes = []string{"baser", "llrs", "off", "rs"}

// parseFEC reads ETHTOOL_MSG_FEC_GET_REPLY.
func parseFEC(b []byte) (*FEC, error) {
	f := &FEC{}
	err := decodeAttributes(b, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case 2: // ETHTOOL_A_FEC_MODES
			ad.Do(func(b []byte) error {
				bits, err := parseBits(b)
				f.Configured = []string{}
				for _, bit := range bits {
					if n := fecModes[bit]; n != "" {
						f.Configured = append(f.Configured, n)
					}
				}
				slices.Sort(f.Configured)
				return err
			})
		case 3: // ETHTOOL_A_FEC_AUTO
			f.Auto = boolAttribute(ad)
		case 4: // ETHTOOL_A_FEC_ACTIVE
			bit := ad.Uint32()
			if f.Active = fecModes[bit]; f.Active == "" {
				f.Active = fmt.Sprintf("link mode %d", bit)
			}
		case 5: // ETHTOOL_A_FEC_STATS
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					switch ad.Type() {
					case 2:
						f.Corrected = parseLanes(ad)
					case 3:
						f.Uncorrectable = parseLanes(ad)
					case 4:
						f.CorrectedBits = parseLanes(ad)
					}
				}
				return nil
			})
		}
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// parseLanes reads an array of 64-bit numbers: the total, then those of the lanes if there are any. It
// is empty where the device does not count.
func parseLanes(ad *netlink.AttributeDecoder) (out *Lanes) {
	ad.Do(func(b []byte) error {
		if len(b)%8 != 0 {
			return fmt.Errorf("numbers of 8 octets are expected, not %d octets", len(b))
		}
		for i := 0; i < len(b); i += 8 {
			v := binary.NativeEndian.Uint64(b[i:])
			if i == 0 {
				out = &Lanes{Total: v}
			} else {
				out.Lanes = append(out.Lanes, v)
			}
		}
		return nil
	})
	return out
}

// maxBits is more than there are modes of links.
const maxBits = 4096

// parseBits reads a compact bitset (ETHTOOL_A_BITSET_*): the numbers of bits that are set.
func parseBits(b []byte) (bits []uint32, err error) {
	var size uint32
	var words []byte
	err = decodeAttributes(b, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case 2: // ETHTOOL_A_BITSET_SIZE
			size = ad.Uint32()
		case 4: // ETHTOOL_A_BITSET_VALUE
			words = ad.Bytes()
		}
	})
	if err != nil {
		return nil, err
	}
	if size > maxBits || len(words) != int(size+31)/32*4 {
		return nil, fmt.Errorf("a bitset of %d bits does not fit %d octets", size, len(words))
	}
	for i := range size {
		if binary.NativeEndian.Uint32(words[i/32*4:])>>(i%32)&1 == 1 {
			bits = append(bits, i)
		}
	}
	return bits, nil
}

// Pause is flow control by pause frames (ETHTOOL_MSG_PAUSE_GET). Fields are nil where the kernel
// does not say.
type Pause struct {
	Autoneg, Receive, Transmit    *bool
	ReceiveFrames, TransmitFrames *uint64
}

// parsePause reads ETHTOOL_MSG_PAUSE_GET_REPLY.
func parsePause(b []byte) (*Pause, error) {
	p := &Pause{}
	err := decodeAttributes(b, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case 2:
			p.Autoneg = boolAttribute(ad)
		case 3:
			p.Receive = boolAttribute(ad)
		case 4:
			p.Transmit = boolAttribute(ad)
		case 5: // ETHTOOL_A_PAUSE_STATS
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					switch ad.Type() {
					case 2:
						p.TransmitFrames = pointerTo(ad.Uint64())
					case 3:
						p.ReceiveFrames = pointerTo(ad.Uint64())
					}
				}
				return nil
			})
		}
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// LinkModes holds the present mode of a link (ETHTOOL_MSG_LINKMODES_GET).
type LinkModes struct {
	Autoneg *bool
	Speed   *int64  // bytes per second; nil if not known
	Duplex  string  // "half", "full"; "" where it is not known
	Lanes   *uint32 // nil if the kernel does not report it
}

// parseLinkModes reads ETHTOOL_MSG_LINKMODES_GET_REPLY.
func parseLinkModes(b []byte) (*LinkModes, error) {
	l := &LinkModes{}
	err := decodeAttributes(b, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case 2:
			l.Autoneg = boolAttribute(ad)
		case 5: // in Mb/s; all ones are SPEED_UNKNOWN
			if v := ad.Uint32(); v != 0 && v != 1<<32-1 {
				l.Speed = pointerTo(int64(v) * 1e6 / 8)
			}
		case 6: // 255 is DUPLEX_UNKNOWN
			switch ad.Uint8() {
			case 0:
				l.Duplex = "half"
			case 1:
				l.Duplex = "full"
			}
		case 9:
			if v := ad.Uint32(); v != 0 {
				l.Lanes = &v
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// LinkState is why a link is as it is (ETHTOOL_MSG_LINKSTATE_GET).
type LinkState struct {
	Up *bool
	// SQI is the signal quality index, of 0 to SQIMax.
	SQI, SQIMax *uint32
	// State and Substate are the extended state of a link that is down, "" where there is none.
	State, Substate string
	// Downs is how often the link went down.
	Downs *uint32
}

// extendedStates are the names of enum ethtool_link_ext_state.
var extendedStates = []string{"autoneg", "link training failure", "link logical mismatch", "bad signal integrity", "no cable", "cable issue", "EEPROM issue", "calibration failure",
	"power budget exceeded", "overheat", "module"}

// extendedSubstates are the names of the enums ethtool_link_ext_substate_*, by state; they count
// from 1.
var extendedSubstates = map[uint8][]string{
	0:  {"no partner detected", "ack not received", "next page exchange failed", "no partner detected in force mode", "FEC mismatch during override", "no highest common denominator"},
	1:  {"KR frame lock not acquired", "KR link inhibit timeout", "KR link partner did not set receiver ready", "remote fault"},
	2:  {"PCS did not acquire block lock", "PCS did not acquire alignment marker lock", "PCS did not get align status", "FC-FEC is not locked", "RS-FEC is not locked"},
	3:  {"large number of physical errors", "unsupported rate", "SerDes reference clock lost", "SerDes analog loss of signal"},
	5:  {"unsupported cable", "cable test failure"},
	10: {"CMIS not ready"},
}

// parseLinkState reads ETHTOOL_MSG_LINKSTATE_GET_REPLY.
func parseLinkState(b []byte) (*LinkState, error) {
	l := &LinkState{}
	var state, substate *uint8
	err := decodeAttributes(b, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case 2:
			l.Up = boolAttribute(ad)
		case 3:
			l.SQI = pointerTo(ad.Uint32())
		case 4:
			l.SQIMax = pointerTo(ad.Uint32())
		case 5:
			state = pointerTo(ad.Uint8())
		case 6:
			substate = pointerTo(ad.Uint8())
		case 7:
			l.Downs = pointerTo(ad.Uint32())
		}
	})
	if err != nil {
		return nil, err
	}
	if state != nil {
		l.State = fmt.Sprintf("state %d", *state) // newer than we are
		if int(*state) < len(extendedStates) {
			l.State = extendedStates[*state]
		}
		if substate != nil && *substate != 0 {
			l.Substate = fmt.Sprintf("substate %d", *substate)
			if names := extendedSubstates[*state]; int(*substate) <= len(names) {
				l.Substate = names[*substate-1]
			}
		}
	}
	return l, nil
}

// readEEPROM reads octets of a block of a module (ETHTOOL_MSG_MODULE_EEPROM_GET). The kernel wants
// CAP_NET_ADMIN. It takes offsets of 0 to 255, those of a page above 127, and no read that
// crosses the middle.
func readEEPROM(k Kernel, name string, b module.Block, offset, length int) ([]byte, error) {
	reply, err := requestReply(k, name, getEEPROM, 0, func(e *netlink.AttributeEncoder) {
		e.Uint32(2, uint32(offset))
		e.Uint32(3, uint32(length))
		e.Uint8(4, b.Page)
		e.Uint8(5, b.Bank)
		e.Uint8(6, b.Address)
	})
	if err != nil {
		return nil, err
	}
	data, err := parseEEPROM(reply)
	if err == nil && len(data) != length {
		err = malformedError("%s, offset %d: %d octets are expected, not %d", b, offset, length, len(data))
	}
	return data, err
}

// parseEEPROM reads ETHTOOL_MSG_MODULE_EEPROM_GET_REPLY.
func parseEEPROM(b []byte) (data []byte, err error) {
	err = decodeAttributes(b, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == 7 { // ETHTOOL_A_MODULE_EEPROM_DATA
			data = ad.Bytes()
		}
	})
	return data, err
}
