package plan

import (
	"fmt"
	"io"
	"net/netip"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/jsonscan"
)

// Ports of RoCE version 2.
const (
	RoCEPort      = 4791  // the UDP port that RoCE packets are sent to
	FirstRoCEPort = 49152 // the lowest source port that the kernel's rule makes of a flow label
)

// EntryState states whether an entry of the catalogue may be planned with.
type EntryState string

// States of an entry.
const (
	Valid   EntryState = "valid"
	Stale   EntryState = "stale"   // the path has changed, or was confirmed too long ago
	Unknown EntryState = "unknown" // the path was not found, for the reason of the entry where it has one
)

// EntrySource states how the path of an entry was found.
type EntrySource string

// Sources of an entry.
const (
	Traced    EntrySource = "trace"
	Sighted   EntrySource = "sightings"
	Synthetic EntrySource = "synthetic"
)

// Entry is a line of the catalogue: the path that packets of one tuple take through the fabric.
type Entry struct {
	// Src is the NIC that sends, and Dst the NIC that the last port of the path faces. With bonds, Dst is the member
	// that receives, which may be on the other side.
	Src string `json:"src"`
	Dst string `json:"dst"`
	// SrcAddr and DstAddr are the addresses in the packets. They are invalid if they are not known.
	SrcAddr netip.Addr `json:"src_addr,omitzero"`
	DstAddr netip.Addr `json:"dst_addr,omitzero"`
	Proto   string     `json:"proto"` // "udp"
	DPort   uint16     `json:"dport"`
	DSCP    uint8      `json:"dscp"`
	SPort   uint16     `json:"sport"`
	// Path is empty unless the path is known.
	Path   fabric.Path `json:"path"`
	State  EntryState  `json:"state"`
	Source EntrySource `json:"source"`
	// Reason is why no port of the pair can be planned: HashBeyondTuple or Sprayed. It is empty in most entries.
	Reason Reason `json:"reason,omitempty"`
	// Confirmed is the time at which the path was seen last. It is zero in a synthetic entry.
	Confirmed time.Time `json:"confirmed,omitzero"`
}

// MaxEntryLine bounds one line of a catalogue, in bytes, and maxHops the hops of a path.
const (
	MaxEntryLine = 64 << 10
	maxHops      = 32
)

// AppendEntry appends the line of an entry to b, with its line break.
func AppendEntry(b []byte, e *Entry) ([]byte, error) {
	if err := e.Check(); err != nil {
		return b, err
	}
	text := func(key, value string) {
		b = append(b, '"')
		b = append(b, key...)
		b = append(b, `":`...)
		b, _ = jsontext.AppendQuote(b, value) // fails for text that is not UTF-8, which Check refuses
		b = append(b, ',')
	}
	b = append(b, '{')
	text("src", e.Src)
	text("dst", e.Dst)
	if e.SrcAddr.IsValid() {
		text("src_addr", e.SrcAddr.String())
	}
	if e.DstAddr.IsValid() {
		text("dst_addr", e.DstAddr.String())
	}
	text("proto", e.Proto)
	b = fmt.Appendf(b, `"dport":%d,"dscp":%d,"sport":%d,"path":[`, e.DPort, e.DSCP, e.SPort)
	for i, h := range e.Path {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		text("switch", h.Switch)
		text("in", h.In)
		text("out", h.Out)
		b[len(b)-1] = '}'
	}
	b = append(b, `],`...)
	text("state", string(e.State))
	text("source", string(e.Source))
	if e.Reason != "" {
		text("reason", string(e.Reason))
	}
	if !e.Confirmed.IsZero() {
		text("confirmed", e.Confirmed.UTC().Format(time.RFC3339Nano))
	}
	b[len(b)-1] = '}'
	return append(b, '\n'), nil
}

