//go:build all

package workload

// The whole set of Shows 1 and 2.
const (
	seedsPerKind = 100
	mostRanks    = 512
	calmSeeds    = 200
)
