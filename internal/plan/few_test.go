//go:build !all

package plan

import (
	"testing"

	"github.com/graylink/graylink/test/plancheck"
)

// Numbers of random cases, of those with the tag all.
const (
	c4AutoSeeds = 1  // of 20, with the number of queue pairs chosen
	c4Seeds     = 2  // of 20
	closFabrics = 10 // of 200
	tinyFabrics = 10 // of 50
)

// newVerifier returns a verifier for programs of at most 60,000 cells.
func newVerifier(*testing.T) *verifier { return &verifier{solver: plancheck.Dense{Cells: 60_000}} }