// Check returns an error that names the field which is wrong.
func (e *Entry) Check() error {
	for _, f := range []struct{ name, nic string }{{"src", e.Src}, {"dst", e.Dst}} {
		if f.name == "dst" && f.nic == "" && e.State != Valid {
			continue // the NIC that a path ends at is unknown with the path
		}
		if err := checkNIC(f.nic); err != nil {
			return fmt.Errorf("field %q: %w", f.name, err)
		}
	}
	switch {
	case e.Proto != "udp":
		return fmt.Errorf("field %q: %q: udp is expected", "proto", truncate(e.Proto))
	case e.DPort == 0:
		return fmt.Errorf("field %q: a port from 1 to 65535 is expected", "dport")
	case e.SPort == 0:
		return fmt.Errorf("field %q: a port from 1 to 65535 is expected", "sport")
	case e.DSCP > 63:
		return fmt.Errorf("field %q: %d: a number from 0 to 63 is expected", "dscp", e.DSCP)
	case e.State != Valid && e.State != Stale && e.State != Unknown:
		return fmt.Errorf("field %q: %q: valid, stale or unknown is expected", "state", truncate(string(e.State)))
	case e.Source != Traced && e.Source != Sighted && e.Source != Synthetic:
		return fmt.Errorf("field %q: %q: trace, sightings or synthetic is expected", "source", truncate(string(e.Source)))
	case e.Reason != "" && e.Reason != HashBeyondTuple && e.Reason != Sprayed:
		return fmt.Errorf("field %q: %q: hash_beyond_tuple or sprayed is expected", "reason", truncate(string(e.Reason)))
	case e.Reason != "" && e.State == Valid:
		return fmt.Errorf("field %q: an entry with a reason is not valid", "state")
	case e.State == Valid && len(e.Path) == 0:
		return fmt.Errorf("field %q: a valid entry has at least one hop", "path")
	case len(e.Path) > maxHops:
		return fmt.Errorf("field %q: %d hops: at most %d are expected", "path", len(e.Path), maxHops)
	}
	return checkHops(e.Path)
}

// checkHops returns an error if a hop has no switch or no ports, or a name that cannot be one.
func checkHops(p fabric.Path) error {
	for i, h := range p {
		if !isName(h.Switch, true) {
			return fmt.Errorf("field %q: hop %d: switch: %q: the name of a switch is expected", "path", i, truncate(h.Switch))
		}
		for _, port := range []struct{ key, name string }{{"in", h.In}, {"out", h.Out}} {
			if !isName(port.name, false) {
				return fmt.Errorf("field %q: hop %d: %s: %q: the name of a port is expected", "path", i, port.key, truncate(port.name))
			}
		}
	}
	return nil
}

func checkNIC(nic string) error {
	node, device, ok := fabric.SplitNIC(nic)
	if !ok || !isName(node, true) || !isName(device, false) {
		return fmt.Errorf("%q: a NIC is expected (node/device)", truncate(nic))
	}
	return nil
}

