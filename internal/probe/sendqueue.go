package probe

// sendQueue is a heap of edges, ordered by the time of their next probe.
type sendQueue []*edge

func (q *sendQueue) pushEdge(e *edge) {
	*q = append(*q, e)
	h := *q
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up].next <= h[i].next {
			return
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
}

// siftDown restores the order after the first edge's time was moved to later.
func (q sendQueue) siftDown() {
	for i := 0; ; {
		low := 2*i + 1
		if low >= len(q) {
			return
		}
		if low+1 < len(q) && q[low+1].next < q[low].next {
			low++
		}
		if q[i].next <= q[low].next {
			return
		}
		q[i], q[low] = q[low], q[i]
		i = low
	}
}

// dropGone drops the edges that the configuration no longer has.
func (q *sendQueue) dropGone() {
	old := *q
	*q = nil
	for _, e := range old {
		if !e.gone {
			q.pushEdge(e)
		}
	}
}
