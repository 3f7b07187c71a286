package probe

import (
	"slices"
	"testing"
)

func TestSendQueueIsInOrder(t *testing.T) {
	var q sendQueue
	var want []int64
	for i := range 200 {
		at := int64(i*7919%200) * 3
		q.pushEdge(&edge{next: at, gone: i%5 == 0})
		if i%5 != 0 {
			want = append(want, at)
		}
	}
	slices.Sort(want)
	q.dropGone()
	if len(q) != len(want) {
		t.Fatalf("%d edges, want %d", len(q), len(want))
	}
	for i, at := range want {
		if q[0].next != at {
			t.Fatalf("edge %d is due at %d, want %d", i, q[0].next, at)
		}
		q[0].next = 1 << 60
		q.siftDown()
	}
}
