package node

import (
	"iter"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/graylink/graylink/internal/points"
	"github.com/graylink/graylink/internal/probe"
)

// exposition builds the metric families of one scrape. It writes the messages
// that prometheus.Registry would produce from constant metrics: at a few
// thousand series the registry's channel, label hashes and bucket maps cost
// several times what the scrape otherwise does (see BenchmarkGather).
type exposition struct {
	created  *timestamppb.Timestamp // start of the counts
	families []*dto.MetricFamily

	counters   slab[counterCell]
	gauges     slab[gaugeCell]
	histograms slab[histogramCell]
	labelCells slab[labelCell]
	spanCells  slab[spanCell]
	deltas     []int64 // deltas of the histogram that is being written
}

type counterCell struct {
	metric  dto.Metric
	counter dto.Counter
	value   float64
}

type gaugeCell struct {
	metric dto.Metric
	gauge  dto.Gauge
	value  float64
}

type histogramCell struct {
	metric     dto.Metric
	histogram  dto.Histogram
	count      uint64
	zero       uint64
	sum, width float64
	schema     int32
}

type labelCell struct {
	pair        dto.LabelPair
	name, value string
}

type spanCell struct {
	span   dto.BucketSpan
	offset int32
	length uint32
}

// slab hands out zero values from arrays, so that thousands of small messages
// cost tens of allocations.
type slab[T any] struct{ free []T }

func (s *slab[T]) nextCell() *T {
	if len(s.free) == 0 {
		s.free = make([]T, 128)
	}
	p := &s.free[0]
	s.free = s.free[1:]
	return p
}

func newExposition(created time.Time) *exposition {
	return &exposition{created: timestamppb.New(created)}
}

// counterFamily, gaugeFamily and histogramFamily begin a family.
func (x *exposition) counterFamily(name, help string) *dto.MetricFamily {
	return x.newFamily(name, help, dto.MetricType_COUNTER)
}

func (x *exposition) gaugeFamily(name, help string) *dto.MetricFamily {
	return x.newFamily(name, help, dto.MetricType_GAUGE)
}

func (x *exposition) histogramFamily(name, help string) *dto.MetricFamily {
	return x.newFamily(name, help, dto.MetricType_HISTOGRAM)
}

func (x *exposition) newFamily(name, help string, kind dto.MetricType) *dto.MetricFamily {
	f := &dto.MetricFamily{Name: &name, Help: &help, Type: &kind}
	x.families = append(x.families, f)
	return f
}

// sortedFamilies returns the families that have series, in order of their names.
func (x *exposition) sortedFamilies() []*dto.MetricFamily {
	out := slices.DeleteFunc(x.families, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 })
	slices.SortFunc(out, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

// labelPair returns one label of a series.
func (x *exposition) labelPair(name, value string) *dto.LabelPair {
	c := x.labelCells.nextCell()
	c.name, c.value = name, value
	c.pair.Name, c.pair.Value = &c.name, &c.value
	return &c.pair
}

// labelPairs returns labels from names and values, which alternate. The names must be in order.
func (x *exposition) labelPairs(namesAndValues ...string) []*dto.LabelPair {
	set := make([]*dto.LabelPair, 0, len(namesAndValues)/2)
	for i := 0; i < len(namesAndValues); i += 2 {
		set = append(set, x.labelPair(namesAndValues[i], namesAndValues[i+1]))
	}
	return set
}

// withLabel returns the set with one more label, in order of the names.
func withLabel(set []*dto.LabelPair, p *dto.LabelPair) []*dto.LabelPair {
	out := make([]*dto.LabelPair, 0, len(set)+1)
	i := 0
	for i < len(set) && set[i].GetName() < p.GetName() {
		i++
	}
	out = append(out, set[:i]...)
	out = append(out, p)
	return append(out, set[i:]...)
}

func (x *exposition) addCounter(f *dto.MetricFamily, v float64, labels []*dto.LabelPair) {
	c := x.counters.nextCell()
	c.value = v
	c.counter.Value = &c.value
	c.metric.Counter, c.metric.Label = &c.counter, labels
	f.Metric = append(f.Metric, &c.metric)
}

func (x *exposition) addGauge(f *dto.MetricFamily, v float64, labels []*dto.LabelPair) {
	c := x.gauges.nextCell()
	c.value = v
	c.gauge.Value = &c.value
	c.metric.Gauge, c.metric.Label = &c.gauge, labels
	f.Metric = append(f.Metric, &c.metric)
}

func (x *exposition) addHistogram(f *dto.MetricFamily, h *probe.Histogram, labels []*dto.LabelPair) {
	c := x.histograms.nextCell()
	c.count, c.zero, c.sum, c.width, c.schema = h.Count, h.Zero, h.SumNS/1e9, probe.HistogramZero, probe.HistogramSchema
	d := &c.histogram
	d.CreatedTimestamp = x.created
	d.Schema, d.ZeroThreshold, d.ZeroCount, d.SampleCount, d.SampleSum = &c.schema, &c.width, &c.zero, &c.count, &c.sum
	d.NegativeSpan, d.NegativeDelta = x.encodeSpans(h.NegativeBuckets)
	d.PositiveSpan, d.PositiveDelta = x.encodeSpans(h.PositiveBuckets)
	c.metric.Histogram, c.metric.Label = d, labels
	f.Metric = append(f.Metric, &c.metric)
}

// pointFamilies has the families of points that were added.
type pointFamilies map[*points.Family]*dto.MetricFamily

// addPoint adds a sample, and begins its family with the first one.
func (all pointFamilies) addPoint(x *exposition, p *points.Point) {
	f := all[p.Family]
	if f == nil {
		begin := x.gaugeFamily
		if p.Counter {
			begin = x.counterFamily
		}
		f = begin(p.Name, p.Help)
		all[p.Family] = f
	}
	set := make([]*dto.LabelPair, 0, len(p.Labels))
	for i, label := range p.Labels {
		set = append(set, x.labelPair(label, p.Values[i]))
	}
	if p.Counter {
		x.addCounter(f, p.Value, set)
	} else {
		x.addGauge(f, p.Value, set)
	}
}

// maxGap is the number of empty buckets in a row that are written out rather than skipped by a new span, as in
// client_golang.
const maxGap = 2

// encodeSpans encodes bucket counts as runs of buckets, and as the difference of each count from the one before it.
func (x *exposition) encodeSpans(counts iter.Seq2[int, uint64]) (runs []*dto.BucketSpan, deltas []int64) {
	var run *spanCell
	var before int64
	next := 0
	x.deltas = x.deltas[:0]
	for i, n := range counts {
		gap := int32(i - next)
		if run == nil || gap > maxGap {
			run = x.spanCells.nextCell()
			run.offset = gap
			run.span.Offset, run.span.Length = &run.offset, &run.length
			runs = append(runs, &run.span)
		} else {
			for range gap {
				x.deltas = append(x.deltas, -before)
				before = 0
			}
			run.length += uint32(gap)
		}
		x.deltas = append(x.deltas, int64(n)-before)
		before = int64(n)
		run.length++
		next = i + 1
	}
	return runs, slices.Clone(x.deltas)
}
