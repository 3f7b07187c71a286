package web

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/matrix"
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
	matrix.Query
	zoom   int // 0 means that the page chooses
	values url.Values
}

// parseMatrixQuery reads a request.
func parseMatrixQuery(v url.Values, now time.Time) (q matrixQuery, err error) {
	q.values = v
	if q.Query, err = matrix.ParseQuery(v, now); err != nil {
		return q, err
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
	Pages          []pageLink
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
	Labels         []labelView
	Borders        []int
	Marks          []markView
	Verdicts       []verdictLink // the strongest open ones
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

// verdictLink leads to the page of a verdict.
type verdictLink struct{ Href, Text string }

// maxVerdictLinks bounds the verdicts that the page of the matrix leads to.
const maxVerdictLinks = 8

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
	h.render(w, name, v, statusOf(v.Error))
}

func (h *Handler) newMatrixView(r *http.Request, now time.Time) matrixView {
	values := r.URL.Query()
	v := matrixView{Title: h.title(), Pages: h.pageLinks("", "matrix")}
	snap := h.Snapshot()
	open := openIncidents(snap.Incidents)
	b := newBanner(snap, open, now)
	v.State, v.Head, v.Stale = b.State, b.Head, b.Stale
	q, err := parseMatrixQuery(values, now)
	var g *matrix.Grid
	if err == nil {
		g, v.Warning, err = matrix.Source{Store: h.Matrix, Past: h.Past}.Grid(r.Context(), &q.Query, now)
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
	v.At, v.Rows, v.Side, v.Cell, v.NICs = clockTime(g.At), len(g.Groups), zoom.Side(len(g.Groups)), int(zoom), q.Selection.NICs
	v.TopWidth = v.Side + lastLabel
	v.Known = fmt.Sprintf("%s of %s were measured lately.", formatCount(g.Known), pluralCount(g.Flows, "flow", "flows"))
	v.Quantity, v.Legend = quantityName(q.Of), legend(q.Of)
	if bigger := zoom.In(); bigger != zoom && bigger.Side(v.Rows) <= largestSide {
		v.In = q.with("matrix", "zoom", strconv.Itoa(int(bigger)))
	}
	if smaller := zoom.Out(); smaller.Side(v.Rows) >= 2 && v.Side > 64 {
		v.Out = q.with("matrix", "zoom", strconv.Itoa(int(smaller)))
	}
	at := ""
	if !q.At.IsZero() {
		at = q.At.Format(time.RFC3339)
		open = nil // verdicts are of now
	}
	version := strconv.FormatInt(g.At.UnixMilli(), 10)
	for y := 0; y < v.Side; y += tileSide {
		for x := 0; x < v.Side; x += tileSide {
			v.Tiles = append(v.Tiles, tileView{x, y, min(tileSide, v.Side-x), min(tileSide, v.Side-y),
				q.with("matrix/tile", "zoom", strconv.Itoa(int(zoom)), "x", strconv.Itoa(x), "y", strconv.Itoa(y), "at", at, "v", version)})
		}
	}
	v.Labels = axisLabels(&q, g, zoom)
	v.Borders = partBorders(g, zoom)
	v.Marks = h.matrixMarks(g, zoom, open)
	for _, in := range open[:min(len(open), maxVerdictLinks)] {
		if page := h.pageOf(in.ID); page != "" {
			v.Verdicts = append(v.Verdicts, verdictLink{page, suspectLine(in)})
		}
	}
	v.Outliers = outliers(&q, g)
	v.Found = h.newCellView(&q, g)
	return v
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
