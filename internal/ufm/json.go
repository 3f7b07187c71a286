package ufm

import (
	"errors"
	"io"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// readJSON reads objects that are rows of ports at any place: in an array, in an array within an object, or one
// after the other. A row is an object that has a GUID or a port's number; objects within a row, such as
// "labels" and "values", belong to it. Rows without a time have the time of their document. This is a separate
// reader because encoding/json reads a document or a value at once, and its tokens cost an allocation each.
func (s *Source) readJSON() error {
	j := &jsonReader{s: s}
	any := false
	for {
		c, err := j.skipSpace()
		if errors.Is(err, io.EOF) && any {
			return nil
		}
		if err == nil {
			any = true
			err = j.readElement(c, 0)
		}
		if err != nil {
			return j.wrapReadError(err)
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

// jsonRow represents an object that is being read.
type jsonRow struct {
	row   row
	cells []jsonCell
	text  []byte
}

type jsonCell struct {
	column   *Column
	from, to int // of text
	invalid  bool
}

func (j *jsonReader) wrapReadError(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return readFailed(err, "octet", j.at)
}

func (j *jsonReader) readByte() (byte, error) {
	c, err := j.s.br.ReadByte()
	if err == nil {
		j.at++
	}
	return c, err
}

func (j *jsonReader) unreadByte() {
	_ = j.s.br.UnreadByte() // cannot fail right after a ReadByte
	j.at--
}

func (j *jsonReader) expectedError(what string) error {
	return errorf(KindMalformed, "octet %d: %s is expected", j.at, what)
}

// skipSpace returns the next octet that is not space.
func (j *jsonReader) skipSpace() (byte, error) {
	for {
		c, err := j.readByte()
		if err != nil || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c, err
		}
	}
}

// readElement reads a value outside of rows, which begins with c.
func (j *jsonReader) readElement(c byte, depth int) error {
	if depth > maxDepth {
		return errorf(KindMalformed, "octet %d: values within each other, %d deep", j.at, depth)
	}
	switch c {
	case '{':
		return j.readObject(nil, depth)
	case '[':
		return j.readArray(func(c byte) error { return j.readElement(c, depth+1) })
	}
	if depth == 0 {
		return j.expectedError("an object or an array")
	}
	_, err := j.readScalar(c)
	return err
}

func (j *jsonReader) readArray(each func(byte) error) error {
	c, err := j.skipSpace()
	if err != nil || c == ']' {
		return err
	}
	for {
		if err := each(c); err != nil {
			return err
		}
		if c, err = j.skipSpace(); err != nil || c == ']' {
			return err
		}
		if c != ',' {
			return j.expectedError("a comma or ]")
		}
		if c, err = j.skipSpace(); err != nil {
			return err
		}
	}
}

// readObject reads an object after its opening brace. If in is a row, the object is a part of that row.
func (j *jsonReader) readObject(in *jsonRow, depth int) error {
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
	c, err := j.skipSpace()
	if err != nil {
		return err
	}
	for c != '}' {
		if c != '"' {
			return j.expectedError("a name in quotes")
		}
		if err := j.readString(); err != nil {
			return err
		}
		j.name = append(j.name[:0], j.buf...)
		if c, err = j.skipSpace(); err != nil {
			return err
		}
		if c != ':' {
			return j.expectedError("a colon")
		}
		if c, err = j.skipSpace(); err != nil {
			return err
		}
		if err := j.readMember(r, c, depth, in == nil); err != nil {
			return err
		}
		if c, err = j.skipSpace(); err != nil {
			return err
		}
		if c == ',' {
			if c, err = j.skipSpace(); err != nil {
				return err
			}
			if c != '"' {
				return j.expectedError("a name in quotes")
			}
		} else if c != '}' {
			return j.expectedError("a comma or }")
		}
	}
	if in != nil {
		return nil
	}
	return j.emitRow(r)
}

// readMember reads a member's value into the row.
func (j *jsonReader) readMember(r *jsonRow, c byte, depth int, own bool) error {
	if depth >= maxDepth {
		return errorf(KindMalformed, "octet %d: values within each other, %d deep", j.at, depth)
	}
	f := fields[string(j.name)]
	switch c {
	case '{':
		if f == fieldNone && isRowPart(j.name) {
			return j.readObject(r, depth+1)
		}
		if column := j.lookupColumn(f); column != nil {
			r.cells = append(r.cells, jsonCell{column: column, invalid: true})
		}
		return j.readObject(nil, depth+1)
	case '[':
		if column := j.lookupColumn(f); column != nil {
			r.cells = append(r.cells, jsonCell{column: column, invalid: true})
		}
		return j.readArray(func(c byte) error { return j.readElement(c, depth+1) })
	}
	column := j.lookupColumn(f)
	number, err := j.readScalar(c)
	if err != nil {
		return err
	}
	switch {
	case f == fieldTime:
		if r.row.setField(f, j.buf); depth == 0 && own {
			j.time = r.row.at
		}
	case f != fieldNone:
		r.row.setField(f, j.buf)
	case column != nil:
		from := len(r.text)
		r.text = append(r.text, j.buf...)
		truth := !number && c != '"' && string(j.buf) != "null"
		r.cells = append(r.cells, jsonCell{column, from, len(r.text), truth})
	}
	return nil
}

// isRowPart reports whether objects of a name are parts of a row.
func isRowPart(name []byte) bool {
	switch string(name) {
	case "labels", "values", "counters", "indexes", "fields", "Values", "Labels":
		return true
	}
	return false
}

func (j *jsonReader) lookupColumn(f field) *Column {
	if f != fieldNone {
		return nil
	}
	return j.s.Table.columnByName(j.name)
}

// emitRow passes on a complete row.
func (j *jsonReader) emitRow(r *jsonRow) error {
	if !r.row.hasNumber && r.row.id.Node == 0 && r.row.id.Port == 0 && !r.row.invalid {
		if len(r.cells) > 0 {
			j.s.report.Rows++
			j.s.countError(KindIdentity)
		}
		return nil // an object about the document
	}
	j.s.report.Rows++
	if !r.row.isComplete() {
		j.s.countError(KindIdentity)
		return nil
	}
	at := r.row.at
	if at.IsZero() {
		at = j.time
	}
	p := j.s.portFor(r.row.id)
	if p == nil {
		return nil
	}
	for _, c := range r.cells {
		if c.invalid {
			j.s.countError(KindValue)
			continue
		}
		if err := j.s.emitSample(p, c.column, r.text[c.from:c.to], at); err != nil {
			return err
		}
	}
	return nil
}

// readScalar reads a text, a number or a literal into buf.
func (j *jsonReader) readScalar(c byte) (number bool, err error) {
	switch {
	case c == '"':
		return false, j.readString()
	case c == '-' || c >= '0' && c <= '9':
		return true, j.readNumber(c)
	}
	for _, word := range []string{"true", "false", "null", "NaN"} {
		if word[0] != c {
			continue
		}
		j.buf = append(j.buf[:0], c)
		for i := 1; i < len(word); i++ {
			if c, err = j.readByte(); err != nil {
				return false, err
			}
			if c != word[i] {
				return false, j.expectedError(word)
			}
			j.buf = append(j.buf, c)
		}
		return word == "NaN", nil
	}
	return false, j.expectedError("a value")
}

func (j *jsonReader) readNumber(c byte) error {
	j.buf = append(j.buf[:0], c)
	for {
		c, err := j.readByte()
		if errors.Is(err, io.EOF) {
			return err
		}
		if err != nil {
			return err
		}
		if c >= '0' && c <= '9' || c == '.' || c == '-' || c == '+' || c|0x20 == 'e' {
			if j.buf = append(j.buf, c); len(j.buf) > 64 {
				return j.expectedError("a number of 64 octets at most")
			}
			continue
		}
		j.unreadByte()
		if _, ok := parseNumber(j.buf); !ok {
			return j.expectedError("a number")
		}
		return nil
	}
}

// readString reads a text into buf, after its opening quote (RFC 8259 section 7).
func (j *jsonReader) readString() error {
	j.buf = j.buf[:0]
	for {
		c, err := j.readByte()
		if err != nil {
			return err
		}
		switch {
		case c == '"':
			return nil
		case c < ' ':
			return j.expectedError("a text without control characters")
		case c == '\\':
			if err := j.readEscape(); err != nil {
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

func (j *jsonReader) readEscape() error {
	c, err := j.readByte()
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
		r, err := j.readHexDigits()
		if err != nil {
			return err
		}
		if utf16.IsSurrogate(r) { // the names and values that matter have none
			r = utf8.RuneError
		}
		j.buf = utf8.AppendRune(j.buf, r)
	default:
		return j.expectedError("an escape")
	}
	return nil
}

func (j *jsonReader) readHexDigits() (rune, error) {
	var r rune
	for range 4 {
		c, err := j.readByte()
		if err != nil {
			return 0, err
		}
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, j.expectedError("four hexadecimal digits")
		}
	}
	return r, nil
}
