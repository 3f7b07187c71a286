package csig

import (
	"fmt"
	"slices"
)

// Range has the values that a code stands for: from Lower on, and below Upper if there is one. The last code of a scale has
// none.
type Range struct {
	Lower    uint64
	Upper    uint64 // 0 without HasUpper
	HasUpper bool
}

// Contains reports whether the code of the range is that of a value.
func (r Range) Contains(v uint64) bool { return v >= r.Lower && (!r.HasUpper || v < r.Upper) }

// maxEdges is the number of codes of a compact tag.
const maxEdges = 32

// Table is the scale of a signal in compact tags. Both slices are as long and rise. The first edge is 0.
type Table struct {
	Edges []uint64 // the smallest value of each code
	Codes []uint8
}

// Validate returns an error that says what is wrong with the table.
func (t *Table) Validate() error {
	switch {
	case len(t.Edges) == 0 || len(t.Edges) > maxEdges:
		return fmt.Errorf("%d edges: 1 to %d are expected", len(t.Edges), maxEdges)
	case len(t.Codes) != len(t.Edges):
		return fmt.Errorf("%d codes: one for each of %d edges is expected", len(t.Codes), len(t.Edges))
	case t.Edges[0] != 0:
		return fmt.Errorf("the first edge is %d: 0 is expected, so that every value has a code", t.Edges[0])
	}
	for i := 1; i < len(t.Edges); i++ {
		if t.Edges[i] <= t.Edges[i-1] || t.Codes[i] <= t.Codes[i-1] {
			return fmt.Errorf("edge %d or its code does not rise", i)
		}
	}
	if last := t.Codes[len(t.Codes)-1]; last >= maxEdges {
		return fmt.Errorf("code %d: 0 to %d is expected", last, maxEdges-1)
	}
	return nil
}

// CodeOf returns the code of a value: that of the last edge that is not above it.
func (t *Table) CodeOf(v uint64) uint32 {
	low, high := 0, len(t.Edges) // Edges[low] <= v, and v < Edges[high]
	for high-low > 1 {
		if mid := (low + high) / 2; t.Edges[mid] <= v {
			low = mid
		} else {
			high = mid
		}
	}
	return uint32(t.Codes[low])
}

// RangeOf returns the values that a code stands for. ok is false for a code that the table does not have.
func (t *Table) RangeOf(code uint32) (r Range, ok bool) {
	if code >= maxEdges {
		return Range{}, false
	}
	i, ok := slices.BinarySearch(t.Codes, uint8(code))
	if !ok {
		return Range{}, false
	}
	r.Lower = t.Edges[i]
	if i+1 < len(t.Edges) {
		r.Upper, r.HasUpper = t.Edges[i+1], true
	}
	return r, true
}

// Bounds of Steps, within which no edge overflows.
const (
	maxBase = 1 << 62
	maxStep = 1 << 40
)

// Steps is the scale of a signal in wide tags: code i begins at base + i*step.
type Steps struct {
	Base, Step uint64
}

// Validate returns an error that says what is wrong with the steps.
func (s *Steps) Validate() error {
	if s.Step == 0 || s.Step > maxStep {
		return fmt.Errorf("step %d: 1 to %d is expected", s.Step, uint64(maxStep))
	}
	if s.Base > maxBase {
		return fmt.Errorf("base %d: at most %d is expected", s.Base, uint64(maxBase))
	}
	return nil
}

// CodeOf returns the code of a value. Values below the base have code 0, and values above the last edge its code.
func (s *Steps) CodeOf(v uint64) uint32 {
	if v < s.Base {
		return 0
	}
	return uint32(min((v-s.Base)/s.Step, uint64(Wide.MaxCode())))
}

// RangeOf returns the values that a code stands for. ok is false for a code that no tag holds.
func (s *Steps) RangeOf(code uint32) (r Range, ok bool) {
	if code > Wide.MaxCode() {
		return Range{}, false
	}
	if code > 0 {
		r.Lower = s.Base + uint64(code)*s.Step
	}
	if code < Wide.MaxCode() {
		r.Upper, r.HasUpper = s.Base+(uint64(code)+1)*s.Step, true
	}
	return r, true
}
