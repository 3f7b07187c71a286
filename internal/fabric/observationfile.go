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
	d := newObservationDecoder()
	return ReadLines(r, MaxObservationLine, func(n int, line []byte) error {
		o, err := d.decodeLine(line)
		if err != nil {
			bad(LineError{n, err})
			return nil
		}
		return fn(n, o)
	}, bad)
}

// ReadLines hands each line of r that is not blank to fn, with its number. The line is valid until fn returns. A line of more
// than limit bytes is reported to bad and skipped. The error is that of reading r itself, or fn's.
func ReadLines(r io.Reader, limit int, fn func(n int, line []byte) error, bad func(LineError)) error {
	br := bufio.NewReaderSize(r, 64<<10)
	var buf []byte
	for n := 1; ; n++ {
		line, tooLong, err := readLine(br, buf[:0], limit)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		buf = line
		if tooLong {
			bad(LineError{n, fmt.Errorf("longer than %d bytes", limit)})
		} else if len(bytes.TrimSpace(line)) > 0 {
			if ferr := fn(n, line); ferr != nil {
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
	short     []byte // a line without its candidate paths
	free      Path   // hops for new paths

	lookups, found int // of paths
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
	line, paths := d.takeKnownPaths(line)
	if err := json.Unmarshal(line, &raw, d.options); err != nil {
		return nil, DescribeJSONError(err)
	}
	o := &Observation{}
	*o = raw.Observation
	if len(paths) > 0 {
		o.Paths = paths
	}
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

// takeKnownPaths returns a line with an empty array of paths, and the paths that stood there, if the texts of all of their
// hops are known. Otherwise it returns the line as it is. Candidate paths are most of a file, and decoding their JSON
// takes most of the time.
func (d *observationDecoder) takeKnownPaths(line []byte) (short []byte, paths []Path) {
	// In a string the quotes would be escaped, so this is a key.
	const key = `"paths":[`
	at := bytes.Index(line, []byte(key))
	if at < 0 || !isOutermost(line[:at]) {
		return line, nil
	}
	rest := line[at+len(key):]
	for {
		after, more, ok := nextElement(rest, len(paths) == 0)
		if !ok {
			return line, nil
		}
		if !more {
			d.short = append(append(append(d.short[:0], line[:at+len(key)]...), ']'), after...)
			return d.short, paths
		}
		if len(after) == 0 || after[0] != '[' {
			return line, nil
		}
		if rest, ok = d.lookUpHops(after[1:]); !ok {
			return line, nil
		}
		paths = append(paths, d.internPath())
	}
}

// isOutermost reports whether what follows the beginning of a JSON object is in the object itself, and in none of its
// members.
func isOutermost(begin []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(begin); i++ {
		switch c := begin[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
	return depth == 1 && !quoted
}

// nextElement returns what begins with the next element of a JSON array. At the end of the array, more is false and it
// returns what follows the array. It reports false for text that is none of an array.
func nextElement(rest []byte, first bool) (after []byte, more, ok bool) {
	rest = skipSpace(rest)
	switch {
	case len(rest) == 0:
		return nil, false, false
	case rest[0] == ']':
		return rest[1:], false, true
	case first:
		return rest, true, true
	case rest[0] == ',':
		rest = skipSpace(rest[1:])
		return rest, true, len(rest) > 0 && rest[0] != ']'
	}
	return nil, false, false
}

// skipSpace returns text without the white space of JSON that it begins with.
func skipSpace(text []byte) []byte {
	for len(text) > 0 && (text[0] == ' ' || text[0] == '\t' || text[0] == '\r' || text[0] == '\n') {
		text = text[1:]
	}
	return text
}

// lookUpHops sets key to the numbers of the hops of a JSON array whose first bracket is passed, and returns what follows
// the array. It reports false if the text of a hop is not known. A hop's text ends at its first brace: where that brace
// stands in a name, the text up to it is none of a hop.
func (d *observationDecoder) lookUpHops(rest []byte) (after []byte, ok bool) {
	d.key = d.key[:0]
	for {
		after, more, ok := nextElement(rest, len(d.key) == 0)
		if !ok || !more {
			return after, ok
		}
		end := bytes.IndexByte(after, '}')
		if end < 0 {
			return nil, false
		}
		n, ok := d.hopTexts[string(after[:end+1])]
		if !ok {
			return nil, false
		}
		d.key = binary.LittleEndian.AppendUint32(d.key, n)
		rest = after[end+1:]
	}
}

// internPath returns the path whose hops have the numbers in key. Where hardly any path was seen before, as where every
// flow has candidate paths of its own, it stops looking.
func (d *observationDecoder) internPath() Path {
	const enough, seldom = 10_000, 10
	d.lookups++
	if d.lookups > enough && d.found < d.lookups/seldom {
		return d.makePath()
	}
	have, ok := d.paths[string(d.key)]
	if ok {
		d.found++
		return have
	}
	have = d.makePath()
	d.paths[string(d.key)] = have
	return have
}

// makePath makes the path whose hops have the numbers in key.
func (d *observationDecoder) makePath() Path {
	const block = 4096 // hops that are allocated at once
	n := len(d.key) / 4
	if n == 0 {
		return Path{}
	}
	if n > len(d.free) {
		d.free = make(Path, max(n, block))
	}
	p := d.free[:n:n]
	d.free = d.free[n:]
	for i := range p {
		p[i] = d.hops[binary.LittleEndian.Uint32(d.key[4*i:])]
	}
	return p
}

// decodePath decodes an array of hops.
func (d *observationDecoder) decodePath(dec *jsontext.Decoder, p *Path) error {
	if dec.PeekKind() != '[' {
		return errors.ErrUnsupported // null, or an error that the library words
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	var key []byte
	for dec.PeekKind() != ']' {
		text, err := dec.ReadValue()
		if err != nil {
			return err
		}
		n, known := d.hopTexts[string(text)]
		if !known {
			if n, err = d.decodeHop(text, dec.StackPointer()); err != nil {
				return err
			}
		}
		key = binary.LittleEndian.AppendUint32(key, n)
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	d.key = key
	*p = d.internPath()
	return nil
}

// decodeHop decodes a hop, and returns its number. at is where it stands in the line, for errors.
func (d *observationDecoder) decodeHop(text []byte, at jsontext.Pointer) (uint32, error) {
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

// DescribeJSONError names the field at which a line could not be decoded, and what is expected there.
func DescribeJSONError(err error) error {
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
	case t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice:
		return "an array"
	case t.Kind() == reflect.Struct:
		return "an object"
	}
	return "a string"
}
