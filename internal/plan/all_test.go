//go:build all

package plan

import (
	"testing"

	"github.com/graylink/graylink/test/plancheck"
)

// Numbers of random cases.
const (
	c4AutoSeeds = 20
	c4Seeds     = 20
	closFabrics = 200
	tinyFabrics = 50
)

// newVerifier returns a verifier for programs of all sizes, or skips the test if their solver is not installed.
func newVerifier(t *testing.T) *verifier { return &verifier{solver: plancheck.RequireCLP(t)} }
