package matrix

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// TestTable compares the numbers of a table with those of the grid: what is unknown is null, and a cell without flows is absent.
func TestTable(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 3)
	w.Slow["leaf2"] = 2_000_000
	snap := measure(w, begin())
	snap.Hosts["h7"] = "does not answer"
	for _, tt := range []struct {
		name        string
		sel         Selection
		of          Quantity
		row, column string
		cells, null int
	}{
		{"of NICs", Selection{NICs: true}, TailDelay, "", "", 56, 14},
		{"of leaves, in one of which a NIC has a flow to the silent one alone", Selection{}, AddedDelay, "", "", 16, 1},
		{"one row", Selection{NICs: true}, DegradedShare, "h3/eth1", "", 7, 1},
		{"one column", Selection{NICs: true}, LossRatio, "", "h7/eth1", 7, 7},
		{"one cell", Selection{}, MedianDelay, "leaf2", "leaf3", 1, 0},
		{"no flows", Selection{NICs: true}, MarkRatio, "h3/eth1", "h3/eth1", 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := gridOf(t, w, snap, tt.sel)
			got, err := g.Table(tt.of, tt.row, tt.column)
			if err != nil {
				t.Fatal(err)
			}
			null := 0
			for _, c := range got.Cells {
				of := g.Cell(c.Row, c.Column)
				v, known := of.Value(tt.of)
				if known != (c.Value != nil) || known && (*c.Value > v+1 || *c.Value < v-1) || c.Flows != int(of.Flows) || c.KnownFlows != int(of.Known) {
					t.Errorf("the cell of row %d and column %d: %+v, want %g (%t)", c.Row, c.Column, c, v, known)
				}
				if c.Value == nil {
					null++
				}
			}
			if len(got.Cells) != tt.cells || null != tt.null {
				t.Errorf("%d cells, %d of them unknown; want %d and %d", len(got.Cells), null, tt.cells, tt.null)
			}
			if (got.Unit == "ns") != tt.of.IsDelay() || !got.At.Equal(begin()) || len(got.Groups) != len(g.Groups) || got.Flows != g.Flows || got.KnownFlows != g.Known {
				t.Errorf("the head: %+v", got)
			}
		})
	}
	text, err := json.Marshal(TableCell{Row: 1, Flows: 2})
	if want := `{"row":1,"column":0,"flows":2,"known_flows":0,"value":null}`; err != nil || string(text) != want {
		t.Errorf("an unknown cell is %s, want %s", text, want)
	}
}

// TestTableIsBounded: a table that is too large is refused, and a row of it is not. A name that is no row is an error.
func TestTableIsBounded(t *testing.T) {
	g := &Grid{start: []uint32{0}}
	const side = 257
	for range side {
		g.Groups = append(g.Groups, Group{Name: fmt.Sprintf("leaf%d", len(g.Groups))})
		for column := range side {
			g.cells = append(g.cells, Cell{Column: uint32(column), Flows: 1, Loss: 1. / 3})
		}
		g.start = append(g.start, uint32(len(g.cells)))
	}
	if _, err := g.Table(LossRatio, "", ""); err == nil || !strings.Contains(err.Error(), "65536 cells are too many") {
		t.Errorf("too many cells: %v", err)
	}
	row, err := g.Table(LossRatio, "leaf1", "")
	if err != nil || len(row.Cells) != side || *row.Cells[0].Value != 0.333333 {
		t.Errorf("one row: %v", err)
	}
	if _, err := g.Table(LossRatio, "", "leafX"); err == nil || !strings.Contains(err.Error(), `"leafX" is no row`) {
		t.Errorf("a wrong name: %v", err)
	}
}

// TestSource: now and the past are read where they are known.
func TestSource(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 3)
	store := NewStore()
	store.Record(w.Graph, measure(w, begin()))
	now := begin().Add(time.Minute)
	past, err := ParseQuery(url.Values{"at": {"10s"}, "of": {"loss"}}, now)
	if err != nil || !past.At.Equal(begin().Add(50*time.Second)) {
		t.Fatalf("%+v, %v", past, err)
	}
	if g, _, err := (Source{Store: store}).Grid(t.Context(), &Query{Of: LossRatio}, now); err != nil || !g.At.Equal(begin()) {
		t.Errorf("now: %v", err)
	}
	if _, _, err := (Source{Store: store}).Grid(t.Context(), &past, now); err == nil || !strings.Contains(err.Error(), "past moments are not known") {
		t.Errorf("the past: %v", err)
	}
	reader := &Past{DB: &failing{}, Graph: func() *fabric.Graph { return w.Graph }}
	if g, _, err := (Source{store, reader}).Grid(t.Context(), &past, now); err != nil || !g.At.Equal(past.At) {
		t.Errorf("the past: %v", err)
	}
	for _, wrong := range []url.Values{{"at": {"1h", "x"}, "of": {"color"}}, {"at": {"then"}}, {"direction": {"up"}}} {
		if _, err := ParseQuery(wrong, now); err == nil {
			t.Errorf("%v: no error", wrong)
		}
	}
}
