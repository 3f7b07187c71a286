package csig

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Profile is what all devices of a domain have in common. ParseProfile makes one; it does not change after that.
type Profile struct {
	EtherTypes EtherTypes
	// DC and WAN are the windows of a port's rate within a site and between sites. They are the same where the file gives
	// one.
	DC, WAN time.Duration
	// Fastest is the speed of the domain's fastest port in bit/s, or 0 if the file does not give it.
	Fastest uint64
	// Tables has the scales of compact tags by signal; nil for a signal that compact tags do not have.
	Tables [Signals]*Table
	// Steps has the same of wide tags.
	Steps [Signals]*Steps
	// DoNotUpdate is the bit with which a tag is passed on without an update.
	DoNotUpdate Bit
	// CompactLocators and WideLocators have the locators of ports (switch:port). Several ports have one compact locator
	// where 127 are too few; wide ones are unique.
	CompactLocators, WideLocators map[string]uint16
	// CompactDown and WideDown have the ports that locators report to be down.
	CompactDown, WideDown map[uint16]string
}

// Bit is a bit of a tag that the draft leaves reserved. The zero value is no bit.
type Bit struct {
	Format Format
	Mask   uint8 // of Reserved
}

func (b Bit) String() string {
	switch b.Format {
	case Compact:
		return "r"
	case Wide:
		for i := range 8 {
			if b.Mask == 1<<i {
				return fmt.Sprintf("res%d", i)
			}
		}
	}
	return "none"
}

// parseBit reads none, r for the reserved bit of compact tags, or res0 to res7 for those of wide tags, of which res0 is the
// least significant.
func parseBit(s string) (Bit, bool) {
	if s == "none" {
		return Bit{}, true
	}
	if s == "r" {
		return Bit{Compact, 1}, true
	}
	for i := range 8 {
		if s == fmt.Sprintf("res%d", i) {
			return Bit{Wide, 1 << i}, true
		}
	}
	return Bit{}, false
}

// ForbidsUpdate reports whether a tag has the bit with which it is passed on without an update.
func (p *Profile) ForbidsUpdate(t *Tag) bool {
	return p.DoNotUpdate.Mask&t.Reserved != 0 && p.DoNotUpdate.Format == t.Format
}

// HasScale reports whether the profile has a scale for a signal in tags of a format.
func (p *Profile) HasScale(f Format, s Signal) bool {
	if !s.IsKnown() {
		return false
	}
	if f == Compact {
		return p.Tables[s] != nil
	}
	return f == Wide && p.Steps[s] != nil
}

// CodeOf returns the code of a value. ok is false if the profile has no scale for it. Values are bit/s, millionths or
// nanoseconds, as the signal says.
func (p *Profile) CodeOf(f Format, s Signal, v uint64) (code uint32, ok bool) {
	if !p.HasScale(f, s) {
		return 0, false
	}
	if f == Compact {
		return p.Tables[s].CodeOf(v), true
	}
	return p.Steps[s].CodeOf(v), true
}

// Decode returns the values that the code of a tag stands for. ok is false if the profile has no scale for the signal, or if
// its scale does not have the code. That a port gave the value is known only if the tag's locator is not 0.
func (p *Profile) Decode(t *Tag) (r Range, ok bool) {
	switch {
	case !p.HasScale(t.Format, t.Signal):
		return Range{}, false
	case t.Format == Compact:
		return p.Tables[t.Signal].RangeOf(t.Code)
	}
	return p.Steps[t.Signal].RangeOf(t.Code)
}

// locatorsOf returns the locators of ports in tags of a format.
func (p *Profile) locatorsOf(f Format) map[string]uint16 {
	if f == Compact {
		return p.CompactLocators
	}
	return p.WideLocators
}

// Defaults of scales: spec 91-csig.md, section 2, and for wide tags the draft's examples.
var defaultPercents = [...]uint64{0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 23, 26, 29, 32, 36, 40, 44, 48, 52, 56, 60, 65, 70, 75, 80, 85, 90, 95}

