//go:build !all

package workload

// How much make test measures. The whole set is in make test-all.
const (
	seedsPerKind = 3
	mostRanks    = 32
	calmSeeds    = 6
)
