//go:build all

package plan

// Numbers of random cases.
const (
	c4AutoSeeds = 20
	c4Seeds     = 20
	closFabrics = 200
	tinyFabrics = 50
	// verifiedCells is the size of the largest linear program that test/plancheck solves.
	verifiedCells = 60_000
)
