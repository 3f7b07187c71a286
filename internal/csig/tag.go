package csig

import (
	"encoding/binary"
	"fmt"
)

// Format is the format of a tag. Its number is the length in octets, with the EtherType.
type Format uint8

// Formats of tags: slides "CSIG Tag 4B Version" and "CSIG Tag 8B Version" of draft-ravi-ippm-csig. UEC calls the second one
// wide, the draft calls it expanded.
const (
	None    Format = 0
	Compact Format = 4
	Wide    Format = 8
)

// Formats lists the formats of tags.
var Formats = [...]Format{Compact, Wide}

func (f Format) String() string {
	switch f {
	case None:
		return "none"
	case Compact:
		return "compact"
	case Wide:
		return "wide"
	}
	return fmt.Sprintf("format %d", uint8(f))
}

// MaxCode returns the largest code that a tag of the format holds: all ones.
func (f Format) MaxCode() uint32 {
	if f == Compact {
		return 1<<5 - 1
	}
	return 1<<20 - 1
}

// MaxLocator returns the largest locator that a tag of the format holds.
func (f Format) MaxLocator() uint16 {
	if f == Compact {
		return 1<<7 - 1
	}
	return 1<<16 - 1
}

// Signal says what the code of a tag measures (T).
type Signal uint8

// Signals with a rule. Queue is not in the draft: UEC and SAI 1.18 have it.
const (
	Bandwidth Signal = 0 // the smallest available bandwidth of all hops, in bit/s
	Share     Signal = 1 // the smallest available share of a link's speed, in millionths
	Delay     Signal = 2 // the largest delay of a hop, in nanoseconds
	Queue     Signal = 3 // the largest queue by the speed of its port, in nanoseconds
)

// Signals is the number of signals with a rule.
const Signals = 4

func (s Signal) String() string {
	switch s {
	case Bandwidth:
		return "bandwidth"
	case Share:
		return "share"
	case Delay:
		return "delay"
	case Queue:
		return "queue"
	}
	return fmt.Sprintf("signal %d", uint8(s))
}

// IsKnown reports whether the signal has a rule.
func (s Signal) IsKnown() bool { return s < Signals }

// takesSmallest reports whether the smallest code of all hops stays, and not the largest.
func (s Signal) takesSmallest() bool { return s == Bandwidth || s == Share }

// Tag represents a tag without its EtherType.
type Tag struct {
	Format   Format
	Signal   Signal // T: 3 bits of a compact tag, 4 of a wide one
	Code     uint32 // S: 5 bits of a compact tag, 20 of a wide one
	Locator  uint16 // LM: 7 bits of a compact tag, 16 of a wide one
	Reserved uint8  // R of a compact tag, the reserved octet of a wide one
}

// NewTag returns the tag that a source writes: with the value that any port's replaces, and locator 0.
func NewTag(f Format, s Signal) Tag {
	t := Tag{Format: f, Signal: s}
	if s.takesSmallest() {
		t.Code = f.MaxCode()
	}
	return t
}

// Update replaces code and locator by those of a port if the port's code is worse, and reports whether it did. It does
// nothing for a signal without a rule, and for locator 0, which belongs to no port.
func (t *Tag) Update(code uint32, locator uint16) bool {
	if !t.Signal.IsKnown() || locator == 0 {
		return false
	}
	if t.Signal.takesSmallest() && code >= t.Code || !t.Signal.takesSmallest() && code <= t.Code {
		return false
	}
	t.Code, t.Locator = code, locator
	return true
}

// PutValue writes what stands behind the EtherType: 2 octets of a compact tag, 6 of a wide one. Fields that are larger than
// their bits lose their upper bits.
func (t *Tag) PutValue(b []byte) {
	if t.Format == Compact {
		binary.BigEndian.PutUint16(b, uint16(t.Signal&7)<<13|uint16(t.Reserved&1)<<12|uint16(t.Code&31)<<7|t.Locator&127)
		return
	}
	_ = b[5]
	binary.BigEndian.PutUint16(b, t.Locator)
	binary.BigEndian.PutUint32(b[2:], uint32(t.Signal&15)<<28|t.Code&(1<<20-1)<<8|uint32(t.Reserved))
}

// ParseValue reads what stands behind the EtherType of a tag of the format: 2 octets, or 6. It sets one field after the
// other, since a whole Tag would be copied from memory that was just written, which processors are slow at.
func (t *Tag) ParseValue(f Format, b []byte) {
	if f == Compact {
		w := binary.BigEndian.Uint16(b)
		t.Format, t.Signal, t.Reserved, t.Code, t.Locator = Compact, Signal(w>>13), uint8(w>>12&1), uint32(w>>7&31), w&127
		return
	}
	_ = b[5]
	w := binary.BigEndian.Uint32(b[2:])
	t.Format, t.Signal, t.Reserved, t.Code, t.Locator = Wide, Signal(w>>28), uint8(w), w>>8&(1<<20-1), binary.BigEndian.Uint16(b)
}
