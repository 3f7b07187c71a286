package workload

import "slices"

// recent is how many of the latest values are judged, and not yet a part of what is normal.
const recent = 8

// history holds the latest values of a quantity, oldest first. Its newest are under judgement.
type history struct {
	values []int64
	size   int
}

func (h *history) push(v int64) {
	if n := len(h.values); n == cap(h.values) && n < h.size {
		h.values = append(make([]int64, 0, min(max(2*n, 8), h.size)), h.values...)
	}
	if len(h.values) == h.size {
		copy(h.values, h.values[1:])
		h.values[len(h.values)-1] = v
		return
	}
	h.values = append(h.values, v)
}

// normal returns the median of the values before the latest ones and their median absolute deviation. It is false for fewer
// than least values.
func (h *history) normal(least int) (median, mad int64, ok bool) {
	n := len(h.values) - recent
	if n < least || n < 1 {
		return 0, 0, false
	}
	var room [historySize]int64 // so that nothing is allocated
	v := append(room[:0], h.values[:n]...)
	median = middle(v)
	for i := range v {
		v[i] = max(v[i]-median, median-v[i])
	}
	return median, middle(v), true
}

// recurring returns the largest of the values before the latest ones that recurs: as many as the 24th part are larger. A step has up
// to eight places, and what is normal at one of them is so at each eighth operation. A single checkpoint counts, and is in no history.
func (h *history) recurring() int64 {
	n := len(h.values) - recent
	if n < 1 {
		return 0
	}
	var room [historySize]int64 // so that nothing is allocated
	v := append(room[:0], h.values[:n]...)
	slices.Sort(v)
	return v[n-1-n/24]
}

// middle returns the upper median. It sorts the values.
func middle(v []int64) int64 {
	slices.Sort(v)
	return v[len(v)/2]
}
