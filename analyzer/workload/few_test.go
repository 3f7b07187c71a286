//go:build !all

package workload

// How much make test measures of Shows 1 and 2.
const (
	defaultSeeds = 4
	defaultRanks = 16
	defaultCalm  = 8
)
