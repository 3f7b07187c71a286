//go:build !all

package e2e

import "time"

// What make test has. make test-all has more: all_test.go.

const (
	everything         = false
	weightedRoutes     = false
	hostsPerLeaf       = 2 // of TestPaths
	silenceSpanDefault = 20 * time.Second
	floodLasts         = 5 * time.Second
	lieSpan            = 12 * time.Second
)

var (
	lieKinds       = []string{"blackhole"}
	muteTopologies = []string{"../../internal/lab/testdata/clos3.yaml"}
)
