package triangulate

import (
	"runtime"
	"sync"
)

// sumEvidence lets fn add item i of n to one of several arrays of evidence, and sums them.
func sumEvidence(places, n int, fn func(out []evidence, i int)) []evidence {
	workers := runtime.GOMAXPROCS(0)
	if n < 4096 {
		workers = 1
	}
	parts := make([][]evidence, workers)
	splitWork(n, workers, func(w, lo, hi int) {
		parts[w] = make([]evidence, places)
		for i := lo; i < hi; i++ {
			fn(parts[w], i)
		}
	})
	out := parts[0]
	for _, part := range parts[1:] {
		for i := range part {
			out[i].lost += part[i].lost
			out[i].expected += part[i].expected
			out[i].mixedLost += part[i].mixedLost
			out[i].mixedExpected += part[i].mixedExpected
			out[i].late += part[i].late
			out[i].flows += part[i].flows
		}
	}
	return out
}

// splitWork runs fn over n items in contiguous parts, one for each worker.
func splitWork(n, workers int, fn func(worker, lo, hi int)) {
	part := (n + workers - 1) / workers
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { fn(w, min(w*part, n), min((w+1)*part, n)) })
	}
	wg.Wait()
}
