//go:build !all

package main

// largeFabrics are those whose rows of docs/scaling.md are predicted again. make test-all has them.
var largeFabrics []scalingFabric
