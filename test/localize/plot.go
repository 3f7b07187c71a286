package main

import (
	"bytes"
	"fmt"
	"math"
	"strings"
)

// drawGrowth draws time and memory of the scale cells over the number of flows, both
// axes logarithmic, as SVG.
func drawGrowth(table []total) []byte {
	const width, height, left, right, top, bottom = 640, 400, 60, 60, 30, 50
	const x0, x1 = 3, 6.1    // powers of ten: flows
	const y0, y1 = -0.5, 4.5 // milliseconds, and megabytes
	x := func(v float64) float64 {
		return left + (math.Log10(v)-x0+0.1)/(x1-x0+0.1)*(width-left-right)
	}
	y := func(v float64) float64 {
		return height - bottom - (math.Log10(max(v, 0.33))-y0)/(y1-y0)*(height-top-bottom)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	for e := 0; e <= 4; e++ {
		at := y(math.Pow(10, float64(e)))
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", left, at, width-right, left-6, at+4, math.Pow(10, float64(e)))
	}
	for e := 3; e <= 6; e++ {
		at := x(math.Pow(10, float64(e)))
		fmt.Fprintf(&b, `<path d="M%.1f %dV%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", at, top, height-bottom, at, height-bottom+18, []string{"1,000", "10,000", "100,000", "1,000,000"}[e-3])
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">flows in one cycle of inference</text>`+"\n", (left+width-right)/2, height-10)
	for i, s := range []struct {
		name, colour string
		of           func(t total) float64
	}{{"milliseconds", "#1f6fb2", func(t total) float64 { return t.MS }}, {"megabytes beyond the observations", "#c2571a", func(t total) float64 { return t.MB }}} {
		var line []string
		for _, t := range table {
			if !strings.HasPrefix(t.Cell, "scale-") {
				continue
			}
			px, py := x(float64(t.Flows)), y(s.of(t))
			line = append(line, fmt.Sprintf("%.1f,%.1f", px, py))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"><title>%d flows, %d links: %.1f %s</title></circle>`+"\n", px, py, s.colour, t.Flows, t.Links, s.of(t), s.name)
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(line, " "), s.colour)
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", left+12, top+16+18*i, s.colour, s.name)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
