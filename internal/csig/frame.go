package csig

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Layout of an Ethernet frame: IEEE 802.3 clause 3.2, IEEE 802.1Q clause 9.
const (
	addressesLen = 12
	typeLen      = 2
	vlanLen      = 4
	maxVLANs     = 2
	leastType    = 0x0600 // smaller ones are lengths
)

// EtherTypes that decide where a tag may be.
const (
	typeVLAN        = 0x8100 // IEEE 802.1Q customer tag
	typeServiceVLAN = 0x88a8 // IEEE 802.1Q service tag (802.1ad)
	typeMACsec      = 0x88e5 // IEEE 802.1AE SecTAG
)

// EtherTypes has the EtherTypes of a domain's tags. 0 stands for a format that the domain does not use.
type EtherTypes struct {
	Compact, Wide uint16
}

// reservedTypes are EtherTypes that other frames have for certain.
var reservedTypes = map[uint16]string{
	0x0800: "IPv4", 0x0806: "ARP", 0x86dd: "IPv6", typeVLAN: "802.1Q", typeServiceVLAN: "802.1ad", typeMACsec: "MACsec",
	0x8847: "MPLS", 0x8808: "pause frames", 0x8809: "LACP", 0x88cc: "LLDP", 0x88f7: "PTP", 0x8915: "RoCE v1",
}

// checkType returns an error for an EtherType that cannot be that of a tag.
func checkType(t uint16) error {
	switch name := reservedTypes[t]; {
	case t < leastType:
		return fmt.Errorf("0x%04x: an EtherType from 0x0600 to 0xffff is expected", t)
	case name != "":
		return fmt.Errorf("0x%04x is the EtherType of %s: another one is expected", t, name)
	}
	return nil
}

// Validate returns an error if no format has an EtherType, both have the same, or other frames have one of them.
func (e EtherTypes) Validate() error {
	if e == (EtherTypes{}) {
		return errors.New("an EtherType is expected for compact tags, wide tags or both: there is no default")
	}
	for _, f := range Formats {
		if t := e.Of(f); t != 0 {
			if err := checkType(t); err != nil {
				return fmt.Errorf("%v: %w", f, err)
			}
		}
	}
	if e.Compact == e.Wide {
		return fmt.Errorf("wide: 0x%04x is that of compact tags as well: another one is expected", e.Wide)
	}
	return nil
}

// Of returns the EtherType of a format, or 0 if the domain does not use it.
func (e EtherTypes) Of(f Format) uint16 {
	switch f {
	case Compact:
		return e.Compact
	case Wide:
		return e.Wide
	}
	return 0
}

// formatOf returns the format of the tags with an EtherType, or None.
func (e EtherTypes) formatOf(t uint16) Format {
	switch {
	case t < leastType:
		return None
	case t == e.Compact:
		return Compact
	case t == e.Wide:
		return Wide
	}
	return None
}

// Status says what a frame is to a reader of tags.
type Status uint8

// What a frame can be.
const (
	Foreign   Status = iota // it has no tag of a configured EtherType where one can be
	Malformed               // it ends too early, has two tags, or a tag before a VLAN tag
	Tagged
)

// Found represents the tag of a frame, and where it is.
type Found struct {
	Tag
	Offset int    // of the tag's EtherType from the beginning of the frame
	Inner  uint16 // the EtherType or length behind the tag
}

// Parse returns the tag of a frame, which begins with the addresses and ends before the checksum. Signals without a rule are
// tagged.
func (e EtherTypes) Parse(frame []byte) (f Found, s Status) {
	s = e.ParseInto(frame, &f)
	return f, s
}

// ParseInto does the same as Parse, without copying. It leaves f as it is if the frame is not tagged.
func (e EtherTypes) ParseInto(frame []byte, f *Found) Status {
	at, t, ok := findType(frame)
	if !ok {
		return Malformed
	}
	format := e.formatOf(t)
	if format == None {
		return Foreign
	}
	end := at + int(format)
	if len(frame) < end+typeLen {
		return Malformed
	}
	inner := binary.BigEndian.Uint16(frame[end:])
	if isVLAN(inner) || e.formatOf(inner) != None {
		return Malformed
	}
	f.Offset, f.Inner = at, inner
	f.ParseValue(format, frame[at+typeLen:])
	return Tagged
}

// findType returns the first EtherType behind the addresses that is not one of the two VLAN tags that may be there, and its
// offset. ok is false if the frame ends before.
func findType(frame []byte) (at int, t uint16, ok bool) {
	at = addressesLen
	for vlans := 0; ; vlans++ {
		if len(frame) < at+typeLen {
			return 0, 0, false
		}
		if t = binary.BigEndian.Uint16(frame[at:]); !isVLAN(t) || vlans == maxVLANs {
			return at, t, true
		}
		at += vlanLen
	}
}

func isVLAN(t uint16) bool { return t == typeVLAN || t == typeServiceVLAN }

// Put writes code and locator of a tag where Parse found it.
func (f *Found) Put(frame []byte) { f.PutValue(frame[f.Offset+typeLen:]) }

// Errors of Insert.
var (
	// ErrMalformed means that a frame is malformed, so that no tag can be put into it.
	ErrMalformed = errors.New("CSIG: the frame ends too early, has two tags, or a tag before a VLAN tag")
	// ErrTagged means that a frame has a tag already.
	ErrTagged = errors.New("CSIG: the frame has a tag already")
	// ErrFormat means that the domain has no EtherType for the format of a tag, or that it has no format.
	ErrFormat = errors.New("CSIG: the format of the tag has no EtherType")
	// ErrTooManyVLANs means that a frame has more than two VLAN tags, behind which no reader looks for a tag.
	ErrTooManyVLANs = errors.New("CSIG: the frame has more than two VLAN tags")
)

// Insert appends to dst a frame with a tag put into it. It fails, and returns dst, if the frame is malformed, has a tag
// already, or has more than two VLAN tags, and if the format of the tag has no EtherType.
func (e EtherTypes) Insert(dst, frame []byte, t Tag) ([]byte, error) {
	own := e.Of(t.Format)
	if own == 0 {
		return dst, ErrFormat
	}
	switch _, s := e.Parse(frame); s {
	case Malformed:
		return dst, ErrMalformed
	case Tagged:
		return dst, ErrTagged
	}
	at, next, _ := findType(frame)
	if isVLAN(next) {
		return dst, ErrTooManyVLANs
	}
	dst = append(dst, frame[:at]...)
	dst = binary.BigEndian.AppendUint16(dst, own)
	var value [Wide - typeLen]byte
	t.PutValue(value[:])
	dst = append(dst, value[:t.Format-typeLen]...)
	return append(dst, frame[at:]...), nil
}

// Strip takes the tag off a frame. It moves the octets before the tag, and returns the rest of the frame's memory. Without a
// tag, it returns the frame as it is.
func (e EtherTypes) Strip(frame []byte) ([]byte, Found, Status) {
	f, s := e.Parse(frame)
	if s != Tagged {
		return frame, f, s
	}
	n := int(f.Format)
	copy(frame[n:], frame[:f.Offset])
	return frame[n:], f, s
}
