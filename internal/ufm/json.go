package ufm

import (
	"errors"
	"io"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// readJSON reads objects that are rows of ports, wherever they stand: in an array, in
// an array within an object, or one after the other. A row is an object that has a
// GUID or a port's number; objects within a row belong to it, as "labels" and
// "values" do. What the time of a document is, its rows have when they have none.
//
// It is a reader of its own since encoding/json takes a document or a value whole,
// and its tokens cost an allocation each.
func (s *Source) readJSON() error {
	j := &jsonReader{s: s}
	any := false
	for {
		c, err := j.space()
		if errors.Is(err, io.EOF) && any {
			return nil
		}
		if err == nil {
			any = true
			err = j.element(c, 0)
		}
		if err != nil {
			return j.failed(err)
		}
	}
}

type jsonReader struct {
	s    *Source
	at   int    // octets read
	buf  []byte // the last text or number
	name []byte
	rows []*jsonRow // by depth, kept between rows
	time time.Time  // of the document
}

// jsonRow is an object that is being read.
type jsonRow struct {
	row   row
	cells []jsonCell
	text  []byte
}

type jsonCell struct {
	column   *Column
	from, to int // of text
	bad      bool
}

func (j *jsonReader) failed(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return readFailed(err, "octet", j.at)
}

func (j *jsonReader) read() (byte, error) {
	c, err := j.s.br.ReadByte()
	if err == nil {
		j.at++
	}
	return c, err
}

func (j *jsonReader) back() {
	_ = j.s.br.UnreadByte() // right after a ReadByte, it cannot fail
	j.at--
}

func (j *jsonReader) bad(what string) error {
	return errorf(KindMalformed, "octet %d: %s is expected", j.at, what)
}

// space is the next octet that is not space.
func (j *jsonReader) space() (byte, error) {
	for {
		c, err := j.read()
		if err != nil || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c, err
		}
	}
}

// element reads a value outside of rows, which begins with c.
func (j *jsonReader) element(c byte, depth int) error {
	if depth > maxDepth {
		return errorf(KindMalformed, "octet %d: values within each other, %d deep", j.at, depth)
	}
	switch c {
	case '{':
		return j.object(nil, depth)
	case '[':
		return j.array(func(c byte) error { return j.element(c, depth+1) })
	}
	if depth == 0 {
		return j.bad("an object or an array")
	}
	_, err := j.scalar(c)
	return err
}

func (j *jsonReader) array(each func(byte) error) error {
	c, err := j.space()
	if err != nil || c == ']' {
		return err
	}
	for {
		if err := each(c); err != nil {
			return err
		}
		if c, err = j.space(); err != nil || c == ']' {
			return err
		}
		if c != ',' {
			return j.bad("a comma or ]")
		}
		if c, err = j.space(); err != nil {
			return err
		}
	}
}

// object reads an object, behind its brace. With a row it is a part of that row.
func (j *jsonReader) object(in *jsonRow, depth int) error {
	r := in
	if r == nil {
		for len(j.rows) <= depth {
			j.rows = append(j.rows, &jsonRow{})
		}
		if depth == 0 {
			j.time = time.Time{}
		}
		r = j.rows[depth]
		r.row, r.cells, r.text = row{}, r.cells[:0], r.text[:0]
	}
	c, err := j.space()
	if err != nil {
		return err
	}
	for c != '}' {
		if c != '"' {
			return j.bad("a name in quotes")
		}
		if err := j.str(); err != nil {
			return err
		}
		j.name = append(j.name[:0], j.buf...)
		if c, err = j.space(); err != nil {
			return err
		}
		if c != ':' {
			return j.bad("a colon")
		}
		if c, err = j.space(); err != nil {
			return err
		}
		if err := j.member(r, c, depth, in == nil); err != nil {
			return err
		}
		if c, err = j.space(); err != nil {
			return err
		}
		if c == ',' {
			if c, err = j.space(); err != nil {
				return err
			}
			if c != '"' {
				return j.bad("a name in quotes")
			}
		} else if c != '}' {
			return j.bad("a comma or }")
		}
	}
	if in != nil {
		return nil
	}
	return j.row(r)
}

// member reads a member's value into the row.
func (j *jsonReader) member(r *jsonRow, c byte, depth int, own bool) error {
	if depth >= maxDepth {
		return errorf(KindMalformed, "octet %d: values within each other, %d deep", j.at, depth)
	}
	f := fields[string(j.name)]
	switch c {
	case '{':
		if f == fieldNone && nested(j.name) {
			return j.object(r, depth+1)
		}
		if column := j.column(f); column != nil {
			r.cells = append(r.cells, jsonCell{column: column, bad: true})
		}
		return j.object(nil, depth+1)
	case '[':
		if column := j.column(f); column != nil {
			r.cells = append(r.cells, jsonCell{column: column, bad: true})
		}
		return j.array(func(c byte) error { return j.element(c, depth+1) })
	}
	column := j.column(f)
	number, err := j.scalar(c)
	if err != nil {
		return err
	}
	switch {
	case f == fieldTime:
		if r.row.set(f, j.buf); depth == 0 && own {
			j.time = r.row.at
		}
	case f != fieldNone:
		r.row.set(f, j.buf)
	case column != nil:
		from := len(r.text)
		r.text = append(r.text, j.buf...)
		truth := !number && c != '"' && string(j.buf) != "null"
		r.cells = append(r.cells, jsonCell{column, from, len(r.text), truth})
	}
	return nil
}

