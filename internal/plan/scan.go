package plan

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// scanner reads the JSON of one line. After an error it returns nothing more.
type scanner struct {
	b   []byte
	i   int
	err error
	buf []byte // of a string with escapes
}

// peek returns the next octet that is no white space, or 0 at the end.
func (s *scanner) peek() byte {
	for ; s.i < len(s.b); s.i++ {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) fail(text string) {
	if s.err == nil {
		s.err = errors.New(text)
	}
}

// enter reads the octet that opens an object or a list, and returns false if another stands there.
func (s *scanner) enter(open byte) bool {
	if s.err != nil || s.peek() != open {
		return false
	}
	s.i++
	return true
}

// more moves to the next member or element, and returns false behind the last one.
func (s *scanner) more(end byte, first bool) bool {
	if s.err != nil {
		return false
	}
	c := s.peek()
	if c == end {
		s.i++
		return false
	}
	if !first {
		if c != ',' {
			s.fail(fmt.Sprintf("not JSON: a comma or %q is expected", end))
			return false
		}
		s.i++
	}
	return true
}

func (s *scanner) colon() {
	if s.err == nil && s.peek() != ':' {
		s.fail("not JSON: a colon is expected")
	}
	s.i++
}

// quoted reads a string. It is valid until the next one is read.
func (s *scanner) quoted() []byte {
	if s.err != nil {
		return nil
	}
	if s.peek() != '"' {
		s.fail("a string is expected")
		return nil
	}
	start := s.i + 1
	plain := true
	for j := start; j < len(s.b); j++ {
		switch c := s.b[j]; {
		case c == '"':
			s.i = j + 1
			if !plain && !utf8.Valid(s.b[start:j]) {
				s.fail("a string is not UTF-8")
				return nil
			}
			return s.b[start:j]
		case c == '\\':
			return s.escaped()
		case c < ' ':
			s.fail("not JSON: a control character in a string")
			return nil
		case c >= utf8.RuneSelf:
			plain = false
		}
	}
	s.fail("not JSON: a string does not end")
	return nil
}

// escaped reads a string that has escapes.
func (s *scanner) escaped() []byte {
	end := s.i + 1
	for end < len(s.b) && s.b[end] != '"' {
		if s.b[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(s.b) {
		s.fail("not JSON: a string does not end")
		return nil
	}
	var err error
	if s.buf, err = jsontext.AppendUnquote(s.buf[:0], s.b[s.i:end+1]); err != nil {
		s.fail("not JSON: a bad string")
		return nil
	}
	s.i = end + 1
	return s.buf
}

// number reads a whole number from 0 to most.
func (s *scanner) number(most int) int {
	if s.err != nil {
		return 0
	}
	s.peek()
	start, n := s.i, 0
	for ; s.i < len(s.b) && s.b[s.i]-'0' <= 9 && n <= most; s.i++ {
		n = n*10 + int(s.b[s.i]-'0')
	}
	bad := s.i == start || n > most || s.i > start+1 && s.b[start] == '0'
	if s.i < len(s.b) && bytes.IndexByte([]byte(".eE"), s.b[s.i]) >= 0 {
		bad = true
	}
	if bad {
		s.fail(fmt.Sprintf("a whole number from 0 to %d is expected", most))
		return 0
	}
	return n
}

// skip reads over a value of any kind.
func (s *scanner) skip() {
	if s.err != nil {
		return
	}
	s.peek()
	d := jsontext.NewDecoder(bytes.NewReader(s.b[s.i:]))
	if err := d.SkipValue(); err != nil {
		s.fail("not JSON: a value is expected")
		return
	}
	s.i += int(d.InputOffset())
}

// end returns the error of the line, which is one also if something stands behind the object.
func (s *scanner) end() error {
	if s.err == nil && s.peek() != 0 || s.err == nil && s.i < len(s.b) {
		s.fail("not JSON: nothing is expected behind the object")
	}
	return s.err
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
