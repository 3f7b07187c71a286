package matrix

import (
	"fmt"
	"image"
	"image/color"
	"sort"
)

// Numbers of colors in a palette: nothing, the ground and the strokes of what is unknown, and the lowest step of the scale.
const (
	colorEmpty = iota
	colorGround
	colorStroke
	colorStep
)

// palette is viridis in Steps steps (van der Walt and Smith, 2015), which color-blind people can distinguish and which keeps its order in gray.
// The highest step is farthest from a light background. A dark page inverts the picture.
var palette = func() color.Palette {
	out := color.Palette{color.NRGBA{}}
	for _, v := range []uint32{0xffffff, 0x7b848f, 0xd8dde4, 0xfde725, 0xb5de2b, 0x6ece58, 0x35b779, 0x1f9e89, 0x31688e, 0x443983, 0x440154} {
		out = append(out, color.NRGBA{byte(v >> 16), byte(v >> 8), byte(v), 0xff})
	}
	return out
}()

// StepColor returns the color of a step in hexadecimal notation, for legends.
func StepColor(step int) string {
	r, g, b, _ := palette[colorStep+step].RGBA()
	return fmt.Sprintf("#%02x%02x%02x", r>>8, g>>8, b>>8)
}

// Zoom is the size of a cell: Zoom pixels, or if it is negative, -Zoom rows and columns share one pixel. It is never 0.
type Zoom int

// In returns the next larger size of a cell.
func (z Zoom) In() Zoom {
	switch {
	case z > 0:
		return z * 2
	case z >= -2:
		return 1
	}
	return z / 2
}

// Out returns the next smaller size of a cell.
func (z Zoom) Out() Zoom {
	switch {
	case z > 1:
		return z / 2
	case z == 1:
		return -2
	}
	return z * 2
}

// Side returns the number of pixels that a number of rows takes.
func (z Zoom) Side(rows int) int {
	if z > 0 {
		return rows * int(z)
	}
	return (rows - int(z) - 1) / -int(z)
}

// cells returns the first of the rows, or columns, that share a pixel, and the one after the last.
func (z Zoom) cells(pixel int) (first, end int) {
	if z > 0 {
		return pixel / int(z), pixel/int(z) + 1
	}
	return pixel * -int(z), (pixel + 1) * -int(z)
}

// hasGap reports whether a pixel belongs to the gap between two cells. Small cells have no gaps.
func (z Zoom) hasGap(pixel int) bool { return z >= gapFrom && pixel%int(z) == int(z)-1 }

// gapFrom is the size from which there is a gap between cells, hatchEvery the distance of the strokes of what is unknown, in pixels.
const gapFrom, hatchEvery = 6, 4

// Shades of a pixel besides the steps.
const (
	shadeEmpty   = -2
	shadeUnknown = -1
)

// Draw draws a part of the picture of a grid. Pixels outside of the grid are transparent. Where several cells share a pixel it shows the
// highest step of them, so that no cell at fault gets lost.
func (g *Grid) Draw(q Quantity, zoom Zoom, part image.Rectangle) *image.Paletted {
	img := image.NewPaletted(image.Rect(0, 0, part.Dx(), part.Dy()), palette)
	side := zoom.Side(len(g.Groups))
	inside := part.Intersect(image.Rect(0, 0, side, side))
	shades, drawn := make([]int8, inside.Dx()), -1
	for y := inside.Min.Y; y < inside.Max.Y; y++ {
		first, end := zoom.cells(y)
		if first != drawn {
			g.shadeRows(shades, q, zoom, inside.Min.X, first, min(end, len(g.Groups)))
			drawn = first
		}
		if zoom.hasGap(y) {
			continue
		}
		for i, shade := range shades {
			x := inside.Min.X + i
			if shade == shadeEmpty || zoom.hasGap(x) {
				continue
			}
			c := colorStep + int(shade)
			if shade == shadeUnknown {
				c = colorGround
				if (x+y)%hatchEvery == 0 {
					c = colorStroke
				}
			}
			img.Pix[(y-part.Min.Y)*img.Stride+x-part.Min.X] = uint8(c)
		}
	}
	return img
}

// shadeRows finds the shades of the pixels of some rows, from a pixel on.
func (g *Grid) shadeRows(shades []int8, q Quantity, zoom Zoom, from, first, end int) {
	for i := range shades {
		shades[i] = shadeEmpty
	}
	left, _ := zoom.cells(from)
	for row := first; row < end; row++ {
		cells := g.Row(row)
		skip := sort.Search(len(cells), func(i int) bool { return cells[i].Column >= uint32(left) })
		for i := skip; i < len(cells); i++ {
			c := &cells[i]
			x, width := int(c.Column)*int(zoom), int(zoom)
			if zoom < 0 {
				x, width = int(c.Column)/-int(zoom), 1
			}
			if x -= from; x >= len(shades) {
				break
			}
			shade := int8(shadeUnknown)
			if v, known := c.Value(q); known {
				shade = int8(q.Step(v))
			}
			for p := max(x, 0); p < min(x+width, len(shades)); p++ {
				shades[p] = max(shades[p], shade)
			}
		}
	}
}
