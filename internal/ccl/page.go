package ccl

import (
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"

	"github.com/graylink/graylink/internal/fabric"
)

// Numbers of records of a page.
const (
	DefaultPage = 10_000  // if a request states none
	MaxPage     = 1 << 16 // that a request may state
)

// Page is a part of the records of a node, as GET /api/v1/collectives of its agent answers. It is written as JSON lines:
// the head first, and then a line for each record.
type Page struct {
	Node   string // name of the node in the topology
	Cursor uint64 // of the last record: where the next page begins
	Missed bool   // records before the first one were no longer held, so that some may be missing
	More   bool   // there were further records when the page was made
	// Dropped counts records that are missing since the agent began, by reason.
	Dropped map[Reason]uint64
	Records []Record
}

// pageHead is the first line of a page. The cursor is text, since readers of JSON round large numbers.
type pageHead struct {
	Kind    string            `json:"kind"`
	Node    string            `json:"node"`
	Cursor  uint64            `json:"cursor,string"`
	Missed  bool              `json:"missed,omitempty"`
	More    bool              `json:"more,omitempty"`
	Dropped map[Reason]uint64 `json:"dropped,omitempty"`
}

// WriteTo writes the page.
func (p *Page) WriteTo(w io.Writer) (n int64, err error) {
	head, err := json.Marshal(pageHead{"page", p.Node, p.Cursor, p.Missed, p.More, p.Dropped}, json.Deterministic(true))
	if err != nil {
		return 0, fmt.Errorf("page of records: %w", err)
	}
	line := append(head, '\n')
	for i := 0; ; i++ {
		m, err := w.Write(line)
		if n += int64(m); err != nil || i == len(p.Records) {
			return n, err
		}
		if line, err = AppendRecord(line[:0], p.Records[i]); err != nil {
			return n, err
		}
	}
}

// ReadPage reads a page. Records that cannot be read are reported to bad with their line and left out. The error is that of
// reading r, or of a head that is missing or wrong.
func ReadPage(r io.Reader, bad func(fabric.LineError)) (*Page, error) {
	var p *Page
	s := newRecordScanner()
	err := fabric.ReadLines(r, MaxLine, func(n int, line []byte) error {
		if p == nil {
			var head pageHead
			if err := json.Unmarshal(line, &head); err != nil {
				return fmt.Errorf("first line: %w", fabric.DescribeJSONError(err))
			}
			if head.Kind != "page" {
				return fmt.Errorf("first line: %w", fieldError("kind", "page is expected, and not %q", head.Kind))
			}
			p = &Page{Node: head.Node, Cursor: head.Cursor, Missed: head.Missed, More: head.More, Dropped: head.Dropped}
			return nil
		}
		rec, err := s.parse(line)
		if err != nil {
			bad(fabric.LineError{Line: n, Err: err})
			return nil
		}
		p.Records = append(p.Records, rec)
		return nil
	}, bad)
	if err == nil && p == nil {
		err = errors.New("the page is empty")
	}
	return p, err
}
