package display

import (
	"cmp"
	"embed"
	"math"
	"slices"
)

// Templates has chart.html, which defines the template "chart" for a *Chart. Classes of the page's style sheet give charts their colors.
//
//go:embed assets/chart.html
var Templates embed.FS

// Chart is a picture of lines and areas between two axes, in pixels.
type Chart struct {
	// Name is a short name without spaces, and Label says what the chart shows, to those who do not see it.
	Name, Label   string
	W, H          float64
	Plot          Box
	XTicks        []Tick
	YTicks        []Tick
	XTitle        string
	YTitle        string
	Shade         *Box // a part that stands out
	Shapes        []Shape
	Marks         []Mark
	Legend        []LegendItem
	NothingToShow string // the reason why there is no shape
}

// Box is a rectangle.
type Box struct{ X, Y, W, H float64 }

// Right returns the right end.
func (b Box) Right() float64 { return b.X + b.W }

// Bottom returns the lower end.
func (b Box) Bottom() float64 { return b.Y + b.H }

// Shape is a line or an area with its class of style, its path in SVG, and its title.
type Shape struct{ Class, D, Title string }

// Mark is a vertical line with a text.
type Mark struct {
	X    float64
	Text string
}

// LegendItem says what a class of style stands for.
type LegendItem struct{ Class, Text string }

// NewChart returns an empty chart.
func NewChart(name, label string, width, height float64) *Chart {
	return &Chart{Name: name, Label: label, W: width, H: height, Plot: Box{X: 70, Y: 18, W: width - 84, H: height - 56}}
}

// Steps returns the outline of areas of different widths that stand beside each other, on a base line. Each one is its left and right end
// and its upper end. They are sorted.
func Steps(base float64, areas [][3]float64) string {
	xs, ys := []float64{}, []float64{}
	add := func(x, y float64) { xs, ys = append(xs, x), append(ys, y) }
	last := math.NaN()
	for _, a := range areas {
		if a[0] != last {
			if !math.IsNaN(last) {
				add(last, base)
			}
			add(a[0], base)
		}
		add(a[0], a[2])
		add(a[1], a[2])
		last = a[1]
	}
	if !math.IsNaN(last) {
		add(last, base)
	}
	return Polyline(xs, ys)
}

// Bounds returns the least and the largest of values, or false if there are none.
func Bounds(values []float64) (low, high float64, ok bool) {
	if len(values) == 0 {
		return 0, 0, false
	}
	return slices.MinFunc(values, cmp.Compare[float64]), slices.MaxFunc(values, cmp.Compare[float64]), true
}
