package csig

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomTable returns a table of 1 to 32 edges with codes that may have gaps.
func randomTable(rng *rand.Rand) *Table {
	n := 1 + rng.IntN(maxEdges)
	edges := map[uint64]bool{0: true}
	shift := rng.IntN(63)
	for len(edges) < n {
		edges[rng.Uint64()>>shift%64+uint64(len(edges))] = true
	}
	t := &Table{}
	for e := range edges {
		t.Edges = append(t.Edges, e)
	}
	slices.Sort(t.Edges)
	for _, c := range rng.Perm(maxEdges)[:n] {
		t.Codes = append(t.Codes, uint8(c))
	}
	slices.Sort(t.Codes)
	return t
}

// someValue returns a value at, beside or anywhere between the edges.
func someValue(rng *rand.Rand, edges []uint64) uint64 {
	e := edges[rng.IntN(len(edges))]
	switch rng.IntN(4) {
	case 0:
		return e
	case 1:
		return e - min(e, 1)
	case 2:
		return e + 1
	}
	return rng.Uint64() >> rng.IntN(64)
}

// Rule 7 with a million random tables and values: the code is that of the last edge that is not above the value, its range
// has the value, and a larger value has no smaller code.
func TestRule7Tables(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for range 1_000_000 / 16 {
		table := randomTable(rng)
		if err := table.Validate(); err != nil {
			t.Fatalf("%+v: %v", table, err)
		}
		for range 16 {
			v, w := someValue(rng, table.Edges), someValue(rng, table.Edges)
			want := 0
			for i, e := range table.Edges {
				if e <= v {
					want = i
				}
			}
			code := table.CodeOf(v)
			if code != uint32(table.Codes[want]) {
				t.Fatalf("%+v: %d has code %d, want %d", table, v, code, table.Codes[want])
			}
			r, ok := table.RangeOf(code)
			last := want == len(table.Edges)-1
			if !ok || !r.Contains(v) || r.Lower != table.Edges[want] || r.HasUpper == last || !last && r.Upper != table.Edges[want+1] {
				t.Fatalf("%+v: code %d of %d stands for %+v, %v", table, code, v, r, ok)
			}
			if (v <= w) != (code <= table.CodeOf(w)) && code != table.CodeOf(w) {
				t.Fatalf("%+v: codes of %d and %d are %d and %d", table, v, w, code, table.CodeOf(w))
			}
		}
		for c := range uint32(maxEdges + 2) {
			if _, ok := table.RangeOf(c); ok != slices.Contains(table.Codes, uint8(c)) {
				t.Fatalf("%+v: code %d: %v", table, c, ok)
			}
		}
	}
}

// Rule 7 with a million random steps and values.
func TestRule7Steps(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 1_000_000 {
		s := Steps{Base: rng.Uint64() >> (2 + rng.IntN(62)), Step: 1 + rng.Uint64()>>(24+rng.IntN(40))}
		if err := s.Validate(); err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		i := rng.Uint64N(uint64(Wide.MaxCode()) + 2)
		v := someValue(rng, []uint64{0, s.Base, s.Base + i*s.Step, s.Base + (i+1)*s.Step, math.MaxUint64})
		code := s.CodeOf(v)
		r, ok := s.RangeOf(code)
		if !ok || !r.Contains(v) || r.HasUpper != (code < Wide.MaxCode()) || code > Wide.MaxCode() {
			t.Fatalf("%+v: code %d of %d stands for %+v, %v", s, code, v, r, ok)
		}
		if r.HasUpper && (s.CodeOf(r.Upper-1) != code || s.CodeOf(r.Upper) != code+1) || s.CodeOf(r.Lower) != code || code > 0 && s.CodeOf(r.Lower-1) != code-1 {
			t.Fatalf("%+v: the ends of %+v have other codes than %d", s, r, code)
		}
		if w := someValue(rng, []uint64{v}); v < w && code > s.CodeOf(w) {
			t.Fatalf("%+v: %d has a larger code than %d", s, v, w)
		}
	}
}

func TestScalesAreChecked(t *testing.T) {
	for name, table := range map[string]Table{
		"no edge": {}, "33 edges": *NewTable(make([]uint64, 33)...), "first edge": *NewTable(1, 2), "falling": *NewTable(0, 2, 2),
		"codes missing": {Edges: []uint64{0, 1}, Codes: []uint8{0}}, "codes fall": {Edges: []uint64{0, 1}, Codes: []uint8{1, 1}}, "code 32": {Edges: []uint64{0}, Codes: []uint8{32}},
	} {
		if table.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, s := range []Steps{{}, {Step: maxStep + 1}, {Step: 1, Base: maxBase + 1}} {
		if s.Validate() == nil {
			t.Errorf("%+v: no error", s)
		}
	}
	if _, ok := (&Steps{Step: 1}).RangeOf(Wide.MaxCode() + 1); ok {
		t.Error("a code of 21 bits has a range")
	}
}
