package workload

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/graylink/graylink/internal/ccl"
)

// cellKey is a connection between two processes in operations of one shape.
type cellKey struct {
	from, to *process
	c        *comm
	op       string
	log2     int
	byClocks bool // by the times of both sides, as the sender's wire times are not known
}

// cellSeries is the wire time of a connection, in ns for each MiB.
type cellSeries struct {
	key      cellKey
	from, to int // ranks of the communicator
	values   history
	over     []bool // whether the latest ones count
	last     int64
	at       int64 // time of the latest value, by the sender's clock
}

const mebibyte = 1 << 20

// addCell takes the sender's wire time of a transfer that is over.
func (t *Tracker) addCell(c *comm, e *ccl.Edge) {
	if e.Direction != ccl.Send || !e.Wire.Known || e.Bytes == nil || *e.Bytes == 0 {
		return
	}
	from, to := t.member(c, e.Rank, e.Host, e.Host), c.members[e.Peer]
	if to == nil {
		return
	}
	k := cellKey{from, to, c, e.Op, bits.Len64(*e.Bytes), false}
	s := t.cellOf(k, e.Rank, e.Peer)
	if s == nil {
		return
	}
	v := int64(float64(e.Wire.NS) * mebibyte / float64(*e.Bytes))
	m, mad, ok := s.values.normal(rankNormal)
	s.add(v, ok && v-m > max(spread*mad, m/10), TimeOf(e), c.job.frozen)
}

// cellOf returns the cell of a connection between two ranks, or nil if there are too many already.
func (t *Tracker) cellOf(k cellKey, from, to int) *cellSeries {
	s := k.c.job.cells[k]
	if s == nil {
		if t.cells >= maxCells {
			t.dropped++
			return nil
		}
		t.cells++
		s = &cellSeries{key: k, from: from, to: to, values: history{size: rankHistory}}
		k.c.job.cells[k] = s
	}
	return s
}

// add takes a value, whether it counts, and the time of it.
func (s *cellSeries) add(v int64, over bool, at int64, frozen bool) {
	s.over, s.last, s.at = append(s.over, over), v, at
	if len(s.over) > recent {
		s.over = s.over[1:]
	}
	if !frozen && !over {
		s.values.push(v)
	}
}

// hasWire says whether the wire times of the sender of a connection are known, which say more than the times of both sides.
func (j *job) hasWire(k cellKey) bool {
	k.byClocks = false
	wire := j.cells[k]
	return wire != nil && wire.ready()
}

// counted returns how many of the latest transfers count.
func (s *cellSeries) counted() (n int) {
	for _, o := range s.over {
		if o {
			n++
		}
	}
	return n
}

// ready says whether there is a normal to compare the latest transfers with.
func (s *cellSeries) ready() bool {
	return len(s.over) == recent && len(s.values.values)-recent >= rankNormal
}

// pair is a connection between two processes in any operation.
type pair struct{ from, to *process }

// pairState is what all operations say of a connection.
type pairState struct {
	bad   bool
	vague bool // some of the latest transfers count, and too few
	cells []*cellSeries
}

// hypothesis is a pattern that could explain cells.
type hypothesis struct {
	pattern Pattern
	from    *process
	to      *process
	host    string
	bad     []pair
	clean   int
}

// breadth orders patterns from the narrowest.
var breadth = map[Pattern]int{Cell: 0, Row: 1, Column: 2, NodeOut: 3, NodeIn: 4}

// explained is a pattern with what stands for the same.
type explained struct {
	hypothesis
	equivalent []hypothesis
	cells      []*cellSeries
}

