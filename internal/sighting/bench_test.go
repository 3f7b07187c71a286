package sighting

import (
	"testing"
	"time"
)

// BenchmarkRound measures the cost of 50,000 flows that continue to be seen.
func BenchmarkRound(b *testing.B) {
	const flows = 50_000
	t := NewTable(1<<17, 3*time.Second)
	keys := make([]Key, flows)
	for i := range keys {
		keys[i] = flowOf(i)
	}
	now := 1000 * second
	b.ReportAllocs()
	for b.Loop() {
		for i := range keys {
			t.AddSample(&keys[i], Sample{Port: 1, First: now, Last: now, Count: 1})
		}
		t.EndRound(now, func(*Key, uint32) {})
		now += second
	}
}
