package routing_test

import (
	"testing"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// BenchmarkReview reviews a calm fabric of 16 spines and 64 leaves, with 130,560 directed flows.
func BenchmarkReview(b *testing.B) {
	w := newWorld(worldtest.NewClos(b, 16, 64, 4), 1)
	m := w.moment(func(f fabric.Flow) bool { return f.Number == 0 })
	w.watch.Review(m)
	b.ResetTimer()
	for b.Loop() {
		m.Now = m.Now.Add(m.Step)
		w.watch.Review(m)
	}
}
