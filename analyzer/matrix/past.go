package matrix

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Past reads matrices of past moments from what the rules record of pairs of leaves. These series sum up flows, so that a past
// matrix has no NICs and no share of degraded flows, and each of its flows is a series.
type Past struct {
	DB    evidence.Querier
	Graph func() *fabric.Graph

	mu    sync.Mutex
	grids []pastGrid // the last ones that were read, the newest first
}

// pastGrid is a matrix that was read.
type pastGrid struct {
	sel     Selection
	of      Quantity
	at      time.Time
	graph   *fabric.Graph
	grid    *Grid
	warning string
}

// maxPastLeaves bounds the leaves of a past matrix. Prometheus needs some 70 us for each row of an answer.
const maxPastLeaves = 128

// ErrUnread means that the server did not answer.
var ErrUnread = errors.New("cannot read the past")

// pastPatience bounds the queries for one matrix.
const pastPatience = 20 * time.Second

// pastQueries returns the queries for a quantity. usual is what is normal, and sent weighs losses.
func pastQueries(of Quantity) (value, usual, sent string) {
	const p50 = "fabric:leafpair_owd_seconds:p50_2s"
	switch of {
	case AddedDelay:
		return p50 + "%s", "quantile_over_time(0.25, " + p50 + "%s[1h])", ""
	case MedianDelay:
		return p50 + "%s", "", ""
	case TailDelay:
		return "fabric:leafpair_owd_seconds:p99_2s%s", "", ""
	case LossRatio:
		return "fabric:leafpair_probe_lost:ratio_2s%s", "", "fabric:leafpair_probe_sent:rate_2s%s"
	case MarkRatio:
		return "fabric:leafpair_probe_ecn_marked:ratio_2s%s", "", ""
	}
	return "", "", ""
}

// pair is a cell by the numbers of its row and column.
type pair struct{ row, column int32 }

// Grid returns the matrix of a quantity at a moment, and a warning if the server says that the answer may be incomplete. Cells that the server
// knows nothing of are empty.
func (p *Past) Grid(ctx context.Context, sel Selection, of Quantity, at time.Time) (g *Grid, warning string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	graph := p.Graph()
	for i := range p.grids {
		if old := &p.grids[i]; old.sel == sel && old.of == of && old.at.Equal(at) && old.graph == graph {
			return old.grid, old.warning, nil
		}
	}
	if g, warning, err = p.read(ctx, graph, sel, of, at); err != nil {
		return nil, "", err
	}
	p.grids = append([]pastGrid{{sel, of, at, graph, g, warning}}, p.grids[:min(len(p.grids), maxGrids-1)]...)
	return g, warning, nil
}

// read reads a matrix.
func (p *Past) read(ctx context.Context, graph *fabric.Graph, sel Selection, of Quantity, at time.Time) (g *Grid, warning string, err error) {
	value, usual, sent := pastQueries(of)
	switch {
	case sel.NICs:
		return nil, "", errors.New("past moments are known leaf by leaf, and not NIC by NIC")
	case value == "":
		return nil, "", fmt.Errorf("what was degraded is not known of past moments; expected one of %v", Quantities()[1:])
	}
	ax, err := newAxis(graph, sel)
	if err != nil {
		return nil, "", err
	}
	if n := len(ax.groups); n > maxPastLeaves {
		return nil, "", fmt.Errorf("%d leaves are too many for a past moment; choose a pod or a plane with at most %d", n, maxPastLeaves)
	}
	ctx, cancel := context.WithTimeout(ctx, pastPatience)
	defer cancel()
	b := pastBuilder{past: p, axis: ax, matchers: pastMatchers(&ax, sel), at: at, warnings: map[string]bool{}}
	values, err := b.ask(ctx, value)
	if err != nil {
		return nil, "", err
	}
	var others map[string]evidence.Sample
	if query := usual + sent; query != "" {
		if others, err = b.ask(ctx, query); err != nil {
			return nil, "", err
		}
	}
	g = &Grid{Selection: sel, At: at, Groups: ax.groups, start: []uint32{0}}
	b.fill(g, of, values, others)
	return g, strings.Join(slices.Sorted(maps.Keys(b.warnings)), "; "), nil
}

// pastBuilder makes one past grid.
type pastBuilder struct {
	past     *Past
	axis     axis
	matchers string
	at       time.Time
	warnings map[string]bool
}

