// Package jsonscan reads JSON texts that come by the million, such as lines of logs and catalogues, in a single pass and without allocating. It has no
// reflection: a reader walks through the members of objects in the order of the text.
package jsonscan

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is the greatest depth of nested values that a scanner goes into.
const MaxDepth = 32

// Scanner reads one JSON text in a single pass and without allocating. A reader walks through the members of objects in
// the order of the text, and skips those that it does not know. After the first error all methods do nothing.
type Scanner struct {
	b     []byte
	i     int
	depth int
	begun [MaxDepth + 1]bool // by depth: an element of the array or object was read
	Name  []byte             // key of the member that follows; valid until the next one is read
	buf   []byte             // an unquoted string
	Loose bool               // a comma between two members may be missing
	err   error
}

// Reset begins a text, of which the scanner does not keep a copy.
func (s *Scanner) Reset(b []byte) { s.b, s.i, s.depth, s.err = b, 0, 0, nil }

// Err returns the first error, or nil.
func (s *Scanner) Err() error { return s.err }

// Offset returns the number of bytes that were read.
func (s *Scanner) Offset() int { return s.i }

// Since returns the text that was read since an offset.
func (s *Scanner) Since(start int) []byte { return s.b[start:s.i] }

// PassPrefix reads over a prefix, and returns false if the text does not go on with it.
func (s *Scanner) PassPrefix(prefix []byte) bool {
	if s.err != nil || !bytes.HasPrefix(s.b[s.i:], prefix) {
		return false
	}
	s.i += len(prefix)
	return true
}

// Failf stores an error with its offset in the text.
func (s *Scanner) Failf(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("not a JSON object: at byte %d: %w", s.i, fmt.Errorf(format, args...))
	}
}

// Wrong stores that a member has no value of the expected kind.
func (s *Scanner) Wrong(expected string) {
	if s.err == nil {
		value := "nothing"
		if s.i < len(s.b) {
			end := min(len(s.b), s.i+40)
			if n := bytes.IndexAny(s.b[s.i:end], ",}]\n"); n > 0 {
				end = s.i + n
			}
			value = string(bytes.ToValidUTF8(s.b[s.i:end], []byte("?")))
		}
		s.err = fmt.Errorf("field %q: %s is expected, and not %s", s.Name, expected, value)
	}
}

