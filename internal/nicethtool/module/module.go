// Package module decodes the memory of pluggable transceivers and cables: CMIS (OIF-CMIS-05.2: QSFP-DD,
// OSFP), SFF-8636 rev 2.10a (QSFP+, QSFP28, QSFP56) and SFF-8472 rev 12.4 (SFP+, SFP28). It reads
// nothing itself: bytes come in, and a Module goes out. Rules:
//
//  1. What a module reports as not implemented is absent, whatever its memory holds there. So is
//     what is on a page that was not read.
//  2. Powers are linear, in watts. 0 is a reading, of a monitor that is there: the light is below
//     its resolution of 0.1 uW, the fibre dark or the laser off. It is not the same as absent.
//  3. An error names page and offset, counted as the standards do: 0 to 127 are the lower memory,
//     128 to 255 the page. What can be decoded besides is returned with it.
//  4. Flags are latched by the module, and reading clears them: a flag was raised at some time
//     between the read before and this one.
package module

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Half is how many octets the lower memory and each page have.
const Half = 128

// Addresses on the module's two-wire bus (seven bits). SFF-8472 calls them A0h and A2h.
const (
	A0 = 0x50
	A2 = 0x51
)

// Block is a half of what a module shows at once: its lower memory, or a page of the upper.
type Block struct {
	Address    uint8 // A0 or A2
	Bank, Page uint8 // 0 for the lower memory
	Upper      bool
}

// Offset returns the offset of the block's first octet.
func (b Block) Offset() int {
	if b.Upper {
		return Half
	}
	return 0
}

func (b Block) String() string {
	s := fmt.Sprintf("page %02Xh", b.Page)
	switch {
	case b.Address == A2:
		s = "address A2h"
	case !b.Upper:
		s = "lower memory"
	}
	if b.Bank != 0 {
		s += fmt.Sprintf(" of bank %d", b.Bank)
	}
	return s
}

// Image holds the blocks that were read of a module.
type Image map[Block][]byte

// Blocks of every module.
var (
	Lower = Block{Address: A0}
	Page0 = Block{Address: A0, Upper: true}
)

var (
	page1      = Block{Address: A0, Page: 0x01, Upper: true}
	page2      = Block{Address: A0, Page: 0x02, Upper: true}
	page3      = Block{Address: A0, Page: 0x03, Upper: true}
	diagnostic = Block{Address: A2}
)

// Error is a place of the memory that does not hold what it should.
type Error struct {
	Block  Block
	Offset int
	Why    string
}

func (e *Error) Error() string { return fmt.Sprintf("%s, offset %d: %s", e.Block, e.Offset, e.Why) }

// Limits are the thresholds of a monitor, in its unit.
type Limits struct {
	HighAlarm, LowAlarm, HighWarning, LowWarning float64
}

// Thresholds hold those of all monitors. A monitor without thresholds has nil.
type Thresholds struct {
	Temperature   *Limits // degrees Celsius
	Voltage       *Limits // volts
	ReceivePower  *Limits // watts
	TransmitPower *Limits // watts
	Bias          *Limits // amperes
}

// Lane is one lane of light.
type Lane struct {
	Number                      int      // from 1
	ReceivePower, TransmitPower *float64 // watts
	Bias                        *float64 // of the laser, amperes
}

// Flag is something the module warns of.
type Flag struct {
	Name string
	Lane int // 0: the module
}

// Names of flags that are of no monitor. Those of a monitor are its name and the threshold's, as
// temperature_high_alarm.
const (
	ReceiveLossOfSignal  = "receive_loss_of_signal"
	ReceiveLossOfLock    = "receive_loss_of_lock"
	TransmitFault        = "transmit_fault"
	TransmitLossOfSignal = "transmit_loss_of_signal"
	TransmitLossOfLock   = "transmit_loss_of_lock"
	TransmitEqualizer    = "transmit_equalizer_fault"
	DataPathFirmware     = "data_path_firmware_error"
	ModuleFirmware       = "module_firmware_error"
)

// Standard is the map that a module's memory follows.
type Standard string

// Standards.
const (
	CMIS    Standard = "CMIS"
	SFF8636 Standard = "SFF-8636"
	SFF8472 Standard = "SFF-8472"
)

// Module holds the decoded state of a module.
type Module struct {
	Standard   Standard
	Compliance string // revision of the standard, "" if not known
	Identifier uint8  // SFF-8024 table 4-1
	Type       string // its name
	Vendor     string
	OUI        string // "00:02:c9", "" if not known
	Part       string
	Revision   string
	Serial     string
	Date       string // YYMMDD and two letters of the lot

	State      string // CMIS, lower memory 3: "ModuleReady"; "" for others
	FaultCause string // CMIS, lower memory 41; "" where there is none

	Temperature *float64 // degrees Celsius
	Voltage     *float64 // of the supply, volts
	Lanes       []Lane   // those that are implemented
	Thresholds  Thresholds
	Flags       []Flag // raised ones
}

