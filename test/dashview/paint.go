package main

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/graylink/graylink/dashboards"
)

type page struct {
	Title, Description string
	Height, Empty      int
	Panels             []picture
}

type picture struct {
	Title, Text string
	X, Y, W, H  int
	Empty       bool
	Big         *colored
	Table       *grid
	Picture     template.HTML
	Key         []colored
}

type colored struct{ Color, Text string }

type grid struct {
	Head []string
	Rows [][]string
}

// painter queries and draws one span of time.
type painter struct {
	db       promv1.API
	from, to time.Time
	step     time.Duration
}

func (p *painter) buildPage(ctx context.Context, d dashboards.Dashboard) (*page, error) {
	out := &page{Title: d.Title, Description: d.Description}
	for i := range d.Panels {
		panel := &d.Panels[i]
		g := panel.GridPos
		pic := picture{Title: panel.Title, Text: panel.Description, X: g.X * column, Y: g.Y * row, W: g.W * column, H: g.H * row}
		var moments []model.Vector
		var spans []model.Matrix
		legends := []string{}
		for _, t := range panel.Targets {
			expr := dashboards.FillVariables(t.Expr)
			if t.Instant {
				v, _, _, err := p.db.Query(ctx, expr, p.to)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", panel.Title, err)
				}
				if vector, ok := v.(model.Vector); ok {
					moments = append(moments, vector)
				}
				continue
			}
			v, _, _, err := p.db.QueryRange(ctx, expr, promv1.Range{Start: p.from, End: p.to, Step: p.step})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", panel.Title, err)
			}
			if matrix, ok := v.(model.Matrix); ok {
				spans, legends = append(spans, matrix), append(legends, t.LegendFormat)
			}
		}
		unit := panel.FieldConfig.Defaults.Unit
		switch panel.Type {
		case "stat":
			if len(moments) > 0 && len(moments[0]) > 0 {
				pic.Big = bigNumber(panel, float64(moments[0][0].Value))
			}
		case "table", "nodeGraph":
			pic.Table = buildTable(moments, unit)
		case "heatmap":
			pic.Picture = p.drawHeatmap(spans, pic.W-14, pic.H-30)
		default:
			pic.Picture, pic.Key = p.drawLines(spans, legends, unit, pic.W-14, pic.H-34)
		}
		pic.Empty = pic.Big == nil && pic.Table == nil && pic.Picture == ""
		if pic.Empty {
			out.Empty++
		}
		out.Height = max(out.Height, pic.Y+pic.H)
		out.Panels = append(out.Panels, pic)
	}
	return out, nil
}

// bigNumber returns the value of a panel as HTML, in the colour of its threshold.
func bigNumber(panel *dashboards.Panel, v float64) *colored {
	c := &colored{"#ccc", formatValue(v, panel.FieldConfig.Defaults.Unit)}
	if t := panel.FieldConfig.Defaults.Thresholds; t != nil {
		for _, s := range t.Steps {
			if s.Value == nil || v >= *s.Value {
				c.Color = s.Color
			}
		}
	}
	return c
}

// hidden lists labels that Grafana's tables leave out, too.
var hidden = map[model.LabelName]bool{"__name__": true, "instance": true, "job": true, "replica": true}

func buildTable(all []model.Vector, unit string) *grid {
	names := map[model.LabelName]bool{}
	for _, v := range all {
		for _, s := range v {
			for l := range s.Metric {
				names[l] = names[l] || !hidden[l]
			}
		}
	}
	g := &grid{}
	var order []model.LabelName
	for l, shown := range names {
		if shown {
			order = append(order, l)
		}
	}
	slices.Sort(order)
	for _, l := range order {
		g.Head = append(g.Head, string(l))
	}
	g.Head = append(g.Head, "value")
	for _, v := range all {
		for _, s := range v {
			var cells []string
			for _, l := range order {
				cells = append(cells, string(s.Metric[l]))
			}
			if g.Rows = append(g.Rows, append(cells, formatValue(float64(s.Value), unit))); len(g.Rows) > 40 {
				return g
			}
		}
	}
	if len(g.Rows) == 0 {
		return nil
	}
	return g
}

var colors = []string{"#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#37872d", "#fade2a", "#ffa6b0", "#8f3bb8", "#c0d8ff"}

var field = regexp.MustCompile(`\{\{ *(\w+) *\}\}`)

func legendText(format string, m model.Metric) string {
	if format == "" {
		return m.String()
	}
	return strings.TrimSpace(field.ReplaceAllStringFunc(format, func(s string) string { return string(m[model.LabelName(field.FindStringSubmatch(s)[1])]) }))
}

