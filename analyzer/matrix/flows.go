package matrix

import (
	"cmp"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Flow is what was last read of a flow. Nil means that something was not measured.
type Flow struct {
	Flow     fabric.Flow
	Src, Dst string // in the direction of the packets
	Class    string
	// Degraded, Judged and Known say what it counts as in its cell.
	Degraded, Judged, Known bool
	// P50, P99 and Baseline are delays in nanoseconds: the median, the 99th percentile, and the usual median.
	P50, P99, Baseline *float64
	Loss, Marks        *float64
	// Age is how long before the last cycle it was read.
	Age time.Duration
}

// Flows returns the flows of a cell, the degraded ones first. Names that are no rows have none.
func (s *Store) Flows(sel Selection, row, column string) (out []Flow) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.graph == nil {
		return nil
	}
	ax, err := newAxis(s.graph, sel)
	if err != nil {
		return nil
	}
	find := func(name string) int32 {
		return int32(slices.IndexFunc(ax.groups, func(x Group) bool { return x.Name == name }))
	}
	from, to := find(row), find(column)
	if from < 0 || to < 0 {
		return nil
	}
	class := slices.Index(s.classes, sel.Class)
	for i := range s.records {
		r := &s.records[i]
		if ax.of[r.key.from()] == from && ax.of[r.key.to()] == to && sel.has(r, class) {
			out = append(out, s.flowOf(r))
		}
	}
	slices.SortFunc(out, func(a, b Flow) int {
		order := func(f *Flow) int {
			switch {
			case f.Degraded:
				return 0
			case f.Known:
				return 1
			}
			return 2
		}
		return cmp.Or(order(&a)-order(&b), fabric.CompareNatural(a.Flow.String(), b.Flow.String()))
	})
	return out
}

// flowOf returns what a record says.
func (s *Store) flowOf(r *record) Flow {
	ids := s.graph.NICIDs()
	f := Flow{Src: ids[r.key.from()], Dst: ids[r.key.to()], Age: s.at.Sub(time.Unix(0, r.at)), Class: s.classes[r.class],
		P50: measured(r.p50), P99: measured(r.p99), Baseline: measured(r.base), Marks: measured(r.marks)}
	f.Flow = fabric.Flow{Src: f.Src, Dst: f.Dst, Number: r.key.number()}
	if r.key.isReply() {
		f.Flow = fabric.Flow{Src: f.Dst, Dst: f.Src, Number: r.key.number(), Reply: true}
	}
	f.Known = s.isKnown(r)
	f.Judged = f.Known && r.condition != undecided
	f.Degraded = f.Known && r.condition == degraded
	if r.sent > 0 {
		loss := float64(r.lost) / float64(r.sent)
		f.Loss = &loss
	}
	return f
}

func measured(v float32) *float64 {
	if isNothing(v) {
		return nil
	}
	out := float64(v)
	return &out
}