// Peek returns the next byte that is not white space, or 0 at the end.
func (s *Scanner) Peek() byte {
	for ; s.i < len(s.b); s.i++ {
		if c := s.b[s.i]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// Enter begins an object or an array, c being its first byte.
func (s *Scanner) Enter(c byte) {
	if s.err != nil {
		return
	}
	if s.Peek() != c {
		if s.depth == 0 {
			s.Failf("a JSON object is expected")
		} else {
			s.Wrong(map[byte]string{'{': "an object", '[': "an array"}[c])
		}
		return
	}
	if s.depth == MaxDepth {
		s.Failf("more than %d values are nested", MaxDepth)
		return
	}
	s.i++
	s.depth++
	s.begun[s.depth] = false
}

// next moves to the next element of the object or array that was entered, and returns false behind the last one.
func (s *Scanner) next(end byte) bool {
	if s.err != nil {
		return false
	}
	c := s.Peek()
	if c == end {
		s.i++
		s.depth--
		return false
	}
	if s.begun[s.depth] {
		switch {
		case c == ',':
			s.i++
		case !s.Loose || c != '"':
			s.Failf("a comma or %q is expected", end)
			return false
		}
	}
	s.begun[s.depth] = true
	return true
}

// Key moves to the next member of an object, whose key is then in s.Name, and returns false behind the last one.
func (s *Scanner) Key() bool {
	if !s.next('}') {
		return false
	}
	s.Name = s.Quoted()
	if s.err == nil && s.Peek() != ':' {
		s.Failf("a colon is expected")
	}
	s.i++
	return s.err == nil
}

// Element moves to the next element of an array, and returns false behind the last one.
func (s *Scanner) Element() bool { return s.next(']') }

// Quoted reads a string. It is valid until the next one with escapes is read.
func (s *Scanner) Quoted() []byte {
	if s.err != nil {
		return nil
	}
	if s.Peek() != '"' {
		s.Failf("a string is expected")
		return nil
	}
	start, plain, escaped := s.i+1, true, false
	for j := start; j < len(s.b); j++ {
		switch c := s.b[j]; {
		case c == '"':
			text := s.b[start:j]
			s.i = j + 1
			if escaped {
				var err error
				if s.buf, err = jsontext.AppendUnquote(s.buf[:0], s.b[start-1:j+1]); err != nil {
					s.Failf("bad string: %w", err)
				}
				return s.buf
			}
			if !plain && !utf8.Valid(text) {
				s.Failf("a string is not UTF-8")
			}
			return text
		case c == '\\':
			escaped = true
			j++
		case c < ' ':
			s.Failf("control character in a string")
			return nil
		case c >= utf8.RuneSelf:
			plain = false
		}
	}
	s.Failf("a string does not end")
	return nil
}

// Text reads the string of a member.
func (s *Scanner) Text() []byte {
	if s.err == nil && s.Peek() != '"' {
		s.Wrong("a string")
		return nil
	}
	return s.Quoted()
}

// digits reads decimal digits, as many as there are. It is false if there are none or the number has more than 64 bits.
func (s *Scanner) digits() (n uint64, ok bool) {
	start := s.i
	for ; s.i < len(s.b) && s.b[s.i]-'0' <= 9; s.i++ {
		d := uint64(s.b[s.i] - '0')
		if n > (math.MaxUint64-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	zero := s.i > start+1 && s.b[start] == '0'
	return n, s.i > start && !zero
}

// endOfNumber says whether a number ends here.
func (s *Scanner) endOfNumber() bool {
	if s.i == len(s.b) {
		return true
	}
	switch s.b[s.i] {
	case '.', 'e', 'E', '+', '-':
		return false
	}
	return true
}

// Uint reads a whole number of at least 0.
func (s *Scanner) Uint() uint64 {
	if s.err != nil {
		return 0
	}
	s.Peek()
	start := s.i
	n, ok := s.digits()
	if !ok || !s.endOfNumber() {
		s.i = start
		s.Wrong("a whole number of at least 0")
		return 0
	}
	return n
}

// UintTo reads a whole number from 0 to most.
func (s *Scanner) UintTo(most uint64) uint64 {
	if s.err != nil {
		return 0
	}
	s.Peek()
	start := s.i
	n, ok := s.digits()
	if !ok || n > most || !s.endOfNumber() {
		s.i = start
		s.Wrong(fmt.Sprintf("a whole number from 0 to %d", most))
		return 0
	}
	return n
}

// Micros reads a number of microseconds of at least 0 and returns nanoseconds. Fractions of a nanosecond are cut off.
func (s *Scanner) Micros() int64 {
	if s.err != nil {
		return 0
	}
	s.Peek()
	start := s.i
	us, ok := s.digits()
	ns := us * 1000
	ok = ok && us < math.MaxInt64/1000
	if ok && s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		first := s.i
		for unit := uint64(100); s.i < len(s.b) && s.b[s.i]-'0' <= 9; s.i++ {
			ns += uint64(s.b[s.i]-'0') * unit
			unit /= 10
		}
		ok = s.i > first
	}
	if !ok || !s.endOfNumber() {
		s.i = start
		s.Wrong("a number of microseconds of at least 0")
		return 0
	}
	return int64(ns)
}

// Bool reads true or false.
func (s *Scanner) Bool() bool {
	if s.err != nil {
		return false
	}
	s.Peek()
	for _, word := range []string{"true", "false"} {
		if s.PassPrefix([]byte(word)) {
			return word == "true"
		}
	}
	s.Wrong("true or false")
	return false
}

// errLiteral is the error of what is no JSON value.
var errLiteral = errors.New("a value is expected")

// Skip reads over a value of any kind, and checks that it is one.
func (s *Scanner) Skip() {
	switch c := s.Peek(); {
	case s.err != nil:
	case c == '"':
		s.Quoted()
	case c == '{':
		for s.Enter('{'); s.Key(); {
			s.Skip()
		}
	case c == '[':
		for s.Enter('['); s.Element(); {
			s.Skip()
		}
	case c == '-' || c-'0' <= 9:
		s.number()
	default:
		for _, word := range []string{"true", "false", "null"} {
			if bytes.HasPrefix(s.b[s.i:], []byte(word)) {
				s.i += len(word)
				return
			}
		}
		s.Failf("%w", errLiteral)
	}
}

// number reads over a number.
func (s *Scanner) number() {
	if s.b[s.i] == '-' {
		s.i++
	}
	start := s.i
	for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
		s.i++
	}
	ok := s.i > start && (s.b[start] != '0' || s.i == start+1)
	if ok && s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		fraction := s.i
		for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
			s.i++
		}
		ok = s.i > fraction
	}
	if ok && s.i < len(s.b) && (s.b[s.i]|0x20) == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		exponent := s.i
		for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
			s.i++
		}
		ok = s.i > exponent
	}
	if !ok {
		s.Failf("bad number")
	}
}

// End checks that nothing follows.
func (s *Scanner) End() error {
	if s.Peek(); s.err == nil && s.i < len(s.b) {
		s.Failf("nothing is expected behind the object")
	}
	return s.err
}