const (
	defaultFirstDelay    = 250     // ns: the second edge of compact tags; each one is larger by the square root of 2
	defaultBandwidthStep = 1 << 23 // bit/s: 8.8 Tb/s with 20 bits
	defaultShareStep     = 1       // millionth
	defaultDelayStep     = 128     // ns: 134 ms with 20 bits
)

// NewTable returns a table with the codes 0, 1, 2 and so on.
func NewTable(edges ...uint64) *Table {
	t := &Table{Edges: edges}
	for i := range edges {
		t.Codes = append(t.Codes, uint8(i))
	}
	return t
}

// defaultTable returns the default scale of a signal in compact tags, and nil for Queue, which has none. That of Bandwidth
// needs the speed of the fastest port.
func defaultTable(s Signal, fastest uint64) *Table {
	edges := make([]uint64, maxEdges)
	for i := range edges {
		switch s {
		case Bandwidth:
			edges[i] = scale(fastest, defaultPercents[i], 100)
		case Share:
			edges[i] = defaultPercents[i] * Million / 100
		case Delay:
			if i > 0 {
				edges[i] = uint64(math.Round(defaultFirstDelay * math.Pow(2, float64(i-1)/2)))
			}
		default:
			return nil
		}
	}
	return NewTable(edges...)
}

// defaultSteps returns the same for wide tags.
func defaultSteps(s Signal) *Steps {
	switch s {
	case Bandwidth:
		return &Steps{Step: defaultBandwidthStep}
	case Share:
		return &Steps{Step: defaultShareStep}
	case Delay:
		return &Steps{Step: defaultDelayStep}
	}
	return nil
}

// Hash returns 16 hexadecimal digits that two profiles have in common if and only if they mean the same: comments, the order
// of keys, units, and defaults that are spelled out make no difference.
func (p *Profile) Hash() string {
	h := sha256.New()
	p.writeCanonical(h)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// writeCanonical writes everything that a device does by the profile, in one order.
func (p *Profile) writeCanonical(w io.Writer) {
	fmt.Fprintf(w, "csig 1\nethertypes %04x %04x\ninterval %d %d\ndnu %v\n", p.EtherTypes.Compact, p.EtherTypes.Wide, p.DC.Nanoseconds(), p.WAN.Nanoseconds(), p.DoNotUpdate)
	for s := range Signal(Signals) {
		if t := p.Tables[s]; t != nil {
			fmt.Fprintf(w, "compact %d %v %v\n", s, t.Edges, t.Codes)
		}
		if t := p.Steps[s]; t != nil {
			fmt.Fprintf(w, "wide %d %d %d\n", s, t.Base, t.Step)
		}
	}
	for _, f := range Formats {
		locators, down := p.locatorsOf(f), p.downOf(f)
		for _, port := range slices.Sorted(maps.Keys(locators)) {
			fmt.Fprintf(w, "locator %v %d %q\n", f, locators[port], port)
		}
		for _, l := range slices.Sorted(maps.Keys(down)) {
			fmt.Fprintf(w, "down %v %d %q\n", f, l, down[l])
		}
	}
}

// downOf returns the ports that locators of a format report to be down.
func (p *Profile) downOf(f Format) map[uint16]string {
	if f == Compact {
		return p.CompactDown
	}
	return p.WideDown
}

// PortsOf returns the ports that have a locator in tags of a format, sorted.
func (p *Profile) PortsOf(f Format, locator uint16) []string {
	var out []string
	for port, l := range p.locatorsOf(f) {
		if l == locator {
			out = append(out, port)
		}
	}
	slices.SortFunc(out, strings.Compare)
	return out
}

// DownPort returns the port that a locator reports to be down, or "".
func (p *Profile) DownPort(f Format, locator uint16) string { return p.downOf(f)[locator] }
