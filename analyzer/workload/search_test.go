package workload

import (
	"testing"
)

// TestSearchDoesNotBranchWithoutEnd has eight operations in a row to each of which half of 64 ranks came late because of the one
// before: 32 to the power of 8 ways back, and 256 ranks of operations to look at. A cause that only the longest way leads to is found.
func TestSearchDoesNotBranchWithoutEnd(t *testing.T) {
	const ranks, step, over = 64, int64(1000), int64(400)
	c := &comm{n: ranks, results: map[opKey]*result{}}
	s := &series{comm: c, shape: shape{op: "AllReduce", peer: -1, from: -1}}
	var late []int
	for r := range ranks {
		p := &process{}
		for k := range int64(9) {
			p.spans = append(p.spans, span{s: s, seq: uint64(k), start: step * k, end: step*k + 900, rank: r, peer: -1, exeOK: k > 0, execOver: over, gapOK: true})
		}
		c.members = append(c.members, p)
		if r%2 == 1 {
			late = append(late, r)
		}
	}
	for k := range uint64(9) {
		c.results[opKey{"AllReduce", k}] = &result{s: s, seq: k, waitOver: over, late: late}
	}
	last := c.results[opKey{"AllReduce", 8}]
	if k := s.causeOf(last, step); k.found() {
		t.Errorf("a cause without one: %+v", k)
	}
	culprit := c.members[ranks-1]
	culprit.spans[1].gapOver = over // it was long outside of any operation before this one
	if k := s.causeOf(last, step); k.proc != culprit || k.rank != ranks-1 {
		t.Errorf("%+v, want rank %d", k, ranks-1)
	}
}
