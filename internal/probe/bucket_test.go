package probe

import "testing"

func TestBucket(t *testing.T) {
	b := newBucket(100, 10, 0)
	n := 0
	for range 50 {
		if b.takeToken(0) {
			n++
		}
	}
	for at := int64(0); at <= 1e9; at += ms {
		if b.takeToken(at) {
			n++
		}
	}
	if n < 109 || n > 111 {
		t.Errorf("%d tokens in the burst and one second, want 110", n)
	}
}
