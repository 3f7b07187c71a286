//go:build all

package workload

// How much make test-all measures of Shows 1 and 2.
const (
	defaultSeeds = 20
	defaultRanks = 64
	defaultCalm  = 200
)
