package ccl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/graylink/graylink/internal/fabric"
)

// ReadRecords reads a file of records, JSON lines, and hands each to fn. A line that cannot be read is reported to bad with
// its number and skipped. The error is that of reading r itself, or fn's.
func ReadRecords(r io.Reader, fn func(line int, rec Record) error, bad func(fabric.LineError)) error {
	s := newRecordScanner()
	return fabric.ReadLines(r, MaxLine, func(n int, line []byte) error {
		rec, err := s.parse(line)
		if err != nil {
			bad(fabric.LineError{Line: n, Err: err})
			return nil
		}
		return fn(n, rec)
	}, bad)
}

// absent stands in required fields until they are read. No rank is below zero, and no counter gets that far.
const (
	absentRank = -1
	absentSeq  = math.MaxUint64
)

// newRecord returns a record of a kind whose required fields are absent.
func newRecord(kind string) (Record, error) {
	from := From{Rank: absentRank}
	switch kind {
	case "comm":
		return &Comm{}, nil
	case "op":
		return &Op{From: from, Seq: absentSeq}, nil
	case "edge":
		return &Edge{From: from, Seq: absentSeq, Peer: absentRank}, nil
	case "beat":
		return &Beat{From: from}, nil
	}
	return nil, fieldError("kind", "comm, op, edge or beat is expected, and not %q", kind)
}

// kindOf returns the kind of a line, which is where AppendRecord writes it.
func kindOf(line []byte) (string, error) {
	if rest, ok := bytes.CutPrefix(line, []byte(`{"kind":"`)); ok {
		if kind, _, ok := bytes.Cut(rest, []byte(`"`)); ok {
			return string(kind), nil
		}
	}
	var x struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(line, &x); err != nil {
		return "", fabric.DescribeJSONError(err)
	}
	return x.Kind, nil
}

// ParseRecord reads one line, and checks it.
func ParseRecord(line []byte) (Record, error) {
	var s recordScanner
	return s.parse(line)
}

// parseAnyRecord reads one line that may be any JSON, and checks the record.
func parseAnyRecord(line []byte) (Record, error) {
	kind, err := kindOf(line)
	if err != nil {
		return nil, err
	}
	rec, err := newRecord(kind)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(line, rec); err != nil {
		if se := new(json.SemanticError); errors.As(err, &se) && errors.Is(err, errNanos) {
			return nil, fieldError(strings.TrimPrefix(string(se.JSONPointer), "/"), "%w", errNanos)
		}
		return nil, fabric.DescribeJSONError(err)
	}
	return rec, rec.check()
}

// Check returns an error that names the first field that no record may have.
func Check(rec Record) error { return rec.check() }

// AppendRecord appends the line of a record, with its end.
func AppendRecord(to []byte, rec Record) ([]byte, error) {
	type kind struct {
		Kind string `json:"kind"`
	}
	var line any
	switch r := rec.(type) {
	case *Comm:
		line = struct {
			kind
			*Comm
		}{kind{r.kind()}, r}
	case *Op:
		line = struct {
			kind
			*Op
		}{kind{r.kind()}, r}
	case *Edge:
		line = struct {
			kind
			*Edge
		}{kind{r.kind()}, r}
	case *Beat:
		line = struct {
			kind
			*Beat
		}{kind{r.kind()}, r}
	}
	text, err := json.Marshal(line, json.Deterministic(true))
	if err != nil {
		return to, fmt.Errorf("record of kind %s: %w", rec.kind(), err)
	}
	return append(append(to, text...), '\n'), nil
}
