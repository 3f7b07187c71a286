package fabric

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// LineError is an unreadable line of an observation file.
type LineError struct {
	Line int
	Err  error
}

func (e LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e LineError) Unwrap() error { return e.Err }

// MaxObservationLine bounds one line of an observation file, in bytes.
const MaxObservationLine = 1 << 20

// ReadObservations reads JSON lines from r and hands each to fn. Names and paths that observations have in common are
// shared between them. A line that cannot be read is reported to bad with its number and skipped. The error is that
// of reading r itself, or fn's.
func ReadObservations(r io.Reader, fn func(line int, o *Observation) error, bad func(LineError)) error {
	br := bufio.NewReaderSize(r, 64<<10)
	d := newObservationDecoder()
	var buf []byte
	for n := 1; ; n++ {
		line, tooLong, err := readLine(br, buf[:0], MaxObservationLine)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		buf = line
		if tooLong {
			bad(LineError{n, fmt.Errorf("longer than %d bytes", MaxObservationLine)})
		} else if len(bytes.TrimSpace(line)) > 0 {
			o, perr := d.decodeLine(line)
			if perr != nil {
				bad(LineError{n, perr})
			} else if ferr := fn(n, o); ferr != nil {
				return ferr
			}
		}
		if err != nil {
			return nil
		}
	}
}

// readLine appends the next line to buf; what is beyond limit is read and dropped.
func readLine(br *bufio.Reader, buf []byte, limit int) (line []byte, tooLong bool, err error) {
	line = buf
	for {
		frag, err := br.ReadSlice('\n')
		if len(line)+len(frag) > limit+1 {
			tooLong = true
			line = line[:0]
		} else if !tooLong {
			line = append(line, frag...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return line, tooLong, err
	}
}

// ParseObservation reads one line.
func ParseObservation(line []byte) (*Observation, error) {
	return newObservationDecoder().decodeLine(line)
}

// observationDecoder decodes lines of an observation file. It keeps one copy of each name, hop and path. Most of a file
// is hops, of which a fabric has few: a hop's text is looked up as a whole, and a path by the numbers of its hops.
type observationDecoder struct {
	options   json.Options
	text      map[string]string
	hopNumber map[Hop]uint32
	hops      []Hop             // by number
	hopTexts  map[string]uint32 // numbers of hops as they were written
	paths     map[string]Path   // by the numbers of their hops
	key       []byte
}

// maxHopText bounds the texts of hops that are kept, in bytes.
const maxHopText = 256

func newObservationDecoder() *observationDecoder {
	d := &observationDecoder{text: map[string]string{}, hopNumber: map[Hop]uint32{}, hopTexts: map[string]uint32{}, paths: map[string]Path{}}
	d.options = json.WithUnmarshalers(json.UnmarshalFromFunc(d.decodePath))
	return d
}

func (d *observationDecoder) decodeLine(line []byte) (*Observation, error) {
	var raw struct {
		Observation
		WindowNS *int64  `json:"window_ns"`
		Sent     *uint64 `json:"sent"`
		Lost     *uint64 `json:"lost"`
	}
	if err := json.Unmarshal(line, &raw, d.options); err != nil {
		return nil, describeError(err)
	}
	o := &Observation{}
	*o = raw.Observation
	if raw.WindowNS == nil || *raw.WindowNS <= 0 {
		return nil, fmt.Errorf("field %q: a positive number of nanoseconds is required", "window_ns")
	}
	if raw.Sent == nil || raw.Lost == nil {
		return nil, fmt.Errorf("fields %q and %q: both counts are required", "sent", "lost")
	}
	o.WindowNS, o.Sent, o.Lost = *raw.WindowNS, *raw.Sent, *raw.Lost
	if err := o.completeLine(); err != nil {
		return nil, err
	}
	for _, s := range []*string{&o.Edge, &o.Src, &o.Dst, &o.Plane, &o.Class, &o.Timestamp} {
		*s = d.sharedText(*s)
	}
	return o, nil
}

// decodePath decodes an array of hops.
func (d *observationDecoder) decodePath(dec *jsontext.Decoder, p *Path) error {
	if dec.PeekKind() != '[' {
		return errors.ErrUnsupported // null, or an error that the library words
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	d.key = d.key[:0]
	for dec.PeekKind() != ']' {
		n, err := d.decodeHop(dec)
		if err != nil {
			return err
		}
		d.key = binary.LittleEndian.AppendUint32(d.key, n)
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	have, ok := d.paths[string(d.key)]
	if !ok {
		have = make(Path, 0, len(d.key)/4)
		for k := d.key; len(k) > 0; k = k[4:] {
			have = append(have, d.hops[binary.LittleEndian.Uint32(k)])
		}
		d.paths[string(d.key)] = have
	}
	*p = have
	return nil
}

// decodeHop decodes a hop, and returns its number.
func (d *observationDecoder) decodeHop(dec *jsontext.Decoder) (uint32, error) {
	text, err := dec.ReadValue()
	if err != nil {
		return 0, err
	}
	if n, ok := d.hopTexts[string(text)]; ok {
		return n, nil
	}
	at := dec.StackPointer()
	var h Hop
	if err := json.Unmarshal(text, &h); err != nil {
		if se := new(json.SemanticError); errors.As(err, &se) {
			se.JSONPointer = at + se.JSONPointer
		}
		return 0, err
	}
	h = Hop{d.sharedText(h.Switch), d.sharedText(h.In), d.sharedText(h.Out)}
	n, ok := d.hopNumber[h]
	if !ok {
		n = uint32(len(d.hops))
		d.hops, d.hopNumber[h] = append(d.hops, h), n
	}
	if len(text) <= maxHopText {
		d.hopTexts[string(text)] = n
	}
	return n, nil
}

func (d *observationDecoder) sharedText(s string) string {
	have, ok := d.text[s]
	if !ok {
		d.text[s] = s
		return s
	}
	return have
}

// describeError names the field at which a line could not be decoded, and what is expected there.
func describeError(err error) error {
	se := new(json.SemanticError)
	if !errors.As(err, &se) || se.GoType == nil {
		return fmt.Errorf("not a JSON object: %w", err)
	}
	field := strings.ReplaceAll(strings.TrimPrefix(string(se.JSONPointer), "/"), "/", ".")
	if field == "" {
		return fmt.Errorf("%s where a JSON object is expected", describeValue(se))
	}
	return fmt.Errorf("field %q: %s where %s is expected", field, describeValue(se), describeType(se.GoType))
}

func describeValue(e *json.SemanticError) string {
	const most = 80
	switch kind := map[jsontext.Kind]string{'n': "null", 'f': "false", 't': "true", '"': "a string", '0': "a number", '{': "an object", '[': "an array"}[e.JSONKind]; {
	case len(e.JSONValue) > 0 && len(e.JSONValue) <= most:
		return string(e.JSONValue)
	case kind != "":
		return kind
	}
	return "a value"
}

func describeType(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "an RFC 3339 time"
	case t.Kind() == reflect.Pointer:
		return describeType(t.Elem())
	case t.Kind() == reflect.Uint64:
		return "a whole number of at least 0"
	case t.Kind() == reflect.Int64 || t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice:
		return "an array"
	case t.Kind() == reflect.Struct:
		return "an object"
	}
	return "a string"
}