// types are the identifiers of SFF-8024 table 4-1 that we have a map of.
var types = map[uint8]struct {
	name     string
	standard Standard
	lanes    int // of CMIS modules with less than a bank
}{
	0x03: {"SFP", SFF8472, 1}, 0x0B: {"DWDM-SFP", SFF8472, 1},
	0x0C: {"QSFP", SFF8636, 4}, 0x0D: {"QSFP+", SFF8636, 4}, 0x11: {"QSFP28", SFF8636, 4},
	0x18: {"QSFP-DD", CMIS, 0}, 0x19: {"OSFP", CMIS, 0}, 0x1B: {"DSFP", CMIS, 2}, 0x1E: {"QSFP+ CMIS", CMIS, 4}, 0x1F: {"SFP-DD CMIS", CMIS, 2}, 0x20: {"SFP+ CMIS", CMIS, 1},
	0x21: {"OSFP-XD CMIS", CMIS, 0},
}

// IsSupported reports whether an identifier is one that Decode knows.
func IsSupported(identifier uint8) bool { return types[identifier].standard != "" }

// MissingBlocks returns the blocks to read next, in order of need, given those already read. Nil means that Decode
// needs no more. A block that cannot be read is put into the image as nil.
func MissingBlocks(img Image) []Block {
	need := []Block{Lower}
	if low := img[Lower]; len(low) == Half {
		switch types[low[0]].standard {
		case SFF8472:
			// Bit 2: A2h is reached only after a change of address, which the kernel does not do.
			if low[92]&(1<<6) != 0 && low[92]&(1<<2) == 0 {
				need = append(need, diagnostic)
			}
		case SFF8636:
			need = append(need, Page0)
			if low[2]&(1<<2) == 0 {
				need = append(need, page3)
			}
		case CMIS:
			need = append(need, Page0)
			if low[2]&(1<<7) == 0 {
				need = append(need, page1, page2)
				for b := range laneBanks(img) {
					need = append(need, lanePage(b))
				}
			}
		}
	}
	var out []Block
	for _, b := range need {
		if _, there := img[b]; !there {
			out = append(out, b)
		}
	}
	return out
}

// IsSteady reports whether a block does not change while the module stays plugged: identity, thresholds and what is
// implemented.
func IsSteady(b Block) bool { return b == Page0 || b == page1 || b == page2 || b == page3 }

// SerialLocation returns where the serial number is, by which another module is recognized.
func SerialLocation(img Image) (b Block, offset, length int, ok bool) {
	low := img[Lower]
	if len(low) != Half {
		return Block{}, 0, 0, false
	}
	switch types[low[0]].standard {
	case SFF8636:
		return Page0, 196, 16, true
	case CMIS:
		return Page0, 166, 16, true
	}
	return Block{}, 0, 0, false // SFF-8472 has it in the lower memory, which is read anyway
}

// Decode makes sense of an image. The module is nil where not even its type is known.
func Decode(img Image) (*Module, error) {
	d := &decoder{img: img}
	id, ok := d.readOctet(Lower, 0)
	if !ok {
		return nil, errors.Join(d.errs...)
	}
	t := types[id]
	if t.standard == "" {
		d.addError(Lower, 0, fmt.Sprintf("the identifier of an SFP, QSFP or CMIS module is expected, not %#02x", id))
		return nil, errors.Join(d.errs...)
	}
	d.m = &Module{Standard: t.standard, Identifier: id, Type: t.name}
	switch t.standard {
	case SFF8472:
		d.decodeSFF8472()
	case SFF8636:
		d.decodeSFF8636()
	case CMIS:
		d.decodeCMIS(t.lanes)
	}
	sortFlags(d.m.Flags)
	return d.m, errors.Join(d.errs...)
}

// decoder reads an image. Every access is checked.
type decoder struct {
	img   Image
	m     *Module
	errs  []error
	short map[Block]bool
}

func (d *decoder) addError(b Block, offset int, why string) {
	d.errs = append(d.errs, &Error{b, offset, why})
}

// readBytes returns n octets at an offset as the standard counts it. It reports one error for a block that is too
// short, and for one that was not read only if it must be there.
func (d *decoder) readBytes(b Block, offset, n int) ([]byte, bool) {
	x, there := d.img[b]
	at := offset - b.Offset()
	if at >= 0 && at+n <= len(x) && len(x) == Half {
		return x[at : at+n], true
	}
	if d.short == nil {
		d.short = map[Block]bool{}
	}
	must := b == Lower || b == Page0 && d.m != nil && d.m.Standard != SFF8472
	if !d.short[b] && (there && x != nil || must) {
		d.short[b] = true
		d.addError(b, offset, fmt.Sprintf("a block of %d octets is expected, not of %d", Half, len(x)))
	}
	return nil, false
}