func (p *painter) drawLines(all []model.Matrix, legends []string, unit string, w, h int) (template.HTML, []colored) {
	type line struct {
		name   string
		points []model.SamplePair
		last   float64
	}
	var ls []line
	top, bottom := math.Inf(-1), 0.0
	for i, m := range all {
		for _, s := range m {
			l := line{name: legendText(legends[i], s.Metric), points: s.Values}
			for _, v := range s.Values {
				if x := float64(v.Value); !math.IsNaN(x) && !math.IsInf(x, 0) {
					top, bottom, l.last = max(top, x), min(bottom, x), x
				}
			}
			ls = append(ls, l)
		}
	}
	if len(ls) == 0 {
		return "", nil
	}
	if top <= bottom {
		top = bottom + 1
	}
	slices.SortStableFunc(ls, func(a, b line) int { return cmp.Compare(b.last, a.last) })
	const keys, left = 4, 60
	shown := min(len(ls), keys)
	h -= 12 * (shown + 1)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg width="%d" height="%d" style="display:block">`, w, h)
	for i := range 4 {
		v := bottom + (top-bottom)*float64(i)/3
		y := float64(h-4) - float64(h-8)*float64(i)/3
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.0f" y2="%.0f" stroke="#2a2c33"/><text x="0" y="%.0f" fill="#888" font-size="10">%s</text>`, left, w, y, y, y+3, template.HTMLEscapeString(formatValue(v, unit)))
	}
	span := p.to.Sub(p.from).Seconds()
	for i, l := range ls {
		var path strings.Builder
		pen, before := "M", time.Time{}
		for _, v := range l.points {
			x, at := float64(v.Value), v.Timestamp.Time()
			if math.IsNaN(x) || math.IsInf(x, 0) || !before.IsZero() && at.Sub(before) > 3*p.step {
				pen = "M"
			}
			before = at
			if math.IsNaN(x) || math.IsInf(x, 0) {
				continue
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", pen, left+float64(w-left)*at.Sub(p.from).Seconds()/span, float64(h-4)-float64(h-8)*(x-bottom)/(top-bottom))
			pen = "L"
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.3"/>`, path.String(), colors[i%len(colors)])
	}
	b.WriteString("</svg>")
	var key []colored
	for i, l := range ls[:shown] {
		key = append(key, colored{colors[i%len(colors)], l.name + "  " + formatValue(l.last, unit)})
	}
	if n := len(ls) - shown; n > 0 {
		key = append(key, colored{"#888", fmt.Sprintf("and %d more", n)})
	}
	return template.HTML(b.String()), key //nolint:gosec // all text in it is escaped
}

// drawHeatmap draws histograms over time, logarithmic, 100 ns to 100 ms from the bottom up.
func (p *painter) drawHeatmap(all []model.Matrix, w, h int) template.HTML {
	var b strings.Builder
	most := 0.0
	each := func(f func(x, lower, upper, count float64)) {
		for _, m := range all {
			for _, s := range m {
				for _, hp := range s.Histograms {
					if hp.Histogram == nil {
						continue
					}
					for _, k := range hp.Histogram.Buckets {
						f(hp.Timestamp.Time().Sub(p.from).Seconds()/p.to.Sub(p.from).Seconds(), float64(k.Lower), float64(k.Upper), float64(k.Count))
					}
				}
			}
		}
	}
	each(func(_, _, _, count float64) { most = max(most, count) })
	if most == 0 {
		return ""
	}
	const lowest, decades, left = 1e-7, 6, 50
	at := func(v float64) float64 {
		return float64(h) * (1 - min(1, max(0, math.Log10(max(v, lowest)/lowest)/decades)))
	}
	fmt.Fprintf(&b, `<svg width="%d" height="%d" style="display:block">`, w, h)
	wide := float64(w-left) * p.step.Seconds() / p.to.Sub(p.from).Seconds()
	each(func(x, lower, upper, count float64) {
		if count > 0 {
			fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#ff780a" fill-opacity="%.2f"/>`, left+x*float64(w-left), at(upper), wide+0.3, max(0.5, at(lower)-at(upper)), 0.1+0.9*math.Sqrt(count/most))
		}
	})
	for i := range decades + 1 {
		v := lowest * math.Pow(10, float64(i))
		fmt.Fprintf(&b, `<text x="0" y="%.0f" fill="#888" font-size="10">%s</text>`, at(v)+3, template.HTMLEscapeString(formatValue(v, "s")))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // all text in it is escaped
}

// formatValue returns a value as text in one of Grafana's units.
func formatValue(v float64, unit string) string {
	switch unit {
	case "s":
		for _, u := range []struct {
			of   float64
			name string
		}{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}} {
			if math.Abs(v) >= u.of {
				return fmt.Sprintf("%.3g %s", v/u.of, u.name)
			}
		}
		if v == 0 {
			return "0 s"
		}
		return fmt.Sprintf("%.3g ns", v/1e-9)
	case "percentunit":
		return fmt.Sprintf("%.3g %%", 100*v)
	case "bool_yes_no":
		if v != 0 {
			return "Yes"
		}
		return "No"
	case "short":
		return fmt.Sprintf("%.4g", v)
	}
	return fmt.Sprintf("%.4g %s", v, unit)
}
