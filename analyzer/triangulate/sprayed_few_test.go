//go:build !all

package triangulate

// sprayedSeeds is the number of seeds of each simulated fault of a sprayed fabric.
const sprayedSeeds = 1
