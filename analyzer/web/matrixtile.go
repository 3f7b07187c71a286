package web

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"strconv"

	"github.com/graylink/graylink/analyzer/matrix"
)

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
	g, _, err := matrix.Source{Store: h.Matrix, Past: h.Past}.Grid(r.Context(), &q.Query, h.now())
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
	if err := encoder.Encode(&buf, g.Draw(q.Of, zoom, part)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = w.Write(buf.Bytes()) // this fails only when the client has gone
}
