//go:build !all

package plan

// Numbers of random cases, of those with the tag all.
const (
	c4Seeds     = 2  // of 20
	closFabrics = 10 // of 200
	tinyFabrics = 10 // of 50
)