// pastMatchers returns the matchers of a selection. The leaves are listed only if they are not all that there are.
func pastMatchers(ax *axis, sel Selection) string {
	out := []string{`class!="` + fabric.ClassCSIG + `"`}
	if sel.Class != "" {
		out = append(out, "class="+strconv.Quote(sel.Class))
	}
	if sel.Plane != "" {
		out = append(out, "plane="+strconv.Quote(sel.Plane))
	}
	switch sel.Direction {
	case Probes:
		out = append(out, `side="source"`)
	case Replies:
		out = append(out, `side="destination"`)
	}
	if sel.Pod != "" {
		names := make([]string, len(ax.groups))
		for i := range ax.groups {
			names[i] = ax.groups[i].Name
		}
		list := evidence.AnyOf(names)
		out = append(out, "leaf=~"+list, "peer_leaf=~"+list)
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// ask evaluates a query at the moment, and returns its samples by their labels without the name.
func (b *pastBuilder) ask(ctx context.Context, query string) (map[string]evidence.Sample, error) {
	samples, err := b.past.DB.QueryInstant(ctx, fmt.Sprintf(query, b.matchers), b.at)
	var partial *evidence.PartialError
	switch {
	case errors.As(err, &partial):
		for _, w := range partial.Warnings {
			b.warnings[w] = true
		}
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnread, err)
	}
	out := make(map[string]evidence.Sample, len(samples))
	for _, s := range samples {
		var key strings.Builder
		for _, name := range []string{"leaf", "peer_leaf", "side", "class", "tier", "plane", "timestamp"} {
			key.WriteString(s.Labels[name] + "\x00")
		}
		out[key.String()] = s
	}
	return out, nil
}

// fill sums the series of each cell up.
func (b *pastBuilder) fill(g *Grid, of Quantity, values, others map[string]evidence.Sample) {
	rows := map[string]int32{}
	for i := range b.axis.groups {
		rows[b.axis.groups[i].Name] = int32(i)
	}
	cells := map[pair]*pastCell{}
	for key, s := range values {
		from, known := rows[s.Labels["leaf"]]
		to, also := rows[s.Labels["peer_leaf"]]
		if !known || !also {
			continue
		}
		if s.Labels["side"] == "destination" {
			from, to = to, from
		}
		c := cells[pair{from, to}]
		if c == nil {
			c = &pastCell{}
			cells[pair{from, to}] = c
		}
		other, hasOther := others[key]
		c.add(of, s.Value, other.Value, hasOther)
	}
	for row := range int32(len(g.Groups)) {
		for column := range int32(len(g.Groups)) {
			if c := cells[pair{row, column}]; c != nil {
				g.cells = append(g.cells, c.cell(of, column))
				g.Flows += c.series
				g.Known += c.series
			}
		}
		g.start = append(g.start, uint32(len(g.cells)))
	}
}

// pastCell sums up the series from one leaf to another one.
type pastCell struct {
	series      int
	values      []float32
	sent, total float64
}

// add adds the value of a series. The other one is what is usual for a delay, and what was sent for a loss.
func (c *pastCell) add(of Quantity, v, other float64, hasOther bool) {
	const seconds = 1e9
	c.series++
	switch of {
	case AddedDelay:
		if hasOther {
			c.values = append(c.values, float32((v-other)*seconds))
		}
	case MedianDelay, TailDelay:
		c.values = append(c.values, float32(v*seconds))
	case LossRatio:
		if hasOther {
			c.sent += other
			c.total += v * other
		}
	case MarkRatio:
		c.values = append(c.values, float32(v))
	}
}

// cell returns the sum: the median of the medians, the largest of other values, and all that was lost of all that was sent.
func (c *pastCell) cell(of Quantity, column int32) Cell {
	out := Cell{Column: uint32(column), Flows: uint32(c.series), Known: uint32(c.series), Median: nothing, P99: nothing, Shift: nothing, Loss: nothing, Marks: nothing}
	if of == LossRatio {
		if c.sent > 0 {
			out.Loss = float32(c.total / c.sent)
		}
		return out
	}
	slices.Sort(c.values)
	if len(c.values) == 0 {
		return out
	}
	last := c.values[len(c.values)-1]
	switch of {
	case AddedDelay:
		out.Shift = last
	case MedianDelay:
		out.Median = c.values[(len(c.values)-1)/2]
	case TailDelay:
		out.P99 = last
	case MarkRatio:
		out.Marks = last
	}
	return out
}
