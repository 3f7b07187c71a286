package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/internal/fabric"
)

// What the page of the matrix shows at most, in pixels: the picture at first, the largest picture, a tile, and a cell.
const (
	firstSide, largestSide, tileSide, largestCell = 1024, 8192, 512, 64
	// smallestPicture is the side up to which cells are made larger.
	smallestPicture = 560
	// labelFrom is the size of a cell from which each row has a label; labelEvery is the distance of labels else.
	labelFrom, labelEvery = 12, 26
	// lastLabel is the room for the end of the last label.
	lastLabel = 44
	// maxOutliers bounds the rows, columns and cells that are listed, each.
	maxOutliers = 8
	maxMarks    = 64
)

// matrixQuery is what a request wants of the matrix.
type matrixQuery struct {
	of        matrix.Quantity
	selection matrix.Selection
	zoom      int       // 0 means that the page chooses
	at        time.Time // zero means now
	values    url.Values
}

// parseMatrixQuery reads a request. A moment is a time, or how long ago it is.
func parseMatrixQuery(v url.Values, now time.Time) (q matrixQuery, err error) {
	q.values = v
	if text := v.Get("at"); text != "" {
		if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
			q.at = now.Add(-ago).Truncate(time.Second)
		} else if q.at, err = time.Parse(time.RFC3339, text); err != nil || q.at.After(now) {
			return q, fmt.Errorf("at %q; expected a past time like %s, or how long ago it is, like 10m", shortenMiddle(text, 60), now.UTC().Format(time.RFC3339))
		}
		q.at = q.at.UTC()
	}
	if q.of, err = matrix.ParseQuantity(v.Get("of")); err != nil {
		return q, err
	}
	q.selection = matrix.Selection{NICs: v.Get("by") == "nic", Pod: v.Get("pod"), Plane: v.Get("plane"), Class: v.Get("class"), Direction: matrix.Direction(v.Get("direction"))}
	if !slices.Contains([]matrix.Direction{matrix.BothDirections, matrix.Probes, matrix.Replies}, q.selection.Direction) {
		return q, fmt.Errorf("no direction %q; expected %s or %s", q.selection.Direction, matrix.Probes, matrix.Replies)
	}
	if text := v.Get("zoom"); text != "" {
		if q.zoom, err = strconv.Atoi(text); err != nil || q.zoom == 0 || q.zoom > largestCell || q.zoom < -largestCell {
			return q, fmt.Errorf("zoom %q; expected the pixels of a cell, 1 to %d, or how many cells share a pixel, -2 to -%d", text, largestCell, largestCell)
		}
	}
	return q, nil
}

// with returns the address of the page with some values changed. An empty value is left out.
func (q *matrixQuery) with(path string, pairs ...string) string {
	v := url.Values{}
	for _, name := range []string{"of", "by", "pod", "plane", "class", "direction", "at", "zoom"} {
		if s := q.values.Get(name); s != "" {
			v.Set(name, s)
		}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
		if pairs[i+1] == "" {
			v.Del(pairs[i])
		}
	}
	if len(v) == 0 {
		return path
	}
	return path + "?" + v.Encode()
}

// chooseZoom returns the size of a cell: as large as the picture's first size allows, and not larger than a cell needs.
func chooseZoom(rows int) matrix.Zoom {
	if rows == 0 {
		return 1
	}
	if rows > firstSide {
		return -matrix.Zoom((rows + firstSide - 1) / firstSide)
	}
	return matrix.Zoom(max(1, min(largestCell, max(smallestPicture/rows, min(firstSide/rows, labelFrom)))))
}

// matrixView holds what the page of the matrix shows.
type matrixView struct {
	Title, Error   string
	State, Head    string // as the banner of the first page
	Stale, Warning string
	At             string
	Rows, Side     int
	TopWidth       int // of the picture and of the last label
	Zoom, Selected string
	Cell           int
	NICs           bool
	Known          string
	Controls       []control
	Legend         []legendStep
	Quantity       string
	Tiles          []tileView
	Top, Left      []labelView
	Borders        []int
	Marks          []markView
	Outliers       []outlierTable
	In, Out        string // addresses of the page with larger and with smaller cells
	Found          *cellView
}