// explainCells returns the fewest patterns that explain the degraded cells of a job. A pattern with too many clean cells is never one.
func (j *job) explainCells() []explained {
	states := map[pair]*pairState{}
	for k, s := range j.cells {
		if !s.ready() || k.byClocks && j.hasWire(k) {
			continue
		}
		p := pair{s.key.from, s.key.to}
		st := states[p]
		if st == nil {
			st = &pairState{}
			states[p] = st
		}
		st.bad = st.bad || s.counted() >= counting
		st.vague = st.vague || s.counted() > 1
		st.cells = append(st.cells, s)
	}
	left := map[pair]bool{}
	for p, st := range states {
		if st.bad {
			left[p] = true
		}
	}
	if len(left) == 0 {
		return nil
	}
	all := hypotheses(states)
	var out []explained
	for len(left) > 0 {
		best, equal := -1, []int{}
		covered := 0
		for i, h := range all {
			n := 0
			for _, p := range h.bad {
				if left[p] {
					n++
				}
			}
			switch {
			case n > covered:
				best, covered, equal = i, n, nil
			case n == covered && n > 0:
				equal = append(equal, i)
			}
		}
		if best < 0 {
			break
		}
		e := explained{hypothesis: all[best]}
		for _, i := range equal {
			if sameLeft(all[best].bad, all[i].bad, left) {
				e.equivalent = append(e.equivalent, all[i])
			}
		}
		for _, p := range e.bad {
			if left[p] {
				e.cells = append(e.cells, states[p].cells...)
			}
		}
		for _, p := range e.bad {
			delete(left, p)
		}
		out = append(out, e)
	}
	return out
}

// sameLeft says whether two sets are the same among what is left.
func sameLeft(a, b []pair, left map[pair]bool) bool {
	in := map[pair]bool{}
	n := 0
	for _, p := range a {
		if left[p] {
			in[p] = true
			n++
		}
	}
	for _, p := range b {
		if left[p] {
			if !in[p] {
				return false
			}
			n--
		}
	}
	return n == 0
}

// hypotheses returns all patterns that the cells allow, the narrowest first.
func hypotheses(states map[pair]*pairState) []hypothesis {
	type id struct {
		pattern  Pattern
		from, to *process
		host     string
	}
	found := map[id]*hypothesis{}
	for p, st := range states {
		ids := []id{{Cell, p.from, p.to, ""}, {Row, p.from, nil, ""}, {Column, nil, p.to, ""}}
		if p.from.place.Host != "" {
			ids = append(ids, id{NodeOut, nil, nil, p.from.place.Host})
		}
		if p.to.place.Host != "" {
			ids = append(ids, id{NodeIn, nil, nil, p.to.place.Host})
		}
		for _, k := range ids {
			h := found[k]
			if h == nil {
				h = &hypothesis{pattern: k.pattern, from: k.from, to: k.to, host: k.host}
				found[k] = h
			}
			if st.bad {
				h.bad = append(h.bad, p)
			} else if !st.vague {
				h.clean++
			}
		}
	}
	var out []hypothesis
	for _, h := range found {
		if len(h.bad) > 0 && float64(h.clean) <= contrary*float64(h.clean+len(h.bad)) {
			out = append(out, *h)
		}
	}
	name := func(h hypothesis) string {
		s := h.host
		if h.from != nil {
			s += h.from.key
		}
		if h.to != nil {
			s += ">" + h.to.key
		}
		return s
	}
	slices.SortFunc(out, func(a, b hypothesis) int {
		return cmp.Or(cmp.Compare(breadth[a.pattern], breadth[b.pattern]), cmp.Compare(name(a), name(b)))
	})
	return out
}

// matrix returns the delays of all connections.
func (j *job) matrix() (out []MatrixCell) {
	for _, s := range j.cells {
		c := MatrixCell{Comm: s.key.c.id, From: s.from, To: s.to, WireNSPerMiB: float64(s.last)}
		if m, _, ok := s.values.normal(rankNormal); ok {
			f := float64(m)
			c.NormalNSPerMiB = &f
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b MatrixCell) int {
		return cmp.Or(cmp.Compare(a.Comm, b.Comm), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.WireNSPerMiB, b.WireNSPerMiB))
	})
	return out
}
