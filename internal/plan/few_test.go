//go:build !all

package plan

// Numbers of random cases, of those with the tag all.
const (
	c4AutoSeeds = 1  // of 20, with the number of queue pairs chosen
	c4Seeds     = 2  // of 20
	closFabrics = 10 // of 200
	tinyFabrics = 10 // of 50
	// verifiedCells is the size of the largest linear program that test/plancheck solves.
	verifiedCells = 60_000
)