type control struct {
	Name, Label string
	Options     []option
}

type option struct {
	Value, Text string
	Chosen      bool
}

type legendStep struct{ Color, Text string }

type tileView struct {
	X, Y, W, H int
	Href       string
}

// labelView is the name of a row or column, or of a part of them.
type labelView struct {
	At   int // pixels from the first row
	Text string
	Href string
}

type markView struct {
	X, Y, W, H int
	Level, ID  string
	Text       string
}

type outlierTable struct {
	Title, Kind string
	Rows        []outlierRow
}

type outlierRow struct {
	Name, Value, Flows string
	Href               string
}

// serveMatrix answers /matrix.
func (h *Handler) serveMatrix(w http.ResponseWriter, r *http.Request) {
	now := h.now()
	v := h.newMatrixView(r, now)
	name := "matrix.html"
	switch r.URL.Query().Get("fragment") {
	case "main":
		name = "matrixmain.html"
	case "cell":
		name = "cell.html"
	}
	h.render(w, name, v, v.Error != "")
}

func (h *Handler) newMatrixView(r *http.Request, now time.Time) matrixView {
	values := r.URL.Query()
	v := matrixView{Title: cmp.Or(h.Title, "Graylink")}
	snap := h.Snapshot()
	open := openIncidents(snap.Incidents)
	b := newBanner(snap, open, now)
	v.State, v.Head, v.Stale = b.State, b.Head, b.Stale
	q, err := parseMatrixQuery(values, now)
	var g *matrix.Grid
	if err == nil {
		g, v.Warning, err = h.grid(r.Context(), &q, now)
	}
	v.Controls = controls(&q, h.Store.Graph(), h.Matrix.Classes(), h.Past != nil)
	if err != nil {
		v.Error = err.Error()
		return v
	}
	zoom := chooseZoom(len(g.Groups))
	if q.zoom != 0 {
		zoom = matrix.Zoom(q.zoom)
	}
	for zoom.Side(len(g.Groups)) > largestSide {
		zoom = zoom.Out()
	}
	v.At, v.Rows, v.Side, v.Cell, v.NICs = clockTime(g.At), len(g.Groups), zoom.Side(len(g.Groups)), int(zoom), q.selection.NICs
	v.TopWidth = v.Side + lastLabel
	v.Known = fmt.Sprintf("%s of %s were measured lately.", formatCount(g.Known), pluralCount(g.Flows, "flow", "flows"))
	v.Quantity, v.Legend = quantityName(q.of), legend(q.of)
	if bigger := zoom.In(); bigger != zoom && bigger.Side(v.Rows) <= largestSide {
		v.In = q.with("matrix", "zoom", strconv.Itoa(int(bigger)))
	}
	if smaller := zoom.Out(); smaller.Side(v.Rows) >= 2 && v.Side > 64 {
		v.Out = q.with("matrix", "zoom", strconv.Itoa(int(smaller)))
	}
	at := ""
	if !q.at.IsZero() {
		at = q.at.Format(time.RFC3339)
		open = nil // verdicts are of now
	}
	version := strconv.FormatInt(g.At.UnixMilli(), 10)
	for y := 0; y < v.Side; y += tileSide {
		for x := 0; x < v.Side; x += tileSide {
			v.Tiles = append(v.Tiles, tileView{x, y, min(tileSide, v.Side-x), min(tileSide, v.Side-y),
				q.with("matrix/tile", "zoom", strconv.Itoa(int(zoom)), "x", strconv.Itoa(x), "y", strconv.Itoa(y), "at", at, "v", version)})
		}
	}
	v.Top = axisLabels(&q, g, zoom)
	v.Left = v.Top
	v.Borders = partBorders(g, zoom)
	v.Marks = h.matrixMarks(g, zoom, open)
	v.Outliers = outliers(&q, g)
	v.Found = h.newCellView(&q, g)
	return v
}