func (d *decoder) readOctet(b Block, offset int) (byte, bool) {
	x, ok := d.readBytes(b, offset, 1)
	if !ok {
		return 0, false
	}
	return x[0], true
}

// readBit returns a bit, and false if the block is not there.
func (d *decoder) readBit(b Block, offset, n int) bool {
	x, ok := d.readOctet(b, offset)
	return ok && x>>n&1 == 1
}

func (d *decoder) readUint16(b Block, offset int) (uint16, bool) {
	x, ok := d.readBytes(b, offset, 2)
	if !ok {
		return 0, false
	}
	return binary.BigEndian.Uint16(x), true
}

// readText returns ASCII text that is left-aligned and filled with spaces. Some vendors fill with zeros.
func (d *decoder) readText(b Block, offset, n int) string {
	x, ok := d.readBytes(b, offset, n)
	if !ok {
		return ""
	}
	filler := func(c byte) bool { return c == ' ' || c == 0 || c == 0xff }
	for len(x) > 0 && filler(x[0]) {
		x = x[1:]
	}
	for len(x) > 0 && filler(x[len(x)-1]) {
		x = x[:len(x)-1]
	}
	s := string(x)
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			d.addError(b, offset, fmt.Sprintf("printable ASCII is expected, not %q", s))
			return ""
		}
	}
	return s
}

func (d *decoder) readOUI(b Block, offset int) string {
	x, ok := d.readBytes(b, offset, 3)
	if !ok || x[0]|x[1]|x[2] == 0 {
		return "" // all zeros: not specified
	}
	return fmt.Sprintf("%02x:%02x:%02x", x[0], x[1], x[2])
}

// verifyChecksum compares the low octet of the sum of from to to with the one after.
func (d *decoder) verifyChecksum(b Block, from, to int) {
	x, ok := d.readBytes(b, from, to-from+2)
	if !ok {
		return
	}
	var sum byte
	for _, v := range x[:len(x)-1] {
		sum += v
	}
	if want := x[len(x)-1]; sum != want {
		d.addError(b, to+1, fmt.Sprintf("the checksum of offsets %d to %d is expected, %#02x, not %#02x", from, to, sum, want))
	}
}

// scale makes a quantity of a raw value. All standards here share the units (CMIS
// lower memory 14 and page 11h, SFF-8636 lower memory 22, SFF-8472 A2h 96).
type scale func(raw uint16) float64

func toCelsius(raw uint16) float64 { return float64(int16(raw)) / 256 } // 1/256 degree Celsius, signed
func toVolts(raw uint16) float64   { return float64(raw) * 100 / 1e6 }  // 100 uV
func toAmperes(raw uint16) float64 { return float64(raw) * 2 / 1e6 }    // 2 uA
func toWatts(raw uint16) float64   { return float64(raw) / 1e7 }        // 0.1 uW

func (d *decoder) readValue(b Block, offset int, s scale) *float64 {
	raw, ok := d.readUint16(b, offset)
	if !ok {
		return nil
	}
	v := s(raw)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		d.addError(b, offset, "a finite value is expected after calibration")
		return nil
	}
	return &v
}

// readLimits returns four values in the order that all three standards have.
func (d *decoder) readLimits(b Block, offset int, s scale) *Limits {
	var v [4]float64
	for i := range v {
		p := d.readValue(b, offset+2*i, s)
		if p == nil {
			return nil
		}
		v[i] = *p
	}
	if v == [4]float64{} {
		return nil // none set: a module that implements thresholds has some above zero
	}
	return &Limits{HighAlarm: v[0], LowAlarm: v[1], HighWarning: v[2], LowWarning: v[3]}
}

func (d *decoder) raiseFlag(lane int, name string) { d.m.Flags = append(d.m.Flags, Flag{name, lane}) }

// Names of the thresholds, in the order that the standards have them.
var thresholds = [4]string{"_high_alarm", "_low_alarm", "_high_warning", "_low_warning"}

// raiseFourFlags raises flags of four bits, the first at bit top and the others at steps of step.
func (d *decoder) raiseFourFlags(b Block, offset, top, step, lane int, monitor string) {
	for i, name := range thresholds {
		if d.readBit(b, offset, top+i*step) {
			d.raiseFlag(lane, monitor+name)
		}
	}
}

// sortFlags puts flags in order of lanes and names.
func sortFlags(f []Flag) {
	slices.SortFunc(f, func(a, b Flag) int { return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Name, b.Name)) })
}
