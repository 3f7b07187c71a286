package ufm

import (
	"bytes"
	"errors"
	"io"
	"time"
)

// readPrometheus reads Prometheus text: lines of NAME{LABELS} VALUE [MILLISECONDS]. The labels have the same
// text on each line of a port and are parsed once.
func (s *Source) readPrometheus() error {
	var scratch []byte
	for n := 1; ; n++ {
		b, whole, err := s.readLine()
		if err != nil && !errors.Is(err, io.EOF) {
			return readFailed(err, "line", n)
		}
		switch {
		case !whole && len(b) > 0 && b[0] != '#':
			// The last number may be half of one.
			return errorf(KindTruncated, "line %d: the document ends without the end of its line", n)
		case !whole:
			return nil
		}
		if b = bytes.TrimSpace(b); len(b) == 0 || b[0] == '#' {
			continue
		}
		if scratch, err = s.promLine(b, scratch); err != nil {
			return err
		}
	}
}

func (s *Source) promLine(b, scratch []byte) ([]byte, error) {
	s.report.Rows++
	open := bytes.IndexByte(b, '{')
	end := bytes.LastIndexByte(b, '}') // values and times contain none
	if open <= 0 || end < open {
		s.countError(KindIdentity) // a line without labels belongs to no port
		return scratch, nil
	}
	if fields[string(b[:open])] != fieldNone {
		return scratch, nil
	}
	c := s.Table.columnByName(bytes.TrimSpace(b[:open]))
	labels := b[open+1 : end]
	p, ok := s.cache[string(labels)]
	if !ok {
		var r row
		if r, scratch, ok = promLabels(labels, scratch); !ok {
			s.countError(KindMalformed)
			return scratch, nil
		}
		if !r.isComplete() {
			s.countError(KindIdentity)
			return scratch, nil
		}
		if p = s.portFor(r.id); p == nil {
			return scratch, nil
		}
		if len(s.cache) < 2*maxPorts {
			s.cache[string(labels)] = p
		}
	}
	s.preparePort(p, p.Identity)
	if c == nil {
		return scratch, nil
	}
	value := bytes.TrimLeft(b[end+1:], " \t")
	var at time.Time
	if i := bytes.IndexAny(value, " \t"); i >= 0 {
		t := bytes.TrimSpace(value[i:])
		if at = parseUnixTime(t); at.IsZero() {
			s.countError(KindMalformed)
			return scratch, nil
		}
		value = value[:i]
	}
	if len(value) == 0 {
		s.countError(KindMalformed)
		return scratch, nil
	}
	return scratch, s.emitSample(p, c, value, at)
}

// promLabels parses NAME="VALUE",...; \\, \" and \n are escapes.
func promLabels(b, scratch []byte) (row, []byte, bool) {
	var r row
	for {
		b = bytes.TrimLeft(b, " \t,")
		if len(b) == 0 {
			return r, scratch, true
		}
		eq := bytes.IndexByte(b, '=')
		if eq < 0 {
			return r, scratch, false
		}
		f := fields[string(bytes.TrimSpace(b[:eq]))]
		b = bytes.TrimLeft(b[eq+1:], " \t")
		if len(b) == 0 || b[0] != '"' {
			return r, scratch, false
		}
		scratch = scratch[:0]
		i := 1
		for ; i < len(b) && b[i] != '"'; i++ {
			if b[i] == '\\' && i+1 < len(b) {
				if i++; b[i] == 'n' {
					scratch = append(scratch, '\n')
					continue
				}
			}
			scratch = append(scratch, b[i])
		}
		if i == len(b) {
			return r, scratch, false
		}
		b = b[i+1:]
		if f != fieldNone && f != fieldTime {
			r.setField(f, scratch)
		}
	}
}