// grid returns the matrix of a request, and a warning if it may be incomplete.
func (h *Handler) grid(ctx context.Context, q *matrixQuery, now time.Time) (*matrix.Grid, string, error) {
	if q.at.IsZero() {
		g, err := h.Matrix.Grid(q.selection, now)
		return g, "", err
	}
	if h.Past == nil {
		return nil, "", errors.New("past moments are not known here")
	}
	return h.Past.Grid(ctx, q.selection, q.of, q.at)
}

func openIncidents(all []incident.Incident) (open []incident.Incident) {
	for _, in := range all {
		if in.Open {
			open = append(open, in)
		}
	}
	slices.SortStableFunc(open, compareStrength)
	return open
}

// serveTile answers /matrix/tile with a part of the picture.
func (h *Handler) serveTile(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	q, err := parseMatrixQuery(values, h.now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	x, errX := strconv.Atoi(values.Get("x"))
	y, errY := strconv.Atoi(values.Get("y"))
	if errX != nil || errY != nil || x < 0 || y < 0 || x >= largestSide || y >= largestSide || q.zoom == 0 {
		http.Error(w, fmt.Sprintf("expected zoom, and x and y from 0 to %d", largestSide-1), http.StatusBadRequest)
		return
	}
	g, _, err := h.grid(r.Context(), &q, h.now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	zoom := matrix.Zoom(q.zoom)
	side := zoom.Side(len(g.Groups))
	if x >= side || y >= side {
		http.Error(w, "the matrix has no such part", http.StatusNotFound)
		return
	}
	part := image.Rect(x, y, min(x+tileSide, side), min(y+tileSide, side))
	var buf bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestSpeed}
	if err := encoder.Encode(&buf, g.Draw(q.of, zoom, part)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = w.Write(buf.Bytes()) // this fails only when the client has gone
}

func quantityName(q matrix.Quantity) string {
	return map[matrix.Quantity]string{matrix.DegradedShare: "degraded flows", matrix.AddedDelay: "added delay", matrix.MedianDelay: "median delay",
		matrix.TailDelay: "99th percentile", matrix.LossRatio: "loss", matrix.MarkRatio: "congestion marks"}[q]
}

// formatQuantity writes a value of a quantity.
func formatQuantity(q matrix.Quantity, v float64) string {
	if q.IsDelay() {
		return formatDelay(int64(v))
	}
	return formatPercent(v)
}

func legend(q matrix.Quantity) (out []legendStep) {
	bounds := q.Bounds()
	for step := range matrix.Steps + 1 {
		text := ""
		switch {
		case step == 0 && bounds[0] == 0:
			text = "none"
		case step == 0:
			text = "up to " + formatQuantity(q, bounds[0])
		case step == matrix.Steps:
			text = "above " + formatQuantity(q, bounds[step-1])
			if q == matrix.DegradedShare {
				text = "all"
			}
		case q == matrix.DegradedShare && step == matrix.Steps-1:
			text = "not all"
		default:
			text = "to " + formatQuantity(q, bounds[step])
		}
		out = append(out, legendStep{matrix.StepColor(step), text})
	}
	return out
}

func controls(q *matrixQuery, of *fabric.Graph, classes []string, past bool) (out []control) {
	add := func(name, label string, options ...option) {
		if len(options) > 1 {
			for i := range options {
				options[i].Chosen = options[i].Value == q.values.Get(name)
			}
			out = append(out, control{name, label, options})
		}
	}
	all := func(what string, values []string) (options []option) {
		options = append(options, option{"", what, false})
		for _, v := range values {
			if v != "" {
				options = append(options, option{v, v, false})
			}
		}
		return options
	}
	var quantities []option
	for i, x := range matrix.Quantities() {
		value := string(x)
		if i == 0 {
			value = ""
		}
		quantities = append(quantities, option{value, quantityName(x), false})
	}
	add("of", "show", quantities...)
	add("by", "rows and columns", option{"", "leaves", false}, option{"nic", "NICs", false})
	add("pod", "pod", all("all", podNames(of))...)
	add("plane", "plane", all("all", matrix.Planes(of))...)
	add("class", "class", all("all", classes)...)
	add("direction", "packets", option{"", "probes and replies", false}, option{string(matrix.Probes), "probes", false}, option{string(matrix.Replies), "replies", false})
	if past {
		moments := []option{{"", "now", false}}
		for _, ago := range []string{"1m", "2m", "5m", "10m", "20m", "30m", "1h"} {
			moments = append(moments, option{ago, ago + " ago", false})
		}
		if at := q.values.Get("at"); at != "" && !slices.ContainsFunc(moments, func(o option) bool { return o.Value == at }) {
			moments = append(moments, option{at, shortenMiddle(at, 40), false})
		}
		add("at", "moment", moments...)
	}
	return out
}

// podNames returns the names of the pods, if there are not too many to choose from.
func podNames(g *fabric.Graph) (out []string) {
	const maxPods = 512
	for i := range g.Topo.Switches {
		if p := g.Topo.Switches[i].PodName(); p != "" && !slices.Contains(out, p) && len(out) < maxPods {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, fabric.CompareNatural)
	return out
}

// partOf returns the part of a fabric in which a row is: its leaf, if rows are NICs, else its pod, or its plane.
func partOf(x *matrix.Group) string {
	switch {
	case x.Leaf != "":
		return x.Leaf
	case x.Plane != "" && x.Pod != "":
		return x.Plane + " " + x.Pod
	}
	return cmp.Or(x.Pod, x.Plane)
}

// partBorders returns where parts begin, in pixels. It returns none where they are too narrow to see.
func partBorders(g *matrix.Grid, zoom matrix.Zoom) (out []int) {
	const narrow = 4
	last := 0
	for i := 1; i < len(g.Groups); i++ {
		if partOf(&g.Groups[i]) == partOf(&g.Groups[i-1]) {
			continue
		}
		at := zoom.Side(i)
		if at-last < narrow {
			return nil
		}
		out, last = append(out, at), at
	}
	return out
}

// axisLabels returns the names of the rows, of the parts if rows are too narrow, or of some rows.
func axisLabels(q *matrixQuery, g *matrix.Grid, zoom matrix.Zoom) (out []labelView) {
	const longest = 14
	add := func(from, to int, text, href string) {
		out = append(out, labelView{(zoom.Side(from) + zoom.Side(to)) / 2, shortenMiddle(text, longest), href})
	}
	if zoom >= labelFrom {
		for i := range g.Groups {
			href := ""
			if x := &g.Groups[i]; !q.selection.NICs && x.Pod != "" {
				href = q.with("matrix", "by", "nic", "pod", x.Pod, "zoom", "")
			}
			add(i, i+1, g.Groups[i].Name, href)
		}
		return out
	}
	first, last := 0, -labelEvery
	for i := 1; i <= len(g.Groups); i++ {
		if i < len(g.Groups) && partOf(&g.Groups[i]) == partOf(&g.Groups[first]) && partOf(&g.Groups[i]) != "" {
			continue
		}
		if middle := (zoom.Side(first) + zoom.Side(i)) / 2; middle-last >= labelEvery/2 {
			x, href := &g.Groups[first], ""
			if !q.selection.NICs && x.Pod != "" {
				href = q.with("matrix", "by", "nic", "pod", x.Pod, "zoom", "")
			}
			add(first, i, cmp.Or(partOf(x), x.Name), href)
			last = middle
		}
		first = i
	}
	return out
}

// matrixMarks returns frames around the rows, columns and cells that open verdicts name. A verdict on a switch that is no leaf has none: it is
// everywhere.
func (h *Handler) matrixMarks(g *matrix.Grid, zoom matrix.Zoom, open []incident.Incident) (out []markView) {
	rows := map[string][]int{} // by what a verdict may name: a leaf or a NIC
	for i := range g.Groups {
		x := &g.Groups[i]
		rows[x.Name] = append(rows[x.Name], i)
		if x.Leaf != "" {
			rows[x.Leaf] = append(rows[x.Leaf], i)
		}
	}
	graph := h.Store.Graph()
	side := zoom.Side(len(g.Groups))
	for i := range open {
		in := &open[i]
		level := suspect
		if in.Held != "" {
			level = held
		}
		add := func(x0, x1, y0, y1 int) {
			if len(out) < maxMarks {
				out = append(out, markView{x0, y0, x1 - x0, y1 - y0, level.String(), in.ID, suspectLine(*in)})
			}
		}
		if in.Kind == fabric.KindPair {
			ends := in.Waypoints()
			if len(ends) == 2 && len(rows[ends[0]]) > 0 && len(rows[ends[1]]) > 0 {
				a, b := rows[ends[0]], rows[ends[1]]
				add(zoom.Side(b[0]), zoom.Side(b[len(b)-1]+1), zoom.Side(a[0]), zoom.Side(a[len(a)-1]+1))
			}
			continue
		}
		from, to := namedEnds(graph, in)
		for _, span := range spansOf(rows, from, zoom) {
			add(0, side, span[0], span[1])
		}
		for _, span := range spansOf(rows, to, zoom) {
			add(span[0], span[1], 0, side)
		}
	}
	return out
}

// alternatives are names of one end, the narrowest first. A matrix has a row for one of them, or for none.
type alternatives []string

// spansOf returns where the rows of some ends begin and end, in pixels.
func spansOf(rows map[string][]int, ends []alternatives, zoom matrix.Zoom) (out [][2]int) {
	for _, names := range ends {
		for _, name := range names {
			if at := rows[name]; len(at) > 0 {
				out = append(out, [2]int{zoom.Side(at[0]), zoom.Side(at[len(at)-1] + 1)})
				break
			}
		}
	}
	return out
}

// namedEnds returns the ends from which and to which packets cross what a verdict names.
func namedEnds(g *fabric.Graph, in *incident.Incident) (from, to []alternatives) {
	t := locateElement(g, in.Element, in.Direction)
	both := func(names ...string) { from, to = append(from, names), append(to, names) }
	addNIC := func(nic string) {
		leaf, _ := g.LeafOf(nic)
		both(nic, leaf)
	}
	for _, nic := range t.nics {
		if len(t.dirs) == 0 {
			addNIC(nic)
		}
	}
	for _, o := range t.owners {
		if n := g.Node(o); n != nil {
			for i := range n.NICs {
				addNIC(n.NICs[i].ID())
			}
			continue
		}
		both(o)
	}
	for _, d := range t.dirs {
		sender, receiver := fabric.OwnerOf(d.From), fabric.OwnerOf(d.To)
		switch {
		case fabric.IsNIC(d.From):
			from = append(from, alternatives{d.From, receiver})
		case fabric.IsNIC(d.To):
			to = append(to, alternatives{d.To, sender})
		case g.SwitchTier(sender) < g.SwitchTier(receiver):
			from = append(from, alternatives{sender})
		default:
			to = append(to, alternatives{receiver})
		}
	}
	return from, to
}

// outliers lists the rows, columns and cells with the highest values.
func outliers(q *matrixQuery, g *matrix.Grid) (out []outlierTable) {
	if !q.of.HasNormal() {
		return nil
	}
	type sum struct {
		total float64
		cells int
	}
	rows, columns := make([]sum, len(g.Groups)), make([]sum, len(g.Groups))
	type place struct {
		row  int
		cell *matrix.Cell
		v    float64
	}
	var cells []place
	for row := range g.Groups {
		of := g.Row(row)
		for i := range of {
			v, known := of[i].Value(q.of)
			if !known {
				continue
			}
			for _, s := range []*sum{&rows[row], &columns[of[i].Column]} {
				s.cells++
				if q.of.Step(v) > 0 {
					s.total += v
				}
			}
			if q.of.Step(v) > 0 {
				cells = append(cells, place{row, &of[i], v})
			}
		}
	}
	lines := func(title, kind string, of []sum) {
		var order []int
		for i := range of {
			if of[i].total > 0 {
				order = append(order, i)
			}
		}
		mean := func(i int) float64 { return of[i].total / float64(of[i].cells) }
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(mean(b), mean(a)) })
		t := outlierTable{Title: title, Kind: kind}
		for _, i := range order[:min(len(order), maxOutliers)] {
			t.Rows = append(t.Rows, outlierRow{Name: g.Groups[i].Name, Value: formatQuantity(q.of, mean(i)), Flows: pluralCount(of[i].cells, "cell", "cells")})
		}
		if len(t.Rows) > 0 {
			out = append(out, t)
		}
	}
	lines("Rows (packets from)", "row", rows)
	lines("Columns (packets to)", "column", columns)
	slices.SortStableFunc(cells, func(a, b place) int { return cmp.Or(cmp.Compare(b.v, a.v), cmp.Compare(b.cell.Flows, a.cell.Flows)) })
	t := outlierTable{Title: "Cells", Kind: "cell"}
	for _, p := range cells[:min(len(cells), maxOutliers)] {
		from, to := g.Groups[p.row].Name, g.Groups[p.cell.Column].Name
		t.Rows = append(t.Rows, outlierRow{from + " → " + to, formatQuantity(q.of, p.v), pluralCount(int(p.cell.Flows), "flow", "flows"), q.with("matrix", "row", from, "column", to) + "#cell"})
	}
	if len(t.Rows) > 0 {
		out = append(out, t)
	}
	return out
}

// cellView is one cell with its flows.
type cellView struct {
	From, To, Error string
	Values          []outlierRow
	Flows           []cellFlow
	Total           int
}

type cellFlow struct {
	Edge, Src, Dst, Condition string
	P50, P99, Loss            string
	Age                       string
}

// maxCellFlows bounds the flows of a cell that are listed.
const maxCellFlows = 64

// newCellView returns the cell that a request names by row and column, or by their numbers r and c; nil if it names none.
func (h *Handler) newCellView(q *matrixQuery, g *matrix.Grid) *cellView {
	from, to := q.values.Get("row"), q.values.Get("column")
	r, errR := strconv.Atoi(q.values.Get("r"))
	c, errC := strconv.Atoi(q.values.Get("c"))
	switch {
	case from != "" || to != "":
		r, c = g.Find(from), g.Find(to)
	case errR != nil || errC != nil:
		return nil
	}
	v := &cellView{From: from, To: to}
	for _, end := range []struct {
		at   int
		name string
	}{{r, from}, {c, to}} {
		if end.at < 0 || end.at >= len(g.Groups) {
			v.Error = fmt.Sprintf("%q is no row of this matrix", shortenMiddle(end.name, 120))
			return v
		}
	}
	v.From, v.To = g.Groups[r].Name, g.Groups[c].Name
	cell := g.Cell(r, c)
	if cell == nil {
		return v
	}
	for _, of := range matrix.Quantities() {
		text := absent
		if value, known := cell.Value(of); known {
			text = formatQuantity(of, value)
		}
		v.Values = append(v.Values, outlierRow{Name: quantityName(of), Value: text})
	}
	if !q.at.IsZero() {
		return v
	}
	flows := h.Matrix.Flows(q.selection, v.From, v.To)
	v.Total = len(flows)
	for i := range flows[:min(len(flows), maxCellFlows)] {
		f := &flows[i]
		v.Flows = append(v.Flows, cellFlow{f.Flow.String(), f.Src, f.Dst, flowCondition(f), measuredDelay(f.P50), measuredDelay(f.P99), measuredShare(f.Loss), formatAge(f.Age)})
	}
	return v
}

// flowCondition says what a flow counts as.
func flowCondition(f *matrix.Flow) string {
	switch {
	case !f.Known:
		return "unknown"
	case f.Degraded:
		return "degraded"
	case f.Judged:
		return "healthy"
	}
	return "undecided"
}

func measuredDelay(ns *float64) string {
	if ns == nil {
		return absent
	}
	return formatDelay(int64(*ns))
}

func measuredShare(r *float64) string {
	if r == nil {
		return absent
	}
	return formatPercent(*r)
}
