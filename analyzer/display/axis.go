package display

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Tick is a mark of an axis, with its place in pixels.
type Tick struct {
	At   float64
	Text string
}

// Axis is a scale from values to pixels. The higher value may have the lower pixel, as an axis that points up.
type Axis struct {
	low, high float64 // values; their logarithms on a log axis
	from, to  float64 // pixels
	log       bool
}

// largest bounds the values of an axis.
const largest = 1e30

// NewAxis returns a linear axis. Values that are all the same are drawn at its beginning.
func NewAxis(low, high, from, to float64) Axis {
	low, high = min(max(low, -largest), largest), min(max(high, -largest), largest)
	if !(high-low > 1e-9*math.Abs(low)) {
		low, high = finite(low), finite(low)+max(1, math.Abs(finite(low)))
	}
	return Axis{low: low, high: high, from: from, to: to}
}

// finite returns a value, or 0 if it is no number.
func finite(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return v
}

// NewLogAxis returns an axis by the logarithm of positive values.
func NewLogAxis(low, high, from, to float64) Axis {
	if !(low >= 1/largest) {
		low = 1 / largest
	}
	low = min(low, largest)
	if high = min(high, 10*largest); !(high > low) {
		low, high = low/1.5, low*1.5
	}
	return Axis{low: math.Log(low), high: math.Log(high), from: from, to: to, log: true}
}

// Place returns the pixel of a value. A value beyond an end is drawn there.
func (a Axis) Place(v float64) float64 {
	if a.log {
		if v <= 0 {
			return a.from
		}
		v = math.Log(v)
	}
	v = min(max(v, a.low), a.high)
	return a.from + (a.to-a.from)*(v-a.low)/(a.high-a.low)
}

// steps are the marks of a decade. Few of them are used where there are many decades.
var steps = [][]float64{{1, 2, 5}, {1, 3}, {1}}

// Ticks returns marks at round values, with their texts: at most one more than most.
func (a Axis) Ticks(most int, text func(float64) string) (out []Tick) {
	for _, v := range a.roundValues(most) {
		out = append(out, Tick{a.Place(v), text(v)})
	}
	return out
}

func (a Axis) roundValues(most int) (out []float64) {
	if !a.log {
		step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/float64(most))))
		for _, times := range []float64{1, 2, 5, 10} {
			if (a.high-a.low)/(step*times) <= float64(most) {
				step *= times
				break
			}
		}
		for i := math.Ceil(a.low/step - 1e-9); i*step <= a.high+step*1e-9; i++ {
			out = append(out, i*step)
		}
		return out
	}
	const ln10 = math.Ln10
	for _, of := range steps {
		out = out[:0]
		for decade := math.Floor(a.low / ln10); decade <= math.Ceil(a.high/ln10); decade++ {
			for _, s := range of {
				if v := math.Log(s) + decade*ln10; v >= a.low-1e-9 && v <= a.high+1e-9 {
					out = append(out, s*math.Pow(10, decade))
				}
			}
		}
		if len(out) <= most {
			break
		}
	}
	for len(out) > most {
		kept := out[:0]
		for i := 0; i < len(out); i += 2 {
			kept = append(kept, out[i])
		}
		out = kept
	}
	return out
}

// timeSteps are the distances of marks of a time axis.
var timeSteps = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute,
	5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour}

// TimeAxis is a scale from moments to pixels.
type TimeAxis struct {
	from  time.Time
	scale Axis
}

// NewTimeAxis returns the axis of a span.
func NewTimeAxis(from, until time.Time, left, right float64) TimeAxis {
	return TimeAxis{from, NewAxis(0, float64(until.Sub(from)), left, right)}
}

// Place returns the pixel of a moment. A moment beyond an end is drawn there.
func (a TimeAxis) Place(at time.Time) float64 { return a.scale.Place(float64(at.Sub(a.from))) }

// Ticks returns marks at round moments: at most one more than most.
func (a TimeAxis) Ticks(most int) (out []Tick) {
	span := time.Duration(a.scale.high)
	every := timeSteps[len(timeSteps)-1]
	for _, s := range timeSteps {
		if span/s <= time.Duration(most) {
			every = s
			break
		}
	}
	for every < span/time.Duration(most) {
		every *= 2
	}
	form := "15:04"
	switch {
	case every < time.Minute:
		form = "15:04:05"
	case every >= 24*time.Hour:
		form = "01-02"
	case span > 24*time.Hour:
		form = "01-02 15:04"
	}
	for at := a.from.Truncate(every).Add(every); !at.After(a.from.Add(span)); at = at.Add(every) {
		out = append(out, Tick{a.Place(at), at.UTC().Format(form)})
	}
	return out
}

// Polyline returns the path of an SVG line through points. NaN interrupts the line, and a point that stands alone is a short line.
func Polyline(xs, ys []float64) string {
	var b strings.Builder
	begun := false
	for i := range xs {
		switch {
		case math.IsNaN(ys[i]):
			if begun {
				b.WriteString("h.1")
			}
			begun = false
			continue
		case begun:
			fmt.Fprintf(&b, "L%.1f %.1f", xs[i], ys[i])
		default:
			fmt.Fprintf(&b, "M%.1f %.1f", xs[i], ys[i])
			begun = true
		}
	}
	if begun {
		b.WriteString("h.1")
	}
	return b.String()
}
