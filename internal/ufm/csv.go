package ufm

import (
	"bytes"
	"errors"
	"io"
)

// csvColumn represents a column of the header.
type csvColumn struct {
	rowField field
	column   *Column // nil if the column is left out
}

// readCSV reads a header and a row for each port. Another header may follow; it begins with the same name as
// the first.
func (s *Source) readCSV() error {
	var header []csvColumn
	var first string
	var cells [][]byte
	for n := 1; ; n++ {
		b, whole, err := s.readLine()
		if err != nil && !errors.Is(err, io.EOF) {
			return readFailed(err, "line", n)
		}
		if len(b) > 0 {
			switch cells = splitCSV(b, cells[:0]); {
			case header == nil || string(cells[0]) == first:
				if header, err = s.parseHeader(cells, n); err != nil {
					return err
				}
				first = string(cells[0])
			case len(cells) != len(header) && !whole:
				s.report.Rows++
				return errorf(KindTruncated, "line %d: the document ends with %d of %d columns", n, len(cells), len(header))
			case len(cells) != len(header):
				s.report.Rows++
				s.countError(KindMalformed)
			default:
				s.report.Rows++
				if err := s.csvRow(header, cells, whole); err != nil {
					return err
				}
			}
		}
		switch {
		case whole:
		case header == nil:
			return errorf(KindTruncated, "line %d: the document is empty, a header is expected", n)
		case len(b) > 0:
			// The last cell may be half of a number.
			return errorf(KindTruncated, "line %d: the document ends without the end of its line", n)
		default:
			return nil
		}
	}
}

func (s *Source) parseHeader(cells [][]byte, n int) ([]csvColumn, error) {
	out := make([]csvColumn, len(cells))
	guid, number := false, false
	for i, c := range cells {
		c = bytes.TrimSpace(c)
		out[i].rowField = fields[string(c)]
		if out[i].rowField == fieldNone {
			out[i].column = s.Table.columnByName(c)
		}
		guid = guid || out[i].rowField == fieldNode || out[i].rowField == fieldPort
		number = number || out[i].rowField == fieldNumber
	}
	if !guid || !number {
		return nil, errorf(KindMalformed, "line %d: a header with a GUID (node_guid, Node_GUID or port_guid) and a port's number (port_num or Port_Number) is expected", n)
	}
	return out, nil
}

func (s *Source) csvRow(header []csvColumn, cells [][]byte, whole bool) error {
	if !whole {
		return nil // readCSV reports it
	}
	var r row
	for i := range header {
		if header[i].rowField != fieldNone {
			r.setField(header[i].rowField, cells[i])
		}
	}
	if !r.isComplete() {
		s.countError(KindIdentity)
		return nil
	}
	p := s.portFor(r.id)
	if p == nil {
		return nil
	}
	for i := range header {
		if c := header[i].column; c != nil {
			if err := s.emitSample(p, c, cells[i], r.at); err != nil {
				return err
			}
		}
	}
	return nil
}

// splitCSV splits a line into cells. A quoted cell begins and ends with a quote; two quotes within it stand for
// one (RFC 4180). A cell does not extend over lines.
func splitCSV(b []byte, out [][]byte) [][]byte {
	if bytes.IndexByte(b, '"') < 0 {
		for {
			i := bytes.IndexByte(b, ',')
			if i < 0 {
				return append(out, b)
			}
			out = append(out, b[:i])
			b = b[i+1:]
		}
	}
	for {
		if len(b) == 0 || b[0] != '"' {
			i := bytes.IndexByte(b, ',')
			if i < 0 {
				return append(out, b)
			}
			out = append(out, b[:i])
			b = b[i+1:]
			continue
		}
		end, doubled := 1, false
		for ; end < len(b); end++ {
			if b[end] != '"' {
				continue
			}
			if end+1 < len(b) && b[end+1] == '"' {
				end++
				doubled = true
				continue
			}
			break
		}
		cell := b[1:min(end, len(b))]
		if doubled {
			cell = bytes.ReplaceAll(cell, []byte(`""`), []byte(`"`))
		}
		out = append(out, cell)
		rest := b[min(end+1, len(b)):]
		i := bytes.IndexByte(rest, ',')
		if i < 0 {
			return out
		}
		b = rest[i+1:]
	}
}
