package report

import (
	"fmt"
	"math"
	"time"

	"github.com/graylink/graylink/analyzer/display"
	"github.com/graylink/graylink/internal/fabric"
)

// Sizes of charts, in pixels of their own.
const (
	chartWidth  = 1080.0
	chartHeight = 260.0
	flatHeight  = 170.0
)

// distributionChart draws the distributions on a log axis. The area of a bucket is its share of all packets.
func (c *composer) distributionChart() *display.Chart {
	low, high := math.Inf(1), 0.0
	for _, d := range c.r.Delays {
		for _, b := range d.Buckets {
			if b.FromNS > 0 && b.ToNS > b.FromNS {
				low, high = min(low, b.FromNS), max(high, b.ToNS)
			}
		}
	}
	if high == 0 {
		return nil
	}
	ch := display.NewChart("delays", "Distribution of the one-way delay of affected flows before and during the incident", chartWidth, chartHeight)
	x := display.NewLogAxis(low, high, ch.Plot.X, ch.Plot.Right())
	ch.XTitle, ch.YTitle = "one-way delay, logarithmic", "share of packets"
	ch.XTicks = x.Ticks(9, func(v float64) string { return display.Delay(int64(math.Round(v))) })
	densities, most := make([][][3]float64, len(c.r.Delays)), 0.0
	for i, d := range c.r.Delays {
		for _, b := range d.Buckets {
			if b.FromNS > 0 && b.ToNS > b.FromNS && d.Count > 0 {
				share := b.Count / d.Count / math.Log(b.ToNS/b.FromNS)
				densities[i] = append(densities[i], [3]float64{x.Place(b.FromNS), x.Place(b.ToNS), share})
				most = max(most, share)
			}
		}
	}
	y := display.NewAxis(0, most, ch.Plot.Bottom(), ch.Plot.Y)
	for i, d := range c.r.Delays {
		for j := range densities[i] {
			densities[i][j][2] = y.Place(densities[i][j][2])
		}
		if len(densities[i]) == 0 {
			continue
		}
		text := fmt.Sprintf("%s: %s packets, median %s, p99 %s", d.When, display.Count(int(d.Count+0.5)), delayText(d.P50NS), delayText(d.P99NS))
		if below := belowAxis(&d); below > 0 {
			text += fmt.Sprintf(", %s of them at or below 0 by the clocks, not drawn", display.Percent(below))
		}
		ch.Shapes = append(ch.Shapes, display.Shape{Class: "dist " + d.When, D: display.Steps(ch.Plot.Bottom(), densities[i]), Title: text})
		ch.Legend = append(ch.Legend, display.LegendItem{Class: "dist " + d.When, Text: text})
	}
	return ch
}

// belowAxis returns the share of packets whose delay is not positive, by the clocks.
func belowAxis(d *Distribution) float64 {
	n := 0.0
	for _, b := range d.Buckets {
		if b.FromNS <= 0 {
			n += b.Count
		}
	}
	return n / d.Count
}

// timeChart returns a chart over the span, with the time of the incident shaded.
func (c *composer) timeChart(name, label string, height float64) (*display.Chart, display.TimeAxis) {
	ch := display.NewChart(name, label, chartWidth, height)
	s := &c.r.Span
	x := display.NewTimeAxis(s.From, s.Until, ch.Plot.X, ch.Plot.Right())
	from, to := x.Place(s.Began), x.Place(s.Ended)
	ch.Shade = &display.Box{X: from, Y: ch.Plot.Y, W: to - from, H: ch.Plot.H}
	ch.XTicks, ch.XTitle = x.Ticks(9), "time, UTC"
	ch.Marks = append(ch.Marks, display.Mark{X: from, Text: "first seen"})
	if v := &c.r.Verdict; v.OpenedAt.After(s.From) && v.OpenedAt.Before(s.Until) {
		if at := x.Place(v.OpenedAt); at > from+70 {
			ch.Marks = append(ch.Marks, display.Mark{X: at, Text: "opened"})
		}
	}
	if c.r.Verdict.Cleared != nil {
		ch.Marks = append(ch.Marks, display.Mark{X: to, Text: "closed"})
	}
	return ch, x
}

// lineChart draws the time lines of a value: delays on a log axis, and loss on a linear one.
func (c *composer) lineChart(value, label string) *display.Chart {
	height := chartHeight
	if value == valueLoss {
		height = flatHeight
	}
	ch, x := c.timeChart(value, label, height)
	ch.YTitle = label
	var all []float64
	for i := range c.r.Lines {
		for _, p := range c.r.Lines[i].Points {
			if c.r.Lines[i].Value == value && (value == valueLoss || p.Value > 0) {
				all = append(all, p.Value)
			}
		}
	}
	low, high, ok := display.Bounds(all)
	if !ok {
		ch.NothingToShow = "Prometheus has no values of it"
		return ch
	}
	var y display.Axis
	if value == valueLoss {
		y = display.NewAxis(0, max(high, 0.001), ch.Plot.Bottom(), ch.Plot.Y)
		ch.YTicks = y.Ticks(4, display.Percent)
	} else {
		y = display.NewLogAxis(low, high, ch.Plot.Bottom(), ch.Plot.Y)
		ch.YTicks = y.Ticks(6, func(v float64) string { return display.Delay(int64(math.Round(v))) })
	}
	for _, affected := range []bool{false, true} { // affected ones are on top
		class, text := "line healthy", "healthy flows near them"
		if affected {
			class, text = "line affected", "affected flows"
		}
		n := 0
		for i := range c.r.Lines {
			l := &c.r.Lines[i]
			if l.Value == value && l.Affected == affected {
				n++
				ch.Shapes = append(ch.Shapes, display.Shape{Class: class, D: c.polyline(l.Points, x, y), Title: shortName(l.Of)})
			}
		}
		if n > 0 {
			ch.Legend = append(ch.Legend, display.LegendItem{Class: class, Text: fmt.Sprintf("%s (%d)", text, n)})
		}
	}
	return ch
}

