package routing_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/routing"
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

// BenchmarkTables reviews the tables of 16 spines and 64 leaves with 256 prefixes each, that of one switch as changed, or none, while no
// flow is measured.
func BenchmarkTables(b *testing.B) {
	for _, changed := range []int{0, 1} {
		b.Run(fmt.Sprintf("changed=%d", changed), func(b *testing.B) {
			w := newWorld(worldtest.NewClos(b, 16, 64, 4), 1)
			w.report()
			m := &routing.Moment{Now: w.now, Step: time.Second, Graph: w.g, Switches: w.reports}
			w.watch.Review(m)
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				m.Now = m.Now.Add(m.Step)
				for _, r := range w.reports {
					r.At = m.Now
				}
				for k := range changed {
					w.changeTables(fmt.Sprintf("leaf%d", (i+k)%64+1))
				}
				if found := w.watch.Review(m); len(found) > 0 {
					b.Fatalf("%+v", found[0])
				}
			}
		})
	}
}
