//go:build !all

package workload

// How much make test measures. The whole set is in make test-all.
const (
	seedsPerKind = 4
	mostRanks    = 16
	calmSeeds    = 8
)
