package report

import (
	"embed"
	"fmt"
	"io/fs"

	"github.com/graylink/graylink/analyzer/display"
)

//go:embed assets/document.html
var assets embed.FS

// Templates returns the templates "document" and "chart", for a *Document.
func Templates() []fs.FS { return []fs.FS{assets, display.Templates} }

// Document is a report as text, tables and pictures. Each form that people read has all of it but for the pictures, which Markdown leaves
// out.
type Document struct {
	Title    string
	Open     bool
	State    string // one sentence
	Sections []Section
}

// Section is a part of a document under a heading.
type Section struct {
	ID, Title string
	Blocks    []Block
}

// Block is one of its fields.
type Block struct {
	Text  string // a paragraph
	Items []string
	Facts []Fact
	Table *Table
	Chart *display.Chart
	Path  *PathDrawing
	// Folded is the identifier of a block that is shown only when somebody wants it, or "".
	Folded string
}

// Fact is a value with its name.
type Fact struct{ Name, Value string }

// Table is a table. The first column has the names of the rows.
type Table struct {
	Caption string
	Columns []string
	Rows    [][]Cell
	LeftOut int
}

// Cell is a value of a table.
type Cell struct {
	Text string
	// Href leads to where there is more of it, on a page. Query is the number of the query that it was read by.
	Href, Query string
	Code        bool
	// ID is what Query leads to.
	ID string
}

// Options are what a document for a page has besides.
type Options struct {
	// QueryLink returns the address of a query in the user interface of Prometheus, or "". Nil means that no query has one.
	QueryLink func(expr string) string
	// FlowLink returns the address of the flows between two NICs. Nil means that there is none.
	FlowLink func(src, dst string) string
	// shrink divides the bounds of texts and of the record. 0 means that they are as they are.
	shrink int
}

// bound returns a bound of a document.
func (c *composer) bound(n int) int { return n / max(c.o.shrink, 1) }

// Bounds of texts and tables of a document.
const (
	maxName  = 160
	maxText  = 4000
	maxExpr  = 6000
	maxRows  = 64
	maxItems = 40
	// maxRecord bounds the rows of the record, and maxRecordText each of its values.
	maxRecord, maxRecordText = 1200, 400
)

func shortName(s string) string { return display.ShortenMiddle(s, maxName) }

func plain(s string) Cell { return Cell{Text: s} }

func code(s string) Cell { return Cell{Text: shortName(s), Code: true} }

// bounded returns at most maxItems of a list of texts, and says how many are left out.
func bounded(all []string) []string {
	out := make([]string, 0, min(len(all), maxItems)+1)
	for _, s := range all[:min(len(all), maxItems)] {
		out = append(out, display.ShortenMiddle(s, maxText/4))
	}
	if n := len(all) - maxItems; n > 0 {
		out = append(out, fmt.Sprintf("and %s more", display.Count(n)))
	}
	return out
}

// add appends a row, or counts it as left out.
func (t *Table) add(row ...Cell) {
	if len(t.Rows) >= maxRows {
		t.LeftOut++
		return
	}
	t.Rows = append(t.Rows, row)
}
