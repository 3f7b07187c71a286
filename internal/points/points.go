// Package points is the vocabulary of series that an exporter and a receiver of the Collector have in common: families, and samples of
// this moment. It imports nothing of ours.
package points

// Family describes a family of series.
type Family struct {
	Name    string // Prometheus name
	Help    string
	Counter bool     // a gauge otherwise
	Labels  []string // in order
}

// Point is a sample of a family.
type Point struct {
	*Family
	Values []string // of Labels
	Value  float64
}

// NewCounter returns a family of counters.
func NewCounter(name, help string, labels ...string) *Family {
	return &Family{Name: name, Help: help, Counter: true, Labels: labels}
}

// NewGauge returns a family of gauges.
func NewGauge(name, help string, labels ...string) *Family {
	return &Family{Name: name, Help: help, Labels: labels}
}

// NewPoint returns a sample with the values of the family's labels.
func (f *Family) NewPoint(v float64, values ...string) Point {
	return Point{Family: f, Values: values, Value: v}
}
