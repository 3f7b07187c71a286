package ccl

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is the greatest depth of nested values that a scanner and the pickle reader go into.
const maxDepth = 32

// scanner reads one JSON text in a single pass and without allocating. A reader walks through the members of objects in
// the order of the text, and skips those that it does not know. After the first error all methods do nothing.
type scanner struct {
	b     []byte
	i     int
	depth int
	begun [maxDepth + 1]bool // by depth: an element of the array or object was read
	name  []byte             // key of the member that follows; valid until the next one is read
	buf   []byte             // an unquoted string
	loose bool               // a comma between two members may be missing
	err   error
}

func (s *scanner) reset(b []byte) { s.b, s.i, s.depth, s.err = b, 0, 0, nil }

// failf stores an error with its offset in the text.
func (s *scanner) failf(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("not a JSON object: at byte %d: %w", s.i, fmt.Errorf(format, args...))
	}
}

// wrong stores that a member has no value of the expected kind.
func (s *scanner) wrong(expected string) {
	if s.err == nil {
		value := "nothing"
		if s.i < len(s.b) {
			end := min(len(s.b), s.i+40)
			if n := bytes.IndexAny(s.b[s.i:end], ",}]\n"); n > 0 {
				end = s.i + n
			}
			value = string(bytes.ToValidUTF8(s.b[s.i:end], []byte("?")))
		}
		s.err = fieldError(string(s.name), "%s is expected, and not %s", expected, value)
	}
}

// peek returns the next byte that is not white space, or 0 at the end.
func (s *scanner) peek() byte {
	for ; s.i < len(s.b); s.i++ {
		if c := s.b[s.i]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// enter begins an object or an array, c being its first byte.
func (s *scanner) enter(c byte) {
	if s.err != nil {
		return
	}
	if s.peek() != c {
		if s.depth == 0 {
			s.failf("a JSON object is expected")
		} else {
			s.wrong(map[byte]string{'{': "an object", '[': "an array"}[c])
		}
		return
	}
	if s.depth == maxDepth {
		s.failf("more than %d values are nested", maxDepth)
		return
	}
	s.i++
	s.depth++
	s.begun[s.depth] = false
}

// next moves to the next element of the object or array that was entered, and returns false behind the last one.
func (s *scanner) next(end byte) bool {
	if s.err != nil {
		return false
	}
	c := s.peek()
	if c == end {
		s.i++
		s.depth--
		return false
	}
	if s.begun[s.depth] {
		switch {
		case c == ',':
			s.i++
		case !s.loose || c != '"':
			s.failf("a comma or %q is expected", end)
			return false
		}
	}
	s.begun[s.depth] = true
	return true
}

// key moves to the next member of an object, whose key is then in s.name, and returns false behind the last one.
func (s *scanner) key() bool {
	if !s.next('}') {
		return false
	}
	s.name = s.quoted()
	if s.err == nil && s.peek() != ':' {
		s.failf("a colon is expected")
	}
	s.i++
	return s.err == nil
}

// element moves to the next element of an array, and returns false behind the last one.
func (s *scanner) element() bool { return s.next(']') }

// quoted reads a string. It is valid until the next one with escapes is read.
func (s *scanner) quoted() []byte {
	if s.err != nil {
		return nil
	}
	if s.peek() != '"' {
		s.failf("a string is expected")
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
					s.failf("bad string: %w", err)
				}
				return s.buf
			}
			if !plain && !utf8.Valid(text) {
				s.failf("a string is not UTF-8")
			}
			return text
		case c == '\\':
			escaped = true
			j++
		case c < ' ':
			s.failf("control character in a string")
			return nil
		case c >= utf8.RuneSelf:
			plain = false
		}
	}
	s.failf("a string does not end")
	return nil
}

// text reads the string of a member.
func (s *scanner) text() []byte {
	if s.err == nil && s.peek() != '"' {
		s.wrong("a string")
		return nil
	}
	return s.quoted()
}

// digits reads decimal digits, as many as there are. It is false if there are none or the number has more than 64 bits.
func (s *scanner) digits() (n uint64, ok bool) {
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
func (s *scanner) endOfNumber() bool {
	if s.i == len(s.b) {
		return true
	}
	switch s.b[s.i] {
	case '.', 'e', 'E', '+', '-':
		return false
	}
	return true
}

// uint reads a whole number of at least 0.
func (s *scanner) uint() uint64 {
	if s.err != nil {
		return 0
	}
	s.peek()
	start := s.i
	n, ok := s.digits()
	if !ok || !s.endOfNumber() {
		s.i = start
		s.wrong("a whole number of at least 0")
		return 0
	}
	return n
}

// rank reads a whole number that may be a rank. A number below zero is -1, which is none.
func (s *scanner) rank() int {
	if s.err == nil && s.peek() == '-' {
		s.skip()
		return absentRank
	}
	n := s.uint()
	if n > math.MaxInt32 {
		s.wrong("a rank")
		return absentRank
	}
	return int(n)
}

// micros reads a number of microseconds of at least 0 and returns nanoseconds. Fractions of a nanosecond are cut off.
func (s *scanner) micros() int64 {
	if s.err != nil {
		return 0
	}
	s.peek()
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
		s.wrong("a number of microseconds of at least 0")
		return 0
	}
	return int64(ns)
}

// time reads microseconds since 1970. 0 stands for a time that is unknown.
func (s *scanner) time() Nanos {
	ns := s.micros()
	return Nanos{NS: ns, Known: ns != 0 && s.err == nil}
}

// duration reads a number of microseconds.
func (s *scanner) duration() Nanos {
	ns := s.micros()
	return Nanos{NS: ns, Known: s.err == nil}
}

// errLiteral is the error of what is no JSON value.
var errLiteral = errors.New("a value is expected")

// skip reads over a value of any kind, and checks that it is one.
func (s *scanner) skip() {
	switch c := s.peek(); {
	case s.err != nil:
	case c == '"':
		s.quoted()
	case c == '{':
		for s.enter('{'); s.key(); {
			s.skip()
		}
	case c == '[':
		for s.enter('['); s.element(); {
			s.skip()
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
		s.failf("%w", errLiteral)
	}
}

// number reads over a number.
func (s *scanner) number() {
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
		s.failf("bad number")
	}
}

// end checks that nothing follows.
func (s *scanner) end() error {
	if s.peek(); s.err == nil && s.i < len(s.b) {
		s.failf("nothing is expected behind the object")
	}
	return s.err
}
