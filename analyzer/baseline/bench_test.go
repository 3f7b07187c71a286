package baseline

import (
	"fmt"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// BenchmarkEstimateOnRoute measures what a temporary flow costs each cycle, beside 100,000 flows with baselines.
func BenchmarkEstimateOnRoute(bench *testing.B) {
	b := NewBook()
	for i := range 100_000 {
		f := fabric.Flow{Src: fmt.Sprintf("h%d/e", i/50), Dst: fmt.Sprintf("h%d/e", i%2000), Number: i % 4}
		leaf, spine, other := fmt.Sprint("l", i/500), fmt.Sprint("s", i%16), fmt.Sprint("l", i%200)
		all := make([]int64, LearnWindows)
		for k := range all {
			all[k] = int64(5000 + i%300 + k)
		}
		b.SeedFlow(f, all, all)
		b.FollowRoute(f, pathBy("1", "2", leaf, spine, other))
	}
	p := pathBy("1", "2", "l1", "s1", "l2")
	for n := range bench.N {
		b.LearnWindows(nil, Learning{Cycle: n})
		b.EstimateOnRoute(p)
	}
}
