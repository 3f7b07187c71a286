package matrix

import (
	"fmt"
	"slices"
)

// Quantity is what the colors of a matrix show.
type Quantity string

// Quantities of a cell.
const (
	// DegradedShare is the share of the flows that are degraded.
	DegradedShare Quantity = "degraded"
	// AddedDelay is the largest difference between a flow's median delay and its baseline.
	AddedDelay Quantity = "shift"
	// MedianDelay is the median of the flows' medians, TailDelay the largest of their 99th percentiles.
	MedianDelay Quantity = "median"
	TailDelay   Quantity = "p99"
	// LossRatio is the share of the packets that were lost, MarkRatio the largest share of packets that were marked.
	LossRatio Quantity = "loss"
	MarkRatio Quantity = "marks"
)

// Quantities lists the quantities, the default one first.
func Quantities() []Quantity {
	return []Quantity{DegradedShare, AddedDelay, MedianDelay, TailDelay, LossRatio, MarkRatio}
}

// ParseQuantity returns the quantity of a name. "" is the default one.
func ParseQuantity(s string) (Quantity, error) {
	all := Quantities()
	if s == "" {
		return all[0], nil
	}
	if !slices.Contains(all, Quantity(s)) {
		return "", fmt.Errorf("no quantity %q; expected one of %v", s, all)
	}
	return Quantity(s), nil
}

// IsDelay reports whether values are nanoseconds and not shares.
func (q Quantity) IsDelay() bool { return q == AddedDelay || q == MedianDelay || q == TailDelay }

// HasNormal reports whether the lowest step means that all is well. A median and a 99th percentile have no such step, since a long way
// is no fault.
func (q Quantity) HasNormal() bool { return q != MedianDelay && q != TailDelay }

// Value returns what a quantity of a cell is. It is false if that was not measured.
func (c *Cell) Value(q Quantity) (v float64, known bool) {
	switch q {
	case DegradedShare:
		if c.Judged == 0 {
			return 0, false
		}
		return float64(c.Degraded) / float64(c.Judged), true
	case AddedDelay:
		v = float64(c.Shift)
	case MedianDelay:
		v = float64(c.Median)
	case TailDelay:
		v = float64(c.P99)
	case LossRatio:
		v = float64(c.Loss)
	case MarkRatio:
		v = float64(c.Marks)
	}
	return v, v == v
}

// Steps is the number of steps of every scale above the lowest one.
const Steps = 8

// Bounds returns the upper bounds of the lowest step and of all others but the last one, which has none. They are fixed, so that pictures of
// two moments, and of two parts of a fabric, can be compared.
func (q Quantity) Bounds() [Steps]float64 {
	switch q {
	case DegradedShare:
		return [Steps]float64{0, 1. / 16, 1. / 8, 1. / 4, 3. / 8, 1. / 2, 3. / 4, 0.999}
	case LossRatio, MarkRatio:
		return [Steps]float64{0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3}
	case AddedDelay:
		return [Steps]float64{1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 1e8}
	}
	return [Steps]float64{1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 1e7}
}

// Step returns the step of a value: 0 for the lowest one, up to Steps.
func (q Quantity) Step(v float64) int {
	for i, bound := range q.Bounds() {
		if v <= bound {
			return i
		}
	}
	return Steps
}
