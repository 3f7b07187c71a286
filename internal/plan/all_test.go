//go:build all

package plan

// Numbers of random cases.
const (
	c4Seeds     = 20
	closFabrics = 200
	tinyFabrics = 50
)