// truncate returns the beginning of a text that may be long.
func truncate(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// ReadCatalogue hands each entry of r, which has one per line, to fn with the number of its line. The entry is valid until
// fn returns; its strings stay valid, and its path does not. A line that cannot be read is given to bad and skipped. The
// error is that of reading r itself, or fn's.
func ReadCatalogue(r io.Reader, fn func(line int, e *Entry) error, bad func(fabric.LineError)) error {
	d := newEntryReader()
	return fabric.ReadLines(r, MaxEntryLine, func(n int, line []byte) error {
		if err := d.read(line); err != nil {
			bad(fabric.LineError{Line: n, Err: err})
			return nil
		}
		return fn(n, &d.entry)
	}, bad)
}

// entryReader reads lines of a catalogue. Names and addresses that lines have in common are shared between them.
type entryReader struct {
	entry     Entry
	scan      jsonscan.Scanner
	names     map[string]string
	addresses map[string]netip.Addr
	time      string // the last time as it was written, and read
	confirmed time.Time
}

func newEntryReader() *entryReader {
	return &entryReader{names: map[string]string{}, addresses: map[string]netip.Addr{}}
}

// maxInterned bounds the number of names that are kept: a catalogue is not trusted to have few.
const maxInterned = 1 << 22

// fields of an entry, by their bits.
const (
	seenSrc = 1 << iota
	seenDst
	seenSrcAddr
	seenDstAddr
	seenProto
	seenDPort
	seenDSCP
	seenSPort
	seenPath
	seenState
	seenSource
	seenReason
	seenConfirmed
	required = seenSrc | seenDst | seenProto | seenDPort | seenSPort | seenState | seenSource
)

var fieldBits = map[string]int{"src": seenSrc, "dst": seenDst, "src_addr": seenSrcAddr, "dst_addr": seenDstAddr, "proto": seenProto, "dport": seenDPort,
	"dscp": seenDSCP, "sport": seenSPort, "path": seenPath, "state": seenState, "source": seenSource, "reason": seenReason, "confirmed": seenConfirmed}

// requiredFields are the fields that every entry has, in the order in which they are missed.
var requiredFields = []string{"src", "dst", "proto", "dport", "sport", "state", "source"}

// read reads one line into the entry.
func (d *entryReader) read(line []byte) error {
	path := d.entry.Path[:0]
	d.entry = Entry{Path: path}
	s := &d.scan
	s.Reset(line)
	seen := 0
	for s.Enter('{'); s.Key(); {
		bit := fieldBits[string(s.Name)]
		if seen&bit != 0 {
			return fmt.Errorf("field %q: given twice", s.Name)
		}
		seen |= bit
		if err := d.field(bit); err != nil {
			return err
		}
	}
	if err := s.End(); err != nil {
		return err
	}
	if seen&required != required {
		for _, name := range requiredFields {
			if seen&fieldBits[name] == 0 {
				return fmt.Errorf("field %q: is missing", name)
			}
		}
	}
	return d.entry.Check()
}

// field reads the value of a field. Fields that are not known are skipped.
func (d *entryReader) field(bit int) (err error) {
	s, e := &d.scan, &d.entry
	switch bit {
	case seenSrc:
		e.Src = d.intern(s.Text())
	case seenDst:
		e.Dst = d.intern(s.Text())
	case seenSrcAddr:
		e.SrcAddr, err = d.address(s.Text())
	case seenDstAddr:
		e.DstAddr, err = d.address(s.Text())
	case seenProto:
		e.Proto = d.intern(s.Text())
	case seenDPort:
		e.DPort = uint16(s.UintTo(65535))
	case seenDSCP:
		e.DSCP = uint8(s.UintTo(63))
	case seenSPort:
		e.SPort = uint16(s.UintTo(65535))
	case seenPath:
		return d.path()
	case seenState:
		e.State = EntryState(d.intern(s.Text()))
	case seenSource:
		e.Source = EntrySource(d.intern(s.Text()))
	case seenReason:
		e.Reason = Reason(d.intern(s.Text()))
	case seenConfirmed:
		e.Confirmed, err = d.timestamp(s.Text())
	default:
		s.Skip()
	}
	if s.Err() != nil {
		return s.Err()
	}
	if err != nil {
		return fmt.Errorf("field %q: %w", s.Name, err)
	}
	return nil
}

// path reads the hops of a path.
func (d *entryReader) path() error {
	s := &d.scan
	for s.Enter('['); s.Element(); {
		if len(d.entry.Path) == maxHops {
			return fmt.Errorf("field %q: at most %d hops are expected", "path", maxHops)
		}
		var h fabric.Hop
		for s.Enter('{'); s.Key(); {
			switch string(s.Name) {
			case "switch":
				h.Switch = d.intern(s.Text())
			case "in":
				h.In = d.intern(s.Text())
			case "out":
				h.Out = d.intern(s.Text())
			default:
				s.Skip()
			}
		}
		if s.Err() != nil {
			return fmt.Errorf("field %q: hop %d: %w", "path", len(d.entry.Path), s.Err())
		}
		d.entry.Path = append(d.entry.Path, h)
	}
	return s.Err()
}

// intern returns the text of b, of which one copy is kept.
func (d *entryReader) intern(b []byte) string {
	if name, ok := d.names[string(b)]; ok {
		return name
	}
	name := string(b)
	if len(d.names) < maxInterned {
		d.names[name] = name
	}
	return name
}

func (d *entryReader) address(b []byte) (netip.Addr, error) {
	if a, ok := d.addresses[string(b)]; ok {
		return a, nil
	}
	a, err := netip.ParseAddr(string(b))
	if err != nil {
		return a, fmt.Errorf("%q: an IP address is expected", truncate(string(b)))
	}
	if len(d.addresses) < maxInterned {
		d.addresses[string(b)] = a
	}
	return a, nil
}

func (d *entryReader) timestamp(b []byte) (time.Time, error) {
	if d.time == string(b) && d.time != "" {
		return d.confirmed, nil
	}
	t, err := time.Parse(time.RFC3339, string(b))
	if err != nil {
		return t, fmt.Errorf("%q: a time is expected, such as 2026-11-22T02:00:00Z", truncate(string(b)))
	}
	d.time, d.confirmed = string(b), t.UTC()
	return d.confirmed, nil
}

// isName reports whether a text can be the name of a switch or node, or, if it is not strict, of a port or device.
func isName(s string, strict bool) bool {
	if s == "" {
		return false
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '>', '@', '#', ' ', '\t', '\r', '\n':
			return false
		case '/', ':':
			if strict {
				return false
			}
		case '-':
			if i+1 < len(s) && (s[i+1] == '-' || s[i+1] == '>') {
				return false
			}
		}
	}
	return utf8.ValidString(s)
}