// nested are the names of objects that are parts of a row.
func nested(name []byte) bool {
	switch string(name) {
	case "labels", "values", "counters", "indexes", "fields", "Values", "Labels":
		return true
	}
	return false
}

func (j *jsonReader) column(f field) *Column {
	if f != fieldNone {
		return nil
	}
	return j.s.Table.lookup(j.name)
}

// row passes on a row that is whole.
func (j *jsonReader) row(r *jsonRow) error {
	if !r.row.num && r.row.id.Node == 0 && r.row.id.Port == 0 && !r.row.bad {
		if len(r.cells) > 0 {
			j.s.report.Rows++
			j.s.fault(KindIdentity)
		}
		return nil // something about the document
	}
	j.s.report.Rows++
	if !r.row.whole() {
		j.s.fault(KindIdentity)
		return nil
	}
	at := r.row.at
	if at.IsZero() {
		at = j.time
	}
	p := j.s.port(r.row.id)
	if p == nil {
		return nil
	}
	for _, c := range r.cells {
		if c.bad {
			j.s.fault(KindValue)
			continue
		}
		if err := j.s.sample(p, c.column, r.text[c.from:c.to], at); err != nil {
			return err
		}
	}
	return nil
}

// scalar reads a text, a number or a literal into buf.
func (j *jsonReader) scalar(c byte) (number bool, err error) {
	switch {
	case c == '"':
		return false, j.str()
	case c == '-' || c >= '0' && c <= '9':
		return true, j.number(c)
	}
	for _, word := range []string{"true", "false", "null", "NaN"} {
		if word[0] != c {
			continue
		}
		j.buf = append(j.buf[:0], c)
		for i := 1; i < len(word); i++ {
			if c, err = j.read(); err != nil {
				return false, err
			}
			if c != word[i] {
				return false, j.bad(word)
			}
			j.buf = append(j.buf, c)
		}
		return word == "NaN", nil
	}
	return false, j.bad("a value")
}

func (j *jsonReader) number(c byte) error {
	j.buf = append(j.buf[:0], c)
	for {
		c, err := j.read()
		if errors.Is(err, io.EOF) {
			return err
		}
		if err != nil {
			return err
		}
		if c >= '0' && c <= '9' || c == '.' || c == '-' || c == '+' || c|0x20 == 'e' {
			if j.buf = append(j.buf, c); len(j.buf) > 64 {
				return j.bad("a number of 64 octets at most")
			}
			continue
		}
		j.back()
		if _, ok := number(j.buf); !ok {
			return j.bad("a number")
		}
		return nil
	}
}

// str reads a text into buf, behind its quote (RFC 8259 section 7).
func (j *jsonReader) str() error {
	j.buf = j.buf[:0]
	for {
		c, err := j.read()
		if err != nil {
			return err
		}
		switch {
		case c == '"':
			return nil
		case c < ' ':
			return j.bad("a text without control characters")
		case c == '\\':
			if err := j.escape(); err != nil {
				return err
			}
		default:
			j.buf = append(j.buf, c)
		}
		if len(j.buf) > maxLine {
			return errorf(KindTooLarge, "octet %d: a text of more than %d octets", j.at, maxLine)
		}
	}
}

func (j *jsonReader) escape() error {
	c, err := j.read()
	if err != nil {
		return err
	}
	switch c {
	case '"', '\\', '/':
		j.buf = append(j.buf, c)
	case 'b':
		j.buf = append(j.buf, '\b')
	case 'f':
		j.buf = append(j.buf, '\f')
	case 'n':
		j.buf = append(j.buf, '\n')
	case 'r':
		j.buf = append(j.buf, '\r')
	case 't':
		j.buf = append(j.buf, '\t')
	case 'u':
		r, err := j.hex()
		if err != nil {
			return err
		}
		if utf16.IsSurrogate(r) { // names and values of ours have none
			r = utf8.RuneError
		}
		j.buf = utf8.AppendRune(j.buf, r)
	default:
		return j.bad("an escape")
	}
	return nil
}

func (j *jsonReader) hex() (rune, error) {
	var r rune
	for range 4 {
		c, err := j.read()
		if err != nil {
			return 0, err
		}
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, j.bad("four hexadecimal digits")
		}
	}
	return r, nil
}