// polyline returns the path of points. It is interrupted where moments are missing.
func (c *composer) polyline(points []Point, x display.TimeAxis, y display.Axis) string {
	var xs, ys []float64
	for i, p := range points {
		at := c.r.Span.From.Add(time.Duration(p.Seconds * float64(time.Second)))
		if i > 0 && p.Seconds-points[i-1].Seconds > 1.5*c.r.Span.StepSeconds {
			xs, ys = append(xs, 0), append(ys, math.NaN())
		}
		xs, ys = append(xs, x.Place(at)), append(ys, y.Place(p.Value))
	}
	return display.Polyline(xs, ys)
}

// causeChart draws how the series of a cause went, each one between its least and its largest value.
func (c *composer) causeChart(cause *Cause) *display.Chart {
	ch, x := c.timeChart("cause", "Series that can show "+words(cause.Cause.Cause)+" at "+shortName(cause.Element), flatHeight)
	ch.YTitle = ch.Label + ", each between its least and its largest value"
	for i, s := range cause.Series {
		values := make([]float64, len(s.Points))
		for j, p := range s.Points {
			values[j] = p.Value
		}
		low, high, ok := display.Bounds(values)
		if !ok {
			continue
		}
		y := display.NewAxis(low, high, ch.Plot.Bottom()-2, ch.Plot.Y+2)
		class := fmt.Sprintf("line s%d", i%4)
		ch.Shapes = append(ch.Shapes, display.Shape{Class: class, D: c.polyline(s.Points, x, y), Title: fmt.Sprintf("%s: %.6g to %.6g", shortName(s.Name), low, high)})
		if i < 4 {
			ch.Legend = append(ch.Legend, display.LegendItem{Class: class, Text: shortName(s.Name)})
		}
	}
	ch.NothingToShow = "the series have no numbers"
	return ch
}

// PathDrawing is a path from its source to its destination, in pixels.
type PathDrawing struct {
	Flow, Label string
	W, H        float64
	Boxes       []PathBox
	Links       []PathLink
}

// PathBox is a NIC or a switch.
type PathBox struct {
	display.Box
	CX, CY      float64
	Text, Title string
}

// PathLink is a link with what it adds to the delay. Tip is its arrow.
type PathLink struct {
	Class, D, Tip, Text, Title string
	X, Y                       float64
}

// Metrics of a path, in pixels.
const (
	boxWidth, boxHeight, linkWidth, pathTop = 132.0, 30.0, 104.0, 26.0
)

// drawPath draws the path of a flow. what says whether it is affected.
func drawPath(f *Flow, what string) *PathDrawing {
	d := &PathDrawing{Flow: f.Flow, H: pathTop + boxHeight + 8, Label: fmt.Sprintf("Path of the %s flow %s", what, shortName(f.Flow))}
	owners := []string{f.Src}
	for i, h := range f.Path {
		owner := fabric.OwnerOf(h.To)
		if i == len(f.Path)-1 {
			owner = f.Dst
		}
		owners = append(owners, owner)
	}
	middle := pathTop + boxHeight/2
	for i, name := range owners {
		left := 4 + float64(i)*(boxWidth+linkWidth)
		d.Boxes = append(d.Boxes, PathBox{display.Box{X: left, Y: pathTop, W: boxWidth, H: boxHeight}, left + boxWidth/2, middle, display.ShortenMiddle(name, 17), shortName(name)})
		d.W = left + boxWidth + 4
	}
	for i := range f.Path {
		h := &f.Path[i]
		from := d.Boxes[i].Right()
		to := from + linkWidth
		l := PathLink{Class: "hop", D: fmt.Sprintf("M%.0f %.0fH%.0f", from, middle, to-6), Tip: fmt.Sprintf("M%.0f %.0fl-8 -5v10z", to, middle), Text: h.adds(), X: (from + to) / 2, Y: middle - 8,
			Title: fmt.Sprintf("%s → %s: %s, flows that cross it: %s, degraded ones of them: %s", shortName(h.From), shortName(h.To), h.adds(), countOr(h.Flows), countOr(h.Degraded))}
		switch {
		case h.Named:
			l.Class = "hop named"
		case h.AddedDelayNS == nil:
			l.Class = "hop unknown"
		}
		d.Links = append(d.Links, l)
	}
	return d
}
