package matrix

import (
	"image"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// drawn writes the colors of a picture: a dot for nothing, a blank and a slash for the unknown, else the step.
func drawn(img *image.Paletted) string {
	var out strings.Builder
	for y := range img.Rect.Dy() {
		for x := range img.Rect.Dx() {
			out.WriteByte(". /012345678"[img.ColorIndexAt(x, y)])
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// drawnWorld returns the grid of four leaves of which leaf2 sends late, and leaf4 has no evidence.
func drawnWorld(t *testing.T) *Grid {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 1), 3)
	for _, d := range w.FabricDirections() {
		if fabric.OwnerOf(d.From) == "leaf2" {
			w.Delay[d] = 2_000_000
		}
	}
	snap := measure(w, begin())
	snap.Hosts["h4"] = "its agent does not answer"
	return gridOf(t, w, snap, Selection{})
}

func TestDraw(t *testing.T) {
	g := drawnWorld(t)
	whole := image.Rect(0, 0, 1000, 1000)
	for _, tt := range []struct {
		name string
		zoom Zoom
		part image.Rectangle
		want string
	}{
		{"a pixel for each cell", 1, image.Rect(0, 0, 4, 4), ".00 \n5.5/\n00. \n / .\n"},
		{"two pixels", 2, image.Rect(0, 0, 8, 8), "..0000  \n..0000 /\n55..55/ \n55..55  \n0000..  \n0000.. /\n  /   ..\n /   /..\n"},
		{"a part that is not a number of cells", 2, image.Rect(3, 1, 8, 4), "000 /\n.55/ \n.55  \n"},
		{"beyond the end", 2, image.Rect(6, 6, 9, 9), "...\n...\n...\n"},
		{"four cells share a pixel, and the highest step wins", -2, image.Rect(0, 0, 2, 2), "55\n0 \n"},
		{"all cells share a pixel", -4, image.Rect(0, 0, 1, 1), "5\n"},
		{"gaps between large cells", 6, image.Rect(6, 0, 18, 6), "00000.00000.\n00000.00000.\n00000.00000.\n00000.00000.\n00000.00000.\n............\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := drawn(g.Draw(AddedDelay, tt.zoom, tt.part)); got != tt.want {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
		})
	}
	if got := drawn(g.Draw(AddedDelay, 1, whole)); strings.Trim(strings.ReplaceAll(got, ".", ""), "\n") == "" {
		t.Error("nothing is drawn in a part that is larger than the matrix")
	}
}

// TestZoom: the sizes of cells follow each other in both directions, and none is 0.
func TestZoom(t *testing.T) {
	for z, in := range map[Zoom]Zoom{-4: -2, -2: 1, 1: 2, 2: 4} {
		if got := z.In(); got != in {
			t.Errorf("%d.In() is %d, want %d", z, got, in)
		}
		if got := in.Out(); got != z {
			t.Errorf("%d.Out() is %d, want %d", in, got, z)
		}
	}
	for _, tt := range []struct{ zoom, rows, want int }{{3, 4, 12}, {1, 0, 0}, {-2, 4, 2}, {-2, 5, 3}, {-3, 1, 1}} {
		if got := Zoom(tt.zoom).Side(tt.rows); got != tt.want {
			t.Errorf("%d rows take %d pixels at %d, want %d", tt.rows, got, tt.zoom, tt.want)
		}
	}
}
